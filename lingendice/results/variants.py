"""Solutions of other problems than the exact equation: saddle points, other methods, H steps, the default.

The default with a policy rests on shrunk advantages, and says how far it may be off. Its distribution is that
of the effective policy (see :mod:`lingendice.solvers.shrinkage`), which takes logged actions alone; what the
target does beyond them enters as an extra reward of each state. Its interval adds an allowance for bias
(:mod:`lingendice.results.allowance`).

One logged transition x -> s' moves the return of H steps by

    sum_t gamma^t m_t(x) / p(x) (r + gamma V_{t+1}(s') - Q_t(x)) / N ,     m_t = d_t W

with V and Q of :func:`lingendice.solvers.horizon.backward`: the influence function of the recursion. First
states, and weights of actions that stand in for those never logged, move it as the stationary value is moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.interrupts import check
from lingendice.data.rows import read_only, row_of_entry, row_sums
from lingendice.model.compose import Choices, compose_episodes
from lingendice.model.leaks import LARGE_LEAK, LEAK_WORTH_BOUNDS
from lingendice.results.allowance import (
    RULE_OF_THREE,
    Allowed,
    allowed_interval,
    fill_allowance,
    half_width,
    never_seen,
    rounding_of,
    value_scores,
)
from lingendice.results.diagnostics import (
    MOST_NOISY_RATIO,
    Check,
    check_of_largest_weight,
    check_of_mean_ratio,
    check_of_misfit,
    diagnose_counts,
)
from lingendice.results.interval import Influence, Piece, refuse_partial_rewards
from lingendice.results.ranges import value_within
from lingendice.results.result import Row
from lingendice.results.returns import around, beside, end_share, with_rewards
from lingendice.results.solution import Solution
from lingendice.results.targets import HEAVIEST, Estimate, Interval, ValueScores, student_quantile
from lingendice.results.trust_checks import Grounds, data_checks, order_checks, trust_checks, trust_notes
from lingendice.solvers.control import Controls
from lingendice.solvers.horizon import backward, forward, total_weight, visits
from lingendice.solvers.shrinkage import Shrinkage, shrink


def _refuse_kind(kind: str | None, instead: str) -> None:
    if kind not in (None, "t"):
        raise ValueError(
            "kind= has no say where an interval allows for bias: it is the value and so many standard "
            f"errors to both sides; leave kind= out, or {instead}"
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LinearSolution(Solution):
    """tau = features @ w_tau and f = dual_features @ w_f, with the primal-dual gap that certifies them."""

    w_tau: Floats
    w_f: Floats
    u: float
    """Multiplier of the normalization."""
    objective: float
    """max over (f, u) of J at w_tau: divergence plus penalty plus ridge."""
    lower_bound: float
    """No w does better than this."""
    gap_kind: str
    """"exact", or "bound" where the inner maximum is itself bounded."""
    gap_trace: tuple[tuple[int, float], ...] = ()
    """(steps, gap) at the checkpoints."""
    divergence: str

    @property
    def gap(self) -> float:  # type: ignore[override]
        """objective - lower_bound: an upper bound on how much any other w could improve the objective."""
        return self.objective - self.lower_bound

    @property
    def _identified(self) -> float:
        """Share of the mass whose rewards are known; the mass itself, 1 at the optimum, is not divided by."""
        total = self._known_mass + self._unknown_mass
        return self._known_mass / total if total > 0.0 else 0.0

    @property
    def mass(self) -> Floats:
        """p tau over cells (states, for a state ratio), with the mass that visits unseen cells."""
        return self.stationary

    listed = (
        *Solution.listed, "divergence", "objective", "lower_bound", "gap_kind", "w_tau", "w_f", "u"
    )  # fmt: skip
    costly = ("value_bounds", "behavior_value", "behavior_return")

    @cached_property
    def misfit(self) -> float:
        """How far the exact equation's value is: 0 where features, bound and ridge can express its ratio.

        One exact solve; infinite where that equation has no single value.
        """
        plain = self._solved_again(self.operator.choices)
        if len(plain.state_distributions) != 1 or self.value is None or plain.value is None:
            return math.inf
        off = abs(plain.value - self.value)
        return math.inf if math.isnan(off) else off

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        """For the value it allows for the ``misfit``, which is bias that no amount of data takes away."""
        found = super()._interval(level, of, method, **options)
        if not (isinstance(of, str) and of == "value") or math.isnan(found.estimate):
            return replace(found, note=f"{found.note}; allows for noise, not for what the features leave out")
        _refuse_kind(options.get("kind"), "leave features= out")
        half = half_width(found.standard_error, self.misfit, level, self.value_scores().degrees)
        low, high = found.estimate - half, found.estimate + half
        return replace(found, low=low, high=high, bias_allowance=self.misfit)

    def value_scores(self) -> ValueScores:
        """With the misfit as the allowance for bias."""
        return super().value_scores()._replace(bias_allowance=self.misfit)

    def _checks(self) -> tuple[Check, ...]:
        checks = super()._checks()
        # No more is asked of a matrix without a sample size, or where there is no value.
        asked = len(checks) > 1 and self.value is not None and not math.isnan(self.value)
        if not asked:
            return checks
        scores = self.value_scores()
        noise = student_quantile(0.95, scores.degrees) * scores.standard_error
        return (*checks, check_of_misfit(self.misfit, noise))

    def _accuracy_rows(self) -> list[Row]:
        return [
            ("divergence", f"{self.divergence}, objective {self.objective:.3e}"),
            ("coefficients", f"{self.w_tau.size:,} of tau, {self.w_f.size:,} of f"),
            *super()._accuracy_rows(),
        ]


class Uncertified(Solution):
    """A value that is neither the stationary equation's nor a ratio of rates."""

    certified = False
    is_ratio = False


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BaselineSolution(Uncertified):
    """Another method's value, with the distribution over cells that its weights amount to.

    Weights of logged rewards, added up by cell, are the distribution; ``tau`` is that over p, and
    ``residual`` says how far it is from stationary. The value is the method's own:
    weights that differ between visits of one cell make it differ from the distribution's mean of the cells'
    average rewards.
    """

    found: Estimate

    @property
    def value(self) -> float:  # type: ignore[override]
        """The method's value per step; nan where no weight is positive."""
        return self.found.value

    @property
    def standard_error(self) -> float | None:
        """Of the value, clustered by episode; None where the method gives none."""
        return self.found.standard_error

    @property
    def note(self) -> str:
        """What the value rests on."""
        return self.found.note

    @property
    def effective_sample_size(self) -> float | None:  # type: ignore[override]
        """Of the weights: episodes or transitions, as the method weighs."""
        return self.found.effective_sample_size

    @property
    def sample(self) -> tuple[float, str]:
        """How many the method weighs, and of what."""
        if self.found.weighed == "transitions":
            return super().sample
        episodes = self.operator.counts.episodes
        assert episodes is not None
        return float(episodes.first_state.size), self.found.weighed

    @property
    def episode_steps(self) -> float | None:  # type: ignore[override]
        """Steps of the horizon, else 1 / (1 - gamma); None at gamma = 1, where no rate of ends is known."""
        if self.found.steps is not None:
            return self.found.steps
        return None if self.gamma == 1.0 else 1.0 / (1.0 - self.gamma)

    @property
    def expected_length(self) -> None:  # type: ignore[override]
        """None: see ``solve``."""
        return

    @property
    def state_values(self) -> Floats:  # type: ignore[override]
        """Not estimated by these methods."""
        raise ValueError(f"{self.method} estimates no value function; model_based(...) and solve(...) do")

    q_values = state_values  # type: ignore[assignment]

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        """Student interval of the value, clustered by episode; other functions have none here."""
        if not isinstance(of, str) or of != "value" or method != "influence" or options:
            raise ValueError(f"{self.method} has an interval of its value only; see solve(...).interval")
        return self.found.interval(level)

    listed = (*Solution.listed, "standard_error", "note")

    def _checks(self) -> tuple[Check, ...]:
        """Also, where they fail, that the weights keep the target's mass and that no single one dominates."""
        checks = super()._checks()
        if len(checks) <= 1 or math.isnan(self.value):
            return checks
        most = MOST_NOISY_RATIO if self.found.weighed == "episodes" else 1.0 / (1.0 - LARGE_LEAK)
        more = [check_of_mean_ratio(self.found.mean_ratio, most)]
        if self.found.largest_weight is not None:
            more.append(check_of_largest_weight(self.found.largest_weight, HEAVIEST))
        return (*checks, *(check for check in more if not check.ok))

    def _value_rows(self) -> list[Row]:
        rows = super()._value_rows()
        if self.standard_error is not None:
            rows.insert(1, ("standard error", f"{self.standard_error:.2g}"))
        return rows


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HorizonSolution(Uncertified):
    """What ``solve(..., horizon=H)`` returns: the first H steps from the initial distribution.

    ``stationary`` is the distribution of these steps, step t weighted by gamma^t; with ``terminal_mass``, the
    steps after the end of an episode, it sums to 1. ``value`` is the mean reward of a step so weighted, and
    ``expected_return`` the sum, ``value`` times sum gamma^t.
    """

    horizon: int
    ended_mass: float

    @property
    def terminal_mass(self) -> float:  # type: ignore[override]
        """Share of the first H steps after the end of an episode, at zero reward."""
        return self.ended_mass

    @property
    def episode_steps(self) -> float:  # type: ignore[override]
        """sum_{t<H} gamma^t: what the value per step is multiplied by."""
        return total_weight(self.gamma, self.horizon)

    @cached_property
    def values_by_step(self) -> Floats:
        """V_0, ..., V_H as rows: what is still to come in each state with H, ..., 0 steps to go."""
        return read_only(backward(self.operator, self.horizon, self._filled_reward))

    @property
    def state_values(self) -> Floats:  # type: ignore[override]
        """V_0 over states: the return of H steps from there."""
        return self.values_by_step[0]

    @cached_property
    def q_values(self) -> Floats:
        """Q_0 over cells: the return of H steps that begin there."""
        expected = self.gamma * self.operator.expected_next(self.values_by_step[1])
        return read_only(self._filled_reward + expected)

    @property
    def _behavior_is_average(self) -> bool:
        return False

    @property
    def _episodes_end(self) -> bool:
        """All do, at the horizon."""
        return True

    def unit_of(self, of: str) -> str:
        """What the numbers of a quantity are per."""
        return super().unit_of(of) if of == "value" else f"over the first {self.horizon:,} steps"

    @cached_property
    def _behavior(self) -> HorizonSolution:
        operator = compose_episodes(self.operator.counts, self._behavior_choices())
        found = visits(operator, self.horizon)
        return self.moved_to(found.outcome.distribution, source=operator, ended_mass=found.terminal_mass)

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        if not isinstance(of, str) or of == "stationary" or method != "influence" or options:
            raise ValueError(
                "with horizon= there are intervals of the value, the return and the length, by "
                'method="influence"; leave the other options out'
            )
        found = super()._interval(level, of, method)
        allowance, note, filled = self._bias_allowance, found.note, self._filled_mass
        if filled > 0.0:
            note += f"; {filled:.1%} of the target's actions were never logged"
            note += (
                ": allowed for as bias" if allowance > 0.0 else ", and no outcomes differ to measure that by"
            )
        half = half_width(found.standard_error, allowance, level, self.value_scores().degrees)
        if not allowance > 0.0 or math.isnan(half):
            return replace(found, note=note)
        low, high = found.estimate - half, found.estimate + half
        return replace(found, low=low, high=high, note=note, bias_allowance=allowance)

    def value_scores(self) -> ValueScores:
        """What comparisons with other policies on the same log are made of."""
        return super().value_scores()._replace(bias_allowance=self._bias_allowance)

    @cached_property
    def _bias_allowance(self) -> float:
        """B of :mod:`lingendice.results.allowance` for the outcomes y = r + gamma V_1(s') of a step.

        For actions never logged, beyond what Good and Turing expect, and for outcomes never seen.
        """
        operator, counts = self.operator, self.operator.counts
        if operator.policy is None or operator.choices.policy is None or operator.choices.unseen != "mean":
            return 0.0
        cell = row_of_entry(counts.indptr)
        reward = self._filled_reward[cell]
        if operator.choices.reward is None and counts.reward_mean is not None:
            reward = np.where(np.isfinite(counts.reward_mean), counts.reward_mean, reward)
        y = reward + self.gamma * np.append(self.values_by_step[1], 0.0)[counts.indices]
        logged = counts.cell_count.reshape(operator.policy.shape).astype(float)
        visits, state = logged.sum(axis=1), cell // operator.policy.shape[1]
        mean = np.bincount(state, weights=counts.count * y, minlength=visits.size) / np.maximum(visits, 1.0)
        spread = math.sqrt(
            float((counts.count * (y - mean[state]) ** 2).sum()) / max(float(visits.sum()), 1.0)
        )
        # Where no state has two outcomes, those of different states are the measure.
        spread = spread if spread > 1e-10 * float(np.abs(y).max()) else float(np.ptp(y))
        target = self._single() * (visits > 0)
        expected = float(target @ ((logged == 1.0).sum(axis=1) / (visits + 1.0)))
        expected /= max(float(target.sum()), 1e-300)
        fill = fill_allowance(spread, self._filled_mass, expected)
        surprise = y - self.q_values[cell]
        span = max(float(np.abs(surprise).max()), float(np.ptp(reward)))
        if self.reward_range is not None:
            span = max(span, self.reward_range[1] - self.reward_range[0])
        rare = RULE_OF_THREE * span * float(self.cell_distribution.sum()) / self._effective_sample
        # Against the mean of the cell's other visits.
        once = (counts.count == 1) & (counts.cell_count[cell] > 1)
        weight = self.cell_distribution[cell[once]] / (counts.cell_count[cell[once]] - 1.0)
        allowed = fill + rare + never_seen(weight * surprise[once])
        return allowed if allowed > float(rounding_of(y)) else 0.0

    @property
    def _effective_sample(self) -> float:
        """(sum mass)^2 / sum mass^2 / n."""
        mass, seen = self.cell_distribution, self.operator.seen
        squares = float((mass[seen] ** 2 / self.operator.counts.cell_count[seen]).sum())
        return max(float(mass.sum()), 1e-300) ** 2 / max(squares, 1e-300)

    @property
    def _filled_mass(self) -> float:
        """Share of the target's actions, where it goes, that others stand in for."""
        filled = self._filled_cells
        if filled is None:
            return 0.0
        visited = self.operator.seen.reshape(filled.shape).any(axis=1)
        return float(filled.sum()) / max(float(self._single()[visited].sum()), 1e-300)

    @property
    def _filled_cells(self) -> Floats | None:
        """Mass of the target's actions, states by actions, that others stand in for."""
        operator, asked = self.operator, self.operator.choices.policy
        if operator.policy is None or asked is None or operator.choices.unseen != "mean":
            return None
        target = np.asarray(operator.target)
        seen = operator.seen.reshape(target.shape)
        return np.where(seen | ~seen.any(axis=1, keepdims=True), 0.0, target) * self._single()[:, None]

    def influence(self) -> Influence:
        """Of every logged transition on the value."""
        return HorizonInfluence(self)

    def _checks(self) -> tuple[Check, ...]:
        """Those of the default with a policy; without one, how fast the chain forgets does not matter."""
        filled = self._filled_cells
        if filled is None or self.value is None or math.isnan(self.value):
            return tuple(check for check in super()._checks() if check.name != "mixing")
        grounds = Grounds(
            operator=self.operator,
            cell_distribution=self.cell_distribution,
            filled_mass=filled,
            leak=self.leak,
            trapped=0.0,
            effective_sample=self._effective_sample,
            behavior=None,
            values=self.values_by_step[1],
            ending=0.0,
        )
        return (*data_checks(grounds), *order_checks(grounds))

    @property
    def return_note(self) -> str:
        """What ``expected_return`` is, in words."""
        counted = "undiscounted" if self.gamma == 1.0 else "discounted"
        return f"of the first {self.horizon:,} steps, {counted}"

    def _value_note(self) -> str:
        return f"  (mean over the first {self.horizon:,} steps)"

    listed = (*Solution.listed, "horizon")


