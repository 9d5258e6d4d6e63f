"""The methods of the control experiments, each a function of one log: the estimate, and how it came about."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from control_plan import MIXTURES, Mode, Setting

import lingendice as lg
from lingendice import baselines
from lingendice.data.policies import SampledPolicy
from lingendice.environments import control

CURVE_POINTS = 20
COMPANIONS = {
    "ours": "ours, ensemble",
    "DualDICE, plain": "DualDICE",
    "cloned base, untrained": "ours, cloned base",
}
"""Methods that another one answers for."""


@dataclass(frozen=True)
class Work:
    """One method on one log."""

    setting: Setting
    seed: int
    method: str
    choice: float | None
    """Learning rate or ridge, where the method has one to choose."""
    rate: float
    """Learning rate of the methods that choose something else."""
    mode: Mode
    name: str
    """How the run is called in the file: the method, or a candidate of it."""


@lru_cache(maxsize=2)
def make_log(setting: Setting, seed: int) -> lg.Transitions:
    """A fresh log; nothing in it tells the behavior."""
    behaviors = [control.policy(setting.environment, alpha) for alpha in MIXTURES[setting.behavior]]
    log = control.collect(setting.environment, behaviors, setting.trajectories, setting.steps, seed=seed)
    return lg.Transitions(**log._asdict())


def naive(log: lg.Transitions, setting: Setting) -> dict[str, Any]:
    """What the behavior earned: mean reward, or sum gamma^t r / sum gamma^t along trajectories."""
    reward = log.reward.reshape(setting.trajectories, setting.steps)
    weight = setting.gamma ** np.arange(setting.steps)
    return {"value": float((reward @ weight).mean() / weight.sum())}


def from_member(solution: Any, member: int | None = None) -> dict[str, Any]:
    """Value and its curve over training steps, of one member of an ensemble or of their mean ratio."""
    histories = solution.history if member is None else solution.history[member : member + 1]
    found = {
        "value": float(solution.value if member is None else solution.member_values[member]),
        "mean_ratio": float(np.mean([history[-1].mean_ratio for history in histories])),
        "curve": [
            [points[0].step, float(np.mean([one.value for one in points]))]
            for points in zip(*histories, strict=True)
        ],
    }
    if member is None and len(histories) > 1:
        found["spread"] = float(solution.spread)
    return found


def options(work: Work, rate: float | None = None, **other: Any) -> dict[str, Any]:
    """The paper's training: one constant learning rate, and the last iterate."""
    if rate is None:
        rate = work.rate if work.choice is None else work.choice
    return {
        "decay": False,
        "average": 0.0,
        "momentum": 0.9,
        "learning_rate": rate,
        "dual_learning_rate": rate,
        "batch": work.mode.batch,
        "holdout": 0.0,
        "report_every": work.mode.training_steps // CURVE_POINTS,
        **other,
    }


OURS = {"decay": True, "average": 0.5, "momentum": 0.0, "dual_learning_rate": None}
OUR_PENALTY = 10.0


def gendice(work: Work, log: lg.Transitions, chosen: dict[str, Any], policy: Any = None, **other: Any) -> Any:
    """``solve(method="gendice")`` on one core."""
    return lg.solve(
        log,
        work.setting.gamma,
        policy=policy or control.policy(work.setting.environment),
        method="gendice",
        max_iter=work.mode.training_steps,
        seed=10 * work.seed,
        threads=1,
        options=chosen,
        **other,
    )


def variant(work: Work, log: lg.Transitions) -> dict[str, Any]:
    """The paper's GenDICE, or with one entry ablated."""
    entry, _, value = work.method.removeprefix("GenDICE").removeprefix(", ").partition(" ")
    if entry == "penalty":
        return from_member(gendice(work, log, options(work), penalty=float(value)))
    if entry == "rate":
        return from_member(gendice(work, log, options(work, float(value))))
    output = {"output": value} if entry == "output" else {}
    return from_member(gendice(work, log, options(work, **output)))


def ours(work: Work, log: lg.Transitions) -> dict[str, Any]:
    """Alone, with a ridge, or with centered actions."""
    if work.method == "ours, centered":
        return from_member(centered(work, log))
    ridge = {"ridge": work.choice} if work.method == "ours, ridge" else {}
    rate = work.rate if ridge or work.choice is None else work.choice
    return from_member(gendice(work, log, options(work, rate, **OURS), penalty=OUR_PENALTY, **ridge))


def with_base(work: Work, log: lg.Transitions) -> Any:
    """What is left to learn after a cloned behavior."""
    chosen = options(work, work.rate, **OURS, base="cloned")
    return gendice(work, log, chosen, penalty=OUR_PENALTY, ridge=work.choice)


