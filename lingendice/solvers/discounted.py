"""Stationary distributions and values for gamma < 1 on large sparse chains: Gauss-Seidel with certified
errors.

PageRank is the best known case. The chain is sparse plus a few hubs,

    T = diag(keep) P + H L,      rows of T sum to one,

with P the row-normalized matrix, H (n x K) the chance of leaving for each of K hubs, L (K x n) their
distributions: the ``out`` and ``distribution`` of :class:`lingendice.model.transition_rows.TransitionRows`.

References
----------
A. Arasu, J. Novak, A. Tomkins, J. Tomlin (2002). PageRank computation and the structure of the Web:
    Experiments and algorithms. WWW.
D. F. Gleich (2015). PageRank beyond the Web. SIAM Review 57.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from lingendice.kernels.parallel import resolve_threads
from lingendice.model.pull_system import FloatArray, PullSystem, go_on
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers.control import Monitor, Stopped
from lingendice.solvers.gauss_seidel import PATIENCE, Blocks, Relaxation, component_order

_TIGHTENINGS = 6
# Passes without a new least change after which rounding is taken to have the last word.
STALLED = 20


@dataclass(frozen=True)
class DiscountedResult:
    """Outcome of a discounted solve.

    ``residual`` is that of ``solution`` itself, computed after the last sweep: its L1 norm for a
    distribution, its largest entry for values. Over 1 - gamma it bounds the error in the same norm.
    ``history`` holds the residual as estimated after each sweep.
    """

    solution: FloatArray
    residual: float
    sweeps: int
    converged: bool
    history: FloatArray


def discounted_distribution(
    chain: TransitionRows,
    gamma: float,
    initial: FloatArray,
    *,
    tol: float = 1e-10,
    threads: int | None = None,
    max_sweeps: int = 100_000,
    monitor: Monitor | None = None,
    system: PullSystem | None = None,
) -> DiscountedResult:
    """Solve ``mu = (1 - gamma) mu0 + gamma T' mu``, ``sum mu = 1``, to an L1 error of ``tol``.

    The residual of the returned vector certifies it. Rows of T, the ``chain``, sum to 1
    (``TransitionRows.returning``). With one thread the result is the same bits on every run, with more it
    agrees within ``tol``; None takes all cores. The ``monitor`` is asked several times per second; after
    every pass over the whole it notes the error as estimated. ``system`` is the chain's pull form where it
    was made before.

    Notes
    -----
    With R(v) the solution of ``x = v + gamma P' diag(keep) x``, mu is a nonnegative combination of
    R(mu0) and R(L_k): one solve for each distinct distribution. After every pass the inflow is rescaled so
    that the total balance holds exactly, so that the error falls at the pace of the second eigenvalue
    of the chain rather than of gamma. If that is still slow, the strongly connected components are
    solved one after another, upstream first. Each pass costs O(entries): 4 bytes per entry are read
    where rows are uniform, else 12. Memory beside the input: 4 (or 12) bytes per entry and about
    160 bytes per node (twice that again where convergence is so slow that sweeps are extrapolated).
    """
    try:
        solver = _DistributionSolver(
            chain, gamma, initial, resolve_threads(threads), max_sweeps, monitor or Monitor(), system
        )
    except Stopped:
        # Nothing is known but that T' keeps mass: the residual of any distribution is at most 2 gamma.
        return DiscountedResult(initial, 2.0 * gamma, 0, False, np.empty(0))
    return solver.run(tol * (1.0 - gamma))


class _DistributionSolver:
    """State of one ``discounted_distribution`` call: the system, one solution R(v) per distinct distribution,
    and the tally."""

    def __init__(
        self, chain: TransitionRows, gamma: float, start: FloatArray, threads: int, max_sweeps: int,
        monitor: Monitor, system: PullSystem | None = None,
    ) -> None:  # fmt: skip
        self.monitor = monitor
        self.chain, self.gamma, self.start = chain, gamma, start
        self.max_sweeps, self.sweeps = max_sweeps, 0.0
        self.history: list[float] = []
        # Equal distributions share one solve; which[k] says which distinct distribution hub k has.
        self.distributions = [start]
        self.which: list[int] = []
        for distribution in chain.distribution:
            same = [k for k, known in enumerate(self.distributions) if np.array_equal(known, distribution)]
            self.which.append(same[0] if same else len(self.distributions))
            if not same:
                self.distributions.append(distribution)
        self.blocks: Blocks | None = None
        self.may_split = True
        self._adopt(system or chain.pull(threads, monitor.check))
        self.parts = [inflow.copy() for inflow in self.inflows]

    def _adopt(self, system: PullSystem) -> None:
        """Lay the vectors out in the row order of a system."""
        self.system = system
        self.c = system.sorted(self.gamma * self.chain.counted.share)
        self.f = 1.0 / (1.0 - self.c * system.loops)
        self.loss = system.sorted((1.0 - self.gamma) + self.gamma * (1.0 - self.chain.keep))
        self.inflows = [system.sorted(distribution) for distribution in self.distributions]

    def run(self, target: float) -> DiscountedResult:
        """Solve, check the residual, and tighten until it meets ``target`` or no longer falls."""
        goal = target
        best: tuple[float, FloatArray] = (math.inf, self.start)
        for _ in range(_TIGHTENINGS):
            try:
                for part in range(len(self.parts)):
                    self._solve(part, goal)
                stopped = self.sweeps >= self.max_sweeps
            except Stopped:
                stopped = True
            distribution, residual = self._certified_distribution()
            improved = residual < 0.5 * best[0]
            if residual < best[0]:
                best = residual, distribution
            if residual <= target or stopped or not improved:
                break
            goal *= 0.3 * target / residual
        residual, distribution = best
        return DiscountedResult(
            solution=distribution,
            residual=residual,
            sweeps=math.ceil(self.sweeps),
            converged=residual <= target,
            history=np.array(self.history),
        )

    def _certified_distribution(self) -> tuple[FloatArray, float]:
        """The distribution made of the parts, by node number, and the L1 norm of its residual."""
        gamma, system = self.gamma, self.system
        if len(self.parts) == 1:
            # Every hub is mu0: what is not passed on along edges comes back from there.
            distribution = self.parts[0] / self.parts[0].sum()
            base = float(self.loss @ distribution) * self.inflows[0]
        else:
            # Hub masses: m = H' mu with mu = (1 - gamma) R(mu0) + gamma sum_k m_k R(L_k).
            out = system.sorted(self.chain.out)
            returns = np.array([out.T @ part for part in self.parts]).T
            mixing = np.eye(out.shape[1]) - gamma * returns[:, self.which]
            masses = np.linalg.solve(mixing, (1.0 - gamma) * returns[:, 0])
            distribution = (1.0 - gamma) * self.parts[0]
            for k, mass in zip(self.which, masses, strict=True):
                distribution += gamma * mass * self.parts[k]
            distribution /= distribution.sum()
            base = (1.0 - gamma) * self.inflows[0]
            for k, mass in zip(self.which, out.T @ distribution, strict=True):
                base += gamma * mass * self.inflows[k]
        patient = replace(system, tick=go_on)
        residual = patient.imbalance(distribution, self.c * distribution, base)
        return system.unsorted(distribution), residual

    def _solve(self, part: int, goal: float) -> None:
        """Bring one part to a residual of ``goal`` relative to its mass."""
        if self.blocks is None:
            self._solve_whole(part, goal)
        if self.blocks is not None:
            x = self.parts[part]
            g = self.f * self.inflows[part]
            self.sweeps += self.blocks.solve(
                self.f, g, self.c, self.loss, x, goal * x.sum() / x.size, self.max_sweeps - self.sweeps
            )

    def _solve_whole(self, part: int, goal: float) -> None:
        system = self.system
        x = self.parts[part]
        g = self.f * self.inflows[part]
        y = self.c * x
        relaxation = Relaxation(
            system, system.rows, self.f, g, self.c, self.loss, x, y, 0, system.size, supply=1.0
        )
        left = math.inf  # where earlier parts have used up the sweeps
        try:
            while self.sweeps < self.max_sweeps:
                relaxation.step()
                self.sweeps += 1
                self.history.append(relaxation.estimate / relaxation.mass)
                self.monitor.note(int(self.sweeps), self.history[-1] / (1.0 - self.gamma))
                left = relaxation.passes_left(goal * relaxation.mass)
                if left == 0.0 or (left > PATIENCE and self.may_split):
                    break
                if relaxation.extrapolation is not None or left > PATIENCE:
                    relaxation.accelerate()
        finally:
            relaxation.finish()
        if left > 0.0 and self.may_split and self.sweeps < self.max_sweeps:
            self._split()
            if self.blocks is None:
                self._solve_whole(part, goal)

    def _split(self) -> None:
        """Go over to strongly connected components, unless one of them holds nearly everything."""
        self.may_split = False
        counted, old = self.chain.counted, self.system
        found = component_order(counted.indptr, counted.indices)
        if found is None:
            return
        order, start = found
        parts = [old.unsorted(part) for part in self.parts]
        system = self.chain.pull(old.threads, old.tick, order)
        self.blocks = Blocks.of(system, start)
        self._adopt(system)
        self.parts = [system.sorted(part) for part in parts]


def discounted_values(
    chain: TransitionRows,
    reward: FloatArray,
    gamma: float,
    *,
    tol: float = 1e-10,
    threads: int | None = None,
    max_sweeps: int = 100_000,
    monitor: Monitor | None = None,
) -> DiscountedResult:
    """Solve ``V = r + gamma T V`` to an error of ``tol`` in every entry (sup norm).

    The residual of the returned vector certifies it. Arguments are those of ``discounted_distribution``, with
    the reward in the place of the initial distribution.

    Notes
    -----
    No transpose is needed. Since rows of T sum to one, a constant added to V changes every entry of the
    residual alike, so plain passes ``V <- r + gamma T V`` that center the residual converge at the pace
    of the second eigenvalue of the chain. Where that is slow, Gauss-Seidel passes take over (at worst
    a factor gamma each); hubs enter both through ``L V``, refreshed before every pass. Each pass
    costs O(entries).
    """
    system = chain.pull_values(resolve_threads(threads), (monitor or Monitor()).check)
    solver = _ValueSolver(chain, gamma * chain.counted.share, system, reward, gamma)
    return solver.run(tol * (1.0 - gamma), max_sweeps)


class _ValueSolver:
    """State of one ``discounted_values`` call."""

    def __init__(
        self, chain: TransitionRows, factor: FloatArray, system: PullSystem, gain: FloatArray, gamma: float
    ) -> None:
        self.chain, self.factor, self.system, self.gain, self.gamma = chain, factor, system, gain, gamma
        self.has_hubs = bool((chain.out > 0.0).any())
        self.values = np.zeros(gain.size)
        self.image = np.empty(gain.size)
        self.history: list[float] = []

    def inflow(self) -> FloatArray:
        """What a row gets from its reward and its hubs: ``r + gamma H L V``."""
        if not self.has_hubs:
            return self.gain
        return self.gain + self.gamma * (self.chain.out @ (self.chain.distribution @ self.values))

    def check(self, system: PullSystem) -> tuple[float, float]:
        """Bounds of the residual; leaves ``r + gamma T V`` in ``image``."""
        return system.residual(self.values, self.values, self.inflow(), self.factor, self.image)[1:]

    def plain_passes(self, target: float, max_sweeps: int) -> None:
        """``V <- r + gamma T V`` plus the constant that centers the residual.

        The spread of the residual falls by the chain's second eigenvalue times gamma. Ends early
        once that proves no faster than Gauss-Seidel.
        """
        while len(self.history) < max_sweeps:
            low, high = self.check(self.system)
            spread = (high - low) / 2.0
            # Centering the image by the residual of V centers that of the image too, to first order.
            self.values[:] = self.image + self.gamma * (low + high) / 2.0 / (1.0 - self.gamma)
            self.history.append(spread)
            if spread * self.gamma <= 0.5 * target:
                return
            if len(self.history) > 8:
                pace = (spread / self.history[-9]) ** 0.125 if self.history[-9] > 0.0 else 0.0
                left = math.inf if pace >= 1.0 else math.log(target / spread) / math.log(pace)
                if left > PATIENCE and pace > self.gamma**2:
                    return

    def sweeps(self, target: float, max_sweeps: int) -> None:
        """Gauss-Seidel passes, until the largest residual meets the target or no longer falls."""
        system, values = self.system, self.values
        pivot = 1.0 / (1.0 - self.factor * system.loops)
        ones, zeros = np.ones(values.size), np.zeros(values.size)
        relaxation = Relaxation(
            system, system.rows, self.factor * pivot, self.gain, ones, zeros, values, values.copy(),
            0, values.size, supply=0.0,
        )  # fmt: skip
        least, stalled = math.inf, 0
        while len(self.history) < max_sweeps and stalled < STALLED:
            relaxation.inflow = pivot * self.inflow()
            relaxation.step()
            self.history.append(relaxation.largest)
            stalled = 0 if relaxation.largest < least else stalled + 1
            least = min(least, relaxation.largest)
            if relaxation.largest <= target:
                return

    def run(self, target: float, max_sweeps: int) -> DiscountedResult:
        """Plain passes while they are quick, Gauss-Seidel otherwise, then the certificate."""
        patient = replace(self.system, tick=go_on)
        try:
            self.plain_passes(target, max_sweeps)
            if max(map(abs, self.check(self.system))) > target:
                self.sweeps(target, max_sweeps)
        except Stopped:
            pass
        residual = max(map(abs, self.check(patient)))
        return DiscountedResult(
            solution=self.values,
            residual=residual,
            sweeps=len(self.history),
            converged=residual <= target,
            history=np.array(self.history),
        )
