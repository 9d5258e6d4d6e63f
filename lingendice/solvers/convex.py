"""Direct solve of the convex problem behind the saddle point: interior-point Newton, or a linear program.

References
----------
S. Mehrotra (1992). On the implementation of a primal-dual interior point method. SIAM Journal on Optimization
    2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences import FDivergence, PolyhedralMetric, TotalVariation
from lingendice.solvers.control import Step
from lingendice.solvers.dual_maximum import polyhedron, weighted, within_domain
from lingendice.solvers.problem import Checkpoints, RatioProblem, SaddleSolver, certified, without_steps

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
    """Primal, dual, u of the total mass, and the multipliers of the barriers."""

    w: Floats
    v: Floats
    u: float
    held: tuple[Floats, ...]

    @property
    def blocks(self) -> tuple[Floats, Floats]:
        """What barriers bound."""
        return self.w, self.v


class _Barrier(NamedTuple):
    """Keeps the entries ``used`` of w or v where limit + sign x is positive."""

    block: int
    """0 for w, 1 for v."""
    sign: float
    limit: Floats | float
    used: Any

    def slack(self, point: _Point) -> Floats:
        return np.where(self.used, self.limit + self.sign * point.blocks[self.block], 1.0)


class _Couplings:
    """What a Newton step needs of the problem, with all that does not change computed once."""

    def __init__(self, problem: RatioProblem) -> None:
        self.problem = problem
        flow, features = problem.flow, problem.features
        self.mass = features.scaled(flow.p)
        mass = _as_array(self.mass)
        self.fixed = _dense(problem.dual_features.adjoint(flow.apply_transpose(mass) - mass))
        self.ridge = problem.ridge * features.gram(flow.p) if problem.ridge > 0 else None

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
    if not problem.start().any():  # no mass reaches the data, and there is no interior to step through
        return without_steps(problem, tol, "convex")
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
        v, box = np.zeros(problem.dual_features.n_features), problem.dual_box
        self.barriers = [_Barrier(0, 1.0, 0.0, self.usable)]
        if problem.bound is not None:
            self.barriers.append(_Barrier(0, -1.0, problem.bound, self.usable))
        if np.isfinite(box).all():
            self.barriers += [_Barrier(1, sign, box, box > 0) for sign in (1.0, -1.0)]
        # Multipliers whose products with w are alike and add up to about the objective at the start: with
        # smaller ones the first steps end at the boundary soon after they began.
        product = max(_distance(problem, w), 1e-8) / max(int(self.usable.sum()), 1)
        start = _Point(w, v, 0.0, ())
        held = tuple(np.where(each.used, product / each.slack(start), 0.0) for each in self.barriers)
        self.point = start._replace(held=held)
        self.residuals = self._residuals(self.point)

    def slack(self) -> float:
        """Mean complementarity: the barrier weight that the point stands for."""
        return self._slack(self.point)

    def off(self) -> float:
        """How far the optimality conditions are from holding."""
        on_w, on_v, on_u = self.residuals
        return float(np.abs(on_w).max() + np.abs(on_v).max() + abs(on_u))

    def _slack(self, point: _Point) -> float:
        bounds = zip(self.barriers, point.held, strict=True)
        products = sum(float(each.slack(point) @ held) for each, held in bounds)
        return products / max(sum(int(each.used.sum()) for each in self.barriers), 1)

    def _sums(self, parts: Iterable[Floats]) -> list[Any]:
        """What the barriers of w, and those of v, add up to."""
        sums: list[Any] = [0.0, 0.0]
        for each, part in zip(self.barriers, parts, strict=True):
            sums[each.block] = sums[each.block] + part
        return sums

    def _residuals(self, point: _Point) -> tuple[Floats, Floats, float]:
        problem = self.problem
        on_w, on_v, _ = problem.gradients(point.w, point.v, 0.0 if problem.self_normalized else point.u)
        if problem.self_normalized:
            on_w = on_w + point.u * problem.mass_row
        on_u = problem.total(point.w) - 1.0 - (0.0 if problem.self_normalized else point.u)
        bounds = zip(self.barriers, point.held, strict=True)
        push_w, push_v = self._sums(each.sign * held for each, held in bounds)
        return np.where(self.usable, on_w - push_w, 0.0), on_v + push_v, on_u

    def step(self) -> bool:
        """Predict with no barrier, see how far that leads, and correct with the barrier that deserves."""
        point, usable, parts = self.point, self.usable, self.parts
        f = self.problem.dual_features.apply(point.v)
        slacks = [each.slack(point) for each in self.barriers]
        bend_w, bend_v = self._sums(held / slack for held, slack in zip(point.held, slacks, strict=True))
        hessian = parts.hessian(self.problem.mass(point.w), f)
        hessian[np.diag_indices_from(hessian)] += bend_v
        kkt = _factor_kkt(parts, parts.coupling(f), hessian, np.where(usable, bend_w, 1.0), usable)
        if kkt is None:
            return False

        def direction(targets: Sequence[Floats | float]) -> _Point:
            bounds = list(zip(self.barriers, targets, slacks, point.held, strict=True))
            push_w, push_v = self._sums(
                each.sign * (target / slack - held) for each, target, slack, held in bounds
            )
            on_w, on_v, on_u = self.residuals
            dw, dv, du = moved = kkt(np.where(usable, push_w - on_w, 0.0), on_v + push_v, on_u)
            change = tuple(
                np.where(each.used, (target - each.sign * held * moved[each.block]) / slack - held, 0.0)
                for each, target, slack, held in bounds
            )
            return _Point(dw, dv, du, change)

        now = self.slack()
        ahead = direction([0.0] * len(slacks))
        length = min(1.0, self._longest(ahead, f))
        after = max(self._slack(_move(point, ahead, length)), 0.0)
        target = now * max((after / now) ** 3 if now > 0 else 0.0, 1e-4)
        bounds = zip(self.barriers, ahead.held, strict=True)
        final = direction([target - each.sign * ahead.blocks[each.block] * held for each, held in bounds])
        if not all(np.isfinite(part).all() for part in (*final[:3], *final.held)):
            return False
        return self._advance(final, f, target)

    def _longest(self, change: _Point, f: Floats) -> float:
        longest = math.inf
        for each, held, moved in zip(self.barriers, self.point.held, change.held, strict=True):
            nearer = each.sign * change.blocks[each.block]
            longest = min(longest, _to_boundary(each.slack(self.point), nearer), _to_boundary(held, moved))
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
        total = float(on_w @ on_w + on_v @ on_v + on_u * on_u)
        for each, held in zip(self.barriers, point.held, strict=True):
            total += float((np.where(each.used, each.slack(point) * held - target, 0.0) ** 2).sum())
        return math.sqrt(total)


def _distance(problem: RatioProblem, w: Floats) -> float:
    """Chi-square distance of inflow and mass over the cells, at most 1: the size of any objective at w."""
    mass = problem.mass(w)
    held = mass > 0
    return min(1.0, float((problem.residual(w)[held] ** 2 / mass[held]).sum()))


def _move(point: _Point, change: _Point, length: float) -> _Point:
    held = tuple(part + length * moved for part, moved in zip(point.held, change.held, strict=True))
    w, v = point.w + length * change.w, point.v + length * change.v
    return _Point(w, v, point.u + length * change.u, held)


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
        return without_steps(problem, tol, "convex")
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
