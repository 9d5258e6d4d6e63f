"""The maximum over the dual f for a given ratio: closed forms, one Cholesky, or a bounded Newton solve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import MMD, FDivergence, PolyhedralMetric, TotalVariation, Wasserstein
from lingendice.divergences.base import DualSet
from lingendice.divergences.wasserstein import differences
from lingendice.model.features import FeatureMap, MatrixFeatures, Tabular

if TYPE_CHECKING:
    from lingendice.solvers.problem import RatioProblem

NEWTON_STEPS = 60
NULL_DIRECTION = 1e-9
"""Part of the residual, relative to all of it, that may lie where the features have no weight."""


class Best(NamedTuple):
    """The best dual for given w."""

    v: Floats
    value: float
    """max over v of the part of J that depends on v, or an upper bound of it."""
    kind: str


def maximize_dual(problem: RatioProblem, w: Floats, near: Floats | None) -> Best:
    """max over v of (q - m)' Phi v - sum c excess(Phi v) - dual_ridge/2 |v|^2 within the dual box."""
    mass = problem.mass(w)
    inflow = problem.flow.inflow(mass)
    divergence = problem.divergence
    pull = np.asarray(problem.dual_features.adjoint(inflow - mass))
    if isinstance(divergence, MMD):
        return Best(pull, 0.5 * float(pull @ pull), "exact")
    if problem.smooth_metric is not None:
        return _box_newton(problem, mass, pull, _quasi_newton(problem, problem.smooth_metric, pull, near))
    tabular = isinstance(problem.dual_features, Tabular)
    if isinstance(divergence, PolyhedralMetric) or (isinstance(divergence, TotalVariation) and not tabular):
        return _linear_program(problem, pull)
    if not isinstance(divergence, FDivergence):
        raise TypeError(f"no inner maximum for {divergence.name}")
    if tabular:
        low, high, weight = -problem.dual_box, problem.dual_top, problem.weight(mass)
        f = divergence.best_dual(inflow, mass, weight, low, high)
        return Best(f, divergence.value(inflow, mass, weight, low, high), "exact")
    if divergence.quadratic:
        second = float(divergence.excess_curvature(np.zeros(1))[0])
        best = _one_cholesky(problem.dual_features.gram(second * problem.weight(mass)), pull)
        if np.all(np.abs(best.v) <= problem.dual_box):
            return best
        bounded = _box_newton(problem, mass, pull, best.v)
        return bounded._replace(value=min(bounded.value, best.value))
    return _box_newton(problem, mass, pull, near)


def weighted(weight: Floats, values: Floats) -> Floats:
    """The products, 0 where the weight is: values may be infinite there."""
    return np.multiply(weight, values, out=np.zeros_like(weight), where=weight > 0)


def _one_cholesky(hessian: Floats, pull: Floats) -> Best:
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    try:
        v = cho_solve(cho_factor(hessian, lower=True), pull)
        if np.isfinite(v).all() and np.abs(hessian @ v - pull).max() <= 1e-10 * (1e-30 + np.abs(pull).max()):
            return Best(v, 0.5 * float(pull @ v), "exact")
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(hessian)
    keep = values > values[-1] * 1e-13
    parts = vectors.T @ pull
    lost = np.linalg.norm(parts[~keep])
    v = vectors[:, keep] @ (parts[keep] / values[keep])
    unbounded = lost > NULL_DIRECTION * np.linalg.norm(parts)
    return Best(v, math.inf if unbounded else 0.5 * float(pull @ v), "exact")


def _box_newton(problem: RatioProblem, mass: Floats, pull: Floats, near: Floats | None) -> Best:
    """Projected Newton on the concave inner problem; the tangent over the box bounds the true maximum."""
    box = problem.dual_box
    v = np.zeros(box.size) if near is None else np.clip(near, -box, box)

    def value(at: Floats) -> float:
        return float(pull @ at) - problem._dual_cost(mass, problem.dual_features.apply(at), at)

    if not math.isfinite(value(v)):
        v = np.zeros(box.size)
    level = value(v)
    bound = math.inf
    for n_steps in range(NEWTON_STEPS + 1):
        slope, hessian = _slope_and_curvature(problem, mass, pull, v)
        slack = float(np.maximum(slope * (box - v), slope * (-box - v)).sum())
        bound = min(bound, level + slack)
        free = ~(((v >= box) & (slope > 0)) | ((v <= -box) & (slope < 0)))
        if slack <= 1e-15 + 1e-13 * abs(level) or not free.any() or n_steps == NEWTON_STEPS:
            break
        sub = hessian[np.ix_(free, free)]
        sub[np.diag_indices_from(sub)] += 1e-14 * (np.trace(sub) / sub.shape[0] + 1e-30)
        step = np.zeros_like(v)
        step[free] = np.linalg.lstsq(sub, slope[free], rcond=None)[0]
        for halvings in range(40):
            trial = np.clip(v + 0.5**halvings * step, -box, box)
            reached = value(trial)
            if reached > level:
                break
        else:
            break
        v, level = trial, reached
    return Best(v, bound, "bound")


