"""The default with a policy: a value that rests on shrunk advantages, and says how far it may be off.

The distribution is that of the effective policy (see :mod:`lingendice.solvers.shrinkage`), which takes logged
actions alone; what the target does beyond them enters as an extra reward of each state. The interval adds an
allowance for bias to the noise (:mod:`lingendice.results.allowance`), and the checks are those of
:mod:`lingendice.results.trust_checks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.model.compose import Choices
from lingendice.model.leaks import LEAK_WORTH_BOUNDS
from lingendice.results.diagnostics import Check
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval, ValueScores
from lingendice.solvers.control import Controls
from lingendice.solvers.shrinkage import Shrinkage, shrink


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

    def with_counts(self, counts: Counts, reward_range: tuple[float, float] | None) -> PolicySolution:
        """The estimate fitted anew to the same transitions with the rewards of ``counts``."""
        controls = Controls(tol=self.tol, threads=self.threads)
        fit = shrink(counts, self.asked._replace(reward=None), controls)
        return replace(self, **fitted_fields(fit), reward_range=reward_range).corrected()

    def corrected(self) -> PolicySolution:
        """With the change of the value by extrapolating the ridge to 0, where there is a value."""
        plain = replace(self, correction=0.0)
        if plain.value is None or math.isnan(plain.value):
            return plain
        return replace(plain, correction=self.fit.value - plain.value)

    def _adjoint_values(self) -> Floats:
        return self.fit.values

    @property
    def asked_choices(self) -> Choices | None:
        """What was asked for; ``operator`` follows the effective policy."""
        return self.asked

    @cached_property
    def value_bounds(self) -> tuple[float, float] | None:
        """Hard bounds for gamma < 1: all mass is absorbed that the target takes to what was never logged."""
        if self.value is None or self.gamma == 1.0:
            return None
        never = self.fit.cell_count == 0
        unlogged = self.leak + float(self.fit.filled_mass[never].sum())
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
        from lingendice.results.allowance import allowed_interval

        error = note = None
        if method != "influence" or options:
            drawn = super()._interval(level, of, method, **options)
            if method == "bootstrap":
                error, note = drawn.standard_error, f"{drawn.note}, the effective policy kept"
        found = allowed_interval(self.fit, level, self.reward_range, error)
        allowed = f"allows {found.bias_allowance:.3g} for bias"
        return Interval(
            found.low, found.high, found.estimate, found.standard_error, found.level, method,
            f"{note or found.note}; {allowed}", found.bias_allowance,
        )  # fmt: skip

    def _checks(self) -> tuple[Check, ...]:
        """Few checks, calibrated: see :mod:`lingendice.results.trust_checks`."""
        from lingendice.results.trust_checks import trust_checks

        if self.value is None or math.isnan(self.value):
            return super()._checks()
        return trust_checks(self.fit, self.reward_range)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the interval allows for, or no log can show: sentences, no alarms. Costs an interval."""
        from lingendice.results.trust_checks import trust_notes

        if self.value is None or math.isnan(self.value):
            return ()
        return trust_notes(self.fit, self.reward_range)

    def value_scores(self) -> ValueScores:
        """Rows whose products add up to the variance of the value, and the allowance for bias."""
        from lingendice.results.allowance import value_scores

        if self.value is None or math.isnan(self.value):
            return super().value_scores()
        return value_scores(self.fit, self.reward_range)

    listed = (*Solution.listed, "correction", "shrinkage", "gate")

    @property
    def shrinkage(self) -> float:
        """Weight of what advantages are shrunk to, in transitions."""
        return self.fit.kappa

    @property
    def gate(self) -> float:
        """How much of the regression was kept, 0 to 1."""
        return self.fit.gate
