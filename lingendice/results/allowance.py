"""Intervals of shrinkage estimates: a standard error, and an allowance for what is bias rather than noise.

The standard error rests on the influence function. A logged transition of cell x moves the value by

    (c(x) + g(x)) (y - Q(x)),       c = distribution(s) W(a|s) / n(x),

where g is its effect through the regression, and Q is taken without the transition itself. So must the
distribution be where that matters: a state whose one transition leads back to it keeps its mass for
1 / (1 - gamma) steps by that transition, and counts with the mass that arrives. A first state s0 moves the
value by h (V(s0) - mean V) / G with h the mass that starts afresh. Episodes are taken as independent.

The allowance B is a sum of these parts:

    fill        spread (UNSEEN M + EXCESS max(M - M_b, 0)): M is the target's mass on actions never logged
                where it goes, M_b what the behavior is expected to leave unlogged (Good and Turing), spread
                the root mean square of logged advantages
    ridge       how far the extrapolation of the ridge to 0 may be off (gamma = 1 or nearly)
    traps       how much lies between the best and the worst that may follow where no logged step leads to an
                end, once for each exit that the log cannot exclude
    outcomes    for what a transition may lead to and was never seen to: 3 / (effective sample) times the span
                of outcomes (the rule of three), and |sum of c (y - Q)| over outcomes (x, s') seen once, which
                stand for those never seen (Good and Turing)

The half-width is the quantile of |B + se T|, with T of Student for as many degrees of freedom as episodes
count: it covers whatever the bias is within +-B, and is B where the standard error is 0. Few episodes make
the standard error uncertain, and not the allowance: B enters as it is. Of several intervals at once
(:class:`lingendice.Comparison`) each is se q + B, q the joint quantile: biases of either sign may add to
noise of either sign, so that no joint quantile of one tail would do, and none is narrower than it is alone.

References
----------
Armstrong and Kolesar (2018), Optimal inference in a class of regression models. Econometrica 86, 655-683.
Good (1953), The population frequencies of species and the estimation of population parameters. Biometrika
40, 237-264.
Hanley and Lippman-Hand (1983), If nothing goes wrong, is everything all right? JAMA 249, 1743-1745.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.episodes import (
    LONE_START,
    effective_degrees,
    first_state_scores,
    group_sample,
    lone_start_rows,
)
from lingendice.data.rows import row_of_entry
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.targets import Interval, ValueScores, require_level, student_quantile
from lingendice.solvers.shrinkage import ROUNDING, Shrinkage

UNSEEN, EXCESS = 0.15, 1.75
"""Allowance per unit of target mass never logged, and of what Good and Turing do not expect, in spreads."""
RULE_OF_THREE = 3.0
FRONTIER = 5.0
ENDS_SHOWN = 20.0
"""Logged ends from which on a cost per step that never differs is taken to be that of ends, too."""
LARGEST_SURPRISE = 3.0
"""Standard deviations that the sum over outcomes seen once may count with: of many, it is well known."""


def rounding_of(*columns: Floats) -> Floats:
    """What noise is no more than rounding, column by column of what it is computed from."""
    largest: Floats = np.max([np.abs(one).max(axis=0, initial=0.0) for one in columns], axis=0)
    return ROUNDING * largest


def without_rounding(rows: Floats, none: Floats | float) -> Floats:
    """Rows of influences; zeros for those columns whose noise is no more than rounding."""
    return np.where((rows**2).sum(axis=0) <= none**2, 0.0, rows)


class Allowance(NamedTuple):
    """How far the estimate may be off other than by noise, in the units of the value."""

    fill: float
    """For actions of the target that were never logged."""
    ridge: float
    traps: float
    """For what follows where no logged step leads to an end."""
    frontier_mass: float
    """Target mass on actions never logged where the log ends: a matter for a check, not of the total."""
    beyond: float
    """What actions hardly known there could move if they led anywhere: the same."""
    outcomes: float
    """For outcomes that no log of this size need show."""
    unlogged_mass: float
    """Target mass on actions never logged, where it goes."""
    expected_mass: float
    """What of it is expected of the behavior itself."""
    effective_sample: float
    span: float

    @property
    def total(self) -> float:
        """B."""
        return self.fill + self.ridge + self.traps + self.outcomes


class Allowed(NamedTuple):
    """An interval that counts noise and bias, and what it is made of."""

    interval: Interval
    allowance: Allowance
    half_width: float
    """Before it is cut to what rewards allow."""


def allowed_interval(
    found: Shrinkage,
    level: float = 0.95,
    reward_range: tuple[float, float] | None = None,
    standard_error: float | None = None,
) -> Allowed:
    """The interval of the value.

    Parameters
    ----------
    found
        The estimate.
    level
        Confidence level.
    reward_range
        Smallest and largest reward that can occur, where known: outcomes never seen may then be as bad as
        that, and the interval ends where such rewards do. Without it the log's own rewards are the measure,
        and a log that shows one reward only has no finite interval.
    standard_error
        In place of the one in closed form: a bootstrap's.
    """
    level = require_level(level)
    influence = _Influence(found)
    rows, degrees, note = influence.scores()
    error = math.sqrt(float((rows**2).sum())) if standard_error is None else standard_error
    allowance = _allowance(found, influence, reward_range)
    half = half_width(error, allowance.total, level, degrees)
    low, high = found.value - half, found.value + half
    if reward_range is not None:
        least, most = reward_range
        if found.operator.ended.any():  # how much mass has ended is estimated, too, and earns 0
            least, most = min(least, 0.0), max(most, 0.0)
        low, high = max(low, least), min(high, most)
    interval = Interval(low, high, found.value, error, level, "influence", note, allowance.total)
    return Allowed(interval, allowance, half)


def influence_rows(found: Shrinkage) -> Floats:
    """Rows whose squares add up to the variance of the value."""
    return _Influence(found).scores()[0]


def value_scores(found: Shrinkage, reward_range: tuple[float, float] | None = None) -> ValueScores:
    """What comparisons of several estimates on one log are made of."""
    influence = _Influence(found)
    rows, degrees, note = influence.scores()
    allowed, most = _allowance(found, influence, reward_range).total, group_sample(found.counts).degrees
    return ValueScores(rows[:, None], degrees, note, allowed, most)


def half_width(error: float, bias: float, level: float, degrees: float) -> float:
    """The c with P(|bias + error T| <= c) = level, T of Student: bias as it is, and what noise adds to it."""
    if error == 0.0 or math.isinf(bias):
        return bias
    return max(bias + error * _beyond_the_bias(bias / error, level, degrees), 0.0)


def _beyond_the_bias(shift: float, level: float, degrees: float) -> float:
    """The e with P(|T + shift| <= shift + e) = level: from both tails' quantile to that of one."""
    from scipy.special import stdtr, stdtrit

    low, high = max(float(stdtrit(degrees, level)), -shift), student_quantile(level, degrees)
    for _ in range(60):
        middle = 0.5 * (low + high)
        if stdtr(degrees, middle) - stdtr(degrees, -middle - 2.0 * shift) < level:
            low = middle
        else:
            high = middle
    return high


