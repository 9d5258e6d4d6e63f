"""Discounted distributions and values against dense solves, NetworkX, igraph and sparse LU."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monitors import Asked
from scipy.sparse.linalg import splu

from lingendice.model import pull_system
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers import discounted
from lingendice.solvers.discounted import discounted_distribution, discounted_values

WEB_GRAPH = Path(__file__).parents[3] / "shared" / "data" / "graphs" / "cnr-2000.npz"


def counted_chain(indptr, indices, target, data=None):
    """A chain of counted rows, whose empty rows go to ``target``."""
    indptr = np.asarray(indptr, dtype=np.int64)
    data = np.ones(np.size(indices)) if data is None else np.asarray(data, dtype=float)
    total = np.bincount(np.repeat(np.arange(indptr.size - 1), np.diff(indptr)), data, indptr.size - 1)
    keep = (total > 0.0) * 1.0
    return TransitionRows(indptr, indices, data, total, keep, (1.0 - keep)[:, None], target[None, :])


def uniform(size: int) -> np.ndarray:
    return np.full(size, 1.0 / size)


def random_chain(size: int, seed: int, distributions: int = 0, weighted: bool = True, density: float = 0.15):
    """A chain with dangling nodes, self-loops and nodes nobody leads to; its dense operator; a
    distribution."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < density)
    matrix[rng.random(size) < 0.2] = 0.0
    matrix[:, rng.random(size) < 0.2] = 0.0
    matrix[np.arange(size), np.arange(size)] *= rng.random(size) < 0.5
    if not weighted:
        matrix = (matrix > 0.0) * 1.0
    csr = sp.csr_matrix(matrix)
    total = matrix.sum(axis=1)
    probabilities = matrix / np.where(total > 0.0, total, 1.0)[:, None]
    initial = rng.dirichlet(np.ones(size))
    if not distributions:
        operator = probabilities + (total == 0.0)[:, None] * initial
        return counted_chain(csr.indptr, csr.indices, initial, csr.data), operator, initial
    keep = np.where(total > 0.0, rng.random(size), 0.0)
    leak = (1.0 - keep)[:, None] * rng.dirichlet(np.ones(distributions), size)
    distribution = rng.dirichlet(np.full(size, 0.3), distributions)
    if distributions > 1:
        distribution[0] = initial
    indptr = csr.indptr.astype(np.int64)
    chain = TransitionRows(indptr, csr.indices, csr.data, total, keep, leak, distribution)
    return chain, keep[:, None] * probabilities + leak @ distribution, initial


def dense_distribution(operator: np.ndarray, initial: np.ndarray, gamma: float) -> np.ndarray:
    """The distribution by a dense solve with one step of refinement in extended precision."""
    system = np.eye(initial.size) - gamma * operator.T
    distribution = np.linalg.solve(system, (1.0 - gamma) * initial)
    exact = np.eye(initial.size, dtype=np.longdouble) - np.longdouble(gamma) * operator.T.astype(
        np.longdouble
    )
    rest = (1 - np.longdouble(gamma)) * initial - exact @ distribution
    return distribution + np.linalg.solve(system, rest.astype(np.float64))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    distributions=st.integers(0, 3),
    weighted=st.booleans(),
    density=st.sampled_from([0.05, 0.15, 0.6]),
    gamma=st.sampled_from([0.0, 1e-6, 0.5, 0.85, 0.99, 0.9999]),
    scattered=st.booleans(),
)
@example(  # a closed periodic block
    size=33, seed=33, distributions=0, weighted=False, density=0.05, gamma=0.9999, scattered=False
)
def test_distribution_matches_dense_solve(size, seed, distributions, weighted, density, gamma, scattered):
    chain, operator, initial = random_chain(size, seed, distributions, weighted, density)
    with mock.patch.object(pull_system, "lacks_locality", return_value=scattered):
        result = discounted_distribution(chain, gamma, initial, tol=1e-9)
    assert result.converged
    assert result.residual / (1.0 - gamma) <= 1e-9
    assert np.abs(result.solution - dense_distribution(operator, initial, gamma)).sum() <= 1e-9
    assert abs(result.solution.sum() - 1.0) < 1e-14 * size + 1e-14
    assert (result.solution >= 0.0).all()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    distributions=st.integers(1, 3),
    weighted=st.booleans(),
    gamma=st.sampled_from([0.0, 1e-6, 0.5, 0.85, 0.99, 0.999]),
)
def test_values_match_dense_solve(size, seed, distributions, weighted, gamma):
    chain, operator, _ = random_chain(size, seed, distributions, weighted)
    reward = np.random.default_rng(seed).normal(size=size)
    result = discounted_values(chain, reward, gamma, tol=1e-8)
    assert result.converged
    exact = np.linalg.solve(np.eye(size) - gamma * operator, reward)
    assert np.abs(result.solution - exact).max() <= 1e-8


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 40), seed=st.integers(0, 10_000), gamma=st.sampled_from([0.5, 0.9, 0.99]))
def test_distribution_and_values_are_adjoint(size, seed, gamma):
    chain, _, initial = random_chain(size, seed, distributions=2)
    reward = np.random.default_rng(seed).random(size)
    distribution = discounted_distribution(chain, gamma, initial, tol=1e-11).solution
    values = discounted_values(chain, reward, gamma, tol=1e-10).solution
    assert distribution @ reward == pytest.approx((1.0 - gamma) * (initial @ values), abs=1e-10)


