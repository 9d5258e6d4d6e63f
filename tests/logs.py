"""A small MDP, logs of it, and its exact answers."""

from __future__ import annotations

import numpy as np

import lingendice as lg

S, A = 6, 3


def random_mdp():
    """A small MDP with a target policy, a behavior and an initial distribution."""
    rng = np.random.default_rng(5)
    return {
        "kernel": rng.dirichlet(np.full(S, 0.5), size=(S, A)),
        "reward": rng.normal(size=(S, A)),
        "policy": rng.dirichlet(np.ones(A), size=S),
        "behavior": rng.dirichlet(np.full(A, 3.0), size=S),
        "initial": rng.dirichlet(np.ones(S)),
    }


def walk(mdp, n_episodes, n_steps, seed, ending=0.0):
    """Log by inverse transform, all episodes side by side; ``ending`` is the chance of a terminal step."""
    rng = np.random.default_rng(seed)

    def draw(distributions):
        return np.minimum(
            (rng.random(len(distributions))[:, None] > np.cumsum(distributions, axis=1)).sum(axis=1),
            distributions.shape[1] - 1,
        )

    state = draw(np.tile(mdp["initial"], (n_episodes, 1)))
    running = np.ones(n_episodes, dtype=bool)
    rows = []
    for step in range(n_steps):
        action = draw(mdp["behavior"][state])
        following = draw(mdp["kernel"][state, action])
        reward = mdp["reward"][state, action] + rng.normal(size=n_episodes)
        ends = rng.random(n_episodes) < ending
        for e in np.flatnonzero(running):
            rows.append((e, step, state[e], action[e], reward[e], following[e], ends[e]))
        running &= ~ends
        state = following
    rows.sort()
    e, _, s, a, r, s2, end = map(np.array, zip(*rows, strict=True))
    return {"state": s, "action": a, "reward": r, "next_state": s2, "episode": e, "terminal": end}


def count(log, keep=True, **changes):
    if not log["terminal"].any():
        log = log | {"terminal": None}
    return lg.Counts.from_transitions(**(log | changes), n_states=S, n_actions=A, keep_episodes=keep)


def logged_mdp():
    """The MDP and a small log of it, counted with its episodes."""
    mdp = random_mdp()
    return mdp, count(walk(mdp, 20, 30, seed=1))


def exact(mdp, gamma):
    """True value and distribution over states, by a dense solve."""
    chain = np.einsum("sa,sat->st", mdp["policy"], mdp["kernel"])
    reward = (mdp["policy"] * mdp["reward"]).sum(axis=1)
    if gamma < 1:
        distribution = np.linalg.solve((np.eye(S) - gamma * chain).T, (1 - gamma) * mdp["initial"])
    else:
        distribution = np.linalg.solve(np.vstack([(np.eye(S) - chain).T[1:], np.ones(S)]), np.eye(S)[-1])
    return distribution @ reward, distribution
