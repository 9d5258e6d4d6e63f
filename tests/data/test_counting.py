"""Counting transitions, against a dictionary, SciPy and exact fractions."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from fractions import Fraction
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix

from lingendice.data import counting as tally
from lingendice.data import few_pairs
from lingendice.data.counting import count_pairs
from lingendice.data.few_pairs import PairRangeError

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4"]


@contextmanager
def tiny_sizes(most_hashed=0, stretch=1 << 20):
    """Cut chunks, groups and buckets so small that short inputs take every path; pairs to hash are few."""
    sizes = {
        "_CHUNK": 32, "_CHUNKS_A_TASK": 2, "_MAX_BUCKET_BITS": 3, "_DENSE_BITS": 3, "_LARGEST_TABLE": 8,
        "_SMALL_TABLE": 8, "_BUCKET": 16, "_GROUP": 24, "_GROUP_ROWS": 4, "_LARGE": 40, "_STRETCH": 64,
        "_FEW": 0,
    }  # fmt: skip
    hashing = {"_MOST_PAIRS": most_hashed, "_STRETCH": stretch, "_CHUNK": 24}
    with mock.patch.multiple(tally, **sizes), mock.patch.multiple(few_pairs, **hashing):
        yield


def brute_force(row, column, weight=None, value=None):
    """Exact totals and moments of every pair, in CSR order, and the pair of every transition."""
    pairs: dict[tuple[int, int], list[tuple[Fraction, Fraction]]] = {}
    for t in range(len(row)):
        w = Fraction(1 if weight is None else weight[t].item())
        v = Fraction(0 if value is None else value[t].item())
        pairs.setdefault((int(row[t]), int(column[t])), []).append((w, v))
    names = sorted(pairs)
    totals = [sum(w for w, _ in pairs[name]) for name in names]
    means = [
        sum(w * v for w, v in pairs[name]) / total if total else Fraction(0)
        for name, total in zip(names, totals, strict=True)
    ]
    squares = [
        sum(w * (v - mean) ** 2 for w, v in pairs[name]) if total else Fraction(0)
        for name, mean, total in zip(names, means, totals, strict=True)
    ]
    position = {name: i for i, name in enumerate(names)}
    entry = [position[int(row[t]), int(column[t])] for t in range(len(row))]
    return names, totals, means, squares, entry


def assert_matches(counts, row, column, n_rows, weight=None, value=None):
    names, totals, means, squares, entry = brute_force(row, column, weight, value)
    assert counts.indptr.dtype == np.int64
    assert counts.indptr.shape == (n_rows + 1,)
    rows = np.repeat(np.arange(n_rows), np.diff(counts.indptr))
    assert list(zip(rows.tolist(), counts.indices.tolist(), strict=True)) == names
    if counts.count.dtype == np.int64:
        assert counts.count.tolist() == totals
    else:
        np.testing.assert_allclose(counts.count, np.array(totals, float), rtol=1e-13)
    if value is not None:
        scale = np.abs(value).max(initial=0)
        np.testing.assert_allclose(counts.mean, np.array(means, float), rtol=1e-13, atol=1e-15 * scale)
        np.testing.assert_allclose(counts.m2, np.array(squares, float), rtol=1e-11, atol=1e-28 * scale**2)
    if counts.entry is not None:
        assert counts.entry.tolist() == entry


def assert_same_bits(one, other):
    for a, b in zip(one, other, strict=True):
        if a is None:
            assert b is None
        else:
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()


@st.composite
def problems(draw):
    """Transitions of any shape, type and skew, with or without weights and values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(0, 300))
    types = draw(st.sampled_from(INTEGERS)), draw(st.sampled_from(INTEGERS))
    most = [min(int(np.iinfo(name).max), 2**40) for name in types]
    n_rows = draw(st.integers(1, min(most[0], draw(st.sampled_from([3, 40, 3000])))))
    n_columns = draw(st.integers(1, min(most[1], draw(st.sampled_from([3, 40, 3000, 2**20, 2**40])))))
    # A power of a uniform number puts much of the data on few rows and columns.
    skew = draw(st.sampled_from([1, 4, 30]))
    row, column = (
        np.minimum((rng.random(n) ** skew * size).astype(np.int64), size - 1).astype(name)
        for size, name in zip((n_rows, n_columns), types, strict=True)
    )
    weight = draw(st.sampled_from([None, "i8", "u1", "f8", "?"]))
    if weight is not None:
        weight = (rng.integers(0, 5, n) / (8 if weight == "f8" else 1)).astype(weight)
    value = rng.choice(rng.normal(size=max(1, n // 3)), n) if draw(st.booleans()) else None
    return row, column, n_rows, n_columns, weight, value


@settings(max_examples=70, deadline=None)
@given(problems(), st.sampled_from([None, 0, 20, 300]), st.booleans())
def test_agrees_with_brute_force_on_any_path(problem, most_hashed, want_entry):
    row, column, n_rows, n_columns, weight, value = problem
    options = {"weight": weight, "value": value, "want_entry": want_entry}
    with nullcontext() if most_hashed is None else tiny_sizes(most_hashed, stretch=50):
        counts = count_pairs(row, column, n_rows, n_columns, **options)
        threaded = count_pairs(row, column, n_rows, n_columns, threads=2, **options)
    assert_matches(counts, row, column, n_rows, weight, value)
    assert (counts.entry is not None) == want_entry
    assert_same_bits(counts, threaded)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 5), st.sampled_from([None, 0, 300]))
def test_actions_and_ends_are_digits_of_rows_and_columns(problem, n_actions, most_hashed):
    row, column, n_rows, n_columns, weight, value = problem
    rng = np.random.default_rng(row.size)
    action, ends = rng.integers(0, n_actions, row.size).astype(np.int8), rng.random(row.size) < 0.3
    cells = row.astype(np.int64) * n_actions + action
    into = np.where(ends, n_columns, column.astype(np.int64))
    noise = np.where(ends, -1, column.astype(np.int64))  # the column of a transition that ends is not read
    options = {"weight": weight, "value": value, "want_entry": True}
    with nullcontext() if most_hashed is None else tiny_sizes(most_hashed, stretch=50):
        plain = count_pairs(cells, into, n_rows * n_actions, n_columns + 1, **options)
        digits = count_pairs(
            row, noise, n_rows * n_actions, n_columns + 1,
            action=action, n_actions=n_actions, ends=ends, **options,
        )  # fmt: skip
    assert_same_bits(plain, digits)
    if row.size:
        with pytest.raises(PairRangeError, match="transition 0 "):
            count_pairs(row, column, n_rows * n_actions, n_columns, action=action + 5, n_actions=n_actions)


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from([0, 300]))
def test_the_way_the_work_is_cut_leaves_no_trace(problem, most_hashed):
    row, column, n_rows, n_columns, weight, value = problem
    options = {"weight": weight, "value": value, "want_entry": True}
    with mock.patch.object(tally, "_FEW", 0), mock.patch.object(few_pairs, "_MOST_PAIRS", most_hashed):
        whole = count_pairs(row, column, n_rows, n_columns, **options)
    with tiny_sizes(most_hashed):
        cut = count_pairs(row, column, n_rows, n_columns, **options)
    assert_same_bits(whole, cut)


