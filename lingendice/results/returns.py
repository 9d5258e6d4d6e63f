"""Returns and lengths of episodes: what a per-step value amounts to from the first state on.

    gamma < 1       return = value / (1 - gamma), discounted, from the initial distribution
                    length = steps before the end, step t counted gamma^t
    gamma = 1       return = (sum mu r) / rate, undiscounted, of one episode
                    length = 1 / rate,     rate = sum mu end: ends per step

with end(x) the share of a cell's transitions that end in a terminal state. A length is the return of a reward
of 1 per step. At gamma = 1 a return G is a ratio; by the delta method it is off by what sum mu (r - G end) is
off, divided by the rate: that is a value like any other, with rewards r - G end, and its interval (noise, and
the allowance for bias of the default with a policy) is the interval of the return.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.episodes import group_sample
from lingendice.data.rows import row_of_entry
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.allowance import without_rounding
from lingendice.results.targets import Interval, ValueScores
from lingendice.solvers.shrinkage import ROUNDING

if TYPE_CHECKING:
    from lingendice.results.solution import Solution

NO_EPISODES = (
    "at gamma=1 a return is that of an episode, and the data have no ends of episodes: pass terminal= to "
    "Counts.from_transitions, take gamma < 1, or horizon="
)
ENDS_UNREACHED = (
    "at gamma=1 a return is that of an episode, and none ends: the ends that the data have are not reached; "
    "take gamma < 1, or horizon="
)


def end_share(counts: Counts) -> Floats:
    """Share of each cell's transitions that end in a terminal state."""
    n = counts.cell_count.astype(float)
    return np.divide(counts.terminal_count, n, out=np.zeros_like(n), where=n > 0)


def with_rewards(
    counts: Counts, reward: Floats | None, end_cost: float = 0.0, step_cost: float = 0.0
) -> Counts:
    """The counts with rewards r - ``step_cost``, and - ``end_cost`` at ends.

    r is ``reward`` by cell, or None for the log's.
    """
    cost = step_cost + end_cost * (counts.indices == counts.n_states)
    episodes, m2, known = counts.episodes, np.zeros(counts.count.size), counts.count
    logged = None if episodes is None else episodes.reward
    if reward is not None:
        mean = reward[row_of_entry(counts.indptr)]
        logged = None if episodes is None else mean[episodes.entry]
    else:
        assert counts.reward_mean is not None
        assert counts.reward_m2 is not None
        assert counts.reward_count is not None
        mean, m2, known = counts.reward_mean, counts.reward_m2, counts.reward_count
    if episodes is not None:
        assert logged is not None
        episodes = episodes._replace(reward=logged - cost[episodes.entry])
    return replace(counts, reward_mean=mean - cost, reward_m2=m2, reward_count=known, episodes=episodes)


def episode_interval(
    solution: Solution, level: float, of: str, method: str, options: dict[str, Any]
) -> Interval:
    """Interval of the return or the length; see :meth:`lingendice.Solution.interval`."""
    estimate = solution.expected_return if of == "return" else solution.expected_length
    steps = solution.episode_steps
    if estimate is None or steps is None:
        raise ValueError(_why_none(solution, of))
    if (of == "return" and not solution.is_ratio) or math.isnan(estimate):
        return solution._interval(level, "value", method, **options).scaled(steps)
    changed, expected = _per_step(solution, of, estimate, steps)
    found = changed._interval(level, "value", method, **options)
    return around(found, estimate, expected, steps)


def episode_scores(solution: Solution, of: str) -> ValueScores:
    """Rows whose products add up to the variance of the return or the length; see ``value_scores``."""
    estimate, steps = solution.estimate_of(of), solution.episode_steps
    if estimate is None or steps is None:
        return ValueScores(None, math.inf, _why_none(solution, of))
    if (of == "return" and not solution.is_ratio) or math.isnan(estimate):
        return solution.value_scores().scaled(steps)
    changed, expected = _per_step(solution, of, estimate, steps)
    return beside(changed.value_scores(), float(changed.value or 0.0), expected, steps)


def beside(scores: ValueScores, found: float, expected: float, steps: float) -> ValueScores:
    """Scores of a fit to other rewards, on the scale of an episode; see :func:`around`."""
    return scores._replace(bias_allowance=scores.bias_allowance + abs(found - expected)).scaled(steps)


def _per_step(solution: Solution, of: str, estimate: float, steps: float) -> tuple[Solution, float]:
    """The solution whose value is off by what the return or the length is, per step, and that value."""
    cost, operator = estimate if solution.is_ratio else 0.0, solution.operator
    given = operator.reward if operator.logged_reward is None else None
    reward = np.ones(operator.n_cells) if of == "length" else given
    changed = solution.with_counts(with_rewards(operator.counts, reward, cost), _shifted(solution, of, cost))
    return changed, 0.0 if solution.is_ratio else estimate / steps


