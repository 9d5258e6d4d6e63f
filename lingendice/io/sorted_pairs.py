"""Keys of rows gathered and counted by sorting: for pairs too many to look up one by one.

A table of millions of pairs is far larger than any cache, and every row waits for memory once. Sorting some
millions of keys goes through memory a few times from end to end instead.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counting import count_pairs
from lingendice.data.counts import Counts
from lingendice.data.merging import merge
from lingendice.data.rows import row_of_entry
from lingendice.kernels.counting import table_rows
from lingendice.kernels.parallel import run_all

Array = NDArray[Any]

_MANY = 1 << 17  # pairs from which sorting takes less time than looking up
_EARLY, _NEW = 1 << 17, 0.85  # rows after which a log shows by its share of new pairs that it will have many
_ROOM = 1 << 24  # keys that wait at most: 128 MB
_STEP = 1 << 20  # keys that one task splits


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

    def count(self, bits: tuple[int, int, int], n_states: int, n_actions: int | None) -> None:
        """Count what waits. ``bits`` has the widths of state, action and next state in a key."""
        if self.waiting == 0:
            return
        keys, self.waiting = self.keys[: self.waiting], 0
        n_cells = n_states * (n_actions or 1)
        small = max(n_cells, n_states + 1) < 2**31
        # Two narrow numbers take the place of a key: no more memory, and half as much to read.
        pairs = keys.view(np.int32).reshape(-1, 2) if small else np.empty((keys.size, 2), np.int64)
        layout = bits[1], bits[2], n_actions or 1, n_states, pairs
        steps = [(first, min(first + _STEP, keys.size)) for first in range(0, keys.size, _STEP)]
        run_all([partial(table_rows.split_keys, keys, *step, *layout) for step in steps], self.threads)
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


def records_of(counts: Counts, bits: tuple[int, int, int]) -> Array:
    """Keys and counts as a table of pairs has them."""
    state, action = np.divmod(row_of_entry(counts.indptr), counts.n_actions or 1)
    following = np.where(counts.indices == counts.n_states, 0, counts.indices.astype(np.int64) + 1)
    keys = (((state << bits[1]) | action) << bits[2]) | following
    return np.column_stack([keys, counts.count])
