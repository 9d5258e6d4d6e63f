from __future__ import annotations

import numpy as np
import pytest
from monitors import Asked
from problems import long_double_distribution
from reference_chains import arrays, birth_death, blocks_of_digraphs

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.solvers import adjoint, aggregation, levels
from lingendice.solvers.aggregation import relative_values


def dense_answer(weights, x, reward):
    p = weights / weights.sum(axis=1, keepdims=True)
    n = len(p)
    h = np.linalg.solve(np.eye(n) - p + np.outer(np.ones(n), x), reward - x @ reward)
    return h - x @ h


@pytest.mark.parametrize("limit", [256, 30])
@pytest.mark.parametrize(("blocks", "coupling"), [(1, 0.0), (6, 1e-2), (6, 1e-4)])
def test_matches_the_dense_fundamental_matrix(blocks, coupling, limit, monkeypatch):
    monkeypatch.setattr(levels, "DENSE_LIMIT", limit)
    monkeypatch.setattr(aggregation, "DENSE_LIMIT", limit)
    weights = blocks_of_digraphs(300, blocks, coupling, 3)
    x = long_double_distribution(weights).astype(float)
    reward = np.random.default_rng(0).standard_normal(300)
    result = relative_values(*arrays(weights), x, reward)
    assert result.converged
    expected = dense_answer(weights, x, reward)
    np.testing.assert_allclose(result.h, expected, atol=1e-9 * np.abs(expected).max())
    assert abs(x @ result.h) < 1e-10 * np.abs(result.h).max()


def test_slow_chain_and_its_certificate():
    matrix, exact = birth_death(600, 0.3, 0.3)
    x = exact.astype(float)
    reward = np.linspace(-1, 1, 600)
    result = relative_values(*arrays(matrix), x, reward)
    assert result.converged
    left = reward - result.gain - (result.h - matrix @ result.h)
    assert np.max(np.abs(left)) < 1e-9


def test_residual_of_tiny_couplings_is_explained_by_rounding():
    weights = blocks_of_digraphs(400, 5, 1e-9, 2)
    x = long_double_distribution(weights).astype(float)
    reward = np.random.default_rng(1).standard_normal(400)
    result = relative_values(*arrays(weights), x, reward)
    assert result.converged
    assert result.residual <= max(1e-10, result.floor)
    p = weights / weights.sum(axis=1, keepdims=True)
    shift = np.max(np.abs(reward - result.gain - (result.h - p @ result.h)))
    assert shift < 1e-14 * 100 * np.abs(result.h).max()


def test_constant_reward_has_no_relative_value():
    weights = blocks_of_digraphs(300, 2, 1e-2, 2)
    result = relative_values(*arrays(weights), np.full(300, 1 / 300), np.zeros(300))
    assert result.converged
    assert not result.h.any()


def test_stops_when_told():
    weights = blocks_of_digraphs(400, 1, 0.0, 2)
    x = long_double_distribution(weights).astype(float)
    calls = []

    def should_stop() -> bool:
        calls.append(None)
        return len(calls) > 12

    result = relative_values(*arrays(weights), x, np.arange(400.0), monitor=Asked(should_stop))
    assert result.stopped
    assert not result.converged


def test_a_distribution_with_zeros_is_refused():
    weights = blocks_of_digraphs(300, 1, 0.0, 2)
    x = np.full(300, 1 / 299)
    x[7] = 0.0
    with pytest.raises(ValueError, match=r"x\[7\]"):
        relative_values(*arrays(weights), x, np.arange(300.0))


@pytest.mark.parametrize("gamma", [1.0, 0.999])
@pytest.mark.parametrize("flops", [0.0, 1e12])
def test_values_of_states_heed_limits(monkeypatch, gamma, flops):
    """Elimination, levels and passes alike ask the monitor, and end with finite values."""
    monkeypatch.setattr(adjoint, "MODERATE_FLOPS", flops)
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_VISITS", 1000)
    counts = lg.Counts.from_matrix(blocks_of_digraphs(800, 1, 0.0, 3))
    chain, reward = compose(counts, Choices(gamma=gamma)).chain, np.arange(800.0)
    x = lg.solve(counts).stationary
    asked = []
    expected = adjoint.solve_adjoint(chain, gamma, reward, x, 1e-10, 1, Asked(lambda: asked.append(1)))
    assert len(asked) > 1
    ends = Asked(lambda: True)
    found = adjoint.solve_adjoint(chain, gamma, reward, x, 1e-10, 1, ends)
    assert ends.stopped is not None
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()
