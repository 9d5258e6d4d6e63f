"""PageRanks of many seeds are those of a dense solve, by blocks, one by one and by forward push."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.solvers import seed_ranks


def random_matrix(n=60, seed=0, degree=4, weighted=True):
    """Dangling nodes, isolated ones, loops, and weights; or edges without weights."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, n - n // 10, degree * n), rng.integers(0, n - 2, degree * n)
    weights = rng.random(rows.size) if weighted else np.ones(rows.size)
    matrix = sparse.coo_array((weights, (rows, columns)), shape=(n, n)).tocsr()
    if not weighted:
        matrix.data[:] = 1.0
    return matrix


def by_dense_solve(matrix, alpha, seeds, after=None):
    """Rows x = alpha (x P + (mass of dangling nodes) d) + (1 - alpha) v, written out as one linear system."""
    dense = matrix.toarray()
    totals = dense.sum(axis=1)
    found = []
    for seed in seeds:
        step = np.where(totals[:, None] > 0, dense / np.where(totals > 0, totals, 1)[:, None], 0.0)
        step[totals == 0] = seed if after is None else after
        found.append(np.linalg.solve(np.eye(len(seed)) - alpha * step.T, (1 - alpha) * seed))
    return np.array(found)


def random_seeds(n, count, seed=1):
    rng = np.random.default_rng(seed)
    seeds = rng.random((count, n)) * (rng.random((count, n)) < 0.1)
    seeds[:, 0] += 0.01
    return seeds / seeds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("alpha", [0.3, 0.85, 0.99])
