"""Is the log Markov? Whether what came before explains what a transition is worth, beyond its own cell.

Where states are complete, the outcomes y = r + gamma V(s') of a cell do not depend on how the cell was
reached. Statistics that are then standard normal look at different memories:

Groups. Within every cell, y (centered and scaled) is grouped by the previous cell, by the cell before
that, by how long the state has lasted, by the step of the episode, and by the episode's last outcome of the
same cell (above or below the mean, or none). The sum of squares between groups

    T = sum_cells sum_groups (sum_group y)^2 / size

is compared with its mean and variance under permutations of y within cells. Both are known in closed form, so
that nothing is drawn at random: O(N log N) for the grouping. T is a sum of many nearly chi-squared terms; it
is matched to a chi-squared distribution of the same mean and variance and returned as a normal deviate.

Sums. With y as above and m a sum of earlier y of the episode (those of the last 1, 4, 16 or all steps, or of
earlier visits to the same cell), the terms y m of a Markov chain are martingale differences, and
sum y m / sqrt(sum (y m)^2) is compared with 0: it finds what lasts, such as users of different kinds.
(Grouping by whole episodes would not do: how often an episode visits a cell depends on the outcomes there.)

References
----------
Box and Andersen (1955), Permutation theory in the derivation of robust criteria. JRSS B 17, 1-34.
Wilson and Hilferty (1931), The distribution of chi-square. PNAS 17, 684-688.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import row_of_entry

LEAST_VISITS = 4
"""Permutation variances need fourth moments: four transitions per cell."""
LEAST_TRANSITIONS = 20
"""Fewer usable transitions say nothing."""
LONGEST_STAY, LATEST_STEP = 15, 63
"""Groups by time: longer stays and later steps are put together."""
WINDOWS = (1, 4, 16, 2**62)
"""Steps whose outcomes are summed."""
SMALL_TABLE = 1_000_000
UNBROKEN = 0.99
"""Share of rows that must begin where the row before ended, for their order to be the order of time."""


class RowOrder(NamedTuple):
    """Rows in the order of time, episode by episode."""

    cell: NDArray[np.int64]
    previous: NDArray[np.int64]
    """Cell of the row before in the same episode, -1 for the first."""
    place: NDArray[np.int64]
    """Position of each row in the log."""
    unbroken: float
    """Share of rows that begin in the state where the row before ended; 1 without such rows."""


def row_order(counts: Counts) -> RowOrder | None:
    """The order of the logged rows; None where it was not kept."""
    episodes = counts.episodes
    if episodes is None or not episodes.entry.size:
        return None
    place = np.arange(episodes.entry.size)
    episode = episodes.episode
    if (episode[1:] < episode[:-1]).any():
        place = np.argsort(episode, kind="stable")
        episode = episode[place]
    entry = episodes.entry[place]
    cell = row_of_entry(counts.indptr)[entry]
    follows = episode[1:] == episode[:-1]
    previous = np.full(cell.size, -1, dtype=np.int64)
    previous[1:][follows] = cell[:-1][follows]
    state = cell // (counts.n_actions or 1)
    joined = counts.indices[entry][:-1] == state[1:]
    unbroken = float(joined[follows].mean()) if follows.any() else 1.0
    return RowOrder(cell, previous, place, unbroken)


def markov_statistics(
    counts: Counts, values: Floats, gamma: float, ending: float = 0.0
) -> dict[str, float] | None:
    """How many standard deviations each memory explains more than chance would have it, by its name.

    Parameters
    ----------
    counts
        With episodes kept, whose rows are in the order of time.
    values
        V over states.
    gamma
        The discount.
    ending
        Value after a terminal transition.

    Returns
    -------
    dict or None
        None where the order of rows is unknown or is not that of time; zeros where too few can be compared.
    """
    order = row_order(counts)
    episodes = counts.episodes
    if order is None or episodes is None or order.unbroken < UNBROKEN:
        return None
    worth = gamma * np.append(values, ending)[counts.indices[episodes.entry]]
    if episodes.reward is not None:
        worth = worth + episodes.reward
    worth, episode, cell = worth[order.place], episodes.episode[order.place], order.cell
    row = np.arange(cell.size)
    begins = order.previous < 0
    first = np.maximum.accumulate(np.where(begins, row, 0))
    before = np.where(row - first >= 2, np.roll(cell, 2), -1)
    n_actions = counts.n_actions or 1
    moved = begins | (order.previous // n_actions != cell // n_actions)
    entered = np.maximum.accumulate(np.where(moved, row, 0))
    seen = _Outcomes.of(worth, cell)
    visits = seen.visits_in_episode(episode)
    found = {
        "the previous cell": seen.group_z(order.previous),
        "the cell before that": seen.group_z(before),
        "how long the state has lasted": seen.group_z(np.minimum(row - entered, LONGEST_STAY)),
        "the step of the episode": seen.group_z(np.minimum(row - first, LATEST_STEP)),
        "the last outcome of the cell": seen.group_z(seen.last_here(visits)),
        # Centering within cells draws this below 0: negative values say nothing.
        "earlier visits to the cell": seen.persistence_z(visits),
    }
    total = np.append(0.0, np.cumsum(seen.y))
    for steps in WINDOWS:
        sums = total[:-1] - total[np.maximum(first, row - steps)]
        name = f"the outcomes of the last {steps} steps" if steps < WINDOWS[-1] else "all earlier outcomes"
        found[name] = abs(_martingale_z(seen.y * sums))
    return found


def markov_z(counts: Counts, values: Floats, gamma: float, ending: float = 0.0) -> float | None:
    """The largest of :func:`markov_statistics`."""
    found = markov_statistics(counts, values, gamma, ending)
    return None if found is None else max(found.values())


class _Outcomes(NamedTuple):
    """Outcomes centered and scaled within cells; 0 where their cell has too few, or they do not vary."""

    y: Floats
    cell: NDArray[np.int64]
    """Of the outcomes that are used."""
    use: NDArray[np.int64]
    """Places of these."""
    visits: Floats
    second: Floats
    """Sum of y^2 by cell."""
    fourth: Floats

    @classmethod
    def of(cls, worth: Floats, cell: NDArray[np.int64]) -> _Outcomes:
        visits = np.bincount(cell).astype(float)
        centered = worth - (np.bincount(cell, weights=worth) / np.maximum(visits, 1.0))[cell]
        scale = np.sqrt(np.bincount(cell, weights=centered**2) / np.maximum(visits - 1.0, 1.0))
        floor = 1e-9 * max(1.0, float(np.abs(worth).max(initial=0.0)))
        able = (visits >= LEAST_VISITS) & (scale > floor)
        y = centered * np.divide(1.0, scale, out=np.zeros_like(scale), where=able)[cell]
        squares = y**2
        return cls(
            y,
            cell[able[cell]],
            np.flatnonzero(able[cell]),
            visits,
            np.bincount(cell, weights=squares).astype(float),
            np.bincount(cell, weights=squares**2).astype(float),
        )

    def group_z(self, group: NDArray[np.int64]) -> float:
        """Whether groups (whole numbers from -1) differ within cells, as a normal deviate."""
        if self.use.size < LEAST_TRANSITIONS:
            return 0.0
        width, size = int(group.max()) + 2, self.visits.size
        key = self.cell * width + group[self.use] + 1
        key, members, sums = _group_sums(key, self.y[self.use], size * width)
        found = float((sums**2 / members).sum())
        expected, variance = _permutation_moments(
            self.visits,
            np.bincount(key // width, minlength=size).astype(float),
            np.bincount(key // width, weights=1.0 / members, minlength=size).astype(float),
            self.second,
            self.fourth,
        )
        if not (expected > 0.0 and variance > 0.0):
            return 0.0
        degrees = 2.0 * expected**2 / variance
        curve = 2.0 / (9.0 * degrees)
        return float(((found / expected) ** (1.0 / 3.0) - 1.0 + curve) / np.sqrt(curve))

    def visits_in_episode(self, episode: NDArray[np.int64]) -> _Visits:
        """The outcomes that are used, sorted by episode and cell, in the order of time within both."""
        key = episode[self.use].astype(np.int64) * self.visits.size + self.cell
        order = np.argsort(key, kind="stable")
        key = key[order]
        begins = np.ones(key.size, dtype=bool)
        np.not_equal(key[1:], key[:-1], out=begins[1:])
        return _Visits(order, np.maximum.accumulate(np.where(begins, np.arange(key.size), 0)))

    def persistence_z(self, visits: _Visits) -> float:
        """The sum over earlier visits to the same cell in the same episode."""
        if self.use.size < LEAST_TRANSITIONS:
            return 0.0
        y = self.y[self.use][visits.order]
        before = np.cumsum(y) - y
        return _martingale_z(y * (before - before[visits.first]))

    def last_here(self, visits: _Visits) -> NDArray[np.int64]:
        """Groups: whether the episode's last outcome of the cell was above its mean; -1 on a first visit."""
        y = self.y[self.use][visits.order]
        last = np.append(0.0, y[:-1]) > 0.0
        group = np.full(self.y.size, -1, dtype=np.int64)
        group[self.use[visits.order]] = np.where(visits.first == np.arange(y.size), -1, last)
        return group


