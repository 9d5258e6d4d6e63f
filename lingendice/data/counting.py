"""Count transitions into CSR arrays: plan, threads and dtypes around ``kernels.partition``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from lingendice.data.few_pairs import (
    FLOAT64,
    INT64,
    NO_FLAGS,
    NO_IDS,
    Array,
    DType,
    PairCounts,
    PairLog,
    Records,
    hash_pairs,
    index_type,
    ranges,
    sort_pairs,
)
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.kernels import partition as counting
from lingendice.kernels.parallel import run_all
from lingendice.kernels.partition import Columns, Sizes

_UINT32 = np.dtype("uint32")

# Sizes are constants, not settings: results must not depend on who calls, nor on the machine.
_CHUNK = 1 << 17  # transitions partitioned at a time: the output of a chunk stays in the second-level cache
_CHUNKS_A_TASK = 4
_MAX_BUCKET_BITS = 11
_DENSE_BITS = 16  # local keys of a dense bucket: a table of 2**16 counters stays in that cache too
_TABLE_ROWS = 1  # transitions per cell from which a table over all pairs needs no partition
_LARGEST_TABLE = 1 << 23
_SMALL_TABLE = 1 << 12  # cells that are no burden however few the transitions
_BUCKET = 1 << 16  # transitions aimed at for a bucket that is sorted
_GROUP = 1 << 18  # transitions of consecutive buckets which one task tallies
_GROUPS_A_WAVE = 4  # groups for each thread between two joins
_GROUP_ROWS = 1 << 23
_LARGE = 1 << 21  # transitions of one bucket beyond which it is split again; must exceed _BUCKET
_STRETCH = 1 << 23  # transitions one kernel call may walk: a few hundredths of a second
_FEW = 1 << 17  # transitions that NumPy counts in milliseconds, before the kernels would even be loaded


class _BucketPlan(NamedTuple):
    """How keys are split; a function of the sizes of the problem alone."""

    sizes: Sizes
    shift: int
    n_buckets: int
    dense: bool
    key_type: DType


class _Buckets(NamedTuple):
    """Transitions grouped by bucket within each chunk."""

    keys: Array
    order: Array
    weight: Array
    value: Array
    """Empty where there are none."""
    slot: Array
    offsets: Array


class _Group(NamedTuple):
    """Pairs of consecutive buckets, with the start of each bucket's pairs."""

    first_bucket: int
    pair_start: Array
    key: Array
    total: Array
    mean: Array | None
    m2: Array | None


