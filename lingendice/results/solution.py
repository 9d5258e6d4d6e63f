"""What ``solve`` returns: a ratio, and bounds, values of states and intervals once they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import read_only
from lingendice.model.leaks import LEAK_WORTH_BOUNDS
from lingendice.results.ratio import SeveralDistributions, StationaryRatio
from lingendice.results.result import Row

if TYPE_CHECKING:
    from typing_extensions import Self

    from lingendice.model.compose import Choices
    from lingendice.results.diagnostics import Check
    from lingendice.results.interval import Influence
    from lingendice.results.targets import Interval, ValueScores


@dataclass(frozen=True, eq=False, repr=False)
class Solution(StationaryRatio):
    """The stationary ratio tau = mu / p and what follows from it.

    Arrays run over cells (states, or state-action pairs ``s * n_actions + a``); with ``ratio="state"``
    over states. Nothing is shrunk: unsupported entries are nan in ``tau`` and False in ``supported``.
    """

    certified: ClassVar[bool] = True
    """Whether the value is the stationary equation's, to which hard bounds and a primal-dual gap belong."""

    def with_counts(self, counts: Counts, reward_range: tuple[float, float] | None) -> Solution:
        """The solution for the same transitions with the rewards of ``counts``."""
        choices = self.operator.choices
        operator = replace(
            self.operator,
            counts=counts,
            reward=counts.reward,
            choices=None if choices is None else choices._replace(reward=None),
        )
        return replace(self, source=operator, reward_range=reward_range)

    @cached_property
    def value_bounds(self) -> tuple[float, float] | None:
        """Hard bounds on the value whatever happens past the data, for gamma < 1; None without leak.

        With m the mass absorbed where the data end, sum p tau r + m [r_min, r_max] over ``reward_range``;
        without it they hold if rewards stay within those seen.
        Under ``leak="restart"`` they come from one more solve with the leaks absorbed, made when first
        read, where the leak exceeds 1e-3.
        """
        if not self.certified or self.gamma == 1.0 or self.value is None:
            return None
        if not self.operator.absorbs_leaks:
            return self._absorbed.value_bounds if self.leak > LEAK_WORTH_BOUNDS else None
        known = self._known_reward
        reward = np.asarray(self.operator.reward)[known]
        if not reward.size and self.reward_range is None:
            return None
        low, high = self.reward_range or (float(reward.min()), float(reward.max()))
        identified = float(self.cell_distribution[known] @ reward)
        return identified + self.leak * low, identified + self.leak * high

    @cached_property
    def _absorbed(self) -> Solution:
        """The same problem with all mass absorbed that goes where there is no data."""
        return self._solved_again(self.operator.choices._replace(leak="absorb", smoothing=None))

    def _solved_again(self, choices: Choices) -> Solution:
        """The exact solution for the same data and other choices."""
        from lingendice.model.compose import compose
        from lingendice.solvers.control import Controls
        from lingendice.solvers.stationary import stationary_distributions

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
    def asked_choices(self) -> Choices | None:
        """What was asked for; ``operator`` may follow another policy."""
        choices: Choices | None = self.operator.choices
        return choices

    @property
    def has_target(self) -> bool:
        """Whether another policy than the logged one is evaluated."""
        choices = self.asked_choices
        return choices is not None and choices.policy is not None

    @cached_property
    def behavior_value(self) -> float | None:
        """What the logged behavior earns per step, on the scale of ``value``; None without rewards.

        For gamma < 1 from the initial distribution, by one more solve, made when first read; at gamma = 1
        the mean reward of the log.
        """
        if self.operator.reward is None or self._behavior_is_average:
            return self.operator.logged_average
        return self._behavior.value

    def behavior_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of ``behavior_value``, as ``value_scores`` has them."""
        from lingendice.results.returns import average_scores

        if self._behavior_is_average:
            return average_scores(self, float(self.behavior_value or 0.0))
        return self._behavior.value_scores()

    @property
    def _behavior_is_average(self) -> bool:
        return self.gamma == 1.0

    @cached_property
    def _behavior(self) -> Solution:
        """The solution for the logged chain."""
        return self._solved_again(self._behavior_choices())

    def _behavior_choices(self) -> Choices:
        choices = self.asked_choices
        assert choices is not None
        return choices._replace(
            policy=None, behavior=None, clone=None, ratio="auto", unseen="auto", leak="restart"
        )

    @property
    def known_behavior_value(self) -> float | None:
        """The behavior's value where it needs no solve or was asked for."""
        return self.behavior_value if self._behavior_is_average else self.known("behavior_value")

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
        from lingendice.solvers.adjoint import solve_adjoint

        if self.ridge > 0.0:
            return self._ridge_values()
        chain, reward = self.operator.chain, self._mean_reward
        return solve_adjoint(chain, self.gamma, reward, self._single(), self.tol, self.threads)

    def _ridge_values(self) -> Floats:
        """The adjoint of the regularized system, on the scale of the exact one."""
        from lingendice.solvers.ridge import RidgeSystem

        system = RidgeSystem(self.operator, self.ridge)
        value = float(self.value or 0.0)
        surplus = np.where(self._known_reward, self._filled_reward - value, 0.0)
        if system.loses_mass:
            # Each step into a terminal state adds mass that earns nothing: the value divides by it, too.
            surplus -= value * self.gamma / (1.0 - self.gamma) * self.operator.ended
        by_row = surplus if system.over_cells else self.operator.gather(surplus)
        values = system.adjoint(by_row, self.tau[system.seen] > 0, self.tol).values
        # These are worth relative to the value: its own discounted sum is put back.
        return values if self.gamma == 1.0 else values + value / (1.0 - self.gamma)

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
        excess = self._mean_reward + self.gamma * self._next_values(v) - v
        visited = self._single() > 0
        bound = float(excess[visited].max())
        if self.gamma < 1.0 and self.operator.initial is not None:
            bound = max(bound, 0.0) + (1.0 - self.gamma) * float(self.operator.initial @ v)
        return bound - self.value

    def _next_values(self, state_values: Floats) -> Floats:
        """P V over states."""
        return self.operator.chain.apply(state_values)

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

    @cached_property
    def _mean_reward(self) -> Floats:
        return self.operator.gather(self._filled_reward)

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        from lingendice.results.interval import interval

        return interval(self, level, of, method, **options)

    def _episode_interval(self, level: float, of: str, method: str, options: dict[str, Any]) -> Interval:
        from lingendice.results.returns import episode_interval

        return episode_interval(self, level, of, method, options)

    def _checks(self) -> tuple[Check, ...]:
        from lingendice.results.diagnostics import diagnose_counts

        return diagnose_counts(self)

    def influence(self) -> Influence:
        """Of every logged transition and first state on functionals of the distribution."""
        from lingendice.results.interval import Influence

        return Influence(self)

    def value_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of the value, for comparisons on one log."""
        return self.influence().value_scores()

    # -- for people and machines -----------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known, as strict JSON types: nan and infinity become None.

        Nothing is computed for it: ``value_bounds``, ``gap``, ``interval`` and ``checks`` are None until they
        were asked for.
        """
        from lingendice.results.tables import solution_dict

        return solution_dict(self)

    def to_frame(self, library: str | None = None) -> Any:
        """A frame with one row per entry of ``stationary``.

        Its columns are state (and action) by label, stationary, tau, data_distribution, reward (the mean
        logged there) and count.

        Parameters
        ----------
        library
            ``"pandas"`` or ``"polars"``; default the one in use, else the one installed.
        """
        from lingendice.results.tables import solution_frame

        return solution_frame(self, library)

    def _drawn(self, kind: str | None, ax: Any) -> Any:
        from lingendice.results.plots import plot_solution

        return plot_solution(self, kind, ax)

    def _facts(self) -> list[Row]:
        from lingendice.results.tables import solution_facts

        return solution_facts(self)

    def moved_to(self, distribution: Floats, **changes: Any) -> Self:
        """The same with another distribution over states, and other changes."""
        return replace(self, state_distribution=distribution, state_distributions=(distribution,), **changes)

    def as_plain(self, **changes: Any) -> Solution:
        """The same record without what a subclass adds, with changes."""
        return Solution(**{entry.name: getattr(self, entry.name) for entry in fields(Solution)} | changes)

    def __getstate__(self) -> dict[str, Any]:
        state = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        state["source"] = self.operator
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()
