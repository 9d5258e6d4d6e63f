"""Stationary distributions on the device: damped steps, extrapolated every few, checked without waiting.

A cycle makes DEPTH steps of ``x -> x + damping (start + gamma T' x - x)`` and replaces the first iterate by
the mix of the others whose change is least (reduced rank extrapolation). The first step of a cycle measures
the residual of the mix, and a flag on the device turns all that follows into nothing once it is small
enough; the host reads the flag every few cycles.

References
----------
D. A. Smith, W. F. Ford, A. Sidi (1987). Extrapolation methods for vector sequences. SIAM Review 29.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from lingendice.gpu import equation as eq
from lingendice.gpu.catalog import DEPTH
from lingendice.gpu.device import Device, for_each, launch, n_blocks
from lingendice.gpu.equation import SCRATCH, SLOTS, Equation
from lingendice.solvers.control import Outcome, Step, Stop

POLL_SECONDS = 0.1
STEPS_AT_MOST = 120_000
PATIENCE, SMOOTHED_PATIENCE = 25, 10
"""Cycles without a new least residual after which plain steps are put between mixes, or all is given up."""
SAFETY = 2.0
"""On the condition: one random direction is not the worst one."""
ROUNDED = 2.0
"""Roundings that a step may hide, in units of the last place: as in finish_pass of cuda/operator.cu."""
MOST_SMOOTHING = 32
"""Most runs of DEPTH plain steps between two mixes."""
WINDOW, LEAST_TRIAL, TRIAL, ENOUGH = 16, 512, 2, 1e-3
"""Trial of the condition: steps between looks, least number, multiple of the steps made, shrinkage to see."""
LAZY = 0.5
"""Damping at gamma = 1: periodic chains have eigenvalues -1, which it turns into 0."""


def iterate_distribution(
    equation: Equation, first: Any, poll_every: int | None = None, max_iter: int | None = None
) -> Generator[Step, Stop | None, Outcome]:  # fmt: skip
    """Solve ``x = start + gamma T' x`` from ``first``; at gamma = 1 with total mass one.

    Every start within ``first`` has to lead to the same distribution, as in one recurrent class: mixes cut
    off what is negative, which would move mass from class to class. At gamma = 1 the distribution has
    converged only if another start is seen to approach it: see :func:`condition_of`.

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
        Its ``distribution`` is a device array.

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
    streamed = equation.matrix.streamed
    # A graph holds launches over fixed memory: a cycle that copies chunks in between is launched one by one.
    repeat = cycle if streamed else device.record(cycle)
    smooth: Callable[[], None] | None = cycle.smooth if streamed else None
    made = 0 if streamed else 1  # recording makes a cycle
    watch = _Watch(equation)
    cycles = poll_every or 1
    while True:
        began = time.perf_counter()
        if max_iter is not None:
            cycles = min(cycles, max(1, -(-(max_iter - watch.steps) // (DEPTH * (1 + watch.smoothing)))))
        for _ in range(cycles - made):
            for _ in range(watch.smoothing):
                (smooth or cycle.smooth)()
            repeat()
        made = 0
        watch.read()
        if watch.trial_is_due and (yield from watch.try_condition(rows[0])) is not None:
            break
        if watch.finished():
            yield from watch.try_condition(rows[0])
            break
        if watch.smoothing and smooth is None:
            smooth = device.record(cycle.smooth)
        if (yield Step(watch.steps, watch.error)) is not None:
            break
        if poll_every is None:
            spent = time.perf_counter() - began
            cycles = max(1, min(2 * cycles, int(cycles * POLL_SECONDS / max(spent, 1e-6))))
    if not watch.done:
        # The last mix has not been checked yet.
        equation.step(rows[0], rows[1], cycle.damping, eq.CHECKED)
    return _outcome(equation, rows[0].copy(), watch)


class _Watch:
    """What the host knows of a run, and what it decides: go on, smooth more between mixes, or give up."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.to_be_tried = equation.gamma == 1.0
        self.smoothing, self.steps, self.error, self.done = 0, 0, math.inf, False
        self.condition: float | None = None
        self.tried = not self.to_be_tried
        self._best, self._since, self._read = math.inf, 0, 0

    def read(self) -> None:
        """Look at the scalars on the device: the host waits here, and nowhere else in a run."""
        equation, download = self.equation, self.equation.device.download
        scalars, self.done = download(equation.scalars), bool(download(equation.done)[0])
        self.steps, self.error = int(scalars[eq.STEPS]), float(scalars[eq.ERROR])
        self._checks, self._residual = int(scalars[eq.CHECKS]), float(scalars[eq.RESIDUAL])
        self._largest = float(scalars[eq.LARGEST])

    @property
    def _at_rounding(self) -> bool:
        return self._residual < 1e3 * self.equation.rounding

    @property
    def trial_is_due(self) -> bool:
        """Steps near rounding say nothing of the way that is left: the condition does, from then on."""
        return self.to_be_tried and (self.done or self._at_rounding)

    def finished(self) -> bool:
        """Whether to stop, solved or not."""
        equation, done = self.equation, self.done
        if self.condition is not None:
            self.error = self.condition * (self._largest + ROUNDED * equation.rounding)
            self.done = done and self.error <= equation.tol
            if self.error <= (1.0 if done else 0.5) * equation.tol or not math.isfinite(self.error):
                return True
            equation.done[:] = 0
            done = False
        if done:
            return True
        checks, residual, at_rounding = self._checks, self._residual, self._at_rounding
        self._since = 0 if residual < 0.99 * self._best else self._since + checks - self._read
        self._best, self._read = min(self._best, residual), checks
        patience = PATIENCE if at_rounding or not self.smoothing else SMOOTHED_PATIENCE
        if self.steps >= STEPS_AT_MOST:
            return True
        if self._since <= patience:
            return False
        if at_rounding or self.smoothing >= MOST_SMOOTHING:
            return True
        # Mixing few iterates stagnates where mass has far to travel: let it travel further between mixes.
        self.smoothing, self._since, self._best = 4 * self.smoothing or 2, 0, math.inf
        if self.condition is None:
            self._set(eq.SLOWEST, 0.0)
        return False

    def try_condition(self, distribution: Any) -> Generator[Step, Stop | None, Stop | None]:
        """At gamma = 1, where it is not known yet; the distribution is then ready to be stepped from.

        Returns why the trial was stopped; what it had seen until then is kept, but proves nothing.
        """
        if not self.to_be_tried or not math.isfinite(self.error):
            return None
        self.to_be_tried = False
        most_steps = max(LEAST_TRIAL, TRIAL * self.steps)
        here = Step(self.steps, self.error)
        self.condition, stopped = yield from condition_of(self.equation, distribution, most_steps, here)
        self.tried = stopped is None
        self._set(eq.SLOWEST, 1.0 - max(1.0 / self.condition, self.equation.rounding))
        self.equation.weigh(distribution)
        return stopped

    def _set(self, place: int, value: float) -> None:
        self.equation.scalars[place : place + 1] = value


def condition_of(
    equation: Equation, distribution: Any, most_steps: int, progress: Step
) -> Generator[Step, Stop | None, tuple[float, Stop | None]]:
    """How much larger than a lazy step the way left may be, entry by entry relative to the distribution.

    Small steps of the iteration do not show nearly separate parts of a chain: mass that leaks between them at
    a rate of 1e-12 moves less than rounding. A distribution that differs from this one by a random share in
    every entry does. With d_k its largest relative distance after k steps, which no step can raise, all steps
    from the k-th on move it by at most sum_{j >= k} d_j. The largest of these sums over its d_k is what is
    returned, with a factor of SAFETY: not the first alone, because what the iteration has left is the slowest
    part, and a random distribution holds but little of that until the rest has gone. The sum beyond the last
    step is that of a geometric series. ``progress`` is yielded after every two steps, for limits and Ctrl-C.
    """
    device, n = equation.device, equation.n_in
    equation.done[:] = 0
    here, there = _away_from(equation, distribution), device.empty(n, equation.value_type)
    distances = [_relative(device, here, distribution)]
    if distances[0] <= n * equation.rounding:
        return 1.0, None
    for _ in range(0, most_steps, WINDOW):
        for _ in range(WINDOW // 2):
            equation.product(here, there, LAZY)
            equation.product(there, here, LAZY)
            stopped = yield progress
            if stopped is not None:
                return _most_left(distances, equation.rounding), stopped
        here[:] = here - distribution * here.sum()
        distances.append(_relative(device, here, distribution))
        if distances[-1] <= ENOUGH * distances[0]:
            break
    return _most_left(distances, equation.rounding), None


def _most_left(distances: list[float], rounding: float) -> float:
    """SAFETY times the largest sum of distances (a WINDOW apart) from one of them on, over that one."""
    # Until steps are seen to shrink the distance they are taken not to; and one that stays the same to the
    # last digit shrinks by less than that digit.
    ratio = distances[-1] / distances[-2] if len(distances) > 1 else 1.0
    left = WINDOW * distances[-1] / (1.0 - min(ratio, 1.0 - rounding))
    most = left / distances[-1] if distances[-1] > 0.0 else 1.0
    for distance in reversed(distances[:-1]):
        left += WINDOW * distance
        most = max(most, left / distance)
    return max(1.0, SAFETY * most)


def _relative(device: Device, change: Any, distribution: Any) -> float:
    """Largest entry of a change relative to the distribution, where that has mass."""
    held = distribution > 0
    return float(device.download((abs(change) * held / np.where(held, distribution, 1)).max()))


def _away_from(equation: Equation, distribution: Any) -> Any:
    """The distribution times a random number from -1 to 1 in every entry, less what that adds to its mass."""
    device, n = equation.device, equation.n_in
    drawn = device.empty(n, equation.value_type)
    for_each(device, "draw_factors", (equation.value,), n, (np.int64(n), np.uint64(0), drawn))
    drawn[:] = distribution * (1 - 2 * np.exp(-drawn))
    drawn[:] = drawn - distribution * drawn.sum()
    return drawn


def _outcome(equation: Equation, distribution: Any, watch: _Watch) -> Outcome:
    device, gamma = equation.device, equation.gamma
    scalars = device.download(equation.scalars)
    checks = int(scalars[eq.CHECKS])
    kept = device.download(equation.history)
    size = kept.size
    history = kept[:checks] if checks <= size else np.roll(kept, -(checks % size))
    error = float(scalars[eq.ERROR])
    condition = watch.condition
    if gamma == 1.0:
        condition = 1.0 / (1.0 - float(scalars[eq.SLOWEST])) if condition is None else condition
        error = condition * (float(scalars[eq.LARGEST]) + ROUNDED * equation.rounding)
    return Outcome(
        distribution=distribution,
        method="power-extrapolated",
        reason=f"on {device.name}",
        converged=error <= equation.tol and watch.tried,
        n_iter=int(scalars[eq.STEPS]),
        error=error,
        error_kind="bound" if gamma < 1.0 else "estimate",
        condition=condition,
        # Rates stored in float32 are rounded, which their own residual does not show.
        residual=float(scalars[eq.RESIDUAL]) + 4.0 * (equation.rounding - float(np.finfo(float).eps)),
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

    def smooth(self) -> None:
        """As many steps as a cycle makes, without a mix."""
        for _ in range(DEPTH // 2):
            self.equation.step(self.rows[0], self.rows[1], self.damping, eq.STEPPED)
            self.equation.step(self.rows[1], self.rows[0], self.damping, eq.STEPPED)

    def __call__(self) -> None:
        equation, device = self.equation, self.equation.device
        for k in range(DEPTH):
            equation.step(self.rows[k], self.rows[k + 1], self.damping, eq.STEPPED if k else eq.CHECKED)
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
            equation.finish(self.n_parts, eq.WEIGHED)
            return
        equation.finish(self.n_parts, eq.RESCALED)
        for_each(device, "scale_distribution", (equation.value,), equation.n_in,
                 (n, equation.scalars, equation.done, self.rows[0]))  # fmt: skip
