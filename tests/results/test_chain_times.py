"""Times of chains against dense eigenvalues and first-passage times solved one target at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.results import chain_times


def random_chain(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    chain = rng.random((n, n)) ** 3 * (rng.random((n, n)) < 0.6) + 0.1 * (np.eye(n, k=1) + np.eye(n, k=1 - n))
    chain[0, 0] += 0.2
    return chain / chain.sum(axis=1, keepdims=True)


def passage_times(chain):
    """m_ij, mean steps from i to j (0 on the diagonal), and mean steps from j back to j."""
    n = len(chain)
    steps, back = np.zeros((n, n)), np.zeros(n)
    for j in range(n):
        others = np.delete(np.arange(n), j)
        steps[others, j] = np.linalg.solve(
            np.eye(n - 1) - chain[np.ix_(others, others)], np.ones(n - 1)
        )  # by target alone: no distribution and no fundamental matrix
        back[j] = 1.0 + chain[j] @ steps[:, j]
    return steps, back


@pytest.mark.parametrize("seed", range(50))
def test_against_dense_computations(seed):
    chain = random_chain(seed)
    times = lg.audit(chain).times
    steps, back = passage_times(chain)
    np.testing.assert_allclose(times.recurrence, back, rtol=1e-10)
    np.testing.assert_allclose(times.kemeny[0], steps @ (1 / back), rtol=1e-10)  # from every state alike
    sizes = np.sort(np.abs(np.linalg.eigvals(chain)))
    assert times.spectral_gap[0] == pytest.approx(1 - sizes[-2], rel=1e-10, abs=1e-13)
    assert times.relaxation[0] == pytest.approx(1 / (1 - sizes[-2]), rel=1e-10)


def test_a_chain_by_hand():
    times = lg.audit([[90, 10], [30, 70]]).times
    np.testing.assert_allclose(times.recurrence, [4 / 3, 4.0], rtol=1e-14)
    assert times.spectral_gap[0] == pytest.approx(0.4, rel=1e-13)
    assert times.kemeny[0] == pytest.approx(2.5, rel=1e-13)


def test_several_classes_periods_and_transient_states():
    chain = np.zeros((6, 6))
    chain[0, 1] = chain[1, 2] = chain[2, 0] = 1.0  # period 3
    chain[3, 3] = 1.0
    chain[4, [0, 3, 5]] = chain[5, [3, 4, 5]] = 1 / 3
    report = lg.audit(chain)
    assert "relaxation" not in str(report)  # looking is free
    assert report.to_dict()["times"] is None
    times = report.times
    np.testing.assert_allclose(times.recurrence, [3, 3, 3, 1, np.inf, np.inf])
    assert times.periods == (3, 1)
    assert times.spectral_gap == (0.0, 1.0)
    assert times.relaxation == (np.inf, 1.0)
    assert times.kemeny == pytest.approx((1.0, 0.0))  # (0 + 1 + 2) / 3
    assert set(times.how) == {"recurrence", "spectral gap", "Kemeny's constant", "period"}
    assert "relaxation time" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_rows_that_fall_back_to_a_distribution():
    """A state that was never left is followed by the data's own distribution."""
    counts = lg.Counts.from_transitions([0, 0, 1, 2, 2], [1, 3, 2, 0, 3], n_states=4)
    times = lg.audit(counts).times
    chain = lg.audit(counts).operator.chain.dense()
    steps, back = passage_times(chain)
    np.testing.assert_allclose(times.recurrence, back, rtol=1e-12)
    np.testing.assert_allclose(times.kemeny[0], steps[0] @ (1 / back), rtol=1e-12)


def test_large_classes_by_arnoldi(monkeypatch):
    rng = np.random.default_rng(0)
    n = 300
    walk = sparse.lil_array((n, n))
    for k in range(n):
        for to in (max(k - 1, 0), min(k + 1, n - 1), int(rng.integers(n))):
            walk[k, to] += 1 / 3
    exact = lg.audit(walk.tocsr()).times
    monkeypatch.setattr(chain_times, "DENSE_CLASS", 10)
    times = lg.audit(walk.tocsr()).times
    assert times.spectral_gap[0] == pytest.approx(exact.spectral_gap[0], rel=1e-6)
    assert times.kemeny == (None,)
    assert "estimate" in times.how["spectral gap"]
    assert "not cheap" in str(times)
