"""A place for every pair: counts a log of few states and many rows without looking anything up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels import streaming

Array = NDArray[Any]

LARGEST = 1 << 25
"""Places of the largest such table: 128 MB."""
_PLACES_A_ROW = 16  # emptying reads every place: worth it once there is a row for this many
_MOST_ROWS = 1 << 30  # counts are 32-bit
_STEP = 1 << 22  # places read a call


class Square:
    """Counts of rows without weights and rewards, for states and actions up to given sizes."""

    def __init__(self, n_states: int, n_actions: int) -> None:
        self.n_states, self.n_actions = n_states, n_actions
        self.table = np.zeros(places(n_states, n_actions), np.int32)
        self.n_rows = 0

    def takes(self, n_states: int, n_actions: int, n_rows: int) -> bool:
        """Whether ids up to these sizes, and so many rows more, have room."""
        fits = n_states <= self.n_states and n_actions <= self.n_actions
        return fits and self.n_rows + n_rows <= _MOST_ROWS

    def add(self, keys: Array, action_bits: int, next_bits: int) -> None:
        """Count rows by their keys."""
        streaming.add_to_square(
            keys, 0, keys.size, action_bits, next_bits, self.n_actions, self.n_states + 1, self.table
        )
        self.n_rows += keys.size

    def pairs(self, action_bits: int, next_bits: int) -> Iterator[tuple[Array, Array]]:
        """What was counted: keys and how often each came."""
        found, count = np.empty(_STEP >> 4, np.int64), np.empty(_STEP >> 4, np.int64)
        start = 0
        while start < self.table.size:
            stop = min(start + _STEP, self.table.size)
            n, start = streaming.take_from_square(self.table, start, stop, found, count)
            cell, following = np.divmod(found[:n], self.n_states + 1)
            state, action = np.divmod(cell, self.n_actions)
            yield (((state << action_bits) | action) << next_bits) | following, count[:n].copy()


def places(n_states: int, n_actions: int) -> int:
    """Places that pairs of these sizes take."""
    return n_states * n_actions * (n_states + 1)


def is_worth_it(n_states: int, n_actions: int, rows_before: int) -> bool:
    """Whether a log of so many rows so far is large for its number of possible pairs."""
    return 0 < places(n_states, n_actions) <= min(LARGEST, _PLACES_A_ROW * rows_before)
