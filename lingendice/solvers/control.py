"""The one place that ends solvers early: step and time limits, non-finite iterates, Ctrl-C; and progress.

A solver asks its :class:`Monitor` between kernel calls. The simplest way is to be a generator that
yields a :class:`Step` at least every 0.2 seconds and is driven by :func:`run`: it is sent None ("go on")
or a :class:`Stop` ("finish with the best you have") and returns its :class:`Outcome`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_flag, require_positive, require_whole
from lingendice.data.display import ProgressLine
from lingendice.data.interrupts import Work, interruptible
from lingendice.kernels.parallel import resolve_threads


class Stop(Enum):
    """Why a solver ended short of its goal: stopped by the outer loop, or (the last three) by itself."""

    ITERATIONS = "iterations"
    TIME = "time"
    INTERRUPT = "interrupt"
    NOT_FINITE = "not finite"
    BOUND = "bound too small"
    UNBOUNDED = "unbounded"
    GAP = "gap"


class Stopped(InterruptedError):
    """Raised inside a solver whose work must end; it never leaves the solvers."""


class EliminationError(ValueError):
    """The chain has a state that cannot reach the others, or whose share of the distribution is lost to
    underflow.

    Attributes
    ----------
    state : int
        That state, in the caller's numbering.
    """

    def __init__(self, text: str, state: int) -> None:
        super().__init__(text, state)
        self.text, self.state = text, state

    def __str__(self) -> str:
        return self.text.format(state=self.state)

    def renumbered(self, nodes: NDArray[Any]) -> EliminationError:
        """The same where the chain was a part of a larger one, whose node k is ``nodes[k]``."""
        return EliminationError(self.text, int(nodes[self.state]))


class Step(NamedTuple):
    """How far a solver has come."""

    n_iter: int
    error: float = math.inf
    """Its current estimate of the error; inf while unknown."""


@dataclass
class Outcome:
    """What a solver returns: an unnormalized distribution over nodes and how good it is."""

    distribution: Floats
    method: str
    reason: str
    converged: bool
    n_iter: int = 0
    error: float | None = None
    error_kind: str = "direct"
    """"direct": no iteration; "bound": proven; "estimate": extrapolated."""
    condition: float | None = None
    residual: float | None = None
    stopped: Stop | None = None
    history: tuple[float, ...] = ()


Solver = Generator[Step, "Stop | None", Outcome]


def direct_error(n_nodes: int) -> float:
    """Entrywise relative error of an elimination without subtractions, as estimated.

    Roundings add up like a random walk, and in one direction where many nodes are alike. Measured against
    extended precision on full, sparse, nearly decomposable and birth-death chains: below 1 sqrt(n) for 3,000
    nodes and below n / 100 for 300,000, in units of the last place.

    At gamma < 1 it holds in L1: gamma P is itself rounded, alike in rows that are alike, and tiny entries far
    down a birth-death chain are off by up to n units.
    """
    return (8.0 + 4.0 * math.sqrt(n_nodes) + n_nodes / 16.0) * sys.float_info.epsilon


def stated_error(
    error: float | None, kind: str, residual: float, gamma: float, tol: float
) -> tuple[float | None, str]:
    """The error to state of a distribution and its kind, from its solver's own error and its residual.

    At gamma < 1 the residual bounds the error. Where 1 - gamma is so small that rounding alone keeps this
    bound above ``tol``, a solver that is accurate entry by entry knows better.
    """
    if gamma == 1.0:
        return error, kind
    bound = error_bound(residual, gamma)
    if error is None or kind == "bound" or bound <= tol:
        return bound, "bound"
    return error, kind


def error_bound(residual: float, gamma: float) -> float:
    """Bound on the L1 error of a discounted distribution: G is a gamma-contraction in L1.

    The residual is itself rounded, by a few units in the last place of a total of 1.
    """
    return (residual + 4.0 * sys.float_info.epsilon) / (1.0 - gamma)


def combined(outcomes: list[Outcome]) -> Outcome:
    """One outcome for distributions that all have to be right: the hardest, with the largest error of any,
    unknown where that of any is."""
    hardest = max(
        outcomes, key=lambda outcome: (not outcome.converged, outcome.n_iter, outcome.distribution.size)
    )
    worst = max(outcomes, key=lambda outcome: math.inf if outcome.error is None else outcome.error)
    return replace(hardest, error=worst.error, error_kind=worst.error_kind, condition=worst.condition)


@dataclass
class Controls:
    """Limits of one call of ``solve``, shared by all the solvers it runs."""

    tol: float = 1e-10
    max_iter: int | None = None
    time_limit: float | None = None
    threads: int = 1
    progress: bool = False
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def read(
        cls, tol: Any, max_iter: Any = None, time_limit: Any = None, threads: Any = None, *,
        progress: bool = False, started: float | None = None,
    ) -> Controls:  # fmt: skip
        """Check what a user says of limits."""
        return cls(
            tol=require_positive("tol", tol),
            max_iter=None if max_iter is None else require_whole("max_iter", max_iter, at_least=1),
            time_limit=None if time_limit is None else require_positive("time_limit", time_limit),
            threads=resolve_threads(threads),
            progress=require_flag("progress", progress),
            started=time.perf_counter() if started is None else started,
        )

    def begun_now(self, threads: int) -> Controls:
        """The same limits for a solve that begins now, on ``threads`` threads."""
        return replace(self, threads=threads, started=time.perf_counter())

    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.started

    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self.time_limit is not None and self.elapsed() >= self.time_limit


class Monitor:
    """Decides whether work goes on. Solvers ask it between kernel calls, at least every 0.2 seconds.

    ``monitor()`` is True once the work must end, ``monitor.check()`` then raises, and ``stopped`` says why.
    ``note`` records how far the work has come. ``Monitor()`` lets all work go on.
    """

    def __init__(
        self, controls: Controls | None = None, work: Work | None = None, line: ProgressLine | None = None
    ) -> None:
        self._controls, self._work, self._line = controls or Controls(), work, line
        self.stopped: Stop | None = None

    def __call__(self) -> bool:
        if self.stopped is None:
            self.stopped = self._limit()
        return self.stopped is not None

    def check(self) -> None:
        """Raise :class:`Stopped` once the work must end."""
        if self():
            raise Stopped("stopped on request")

    def note(self, n_iter: int, error: float = math.inf, text: str = "") -> bool:
        """Record progress, shown as ``text`` where given; True once the work must end."""
        if self._line is not None and self._line.is_due():
            reached = f"error {error:.1e}" if math.isfinite(error) else "error unknown"
            goal, spent = self._controls.tol, self._controls.elapsed()
            text = text or f"{reached} (goal {goal:.0e}), {spent:.1f} s"
            self._line.show(f"lingendice: step {n_iter:,}, {text}")
        if self.stopped is None and math.isnan(error):
            self.stopped = Stop.NOT_FINITE
        if self.stopped is None and self._controls.max_iter is not None and n_iter >= self._controls.max_iter:
            self.stopped = Stop.ITERATIONS
        return self()

    def _limit(self) -> Stop | None:
        if self._work is not None and self._work.raised:
            return Stop.INTERRUPT
        return Stop.TIME if self._controls.out_of_time() else None


@contextmanager
def watch(controls: Controls) -> Iterator[Monitor]:
    """A monitor for one piece of work; Ctrl-C is held back until the work ends that it is part of."""
    with interruptible() as work, ProgressLine(controls.progress) as line:
        work.hold()
        yield Monitor(controls, work, line)


def run(solver: Solver, controls: Controls) -> Outcome:
    """Drive a solver that is a generator of steps to its end, or to a limit."""
    with watch(controls) as monitor:
        try:
            step = next(solver)
            while not monitor.note(*step):
                step = solver.send(None)
            solver.send(monitor.stopped)
        except StopIteration as end:
            outcome: Outcome = end.value
        else:
            raise RuntimeError("a solver went on after it was stopped")
    if not outcome.converged:
        outcome.stopped = monitor.stopped
    return outcome