@pytest.mark.parametrize("gamma", [0.85, 0.999])
def test_components_in_turn_match_dense_solve(gamma, monkeypatch):
    """Blocks of several sizes, one way links between them; small limits force every path."""
    rng = np.random.default_rng(8)
    size = 300
    matrix = np.zeros((size, size))
    bounds = [0, 1, 2, 40, 160, 161, 220, 300]
    for first, last in pairwise(bounds):
        ring = np.roll(np.arange(first, last), -1)
        matrix[np.arange(first, last), ring] = 1.0
        matrix[first, last:] = (rng.random(size - last) < 0.05) * rng.random()
    shuffle = rng.permutation(size)
    matrix = matrix[np.ix_(shuffle, shuffle)]
    csr = sp.csr_matrix(matrix)
    initial = rng.dirichlet(np.ones(size))
    total = matrix.sum(axis=1)
    exact = dense_distribution(matrix / total[:, None], initial, gamma)
    from lingendice.solvers import gauss_seidel as relaxation

    for big in (10, 10**9):
        monkeypatch.setattr(relaxation, "BIG_BLOCK", big)
        monkeypatch.setattr(relaxation, "CALL_WORK", 500)
        seen = []
        real = relaxation.Blocks.solve
        monkeypatch.setattr(
            discounted.Blocks, "solve", lambda *args, real=real, seen=seen: seen.append(1) or real(*args)
        )
        result = discounted_distribution(
            counted_chain(csr.indptr, csr.indices, initial, csr.data), gamma, initial, tol=1e-10
        )
        monkeypatch.setattr(discounted.Blocks, "solve", real)
        assert seen, "the ring of rings is slow enough to be split"
        assert result.converged
        assert np.abs(result.solution - exact).sum() < 1e-10


def test_networkx_agrees():
    networkx = pytest.importorskip("networkx")
    graph = networkx.gnp_random_graph(300, 0.01, seed=3, directed=True)
    matrix = networkx.to_scipy_sparse_array(graph, format="csr")
    expected = networkx.pagerank(graph, alpha=0.85, tol=1e-16, max_iter=2000)
    even = uniform(300)
    chain = counted_chain(matrix.indptr, matrix.indices, even)
    distribution = discounted_distribution(chain, 0.85, even).solution
    np.testing.assert_allclose(distribution, [expected[node] for node in range(300)], atol=1e-12, rtol=0)


def test_igraph_agrees_on_a_scale_free_graph_for_every_number_of_threads():
    igraph = pytest.importorskip("igraph")
    graph = igraph.Graph.Barabasi(30_000, m=8, directed=True)
    matrix = sp.csr_matrix(graph.get_adjacency_sparse())
    expected = np.array(graph.pagerank(damping=0.85, implementation="prpack"))
    for threads in (1, 2, 3):
        even = uniform(30_000)
        chain = counted_chain(matrix.indptr, matrix.indices, even, matrix.data)
        result = discounted_distribution(chain, 0.85, even, threads=threads)
        assert result.converged
        assert np.abs(result.solution - expected).sum() < 2e-10


