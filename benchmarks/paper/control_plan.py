"""What the control experiments run: settings, methods, seeds and tuning, all fixed beforehand.

A unit of work is one fresh log (a setting and a seed) given to some methods. Reported seeds begin at ``FIRST_SEED``;
tuning uses other logs, from ``FIRST_TUNING_SEED``. Every method that has something to choose gets the same budget:
four candidates, compared by mean squared error on the tuning logs of the central setting of each environment and
gamma, and then frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_SEED = 5_000_000
FIRST_TUNING_SEED = 9_000_000

ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
MIXTURES = {"0": (0.0,), "0.33": (0.33,), "0.66": (0.66,), "M1": (0.0, 0.33), "M2": (0.0, 0.33, 0.66)}
"""Behaviours by label; M1 and M2 are the paper's pools of several behaviours."""
TRAJECTORIES = (25, 50, 100, 200)
LENGTHS = (50, 100, 200, 400)
GAMMAS = (0.99, 1.0)
ABLATION_GAMMAS = (0.95, 0.99, 0.995, 0.999, 1.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
"""The paper's grid of learning rates."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
PENALTIES = (0.0, 0.1, 1.0, 10.0)
OUTPUTS = ("square", "softplus", "exp")

HEADLINE = (
    "naive",
    "IS, cloned",
    "model-based",
    "DualDICE",
    "GenDICE",
    "GenDICE, averaged",
    "GenDICE, ridge",
    "GenDICE, ensemble",
    "linear",
)
CANDIDATES = {
    "IS, cloned": RATES,
    "model-based": RATES,
    "DualDICE": RATES,
    "GenDICE": RATES,
    "GenDICE, averaged": RATES,
    "GenDICE, ridge": RIDGES,
    "linear": RIDGES,
}
"""What is chosen on the tuning logs: a learning rate, or the weight of the ridge (then the learning rate is that of
"GenDICE, averaged", which the ensemble takes too)."""


@dataclass(frozen=True)
class Setting:
    """One way of making a log, and the discount it is used for."""

    environment: str
    gamma: float
    trajectories: int = 100
    steps: int = 200
    behaviour: str = "0"

    @property
    def key(self) -> str:
        return f"{self.environment}, gamma {self.gamma:g}, {self.trajectories} x {self.steps}, alpha {self.behaviour}"


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
    tuning_logs: int
    seeds: int
    ablation_seeds: int
    members: int
    """Of the ensemble."""


QUICK = Mode("quick", training_steps=2000, tuning_logs=1, seeds=2, ablation_seeds=0, members=2)
FULL = Mode("full", training_steps=10_000, tuning_logs=2, seeds=20, ablation_seeds=5, members=4)


def centre(environment: str, gamma: float) -> Setting:
    """The setting the axes cross in, and the one tuning looks at."""
    return Setting(environment, gamma)


def applicable(methods: tuple[str, ...], gamma: float) -> tuple[str, ...]:
    """DualDICE is for gamma < 1."""
    return tuple(method for method in methods if gamma < 1 or not method.startswith("DualDICE"))


def axis(environment: str, gamma: float, name: str) -> list[Setting]:
    """The settings of one panel."""
    middle = centre(environment, gamma)
    values = {"trajectories": TRAJECTORIES, "steps": LENGTHS, "behaviour": tuple(MIXTURES)}[name]
    return [replace(middle, **{name: value}) for value in values]


def jobs(mode: Mode) -> list[Job]:
    """Everything the mode runs, in the order it is run: headline panels first."""
    found: dict[Setting, Job] = {}
    if mode.name == "quick":
        for environment in ENVIRONMENTS:
            for gamma in GAMMAS:
                for behaviour in ("0", "0.66"):
                    setting = Setting(environment, gamma, trajectories=50, steps=100, behaviour=behaviour)
                    found[setting] = Job(setting, mode.seeds, applicable(HEADLINE, gamma))
        return list(found.values())
    for name in ("behaviour", "trajectories", "steps"):
        for gamma in GAMMAS:
            for environment in ENVIRONMENTS:
                for setting in axis(environment, gamma, name):
                    found.setdefault(setting, Job(setting, mode.seeds, applicable(HEADLINE, gamma)))
    return list(found.values()) + ablations(mode)


def ablations(mode: Mode) -> list[Job]:
    """Discount, learning rate, output, constraint."""
    found = []
    for environment in ENVIRONMENTS:
        for gamma in ABLATION_GAMMAS:
            methods = applicable(("DualDICE", "GenDICE", "GenDICE, averaged"), gamma)
            found.append(Job(Setting(environment, gamma), mode.ablation_seeds, methods))
        for behaviour in ("0", "0.33"):
            rates = tuple(f"GenDICE, rate {rate:g}" for rate in RATES)
            found.append(Job(Setting(environment, 1.0, behaviour=behaviour), mode.ablation_seeds, rates))
        for behaviour in ("0", "0.33", "0.66"):
            outputs = tuple(f"GenDICE, output {output}" for output in OUTPUTS)
            found.append(Job(Setting(environment, 1.0, behaviour=behaviour), mode.ablation_seeds, outputs))
        for gamma in GAMMAS:
            penalties = tuple(f"GenDICE, penalty {penalty:g}" for penalty in PENALTIES)
            found.append(Job(Setting(environment, gamma), mode.ablation_seeds, penalties))
    return found
