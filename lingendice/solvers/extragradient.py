"""Preconditioned extragradient with restarts: deterministic, matrix-free, linear convergence.

References
----------
G. M. Korpelevich (1976). The extragradient method for finding saddle points and other problems. Matekon 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import PolyhedralMetric
from lingendice.solvers.control import Step
from lingendice.solvers.problem import (
    Checkpoints,
    RatioProblem,
    SaddleSolver,
    certified,
    diagonal_metric,
    gap_order,
)

SAFETY = 0.9
"""Share of the longest step that the local Lipschitz constant allows."""
WORTH_RESTARTING = 0.3
"""Restart once the gap has fallen to this share of the gap at the last restart."""
FIRST_CHECK = 32
MOST_REBALANCED = 5.0
"""Factor by which a restart may change the weight of w against that of v."""


class SaddlePoint(NamedTuple):
    """A point (w, v, u), or the field F = (dJ/dw, -dJ/dv, -dJ/du) there."""

    w: Floats
    v: Floats
    u: float

    def plus(self, scale: float, other: SaddlePoint) -> SaddlePoint:
        return SaddlePoint(self.w + scale * other.w, self.v + scale * other.v, self.u + scale * other.u)


class Geometry:
    """Diagonal metric and feasible set. Cells weigh by p, so that the coupling has norm near one."""

    def __init__(self, problem: RatioProblem) -> None:
        self.problem = problem
        self.on_w = diagonal_metric(problem.features, problem.flow.p)
        self.on_v = diagonal_metric(problem.dual_features, problem.flow.p)
        if problem.dual_ridge > 0:
            # A squared norm of v fixes its metric; that of w follows from the norm of the coupling.
            self.on_v = np.full_like(self.on_v, problem.dual_ridge)
            self.on_w = self.on_w * _coupling_square(problem, self.on_w, self.on_v)
        self.on_u = 1.0 if problem.self_normalized else max(problem.penalty, 1e-12)
        limit = problem.divergence.dual_limit
        self.low = -problem.dual_box
        # Inside the domain of phi* by a margin: its slope is infinite at the very end.
        self.high = np.minimum(problem.dual_top, 0.999 * limit if math.isfinite(limit) else math.inf)
        self.top = np.where(problem.mass_row > 0, math.inf if problem.bound is None else problem.bound, 0.0)

    def rebalance(self, moved: SaddlePoint) -> None:
        """Weigh w against v, so that both move equally far from one restart to the next (half the way there,
        in logarithms, each time). A dual with a squared norm of its own keeps its metric.
        """
        on_w, on_v = float(moved.w**2 @ self.on_w), float(moved.v**2 @ self.on_v)
        if on_w > 0 and on_v > 0 and self.problem.dual_ridge == 0:
            change = min(max((on_v / on_w) ** 0.25, 1.0 / MOST_REBALANCED), MOST_REBALANCED)
            self.on_w, self.on_v = self.on_w * change, self.on_v / change

    def field(self, at: SaddlePoint) -> SaddlePoint:
        on_w, on_v, on_u = self.problem.gradients(at.w, at.v, at.u)
        if self.problem.self_normalized:
            on_w = on_w + at.u * self.problem.mass_row
            on_u = self.problem.total(at.w) - 1.0
        return SaddlePoint(on_w, -on_v, -on_u)

    def step(self, at: SaddlePoint, field: SaddlePoint, length: float) -> SaddlePoint:
        return SaddlePoint(
            np.clip(at.w - length * field.w / self.on_w, 0.0, self.top),
            np.clip(at.v - length * field.v / self.on_v, self.low, self.high),
            at.u - length * field.u / self.on_u,
        )

    def square(self, at: SaddlePoint) -> float:
        """Squared length of a difference of points."""
        return float(at.w**2 @ self.on_w + at.v**2 @ self.on_v) + at.u**2 * self.on_u

    def dual_square(self, field: SaddlePoint) -> float:
        """Squared length of a difference of fields."""
        return float(field.w**2 @ (1 / self.on_w) + field.v**2 @ (1 / self.on_v)) + field.u**2 / self.on_u


def _coupling_square(problem: RatioProblem, on_w: Floats, on_v: Floats) -> float:
    """Squared norm of the coupling of w and v in the given metrics, by a few power iterations."""
    flow = problem.flow
    w = np.random.default_rng(0).standard_normal(on_w.size)
    square = 1.0
    for _ in range(20):
        w /= math.sqrt(float(w**2 @ on_w))
        mass = problem.mass(w)
        v = np.asarray(problem.dual_features.adjoint(flow.apply_transpose(mass) - mass)) / on_v
        square = float(v**2 @ on_v)
        f = problem.dual_features.apply(v)
        w = np.asarray(problem.features.adjoint(flow.p * (flow.apply(f) - f))) / on_w
    return max(square, 1e-300)


@dataclass
class Schedule:
    """When the gap is certified next, and whether what was found is worth a restart."""

    since: int = 0
    """Steps since the last restart."""
    check: int = FIRST_CHECK
    gap: float = math.inf
    """The gap at the last restart."""

    def restarts(self, gap: float) -> bool:
        """Whether to begin anew from a point with this gap; sets the next check."""
        if gap <= WORTH_RESTARTING * self.gap or self.since >= 64 * FIRST_CHECK:
            self.gap, self.since, self.check = gap, 0, FIRST_CHECK
            return True
        self.check = self.since + max(FIRST_CHECK, self.since // 2)
        return False


def solve_extragradient(
    problem: RatioProblem, tol: float, start: tuple[Floats, Floats, float] | None = None
) -> SaddleSolver:
    """Korpelevich's method in a diagonal metric, with adaptive steps and restarts from the better of the
    last and the average point, at which w and v are weighed against each other anew.

    A step costs two gradients: O(nnz) for tabular problems, O(cells d) for dense features. The saddle
    point is sharp enough (piecewise linear-quadratic) for restarts to make the convergence linear, at a
    rate that depends on the mixing of the chain. Use it where the Newton matrix would not fit.
    """
    if isinstance(problem.divergence, PolyhedralMetric) and problem.smooth_metric is None:
        raise ValueError(
            f'{problem.divergence.name} has a constrained dual: use method="convex"'
            ", or Wasserstein(gradient_penalty=...) for the smooth stand-in"
        )
    return approach(problem, ExtragradientSteps(Geometry(problem), starting_point(problem, start)), tol)


def starting_point(problem: RatioProblem, given: tuple[Floats, Floats, float] | None) -> SaddlePoint:
    """The given point, or the problem's own start with no dual."""
    return SaddlePoint(*(given or (problem.start(), np.zeros(problem.dual_features.n_features), 0.0)))