SHAPES = [
    (12_000, 2_000, 1), (100, 70, 1), (300_000, 300_000, 1), (300_000, 300_000, 12), (1, 500_000, 1),
    (500_000, 1, 1), (3_000, 2**45, 3),
]  # fmt: skip


@pytest.mark.parametrize(("n_rows", "n_columns", "skew"), SHAPES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_agrees_with_scipy_at_full_size(n_rows, n_columns, skew, dtype):
    rng = np.random.default_rng(1)
    n = 2 * tally._CHUNK + 12_345
    row = (rng.random(n) ** skew * n_rows).astype(dtype)
    column = (rng.random(n) ** skew * n_columns).astype(dtype if n_columns < 2**31 else np.int64)
    value = rng.normal(size=n)
    plain = count_pairs(row, column, n_rows, n_columns)
    full = count_pairs(row, column, n_rows, n_columns, value=value, weight=np.ones(n), want_entry=True)
    expected = coo_matrix((np.ones(n, np.int64), (row, column)), shape=(n_rows, n_columns)).tocsr()
    for counts in (plain, full):
        assert np.array_equal(counts.indptr, expected.indptr)
        assert np.array_equal(counts.indices, expected.indices)
        assert np.array_equal(counts.count, expected.data)
    assert plain.indices.dtype == (np.int32 if n_columns < 2**31 else np.int64)
    assert np.array_equal(full.indices[full.entry], column)
    assert np.all((full.indptr[row] <= full.entry) & (full.entry < full.indptr[row.astype(np.int64) + 1]))
    sums = np.bincount(full.entry, value, full.count.size)
    np.testing.assert_allclose(full.mean * full.count, sums, rtol=1e-10, atol=1e-10)
    for threads in (2, 5):
        assert_same_bits(plain, count_pairs(row, column, n_rows, n_columns, threads=threads))
        again = count_pairs(
            row, column, n_rows, n_columns, value=value, weight=np.ones(n), want_entry=True, threads=threads
        )
        assert_same_bits(full, again)


def test_a_bucket_that_takes_all_is_split_again():
    rng = np.random.default_rng(2)
    n = tally._LARGE + 1000
    row, column = np.zeros(n, np.int64), rng.integers(0, 2**20, n)
    row[-1], column[-1] = 2**20 - 1, 2**20 - 1
    counts = count_pairs(row, column, 2**20, 2**20, want_entry=True, threads=2)
    names, inverse, times = np.unique(column[:-1], return_inverse=True, return_counts=True)
    assert np.array_equal(counts.indices[:-1], names)
    assert np.array_equal(counts.count[:-1], times)
    assert np.array_equal(counts.entry[:-1], inverse)
    assert counts.entry[-1] == names.size
    assert counts.indptr[1] == names.size == counts.indptr[-2]
    assert counts.indptr[-1] == names.size + 1


@pytest.mark.parametrize("weight", [None, np.zeros(0, np.int64), np.zeros(0)])
def test_no_transitions(weight):
    nothing = np.zeros(0, np.int64)
    counts = count_pairs(nothing, nothing, 4, 0, weight=weight, value=np.zeros(0), want_entry=True)
    assert counts.indptr.tolist() == [0] * 5
    assert counts.count.dtype == (np.float64 if weight is not None and weight.dtype == float else np.int64)
    for array in counts[1:]:
        assert array.size == 0
    assert count_pairs(nothing, nothing, 0, 0).indptr.tolist() == [0]


def test_counts_beyond_32_bits_are_exact():
    weight = np.array([2**62, 1, 2**31 - 1, 5, 2**61])
    counts = count_pairs(np.array([1, 1, 0, 0, 1]), np.array([3, 3, 2, 2, 3]), 2, 4, weight=weight)
    assert counts.count.tolist() == [2**31 + 4, 2**62 + 2**61 + 1]


def test_pairs_that_no_64_bit_key_holds():
    row = np.array([2**20, 3, 2**20, 3, 2**20], np.uint64)
    column = np.array([2**62, 7, 2**61, 7, 2**62], np.uint64)
    counts = count_pairs(row, column, 2**20 + 1, 2**63 - 1, value=np.arange(5.0), want_entry=True)
    assert counts.indices.tolist() == [7, 2**61, 2**62]
    assert counts.indices.dtype == np.int64
    assert counts.count.tolist() == [2, 1, 2]
    assert counts.mean.tolist() == [2, 2, 2]
    assert counts.entry.tolist() == [2, 0, 1, 0, 2]
    assert counts.indptr[[3, 4, 2**20, 2**20 + 1]].tolist() == [0, 1, 1, 3]
    with pytest.raises(PairRangeError) as caught:
        count_pairs(row, column, 2**20, 2**63 - 1)
    assert caught.value.position == 0


@pytest.mark.parametrize("sizes", [nullcontext, tiny_sizes, partial(tiny_sizes, 100, 64)])
def test_values_keep_their_digits_under_a_large_offset(sizes):
    rng = np.random.default_rng(3)
    n = 5000
    row, column = rng.integers(0, 3, n), rng.integers(0, 4, n)
    value = 1e9 + rng.normal(size=n)
    value[:30] = -1e12  # a first value far from the rest must do no harm either
    weight = rng.random(n)
    with sizes():
        counts = count_pairs(row, column, 3, 4, value=value, weight=weight)
    _, _, means, squares, _ = brute_force(row, column, weight, value)
    np.testing.assert_allclose(counts.mean, np.array(means, float), rtol=1e-14)
    np.testing.assert_allclose(counts.m2, np.array(squares, float), rtol=1e-12)


@pytest.mark.parametrize("sizes", [nullcontext, tiny_sizes, partial(tiny_sizes, 100, 64)])
def test_equal_values_have_exactly_their_mean_and_no_spread(sizes):
    rng = np.random.default_rng(4)
    row, column = rng.integers(0, 5, 10_000), rng.integers(0, 6, 10_000)
    reward = rng.normal(size=(5, 6)) * 0.1
    with sizes():
        counts = count_pairs(row, column, 5, 6, value=reward[row, column], weight=rng.random(10_000))
    assert np.array_equal(counts.mean, reward.ravel())
    assert not counts.m2.any()


@pytest.mark.parametrize("sizes", [nullcontext, tiny_sizes, partial(tiny_sizes, 100, 64)])
def test_a_pair_without_weight_is_kept(sizes):
    row, weight, value = np.array([0, 1]), np.array([0, 3]), np.array([5.0, 7.0])
    with sizes():
        counts = count_pairs(row, np.array([1, 1]), 2, 2, weight=weight, value=value)
    assert counts.count.tolist() == [0, 3]
    assert counts.mean.tolist() == [0, 7]
    assert counts.m2.tolist() == [0, 0]


@pytest.mark.parametrize("n", [10, 500_000])
@pytest.mark.parametrize("size", [60, 10**6])
@pytest.mark.parametrize("want_entry", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype"), [("low", "i1"), ("low", "i8"), ("high", "u1"), ("high", "i4"), ("huge", "u8")]
)
def test_the_first_transition_out_of_range_is_named(n, size, want_entry, name, dtype):
    row, column = np.zeros(n, np.int64), np.zeros(n, dtype)
    first = n - 3
    n_columns = 60 if name == "high" else size
    column[[first, n - 1]] = (
        {"low": -1, "high": 60, "huge": 2**63}[name] if name != "huge" else np.uint64(2**63)
    )
    with pytest.raises(PairRangeError, match=f"transition {first} ") as caught:
        count_pairs(row, column, size, n_columns, want_entry=want_entry, threads=2)
    assert caught.value.position == first
    with pytest.raises(PairRangeError):
        count_pairs(column, row, n_columns, size, want_entry=want_entry)
    with pytest.raises(PairRangeError):
        count_pairs(row, row, 0, 1)
    with pytest.raises(PairRangeError):
        count_pairs(row, row, 1, 0)


def test_inputs_of_any_layout_are_read_and_never_changed():
    rng = np.random.default_rng(5)
    table = rng.integers(0, 9, (400, 2))
    value = rng.normal(size=800)[::2]
    expected = count_pairs(table[:, 0].copy(), table[:, 1].copy(), 9, 9, value=value.copy())
    before = table.copy(), value.copy()
    table.flags.writeable = value.flags.writeable = False
    assert_same_bits(expected, count_pairs(table[:, 0], table[:, 1], 9, 9, value=value))
    assert np.array_equal(table, before[0])
    assert np.array_equal(value, before[1])