@pytest.mark.parametrize("count", [1, 8, 21])
def test_blocks_agree_with_a_dense_solve(weighted, alpha, count):
    matrix = random_matrix(weighted=weighted)
    seeds = random_seeds(60, count)
    after = random_seeds(60, 1, seed=9)[0]
    for dangling in (None, after):
        ranks = lg.pagerank(matrix, alpha, seeds=seeds, dangling=dangling, tol=1e-13)
        expected = by_dense_solve(matrix, alpha, seeds, dangling)
        assert ranks.shape == (count, 60)
        np.testing.assert_allclose(ranks, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("dangling", [None, "given"])
def test_one_by_one_is_the_same(dangling, monkeypatch):
    matrix = random_matrix(700)
    seeds = random_seeds(700, 11)
    after = None if dangling is None else random_seeds(700, 1, seed=9)[0]
    together = lg.pagerank(matrix, seeds=seeds, dangling=after, tol=1e-13)
    monkeypatch.setattr(seed_ranks, "BLOCK_BYTES", 0)
    apart = lg.pagerank(matrix, seeds=seeds, dangling=after, tol=1e-13)
    np.testing.assert_allclose(together, apart, rtol=1e-11, atol=1e-16)
    np.testing.assert_allclose(apart, by_dense_solve(matrix, 0.85, seeds, after), rtol=1e-11, atol=1e-16)
    called = [lg.pagerank(matrix, personalization=seed, dangling=after, tol=1e-13) for seed in seeds]
    np.testing.assert_allclose(apart, called, rtol=1e-12, atol=1e-17)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    matrix, seeds = random_matrix(500), random_seeds(500, 20)
    one, two = (lg.pagerank(matrix, seeds=seeds, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    monkeypatch.setattr(seed_ranks, "BLOCK_BYTES", 0)
    one, two = (lg.pagerank(matrix, seeds=seeds, threads=threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("block_bytes", [seed_ranks.BLOCK_BYTES, 0])
def test_seeds_that_mix_need_no_call_of_their_own(block_bytes, monkeypatch):
    """Blocks that ended after one pass were all solved again, one call each."""
    monkeypatch.setattr(seed_ranks, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(sys.modules["lingendice.pagerank"], "_ranks", None)
    matrix, seeds = random_matrix(500), random_seeds(500, 20)
    for dangling in (None, seeds[0]):
        ranks = lg.pagerank(matrix, seeds=seeds, dangling=dangling)
        expected = by_dense_solve(matrix, 0.85, seeds, dangling)
        assert np.abs(ranks - expected).sum(axis=1).max() < 1e-10


def test_slow_chains_are_solved_all_the_same():
    """Two cycles joined by edges of weight 1e-6, at alpha = .9999: hundreds of sweeps are too few."""
    n = 200
    matrix = sparse.lil_array((n, n))
    for half in (range(100), range(100, 200)):
        for node in half:
            matrix[node, half[(node + 1) % 100 if half[0] == 0 else (node - 99) % 100]] = 4.0
    matrix[5, 150], matrix[150, 5] = 1e-6, 2e-6
    seeds = np.eye(n)[[0, 120]]
    ranks = lg.pagerank(matrix.tocsr(), 0.9999, seeds=seeds, tol=1e-9)
    expected = by_dense_solve(matrix, 0.9999, seeds)
    assert np.abs(ranks - expected).sum(axis=1).max() < 1e-9


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_ends_of_the_range_of_alpha(alpha):
    matrix, seeds = random_matrix(40), random_seeds(40, 3)
    ranks = lg.pagerank(matrix, alpha, seeds=seeds)
    called = [lg.pagerank(matrix, alpha, personalization=seed) for seed in seeds]
    np.testing.assert_allclose(ranks, called, rtol=1e-12)


# -- the highest ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-7])
def test_forward_push_is_as_good_as_it_says(weighted, tol, monkeypatch):
    monkeypatch.setattr(seed_ranks, "LEAST_PUSHED", 0)
    monkeypatch.setattr(seed_ranks, "PUSHED_SHARE", 10_000)
    matrix = random_matrix(400, weighted=weighted)
    seeds = [3, {5, 399}, [7, 390, 11], 398]  # the last ones dangle
    full = np.zeros((4, 400))
    for row, nodes in enumerate(([3], [5, 399], [7, 390, 11], [398])):
        full[row, nodes] = 1 / len(nodes)
    expected = by_dense_solve(matrix, 0.85, full)
    found = lg.pagerank(matrix, seeds=seeds, top=400, tol=tol)
    error = np.abs(found.matrix.toarray() - expected).sum(axis=1)
    assert (found.error <= tol).all()
    np.testing.assert_allclose(error, found.error, rtol=1e-6, atol=1e-14)  # a bound, and what it is
    few = lg.pagerank(matrix, seeds=seeds, top=5, tol=tol)
    np.testing.assert_array_equal(few.ranks, found.ranks[:, :5])


def test_sweeps_take_over_where_push_takes_too_long(monkeypatch):
    monkeypatch.setattr(seed_ranks, "LEAST_PUSHED", 0)
    matrix = random_matrix(400)
    seeds = random_seeds(400, 3)
    found = lg.pagerank(matrix, seeds=seeds, top=7, tol=1e-12)
    expected = by_dense_solve(matrix, 0.85, seeds)
    order = np.argsort(-expected, axis=1)[:, :7]
    np.testing.assert_array_equal(found.positions, order)
    np.testing.assert_allclose(found.ranks, np.take_along_axis(expected, order, axis=1), rtol=1e-10)
    assert found.is_certain.all()
    dense = found.matrix.toarray()
    assert (np.count_nonzero(dense, axis=1) == 7).all()
    np.testing.assert_array_equal(np.take_along_axis(dense, order, axis=1), found.ranks)


def test_the_highest_ranks_by_name():
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")]
    found = lg.pagerank(edges, seeds=["a", ["b", "c"]], top=2, tol=1e-10)
    full = lg.pagerank(edges, seeds=["a", ["b", "c"]])
    assert [found.to_dict(k) for k in (0, 1)] == [
        {name: pytest.approx(rank) for rank, name in sorted(zip(row, "abc", strict=True))[:0:-1]}
        for row in full.tolist()
    ]
    assert repr(found).startswith("TopRanks(2 seeds x 2 nodes, error at most ")
    assert len(found) == 2
    assert lg.pagerank(edges, seeds=["a"], top=50).ranks.shape == (1, 3)


def test_time_limit():
    matrix, seeds = random_matrix(4000), random_seeds(4000, 40)
    with pytest.raises(RuntimeError, match="ended at its time limit"):
        lg.pagerank(matrix, seeds=seeds, time_limit=1e-6)
