"""What the estimators for continuous states return: a ratio at every row, and how it was found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.transitions import Transitions
from lingendice.solvers.control import Stop

RATIO_MASS = (0.5, 2.0)
"""Within which the mean of a ratio must lie: it is 1 for the right one."""
LEAST_SAMPLE_SHARE = 0.02
"""Of the effective sample of a ratio."""
LARGEST_SPREAD = 0.25
"""Of the members' values, in standard deviations of the reward."""
MOST_CLIPPED = 0.05
"""Of simulated coordinates, at the edge of the range of the log."""


class Progress(NamedTuple):
    """One entry of ``history``: where training stood after ``step`` steps."""

    step: int
    value: float
    """Self-normalized value."""
    mean_ratio: float
    """E_p[nu tau]; 1 at the optimum."""
    residual: float
    """Held-out saddle residual."""


class Estimate(NamedTuple):
    """One line of ``sol.estimates``."""

    name: str
    value: float
    standard_error: float | None
    """Of the data, clustered by episode, for weighted means; the spread of members for model and FQE."""
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """Estimates of one value by several methods, and what speaks for and against each."""

    estimates: tuple[Estimate, ...]
    headline: str
    """Name of the estimate that is the value."""
    members: Floats
    """The headline's value by each member of its ensemble."""
    scores: Floats
    """Influence of each episode on the doubly robust value; empty where there is none."""
    naive_scores: Floats
    """The same on what the behavior earned."""
    clipped: float = 0.0
    """Share of simulated coordinates that left the range of the log."""
    explained: float = math.nan
    """Share of the variance of steps that the model explains on episodes left out."""
    largest_q: float = 0.0
    """Largest |Q| of FQE in units of what rewards allow; above 1 it explodes."""
    ratio_mass: float = 1.0
    """Mean of the ratio before it was normalized."""
    restarts: float = 0.0
    """Restarts that were inferred, in rows."""

    def __getitem__(self, name: str) -> Estimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"{name!r} was not estimated; there are {', '.join(e.name for e in self.estimates)}")

    @property
    def value(self) -> float:
        """The headline's."""
        return self[self.headline].value


@dataclass(frozen=True)
class RatioOutcome:
    """The fields that a :class:`lingendice.ContinuousSolution` takes over, and how the work ended."""

    gamma: float
    method: str
    reason: str
    tau: Floats
    members: Floats
    mass_weight: Floats
    residual: float
    n_iter: int
    transitions: Transitions
    divergence: str
    converged: bool
    stopped: Stop | None
    certified: bool = False
    """Whether a gap below ``tol`` was proven; networks are trained to plan, which proves nothing."""
    history: tuple[tuple[Progress, ...], ...] = ()
    evaluate: Callable[[Any, Any], Floats] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None
    """Where the value is not the ratio's."""

    @property
    def mean_ratio(self) -> float:
        """E_p[nu tau]: how well the ratio is normalized."""
        return float(np.mean(self.mass_weight * self.tau))

    @property
    def value(self) -> float | None:
        """Per-step value; None without rewards."""
        if self.evidence is not None:
            return self.evidence.value
        return self_normalized(self.tau, self.mass_weight, self.transitions.reward)


def self_normalized(tau: Floats, mass_weight: Floats, reward: Floats | None) -> float | None:
    """E_p[tau r] / E_p[nu tau]; None without rewards, nan at tau = 0."""
    if reward is None:
        return None
    mass = float(np.mean(mass_weight * tau))
    return float(np.mean(tau * reward)) / mass if mass != 0.0 else math.nan
