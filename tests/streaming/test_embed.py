"""Embedding: compiled counting and solving agree with ``solve``, inside ``@njit`` code and from C."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from scipy import sparse

import lingendice as lg
from lingendice import embed

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def chain(n: int, kind: str) -> np.ndarray:
    """Counts of a chain that is dense, sparse, or has states that leak, recur not, or were never met."""
    rng = np.random.default_rng(n)
    counts = rng.integers(0, 9, (n, n)).astype(float)
    if kind == "dense":
        return counts + 1.0
    counts[rng.random((n, n)) < 0.8] = 0.0
    counts[np.arange(n), (np.arange(n) + 1) % n] = 1.0
    if kind == "leaking":
        counts[1] = 0.0
        counts[n // 2] = 0.0
    if kind == "transient":
        counts[:, :2] = 0.0
        counts[n - 1] = 0.0
        counts[n - 1, 2] = 3.0
    return counts


KINDS = ("dense", "sparse", "leaking", "transient")


def expected(counts: np.ndarray, gamma: float, **distributions: np.ndarray | None) -> np.ndarray:
    # Compressed counts and sparse elimination: another path than the dense one under test.
    return lg.solve(sparse.csr_array(counts), gamma, method="elimination", **distributions).stationary


@njit
def solve_inside(counts, gamma, distribution, initial, restart):
    """What a simulator does: all calls within compiled code."""
    status = embed.solve(counts, gamma, distribution, initial, restart)
    seen = np.empty(distribution.size)
    tau = np.empty(distribution.size)
    embed.visits(counts, seen)
    embed.ratio(distribution, seen, tau)
    return status, seen, tau


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("n", [10, 130])
def test_dense_agrees_with_solve(kind, gamma, n):
    counts = chain(n, kind)
    before = counts.copy()
    distribution = np.empty(n)
    status, seen, tau = solve_inside(counts, gamma, distribution, None, None)
    assert status == embed.SOLVED
    np.testing.assert_array_equal(counts, before)
    np.testing.assert_allclose(distribution, expected(counts, gamma), rtol=1e-12, atol=1e-300)
    solution = lg.solve(counts, gamma)
    np.testing.assert_array_equal(seen, counts.sum(axis=1))
    np.testing.assert_allclose(tau, solution.tau, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_given_distributions_are_followed(gamma):
    n = 12
    counts = chain(n, "leaking")
    rng = np.random.default_rng(3)
    initial, restart = rng.random((2, n))
    distribution = np.empty(n)
    assert embed.solve(counts, gamma, distribution, initial, restart) == embed.SOLVED
    np.testing.assert_allclose(
        distribution,
        expected(counts, gamma, initial=initial / initial.sum(), restart=restart / restart.sum()),
        rtol=1e-12,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("n", [40, 900])
def test_rows_agree_with_solve(kind, gamma, n):
    held = sparse.csr_array(chain(n, kind))
    distribution = np.zeros(n)
    arrays = held.indptr.astype(np.int64), held.indices.astype(np.int64), held.data
    status = embed.solve_csr(*arrays, gamma, distribution, tol=1e-13)
    assert status == embed.SOLVED
    np.testing.assert_allclose(distribution, expected(held.toarray(), gamma), rtol=1e-10, atol=1e-300)
    seen = np.empty(n)
    assert embed.visits_csr(*arrays, seen) == embed.SOLVED
    np.testing.assert_allclose(seen, held.sum(axis=1))


def test_rows_start_from_a_given_distribution():
    n = 900
    held = sparse.csr_array(chain(n, "sparse"))
    arrays = held.indptr.astype(np.int64), held.indices.astype(np.int64), held.data
    distribution = lg.solve(held).stationary.copy()
    assert embed.solve_csr(*arrays, 1.0, distribution, max_sweeps=6) == embed.SOLVED
    cold = np.zeros(n)
    assert embed.solve_csr(*arrays, 1.0, cold, max_sweeps=6) == embed.NOT_CONVERGED


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("decades", [12, 60])
def test_a_start_far_off_is_not_taken_for_the_end(seed, decades):
    """What the first sweep fixed was taken for the pace, and the second was the last: off by 1.9 in L1."""
    n, rng = 700, np.random.default_rng(seed)
    state, block = np.arange(n), np.arange(n)[:, None] // 10 * 10
    counts = np.zeros((n, n))
    np.add.at(counts, (state[:, None], block + rng.integers(0, 10, (n, 3))), rng.integers(0, 5, (n, 3)))
    counts[state, (state + 1) % n] += rng.integers(0, 5, n)
    counts[rng.integers(0, n, 3)] = 0.0
    initial = rng.random(n) * (rng.random(n) < 0.3)
    start = 10.0 ** rng.uniform(-decades, decades, n)
    held = sparse.csr_array(counts)
    rows = held.indptr.astype(np.int64), held.indices.astype(np.int64), held.data
    reference = lg.solve(held, 0.9999, method="elimination", initial=initial / initial.sum()).stationary
    for max_sweeps in (100, 10_000):
        distribution = start.copy()
        status = embed.solve_csr(*rows, 0.9999, distribution, initial, max_sweeps=max_sweeps)
        assert status in (embed.SOLVED, embed.NOT_CONVERGED)
        assert status == embed.NOT_CONVERGED or abs(distribution - reference).sum() < 1e-7


@njit
def walk_into_table(states, n, keys, counts):
    worst = 0
    for t in range(states.size - 1):
        worst = max(worst, embed.count_sparse(keys, counts, n, states[t], states[t + 1]))
    return worst


def test_table_of_pairs_is_the_counts():
    n = 50
    states = np.random.default_rng(0).integers(0, n, 3000) ** 2 % n
    keys, held = np.full(4000, -1), np.zeros(4000)
    assert walk_into_table(states, n, keys, held) == embed.SOLVED
    counts = lg.Counts.from_transitions(states[:-1], states[1:], n_states=n)
    indptr, indices, data = np.empty(n + 1, np.int64), np.empty(4000, np.int64), np.empty(4000)
    size = embed.to_csr(keys, held, n, indptr, indices, data)
    np.testing.assert_array_equal(indptr, counts.indptr)
    np.testing.assert_array_equal(indices[:size], counts.indices)
    np.testing.assert_array_equal(data[:size], counts.count)
    assert embed.to_csr(keys, held, n, indptr, indices[: size - 1], data) == -1


def test_table_says_when_it_is_full():
    keys, held = np.full(3, -1), np.zeros(3)
    statuses = [embed.count_sparse(keys, held, 5, state, 0) for state in (0, 1, 2, 3, 1)]
    assert statuses == [embed.SOLVED] * 3 + [embed.FULL, embed.SOLVED]
    assert embed.count_sparse(keys, held, 5, 5, 0) == embed.OUT_OF_RANGE
    assert held.sum() == 4


def test_what_a_table_of_pairs_cannot_hold_is_refused():
    """Numbers of pairs beyond 64 bits were those of others; too short an array was written behind."""
    keys, held = np.full(8, -1), np.zeros(8)
    huge = 2**40
    for state in (2**39, 2**39 + 2**24):  # whose pairs with 7 have one number but for 2**64
        assert embed.count_sparse(keys, held, huge, state, 7) == embed.OUT_OF_RANGE
    assert "3,037,000,499" in embed.message(embed.OUT_OF_RANGE)
    assert embed.count_sparse(keys, held, 3_037_000_499, 3_037_000_498, 3_037_000_498) == embed.SOLVED
    assert keys.max() == 3_037_000_499**2 - 1
    assert embed.count_sparse(np.full(8, -1), held[:2], 5, 1, 2) == embed.BAD_ENTRY
    assert held.sum() == 1.0


@njit
def count_inside(counts, keys, held, weight):
    return embed.count(counts, 0, 1, weight), embed.count_sparse(keys, held, 2, 0, 1, weight)


@pytest.mark.parametrize("weight", [np.nan, -1.0, np.inf, -np.inf, -1])
def test_weights_that_are_no_counts_are_refused(weight):
    """From Python, inside compiled code and from C; nothing is written."""
    counts, keys, held = np.zeros((2, 2)), np.full(4, -1), np.zeros(4)
    whole = np.zeros((2, 2), np.int64)
    double, size, doubles = ctypes.c_double, ctypes.c_int64, ctypes.POINTER(ctypes.c_double)
    in_c = ctypes.CFUNCTYPE(ctypes.c_int32, doubles, size, size, size, double)(embed.c_addresses()["count"])
    assert embed.count(counts, 0, 1, weight) == embed.BAD_ENTRY
    assert embed.count(whole, 0, 1, weight) == embed.BAD_ENTRY
    assert embed.count_sparse(keys, held, 2, 0, 1, weight) == embed.BAD_ENTRY
    assert count_inside(counts, keys, held, weight) == (embed.BAD_ENTRY, embed.BAD_ENTRY)
    assert in_c(counts.ctypes.data_as(doubles), 2, 0, 1, weight) == embed.BAD_ENTRY
    assert not counts.any()
    assert not whole.any()
    assert not held.any()
    assert (keys == -1).all()
    assert count_inside(counts, keys, held, 0.0) == (embed.SOLVED, embed.SOLVED)


def test_count_checks_its_range():
    counts = np.zeros((2, 2))
    assert embed.count(counts, 1, 0) == embed.SOLVED
    assert embed.count(counts, 1, 0, 2.5) == embed.SOLVED
    for state, next_state in [(-1, 0), (2, 0), (0, -1), (0, 2)]:
        assert embed.count(counts, state, next_state) == embed.OUT_OF_RANGE
    np.testing.assert_array_equal(counts, [[0, 0], [3.5, 0]])


@pytest.mark.parametrize(
    ("counts", "gamma", "initial", "status"),
    [
        ([[1, -1], [1, 1]], 1.0, None, embed.BAD_ENTRY),
        ([[1, np.nan], [1, 1]], 1.0, None, embed.BAD_ENTRY),
        ([[1, np.inf], [1, 1]], 1.0, None, embed.BAD_ENTRY),
        ([[0, 0], [0, 0]], 1.0, None, embed.NO_DATA),
        ([[1, 0], [0, 1]], 1.0, None, embed.SEVERAL_DISTRIBUTIONS),
        ([[1, 1], [1, 1]], 0.0, None, embed.BAD_GAMMA),
        ([[1, 1], [1, 1]], np.nan, None, embed.BAD_GAMMA),
        ([[1, 1], [1, 1]], 0.5, [1.0], embed.BAD_DISTRIBUTION),
        ([[1, 1], [1, 1]], 0.5, [0.0, 0.0], embed.BAD_DISTRIBUTION),
        ([[1, 1], [1, 1]], 0.5, [2.0, -1.0], embed.BAD_DISTRIBUTION),
    ],
)
def test_what_cannot_be_solved_has_a_status(counts, gamma, initial, status):
    dense, distribution = np.array(counts, float), np.zeros(2)
    start = None if initial is None else np.array(initial)
    assert embed.solve(dense, gamma, distribution, start) == status
    assert np.isnan(distribution).all()
    held = sparse.csr_array(dense)
    rows = held.indptr.astype(np.int64), held.indices.astype(np.int64), held.data
    assert embed.solve_csr(*rows, gamma, distribution, start) == status
    assert embed.message(status)


@pytest.mark.parametrize(
    ("indptr", "n_indices", "n_data"),
    [
        ([0, 1, 2, 50], 3, 3),
        ([0, 3, 1, 3], 3, 3),
        ([1, 1, 2, 3], 3, 3),
        ([0, -1, 2, 3], 3, 3),
        ([0, 1, 2, 3], 2, 3),
        ([0, 1, 2, 3], 3, 2),
        ([], 0, 0),
    ],
)
def test_rows_beyond_their_arrays_are_refused(indptr, n_indices, n_data):
    """They were read from wherever they led to, and solved."""
    rows = np.array(indptr, np.int64), np.array([1, 2, 0])[:n_indices], np.ones(n_data)
    distribution = np.zeros(max(0, len(indptr) - 1))
    assert embed.solve_csr(*rows, 1.0, distribution) == embed.BAD_ENTRY
    assert np.isnan(distribution).all()
    assert embed.visits_csr(*rows, np.empty(distribution.size)) == embed.BAD_ENTRY


@pytest.mark.parametrize(("n", "slots", "room"), [(3, 9, 9), (5, 9, 9), (4, 3, 9), (4, 9, 2)])
def test_a_table_is_written_where_it_fits_alone(n, slots, room):
    keys, held = np.full(9, -1), np.zeros(9)
    for state, next_state in [(0, 1), (3, 2), (3, 3)]:
        assert embed.count_sparse(keys, held, 4, state, next_state) == embed.SOLVED
    indptr, indices, data = np.full(n + 1, 7), np.full(room, 7), np.zeros(room)
    expected = 3 if n == 5 else -1  # the pairs of a smaller n have other numbers, which are in range
    assert embed.to_csr(keys, held[:slots], n, indptr, indices, data) == expected
    assert embed.to_csr(keys, held, 4, np.zeros(4, np.int64), np.zeros(9, np.int64), np.zeros(9)) == -1


def test_arrays_of_other_lengths_have_no_ratio_and_no_value():
    tau = np.ones(3)
    embed.ratio(np.full(2, 0.5), np.ones(3), tau)
    assert np.isnan(tau).all()
    assert np.isnan(embed.value(np.full(2, 0.5), np.ones(3), np.ones(3)))
    assert np.isnan(embed.value(np.full(3, 0.5), np.ones(3), np.ones(2)))


def test_a_distribution_of_whole_numbers_is_refused():
    """All of it would be 0."""
    distribution = np.zeros(2, np.int64)
    assert embed.solve(np.ones((2, 2)), 0.9, distribution) == embed.BAD_ENTRY
    rows = np.array([0, 1, 2]), np.array([1, 0]), np.ones(2)
    assert embed.solve_csr(*rows, 0.9, distribution) == embed.BAD_ENTRY
    single = np.zeros(2, np.float32)
    assert embed.solve(np.array([[1.0, 1.0], [2.0, 0.0]]), 1.0, single) == embed.SOLVED
    np.testing.assert_allclose(single, [2 / 3, 1 / 3], rtol=1e-6)


def test_whole_numbers_are_not_asked_to_hold_parts():
    """A weight of 2.5 counted 2, one of 0.5 nothing, and sums were cut off: all of it "solved"."""
    table, keys, held = np.zeros((2, 2), np.int64), np.full(8, -1), np.zeros(8, np.int64)
    for weight in (2.5, 0.5):
        assert embed.count(table, 1, 0, weight) == embed.BAD_ENTRY
        assert embed.count_sparse(keys, held, 2, 1, 0, weight) == embed.BAD_ENTRY
    assert not table.any()
    assert not held.any()
    assert (keys == -1).all()
    assert embed.count(table, 1, 0, 2.0) == embed.count_sparse(keys, held, 2, 1, 0, 2.0) == embed.SOLVED
    assert table.sum() == held.sum() == 2
    halves, rows = np.full((2, 2), 0.25), (np.array([0, 1, 2]), np.array([1, 0]), np.full(2, 0.5))
    assert embed.visits(halves, np.zeros(2, np.int64)) == embed.BAD_ENTRY
    assert embed.visits_csr(*rows, np.zeros(2, np.int64)) == embed.BAD_ENTRY
    seen = np.zeros(2, np.int64)
    assert embed.visits(4 * halves, seen) == embed.SOLVED
    assert seen.tolist() == [2, 2]
    assert embed.count(np.zeros((2, 2), np.float32), 1, 0, 0.1) == embed.SOLVED


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_counts_too_small_next_to_others_are_refused_as_by_solve(gamma, order):
    """Flows between states 600 decades apart were lost, and the distribution without them was "solved"."""
    counts = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    counts *= np.array([1e-300, 1e300, 1.0])[order, None]
    with pytest.raises(ValueError, match="too little to divide by"):
        lg.solve(counts, gamma)
    distribution, held = np.zeros(3), sparse.csr_array(counts)
    assert embed.solve(counts, gamma, distribution) == embed.BAD_ENTRY
    rows = held.indptr.astype(np.int64), held.indices.astype(np.int64), held.data
    assert embed.solve_csr(*rows, gamma, distribution) == embed.BAD_ENTRY
    assert np.isnan(distribution).all()


def test_nearly_decomposable_chain_is_accurate_entry_by_entry():
    # Courtois-like: two pairs coupled at 1e-12; the distribution of the pairs follows from the couplings
    # alone.
    weak = 1e-12
    rates = np.array([[0, 1, weak, 0], [1, 0, 0, 0], [0, 0, 0, 1], [3 * weak, 0, 1, 0]])
    distribution = np.empty(4)
    assert embed.solve(rates, 1.0, distribution) == embed.SOLVED
    # Row sums differ by 1e-12 at most, so in each pair both have half; flows weak x0 = 3 weak x3 balance.
    np.testing.assert_allclose(distribution, [0.375, 0.375, 0.125, 0.125], rtol=1e-11)


def test_value_is_that_of_solve():
    rng = np.random.default_rng(5)
    states = rng.integers(0, 6, 400)
    rewards = rng.normal(size=399)
    counts = lg.Counts.from_transitions(states[:-1], states[1:], reward=rewards, n_states=8)
    distribution = lg.solve(counts, 0.8).stationary
    seen, totals = np.bincount(states[:-1], minlength=8), np.bincount(states[:-1], rewards, minlength=8)
    assert embed.value(distribution, seen, totals) == pytest.approx(lg.solve(counts, 0.8).value, rel=1e-12)


def test_addresses_are_called_through_ctypes():
    n = 9
    double, size, doubles = ctypes.c_double, ctypes.c_int64, ctypes.POINTER(ctypes.c_double)
    address = embed.c_addresses()
    count = ctypes.CFUNCTYPE(ctypes.c_int32, doubles, size, size, size, double)(address["count"])
    solve = ctypes.CFUNCTYPE(ctypes.c_int32, doubles, size, double, doubles, size, doubles, size, doubles)(
        address["solve"]
    )
    table, distribution, initial = np.zeros((n, n)), np.empty(n), np.arange(1.0, n + 1)

    def pointer(array):
        return array.ctypes.data_as(doubles)

    states = np.random.default_rng(1).integers(0, n, 300)
    for state, next_state in zip(states[:-1].tolist(), states[1:].tolist(), strict=True):
        assert count(pointer(table), n, state, next_state, 1.0) == embed.SOLVED
    assert count(pointer(table), n, n, 0, 1.0) == embed.OUT_OF_RANGE
    assert solve(pointer(table), n, 0.9, pointer(initial), n, None, 0, pointer(distribution)) == embed.SOLVED
    counts = lg.Counts.from_transitions(states[:-1], states[1:], n_states=n)
    reference = lg.solve(counts, 0.9, initial=initial / initial.sum())
    np.testing.assert_allclose(distribution, reference.stationary, rtol=1e-12)

    held = counts.matrix
    indptr, indices, data = (
        held.indptr.astype(np.int64),
        held.indices.astype(np.int64),
        held.data.astype(float),
    )
    integers = ctypes.POINTER(size)
    solve_csr = ctypes.CFUNCTYPE(
        ctypes.c_int32, integers, integers, doubles, size, double, doubles, size, doubles, size, double, size,
        doubles,
    )(address["solve_csr"])  # fmt: skip
    again = np.zeros(n)
    status = solve_csr(
        indptr.ctypes.data_as(integers), indices.ctypes.data_as(integers), pointer(data), n, 0.9,
        pointer(initial), n, None, 0, 1e-12, 1000, pointer(again),
    )  # fmt: skip
    assert status == embed.SOLVED
    np.testing.assert_allclose(again, distribution, rtol=1e-12)

    visits, tau = table.sum(axis=1), np.empty(n)
    ctypes.CFUNCTYPE(None, doubles, doubles, size, doubles)(address["ratio"])(
        pointer(distribution), pointer(visits), n, pointer(tau)
    )
    np.testing.assert_allclose(tau, reference.tau, rtol=1e-12)
    value = ctypes.CFUNCTYPE(double, doubles, doubles, doubles, size)(address["value"])
    rewards = visits * np.arange(n)
    earned = value(pointer(distribution), pointer(visits), pointer(rewards), n)
    assert earned == pytest.approx(distribution @ np.arange(n), rel=1e-12)


WITHOUT_MEMORY = """
import ctypes, resource
import numpy as np
from lingendice import embed