def centered(work: Work, log: lg.Transitions) -> Any:
    """The same problem in other coordinates: each action less the target's mean action in its state."""
    target = control.policy(work.setting.environment)
    moved = lg.Transitions(
        log.state,
        log.action - target.means(log.state),
        log.reward,
        log.next_state,
        log.initial_state,
        log.episode,
    )
    policy = SampledPolicy(lambda states, rng: target.sample(states, rng) - target.means(states))
    return gendice(work, moved, options(work, work.rate, **OURS), policy, penalty=OUR_PENALTY)


def baseline(work: Work, log: lg.Transitions) -> dict[str, Any]:
    """DualDICE, importance sampling with a cloned behavior, a model, linear features."""
    gamma, target = work.setting.gamma, control.policy(work.setting.environment)
    seed, mode = 10 * work.seed, work.mode
    if work.method.startswith("DualDICE"):
        return from_member(
            baselines.neural_dual_dice(
                log,
                gamma,
                policy=target,
                max_iter=mode.training_steps,
                seed=seed,
                threads=1,
                options=options(work),
            )
        )
    if work.method == "linear":
        solution = lg.solve(
            log, gamma, policy=target, method="linear", ridge=work.choice, seed=seed, threads=1, time_limit=60
        )
        return {"value": float(solution.value), "mean_ratio": float(solution.mean_ratio)}
    training = {"batch": mode.batch, "learning_rate": work.choice}
    if work.method == "IS, cloned":
        clone = {"steps": mode.model_steps, **training}
        found = baselines.neural_importance_sampling(
            log, gamma, policy=target, clone_options=clone, seed=seed
        )
    else:
        found = baselines.neural_model_based(
            log, gamma, policy=target, steps=mode.model_steps, seed=seed, **training
        )
    return {"value": float(found.value)}


def estimate(work: Work, log: lg.Transitions) -> dict[str, Any]:
    """Any method but the ensemble."""
    if work.method == "naive":
        return naive(log, work.setting)
    if work.method.startswith("ours"):
        return ours(work, log)
    return variant(work, log) if work.method.startswith("GenDICE") else baseline(work, log)


def with_companions(work: Work, log: lg.Transitions) -> dict[str, dict[str, Any]]:
    """Estimates by name: a run of one method may answer for another one too."""
    begun = time.perf_counter()
    if work.method == "ours, ensemble":
        solution = gendice(work, log, options(work, ensemble=work.mode.members, **OURS), penalty=OUR_PENALTY)
        seconds = time.perf_counter() - begun
        # The first member has the seed, and so the answer, of "ours" alone.
        first = {**from_member(solution, 0), "seconds": seconds / work.mode.members}
        return {work.name: {**from_member(solution), "seconds": seconds}, "ours": first}
    if work.method == "ours, cloned base":
        solution = with_base(work, log)
        weight = solution.details["base"]
        untrained = {"value": float(weight @ log.reward / weight.sum()), "mean_ratio": float(weight.mean())}
        seconds = {"seconds": time.perf_counter() - begun}
        return {
            work.name: {**from_member(solution), **seconds},
            "cloned base, untrained": {**untrained, **seconds},
        }
    found = {**estimate(work, log), "seconds": time.perf_counter() - begun}
    if work.name == "DualDICE":
        # Its own value, E[zeta r], beside the self-normalized one that all methods are given.
        plain = {**found, "value": found["value"] * found["mean_ratio"]}
        plain.pop("curve")
        return {work.name: found, "DualDICE, plain": plain}
    return {work.name: found}


def grouped(units: list[Work]) -> list[list[Work]]:
    """Methods of one log in groups that one training answers for, the trained method first."""
    names = {work.name for work in units}
    leaders = {name: leader for name, leader in COMPANIONS.items() if leader in names}
    return [
        [work, *(one for one in units if leaders.get(one.name) == work.name)]
        for work in units
        if work.name not in leaders
    ]


def run_methods(group: list[Work]) -> list[dict[str, Any]]:
    """One group, as lines of the file of runs."""
    found = with_companions(group[0], make_log(group[0].setting, group[0].seed))
    return [
        {"setting": work.setting.key, "seed": work.seed, "method": work.name, "choice": work.choice,
         **{key: _rounded(value) for key, value in found[work.name].items()}}
        for work in group
    ]  # fmt: skip


def _rounded(value: Any) -> Any:
    """Seven digits are more than the estimates are worth."""
    return [_rounded(one) for one in value] if isinstance(value, list) else float(f"{value:.7g}")
