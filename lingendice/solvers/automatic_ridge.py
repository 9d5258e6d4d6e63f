"""Choose the ridge, and how far state totals may move, from the data: judged by the bias put on the value.

Two decisions, both through the adjoint V of the regularized system (what one unit of mass in a state is
worth), one adjoint solve for each ridge tried:

1. The ridge starts at 1 / N, the level of the sampling noise, and falls by tens while the bias that
   it can be seen to put on the value exceeds the value's standard error. That bias is V'(A tau - b):
   a mode of singular value sigma counts with eps sigma^2 / (sigma^2 + eps)^2, so modes far below the noise
   (spurious traps, sigma ~ 0), which the ridge is there to remove, do not count.
2. Rows of cloned weights that sum to 1 bias rarely visited states toward the behavior; free rows
   (:func:`lingendice.model.behavior.free_rows`) do not, at the price of noise. With d the first-order change
   of the value from one to the other and s its standard error (a sum of independent terms, one a state), the
   rows move by the share d^2 / (d^2 + s^2), the one of least mean squared error were d the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import row_sums
from lingendice.model.compose import Choices, compose, effective_policy, restart_distribution
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeFit, RidgeSystem

LEAST_RIDGE = 1e-9
WITHOUT_REWARD = 1e-5
ROUGH = 1e-5
"""Relative accuracy of the solves that only serve a decision."""


class Judged(NamedTuple):
    """A rough ridge solution and what its adjoint says."""

    fit: RidgeFit
    cell_distribution: Floats
    values: Floats
    advantage: Floats
    """r - value + gamma E V(s') over cells, 0 where no reward is known."""
    bias: float
    standard_error: float


def fit_automatically(
    counts: Counts,
    choices: Choices,
    ridge: float | None,
    penalty: float,
    controls: Controls,
    build: Callable[[EmpiricalOperator, float, float], RidgeSystem] = RidgeSystem,
) -> tuple[EmpiricalOperator, RidgeFit]:
    """Compose the operator and solve its ridge problem; ``ridge`` None means chosen from the data.

    ``build`` makes the system that is solved: on the host, or on a device.
    """
    if ridge is None and not counts.has_sample_size:
        raise ValueError(
            'ridge="auto" weighs the ridge against the number of observations, and a row-stochastic matrix '
            "carries none; pass counts, or the ridge as a number"
        )
    operator = compose(counts, choices)
    choices = operator.choices
    rough = replace(controls, tol=max(controls.tol, ROUGH))
    level = 1.0 / counts.total if ridge is None else ridge
    may_free_rows = choices.clone == "auto" and operator.ratio == "state"
    if operator.reward is None or (ridge is not None and not may_free_rows):
        # Without rewards there is nothing to judge a bias by, and the distribution is left nearly alone.
        level = min(level, WITHOUT_REWARD) if ridge is None else level
        return operator, build(operator, level, penalty).solve(controls)
    judged = judge(operator, level, penalty, rough, build=build)
    while ridge is None and abs(judged.bias) > judged.standard_error and level > LEAST_RIDGE:
        level = max(level / 10.0, LEAST_RIDGE)
        judged = judge(operator, level, penalty, rough, judged.fit.y, build)
    if may_free_rows:
        share = _row_freedom(operator, counts, choices, judged)
        if share > 0.0:
            operator = compose(counts, choices._replace(row_freedom=share))
    system = build(operator, level, penalty)
    return operator, system.solve(controls, judged.fit.y)


def judge(
    operator: EmpiricalOperator,
    ridge: float,
    penalty: float,
    controls: Controls,
    start: Floats | None = None,
    build: Callable[[EmpiricalOperator, float, float], RidgeSystem] = RidgeSystem,
) -> Judged:
    """Solve the ridge problem and its adjoint for the value. O(nnz) a step."""
    system = build(operator, ridge, penalty)
    fit = system.solve(controls, start, rough=True)
    distribution = fit.row_distribution
    cell_distribution = distribution if system.over_cells else operator.spread(distribution)
    known = operator.seen & np.isfinite(np.asarray(operator.reward))
    surplus, mass = value_sensitivity(operator, cell_distribution, known)
    sensitivity = surplus if system.over_cells else operator.gather(surplus)
    adjoint = system.adjoint(sensitivity, fit.free, controls.tol)
    return Judged(
        fit=fit,
        cell_distribution=cell_distribution,
        values=adjoint.values,
        advantage=np.where(known, surplus + operator.gamma * operator.expected_next(adjoint.values), 0.0),
        bias=float(fit.misfit @ adjoint.scaled),
        standard_error=_standard_error(operator, cell_distribution, adjoint.values, known, mass),
    )


def value_sensitivity(
    operator: EmpiricalOperator, cell_distribution: Floats, known: NDArray[np.bool_]
) -> tuple[Floats, float]:
    """Derivative of the value by mass on each cell, and the mass that earns known rewards."""
    mass = float(cell_distribution[known].sum()) or 1.0
    reward = np.where(known, np.asarray(operator.reward), 0.0)
    value = float(cell_distribution @ reward) / mass
    return np.where(known, reward - value, 0.0) / mass, mass


def _standard_error(
    operator: EmpiricalOperator,
    cell_distribution: Floats,
    values: Floats,
    known: NDArray[np.bool_],
    mass: float,
) -> float:
    """Standard error of the value from the spread of V(s') and of rewards within cells.

    Cells seen once show no spread; they are given the average one.
    """
    counts = operator.counts
    n = counts.cell_count.astype(float)
    padded = np.append(values, 0.0)[counts.indices]
    weight = counts.count.astype(float)
    often = known & (n > 1)
    mean = row_sums(counts.indptr, weight * padded) / np.maximum(n, 1.0)
    spread = row_sums(counts.indptr, weight * padded**2) - n * mean**2
    squares = operator.gamma**2 * np.maximum(spread, 0.0) + _reward_squares(counts) / mass**2
    importance = np.divide(cell_distribution**2, n, out=np.zeros_like(n), where=known)
    if not importance[often].sum() > 0:
        return float("inf")
    variance = float((cell_distribution[often] ** 2 * squares[often] / (n[often] * (n[often] - 1.0))).sum())
    return float(np.sqrt(variance * importance.sum() / importance[often].sum()))


def _reward_squares(counts: Counts) -> Floats:
    """Sum of squared deviations of the rewards of each cell from their mean."""
    if counts.reward_count is None or counts.reward_m2 is None or counts.reward is None:
        return np.zeros(counts.n_cells)
    lengths = np.diff(counts.indptr)
    center = np.repeat(np.nan_to_num(counts.reward), lengths)
    between = counts.reward_count * (np.asarray(counts.reward_mean) - center) ** 2
    return row_sums(counts.indptr, counts.reward_m2 + np.where(counts.reward_count > 0, between, 0.0))


def _row_freedom(operator: EmpiricalOperator, counts: Counts, choices: Choices, judged: Judged) -> float:
    """Share of the way from rows that sum to 1 to free rows: bias^2 / (bias^2 + variance)."""
    free, _ = effective_policy(counts, choices._replace(row_freedom=1.0))
    if free is None or operator.policy is None:
        return 0.0
    elsewhere = operator.gamma * float(
        restart_distribution(counts, choices, operator.initial) @ judged.values
    )
    gain = np.where(operator.seen, judged.advantage - elsewhere, 0.0).reshape(free.shape)
    distribution = judged.cell_distribution.reshape(free.shape).sum(axis=1)
    change = distribution * ((free - operator.policy) * gain).sum(axis=1)
    squared, noise = float(change.sum()) ** 2, float((change**2).sum())
    return squared / (squared + noise) if squared > 0.0 else 0.0
