"""Episodes that end for good: visits of one episode, undiscounted.

    d = mu0 + T' d        expected visits of one episode to every state
    L = sum d             its expected length

with T the steps that do not end. Discounted problems tend to this one as gamma tends to 1. The chain that
begins anew after each end has the stationary distribution d / L, so that elimination without subtractions
gives d to the accuracy of its rates, entry by entry. Returns V = r + T V come from
:func:`lingendice.solvers.adjoint.solve_adjoint`.

`UntilEnd` solves both equations for any end, such as a set of states to be reached, from one factor.

d is finite only where every state that is reached leads to an end. A *trap* is a state from which no logged
step does; `open_traps` lets episodes leave them at a rate that the log cannot exclude.

References
----------
J. G. Kemeny, J. L. Snell (1976). Finite Markov Chains. Springer. Chapter 3: the fundamental matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.rows import row_of_entry
from lingendice.model.transition_rows import TransitionRows, add_hub, find_classes
from lingendice.solvers.control import Controls, EliminationError, Monitor, Outcome, direct_error, watch
from lingendice.solvers.stationary import (
    DENSE_NODES,
    MODERATE_FLOPS,
    PATIENT_FLOPS,
    analyzed,
    csr_arrays,
    solve_class,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.solvers.elimination import Elimination


def visits_of_an_episode(
    chain: TransitionRows, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    """d = mu0 + T' d for a chain that absorbs at ends, which every state must lead to."""
    rates, feeds = chain.extended(1.0, initial)
    (nodes,) = find_classes(rates).recurrent
    outcome = solve_class(rates, nodes, chain.n, method, controls)
    visits = np.zeros(rates.shape[0])
    visits[nodes] = outcome.distribution
    # Per episode: each begins with one visit to the hub of the initial distribution.
    visits = visits[: chain.n] / float(visits @ feeds)
    if outcome.error is not None:
        outcome.error = max(outcome.error, direct_error(chain.n))
    return visits, outcome


def find_traps(chain: TransitionRows) -> NDArray[np.bool_]:
    """States from which no number of steps leads to an end. O(nnz)."""
    rates, _ = chain.extended()
    ends = np.zeros(rates.shape[0], dtype=bool)
    ends[: chain.n] = chain.absorbed > 0.0
    return ~leads_to(rates, ends)[: chain.n]


