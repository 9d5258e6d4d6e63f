"""Hash tables that grow: one record per distinct pair, one record per episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels.counting import stream_tables as streaming
from lingendice.kernels.counting import table_rows

Array = NDArray[Any]

_FIRST_CAPACITY = 1 << 12
_LOAD = 0.6
_SPARSE_LOAD, _SPARSE_CAPACITY = 0.3, 1 << 17  # while a table is small, room is cheaper than collisions
_WORTH_SHARING = 1 << 14  # rows for which it pays to wake another thread
_IN_CACHE = 1 << 17  # records that one thread finds about as fast as two do
_STRETCH = 1 << 21  # records that one call walks through


@dataclass
class HashTable:
    """Records of 64-bit words in a hash table that doubles when it fills."""

    width: int
    by_status: bool
    """Whether word 1 tells empty records (episodes), or a negative key does (pairs)."""
    words: Array = field(init=False)
    held: Array = field(init=False)

    def __post_init__(self) -> None:
        self.words = self._blank(_FIRST_CAPACITY)
        self.held = np.zeros(2, np.int64)

    def _blank(self, capacity: int) -> Array:
        words = np.zeros((capacity, self.width), np.int64)
        if not self.by_status:
            words[:, 0] = -1
        return words

    @property
    def shift(self) -> int:
        """How far a hash is shifted to become a place in the table."""
        return 65 - int(self.words.shape[0]).bit_length()

    @property
    def room(self) -> int:
        """Records that the table takes before it must grow."""
        return self._room(self.words.shape[0])

    @staticmethod
    def _room(capacity: int) -> int:
        return int((_LOAD if capacity > _SPARSE_CAPACITY else _SPARSE_LOAD) * capacity)

    @property
    def arrays(self) -> streaming.Table:
        """The table as the kernels take it."""
        return streaming.Table(self.words, self.words.view(np.float64), self.held, self.shift, self.room)

    def grow(self) -> None:
        """Double the capacity."""
        self._refill(self.words, 2 * self.words.shape[0])

    def records(self) -> Array:
        """The records in use, in the order of the table."""
        used = self.words[:, 1] != streaming.EMPTY if self.by_status else self.words[:, 0] >= 0
        return self.words[used]

    def load(self, records: Array) -> None:
        """Replace the contents by these records."""
        capacity = _FIRST_CAPACITY
        while records.shape[0] > self._room(capacity):
            capacity *= 2
        self.held[0] = records.shape[0]
        self._refill(np.ascontiguousarray(records), capacity)

    def _refill(self, records: Array, capacity: int) -> None:
        self.words = self._blank(capacity)
        for first, last in _stretches(0, records.shape[0]):
            streaming.move_records(records, first, last, self.shift, self.by_status, self.words)


class HashedPairs:
    """Records of pairs on several sides, each of which a thread can fill by itself.

    A pair is always on the same side, and a side goes through the rows in their order, so that sums of
    rewards are the same bits whatever the number of sides.
    """

    def __init__(self, width: int, executor: Executor | None, sides: int = 1) -> None:
        self.tables = [HashTable(width, by_status=False) for _ in range(sides)]
        self.executor = executor
        """Threads that help with the sides after the first."""

    @property
    def size(self) -> int:
        """Records in use."""
        return sum(int(table.held[0]) for table in self.tables)

    def clear(self) -> None:
        """Forget all records."""
        self.load(np.empty((0, self.tables[0].width), np.int64))

    def add(self, rows: streaming.PairRows, fractional: bool) -> None:
        """Add rows to the records of their pairs."""
        n_rows = rows.keys.size
        if self.executor is not None and len(self.tables) == 1 and self.size > _IN_CACHE:
            self._divide()

        def add_to(side: int) -> None:
            table, done = self.tables[side], 0
            while done < n_rows:
                mask = len(self.tables) - 1
                done = streaming.add_pairs(rows, done, n_rows, side, mask, fractional, table.arrays)
                if done < n_rows:
                    table.grow()

        self.share(add_to, range(len(self.tables)), n_rows)

    def _divide(self) -> None:
        """Go on with two sides: to find the rows of each is more work, which pays where records are far."""
        records = self.records()
        self.tables.append(HashTable(self.tables[0].width, by_status=False))
        self.load(records)

    def share(self, work: Callable[[Any], None], portions: Iterable[Any], n_rows: int) -> None:
        """Do the work of all portions (n_rows rows), in parallel where there are threads for it."""
        mine, *others = portions
        if self.executor is None or n_rows < _WORTH_SHARING:
            for portion in (mine, *others):
                work(portion)
            return
        shared = [self.executor.submit(work, portion) for portion in others]
        work(mine)
        for job in shared:
            job.result()

    def rows(self, layout: tuple[int, int, int], n_states: int) -> tuple[Array, Array, Array]:
        """Compressed rows: where each begins, columns, the words of each record.

        ``layout`` has the bits of action and next state in a key, and the number of actions. Every thread
        makes a range of rows.
        """
        n_cells = n_states * layout[2]
        words = [table.words for table in self.tables]
        n_slots = sum(table.shape[0] for table in words)
        edges = [n_cells * side // len(words) for side in range(len(words) + 1)]
        indptr = np.zeros(n_cells + 1, np.int64)

        def count(cells: tuple[int, int]) -> None:
            for table, first, last in _through(words):
                table_rows.count_rows(table, first, last, cells, *layout, indptr[1:])

        self.share(count, pairwise(edges), n_slots)
        np.cumsum(indptr, out=indptr)
        columns = np.empty(indptr[-1], np.int32 if n_states < 2**31 - 1 else np.int64)
        values = np.empty((columns.size, words[0].shape[1] - 1), np.int64)
        cursor = indptr[:-1].copy()

        def fill(cells: tuple[int, int]) -> None:
            for table, first, last in _through(words):
                table_rows.fill_rows(table, first, last, cells, *layout, n_states, cursor, columns, values)
            for first, last in _stretches(*cells):
                table_rows.sort_rows(indptr, first, last, columns, values)

        self.share(fill, pairwise(edges), n_slots)
        return indptr, columns, values

    def records(self) -> Array:
        """The records in use, in no order that means anything."""
        return np.concatenate([table.records() for table in self.tables])

    def load(self, records: Array) -> None:
        """Replace the contents by these records."""
        records = np.ascontiguousarray(records)
        side = streaming.sides(records[:, 0].copy(), len(self.tables) - 1)
        for number, table in enumerate(self.tables):
            table.load(records[side == number])


def _stretches(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges that a kernel goes through in a fraction of a second."""
    return ((first, min(first + _STRETCH, stop)) for first in range(start, stop, _STRETCH))


def _through(tables: list[Array]) -> Iterator[tuple[Array, int, int]]:
    return ((table, *ends) for table in tables for ends in _stretches(0, table.shape[0]))