# -- standard error ---------------------------------------------------------------------------------


class _Influence:
    """coefficient(x) (slope(x) y + level(x)) for every transition of cell x."""

    def __init__(self, found: Shrinkage) -> None:
        self.found = found
        regression, kappa = found.regression, found.kappa
        n_actions = found.target.shape[1]
        cells = regression.cells
        state = cells // n_actions
        k, n = found.counts.cell_count[cells].astype(float), found.state_count[state]
        distribution, outcome = found.state_distribution, found.outcome
        again = n > 1.0
        spare = np.where(again, n - 1.0, 1.0)
        visited = found.visited
        mean = float(outcome.state_mean[visited] @ distribution[visited])
        mean /= max(float(distribution[visited].sum()), ROUNDING)
        predicted = regression.features @ regression.coefficients
        # The prior of a cell without the transition: prior_level - prior_slope y.
        prior_level = np.where(again, outcome.state_mean[state] * n / spare, mean) + predicted
        prior_slope = np.where(again, 1.0 / spare, 0.0)
        more = k > 1.0
        weight = np.where(more, k - 1.0 + kappa, 1.0)
        own = outcome.cell_mean[cells] * k
        slope = np.where(more, 1.0 + (1.0 + kappa * prior_slope) / weight, 1.0 + prior_slope)
        level = np.where(more, (own + kappa * prior_level) / weight, prior_level)
        # What is predicted without a transition has a larger variance than what it is needed for.
        shorter = np.sqrt(np.maximum(k - 1.0 + kappa, 0.0) / (k + kappa))
        policy = found.operator.policy
        assert policy is not None
        direct = found.mass_without_loops[state] * policy.reshape(-1)[cells] / k / found.identified
        filled = found.filled_mass.reshape(-1) @ regression.fill_features
        indirect = regression.gate * regression.weight * np.where(again, n / spare, 0.0)
        indirect *= regression.features @ np.linalg.solve(regression.hessian, filled)
        size = found.counts.n_cells
        self.direct, self.coefficient = np.zeros(size), np.zeros(size)
        self.slope, self.level = np.zeros(size), np.zeros(size)
        self.direct[cells] = direct
        self.coefficient[cells] = direct + indirect
        self.slope[cells], self.level[cells] = slope * shorter, -level * shorter
        self.cell = row_of_entry(found.counts.indptr)

    def of_entries(self) -> Floats:
        """y - Q at the mean of every (cell, next state)."""
        return self.slope[self.cell] * self.found.outcome.entry_mean + self.level[self.cell]

    def of_outcomes_seen_once(self) -> Floats:
        """What each adds to the value, in cells of several visits: a single one shows no other outcome."""
        counts = self.found.counts
        once = (counts.count == 1) & (counts.cell_count[self.cell] > 1)
        return self.direct[self.cell[once]] * self.of_entries()[once]

    def largest(self) -> float:
        """Largest |y - Q| among the logged transitions, as far as the counts show single rewards."""
        found, counts = self.found, self.found.counts
        if counts.episodes is not None and counts.episodes.reward is not None:
            return float(np.abs(self._of_transitions()).max(initial=0.0))
        noise = np.sqrt(found.outcome.entry_squares / np.maximum(counts.count, 1))
        return float((np.abs(self.of_entries()) + self.slope[self.cell] * noise).max(initial=0.0))

    def _of_transitions(self) -> Floats:
        """y - Q of every transition of the kept episodes."""
        episodes, counts = self.found.counts.episodes, self.found.counts
        assert episodes is not None
        residual = self.of_entries()[episodes.entry]
        rewards, mean = episodes.reward, counts.reward_mean
        if rewards is not None and mean is not None and self.found.outcome.entry_squares.any():
            residual += self.slope[self.cell[episodes.entry]] * (rewards - mean[episodes.entry])
        return residual

    def scores(self) -> tuple[Floats, float, str]:
        """Rows whose squares add up to the variance, its degrees of freedom, and what it rests on."""
        counts = self.found.counts
        sample = group_sample(counts)
        first = self._first_state()
        if sample.cluster is None:
            rows = without_rounding(self._scores_of_counts(first), _rounding(self.found))
            return rows, sample.degrees, sample.note
        episodes = counts.episodes
        assert episodes is not None
        moved = self.coefficient[self.cell[episodes.entry]] * self._of_transitions()
        if episodes.weight is not None:
            moved = moved * episodes.weight
        rows = np.bincount(sample.cluster, weights=moved, minlength=sample.n_clusters).astype(float)
        if first is not None and sample.first_state is not None:
            rows = rows + first_state_scores(sample, first)
        rows = rows * math.sqrt(sample.n_clusters / max(sample.n_clusters - 1, 1))
        note = sample.note
        if sample.first_state is None and first is not None:
            rows = np.concatenate([rows, lone_start_rows(first[:, None], counts)[:, 0]])
            note += LONE_START
        rows = without_rounding(rows, _rounding(self.found))
        return rows, effective_degrees(rows, sample.degrees), note

    def _scores_of_counts(self, first: Floats | None) -> Floats:
        """Every transition on its own."""
        found, counts = self.found, self.found.counts
        residual, coefficient = self.of_entries(), self.coefficient[self.cell]
        rows = [
            coefficient * residual * np.sqrt(counts.count),
            coefficient * self.slope[self.cell] * np.sqrt(found.outcome.entry_squares),
        ]
        if first is not None and counts.initial_count is not None:
            starts = np.asarray(counts.initial_count, dtype=float)
            rows.append(np.sqrt(starts) * first / float(starts.sum()))
        return np.concatenate(rows)

    def _first_state(self) -> Floats | None:
        """Mass that starts afresh times V(s0) - mean V; None where first states are not estimated."""
        found, operator = self.found, self.found.operator
        if operator.initial is None or not operator.initial_is_logged:
            return None
        mass, fallen = 1.0 - found.gamma, operator.falling.get("initial")
        if found.length is not None:
            mass = 1.0 / found.length  # one first state per episode
        elif fallen is not None:
            mass += found.gamma * float(np.einsum("x,x->", operator.spread(found.state_distribution), fallen))
        values = found.values - operator.initial @ found.values
        return mass / found.identified * values if mass > 0.0 else None


