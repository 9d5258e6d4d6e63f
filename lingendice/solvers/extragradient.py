"""Preconditioned extragradient with restarts: deterministic, matrix-free, linear convergence.

References
----------
G. M. Korpelevich (1976). The extragradient method for finding saddle points and other problems. Matekon 12.
"""

from __future__ import annotations

import math
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
"""Steps from a restart to the first look at the gap; each wait after it is half of all steps since then."""
MOST_STEPS = 64 * FIRST_CHECK
"""Steps after which a restart is made whatever the gap."""
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
    first = start or (problem.start(), np.zeros(problem.dual_features.n_features), 0.0)
    steps = ExtragradientSteps(Geometry(problem), SaddlePoint(*first))
    n_iter, checkpoints = 0, Checkpoints()
    since_restart, next_check, gap_at_restart = 0, FIRST_CHECK, math.inf
    while True:
        steps.advance()
        n_iter, since_restart = n_iter + 1, since_restart + 1
        if since_restart >= next_check or steps.broken:
            candidates = [
                certified(problem, *point, tol, "extragradient", n_iter) for point in steps.points()
            ]
            found = min(candidates, key=lambda outcome: gap_order(outcome.gap.value))
            checkpoints.note(found)
            if checkpoints.gap <= tol or steps.broken:
                break
            gap = found.gap.value
            if gap <= WORTH_RESTARTING * gap_at_restart or since_restart >= MOST_STEPS:
                steps.restart(from_average=found is not candidates[0])
                since_restart, next_check, gap_at_restart = 0, FIRST_CHECK, gap
            else:
                next_check = since_restart + max(FIRST_CHECK, since_restart // 2)
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
        self.total = SaddlePoint(np.zeros_like(self.at.w), np.zeros_like(self.at.v), 0.0)
        self.weight = 0.0

    def advance(self) -> None:
        """One step; its length is cut until the field changes by no more than it allows."""
        geometry, at, field = self.geometry, self.at, self.field
        for _ in range(60):
            used = self.length
            middle = geometry.step(at, field, used)
            ahead = geometry.field(middle)
            moved = geometry.square(middle.plus(-1.0, at))
            changed = geometry.dual_square(ahead.plus(-1.0, field))
            if moved == 0.0:
                break
            if used * used * changed <= SAFETY * SAFETY * moved:
                self.at = geometry.step(at, ahead, used)
                self.field = geometry.field(self.at)
                room = 0.9 * SAFETY * SAFETY * moved / max(used**2 * changed, 1e-300)
                self.length = max(used, used * min(1.2, math.sqrt(room) + 0.3))
                break
            ratio = math.sqrt(moved / changed) / used if math.isfinite(changed) and changed > 0 else 0.5
            self.length *= min(0.8, max(0.1, SAFETY * ratio))
        else:
            self.broken, middle, used = True, at, 1.0
        self.total, self.weight = self.total.plus(used, middle), self.weight + used

    def points(self) -> list[SaddlePoint]:
        """The last point and, where any step was made since the last restart, the average."""
        return [self.at, self._average()] if self.weight else [self.at]

    def restart(self, from_average: bool) -> None:
        """Begin a new average, from the present one or from the last point."""
        self.at = self._average() if from_average else self.at
        self.geometry.rebalance(self.at.plus(-1.0, self.began))
        self._begin()

    def _average(self) -> SaddlePoint:
        return SaddlePoint(*(part / self.weight for part in self.total))
