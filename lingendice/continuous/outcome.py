"""What the estimators for continuous states return: a ratio at every row, and how it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lingendice.data.checks import Floats
from lingendice.data.transitions import Transitions
from lingendice.solvers.control import Stop

RATIO_MASS = (0.5, 2.0)
"""Within which the mean of a ratio must lie: it is 1 for the right one."""
LEAST_SAMPLE_SHARE = 0.02
"""Of the effective sample of a ratio."""
LARGEST_SPREAD = 0.25
"""Of the members' values, in standard deviations of the reward."""
MOST_BEGUN = 0.25
"""Of the value that fitted Q evaluation begins at, the log's mean: what its sweeps may leave of it."""
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


class ValueEstimate(NamedTuple):
    """One line of ``sol.estimates``."""

    name: str
    value: float
    standard_error: float | None
    """Of the data, clustered by episode, for weighted means; the spread of members for model and FQE."""
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """Estimates of one value by several methods, and what speaks for and against each."""

    estimates: tuple[ValueEstimate, ...]
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
    largest_q: float = 0.0
    """Largest |Q| of FQE in units of what rewards allow; above 1 it explodes."""
    begun: float = 0.0
    """Share of what FQE began at, the log's mean, that its sweeps leave where nothing mixes or ends."""
    ratio_mass: float = 1.0
    """Mean of the ratio before it was normalized."""
    restarts: float = 0.0
    """Restarts that were inferred, in rows."""

    def __getitem__(self, name: str) -> ValueEstimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"{name!r} was not estimated; there are {', '.join(e.name for e in self.estimates)}")

    @property
    def value(self) -> float:
        """The headline's."""
        return self[self.headline].value


@dataclass(frozen=True, eq=False, kw_only=True)
class Ratio:
    """A ratio at every transition, and what the value rests on: what outcomes and solutions share."""

    gamma: float
    method: str
    reason: str
    """Why this method was chosen."""
    tau: Floats
    """Ratio at each transition: the mean over the members of an ensemble."""
    members: Floats
    """(members, N): the ratio of each member."""
    mass_weight: Floats
    """nu at each transition."""
    residual: float
    """Stationarity left, as the root of a chi-square distance: on held-out rows for networks, in sample for
    linear features; a diagnostic."""
    n_iter: int
    transitions: Transitions
    divergence: str = "chi2"
    history: tuple[tuple[Progress, ...], ...] = ()
    """Progress of each member."""
    evaluate: Callable[[Any, Any], Floats] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """What the method adds: options, coefficients, certificates."""
    evidence: Evidence | None = None
    """What the value rests on, where it is not the ratio's."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RatioOutcome(Ratio):
    """A ratio, and how the work ended."""

    converged: bool
    stopped: Stop | None
    certified: bool = False
    """Whether a gap below ``tol`` was proven; networks are trained to plan, which proves nothing."""
