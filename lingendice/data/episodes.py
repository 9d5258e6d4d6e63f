"""Episodes of a log: where they begin, whether rows are in order, and what of it is independent."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, first_bad, outside_level, plain_array, require_length
from lingendice.data.rows import row_of_entry, stable_order

if TYPE_CHECKING:
    from lingendice.data.counts import Counts

Array = NDArray[Any]
FEW_CLUSTERS = 20
"""Below this many episodes a note says that the interval is rough."""
MOST_BLOCKS, ENOUGH_BLOCKS, LEAST_BLOCKS, LAGS_PER_BLOCK = 100, 20, 8, 8
"""Blocks of a single path: correlation alone does not take them below enough, nor a lag below the least."""
LARGEST_CORRELATION = 0.15
"""Between the visits of blocks that follow each other."""
LOOKED_AT = 10_000
"""Rows that are looked at for columns given in another order."""
_STEP = 1 << 16  # rows compared at a time: what is compared stays in the cache


class UnusedColumnWarning(UserWarning):
    """Columns of a log were present and not read: a misspelled name looks like that."""


class RowOrderWarning(UserWarning):
    """Next states disagree with the states of the rows that follow: rows are out of order, or missing, or
    arguments were given in another order."""


class OverlapWarning(UserWarning):
    """Pairs of states overlap: intervals that take them for independent ones are too narrow."""


class EpisodeEndWarning(UserWarning):
    """A log has no next states: the last rows of its episodes were taken for ends, or left out."""


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


class Runs(NamedTuple):
    """The rows of a log by episode."""

    start: NDArray[np.int64]
    """Rows at which episodes begin."""
    begins: NDArray[np.bool_]
    """Whether an episode begins at a row, for rows episode by episode."""
    order: NDArray[Any] | None
    """Rows episode by episode; None where the log has them so."""

    @property
    def number(self) -> NDArray[np.int64]:
        """The episode of every row, numbered as they begin."""
        in_order = np.cumsum(self.begins) - 1
        if self.order is None:
            return in_order
        number = np.empty_like(in_order)
        number[self.order] = np.argsort(np.argsort(self.order[self.begins]))[in_order]
        return number

    @property
    def last(self) -> NDArray[np.int64]:
        """Rows at which episodes end."""
        rows = np.append(np.flatnonzero(self.begins)[1:], self.begins.size) - 1
        return rows if self.order is None else self.order[rows]

    def ends_of(self, ids: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last row of every episode id, sorted by id; several episodes may have the same."""
        if self.order is None:
            own = ids[self.start]
            first = self.start[np.append(True, own[1:] != own[:-1])]
            last = np.append(first[1:], ids.size) - 1
            by_id = np.argsort(ids[first])
            return first[by_id], last[by_id]
        in_order = ids[self.order]
        changes = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
        return self.order[np.append(0, changes)], self.order[np.append(changes, ids.size) - 1]


def find_episodes(
    ids: Array | None, terminal: NDArray[np.bool_] | None, truncated: NDArray[np.bool_] | None, n: int
) -> Runs | None:
    """Episodes begin with a new id and after a terminal or truncated row; None where nothing tells. O(N)."""
    if ids is None and terminal is None and truncated is None:
        return None
    order = None
    changes = np.zeros(n, dtype=bool)
    changes[:1] = True
    if ids is not None:
        for begin in range(0, n - 1, _STEP):
            some = ids[begin : begin + _STEP + 1]
            np.not_equal(some[1:], some[:-1], out=changes[begin + 1 : begin + some.size])
        own = ids[np.flatnonzero(changes)]
        if (own[1:] <= own[:-1]).any() and np.unique(own).size != own.size:
            # Interleaved logs come back to an episode: the row before is the one before in its own episode.
            # Differences of signed ids may be beyond their type, and are right as unsigned ones.
            order = stable_order((ids - ids.min()).view(f"u{ids.itemsize}"))
            in_order = ids[order]
            np.not_equal(in_order[1:], in_order[:-1], out=changes[1:])
    for flags in (terminal, truncated):
        if flags is not None:
            changes[1:] |= (flags if order is None else flags[order])[:-1]
    start = np.flatnonzero(changes) if order is None else np.sort(order[changes])
    return Runs(start, changes, order)


