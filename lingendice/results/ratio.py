"""A stationary ratio and what is read off it without solving: distributions, leak, value, returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.rows import read_only
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.result import Result
from lingendice.results.status import Status

if TYPE_CHECKING:
    pass


class SeveralDistributions(ValueError):
    """The stationary distribution was read although the chain has several."""


@dataclass(frozen=True, eq=False, repr=False)
class StationaryRatio(Result):
    """The part of a :class:`Solution` that costs nothing to look at."""

    status: Status
    gamma: float
    method: str
    reason: str
    """Why this method was chosen."""
    state_distribution: Floats | None
    """Stationary distribution over states; None where there are several."""
    state_distributions: tuple[Floats, ...]
    """One distribution over states for each recurrent class (gamma = 1)."""
    residual: float
    """L1 norm of mu - (1 - gamma) mu0 - gamma T' mu."""
    error: float | None
    """Error of the distribution: see ``error_kind``. The status says solved only where it is at most
    ``tol``."""
    error_kind: str
    """"bound": L1, proven. "estimate": extrapolated, entrywise relative (L1 with a ridge). "direct":
    entrywise relative, an estimate of the rounding of a method that neither iterates nor subtracts. "gap":
    of GenDICE's objective."""
    condition: float | None
    """Amplification behind an estimate: of the last change, 1 / (1 - contraction), or of a gradient."""
    n_iter: int
    seconds: float
    tol: float
    source: EmpiricalOperator | Callable[[], EmpiricalOperator]
    reward_range: tuple[float, float] | None = None
    history: tuple[float, ...] = ()
    """Residual, change or gap at each checkpoint of an iterative method; empty for direct ones."""
    threads: int = field(default=1)
    ridge: float = 0.0
    """Weight of the ridge; 0 for the exact equation."""
    cell_ridge_distribution: Floats | None = None
    """mu over cells where a ridge was used: it need not split over actions as the policy does."""

    def __post_init__(self) -> None:
        # What is shown is what everything else is computed from: nobody may write to it.
        for name, value in tuple(self.__dict__.items()):
            if type(value) is np.ndarray:
                self.__dict__[name] = read_only(value)
        self.__dict__["state_distributions"] = tuple(map(read_only, self.state_distributions))

    # -- distributions ---------------------------------------------------------------------------------

    @cached_property
    def operator(self) -> EmpiricalOperator:
        """The empirical operator that was solved."""
        return self.source if isinstance(self.source, EmpiricalOperator) else self.source()

    @property
    def converged(self) -> bool:
        """Whether the answer (or every distribution, where there are several) meets ``tol``."""
        return self.status in (Status.SOLVED, Status.SEVERAL_DISTRIBUTIONS)

    @property
    def stationary(self) -> Floats:
        """mu: the stationary distribution."""
        return self._show(self._single())

    @property
    def distributions(self) -> tuple[Floats, ...]:
        """Every stationary distribution, one for each recurrent class."""
        return tuple(self._show(distribution) for distribution in self.state_distributions)

    @cached_property
    def data_distribution(self) -> Floats:
        """p: share of the logged transitions that start in each entry."""
        p = self.operator.counts.data_distribution
        return p if self._over_cells else read_only(p.reshape(self.operator.n_states, -1).sum(axis=1))

    @property
    def supported(self) -> NDArray[np.bool_]:
        """Entries with data, where tau is defined."""
        return self.data_distribution > 0

    @cached_property
    def tau(self) -> Floats:
        """mu / p; nan where there is no data."""
        mu, p = self.stationary, self.data_distribution
        return read_only(np.divide(mu, p, out=np.full(mu.shape, np.nan), where=p > 0))

    @cached_property
    def cell_distribution(self) -> Floats:
        """mu over cells, whatever ``ratio`` is shown."""
        if self.cell_ridge_distribution is not None:
            return self.cell_ridge_distribution
        return read_only(self.operator.spread(self._single()))

    @property
    def over_actions(self) -> bool:
        """Whether ``stationary`` and ``tau`` run over states and actions, not over states alone."""
        return self._over_cells and self.operator.counts.n_actions is not None

    @property
    def _over_cells(self) -> bool:
        return self.operator.policy is None or self.operator.ratio == "state_action"

    def _show(self, state_distribution: Floats) -> Floats:
        if self._over_cells and self.cell_ridge_distribution is not None:
            return self.cell_ridge_distribution
        return read_only(self.operator.spread(state_distribution)) if self._over_cells else state_distribution

    def _single(self) -> Floats:
        if self.state_distribution is None:
            raise SeveralDistributions(
                f"there are {len(self.state_distributions)} stationary distributions, one for each recurrent "
                "class; read sol.distributions, or pass initial= to solve for the limit distribution from a "
                "given start"
            )
        return self.state_distribution

    # -- what the data cannot tell -------------------------------------------------------------

    @cached_property
    def leak(self) -> float:
        """Stationary mass that the data do not identify: reached, without outgoing transitions.

        With ``leak="absorb"`` it includes all that would have followed.
        """
        unseen = ~self.operator.seen
        return float(self.cell_distribution[unseen] @ self.operator.visit_mass[unseen])

    @cached_property
    def terminal_mass(self) -> float:
        """Mass of the distribution that sits in terminal states, at zero reward (gamma < 1)."""
        if self.gamma == 1.0:
            return 0.0
        return float(self.gamma / (1.0 - self.gamma) * (self.cell_distribution @ self.operator.ended))

    @property
    def sample(self) -> tuple[float, str]:
        """How many were weighed, and of what: the log's transitions."""
        return float(self.operator.counts.total), "transitions"

    @cached_property
    def effective_sample_size(self) -> float | None:
        """N (E_p w)^2 / E_p w^2 with w = mu / p over cells, the weight of each logged transition.

        None for a matrix without a sample size.
        """
        counts = self.operator.counts
        if not counts.has_sample_size:
            return None
        seen = self.operator.seen
        mass, p = self.cell_distribution[seen], counts.data_distribution[seen]
        return effective_size(float(counts.total), float(mass.sum()), float(mass @ (mass / p)))

    # -- value ------------------------------------------------------------------------------------

    @cached_property
    def _known_reward(self) -> NDArray[np.bool_]:
        reward = self.operator.reward
        if reward is None:
            raise ValueError("the data hold no rewards; pass reward= to solve, or to Counts.from_transitions")
        return self.operator.seen & np.isfinite(reward)

    @cached_property
    def value(self) -> float | None:
        """Per-step value, sum p tau r over the mass whose rewards are known (1 - leak).

        None where no reward (or no single distribution) is known; nan where that mass is 0: see ``status``.
        """
        return self._value()

    def _value(self) -> float | None:
        if self.operator.reward is None or self.state_distribution is None:
            return None
        reward = np.where(self._known_reward, self.operator.reward, 0.0)
        # Not a BLAS product: its bits, and its time among threads, depend on the number of cores.
        earned = float(np.einsum("x,x->", self.cell_distribution, reward))
        return earned / self._identified if self._identified > 0 else math.nan

    @cached_property
    def _known_mass(self) -> float:
        """The mass whose rewards are known, that of terminal states included.

        A sum, not 1 - leak, which rounding keeps above 0 where nothing is identified.
        """
        return float(np.einsum("x,x->", self.cell_distribution, self._known_reward)) + self.terminal_mass

    @property
    def _identified(self) -> float:
        """What the value divides by."""
        return self._known_mass

    @property
    def is_ratio(self) -> bool:
        """Whether an episode's return is a ratio: reward per step over the rate of ends (gamma = 1)."""
        return self.gamma == 1.0

    @cached_property
    def episode_steps(self) -> float | None:
        """How many steps' value a return is: 1 / (1 - gamma), or the length of an episode (gamma = 1).

        None at gamma = 1 where no episode ends.
        """
        if not self.is_ratio:
            return 1.0 / (1.0 - self.gamma)
        counts, choices = self.operator.counts, self.operator.choices
        smoothed = choices is not None and choices.smoothing
        if self.state_distribution is None or not counts.has_terminals or smoothed:
            return None
        from lingendice.results.returns import end_share

        if self.operator.reward is None:
            mass = self.cell_distribution * self.operator.seen
            total = float(mass.sum())
        else:
            mass, total = self.cell_distribution * self._known_reward, self._identified
        rate = float(np.einsum("x,x->", mass, end_share(counts)))
        return total / rate if rate > 0.0 else None

    @cached_property
    def expected_return(self) -> float | None:
        """Return of an episode from the initial distribution: value / (1 - gamma), discounted, for gamma < 1.

        At gamma = 1 the undiscounted return of an episode, (sum mu r) / (ends per step); None where no
        episode ends, or without rewards.
        """
        if self.value is None or self.episode_steps is None:
            return None
        return self.value * self.episode_steps

    @cached_property
    def expected_length(self) -> float | None:
        """Steps of an episode at gamma = 1; None where none ends. For gamma < 1 step t counts gamma^t."""
        if self.state_distribution is None or self.episode_steps is None:
            return None
        if self.is_ratio:
            return self.episode_steps
        mass = float(np.einsum("x,x->", self.cell_distribution, self.operator.seen))
        return mass / (mass + self.terminal_mass) * self.episode_steps if mass > 0.0 else math.nan


def effective_size(total: float, mean: float, mean_square: float) -> float:
    """N (E_p tau)^2 / E_p tau^2: how many rows of N count; none where no row has weight."""
    return total * mean**2 / mean_square if mean_square > 0.0 else 0.0
