"""Integers that turn out to be names while a log is counted: those that occur are numbered instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.io.columns import Batch, Coded
from lingendice.io.ids import SPARE_IDS
from lingendice.io.keys import flags
from lingendice.kernels.counting import stream_tables as streaming

if TYPE_CHECKING:
    from lingendice.io.stream_counter import Accumulator

Array = NDArray[Any]
_ROLES_OF_IDS = {"state": ("state", "next_state"), "action": ("action",)}


def look_at(counted: Accumulator, batch: Batch) -> None:
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


def note_hidden(counted: Accumulator, batch: Batch) -> None:
    """Keep in mind which integers occur, where no pair will tell of them."""
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

    Mostly a part of them tells already, and not all of a large table is sorted.
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


def settle(counted: Accumulator) -> None:
    """Decide when all rows are there."""
    for what in _ROLES_OF_IDS:
        size = counted.maps[what].size
        if size <= SPARE_IDS or not _may_be_names(counted, what):
            continue
        if not _are_ids(counted, what, size, []):
            _number(counted, what)