def count_breaks(state: Array, next_state: Array, runs: Runs) -> tuple[int, int]:
    """How many rows do not begin in the next state of the row before in their episode, and the first of them.

    A terminal or truncated row ends its episode, and is compared with nothing. O(N).
    """
    n, first = 0, state.size
    for begin in range(0, max(state.size - 1, 0), _STEP):
        rows: Any = slice(begin, begin + _STEP + 1)
        if runs.order is not None:
            rows = runs.order[rows]
        broken = next_state[rows][:-1] != state[rows][1:]
        broken &= ~runs.begins[begin : begin + _STEP + 1][1:]
        here = int(np.count_nonzero(broken))
        if here:
            n += here
            found = broken.argmax() + 1 + begin if runs.order is None else rows[1:][broken].min()
            first = min(first, int(found))
    return n, first


def warn_breaks(n: int, where: str) -> None:
    """Say that rows are out of order; ``where`` names the first of them."""
    warnings.warn(
        f"{n:,} row{'s' * (n != 1)} do{'es' * (n == 1)} not begin in the next state of the row before in the "
        f"episode, the first at {where}: rows are out of order or missing, and first states may be wrong. "
        "Name the column of times with time=, or check the episode ids; where rows were drawn at random, "
        "leave episodes out and give solve the initial distribution",
        RowOrderWarning,
        stacklevel=outside_level(),
    )


def warn_swapped(state: Array, next_state: Array, reward: Array) -> None:
    """Say that rewards seem to be next states, as where (s, a, r, s') was given in that order."""
    following = state[1:LOOKED_AT]
    n = following.size
    if n < 20 or following.min() == following.max():
        return
    as_reward = np.count_nonzero(reward[:n] == following) / n
    as_next = np.count_nonzero(next_state[:n] == following) / n
    if as_reward > 0.9 and as_next < 0.5:
        warnings.warn(
            f"reward is the state of the next row in {as_reward:.0%} of rows, next_state in {as_next:.0%}: "
            "the order of arguments is state, next_state, action, reward; pass them by name",
            RowOrderWarning,
            stacklevel=outside_level(),
        )


def time_order(time: Any, episode: Array | None, n: int) -> Array:
    """The order of rows by episode and then time; rows of equal times stay as they are."""
    times = plain_array("time", time)
    if times.dtype.kind not in "iufMm":
        raise ValueError(f"time has dtype {times.dtype}; give numbers or dates (numpy.datetime64)")
    require_length("time", times, n)
    missing = times != times  # NaN or NaT
    if missing.any():
        (row,) = first_bad(missing)
        raise ValueError(f"time[{row}] is {times[row]!s}; drop or fill it first")
    return np.argsort(times, kind="stable") if episode is None else np.lexsort((times, episode))


class Sample(NamedTuple):
    """How transitions group into independent pieces."""

    cluster: NDArray[np.int64] | None
    """The piece of every kept transition; None where only the counts are known."""
    n_clusters: int
    first_state: NDArray[np.int64] | None
    """First state of every piece, where pieces are episodes."""
    degrees: float
    """Degrees of freedom of the standard error, at most: see :func:`effective_degrees`."""
    note: str
    first_weight: Floats | None = None
    """Weight of every piece's first state, 1 on average; None where all weigh the same."""
    are_blocks: bool = False
    """Whether pieces are blocks of one path, which are alike but for chance."""

    def effective_degrees(self, rows: Floats) -> float:
        """Degrees of freedom of a standard error whose variance is the sum of the squares of ``rows``.

        The squares of blocks that are alike differ by chance alone: their variance, 2 sigma^4 each where sums
        are normal, gives the degrees of freedom, and n normal blocks count n.
        """
        if not self.are_blocks:
            return effective_degrees(rows, self.degrees)
        largest = float(np.abs(rows).max(initial=0.0))
        squares = (rows / largest) ** 2 if largest > 0.0 else rows**2
        spread = float((squares**2).sum() - squares.sum() ** 2 / self.n_clusters)
        if not spread > 0.0:
            return self.degrees
        return max(1.0, min(self.degrees, 2.0 * float(squares.sum()) ** 2 / spread))


