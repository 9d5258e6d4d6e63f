"""Pieces of a log that were counted apart, and how neighbors join: associative, in the order of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import Counts
from lingendice.data.episodes import warn_breaks
from lingendice.data.labels import Labels, union
from lingendice.data.last_rows import NO_LAST_ROWS, TRUNCATED, LastRows, warn_last_rows
from lingendice.data.merging import keep_only, labels_to_ids, merge, occurring, sort_labels
from lingendice.io.columns import NO_ROWS, SPARE_IDS, IdRule
from lingendice.io.formats import FileError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """First and last row of every episode of a piece, sorted by id; what a neighbor needs to go on."""

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
    last_next: Array | None
    """Next state of the last row, with which the next piece's first row is compared; None where it is not."""

    def move_states(self, move: Array | None, actions: Array | None) -> EpisodeRecords:
        """The same with states and actions renumbered."""
        moved = self
        if move is not None:
            last = None if self.last_state is None else move[self.last_state]
            following = None if self.last_next is None else move[self.last_next]
            moved = replace(moved, first_state=move[self.first_state], last_state=last, last_next=following)
        if actions is not None and self.last_action is not None:
            moved = replace(moved, last_action=actions[self.last_action])
        return moved

    def last_transitions(self, counts: Counts, rows: Array, following: Array | None) -> Counts:
        """Transitions of some of the waiting rows, to these states or (None) to the end of the episode.

        They have the numbers and labels of ``counts``.
        """
        assert self.last_state is not None
        state = self.last_state[rows]
        linked = Counts.from_transitions(
            state,
            state if following is None else following,
            action=None if self.last_action is None else self.last_action[rows],
            reward=None if self.last_reward is None else self.last_reward[rows],
            weight=None if self.last_weight is None else self.last_weight[rows],
            n_states=counts.n_states,
            n_actions=counts.n_actions,
            terminal=np.ones(rows.size, bool) if following is None else None,
            keep_episodes=False,
        )
        labels = {name: getattr(counts, name) for name in ("state_labels", "action_labels")}
        return replace(linked, initial_count=None, **labels)

    def take(self, order: Array) -> EpisodeRecords:
        """The same episodes in another order."""
        return replace(self, **{name: array[order] for name, array in self.arrays().items()})  # type: ignore[arg-type]

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> EpisodeRecords:
        """Records of what :meth:`arrays` gave."""
        return cls(**{each.name: arrays.get(each.name) for each in fields(cls)})  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Array]:
        """Arrays by name."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True, eq=False)
class LogPiece:
    """Counts of consecutive rows, and the loose ends of their episodes."""

    counts: Counts
    episodes: EpisodeRecords | None = None
    numbered: frozenset[str] = frozenset()
    """Whether labels of states, or of actions, are integers that are too sparse here to be ids."""
    rule: IdRule = field(default_factory=IdRule)
    breaks: tuple[int, str] = (0, "")
    """Rows that do not begin in the next state of the row before in their episode, and the first of them."""
    occurring: Mapping[str, Array] = field(default_factory=dict)
    """Ids of states and actions, where some rows are in no pair: terminal next states, weights of zero."""
    roles: frozenset[str] = frozenset()
    """What its columns are for; known of what was counted apart."""
    where: str = ""
    """Where its first row stands."""
    last_rows: LastRows = NO_LAST_ROWS
    """Rows without a next state, by what was made of them; neighbors may still go on with open episodes."""

    def result(self) -> Counts:
        """The counts, labels in sorted order as in :meth:`Counts.from_transitions`."""
        counts = self.counts
        for what in self.numbered:
            name = f"{what}_labels"
            labels: Any = getattr(counts, name)
            if self.rule.are_ids(what, max(labels), len(labels)):
                counts = labels_to_ids(counts, what)
            else:
                counts = replace(counts, **{name: tuple(map(str, labels))})  # type: ignore[arg-type]
        counts = sort_labels(counts)
        n_states, n_actions = counts.n_states, counts.n_actions
        if n_actions is None:
            return counts
        if counts.state_labels is None:
            n_states = max(n_states, self.rule.at_least[0])
        if counts.action_labels is None:
            n_actions = max(n_actions, self.rule.at_least[1])
        return counts.with_states(n_states, n_actions)

    def warn(self, ends: str | None, on_command_line: bool = False) -> None:
        """Say what is remarkable about the rows of a whole log."""
        if self.breaks[0]:
            warn_breaks(*self.breaks)
        warn_last_rows(self.last_rows, ends, self.roles, on_command_line)

    def closed(self, ends: str) -> LogPiece:
        """The same where no neighbor goes on: open episodes have come to their last rows.

        ``ends`` is what these rows are; see :func:`lingendice.data.last_rows.settle`.
        """
        episodes = self.episodes
        if episodes is None or episodes.last_state is None:
            return self
        open_ones = np.flatnonzero(episodes.is_open)
        if ends == TRUNCATED:
            return replace(self, last_rows=self.last_rows.plus(LastRows(0, open_ones.size)))
        ended = episodes.last_transitions(self.counts, open_ones, None)
        last_rows = self.last_rows.plus(LastRows(open_ones.size, 0))
        return replace(self, counts=self.counts.merge(ended), last_rows=last_rows)

    def settled(self) -> LogPiece:
        """The same, with integers that are too sparse to be ids as labels."""
        piece = self
        for what, size in (("state", self.counts.n_states), ("action", self.counts.n_actions or 0)):
            if size > SPARE_IDS and self.rule.is_open(what) and self._labels(what) is None:
                filled = (np.diff(self.counts.indptr) > 0).reshape(self.counts.n_states, -1)
                leaving = int(np.count_nonzero(filled.any(axis=int(what == "state"))))
                if self.rule.are_ids(what, size - 1, leaving):
                    continue  # which spares a look at every pair
                ids = self._occurring(what)
                if not self.rule.are_ids(what, int(ids[-1]), ids.size):
                    piece = piece.with_numbers(what)
        return piece

    def _labels(self, what: str) -> Labels | None:
        labels: Labels | None = getattr(self.counts, f"{what}_labels")
        return labels

    def _occurring(self, what: str) -> Array:
        return _either(occurring(self.counts, what), self.occurring.get(what, NO_ROWS))

    def without_rows(self) -> LogPiece:
        """What neighbors are joined by: sizes, labels, ids that occur, first states, ends of episodes."""
        kinds = ["state"] if self.counts.n_actions is None else ["state", "action"]
        seen = {what: self._occurring(what) for what in kinds if self._labels(what) is None}
        return replace(self, counts=self.counts.without_rows(), occurring=seen)

    def with_numbers(self, what: str) -> LogPiece:
        """The same, with integers that are ids here numbered like those that are not."""
        if what in self.numbered or self._labels(what) is not None:
            return self
        ids, ends = self._occurring(what), self.episodes
        if ends is not None:
            move = np.zeros(int(ids.max(initial=-1)) + 1, np.int64)
            move[ids] = np.arange(ids.size)
            ends = ends.move_states(*((move, None) if what == "state" else (None, move)))
        counts, numbered = keep_only(self.counts, what, ids), self.numbered | {what}
        others = {other: found for other, found in self.occurring.items() if other != what}
        return replace(self, counts=counts, episodes=ends, numbered=numbered, occurring=others)


def _either(first: Array, second: Array) -> Array:
    """Ids that are in one of two sorted lists; they count from 0, so that no sort is needed."""
    occurs = np.zeros(max(first.max(initial=-1), second.max(initial=-1)) + 1, bool)
    occurs[first] = occurs[second] = True
    return np.flatnonzero(occurs)


def join(left: LogPiece, right: LogPiece, threads: int | None = None) -> LogPiece:
    """The piece of the rows of ``left`` followed by those of ``right``."""
    if right.counts.n_states == 0:
        return left
    if left.counts.n_states == 0:
        return right
    if left.roles != right.roles:
        raise other_columns(right.where, right.roles, left.roles)
    for what in left.numbered ^ right.numbered:
        left, right = left.with_numbers(what), right.with_numbers(what)
        if (what in left.numbered) != (what in right.numbered):
            raise ValueError(f"one log has {what} labels and the other bare ids; pass labels=True")
    return _joined_pieces(left, right, threads)


def other_columns(where: str, roles: frozenset[str], before: frozenset[str]) -> FileError:
    """What to say of rows that have other columns than those before them."""
    return FileError(
        f"{where}: columns for {', '.join(sorted(roles))} here, but for {', '.join(sorted(before))} before; "
        "name the columns to use, or pass False"
    )


def _joined_pieces(left: LogPiece, right: LogPiece, threads: int | None) -> LogPiece:
    counts = merge(left.counts, right.counts, threads)
    breaks = left.breaks[0] + right.breaks[0], left.breaks[1] or right.breaks[1]
    together = {what: _either(ids, right.occurring[what]) for what, ids in left.occurring.items()}
    last_rows = left.last_rows.plus(right.last_rows)
    joined = replace(
        left, counts=counts, episodes=None, breaks=breaks, occurring=together, last_rows=last_rows
    )
    if left.episodes is None or right.episodes is None:
        return joined
    first, second = left.episodes, _renumbered(left.counts, right.counts, right.episodes)
    _, here, there = np.intersect1d(first.ids, second.ids, assume_unique=True, return_indices=True)
    goes_on = first.is_open[here]
    here, there = here[goes_on], there[goes_on]
    if first.last_next is not None:
        apart = int((first.last_next[here] != second.first_state[there]).sum())
        breaks = breaks[0] + apart, breaks[1] or "the border of two pieces of the log" * (apart > 0)
    if here.size and first.last_state is not None:
        counts = counts.merge(first.last_transitions(counts, here, second.first_state[there]))
    if here.size and counts.initial_count is not None:
        # These episodes did not begin in the right piece: they came over from the left one.
        initial = counts.initial_count.copy()
        np.subtract.at(initial, second.first_state[there], second.first_weight[there])
        counts = replace(counts, initial_count=initial)
    return replace(joined, counts=counts, episodes=_joined(first, second), breaks=breaks)


def _renumbered(left: Counts, right: Counts, episodes: EpisodeRecords) -> EpisodeRecords:
    moves = []
    for kind in ("state_labels", "action_labels"):
        ours, theirs = getattr(left, kind), getattr(right, kind)
        moves.append(None if ours is None else union(ours, theirs)[1])
    return episodes.move_states(*moves)


def _joined(first: EpisodeRecords, second: EpisodeRecords) -> EpisodeRecords:
    """Records of both: where an episode is in both, its first row is on the left, its last on the right."""
    ids = np.sort(np.concatenate([first.ids, second.ids]), kind="stable")  # merges what is sorted
    ids = ids[np.append(True, ids[1:] != ids[:-1])[: ids.size]]
    ours, theirs = np.searchsorted(ids, first.ids), np.searchsorted(ids, second.ids)
    joined: dict[str, Any] = {"ids": ids}
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
    return EpisodeRecords.of(joined)
