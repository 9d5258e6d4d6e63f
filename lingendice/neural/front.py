"""From the arguments of ``solve`` to an estimator for continuous states, and why it was chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

from lingendice.checks import require_number
from lingendice.continuous_solution import ContinuousSolution
from lingendice.neural.estimate import train
from lingendice.neural.linear import read_linear_options, solve_features
from lingendice.neural.objective import gendice
from lingendice.neural.options import read_neural_options
from lingendice.neural.samples import prepare
from lingendice.solvers.iterate import Controls
from lingendice.transitions import Transitions

FEW_DIMENSIONS = 3
"""Inputs up to which bumps cover the data well."""
MOST_LINEAR_ROWS = 50_000


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
    method, reason = choose(transitions, choices)
    ridge = 0.0 if choices.ridge is None else require_number("ridge", choices.ridge)
    if method == "linear":
        given = read_linear_options(choices.options)
        samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, given["standardise"])
        problem = {
            "divergence": choices.divergence,
            "penalty": require_number("penalty", choices.penalty),
            "ridge": ridge,
            "normalise": "penalty",
            "bound": choices.bound,
        }
        solution = solve_features(
            samples,
            choices.features,
            choices.dual_features,
            problem,
            given,
            controls,
            int(choices.seed),
            reason,
        )
        return solution, given["on_interrupt"]
    for name in ("features", "dual_features"):
        if getattr(choices, name) is not None:
            raise ValueError(f"{name} belongs to method='linear'; leave it out for networks")
    options = read_neural_options(choices.options)
    objective = gendice(
        choices.gamma, choices.divergence, options.output, choices.penalty, ridge, choices.bound
    )
    samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, options.standardise)
    return train(
        samples, objective, options, controls, int(choices.seed), reason=reason
    ), options.on_interrupt


def choose(transitions: Transitions, choices: ContinuousChoices) -> tuple[str, str]:
    """ "linear" or "neural", and why."""
    if choices.method != "auto":
        return choices.method, "chosen by the caller"
    if choices.features is not None or choices.dual_features is not None:
        return "linear", "features are given"
    states = transitions.n_states or transitions.state.shape[1]
    actions = 0
    if transitions.action is not None:
        actions = transitions.n_actions or transitions.action.shape[1]
    inputs = states + actions
    if inputs <= FEW_DIMENSIONS and len(transitions) <= MOST_LINEAR_ROWS:
        return "linear", f"{inputs} inputs: bumps cover them, and the problem is convex"
    if inputs <= FEW_DIMENSIONS:
        return "neural", f"{len(transitions):,} rows are too many to hold features of"
    return "neural", f"{inputs} inputs: too many for bumps to cover"
