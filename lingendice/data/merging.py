"""Add two counts: an associative operation with the empty counts as identity."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import require_sum
from lingendice.data.episodes import Episodes
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.data.labels import Labels, union
from lingendice.data.rows import kernel_array
from lingendice.kernels.parallel import resolve_threads, run_all
from lingendice.kernels.sparse_rows import Side, count_union, unite_rows

if TYPE_CHECKING:
    from lingendice.data.counts import Counts

_ROWS = 1 << 18  # rows that one task unites


@heeds_ctrl_c
def merge(first: Counts, second: Counts, threads: int | None = None) -> Counts:
    """Counts of both logs together, over the union of their states and actions."""
    if _is_identity(second):
        return first
    if _is_identity(first):
        return second
    if first.lag != second.lag:
        raise ValueError(
            f"counts at lag {first.lag} and lag {second.lag} do not add up: count both logs at one lag"
        )
    first, second = _align(first, second)
    for one, other in ((first, second), (second, first)):
        # States and actions that were never seen take nothing from a log, kept episodes included.
        if not one.count.size and one.initial_count is None and one.has_sample_size:
            return other
    has_rewards = first.reward_mean is not None or second.reward_mean is not None
    want_places = has_rewards or (first.episodes is not None and second.episodes is not None)
    indptr, indices, count, places = _unite(first, second, want_places, resolve_threads(threads))
    reward_count, mean, m2 = _merge_rewards(count.size, places, first, second)
    return replace(
        first,
        indptr=indptr,
        indices=indices,
        count=count,
        reward_count=reward_count,
        reward_mean=mean,
        reward_m2=m2,
        initial_count=_add_optional(first.initial_count, second.initial_count),
        episodes=_merge_episodes(first, second, places),
        has_sample_size=first.has_sample_size and second.has_sample_size,
    )


def _unite(
    first: Counts, second: Counts, want_places: bool, threads: int
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], list[NDArray[np.int64]]]:
    """Compressed rows with the sums of counts and, where wanted, the place of every entry of either side."""
    column_type = np.int32 if first.n_states + 1 < 2**31 else np.int64
    count_type = np.float64 if any(side.count.dtype.kind == "f" for side in (first, second)) else np.int64
    starts = [kernel_array(side.indptr, np.int64) for side in (first, second)]
    columns = [kernel_array(side.indices, column_type) for side in (first, second)]
    counts = [kernel_array(side.count, count_type) for side in (first, second)]
    require_sum(*counts)
    places = [np.empty(column.size if want_places else 0, np.int64) for column in columns]
    indptr = np.zeros(first.n_cells + 1, np.int64)
    ranges = [(start, min(start + _ROWS, first.n_cells)) for start in range(0, first.n_cells, _ROWS)]

    def size(start: int, stop: int) -> None:
        count_union(starts[0], columns[0], starts[1], columns[1], start, stop, indptr[1:])

    def fill(start: int, stop: int) -> None:
        one, other = map(Side, starts, columns, counts)
        unite_rows(one, other, start, stop, Side(indptr, indices, count), *places)

    run_all([partial(size, *rows) for rows in ranges], threads)
    np.cumsum(indptr, out=indptr)
    indices, count = np.empty(indptr[-1], column_type), np.empty(indptr[-1], count_type)
    run_all([partial(fill, *rows) for rows in ranges], threads)
    return indptr, indices, count, places


def _is_identity(counts: Counts) -> bool:
    """Counts over no states: they hold no transition and no label."""
    return counts.n_states == 0 and not counts.n_actions


def _align(first: Counts, second: Counts) -> tuple[Counts, Counts]:
    """Bring both to the same states and actions, so that ids mean the same."""
    if (first.n_actions is None) != (second.n_actions is None):
        raise ValueError("a chain and an MDP cannot be merged: one log has actions, the other has none")
    states, state_move = _common_labels("state", first.state_labels, second.state_labels)
    actions, action_move = _common_labels("action", first.action_labels, second.action_labels)
    n_states = max(len(states or ()), first.n_states, second.n_states)
    n_actions = None
    if first.n_actions is not None and second.n_actions is not None:
        n_actions = max(len(actions or ()), first.n_actions, second.n_actions)
    first = replace(first.with_states(n_states, n_actions), state_labels=states, action_labels=actions)
    second = _renumber(second.with_states(n_states, n_actions), state_move, action_move)
    return first, replace(second, state_labels=states, action_labels=actions)


def _common_labels(
    kind: str, first: Labels | None, second: Labels | None
) -> tuple[Labels | None, NDArray[np.int64] | None]:
    if first is None and second is None:
        return None, None
    if first is None or second is None:
        raise ValueError(f"one log has {kind} labels and the other bare ids; label both or neither")
    return union(first, second)


def _renumber(
    counts: Counts, state_move: NDArray[np.int64] | None, action_move: NDArray[np.int64] | None
) -> Counts:
    """Move states and actions to new numbers of the same space."""
    if state_move is None and action_move is None:
        return counts
    states = _complete(state_move, counts.n_states)
    n_actions = counts.n_actions or 1
    actions = _complete(action_move, n_actions)
    columns = np.append(states, counts.n_states)
    lengths = np.diff(counts.indptr)
    cells = np.repeat(np.arange(counts.n_cells), lengths)
    new_cells = states[cells // n_actions] * n_actions + actions[cells % n_actions]
    new_columns = columns[counts.indices]
    order = np.lexsort((new_columns, new_cells))
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    episodes = counts.episodes
    if episodes is not None:
        episodes = episodes._replace(entry=back[episodes.entry], first_state=states[episodes.first_state])
    initial = counts.initial_count
    if initial is not None:
        moved = np.zeros_like(initial)
        moved[states] = initial
        initial = moved
    statistics: dict[str, Any] = {}
    for name in ("count", "reward_count", "reward_mean", "reward_m2"):
        column = getattr(counts, name)
        statistics[name] = None if column is None else column[order]
    return replace(
        counts,
        indptr=np.searchsorted(new_cells[order], np.arange(counts.n_cells + 1)).astype(np.int64),
        indices=new_columns[order].astype(counts.indices.dtype),
        initial_count=initial,
        episodes=episodes,
        **statistics,
    )


def _complete(move: NDArray[np.int64] | None, n: int) -> NDArray[np.int64]:
    """A permutation of ``range(n)`` that extends ``move``; unlabeled spare numbers fill the rest."""
    if move is None:
        return np.arange(n)
    rest = np.setdiff1d(np.arange(n), move)
    return np.concatenate([move, rest])[:n]


def _merge_rewards(
    size: int, places: list[NDArray[Any]], first: Any, second: Any
) -> tuple[NDArray[Any] | None, NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Chan's pooled mean and M2; a log without rewards contributes a reward count of zero."""
    if first.reward_mean is None and second.reward_mean is None:
        return None, None, None
    kind = np.result_type(first.count, second.count)
    count, (mean, m2) = np.zeros(size, kind), np.zeros((2, size))
    here, there = places
    if first.reward_mean is not None:
        count[here], mean[here], m2[here] = first.reward_count, first.reward_mean, first.reward_m2
    if second.reward_mean is not None:
        known, shift = count[there], second.reward_mean - mean[there]
        count[there] += second.reward_count
        total = count[there]
        share = np.divide(second.reward_count, total, out=np.zeros(there.size), where=total > 0)
        mean[there] += shift * share
        m2[there] += second.reward_m2 + shift * shift * known * share
    return count, mean, m2


