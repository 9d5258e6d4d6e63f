"""Episodes of a log, and what of it may be taken as independent: episodes, blocks of a path, transitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

if TYPE_CHECKING:
    from lingendice.data.counts import Counts

FEW_CLUSTERS = 20
"""Below this many episodes a note says that the interval is rough."""


class Episodes(NamedTuple):
    """What each episode contributed, kept on request for clustered intervals and the bootstrap."""

    entry: NDArray[Any]
    """For every transition, the position of its (cell, next state) pair in the counts."""
    episode: NDArray[np.int64]
    """For every transition, the number of its episode, from 0."""
    reward: Floats | None
    weight: NDArray[Any] | None
    first_state: NDArray[np.int64]
    """For every episode, the state it began in."""


def episode_starts(
    ids: NDArray[Any] | None, terminal: NDArray[np.bool_] | None, truncated: NDArray[np.bool_] | None, n: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Rows at which episodes begin, and the episode number of every row."""
    if ids is None and terminal is None and truncated is None:
        return None, None
    begins = np.zeros(n, dtype=bool)
    begins[:1] = True
    for flags in (terminal, truncated):
        if flags is not None:
            begins[1:] |= flags[:-1]
    if ids is None:
        return np.flatnonzero(begins), np.cumsum(begins) - 1
    changes = np.ones(n, dtype=bool)
    np.not_equal(ids[1:], ids[:-1], out=changes[1:])
    runs = np.flatnonzero(changes)
    if np.unique(ids[runs]).size == runs.size:
        begins |= changes
        return np.flatnonzero(begins), np.cumsum(begins) - 1
    # Interleaved logs come back to an episode: the row before is the one before in its own episode.
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    first = np.ones(n, dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=first[1:])
    for flags in (terminal, truncated):
        if flags is not None:
            first[1:] |= flags[order][:-1]
    starts = order[first]
    rank = np.argsort(np.argsort(starts))
    number = np.empty(n, dtype=np.int64)
    number[order] = rank[np.cumsum(first) - 1]
    return np.sort(starts), number


class Sample(NamedTuple):
    """How transitions group into independent pieces."""

    cluster: NDArray[np.int64] | None
    """The piece of every kept transition; None where only the counts are known."""
    n_clusters: int
    first_state: NDArray[np.int64] | None
    """First state of every piece, where pieces are episodes."""
    degrees: float
    """Degrees of freedom of the standard error."""
    note: str


def group_sample(counts: Counts) -> Sample:
    """Episodes where kept, blocks of a single path, or single transitions."""
    episodes = counts.episodes
    if episodes is None:
        note = (
            "transitions taken as a Markov chain's, not clustered: build the counts with keep_episodes=True"
        )
        return Sample(None, 0, None, math.inf, note)
    n = episodes.first_state.size
    if n == 1:
        blocks = max(2, min(100, math.isqrt(episodes.entry.size)))
        cluster = np.arange(episodes.entry.size) * blocks // episodes.entry.size
        return Sample(cluster, blocks, None, blocks - 1, f"one path cut into {blocks} blocks")
    note = f"clustered by {n:,} episodes"
    if n < FEW_CLUSTERS:
        note += ", few enough that the interval is rough"
    return Sample(episodes.episode, n, episodes.first_state, n - 1, note)
