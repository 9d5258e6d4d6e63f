from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from lingendice.kernels import aggregation_steps as kernels
from lingendice.model.pull_system import transposed_system


def chain(n=50, seed=0):
    rng = np.random.default_rng(seed)
    matrix = sp.random(n, n, 0.1, random_state=rng).tocsr()
    matrix = sp.csr_matrix(
        matrix + sp.csr_matrix((np.ones(n), (range(n), np.roll(range(n), -1))), shape=(n, n))
    )
    return sp.csr_matrix(matrix + sp.diags(rng.uniform(0, 1, n)))


def pull_layout(matrix):
    system = transposed_system(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data, jumps=True
    )
    return system.indptr, system.sources.view(np.uint32), system.weights


def jump_matrix(matrix):
    dense = matrix.toarray()
    np.fill_diagonal(dense, 0.0)
    return dense / dense.sum(axis=1, keepdims=True)


def test_pull_layout_is_the_transposed_jump_chain():
    matrix = chain()
    start, source, weight = pull_layout(matrix)
    q = sp.csc_matrix((weight, source.astype(np.int64), start), shape=(50, 50)).toarray()
    np.testing.assert_allclose(q, jump_matrix(matrix), rtol=1e-14)


def test_sweep_is_gauss_seidel_in_both_directions():
    matrix = chain(seed=1)
    start, source, weight = pull_layout(matrix)
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


def test_row_residual_and_row_sweep():
    matrix = chain(seed=2)
    q = jump_matrix(matrix)
    rng = np.random.default_rng(1)
    h, d = rng.standard_normal(50), rng.standard_normal(50)
    held = sp.csr_matrix(q)
    rows = held.indptr.astype(np.int64), held.indices.astype(np.uint32), held.data
    out = np.empty(50)
    kernels.row_residual(*rows, d, h, 0, 50, out)
    np.testing.assert_allclose(out, d - h + q @ h, atol=1e-12)
    expected = h.copy()
    for i in range(50):
        expected[i] = d[i] + q[i] @ expected
    kernels.row_sweep(*rows, d, h, 0, 50, True)
    np.testing.assert_allclose(h, expected, atol=1e-12)
