"""The methods of the control experiments, each a function of one log: the estimate, and how it came about."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from control_plan import MIXTURES, Mode, Setting

import lingendice as lg
from lingendice.environments import control

CURVE_POINTS = 20


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


def make_log(setting: Setting, seed: int) -> lg.Transitions:
    """A fresh log; nothing in it tells the behaviour."""
    behaviours = [control.policy(setting.environment, alpha) for alpha in MIXTURES[setting.behaviour]]
    log = control.collect(setting.environment, behaviours, setting.trajectories, setting.steps, seed=seed)
    return lg.Transitions(**log._asdict())


def naive(log: lg.Transitions, setting: Setting) -> dict[str, Any]:
    """What the behaviour earned: mean reward, or sum gamma^t r / sum gamma^t along trajectories."""
    reward = log.reward.reshape(setting.trajectories, setting.steps)
    weight = setting.gamma ** np.arange(setting.steps)
    return {"value": float((reward @ weight).mean() / weight.sum())}


def from_solution(solution: Any) -> dict[str, Any]:
    """Value, the value before self-normalisation, and the curve over training steps."""
    found = {
        "value": float(solution.value),
        "plain": float(solution.value_plain),
        "residual": float(solution.residual),
    }
    if solution.history:
        points = list(zip(*solution.history, strict=True))
        found["curve"] = [
            [member[0].step, float(np.mean([one.value for one in member]))] for member in points
        ]
    if solution.spread is not None:
        found["spread"] = float(solution.spread)
    return found


def gendice(work: Work, log: lg.Transitions, **other: Any) -> dict[str, Any]:
    """``solve(method="neural")`` with a learning rate; ``other`` overrides arguments and options."""
    paper = {"decay": False, "average": 0.0, "learning_rate": work.rate}
    options = {**paper, "report_every": work.mode.training_steps // CURVE_POINTS, **other.pop("options", {})}
    solution = lg.solve(
        log,
        work.setting.gamma,
        policy=control.policy(work.setting.environment),
        method="neural",
        max_iter=work.mode.training_steps,
        seed=work.seed,
        threads=1,
        options=options,
        **other,
    )
    return from_solution(solution)


def variant(work: Work, log: lg.Transitions) -> dict[str, Any]:
    """GenDICE as its name says: the paper's, ours, or one ablated entry."""
    what = work.method.removeprefix("GenDICE").removeprefix(", ")
    ours = {"decay": True, "average": 0.5}
    if what in ("", "averaged"):
        rate = work.rate if work.choice is None else work.choice
        return gendice(work, log, options={"learning_rate": rate, **(ours if what else {})})
    if what == "ridge":
        return gendice(work, log, ridge=work.choice, options=ours)
    if what == "ensemble":
        return gendice(work, log, options={**ours, "ensemble": work.mode.members})
    entry, value = what.split(" ")
    if entry == "penalty":
        return gendice(work, log, penalty=float(value))
    names: dict[str, Any] = (
        {"rate": {"learning_rate": float(value)}} if entry == "rate" else {"output": {"output": value}}
    )
    return gendice(work, log, options=names[entry])


def run_all_methods(units: list[Work]) -> list[dict[str, Any]]:
    """Every method on one log, as lines of the file of runs."""
    log = make_log(units[0].setting, units[0].seed)
    entries = []
    for work in units:
        begun = time.perf_counter()
        found = estimate(work, log)
        entries.append(
            {"setting": work.setting.key, "seed": work.seed, "method": work.name, **found,
             "choice": work.choice, "seconds": round(time.perf_counter() - begun, 2)}
        )  # fmt: skip
    return entries
