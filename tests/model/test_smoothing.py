"""Marginal likelihood of a Dirichlet prior against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

import lingendice as lg
from lingendice.kernels.sparse_rows import dirichlet_log_likelihood
from lingendice.model.smoothing import marginal_likelihood_weight


def reference(table, weight):
    n = table.shape[1]
    alpha = weight / n
    total = gammaln(weight) - gammaln(table.sum(axis=1) + weight)
    return float((total[:, None] / n + gammaln(table + alpha) - gammaln(alpha)).sum())


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(12, 2.0 / 12), size=12)
    return np.array(
        [rng.multinomial(size, row) for size, row in zip([0, 1, 2, 5] * 3, rows, strict=True)] * 1
    )


def test_likelihood_of_whole_and_fractional_counts(table):
    for counts in (table, table * 1.5):
        held = lg.Counts.from_matrix(counts)
        for weight in (0.01, 1.0, 300.0):
            found = dirichlet_log_likelihood(held.indptr, held.count.astype(float), 1 / 12, weight)
            assert found == pytest.approx(reference(counts, weight), rel=1e-12)


def test_the_weight_is_the_most_likely(table):
    best = minimize_scalar(lambda t: -reference(table, np.exp(t)), bounds=(-9, 9), method="bounded")
    assert marginal_likelihood_weight(lg.Counts.from_matrix(table)) == pytest.approx(np.exp(best.x), rel=1e-3)


def test_automatic_smoothing_is_that_weight(table):
    counts = lg.Counts.from_matrix(table)
    with pytest.warns(lg.LeakWarning):
        found = lg.solve(counts, smoothing="auto")
    weight = marginal_likelihood_weight(counts)
    smoothed = (table + weight / 12) / (table.sum(axis=1, keepdims=True) + weight)
    system = np.vstack([np.eye(12) - smoothed.T, np.ones(12)])
    distribution = np.linalg.lstsq(system, np.append(np.zeros(12), 1.0), rcond=None)[0]
    assert np.allclose(found.stationary, distribution)
