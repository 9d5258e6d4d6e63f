"""Direct solve of the convex problem behind the saddle point: interior-point Newton, or a linear program.

References
----------
S. Mehrotra (1992). On the implementation of a primal-dual interior point method. SIAM Journal on Optimization
    2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import FDivergence, PolyhedralMetric, TotalVariation
from lingendice.solvers.control import Step
from lingendice.solvers.dual_maximum import polyhedron, weighted, within_domain
from lingendice.solvers.problem import Checkpoints, RatioProblem, SaddleSolver, certified

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
    if problem.smooth_metric is not None:
        raise ValueError('the gradient penalty is served by method="extragradient"; leave it out for convex')
    if isinstance(problem.divergence, (PolyhedralMetric, TotalVariation)):
        return _by_linear_programs(problem, tol)
    return _by_newton(problem, tol)


# -- smooth divergences --------------------------------------------------------------------------------


class _Point(NamedTuple):
    """Primal, dual and multipliers: z of w >= 0, y of w <= upper, u of the total mass, and those of the box
    of v.
    """

    w: Floats
    v: Floats
    u: float
    z: Floats
    y: Floats
    below: Floats
    above: Floats


class _Couplings:
    """What a Newton step needs of the problem, with all that does not change computed once."""

    def __init__(self, problem: RatioProblem) -> None:
        self.problem = problem
        flow, features = problem.flow, problem.features
        self.mass = features.scaled(flow.p)
        mass = _as_array(self.mass)
        self.fixed = _dense(problem.dual_features.adjoint(flow.apply_transpose(mass) - mass))
        self.ridge = problem.ridge * features.gram(flow.p) if problem.ridge > 0 else None
        self.has_upper = problem.bound is not None
        self.has_box = bool(np.isfinite(problem.dual_box).all())

    def coupling(self, f: Floats) -> Floats:
        """R = Phi' (gamma T' - (1 + excess'(f))) diag(p) Psi."""
        problem = self.problem
        divergence = problem.divergence
        if not isinstance(divergence, FDivergence) or not divergence.weighs_by_ratio:
            return self.fixed
        return self.fixed - _dense(problem.dual_features.scaled(divergence.excess_slope(f)).T @ self.mass)

    def hessian(self, mass: Floats, f: Floats) -> Floats:
        """H over the dual coefficients; a divergence without excess has a norm of its own there."""
        problem = self.problem
        if not isinstance(problem.divergence, FDivergence):
            return problem.dual_ridge * np.eye(problem.dual_features.n_features)
        bend = weighted(problem.weight(mass), problem.divergence.excess_curvature(f))
        return problem.dual_features.gram(bend)


def _as_array(matrix: Any) -> Any:
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.todense())


def _dense(matrix: Any) -> Floats:
    return np.ascontiguousarray(_as_array(matrix))


def _by_newton(problem: RatioProblem, tol: float) -> SaddleSolver:
    state, checkpoints = _Newton(_Couplings(problem)), Checkpoints()
    for n_iter in range(MOST_STEPS):
        hopeful = state.slack() * state.usable.sum() + state.off() <= max(10.0 * tol, 1e-13)
        if hopeful or n_iter % 20 == 19:
            checkpoints.note(certified(problem, *state.point[:3], tol, "convex", n_iter))
            gaps = [gap for _, gap in checkpoints.trace]
            if checkpoints.gap <= tol or (len(gaps) > 3 and gaps[-1] >= 0.5 * gaps[-4]):
                break
        command = yield Step(n_iter, checkpoints.gap)
        if command is not None or not state.step():
            break
    if checkpoints.best is None:
        checkpoints.note(certified(problem, *state.point[:3], tol, "convex", n_iter))
    return checkpoints.finish(n_iter)


