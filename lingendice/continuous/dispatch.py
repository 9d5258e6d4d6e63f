"""From the arguments of ``solve`` to an estimator for continuous states, and why it was chosen."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

from lingendice.continuous.accept_linear import JUDGED_SHARE, at_all_rows, judge
from lingendice.continuous.clone import clone_log_ratio
from lingendice.continuous.holdout import split_rows
from lingendice.continuous.importance_base import base_of
from lingendice.continuous.linear_ratio import OPTIONS as LINEAR_OPTIONS
from lingendice.continuous.linear_ratio import read_linear_options, solve_features
from lingendice.continuous.objective import gendice
from lingendice.continuous.options import NeuralOptions, read_neural_options
from lingendice.continuous.samples import Samples, prepare
from lingendice.continuous.train import train
from lingendice.data.checks import require_number
from lingendice.data.transitions import Transitions
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.solution import Status, with_identified_status
from lingendice.solvers.control import Controls

FEW_DIMENSIONS = 3
"""Inputs up to which bumps may cover the data."""
MOST_LINEAR_ROWS = 50_000
FEWEST_JUDGED_ROWS = 500
CLONE_STEPS = 1000
"""Of the behavior, where the ratio has a cloned base."""
NEURAL_OPTIONS = tuple(entry.name for entry in fields(NeuralOptions))


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
) -> ContinuousSolution:
    """The solution, by whichever estimator serves."""
    method, reason = choose(transitions, choices)
    run = {"try linear": _linear_if_it_holds, "linear": _run_linear, "neural": _run_neural}[method]
    return with_identified_status(run(transitions, choices, controls, reason))


def choose(transitions: Transitions, choices: ContinuousChoices) -> tuple[str, str]:
    """ "linear", "neural" or "try linear", and why."""
    if choices.method != "auto":
        return choices.method, "chosen by the caller"
    if choices.features is not None or choices.dual_features is not None:
        return "linear", "features are given"
    states = transitions.n_states or transitions.state.shape[1]
    actions = 0
    if transitions.action is not None:
        actions = transitions.n_actions or transitions.action.shape[1]
    inputs = states + actions
    rows = len(transitions)
    if inputs > FEW_DIMENSIONS:
        return "neural", f"{inputs} inputs: too many for bumps to cover"
    if rows > MOST_LINEAR_ROWS:
        return "neural", f"{rows:,} rows are too many to hold features of"
    if rows < FEWEST_JUDGED_ROWS:
        return "neural", f"{rows:,} rows are too few to judge linear features by"
    return "try linear", f"{inputs} inputs"


def _linear_if_it_holds(
    transitions: Transitions, choices: ContinuousChoices, controls: Controls, reason: str
) -> ContinuousSolution:
    """Fit linear features to a part of the log; take them if the rest of it agrees, else networks."""
    for name in choices.options or {}:
        if name not in LINEAR_OPTIONS and name not in NEURAL_OPTIONS:
            raise ValueError(f"options has no entry {name!r}, neither for method='linear' nor for 'neural'")
    given = read_linear_options(_known(choices.options, LINEAR_OPTIONS))
    neural = choices._replace(options=_known(choices.options, NEURAL_OPTIONS))
    read_neural_options(neural.options)
    samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, given["standardize"])
    trained, held = split_rows(samples, JUDGED_SHARE, int(choices.seed))
    limits = replace(controls, max_iter=None)
    part = _fit(samples.subset(trained), choices, given, limits, reason)
    if part.status in (Status.INTERRUPTED, Status.TIME_LIMIT):
        return at_all_rows(part, samples)
    verdict = judge(samples, part, trained, held, int(choices.seed))
    if part.converged and verdict.accepted:
        return _fit(samples, choices, given, limits, f"{reason}, and features hold: {verdict}")
    return _run_neural(transitions, neural, controls, f"linear features do not hold: {verdict}")


def _known(options: dict[str, Any] | None, names: Any) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if name in names}


def _run_linear(
    transitions: Transitions, choices: ContinuousChoices, controls: Controls, reason: str
) -> ContinuousSolution:
    given = read_linear_options(choices.options)
    samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, given["standardize"])
    return _fit(samples, choices, given, controls, reason)


def _fit(
    samples: Samples, choices: ContinuousChoices, given: dict[str, Any], controls: Controls, reason: str
) -> ContinuousSolution:
    problem = {
        "divergence": choices.divergence,
        "penalty": require_number("penalty", choices.penalty),
        "ridge": _ridge(choices),
        "normalize": "penalty",
        "bound": choices.bound,
    }
    return solve_features(
        samples,
        choices.features,
        choices.dual_features,
        problem,
        given,
        controls,
        int(choices.seed),
        reason,
    )


def _run_neural(
    transitions: Transitions, choices: ContinuousChoices, controls: Controls, reason: str
) -> ContinuousSolution:
    for name in ("features", "dual_features"):
        if getattr(choices, name) is not None:
            raise ValueError(f"{name} belongs to method='linear'; leave it out for networks")
    options = read_neural_options(choices.options)
    objective = gendice(
        choices.gamma, choices.divergence, options.output, choices.penalty, _ridge(choices), choices.bound
    )
    samples = prepare(transitions, choices.policy, choices.gamma, choices.terminal, options.standardize)
    if options.base == "cloned":
        samples, window = _with_base(samples, choices, options)
        reason = f"{reason}; base of up to {window} cloned ratio{'s' * (window > 1)} a row"
    return train(samples, objective, options, controls, int(choices.seed), reason=reason)


def _with_base(samples: Samples, choices: ContinuousChoices, options: NeuralOptions) -> tuple[Samples, int]:
    log_ratio = clone_log_ratio(
        samples.transitions, choices.policy, steps=CLONE_STEPS, batch=options.batch, hidden=options.hidden,
        seed=int(choices.seed),
    )  # fmt: skip
    base = base_of(samples.transitions, log_ratio, choices.gamma)
    return replace(samples, base=base.weight), base.window


def _ridge(choices: ContinuousChoices) -> float:
    return 0.0 if choices.ridge is None else require_number("ridge", choices.ridge)
