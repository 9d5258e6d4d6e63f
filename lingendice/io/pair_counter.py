"""How often each (state, action, next state) came: one place to put rows, whichever way they are counted.

Rows are looked up in a hash table. A table of millions of pairs is far larger than any cache, and every row
waits for memory once: keys of rows without weights and rewards are then gathered and counted by sorting,
which goes through memory a few times from end to end. Nobody else knows which of the two holds a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counting import count_pairs
from lingendice.data.counts import Counts
from lingendice.data.merging import merge
from lingendice.data.rows import row_of_entry
from lingendice.io.keys import ACTION_BITS, NEXT_BITS, STATE_BITS
from lingendice.kernels.counting import stream_tables as streaming
from lingendice.kernels.parallel import run_all

Array = NDArray[Any]

_BLOCK = 1 << 16  # rows per step: the columns of a block stay in the second-level cache
_MOST_KEYS = 1 << 20  # rows per step once it is known how they are counted
_KEY_BITS = 63
_FEW_TIMES = 8  # how often pairs have come on average where they are as well counted again
_THREADS_TO_SPARE = 4  # with which pairs are counted on two sides though one would take less work
_NUMBERS = {"weight", "reward", "reward_m2"}

_FIRST_CAPACITY = 1 << 12
_LOAD = 0.6
_SPARSE_LOAD, _SPARSE_CAPACITY = 0.3, 1 << 17  # while a table is small, room is cheaper than collisions
_WORTH_SHARING = 1 << 14  # rows for which it pays to wake another thread
_IN_CACHE = 1 << 17  # records that one thread finds about as fast as two do
_STRETCH = 1 << 21  # records that one call walks through

_MANY = 1 << 17  # pairs from which sorting takes less time than looking up
_EARLY, _NEW = 1 << 17, 0.85  # rows after which a log shows by its share of new pairs that it will have many
_ROOM = 1 << 24  # keys that wait at most: 128 MB
_STEP = 1 << 20  # keys that one task splits


class KeyLayout(NamedTuple):
    """Widths in bits of state, action and next state + 1 in the key of a pair."""

    state: int
    action: int
    following: int

    def pack(self, state: Array, action: Array, following: Array) -> Array:
        """Keys of states, actions and next states + 1 (0: the episode ended)."""
        return (((state << self.action) | action) << self.following) | following

    def unpack(self, keys: Array) -> tuple[Array, Array, Array]:
        """State, action and next state + 1 of keys."""
        cell = keys >> self.following
        return cell >> self.action, cell & ((1 << self.action) - 1), keys & ((1 << self.following) - 1)


class PairCounter:
    """Counts, and statistics of rewards, of all pairs of a log."""

    def __init__(self, roles: frozenset[str], executor: Executor | None, threads: int) -> None:
        self.threads = threads
        self.has_actions, self.has_rewards = "action" in roles, "reward" in roles
        self.fractional = False
        """Whether weights are floats."""
        self.layout = KeyLayout(STATE_BITS, ACTION_BITS if self.has_actions else 0, NEXT_BITS)
        self.n_states = self.n_actions = 0
        """One more than the largest ids, as given to :meth:`fit`."""
        self.hashed = HashedPairs(
            5 if self.has_rewards else 2, executor, 2 if threads >= _THREADS_TO_SPARE else 1
        )
        self.sorted: SortedPairs | None = None
        self.may_sort = not roles & _NUMBERS
        self.n_rows = 0

    # -- keys --------------------------------------------------------------------------------------------

    @property
    def is_wide(self) -> bool:
        """Whether ids have outgrown the keys that batches come with."""
        return self.layout[1:] != (ACTION_BITS if self.has_actions else 0, NEXT_BITS)

    def fit(self, n_states: int, n_actions: int) -> bool:
        """Widen the keys where ids outgrow them; False where no key has room for such ids."""
        self.n_states, self.n_actions = n_states, n_actions
        needed = KeyLayout(
            n_states.bit_length(),
            n_actions.bit_length() if self.has_actions else 0,
            (n_states + 1).bit_length(),
        )
        wanted = KeyLayout(*map(max, self.layout, needed))
        if wanted == self.layout:
            return True
        if sum(wanted) > _KEY_BITS:
            wanted = needed  # little room: exactly what is needed now
        if sum(wanted) > _KEY_BITS:
            return False
        self._sort_waiting()
        records = self.hashed.records()
        fields = self.layout.unpack(records[:, 0])
        self.layout = wanted
        records[:, 0] = wanted.pack(*fields)
        self.hashed.load(records)
        return True

    # -- adding ------------------------------------------------------------------------------------------

    def add(self, keys: Array, weight: Array, reward: Array, reward_m2: Array) -> None:
        """Count rows by their keys; columns that a log does not have are empty."""
        start = 0
        while start < keys.size:
            # In short steps until it is known how they are counted best.
            step = _BLOCK if self.may_sort and self.sorted is None else _MOST_KEYS
            rows = slice(start, start + step)
            self._add(keys[rows], weight[rows], reward[rows], reward_m2[rows])
            start += step

    def _add(self, keys: Array, weight: Array, reward: Array, reward_m2: Array) -> None:
        if self.may_sort and self.sorted is None and are_many(self.hashed.size, self.n_rows):
            self._begin_sorting()
        self.n_rows += keys.size
        if self.sorted is None:
            self.hashed.add(keys, weight, reward, reward_m2, self.fractional)
        else:
            self._gather(keys)

    def _begin_sorting(self) -> None:
        """From now on gather keys; those of the first few rows too, so that nothing is merged later."""
        self.sorted = SortedPairs(self.threads)
        keys, count = self.hashed.records().T
        if count.sum() <= _FEW_TIMES * keys.size:
            self.hashed.clear()
            self._gather(np.repeat(keys, count))

    def _gather(self, keys: Array) -> None:
        assert self.sorted is not None
        while keys.size:
            if self.sorted.room == 0:
                self._sort_waiting()
            taken = min(keys.size, self.sorted.room)
            self.sorted.add(keys[:taken])
            keys = keys[taken:]

    def _sort_waiting(self) -> None:
        if self.sorted is not None:
            self.sorted.count(self.layout, self.n_states, self.n_actions if self.has_actions else None)

    # -- what was counted --------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """All pairs as compressed rows, over the states and actions seen so far."""
        if self.sorted is None:
            return self._in_rows()
        self._sort_waiting()
        if self.hashed.size:
            self.sorted.take(self._in_rows())
            self.hashed.clear()
        return self.sorted.total()

    def _in_rows(self) -> Counts:
        """What the hash table holds."""
        n_actions = self.n_actions if self.has_actions else None
        layout = self.layout.action, self.layout.following, n_actions or 1
        indptr, indices, words = self.hashed.rows(layout, self.n_states)
        reals = words.view(np.float64)
        # Without rewards a record has no other word, and nothing is copied.
        count = np.ascontiguousarray((reals if self.fractional else words)[:, 0])
        counts = Counts(self.n_states, n_actions, indptr, indices, count)
        if not self.has_rewards:
            return counts
        shift = reals[:, 2] / count
        m2 = np.maximum(reals[:, 3] - reals[:, 2] * shift, 0.0)
        return replace(counts, reward_count=count, reward_mean=reals[:, 1] + shift, reward_m2=m2)

    def records(self) -> Array:
        """All pairs as records of 64-bit words, the key first; in no order that means anything."""
        return self.hashed.records() if self.sorted is None else records_of(self.counts(), self.layout)

    def load(self, records: Array) -> None:
        """Replace the contents by these records."""
        self.sorted = None
        self.hashed.load(records)

    def some_distinct(self, what: str, enough: int) -> int:
        """How many distinct states or actions occur, at least; of many pairs a part is looked at."""
        if self.sorted is not None:
            counts = self.counts()
            filled = (np.diff(counts.indptr) > 0).reshape(counts.n_states, counts.n_actions or 1)
            return int(np.count_nonzero(filled.any(axis=1 if what == "state" else 0)))
        # A hash table has its keys in no order: its first part is a fair sample.
        keys = self.hashed.tables[0].words[: max(enough, 1 << 16), 0]
        state, action, _ = self.layout.unpack(keys[keys >= 0])
        return int(np.unique(state if what == "state" else action).size)


@dataclass
class HashTable:
    """Records of 64-bit words in a hash table that doubles when it fills."""

    width: int
    by_status: bool
    """Whether word 1 marks empty records (episodes), or a negative key does (pairs)."""
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

    def add(self, keys: Array, weight: Array, reward: Array, reward_m2: Array, fractional: bool) -> None:
        """Add rows to the records of their pairs."""
        n_rows = keys.size
        if self.executor is not None and len(self.tables) == 1 and self.size > _IN_CACHE:
            self._divide()

        def add_to(side: int) -> None:
            table, done = self.tables[side], 0
            while done < n_rows:
                mask = len(self.tables) - 1
                done = streaming.add_pairs(
                    keys, weight, reward, reward_m2, done, n_rows, side, mask, fractional, table.arrays
                )
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
                streaming.count_rows(table, first, last, cells, *layout, indptr[1:])

        self.share(count, pairwise(edges), n_slots)
        np.cumsum(indptr, out=indptr)
        columns = np.empty(indptr[-1], np.int32 if n_states < 2**31 - 1 else np.int64)
        values = np.empty((columns.size, words[0].shape[1] - 1), np.int64)
        cursor = indptr[:-1].copy()

        def fill(cells: tuple[int, int]) -> None:
            for table, first, last in _through(words):
                streaming.fill_rows(table, first, last, cells, *layout, n_states, cursor, columns, values)
            for first, last in _stretches(*cells):
                streaming.sort_rows(indptr, first, last, columns, values)

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


def are_many(n_pairs: int, n_rows: int) -> bool:
    """Whether a log of n_rows rows so far has, or will have, too many pairs to look them up."""
    return n_pairs > _MANY or (n_rows >= _EARLY and n_pairs > _NEW * n_rows)


class SortedPairs:
    """Keys of rows without weights and rewards that wait, and the counts of those that were sorted."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.keys = np.empty(_ROOM, np.int64)
        self.waiting = 0
        self.counted: list[Counts] = []
        """Each at least twice as large as the next, so that an entry is merged a few times at most."""

    @property
    def room(self) -> int:
        """Keys that can still be gathered."""
        return self.keys.size - self.waiting

    def add(self, keys: Array) -> None:
        """Gather as many keys as there is room for."""
        self.keys[self.waiting : self.waiting + keys.size] = keys
        self.waiting += keys.size

    def count(self, layout: KeyLayout, n_states: int, n_actions: int | None) -> None:
        """Count what waits."""
        if self.waiting == 0:
            return
        keys, self.waiting = self.keys[: self.waiting], 0
        n_cells = n_states * (n_actions or 1)
        small = max(n_cells, n_states + 1) < 2**31
        # Two narrow numbers take the place of a key: no more memory, and half as much to read.
        pairs = keys.view(np.int32).reshape(-1, 2) if small else np.empty((keys.size, 2), np.int64)
        split = layout.action, layout.following, n_actions or 1, n_states, pairs
        steps = [(first, min(first + _STEP, keys.size)) for first in range(0, keys.size, _STEP)]
        run_all([partial(streaming.split_keys, keys, *step, *split) for step in steps], self.threads)
        found = count_pairs(pairs[:, 0], pairs[:, 1], n_cells, n_states + 1, threads=self.threads)
        self.take(Counts(n_states, n_actions, found.indptr, found.indices, found.count))

    def take(self, counts: Counts) -> None:
        """Add counts to those that were made so far."""
        while self.counted and 2 * counts.count.size > self.counted[-1].count.size:
            counts = merge(self.counted.pop(), counts, self.threads)
        self.counted.append(counts)

    def total(self) -> Counts:
        """All counts in one."""
        while len(self.counted) > 1:
            last = self.counted.pop()
            self.counted.append(merge(self.counted.pop(), last, self.threads))
        return self.counted[0]


def records_of(counts: Counts, layout: KeyLayout) -> Array:
    """Keys and counts as a table of pairs has them."""
    state, action = np.divmod(row_of_entry(counts.indptr), counts.n_actions or 1)
    following = np.where(counts.indices == counts.n_states, 0, counts.indices.astype(np.int64) + 1)
    return np.column_stack([layout.pack(state, action, following), counts.count])
