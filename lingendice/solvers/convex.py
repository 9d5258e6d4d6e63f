"""Direct solve of the convex problem behind the saddle point: interior-point Newton, or a linear program."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.checks import Floats
from lingendice.divergences import FDivergence, PolyhedralMetric, TotalVariation, Wasserstein
from lingendice.features import Tabular
from lingendice.inner import curvature, polyhedron
from lingendice.problem import RatioProblem
from lingendice.solvers.iterate import Step
from lingendice.solvers.saddle import SaddleSolver, certified

LARGEST = 3000
"""Features up to which the Newton matrix is formed."""
MOST_STEPS = 200


def solve_convex(problem: RatioProblem, tol: float) -> SaddleSolver:
    """min over w >= 0 of max over (v, u) of J, to a primal-dual gap of ``tol``.

    Smooth divergences: a primal-dual interior-point method on the saddle point itself. A step forms
    H = Phi' diag(c excess'') Phi and the coupling R (cells x d^2 operations) and factors H and
    R' H^-1 R (d^3); 10 to 25 steps whatever the conditioning. Total variation, Wasserstein-1 and Dudley:
    linear programs by HiGHS. Use it for up to a few thousand features; the number of cells matters little.
    """
    largest = max(problem.features.n_features, problem.dual_features.n_features)
    if largest > LARGEST:
        raise ValueError(
            f'method="convex" forms a matrix over {largest} features; use method="extragradient"'
        )
    divergence = problem.divergence
    if isinstance(divergence, Wasserstein) and divergence.gradient_penalty is not None:
        raise ValueError('the gradient penalty is served by method="extragradient"; leave it out for convex')
    if isinstance(divergence, (PolyhedralMetric, TotalVariation)):
        return _by_linear_programs(problem, tol)
    return _by_newton(problem, tol)


# -- smooth divergences --------------------------------------------------------------------------------


class _Point(NamedTuple):
    """Primal, dual and multipliers: z of w >= 0, y of w <= upper, u of the total mass."""

    w: Floats
    v: Floats
    u: float
    z: Floats
    y: Floats


class _Couplings:
    """What a Newton step needs of the problem, with all that does not change computed once."""

    def __init__(self, problem: RatioProblem) -> None:
        self.problem = problem
        flow, features = problem.flow, problem.features
        self.psi = (
            features.scaled(np.ones(flow.n_cells)) if isinstance(features, Tabular) else features.matrix
        )  # type: ignore[attr-defined]
        mass = features.scaled(flow.p)
        pushed = flow.push(mass if isinstance(mass, np.ndarray) else np.asarray(mass.todense()))
        self.mass = mass
        self.steady = _dense(problem.dual_features.adjoint(pushed))
        self.own = _dense(problem.dual_features.adjoint(_as_array(mass)))
        self.start = np.asarray(problem.dual_features.adjoint(flow.start))
        self.ridge = problem.ridge * _dense(features.adjoint(_as_array(mass))) if problem.ridge > 0 else None
        self.has_upper = problem.bound is not None

    def coupling(self, f: Floats) -> Floats:
        """R = Phi' (gamma T' - (1 + excess'(f))) diag(p) Psi."""
        problem = self.problem
        divergence = problem.divergence
        fixed = self.steady - self.own
        if not isinstance(divergence, FDivergence) or not divergence.weighs_by_ratio:
            return fixed
        bend = divergence.excess_slope(f)
        if isinstance(problem.dual_features, Tabular):
            return fixed - _as_array(self.mass) * bend[:, None]
        scaled = (self.mass.T * bend).T
        return fixed - _dense(problem.dual_features.adjoint(_as_array(scaled)))

    def hessian(self, mass: Floats, f: Floats) -> Floats:
        """H over the dual coefficients."""
        problem = self.problem
        weight = problem.weight(mass)
        if isinstance(problem.divergence, FDivergence):
            used = weight > 0
            weight = np.where(used, weight * np.where(used, problem.divergence.excess_curvature(f), 0.0), 0.0)
            h = (
                curvature(problem, weight)
                if weight.any()
                else np.zeros((problem.dual_features.n_features,) * 2)
            )
        else:
            h = np.zeros((problem.dual_features.n_features,) * 2)
        if problem.dual_ridge > 0:
            h[np.diag_indices_from(h)] += problem.dual_ridge
        return h


def _as_array(matrix: Any) -> Any:
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.todense())


