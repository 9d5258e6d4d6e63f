"""Pairs of few transitions, counted by a sort, and few pairs of many transitions, by hash tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.rows import kernel_array
from lingendice.kernels import partition as counting
from lingendice.kernels.parallel import run_all

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

INT32, INT64, FLOAT64 = (np.dtype(name) for name in ("int32", "int64", "float64"))
_STRETCH = 1 << 20  # transitions whose pairs one task looks up
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


def total_type(weight: Array | None) -> DType:
    return FLOAT64 if weight is not None and weight.dtype.kind == "f" else INT64


def index_type(largest: int) -> DType:
    return INT32 if largest <= np.iinfo(np.int32).max else INT64


def sort_pairs(
    row: Array, column: Array, n_rows: int, n_columns: int, weight: Array | None, value: Array | None,
    want_entry: bool,
) -> PairCounts:  # fmt: skip
    """Count by a sort of all keys; sums run over transitions in the order given, as those of the kernels."""
    row, column = np.asarray(row), np.asarray(column)
    check_range(row, column, n_rows, n_columns)
    column_bits = max(n_columns - 1, 0).bit_length()
    key = row.astype(np.int64)
    key <<= column_bits
    key |= column.astype(np.int64, copy=False)
    bits = max((n_rows << column_bits) - 1, 1).bit_length()
    # NumPy sorts digits of 16 bits by radix: linear time, and stable.
    order = np.lexsort([(key >> low).astype(np.uint16) for low in range(0, bits, 16)])
    key = key[order]
    begins = np.append(True, key[1:] != key[:-1])[: key.size]
    starts = np.flatnonzero(begins)
    key = key[starts]
    indptr = np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(key >> column_bits, minlength=n_rows), out=indptr[1:])
    slot = np.empty(order.size, np.int64)
    slot[order] = np.cumsum(begins) - 1

    def summed(values: Array) -> Array:  # of no entries NumPy makes integers, whatever their weights
        return np.bincount(slot, values, starts.size).astype(np.float64, copy=False)

    total, factor = np.diff(starts, append=order.size), None
    if weight is not None:
        factor = np.asarray(weight).astype(total_type(weight))
        exact = factor.dtype == INT64
        total = np.add.reduceat(factor[order], starts) if exact else summed(factor)
    mean, m2 = None, None
    if value is not None:
        value = np.asarray(value, np.float64)
        mean = value[order[starts]]
        deviation = value - mean[slot]
        weighted = deviation if factor is None else factor * deviation
        mean = shifted_means(total, summed(weighted), mean)
        np.subtract(value, np.take(mean, slot, out=deviation, mode="clip"), out=deviation)
        weighted = deviation if factor is None else factor * deviation
        drift = summed(weighted)
        m2 = summed(np.multiply(weighted, deviation, out=deviation))
        mean, m2 = corrected_moments(total, drift, mean, m2)
    entry = slot.astype(index_type(starts.size)) if want_entry else None
    indices = (key & ((1 << column_bits) - 1)).astype(index_type(n_columns))
    return PairCounts(indptr, indices, total, mean, m2, entry)


def shifted_means(total: Array, excess: Array, origin: Array) -> Array:
    """Means of values measured from an origin; a pair of total weight zero has mean zero."""
    weighted = total != 0
    shift = np.divide(excess, total, out=np.zeros_like(origin), where=weighted)
    return np.where(weighted, origin + shift, 0.0)


def corrected_moments(total: Array, drift: Array, mean: Array, m2: Array) -> tuple[Array, Array]:
    """Mean and squares without what rounding of the first mean left in them."""
    weighted = total != 0
    correction = np.divide(drift, total, out=np.zeros_like(mean), where=weighted)
    return mean + correction, np.where(weighted, np.maximum(m2 - correction * drift, 0.0), 0.0)


def check_range(row: Array, column: Array, n_rows: int, n_columns: int) -> None:
    row, column = np.asarray(row), np.asarray(column)
    outside = (row < 0) | (row >= n_rows) | (column < 0) | (column >= n_columns)
    if outside.any():
        position = int(outside.argmax())
        raise PairRangeError(position, int(row[position]), int(column[position]), n_rows, n_columns)


def part(array: Array, start: int, stop: int, dtype: DType) -> Array:
    """Part of an array in the one form kernels are compiled for."""
    return kernel_array(array[start:stop], dtype)


def input_type(row: Array, column: Array) -> DType:
    fits = all(np.can_cast(array.dtype, np.int32) for array in (row, column))
    return INT32 if fits else INT64


def ranges(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, total)) for start in range(0, total, step))


class _Log(NamedTuple):
    """What is counted: arrays, or columns that are worked out slice by slice."""

    row: Any
    column: Any
    weight: Any
    value: Any
    n_rows: int
    n_columns: int
    column_bits: int


class _Stretch:
    """The pairs of some transitions, numbered as they are first met."""

    def __init__(self, log: _Log, start: int, stop: int) -> None:
        self.log, self.start, self.stop = log, start, stop
        self.slot = np.empty(stop - start, np.int32)
        """For every transition, the number of its pair."""
        room = min(stop - start, _MOST_PAIRS)
        self.key, self.total = np.empty(room, np.uint64), np.empty(room, np.int64)
        self.weight = None if log.weight is None else np.zeros(room, total_type(log.weight))
        self.origin, self.excess = np.full(room, np.nan), np.zeros(room)
        """For every pair its first value, and the weighted sum of what its values differ from that."""
        self.differs = False
        """Whether some pair has different values."""

    def find(self) -> int:
        """Look up all pairs; the first transition out of range, -1 for none, or -2 for too many pairs."""
        log, n = self.log, 0
        table = np.zeros(1 << max(self.key.size.bit_length(), 1), np.int32)
        kind = input_type(log.row, log.column)
        for start, stop, slot in self._chunks():
            ids = part(log.row, start, stop, kind), part(log.column, start, stop, kind)
            sizes = log.n_rows, log.n_columns, log.column_bits
            n, bad = counting.look_up_pairs(*ids, *sizes, n, table, self.key, self.total, slot)
            if n < 0 or bad >= 0:
                return -2 if n < 0 else start + int(bad)
            weight, value = self._payload(start, stop)
            if self.weight is not None:
                counting.add_weights(slot, weight, *_in_order(slot), self.weight)
            if log.value is not None:
                sums = self.origin, self.excess
                self.differs |= counting.add_values(slot, value, weight, *_in_order(slot), *sums)
        total = self.total if self.weight is None else self.weight
        self.key, self.total = self.key[:n].view(np.int64), total[:n]
        self.origin, self.excess = self.origin[:n], self.excess[:n]
        return -1

    def deviations(self, mean: Array) -> Array:
        """For every pair, the weighted sums of deviations from a mean, and of their squares."""
        sums = np.zeros((2, mean.size))
        for start, stop, slot in self._chunks():
            weight, value = self._payload(start, stop)
            counting.add_deviations(slot, value, weight, *_in_order(slot), mean, *sums)
        return sums

    def _chunks(self) -> Iterator[tuple[int, int, Array]]:
        for start, stop in ranges(self.stop - self.start, _CHUNK):
            yield self.start + start, self.start + stop, self.slot[start:stop]

    def _payload(self, start: int, stop: int) -> tuple[Array, Array]:
        weight, value = self.log.weight, self.log.value
        weights = np.empty(0) if weight is None else part(weight, start, stop, total_type(weight))
        return weights, np.empty(0) if value is None else part(value, start, stop, FLOAT64)


def _in_order(slot: Array) -> tuple[Array, int, int, int, int, int]:
    """Transitions in the order given, in the form of kernels: one bucket of one chunk."""
    return np.array([[0, slot.size]], np.int32), slot.size, 0, 1, 0, 1


def hash_pairs(
    row: Any,
    column: Any,
    n_rows: int,
    n_columns: int,
    weight: Any,
    value: Any,
    want_entry: bool,
    threads: int,
) -> PairCounts | None:
    """Count where pairs are few, without moving a transition; None where they are many.

    Sums run over the transitions of a stretch in the order given, and over stretches in theirs.
    """
    column_bits = max(n_columns - 1, 0).bit_length()
    log = _Log(row, column, weight, value, n_rows, n_columns, column_bits)
    stretches = [_Stretch(log, *ends) for ends in ranges(row.size, _STRETCH)]
    given_up: list[_Stretch] = []

    def find(stretch: _Stretch) -> int:
        outcome = -2 if given_up else stretch.find()
        if outcome != -1:
            given_up.append(stretch)
        return outcome

    outcomes = run_all([partial(find, stretch) for stretch in stretches], threads)
    if max(outcomes) >= 0:
        check_range(row, column, n_rows, n_columns)
    if given_up:
        return None
    # The pairs of all stretches are looked up once more, to number them together.
    keys = np.concatenate([each.key for each in stretches])
    pairs = log._replace(row=keys >> column_bits, column=keys & ((1 << column_bits) - 1))
    every = _Stretch(pairs._replace(weight=None, value=None), 0, keys.size)
    if every.find() != -1:
        return None
    order = np.argsort(every.key)
    key, rank = every.key[order], np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    places = np.split(rank[every.slot], np.cumsum([each.key.size for each in stretches])[:-1])
    joined = list(zip(places, stretches, strict=True))
    total = np.zeros(key.size, total_type(weight))
    for place, each in joined:
        total[place] += each.total
    mean, m2 = (None, None) if value is None else _moments(joined, total, threads)
    entry = None
    if want_entry:
        kind = index_type(key.size)
        entry = np.concatenate([np.take(place.astype(kind), each.slot) for place, each in joined])
    indptr = np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(key >> column_bits, minlength=n_rows), out=indptr[1:])
    indices = (key & ((1 << column_bits) - 1)).astype(index_type(n_columns))
    return PairCounts(indptr, indices, total, mean, m2, entry)


def _moments(joined: list[tuple[Array, _Stretch]], total: Array, threads: int) -> tuple[Array, Array]:
    """Means and sums of squares over stretches, whose pairs have a place each."""
    origin, excess, drift, m2 = np.zeros((4, total.size))
    differs = False
    for place, each in reversed(joined):
        origin[place] = each.origin
    for place, each in joined:
        apart = each.origin - origin[place]
        excess[place] += each.excess + each.total * apart
        differs |= each.differs or bool(apart.any())
    mean = shifted_means(total, excess, origin)
    if not differs:  # as where states and actions determine the reward
        return mean, m2
    sums = run_all([partial(each.deviations, mean[place]) for place, each in joined], threads)
    for (place, _), (rest, squares) in zip(joined, sums, strict=True):
        drift[place] += rest
        m2[place] += squares
    return corrected_moments(total, drift, mean, m2)
