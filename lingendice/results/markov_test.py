"""Is the log Markov? Whether what came before explains how a transition turns out, beyond its own cell.

Where states are complete, the outcomes of a cell do not depend on how the cell was reached. Two outcomes are
looked at: the rank of the reward within the cell, so that rare large rewards do not hide the common ones,
and what the transition is worth, r + gamma V(s'), which weighs next states by what they matter. A cell is
used where at least four outcomes make up its variance. Statistics that are then standard normal look at
different memories:

Groups. Within every cell, outcomes y (centered and scaled) are grouped by the previous cell, by the cell
before that, by how long the state has lasted, by the step of the episode, and by the episode's last outcome
of the same cell (above or below the mean, or none). The sum of squares between groups

    T = sum_cells sum_groups (sum_group y)^2 / size

is compared with its mean and variance under permutations of y within cells. Both are known in closed form, so
that nothing is drawn at random: O(N log N) for the grouping. T is a sum of many nearly chi-squared terms; it
is matched to a chi-squared distribution of the same mean and variance and returned as a normal deviate.

Scores. Let m be a vector of what the episode has shown: how often each action was taken (but the most
common one), or the sums of y after each action, of which a share 1 / T is forgotten at every step. The terms
y (m - mean of m in the cell) are martingale differences but for the estimated means, whose effect on their
sum u is added back. With C the sum of their outer products over the rows of one action, u' C^-1 u is a score
test of a slope that cells of this action share; it is nearly chi-squared, and so is its sum over actions.
Where outcomes are rare, C is too small unless two of them happen to meet; the variance under permutations of
y is a second C, and the smaller form counts. Scores find what lasts: users of different kinds, fatigue,
seasons, what actions caused. (On one long path a sum that forgets nothing is a random walk, whose scores are
not normal: T is at most 64.)
Sums of earlier y of the same cell are one m more, with one slope for all cells.
(Grouping by whole episodes would not do: how often an episode visits a cell depends on the outcomes there.)

Together. The p-values of all statistics become one by the Cauchy combination, whose small values hold
whatever the dependence among them: the mean of cot(pi p) is compared with a Cauchy variable.

References
----------
Box and Andersen (1955), Permutation theory in the derivation of robust criteria. JRSS B 17, 1-34.
Liu and Xie (2020), Cauchy combination test. JASA 115, 393-402.
Wilson and Hilferty (1931), The distribution of chi-square. PNAS 17, 684-688.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import row_of_entry

MOST_ROWS = 300_000
"""Rows that are looked at, the first of the log: what more of them would find is too faint to matter."""
LEAST_VISITS = 4
"""Permutation variances need fourth moments: four transitions per cell."""
LEAST_TRANSITIONS = 20
"""Fewer usable transitions say nothing."""
LONGEST_STAY, LATEST_STEP = 15, 63
"""Groups by time: longer stays and later steps are put together."""
ACTION_MEMORIES, OUTCOME_MEMORIES = (2, 10, 64), (10, 64)
"""T: steps after which actions and outcomes are forgotten."""
LARGEST_P = 0.9
"""Where centering draws a statistic far below 0, its p-value says nothing: it must not outweigh others."""
MOST_ACTIONS = 6
"""Actions that are looked at one by one, the most common first; the others are put together."""
LEAST_SCORES = 50
"""Fewer rows of an action estimate no matrix."""
SMALL_TABLE = 1_000_000
ROUNDING = 1e-9
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


class MarkovTest(NamedTuple):
    """How much more than chance would have it what came before explains."""

    z: float
    """Of all memories together, as a normal deviate; 0 where too few outcomes can be compared."""
    memories: dict[str, float]
    """The deviate of each memory by its name, the larger of two outcomes."""


def markov_test(counts: Counts, values: Floats, gamma: float, ending: float = 0.0) -> MarkovTest | None:
    """Test whether what came before explains the outcomes of cells.

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
    MarkovTest or None
        None where the order of rows is unknown or is not that of time.
    """
    order = row_order(counts)
    episodes = counts.episodes
    if order is None or episodes is None or order.unbroken < UNBROKEN:
        return None
    cell, previous, place = (column[:MOST_ROWS] for column in (order.cell, order.previous, order.place))
    order = order._replace(cell=cell, previous=previous, place=place)
    after = gamma * np.append(values, ending)[counts.indices[episodes.entry[order.place]]]
    rewards = np.zeros(after.size) if episodes.reward is None else episodes.reward[order.place]
    history = _History.of(order, episodes.episode[order.place], counts.n_actions or 1)
    found: list[tuple[str, float]] = []
    # Of what is worth little because two large numbers cancel, rounding is as large as theirs.
    largest = max(float(np.abs(part).max(initial=0.0)) for part in (rewards, after))
    for outcome, size in ((ranks_within(rewards, order.cell), 1.0), (rewards + after, largest)):
        seen = _Outcomes.of(outcome, order.cell, size)
        found += _memories(seen, history)
    # Of equal names the last is kept: the largest.
    return MarkovTest(
        combined_z(np.array([z for _, z in found])), dict(sorted(found, key=lambda one: one[1]))
    )


def combined_z(deviates: Floats) -> float:
    """One normal deviate of several that may depend on each other, by the Cauchy combination; 0 of none."""
    from scipy.special import ndtr, ndtri

    if not deviates.size:
        return 0.0
    p = np.clip(ndtr(-deviates), 1e-300, LARGEST_P)
    return -float(ndtri(np.arctan2(1.0, np.mean(1.0 / np.tan(np.pi * p))) / np.pi))


class _History(NamedTuple):
    """What precedes each row in its episode."""

    cell: NDArray[np.int64]
    previous: NDArray[np.int64]
    before: NDArray[np.int64]
    """Cell two rows before, -1 where there is none."""
    first: NDArray[np.int64]
    """Row in which the episode begins."""
    entered: NDArray[np.int64]
    """Row in which the present stay in the state began."""
    episode: NDArray[np.int64]
    action: NDArray[np.int64]
    """Whole numbers from 0: the most common actions, and all others."""

    @classmethod
    def of(cls, order: RowOrder, episode: NDArray[np.int64], n_actions: int) -> _History:
        cell, row = order.cell, np.arange(order.cell.size)
        begins = order.previous < 0
        first = np.maximum.accumulate(np.where(begins, row, 0))
        moved = begins | (order.previous // n_actions != cell // n_actions)
        taken = np.bincount(cell % n_actions, minlength=n_actions)
        label = np.minimum(np.argsort(np.argsort(-taken, kind="stable")), MOST_ACTIONS)
        return cls(
            cell=cell,
            previous=order.previous,
            before=np.where(row - first >= 2, np.roll(cell, 2), -1),
            first=first,
            entered=np.maximum.accumulate(np.where(moved, row, 0)),
            episode=episode,
            action=label[cell % n_actions],
        )


def _memories(seen: _Outcomes, history: _History) -> Iterator[tuple[str, float]]:
    """Every memory by its name, with the deviate of what it explains."""
    if seen.use.size < LEAST_TRANSITIONS:
        return
    row = np.arange(history.cell.size)
    earlier, last = seen.earlier_here(history.episode)
    yield "the previous cell", seen.group_z(history.previous)
    yield "the cell before that", seen.group_z(history.before)
    yield "how long the state has lasted", seen.group_z(np.minimum(row - history.entered, LONGEST_STAY))
    yield "the step of the episode", seen.group_z(np.minimum(row - history.first, LATEST_STEP))
    yield "the last outcome of the cell", seen.group_z(last)
    yield "earlier visits to the cell", seen.slope_z(earlier)
    for steps in ACTION_MEMORIES:
        yield f"the actions of the last {steps} steps or so", seen.action_score_z(history, steps)
    for steps in OUTCOME_MEMORIES:
        yield f"the outcomes of the last {steps} steps or so", seen.outcome_score_z(history, steps)


def ranks_within(values: Floats, cell: NDArray[np.int64]) -> Floats:
    """Ranks of the values among those of the same cell, from 0; ties, up to rounding, share their mean."""
    order = np.lexsort((values, cell))
    sorted_cell, sorted_values = cell[order], values[order]
    begins = np.ones(order.size, dtype=bool)
    np.not_equal(sorted_cell[1:], sorted_cell[:-1], out=begins[1:])
    place = np.arange(order.size)
    rank = place - np.maximum.accumulate(np.where(begins, place, 0))
    differs, usual = begins.copy(), float(np.abs(values).mean()) if values.size else 0.0
    differs[1:] |= np.diff(sorted_values) > ROUNDING * np.maximum(usual, np.abs(sorted_values[1:]))
    tie = np.cumsum(differs) - 1
    found = np.empty(order.size)
    found[order] = (np.bincount(tie, weights=rank) / np.bincount(tie))[tie]
    return found


class _Outcomes(NamedTuple):
    """Outcomes centered and scaled within cells; 0 where their cell has too few, or they hardly vary."""

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
    def of(cls, worth: Floats, cell: NDArray[np.int64], size: float = 1.0) -> _Outcomes:
        """``size``: of the numbers that outcomes are computed from, which tells rounding from differences."""
        visits = np.bincount(cell).astype(float)
        centered = worth - (np.bincount(cell, weights=worth) / np.maximum(visits, 1.0))[cell]
        scale = np.sqrt(np.bincount(cell, weights=centered**2) / np.maximum(visits - 1.0, 1.0))
        able = (visits >= LEAST_VISITS) & (scale > ROUNDING * size)
        y = centered * np.divide(1.0, scale, out=np.zeros_like(scale), where=able)[cell]
        second = np.bincount(cell, weights=y**2).astype(float)
        fourth = np.bincount(cell, weights=y**4).astype(float)
        # Of j ones among many zeros this is nearly j: a few outcomes alone are not normal in sum.
        able &= second**2 >= LEAST_VISITS * fourth
        use = np.flatnonzero(able[cell])
        return cls(
            np.where(able[cell], y, 0.0),
            cell[use],
            use,
            visits,
            np.where(able, second, 0.0),
            np.where(able, fourth, 0.0),
        )

    def group_z(self, group: NDArray[np.int64]) -> float:
        """Whether groups (whole numbers from -1) differ within cells, as a normal deviate."""
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
        return _normal_deviate(found / expected, 2.0 * expected**2 / variance)

    def earlier_here(self, episode: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Of the episode's earlier outcomes of the same cell: their sum, and whether the last is above the
        cell's mean, -1 on a first visit."""
        key = episode[self.use].astype(np.int64) * self.visits.size + self.cell
        order = np.argsort(key, kind="stable")  # by episode and cell, in the order of time within both
        key, y, place = key[order], self.y[self.use][order], np.arange(order.size)
        begins = np.append(True, key[1:] != key[:-1])
        before = np.cumsum(y) - y
        last = np.append(0.0, y[:-1]) > 0.0
        sums, group = np.zeros(self.y.size), np.full(self.y.size, -1, dtype=np.int64)
        sums[self.use[order]] = before - before[np.maximum.accumulate(np.where(begins, place, 0))]
        group[self.use[order]] = np.where(begins, -1, last)
        return sums, group

    def slope_z(self, memory: Floats) -> float:
        """Whether outcomes rise with a memory, with one slope for all cells."""
        memory, size = memory[self.use], np.maximum(np.bincount(self.cell), 1)
        usual = (np.bincount(self.cell, weights=memory) / size)[self.cell]
        terms = self.y[self.use] * (memory - usual)
        scale = float(np.sqrt((terms**2).sum()))
        return float(terms.sum()) / scale if scale > 0.0 else 0.0

    def action_score_z(self, history: _History, steps: int) -> float:
        """Whether outcomes depend on how often each action was taken; the most common one adds nothing."""
        return self._score_z(history, history.action - 1, np.ones(self.y.size), steps)

    def outcome_score_z(self, history: _History, steps: int) -> float:
        """Whether outcomes depend on the sums of earlier outcomes after each action."""
        return self._score_z(history, history.action, self.y, steps)

    def _score_z(self, history: _History, event: NDArray[np.int64], shown: Floats, steps: int) -> float:
        from lingendice.kernels.episode_scores import fading_scores

        able, keeps = self.second > 0.0, 1.0 - 1.0 / steps
        n_actions, n_events = int(history.action.max()) + 1, int(event.max()) + 1
        sums, products, spreads, pairs, rows = fading_scores(
            history.cell,
            history.action,
            history.first,
            self.y,
            able,
            event,
            shown,
            keeps,
            n_actions,
            n_events,
        )
        if shown is self.y:
            sums[np.diag_indices(n_actions)] += pairs
        score, degrees = 0.0, 0
        for taken in np.flatnonzero(rows >= LEAST_SCORES) if n_events else ():
            # Both are chi-squared in large samples; where outcomes are rare either may be far too large.
            least = min(_quadratic_form(sums[taken], matrix[taken]) for matrix in (products, spreads))
            score, degrees = score + least[0], degrees + least[1]
        return _normal_deviate(score / degrees, degrees) if degrees else 0.0


def _quadratic_form(sums: Floats, matrix: Floats) -> tuple[float, int]:
    """u' C^-1 u on the range of C, and its dimension."""
    size, axes = np.linalg.eigh(matrix)
    some = size > ROUNDING * max(float(size[-1]), 1.0)
    return float((((axes.T @ sums) ** 2)[some] / size[some]).sum()), int(some.sum())


def _normal_deviate(ratio: float, degrees: float) -> float:
    """A chi-squared variable over its degrees of freedom, as a normal deviate (Wilson and Hilferty)."""
    curve = 2.0 / (9.0 * degrees)
    return float((ratio ** (1.0 / 3.0) - 1.0 + curve) / np.sqrt(curve))


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
