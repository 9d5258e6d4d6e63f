"""What of a batch can be worked out without the rows before it.

It is done where the batch is decoded, so that batches are packed side by side and only what depends on the
order of rows is left for the one thread that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.log_checks import Breaks
from lingendice.data.rows import kernel_array
from lingendice.io.columns import NO_BREAKS, Batch, Coded, Packed
from lingendice.kernels.counting import stream_tables as streaming

Array = NDArray[Any]

STATE_BITS, ACTION_BITS, NEXT_BITS = 24, 15, 24
"""Widths in the key of a pair that suit nearly every log; wider ids are packed when they are counted."""
NO_INTS, NO_REALS, NO_FLAGS = np.empty(0, np.int64), np.empty(0), np.empty(0, bool)


class Packer:
    """Packs batches; memory of keys that were counted is used again, as touching new memory takes longer."""

    def __init__(self) -> None:
        self.spare: list[Array] = []

    def pack(self, batch: Batch) -> Batch:
        """The batch with keys of its pairs, where ids are integers of ordinary size, and its events."""
        if batch.packed is not None or batch.n_rows == 0 or "next_state" not in batch.columns:
            return batch
        keys = _keys(batch, self._memory)
        return replace(batch, packed=Packed(*keys, events_of(batch), breaks=breaks_of(batch)))

    def _memory(self, n_rows: int) -> Array:
        try:
            memory = self.spare.pop()
        except IndexError:
            return np.empty(n_rows, np.int64)
        return memory[:n_rows] if memory.size >= n_rows else np.empty(n_rows, np.int64)

    def forget(self, batch: Batch) -> None:
        """Take the memory of the keys back: nobody reads them any more."""
        if batch.packed is not None and batch.packed.keys is not None:
            keys = batch.packed.keys
            self.spare.append(keys if keys.base is None else keys.base)


def _keys(batch: Batch, memory: Callable[[int], Array]) -> tuple[Array | None, int, int]:
    """Keys, and one more than the largest state and action; no keys where ids do not fit or are labels."""
    roles = [role for role in ("state", "next_state", "action") if role in batch.columns]
    ids = [column for role in roles if not isinstance(column := batch.columns[role], Coded)]
    if len(ids) < len(roles):
        return None, 0, 0
    columns = narrowed(dict(zip(roles, ids, strict=True)))
    action_bits = ACTION_BITS if "action" in columns else 0
    action = columns.get("action", np.empty(0, columns["state"].dtype))
    keys = memory(batch.n_rows)
    low, state, action_size = streaming.pack_keys(
        columns["state"],
        action,
        columns["next_state"],
        flags(batch, "terminal"),
        action_bits,
        NEXT_BITS,
        keys,
    )
    fits = low >= 0 and int(state + 2).bit_length() <= NEXT_BITS and int(action_size + 1) < 1 << ACTION_BITS
    return (keys if fits else None), int(state) + 1, int(action_size) + 1


def events_of(batch: Batch) -> Array | None:
    """Rows that may begin or end an episode; None where the log has no episodes."""
    if not batch.columns.keys() & {"episode", "terminal", "truncated"}:
        return None
    episode = batch.columns.get("episode", NO_INTS)
    ids = episode.codes if isinstance(episode, Coded) else episode
    rows = np.empty(batch.n_rows, np.int64)
    kind = np.int32 if ids.dtype == np.int32 else np.int64
    terminal, truncated = flags(batch, "terminal"), flags(batch, "truncated")
    found = streaming.find_events(kernel_array(ids, kind), terminal, truncated, batch.n_rows, rows)
    return rows[:found].copy()


def compares_rows(roles: Collection[str]) -> bool:
    """Whether next states can be compared with the states of the rows that follow.

    That is so where the log has episodes. A row with a weight may stand for many steps.
    """
    has_episodes = not {"episode", "terminal", "truncated"}.isdisjoint(roles)
    return has_episodes and "next_state" in roles and "weight" not in roles


def breaks_of(batch: Batch) -> Breaks:
    """Rows that are no events and do not begin in the next state of the row above."""
    if not compares_rows(batch.columns):
        return NO_BREAKS
    state, following = batch.columns["state"], batch.columns["next_state"]
    if isinstance(state, Coded) and isinstance(following, Coded):
        known: dict[str, int] = {}
        here, there = (
            np.fromiter((known.setdefault(label, len(known)) for label in column.values), np.int64)
            for column in (state, following)
        )
        state, following = np.take(here, state.codes), np.take(there, following.codes)
    if isinstance(state, Coded) or isinstance(following, Coded):
        return NO_BREAKS  # an error, raised where the rows are counted
    episode = batch.columns.get("episode", NO_INTS)
    ids = narrowed({"state": state, "next_state": following})
    n, first = streaming.count_breaks(
        kernel_array(episode.codes if isinstance(episode, Coded) else episode, np.int64),
        ids["state"],
        ids["next_state"],
        flags(batch, "terminal"),
        flags(batch, "truncated"),
    )
    return Breaks(int(n), int(first))


def narrowed(ids: dict[str, Array]) -> dict[str, Array]:
    """Columns of ids in one type, 32 bits where all of them have that."""
    kind = np.int32 if all(column.dtype == np.int32 for column in ids.values()) else np.int64
    return {role: kernel_array(column, kind) for role, column in ids.items()}


def flags(batch: Batch, role: str) -> Array:
    """A column of flags; empty where there is none."""
    column = batch.columns.get(role, NO_FLAGS)
    assert not isinstance(column, Coded)
    return kernel_array(column, bool)
