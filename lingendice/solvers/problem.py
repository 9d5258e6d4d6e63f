"""The saddle point of GenDICE over linear tau and linear f, with its exact primal-dual gap.

With tau = Psi w, f = Phi v, m = p tau the mass, q the inflow, c the weight of the excess (m, or p) and N
the total mass of tau:

    J(w, v, u) = (q - m)' f - sum_x c(x) excess(f(x)) - dual_ridge/2 |v|^2
                 + penalty (u (N - 1) - u^2 / 2) + ridge/2 sum_x p(x) (tau(x) - center)^2

to be minimized over w >= 0 and maximized over v and u. J is convex in w, concave in (v, u).

References
----------
R. Zhang, B. Dai, L. Li, D. Schuurmans (2020). GenDICE: Generalized offline estimation of stationary values.
    ICLR.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import (
    MMD,
    Divergence,
    FDivergence,
    PolyhedralMetric,
    TotalVariation,
    Wasserstein,
    read_divergence,
)
from lingendice.model.features import FeatureMap, MatrixFeatures, Tabular, orthonormalized
from lingendice.model.operator import Flow
from lingendice.solvers.control import Controls, Outcome, Step, Stop, run
from lingendice.solvers.dual_maximum import Best, maximize_dual


class Gap(NamedTuple):
    """max over (v, u) of J(w, ., .) minus min over w of J(., v, u): bounds the distance to the optimum."""

    primal: float
    """The objective of w: max over the dual."""
    dual: float
    """min over w for the best dual known: a lower bound on the optimum."""
    kind: str
    """"exact", or "bound" where the inner maximum is known only up to a bound."""

    @property
    def value(self) -> float:
        """primal - dual."""
        return self.primal - self.dual


@dataclass(frozen=True, eq=False)
class RatioProblem:
    """GenDICE's problem for given features, divergence, penalty, ridge and normalization.

    ``normalize="penalty"`` is the paper's; ``"self"`` divides tau by its total mass, which is the same as
    imposing N = 1. ``bound`` is the paper's C: 0 <= w <= C and |v| <= C. Without it w is bounded by what
    the objective at the start implies, which excludes no optimum.
    """

    flow: Flow
    features: FeatureMap
    dual_features: FeatureMap
    divergence: Divergence
    penalty: float = 1.0
    ridge: float = 0.0
    normalize: str = "penalty"
    bound: float | None = None
    dual_bound: float | None = None
    dual_ridge: float = 0.0

    @classmethod
    def build(
        cls,
        flow: Flow,
        features: FeatureMap | None = None,
        dual_features: FeatureMap | None = None,
        divergence: Any = "chi2",
        **choices: Any,
    ) -> RatioProblem:
        """Read the divergence for this flow; MMD brings its own dual features (its kernel)."""
        features = features or Tabular(flow.n_cells)
        read = read_divergence(divergence, flow)
        if isinstance(read, MMD):
            if dual_features is not None and not isinstance(dual_features, Tabular):
                raise ValueError(
                    "MMD's dual is its kernel; leave dual_features out, or take nystroem features with chi2"
                )
            return cls(flow, features, MatrixFeatures(read.root()), read, dual_ridge=1.0, **choices)
        return cls(flow, features, dual_features or Tabular(flow.n_cells), read, **choices)

    def with_orthonormal_dual(self) -> tuple[RatioProblem, Floats | None]:
        """The same problem with dual features that are orthonormal under p, and the matrix that takes its
        dual coefficients back; the problem itself and None where no such basis may be taken.

        A bound on |v| belongs to the basis that was given: in another one it would be another problem, and
        the gap would certify that one. Only a dual without such a bound may change its basis.
        """
        basis, dual = self.dual_features, self.divergence
        # What these constrain is f itself, in whatever basis.
        bounds_values = isinstance(dual, (PolyhedralMetric, TotalVariation))
        bounds_coefficients = not bounds_values and bool(np.isfinite(self.dual_box).any())
        if not isinstance(basis, MatrixFeatures) or isinstance(dual, MMD) or bounds_coefficients:
            return self, None
        found, back = orthonormalized(basis, self.flow.p)
        return replace(self, dual_features=found), back

    # -- parts -----------------------------------------------------------------------------------------

    @property
    def self_normalized(self) -> bool:
        """Whether the total mass is imposed instead of penalized."""
        return self.normalize == "self"

    @property
    def price(self) -> float:
        """Weight of (N - 1)^2 / 2: 0 where N = 1 is imposed."""
        return 0.0 if self.self_normalized else self.penalty

    @property
    def smooth_metric(self) -> Wasserstein | None:
        """The divergence, where it is a metric whose constraint a gradient penalty stands in for."""
        metric = self.divergence
        return metric if isinstance(metric, Wasserstein) and metric.gradient_penalty is not None else None

    @property
    def given_dual_bound(self) -> float | None:
        """The bound on |v| that was asked for."""
        return self.bound if self.dual_bound is None else self.dual_bound

    @cached_property
    def mass_row(self) -> Floats:
        """a with N = a' w + offset."""
        return self.features.adjoint(self.flow.p * self.flow.mass_weight)  # type: ignore[no-any-return]

    def mass(self, w: Floats) -> Floats:
        """m = p tau."""
        return self.flow.p * self.features.apply(w)

    def total(self, w: Floats) -> float:
        """N: the total mass of tau, unseen and terminal cells counted in."""
        return float(self.mass_row @ w) + self.flow.mass_offset

    def residual(self, w: Floats) -> Floats:
        """q - m over cells."""
        mass = self.mass(w)
        return self.flow.inflow(mass) - mass

    def weight(self, mass: Floats) -> Floats:
        """c: what weighs the excess of each cell, for an f-divergence."""
        return mass if self.divergence.weighs_by_ratio else self.flow.p  # type: ignore[attr-defined, no-any-return]

    @cached_property
    def dual_box(self) -> Floats:
        """Bound on each |v|; inf where the maximum needs none."""
        bound = self.given_dual_bound
        given = self.divergence.default_bound if bound is None else bound
        if isinstance(self.divergence, (MMD, TotalVariation)):
            given = self.divergence.default_bound
        if isinstance(self.divergence, PolyhedralMetric) and not isinstance(self.dual_features, Tabular):
            given = math.inf
        return np.full(self.dual_features.n_features, float(given))

    @cached_property
    def dual_top(self) -> Floats:
        """Upper end of the box of v: the domain of phi* ends there for tabular f."""
        if isinstance(self.dual_features, Tabular):
            return np.minimum(self.dual_box, self.divergence.dual_limit)
        return self.dual_box

    def start(self) -> Floats:
        """w with every entry equal and N = 1 (or as near as the bound allows): the least biased start."""
        scale = (1.0 - self.flow.mass_offset) / float(self.mass_row.sum())
        w = np.full(self.features.n_features, scale)
        if isinstance(self.features, Tabular):
            w[~self.flow.seen] = 0.0
        return w if self.bound is None else np.minimum(w, self.bound)

    @property
    def unsolvable(self) -> Stop | None:
        """Why no steps can solve the problem: no w within the bound has mass 1, or the start has no value."""
        if self.bound is None:
            return None if math.isfinite(self.largest_mass) else Stop.UNBOUNDED
        most = self.bound * float(self.mass_row.sum()) + self.flow.mass_offset
        return None if most >= 1.0 - 1e-12 else Stop.BOUND

    @cached_property
    def largest_mass(self) -> float:
        """A total mass that no optimum exceeds: J >= penalty/2 (N - 1)^2, and the start does no worse."""
        if self.self_normalized:
            return 1.0
        start = self.start()
        worst = self.primal(start)
        if not math.isfinite(worst):
            return math.inf
        bounds = [math.inf]
        if self.penalty > 0:
            bounds.append(1.0 + math.sqrt(2.0 * worst / self.penalty))
        if self.ridge > 0:
            bounds.append(
                float(self.flow.mass_weight.max()) * (1.0 + math.sqrt(2.0 * worst / self.ridge))
                + self.flow.mass_offset
            )
        return min(bounds)

    @cached_property
    def upper(self) -> Floats:
        """Upper end of the box of w."""
        if self.bound is not None:
            return np.full(self.features.n_features, float(self.bound))
        top = self.largest_mass - self.flow.mass_offset
        return np.divide(top, self.mass_row, out=np.zeros_like(self.mass_row), where=self.mass_row > 0)

    # -- objective -------------------------------------------------------------------------------------

    def objective(self, w: Floats, v: Floats, u: float) -> float:
        """J(w, v, u)."""
        mass, f = self.mass(w), self.dual_features.apply(v)
        coupled = float((self.flow.inflow(mass) - mass) @ f)
        rest = self.price * (u * (self.total(w) - 1.0) - 0.5 * u * u)
        return coupled - self._dual_cost(mass, f, v) + rest + self._ridge_value(w)

    def gradients(self, w: Floats, v: Floats, u: float) -> tuple[Floats, Floats, float]:
        """Gradients of J in w, v and u."""
        tau, f = self.features.apply(w), self.dual_features.apply(v)
        mass = self.flow.p * tau
        to_tau = self.flow.apply(f) - f
        to_f = self.flow.inflow(mass) - mass
        if isinstance(self.divergence, FDivergence):
            if self.divergence.weighs_by_ratio:
                to_tau = to_tau - self.divergence.excess(f)
            to_f = to_f - self.weight(mass) * self.divergence.excess_slope(f)
        elif self.smooth_metric is not None:
            to_f = to_f - self.smooth_metric.penalty(f)[1]
        if self.ridge > 0:
            to_tau = to_tau + self.ridge * (tau - 1.0)
        if self.price > 0:
            to_tau = to_tau + self.price * u * self.flow.mass_weight
        on_w = self.features.adjoint(self.flow.p * to_tau)
        on_v = self.dual_features.adjoint(to_f) - self.dual_ridge * v
        return on_w, on_v, self.penalty * (self.total(w) - 1.0 - u)

    def _dual_cost(self, mass: Floats, f: Floats, v: Floats) -> float:
        cost = 0.5 * self.dual_ridge * float(v @ v)
        if isinstance(self.divergence, FDivergence):
            weight = self.weight(mass)
            used = weight > 0
            cost += float(weight[used] @ self.divergence.excess(f[used]))
        elif self.smooth_metric is not None:
            cost += self.smooth_metric.penalty(f)[0]
        return cost

    def _ridge_value(self, w: Floats) -> float:
        if self.ridge == 0.0:
            return 0.0
        return 0.5 * self.ridge * float(self.flow.p @ (self.features.apply(w) - 1.0) ** 2)

    def _multiplier_value(self, w: Floats) -> float:
        return 0.5 * self.price * (self.total(w) - 1.0) ** 2

    # -- certificate -----------------------------------------------------------------------------------

    def best_dual(self, w: Floats, near: Floats | None = None) -> Best:
        """Maximize J over v. Tabular f: closed form, O(nnz). Linear f and a square excess: one Cholesky."""
        return maximize_dual(self, w, near)

    def primal(self, w: Floats) -> float:
        """max over (v, u) of J(w, v, u)."""
        return self.best_dual(w).value + self._multiplier_value(w) + self._ridge_value(w)

    def dual(self, w: Floats, v: Floats, u: float) -> float:
        """min of J(., v, u) over the feasible w; with a ridge a lower bound that is exact at the optimum.

        Over the box 0 <= w <= bound, or without a bound over w >= 0 with the total mass at most
        ``largest_mass`` (equal to 1 where self-normalized), which no optimum leaves.
        """
        slope, _, _ = self.gradients(w, v, u)
        # J(., v, u) is linear but for the ridge, and convex with it: the tangent at w is a lower bound.
        level = self.objective(w, v, u) - float(slope @ w)
        if self.bound is not None and not self.self_normalized:
            return level + float(np.minimum(slope, 0.0) @ self.upper)
        usable = self.mass_row > 0
        if self.bound is not None:
            return level + self._cheapest(slope[usable], self.mass_row[usable])
        steepest = float((slope[usable] / self.mass_row[usable]).min())
        room = self.largest_mass - self.flow.mass_offset
        return level + room * (steepest if self.self_normalized else min(0.0, steepest))

    def _cheapest(self, slope: Floats, mass: Floats) -> float:
        """min of slope' w over 0 <= w <= bound with total mass 1: the box is filled from the least price."""
        order = np.argsort(slope / mass)
        full = float(self.bound or 0.0) * mass[order]
        filled = np.minimum(np.cumsum(full), 1.0 - self.flow.mass_offset)
        return float(np.diff(filled, prepend=0.0) @ (slope / mass)[order])

    def best_gap(self, w: Floats, v: Floats, u: float) -> tuple[Gap, Floats, float]:
        """The smaller gap of (w, v, u) and of w with its own best dual, and that dual."""
        if self.self_normalized:
            w = self.rescaled(w)
        best = self.best_dual(w, v)
        primal = best.value + self._multiplier_value(w) + self._ridge_value(w)
        given = self.dual(w, v, u)
        if np.isfinite(best.v).all():
            multiplier = self.total(w) - 1.0
            other = self.dual(w, best.v, multiplier)
            if other > given:
                return Gap(primal, other, best.kind), best.v, multiplier
        return Gap(primal, given, best.kind), v, u

    def rescaled(self, w: Floats) -> Floats:
        """w scaled to total mass 1, or moved toward the top of its box where scaling would leave it."""
        held, wanted = float(self.mass_row @ w), 1.0 - self.flow.mass_offset
        if not held > 0.0:
            return self.start()
        if self.bound is None or held >= wanted:
            return w * (wanted / held)
        room = self.bound - w
        share = (wanted - held) / max(
            float(self.mass_row @ room), wanted - held
        )  # 1 if the bound is too small
        return w + share * room