class _Newton:
    """Predictor-corrector steps on the optimality conditions, with the residuals at the point kept."""

    def __init__(self, parts: _Couplings) -> None:
        problem = parts.problem
        self.parts, self.problem = parts, problem
        self.usable = problem.mass_row > 0
        w = problem.start()
        if problem.bound is not None:
            w = np.minimum(w, 0.5 * problem.bound)
        w = np.where(self.usable, np.maximum(w, 1e-3 * w.max(initial=1e-300)), 0.0)
        # Multipliers whose products with w are alike and add up to about the objective at the start: with
        # smaller ones the first steps end at the boundary soon after they began.
        product = max(_distance(problem, w), 1e-8) / max(int(self.usable.sum()), 1)
        z = np.where(self.usable, product / np.where(self.usable, w, 1.0), 0.0)
        y = np.zeros_like(w)
        if problem.bound is not None:
            y = np.where(self.usable, product / np.where(self.usable, problem.bound - w, 1.0), 0.0)
        v = np.zeros(problem.dual_features.n_features)
        side = product / problem.dual_box  # 0 where there is no box
        self.point = _Point(w, v, 0.0, z, y, side, side)
        self.residuals = self._residuals(self.point)

    def slack(self) -> float:
        """Mean complementarity: the barrier weight that the point stands for."""
        return self._slack(self.point)

    def off(self) -> float:
        """How far the optimality conditions are from holding."""
        on_w, on_v, on_u = self.residuals
        return float(np.abs(on_w).max() + np.abs(on_v).max() + abs(on_u))

    def _slack(self, point: _Point) -> float:
        products, count = float(point.w @ point.z), int(self.usable.sum())
        if self.problem.bound is not None:
            products += float(self._room(point)[self.usable] @ point.y[self.usable])
            count *= 2
        if self.parts.has_box:
            under, over = self._sides(point)
            products += float(under @ point.below + over @ point.above)
            count += 2 * point.v.size
        return products / max(count, 1)

    def _room(self, point: _Point) -> Floats:
        return np.where(self.usable, (self.problem.bound or 0.0) - point.w, 1.0)

    def _sides(self, point: _Point) -> tuple[Floats, Floats]:
        """Distances of v to the two sides of its box."""
        return point.v + self.problem.dual_box, self.problem.dual_box - point.v

    def _residuals(self, point: _Point) -> tuple[Floats, Floats, float]:
        problem = self.problem
        on_w, on_v, _ = problem.gradients(point.w, point.v, 0.0 if problem.self_normalized else point.u)
        if problem.self_normalized:
            on_w = on_w + point.u * problem.mass_row
        on_u = problem.total(point.w) - 1.0 - (0.0 if problem.self_normalized else point.u)
        return np.where(self.usable, on_w - point.z + point.y, 0.0), on_v + point.below - point.above, on_u

    def step(self) -> bool:
        """Predict with no barrier, see how far that leads, and correct with the barrier that deserves."""
        point, usable, parts = self.point, self.usable, self.parts
        f = self.problem.dual_features.apply(point.v)
        w_safe, room = np.where(usable, point.w, 1.0), self._room(point)
        barrier = point.z / w_safe + (point.y / room if parts.has_upper else 0.0)
        barrier = np.where(usable, barrier, 1.0)
        hessian = parts.hessian(self.problem.mass(point.w), f)
        under, over = self._sides(point)
        if parts.has_box:
            hessian[np.diag_indices_from(hessian)] += point.below / under + point.above / over
        kkt = _factor_kkt(parts, parts.coupling(f), hessian, barrier, usable)
        if kkt is None:
            return False

        def direction(
            target: Floats | float,
            target_above: Floats | float,
            at_box: tuple[Floats | float, Floats | float],
        ) -> _Point:
            push = target / w_safe - point.z
            if parts.has_upper:
                push = push - (target_above / room - point.y)
            inward = (at_box[0] / under - point.below) - (at_box[1] / over - point.above)
            on_w, on_v, on_u = self.residuals
            dw, dv, du = kkt(np.where(usable, push - on_w, 0.0), on_v + inward, on_u)
            dz = np.where(usable, (target - point.z * dw) / w_safe - point.z, 0.0)
            dy = np.zeros_like(dw)
            if parts.has_upper:
                dy = np.where(usable, (target_above + point.y * dw) / room - point.y, 0.0)
            below = (at_box[0] - point.below * dv) / under - point.below
            above = (at_box[1] + point.above * dv) / over - point.above
            return _Point(dw, dv, du, dz, dy, below, above)

        now = self.slack()
        ahead = direction(0.0, 0.0, (0.0, 0.0))
        length = min(1.0, self._longest(ahead, f))
        after = max(self._slack(_move(point, ahead, length)), 0.0)
        target = now * max((after / now) ** 3 if now > 0 else 0.0, 1e-4)
        at_box = (
            (target - ahead.v * ahead.below, target + ahead.v * ahead.above) if parts.has_box else (0.0, 0.0)
        )
        final = direction(target - ahead.w * ahead.z, target + ahead.w * ahead.y, at_box)
        if not all(np.isfinite(part).all() for part in final):
            return False
        return self._advance(final, f, target)

    def _longest(self, change: _Point, f: Floats) -> float:
        longest = min(_to_boundary(self.point.w, change.w), _to_boundary(self.point.z, change.z))
        if self.parts.has_upper:
            down = np.where(self.usable, -change.w, 0.0)
            longest = min(longest, _to_boundary(self._room(self.point), down))
            longest = min(longest, _to_boundary(self.point.y, change.y))
        if self.parts.has_box:
            for side, by in zip(self._sides(self.point), (change.v, -change.v), strict=True):
                longest = min(longest, _to_boundary(side, by))
            longest = min(longest, _to_boundary(self.point.below, change.below))
            longest = min(longest, _to_boundary(self.point.above, change.above))
        limit = self.problem.divergence.dual_limit
        if math.isfinite(limit):
            longest = min(longest, _to_boundary(limit - f, -self.problem.dual_features.apply(change.v)))
        return longest

    def _advance(self, change: _Point, f: Floats, target: float) -> bool:
        """Move as far as the boundary allows, and less while the conditions get worse."""
        length = min(1.0, 0.995 * self._longest(change, f))
        before = self._merit(self.point, self.residuals, target)
        for _ in range(12):
            trial = _move(self.point, change, length)
            residuals = self._residuals(trial)
            after = self._merit(trial, residuals, target)
            if after <= (1.0 - 0.01 * length) * before or after <= 1e-14:
                break
            length *= 0.5
        if not math.isfinite(after):
            return False
        self.point, self.residuals = trial, residuals
        return True

    def _merit(self, point: _Point, residuals: tuple[Floats, Floats, float], target: float) -> float:
        on_w, on_v, on_u = residuals
        off = np.where(self.usable, point.w * point.z - target, 0.0)
        total = on_w @ on_w + on_v @ on_v + on_u * on_u + off @ off
        if self.problem.bound is not None:
            above = np.where(self.usable, self._room(point) * point.y - target, 0.0)
            total += above @ above
        if self.parts.has_box:
            for side, held in zip(self._sides(point), (point.below, point.above), strict=True):
                total += float(((side * held - target) ** 2).sum())
        return math.sqrt(total)