class HorizonInfluence(Influence):
    """Influence on the value of the first H steps, in O(H nnz)."""

    solution: HorizonSolution

    def value(self) -> Piece:
        """Influence on the value: that of every step, added up over time."""
        solution, operator = self.solution, self.operator
        values, reward = solution.values_by_step, solution._filled_reward
        whole, ended = solution.episode_steps, np.append(np.zeros(operator.n_states), 0.0)
        entry = np.zeros(self.counts.count.size)
        fallen = {source: np.zeros((operator.n_states, 1)) for source in operator.falling}
        action_values = np.zeros(operator.n_cells)
        for step, (weight, state) in enumerate(forward(operator, solution.horizon)):
            check()
            cells = weight * operator.spread(state)
            ended[:-1] = values[step + 1]
            after = ended[self.counts.indices]
            sums = row_sums(self.counts.indptr, self.counts.count * after)
            mean = np.divide(sums, self.n, out=np.zeros_like(sums), where=self.n > 0)
            entry += operator.gamma * cells[self.cell] * (after - mean[self.cell])
            for source, out in operator.falling.items():
                share = operator.gamma / whole * float(np.einsum("x,x->", cells, out))
                fallen[source][:, 0] += share * values[step + 1]
            if operator.policy is not None:
                q = reward + operator.gamma * operator.expected_next(values[step + 1])
                action_values += weight * np.repeat(state, operator.policy.shape[1]) * q
        held = whole * solution.cell_distribution[self.cell]
        noise = np.divide(entry, held, out=np.zeros_like(entry), where=held > 0)
        noise *= self._observed_share()[self.cell]
        shift = self._filled_in(action_values / whole)[:, None] + self._restart_shift(fallen)
        first = self._begun(values[0][:, None] / whole, fallen)
        scale = 1.0 / solution._identified
        none = rounding_of(reward[:, None], values.reshape(-1, 1))
        return Piece(self, noise[:, None], shift[self.cell], first, operator.logged_reward, scale, none)

    def _filled_in(self, action_values: Floats) -> Floats:
        """Target actions never logged take the mean of a state's logged ones, which moves with the counts.

        Without a target all actions do.
        """
        operator, choices = self.operator, self.operator.choices
        if operator.policy is None or (choices.policy is not None and choices.unseen != "mean"):
            return np.zeros(operator.n_cells)
        seen = self.n.reshape(operator.policy.shape)
        visits = np.maximum(seen.sum(axis=1, keepdims=True), 1.0)
        missing = np.ones_like(visits)
        if choices.policy is not None:
            missing = np.where(seen > 0, 0.0, np.asarray(operator.target)).sum(axis=1, keepdims=True)
        q = action_values.reshape(seen.shape)
        mean = (seen * q).sum(axis=1, keepdims=True) / visits
        return np.where(seen > 0, self.total * missing / visits * (q - mean), 0.0).ravel()


