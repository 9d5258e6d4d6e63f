"""What ``solve`` returns: a stationary ratio, what is read off it, and what is computed when asked for.

Distributions, leak, value and returns cost sums alone; bounds, values of states, the behavior's value and
intervals take a solve each, made when first read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import read_only
from lingendice.model.compose import compose
from lingendice.model.leaks import LEAK_WORTH_BOUNDS
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.calls import kept_call
from lingendice.results.diagnostics import Check, diagnose_counts
from lingendice.results.interval import Influence, interval
from lingendice.results.plots import plot_solution
from lingendice.results.ranges import UNKNOWN, clipped, range_of, unseen_error, within_range
from lingendice.results.result import Result, Row
from lingendice.results.returns import (
    average_scores,
    end_share,
    episode_interval,
    episode_scores,
    has_whole_episodes,
    mean_of_episodes,
    mean_scores,
    with_other_rewards,
)
from lingendice.results.sensitivity import Sensitivity, sensitivity
from lingendice.results.status import Status
from lingendice.results.tables import solution_frame
from lingendice.results.targets import Interval, ValueScores
from lingendice.solvers.adjoint import solve_adjoint
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.stationary import stationary_distributions

if TYPE_CHECKING:
    from typing_extensions import Self

    from lingendice.model.compose import Choices
    from lingendice.solvers.ridge import RidgeAdjoint


class SeveralDistributions(ValueError):
    """The stationary distribution was read although the chain has several."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """The stationary ratio tau = mu / p and what follows from it.

    Arrays run over cells (states, or state-action pairs ``s * n_actions + a``); with ``ratio="state"``
    over states. Nothing is shrunk: unsupported entries are nan in ``tau`` and False in ``supported``.
    """

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
    entrywise relative, an estimate of the rounding of a method that neither iterates nor subtracts (L1 for
    gamma < 1). "gap": of GenDICE's objective."""
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
    """mu over cells of a ridge, a saddle point or another method, which may not split as the policy does."""

    certified: ClassVar[bool] = True
    """Whether the value is the stationary equation's, to which hard bounds and a primal-dual gap belong."""
    listed: ClassVar[tuple[str, ...]] = (
        "value", "expected_return", "expected_length", "behavior_value", "behavior_return", "value_bounds",
        "gap", "leak", "terminal_mass", "effective_sample_size", "ridge", "residual", "error", "error_kind",
        "condition", "stationary", "tau", "distributions",
    )  # fmt: skip
    costly: ClassVar[tuple[str, ...]] = ("value_bounds", "gap", "behavior_value", "behavior_return")

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
        visit_mass = self.operator.visit_mass[unseen]
        return float(np.einsum("x,x->", self.cell_distribution[unseen], visit_mass))

    @cached_property
    def terminal_mass(self) -> float:
        """Mass of the distribution that sits in terminal states, at zero reward (gamma < 1)."""
        if self.gamma == 1.0:
            return 0.0
        ended = float(np.einsum("x,x->", self.cell_distribution, self.operator.ended))
        return self.gamma / (1.0 - self.gamma) * ended

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
        return effective_size(
            float(counts.total), float(mass.sum()), float(np.einsum("x,x->", mass, mass / p))
        )

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
        return earned / self._identified if self.is_identified and self._identified > 0 else math.nan

    @property
    def is_identified(self) -> bool:
        """Whether any weight lies on a logged reward of an action that the target takes.

        The rule of every method: where it does not hold, the value is nan and the status says so.
        """
        known, target = self._known_reward, self.operator.target
        if target is not None:
            known = known & (target.reshape(-1) > 0.0)
        return bool((self.cell_distribution[known] != 0.0).any())

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
        """Return divided by value: 1 / (1 - gamma), or the length of an episode (gamma = 1).

        None at gamma = 1 where no episode ends.
        """
        if not self.is_ratio:
            return 1.0 / (1.0 - self.gamma)
        counts, smoothed = self.operator.counts, self.operator.choices.smoothing
        if self.state_distribution is None or not counts.has_terminals or smoothed:
            return None
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

    # -- what is computed when it is asked for ------------------------------------------------

    def with_counts(self, counts: Counts, reward_range: tuple[float, float] | None) -> Solution:
        """The solution for the same transitions with the rewards of ``counts``."""
        return replace(self, source=with_other_rewards(self.operator, counts), reward_range=reward_range)

    @cached_property
    def value_bounds(self) -> tuple[float, float] | None:
        """Hard bounds on the value whatever happens past the data, for gamma < 1; None without leak.

        With m the mass absorbed where the data end, and that of cells without a logged reward, sum p tau r +
        m [r_min, r_max] over ``reward_range``; without it they hold if rewards stay within those seen. Where
        episodes of the log end in terminal states they may do so past the data, too, and earn 0 from then on:
        the range of what is absorbed there is widened to hold 0. The bounds take the rest as the log has it:
        transitions, ends and mean rewards of cells with data, and first states. Noise is for ``interval``.
        Under ``leak="restart"`` they come from one more solve with the leaks absorbed, made when first
        read, where that mass exceeds 1e-3.
        """
        if not self.certified or self.gamma == 1.0 or self.value is None:
            return None
        exact = self.operator.absorbs_leaks and self.cell_ridge_distribution is None
        if not exact:
            return self._absorbed.value_bounds if self._unknown_mass > LEAK_WORTH_BOUNDS else None
        reward, known = np.asarray(self.operator.reward), self._known_reward
        rewards = reward[np.isfinite(reward)]  # those given for cells without data, too
        if not rewards.size and self.reward_range is None:
            return None
        low, high = self.reward_range or (float(rewards.min()), float(rewards.max()))
        identified = float(self.cell_distribution[known] @ reward[known])
        # A step that was logged without its reward earned one; only what follows the data may have ended.
        unrewarded = self._unknown_mass - self.leak
        least, most = (min(low, 0.0), max(high, 0.0)) if self.operator.ended.any() else (low, high)
        return (
            identified + unrewarded * low + self.leak * least,
            identified + unrewarded * high + self.leak * most,
        )

    @cached_property
    def _absorbed(self) -> Solution:
        """The same problem with all mass absorbed that goes where there is no data."""
        return self._solved_again(self.operator.choices._replace(leak="absorb", restart=None, smoothing=None))

    def _solved_again(self, choices: Choices) -> Solution:
        """The exact solution for the same data and other choices."""
        operator = compose(self.operator.counts, choices)
        controls = Controls(tol=self.tol if self.tol > 0.0 else 1e-10, threads=self.threads)
        distributions = stationary_distributions(
            operator.chain, self.gamma, operator.initial, False, "auto", controls
        )
        return self.as_plain(
            state_distribution=distributions.single,
            state_distributions=distributions.every,
            source=operator,
            ridge=0.0,
            cell_ridge_distribution=None,
        )

    # -- the behavior ----------------------------------------------------------------------------------

    @property
    def asked_choices(self) -> Choices:
        """What was asked for; ``operator`` may follow another policy."""
        choices: Choices = self.operator.choices
        return choices

    @property
    def has_target(self) -> bool:
        """Whether another policy than the logged one is evaluated."""
        return self.asked_choices.policy is not None

    @cached_property
    def behavior_value(self) -> float | None:
        """What the logged behavior earns per step, on the scale of ``value``; None without rewards.

        For gamma < 1 from the initial distribution, by one more solve, made when first read; at gamma = 1
        the mean reward of the log.
        """
        if self.operator.reward is None or self._behavior_is_average:
            return self.operator.logged_average
        return self._behavior.value

    @cached_property
    def behavior_return(self) -> float | None:
        """What an episode of the logged behavior earns; None where none ends.

        At gamma = 1 the mean over the logged episodes. Where some were cut off, or none were kept, it is the
        estimate for the logged chain, which goes on where they were cut off.
        """
        return self.behavior_estimate("return")

    def behavior_estimate(self, of: str) -> float | None:
        """The behavior's ``value``, ``return`` or ``length``, on the scale of the target's."""
        if of == "value":
            return self.behavior_value
        if self._averages_episodes:
            return mean_of_episodes(self.operator, of)
        return self._behavior.estimate_of(of)

    def behavior_note(self, of: str) -> str:
        """What ``behavior_estimate`` is."""
        if not self._behavior_is_average:
            return ""
        if of == "value":
            return "mean over the logged steps"
        whole = self._averages_episodes
        return "mean over the logged episodes" if whole else "of the logged chain: not all episodes ended"

    def behavior_scores(self, of: str = "value") -> ValueScores:
        """Rows whose products add up to the variance of ``behavior_estimate``; see ``scores``."""
        if of != "value" and self._averages_episodes:
            return mean_scores(self.operator, of)
        if of == "value" and self._behavior_is_average:
            return average_scores(self.operator, float(self.behavior_value or 0.0))
        return self._behavior.scores(of)

    @property
    def _averages_episodes(self) -> bool:
        return self._behavior_is_average and has_whole_episodes(self.operator)

    @property
    def _behavior_is_average(self) -> bool:
        return self.gamma == 1.0

    @cached_property
    def _behavior(self) -> Solution:
        """The solution for the logged chain."""
        return self._solved_again(self._behavior_choices())

    def _behavior_choices(self) -> Choices:
        return self.asked_choices._replace(
            policy=None, behavior=None, clone=None, ratio="auto", unseen="auto", leak="restart"
        )

    @cached_property
    def state_values(self) -> Floats:
        """V over states: discounted values (1 / (1 - gamma) scale), or the bias function at gamma = 1."""
        if self.value is not None and math.isnan(self.value):
            return read_only(np.full(self.operator.n_states, math.nan))
        if len(self.state_distributions) > 1:
            raise SeveralDistributions(
                "the bias function is not unique: the chain has several recurrent classes"
            )
        return read_only(self._adjoint_values())

    def _adjoint_values(self) -> Floats:
        if self.ridge > 0.0:
            values = self.ridge_adjoint.values
            # These are worth relative to the value: its own discounted sum is put back.
            return values if self.gamma == 1.0 else values + float(self.value or 0.0) / (1.0 - self.gamma)
        chain, reward = self.operator.chain, self._mean_reward
        return solve_adjoint(chain, self.gamma, reward, self._single(), self.tol, self.threads)

    @cached_property
    def ridge_adjoint(self) -> RidgeAdjoint:
        """The adjoint of the regularized system, for what is earned beyond the value."""
        system = RidgeSystem(self.operator, self.ridge)
        value = float(self.value or 0.0)
        surplus = np.where(self._known_reward, self._filled_reward - value, 0.0)
        if system.loses_mass:
            # Each step into a terminal state adds mass that earns nothing: the value divides by it, too.
            surplus -= value * self.gamma / (1.0 - self.gamma) * self.operator.ended
        by_row = surplus if system.over_cells else self.operator.gather(surplus)
        return system.adjoint(by_row, self.tau[system.seen] > 0, self.tol)

    @cached_property
    def q_values(self) -> Floats:
        """Q over cells: r + gamma E V(s') (minus the value at gamma = 1); unseen cells earn the value."""
        expected = self.gamma * self.operator.expected_next(self.state_values)
        q: Floats = self._filled_reward + expected
        return read_only(q - self.value if self.gamma == 1.0 and self.value is not None else q)

    @cached_property
    def gap(self) -> float | None:
        """Primal-dual gap of the value: 0 up to rounding proves it; None without a value or with a ridge.

        The value is the optimum of a linear program over distributions; V, raised until it is feasible,
        bounds it from above: gap = (1 - gamma) mu0 V + max(r + gamma P V - V) - value.
        """
        if not self.certified or self.value is None or math.isnan(self.value):
            return None
        if len(self.state_distributions) > 1 or self.ridge > 0.0:
            return None
        v = self.state_values
        onward = self.operator.gather(self.operator.expected_next(v))
        excess = self._mean_reward + self.gamma * onward - v
        visited = self._single() > 0
        bound = float(excess[visited].max())
        if self.gamma < 1.0 and self.operator.initial is not None:
            bound = max(bound, 0.0) + (1.0 - self.gamma) * float(self.operator.initial @ v)
        return bound - self.value

    @cached_property
    def _filled_reward(self) -> Floats:
        # Dividing by the identified mass is the same as letting the rest earn the value itself.
        known, value = self._known_reward, self.value
        filled = self._unknown_weight * (math.nan if value is None else value)
        if self.operator.reward is not None:
            filled[known] = self.operator.reward[known]
        return filled

    @cached_property
    def _unknown_weight(self) -> Floats:
        """For cells of unknown reward, the mass that a visit makes unknown; 0 elsewhere."""
        return np.where(self._known_reward, 0.0, self.operator.visit_mass)

    @property
    def _unknown_mass(self) -> float:
        """The leak, and the mass of cells with data but without a reward."""
        return float(np.einsum("x,x->", self.cell_distribution, self._unknown_weight))

    @cached_property
    def _mean_reward(self) -> Floats:
        return self.operator.gather(self._filled_reward)

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        return interval(self, level, of, method, **options)

    def _episode_interval(self, level: float, of: str, method: str, **options: Any) -> Interval:
        return episode_interval(self, level, of, method, options)

    def _checks(self) -> tuple[Check, ...]:
        return diagnose_counts(self)

    def influence(self) -> Influence:
        """Of every logged transition and first state on functionals of the distribution."""
        return Influence(self)

    def value_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of the value, for comparisons on one log."""
        return self.influence().value_scores()

    def sensitivity(self, of: Any = "value", *, entry: Any = None) -> Sensitivity:
        """The derivative of the value, a function on cells or an ``entry`` of "stationary" by every row of K.

        One adjoint solve. ``sol.sensitivity().row_pairs()`` lists the rows that matter most.
        """
        return sensitivity(self, of, entry)

    def scores(self, of: str = "value") -> ValueScores:
        """The same of the value, the return or the length."""
        return self.value_scores() if of == "value" else self._episode_scores(of)

    def _episode_scores(self, of: str) -> ValueScores:
        return episode_scores(self, of)

    def range_of(self, of: str) -> tuple[float, float]:
        """What ``reward_range`` says of the value or the return: see :mod:`lingendice.results.ranges`."""
        return range_of(self, of)

    def unseen_error(self, of: str) -> float:
        """Standard error of outcomes that ``reward_range`` allows and the log may just not show."""
        return unseen_error(self, of)

    def _within_range(self, found: Interval, of: Any, in_closed_form: bool) -> Interval:
        limits = self.range_of(of) if isinstance(of, str) else UNKNOWN
        if limits == UNKNOWN or math.isnan(found.estimate):
            return found
        if not in_closed_form:
            return clipped(found, limits)
        return within_range(found, self.scores(of), limits, self.unseen_error(of))

    @property
    def _episodes_end(self) -> bool:
        return bool(self.operator.counts.has_terminals)

    # -- for people and machines -----------------------------------------------------------------

    def told(self, name: str) -> Any:
        """What is known under a name without a solve; None where it would take one, or nothing is unique."""
        if name == "behavior_value" and self._behavior_is_average:
            return self.behavior_value
        if name == "behavior_return" and self._averages_episodes:
            return self.behavior_return
        try:
            return super().told(name)
        except SeveralDistributions:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known, as strict JSON types: nan and infinity become None.

        Nothing is computed for it: ``value_bounds``, ``gap``, ``behavior_value``, ``interval`` and ``checks``
        are None until they were asked for.
        """
        counts = self.operator.counts
        return {
            **super().to_dict(),
            "ratio": self.operator.ratio,
            "n_states": counts.n_states,
            "n_actions": counts.n_actions,
            "transitions": counts.total if counts.has_sample_size else None,
            "state_labels": counts.state_labels and [str(name) for name in counts.state_labels],
        }

    def to_frame(self, library: str | None = None) -> Any:
        """A frame with one row per entry of ``stationary``.

        Its columns are state (and action) by label, stationary, tau, data_distribution, reward (the mean
        logged there) and count.

        Parameters
        ----------
        library
            ``"pandas"`` or ``"polars"``; default the one in use, else the one installed.
        """
        return solution_frame(self, library)

    def _drawn(self, kind: str | None, ax: Any) -> Any:
        return plot_solution(self, kind, ax)

    @property
    def _data(self) -> Any:
        return self.operator.counts

    def _value_rows(self) -> list[Row]:
        rows = [("ridge", f"{self.ridge:.1e}")] if self.ridge > 0.0 else []
        if self.state_distribution is None:
            where = "one for each recurrent class (sol.distributions)"
            return [*rows, ("distributions", f"{len(self.state_distributions)}, {where}")]
        rows += super()._value_rows()
        if self.value is not None and self.has_target:
            of = self.headline_of
            found = self.told(f"behavior_{of}")
            asked = f"not computed: sol.behavior_{of}" if found is None else f"{found:.6g}"
            rows.append((f"behavior's {of}", asked))
        bounds = self.told("value_bounds")
        if bounds is not None:
            rows.append(("hard bounds", f"{bounds[0]:.6g} to {bounds[1]:.6g}, {self.bounds_note}"))
        if not self.is_checked:
            where = "where there is no data"
            if not self._data.has_sample_size:
                where = "in states without outgoing transitions"
            rows.append(("leak", f"{self.leak:.2%} of the stationary mass lies {where}"))
        return rows

    @property
    def bounds_note(self) -> str:
        """What ``value_bounds`` assume."""
        return "whatever happens there" if self.reward_range else "if rewards stay within those seen"

    def _asked(self) -> list[Row]:
        return [] if self.state_distribution is None else super()._asked()

    def _accuracy_rows(self) -> list[Row]:
        rows, gap = [("residual", f"{self.residual:.1e}")], self.told("gap")
        if self.error is not None and self.error_kind != "gap":
            rows.append((f"error ({self.error_kind})", f"{self.error:.1e}"))
        if gap is not None:
            kind = getattr(self, "gap_kind", None)
            rows.append((f"gap ({kind})" if kind else "gap", f"{gap:.1e}, the primal-dual gap"))
        return [*rows, ("iterations", f"{self.n_iter:,}")] if self.n_iter else rows

    def moved_to(self, distribution: Floats, **changes: Any) -> Self:
        """The same with another distribution over states, and other changes."""
        return replace(self, state_distribution=distribution, state_distributions=(distribution,), **changes)

    def as_plain(self, **changes: Any) -> Solution:
        """The same record without what a subclass adds, with changes."""
        return Solution(**{entry.name: getattr(self, entry.name) for entry in fields(Solution)} | changes)

    def __getstate__(self) -> dict[str, Any]:
        state = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        state["source"] = self.operator
        return state | kept_call(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()


def effective_size(total: float, mean: float, mean_square: float) -> float:
    """N (E_p tau)^2 / E_p tau^2: how many rows of N count; none where no row has weight."""
    return total * mean**2 / mean_square if mean_square > 0.0 else 0.0
