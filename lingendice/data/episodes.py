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
