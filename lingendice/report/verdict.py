"""The first sentence of a report: what was found beside the logged behavior, and whether to trust it."""

from __future__ import annotations

import math

from lingendice.data.display import rounded
from lingendice.results.comparison import BEHAVIOR, Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import Check
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval


def verdict(result: Solution | Comparison | ContinuousSolution, level: float) -> str:
    """One sentence. Computes the interval of the gain over the behavior, and runs the checks."""
    if isinstance(result, Comparison):
        return _of_policies(result, level)
    if not result.converged:
        return f"There is no answer to rely on: {result.status.value}; {result.status.advice}."
    if isinstance(result, Solution) and result.state_distribution is None:
        count = len(result.state_distributions)
        return (
            f"There are {count:,} stationary distributions, one for each recurrent class: no single answer."
        )
    if result.value is None:
        what = "distribution" if isinstance(result, Solution) else "ratio"
        return _sentence(f"the stationary {what} is known; there are no rewards", result.diagnose())
    if isinstance(result, Solution) and not result.has_target:
        return _sentence(f"the logged process earns {_value(result, level)} per step", result.diagnose())
    try:
        if result.behavior_value is None:
            raise ValueError("there is nothing to compare with")
        said = _gain(
            "the target", Comparison(("the target",), (result,)).difference("the target", BEHAVIOR, level)
        )
    except ValueError:  # or a matrix carries no sample size
        said = f"the target earns {_value(result, level)} per step"
    return _sentence(said, result.diagnose())


def _of_policies(comparison: Comparison, level: float) -> str:
    if all(map(math.isnan, comparison.values)):
        return "No policy can be judged: the data say nothing about their values."
    best = comparison.best
    row = next(row for row in comparison.differences(level) if row["policy"] == best)
    said = _gain(str(best), row["over_behavior"])
    others_left = [str(name) for name in comparison.contenders(level) if name != best]
    if others_left:
        others = f"{others_left[0]} is" if len(others_left) == 1 else f"{len(others_left)} other policies are"
        said += f"; {others} not ruled out as the best"
    return _sentence(said, comparison[best].diagnose())


def _gain(name: str, gain: Interval) -> str:
    """More, less, or not shown to differ."""
    number = rounded(abs(gain.estimate), gain.standard_error)
    low, high = (rounded(end, gain.standard_error) for end in (gain.low, gain.high))
    if gain.low > 0.0 or gain.high < 0.0:
        more = "more" if gain.low > 0.0 else "less"
        low, high = (low, high) if gain.low > 0.0 else (high.lstrip("-"), low.lstrip("-"))
        return f"{name} earns {more} than the logged behavior by {number} per step [{low}, {high}]"
    sign = "+" if gain.estimate >= 0.0 else "-"
    return f"{name} is not shown to differ from the logged behavior: {sign}{number} per step [{low}, {high}]"


def _value(solution: Solution | ContinuousSolution, level: float) -> str:
    try:
        found = solution.interval(level)
    except ValueError:
        return f"{solution.value:.6g}"
    value, low, high = (rounded(end, found.standard_error) for end in (found.estimate, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _sentence(said: str, checks: tuple[Check, ...]) -> str:
    failed = [check.name for check in checks if not check.ok]
    if not checks:
        told = "nothing could be checked"
    elif not failed:
        told = "all checks pass"
    else:
        verb = "fail" if len(failed) > 1 else "fails"
        told = f"{len(failed)} of {len(checks)} checks {verb}: {', '.join(failed)}"
    # The name of a policy is left as it is.
    return f"{said.replace('the ', 'The ', 1) if said.startswith('the ') else said}; {told}."
