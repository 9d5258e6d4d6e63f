"""Sparse elimination against the dense one, closed forms and refined LU solves."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from monitors import Asked
from scipy.sparse.linalg import splu

from lingendice.kernels.gth_dense import gth_dense
from lingendice.solvers.elimination import Elimination, EliminationError


def random_chain(n: int, degree: float, seed: int, spread: float = 6.0) -> sp.csr_matrix:
    """A ring plus random entries over many orders of magnitude: irreducible, indices unsorted."""
    rng = np.random.default_rng(seed)
    m = int(n * degree)
    rows = np.concatenate([np.arange(n), rng.integers(0, n, m)])
    columns = np.concatenate([np.roll(np.arange(n), -1), rng.integers(0, n, m)])
    values = 10.0 ** rng.uniform(-spread, 0, n + m)
    matrix = sp.csr_matrix((values, (rows, columns)), shape=(n, n))
    matrix.sum_duplicates()
    for i in range(n):
        row = slice(matrix.indptr[i], matrix.indptr[i + 1])
        shuffle = rng.permutation(row.stop - row.start)
        matrix.indices[row], matrix.data[row] = matrix.indices[row][shuffle], matrix.data[row][shuffle]
    return matrix


def grid_walk(m: int, seed: int = 0) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    path = sp.diags([np.ones(m - 1), np.ones(m - 1)], [1, -1])
    matrix = sp.csr_matrix(sp.kron(path, sp.eye(m)) + sp.kron(sp.eye(m), path))
    matrix.data = rng.uniform(0.5, 1.5, matrix.nnz)
    return sp.csr_matrix(sp.diags(1 / np.asarray(matrix.sum(1)).ravel()) @ matrix)


def solve(matrix: sp.csr_matrix, **options) -> Elimination:
    plan = Elimination.analyze(matrix.indptr, matrix.indices, matrix.shape[0], data=matrix.data)
    return plan.factorize(matrix.data, **options)


def relative_error(x: np.ndarray, distribution: np.ndarray) -> float:
    return float(np.abs(x / distribution - 1).max())


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 150), st.floats(0.0, 5.0), st.integers(0, 10**6))
def test_equals_dense(n, degree, seed):
    matrix = random_chain(n, degree, seed)
    before = matrix.copy()
    x = solve(matrix).stationary()
    distribution, ok = gth_dense(matrix.toarray())
    assert ok
    assert relative_error(x, distribution) < 1e-13
    np.testing.assert_array_equal(matrix.data, before.data)
    np.testing.assert_array_equal(matrix.indices, before.indices)


def test_equals_dense_where_fronts_use_blas():
    matrix = random_chain(900, 3.0, 2)
    elimination = solve(matrix)
    assert elimination._size.max() > 200
    assert relative_error(elimination.stationary(), gth_dense(matrix.toarray())[0]) < 1e-13


@pytest.mark.parametrize("coupling", [1e-3, 1e-8, 1e-14])
def test_nearly_decomposable_in_extended_precision(coupling):
    n = 30
    matrix = random_chain(n, 3.0, 8, spread=1.0)
    rows = np.repeat(np.arange(n), np.diff(matrix.indptr))
    matrix.data[rows // 10 != matrix.indices // 10] *= coupling
    x = solve(matrix).stationary()
    dense = matrix.toarray()
    with mpmath.workdps(80):
        np.fill_diagonal(dense, 0)
        system = mpmath.matrix(dense.T.tolist())
        for i in range(n):
            system[i, i] = -sum(mpmath.mpf(v) for v in dense[i])
        for i in range(n):
            system[n - 1, i] = 1
        right = mpmath.zeros(n, 1)
        right[n - 1] = 1
        distribution = np.array([float(v) for v in mpmath.lu_solve(system, right)])
    assert relative_error(x, distribution) < 1e-13


def test_grid_against_refined_lu():
    walk = grid_walk(60)
    n = walk.shape[0]
    x = solve(walk).stationary()
    # Balance at all states but the last, whose unknown is fixed: LU, then refinement in long double.
    system = sp.csc_matrix(walk.T - sp.eye(n))
    inner = splu(system[:-1, :-1])
    distribution = np.append(inner.solve(-system[:-1, -1].toarray().ravel()), 1.0).astype(np.longdouble)
    coo = system.tocoo()
    for _ in range(4):
        residual = np.zeros(n, np.longdouble)
        np.add.at(residual, coo.row, coo.data.astype(np.longdouble) * distribution[coo.col])
        distribution[:-1] -= inner.solve(residual[:-1].astype(float))
    distribution /= distribution.sum()
    assert relative_error(x, distribution.astype(float)) < 1e-10


@pytest.mark.parametrize("ratio", [0.01, 100.0])
def test_birth_death_entries_down_to_the_smallest(ratio):
    n = 130
    up, down = min(1.0, ratio), min(1.0, 1 / ratio)
    matrix = sp.csr_matrix(sp.diags([np.full(n - 1, up), np.full(n - 1, down)], [1, -1]))
    x = solve(matrix).stationary()
    small = min(up, down) / max(up, down)
    steps = np.arange(n) if ratio < 1 else np.arange(n)[::-1]
    with mpmath.workdps(50):
        distribution = np.array([float(mpmath.mpf(small) ** int(k)) for k in steps])
    distribution /= distribution.sum()
    assert distribution.min() < 1e-250
    assert relative_error(x, distribution) < 1e-12


def test_wells_apart_by_more_than_float64_holds():
    n = 101
    up = np.where(np.arange(n - 1) < 50, 1e-8, 0.5)
    down = np.where(np.arange(n - 1) < 50, 0.5, 1e-8)
    up[0] *= 2
    x = solve(sp.csr_matrix(sp.diags([up, down], [1, -1]))).stationary()
    # Detailed balance in logarithms: x_{k+1} / x_k = up_k / down_k.
    with mpmath.workdps(60):
        distribution = [mpmath.mpf(1)]
        for k in range(n - 1):
            distribution.append(distribution[-1] * mpmath.mpf(up[k]) / mpmath.mpf(down[k]))
        total = sum(distribution)
        distribution = np.array([float(v / total) for v in distribution])
    ends = [0, 1, 2, -3, -2, -1]
    assert relative_error(x[ends], distribution[ends]) < 1e-12
    assert x[50] == 0.0


@pytest.mark.parametrize("n_last", [0, 1, 3])
def test_hubs_and_bias(n_last):
    n = 200
    matrix = random_chain(n, 1.5, 4, spread=2.0).tolil()
    for hub in range(n - n_last, n):
        matrix[:, hub] = 0.1
        matrix[hub, :50] = 0.3
    matrix.setdiag(0.0)
    matrix = sp.csr_matrix(matrix)
    rng = np.random.default_rng(1)
    reward, time = rng.normal(size=n), np.ones(n)
    reward[n - n_last :] = time[n - n_last :] = 0.0
    plan = Elimination.analyze(matrix.indptr, matrix.indices, n, n_last, matrix.data)
    x = plan.factorize(matrix.data).stationary()
    assert relative_error(x, gth_dense(matrix.toarray())[0]) < 1e-13
    gain, h = plan.bias(reward, time)
    assert gain == pytest.approx(x @ reward / (x @ time), rel=1e-10)
    left = np.asarray(matrix.sum(1)).ravel() * h - matrix @ h
    np.testing.assert_allclose(left, reward - gain * time, atol=1e-10 * np.abs(h).max())


def test_threads_and_chunks_give_the_same_bits(monkeypatch):
    walk = grid_walk(40)
    one = solve(walk)
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_OPERATIONS", 1.0)
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_ENTRIES", 1000)
    for threads in (1, 2, 3):
        other = solve(walk, threads=threads)
        np.testing.assert_array_equal(other.stationary(), one.stationary())
        reward = np.arange(1600.0)
        np.testing.assert_array_equal(other.bias(reward)[1], one.bias(reward)[1])


def test_new_data_on_the_same_analysis():
    walk = grid_walk(12)
    plan = Elimination.analyze(walk.indptr, walk.indices, 144)
    for seed in (1, 2):
        walk.data = np.random.default_rng(seed).random(walk.nnz)
        x = plan.factorize(walk.data, keep_rows=False).stationary()
        assert relative_error(x, gth_dense(walk.toarray())[0]) < 1e-13
    with pytest.raises(ValueError, match="keep_rows"):
        plan.bias(np.ones(144))


def test_reducible_chain_names_a_state():
    blocks = sp.csr_matrix(sp.block_diag([np.ones((3, 3)), np.ones((4, 4))]))
    with pytest.raises(EliminationError, match="not irreducible"):
        solve(blocks)
    trap = sp.csr_matrix(np.array([[0, 1.0, 1], [1, 0, 1], [0, 0, 1]]))
    plan = Elimination.analyze(trap.indptr, trap.indices, 3, n_last=2, data=trap.data)
    with pytest.raises(EliminationError, match="underflow") as raised:
        plan.factorize(trap.data).stationary()
    assert raised.value.state in range(3)


def test_single_state():
    one = sp.csr_matrix(np.array([[2.0]]))
    elimination = solve(one)
    assert elimination.stationary().tolist() == [1.0]
    assert elimination.bias(np.array([3.0])) == (3.0, np.array([0.0]))


def test_cost_is_known_first_and_can_be_refused(monkeypatch):
    walk = grid_walk(50)
    plan = Elimination.analyze(walk.indptr, walk.indices, 2500)
    assert plan.complete
    assert walk.nnz < plan.fill < 40 * walk.nnz
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_VISITS", 1000)
    refused = Elimination.analyze(walk.indptr, walk.indices, 2500, max_flops=1000.0)
    assert not refused.complete
    assert 1000 < refused.flops < plan.flops
    with pytest.raises(ValueError, match="too large"):
        refused.factorize(walk.data)


def test_what_is_ordered_at_once_at_the_end_counts_too(monkeypatch):
    """The last nodes of a random graph are all neighbors: nearly all of its 8e11 operations.

    What is too large by then is not walked through: a fill of 1e9 takes seconds that Ctrl-C does not end.
    """
    rng, n = np.random.default_rng(3), 20_000
    indices, indptr = rng.integers(0, n, 5 * n), 5 * np.arange(n + 1)
    assert Elimination.analyze(indptr, indices, n, max_flops=1e12).complete
    monkeypatch.setattr("lingendice.kernels.symbolic.count_columns", lambda *given: pytest.fail("walked"))
    refused = Elimination.analyze(indptr, indices, n, max_flops=5e8)
    assert refused.flops > 1e11
    assert not refused.complete


def looks_of(work) -> int:
    """How often some work asks its monitor."""
    asked = []
    work(Asked(lambda: asked.append(0) or False))
    return len(asked)


def test_the_largest_front_is_worked_on_in_portions(monkeypatch):
    """All of a random graph but its first nodes is one front: no step of it is done at once."""
    matrix = random_chain(900, 3.0, 2)
    plan = Elimination.analyze(matrix.indptr, matrix.indices, 900, data=matrix.data)
    whole = plan.factorize(matrix.data).stationary(), plan.bias(np.arange(900.0))
    largest = int(plan._size.max())
    assert largest > 200
    for name in ("OPERATIONS", "COUNTED", "ENTRIES"):
        monkeypatch.setattr(f"lingendice.solvers.elimination._CHUNK_{name}", 1)
    counted = looks_of(
        lambda monitor: Elimination.analyze(matrix.indptr, matrix.indices, 900, monitor=monitor)
    )
    assert counted > 900  # one for each node at least
    # A row at a time is added, handed on and stored (16 pivots at a time), and a block is carried.
    assert looks_of(lambda monitor: plan.factorize(matrix.data, monitor=monitor)) > 900 + largest
    found = []
    assert looks_of(lambda monitor: found.append(plan.stationary(monitor))) >= 899
    np.testing.assert_array_equal(found[0], whole[0])
    assert looks_of(lambda monitor: found.append(plan.bias(np.arange(900.0), monitor=monitor))) >= 2 * 899
    np.testing.assert_array_equal(found[1][1], whole[1][1])


def test_entries_beyond_the_range_of_floats_are_found_in_portions(monkeypatch):
    matrix = sp.csr_matrix(sp.diags([np.full(299, 1e-9), np.full(299, 1.0)], [1, -1]))
    plan = solve(matrix)
    whole = plan.stationary()
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_WIDE_ENTRIES", 10)
    found = []
    assert looks_of(lambda monitor: found.append(plan.stationary(monitor))) > 30
    np.testing.assert_array_equal(found[0], whole)


def test_stop_on_request(monkeypatch):
    walk = grid_walk(30)
    monkeypatch.setattr("lingendice.solvers.elimination._CHUNK_OPERATIONS", 1.0)
    with pytest.raises(InterruptedError):
        solve(walk, monitor=Asked(lambda: True))
    factor = solve(walk)
    with pytest.raises(InterruptedError):
        factor.stationary(Asked(lambda: True))
    with pytest.raises(InterruptedError):
        factor.bias(np.ones(900), monitor=Asked(lambda: True))
