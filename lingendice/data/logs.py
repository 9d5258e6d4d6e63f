"""A log as whole columns: checked, put in order, and counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import (
    Floats,
    first_bad,
    numeric_array,
    require_flags,
    require_length,
    require_nonnegative,
    require_reward,
    require_sum,
    require_whole,
)
from lingendice.data.counting import count_pairs
from lingendice.data.episodes import Episodes, Runs, find_episodes, time_order
from lingendice.data.labels import Labels, encode
from lingendice.data.last_rows import LastRows, next_values, settle

Array = NDArray[Any]

MOST_KEPT = 5_000_000
"""Rows up to which episodes are kept unasked: some 100 MB."""
MOST_UNSAID, IDS_PER_ROW = 10_000_000, 1000
"""Ids beyond both, the second times the rows, are no numbers of states unless the caller says so."""


class Log(NamedTuple):
    """Columns of a log; states and actions are ids."""

    state: Array
    next_state: Array
    action: Array | None = None
    reward: Floats | None = None
    weight: Array | None = None
    terminal: NDArray[np.bool_] | None = None
    reward_m2: Floats | None = None
    """Of rows that stand for several steps: squared deviations of their rewards from ``reward``."""
    runs: Runs | None = None
    """The rows by episode; None where nothing tells."""

    def take(self, rows: NDArray[np.bool_]) -> Log:
        """Some of the rows, whose episodes are forgotten."""
        columns = self._replace(runs=None)._asdict()
        taken = {name: np.asarray(column)[rows] for name, column in columns.items() if column is not None}
        return self._replace(**taken, runs=None)


def read_log(
    state: Any,
    next_state: Any,
    action: Any,
    reward: Any,
    episode: Any,
    weight: Any,
    terminal: Any,
    truncated: Any,
    time: Any,
) -> tuple[Log, NDArray[np.bool_] | None, Array | None, Labels | None, Labels | None]:
    """Checked columns (next states are the states where there are none), flags of truncated rows, the order
    of rows where times are given, labels of states and of actions."""
    derive = next_state is None
    if derive:
        (state,), state_labels = encode(("state",), (state,))
        next_state = state
    else:
        (state, next_state), state_labels = encode(("state", "next_state"), (state, next_state))
    n = state.size
    require_length("next_state", next_state, n)
    if state_labels is not None and n and not derive:
        _require_common_kind(state, next_state, state_labels)
    action_labels = None
    if action is not None:
        (action,), action_labels = encode(("action",), (action,))
        require_length("action", action, n)
    if reward is not None:
        reward = numeric_array("reward", reward).astype(np.float64)
        require_length("reward", reward, n)
        require_reward("reward", reward)
    terminal = require_flags("terminal", terminal, n)
    truncated = require_flags("truncated", truncated, n)
    if weight is not None:
        weight = numeric_array("weight", weight)
        require_weights(weight, n)
        weight = weight.astype(np.int64 if weight.dtype.kind in "biu" else np.float64)
    if episode is not None:
        (episode,), _ = encode(("episode",), (episode,))
        require_length("episode", episode, n)
    order = None if time is None else time_order(time, episode, n)
    if order is not None:
        columns = (state, next_state, action, reward, weight, terminal, truncated, episode)
        state, next_state, action, reward, weight, terminal, truncated, episode = (
            None if column is None else column[order] for column in columns
        )
    runs = find_episodes(episode, terminal, truncated, n)
    log = Log(state, next_state, action, reward, weight, terminal, runs=runs)
    return log, truncated, order, state_labels, action_labels


def _require_common_kind(state: Array, next_state: Array, labels: Labels) -> None:
    """Refuse strings that only numbers follow, or the reverse: 1 is never "1"."""
    are_strings = np.fromiter((isinstance(label, str) for label in labels), bool, len(labels))
    if are_strings.all() or not all(isinstance(label, (str, int)) for label in labels):
        return
    left, entered = (are_strings[np.flatnonzero(np.bincount(ids))] for ids in (state, next_state))
    if (left.all() and not entered.any()) or (entered.all() and not left.any()):
        kinds = "strings, next states numbers" if left.all() else "numbers, next states strings"
        raise ValueError(f"states are {kinds}; use one type for both")


def require_weights(weights: Any, n: int) -> None:
    """Refuse what is no frequency weight, wherever the array lies."""
    require_length("weight", weights, n)
    require_nonnegative("weight", weights, "a frequency weight is at least 0")
    require_sum(weights)


def require_size(name: str, given: int | None, labels: Labels | None, columns: tuple[Array, ...]) -> int:
    """The number of states or actions, checked against the ids."""
    given = None if given is None else require_whole(name, given)
    if labels is not None:
        if given is not None and given < len(labels):
            raise ValueError(
                f"{name}={given} but the log holds {len(labels)} distinct labels; leave {name} out"
            )
        return len(labels) if given is None else given
    needed = 0
    what = name.removeprefix("n_").removesuffix("s")
    for column in columns:
        if not column.size:
            continue
        if column.min() < 0:
            (row,) = first_bad(column < 0)
            raise ValueError(f"{what} id {column[row]} in row {row} is negative; ids run from 0")
        largest = int(column.max())
        if given is not None and largest >= given:
            (row,) = first_bad(column >= given)
            raise ValueError(
                f"{what} id {column[row]} in row {row} is outside 0..{given - 1}; raise {name} or fix the id"
            )
        needed = max(needed, largest + 1)
    if given is None and needed > max(MOST_UNSAID, IDS_PER_ROW * columns[0].size):
        raise ValueError(
            f"{what} ids reach {needed - 1} in a log of {columns[0].size:,} rows; ids count from 0: pass "
            "them as labels (strings), number them with numpy.unique(ids, return_inverse=True), or pass "
            f"{name}={needed} if that is meant"
        )
    return needed if given is None else given


def initial_counts(log: Log, n_states: int) -> Array | None:
    """How many episodes began in each state; None where nothing tells."""
    if log.runs is None:
        return None
    first_state = log.state[log.runs.start]
    if log.weight is None:
        return np.bincount(first_state, minlength=n_states)
    initial = np.zeros(n_states, log.weight.dtype)
    np.add.at(initial, first_state, log.weight[log.runs.start])
    return initial


def with_next_states(log: Log, truncated: NDArray[np.bool_] | None, ends: str | None) -> tuple[Log, LastRows]:
    """Rows with the state of the next row of their episode, and what became of those without one.

    ``ends`` is what a last row is that no flag marks: see :func:`lingendice.data.last_rows.settle`.
    """
    terminal, kept, last_rows = settle(log.runs, log.state.size, log.terminal, truncated, ends)
    log = log._replace(next_state=next_values(log.state, log.runs), terminal=terminal)
    if kept is None:
        return log, last_rows
    left, runs = log.take(kept), log.runs
    if runs is None:
        return left, last_rows
    # The first row of an episode is left out only where it is the last: first rows stay first.
    in_order = slice(None) if runs.order is None else runs.order
    place, in_order = np.cumsum(kept) - 1, kept[in_order]
    order = None if runs.order is None else place[runs.order[in_order]]
    runs = Runs(place[runs.start[kept[runs.start]]], runs.begins[in_order], order)
    return left._replace(runs=runs), last_rows


def count_log(
    log: Log, n_states: int, n_actions: int | None, keep_episodes: bool | None, threads: int
) -> dict[str, Any]:
    """The fields of the counts, labels excepted; rows of weight zero are no transitions."""
    if keep_episodes is None:
        keep_episodes = log.runs is not None and log.state.size <= MOST_KEPT
    if keep_episodes and log.runs is None:
        raise ValueError("keep_episodes needs episode= (or terminal/truncated flags that end episodes)")
    initial = initial_counts(log, n_states)
    number = first_state = None
    if keep_episodes and log.runs is not None:
        number, first_state = log.runs.number, log.state[log.runs.start].astype(np.int64)
    if log.weight is not None and log.weight.size and log.weight.min() <= 0:
        number = None if number is None else number[log.weight > 0]
        log = log.take(log.weight > 0)
    n_cells = n_states * (1 if n_actions is None else n_actions)
    tallied = count_pairs(
        log.state,
        log.next_state,
        n_cells,
        n_states + 1,
        action=log.action if n_actions is not None else None,
        n_actions=n_actions or 1,
        ends=log.terminal,
        weight=log.weight,
        value=log.reward,
        want_entry=keep_episodes or log.reward_m2 is not None,
        threads=threads,
    )
    reward_m2 = tallied.m2
    if log.reward_m2 is not None and reward_m2 is not None and tallied.entry is not None:
        reward_m2 = reward_m2 + np.bincount(tallied.entry, log.reward_m2, reward_m2.size)
    episodes = None
    if number is not None and first_state is not None and tallied.entry is not None:
        episodes = Episodes(tallied.entry, number, log.reward, log.weight, first_state)
    return {
        "n_states": n_states,
        "n_actions": n_actions,
        "indptr": tallied.indptr,
        "indices": tallied.indices,
        "count": tallied.count,
        "reward_count": None if log.reward is None else tallied.count,
        "reward_mean": tallied.mean,
        "reward_m2": reward_m2,
        "initial_count": initial,
        "episodes": episodes,
    }
