"""Can a ratio over continuous states be trusted? The checks of :mod:`lingendice.results.diagnostics`, on
rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lingendice.results.diagnostics import FEW_CELLS, LARGEST_SHARE, LEAST_SAMPLE, Check, make_check

if TYPE_CHECKING:
    from lingendice.results.continuous_solution import ContinuousSolution

LARGEST_OFFSET = 0.1
LEAST_MOVED = 0.01
LARGEST_SPREAD = 0.1


def diagnose_continuous(solution: ContinuousSolution) -> tuple[Check, ...]:
    """Normalization, effective sample size, distance from the log, concentration, agreement of members."""
    checks = [_normalization(solution), _sample(solution), _moved(solution)]
    if solution.value is not None:
        checks.append(_concentration(solution))
    if solution.spread is not None:
        checks.append(_agreement(solution))
    return tuple(checks)


def _normalization(solution: ContinuousSolution) -> Check:
    number = abs(solution.mean_ratio - 1.0)
    sentence = f"the ratio's mean over the data is {solution.mean_ratio:.4f}, and should be 1"
    remedy = "raise penalty= or the number of steps (max_iter=)"
    return make_check("mean ratio", number, LARGEST_OFFSET, False, sentence, remedy)


def _sample(solution: ContinuousSolution) -> Check:
    size, total = solution.effective_sample_size, len(solution.transitions)
    sentence = f"{size:,.0f} of {total:,} transitions count after weighting"
    remedy = "collect more data, or take a target closer to the behavior"
    return make_check("effective sample size", size, min(LEAST_SAMPLE, total), True, sentence, remedy)


def _moved(solution: ContinuousSolution) -> Check:
    """Share of the data's mass that the ratio moves: the total variation between mu and p, as estimated."""
    mean = float(solution.tau.mean())
    number = 0.5 * float(np.mean(np.abs(solution.tau / mean - 1.0))) if mean != 0.0 else 0.0
    sentence = f"the ratio moves {number:.1%} of the data's mass"
    reward = solution.transitions.reward
    if solution.value is not None and reward is not None:
        sentence += f" (value {solution.value:.4g}, average of the log {float(np.mean(reward)):.4g})"
    remedy = (
        "the estimate is the log's own average: right if the target acts as the log did; "
        "else train longer (max_iter=) or with a larger learning rate"
    )
    return make_check("from the behavior", number, LEAST_MOVED, True, sentence, remedy)


def _concentration(solution: ContinuousSolution) -> Check:
    """Share of all reward, in absolute terms, that the top one per cent of transitions earns."""
    assert solution.transitions.reward is not None
    earned = np.abs(solution.tau * solution.transitions.reward)
    few = max(1, math.ceil(FEW_CELLS * earned.size))
    whole = float(earned.sum())
    number = float(np.partition(earned, -few)[-few:].sum() / whole) if whole > 0 else 0.0
    sentence = f"{number:.0%} of the reward, in absolute terms, comes from {few:,} of {earned.size:,} rows"
    remedy = "look at the rows of largest sol.tau * reward: the value is theirs"
    threshold = LARGEST_SHARE if earned.size >= 100 else 1.0
    return make_check("concentration", number, threshold, False, sentence, remedy)


def _agreement(solution: ContinuousSolution) -> Check:
    """Spread of the members' values in units of the rewards' standard deviation."""
    assert solution.transitions.reward is not None
    assert solution.spread is not None
    scale = float(np.std(solution.transitions.reward))
    number = solution.spread / scale if scale > 0 else 0.0
    sentence = f"the values of {len(solution.members)} members spread by {solution.spread:.2g}"
    sentence += f", {number:.1%} of the rewards' standard deviation"
    remedy = "training has not settled: more steps (max_iter=), a smaller learning rate, or more members"
    return make_check("agreement", number, LARGEST_SPREAD, False, sentence, remedy)
