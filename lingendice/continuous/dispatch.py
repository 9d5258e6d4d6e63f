"""From what ``solve`` is asked to an estimator for continuous states, and why it was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.continuous.clone import base_of, clone_log_ratio
from lingendice.continuous.evaluation import Evaluation, EvaluationSettings, Preparation, normalized
from lingendice.continuous.fitted_q import share_begun
from lingendice.continuous.learner import gendice, gendice_terms, read_neural_options
from lingendice.continuous.linear_ratio import solve_features
from lingendice.continuous.outcome import (
    LARGEST_SPREAD,
    LEAST_SAMPLE_SHARE,
    MOST_BEGUN,
    MOST_CLIPPED,
    RATIO_MASS,
    Evidence,
    RatioOutcome,
    ValueEstimate,
)
from lingendice.continuous.samples import prepare
from lingendice.continuous.train import train
from lingendice.data.transitions import Transitions
from lingendice.solvers.control import watch

if TYPE_CHECKING:
    from lingendice.solvers.request import Request

ESTIMATES = {
    "auto": ("model", "ratio", "DR", "FQE", "naive"),
    "model": ("model", "ratio", "naive"),
    "fqe": ("FQE", "naive"),
    "dr": ("DR", "model", "ratio", "naive"),
}
"""What each method estimates, in order; the first is what it was asked for."""
LARGEST_Q = {True: 50.0, False: 1.05}
"""|Q| beyond which it explodes, in units of the largest reward: at gamma = 1, and below."""


def solve_continuous(
    transitions: Transitions, request: Request, policies: Mapping[Any, Any]
) -> Iterator[tuple[Any, RatioOutcome]]:
    """The value, or the ratio, of one policy after another, by whichever estimator is asked for or serves.

    The default and its parts share the model and the cloned behavior.
    """
    method, reason = choose(transitions, request)
    shared = preparation_of(transitions, request) if method in ESTIMATES else None
    for name, policy in policies.items():
        one = request._replace(problem=request.problem._replace(policy=policy))
        if shared is not None:
            yield name, evaluate(shared, one, method, reason)
        elif method == "linear":
            yield name, solve_features(transitions, one, reason)
        else:
            yield name, _run_gendice(transitions, one, reason)


def choose(transitions: Transitions, request: Request) -> tuple[str, str]:
    """The method, and why."""
    if request.method.name != "auto":
        return request.method.name, "chosen by the caller"
    if request.objective.features is not None or request.objective.dual_features is not None:
        return "linear", "features are given"
    if transitions.n_states is not None:
        return "gendice", "states are integers: no dynamics to model; Counts would be exact"
    if transitions.reward is None:
        return "gendice", "there are no rewards, so the ratio alone is wanted"
    return "auto", "the default"


def preparation_of(transitions: Transitions, request: Request) -> Preparation:
    """The log as all policies share it."""
    _refuse_features(request)
    _refuse_objective(request)
    settings = EvaluationSettings.read(
        dict(request.method.options), request.method.seed, request.limits.threads
    )
    return Preparation(transitions, request.problem.gamma, request.problem.terminal, settings)


def _refuse_features(request: Request) -> None:
    for name in ("features", "dual_features"):
        if getattr(request.objective, name) is not None:
            raise ValueError(f"{name} belongs to method='linear'; leave it out otherwise")


def _refuse_objective(request: Request) -> None:
    """Refuse what says how a ratio is found, where values come from a model or from FQE."""
    given, ratios = request.objective, "it belongs to method='gendice' and 'linear'"
    asked = {
        "divergence": (given.divergence != "chi2", ratios),
        "penalty": (given.penalty is not None, ratios),
        "ridge": (request.ridge != 0.0, ratios),
        "bound": (given.bound is not None, ratios),
        "max_iter": (request.limits.max_iter is not None, "options={'effort': 'quick'} trains for less long"),
    }
    for name, (is_given, instead) in asked.items():
        if is_given:
            raise ValueError(f"{name} does not apply to a model, FQE or DR; leave it out: {instead}")


def evaluate(preparation: Preparation, request: Request, method: str, reason: str) -> RatioOutcome:
    """Make the estimates of a method one after another, and choose the one that is the value."""
    evaluation = Evaluation(preparation, request.problem.policy)
    found: list[ValueEstimate] = []
    stopped = None
    for name in ESTIMATES[method]:
        if not found:
            found.append(evaluation.estimate(name))
            continue
        # With a value in hand, Ctrl-C and the time limit end the work with what there is.
        with watch(replace(request.limits, max_iter=None)) as monitor:
            try:
                if not monitor.note(len(found), math.inf, f"{found[-1].name} {found[-1].value:.5g}"):
                    found.append(evaluation.estimate(name))
            except KeyboardInterrupt:
                monitor()
            stopped = monitor.stopped
        if stopped is not None:
            break
    samples = evaluation.samples
    headline, doubt = _headline(evaluation, [one.name for one in found])
    tau, mass = _best_ratio(evaluation)
    ensemble = evaluation.q_of_log if headline == "FQE" else evaluation.rollout
    made = vars(evaluation)
    evidence = Evidence(
        estimates=tuple(found),
        headline=headline,
        members=ensemble.members,
        scores=evaluation.doubly_robust().scores if "q_of_model" in made else np.empty(0),
        naive_scores=evaluation.naive().scores,
        clipped=evaluation.rollout.clipped if "rollout" in made else 0.0,
        largest_q=_explosion(evaluation) if "q_of_log" in made else 0.0,
        begun=_begun(evaluation) if "q_of_log" in made else 0.0,
        ratio_mass=mass,
        restarts=float(evaluation.model.ended.sum())
        if "model" in made and evaluation.model.inferred
        else 0.0,
    )
    return RatioOutcome(
        gamma=samples.gamma,
        method=method,
        reason=f"{reason}; {doubt}" if doubt else reason,
        tau=tau,
        members=tau[None, :],
        mass_weight=samples.mass_weight,
        residual=math.nan,
        n_iter=preparation.settings.effort.model.steps,
        transitions=samples.transitions,
        divergence="none",
        converged=stopped is None,
        stopped=stopped,
        evidence=evidence,
    )


def _best_ratio(evaluation: Evaluation) -> tuple[Any, float]:
    """The model's ratio where it was made and holds, else that of cloned policies; and its mean as made."""
    samples, made = evaluation.samples, "tau_of_model" in vars(evaluation)
    if made:
        tau = evaluation.tau_of_model
        mass = float(np.mean(samples.mass_weight * tau))
        share = float(tau.sum() ** 2 / (tau @ tau) / len(tau)) if mass > 0.0 else 0.0
        holds = RATIO_MASS[0] <= mass <= RATIO_MASS[1] and share >= LEAST_SAMPLE_SHARE
        if holds or evaluation.log_ratio is None:
            return normalized(samples, tau), mass
    if evaluation.log_ratio is None:
        return np.full(len(samples.logged), math.nan), math.nan
    return evaluation.tau_cloned, 1.0


