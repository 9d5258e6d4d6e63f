"""Stationary laws on the device: damped steps, extrapolated every few, checked without waiting.

A cycle makes DEPTH steps of ``x -> x + damping (start + gamma T' x - x)`` and replaces the first iterate by
the mix of the others whose change is least (reduced rank extrapolation). The first step of a cycle measures
the residual of the mix, and a flag on the device turns all that follows into nothing once it is small
enough; the host reads the flag every few cycles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from lingendice.gpu.catalogue import DEPTHS
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.equation import (
    CHECKED,
    CHECKS,
    ERROR,
    RESCALED,
    RESIDUAL,
    SCRATCH,
    SLOTS,
    SLOWEST,
    STEPPED,
    STEPS,
    WEIGHED,
    Equation,
)  # fmt: skip
from lingendice.solvers.iterate import Outcome, Step, Stop

DEPTH = DEPTHS[0]
POLL_SECONDS = 0.1
CYCLES_AT_MOST = 20_000
STALLED, AT_ROUNDING = 200, 25
"""Cycles without a new least error after which slow mixing, or rounding, has the last word."""
LAZY = 0.5
"""Damping at gamma = 1: periodic chains have eigenvalues -1, which it turns into 0."""


def iterate_law(
    equation: Equation, first: Any, poll_every: int | None = None, max_iter: int | None = None
) -> Generator[Step, Stop | None, Outcome]:
    """Solve ``x = start + gamma T' x`` from ``first``; at gamma = 1 with total mass one.

    Parameters
    ----------
    equation
        The operator; its ``tol`` bounds the L1 error (gamma < 1) or the entrywise relative error as
        estimated (gamma = 1).
    first
        Where to begin, on the device.
    poll_every
        Cycles between two looks at the flag; None lets the time they take decide.
    max_iter
        Steps after which the caller will stop: no more than that are asked of the device at once.

    Returns
    -------
    Outcome
        Its ``law`` is a device array.

    Notes
    -----
    A cycle costs DEPTH passes over the matrix and DEPTH + 3 vectors of memory traffic besides.
    """
    device, n = equation.device, equation.n_in
    equation.reset()
    iterates = device.empty((DEPTH + 1) * n, equation.value_type)
    rows = [iterates[k * n : (k + 1) * n] for k in range(DEPTH + 1)]
    rows[0][:] = first
    equation.weigh(rows[0])
    cycle = _Cycle(equation, iterates, rows)
    repeat = cycle if equation.matrix.streamed else device.record(cycle)
    made = 1 if repeat is not cycle else 0  # recording runs the work once
    cycles, best, since, read = poll_every or 1, math.inf, 0, 0
    stop: Stop | None = None
    while True:
        began = time.perf_counter()
        if max_iter is not None:
            cycles = min(cycles, max(1, -(-(max_iter - read * DEPTH) // DEPTH)))
        for _ in range(cycles - made):
            repeat()
        made = 0
        scalars, done = device.download(equation.scalars), bool(device.download(equation.done)[0])
        error = float(scalars[ERROR])
        checks = int(scalars[CHECKS])
        since = 0 if error < 0.99 * best else since + checks - read
        best, read = min(best, error), checks
        patience = AT_ROUNDING if scalars[RESIDUAL] < 1e3 * equation.rounding else STALLED
        if done or since > patience or checks >= CYCLES_AT_MOST:
            break
        stop = yield Step(int(scalars[STEPS]), error)
        if stop is not None:
            break
        if poll_every is None:
            spent = time.perf_counter() - began
            cycles = max(1, min(2 * cycles, int(cycles * POLL_SECONDS / max(spent, 1e-6))))
    if not done:
        # The last mix has not been checked yet.
        equation.step(rows[0], rows[1], cycle.damping, CHECKED)
    return _outcome(equation, rows[0].copy())


def _outcome(equation: Equation, law: Any) -> Outcome:
    device, gamma = equation.device, equation.gamma
    scalars = device.download(equation.scalars)
    checks = int(scalars[CHECKS])
    kept = device.download(equation.history)
    size = kept.size
    history = kept[:checks] if checks <= size else np.roll(kept, -(checks % size))
    error = float(scalars[ERROR])
    return Outcome(
        law=law,
        method="power-extrapolated",
        reason=f"on {device.name}",
        converged=error <= equation.tol,
        n_iter=int(scalars[STEPS]),
        error=error,
        error_kind="bound" if gamma < 1.0 else "estimate",
        condition=None if gamma < 1.0 else 1.0 / (1.0 - float(scalars[SLOWEST])),
        residual=float(scalars[RESIDUAL]),
        history=tuple(history.tolist()),
    )


class _Cycle:
    """The launches of one cycle; they touch the same memory every time, so that they can be recorded."""

    def __init__(self, equation: Equation, iterates: Any, rows: list[Any]) -> None:
        self.equation, self.iterates, self.rows = equation, iterates, rows
        self.damping = 1.0 if equation.gamma < 1.0 else LAZY
        device = equation.device
        self.n_parts = n_blocks(device, equation.n_in, device.block)
        self.products = device.empty(DEPTH * (DEPTH + 1) // 2 * self.n_parts, np.float64)
        self.weights = device.empty(DEPTH, np.float64)

    def __call__(self) -> None:
        equation, device = self.equation, self.equation.device
        for k in range(DEPTH):
            equation.step(self.rows[k], self.rows[k + 1], self.damping, STEPPED if k else CHECKED)
        n, parts, depth = np.int32(equation.n_in), np.int32(self.n_parts), str(DEPTH)
        pairs = DEPTH * (DEPTH + 1) // 2
        launch(
            device, "change_products", (equation.value, depth), self.n_parts,
            (n, self.iterates, equation.done, self.products, parts), shared_bytes=pairs * SCRATCH,
        )  # fmt: skip
        launch(
            device, "mix_weights", (depth,), 1, (parts, self.products, equation.done, self.weights),
            shared_bytes=pairs * 8,
        )  # fmt: skip
        launch(
            device, "mix_iterates", (equation.value, depth), self.n_parts,
            (n, self.weights, equation.shares, np.int32(equation.n_hubs), equation.done, self.iterates,
             equation.partials, parts),
            shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip
        if equation.gamma < 1.0:
            equation.finish(self.n_parts, WEIGHED)
            return
        equation.finish(self.n_parts, RESCALED)
        for_each(device, "scale_law", (equation.value,), equation.n_in,
                 (n, equation.scalars, equation.done, self.rows[0]))  # fmt: skip


# -- which states reach which: one law or several ------------------------------------------------------------


class Reach:
    """Forward and backward reachability by products of the operator and of its transpose."""

    def __init__(self, forward: Equation, backward: Equation) -> None:
        self.forward, self.backward = forward, backward
        self.device: Device = forward.device
        self.grown = self.device.zeros(1, np.int32)

    def from_(self, marks: Any, equation: Equation) -> Any:
        """All that is reached from the marked states (or reaches them, with the transpose)."""
        n = equation.n_in
        reached = self.device.zeros(n, equation.value_type)
        reached[:] = marks
        arrived = self.device.empty(n, equation.value_type)
        while True:
            equation.reset()
            equation.product(reached, arrived)
            self.grown[:] = 0
            arguments = (np.int32(n), arrived, reached, self.grown)
            for_each(self.device, "mark_reached", (equation.value,), n, arguments)
            if not int(self.device.download(self.grown)[0]):
                return reached

    def recurrent_classes(self) -> list[Any]:
        """Marks of every recurrent class, in the order of their first states.

        From any state go forward, step to a state that cannot come back, and so on: each time fewer are
        reached, and the end is a recurrent class. States that never reach it lead to another one.
        """
        n = self.forward.n_in
        left = self.device.zeros(n, self.forward.value_type)
        left[:] = 1
        classes: list[Any] = []
        while True:
            place = self._first(left)
            if place is None:
                return classes
            while True:
                mark = self.device.zeros(n, self.forward.value_type)
                mark[place : place + 1] = 1
                ahead = self.from_(mark, self.forward)
                behind = self.from_(mark, self.backward)
                beyond = self._first(ahead * (1 - behind))
                if beyond is None:
                    break
                place = beyond
            classes.append(ahead)
            left = left * (1 - behind)

    def _first(self, marks: Any) -> int | None:
        """Place of the first mark: one number comes to the host."""
        if not float(self.device.download(marks.max())):
            return None
        return int(self.device.download(marks.argmax()))
