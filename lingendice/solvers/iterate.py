"""The one outer loop: step and time limits, non-finite iterates, Ctrl-C and progress.

A solver is a generator. It yields a :class:`Step` at least every 0.2 seconds of work and is sent back
None ("go on") or a :class:`Stop` ("finish with the best you have"); it returns its :class:`Outcome`.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from lingendice.checks import Floats


class Stop(Enum):
    """Why the outer loop ended a solver early."""

    ITERATIONS = "iterations"
    TIME = "time"
    INTERRUPT = "interrupt"
    NOT_FINITE = "not finite"


class Step(NamedTuple):
    """How far a solver has come."""

    n_iter: int
    error: float = math.inf
    """Its current estimate of the error; inf while unknown."""


@dataclass
class Outcome:
    """What a solver returns: an unnormalised law over nodes and how good it is."""

    law: Floats
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


@dataclass
class Controls:
    """Limits of one call of ``solve``, shared by all the solvers it runs."""

    tol: float = 1e-10
    max_iter: int | None = None
    time_limit: float | None = None
    threads: int = 1
    progress: bool = False
    started: float = field(default_factory=time.perf_counter)

    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.started


def run(solver: Solver, controls: Controls) -> Outcome:
    """Drive a solver to its end, or to a limit."""
    with _InterruptFlag() as interrupted, _Progress(controls) as progress:
        command: Stop | None = None
        try:
            step = next(solver)
            while True:
                command = _decide(step, controls, interrupted)
                progress.show(step)
                step = solver.send(command)
                if command is not None:
                    raise RuntimeError("a solver went on after it was told to stop")
        except StopIteration as end:
            outcome: Outcome = end.value
    if command is not None and not outcome.converged:
        outcome.stopped = command
    return outcome


def _decide(step: Step, controls: Controls, interrupted: _InterruptFlag) -> Stop | None:
    if interrupted.raised:
        return Stop.INTERRUPT
    if math.isnan(step.error):
        return Stop.NOT_FINITE
    if controls.max_iter is not None and step.n_iter >= controls.max_iter:
        return Stop.ITERATIONS
    if controls.time_limit is not None and controls.elapsed() >= controls.time_limit:
        return Stop.TIME
    return None


class _InterruptFlag:
    """Turn the first Ctrl-C into a flag, so that the work so far is not lost; a second one raises."""

    def __init__(self) -> None:
        self.raised = False
        self._previous: Any = None

    def __enter__(self) -> _InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            if self._previous is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._handle)
            else:
                self._previous = None  # the embedding program has its own way with Ctrl-C
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.raised:
            raise KeyboardInterrupt
        self.raised = True

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)


class _Progress:
    """One line on standard error that is rewritten in place, and removed at the end."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self.shown = 0
        self.last = 0.0

    def __enter__(self) -> _Progress:
        return self

    def show(self, step: Step) -> None:
        now = self.controls.elapsed()
        if not self.controls.progress or now - self.last < 0.1:
            return
        self.last = now
        error = f"error {step.error:.1e}" if math.isfinite(step.error) else "error unknown"
        line = f"lingendice: step {step.n_iter:,}, {error} (goal {self.controls.tol:.0e}), {now:.1f} s"
        sys.stderr.write("\r" + line.ljust(self.shown))
        sys.stderr.flush()
        self.shown = len(line)

    def __exit__(self, *_: object) -> None:
        if self.shown:
            sys.stderr.write("\r" + " " * self.shown + "\r")
            sys.stderr.flush()