def leads_to(
    rates: csr_array, goal: NDArray[np.bool_], stopped: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Nodes from which some number of steps leads to the ``goal``, itself included. O(nnz).

    Paths end in nodes that are ``stopped``.
    """
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n, goals, steps = rates.shape[0], np.flatnonzero(goal), coo_array(rates)
    used = steps.data > 0.0
    if stopped is not None:
        used &= ~stopped[steps.row]
    # Steps backwards, from one more node behind the goal.
    start = np.concatenate([steps.col[used], np.full(goals.size, n)])
    target = np.concatenate([steps.row[used], goals])
    backwards = csr_array((np.ones(start.size, dtype=np.int8), (start, target)), shape=(n + 1, n + 1))
    leads = np.zeros(n + 1, dtype=bool)
    leads[breadth_first_order(backwards, n, return_predecessors=False)] = True
    return leads[:n]


def open_traps(chain: TransitionRows, exit_rate: Floats, onward: Floats) -> TransitionRows:
    """Let a share ``exit_rate`` of the visits to each state go on to ``onward``, and end where it sums to
    less than 1."""
    goes_on = float(onward.sum())
    stays = 1.0 - exit_rate
    out, distribution = chain.out * stays[:, None], chain.distribution
    if goes_on > 0.0:
        out, distribution = add_hub(out, distribution, exit_rate * goes_on, onward / goes_on)
    return replace(chain, keep=chain.keep * stays, out=out, distribution=distribution)


def with_more_ends(chain: TransitionRows, rate: float) -> TransitionRows:
    """The chain in which a share ``rate`` of all visits ends the episode."""
    return replace(chain, keep=chain.keep * (1.0 - rate), out=chain.out * (1.0 - rate))


# -- values and visits until any end -------------------------------------------------------------------------

MANY_STATES = 50_000
"""From here on sweeps come first: where an elimination is too large, finding that out takes longer."""
SOON_FLOPS = 5e9
"""Cost of an elimination that is made before any sweep: about a second."""
FEW_PASSES, MOST_PASSES = 200, 1000
"""Passes that may be foreseen before, and after, a moderate elimination has been refused."""
PASSES_WATCHED = 25
"""The pace of twice as many passes decides whether to go on."""


class Bounded(NamedTuple):
    """A nonnegative solution, and a bound on the relative error of every entry."""

    solution: Floats
    error: float


@dataclass
class UntilEnd:
    """Values V = r + T V and visits d = m + T' d of states that all lead to an end, entry by entry.

    ``steps`` are the probabilities T between these states, ``ending`` that of leaving them for good: both are
    given, since 1 - sum T has no digits where next to nothing ends. Rewards and masses are nonnegative.

    Up to a few hundred states, and where its fill is modest, one elimination without subtractions serves all
    right-hand sides of both equations: 2/3 n^3 or `Elimination.flops` operations once, then one or two passes
    over the factor for each. Elsewhere every right-hand side takes sweeps, O(nnz) each, until their error is
    proven to be below ``tol``; where these do not settle a larger elimination is made.
    """

    steps: csr_array
    ending: Floats
    controls: Controls
    method: str = "none"
    reason: str = ""
    error: float = 0.0
    """Largest relative error of any entry solved for so far: a bound for sweeps, for eliminations an estimate
    (`direct_error`)."""
    stopped: bool = False
    """Whether a limit ended the work: what was asked for last is nan."""
    _dense: tuple[Floats, Floats] | None = field(default=None, repr=False)
    _factor: Elimination | None = field(default=None, repr=False)
    _stage: int = 0
    """Place in `_stages`: what failed for one right-hand side is not tried for the next."""

    def values(self, reward: Floats) -> Floats:
        """V = r + T V: what is earned until the end, from every state. nan where a limit came first."""
        return self._solve(reward, transposed=False)

    def visits(self, mass: Floats) -> Floats:
        """d = m + T' d: visits to every state until the end. nan where a limit came first."""
        return self._solve(mass, transposed=True)

    @property
    def n(self) -> int:
        """Number of states."""
        return self.ending.size

    def _solve(self, source: Floats, transposed: bool) -> Floats:
        if not source.any():
            return np.zeros(self.n)
        with watch(self.controls) as monitor:
            try:
                monitor.check()
                return self._solved(source, transposed, monitor)
            except InterruptedError:
                self.stopped = True
                return np.full(self.n, np.nan)

    def _solved(self, source: Floats, transposed: bool, monitor: Monitor) -> Floats:
        if self.n <= DENSE_NODES:
            solution = self._by_dense_factor(source, transposed, monitor)
        else:
            found = self._swept_or_factored(source, transposed, monitor)
            if found is not None:
                self.error = max(self.error, found.error)
                return found.solution
            assert self._factor is not None
            solve = self._factor.visits_until_end if transposed else self._factor.values_until_end
            solution = solve(np.append(source, 0.0), monitor)[: self.n]
        self.error = max(self.error, direct_error(self.n))
        return solution

    @property
    def _stages(self) -> tuple[tuple[str, float], ...]:
        """What is tried in turn: sweeps up to so many passes, eliminations up to so many operations."""
        last = ("sweeps", MOST_PASSES), ("elimination", PATIENT_FLOPS)
        if self.n > MANY_STATES:
            return ("sweeps", FEW_PASSES), ("elimination", MODERATE_FLOPS), *last
        return ("elimination", SOON_FLOPS), *last

    def _swept_or_factored(self, source: Floats, transposed: bool, monitor: Monitor) -> Bounded | None:
        """What sweeps found; None where there is a factor."""
        found = None
        while self._factor is None and self._stage < len(self._stages):
            kind, most = self._stages[self._stage]
            if kind == "sweeps":
                self.method = "gauss-seidel"
                found = self._sweep(source, transposed, int(most), monitor)
                if found.error <= self.controls.tol:
                    self.reason = f"{self.n:,} states, few sweeps or much fill"
                    return found
            else:
                reason = f"{self.n:,} states, little fill" if self._stage == 0 else "sweeps were too slow"
                if self._eliminate(most, reason, monitor):
                    return None
            self._stage += 1
        if self._factor is not None:
            return None
        self.reason = "slow sweeps and too much fill for an elimination"
        return found or self._sweep(source, transposed, MOST_PASSES, monitor)

    def _factor_densely(self, monitor: Monitor) -> tuple[Floats, Floats]:
        from lingendice.kernels.gth_dense import dense_factor

        rates = np.zeros((self.n + 1, self.n + 1))
        rates[:-1, :-1], rates[:-1, -1] = self.steps.toarray(), self.ending
        front, exit_rate, status = dense_factor(rates, monitor)
        if status >= 0:
            raise EliminationError(UNDERFLOW, status)
        self.method, self.reason = "gth", f"small: {self.n:,} states"
        return front[:-1, :-1], exit_rate[:-1]

    def _eliminate(self, accepted: float, reason: str, monitor: Monitor) -> bool:
        from scipy.sparse import csr_array, hstack, vstack

        end = csr_array(self.ending[:, None])
        rates = vstack([hstack([self.steps, end]), csr_array((1, self.n + 1))], format="csr")
        found = analyzed(rates, 1, accepted, monitor)
        if found is None:
            return False
        self._factor = found.factorize(rates.data, threads=self.controls.threads, monitor=monitor)
        self.method, self.reason = "elimination", reason
        return True

    def _by_dense_factor(self, source: Floats, transposed: bool, monitor: Monitor) -> Floats:
        """(S - L)(I - U) V = r, or its transpose: substitutions in which all terms are nonnegative."""
        from scipy.linalg import solve_triangular

        if self._dense is None:
            self._dense = self._factor_densely(monitor)
        front, exit_rate = self._dense
        onward = np.eye(self.n) - np.triu(front, 1)
        back = np.diag(exit_rate) - np.tril(front, -1)
        if transposed:
            pushed = solve_triangular(onward, source, trans=1, unit_diagonal=True, check_finite=False)
            solved: Floats = solve_triangular(back, pushed, trans=1, lower=True, check_finite=False)
        else:
            pushed = solve_triangular(back, source, lower=True, check_finite=False)
            solved = solve_triangular(onward, pushed, unit_diagonal=True, check_finite=False)
        return solved

    # -- sweeps --------------------------------------------------------------------------------------------

    def _sweep(self, source: Floats, transposed: bool, most: int, monitor: Monitor) -> Bounded:
        """Sweeps over the states that the source reaches; the others have 0."""
        matrix = self.steps.T.tocsr() if transposed else self.steps
        reached = leads_to(matrix, source > 0.0)
        chosen = np.flatnonzero(reached)
        between = matrix if reached.all() else matrix[chosen][:, chosen]
        system = _Sweeps.of(between, self._leaving[chosen], monitor)
        solution = np.zeros(self.n)
        found = system.solve(source[chosen], self.controls.tol, most)
        solution[chosen] = found.solution
        return Bounded(solution, found.error)

    @property
    def _leaving(self) -> Floats:
        """1 - T_ii as the sum of what leaves."""
        return np.asarray(_off_diagonal(self.steps).sum(axis=1)).ravel() + self.ending


UNDERFLOW = (
    "the rates at which state {state} leaves underflow; multiply the counts that leave it by a constant"
)


def _off_diagonal(matrix: csr_array) -> csr_array:
    """The matrix with zeros on the diagonal."""
    away = matrix.copy()
    away.data[row_of_entry(away.indptr) == away.indices] = 0.0
    return away


@dataclass
class _Sweeps:
    """(D - T) x = b by symmetric Gauss-Seidel with extrapolation, everything nonnegative."""

    arrays: tuple[NDArray[np.int64], NDArray[np.int32], Floats]
    leaving: Floats
    monitor: Monitor
    ranges: list[tuple[int, int]]
    rounding: float
    """Relative rounding of one row's sum."""

    @classmethod
    def of(cls, matrix: csr_array, leaving: Floats, monitor: Monitor) -> _Sweeps:
        from lingendice.model.pull_system import row_ranges

        arrays = csr_arrays(_off_diagonal(matrix))
        longest = int(np.diff(arrays[0]).max(initial=0))
        rounding = (longest + 3.0) * float(np.finfo(float).eps) * float(leaving.max())
        return cls(arrays, leaving, monitor, row_ranges(arrays[0], 0, leaving.size), rounding)

    def solve(self, source: Floats, tol: float, most: int) -> Bounded:
        """x, and a proven bound on its relative error.

        Where |b + T x - D x| <= delta x, the error is at most delta w with (D - T) w = x, for the inverse is
        nonnegative. Any w' with (D - T) w' >= c x has w' >= c w: a rough one will do.
        """
        x, n_passes, error = np.full(source.size, source.mean()), 0, np.inf
        goal, slack = 0.01 * tol, np.inf
        while error > tol and n_passes < most and goal > self.rounding:
            x, more, settled = self._iterate(source, x, goal, most - n_passes)
            n_passes += more
            if not settled:
                break
            if slack == np.inf:
                rough, _, _ = self._iterate(x, x.copy(), 1e-3, most)
                share = self._residual(np.zeros_like(x), rough, x)[0]
                slack = float((rough / x).max()) / share if share > 0.0 else np.inf
            least, largest = self._residual(source, x, x)
            error = (max(-least, largest, 0.0) + self.rounding) * slack
            goal *= 0.03
        return Bounded(x, error)

    def _iterate(self, source: Floats, x: Floats, goal: float, most: int) -> tuple[Floats, int, bool]:
        """Passes until none changes an entry by more than ``goal`` of itself; foreseen failure ends early."""
        from lingendice.solvers.gauss_seidel import Extrapolation

        past, changes = Extrapolation(x, power=1.0), []
        while len(changes) < most:
            changes.append(self._pass(source, x))
            if changes[-1] <= goal:
                return x, len(changes), True
            if len(changes) % PASSES_WATCHED == 0 and len(changes) >= 2 * PASSES_WATCHED:
                recent = min(changes[-PASSES_WATCHED:])
                pace = recent / min(changes[-2 * PASSES_WATCHED : -PASSES_WATCHED])
                if pace >= 1.0 or np.log(goal / recent) / np.log(pace) * PASSES_WATCHED > most:
                    break
            past.observe(x)
        return x, len(changes), False

    def _pass(self, source: Floats, x: Floats) -> float:
        from lingendice.kernels.absorbing_sweeps import relax_rows

        largest = 0.0
        for first, last in self.ranges:
            self.monitor.check()
            relax_rows(*self.arrays, self.leaving, source, x, first, last, 1)
        for first, last in reversed(self.ranges):
            self.monitor.check()
            change = relax_rows(*self.arrays, self.leaving, source, x, last - 1, first - 1, -1)
            largest = max(largest, change)
        return largest

    def _residual(self, source: Floats, x: Floats, scale: Floats) -> tuple[float, float]:
        from lingendice.kernels.absorbing_sweeps import residual_ratio

        found = [
            residual_ratio(*self.arrays, self.leaving, source, x, scale, first, last)
            for first, last in self.ranges
        ]
        return min(least for least, _ in found), max(largest for _, largest in found)
