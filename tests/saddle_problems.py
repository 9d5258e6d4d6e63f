"""Small chains and features that the tests of the saddle-point solvers share."""

from __future__ import annotations

import numpy as np

from lingendice.data.counts import Counts
from lingendice.model.compose import Choices, compose
from lingendice.model.features import MatrixFeatures, Tabular

F_DIVERGENCES = ("chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation", "weighted_l2")
EVERY_DIVERGENCE = (*F_DIVERGENCES, "wasserstein", "mmd", "dudley")
SMOOTH = ("chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "weighted_l2")


def chain_counts(n=12, seed=0, rate=1.0):
    """Counts of an irreducible chain: a random one with a cycle through all states."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rate, (n, n))
    counts[np.arange(n), (np.arange(n) + 1) % n] += 1
    return counts


def chain_flow(n=12, gamma=1.0, seed=0, redirect=True, **choices):
    """The flow of such a chain."""
    counts = Counts.from_matrix(chain_counts(n, seed))
    return compose(counts, Choices(gamma=gamma, **choices)).flow(closed=redirect)


def exact_ratio(counts, gamma, initial=None):
    """tau by dense linear algebra."""
    n = counts.shape[0]
    step = counts / counts.sum(axis=1, keepdims=True)
    if gamma == 1.0:
        system = np.vstack([step.T - np.eye(n), np.ones(n)])
        mu = np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]
    else:
        initial = np.full(n, 1.0 / n) if initial is None else initial
        mu = np.linalg.solve(np.eye(n) - gamma * step.T, (1.0 - gamma) * initial)
    return mu / (counts.sum(axis=1) / counts.sum())


def some_features(n, d, seed=0):
    """Nonnegative features with a constant."""
    rng = np.random.default_rng(seed)
    return MatrixFeatures(np.column_stack([np.ones(n), rng.uniform(0.0, 1.0, (n, d - 1))]))


def tabular(n):
    """The identity."""
    return Tabular(n)
