"""Pairs of few transitions, counted by a sort, and few pairs of many transitions, by hash tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.rows import kernel_array, stable_order
from lingendice.kernels.parallel import run_all
from lingendice.kernels.partition import Columns, Sizes, hash_chunk, pool_pairs, settle_pairs

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

INT32, INT64, FLOAT64 = (np.dtype(name) for name in ("int32", "int64", "float64"))
_STRETCH = 1 << 21  # transitions whose pairs one task looks up
_CHUNK = 1 << 16  # transitions at a time: their columns stay in the second-level cache
_MOST_PAIRS = 1 << 17  # pairs whose table stays in cache


class PairCounts(NamedTuple):
    """Distinct (row, column) pairs in CSR order.

    Attributes
    ----------
    indptr : int64 array, n_rows + 1
    indices : int32 array (int64 where columns need it), ascending within each row
    count : int64 array, or float64 where weights are floats
        Total weight of the pair. A pair that occurs is stored even if its weights sum to zero.
    mean, m2 : float64 arrays or None
        Weighted mean of the pair's values, and the weighted sum of squared deviations from it.
    entry : int32 or int64 array or None
        For every transition, the position of its pair in ``indices``.
    """

    indptr: Array
    indices: Array
    count: Array  # type: ignore[assignment]  # the plain word is worth hiding tuple.count
    mean: Array | None
    m2: Array | None
    entry: Array | None


class PairRangeError(ValueError):
    """A transition names a row or column which is out of range; ``position`` says which."""

    def __init__(self, position: int, row: int, column: int, n_rows: int, n_columns: int) -> None:
        super().__init__(
            f"transition {position} goes from row {row} to column {column}, outside {n_rows} x {n_columns}"
        )
        self.position = position


def index_type(largest: int) -> DType:
    return INT32 if largest <= np.iinfo(np.int32).max else INT64


class PairLog(NamedTuple):
    """What is counted: ids, which may be out of range, and what is summed."""

    columns: Columns
    sizes: Sizes
    weight: Array | None
    value: Array | None

    @property
    def n(self) -> int:
        """Transitions."""
        return int(self.columns.row.size)

    def chunk(self, start: int, stop: int) -> Columns:
        """Some transitions in the one form kernels are compiled for; they copy no more than they must."""
        small = all(np.can_cast(column.dtype, np.int32) for column in self.columns[:3])
        kinds = (*3 * (INT32 if small else INT64,), np.bool_)
        chunk = (
            kernel_array(column[start:stop], kind) for column, kind in zip(self.columns, kinds, strict=True)
        )
        return Columns._make(chunk)

    def payload(self, start: int, stop: int) -> tuple[Array, Array]:
        """Weights and values of some transitions, empty where there are none."""
        weight = NO_IDS if self.weight is None else self.weight[start:stop]
        value = _NO_VALUES if self.value is None else self.value[start:stop]
        return kernel_array(weight, self.total_type), kernel_array(value, FLOAT64)

    @property
    def total_type(self) -> DType:
        """What weights are summed as."""
        return FLOAT64 if self.weight is not None and self.weight.dtype.kind == "f" else INT64

    def pairs(self) -> tuple[Array, Array]:
        """Rows and columns, each in one array, all within range; raises :class:`PairRangeError`."""
        (row, action, column, ends), (n_rows, n_actions, n_columns, _) = self.columns, self.sizes
        outside = (row < 0) | (row >= n_rows // n_actions)
        outside |= ((column < 0) | (column >= n_columns)) & ~(ends if ends.size else np.False_)
        if action.size:
            outside |= (action < 0) | (action >= n_actions)
            row = row.astype(np.int64) * n_actions + action.astype(np.int64)
        if outside.any():
            position = int(outside.argmax())
            raise PairRangeError(position, int(row[position]), int(column[position]), n_rows, n_columns)
        return row, np.where(ends, n_columns - 1, column) if ends.size else column


NO_IDS, NO_FLAGS, _NO_VALUES = np.empty(0, np.int32), np.empty(0, bool), np.empty(0)


def sort_pairs(log: PairLog, want_entry: bool) -> PairCounts:
    """Count by a sort of all keys, where the compiler would take longer to load."""
    row, column = log.pairs()
    key = row.astype(np.int64)
    key <<= log.sizes.column_bits
    key |= column.astype(np.int64, copy=False)
    order = stable_order(key)
    key = key[order]
    begins = np.append(True, key[1:] != key[:-1])[: key.size]
    starts = np.flatnonzero(begins)
    slot = np.empty(order.size, np.int64)
    slot[order] = np.cumsum(begins) - 1

    def summed(values: Array) -> Array:  # of no entries NumPy makes integers, whatever their weights
        return np.bincount(slot, values, starts.size).astype(np.float64, copy=False)

    total, factor = np.diff(starts, append=order.size), None
    if log.weight is not None:
        factor = log.weight.astype(log.total_type)
        exact = factor.dtype == INT64
        total = np.add.reduceat(factor[order], starts) if exact else summed(factor)

    def average(values: Array) -> Array:
        sums = summed(values if factor is None else factor * values)
        return np.divide(sums, total, out=np.zeros(total.size), where=total != 0)

    mean, m2 = None, None
    if log.value is not None:
        value = log.value.astype(np.float64)
        mean = value[order[starts]]
        deviation = value - mean[slot]
        mean = np.where(total != 0, mean + average(deviation), 0.0)
        np.subtract(value, np.take(mean, slot, out=deviation, mode="clip"), out=deviation)
        # What rounding left in the mean is taken out of it and of the squares.
        drift = average(deviation)
        m2 = np.maximum(average(deviation * deviation) - drift * drift, 0.0) * total
        mean = mean + drift
    return in_rows(key[starts], log, (total, mean, m2), slot if want_entry else None)


def in_rows(
    key: Array, log: PairLog, sums: tuple[Array, Array | None, Array | None], slot: Array | None
) -> PairCounts:
    """Compressed rows of sorted keys."""
    n_rows, _, n_columns, column_bits = log.sizes
    indptr = np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(key >> column_bits, minlength=n_rows), out=indptr[1:])
    indices = (key & ((1 << column_bits) - 1)).astype(index_type(n_columns))
    entry = None if slot is None else slot.astype(index_type(key.size), copy=False)
    return PairCounts(indptr, indices, *sums, entry)


def ranges(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, total)) for start in range(0, total, step))


class Records(NamedTuple):
    """Sums over the transitions of pairs, four numbers each: see ``kernels.partition.add_value``."""

    total: Array
    """Total weights in the first column."""
    moments: Array
    """The same memory as floats."""

    @classmethod
    def reserve(cls, room: int, total_type: DType) -> Records:
        """Memory for ``room`` pairs."""
        moments = np.empty((room, 4))
        return cls(moments.view(total_type), moments)

    def first(self, n: int) -> Records:
        """The first few."""
        return Records(self.total[:n], self.moments[:n])

    def settled(self, has_values: bool) -> tuple[Array, Array | None, Array | None]:
        """Total weights and, where there are values, means and sums of squared deviations."""
        count = np.empty(len(self.total), self.total.dtype)
        mean, m2 = np.empty((2, count.size * has_values))
        settle_pairs(*self, count, mean, m2)
        return (count, mean, m2) if has_values else (count, None, None)


class _Stretch(NamedTuple):
    """The pairs of some transitions, numbered as they are first met."""

    key: Array
    records: Records
    slot: Array
    """For every transition, the number of its pair; empty where nobody asks."""


def _count_stretch(log: PairLog, start: int, stop: int, want_slots: bool) -> _Stretch | None:
    """Go through some transitions; None where their pairs are too many."""
    room, n = min(stop - start, _MOST_PAIRS), 0
    slot = np.empty(stop - start if want_slots else 0, np.int32)
    key, records = np.empty(room, np.int64), Records.reserve(room, log.total_type)
    sums = np.zeros(1 << max(room.bit_length(), 1), np.int32), key, *records
    for begin, end in ranges(stop - start, _CHUNK):
        span = start + begin, start + end
        n, bad = hash_chunk(log.chunk(*span), log.sizes, *log.payload(*span), n, *sums, slot[begin:end])
        if bad >= 0:
            log.pairs()  # which raises
        if n < 0:
            return None
    return _Stretch(key[:n], records.first(n), slot)


def hash_pairs(log: PairLog, want_entry: bool, threads: int) -> PairCounts | None:
    """Count where pairs are few, without moving a transition; None where they are many.

    Sums run over the transitions of a stretch in the order given, and over stretches in theirs.
    """
    given_up: list[int] = []

    def count(start: int, stop: int) -> _Stretch | None:
        stretch = None if given_up else _count_stretch(log, start, stop, want_entry)
        if stretch is None:
            given_up.append(start)
        return stretch

    counted = run_all([partial(count, *ends) for ends in ranges(log.n, _STRETCH)], threads)
    stretches = [each for each in counted if each is not None]
    if given_up:
        return None
    # The pairs of all stretches are looked up once more, to number them together.
    keys, bits = np.concatenate([each.key for each in stretches]), log.sizes.column_bits
    pairs = Columns(keys >> bits, NO_IDS, keys & ((1 << bits) - 1), NO_FLAGS)
    every = _count_stretch(PairLog(pairs, log.sizes._replace(n_actions=1), None, None), 0, keys.size, True)
    if every is None:
        return None
    order = stable_order(every.key)
    key, rank = every.key[order], np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    places = np.split(rank[every.slot], np.cumsum([each.key.size for each in stretches])[:-1])
    records = Records.reserve(key.size, log.total_type)
    records.total[:, 0] = 0
    for where, each in zip(places, stretches, strict=True):
        pool_pairs(where, *each.records, *records)
    sums = records.settled(log.value is not None)
    slot = None
    if want_entry:
        kind, joined = index_type(key.size), zip(places, stretches, strict=True)
        slot = np.concatenate([np.take(where.astype(kind), each.slot) for where, each in joined])
    return in_rows(key, log, sums, slot)
