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
LEAST_GAIN = 0.1
"""Share of the base's imbalance to be removed on held-out episodes, where these show one."""
LEAST_TRAINED_GAIN = 0.15
"""Share on the rows that were trained on, where held-out episodes show none.

On Cartpole, Reacher, HalfCheetah and a linear system it was .2 to .8; of a tau that did not move, below .1.
"""
FEWEST_DRAWS = 20.0
"""How often networks must have drawn each row to have had a chance to leave their base."""
SMALL_IMBALANCE = 0.002
"""Imbalance of a base that leaves nothing to learn: Cartpole has .001, Reacher .01 to .04."""
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


class Gain(NamedTuple):
    """What training removed of the imbalance that a ratio's cloned base has, as shares of it."""

    held_out: float
    """On held-out episodes; 0 for a base that was left as it is, above 1 beyond balance."""
    clear: bool
    """Whether the base's imbalance on held-out episodes is beyond their noise."""
    trained: float
    """The share on the rows that were trained on."""
    imbalance: float
    """The base's on these rows."""
    draws: float
    """How often each row was drawn."""


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
    gains: tuple[Gain, ...] = ()
    """What each member's training added to a cloned base; empty without one."""
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
