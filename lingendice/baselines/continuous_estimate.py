"""One estimate over continuous states as the answer of a baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingendice.continuous.evaluation import Evaluation, Preparation, Settings
from lingendice.continuous.outcome import Estimate as Found
from lingendice.data.checks import require_gamma
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.data.transitions import Transitions
from lingendice.kernels.parallel import resolve_threads
from lingendice.results.baseline_solution import Estimate

_NOTES = {
    "model": "the standard error is the spread of the members, each without a third of the episodes",
    "FQE": "the standard error is the spread of the members, each without a third of the episodes",
    "DR": "clustered by episode; Q and the ratio are taken as known",
}


@heeds_ctrl_c
def continuous_estimate(
    transitions: Transitions,
    gamma: float,
    policy: Any,
    make: Callable[[Evaluation], Found],
    *,
    terminal: str = "auto",
    effort: str = "default",
    restarts: str = "auto",
    seed: int = 0,
    threads: int | None = None,
) -> Estimate:
    """What ``make`` finds of one policy on one log."""
    if transitions.reward is None:
        raise ValueError("a value needs rewards; pass reward= to Transitions")
    settings = Settings.read({"effort": effort, "restarts": restarts}, seed, resolve_threads(threads))
    found = make(Evaluation(Preparation(transitions, require_gamma(gamma), terminal, settings), policy))
    return Estimate(found.value, gamma, found.name, _NOTES[found.name], found.standard_error)