# -- allowance ----------------------------------------------------------------------------------------


def _allowance(
    found: Shrinkage, influence: _Influence, reward_range: tuple[float, float] | None
) -> Allowance:
    never = found.cell_count == 0
    weight = np.where(found.visited, found.mass_without_loops, 0.0) / found.identified
    unlogged = float(weight @ np.where(never, found.target, 0.0).sum(axis=1))
    expected = float(weight @ _expected_unlogged(found, never))
    fill = fill_allowance(found.regression.spread, unlogged, expected)
    frontier_mass, beyond = _frontier(found, weight, never)
    # Not divided by 1 - leak: of the mass in leaks no outcome was seen at all.
    mass = float(found.state_distribution[found.visited].sum())
    squares = float((found.counts.cell_count * influence.direct**2).sum())
    effective = mass**2 / squares if squares > 0.0 else math.inf
    span = _span(found, influence, reward_range)
    outcomes = RULE_OF_THREE * mass * span / effective
    outcomes += never_seen(influence.of_outcomes_seen_once())
    return Allowance(
        fill=fill,
        ridge=found.ridge_error,
        traps=float(found.state_distribution @ found.trap_exits) * float(np.ptp(_values_after(found))),
        frontier_mass=frontier_mass,
        beyond=beyond,
        outcomes=outcomes if span > 0.0 else math.inf,
        unlogged_mass=unlogged,
        expected_mass=expected,
        effective_sample=effective,
        span=span,
    )


