"""From the arguments of ``solve`` to an estimator for continuous states, and why it was chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from lingendice.checks import require_number
from lingendice.continuous_solution import ContinuousSolution
from lingendice.neural.estimate import train
from lingendice.neural.objective import gendice
from lingendice.neural.options import read_neural_options
from lingendice.neural.samples import prepare
from lingendice.solvers.iterate import Controls
from lingendice.transitions import Transitions


class ContinuousChoices(NamedTuple):
    """What the user may say; the names are those of ``solve``."""

    gamma: float
    policy: Any
    terminal: str
    ridge: Any
    features: Any
    dual_features: Any
    divergence: Any
    penalty: float
    bound: float | None
    method: str
    seed: int
    options: dict[str, Any] | None


def solve_continuous(
    transitions: Transitions, choices: ContinuousChoices, controls: Controls
) -> tuple[ContinuousSolution, str]:
    """The solution, and what to do where it was interrupted."""
    method, reason = "neural", "chosen by the caller"
    options = read_neural_options(choices.options)
    ridge = 0.0 if choices.ridge is None else require_number("ridge", choices.ridge)
    objective = gendice(
        choices.gamma, choices.divergence, options.output, choices.penalty, ridge, choices.bound
    )
    samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, options.standardise)
    solution = train(samples, objective, options, controls, int(choices.seed))
    return replace(solution, reason=reason, method=method), options.on_interrupt
