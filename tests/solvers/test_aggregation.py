from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from monitors import Asked
from problems import COURTOIS, long_double_distribution
from reference_chains import (
    arrays,
    birth_death,
    blocks_of_digraphs,
    entrywise_error,
    power_long,
)

from lingendice.solvers import levels
from lingendice.solvers.aggregation import contraction, plan, solve_stationary


@pytest.fixture
def iterative(monkeypatch):
    """Keep small chains from being eliminated at once, so that the iterations themselves are tested."""
    import lingendice.solvers.aggregation as module

    monkeypatch.setattr(module, "DENSE_LIMIT", 3)
    monkeypatch.setattr(levels, "DENSE_LIMIT", 40)
    monkeypatch.setattr(levels, "CLUSTERS", 16)


def test_courtois_matrix_by_elimination():
    result = solve_stationary(*arrays(COURTOIS))
    assert result.converged
    assert result.reason == "dense"
    assert entrywise_error(result.distribution, long_double_distribution(COURTOIS)) < 1e-14


def test_courtois_matrix_by_iteration(iterative):
    result = solve_stationary(*arrays(COURTOIS))
    assert result.converged
    assert entrywise_error(result.distribution, long_double_distribution(COURTOIS)) < 1e-10


@pytest.mark.parametrize("coupling", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_nearly_decomposable_chains(iterative, coupling, spread):
    for seed in range(2):
        weights = blocks_of_digraphs(300, 9, coupling, seed, spread)
        result = solve_stationary(*arrays(weights))
        assert result.converged
        assert entrywise_error(result.distribution, long_double_distribution(weights)) < 1e-10


def test_three_scales_of_coupling(iterative):
    rng = np.random.default_rng(4)
    weights = blocks_of_digraphs(320, 32, 1e-4, 1)
    half = rng.permutation(320) < 160
    weights[np.ix_(half, ~half)] *= 1e-6
    weights[np.ix_(~half, half)] *= 1e-6
    assert sp.csgraph.connected_components(sp.csr_matrix(weights), connection="strong")[0] == 1
    result = solve_stationary(*arrays(weights))
    exact = long_double_distribution(weights)
    assert not result.converged or entrywise_error(result.distribution, exact) < 1e-10
    assert result.converged


def test_many_blocks_are_solved_by_recursion(monkeypatch):
    monkeypatch.setattr(levels, "DENSE_LIMIT", 20)
    weights = blocks_of_digraphs(400, 60, 1e-5, 3)
    result = solve_stationary(*arrays(weights))
    assert result.reason == "blocks"
    assert result.converged
    assert entrywise_error(result.distribution, long_double_distribution(weights)) < 1e-10


@pytest.mark.parametrize("step", [1, -1, 3])
@pytest.mark.parametrize("n", [7, 1000])
def test_cycles_of_any_order_have_the_uniform_distribution(step, n, iterative):
    matrix = sp.csr_matrix((np.ones(n), (np.arange(n), (np.arange(n) + step) % n)), shape=(n, n))
    result = solve_stationary(*arrays(matrix))
    assert result.converged
    np.testing.assert_allclose(result.distribution, 1 / n, rtol=1e-10)


def test_bipartite_grid():
    side = 24
    line = sp.diags([np.ones(side - 1), np.ones(side - 1)], [1, -1])
    rng = np.random.default_rng(0)
    matrix = sp.csr_matrix(sp.kron(line, sp.eye(side)) + sp.kron(sp.eye(side), line))
    matrix.data *= rng.uniform(0.1, 1.0, matrix.nnz)
    result = solve_stationary(*arrays(matrix))
    assert result.converged
    assert entrywise_error(result.distribution, long_double_distribution(matrix.toarray())) < 1e-10


def test_reversible_scale_free_like_chain_needs_few_sweeps():
    rng = np.random.default_rng(2)
    n = 3000
    older = (rng.random((n, 5)) ** 2 * np.arange(n)[:, None]).astype(int)
    newer = np.repeat(np.arange(n), 5)
    graph = sp.csr_matrix((rng.uniform(0.1, 1, 5 * n), (newer, older.ravel())), shape=(n, n))
    matrix = sp.csr_matrix(graph + graph.T)
    result = solve_stationary(*arrays(matrix))
    assert result.reason == "sweeps"
    assert result.converged
    assert result.n_iter < 40
    assert entrywise_error(result.distribution, power_long(matrix, 200)) < 1e-10
    degrees = np.asarray(matrix.sum(axis=1)).ravel()
    assert entrywise_error(result.distribution, degrees / degrees.sum()) < 1e-10


@pytest.mark.parametrize(("up", "down"), [(0.5, 0.5), (0.3, 0.3), (0.48, 0.52), (0.2, 0.5)])
def test_birth_death_is_right_or_not_converged(up, down):
    matrix, exact = birth_death(700, up, down)
    result = solve_stationary(*arrays(matrix), max_cycles=30)
    if result.converged:
        assert entrywise_error(result.distribution, exact) < 1e-10
    else:
        assert np.all(np.isfinite(result.distribution))


def test_masses_beyond_the_range_of_doubles_are_not_convergence():
    """The distribution falls off as 2^-k over 3000 states: most entries underflow, in any order of the
    states."""
    matrix, _ = birth_death(3000, 0.3, 0.6)
    shuffled = np.random.default_rng(0).permutation(3000)
    for chain in (matrix, matrix[shuffled][:, shuffled]):
        result = solve_stationary(*arrays(chain), max_cycles=20)
        assert not result.converged
        assert result.distribution.sum() == pytest.approx(1.0)


def test_two_expanders_joined_by_one_edge():
    """Slow by shape alone: no weight is small, and the changes between sweeps are tiny."""
    rng = np.random.default_rng(5)
    n = 500
    source = np.repeat(np.arange(n), 8)
    target = np.where(source < n // 2, 0, n // 2) + rng.integers(0, n // 2, source.size)
    matrix = sp.csr_matrix((rng.uniform(0.2, 1.0, source.size), (source, target)), shape=(n, n))
    ring = sp.csr_matrix((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    matrix = sp.csr_matrix(matrix + ring)
    result = solve_stationary(*arrays(matrix))
    assert result.converged
    assert entrywise_error(result.distribution, long_double_distribution(matrix.toarray())) < 1e-10


@given(st.integers(0, 10_000), st.floats(-13, -1), st.integers(2, 12))
@settings(max_examples=12, deadline=None)
def test_never_converged_and_wrong(seed, exponent, blocks):
    weights = blocks_of_digraphs(300, blocks, 10**exponent, seed, spread=2.0)
    result = solve_stationary(*arrays(weights))
    assert (
        not result.converged
        or entrywise_error(result.distribution, long_double_distribution(weights)) < 1e-10
    )


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_row_scales_and_staying_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    weights = blocks_of_digraphs(300, 3, 1e-2, seed)
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    scaled = probabilities * 10 ** rng.uniform(-3, 3, (300, 1))
    first, second = solve_stationary(*arrays(probabilities)), solve_stationary(*arrays(scaled))
    assert first.converged
    assert second.converged
    np.testing.assert_allclose(first.distribution, second.distribution, rtol=2e-10)
    stay = rng.uniform(0, 0.999, 300)
    lazy = (1 - stay)[:, None] * probabilities + np.diag(stay)
    slow = solve_stationary(*arrays(lazy))
    expected = first.distribution / (1 - stay)
    np.testing.assert_allclose(slow.distribution, expected / expected.sum(), rtol=2e-10)


def test_estimate_bounds_the_error_within_reason():
    for seed in range(5):
        weights = blocks_of_digraphs(300, 1, 0.0, seed)
        result = solve_stationary(*arrays(weights), tol=1e-6)
        assert result.converged
        assert entrywise_error(result.distribution, long_double_distribution(weights)) <= max(
            2 * result.error, 1e-13
        )
        assert result.error <= 1e-6


def test_inputs_stay_and_repeats_agree():
    weights = arrays(blocks_of_digraphs(400, 8, 1e-5, 1))
    copies = [part.copy() for part in weights]
    first, second = solve_stationary(*weights), solve_stationary(*weights)
    for part, copy in zip(weights, copies, strict=True):
        np.testing.assert_array_equal(part, copy)
    np.testing.assert_array_equal(first.distribution, second.distribution)


def test_two_threads_agree_with_one(monkeypatch):
    monkeypatch.setattr(levels, "PARALLEL_FROM", 0)
    monkeypatch.setattr(levels, "row_ranges", partial(levels.row_ranges, work=500))
    weights = arrays(blocks_of_digraphs(500, 1, 0.0, 1))
    one, two = solve_stationary(*weights, threads=1), solve_stationary(*weights, threads=2)
    assert one.converged
    assert two.converged
    np.testing.assert_allclose(one.distribution, two.distribution, rtol=2e-10)


def test_stops_when_told_and_returns_what_it_has():
    calls = []

    def should_stop() -> bool:
        calls.append(None)
        return len(calls) > 6

    result = solve_stationary(*arrays(blocks_of_digraphs(400, 1, 0.0, 1)), monitor=Asked(should_stop))
    assert result.stopped
    assert not result.converged
    assert result.distribution.sum() == pytest.approx(1.0)
    assert np.all(result.distribution > 0)


def test_too_few_cycles_are_not_convergence(iterative):
    matrix, _ = birth_death(400, 0.5, 0.5)
    result = solve_stationary(*arrays(matrix), max_cycles=1)
    assert not result.converged


def test_a_dead_end_is_named():
    with pytest.raises(ValueError, match="state 1 has no way out"):
        solve_stationary(*arrays(sp.csr_matrix(np.array([[0.5, 0.5], [0.0, 1.0]]))))


def test_single_state():
    result = solve_stationary(*arrays(np.ones((1, 1))))
    assert result.converged
    assert result.distribution.tolist() == [1.0]


def test_plan_tells_three_kinds_apart_and_is_used():
    mixing = arrays(blocks_of_digraphs(400, 1, 0.0, 0))
    gaps = arrays(blocks_of_digraphs(400, 8, 1e-7, 0))
    slow = arrays(birth_death(600, 0.5, 0.5)[0])
    assert plan(*mixing).method == "sweeps"
    assert plan(*slow).method == "direct"
    known = plan(*gaps)
    assert (known.method, known.blocks) == ("aggregation", 8)
    result = solve_stationary(*gaps, plan=known)
    assert result.converged
    assert (
        entrywise_error(result.distribution, long_double_distribution(blocks_of_digraphs(400, 8, 1e-7, 0)))
        < 1e-10
    )


def test_contraction_does_not_trust_one_ratio():
    assert contraction([1.0, 0.5], (2, 4, 6)) is None
    steady = [0.5**k for k in range(10)]
    assert 0.5 < contraction(steady, (2, 4, 6)) < 0.6
    assert contraction([*steady, 0.5**9, 0.5**9], (2, 4, 6)) == 1.0