def _dense(matrix: Any) -> Floats:
    return np.ascontiguousarray(_as_array(matrix))


def _by_newton(problem: RatioProblem, tol: float) -> SaddleSolver:
    parts = _Couplings(problem)
    w = problem.start()
    usable = problem.mass_row > 0
    if problem.bound is not None:
        w = np.minimum(w, 0.5 * problem.bound)
    w = np.where(usable, np.maximum(w, 1e-3 * w.max(initial=1e-300)), 0.0)
    n_dual = problem.dual_features.n_features
    size = max(float(np.abs(problem.residual(w)).max()), 1e-8)
    point = _Point(w, np.zeros(n_dual), 0.0, np.where(usable, size, 0.0), np.where(usable, size, 0.0))
    if not parts.has_upper:
        point = point._replace(y=np.zeros_like(w))
    best, history = None, []
    shrink = 0.1
    for n_iter in range(MOST_STEPS):
        slack = _complementarity(problem, point, usable)
        off = _residual_norm(problem, point, usable)
        hopeful = slack * usable.sum() + off <= max(30.0 * tol, 1e-13) or n_iter % 10 == 9
        if hopeful:
            outcome = certified(problem, point.w, point.v, point.u, tol, "convex", n_iter)
            history.append(outcome.gap.value)
            if best is None or outcome.gap.value < best.gap.value:
                best = outcome
            if outcome.gap.value <= tol or (len(history) > 3 and history[-1] >= 0.5 * history[-4]):
                break
        command = yield Step(n_iter, best.gap.value if best is not None else math.inf)
        if command is not None:
            break
        moved = _newton_step(parts, point, usable, shrink * slack)
        if moved is None:
            break
        point, length = moved
        shrink = 0.05 if length > 0.9 else 0.3 if length > 0.4 else 0.8
    if best is None:
        best = certified(problem, point.w, point.v, point.u, tol, "convex", n_iter)
    best.history = tuple(history)
    best.n_iter = n_iter
    return best


def _complementarity(problem: RatioProblem, point: _Point, usable: Any) -> float:
    products = point.w @ point.z
    count = int(usable.sum())
    if problem.bound is not None:
        products += (problem.bound - point.w)[usable] @ point.y[usable]
        count *= 2
    return float(products) / max(count, 1)


def _stationarity(problem: RatioProblem, point: _Point, usable: Any) -> tuple[Floats, Floats, float]:
    on_w, on_v, _ = problem.gradients(point.w, point.v, 0.0 if problem.self_normalised else point.u)
    if problem.self_normalised:
        on_w = on_w + point.u * problem.mass_row
    on_u = problem.total(point.w) - 1.0 - (0.0 if problem.self_normalised else point.u)
    return np.where(usable, on_w - point.z + point.y, 0.0), on_v, on_u


def _residual_norm(problem: RatioProblem, point: _Point, usable: Any) -> float:
    on_w, on_v, on_u = _stationarity(problem, point, usable)
    return float(np.abs(on_w).max() + np.abs(on_v).max() + abs(on_u))


