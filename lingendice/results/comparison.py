"""Many target policies on one log: ranked, and compared with simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_number
from lingendice.data.hints import no_attribute
from lingendice.data.json_values import strict_json
from lingendice.results.interval import UNIDENTIFIED, require_sample_size
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval, ValueScores

DRAWS = 20_000
"""Gaussian draws behind a simultaneous quantile: its error is about 0.01."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Solutions of several policies on one log, in the order given."""

    names: tuple[Any, ...]
    solutions: tuple[Solution, ...]
    seed: int = 0

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Comparison", name, self)

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __getitem__(self, name: Any) -> Solution:
        """The solution of a policy, by its name (its number where none was given)."""
        return self.solutions[self._place(name)]

    def _place(self, name: Any) -> int:
        if name not in self.names:
            raise KeyError(f"no policy is called {name!r}; there are {', '.join(map(repr, self.names[:10]))}")
        return self.names.index(name)

    @cached_property
    def values(self) -> Floats:
        """Per-step value of every policy."""
        found = [solution.value for solution in self.solutions]
        if any(value is None for value in found):
            raise ValueError("the data hold no rewards, so there are no values to compare; pass reward=")
        return np.array(found, dtype=float)

    @property
    def ranking(self) -> tuple[Any, ...]:
        """Names from the best value to the worst; those whose value is not identified come last."""
        return tuple(self.names[k] for k in np.argsort(-self.values, kind="stable"))

    @property
    def best(self) -> Any:
        """Name of the policy with the best estimated value."""
        if np.isnan(self.values).all():
            raise ValueError(f"no policy can be called the best: {UNIDENTIFIED}, for any of them")
        return self.ranking[0]

    @cached_property
    def _influences(self) -> tuple[Floats, float, str]:
        """Covariance of the values, its degrees of freedom, and what it rests on."""
        found = self._scores
        size = max((part.rows.shape[0] for part in found if part.rows is not None), default=1)
        nothing = np.full((size, 1), np.nan)
        scores = np.concatenate([nothing if part.rows is None else part.rows for part in found], axis=1)
        note = found[0].note
        unknown = [str(name) for name, part in zip(self.names, found, strict=True) if part.rows is None]
        if unknown:
            note += f"; not identified, so without an interval: {', '.join(unknown)}"
        return scores.T @ scores, found[0].degrees, note

    @cached_property
    def _scores(self) -> tuple[ValueScores, ...]:
        require_sample_size(self.solutions[0].operator.counts)
        return tuple(solution.value_scores() for solution in self.solutions)

    @property
    def bias_allowance(self) -> Floats:
        """How far each value may be off other than by noise, as far as intervals allow for it."""
        return np.array([part.bias_allowance for part in self._scores])

    @property
    def covariance(self) -> Floats:
        """Covariance of the estimated values: all come from one log."""
        return self._influences[0]

    def interval(self, level: float = 0.95, *, confidence_level: float | None = None) -> Interval:
        """Simultaneous intervals: all hold together with probability ``level`` (or ``confidence_level``).

        The half-width is the standard error times the quantile of max_k |t_k|, drawn from the joint
        Gaussian (Student) distribution of the influence functions (a Gaussian multiplier bootstrap, summed in
        closed form).
        """
        level = level if confidence_level is None else confidence_level
        note = self._influences[2]
        error = np.sqrt(np.diagonal(self.covariance))
        width = error * self._quantile(self.covariance, level, two_sided=True) + self.bias_allowance
        note = f"simultaneous over {len(self)} policies; {note}"
        return Interval(
            self.values - width, self.values + width, self.values, error, float(level), "influence", note,
            self.bias_allowance,
        )  # fmt: skip

    def difference(self, first: Any, second: Any, level: float = 0.95) -> Interval:
        """Interval of the value of ``first`` minus that of ``second``: paired, since both come from one log.

        Their noise is correlated and mostly cancels; their allowances for bias are added.
        """
        from lingendice.results.allowance import half_width

        if not 0.0 < require_number("level", level) < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}")
        i, j = (self._place(name) for name in (first, second))
        covariance, degrees, note = self._influences
        error = math.sqrt(max(covariance[i, i] + covariance[j, j] - 2.0 * covariance[i, j], 0.0))
        bias = 0.0 if i == j else float(self.bias_allowance[i] + self.bias_allowance[j])
        half = half_width(error, bias, level, degrees)
        gain = float(self.values[i] - self.values[j])
        return Interval(
            gain - half, gain + half, gain, error, float(level), "influence", f"paired; {note}", bias
        )

    def contenders(self, level: float = 0.95) -> tuple[Any, ...]:
        """Policies that may be the best: all but those significantly below some other, jointly.

        A policy is out if its value is below another's by more than the joint one-sided margin of all
        differences; the set holds the best policy with probability at least ``level``. A policy whose value
        is not identified is never ruled out.
        """
        k = len(self)
        pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
        if not pairs:
            return self.names
        contrast = np.zeros((len(pairs), k))
        for row, (i, j) in enumerate(pairs):
            contrast[row, i], contrast[row, j] = 1.0, -1.0
        covariance = contrast @ self.covariance @ contrast.T
        margin = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
        margin = margin * self._quantile(covariance, level, two_sided=False)
        margin += np.abs(contrast) @ self.bias_allowance
        beaten = {i for row, (i, j) in enumerate(pairs) if self.values[j] - self.values[i] > margin[row]}
        return tuple(name for place, name in enumerate(self.names) if place not in beaten)

    def _quantile(self, covariance: Floats, level: float, two_sided: bool) -> float:
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}")
        rng = np.random.default_rng(self.seed)
        error = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
        noisy = error > 0
        if not noisy.any():
            return 0.0
        root = _root(covariance[np.ix_(noisy, noisy)] / np.outer(error[noisy], error[noisy]))
        draws = rng.standard_normal((DRAWS, root.shape[1])) @ root.T
        degrees = self._influences[1]
        if np.isfinite(degrees):
            draws /= np.sqrt(rng.chisquare(degrees, size=(DRAWS, 1)) / degrees)
        most = np.abs(draws).max(axis=1) if two_sided else draws.max(axis=1)
        return float(np.quantile(most, level))

    def to_dict(self) -> dict[str, Any]:
        """Names, values and ranking as strict JSON types."""
        return {
            "names": [str(name) for name in self.names],
            "values": strict_json(self.values),
            "ranking": [str(name) for name in self.ranking],
            "solutions": [solution.to_dict() for solution in self.solutions],
        }

    def to_frame(self, library: str | None = None, *, level: float = 0.95) -> Any:
        """The rows of :meth:`table` as a frame of ``"pandas"`` or ``"polars"``; default: the one in use."""
        from lingendice.results.frames import comparison_frame

        return comparison_frame(self, level, library)

    def plot(self, level: float = 0.95, *, ax: Any = None) -> Any:
        """Draw the simultaneous intervals, best policy on top, on ``ax`` or a new figure, which is returned.

        Needs matplotlib (``pip install 'lingendice[plots]'``).
        """
        from lingendice.results.plots import plot_comparison

        return plot_comparison(self, level, ax)

    def table(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row per policy, best first: name, value, interval, leak, failed checks, may it be the best.

        Computes the intervals and runs the checks of every policy; ``print`` shows them from then on.
        """
        found = self.interval(level)
        may_win = set(self.contenders(level))
        places = [self.names.index(name) for name in self.ranking]
        rows = [
            {
                "policy": self.names[k],
                "value": float(self.values[k]),
                "low": float(found.low[k]),
                "high": float(found.high[k]),
                "leak": self.solutions[k].leak,
                "failed_checks": [check.name for check in self.solutions[k].diagnose() if not check.ok],
                "may_be_best": self.names[k] in may_win,
            }
            for k in places
        ]
        self.__dict__["_known_table"] = level, rows
        return rows

    def _columns(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of what is known: intervals and checks only where ``table`` was called."""
        known = self.__dict__.get("_known_table")
        if known is None:
            values = None if any(one.value is None for one in self.solutions) else self.values
            names = self.names if values is None else self.ranking
            rows = []
            for name in names:
                one = self[name]
                worth = "" if one.value is None else f"{one.value:.4g}"
                rows.append([str(name), worth, "" if one.state_distribution is None else f"{one.leak:.2%}"])
            return ["policy", "value", "leak"], rows
        level, table = known
        rows = [
            [
                str(row["policy"]),
                f"{row['value']:.4g}",
                f"{row['leak']:.2%}",
                f"[{row['low']:.4g}, {row['high']:.4g}]",
                "yes" if row["may_be_best"] else "no",
                ", ".join(row["failed_checks"]) or "none",
            ]
            for row in table
        ]
        return ["policy", "value", "leak", f"{level:.0%}, simultaneous", "may be best", "failed checks"], rows

    @property
    def _caption(self) -> str:
        known = "_known_table" in self.__dict__
        return repr(self) if known else f"{self!r}; intervals and checks not computed: call table()"

    def _repr_html_(self) -> str:
        from lingendice.data.markup import table

        return table(*self._columns(), self._caption)

    def __repr__(self) -> str:
        return f"Comparison({len(self)} policies)"

    def __str__(self) -> str:
        headings, rows = self._columns()
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *rows)]
        return "\n".join([self._caption, *lines])


def _root(correlation: Floats) -> NDArray[np.float64]:
    """A factor of a positive semidefinite matrix, tolerant of rank loss."""
    values, vectors = np.linalg.eigh(correlation)
    return vectors * np.sqrt(np.maximum(values, 0.0))
