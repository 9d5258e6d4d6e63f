"""The shrinkage estimate and its interval over raw transitions: loops and dense solves, no library."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq, nnls
from scipy.stats import t as student

import lingendice as lg


class ByHand:
    """Every state must have outgoing transitions."""

    def __init__(self, log, pi, gamma):
        self.s, self.a = np.asarray(log["state"]), np.asarray(log["action"])
        self.s2, self.r = np.asarray(log["next_state"]), np.asarray(log["reward"], dtype=float)
        self.episode, self.end = np.asarray(log["episode"]), np.asarray(log["terminal"], dtype=bool)
        self.pi, self.gamma, self.N = pi, gamma, len(self.s)
        self.S, self.A = pi.shape
        self.k = np.zeros(pi.shape)
        np.add.at(self.k, (self.s, self.a), 1)
        self.n = self.k.sum(axis=1)
        assert self.n.min() > 0
        first = np.r_[True, self.episode[1:] != self.episode[:-1]]
        self.first = self.s[first]
        self.mu0 = np.bincount(self.first, minlength=self.S) / self.first.size
        self.run()

    def chain(self, W):
        """P over states under W; a terminal step is lost, traps are left once in n + 1 visits (gamma = 1)."""
        P, r = np.zeros((self.S, self.S)), np.zeros(self.S)
        for s, a, s2, reward, end in zip(self.s, self.a, self.s2, self.r, self.end, strict=True):
            share = W[s, a] / self.k[s, a]
            r[s] += share * reward
            if not end:
                P[s, s2] += share
        if self.gamma == 1 and self.end.any():
            steps = np.eye(self.S) + P
            for _ in range(self.S):
                steps = np.minimum(steps @ steps, 1.0)
            trap = steps @ (P.sum(axis=1) < 1 - 1e-9) == 0
            onward = np.bincount(self.s2[~self.end], minlength=self.S) / self.N
            out = np.where(trap, 1 / (self.n + 1), 0.0)
            P = (1 - out)[:, None] * P + out[:, None] * onward
        return P, r

    def stationary(self, P, eps):
        """Of the exact equation, or of the ridge problem by nonnegative least squares."""
        if self.gamma == 1 and self.end.any():
            visits = np.linalg.solve((np.eye(self.S) - P).T, self.mu0)
            self.length = visits.sum()
            return visits / visits.sum(), None
        if eps == 0:
            return np.linalg.solve((np.eye(self.S) - self.gamma * P).T, (1 - self.gamma) * self.mu0), None
        q = np.sqrt(self.n / self.N)
        M = (np.diag(q**2) - self.gamma * (q[:, None] ** 2 * P).T) / np.outer(q, q)
        stacked = np.vstack([M, q, math.sqrt(eps) * np.eye(self.S)])
        right = np.r_[(1 - self.gamma) * self.mu0 / q, 1.0, math.sqrt(eps) * q]
        y = nnls(stacked, right, maxiter=10_000)[0]
        free = y > 0

        def adjoint(f):
            H = M.T @ M + np.outer(q, q) + eps * np.eye(self.S)
            u = np.zeros(self.S)
            u[free] = np.linalg.solve(H[np.ix_(free, free)], (q * f)[free])
            return M @ u / q

        return y * q / (y @ q), adjoint

    def features(self, s, a, k, n):
        m = (self.k.sum(axis=0) + 0.5) / (self.N + 0.5 * self.A)
        logged, wanted = math.log((k + m[a]) / (n + 1)) + 1.5, self.pi[s, a]
        return np.array([1.0, logged, math.log(wanted + 0.02) + 2, 2 * wanted, k == 0])

    def run(self):
        s, a, k, n, pi, gamma = self.s, self.a, self.k, self.n, self.pi, self.gamma
        rows = range(self.N)
        X = np.array([self.features(s[i], a[i], k[s[i], a[i]] - 1, n[s[i]] - 1) for i in rows])
        Xc = np.array([self.features(x, b, k[x, b], n[x]) for x in range(self.S) for b in range(self.A)])
        eps = 0.0 if self.end.any() else max(0.0, 1 / self.N - 10 * (1 - gamma) ** 2)
        kappa, delta = 1.0, np.zeros(pi.shape)
        kx, nx = k[s, a], n[s]
        for turn in range(2):
            give = np.where(k == 0, 1.0, kappa / np.where(k > 0, k + kappa, 1))
            W = pi * (1 - give) + (pi * give).sum(axis=1, keepdims=True) * k / n[:, None]
            P, r = self.chain(W)
            distribution, adjoint = self.stationary(P, eps)
            earned = r + (pi * give * delta).sum(axis=1)
            center = distribution @ earned if eps > 0 and gamma == 1 else 0.0
            if eps == 0:
                V = np.linalg.solve(np.eye(self.S) - gamma * P, earned)
            else:
                mean = distribution @ earned
                V = adjoint(earned - mean) + (mean / (1 - gamma) if gamma < 1 else 0.0)
            after = np.where(self.end, 0.0, V[self.s2])
            y = self.r - center + gamma * after
            Vb = np.array([y[s == x].mean() for x in range(self.S)])
            donor = nx >= 2
            D = np.where(donor, (y - Vb[s]) * nx / np.maximum(nx - 1, 1), 0.0)
            w = np.where(donor, np.sqrt(distribution[s] * pi[s, a]) / (kx - 0.8), 0.0)
            w *= w.sum() / (w**2).sum()
            H, b = 3 * np.eye(X.shape[1]) + (X.T * w) @ X, X.T @ (w * D)
            agreement = np.zeros(self.S)
            for i in rows:
                mine = s == s[i]
                out = np.linalg.solve(H - (X[mine].T * w[mine]) @ X[mine], b - X[mine].T @ (w * D)[mine])
                agreement[s[i]] += w[i] * D[i] * (X[i] @ out)
            total = agreement.sum()
            keep = max(0.0, 1 - (agreement**2).sum() / total**2) if total > 0 else 0.0
            beta = keep * np.linalg.solve(H, b)
            delta = (Xc @ beta).reshape(pi.shape)
            used = kappa
            if turn == 0:
                kappa = self.strength(y, D, distribution)
        self.kappa, self.gate, self.delta, self.policy, self.V, self.distribution = (
            used,
            keep,
            delta,
            W,
            V,
            distribution,
        )
        rho = (pi * give * delta).sum(axis=1)
        self.ridge_error, value = 0.0, distribution @ (r + rho)
        if eps > 0:
            d = np.diff([value, *(self.stationary(P, eps / f)[0] @ (r + rho) for f in (10, 100))])
            growing = abs(d[1]) >= abs(d[0])
            value += d[0] * 10 / 9 if growing else d[0] + d[1] * 10 / 9
            self.ridge_error = abs(d[0]) if growing else min(abs(d[0]), abs(d[1]) / (1 - abs(d[1] / d[0])))
        self.value, self.y, self.D, self.w = value, y, D, w
        self.X, self.Xc, self.H, self.beta, self.Vb = X, Xc, H, beta, Vb
        self.mass = distribution[:, None] * pi * give
        self.interval()

    def strength(self, y, D, distribution):
        noise, adv, weights = [], [], [[], []]
        for x in range(self.S):
            for b in range(self.A):
                mine = (self.s == x) & (self.a == b)
                k, u = mine.sum(), distribution[x] * self.pi[x, b] / (mine.sum() + 1)
                if k >= 2:
                    noise.append(u * y[mine].var(ddof=1))
                    weights[0].append(u)
                if k >= 2 and self.n[x] >= 3:
                    pairs = np.outer(D[mine], D[mine])
                    adv.append(u * (pairs.sum() - np.trace(pairs)) / (k * (k - 1)))
                    weights[1].append(u)
        adv = max(sum(adv) / sum(weights[1]), 0.0)
        ratio = sum(noise) / sum(weights[0]) / max(adv, 1e-300)
        return min(1.0, ratio) if ratio > 1e-9 else 0.0

    def interval(self):
        """Standard error by episode, allowance, and half-width at 95 %, transition by transition."""
        s, a, k, n, y, kappa = self.s, self.a, self.k, self.n, self.y, self.kappa
        mean = self.Vb @ self.distribution / self.distribution.sum()
        pull = np.linalg.solve(self.H, self.mass.ravel() @ self.Xc)
        moved, residual, direct = np.zeros(self.first.size), np.zeros(self.N), np.zeros(self.N)
        number = np.unique(self.episode, return_inverse=True)[1]
        for i in range(self.N):
            kx, nx = k[s[i], a[i]], n[s[i]]
            prior = (self.Vb[s[i]] * nx - y[i]) / (nx - 1) if nx > 1 else mean
            prior += self.X[i] @ self.beta
            others = y[(s == s[i]) & (a == a[i])].sum() - y[i]
            Q = (others + kappa * prior) / (kx - 1 + kappa) if kx > 1 else prior
            residual[i] = (y[i] - Q) * math.sqrt((kx - 1 + kappa) / (kx + kappa))
            direct[i] = self.distribution[s[i]] * self.policy[s[i], a[i]] / kx
            through = self.gate * self.w[i] * (self.X[i] @ pull) * nx / max(nx - 1, 1)
            moved[number[i]] += (direct[i] + through) * residual[i]
        V0 = self.V[self.first]
        fresh = 1 - self.gamma
        if self.gamma == 1 and self.end.any():
            fresh = 1 / self.length
        moved += fresh * (V0 - V0.mean()) / V0.size
        G = V0.size
        self.se = math.sqrt(G / (G - 1) * (moved**2).sum())
        spread = math.sqrt((self.w * self.D**2).sum() / self.w.sum())
        never = k == 0
        unlogged = self.mass[never].sum()
        expected = (self.distribution * (k == 1).sum(axis=1) / (n + 1)).sum()
        self.fill = spread * (0.15 * unlogged + 1.75 * max(unlogged - expected, 0.0))
        span = max(np.abs(residual).max(), np.ptp(self.r))
        self.outcomes = 3 * (direct**2).sum() / self.distribution.sum() * span
        after = np.where(self.end, -1, self.s2)
        same = (s[:, None] == s) & (a[:, None] == a) & (after[:, None] == after)
        once = (direct * residual)[(same.sum(axis=1) == 1) & (k[s, a] > 1)]
        self.outcomes += min(abs(once.sum()), 3 * math.sqrt((once**2).sum()))
        bias = self.fill + self.ridge_error + self.outcomes
        share = moved**2 / (moved**2).sum()
        noise = student(min(G - 1, 1 / (share**2).sum()), loc=bias, scale=self.se)
        widest = bias + 1e4 * self.se
        self.half = brentq(lambda half: noise.cdf(half) - noise.cdf(-half) - 0.95, 0.0, widest)


FEW = {"n_episodes": 12, "n_steps": 8}


def few_actions(mdp):
    """A behavior that leaves some actions of the target out of a short log, the worse ones."""
    skewed = mdp["behavior"] ** 4
    skewed /= skewed.sum(axis=1, keepdims=True)
    return mdp | {"behavior": skewed, "reward": mdp["reward"] + 2 * np.log(skewed + 0.02)}


def deterministic_log(n_episodes, n_steps, seed):
    """A ring walked forwards or back, without noise."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, (n_episodes, n_steps))
    place = np.cumsum(np.c_[rng.integers(0, 5, n_episodes), 2 * action - 1], axis=1) % 5
    reward = place[:, :-1] * 1.0 + 0.5 * action
    episode = np.repeat(np.arange(n_episodes), n_steps)
    return lg.Counts.from_transitions(
        place[:, :-1].ravel(), place[:, 1:].ravel(), action=action.ravel(), reward=reward.ravel(),
        episode=episode, n_states=5, n_actions=2, keep_episodes=True,
    )  # fmt: skip