def _newton_step(parts: _Couplings, point: _Point, usable: Any, target: float) -> tuple[_Point, float] | None:
    problem = parts.problem
    f = problem.dual_features.apply(point.v)
    mass = problem.mass(point.w)
    on_w, on_v, on_u = _stationarity(problem, point, usable)
    w_safe = np.where(usable, point.w, 1.0)
    barrier = point.z / w_safe
    push = target / w_safe - point.z
    if parts.has_upper:
        room = np.where(usable, problem.bound - point.w, 1.0)
        barrier = barrier + point.y / room
        push = push - (target / room - point.y)
    barrier = np.where(usable, barrier, 1.0)
    rhs_w = np.where(usable, -on_w + push, 0.0)
    solved = _solve_kkt(parts, parts.coupling(f), parts.hessian(mass, f), barrier, usable, rhs_w, on_v, on_u)
    if solved is None:
        return None
    dw, dv, du = solved
    dz = np.where(usable, (target - point.z * dw) / w_safe - point.z, 0.0)
    dy = (
        np.where(usable, (target + point.y * dw) / room - point.y, 0.0)
        if parts.has_upper
        else np.zeros_like(dw)
    )
    longest = min(_to_boundary(point.w, dw), _to_boundary(point.z, dz))
    if parts.has_upper:
        longest = min(longest, _to_boundary(room, np.where(usable, -dw, 0.0)), _to_boundary(point.y, dy))
    limit = problem.divergence.dual_limit
    if math.isfinite(limit):
        longest = min(longest, _to_boundary(limit - f, -problem.dual_features.apply(dv)))
    length = min(1.0, 0.995 * longest)
    before = _merit(problem, point, usable, target)
    for _ in range(12):
        trial = _Point(
            point.w + length * dw, point.v + length * dv, point.u + length * du,
            point.z + length * dz, point.y + length * dy,
        )  # fmt: skip
        after = _merit(problem, trial, usable, target)
        if after <= (1.0 - 0.01 * length) * before or after <= 1e-14:
            return trial, length
        length *= 0.5
    return (trial, length) if math.isfinite(after) else None


def _merit(problem: RatioProblem, point: _Point, usable: Any, target: float) -> float:
    on_w, on_v, on_u = _stationarity(problem, point, usable)
    off = np.where(usable, point.w * point.z - target, 0.0)
    total = on_w @ on_w + on_v @ on_v + on_u * on_u + off @ off
    if problem.bound is not None:
        above = np.where(usable, (problem.bound - point.w) * point.y - target, 0.0)
        total += above @ above
    return math.sqrt(total)


def _to_boundary(value: Floats, change: Floats) -> float:
    falling = change < 0
    return float((value[falling] / -change[falling]).min(initial=np.inf))


