"""What the control experiments run: settings, methods, seeds and tuning, all fixed beforehand.

A unit of work is one fresh log (a setting and a seed) given to some methods. Reported seeds begin at
``FIRST_SEED``; tuning uses other logs, from ``FIRST_TUNING_SEED``. Every method that has something to
choose gets the same budget: four candidates (but in the quick mode), compared by mean squared error on the
tuning logs of the central setting of each environment and gamma, and then frozen.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

FIRST_SEED = 5_000_000
FIRST_TUNING_SEED = 9_000_000

ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
MIXTURES = {"0": (0.0,), "0.33": (0.33,), "0.66": (0.66,), "M1": (0.0, 0.33), "M2": (0.0, 0.33, 0.66)}
"""Behaviors by label; M1 and M2 are the paper's pools of several behaviors."""
TRAJECTORIES = (25, 50, 100, 200)
LENGTHS = (50, 100, 200, 400)
GAMMAS = (0.99, 1.0)
ABLATION_GAMMAS = (0.95, 0.99, 0.995, 0.999, 1.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
"""The paper's grid of learning rates."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
BASE_RIDGES = (0.0, 0.1, 1.0, 10.0)
"""Toward the cloned base, which is worth staying near to."""
PENALTIES = (0.0, 0.1, 1.0, 10.0)
OUTPUTS = ("square", "softplus", "exp")

HEADLINE = (
    "naive",
    "IS, cloned",
    "model-based",
    "DualDICE",
    "DualDICE, plain",
    "GenDICE",
    "ours",
    "ours, ridge",
    "ours, ensemble",
    "ours, centered",
    "ours, cloned base",
    "cloned base, untrained",
    "linear",
)
"""GenDICE is the paper's: penalty 1, Adam with one constant learning rate, last iterate. Ours is the same
saddle point with penalty 10, no momentum, learning rates that fall to zero and are thrice as large for f
as for tau, and tau's parameters averaged over the second half of training; then with a ridge; as the mean
of several seeds; and (continuous actions) with actions given as their distance from the target's mean
action, so that tau, which is narrow around that mean, is an easy function of its inputs; and as a
factor g of tau = base * g, the base made of ratios of the target to a cloned behavior (with a ridge toward
g = 1), beside the value of that base with g = 1. All neural values are self-normalized, but for "DualDICE,
plain"."""
CANDIDATES = {
    "IS, cloned": RATES,
    "model-based": RATES,
    "DualDICE": RATES,
    "GenDICE": RATES,
    "ours": RATES,
    "ours, ridge": RIDGES,
    "ours, cloned base": BASE_RIDGES,
    "linear": RIDGES,
}
"""What is chosen on the tuning logs: a learning rate, or the weight of a ridge. "ours, ridge", "ours,
ensemble" and "ours, cloned base" take the learning rate of "ours", "ours, centered" that of "GenDICE"."""
OURS_FAMILY = ("ours", "ours, ridge", "ours, ensemble", "ours, cloned base")


@dataclass(frozen=True)
class Setting:
    """One way of making a log, and the discount it is used for."""

    environment: str
    gamma: float
    trajectories: int
    steps: int
    behavior: str = "0"

    @property
    def key(self) -> str:
        log = f"{self.trajectories} x {self.steps}, alpha {self.behavior}"
        return f"{self.environment}, gamma {self.gamma:g}, {log}"


@dataclass(frozen=True)
class Job:
    """Methods to run on logs of one setting."""

    setting: Setting
    seeds: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Mode:
    """How much is run."""

    name: str
    training_steps: int
    batch: int
    model_steps: int
    """Training steps of the model, which has one network for each coordinate of the state."""
    trajectories: int
    steps: int
    tuning_logs: int
    """0: nothing is chosen, every method takes ``UNTUNED_RATE``."""
    seeds: int
    ablation_seeds: int
    members: int
    """Of the ensemble."""
    gammas: tuple[float, ...]
    """Discounts whose true values are needed."""


QUICK = Mode(
    name="quick",
    training_steps=2_000,
    batch=512,
    model_steps=1_000,
    trajectories=50,
    steps=100,
    tuning_logs=0,
    seeds=3,
    ablation_seeds=0,
    members=2,
    gammas=GAMMAS,
)
FULL = Mode(
    name="full",
    training_steps=3_000,
    batch=2048,
    model_steps=1_000,
    trajectories=100,
    steps=200,
    tuning_logs=2,
    seeds=20,
    ablation_seeds=5,
    members=2,
    gammas=ABLATION_GAMMAS,
)
"""By the measured time of each method some 22 hours on two cores."""
REDUCED = replace(QUICK, name="reduced", tuning_logs=2, seeds=3, ablation_seeds=3, gammas=ABLATION_GAMMAS)
"""Every panel and ablation, with the quick mode's training and tuned as the full mode is."""
UNTUNED_RATE = 1e-3
"""Of every method in the quick mode; the paper chose 3e-4 for Cartpole and 3e-3 for the others."""
UNTUNED = {RATES: UNTUNED_RATE, RIDGES: 1e-2, BASE_RIDGES: 1.0}


def center(environment: str, gamma: float, mode: Mode) -> Setting:
    """The setting the axes cross in, and the one tuning looks at."""
    return Setting(environment, gamma, mode.trajectories, mode.steps)


def applicable(methods: tuple[str, ...], setting: Setting) -> tuple[str, ...]:
    """DualDICE is for gamma < 1, and only continuous actions have a mean."""
    return tuple(
        method
        for method in methods
        if (setting.gamma < 1 or not method.startswith("DualDICE"))
        and (setting.environment != "cartpole" or method != "ours, centered")
    )


def axis(environment: str, gamma: float, name: str, mode: Mode) -> list[Setting]:
    """The settings of one panel."""
    values: dict[str, tuple[Any, ...]] = {
        "trajectories": TRAJECTORIES,
        "steps": LENGTHS,
        "behavior": tuple(MIXTURES),
    }
    return [replace(center(environment, gamma, mode), **{name: value}) for value in values[name]]


def jobs(mode: Mode) -> list[Job]:
    """Everything the mode runs: headline panels first, then ablations."""
    found: dict[Setting, Job] = {}
    for name in ("behavior",) if mode is QUICK else ("behavior", "trajectories", "steps"):
        lines = [axis(environment, gamma, name, mode) for gamma in GAMMAS for environment in ENVIRONMENTS]
        # One point of every panel before the next: a run that is stopped has something of each.
        for setting in itertools.chain.from_iterable(zip(*lines, strict=True)):
            if mode is not QUICK or setting.behavior in ("0", "0.66"):
                found.setdefault(setting, Job(setting, mode.seeds, applicable(HEADLINE, setting)))
    return list(found.values()) + (ablations(mode) if mode.ablation_seeds else [])


def ablations(mode: Mode) -> list[Job]:
    """Discount, learning rate, output, constraint."""
    found = []

    def add(environment: str, gamma: float, behavior: str, methods: tuple[str, ...]) -> None:
        setting = replace(center(environment, gamma, mode), behavior=behavior)
        found.append(Job(setting, mode.ablation_seeds, applicable(methods, setting)))

    for environment in ENVIRONMENTS:
        for gamma in ABLATION_GAMMAS:
            add(environment, gamma, "0", ("DualDICE", "GenDICE", "ours", "ours, cloned base"))
        for behavior in ("0", "0.33"):
            add(environment, 1.0, behavior, tuple(f"GenDICE, rate {rate:g}" for rate in RATES))
        for behavior in ("0", "0.33", "0.66"):
            add(environment, 1.0, behavior, tuple(f"GenDICE, output {output}" for output in OUTPUTS))
        for gamma in GAMMAS:
            add(environment, gamma, "0", tuple(f"GenDICE, penalty {penalty:g}" for penalty in PENALTIES))
    return found
