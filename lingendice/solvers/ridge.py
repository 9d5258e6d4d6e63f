"""The ridge problem: a stationary ratio drawn gently toward 1, by conjugate gradients.

    min over tau >= 0 of  1/2 sum_x ((A tau - b)(x))^2 / p(x) + 1/2 (M(tau) - 1)^2
                          + eps/2 sum_x p(x) (tau(x) - 1)^2
    A = diag(p) - gamma T_p',   b = (1 - gamma) mu0,   M(tau) = offset + sum_x nu(x) p(x) tau(x)

over the cells x with outgoing transitions (states with ``ratio="state"``); the others pass their mass on as
the operator says (:class:`lingendice.model.leaks.Closure`). M is the total mass, with what visits those
others and what has ended counted in (``Flow.mass_weight``, ``Flow.mass_offset``), so that every stationary
tau has M = 1: at eps = 0 this is the stationary equation. A penalty on p'tau instead would ask the data for
mass that is elsewhere, and none leaves the total to the residual alone, which near gamma = 1 hardly pins it.
Spurious traps of small samples (states whose only seen exit is themselves) make the problem nearly singular
at gamma = 1; a small eps takes their mass away.

References
----------
M. R. Hestenes, E. Stiefel (1952). Methods of conjugate gradients for solving linear systems. Journal of
    Research of the National Bureau of Standards 49.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.interrupts import pending
from lingendice.data.rows import row_sums
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Monitor, Outcome, Solver, Step, run

ENTRIES_A_CALL = 5_000_000
"""Entries that one kernel call may visit: a few hundredths of a second."""
FIRST_PORTION = 8
"""Steps before the first point of the history; later portions are a quarter of the steps so far."""
PATIENCE = 3
"""Exchanges of many constraints at once that may fail to help before single ones are exchanged."""
SAFETY = 3.0
"""On the amplification of rounding: one random direction is not the worst one."""
LEAST_GAIN = 0.5
"""Part of the error that a lower residual must take away: otherwise rounding has the last word."""


class RidgeSystem:
    """The ridge problem of one operator, scaled so that the unknown is sqrt(p) tau.

    Set-up is O(nnz); nothing of the size cells x cells is formed.
    """

    def __init__(self, operator: EmpiricalOperator, ridge: float) -> None:
        self.operator = operator
        self.ridge = float(ridge)
        self.gamma = operator.gamma
        self.flow = flow = operator.flow(closed=True)
        self.over_cells = flow.policy is not None
        if not flow.seen.any():
            raise ValueError("the counts are empty, and a ridge weighs what was logged; add data, or ridge=0")
        self.seen, self.q, self.rows, self.group, self.spread, *hubs = flow.scaled_rows()
        self.hub_out, self.from_hubs = hubs
        self.loses_mass = flow.loses_mass
        self.mass_weight = self.q * flow.mass_weight[self.seen]
        self.mass_goal = 1.0 - flow.mass_offset
        # The total mass of y is 1 where mass_weight'y = mass_goal.
        self._target = flow.start[self.seen] / self.q

    def with_ridge(self, ridge: float) -> RidgeSystem:
        """The same system with another ridge; all that does not depend on it is shared."""
        other = copy(self)
        other.ridge = float(ridge)
        for name in ("diagonal", "_right_side"):
            other.__dict__.pop(name, None)
        return other

    @cached_property
    def _columns(self) -> Any:
        return self.rows.T

    @cached_property
    def factor(self) -> Any:
        """M for the kernel."""
        from scipy.sparse import csr_array, hstack

        from lingendice.kernels.ridge_gradients import Factor

        used = self.hub_out.any(axis=0)
        rows = self.rows
        if used.any():
            rows = csr_array(hstack([rows, csr_array(self.hub_out[:, used])]))
        wide = np.uint32 if rows.shape[1] < 2**32 else np.uint64
        return Factor(
            rows.indptr.astype(np.uint64),
            rows.indices.astype(wide),
            rows.data,
            self.group.astype(wide),
            self.spread,
            self.from_hubs[used],
            self.gamma,
            *(np.empty(size) for size in (rows.shape[1], self.q.size, self.q.size)),
        )

    @cached_property
    def diagonal(self) -> Floats:
        """Diagonal of H, the preconditioner, up to the products of counted and low-rank part."""
        squares = np.bincount(self.group, self.spread**2, minlength=self.operator.n_states)
        own = self.rows.indices == np.repeat(self.group, np.diff(self.rows.indptr))
        loops = row_sums(self.rows.indptr, np.where(own, self.rows.data, 0.0))
        hubs = self.hub_out**2 @ (self.from_hubs**2).sum(axis=1)
        moved = self.gamma**2 * (self.rows.power(2) @ squares + hubs) - 2.0 * self.gamma * loops * self.spread
        return np.maximum(1.0 + moved, 0.0) + self.mass_weight**2 + self.ridge  # type: ignore[no-any-return]

    def scaled(self, y: Floats) -> Floats:
        """M y."""
        counted = self.spread * (self._columns @ y)[self.group]
        return y - self.gamma * (counted + (y @ self.hub_out) @ self.from_hubs)  # type: ignore[no-any-return]

    def scaled_transpose(self, z: Floats) -> Floats:
        """M' z."""
        arriving = np.bincount(self.group, self.spread * z, minlength=self.operator.n_states)
        return z - self.gamma * (self.rows @ arriving + self.hub_out @ (self.from_hubs @ z))  # type: ignore[no-any-return]

    def normal(self, y: Floats) -> Floats:
        """H y = (M'M + w w' + ridge) y with w = ``mass_weight``, the Hessian of the problem."""
        mass = float(self.mass_weight @ y)
        return self.scaled_transpose(self.scaled(y)) + mass * self.mass_weight + self.ridge * y

    # -- solving ----------------------------------------------------------------------------------

    def solve(self, controls: Controls, start: Floats | None = None, rough: bool = False) -> RidgeFit:
        """Minimize over tau >= 0; ``start`` (over seen cells, scaled) shortens the way.

        ``rough`` ends once the residual is ``tol`` of the first one, whatever that means for the error, and
        returns to Python as seldom as it may: its history is short.

        Conjugate gradients over the entries that are free to move, about 2 nnz operations per step and at
        most about 1 / sqrt(ridge) steps; entries that would turn negative are held at 0 by block
        exchanges of the active set, which end because a round that does not help exchanges one entry.
        Where |gradient| / ridge, which bounds the error, is above ``tol``, the problem's own amplification
        is estimated by one more solve, and the residual lowered until the error as estimated is within
        ``tol``, or rounding has the last word.
        """
        outcome = run(self._descend(controls, start, rough), controls)
        return RidgeFit(self, outcome.distribution, outcome.distribution > 0, outcome)

    @cached_property
    def _right_side(self) -> Floats:
        total = self.mass_goal * self.mass_weight
        return self.scaled_transpose(self._target) + total + self.ridge * self.q

    def _descend(self, controls: Controls, start: Floats | None, rough: bool) -> Solver:
        y = self.q.copy() if start is None else np.maximum(start, 0.0)
        free = np.ones(y.size, dtype=bool)
        right = self._right_side
        goal = (max(controls.tol, 1e-13) ** 2) * float(right @ (right / self.diagonal))
        fewest, patience, steps, stop = y.size + 1, PATIENCE, 0, None
        history: list[float] = []
        ending = _Ending(self, controls.tol, rough)
        while True:
            y[~free] = 0.0
            descent, squared = self.descent(free, y, right - self.normal(y)), -1.0
            while stop is None and (squared < 0.0 or squared > goal):
                # Growing portions: the history has points enough to show the way, and costs nothing.
                portion = max(FIRST_PORTION, y.size if rough else steps // 4)
                if controls.max_iter is not None:
                    portion = max(1, min(portion, controls.max_iter - steps))
                squared, done = descent.advance(goal, portion)
                steps += done
                history.append(float(np.sqrt(max(squared, 0.0))) if squared == squared else np.nan)
                stop = yield Step(steps, history[-1])
                if done == 0:
                    break
            y, residual = descent.point()
            wrong = np.where(free, y < -1e-14, residual > np.sqrt(goal * self.diagonal) + 1e-14)
            count = int(wrong.sum())
            if stop is not None:
                break
            if count == 0:
                goal = yield from ending.next_goal(y, free, goal, squared, steps)
                if goal == 0.0:
                    break
                continue
            if count < fewest:
                fewest, patience = count, PATIENCE
            elif patience > 0:
                patience -= 1
            else:
                wrong[: np.flatnonzero(wrong)[-1]] = False
            free ^= wrong
        distribution = np.maximum(y, 0.0)
        error, kind = ending.error(distribution)
        return Outcome(
            distribution=distribution,
            method="ridge",
            reason="conjugate gradients on the ridge problem",
            converged=stop is None and ending.settled and bool(np.isfinite(distribution).all()),
            n_iter=steps,
            error=error,
            error_kind=kind,
            condition=ending.amplification,
            history=tuple(history),
        )

    def gradient_left(self, y: Floats) -> float:
        """Norm of the gradient at y >= 0 that a step to the minimum would still take away."""
        gradient = self._right_side - self.normal(y)
        return float(np.linalg.norm(np.where(y > 0, gradient, np.maximum(gradient, 0.0))))

    def distribution_error(self, y: Floats, moved: float) -> float:
        """L1 error of the distribution of y >= 0 where y is off by ``moved``.

        Unseen rows receive their mass from the others, and the whole is scaled to 1.
        """
        moved *= self._mass_gain
        if self.loses_mass:
            return moved
        mass = float(self.completed(y).sum())
        return 2.0 * moved / mass if mass > 0.0 else math.inf

    @cached_property
    def _mass_gain(self) -> float:
        """The most that one unit of mass on a seen row amounts to with its visits to unseen rows: many, where
        those restart into one another."""
        flow = self.flow
        if self.seen.size == flow.n_cells:
            return 1.0
        visits = flow.with_leaks(np.zeros(flow.n_cells), 1.0)
        return 1.0 + self.gamma * float(flow.rows.apply(flow.gather(visits))[self.seen].max())

    def completed(self, y: Floats) -> Floats:
        """p tau on seen rows and what arrives on the others, not normalized."""
        distribution = np.zeros(self.flow.n_cells)
        distribution[self.seen] = y * self.q
        return self.flow.completed(distribution)

    def descent(self, free: NDArray[np.bool_], y: Floats, residual: Floats) -> _Descent:
        """Conjugate gradients over the free entries from y, where the gradient is -residual."""
        return _Descent(self, free, y, residual)

    # -- adjoint ----------------------------------------------------------------------------------

    def adjoint(
        self, sensitivity: Floats, free: NDArray[np.bool_], tol: float, monitor: Monitor | None = None
    ) -> RidgeAdjoint:
        """What mass is worth to a functional of the distribution, by one more linear solve.

        ``sensitivity`` is the functional's derivative by mass on each row (states, or cells). Solves
        H u = q s over the free entries, s with what the row brings to leaks. V, which is M u / q with the
        price of total mass (see :meth:`_priced`), is to the ridge solution what the value function is to the
        stationary distribution: a change dT of the operator changes the functional by gamma mu' dT V, up to
        terms in the residual.
        """
        ends, flow = pending if monitor is None else monitor, self.flow
        leaks = flow.with_leaks(np.zeros(flow.n_cells), sensitivity)
        worth = sensitivity + self.gamma * flow.rows.apply(flow.gather(leaks))
        right = np.where(free, self.q * worth[self.seen], 0.0)
        u = np.zeros_like(self.q)
        goal = (max(tol, 1e-13) ** 2) * float(right @ (right / self.diagonal))
        descent, squared = self.descent(free, u, right), -1.0
        while squared < 0.0 or squared > goal:
            squared, done = descent.advance(goal)
            if done == 0 or math.isnan(squared) or ends():
                break
        u = descent.point()[0]
        z, price = self.scaled(u), float(self.mass_weight @ u)
        return RidgeAdjoint(z + self._of_ending(price) * self.q, self._priced(z, sensitivity, price), u)

    def _priced(self, z: Floats, own: Floats | float, price: float) -> Floats:
        """Values over states: z / q in seen rows, in leaks their ``own`` and those that they lead to.

        The weights nu of the total mass depend on the operator as mass does: where a change dT brings mass m
        to leaks or to ends, the penalty adds ``-price`` times what m amounts to there. All is counted from
        the end of an episode, which is then worth 0 as elsewhere; without ends there is no such constant.
        """
        flow = self.flow
        values = flow.gather(flow.with_leaks(self._over_rows(z / self.q), own))
        ending = self._of_ending(price) if self.loses_mass else 0.0
        return values - price * flow.mass_elsewhere + ending

    def _of_ending(self, price: float) -> float:
        """What a unit of mass that ends for good costs by its weight in the total; none does at gamma = 1."""
        return price / (1.0 - self.gamma) if self.gamma < 1.0 else 0.0

    def by_misfit(self, tau: Floats, found: RidgeAdjoint) -> ByMisfit:
        """How counts move the functional of an adjoint because the solution is not stationary.

        With r = M y - c a change dp moves it by sum (ridge u y + r M u) / p dp, and a change dT by gamma
        (q u)' dT R besides gamma mu' dT V, with R = r / q priced by the misfit of the total mass: mass and
        values exchange their roles. All of it is relative to the mass, which ``tau`` is scaled by: the
        solution itself is the multiple that is best.
        """
        y = self.q * tau[self.seen]
        total = float(self._right_side @ y) / float(y @ self.normal(y))
        misfit = self.scaled(y) - self._target / total
        by_data = (self.ridge * found.mass * y + self.scaled(found.mass) * misfit) / self.q**2
        values = self._priced(misfit, 0.0, float(self.mass_weight @ y) - self.mass_goal / total)
        mass = self._over_rows(self.q * found.mass)
        in_leaks = self.flow.completed(mass) - self.flow.completed(np.zeros_like(mass)) - mass
        begun = (1.0 - self.gamma) * (1.0 / total - 1.0) * found.values
        return ByMisfit(self._over_rows(by_data), mass + in_leaks, values, begun)

    def _over_rows(self, seen: Floats) -> Floats:
        """Over all rows, with 0 where nothing was seen."""
        rows = np.zeros(self.flow.n_cells)
        rows[self.seen] = seen
        return rows


class _Ending:
    """Decides when a descent is over, and what error to state.

    y is off by H^-1 g with g the gradient left: by at most |g| / ridge, since no curvature is below the
    ridge, but by far less where the problem's own amplification is far below 1 / ridge. That is estimated
    by a solve for a random g. What conjugate gradients left undone may lie in the slowest mode; what
    rounding adds lies in all of them alike.
    """

    def __init__(self, system: RidgeSystem, tol: float, rough: bool) -> None:
        self.system, self.tol, self.rough = system, tol, rough
        self.settled = False
        """Whether the goal asked for was met with no entry on the wrong side."""
        self.amplification: float | None = None
        """Of a random gradient; that of the slowest mode is sqrt(n) as large, if it is alone."""
        self._best, self._undone = math.inf, math.inf

    def next_goal(
        self, y: Floats, free: NDArray[np.bool_], goal: float, squared: float, steps: int
    ) -> Generator[Step, Any, float]:
        """The goal to go on to from y, which met ``goal`` or got stuck; 0 where it is the end."""
        met = not squared > goal
        self.settled = self.settled or met
        distribution = np.maximum(y, 0.0)
        if self.rough or not met or not np.isfinite(distribution).all():
            return 0.0
        self._undone = math.sqrt(max(squared, 0.0) * float(self.system.diagonal.max()))
        error, _ = self.error(distribution)
        if error > self.tol and self.amplification is None:
            self.amplification = yield from self._amplify(free, steps)
            if self.amplification is None:  # the work must end, with an error that is not known to be small
                self.settled = False
                return 0.0
            error, _ = self.error(distribution)
        if error <= self.tol or not error < LEAST_GAIN * self._best:
            return 0.0
        self._best = error
        # From what was reached, which may be far below the goal already: else no step would be made.
        return min(goal, squared) * (0.3 * self.tol / error) ** 2

    def _amplify(self, free: NDArray[np.bool_], steps: int) -> Generator[Step, Any, float | None]:
        """|H^-1 g| / |g| of a random g, which has its share of every mode; None where the work must end."""
        system = self.system
        drawn = np.where(free, np.random.default_rng(0).standard_normal(free.size), 0.0)
        goal = min(1e-2, 0.1 / self._modes) ** 2 * float(drawn @ (drawn / system.diagonal))
        descent, squared = system.descent(free, np.zeros(free.size), drawn), -1.0
        while squared < 0.0 or squared > goal:
            squared, done = descent.advance(goal)
            if (yield Step(steps)) is not None:
                return None
            if done == 0 or math.isnan(squared):
                return 1.0 / system.ridge
        return float(np.linalg.norm(descent.point()[0]) / np.linalg.norm(drawn))

    @property
    def _modes(self) -> float:
        return math.sqrt(self.system.q.size)

    def error(self, distribution: Floats) -> tuple[float, str]:
        """The bound; where that is above the tolerance, the estimate from the amplification."""
        system = self.system
        left = system.gradient_left(distribution)
        bound = system.distribution_error(distribution, left / system.ridge)
        if self.amplification is None or bound <= self.tol:
            return bound, "bound"
        slowest = min(self._modes * self.amplification, 1.0 / system.ridge)
        moved = slowest * self._undone + SAFETY * self.amplification * left
        return min(system.distribution_error(distribution, moved), bound), "estimate"


class _Descent:
    """Conjugate gradients under way."""

    def __init__(self, system: RidgeSystem, free: NDArray[np.bool_], y: Floats, residual: Floats) -> None:
        self.system, self.free, self.y, self.residual = system, free, y, residual.copy()
        self.direction, self.squared = np.empty_like(y), -1.0

    def advance(self, goal: float, at_most: int | None = None) -> tuple[float, int]:
        """More steps: the squared residual in the norm of the preconditioner, and how many were made.

        They end at ``goal``, after ``at_most``, or when other work has waited long enough. The square is nan
        where the matrix is not positive definite in floating point.
        """
        from lingendice.kernels.ridge_gradients import descend

        system = self.system
        budget = max(1, ENTRIES_A_CALL // (2 * (system.rows.nnz + self.y.size)))
        if at_most is not None:
            budget = min(budget, at_most)
        self.squared, done = descend(
            system.factor, system.mass_weight, system.ridge, system.diagonal, self.free,
            self.y, self.residual, self.direction, self.squared, goal, budget,
        )  # fmt: skip
        return self.squared, done

    def point(self) -> tuple[Floats, Floats]:
        """The point reached and its residual."""
        return self.y, self.residual


class RidgeAdjoint(NamedTuple):
    """The adjoint of the ridge problem."""

    scaled: Floats
    """sqrt(p) V over seen rows."""
    values: Floats
    """V over states."""
    mass: Floats
    """u over seen rows."""


class ByMisfit(NamedTuple):
    """What moves a functional in proportion to the stationarity residual."""

    by_data: Floats
    """By the data's mass on each row."""
    mass: Floats
    """Mass over rows whose transitions lead to ``values``."""
    values: Floats
    """Over states."""
    begun: Floats
    """Over states, what beginning there is worth beyond (1 - gamma) V, since the solution is scaled."""


class RidgeFit(NamedTuple):
    """A solution of the ridge problem."""

    system: RidgeSystem
    y: Floats
    """sqrt(p) tau over seen rows."""
    free: NDArray[np.bool_]
    """Rows not held at 0."""
    outcome: Outcome

    @property
    def tau(self) -> Floats:
        """The minimizer over all rows (states, or cells), not normalized; nan where nothing was seen."""
        tau = np.full(self.system.flow.n_cells, np.nan)
        tau[self.system.seen] = self.y / self.system.q
        return tau

    @property
    def row_distribution(self) -> Floats:
        """p tau on seen rows and what arrives on the others, in total 1 unless mass is absorbed."""
        distribution = self.system.completed(self.y)
        return distribution if self.system.loses_mass else distribution / distribution.sum()

    @property
    def misfit(self) -> Floats:
        """The scaled stationarity residual M y - c."""
        return self.system.scaled(self.y) - self.system._target