def _explosion(evaluation: Evaluation) -> float:
    return evaluation.q_of_log.largest / LARGEST_Q[evaluation.samples.gamma == 1.0]


def _begun(evaluation: Evaluation) -> float:
    return share_begun(evaluation.samples.gamma, evaluation.settings.effort.q)


def _headline(evaluation: Evaluation, made: list[str]) -> tuple[str, str]:
    """The estimate that is the value, and why: the first, unless checks speak against it.

    A model shrunk toward DR where they differ by more than two standard errors was no better (mean ln MSE
    -10.20 against -10.25 on 72 tuning logs); the distance goes into the interval instead.
    """
    if made[0] != "model" or "DR" not in made:
        return made[0], ""
    scale = LARGEST_SPREAD * max(float(evaluation.samples.reward.std()), 1e-300)
    rollout = evaluation.rollout
    doubts = []
    if not math.isfinite(rollout.value):
        doubts.append("it is not finite")
    if rollout.clipped > MOST_CLIPPED:
        doubts.append(f"{rollout.clipped:.0%} of its coordinates leave the log's range")
    if rollout.members.std(ddof=1) > scale:
        doubts.append("its members disagree")
    if doubts and "FQE" in made and _begun(evaluation) <= MOST_BEGUN:
        q = evaluation.q_of_log
        if math.isfinite(q.value) and _explosion(evaluation) <= 1.0 and q.members.std(ddof=1) <= scale:
            return "FQE", f"FQE in place of the model: {', '.join(doubts)}"
    return "model", ""


def _run_gendice(transitions: Transitions, request: Request, reason: str) -> RatioOutcome:
    _refuse_features(request)
    options, seed = read_neural_options(request.method.options), request.method.seed
    given, asked, gamma = request.objective, request.problem, request.problem.gamma
    samples = prepare(transitions, asked.policy, gamma, asked.terminal, options.standardize)
    if options.base == "auto":
        options = replace(options, base="cloned" if samples.has_density else "none")
    terms = gendice_terms(options, given.penalty, given.ridge, given.bound, samples.policy is None)
    objective = gendice(gamma, given.divergence, options.output, *terms)
    if options.base == "cloned":
        log_ratio = clone_log_ratio(transitions, samples.policy, hidden=options.hidden, seed=seed)
        base, window = base_of(transitions, log_ratio, gamma)
        samples = replace(samples, base=base)
        reason = f"{reason}; base of up to {window} cloned ratio{'s' * (window > 1)} a row"
    return train(samples, objective, options, request.limits, seed, reason=reason)