@dataclass(kw_only=True)
class SaddleOutcome(Outcome):
    """A point of the saddle problem and its primal-dual gap; ``distribution`` is the mass p tau over
    cells."""

    w: Floats
    v: Floats
    u: float
    gap: Gap
    trace: tuple[tuple[int, float], ...] = ()
    """(steps, gap) at every checkpoint."""


class SaddleFit(NamedTuple):
    """A saddle-point problem and the point found for it."""

    problem: RatioProblem
    outcome: SaddleOutcome
    back: Floats | None
    """The matrix that takes dual coefficients back to the user's features; None where they are the same."""


def gap_order(gap: float) -> float:
    """The gap for comparisons: what is not finite comes last."""
    return gap if math.isfinite(gap) else math.inf


class Checkpoints:
    """The best point so far, and the gap at every checkpoint."""

    def __init__(self) -> None:
        self.best: SaddleOutcome | None = None
        self.trace: list[tuple[int, float]] = []

    @property
    def gap(self) -> float:
        """The least gap so far; inf before the first checkpoint."""
        return math.inf if self.best is None else self.best.gap.value

    def note(self, found: SaddleOutcome) -> None:
        """Take in a certified point; one that is not finite never replaces another."""
        self.trace.append((found.n_iter, found.gap.value))
        if self.best is None or gap_order(found.gap.value) < gap_order(self.gap):
            self.best = found

    def finish(self, n_iter: int) -> SaddleOutcome:
        """The best point, with the whole trace."""
        assert self.best is not None
        self.best.n_iter, self.best.trace = n_iter, tuple(self.trace)
        self.best.history = tuple(gap for _, gap in self.trace)
        return self.best