def approach(
    problem: RatioProblem, steps: ExtragradientSteps, tol: float, most_idle: int | None = None
) -> SaddleSolver:
    """Steps, certificates and restarts until the gap is small, or ``most_idle`` checks in a row are idle."""
    n_iter, idle, schedule, checkpoints = 0, 0, Schedule(), Checkpoints()
    while True:
        steps.advance()
        n_iter, schedule.since = n_iter + 1, schedule.since + 1
        if schedule.since >= schedule.check or steps.broken:
            candidates = [
                certified(problem, *point, tol, "extragradient", n_iter) for point in steps.points()
            ]
            found = min(candidates, key=lambda outcome: gap_order(outcome.gap.value))
            idle = 0 if gap_order(found.gap.value) < 0.99 * checkpoints.gap else idle + 1
            checkpoints.note(found)
            if checkpoints.gap <= tol or steps.broken or (most_idle is not None and idle >= most_idle):
                break
            if schedule.restarts(found.gap.value):
                steps.restart(from_average=found is not candidates[0])
        if (yield Step(n_iter, checkpoints.gap)) is not None:
            break
    if checkpoints.best is None:
        checkpoints.best = certified(problem, *steps.points()[0], tol, "extragradient", n_iter)
    return checkpoints.finish(n_iter)


class ExtragradientSteps:
    """Steps of the method from a point; a restart weighs w and v against each other anew."""

    broken = False
    """Whether no step length would do any more."""

    def __init__(self, geometry: Geometry, at: SaddlePoint) -> None:
        self.geometry, self.length, self.at = geometry, 1.0, at
        self._begin()

    def _begin(self) -> None:
        self.began, self.field = self.at, self.geometry.field(self.at)
        # In double precision however the point is stored: thousands of steps are added up.
        sums = [np.zeros_like(part, dtype=np.float64) for part in (self.at.w, self.at.v)]
        self.total, self.weight = SaddlePoint(*sums, 0.0), 0.0

    def advance(self) -> None:
        """One step."""
        self.at, self.field, middle, self.length, used = _extragradient_step(
            self.geometry, self.at, self.field, self.length
        )
        self.total, self.weight = self.total.plus(used, middle), self.weight + used
        self.broken = not math.isfinite(self.length)

    def points(self) -> list[SaddlePoint]:
        """The last point and, where any step was made since the last restart, the average."""
        return [self.at, self._average()] if self.weight else [self.at]

    def restart(self, from_average: bool) -> None:
        """Begin a new average, from the present one or from the last point."""
        self.at = self._average() if from_average else self.at
        self.geometry.rebalance(self.at.plus(-1.0, self.began))
        self._begin()

    def _average(self) -> SaddlePoint:
        w, v, u = (part / self.weight for part in self.total)
        return SaddlePoint(w.astype(self.at.w.dtype), v.astype(self.at.v.dtype), u)


def _extragradient_step(
    geometry: Geometry, at: SaddlePoint, field: SaddlePoint, length: float
) -> tuple[SaddlePoint, SaddlePoint, SaddlePoint, float, float]:
    """One step; the length is cut until the field changes by no more than the step allows."""
    for _ in range(60):
        middle = geometry.step(at, field, length)
        ahead = geometry.field(middle)
        moved = geometry.square(middle.plus(-1.0, at))
        changed = geometry.dual_square(ahead.plus(-1.0, field))
        if moved == 0.0:
            return at, field, middle, length, length
        if length * length * changed <= SAFETY * SAFETY * moved:
            after = geometry.step(at, ahead, length)
            grown = length * min(
                1.2, math.sqrt(0.9 * SAFETY * SAFETY * moved / max(length**2 * changed, 1e-300)) + 0.3
            )
            return after, geometry.field(after), middle, max(grown, length), length
        ratio = math.sqrt(moved / changed) / length if math.isfinite(changed) and changed > 0 else 0.5
        length *= min(0.8, max(0.1, SAFETY * ratio))
    return at, field, at, math.nan, 1.0
