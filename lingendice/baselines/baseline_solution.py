"""The answer of another method over counts: a :class:`Solution` with the method's own value and noise."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.json_values import strict_json
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.result import Row
from lingendice.results.solution import Solution
from lingendice.results.status import Status, with_identified_status
from lingendice.results.targets import Interval, student


@dataclass(frozen=True, eq=False, repr=False)
class BaselineSolution(Solution):
    """Another method's value, with the distribution over cells that its weights amount to.

    Weights of logged rewards, added up by cell, are the distribution; ``tau`` is that over p, and
    ``residual`` says
    how far it is from stationary. The value is the method's own: weights that differ between visits of
    one cell make it differ from the distribution's mean of the cells' average rewards.
    """

    estimate: float = math.nan
    standard_error: float | None = None
    degrees: float = math.inf
    """Degrees of freedom of the standard error."""
    note: str = ""
    weighed_size: float | None = None
    weighed: str = "transitions"
    """What the method gives weights to: "transitions" or "episodes"."""

    @property
    def value(self) -> float:  # type: ignore[override]
        """The method's value per step; nan where no weight is positive."""
        return self.estimate

    @property
    def effective_sample_size(self) -> float | None:  # type: ignore[override]
        """Of the weights: episodes or transitions, as ``weighed`` says."""
        return self.weighed_size

    @property
    def sample(self) -> tuple[float, str]:
        """How many the method weighs, and of what."""
        if self.weighed == "transitions":
            return super().sample
        episodes = self.operator.counts.episodes
        assert episodes is not None
        return float(episodes.first_state.size), self.weighed

    @property
    def value_bounds(self) -> None:  # type: ignore[override]
        """None: bounds belong to the exact equation; see ``solve``."""
        return

    @property
    def gap(self) -> None:  # type: ignore[override]
        """None: a gap belongs to the exact equation; see ``solve``."""
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
        if self.standard_error is None:
            raise ValueError(f"{self.method} gives no standard error; use solve(...).interval instead")
        low, high = student(np.array([self.value]), np.array([self.standard_error]), level, self.degrees)
        return Interval(
            float(low[0]), float(high[0]), self.value, self.standard_error, level, self.method, self.note
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        return {**super().to_dict(), "standard_error": strict_json(self.standard_error), "note": self.note}

    def _facts(self) -> list[Row]:
        rows = super()._facts()
        if self.standard_error is None:
            return rows
        place = next(k for k, (name, _) in enumerate(rows) if name == "value per step") + 1
        return [*rows[:place], ("standard error", f"{self.standard_error:.2g}"), *rows[place:]]


class Weighing(NamedTuple):
    """What a method found: its value, its noise, and the size of its weights."""

    value: float
    note: str
    standard_error: float | None = None
    degrees: float = math.inf
    effective_size: float | None = None
    weighed: str = "transitions"
    settled: bool = True


def answer(
    method: str,
    operator: EmpiricalOperator,
    cell_distribution: Floats,
    found: Weighing,
    started: float,
) -> BaselineSolution:
    """Make the solution of a distribution over cells and of what the method found."""
    state_distribution = cell_distribution.reshape(operator.n_states, -1).sum(axis=1)
    solution = BaselineSolution(
        status=Status.SOLVED if found.settled else Status.ITERATION_LIMIT,
        gamma=operator.gamma,
        method=method,
        reason=found.note,
        state_distribution=state_distribution,
        state_distributions=(state_distribution,),
        residual=float(np.abs(operator.residual(cell_distribution)).sum()),
        error=None,
        error_kind="",
        condition=None,
        n_iter=0,
        seconds=time.perf_counter() - started,
        tol=math.nan,
        source=operator,
        cell_ridge_distribution=cell_distribution,
        estimate=found.value,
        standard_error=found.standard_error,
        degrees=found.degrees,
        note=found.note,
        weighed_size=found.effective_size,
        weighed=found.weighed,
    )
    return with_identified_status(solution)


def target_operator(
    counts: Counts, gamma: float, policy: Any = None, initial: Any = None
) -> EmpiricalOperator:
    """The operator over cells that a baseline is measured against; by default the logged chain."""
    ratio = "auto" if counts.n_actions is None else "state_action"
    return compose(counts, Choices(gamma=gamma, policy=policy, initial=initial, ratio=ratio))
