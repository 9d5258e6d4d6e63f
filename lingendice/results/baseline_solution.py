"""Answers of other methods: a :class:`Solution` with the method's own value and noise, or a value alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.json_values import strict_json
from lingendice.results.result import Row, Shown
from lingendice.results.solution import Solution
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
    steps: float | None = None
    """How many steps' value a return is; None for 1 / (1 - gamma)."""
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
    def episode_steps(self) -> float | None:  # type: ignore[override]
        """Steps of the horizon, else 1 / (1 - gamma); None at gamma = 1, where no rate of ends is known."""
        if self.steps is not None:
            return self.steps
        return None if self.gamma == 1.0 else 1.0 / (1.0 - self.gamma)

    @property
    def is_ratio(self) -> bool:
        """No: the value is the method's own."""
        return False

    @property
    def expected_length(self) -> None:  # type: ignore[override]
        """None: see ``solve``."""
        return

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
        return _student_interval(self, level)

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
    steps: float | None = None
    """How many steps' value a return is, where that is not 1 / (1 - gamma)."""


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Shown):
    """A value per step without a ratio or a distribution, with what the method knows of its noise."""

    value: float
    gamma: float
    method: str
    note: str
    standard_error: float | None = None
    degrees: float = math.inf
    """Degrees of freedom of the standard error."""
    effective_sample_size: float | None = None
    """Of the weights: episodes or transitions, as the method weighs."""

    def interval(self, level: float = 0.95) -> Interval:
        """Student interval of the value, clustered by episode."""
        return _student_interval(self, level)

    def __repr__(self) -> str:
        return f"Estimate({self.value:.6g} by {self.method}, gamma={self.gamma:g})"

    def _table(self) -> list[Row]:
        rows = [
            ("method", self.method),
            ("gamma", f"{self.gamma:g}"),
            ("value per step", f"{self.value:.6g}"),
        ]
        if self.standard_error is not None:
            rows.append(("standard error", f"{self.standard_error:.2g}"))
        if self.effective_sample_size is not None:
            rows.append(("effective sample size", f"{self.effective_sample_size:,.1f}"))
        return [*rows, ("note", self.note)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        names = ("value", "gamma", "method", "note", "standard_error", "effective_sample_size")
        return {name: strict_json(getattr(self, name)) for name in names}


def _student_interval(found: BaselineSolution | Estimate, level: float) -> Interval:
    """The interval of a value whose standard error is known."""
    if found.standard_error is None:
        raise ValueError(f"{found.method} gives no standard error; use solve(...).interval instead")
    low, high = student(np.array([found.value]), np.array([found.standard_error]), level, found.degrees)
    return Interval(
        float(low[0]), float(high[0]), found.value, found.standard_error, level, found.method, found.note
    )
