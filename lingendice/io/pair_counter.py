"""How often each (state, action, next state) came: one place to put rows, whichever way they are counted.

Rows are looked up in a hash table. Where pairs without weights and rewards are too many for that, keys are
gathered and counted by sorting instead; see :mod:`lingendice.io.hashed_pairs` and
:mod:`lingendice.io.sorted_pairs`. Nobody else knows which of the two holds a pair.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import Counts
from lingendice.io.hashed_pairs import HashedPairs
from lingendice.io.keys import ACTION_BITS, NEXT_BITS, STATE_BITS
from lingendice.io.sorted_pairs import SortedPairs, are_many, records_of
from lingendice.kernels.counting.stream_tables import PairRows

Array = NDArray[Any]

_BLOCK = 1 << 16  # rows per step: the columns of a block stay in the second-level cache
_MOST_KEYS = 1 << 20  # rows per step once it is known how they are counted
_KEY_BITS = 63
_FEW_TIMES = 8  # how often pairs have come on average where they are as well counted again
_THREADS_TO_SPARE = 4  # with which pairs are counted on two sides though one would take less work
_NUMBERS = {"weight", "reward", "reward_m2"}


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
        """One more than the largest ids, as :meth:`fit` was told."""
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
            self._add(PairRows(keys[rows], weight[rows], reward[rows], reward_m2[rows]))
            start += step

    def _add(self, rows: PairRows) -> None:
        if self.may_sort and self.sorted is None and are_many(self.hashed.size, self.n_rows):
            self._begin_sorting()
        self.n_rows += rows.keys.size
        if self.sorted is None:
            self.hashed.add(rows, self.fractional)
        else:
            self._gather(rows.keys)

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