SaddleSolver = Generator[Step, "Stop | None", SaddleOutcome]


def certified(
    problem: RatioProblem, w: Floats, v: Floats, u: float, tol: float, method: str, n_iter: int
) -> SaddleOutcome:
    """Clean a point (w >= 0, N = 1 where self-normalized) and evaluate its gap."""
    w = np.clip(w, 0.0, problem.bound)
    if problem.self_normalized:
        w = problem.rescaled(w)
    if np.isfinite(w).all() and np.isfinite(v).all() and math.isfinite(u):
        gap, v, u = problem.best_gap(w, v, u)
    else:
        gap = Gap(math.nan, math.nan, "bound")
    mass = problem.mass(w)
    return SaddleOutcome(
        distribution=mass,
        method=method,
        reason="",
        converged=gap.value <= tol,
        n_iter=n_iter,
        error=gap.value,
        error_kind="bound",
        residual=float(np.abs(problem.residual(w)).sum()),
        w=w,
        v=v,
        u=u,
        gap=gap,
    )


def without_steps(problem: RatioProblem, tol: float, method: str) -> SaddleOutcome:
    """The starting point, for a problem that no steps can solve."""
    zero = np.zeros(problem.dual_features.n_features)
    outcome = certified(problem, problem.start(), zero, 0.0, tol, method, 0)
    if problem.unsolvable is not None:
        outcome.converged, outcome.stopped = False, problem.unsolvable
    return outcome


def run_saddle(solver: SaddleSolver, controls: Controls) -> SaddleOutcome:
    """Drive a solver of the saddle point; an end without a small gap states its reason."""
    # A solver of saddle points returns more than the outer loop knows of.
    return with_reason(run(solver, controls))  # type: ignore[arg-type]


def with_reason(outcome: SaddleOutcome) -> SaddleOutcome:
    """An outcome that says why it ended where its gap is not small."""
    if outcome.converged:
        outcome.stopped = None
    elif math.isnan(outcome.gap.value):
        outcome.stopped = Stop.NOT_FINITE
    elif outcome.stopped is None:
        outcome.stopped = Stop.UNBOUNDED if math.isinf(outcome.gap.primal) else Stop.GAP
    return outcome


def diagonal_metric(features: FeatureMap, p: Floats) -> Floats:
    """E_p of each squared feature (1 where it is 0): lengths in which the coupling has norm near one."""
    diagonal = features.squares(p)
    return np.where(diagonal > 0, diagonal, 1.0)
