"""Can a value over continuous states be trusted? Checks on rows, members and simulated paths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lingendice.continuous.outcome import LARGEST_SPREAD, LEAST_SAMPLE_SHARE, MOST_CLIPPED, RATIO_MASS
from lingendice.results.diagnostics import FEW_CELLS, LARGEST_SHARE, Check, make_check

if TYPE_CHECKING:
    from lingendice.continuous.outcome import Evidence
    from lingendice.results.continuous_solution import ContinuousSolution

LARGEST_RISE = 3.0
"""Of the held-out residual over its least value while training."""
LARGEST_RESIDUAL = 1.0
"""Root of a chi-square distance: beyond it a ratio is not nearly stationary."""
LEAST_MOVED = 0.01
_AUTO = 'take method="auto": its model found the value where ratio networks collapsed (17 + 6 coordinates)'


def diagnose_continuous(solution: ContinuousSolution) -> tuple[Check, ...]:
    """All checks: those that decide over the value, and those that tell how much the rest says."""
    checks = list(decisive_checks(solution))
    names = {check.name for check in checks}
    others = []
    if np.isfinite(solution.tau).all():
        others = [_mass(solution), _sample(solution), _moved(solution)]
        if solution.value is not None:
            others.append(_concentration(solution))
    return (*checks, *(check for check in others if check.name not in names))


def decisive_checks(solution: ContinuousSolution) -> tuple[Check, ...]:
    """The checks whose failure takes "trained" from the status: those that the headline rests on."""
    evidence = solution.evidence
    checks = []
    if solution.spread is not None:
        checks.append(_agreement(solution))
    if evidence is None or evidence.headline in ("ratio", "DR"):
        checks += [_mass(solution), _sample(solution)]
    if evidence is None:
        checks += _residual(solution)
    elif evidence.headline == "FQE":
        checks.append(_explosion(evidence))
    if evidence is not None and evidence.headline in ("model", "corrected model", "DR"):
        checks.append(_clipped(evidence))
    return tuple(checks)


def _mass(solution: ContinuousSolution) -> Check:
    mass = solution.mean_ratio if solution.evidence is None else solution.evidence.ratio_mass
    number = math.inf if not mass > 0 else max(mass, 1.0 / mass)
    sentence = f"the ratio's mean over the data is {mass:.4f}, and should be 1"
    remedy = _AUTO if solution.evidence is None else "rest nothing on sol.tau and DR: their ratio is off"
    return make_check("mean ratio", number, RATIO_MASS[1], False, sentence, remedy)


def _sample(solution: ContinuousSolution) -> Check:
    size, total = solution.effective_sample_size, len(solution.transitions)
    sentence = f"{size:,.0f} of {total:,} transitions count after weighting"
    remedy = (
        "log the target's own actions: weighted means rest on few rows; the model and FQE do not need weights"
    )
    return make_check("effective sample size", size / total, LEAST_SAMPLE_SHARE, True, sentence, remedy)


def _residual(solution: ContinuousSolution) -> list[Check]:
    """Whether stationarity on rows held out got worse while training."""
    paths = [[point.residual for point in member] for member in solution.history if len(member) > 1]
    if not paths:
        return []
    last = float(np.mean([path[-1] for path in paths]))
    least = float(np.mean([min(path) for path in paths]))
    rise = last / max(least, 1e-12) if last > LARGEST_RESIDUAL else 1.0
    sentence = f"the held-out residual ends at {last:.2g}; its least while training was {least:.2g}"
    return [make_check("held-out residual", rise, LARGEST_RISE, False, sentence, _AUTO)]


def _agreement(solution: ContinuousSolution) -> Check:
    """Spread of the members' values in units of the rewards' standard deviation."""
    reward = solution.transitions.reward
    assert reward is not None
    assert solution.spread is not None
    assert solution.member_values is not None
    scale = float(np.std(reward))
    number = solution.spread / scale if scale > 0 else 0.0
    sentence = f"the values of {len(solution.member_values)} members spread by {solution.spread:.2g}"
    sentence += f", {number:.1%} of the rewards' standard deviation"
    remedy = "more episodes, or episodes that run longer: each member sees two thirds of them"
    if solution.evidence is None:
        remedy = "training has not settled: more steps (max_iter=), or " + _AUTO
    return make_check("agreement", number, LARGEST_SPREAD, False, sentence, remedy)


def _explosion(evidence: Evidence) -> Check:
    sentence = f"the largest |Q| is {evidence.largest_q:.2g} of what rewards allow"
    return make_check("size of Q", evidence.largest_q, 1.0, False, sentence, 'take method="model"')


def _clipped(evidence: Evidence) -> Check:
    sentence = f"{evidence.clipped:.1%} of simulated coordinates leave the range of the log"
    remedy = 'the target goes where the log has no data: take method="fqe", or log closer to the target'
    return make_check("within the log", evidence.clipped, MOST_CLIPPED, False, sentence, remedy)


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
    return make_check("shift from behavior", number, LEAST_MOVED, True, sentence, remedy)


def _concentration(solution: ContinuousSolution) -> Check:
    """Share of all reward, in absolute terms, that the top one per cent of transitions earns."""
    assert solution.transitions.reward is not None
    earned = np.abs(solution.tau * solution.transitions.reward)
    few = max(1, math.ceil(FEW_CELLS * earned.size))
    whole = float(earned.sum())
    number = float(np.partition(earned, -few)[-few:].sum() / whole) if whole > 0 else 0.0
    sentence = f"{number:.0%} of the reward, in absolute terms, comes from {few:,} of {earned.size:,} rows"
    remedy = "look at the rows of largest sol.tau * reward: weighted means are theirs"
    threshold = LARGEST_SHARE if earned.size >= 100 else 1.0
    return make_check("concentration", number, threshold, False, sentence, remedy)