# -- the default with a policy -------------------------------------------------------------------------------


def fitted_fields(fit: Shrinkage) -> dict[str, Any]:
    """Fields of a solution that a fit decides."""
    distribution = fit.state_distribution
    return {
        "state_distribution": distribution,
        "state_distributions": (distribution,),
        "source": fit.operator,
        "ridge": fit.ridge,
        "cell_ridge_distribution": fit.operator.spread(distribution) if fit.ridge > 0.0 else None,
        "fit": fit,
        "extra_reward": fit.extra_reward,
    }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PolicySolution(Solution):
    """What ``solve`` returns for a policy where ridge, clone and the like are left to the library.

    ``value = (sum mu r + sum_s mu(s) extra_reward(s)) / (1 - leak) + correction``.
    """

    fit: Shrinkage
    """The estimate with everything that its interval and its checks need."""
    asked: Choices
    """What was asked for; ``operator`` follows the effective policy."""
    extra_reward: Floats
    """What actions of the target beyond the logged ones add to the reward of each state."""
    correction: float = 0.0
    """Change of the value by extrapolating the ridge to 0 (gamma = 1 or nearly)."""
    certified: ClassVar[bool] = False

    def _value(self) -> float | None:
        earned = super()._value()
        if earned is None or math.isnan(earned) or self.state_distribution is None:
            return earned
        extra = float(np.einsum("s,s->", self.state_distribution, self.extra_reward))
        return float(earned) + extra / self._identified + self.correction

    @cached_property
    def value(self) -> float | None:
        """Per-step value, within what ``reward_range`` says of it and of the return."""
        found = self._value()
        known = found is not None and not math.isnan(found) and self.reward_range is not None
        return value_within(self, found) if known and found is not None else found

    @cached_property
    def expected_return(self) -> float | None:
        """Return of an episode, within what ``reward_range`` says of it; see ``Solution``."""
        found, (low, high) = super().expected_return, self.range_of("return")
        return None if found is None else min(max(found, low), high)

    def unseen_error(self, of: str) -> float:
        """None: the allowance for bias counts what was never seen."""
        return 0.0

    def with_counts(self, counts: Counts, reward_range: tuple[float, float] | None) -> PolicySolution:
        """The estimate fitted anew to the same transitions with the rewards of ``counts``."""
        controls = Controls(tol=self.tol, threads=self.threads)
        fit = shrink(counts, self.asked._replace(reward=None), controls, self.fit.added_ends)
        return replace(self, **fitted_fields(fit), reward_range=reward_range).corrected()

    def corrected(self) -> PolicySolution:
        """With the change of the value by extrapolating the ridge to 0, where there is a value."""
        plain = replace(self, correction=0.0)
        value = plain._value()
        if value is None or math.isnan(value):
            return plain
        return replace(plain, correction=self.fit.value - value)

    def _adjoint_values(self) -> Floats:
        return self.fit.values

    @cached_property
    def episode_steps(self) -> float | None:
        """Expected length of an episode where episodes end at gamma = 1, visits without data left out.

        Traps do not make an end of what the effective policy never reaches one of: None there.
        """
        plain = super().episode_steps
        return plain if plain is None or self.fit.steps is None else self.fit.steps

    @cached_property
    def q_values(self) -> Floats:
        """Q over cells; where episodes end at gamma = 1 the return from there, as ``state_values`` are."""
        if self.fit.length is None:
            return super().q_values
        operator, values = self.operator, self.state_values
        assert operator.initial is not None
        onward = operator.expected_next(values) - end_share(operator.counts) * (operator.initial @ values)
        return read_only(self._filled_reward + onward)

    def _fit_to(self, reward: Floats | None, step_cost: float = 0.0) -> Shrinkage:
        """The fit to ``reward`` by cell (None: the rewards of this one) less a cost of every step."""
        counts = self.operator.counts
        given = self.operator.reward if self.operator.logged_reward is None else None
        changed = with_rewards(counts, given if reward is None else reward, step_cost=step_cost)
        controls = Controls(tol=self.tol, threads=self.threads)
        return shrink(changed, self.asked._replace(reward=None), controls, self.fit.added_ends)

    @cached_property
    def _ratio_fit(self) -> Shrinkage:
        """Where episodes end the value per step is a ratio of two returns: the fit to what it is off by."""
        return self._fit_to(None, step_cost=float(self.value or 0.0))

    @cached_property
    def _length_fit(self) -> Shrinkage:
        """The fit to a reward of 1 per step, whose return is the length of an episode."""
        return self._fit_to(np.ones(self.operator.n_cells))

    @property
    def _ratio_range(self) -> tuple[float, float] | None:
        """Of the rewards of ``_ratio_fit``."""
        if self.reward_range is None:
            return None
        value = float(self.value or 0.0)
        return self.reward_range[0] - value, self.reward_range[1] - value

    def _per_step(self, level: float) -> Allowed:
        """The value per step with its allowance: of a ratio where episodes end."""
        if self.fit.length is None:
            return allowed_interval(self.fit, level, self.reward_range)
        value = float(self.value or 0.0)
        found = allowed_interval(self._ratio_fit, level, self._ratio_range)
        return found._replace(interval=around(found.interval, value, 0.0, 1.0, self.reward_range))

    def _episode_interval(self, level: float, of: str, method: str, **options: Any) -> Interval:
        """Where ends are absorbed, the fit's own; lengths by the fit to a reward of 1 per step."""
        steps = self.episode_steps
        asked = any(option is not None for option in options.values())
        plain = method == "influence" and not asked and self.value is not None and not math.isnan(self.value)
        if self.fit.length is None or steps is None or not plain:
            return super()._episode_interval(level, of, method, **options)
        refuse_partial_rewards(self.operator)
        if of == "return":
            # Not cut to the range of a step's reward: how many steps there are is uncertain, too.
            allowed = allowed_interval(self.fit, level, self.reward_range)
            low, high = self.fit.value - allowed.half_width, self.fit.value + allowed.half_width
            return replace(allowed.interval, low=low, high=high).scaled(steps)
        found = allowed_interval(self._length_fit, level).interval
        return around(found, steps, 1.0, steps)

    @property
    def asked_choices(self) -> Choices:
        """What was asked for; ``operator`` follows the effective policy."""
        return self.asked

    @cached_property
    def value_bounds(self) -> tuple[float, float] | None:
        """Hard bounds for gamma < 1: all mass is absorbed that the target takes to what was never logged."""
        if self.value is None or self.gamma == 1.0:
            return None
        never = self.fit.cell_count == 0
        unlogged = self._unknown_mass + float(self.fit.filled_mass[never].sum())
        return self._absorbed.value_bounds if unlogged > LEAK_WORTH_BOUNDS else None

    @cached_property
    def _absorbed(self) -> Solution:
        choices = self.asked._replace(ratio="state_action", unseen="leak", behavior=None)
        target = replace(self.operator, choices=choices)
        return self.as_plain(source=target, cell_ridge_distribution=None)._absorbed

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        """For the value it allows for bias as well as noise (``bias_allowance``).

        With ``method="bootstrap"`` the standard error is that of replicates, in which the effective policy
        stays as it is.
        """
        if not (isinstance(of, str) and of == "value") or self.value is None or math.isnan(self.value):
            return super()._interval(level, of, method, **options)
        refuse_partial_rewards(self.operator)
        asked = {name: option for name, option in options.items() if option is not None}
        if method == "bootstrap":
            _refuse_kind(asked.get("kind"), "solve with ridge=0")
        if method == "influence" and not asked:
            return self._per_step(level).interval
        drawn = super()._interval(level, of, method, **asked)
        found = allowed_interval(self.fit, level, self.reward_range, drawn.standard_error).interval
        return replace(found, method=method, note=f"{drawn.note}, the effective policy kept")

    def _checks(self) -> tuple[Check, ...]:
        """Few checks, calibrated: see :mod:`lingendice.results.trust_checks`."""
        if self.value is None or math.isnan(self.value):
            # The effective policy takes logged actions alone; how far it is from the target is what is asked.
            choices = self.operator.choices._replace(policy=self.asked.policy)
            return diagnose_counts(replace(self, source=replace(self.operator, choices=choices)))
        return trust_checks(self.fit, self.reward_range)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the interval allows for, or no log can show: sentences, no alarms. Costs an interval."""
        if self.value is None or math.isnan(self.value):
            return ()
        return trust_notes(self.fit, self.reward_range)

    def value_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of the value, and the allowance for bias."""
        if self.value is None or math.isnan(self.value):
            return super().value_scores()
        refuse_partial_rewards(self.operator)
        if self.fit.length is None:
            return value_scores(self.fit, self.reward_range)
        scores = value_scores(self._ratio_fit, self._ratio_range)
        off = abs(self._ratio_fit.value)
        return scores._replace(bias_allowance=scores.bias_allowance + off)

    def _episode_scores(self, of: str) -> ValueScores:
        """Where ends are absorbed, of the fit whose interval is ``_episode_interval``."""
        steps = self.episode_steps
        if self.fit.length is None or steps is None or self.value is None or math.isnan(self.value):
            return super()._episode_scores(of)
        refuse_partial_rewards(self.operator)
        if of == "return":
            return value_scores(self.fit, self.reward_range).scaled(steps)
        return beside(value_scores(self._length_fit), self._length_fit.value, 1.0, steps)

    listed = (*Solution.listed, "correction", "shrinkage", "gate")

    @property
    def shrinkage(self) -> float:
        """Weight of what advantages are shrunk to, in transitions."""
        return self.fit.kappa

    @property
    def gate(self) -> float:
        """How much of the regression was kept, 0 to 1."""
        return self.fit.gate
