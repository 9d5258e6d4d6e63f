"""Pieces of a log that were counted apart, and how neighbours join: associative, in the order of the log."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.counts import Counts
from lingendice.labels import union
from lingendice.merging import sort_labels

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """First and last row of every episode of a piece, sorted by id; what a neighbour needs to go on."""

    ids: Array
    is_open: Array
    """False where the last row was terminal or truncated."""
    first_state: Array
    first_weight: Array
    last_state: Array | None
    """The row that waits for its next state; None where next states are a column."""
    last_action: Array | None
    last_reward: Array | None
    last_weight: Array | None
    marks_starts: bool

    def move_states(self, move: Array | None, actions: Array | None) -> EpisodeRecords:
        """The same with states and actions renumbered."""
        moved = self
        if move is not None:
            last = None if self.last_state is None else move[self.last_state]
            moved = replace(moved, first_state=move[self.first_state], last_state=last)
        if actions is not None and self.last_action is not None:
            moved = replace(moved, last_action=actions[self.last_action])
        return moved

    def arrays(self) -> dict[str, Array]:
        """Arrays by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True, eq=False)
class Piece:
    """Counts of consecutive rows, and the loose ends of their episodes."""

    counts: Counts
    episodes: EpisodeRecords | None = None

    def result(self) -> Counts:
        """The counts, labels in sorted order as in :meth:`Counts.from_transitions`."""
        return sort_labels(self.counts)


def join(left: Piece, right: Piece) -> Piece:
    """The piece of the rows of ``left`` followed by those of ``right``."""
    if right.counts.n_states == 0:
        return left
    if left.counts.n_states == 0:
        return right
    counts = left.counts.merge(right.counts)
    if left.episodes is None or right.episodes is None:
        return Piece(counts)
    first, second = left.episodes, _renumbered(left.counts, right.counts, right.episodes)
    _, here, there = np.intersect1d(first.ids, second.ids, assume_unique=True, return_indices=True)
    goes_on = first.is_open[here]
    here, there = here[goes_on], there[goes_on]
    if here.size and first.last_state is not None:
        counts = counts.merge(_links(counts, first, second, here, there))
    if here.size and first.marks_starts and counts.initial_count is not None:
        # These episodes did not begin in the right piece: they came over from the left one.
        initial = counts.initial_count.copy()
        np.subtract.at(initial, second.first_state[there], second.first_weight[there])
        counts = replace(counts, initial_count=initial)
    return Piece(counts, _joined(first, second))


def _renumbered(left: Counts, right: Counts, episodes: EpisodeRecords) -> EpisodeRecords:
    moves = []
    for kind in ("state_labels", "action_labels"):
        ours, theirs = getattr(left, kind), getattr(right, kind)
        moves.append(None if ours is None else union(ours, theirs)[1])
    return episodes.move_states(*moves)


def _links(
    counts: Counts, first: EpisodeRecords, second: EpisodeRecords, here: Array, there: Array
) -> Counts:
    """The transitions from the last rows of the left piece to the first rows of the right one."""
    assert first.last_state is not None
    linked = Counts.from_transitions(
        first.last_state[here],
        second.first_state[there],
        action=None if first.last_action is None else first.last_action[here],
        reward=None if first.last_reward is None else first.last_reward[here],
        weight=None if first.last_weight is None else first.last_weight[here],
        n_states=counts.n_states,
        n_actions=counts.n_actions,
    )
    return replace(linked, state_labels=counts.state_labels, action_labels=counts.action_labels)


def _joined(first: EpisodeRecords, second: EpisodeRecords) -> EpisodeRecords:
    """Records of both: where an episode is in both, its first row is on the left, its last on the right."""
    ids = np.union1d(first.ids, second.ids)
    ours, theirs = np.searchsorted(ids, first.ids), np.searchsorted(ids, second.ids)
    joined: dict[str, Any] = {"ids": ids, "marks_starts": first.marks_starts}
    for name, left in first.arrays().items():
        if name == "ids":
            continue
        right = second.arrays()[name]
        merged = np.empty(ids.size, np.result_type(left, right))
        order = (
            [(theirs, right), (ours, left)] if name.startswith("first") else [(ours, left), (theirs, right)]
        )
        for place, values in order:
            merged[place] = values
        joined[name] = merged
    return EpisodeRecords(**{field.name: joined.get(field.name) for field in fields(EpisodeRecords)})  # type: ignore[arg-type]
