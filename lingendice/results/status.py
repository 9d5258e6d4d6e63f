"""How a solve ended: the statuses, their advice, and the one mapping from what solvers say."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from lingendice.solvers.control import Stop

if TYPE_CHECKING:
    from lingendice.continuous.outcome import RatioOutcome
    from lingendice.solvers.control import Outcome

AnySolution = TypeVar("AnySolution", bound=Any)


class Status(Enum):
    """How a solve ended. Failing statuses name the likely cause and the next step."""

    SOLVED = "solved"
    TRAINED = "trained"
    SEVERAL_DISTRIBUTIONS = "several stationary distributions"
    ITERATION_LIMIT = "iteration limit"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    NOT_FINITE = "not finite"
    STALLED = "stalled"
    BOUND_TOO_SMALL = "bound too small"
    UNBOUNDED = "unbounded dual"
    GAP_ABOVE_TOL = "gap above tol"
    ERROR_ABOVE_TOL = "error above tol"
    NOT_IDENTIFIED = "value not identified"
    NOT_RELIABLE = "not reliable"

    @property
    def advice(self) -> str:
        """Likely cause and next step; empty for a solved problem and for networks trained to plan."""
        return _ADVICE[self]

    @property
    def ended_short(self) -> bool:
        """Whether the solve ended short of its goal, which no interval allows for."""
        return self not in _ENDED_WELL


_ENDED_WELL = (
    Status.SOLVED,
    Status.TRAINED,
    Status.SEVERAL_DISTRIBUTIONS,
    Status.NOT_IDENTIFIED,
    Status.NOT_RELIABLE,
)
"""At their end: the last two judge what the data say."""
_ADVICE = {
    Status.SOLVED: "",
    Status.TRAINED: "",
    Status.SEVERAL_DISTRIBUTIONS: (
        "gamma=1 and the chain has more than one recurrent class: read sol.distributions (one "
        "distribution per class), "
        "pass initial= for the limit distribution from there, or take gamma < 1"
    ),
    Status.ITERATION_LIMIT: "max_iter was reached before tol; raise max_iter or tol",
    Status.TIME_LIMIT: (
        "time_limit was reached before tol; this is the best distribution so far; raise either"
    ),
    Status.INTERRUPTED: "interrupted by the user; the best distribution so far is returned",
    Status.NOT_FINITE: (
        "an iterate became NaN or infinite, probably because of counts or features of extreme range, or a "
        "large options['step_scale']; rescale them"
    ),
    Status.STALLED: (
        "the chain mixes too slowly for the iterations, and its elimination would not fit in memory or runs "
        'on the host alone; the best distribution so far is returned; use device="cpu" if it was found '
        "on a device, "
        "else raise max_iter, merge states, or take a smaller gamma"
    ),
    Status.BOUND_TOO_SMALL: ("no w with 0 <= w <= bound gives tau a mean of 1; raise bound, or leave it out"),
    Status.UNBOUNDED: (
        "mass arrives where the features give tau no weight, so the divergence is infinite; pass bound=, "
        "or features that are positive on every cell with data"
    ),
    Status.GAP_ABOVE_TOL: (
        "rounding keeps the gap above tol, as with nearly collinear features or tiny data distributions, or "
        "SGD's own bound on |w_f| does (sol.reason says so); raise tol, drop features, pass bound=, or take "
        'method="extragradient"'
    ),
    Status.ERROR_ABOVE_TOL: (
        "the stated error (sol.error) exceeds tol, and rounding keeps it there; raise tol, take a smaller "
        'gamma, or method="elimination", which is accurate entry by entry'
    ),
    Status.NOT_IDENTIFIED: (
        "no stationary mass lies where rewards were logged, so the data say nothing about the value; log the "
        "target's actions, or take ratio='state' or a target closer to the behavior"
    ),
    Status.NOT_RELIABLE: (
        "a check that the estimate depends on failed: sol.diagnose() says which, and what to do"
    ),
}


_STOPPED = {
    Stop.ITERATIONS: Status.ITERATION_LIMIT,
    Stop.TIME: Status.TIME_LIMIT,
    Stop.INTERRUPT: Status.INTERRUPTED,
    Stop.NOT_FINITE: Status.NOT_FINITE,
    Stop.BOUND: Status.BOUND_TOO_SMALL,
    Stop.UNBOUNDED: Status.UNBOUNDED,
    Stop.GAP: Status.GAP_ABOVE_TOL,
}


def status_of(
    outcome: Outcome | RatioOutcome, error: float | None, tol: float, several: bool = False
) -> Status:
    """The status of an outcome that states ``error``; the only mapping from outcomes to statuses."""
    if outcome.stopped is not None:
        return _STOPPED[outcome.stopped]
    return settled_status(several, error, tol) if outcome.converged else Status.STALLED


def settled_status(several: bool, error: float | None, tol: float) -> Status:
    """Of a solver that came to its end: solved only where the error it states is within ``tol``."""
    if error is not None and not error <= tol:
        return Status.NOT_FINITE if math.isnan(error) else Status.ERROR_ABOVE_TOL
    return Status.SEVERAL_DISTRIBUTIONS if several else Status.SOLVED


def with_identified_status(solution: AnySolution) -> AnySolution:
    """The solution, whose status does not say solved where the data say nothing about its value."""
    settled = solution.status in (Status.SOLVED, Status.TRAINED)
    if settled and solution.value is not None and math.isnan(solution.value):
        return replace(solution, status=Status.NOT_IDENTIFIED)
    return solution