@heeds_ctrl_c
def count_pairs(
    row: Array,
    column: Array,
    n_rows: int,
    n_columns: int,
    *,
    action: Array | None = None,
    n_actions: int = 1,
    ends: Array | None = None,
    weight: Array | None = None,
    value: Array | None = None,
    want_entry: bool = False,
    threads: int = 1,
) -> PairCounts:
    """Count how often each (row, column) pair occurs: ``c(x, y) = sum_t w_t [row_t = x, column_t = y]``.

    With ``value``, also ``mean(x, y) = sum w v / c`` and ``m2(x, y) = sum w (v - mean)**2``, from an origin
    that follows the mean, so that a large common offset costs no accuracy and equal values give exactly that
    mean and zero. Sums run over the transitions of a pair in the order given, a million at a time: the
    result is the same bits for any number of threads.

    Time O(N + n_rows) but for a factor (bits of a pair) / 11. With weights, values or
    entries, up to a hundred thousand pairs are looked up in hash tables. Memory O(N + n_rows), never
    n_rows * n_columns: beyond inputs and result 4 bytes per transition (8 where a bucket's share of a pair
    needs more than 32 bits), 8 more with ``weight``, ``value`` or ``want_entry``, and 8 more for each of
    weight and value. Where most of the data falls into one bucket, that bucket is split again, which
    costs the same once more. Use it for any number of transitions; up to a hundred thousand of them NumPy
    sorts on one thread, and no kernel is compiled.

    Parameters
    ----------
    row, column : 1-d integer arrays
        Of one length, as all arrays here: whoever calls has checked that.
    n_rows, n_columns : int
    action : array, optional
        Makes the row of a transition ``row * n_actions + action``.
    n_actions : int
    ends : boolean array, optional
        Transitions that go to the last column, whatever their own says.
    weight : array, optional
        Frequency weights; integers are summed exactly as int64, floats as float64.
    value : array, optional
        One finite number for each transition, such as its reward.
    want_entry : bool
        Also return the position of each transition's pair.
    threads : int

    Raises
    ------
    PairRangeError
        Naming the first transition out of range; found on the way, without a pass of its own.

    Examples
    --------
    >>> import numpy as np
    >>> counts = count_pairs(np.array([1, 0, 1]), np.array([2, 0, 2]), 2, 3)
    >>> counts.indptr.tolist(), counts.indices.tolist(), counts.count.tolist()
    ([0, 1, 2], [0, 2], [1, 2])
    """
    row_bits, column_bits = max(n_rows - 1, 0).bit_length(), max(n_columns - 1, 0).bit_length()
    sizes = Sizes(n_rows, n_actions, n_columns, column_bits)
    ids = Columns(row, NO_IDS if action is None else action, column, NO_FLAGS if ends is None else ends)
    log = PairLog(ids, sizes, weight, value)
    if log.n <= _CHUNK:
        threads = 1
    if row_bits + column_bits > 63:
        return _count_renamed(log, want_entry, threads)
    if log.n <= _FEW:
        return sort_pairs(log, want_entry)
    return _count_many(log, row_bits + column_bits, want_entry, threads)