double, size = ctypes.c_double, ctypes.c_int64
doubles, integers = ctypes.POINTER(double), ctypes.POINTER(size)
kinds = doubles, size, double, doubles, size, doubles, size, doubles
solve = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(embed.c_addresses()["solve"])
kinds = integers, integers, doubles, size, double, doubles, size, doubles, size, double, size, doubles
solve_csr = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(embed.c_addresses()["solve_csr"])
n = 1500
dense, distribution = np.ones((n, n)), np.full(n, 7.0)
indptr, indices, data = n * np.arange(n + 1), np.tile(np.arange(n), n), dense.ravel()
table, out, rows = (x.ctypes.data_as(doubles) for x in (dense, distribution, data))
begins, columns = (x.ctypes.data_as(integers) for x in (indptr, indices))

def statuses(n):
    dense_status = solve(table, n, 1.0, None, 0, None, 0, out)
    return [dense_status, solve_csr(begins, columns, rows, n, 1.0, None, 0, None, 0, 1e-9, 100, out)]

assert solve(table, 1, 1.0, None, 0, None, 0, out) == embed.SOLVED and distribution[0] == 1.0
distribution[0] = 7.0
assert statuses(-3) == [embed.BAD_ENTRY] * 2
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 5_000_000,) * 2)
assert statuses(n) == [embed.NO_MEMORY] * 2
assert (distribution == 7.0).all()
print("ok")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells how much memory is used")
def test_c_is_told_where_memory_ends():
    """What Python would raise came back to C as 0, solved, and the distribution was that of before."""
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, check=False
    )
    assert found.stdout == "ok\n", found.stderr
