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


class Progress(NamedTuple):
    """One entry of ``history``: where training stood after ``step`` steps."""

    step: int
    value: float
    """Self-normalized value."""
    mean_ratio: float
    """E_p[nu tau]; 1 at the optimum."""
    residual: float
    """Held-out saddle residual."""


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

    @property
    def mean_ratio(self) -> float:
        """E_p[nu tau]: how well the ratio is normalized."""
        return float(np.mean(self.mass_weight * self.tau))

    @property
    def value(self) -> float | None:
        """Per-step value, self-normalized; None without rewards."""
        return self_normalized(self.tau, self.mass_weight, self.transitions.reward)


def self_normalized(tau: Floats, mass_weight: Floats, reward: Floats | None) -> float | None:
    """E_p[tau r] / E_p[nu tau]; None without rewards, nan at tau = 0."""
    if reward is None:
        return None
    mass = float(np.mean(mass_weight * tau))
    return float(np.mean(tau * reward)) / mass if mass != 0.0 else math.nan