def test_entries_are_relatively_accurate():
    rng = np.random.default_rng(0)
    size = 1_000
    matrix = sp.random(size, size, 0.006, format="csr", random_state=rng)
    total = np.asarray(matrix.sum(axis=1)).ravel()
    kept = sp.diags(0.9 / np.where(total > 0.0, total, 1.0)) @ matrix
    exact = splu(sp.csc_matrix(sp.eye(size) - kept.T)).solve(np.full(size, 1.0 / size))
    exact /= exact.sum()
    even = uniform(size)
    chain = counted_chain(matrix.indptr, matrix.indices, even, matrix.data)
    distribution = discounted_distribution(chain, 0.9, even, tol=1e-13).solution
    assert np.max(np.abs(distribution / exact - 1.0)) < 1e-11


def test_one_thread_gives_the_same_bits_and_inputs_stay(monkeypatch):
    chain, _, initial = random_chain(200, 1, distributions=2)
    before = [np.array(value) for value in (chain.indptr, chain.indices, chain.weight, chain.out, initial)]
    reward = np.arange(200.0)
    runs = [discounted_distribution(chain, 0.95, initial, threads=1).solution for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    runs = [discounted_values(chain, reward, 0.95, threads=1).solution for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    after = (chain.indptr, chain.indices, chain.weight, chain.out, initial)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(reward, np.arange(200.0))


@pytest.mark.parametrize("calls", [0, 1, 5, 12])
def test_an_early_stop_returns_a_distribution_with_its_true_residual(calls):
    chain, operator, initial = random_chain(200, 4)
    left = iter(range(calls))
    result = discounted_distribution(
        chain, 0.999, initial, tol=1e-12, monitor=Asked(lambda: next(left, None) is None)
    )
    assert not result.converged
    assert abs(result.solution.sum() - 1.0) < 1e-12
    rest = 0.001 * initial + 0.999 * operator.T @ result.solution - result.solution
    assert np.abs(rest).sum() <= result.residual + 1e-13
    left = iter(range(calls))
    reward = np.ones(200)
    values = discounted_values(
        chain, reward, 0.999, tol=1e-12, monitor=Asked(lambda: next(left, None) is None)
    )
    assert values.solution.shape == (200,)


def test_too_few_sweeps_or_an_impossible_tolerance_is_said():
    chain, _, initial = random_chain(100, 5)
    few = discounted_distribution(chain, 0.99, initial, max_sweeps=3)
    assert not few.converged
    assert few.sweeps <= 4
    assert few.residual / (1.0 - 0.99) > 1e-10
    assert not discounted_distribution(chain, 0.9999, initial, tol=1e-18).converged
    assert not discounted_values(chain, initial, 0.9999, tol=1e-25).converged


def test_the_monitor_is_asked_often_on_a_large_graph():
    rng = np.random.default_rng(6)
    indptr = np.arange(0, 3_000_001, 10)
    indices = rng.integers(0, 300_000, 3_000_000).astype(np.int32)
    even = uniform(10)
    discounted_distribution(counted_chain(indptr[:11], indices[:100] % 10, even), 0.85, even)
    asked = []
    even = uniform(300_000)
    chain = counted_chain(indptr, indices, even)
    discounted_distribution(chain, 0.85, even, monitor=Asked(lambda: asked.append(time.thread_time())))
    assert np.median(np.diff(asked)) < 0.2


@pytest.mark.skipif(not WEB_GRAPH.exists(), reason="the web graph is not here")
def test_web_graph_meets_its_certificate():
    stored = np.load(WEB_GRAPH)
    size = stored["indptr"].size - 1
    even = uniform(size)
    chain = counted_chain(stored["indptr"], stored["indices"], even)
    result = discounted_distribution(chain, 0.85, even)
    graph = sp.csr_matrix(
        (np.ones(stored["indices"].size), stored["indices"], stored["indptr"]), (size, size)
    )
    degree = np.diff(graph.indptr)
    moved = 0.85 * (graph.T @ (result.solution / np.maximum(degree, 1)))
    rest = moved + (1.0 - moved.sum()) / size - result.solution
    assert result.converged
    assert np.abs(rest).sum() / 0.15 < 1.1e-10


@pytest.mark.parametrize("max_sweeps", [1, 2, 5])
def test_the_limit_of_sweeps_may_be_reached_before_the_last_distribution(max_sweeps):
    """With several distributions of restart one solve follows another; the first may use up the sweeps."""
    chain, operator, initial = random_chain(40, seed=3, distributions=3)
    result = discounted_distribution(chain, 0.999, initial, max_sweeps=max_sweeps)
    assert not result.converged
    assert result.sweeps <= max_sweeps + 1
    error = np.abs(result.solution - dense_distribution(operator, initial, 0.999)).sum()
    assert error <= 1.01 * result.residual / (1 - 0.999)
