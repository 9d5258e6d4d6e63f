"""Solutions of problems whose rows lie on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.model.compose import Choices
from lingendice.results.allowance import rounding_of
from lingendice.results.interval import Influence, Piece
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval
from lingendice.solvers.control import Controls

NOT_CLUSTERED = (
    "transitions taken as a Markov chain's, not clustered by episode: counts on a cluster know none; "
    "lg.read_transitions(..., keep_episodes=True) and lg.solve do so on one machine that holds the log"
)
MOST_ENTRIES = 1000
"""Entries of a distribution whose intervals are computed on a cluster without being asked to by name: a solve
of some tenths of a second each."""


@dataclass(frozen=True, eq=False, repr=False)
class SpreadSolution(Solution):
    """A :class:`lingendice.Solution` whose operator has vectors alone and asks the cluster for the rest.

    Values of states, intervals by influence function and bounds on the value are computed there; what else
    needs the rows (bootstrap, diagnostics, audit) says so, and works after ``counts.gather()``.
    """

    def _adjoint_values(self) -> Floats:
        return self.influence().adjoint(self._mean_reward[:, None])[:, 0]

    def _solved_again(self, choices: Choices) -> Solution:
        counts: Any = self.operator.counts
        operator = counts.operator_of(choices)
        found = operator.stationary(Controls(tol=self.tol), False)
        return replace(
            self, state_distribution=found.single, state_distributions=found.every, source=operator
        )

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        if method == "bootstrap":
            raise ValueError(
                "the bootstrap resamples rows, which lie on the workers of a cluster; leave method= out, or "
                "solve counts.gather()"
            )
        every = isinstance(of, str) and of == "stationary" and options.get("entries") is None
        if every and options.get("time_limit") is None and self.stationary.size > MOST_ENTRIES:
            raise ValueError(
                f"intervals of all {self.stationary.size:,} entries take one solve on the cluster each; pick "
                "some by entries=, pass time_limit= in seconds, or solve counts.gather()"
            )
        return super()._interval(level, of, method, **options)

    def _within_range(self, found: Interval, of: Any, in_closed_form: bool) -> Interval:
        return super()._within_range(found, of, False)

    def influence(self) -> SpreadInfluence:
        """Of every logged transition and first state, as sums over the blocks of rows."""
        return SpreadInfluence(self)


class SpreadInfluence(Influence):
    """Influence where entries lie elsewhere: what belongs to cells is here, squares are summed there.

    Rows on a cluster are of sources, and an episode runs through many of them: it is not known there.
    """

    def __init__(self, solution: Solution) -> None:
        super().__init__(solution)
        self.sample = self.sample._replace(note=NOT_CLUSTERED)

    def adjoint(self, columns: Floats) -> Floats:
        """Values of states for every column: one solve on the cluster each."""
        operator: Any = self.operator
        distribution, tol = self.solution._single(), self.solution.tol
        return np.stack([operator.state_values(column, distribution, tol) for column in columns.T], axis=1)

    def _piece(self, function: Floats, values: Floats, reward: Floats | None) -> Piece:
        operator: Any = self.operator
        share, shift = self.solution.gamma * self._observed_share(), self._shift(function, values)
        columns = zip(values.T, self._value_of_ending(values), shift.T, strict=True)
        sums = [
            operator.entry_sums(after, ending, self.tau, self.total, share, moved, reward)
            for after, ending, moved in columns
        ]
        first, none = self._first_state(values), rounding_of(function, values)
        return SpreadPiece(self, np.stack(sums, axis=1), shift, first, reward, rounding=none)


@dataclass(frozen=True, eq=False)
class SpreadPiece(Piece):
    """Influence whose ``noise`` is known by its squares alone, summed over all entries."""

    def rows(self) -> Floats:
        """One row for all entries, whose squares are their variances."""
        return np.vstack([np.sqrt(self.noise[0]), *self.rows_of_starts()])

    def pooled(self) -> Floats:
        """Squared noise of all transitions."""
        return self.noise[1]
