"""Parts of a log: pieces that are independent of each other, and a log of some of them.

Pieces are the episodes. One long path is cut into blocks, as its intervals do (``group_sample``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import Counts
from lingendice.data.episodes import find_episodes
from lingendice.data.rows import row_of_entry
from lingendice.data.transitions import Transitions
from lingendice.kernels.parallel import resolve_threads

MOST_BLOCKS = 100
"""Blocks that one long path is cut into, at most."""


class Pieces(NamedTuple):
    """The piece of every row, in the order in which pieces begin."""

    of_row: NDArray[np.int64]
    n: int
    kind: str
    """What a piece is, in the plural."""


def find_pieces(log: Counts | Transitions) -> Pieces:
    """Episodes in the order of their first rows, or blocks of a single path. O(N)."""
    if isinstance(log, Counts):
        ids = None if log.episodes is None else log.episodes.episode
        remedy = "build the counts with episode= (and keep_episodes=True beyond 5,000,000 rows)"
    else:
        ids, remedy = log.episode, "pass episode= to Transitions (zeros where all rows are one path)"
    if ids is None:
        raise ValueError(f"the log does not say which rows belong together; {remedy}")
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    if first.size > 1:
        return Pieces(np.argsort(np.argsort(first))[number.reshape(-1)], first.size, "episodes")
    blocks = max(2, min(MOST_BLOCKS, math.isqrt(ids.size)))
    return Pieces(np.arange(ids.size) * blocks // max(ids.size, 1), blocks, "blocks of one path")


def transitions_of(log: Transitions, pieces: Pieces, chosen: NDArray[np.bool_]) -> Transitions:
    """The chosen pieces alone, each an episode that begins in its first row."""
    rows = chosen[pieces.of_row]
    some: dict[str, Any] = {
        name: None if column is None else column[rows]
        for name in ("state", "action", "reward", "next_state", "terminal", "truncated")
        for column in (getattr(log, name),)
    }
    return Transitions(**some, episode=pieces.of_row[rows], n_states=log.n_states, n_actions=log.n_actions)


def counts_of(
    counts: Counts, pieces: Pieces, chosen: NDArray[np.bool_], threads: int | None = None
) -> Counts:
    """The same for counts, over all of their states and actions."""
    from lingendice.data.logs import Log, count_log

    rows = chosen[pieces.of_row]
    episodes = counts.episodes
    assert episodes is not None
    entry = episodes.entry[rows]
    state, action = np.divmod(row_of_entry(counts.indptr)[entry], counts.n_actions or 1)
    following = counts.indices[entry].astype(np.int64)
    ended = following == counts.n_states
    log = Log(
        state,
        np.where(ended, state, following),
        None if counts.n_actions is None else action,
        None if episodes.reward is None else episodes.reward[rows],
        None if episodes.weight is None else episodes.weight[rows],
        ended if counts.has_terminals else None,
        runs=find_episodes(pieces.of_row[rows], None, None, entry.size),
    )
    counted = count_log(log, counts.n_states, counts.n_actions, True, resolve_threads(threads))
    return Counts(**counted, state_labels=counts.state_labels, action_labels=counts.action_labels)