def small_log(seed, kind):
    """Few states and episodes; equal rewards, thirds by the cell, or noisy ones; often no noise."""
    rng = np.random.default_rng(seed)
    n_states, n_actions = rng.integers(2, 7), rng.integers(1, 4)
    kernel = rng.dirichlet(np.full(n_states, 0.5), size=(n_states, n_actions))
    if rng.random() < 0.5:
        kernel = np.eye(n_states)[rng.integers(0, n_states, (n_states, n_actions))]
    reward = np.full((n_states, n_actions), 1.1)
    if kind != "equal":
        reward = rng.integers(0, 3, (n_states, n_actions)) / 3
    behavior = rng.dirichlet(np.ones(n_actions), size=n_states)
    rows = []
    for episode in range(rng.integers(2, 9)):
        state = rng.integers(n_states)
        for _ in range(rng.integers(1, 9)):
            action = rng.choice(n_actions, p=behavior[state])
            following = rng.choice(n_states, p=kernel[state, action])
            noise = rng.normal() if kind == "noisy" else 0.0
            rows.append((state, action, following, reward[state, action] + noise, episode))
            state = following
    log = dict(
        zip(("state", "action", "next_state", "reward", "episode"), zip(*rows, strict=True), strict=True)
    )
    return {name: np.array(column) for name, column in log.items()}, rng.dirichlet(
        np.ones(n_actions), n_states
    )