def _count_many(log: PairLog, bits: int, want_entry: bool, threads: int) -> PairCounts:
    """Count by a table over all pairs where that is small, a hash table where pairs are few, else sorting."""
    want_slots = want_entry or log.weight is not None or log.value is not None
    cells = log.sizes.n_rows << log.sizes.column_bits
    if not want_slots and cells <= min(max(log.n // _TABLE_ROWS, _SMALL_TABLE), _LARGEST_TABLE):
        group = _tally_table(log, cells, threads)
        writer = _Writer(_BucketPlan(log.sizes, bits, 1, True, _UINT32), group.key.size, INT64)
        writer.append([group], 1)
        return writer.finish()
    if want_slots:
        counts = hash_pairs(log, want_entry, threads)
        if counts is not None:
            return counts
    plan = _make_plan(log, bits)
    parts = _partition(log, plan, want_slots, threads)
    writer = _tally(parts, plan, threads)
    entry = _entries(parts, writer, threads) if want_entry else None
    return writer.finish()._replace(entry=entry)


def _count_renamed(log: PairLog, want_entry: bool, threads: int) -> PairCounts:
    """Count where no 63-bit key holds a pair: columns are numbered by rank first (a sort of N columns)."""
    row, column = log.pairs()
    names, rank = np.unique(column, return_inverse=True)
    payload = {"weight": log.weight, "value": log.value, "want_entry": want_entry, "threads": threads}
    counts = count_pairs(row, rank, log.sizes.n_rows, names.size, **payload)
    return counts._replace(indices=names[counts.indices].astype(index_type(log.sizes.n_columns)))


def _make_plan(log: PairLog, bits: int) -> _BucketPlan:
    n, (n_rows, _, n_columns, column_bits) = log.n, log.sizes
    dense = n_rows << column_bits <= max(4 * n, _SMALL_TABLE) and bits - _MAX_BUCKET_BITS <= _DENSE_BITS
    if dense:
        wanted = max(bits - _DENSE_BITS, 5 if n > _CHUNK else 0)
    else:
        # Buckets that sort in cache; a few more of them where keys then fit 32 bits.
        wanted = max((n // _BUCKET).bit_length(), bits - 32, (n_rows // _GROUP_ROWS).bit_length())
    shift = bits - min(wanted, _MAX_BUCKET_BITS, bits)
    n_buckets = ((((n_rows - 1) << column_bits) | (n_columns - 1)) >> shift) + 1
    return _BucketPlan(log.sizes, shift, n_buckets, dense, _UINT32 if shift <= 32 else INT64)


def _partition(log: PairLog, plan: _BucketPlan, want_slots: bool, threads: int) -> _Buckets:
    n = log.n
    offsets = np.empty(((n + _CHUNK - 1) // _CHUNK, plan.n_buckets + 1), np.int32)
    keys = np.empty(n, plan.key_type)
    order = np.empty(n if want_slots else 0, np.int32)
    slot = np.empty(order.size, index_type(n))
    weight = np.empty(0 if log.weight is None else n, log.total_type)
    value = np.empty(0 if log.value is None else n)

    def task(first_chunk: int, last_chunk: int) -> None:
        for chunk in range(first_chunk, last_chunk):
            start, stop = chunk * _CHUNK, min((chunk + 1) * _CHUNK, n)
            columns, there = log.chunk(start, stop), order[start:stop]
            bad = counting.partition_chunk(
                columns, plan.sizes, plan.shift, keys[start:stop], there, offsets[chunk]
            )
            if bad >= 0:
                log.pairs()  # which raises for the first one out of range
            for source, target in zip(log.payload(start, stop), (weight, value), strict=True):
                if source.size:
                    counting.gather_chunk(source, there, target[start:stop])

    tasks = [partial(task, *chunks) for chunks in ranges(offsets.shape[0], _CHUNKS_A_TASK)]
    run_all(tasks, threads)
    return _Buckets(keys, order, weight, value, slot, offsets)


def _cells(keys: int) -> int:
    """Size of a table for that many keys: kernels read tables eight cells at a time."""
    return (keys + 7) // 8 * 8


def _tally_table(log: PairLog, cells: int, threads: int) -> _Group:
    """Count by one table over all pairs for each task; integers add up the same in any order."""
    step = max(8 * _CHUNK, _TABLE_ROWS * cells, -(-log.n // threads))

    def task(start: int, stop: int) -> Array:
        table = np.zeros(_cells(cells), index_type(log.n))
        for begin, end in ranges(stop - start, 8 * _CHUNK):
            if counting.histogram_chunk(log.chunk(start + begin, start + end), log.sizes, table) >= 0:
                log.pairs()  # which raises for the first one out of range
        return table

    table, *others = run_all([partial(task, *span) for span in ranges(log.n, step)], threads)
    for other in others:
        table += other
    return _collect(0, table, _UINT32)


def _collect(first_bucket: int, table: Array, key_type: DType) -> _Group:
    """Make a group of the one bucket counted in a table, which then holds slots."""
    n_pairs = int(np.count_nonzero(table))
    key, count = np.empty(n_pairs + 1, key_type), np.empty(n_pairs + 1, np.int64)
    counting.collect_table(table, 0, key, count)
    return _Group(first_bucket, np.array([0, n_pairs]), key[:n_pairs], count[:n_pairs], None, None)


def _group_bounds(sizes: Array, plan: _BucketPlan) -> Iterator[tuple[int, int]]:
    """Cut the buckets into consecutive groups of about equal work; a large bucket stands alone."""
    ends = np.cumsum(sizes)
    most = max(1, (_GROUP_ROWS << plan.sizes.column_bits) >> plan.shift)
    first = 0
    while first < sizes.size:
        before = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, before + _GROUP, side="right"))
        last = min(max(last, first + 1), first + most)
        yield first, last
        first = last


def _tally(parts: _Buckets, plan: _BucketPlan, threads: int) -> _Writer:
    """Tally groups of buckets, a wave of them side by side, and append each wave to the result."""
    sizes = np.diff(parts.offsets, axis=1).sum(axis=0, dtype=np.int64)
    bounds = list(_group_bounds(sizes, plan))
    work = [int(sizes[first:last].sum()) for first, last in bounds]
    room = max((size for size in work if size <= _LARGE), default=0) + 1
    wave_length = 1 if threads == 1 else _GROUPS_A_WAVE * threads
    # Scratch is used again in every wave: it stays in cache, and its pages are mapped once.
    scratch = [
        (np.empty(room, plan.key_type), np.empty(room, np.int32), Records.reserve(room, parts.weight.dtype))
        for _ in range(min(wave_length, len(bounds)))
    ]
    writer = _Writer(plan, parts.keys.size, parts.weight.dtype, parts.value.size != 0)
    split = _tally_large_table if plan.dense else _tally_large_keys

    def task(index: int, key: Array, count: Array, records: Records) -> _Group:
        first, last = bounds[index]
        group = _tally_group(parts, plan, first, sizes[first:last], key, count)
        return _add_payloads(group, parts, work[index], records)

    start = 0
    while start < len(bounds):
        stop = start
        while stop < len(bounds) and stop - start < wave_length and work[stop] <= _LARGE:
            stop += 1
        if stop > start:
            wave = zip(range(start, stop), scratch, strict=False)
            groups = run_all([partial(task, index, *arrays) for index, arrays in wave], threads)
        else:
            group = split(parts, plan, bounds[start][0], work[start], threads)
            records = Records.reserve(group.key.size, parts.weight.dtype)
            groups, stop = [_add_payloads(group, parts, work[start], records)], start + 1
        writer.append(groups, threads)
        start = stop
    return writer


def _tally_group(
    parts: _Buckets, plan: _BucketPlan, first_bucket: int, sizes: Array, key: Array, count: Array
) -> _Group:
    pair_start = np.empty(sizes.size + 1, np.int64)
    where = (parts.keys, parts.offsets, _CHUNK, first_bucket, sizes, plan.shift)
    found = (key, count, pair_start, parts.slot)
    if plan.dense:
        n_pairs = counting.tally_dense(*where, *found)
    else:
        local = np.empty((2, int(sizes.max())), plan.key_type)
        order = np.empty((2, local.shape[1] if parts.slot.size else 0), np.int32)
        n_pairs = counting.tally_sorted(*where, local, order, *found)
    return _Group(first_bucket, pair_start, key[:n_pairs], count[:n_pairs], None, None)


def _stretches(parts: _Buckets, size: int) -> list[tuple[int, int]]:
    """Ranges of chunks in which buckets with ``size`` transitions have a bounded number of them."""
    n_chunks = parts.offsets.shape[0]
    return list(ranges(n_chunks, n_chunks if size <= _STRETCH else max(1, _STRETCH // _CHUNK)))


def _tally_large_table(parts: _Buckets, plan: _BucketPlan, bucket: int, size: int, threads: int) -> _Group:
    """Count a large bucket of few keys: one table for each stretch of chunks."""
    stretches = list(ranges(parts.offsets.shape[0], max(1, _LARGE // _CHUNK)))

    def task(first_chunk: int, last_chunk: int) -> Array:
        table = np.zeros(_cells(1 << plan.shift), np.int64)
        counting.add_segments(parts.keys, parts.offsets, _CHUNK, bucket, first_chunk, last_chunk, table)
        return table

    tables = run_all([partial(task, *stretch) for stretch in stretches], threads)
    table = np.sum(tables, axis=0)
    group = _collect(bucket, table, plan.key_type)
    if parts.slot.size:
        look_up = partial(counting.look_up_slots, parts.keys, parts.offsets, _CHUNK, bucket)
        run_all([partial(look_up, *stretch, table, parts.slot) for stretch in stretches], threads)
    return group


def _tally_large_keys(parts: _Buckets, plan: _BucketPlan, bucket: int, size: int, threads: int) -> _Group:
    """Count a large bucket of many keys as a problem of its own: one row, local keys for columns."""
    stretches = _stretches(parts, size)
    local, end = np.empty(size, plan.key_type), 0
    for stretch in stretches:
        end = counting.gather_bucket(parts.keys, parts.offsets, _CHUNK, bucket, *stretch, end, local)
    same_row = np.broadcast_to(np.int32(0), size)
    counts = count_pairs(
        same_row, local, 1, 1 << plan.shift, want_entry=parts.slot.size != 0, threads=threads
    )
    if counts.entry is not None:
        end = 0
        for stretch in stretches:
            end = counting.scatter_bucket(
                counts.entry, parts.offsets, _CHUNK, bucket, *stretch, end, parts.slot
            )
    key = counts.indices.astype(plan.key_type)
    return _Group(bucket, counts.indptr, key, counts.count, None, None)


def _add_payloads(group: _Group, parts: _Buckets, size: int, records: Records) -> _Group:
    """Sum weights and values over the transitions of a group's pairs, in the order given."""
    if not (parts.weight.size or parts.value.size):
        return group
    records = records.first(group.key.size)
    records.total[:, 0] = 0
    buckets = (group.first_bucket, group.first_bucket + group.pair_start.size - 1)
    payload = (parts.slot, parts.weight, parts.value, parts.offsets, _CHUNK)
    for stretch in _stretches(parts, size):
        counting.add_payloads(*payload, *buckets, *stretch, *records)
    total, mean, m2 = records.settled(parts.value.size != 0)
    return group._replace(total=total, mean=mean, m2=m2)


class _Writer:
    """The growing result: groups are appended in the order of their buckets.

    Room for one pair per transition is reserved at once, but memory is used only where pairs are written.
    """

    def __init__(self, plan: _BucketPlan, capacity: int, total_type: DType, moments: bool = False) -> None:
        self.plan = plan
        self.n_pairs = 0
        self.indptr = np.empty(plan.sizes.n_rows + 1, np.int64)
        self.indices = np.empty(capacity, index_type(plan.sizes.n_columns))
        self.count = np.empty(capacity, total_type)
        self.mean = np.empty(capacity, FLOAT64) if moments else None
        self.m2 = np.empty(capacity, FLOAT64) if moments else None
        self.bucket_offset = np.empty(plan.n_buckets, np.int64)

    def append(self, groups: list[_Group], threads: int) -> None:
        tasks = []
        for group in groups:
            last_bucket = group.first_bucket + group.pair_start.size - 1
            self.bucket_offset[group.first_bucket : last_bucket] = self.n_pairs
            tasks.append(partial(self._write, group, self.n_pairs))
            self.n_pairs += group.key.size
        run_all(tasks, threads)

    def _write(self, group: _Group, start: int) -> None:
        plan, stop = self.plan, start + group.key.size
        counting.emit_pairs(
            group.key, group.pair_start, group.first_bucket, plan.shift, plan.sizes.column_bits,
            plan.sizes.n_rows,
            start, self.indices, self.indptr,
        )  # fmt: skip
        self.count[start:stop] = group.total
        if self.mean is not None and self.m2 is not None:
            self.mean[start:stop], self.m2[start:stop] = group.mean, group.m2

    def finish(self) -> PairCounts:
        self.indptr[-1] = self.n_pairs
        for array in (self.indices, self.count, self.mean, self.m2):
            if array is not None:
                array.resize(self.n_pairs, refcheck=False)  # gives the rest back, without a copy
        return PairCounts(self.indptr, self.indices, self.count, self.mean, self.m2, None)


def _entries(parts: _Buckets, writer: _Writer, threads: int) -> Array:
    n = parts.keys.size
    entry = np.empty(n, index_type(writer.n_pairs))

    def task(first_chunk: int, last_chunk: int) -> None:
        for chunk in range(first_chunk, last_chunk):
            span = slice(chunk * _CHUNK, min((chunk + 1) * _CHUNK, n))
            counting.emit_entries(
                parts.slot[span], parts.order[span], parts.offsets[chunk], writer.bucket_offset, entry[span]
            )

    run_all([partial(task, *chunks) for chunks in ranges(parts.offsets.shape[0], _CHUNKS_A_TASK)], threads)
    return entry
