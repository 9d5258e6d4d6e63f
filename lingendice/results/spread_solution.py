"""Solutions of problems whose rows lie elsewhere: what runs over entries is summed where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.episodes import group_sample
from lingendice.results.interval import Influence
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval


@dataclass(frozen=True, eq=False, repr=False)
class SpreadSolution(Solution):
    """A :class:`lingendice.Solution` whose operator has vectors alone and asks the cluster for the rest.

    Values of states, intervals by influence function and bounds on the value are computed there; what else
    needs the rows (bootstrap, diagnostics, audit) says so, and works after ``counts.gather()``.
    """

    def _adjoint_values(self) -> Floats:
        operator: Any = self.operator
        values: Floats = operator.state_values(self._mean_reward, self._single(), self.tol)
        return values

    def _next_values(self, state_values: Floats) -> Floats:
        return self.operator.gather(self.operator.expected_next(state_values))

    @cached_property
    def _absorbed(self) -> Solution:
        operator: Any = self.operator
        absorbing, found = operator.absorbing(self.tol)
        return replace(
            self, state_distribution=found.single, state_distributions=found.every, source=absorbing
        )

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        if method == "bootstrap":
            raise ValueError(
                "the bootstrap resamples rows, which lie on the workers of a cluster; leave method= out, or "
                "solve counts.gather()"
            )
        return super()._interval(level, of, method, **options)

    def influence(self) -> Influence:
        """Of every logged transition and first state, as sums over the blocks of rows."""
        return SpreadInfluence(self)


class StandardError(NamedTuple):
    """The standard errors of a few functionals, in place of what they are made of."""

    errors: Floats

    def scores(self) -> Floats:
        """One row whose squares are the variances."""
        return self.errors[None, :]


class SpreadInfluence(Influence):
    """Influence where entries lie elsewhere: what belongs to cells is here, squares are summed there."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.operator = solution, solution.operator
        self.counts = self.operator.counts
        self.sample = group_sample(self.counts)
        self.n = self.counts.cell_count.astype(float)
        self.total = float(self.counts.total)
        mass = solution.cell_distribution
        self.tau = np.divide(mass * self.total, self.n, out=np.zeros_like(mass), where=self.n > 0)
        more = np.divide(self.n, self.n - 1.0, out=np.zeros_like(self.n), where=self.n > 1.0)
        self.spread_again = np.sqrt(more)

    def value(self) -> Any:
        """On the value: its own reward noise, and the division by what is identified."""
        solution, operator = self.solution, self.operator
        logged = operator.choices is None or operator.choices.reward is None
        error = self._error(
            solution._filled_reward, solution.state_values, operator.reward if logged else None
        )
        return StandardError(np.array([error / solution._identified]))

    def functions(self, columns: Floats) -> Any:
        """On sum mu f, for every column f over cells: one solve for values each."""
        operator: Any = self.operator
        errors = []
        for column in columns.T:
            gathered = operator.gather(column)
            values = operator.state_values(gathered, self.solution._single(), self.solution.tol)
            errors.append(self._error(column, values, None))
        return StandardError(np.array(errors))

    def _error(self, function: Floats, values: Floats, reward: Floats | None) -> float:
        operator: Any = self.operator
        column = values[:, None]
        restarted = self._restart_shift(self._fallen(column))
        shift = (self._policy_shift(function[:, None], column) + restarted)[:, 0]
        factor, share = self.tau * self.spread_again, self.solution.gamma * self._observed_share()
        ending = float(self._value_of_ending(column)[0])
        sums = operator.entry_sums(values, ending, factor, share, shift, reward)
        variance = (sums.level + sums.reward) / self.total**2
        first, logged = self._first_state(column), self.counts.initial_count
        if first is not None and logged is not None:
            variance += float(first[:, 0] ** 2 @ logged) / float(logged.sum()) ** 2
        # Cells seen once show no spread: they get that of the others.
        once, more = (self.n > 0) & (self.n <= 1.0), self.n > 1.0
        owed = float((self.n * self.tau**2)[once].sum()) / self.total**2
        spare = float((self.n - 1.0)[more].sum())
        return math.sqrt(variance + (owed / spare * sums.pooled if spare > 0.0 else 0.0))

    def _counts_with(self, action: int, step: float) -> Counts:
        held: Any = self.counts
        moved: Counts = held.without_rows()
        n_actions = moved.n_actions or 1
        taken = np.arange(self.n.size) % n_actions == action
        moved.__dict__["cell_count"] = self.n * np.where(taken, 1.0 + step, 1.0)
        return moved
