"""Intervals for values over continuous states: noise, disagreement of members, and of two estimates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import require_number
from lingendice.results.targets import Interval, ValueScores, student

if TYPE_CHECKING:
    from lingendice.results.continuous_solution import ContinuousSolution

NOTE = (
    "spread of the model's members, and the distance between both estimates or the noise of the doubly "
    "robust value over episodes, whichever is larger; it does not know of what the log never shows"
)


def continuous_interval(
    solution: ContinuousSolution, level: float, of: Any, method: str, **options: Any
) -> Interval:
    """value +- t sqrt(sd(members)^2 + max(se(DR)^2, (DR - model)^2)), t of the episodes less one.

    E (DR - model)^2 = se^2 + bias^2: added to se^2 it would count the noise twice. On the tuning logs of
    benchmarks/paper/control.py (72) intervals with the sum and with the maximum both held the true value in
    69 cases, the latter being 0.86 times as long; without the members' spread they held it in 68, without
    the distance in 63.
    """
    if not isinstance(of, str) or of != "value" or method != "influence" or options:
        raise ValueError("over continuous states there is an interval of the value only: sol.interval(level)")
    if not 0.0 < require_number("level", level) < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    error, spread, away = _parts(solution)
    value = solution.value
    assert value is not None
    total = math.hypot(spread, max(error, away))
    degrees = _degrees(solution)
    low, high = student(np.array([value]), np.array([total]), level, degrees)
    return Interval(
        float(low[0]), float(high[0]), value, error, float(level), method, NOTE, float(high[0]) - value
        - float(student(np.zeros(1), np.array([error]), level, degrees)[1][0]),
    )  # fmt: skip


def continuous_scores(solution: ContinuousSolution) -> ValueScores:
    """Scores of the doubly robust value by episode, with the rest of the interval as an allowance."""
    found = continuous_interval(solution, 0.95, "value", "influence")
    evidence = solution.evidence
    assert evidence is not None
    n = evidence.scores.size
    rows = (evidence.scores - evidence.scores.mean())[:, None] / math.sqrt(n * (n - 1.0))
    return ValueScores(rows, n - 1.0, NOTE, float(found.bias_allowance))


def behavior_scores(solution: ContinuousSolution) -> ValueScores:
    """Scores of what the behavior earned, by episode."""
    evidence = solution.evidence
    if evidence is None or evidence.naive_scores.size < 2:
        return ValueScores(None, math.inf, "the behavior's value has no interval here")
    n = evidence.naive_scores.size
    rows = (evidence.naive_scores - evidence.naive_scores.mean())[:, None] / math.sqrt(n * (n - 1.0))
    return ValueScores(rows, n - 1.0, NOTE)


def _parts(solution: ContinuousSolution) -> tuple[float, float, float]:
    """The standard error, the members' spread, and the distance between the model and DR."""
    evidence = solution.evidence
    if evidence is None or evidence.scores.size < 2:
        raise ValueError(
            f"method={solution.method!r} gives no interval: the noise of the data is not measured; "
            'method="auto" and method="dr" measure it'
        )
    robust = evidence["DR"]
    spread = float(evidence.members.std(ddof=1))
    direct = evidence["FQE" if evidence.headline == "FQE" else "model"].value
    return float(robust.standard_error or 0.0), spread, abs(robust.value - direct)


def _degrees(solution: ContinuousSolution) -> float:
    assert solution.evidence is not None
    return float(solution.evidence.scores.size - 1)