class _Visits(NamedTuple):
    order: NDArray[np.int64]
    first: NDArray[np.int64]
    """Place of the first visit of the same episode to the same cell."""


def group_z(worth: Floats, cell: NDArray[np.int64], group: NDArray[np.int64]) -> float:
    """Whether outcomes differ between groups (whole numbers from -1) of the same cell."""
    return _Outcomes.of(worth, cell).group_z(group)


def persistence_z(worth: Floats, cell: NDArray[np.int64], episode: NDArray[np.int64]) -> float:
    """Whether outcomes of a cell agree within episodes; rows are in the order of time."""
    seen = _Outcomes.of(worth, cell)
    return seen.persistence_z(seen.visits_in_episode(episode))


def _group_sums(
    key: NDArray[np.int64], values: Floats, n_keys: int
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The keys that occur, how often, and the sums of their values; sorted only where keys are many."""
    if n_keys > 4 * key.size + SMALL_TABLE:
        held, key = np.unique(key, return_inverse=True)
        return held, np.bincount(key).astype(float), np.bincount(key, weights=values).astype(float)
    members = np.bincount(key, minlength=n_keys)
    held = np.flatnonzero(members)
    sums = np.bincount(key, weights=values, minlength=n_keys)
    return held, members[held].astype(float), sums[held].astype(float)


def _martingale_z(terms: Floats) -> float:
    size = float(np.sqrt((terms**2).sum()))
    return float(terms.sum()) / size if size > 0.0 else 0.0


def _permutation_moments(
    k: Floats, groups: Floats, inverse_sizes: Floats, second: Floats, fourth: Floats
) -> tuple[float, float]:
    """Mean and variance, summed over cells, of y'Ay for permuted y, A the projection on centered groups.

    With y centered, S2 = sum y^2, S4 = sum y^4, t = tr A = ||A||^2 and a = sum A_ii^2, sorting the products
    A_ij A_kl by which indices agree gives E (y'Ay)^2 below.
    """
    use = (groups > 1.0) & (k >= LEAST_VISITS)
    k, groups, inverse_sizes, s2, s4 = (v[use] for v in (k, groups, inverse_sizes, second, fourth))
    t = groups - 1.0
    a = inverse_sizes - (2.0 * groups - 1.0) / k
    pairs = k * (k - 1.0)
    mean = t * s2 / (k - 1.0)
    square = (
        a * s4 / k
        + (t**2 + 2.0 * t - 3.0 * a) * (s2**2 - s4) / pairs
        + 4.0 * a * s4 / pairs
        + (12.0 * a - 2.0 * t**2 - 4.0 * t) * (2.0 * s4 - s2**2) / (pairs * (k - 2.0))
        + (t**2 + 2.0 * t - 6.0 * a) * (3.0 * s2**2 - 6.0 * s4) / (pairs * (k - 2.0) * (k - 3.0))
    )
    return float(mean.sum()), float(np.maximum(square - mean**2, 0.0).sum())
