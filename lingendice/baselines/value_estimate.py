"""The answer of a baseline over continuous states that yields a value, but no ratio and no distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lingendice.data.json_values import strict_json
from lingendice.results.result import Row, Shown
from lingendice.results.targets import Interval, student


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Shown):
    """A value per step, with what the method knows of its noise. Reads like a solution where it can."""

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
        if self.standard_error is None:
            raise ValueError(f"{self.method} gives no standard error; use solve(...).interval instead")
        low, high = student(np.array([self.value]), np.array([self.standard_error]), level, self.degrees)
        return Interval(
            float(low[0]), float(high[0]), self.value, self.standard_error, level, self.method, self.note
        )

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
