"""Stationary distributions and values for gamma < 1 on large sparse chains: Gauss-Seidel with certified
errors.

PageRank is the best known case. The operator is sparse plus a few leaks,

    T = diag(keep) P + H L,      rows of T sum to one,

with P the row-normalized matrix, H (n x K) the chance of leaving for each of K <= 3 distributions, L (K x n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.kernels.chains import sparse_rows as sparse
from lingendice.kernels.parallel import resolve_threads
from lingendice.solvers.control import Stopped
from lingendice.solvers.gauss_seidel import PATIENCE, SINGLE_PRECISION, Blocks, Relaxation, component_order
from lingendice.solvers.numbering import lacks_locality
from lingendice.solvers.pull_system import (
    FloatArray,
    IntArray,
    PullSystem,
    never,
    row_ranges,
    row_system,
    transposed_system,
)

MAX_DISTRIBUTIONS = 3
_TIGHTENINGS = 6
# Passes without a new least change after which rounding is taken to have the last word.
STALLED = 20


@dataclass(frozen=True)
class LeakyChain:
    """Sparse chain ``T = diag(keep) P + H L``.

    Parameters
    ----------
    indptr, indices
        Compressed rows; row i lists the targets of node i.
    data
        Positive weights with any row scaling; None means that all are equal.
    keep
        Chance that node i follows its row; None: one where the row is nonempty, else zero.
    leak, distributions
        H and L; None sends what is not kept to the initial distribution (``discounted_distribution``) or to
        the uniform distribution (``discounted_values``, unless one is given there).
    """

    indptr: ArrayLike
    indices: ArrayLike
    data: ArrayLike | None = None
    keep: ArrayLike | None = None
    leak: ArrayLike | None = None
    distributions: ArrayLike | None = None


@dataclass(frozen=True)
class DiscountedResult:
    """Outcome of a discounted solve.

    ``residual`` is that of ``solution`` itself, computed after the last sweep: its L1 norm for a
    distribution,
    its largest entry for values. ``error_bound = residual / (1 - gamma)`` bounds the error in the same
    norm. ``history`` holds the residual as estimated after each sweep.
    """

    solution: FloatArray
    residual: float
    error_bound: float
    sweeps: int
    converged: bool
    history: FloatArray


@dataclass(frozen=True)
class _Arrays:
    """A chain with every default resolved and every array in the form kernels take."""

    indptr: IntArray
    indices: NDArray[np.signedinteger]
    data: FloatArray  # empty where the weights of each row are equal
    share: FloatArray  # keep / row sum: the chance sent along an edge of weight one
    keep: FloatArray
    leak: FloatArray
    distributions: FloatArray


def _check_distribution(distribution: ArrayLike | None, size: int, name: str) -> FloatArray:
    if distribution is None:
        return np.full(size, 1.0 / size)
    values = np.ascontiguousarray(distribution, dtype=np.float64)
    if values.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {values.shape}")
    if not (np.isfinite(values).all() and (values >= 0.0).all()):
        raise ValueError(f"{name} must be finite and nonnegative: entry {int(np.argmin(values))} is not")
    if abs(values.sum() - 1.0) > 1e-9:
        raise ValueError(f"{name} must sum to 1, its sum is {values.sum()!r}")
    return values


def _resolve(
    chain: LeakyChain, default_distribution: FloatArray | None, should_stop: Callable[[], bool]
) -> _Arrays:
    indptr = np.ascontiguousarray(chain.indptr, dtype=np.int64)
    indices = np.ascontiguousarray(chain.indices)
    if indices.dtype not in (np.int32, np.int64) or (indices.dtype == np.int64 and indptr.size <= 2**31):
        indices = indices.astype(np.int32 if indptr.size <= 2**31 else np.int64)
    size = indptr.size - 1
    if size < 1 or indptr[0] != 0 or indptr[-1] != indices.size or (np.diff(indptr) < 0).any():
        raise ValueError("indptr must rise from 0 to len(indices) and describe at least one row")
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        raise ValueError(f"indices must lie in [0, {size})")
    data, total = _row_weights(indptr, indices, chain.data, should_stop)
    keep = np.where(total > 0.0, 1.0, 0.0) if chain.keep is None else np.asarray(chain.keep, np.float64)
    if keep.shape != (size,) or not ((keep >= 0.0) & (keep <= 1.0)).all():
        raise ValueError(f"keep must hold {size} numbers in [0, 1]")
    if (keep[total == 0.0] > 0.0).any():
        node = int(np.flatnonzero((total == 0.0) & (keep > 0.0))[0])
        raise ValueError(f"keep[{node}] is positive but row {node} is empty")
    if chain.leak is None:
        leak = (1.0 - keep)[:, None]
        distributions = (np.full(size, 1.0 / size) if default_distribution is None else default_distribution)[
            None, :
        ]
    else:
        leak = np.asarray(chain.leak, np.float64).reshape(size, -1)
        distributions = np.atleast_2d(np.asarray(chain.distributions, np.float64))
        if distributions.shape != (leak.shape[1], size) or not 1 <= leak.shape[1] <= MAX_DISTRIBUTIONS:
            raise ValueError(
                f"distributions must have one row of {size} for each of 1 to {MAX_DISTRIBUTIONS} columns "
                f"of leak"
            )
        for k, distribution in enumerate(distributions):
            _check_distribution(distribution, size, f"distributions[{k}]")
        if (leak < 0.0).any() or (np.abs(keep + leak.sum(axis=1) - 1.0) > 1e-9).any():
            raise ValueError("leak must be nonnegative and keep + leak.sum(axis=1) must be 1 in every row")
    share = keep / np.where(total > 0.0, total, 1.0)
    return _Arrays(indptr, indices, data, share, keep, leak, distributions)


def _row_weights(
    indptr: IntArray, indices: NDArray, weights: ArrayLike | None, should_stop: Callable[[], bool]
) -> tuple[FloatArray, FloatArray]:
    """Weights (empty where rows are uniform) and the sum of each row."""
    count = np.diff(indptr).astype(np.float64)
    if weights is None:
        return np.empty(0), count
    data = np.ascontiguousarray(weights, dtype=np.float64)
    if data.shape != indices.shape:
        raise ValueError(f"data has shape {data.shape}, indices {indices.shape}")
    ranges = row_ranges(indptr, 0, indptr.size - 1)
    if all(sparse.rows_are_uniform(indptr, data, first, last) for first, last in ranges):
        return np.empty(0), count
    if not (np.isfinite(data).all() and (data >= 0.0).all()):
        raise ValueError("data must be finite and nonnegative")
    total = np.empty(indptr.size - 1)
    for first, last in ranges:
        if should_stop():
            raise Stopped
        sparse.row_sums(indptr, data, first, last, total)
    return data, total


def _check_common(gamma: float, tol: float, max_sweeps: int) -> None:
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma!r}")
    if not (tol > 0.0 and math.isfinite(tol)):
        raise ValueError(f"tol must be positive, got {tol!r}")
    if max_sweeps < 1:
        raise ValueError(f"max_sweeps must be at least 1, got {max_sweeps!r}")


def discounted_distribution(
    chain: LeakyChain,
    gamma: float,
    initial: ArrayLike | None = None,
    *,
    tol: float = 1e-10,
    threads: int | None = None,
    max_sweeps: int = 100_000,
    should_stop: Callable[[], bool] = never,
    on_step: Callable[[int, float], object] | None = None,
) -> DiscountedResult:
    """Solve ``mu = (1 - gamma) mu0 + gamma T' mu``, ``sum mu = 1``, to an L1 error of ``tol``.

    Parameters
    ----------
    chain
        The operator T.
    gamma
        Discount (PageRank's damping), in [0, 1).
    initial
        mu0; None is uniform.
    tol
        Bound on the L1 error, certified by the residual of the returned vector.
    threads
        Cores to use; None takes all. With one thread the result is the same bits on every run, with
        more it agrees within ``tol``.
    max_sweeps
        Most passes over all entries.
    should_stop
        Called several times a second; True ends the solve with the best distribution so far.
    on_step
        Called with the number of passes and the error as estimated, after every pass over the whole.

    Notes
    -----
    With R(v) the solution of ``x = v + gamma P' diag(keep) x``, mu is a nonnegative combination of
    R(mu0) and R(L_k): one solve for each distinct distribution. After every pass the inflow is rescaled so
    that the total balance holds exactly, so that the error falls at the pace of the second eigenvalue
    of the chain rather than of gamma. If that is still slow, the strongly connected components are
    solved one after another, upstream first. Each pass costs O(entries): 4 bytes an entry are read
    where rows are uniform, else 12. Memory beside the input: 4 (or 12) bytes an entry and about
    160 bytes a node (twice that again where convergence is so slow that sweeps are extrapolated).
    """
    _check_common(gamma, tol, max_sweeps)
    size = np.size(chain.indptr) - 1
    start = _check_distribution(initial, size, "initial")
    try:
        arrays = _resolve(chain, start, should_stop)
        solver = _DistributionSolver(
            arrays, gamma, start, resolve_threads(threads), max_sweeps, should_stop, on_step
        )
    except Stopped:
        # Nothing is known but that T' keeps mass: the residual of any distribution is at most 2 gamma.
        return DiscountedResult(start, 2.0 * gamma, 2.0 * gamma / (1.0 - gamma), 0, False, np.empty(0))
    return solver.run(tol * (1.0 - gamma))


class _DistributionSolver:
    """State of one ``discounted_distribution`` call: the system, one solution R(v) a distinct distribution,
    and the tally."""

    def __init__(
        self, arrays: _Arrays, gamma: float, start: FloatArray, threads: int, max_sweeps: int,
        should_stop: Callable[[], bool], on_step: Callable[[int, float], object] | None,
    ) -> None:  # fmt: skip
        self.on_step = on_step
        self.arrays, self.gamma, self.start = arrays, gamma, start
        self.max_sweeps, self.sweeps = max_sweeps, 0.0
        self.history: list[float] = []
        # Equal distributions share one solve; which[k] says which distinct distribution leak column k goes
        # to.
        self.distributions = [start]
        self.which: list[int] = []
        for distribution in arrays.distributions:
            same = [
                k
                for k, known in enumerate(self.distributions)
                if known is distribution or np.array_equal(known, distribution)
            ]
            if not same:
                self.distributions.append(distribution)
            self.which.append(same[0] if same else len(self.distributions) - 1)
        by_degree = lacks_locality(arrays.indptr, arrays.indices)
        self.blocks: Blocks | None = None
        self.may_split = True
        system = transposed_system(
            arrays.indptr, arrays.indices, arrays.data,
            by_degree=by_degree, threads=threads, should_stop=should_stop,
        )  # fmt: skip
        self._adopt(system.interleaved() if by_degree else system)
        self.parts = [inflow.copy() for inflow in self.inflows]

    def _adopt(self, system: PullSystem) -> None:
        """Lay the vectors out in the row order of a system."""
        self.system = system
        self.c = system.sorted(self.gamma * self.arrays.share)
        self.f = 1.0 / (1.0 - self.c * system.loops)
        self.loss = system.sorted((1.0 - self.gamma) + self.gamma * (1.0 - self.arrays.keep))
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
            error_bound=residual / (1.0 - self.gamma),
            sweeps=math.ceil(self.sweeps),
            converged=residual <= target,
            history=np.array(self.history),
        )

    def _certified_distribution(self) -> tuple[FloatArray, float]:
        """The distribution made of the parts, by node number, and the L1 norm of its residual."""
        gamma, system = self.gamma, self.system
        if len(self.parts) == 1:
            # Every leak goes to mu0: what is not passed on along edges comes back from there.
            distribution = self.parts[0] / self.parts[0].sum()
            base = float(self.loss @ distribution) * self.inflows[0]
        else:
            # Hub masses: m = H' mu with mu = (1 - gamma) R(mu0) + gamma sum_k m_k R(L_k).
            leak = system.sorted(self.arrays.leak)
            returns = np.array([leak.T @ part for part in self.parts]).T
            mixing = np.eye(leak.shape[1]) - gamma * returns[:, self.which]
            masses = np.linalg.solve(mixing, (1.0 - gamma) * returns[:, 0])
            distribution = (1.0 - gamma) * self.parts[0]
            for k, mass in zip(self.which, masses, strict=True):
                distribution += gamma * mass * self.parts[k]
            distribution /= distribution.sum()
            base = (1.0 - gamma) * self.inflows[0]
            for k, mass in zip(self.which, leak.T @ distribution, strict=True):
                base += gamma * mass * self.inflows[k]
        patient = replace(system, should_stop=never)
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
        if system.chunks is not None and goal < SINGLE_PRECISION and not self.history:
            y = y.astype(np.float32)
        relaxation = Relaxation(
            system, system.indptr[:-1], system.indptr[1:], self.f, g, self.c, self.loss, x, y,
            0, system.size, 1.0,
        )  # fmt: skip
        left = math.inf  # where earlier parts have used up the sweeps
        try:
            while self.sweeps < self.max_sweeps:
                relaxation.step()
                self.sweeps += 1
                self.history.append(relaxation.estimate / relaxation.mass)
                if self.on_step is not None:
                    self.on_step(int(self.sweeps), self.history[-1] / (1.0 - self.gamma))
                if self.history[-1] < SINGLE_PRECISION:
                    relaxation.refine()
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
        arrays, old = self.arrays, self.system
        found = component_order(arrays.indptr, arrays.indices)
        if found is None:
            return
        order, start = found
        parts = [old.unsorted(part) for part in self.parts]
        system = transposed_system(
            arrays.indptr, arrays.indices, arrays.data,
            order=order, threads=old.threads, should_stop=old.should_stop,
        )  # fmt: skip
        self.blocks = Blocks.of(system, start)
        self._adopt(system)
        self.parts = [system.sorted(part) for part in parts]


def discounted_values(
    chain: LeakyChain,
    reward: ArrayLike,
    gamma: float,
    *,
    tol: float = 1e-10,
    threads: int | None = None,
    max_sweeps: int = 100_000,
    should_stop: Callable[[], bool] = never,
) -> DiscountedResult:
    """Solve ``V = r + gamma T V`` to an error of ``tol`` in every entry (sup norm).

    Parameters
    ----------
    chain
        The operator T; with ``leak`` None, what is not kept goes to the uniform distribution.
    reward
        r, one number a node.
    gamma, threads, max_sweeps, should_stop
        As for ``discounted_distribution``.
    tol
        Bound on the largest error, certified by the residual of the returned vector.

    Notes
    -----
    No transpose is needed. Since rows of T sum to one, a constant added to V changes every entry of the
    residual alike, so plain passes ``V <- r + gamma T V`` that center the residual converge at the pace
    of the second eigenvalue of the chain. Where that is slow, Gauss-Seidel passes take over (at worst
    a factor gamma each); leaks enter both through ``L V``, refreshed before every pass. Each pass
    costs O(entries).
    """
    _check_common(gamma, tol, max_sweeps)
    gain = np.ascontiguousarray(reward, dtype=np.float64)
    size = np.size(chain.indptr) - 1
    if gain.shape != (size,) or not np.isfinite(gain).all():
        raise ValueError(f"reward must hold {size} finite numbers")
    try:
        arrays = _resolve(chain, None, should_stop)
        system = row_system(
            arrays.indptr, arrays.indices, arrays.data,
            threads=resolve_threads(threads), should_stop=should_stop,
        )  # fmt: skip
    except Stopped:
        residual = float(np.abs(gain).max())
        return DiscountedResult(np.zeros(size), residual, residual / (1.0 - gamma), 0, False, np.empty(0))
    return _ValueSolver(arrays, system, gain, gamma).run(tol * (1.0 - gamma), max_sweeps)


class _ValueSolver:
    """State of one ``discounted_values`` call."""

    def __init__(self, arrays: _Arrays, system: PullSystem, gain: FloatArray, gamma: float) -> None:
        self.arrays, self.system, self.gain, self.gamma = arrays, system, gain, gamma
        self.factor = gamma * arrays.share
        self.has_leak = bool((arrays.leak > 0.0).any())
        self.values = np.zeros(gain.size)
        self.image = np.empty(gain.size)
        self.history: list[float] = []

    def inflow(self) -> FloatArray:
        """What a row gets from its reward and its leaks: ``r + gamma H L V``."""
        if not self.has_leak:
            return self.gain
        return self.gain + self.gamma * (self.arrays.leak @ (self.arrays.distributions @ self.values))

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
            system, system.indptr[:-1], system.indptr[1:], self.factor * pivot, self.gain, ones, zeros,
            values, values.copy(), 0, values.size, 0.0,
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
        patient = replace(self.system, should_stop=never)
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
            error_bound=residual / (1.0 - self.gamma),
            sweeps=len(self.history),
            converged=residual <= target,
            history=np.array(self.history),
        )
