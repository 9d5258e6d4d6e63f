"""Relative values of a large sparse irreducible chain at gamma = 1, by the levels of the stationary solver.

Solves ``(I - P) h = r - g`` with ``g = x'r`` and ``x'h = 0``, given the stationary distribution ``x``. In
terms of the
chain watched when it moves, ``h_i = d_i + sum_j Q_ij h_j`` with ``d_i = stay_i (r_i - g)``: Gauss-Seidel by
rows, with corrections constant on blocks, whose equations are weighted by the distribution. Each cycle costs
a few passes over the weights. The right side is known, so the residual certifies the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels.chains import aggregation_steps as kernels
from lingendice.kernels.chains.gth_dense import dense_bias, dense_factor
from lingendice.kernels.parallel import resolve_threads
from lingendice.solvers.aggregation import WORTH_MIXING
from lingendice.solvers.control import Monitor, Stopped
from lingendice.solvers.gauss_seidel import Extrapolation
from lingendice.solvers.levels import (
    DENSE_LIMIT,
    FloatArray,
    Indices,
    IntArray,
    Level,
    choose_blocks,
    gap_blocks,
    jump_chain,
    rows,
)

SWEEPS = 2
VISITS = 2
PLAIN = 4  # cycles before acceleration may start
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class AdjointResult:
    """Relative values and their certificate.

    ``residual`` is the largest ``|r_i - g - ((I - P) h)_i|`` times the mean stay in ``i``, relative to the
    largest right side so scaled. ``floor`` is the part of it that rounding of ``h`` alone explains; on nearly
    decomposable chains, where ``h`` is as large as the inverse coupling, no vector of doubles does better.
    ``change`` is the last change of ``h`` relative to its largest entry.
    """

    h: FloatArray
    gain: float
    residual: float
    floor: float
    change: float
    converged: bool
    stopped: bool
    cycles: int


@dataclass
class Rung:
    """One chain of the ladder by rows, and how its states fall into the blocks of the next."""

    start: IntArray
    target: Indices
    weight: FloatArray
    level: Level
    y: FloatArray
    label: Indices
    outflow: FloatArray

    def sweep(self, d: FloatArray, h: FloatArray, forward: bool) -> None:
        for first, last in self.level.ranges if forward else reversed(self.level.ranges):
            self.level.tick()
            kernels.row_sweep(self.start, self.target, self.weight, d, h, first, last, forward)

    def residual(self, d: FloatArray, h: FloatArray) -> FloatArray:
        out = np.empty(h.size)
        for first, last in self.level.ranges:
            self.level.tick()
            kernels.row_residual(self.start, self.target, self.weight, d, h, first, last, out)
        return out


@dataclass
class Ladder:
    """Chains between blocks, built once for a known distribution, down to one that is eliminated."""

    rungs: list[Rung]
    front: FloatArray
    exits: FloatArray

    def cycle(self, depth: int, d: FloatArray, h: FloatArray) -> None:
        """Improve ``h`` in place on the rung ``depth``."""
        if depth == len(self.rungs):
            h += dense_bias(self.front, self.exits, d, np.ones(d.size))[1]
            return
        rung = self.rungs[depth]
        for _ in range(SWEEPS):
            rung.sweep(d, h, True)
        coarse = kernels.restrict(rung.label, rung.y, rung.residual(d, h), rung.outflow)
        c = np.zeros(coarse.size)
        for _ in range(1 if depth + 1 == len(self.rungs) else VISITS):
            self.cycle(depth + 1, coarse, c)
        kernels.add_blocks(h, rung.label, c)
        for _ in range(SWEEPS):
            rung.sweep(d, h, False)


def _ladder(level: Level, y: FloatArray) -> Ladder:
    rungs: list[Rung] = []
    use_gaps = True
    while level.size > DENSE_LIMIT:
        label, count = gap_blocks(level) if use_gaps else (None, 1)
        if label is None:
            use_gaps = False
            choose_blocks(level, y)
        else:
            level.use_blocks(label, count, gap=True)
        assert level.label is not None
        coarse, outflow = level.coarse(y)
        if not outflow.min() > 0.0:
            raise ValueError(
                "the distribution underflows between blocks of states: relative values cannot be found"
            )
        rungs.append(Rung(*rows(level), level, y, level.label, outflow))
        level, y = coarse, outflow
    dense = np.zeros((level.size, level.size))
    kernels.scatter_dense(level.start, level.source, level.weight, dense)
    front, exits, _ = dense_factor(dense)
    return Ladder(rungs, front, exits)


def solve_adjoint(
    indptr: IntArray,
    indices: NDArray[np.int32],
    data: FloatArray,
    x: FloatArray,
    reward: FloatArray,
    *,
    tol: float = 1e-10,
    max_cycles: int = 200,
    threads: int | None = None,
    monitor: Monitor | None = None,
) -> AdjointResult:
    """Relative values ``h`` of ``reward`` under the chain with stationary distribution ``x``.

    Parameters
    ----------
    indptr, indices, data
        CSR weights as for ``solve_stationary``.
    x, reward
        Stationary distribution and one-step reward of every state.
    tol
        Bound on the residual and on the last change, both relative (see ``AdjointResult``); a residual that
        rounding of ``h`` alone explains is accepted and reported.
    max_cycles, threads, monitor
        As for ``solve_stationary``.
    """
    if not (np.all(x > 0.0) and np.isfinite(x.sum())):
        raise ValueError(f"x must be positive, but x[{int(np.argmin(x))}] is {np.min(x)!r}")
    chain = jump_chain(indptr, indices, data, (monitor or Monitor()).check, resolve_threads(threads))
    level = chain.level
    gain = float(np.dot(x, reward))
    x = x[chain.order]
    d = chain.stay * (reward[chain.order] - gain)
    h = np.zeros(level.size)
    scale = float(np.max(np.abs(d), initial=0.0))
    if scale == 0.0 or level.size == 1:
        return AdjointResult(h, gain, 0.0, 0.0, 0.0, True, False, 0)
    residual, floor, change, cycles, converged, stopped = 1.0, 0.0, np.inf, 0, False, False
    mixer: Extrapolation | None = None
    try:
        ladder = _ladder(level, x / chain.stay)
        for cycles in range(1, max_cycles + 1):
            image = h.copy()
            ladder.cycle(0, d, image)
            image -= np.dot(x, image)
            largest = float(np.max(np.abs(image)))
            before, change = change, float(np.max(np.abs(image - h))) / largest
            floor = 4.0 * EPSILON * largest / scale
            left = ladder.rungs[0].residual(d, image) if ladder.rungs else np.zeros(1)
            residual = float(np.max(np.abs(left))) / scale
            if mixer is None and cycles >= PLAIN and change > WORTH_MIXING * before:
                mixer = Extrapolation(h, depth=8, period=1, power=0.0)
            h, h_next = image, image
            if mixer is not None:
                h_next = image.copy()
                mixer.observe(h_next)
            if not ladder.rungs or (change <= tol and residual <= max(tol, floor)):
                converged = True
                break
            h = h_next
    except Stopped:
        stopped = True
    h = chain.by_state(h - np.dot(x, h))
    return AdjointResult(h, gain, residual, floor, change, converged, stopped, cycles)
