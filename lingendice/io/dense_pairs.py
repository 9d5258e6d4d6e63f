"""A place for every pair: counts a log of few states and many rows without looking anything up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.io.columns import Batch, Coded, Packed
from lingendice.io.ids import IdMap
from lingendice.io.keys import NO_INTS, Packer, breaks_of, events_of, flags, narrowed
from lingendice.kernels.counting import stream_tables as streaming

Array = NDArray[Any]

LARGEST = 1 << 25
"""Places of all such tables together: 128 MB."""
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


def is_worth_it(n_states: int, n_actions: int, n_rows: int, most: int = LARGEST) -> bool:
    """Whether a log of so many rows so far is large for its number of possible pairs."""
    return 0 < places(n_states, n_actions) <= min(most, _PLACES_A_ROW * n_rows)


class _Ids(NamedTuple):
    """Columns of ids as the kernel takes them: ``moves`` numbers the codes of labels."""

    state: Array
    action: Array
    following: Array
    terminal: Array
    moves: tuple[Array, Array]


class Squares:
    """Counts rows without weights and rewards in the threads that decode them, in whatever order.

    A thread borrows a square for a batch; in the end all of them are added up.
    """

    def __init__(self, n_states: int | None, n_actions: int | None, threads: int, packer: Packer) -> None:
        self.given = n_states, n_actions
        self.packer = packer
        self.states = IdMap("state")
        self.most = LARGEST // threads
        self.n_rows = 0
        self.hopeless = False
        """Whether ids came that no square has room for, so that more of them are to be expected."""
        self.lock = threading.Lock()
        self.free: list[Square] = []
        self.outgrown: list[Square] = []

    def take(self, batch: Batch) -> Batch:
        """Count the pairs of a batch where that serves; else pack it, to be counted in its turn."""
        ids = None if self.hopeless else self._ids(batch)
        if ids is None:
            return self.packer.pack(batch)
        with self.lock:
            square = self.free.pop() if self.free else None
            self.n_rows += batch.n_rows
        sizes = None if square is None else _add(square, ids)
        if sizes is None:
            square, sizes = self._larger(square, ids)
        if square is None or sizes is None:
            return self.packer.pack(batch)
        square.n_rows += batch.n_rows
        with self.lock:
            self.free.append(square)
        counted = Packed(None, *sizes, events_of(batch), counted=True, breaks=breaks_of(batch))
        return replace(batch, packed=counted)

    def _ids(self, batch: Batch) -> _Ids | None:
        """The columns to count by; None where they are not all there, or not all of one kind."""
        columns = batch.columns
        if batch.n_rows == 0 or "next_state" not in columns or columns.keys() & _NUMBERS:
            return None
        states = columns["state"], columns["next_state"]
        action = columns.get("action", NO_INTS)
        coded = [column for column in states if isinstance(column, Coded)]
        plain = [column for column in states if not isinstance(column, Coded)]
        if isinstance(action, Coded) or len(coded) == 1 or (coded and self.given[0] is not None):
            return None
        state, following = [column.codes for column in coded] or plain
        acted = {"action": action} if action.size else {}
        ids = narrowed({"state": state, "next_state": following} | acted)
        action = ids.get("action", np.empty(0, ids["state"].dtype))
        here, there = [self.states.number(column.values) for column in coded] or (NO_INTS, NO_INTS)
        return _Ids(ids["state"], action, ids["next_state"], flags(batch, "terminal"), (here, there))

    def _larger(self, square: Square | None, ids: _Ids) -> tuple[Square | None, tuple[int, int] | None]:
        """Count in a new square that takes these ids; no sizes where ids are wrong or too many for one."""
        sizes = _sizes(ids)
        fits = sizes is not None and all(
            given is None or size <= given for given, size in zip(self.given, sizes, strict=True)
        )
        larger = None
        if sizes is not None and fits:
            n_states, n_actions = sizes[0], max(sizes[1], 1)
            self.hopeless |= places(n_states, n_actions) > self.most
            shapes = [(n_states, n_actions)]
            if square is not None:
                # By doubling, states that turn up one after another outgrow few squares.
                doubled = max(n_states, 2 * square.n_states), max(n_actions, square.n_actions)
                shapes.insert(0, doubled)
            worth = [shape for shape in shapes if is_worth_it(*shape, self.n_rows, self.most)]
            larger = Square(*worth[0]) if worth else None
        if square is not None:
            with self.lock:
                (self.free if larger is None else self.outgrown).append(square)
        return larger, None if larger is None else _add(larger, ids)

    def taken(self) -> list[Square]:
        """All squares, to be emptied; those of one shape are added up."""
        with self.lock:
            squares, self.free, self.outgrown = [*self.free, *self.outgrown], [], []
        sums: dict[tuple[int, int], Square] = {}
        apart = []
        for square in squares:
            held = sums.setdefault((square.n_states, square.n_actions), square)
            if held is square:
                continue
            if held.takes(square.n_states, square.n_actions, square.n_rows):
                held.table += square.table
                held.n_rows += square.n_rows
            else:
                apart.append(square)
        return [*sums.values(), *apart]


_NUMBERS = {"weight", "reward", "reward_m2"}


def _add(square: Square, ids: _Ids) -> tuple[int, int] | None:
    """Count rows and tell their sizes; None, and nothing counted, where the square has no place for some."""
    n = ids.state.size
    if not square.takes(0, 0, n):
        return None
    shape = square.n_actions, square.n_states + 1
    done, *highest = streaming.add_ids_to_square(*ids, n, *shape, 1, square.table)
    if done == n:
        return int(highest[0]) + 1, int(highest[1]) + 1
    streaming.add_ids_to_square(*ids, done, *shape, -1, square.table)
    return None


def _sizes(ids: _Ids) -> tuple[int, int] | None:
    """One more than the largest state and action; None where an id is negative."""
    states = ids.moves if ids.moves[0].size else (ids.state, ids.following)
    ends = [streaming.extent(column) for column in (*states, ids.action) if column.size]
    if min(low for low, _ in ends) < 0:
        return None
    n_states = max(int(high) for _, high in ends[:2]) + 1
    return n_states, int(ends[2][1]) + 1 if ids.action.size else 0
