"""The counting kernels one by one, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lingendice.kernels import partition as counting

NO_FLAGS = np.empty(0, bool)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def partition(row, column, column_bits, shift, n_rows, n_columns, chunk_size, key_type=np.uint32):
    """Partition all chunks; return keys, order and offsets."""
    n_chunks = -(-row.size // chunk_size)
    n_buckets = ((((n_rows - 1) << column_bits) | (n_columns - 1)) >> shift) + 1
    keys, order = np.empty(row.size, key_type), np.empty(row.size, np.int32)
    offsets = np.empty((n_chunks, n_buckets + 1), np.int32)
    for chunk in range(n_chunks):
        part = slice(chunk * chunk_size, min((chunk + 1) * chunk_size, row.size))
        columns = counting.Columns(row[part], row[:0], column[part], NO_FLAGS)
        sizes = counting.Sizes(n_rows, 1, n_columns, column_bits)
        bad = counting.partition_chunk(columns, sizes, shift, keys[part], order[part], offsets[chunk])
        assert bad == -1
    return keys, order, offsets


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_partition_is_a_stable_sort_by_bucket(rng, dtype):
    row, column = rng.integers(0, 50, 1000).astype(dtype), rng.integers(0, 30, 1000).astype(dtype)
    keys, order, offsets = partition(row, column, 5, 7, 50, 30, 1000)
    key = (row.astype(np.int64) << 5) | column
    assert np.array_equal(order, np.argsort(key >> 7, kind="stable"))
    assert np.array_equal(keys, key[order] & 127)
    assert np.array_equal(np.diff(offsets[0]), np.bincount(key >> 7, minlength=offsets.shape[1] - 1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("row", "column"), [(-1, 0), (50, 0), (0, -1), (0, 30), (-(2**31), 2**31 - 1)])
def test_partition_finds_the_first_position_out_of_range(dtype, row, column):
    rows, columns = np.zeros(100, dtype), np.zeros(100, dtype)
    rows[[41, 60]], columns[[41, 60]] = row, column
    offsets = np.empty(100, np.int32)
    none = np.empty(0, np.int32)
    keys, table = np.empty(100, np.uint32), np.zeros(50 << 5, np.int64)
    chunk, sizes = counting.Columns(rows, rows[:0], columns, NO_FLAGS), counting.Sizes(50, 1, 30, 5)
    assert counting.partition_chunk(chunk, sizes, 5, keys, none, offsets) == 41
    assert counting.histogram_chunk(chunk, sizes, table) == 41


@pytest.mark.parametrize(
    ("key_type", "bits"), [(np.uint32, 32), (np.uint32, 9), (np.uint32, 0), (np.int64, 63)]
)
@pytest.mark.parametrize("size", [1, 2, 48, 49, 3000])
@pytest.mark.parametrize("few", [False, True])
def test_sorted_tally_agrees_with_numpy_unique(rng, key_type, bits, size, few):
    pool = rng.integers(0, 2**bits, 5 if few else size, dtype=np.uint64).astype(key_type)
    keys = rng.choice(pool, size)
    offsets = np.array([[0, size]], np.int32)
    names, inverse, times = np.unique(keys, return_inverse=True, return_counts=True)
    pair_key, pair_count = np.empty(size, key_type), np.empty(size, np.int32)
    pair_start, slot, sizes = np.empty(2, np.int64), np.empty(size, np.int32), np.array([size])
    local = np.empty((2, size), key_type)
    order, unwanted = np.empty((2, size), np.int32), np.empty(0, np.int32)
    where = (keys, offsets, size, 0, sizes, bits, local, order, pair_key, pair_count, pair_start)
    for slots in (unwanted, slot):
        pair_key[:], pair_count[:] = 0, 0
        assert counting.tally_sorted(*where, slots) == names.size
        assert np.array_equal(pair_key[: names.size], names)
        assert np.array_equal(pair_count[: names.size], times)
    assert np.array_equal(slot, inverse)


@pytest.mark.parametrize("shift", [0, 2, 6, 10])
def test_dense_and_sorted_tallies_agree(rng, shift):
    row, column = rng.integers(0, 40, 700), rng.integers(0, 16, 700)
    keys, _, offsets = partition(row, column, 4, shift, 40, 16, 64)
    sizes = np.diff(offsets, axis=1).sum(axis=0, dtype=np.int64)
    results = []
    for dense in (True, False):
        pair_key, pair_count = np.zeros(701, np.uint32), np.zeros(701, np.int32)
        pair_start, slot = np.empty(sizes.size + 1, np.int64), np.empty(700, np.int32)
        where, out = (keys, offsets, 64, 0, sizes, shift), (pair_key, pair_count, pair_start, slot)
        if dense:
            n_pairs = counting.tally_dense(*where, *out)
        else:
            largest = sizes.max()
            scratch = np.empty((2, largest), np.uint32), np.empty((2, largest), np.int32)
            n_pairs = counting.tally_sorted(*where, *scratch, *out)
        results.append((pair_key[:n_pairs], pair_count[:n_pairs], pair_start, slot))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_bucket_gather_and_scatter_are_inverse_in_any_stretches(rng):
    row, column = rng.integers(0, 4, 500), rng.integers(0, 64, 500)
    keys, _, offsets = partition(row, column, 6, 6, 4, 64, 32)
    local = np.empty(int(np.diff(offsets, axis=1)[:, 2].sum()), np.uint32)
    end = counting.gather_bucket(keys, offsets, 32, 2, 0, 5, 0, local)
    assert counting.gather_bucket(keys, offsets, 32, 2, 5, 16, end, local) == local.size
    assert np.array_equal(local, column[row == 2])
    back = np.full(500, 99, np.uint32)
    end = counting.scatter_bucket(local, offsets, 32, 2, 0, 7, 0, back)
    counting.scatter_bucket(local, offsets, 32, 2, 7, 16, end, back)
    changed = back != 99
    assert changed.sum() == local.size
    assert np.array_equal(back[changed], keys[changed])