def group_sample(counts: Counts) -> Sample:
    """Episodes where kept, blocks of a single path, or single transitions."""
    episodes = counts.episodes
    if episodes is None and counts.lag > 1:
        raise ValueError(
            f"pairs at lag {counts.lag} overlap, and these counts do not know which belong to one path: "
            "build them by Counts.from_paths(..., keep_episodes=True), and save them as .npz, not .parquet"
        )
    if episodes is None:
        note = (
            "transitions taken as a Markov chain's, not clustered: build the counts with episode= (and "
            "keep_episodes=True beyond 5,000,000 rows)"
        )
        return Sample(None, 0, None, math.inf, note)
    n = episodes.first_state.size
    if n == 1:
        blocks = _number_of_blocks(counts, episodes)
        cluster = np.arange(episodes.entry.size) * blocks // episodes.entry.size
        note = f"one path cut into {blocks} blocks"
        return Sample(cluster, blocks, None, blocks - 1, note, are_blocks=True)
    note = f"clustered by {n:,} episodes"
    if n < FEW_CLUSTERS:
        note += ", few enough that the interval is rough"
    return Sample(episodes.episode, n, episodes.first_state, n - 1, note, _first_weights(episodes))


def _number_of_blocks(counts: Counts, episodes: Episodes) -> int:
    """Into how many blocks one path is cut: as many as are nearly independent of each other.

    Blocks of L pairs at lag k share what reaches over their ends, 1 / 3 of k / L of the variance. What a path
    remembers beyond its states (of a state that stands for several, where it came from) shows as correlation
    between the visits of blocks that follow each other.
    """
    from scipy.sparse import csr_array

    rows = episodes.entry.size
    most = max(LEAST_BLOCKS, rows // (LAGS_PER_BLOCK * counts.lag))
    blocks = max(2, min(MOST_BLOCKS, math.isqrt(rows), most))
    cell = row_of_entry(counts.indptr)[episodes.entry]
    while blocks > ENOUGH_BLOCKS:
        block = np.arange(rows) * blocks // rows
        visits = csr_array((np.ones(rows), (block, cell)), shape=(blocks, counts.n_cells))
        mean = np.asarray(visits.sum(axis=0)).ravel() / blocks
        # Of centered visits v: sums of v_b v_b and of v_b v_(b+1), without a dense array of them.
        along = np.asarray(visits @ mean).ravel()
        spread = float(visits.multiply(visits).sum() - blocks * (mean @ mean))
        joint = float(visits[:-1].multiply(visits[1:]).sum() - along[:-1].sum() - along[1:].sum())
        if joint + (blocks - 1) * float(mean @ mean) <= LARGEST_CORRELATION * spread:
            break
        blocks = max(ENOUGH_BLOCKS, blocks // 2)
    return blocks


def _first_weights(episodes: Episodes) -> Floats | None:
    """Weight of every episode's first row, 1 on average."""
    if episodes.weight is None:
        return None
    weight = np.zeros(episodes.first_state.size)
    weight[episodes.episode[::-1]] = episodes.weight[::-1]  # of several the last assigned stays
    return weight / weight.mean()


def first_state_scores(sample: Sample, worth: Floats) -> Floats:
    """What every piece adds by its first state, whose ``worth`` has a row per state."""
    assert sample.first_state is not None
    scores: Floats = worth[sample.first_state] / sample.n_clusters
    return scores if sample.first_weight is None else (sample.first_weight * scores.T).T


def effective_degrees(rows: Floats, most: float) -> float:
    """Degrees of freedom of a standard error whose variance is the sum of the squares of ``rows``.

    Where few pieces make up most of the noise, the variance is as uncertain as that of so few: of n pieces,
    (sum r^2)^2 / sum r^4 count, n where all are alike and 1 where one piece is all there is. ``most`` is what
    the number of pieces allows; infinite where rows are sums over single transitions.

    References
    ----------
    A. V. Carter, K. T. Schnepel, D. G. Steigerwald (2017). Asymptotic behavior of a t-test robust to cluster
        heterogeneity. The Review of Economics and Statistics 99.
    """
    largest = float(np.abs(rows).max(initial=0.0))
    if math.isinf(most) or not largest > 0.0:
        return most
    squares = (rows / largest) ** 2
    return min(most, float(squares.sum() ** 2 / (squares**2).sum()))


LONE_START = "; one first state, its spread taken to be that of the log's states (or pass initial=)"


def lone_start_rows(worth: Floats, counts: Counts) -> Floats:
    """Rows whose squares add up to the variance of what a first state is worth, where the log shows one.

    One first state shows no spread: it is taken to be that of the log's states. ``worth`` has a row per state
    and a column per functional.
    """
    visits = counts.cell_count.reshape(counts.n_states, -1).sum(axis=1)
    weight, worth = visits[visits > 0] / visits.sum(), worth[visits > 0]
    rows: Floats = np.sqrt(weight)[:, None] * (worth - weight @ worth)
    return rows
