"""What a range of rewards says of a value or a return, and intervals whose ends keep to it.

With rewards of a step in [low, high], and 0 after the end of an episode:

    value                       [low, high], at gamma < 1 with 0 where episodes end
    return, gamma < 1, horizon  the value's range times the steps that it is a mean of
    return, rewards at ends     [low, high]: an episode earns once, at its end
    return, gamma = 1           at least low if no reward is negative, at most high if none is positive; else
                                nothing, since an episode may have any number of steps

Rewards are taken to be paid at ends alone where every other transition of the log earned exactly 0.

An estimate m near a limit is skew: of few positives some were lucky. Its standard error se belongs to m; at
another value theta the noise would have the variance se^2 V(theta) / V(m), with V(theta) = (theta - low)
(high - theta), or one factor where only one limit is known: that of a coin which lands on either limit.
The ends are those theta at which the estimate is q standard errors away,

    (theta - m)^2 = q^2 se^2 V(theta) / V(m) ,

Wilson's interval where m is a share of independent trials. Few positives also make the standard error rest on
few episodes: of the 1 / degrees by which it is uncertain, se^2 / (m - limit)^2 is that, and no reason for a
larger quantile.

References
----------
E. B. Wilson (1927). Probable inference, the law of succession, and statistical inference. JASA 22.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from lingendice.data.counts import Counts
from lingendice.data.rows import row_of_entry
from lingendice.results.allowance import half_width
from lingendice.results.targets import Interval, ValueScores

if TYPE_CHECKING:
    from lingendice.results.solution import Solution

Limits = tuple[float, float]
UNKNOWN: Limits = (-math.inf, math.inf)


def range_of(solution: Solution, of: str) -> Limits:
    """The range of the value or the return; infinite where nothing is known of an end."""
    if solution.reward_range is None or of not in ("value", "return"):
        return UNKNOWN
    low, high = solution.reward_range
    ends = bool(solution.operator.counts.has_terminals) and not solution.is_ratio
    least, most = (min(low, 0.0), max(high, 0.0)) if ends else (low, high)
    if of == "value":
        return least, most
    if pays_at_ends_alone(solution):
        return min(low, 0.0), max(high, 0.0)
    if solution.is_ratio:
        return (low if low >= 0.0 else -math.inf), (high if high <= 0.0 else math.inf)
    steps = float(solution.episode_steps or math.inf)
    return least * steps if least else 0.0, most * steps if most else 0.0


def pays_at_ends_alone(solution: Solution) -> bool:
    """Whether every logged transition that does not end an episode earned 0."""
    operator = solution.operator
    counts = operator.counts
    if not isinstance(counts, Counts) or not counts.has_terminals or operator.reward is None:
        return False
    goes_on = counts.indices < counts.n_states
    if operator.choices.reward is not None or counts.reward_mean is None or counts.reward_m2 is None:
        return not operator.reward[row_of_entry(counts.indptr)[goes_on]].any()
    return not (counts.reward_mean[goes_on].any() or counts.reward_m2[goes_on].any())


def clipped(found: Interval, limits: Limits) -> Interval:
    """The interval cut off at the limits."""
    return replace(found, low=max(found.low, limits[0]), high=min(found.high, limits[1]))


def within_range(found: Interval, scores: ValueScores, limits: Limits, unseen: float) -> Interval:
    """The interval of an estimate that lies between limits, with :func:`unseen_error`; see the module."""
    error, bias = math.hypot(scores.standard_error, unseen), scores.bias_allowance
    estimate = min(max(float(found.estimate), limits[0]), limits[1])
    degrees = degrees_within(scores, estimate, limits)
    noise = half_width(error, bias, found.level, degrees) - bias if math.isfinite(bias) else 0.0
    low, high = ends_within(estimate, noise, error, bias, limits)
    return replace(found, low=low, high=high, estimate=estimate)


def ends_within(estimate: float, noise: float, error: float, bias: float, limits: Limits) -> Limits:
    """The ends for ``noise``, the standard error times its quantile, and an allowance for bias."""
    least, most = limits
    middle = min(max(estimate, least), most)
    low, high = middle - noise, middle + noise
    if noise > 0.0 and least < most and (math.isfinite(least) or math.isfinite(most)):
        # No fewer than one trial's luck is behind an estimate: nearer to a limit V would be too small.
        at = min(max(middle, least + error), most - error)
        if math.isfinite(least + most) and not least + error < most - error:
            at = 0.5 * (least + most)
        low, high = _roots(middle, noise, at, limits)
    return max(low - bias, least), min(high + bias, most)


def _roots(middle: float, noise: float, at: float, limits: Limits) -> Limits:
    """Both theta with (theta - middle)^2 V(at) = noise^2 V(theta)."""
    least, most = limits
    if math.isinf(least):
        low, high = _roots(-middle, noise, -at, (-most, math.inf))
        return -high, -low
    span = most - least
    x, y = middle - least, at - least  # of theta - least: its square by 1 + c, and so on
    if math.isinf(span):
        c = noise**2 / y
        linear, square = 2.0 * x + c, 1.0
    else:
        c = noise**2 / (y * (span - y))
        linear, square = 2.0 * x + c * span, 1.0 + c
    root = math.sqrt(max(linear**2 - 4.0 * square * x**2, 0.0))
    high = (linear + root) / (2.0 * square)
    return least + (x**2 / (square * high) if high > 0.0 else 0.0), least + high


def degrees_within(scores: ValueScores, estimate: float, limits: Limits) -> float:
    """Degrees of freedom without what nearness to a limit makes of them."""
    error, most = scores.standard_error, scores.most
    away = min(abs(estimate - limit) for limit in limits)
    if most is None or error == 0.0 or math.isinf(away) or math.isinf(most):
        return scores.degrees
    left = 1.0 / max(scores.degrees, 1e-300) - (error / away) ** 2 if away > 0.0 else 0.0
    return 1.0 / max(left, 1.0 / most) if left > 0.0 else most


def value_within(solution: Solution, value: float) -> float:
    """The value per step, moved into its range and such that the return, so many times it, is in its own."""
    low, high = range_of(solution, "value")
    steps = solution.episode_steps
    if steps is not None and 0.0 < steps < math.inf:
        least, most = range_of(solution, "return")
        low, high = max(low, least / steps), min(high, most / steps)
    return min(max(value, low), high)


def unseen_error(solution: Solution, of: str) -> float:
    """Standard error that one outcome at the other limit would bring, which the log may just not show.

    The range over the number of independent trials: episodes where they earn at ends, else transitions. Of no
    positive among n trials the interval then ends at Wilson's q^2 / (n + q^2).
    """
    low, high = range_of(solution, of)
    size = solution.effective_sample_size
    if size is None or not size > 0.0 or not math.isfinite(high - low):
        return 0.0
    trials = size
    if of == "return" and pays_at_ends_alone(solution):
        trials = size / float(solution.expected_length or 1.0)
    return (high - low) / max(trials, 1.0)