def _quasi_newton(problem: RatioProblem, metric: Wasserstein, pull: Floats, near: Floats | None) -> Floats:
    """A point near the inner maximum where the curvature vanishes on whole regions: L-BFGS in the box."""
    from scipy.optimize import minimize

    box = problem.dual_box

    def loss(v: Floats) -> tuple[float, Floats]:
        cost, bend = metric.penalty(problem.dual_features.apply(v))
        return cost - float(pull @ v), np.asarray(problem.dual_features.adjoint(bend)) - pull

    start = np.zeros(box.size) if near is None else np.clip(near, -box, box)
    limits = np.column_stack([-box, box])
    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-12}
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=options).x)


def _slope_and_curvature(problem: RatioProblem, mass: Floats, pull: Floats, v: Floats) -> tuple[Floats, Any]:
    f = problem.dual_features.apply(v)
    divergence = problem.divergence
    if isinstance(divergence, FDivergence):
        weight = problem.weight(mass)
        bend = weighted(weight, divergence.excess_slope(f))
        hessian = problem.dual_features.gram(weighted(weight, divergence.excess_curvature(f)))
    else:
        assert isinstance(divergence, Wasserstein)
        bend, hessian = divergence.penalty(f)[1], _penalty_curvature(problem.dual_features, divergence, f)
    return pull - np.asarray(problem.dual_features.adjoint(bend)), hessian


def _penalty_curvature(features: FeatureMap, metric: Wasserstein, f: Floats) -> Floats:
    """Of the gradient penalty at f, over the dual coefficients."""
    rise = differences(metric.first, metric.second, f.size)
    over = np.abs(rise @ f) > metric.length
    weight = 2.0 * (metric.gradient_penalty or 0.0) / max(over.size, 1)
    moved = rise @ features.scaled(np.ones(f.size))
    return MatrixFeatures(moved).gram(over * weight / metric.length**2)


def _linear_program(problem: RatioProblem, pull: Floats) -> Best:
    """max over the polyhedral dual set, by HiGHS."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    limits = polyhedron(problem)
    phi = problem.dual_features.scaled(np.ones(problem.flow.n_cells))
    on_v = csr_array(limits.on_dual @ phi)
    extra = limits.on_extra.shape[1]
    solved = linprog(
        np.concatenate([-pull, np.zeros(extra)]),
        A_ub=hstack([on_v, limits.on_extra], format="csr"),
        b_ub=limits.limit,
        bounds=(None, None),
        method="highs",
    )
    if solved.status != 0:
        return Best(np.zeros(pull.size), math.inf, "exact")
    return Best(within_domain(problem, solved.x[: pull.size]), float(-solved.fun), "exact")


def within_domain(problem: RatioProblem, v: Floats) -> Floats:
    """v of a linear program, whose rounding may take f past the end of the domain of phi*, back inside."""
    limit = problem.divergence.dual_limit
    highest = float(np.abs(problem.dual_features.apply(v)).max(initial=0.0))
    return v * ((1.0 - 1e-15) * limit / highest) if highest >= limit else v


def polyhedron(problem: RatioProblem) -> Any:
    """The dual set of a metric with linear constraints, over cells."""
    from scipy import sparse

    n = problem.flow.n_cells
    divergence = problem.divergence
    bound = problem.given_dual_bound
    if isinstance(divergence, PolyhedralMetric):
        return divergence.dual_set(n, divergence.default_bound if bound is None else bound)
    eye = sparse.eye_array(n)
    return DualSet(
        sparse.vstack([eye, -eye], format="csr"), sparse.csr_array((2 * n, 0)), np.full(2 * n, 0.5)
    )