def around(
    found: Interval, estimate: float, expected: float, steps: float, within: tuple[float, float] | None = None
) -> Interval:
    """The interval of ``estimate`` from one of a fit to other rewards, on the scale of a step.

    Such a fit may shrink otherwise: what it differs by from what is ``expected`` is allowed for as bias.
    """
    off = abs(found.estimate - expected)
    low = estimate + steps * (found.low - found.estimate - off)
    high = estimate + steps * (found.high - found.estimate + off)
    if within is not None:
        low, high = max(low, within[0]), min(high, within[1])
    return replace(
        found,
        low=low,
        high=high,
        estimate=estimate,
        standard_error=steps * found.standard_error,
        bias_allowance=steps * (found.bias_allowance + off),
    )


def _shifted(solution: Solution, of: str, cost: float) -> tuple[float, float] | None:
    """Range of r - cost end. Rewards of a length are known; what a log without ends does not show is one."""
    if of == "length":
        endless = solution.method == "shrinkage" and not solution.operator.counts.has_terminals
        return (0.0, 1.0) if endless else None
    if solution.reward_range is None:
        return None
    low, high = solution.reward_range
    return low - max(cost, 0.0), high + max(-cost, 0.0)


def _why_none(solution: Solution, of: str) -> str:
    if solution.state_distribution is None:
        solution._single()  # raises: of several distributions there is no return
    if of == "return" and solution.value is None:
        return "the data hold no rewards, so there is no return; pass reward=, or take of='length'"
    if solution.is_ratio and solution.operator.choices.smoothing:
        return "with smoothing= no rate of ends is known at gamma=1; leave it out, or take gamma < 1"
    if solution.is_ratio:
        return ENDS_UNREACHED if solution.operator.counts.has_terminals else NO_EPISODES
    return f"{solution.method} gives no {of}; see solve(...)"


# -- the logged behavior ---------------------------------------------------------------------------------


def has_whole_episodes(operator: EmpiricalOperator) -> bool:
    """Whether the behavior's return is the mean over the log's episodes: kept, and none of them cut off."""
    episodes = operator.counts.episodes
    if episodes is None or episodes.weight is not None or not operator.initial_is_logged:
        return False
    return float(operator.counts.terminal_count.sum()) == episodes.first_state.size


def mean_of_episodes(operator: EmpiricalOperator, of: str) -> float | None:
    """Mean return or length of the log's episodes, each of which has ended."""
    counts = operator.counts
    length = float(counts.total) / float(counts.terminal_count.sum())
    if of == "length":
        return length
    return None if operator.logged_average is None else operator.logged_average * length


def mean_scores(operator: EmpiricalOperator, of: str) -> ValueScores:
    """Scores of :func:`mean_of_episodes`: what each episode earns beyond the mean, by the number of them."""
    counts = operator.counts
    mean = mean_of_episodes(operator, of)
    given = operator.reward if operator.logged_reward is None else None
    reward = np.ones(operator.n_cells) if of == "length" else given
    changed = with_other_rewards(operator, with_rewards(counts, reward, float(mean or 0.0)))
    steps = float(counts.total) / float(counts.terminal_count.sum())
    return average_scores(changed, 0.0).scaled(steps)


def with_other_rewards(operator: EmpiricalOperator, counts: Counts) -> EmpiricalOperator:
    """The operator of the same transitions with the rewards of ``counts``."""
    choices = operator.choices._replace(reward=None)
    return replace(operator, counts=counts, reward=counts.reward, choices=choices)


def average_scores(operator: EmpiricalOperator, average: float) -> ValueScores:
    """Rows whose products add up to the variance of the mean reward, in the order of other values' rows."""
    counts = operator.counts
    sample = group_sample(counts)
    assert operator.reward is not None
    logged = operator.choices.reward is None
    cell = row_of_entry(counts.indptr)
    mean: Floats = operator.reward[cell]
    m2 = np.zeros(counts.count.size)
    if logged and counts.reward_mean is not None and counts.reward_m2 is not None:
        mean, m2 = counts.reward_mean, counts.reward_m2
    off = np.where(np.isfinite(mean), mean - average, 0.0)
    total = float(counts.count[np.isfinite(mean)].sum())
    none = ROUNDING * float(np.abs(mean[np.isfinite(mean)]).max(initial=0.0))
    episodes = counts.episodes
    if sample.cluster is None or episodes is None:
        rows = np.concatenate([off * np.sqrt(counts.count), np.sqrt(m2)]) / total
        rows = without_rounding(rows, none)
        return ValueScores(rows[:, None], sample.degrees, sample.note, most=sample.degrees)
    moved = off[episodes.entry]
    if logged and episodes.reward is not None:
        moved = np.where(np.isfinite(episodes.reward), episodes.reward - average, 0.0)
    if episodes.weight is not None:
        moved = moved * episodes.weight
    n = sample.n_clusters
    rows = without_rounding(np.bincount(sample.cluster, weights=moved, minlength=n) / total, none)
    degrees = sample.effective_degrees(rows)
    rows = rows * math.sqrt(n / max(n - 1, 1))
    return ValueScores(rows[:, None], degrees, sample.note, most=sample.degrees)