def _solve_kkt(
    parts: _Couplings,
    r: Floats,
    h: Floats,
    barrier: Floats,
    usable: Any,
    rhs_w: Floats,
    on_v: Floats,
    on_u: float,
) -> tuple[Floats, Floats, float] | None:
    """Solve the Newton system [W R' a; R -H 0; a' 0 -k] by two Cholesky factors, W + R' H^-1 R the second."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

    problem = parts.problem
    row = np.where(usable, problem.mass_row, 0.0)
    r = r * usable
    trace = float(np.trace(h)) / h.shape[0]
    floor = 1e-14 * trace if trace > 0 else 1e-10 * max(float(np.abs(r).max()), 1e-30)
    h[np.diag_indices_from(h)] += floor
    scale = 1.0 if problem.self_normalised else problem.penalty
    try:
        factor, _ = cho_factor(h, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(factor, r, lower=True, check_finite=False)
        half_v = solve_triangular(factor, on_v, lower=True, check_finite=False)
        schur = half.T @ half
        schur[np.diag_indices_from(schur)] += barrier
        if parts.ridge is not None:
            schur += parts.ridge * usable * usable[:, None]
        if not problem.self_normalised:
            schur += scale * np.outer(row, row)
            rhs = rhs_w - half.T @ half_v - scale * row * on_u
        else:
            rhs = rhs_w - half.T @ half_v
        second = cho_factor(schur, lower=True, overwrite_a=True, check_finite=False)
        dw = cho_solve(second, rhs, check_finite=False)
        du = 0.0
        if problem.self_normalised:
            across = cho_solve(second, row, check_finite=False)
            du = float((row @ dw + on_u) / (row @ across))
            dw = dw - du * across
        else:
            du = float(row @ dw) + on_u
        dv = solve_triangular(factor, half @ dw + half_v, lower=True, trans="T", check_finite=False)
    except (LinAlgError, ValueError):
        return None
    if not (np.isfinite(dw).all() and np.isfinite(dv).all()):
        return None
    return np.where(usable, dw, 0.0), dv, du


# -- polyhedral divergences ----------------------------------------------------------------------------


def _by_linear_programs(problem: RatioProblem, tol: float) -> SaddleSolver:
    """Fix the total mass at s, solve the linear program, and minimise its value plus penalty over s.

    value(s) is convex with the multiplier of N = s as its slope: each program adds a cut, and the best s
    under the cuts is where the next one is solved. Where the residual can vanish the first program ends it.
    """
    cuts: list[_Cut] = []
    best, level, history = None, 1.0, []
    for n_iter in range(1, MOST_STEPS):
        solved = _linear_program(problem, level)
        if solved is None:
            break
        w, cut = solved
        cuts.append(cut)
        following, v = _best_level(cuts, problem.penalty)
        if problem.self_normalised:
            v = cut.v
        outcome = certified(problem, w, v, following - 1.0, tol, "convex", n_iter)
        history.append(outcome.gap.value)
        if best is None or outcome.gap.value < best.gap.value:
            best = outcome
        command = yield Step(n_iter, best.gap.value)
        if best.gap.value <= tol or problem.self_normalised or command is not None:
            break
        if abs(following - level) < 1e-15:
            break
        level = following
    if best is None:
        yield Step(0, math.inf)
        zero = np.zeros(problem.dual_features.n_features)
        best = certified(problem, problem.start(), zero, 0.0, tol, "convex", 0)
    best.history = tuple(history)
    best.n_iter = len(history)
    return best


class _Cut(NamedTuple):
    """value(s) >= value + slope (s - level), proven by the dual v."""

    level: float
    value: float
    slope: float
    v: Floats


def _best_level(cuts: list[_Cut], penalty: float) -> tuple[float, Floats]:
    """argmin over s of max over cuts + penalty/2 (s - 1)^2 (every corner is tried), and the dual that proves it.

    At a corner that dual is the mixture of two cuts whose slope balances the penalty's.
    """
    at, value, slope = (np.array([cut[k] for cut in cuts]) for k in range(3))
    offset = value - slope * at
    corners = [(1.0 - slope[i] / penalty, i, i) for i in range(len(cuts))] if penalty > 0 else []
    corners += [(at[i], i, i) for i in range(len(cuts)) if penalty == 0]
    for i in range(len(cuts)):
        for j in range(i):
            if slope[i] != slope[j]:
                corners.append(((offset[j] - offset[i]) / (slope[i] - slope[j]), i, j))
    levels = np.maximum(np.array([corner[0] for corner in corners]), 1e-9)
    heights = (offset + slope * levels[:, None]).max(axis=1) + 0.5 * penalty * (levels - 1.0) ** 2
    best = int(np.argmin(heights))
    level, (_, i, j) = float(levels[best]), corners[best]
    if i == j:
        return level, cuts[i].v
    share = float(np.clip((-penalty * (level - 1.0) - slope[j]) / (slope[i] - slope[j]), 0.0, 1.0))
    return level, share * cuts[i].v + (1.0 - share) * cuts[j].v


def _linear_program(problem: RatioProblem, level: float) -> tuple[Floats, _Cut] | None:
    """min over w, y >= 0 of limit' y with B' y = q - m seen through Phi, E' y = 0, N = level."""
    from scipy import sparse
    from scipy.optimize import linprog

    limits = polyhedron(problem)
    flow = problem.flow
    mass = _as_array(problem.features.scaled(flow.p))
    moved = flow.push(mass) - mass
    on_w = sparse.csr_array(problem.dual_features.adjoint(moved))
    on_y = sparse.csr_array(problem.dual_features.adjoint(_as_array(limits.on_dual.T)))
    extra = limits.on_extra.T
    n_w, n_y = on_w.shape[1], limits.limit.size
    equal = sparse.vstack(
        [
            sparse.hstack([-on_w, on_y]),
            sparse.hstack([sparse.csr_array((extra.shape[0], n_w)), extra]),
            sparse.hstack([sparse.csr_array(problem.mass_row[None, :]), sparse.csr_array((1, n_y))]),
        ],
        format="csr",
    )
    right = np.concatenate(
        [problem.dual_features.adjoint(flow.start), np.zeros(extra.shape[0]), [level - flow.mass_offset]]
    )
    top = problem.bound
    bounds = [(0.0, top)] * n_w + [(0.0, None)] * n_y
    cost = np.concatenate([np.zeros(n_w), limits.limit])
    solved = linprog(cost, A_eq=equal, b_eq=right, bounds=bounds, method="highs")
    if solved.status != 0:
        return None
    marginals = solved.eqlin.marginals
    v = marginals[: problem.dual_features.n_features]
    return solved.x[:n_w], _Cut(level, float(solved.fun), float(marginals[-1]), v)
