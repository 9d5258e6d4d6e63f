"""Chains and MDPs with known answers, and slow but independent ways to find answers."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

import lingendice as lg


def rational_distribution(matrix) -> np.ndarray:
    """Stationary distribution of an irreducible chain by Gaussian elimination over the rationals.

    Rows are normalized exactly, so the answer is that of the floating-point entries as given.
    """
    rows = [[Fraction(float(entry)) for entry in row] for row in np.asarray(matrix)]
    n = len(rows)
    rows = [[entry / sum(row) for entry in row] for row in rows]
    # Columns of (I - P)' without the last equation, and sum x = 1 in its place.
    system = [[Fraction(int(i == j)) - rows[i][j] for i in range(n)] + [Fraction(0)] for j in range(n - 1)]
    system.append([Fraction(1)] * n + [Fraction(1)])
    for k in range(n):
        pivot = next(i for i in range(k, n) if system[i][k] != 0)
        system[k], system[pivot] = system[pivot], system[k]
        for i in range(n):
            if i != k and system[i][k] != 0:
                factor = system[i][k] / system[k][k]
                system[i] = [a - factor * b for a, b in zip(system[i], system[k], strict=True)]
    return np.array([float(system[k][n] / system[k][k]) for k in range(n)])


def long_double_distribution(weights: np.ndarray) -> np.ndarray:
    """Distribution of the chain of row-normalized weights: elimination without subtraction, in long
    double."""
    w = np.array(weights, dtype=np.longdouble)
    w /= w.sum(axis=1, keepdims=True)
    n = len(w)
    exits = np.zeros(n, np.longdouble)
    for k in range(n - 1, 0, -1):
        exits[k] = w[k, :k].sum()
        w[:k, :k] += np.outer(w[:k, k] / exits[k], w[k, :k])
    x = np.zeros(n, np.longdouble)
    x[0] = 1
    for k in range(1, n):
        x[k] = x[:k] @ w[:k, k] / exits[k]
    return x / x.sum()


def birth_death_distribution(up, down) -> np.ndarray:
    """Distribution of a birth-death chain by detailed balance, over the rationals."""
    weights = [Fraction(1)]
    for rise, fall in zip(up, down, strict=True):
        weights.append(weights[-1] * Fraction(float(rise)) / Fraction(float(fall)))
    total = sum(weights)
    return np.array([float(weight / total) for weight in weights])


def birth_death(up, down) -> np.ndarray:
    """Transition matrix that rises with ``up[i]`` from i and falls with ``down[i]`` from i + 1."""
    n = len(up) + 1
    matrix = np.zeros((n, n))
    for i in range(n - 1):
        matrix[i, i + 1] = up[i]
        matrix[i + 1, i] = down[i]
    matrix[np.arange(n), np.arange(n)] = 1.0 - matrix.sum(axis=1)
    return matrix


def kandori_mailath_rob(epsilon: float, n_players: int = 27, threshold: float = 1 / 3):
    """Sequential best-response dynamics with mutations: two nearly absorbing ends."""
    n = n_players
    others = np.arange(n + 1) / (n - 1)

    def plays_one(share):
        return np.where(np.isclose(share, threshold), 0.5, share > threshold)

    k = np.arange(n + 1)
    up = (n - k[:-1]) / n * (epsilon / 2 + (1 - epsilon) * plays_one(others[:-1]))
    down = k[1:] / n * (epsilon / 2 + (1 - epsilon) * (1 - plays_one((k[1:] - 1) / (n - 1))))
    return birth_death(up, down), birth_death_distribution(up, down)


COURTOIS = np.array(
    [
        [0.85, 0, 0.149, 0.0009, 0, 0.00005, 0, 0.00005],
        [0.1, 0.65, 0.249, 0, 0.0009, 0.00005, 0, 0.00005],
        [0.1, 0.8, 0.0996, 0.0003, 0, 0, 0.0001, 0],
        [0, 0.0004, 0, 0.7, 0.2995, 0, 0.0001, 0],
        [0.0005, 0, 0.0004, 0.399, 0.6, 0.0001, 0, 0],
        [0, 0.00005, 0, 0, 0.00005, 0.6, 0.2499, 0.15],
        [0.00003, 0, 0.00003, 0.00004, 0, 0.1, 0.8, 0.0999],
        [0, 0.00005, 0, 0, 0.00005, 0.1999, 0.25, 0.55],
    ]
)


class LoggedMdp(NamedTuple):
    """A small MDP with a log of it and a target policy."""

    kernel: np.ndarray
    reward: np.ndarray
    initial: np.ndarray
    policy: np.ndarray
    counts: lg.Counts
    state: np.ndarray
    action: np.ndarray
    rewards: np.ndarray
    next_state: np.ndarray
    episode: np.ndarray


def logged_mdp(seed=0, n_states=6, n_actions=2, n_episodes=40, length=50, sparse=0.5) -> LoggedMdp:
    """A random MDP logged by a uniform behavior."""
    rng = np.random.default_rng(seed)
    kernel = rng.dirichlet(np.full(n_states, sparse), size=(n_states, n_actions))
    reward = rng.normal(size=(n_states, n_actions))
    initial = rng.dirichlet(np.ones(n_states))
    policy = rng.dirichlet(np.ones(n_actions), size=n_states)
    rows = []
    for episode in range(n_episodes):
        state = rng.choice(n_states, p=initial)
        for _ in range(length):
            action = rng.integers(n_actions)
            following = rng.choice(n_states, p=kernel[state, action])
            rows.append((state, action, reward[state, action] + rng.normal(), following, episode))
            state = following
    state, action, rewards, following, episode = map(np.array, zip(*rows, strict=True))
    counts = lg.Counts.from_transitions(
        state, following, action, rewards, episode, n_states=n_states, n_actions=n_actions
    )
    return LoggedMdp(kernel, reward, initial, policy, counts, state, action, rewards, following, episode)


def dense_operator(operator) -> np.ndarray:
    """T over cells as a dense matrix, built entry by entry from the counts and distributions."""
    n_cells, n_states = operator.n_cells, operator.n_states
    n_actions = n_cells // n_states
    table = np.zeros((n_cells, n_states))
    for cell in range(n_cells):
        for entry in range(operator.rows.indptr[cell], operator.rows.indptr[cell + 1]):
            table[cell, operator.rows.indices[entry]] += (
                operator.rows.keep[cell] * operator.rows.weight[entry] / operator.rows.total[cell]
            )
        for hub in range(operator.rows.distribution.shape[0]):
            table[cell] += operator.rows.out[cell, hub] * operator.rows.distribution[hub]
    if operator.policy is None:
        return table
    full = np.zeros((n_cells, n_cells))
    for following in range(n_states):
        for action in range(n_actions):
            full[:, following * n_actions + action] = table[:, following] * operator.policy[following, action]
    return full
