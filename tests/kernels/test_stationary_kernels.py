from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from lingendice.kernels import aggregation_steps as kernels


def chain(n=50, seed=0):
    rng = np.random.default_rng(seed)
    matrix = sp.random(n, n, 0.1, random_state=rng).tocsr()
    matrix = sp.csr_matrix(
        matrix + sp.csr_matrix((np.ones(n), (range(n), np.roll(range(n), -1))), shape=(n, n))
    )
    return sp.csr_matrix(matrix + sp.diags(rng.uniform(0, 1, n)))


def pull_layout(matrix, cuts, place=None):
    n = matrix.shape[0]
    place = np.arange(n) if place is None else place
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32)
    leaving, total, count = np.empty(n), np.empty(n), np.zeros(n + 1, np.int64)
    for first, last in cuts:
        kernels.count_targets(indptr, indices, matrix.data, first, last, leaving, total, count[1:])
    in_place = np.zeros(n, np.int64)
    in_place[place] = count[1:]
    start = np.concatenate([[0], np.cumsum(in_place)])
    source, weight = np.empty(start[-1], np.uint32), np.empty(start[-1])
    cursor = start[place]
    for first, last in cuts:
        kernels.fill_pull(indptr, indices, matrix.data, first, last, leaving, place, cursor, source, weight)
    return start, source, weight, leaving, total


def jump_matrix(matrix):
    dense = matrix.toarray()
    np.fill_diagonal(dense, 0.0)
    return dense / dense.sum(axis=1, keepdims=True)


def test_pull_layout_is_the_transposed_jump_chain_whatever_the_cuts():
    matrix = chain()
    start, source, weight, leaving, total = pull_layout(matrix, [(0, 17), (17, 50)])
    q = sp.csc_matrix((weight, source.astype(np.int64), start), shape=(50, 50)).toarray()
    np.testing.assert_allclose(q, jump_matrix(matrix), rtol=1e-14)
    np.testing.assert_allclose(total, np.asarray(matrix.sum(axis=1)).ravel(), rtol=1e-14)
    np.testing.assert_allclose(total - leaving, matrix.diagonal(), atol=1e-14)


def test_pull_layout_numbers_states_by_their_place():
    matrix = chain(seed=3)
    place = np.random.default_rng(0).permutation(50)
    start, source, weight, _, _ = pull_layout(matrix, [(0, 17), (17, 50)], place)
    q = sp.csc_matrix((weight, source.astype(np.int64), start), shape=(50, 50)).toarray()
    np.testing.assert_allclose(q[np.ix_(place, place)], jump_matrix(matrix), rtol=1e-14)


def test_sweep_is_gauss_seidel_in_both_directions():
    matrix = chain(seed=1)
    start, source, weight, _, _ = pull_layout(matrix, [(0, 50)])
    q = jump_matrix(matrix)
    for forward, relaxation in ((True, 1.0), (False, 1.0), (True, 1.2)):
        y = np.random.default_rng(0).uniform(1, 2, 50)
        expected, changes = y.copy(), []
        for j in range(50) if forward else range(49, -1, -1):
            old = expected[j]
            expected[j] = max(0.1 * old, old + relaxation * (expected @ q[:, j] - old))
            changes.append(abs(expected[j] - old) / expected[j])
        change = kernels.sweep(start, source, weight, y, 0, 50, forward, relaxation)
        np.testing.assert_allclose(y, expected, rtol=1e-13)
        assert abs(change - max(changes)) < 1e-12 * change


def test_residuals_and_row_sweep():
    matrix = chain(seed=2)
    start, source, weight, _, _ = pull_layout(matrix, [(0, 50)])
    q = jump_matrix(matrix)
    rng = np.random.default_rng(1)
    y, h, d = rng.uniform(1, 2, 50), rng.standard_normal(50), rng.standard_normal(50)
    assert abs(kernels.residual(start, source, weight, y, 0, 50) - np.abs(y - q.T @ y).sum()) < 1e-12
    row_start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=50))]).astype(np.int64)
    target, row_weight = np.empty(source.size, np.uint32), np.empty(source.size)
    kernels.fill_rows(start, source, weight, 0, 50, row_start[:-1].copy(), target, row_weight)
    out = np.empty(50)
    kernels.row_residual(row_start, target, row_weight, d, h, 0, 50, out)
    np.testing.assert_allclose(out, d - h + q @ h, atol=1e-12)
    expected = h.copy()
    for i in range(50):
        expected[i] = d[i] + q[i] @ expected
    kernels.row_sweep(row_start, target, row_weight, d, h, 0, 50, True)
    np.testing.assert_allclose(h, expected, atol=1e-12)
