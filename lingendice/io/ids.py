"""Ids of states, actions and episodes as integers from 0, and the one rule that distinguishes ids from names.

Integers are ids that count from 0 where the largest is below ``20 * (distinct ones) + 10,000``; sparser ones
(account numbers, hashes) are names, and only those that occur are numbered. Strings are names always.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.rows import kernel_array
from lingendice.io.columns import Batch, Coded
from lingendice.io.formats import FileError
from lingendice.io.keys import NO_INTS, flags
from lingendice.kernels.counting import stream_tables as streaming

if TYPE_CHECKING:
    from lingendice.io.stream_counter import Accumulator

Array = NDArray[Any]
IDS_PER_STATE, SPARE_IDS = 20, 10_000
_ROLES_OF_IDS = {"state": ("state", "next_state"), "action": ("action",)}


@dataclass(frozen=True)
class IdRule:
    """Whether integers are ids or names, for states and for actions."""

    labels: bool | None = None
    """True: names always; False: ids always; None: by how dense they are."""
    sizes: tuple[int | None, int | None] = (None, None)
    """Numbers of states and actions that the caller gave: integers are ids then."""
    at_least: tuple[int, int] = (0, 0)
    """Sizes that something else (a policy) speaks of: integers below them are ids."""

    def is_open(self, what: str) -> bool:
        """Whether it depends on the integers."""
        return self.labels is None and self.sizes[what == "action"] is None

    def are_ids(self, what: str, largest: int, distinct: int) -> bool:
        """Whether these integers count from 0."""
        dense = IDS_PER_STATE * distinct + SPARE_IDS
        return not self.is_open(what) or largest < max(dense, self.at_least[what == "action"])


@dataclass
class IdMap:
    """Ids of states, actions or episodes: integers as they are, or labels numbered as they come."""

    what: str
    coded: bool | None = None
    numbered: bool = False
    """Whether integers are looked up like labels, since they are too sparse to be used as they are."""
    position: dict[Any, int] = field(default_factory=dict)
    size: int = 0
    """One more than the largest id."""

    def read(self, batch: Batch, role: str, rows: Any = slice(None)) -> Array:
        """The column of a role, or some rows of it, as integers."""
        column = batch.columns[role]
        if batch.n_rows == 0:
            return NO_INTS
        self.expect(isinstance(column, Coded), batch, role)
        if isinstance(column, Coded):
            return np.take(self.number(column.values), column.codes[rows])
        if self.what != "episode":
            size = self.checked_size(batch, role)
            if self.numbered:
                values, codes = np.unique(column[rows], return_inverse=True)
                return np.take(self.number(values.tolist()), codes)
            self.size = max(self.size, size)
        return column[rows]

    def expect(self, coded: bool, batch: Batch, role: str) -> None:
        """Raise where labels follow integers, or integers labels."""
        if self.coded is None:
            self.coded = coded
        elif self.coded != coded:
            kinds = ("integers", "strings")
            raise FileError(
                f"{batch.where(0)}: {role} holds {kinds[coded]}, but {self.what} ids before were "
                f"{kinds[not coded]}; pass labels=True to read all of them as strings"
            )

    def number(self, labels: list[Any]) -> Array:
        """Numbers of some labels; new ones take the next."""
        known = self.position
        # In a log of many parts nearly all labels are known: one lookup each, and no more.
        for label in itertools.filterfalse(known.__contains__, labels):
            known.setdefault(label, len(known))
        self.size = len(known)
        return np.fromiter(map(known.__getitem__, labels), np.int64, len(labels))

    def checked_size(self, batch: Batch, role: str) -> int:
        """One more than the largest integer of a column; an error where one is negative."""
        column = batch.columns[role]
        assert not isinstance(column, Coded)
        low, high = streaming.extent(kernel_array(column, column.dtype))
        if low < 0:
            row = int((column < 0).argmax())
            raise FileError(
                f"{batch.where(row)}: {role} is {column[row]}, but ids run from 0; fix it, or pass "
                "labels=True to read ids as names"
            )
        return int(high) + 1


# -- integers that turn out to be names while a log is counted: those that occur are numbered instead ----


def number_sparse_ids(counted: Accumulator, batch: Batch) -> None:
    """Number integers from now on where they are too sparse to be ids."""
    for what, roles in _ROLES_OF_IDS.items():
        known, present = counted.maps[what], [role for role in roles if role in counted.roles]
        if not _may_be_names(counted, what) or any(isinstance(batch.columns[r], Coded) for r in present):
            continue
        size = max((known.checked_size(batch, role) for role in present), default=0)
        if size <= counted.next_look[what]:
            continue
        if _are_ids(counted, what, size, [batch.columns[role] for role in present]):
            counted.next_look[what] = 2 * size
        else:
            _number(counted, what)


def note_hidden_ids(counted: Accumulator, batch: Batch) -> None:
    """Remember integers that occur where no pair records them."""
    masks = [flags(batch, "terminal")] if "terminal" in counted.roles else []
    if "weight" in counted.roles:
        masks.append(np.asarray(batch.columns["weight"]) == 0)
    if counted.derive and "truncated" in counted.roles:
        masks.append(flags(batch, "truncated"))
    rows = [np.flatnonzero(mask) for mask in masks]
    for what, roles in _ROLES_OF_IDS.items():
        columns = [batch.columns[role] for role in roles if role in counted.roles]
        plain = [column for column in columns if not isinstance(column, Coded)]
        if _may_be_names(counted, what) and any(row.size for row in rows):
            found = [np.unique(column[row]) for column in plain for row in rows]
            counted.hidden[what] = np.unique(np.concatenate([counted.hidden[what], *found]))


def _may_be_names(counted: Accumulator, what: str) -> bool:
    known = counted.maps[what]
    return counted.rule.is_open(what) and not known.coded and not known.numbered


def _are_ids(counted: Accumulator, what: str, size: int, more: list[Any]) -> bool:
    """Whether the integers counted so far, and some more, are dense enough to be ids.

    A part of them usually decides, so that not all of a large table is sorted.
    """
    if counted.rule.are_ids(what, size - 1, counted.pairs.some_distinct(what, size)):
        return True
    occur = np.unique(np.concatenate([_occurring(counted, what), *more]))
    return counted.rule.are_ids(what, size - 1, occur.size)


def _occurring(counted: Accumulator, what: str) -> Array:
    """The integers that were counted so far, sorted."""
    state, action, following = counted.pairs.layout.unpack(counted.pairs.records()[:, 0])
    held = counted.episodes.records()
    waiting = held[held[:, 1] == streaming.OPEN] if counted.derive else held[:0]
    if what == "action":
        ends = [waiting[:, counted.last_at + 1]] if counted.derive else []
        return np.unique(np.concatenate([action, counted.hidden[what], *ends]))
    ends = [counted.hidden[what], *([waiting[:, counted.last_at]] if counted.derive else [])]
    if counted.first_at >= 0:
        ends.append(held[:, counted.first_at])
    reached, begun = following[following > 0] - 1, np.flatnonzero(counted.starts)
    return np.unique(np.concatenate([state, reached, begun, *ends]))


def _number(counted: Accumulator, what: str) -> None:
    """Give numbers to the integers that occur, in place of themselves."""
    occur, known = _occurring(counted, what), counted.maps[what]
    records = counted.pairs.records()
    state, action, following = counted.pairs.layout.unpack(records[:, 0])
    places: tuple[int, ...] = (counted.first_at, counted.last_at, counted.next_at)
    if what == "action":
        action = np.searchsorted(occur, action)
        places = (counted.last_at + 1 if counted.derive else -1,)
    held = counted.episodes.records()
    for at in places:
        if at >= 0:
            held[:, at] = np.searchsorted(occur, held[:, at])
    counted.episodes.load(held)
    if what == "state":
        state = np.searchsorted(occur, state)
        following = np.where(following > 0, np.searchsorted(occur, following - 1) + 1, 0)
        starts = np.zeros(occur.size, counted.starts.dtype)
        begun = np.flatnonzero(counted.starts)
        starts[np.searchsorted(occur, begun)] = counted.starts[begun]
        counted.starts = starts
    records[:, 0] = counted.pairs.layout.pack(state, action, following)
    counted.pairs.load(records)
    known.number(occur.tolist())
    known.numbered = True
    counted.pairs.fit(counted.maps["state"].size, counted.maps["action"].size)


def settle_ids(counted: Accumulator) -> None:
    """Decide when all rows are there."""
    for what in _ROLES_OF_IDS:
        size = counted.maps[what].size
        if size <= SPARE_IDS or not _may_be_names(counted, what):
            continue
        if not _are_ids(counted, what, size, []):
            _number(counted, what)
