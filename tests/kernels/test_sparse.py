"""Compressed-row helpers against SciPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from lingendice.kernels import gauss_seidel_steps as gauss_seidel
from lingendice.kernels import sparse_rows as sparse
from lingendice.model.pull_system import row_ranges, row_system, transposed_system


def random_matrix(size: int, density: float, seed: int) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    matrix = sp.random(size, size, density, format="csr", random_state=rng)
    return (matrix + sp.diags((rng.random(size) < 0.3) * rng.random(size))).tocsr()


def parts(matrix: sp.csr_matrix, weighted: bool = True):
    data = matrix.data.astype(np.float64) if weighted else np.empty(0)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data


def rebuilt(system) -> np.ndarray:
    size = system.size
    data = system.weights if system.weights.size else np.ones(system.sources.size)
    return sp.csr_matrix((data, system.sources, system.indptr), shape=(size, size)).toarray()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("order", ["natural", "degree", "given"])
@pytest.mark.parametrize("size", [7, 900])
def test_transpose_and_rows_match_scipy(weighted, threads, order, size):
    density = 0.3 if size > 100 else 0.4
    matrix = random_matrix(size, density, seed=size)
    if not weighted:
        matrix.data[:] = 1.0
    given = np.random.default_rng(1).permutation(size) if order == "given" else None
    system = transposed_system(
        *parts(matrix, weighted), order=given, window=size if order == "degree" else 0, threads=threads
    )
    sorting = np.arange(size) if system.order is None else system.order
    dense = matrix.toarray()
    np.testing.assert_array_equal(system.loops, np.diag(dense)[sorting])
    np.fill_diagonal(dense, 0.0)
    np.testing.assert_array_equal(rebuilt(system), dense.T[np.ix_(sorting, sorting)])
    if order == "degree":
        assert (np.diff(np.diff(system.indptr)) <= 0).all()
    if order == "natural":
        rows = row_system(*parts(matrix, weighted), threads=threads)
        np.testing.assert_array_equal(rebuilt(rows), dense)
        np.testing.assert_array_equal(rows.loops, system.loops)


def test_transpose_is_the_same_for_any_number_of_threads():
    matrix = random_matrix(900, 0.4, seed=5)
    one, three = (transposed_system(*parts(matrix), threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(one.sources, three.sources)
    np.testing.assert_array_equal(one.weights, three.weights)


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_by_degree_draw_and_sweep_as_the_matrix_does(weighted):
    matrix = random_matrix(1000, 0.002, seed=6).tolil()
    matrix[:90, 3] = 1.0
    matrix[:, 5] = 1.0
    matrix = matrix.tocsr()
    if not weighted:
        matrix.data[:] = 1.0
    system = transposed_system(*parts(matrix, weighted), window=1000, threads=2)
    dense = rebuilt(system)
    assert (np.diff(np.diff(system.indptr)) <= 0).all()
    rng = np.random.default_rng(7)
    x, y, base, f, c, loss = rng.random((6, 1000))
    expected = np.abs(base + dense @ y + system.loops * y - x).sum()
    assert system.imbalance(x, y, base) == pytest.approx(expected, rel=1e-13)
    by_hand, drawn = x.copy(), y.copy()
    for row in range(1000):
        by_hand[row] = 0.5 * base[row] + f[row] * (dense[row] @ drawn)
        drawn[row] = c[row] * by_hand[row]
    start = x.copy()
    rows = system.kernel_rows(system.indptr[:-1], system.indptr[1:])
    terms = gauss_seidel.SweepTerms(f, base, c, loss)
    change, largest, lost, mass = gauss_seidel.sweep(rows, terms, 0.5, x, y, 0, 1000)
    np.testing.assert_allclose(x, by_hand, rtol=1e-12)
    np.testing.assert_allclose(y, c * x, rtol=1e-15)
    expected = np.abs(x - start).sum(), np.abs(x - start).max(), loss @ x, x.sum()
    np.testing.assert_allclose([change, largest, lost, mass], expected, rtol=1e-12)


def test_uniform_rows():
    indptr, _, data = parts(random_matrix(60, 0.2, seed=2))
    assert not sparse.rows_are_uniform(indptr, data, 0, 60)
    assert sparse.rows_are_uniform(indptr, np.repeat(np.arange(1.0, 61.0), np.diff(indptr)), 0, 60)
    assert not sparse.rows_are_uniform(indptr, np.zeros(data.size), 0, 60)


def test_order_by_count_is_stable_and_falling():
    counts = np.random.default_rng(3).integers(0, 50, 500).astype(np.int32)
    order = np.empty(500, np.int64)
    sparse.order_by_count(counts, 500, order)
    np.testing.assert_array_equal(order, np.argsort(-counts, kind="stable"))
    sparse.order_by_count(counts, 120, order)
    windows = [first + np.argsort(-counts[first:][:120], kind="stable") for first in range(0, 500, 120)]
    np.testing.assert_array_equal(order, np.concatenate(windows))


def test_row_ranges_cover_everything_once_and_are_bounded():
    indptr = np.concatenate([[0], np.cumsum(np.random.default_rng(4).integers(0, 9, 10_000))]).astype(
        np.int64
    )
    ranges = row_ranges(indptr, 100, 9_900, work=1_000)
    assert ranges[0][0] == 100
    assert ranges[-1][1] == 9_900
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert max(indptr[b] - indptr[a] + b - a for a, b in ranges) < 1_100
    assert row_ranges(np.zeros(2, np.int64), 0, 1) == [(0, 1)]