def _distance(problem: RatioProblem, w: Floats) -> float:
    """Chi-square distance of inflow and mass over the cells, at most 1: the size of any objective at w."""
    mass = problem.mass(w)
    held = mass > 0
    return min(1.0, float((problem.residual(w)[held] ** 2 / mass[held]).sum()))


def _move(point: _Point, change: _Point, length: float) -> _Point:
    return _Point(*(part + length * moved for part, moved in zip(point, change, strict=True)))


def _to_boundary(value: Floats, change: Floats) -> float:
    falling = change < 0
    return float((value[falling] / -change[falling]).min(initial=np.inf))


def _factor_kkt(
    parts: _Couplings, r: Floats, h: Floats, barrier: Floats, usable: Any
) -> Callable[[Floats, Floats, float], tuple[Floats, Floats, float]] | None:
    """A solver of [W R' a; R -H 0; a' 0 -k] by two Cholesky factors, of H and of W + R' H^-1 R."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

    problem = parts.problem
    row = np.where(usable, problem.mass_row, 0.0)
    if not usable.all():
        r = r * usable
    trace = float(np.trace(h)) / h.shape[0]
    h[np.diag_indices_from(h)] += 1e-14 * trace if trace > 0 else 1e-10 * max(float(np.abs(r).max()), 1e-30)
    price = problem.price
    try:
        factor, _ = cho_factor(h, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(factor, r, lower=True, check_finite=False)
        schur = half.T @ half + price * np.outer(row, row)
        schur[np.diag_indices_from(schur)] += barrier
        if parts.ridge is not None:
            schur += parts.ridge * usable * usable[:, None]
        second = cho_factor(schur, lower=True, overwrite_a=True, check_finite=False)
    except (LinAlgError, ValueError):
        return None

    def solve(rhs_w: Floats, on_v: Floats, on_u: float) -> tuple[Floats, Floats, float]:
        half_v = solve_triangular(factor, on_v, lower=True, check_finite=False)
        dw = cho_solve(second, rhs_w - half.T @ half_v - price * row * on_u, check_finite=False)
        if problem.self_normalized:
            across = cho_solve(second, row, check_finite=False)
            du = float((row @ dw + on_u) / (row @ across))
            dw = dw - du * across
        else:
            du = float(row @ dw) + on_u
        dv = solve_triangular(factor, half @ dw + half_v, lower=True, trans="T", check_finite=False)
        return np.where(usable, dw, 0.0), dv, du

    return solve


# -- polyhedral divergences ----------------------------------------------------------------------------


def _by_linear_programs(problem: RatioProblem, tol: float) -> SaddleSolver:
    """Fix the total mass at s, solve the linear program, and minimize its value plus penalty over s.

    value(s) is convex with the multiplier of N = s as its slope: each program adds a cut, and the best s
    under the cuts is where the next one is solved. Where the residual can vanish the first program ends it.
    """
    cuts: list[_Cut] = []
    proof, level, checkpoints = None, 1.0, Checkpoints()
    for n_iter in range(1, MOST_STEPS):
        solved = _linear_program(problem, level)
        if solved is None:
            break
        w, cut = solved
        cuts.append(cut)
        following, v = _best_level(cuts, problem.penalty)
        if problem.self_normalized:
            v = cut.v
        outcome = certified(problem, w, v, following - 1.0, tol, "convex", n_iter)
        if proof is None or outcome.gap.dual > proof.gap.dual:
            proof = outcome
        else:  # the dual of an earlier level proves more
            outcome = certified(problem, w, proof.v, proof.u, tol, "convex", n_iter)
        checkpoints.note(outcome)
        command = yield Step(n_iter, checkpoints.gap)
        if checkpoints.gap <= tol or problem.self_normalized or command is not None:
            break
        if abs(following - level) < 1e-15:
            break
        level = following
    if checkpoints.best is None:  # there is no ratio of mass 1 that the linear program could be solved for
        zero = np.zeros(problem.dual_features.n_features)
        return certified(problem, problem.start(), zero, 0.0, tol, "convex", 0)
    return checkpoints.finish(len(checkpoints.trace))


class _Cut(NamedTuple):
    """value(s) >= value + slope (s - level), proven by the dual v."""

    level: float
    value: float
    slope: float
    v: Floats


def _best_level(cuts: list[_Cut], penalty: float) -> tuple[float, Floats]:
    """argmin over s of max over cuts + penalty/2 (s - 1)^2, trying every corner, and the dual that proves it.

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
    moved = flow.apply_transpose(mass) - mass
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
    v = within_domain(problem, marginals[: problem.dual_features.n_features])
    return solved.x[:n_w], _Cut(level, float(solved.fun), float(marginals[-1]), v)