def _add_optional(first: NDArray[Any] | None, second: NDArray[Any] | None) -> NDArray[Any] | None:
    if first is None:
        return second
    return first if second is None else first + second


def _merge_episodes(first: Counts, second: Counts, places: list[NDArray[Any]]) -> Episodes | None:
    """Episodes of both logs, where both kept theirs."""
    a, b = first.episodes, second.episodes
    if a is None or b is None:
        return None
    weight = None
    if a.weight is not None or b.weight is not None:
        weight = np.concatenate(
            [np.ones(e.entry.size, dtype=np.int64) if e.weight is None else e.weight for e in (a, b)]
        )
    reward = None
    if a.reward is not None and b.reward is not None:
        reward = np.concatenate([a.reward, b.reward])
    return Episodes(
        entry=np.concatenate([places[0][a.entry], places[1][b.entry]]),
        episode=np.concatenate([a.episode, b.episode + a.first_state.size]),
        reward=reward,
        weight=weight,
        first_state=np.concatenate([a.first_state, b.first_state]),
    )


def sort_labels(counts: Counts) -> Counts:
    """The same counts with labels, and the ids behind them, in sorted order; counts without labels as is."""
    states, state_move = _sorted(counts.state_labels)
    actions, action_move = _sorted(counts.action_labels)
    if state_move is None and action_move is None:
        return counts
    return replace(_renumber(counts, state_move, action_move), state_labels=states, action_labels=actions)


def _sorted(labels: Labels | None) -> tuple[Labels | None, NDArray[np.int64] | None]:
    """Sorted labels and where each went; no move where they are sorted already."""
    if labels is None:
        return None, None
    order = sorted(range(len(labels)), key=labels.__getitem__)  # type: ignore[arg-type]
    if order == list(range(len(labels))):
        return labels, None
    move = np.empty(len(labels), np.int64)
    move[order] = np.arange(len(labels))
    return tuple(labels[position] for position in order), move


def occurring(counts: Counts, what: str) -> NDArray[np.int64]:
    """The states, or the actions, that occur at all, sorted."""
    filled = (np.diff(counts.indptr) > 0).reshape(counts.n_states, counts.n_actions or 1)
    if what == "action":
        return np.flatnonzero(filled.any(axis=0))
    occurs = np.append(filled.any(axis=1), False)
    occurs[counts.indices] = True
    if counts.initial_count is not None:
        occurs[:-1] |= counts.initial_count > 0
    return np.flatnonzero(occurs[:-1])


def keep_only(counts: Counts, what: str, ids: NDArray[np.int64]) -> Counts:
    """The counts over some states or actions, which must be all that occur; their ids become labels."""
    labels = tuple(ids.tolist())
    lengths = np.diff(counts.indptr).reshape(counts.n_states, counts.n_actions or 1)
    if what == "action":
        indptr = np.concatenate([[0], np.cumsum(lengths[:, ids].ravel())])
        return replace(counts, n_actions=ids.size, indptr=indptr, action_labels=labels)
    move = np.append(np.zeros(counts.n_states, np.int64), ids.size)
    move[ids] = np.arange(ids.size)
    initial = counts.initial_count
    return replace(
        counts,
        n_states=ids.size,
        indptr=np.concatenate([[0], np.cumsum(lengths[ids].ravel())]),
        indices=move[counts.indices].astype(counts.indices.dtype),
        initial_count=None if initial is None else initial[ids],
        state_labels=labels,
    )


def labels_to_ids(counts: Counts, what: str) -> Counts:
    """The same counts with integer labels as ids: numbers that are no label were never seen."""
    labels = counts.state_labels if what == "state" else counts.action_labels
    move = np.array(labels, np.int64)
    if what == "state":
        grown = replace(counts, state_labels=None).with_states(int(move.max()) + 1, counts.n_actions)
        return _renumber(grown, move, None)
    grown = replace(counts, action_labels=None).with_states(counts.n_states, int(move.max()) + 1)
    return _renumber(grown, None, move)
