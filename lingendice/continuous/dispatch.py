"""From what ``solve`` is asked to an estimator for continuous states, and why it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from lingendice.continuous.accept_linear import JUDGED_SHARE, at_all_rows, judge
from lingendice.continuous.clone import clone_log_ratio
from lingendice.continuous.holdout import split_rows
from lingendice.continuous.importance_base import base_of
from lingendice.continuous.linear_ratio import OPTIONS as LINEAR_OPTIONS
from lingendice.continuous.linear_ratio import read_linear_options, solve_features
from lingendice.continuous.objective import gendice
from lingendice.continuous.options import NeuralOptions, read_neural_options
from lingendice.continuous.outcome import RatioOutcome
from lingendice.continuous.samples import Samples, prepare
from lingendice.continuous.train import train
from lingendice.data.checks import require_number
from lingendice.data.transitions import Transitions
from lingendice.solvers.control import Stop

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

FEW_DIMENSIONS = 3
"""Inputs up to which bumps may cover the data."""
MOST_LINEAR_ROWS = 50_000
FEWEST_JUDGED_ROWS = 500
CLONE_STEPS = 1000
"""Of the behavior, where the ratio has a cloned base."""
NEURAL_OPTIONS = tuple(entry.name for entry in fields(NeuralOptions))


def solve_continuous(transitions: Transitions, request: Request) -> RatioOutcome:
    """The ratio, by whichever estimator serves."""
    method, reason = choose(transitions, request)
    if method == "try linear":
        return _linear_if_it_holds(transitions, request, reason)
    if method == "linear":
        given = read_linear_options(request.method.options)
        return _fit(_samples(transitions, request, given["standardize"]), request, given, reason)
    return _run_neural(transitions, request, read_neural_options(request.method.options), reason)


def choose(transitions: Transitions, request: Request) -> tuple[str, str]:
    """ "linear", "neural" or "try linear", and why."""
    if request.method.name != "auto":
        return request.method.name, "chosen by the caller"
    if request.objective.features is not None or request.objective.dual_features is not None:
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


def _samples(transitions: Transitions, request: Request, standardize: bool) -> Samples:
    problem = request.problem
    return prepare(transitions, problem.policy, problem.gamma, problem.terminal, standardize)


def _linear_if_it_holds(transitions: Transitions, request: Request, reason: str) -> RatioOutcome:
    """Fit linear features to a part of the log; take them if the rest of it agrees, else networks."""
    for name in request.method.options:
        if name not in LINEAR_OPTIONS and name not in NEURAL_OPTIONS:
            raise ValueError(f"options has no entry {name!r}, neither for method='linear' nor for 'neural'")
    given = read_linear_options(_known(request.method.options, LINEAR_OPTIONS))
    neural = read_neural_options(_known(request.method.options, NEURAL_OPTIONS))
    samples, seed = _samples(transitions, request, given["standardize"]), request.method.seed
    trained, held = split_rows(samples, JUDGED_SHARE, seed)
    limited = request._replace(limits=replace(request.limits, max_iter=None))
    part = _fit(samples.subset(trained), limited, given, reason)
    if part.stopped in (Stop.INTERRUPT, Stop.TIME):
        return at_all_rows(part, samples)
    verdict = judge(samples, part, trained, held, seed)
    if part.converged and verdict.accepted:
        return _fit(samples, limited, given, f"{reason}, and features hold: {verdict}")
    return _run_neural(transitions, request, neural, f"linear features do not hold: {verdict}")


def _known(options: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


def _fit(samples: Samples, request: Request, given: dict[str, Any], reason: str) -> RatioOutcome:
    objective = request.objective
    problem = {
        "divergence": objective.divergence,
        "penalty": objective.penalty,
        "ridge": _ridge(request),
        "normalize": "penalty",
        "bound": objective.bound,
    }
    return solve_features(
        samples,
        objective.features,
        objective.dual_features,
        problem,
        given,
        request.limits,
        request.method.seed,
        reason,
    )


def _run_neural(
    transitions: Transitions, request: Request, options: NeuralOptions, reason: str
) -> RatioOutcome:
    given, gamma = request.objective, request.problem.gamma
    for name in ("features", "dual_features"):
        if getattr(given, name) is not None:
            raise ValueError(f"{name} belongs to method='linear'; leave it out for networks")
    objective = gendice(gamma, given.divergence, options.output, given.penalty, _ridge(request), given.bound)
    samples = _samples(transitions, request, options.standardize)
    if options.base == "cloned":
        samples, window = _with_base(samples, request, options)
        reason = f"{reason}; base of up to {window} cloned ratio{'s' * (window > 1)} a row"
    return train(samples, objective, options, request.limits, request.method.seed, reason=reason)


def _with_base(samples: Samples, request: Request, options: NeuralOptions) -> tuple[Samples, int]:
    log_ratio = clone_log_ratio(
        samples.transitions, request.problem.policy, steps=CLONE_STEPS, batch=options.batch,
        hidden=options.hidden, seed=request.method.seed,
    )  # fmt: skip
    base = base_of(samples.transitions, log_ratio, request.problem.gamma)
    return replace(samples, base=base.weight), base.window


def _ridge(request: Request) -> float:
    ridge = request.objective.ridge
    return 0.0 if ridge is None else require_number("ridge", ridge)