def _frontier(found: Shrinkage, weight: Floats, never: Any) -> tuple[float, float]:
    """Target mass on actions never logged in states that the log hardly visits, and what new ones may move.

    Of an action logged k times 1 / (k + 1) counts as new, and it may lead from the best state to the worst.
    As a part of the interval this would make those of Taxi 1.7 to 3.8 times as wide, which hold the truth.
    """
    share = found.mass * found.state_count / float(found.state_count.sum())
    beyond = np.where(found.visited & (weight > FRONTIER * share), weight, 0.0)
    new = found.target / (found.cell_count + 1.0)
    unlogged = np.where(never, found.target, 0.0)
    moved = float(beyond @ new.sum(axis=1)) * float(np.ptp(_values_after(found)))
    return float(beyond @ unlogged.sum(axis=1)), moved


def never_seen(seen_once: Floats) -> float:
    """For outcomes never seen, from what each outcome (cell, next state) seen once adds to the value.

    An outcome of probability p is missing from k - 1 visits with probability (1 - p)^(k - 1), and seen once
    in k visits with k p (1 - p)^(k - 1): those seen once, at weight 1 / k, estimate without bias what is
    missing.
    """
    deviation = math.sqrt(float(seen_once @ seen_once))
    return min(abs(float(seen_once.sum())), LARGEST_SURPRISE * deviation)


def fill_allowance(spread: float, unlogged: float, expected: float) -> float:
    """For target mass on actions never logged, of which the behavior is expected to leave some."""
    return spread * (UNSEEN * unlogged + EXCESS * max(unlogged - expected, 0.0))


def _expected_unlogged(found: Shrinkage, never: Any) -> Floats:
    """Probability in each state of actions that the behavior is expected not to have shown."""
    if found.behavior is not None:
        return np.asarray(np.where(never, found.behavior, 0.0).sum(axis=1))
    return np.asarray((found.cell_count == 1.0).sum(axis=1) / (found.state_count + 1.0))


def _span(found: Shrinkage, influence: _Influence, reward_range: tuple[float, float] | None) -> float:
    """How far one outcome may be from what is expected: 0 where the log gives no measure of it."""
    largest = influence.largest()
    if reward_range is None:
        span = max(largest, found.reward_bounds[1] - found.reward_bounds[0])
        # Rounding in what does not vary is no measure either.
        if span > _rounding(found):
            return span
        if not is_cost_per_step(found.counts, found.reward_bounds):
            return 0.0
        # Outcomes differ in how far it is to an end alone, and rewards by no more than their size.
        return max(found.gamma * float(np.ptp(_values_after(found))), *map(abs, found.reward_bounds))
    onward = found.gamma * float(np.ptp(_values_after(found)))
    return max(largest, reward_range[1] - reward_range[0] + onward)


def is_cost_per_step(counts: Counts, rewards: tuple[float, float]) -> bool:
    """Whether every reward is the same cost of a step, and enough ends were logged to show their own."""
    low, high = rewards
    if high - low > ROUNDING * max(abs(low), abs(high)) or low == 0.0 or not counts.has_terminals:
        return False
    return float(counts.terminal_count.sum()) >= ENDS_SHOWN


def _values_after(found: Shrinkage) -> Floats:
    """What may follow a transition: values of visited states, and of an end."""
    return np.append(found.values[found.visited], found.outcome.ending)


def _rounding(found: Shrinkage) -> float:
    """What outcomes that are all the same may differ by, in the units of the rewards."""
    largest = max(map(abs, found.reward_bounds))  # at gamma = 1 the value is taken off the outcomes
    return ROUNDING * max(largest, float(np.abs(found.outcome.entry_mean).max(initial=0.0)))


def known_rewards(operator: EmpiricalOperator) -> Floats:
    """Rewards as given, or logged: single ones where episodes keep them, else means by (cell, next state).

    Where rows lie elsewhere, means by cell are all that is here.
    """
    counts, reward = operator.counts, operator.reward
    if reward is None:
        return np.zeros(0)
    known, here = reward[operator.seen], isinstance(operator.counts, Counts)
    if operator.logged_reward is not None and here and counts.reward_mean is not None:
        episodes = counts.episodes
        known = counts.reward_mean if episodes is None or episodes.reward is None else episodes.reward
    return known[np.isfinite(known)]
