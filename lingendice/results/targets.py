"""What an interval is asked of, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import read_rewards
from lingendice.data.checks import (
    Floats,
    numeric_array,
    plain_array,
    require_choice,
    require_finite,
    require_number,
)
from lingendice.data.display import rounded, strict_json
from lingendice.data.hints import Hinted
from lingendice.results.diagnostics import mixing_time
from lingendice.results.result import Row, Shown

if TYPE_CHECKING:
    from lingendice.results.solution import Solution


OF = ("value", "return", "length", "stationary")
"""What an interval may be asked of by name; returns and lengths are intervals of values, in other units."""
HEAVIEST = 0.05
"""Share of one episode in all weights above which standard errors are too small. Their median in simulations
is .89 to 1.07 of the true spread below it, and .33 to .88 above it (.94 for steep ratios over few steps)."""
_NUMBERS = ("low", "high", "estimate", "standard_error", "bias_allowance")


@dataclass(frozen=True, eq=False)
class Interval(Hinted):
    """A confidence interval: numbers, or arrays entry by entry for ``of="stationary"``."""

    low: Any
    high: Any
    estimate: Any
    standard_error: Any
    level: float
    method: str
    note: str
    """What the standard error rests on, and what it leaves out."""
    bias_allowance: Any = 0.0
    """How far the estimate may be off other than by noise, as far as the interval allows for it."""

    known_as = "Interval"

    @classmethod
    def around(cls, estimate: Any, half_width: Any, **facts: Any) -> Interval:
        """The same distance to both sides."""
        return cls(low=estimate - half_width, high=estimate + half_width, estimate=estimate, **facts)

    def __iter__(self) -> Iterator[Any]:
        """``low, high = sol.interval()``."""
        yield self.low
        yield self.high

    def scaled(self, factor: float) -> Interval:
        """The interval of the same quantity in other units; ``factor`` is positive."""
        return replace(self, **{name: factor * getattr(self, name) for name in _NUMBERS})

    def entry(self, place: int) -> Interval:
        """One of several intervals."""
        arrays = {name: np.broadcast_to(getattr(self, name), np.shape(self.low)) for name in _NUMBERS}
        one: dict[str, Any] = {name: float(array[place]) for name, array in arrays.items()}
        return replace(self, **one)

    def rounded(self) -> tuple[str, str, str]:
        """The estimate and both ends, with the digits that the standard error leaves."""
        numbers = (self.estimate, self.low, self.high)
        estimate, low, high = (rounded(number, self.standard_error) for number in numbers)
        return estimate, low, high

    def contains(self, truth: Any) -> Any:
        """Whether the interval holds ``truth``, entry by entry for arrays."""
        return (self.low <= truth) & (truth <= self.high)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types: nan and infinity become None."""
        return {name: strict_json(getattr(self, name)) for name in (*_NUMBERS, "level", "method", "note")}

    def __str__(self) -> str:
        if np.ndim(self.estimate):
            widest = float(np.nanmax(self.high - self.low, initial=0.0))
            what = f"{np.size(self.estimate):,} intervals at {self.level:.0%} ({self.method})"
            return f"{what}, widest {widest:.3g}"
        return (
            f"{self.estimate:.6g} [{self.low:.6g}, {self.high:.6g}] at {self.level:.0%} "
            f"({self.method}; {self.full_note})"
        )

    @property
    def full_note(self) -> str:
        """The note of a single interval, with its allowance for bias in units of the estimate."""
        return self.note + (f"; allows {self.bias_allowance:.3g} for bias" if self.bias_allowance > 0 else "")


class ValueScores(NamedTuple):
    """What the covariance of several values on one log is made of."""

    rows: Floats | None
    """Rows whose products add up to the variance, as one column; None where the value is not identified."""
    degrees: float
    note: str
    bias_allowance: float = 0.0
    most: float | None = None
    """Degrees of freedom if all pieces were alike; None where it does not matter whether they are."""

    @property
    def standard_error(self) -> float:
        """Root of the variance; 0 where the value is not identified."""
        return 0.0 if self.rows is None else float(np.sqrt((self.rows**2).sum()))

    def scaled(self, factor: float) -> ValueScores:
        """Those of the same quantity in other units; ``factor`` is positive."""
        rows = None if self.rows is None else factor * self.rows
        return self._replace(rows=rows, bias_allowance=factor * self.bias_allowance)


class Target(NamedTuple):
    """A functional of the distribution: the value, entries of the distribution, or the mean of a function on
    cells."""

    name: str
    entries: NDArray[np.int64] | None
    function: Floats | None

    def shape(self, numbers: Floats) -> Any:
        """A number for one functional, an array for the entries of the distribution."""
        return numbers if self.name == "stationary" else float(numbers[0])

    def limits(
        self, solution: Solution, estimate: Floats, error: Floats, level: float, degrees: float
    ) -> tuple[Floats, Floats]:
        """Ends of the interval: on the scale of logarithms for the distribution, whose entries are positive
        and skew.

        An entry without mass gets the upper end of an event never seen (3 / trials at 95 %). Trials are the
        stretches of the log that the chain takes to forget where it was: steps of a slow chain are not
        independent, and a state may be visited many times or not at all.
        """
        quantile = student_quantile(level, degrees)
        if self.name != "stationary":
            return estimate - error * quantile, estimate + error * quantile
        seen = estimate > 0
        mass = np.where(seen, estimate, 1.0)
        # Beyond e^700 the upper end is 1 all the same.
        spread = np.minimum(error / mass * quantile, 700.0)
        never = 0.0
        if not seen.all():
            discounted = math.inf if solution.gamma == 1.0 else 1.0 / (1.0 - solution.gamma)
            forgotten = max(min(mixing_time(solution), discounted), 1.0)
            never = -math.log1p(-level) * forgotten / float(solution.operator.counts.total)
        low = np.where(seen, mass * np.exp(-spread), 0.0)
        return low, np.minimum(np.where(seen, mass * np.exp(spread), never), 1.0)

    def read(self, solution: Solution) -> Floats:
        """The functional of a solution, as an array."""
        if self.name == "value":
            return np.array([solution.value])
        if self.function is not None:
            return np.array([float(solution.cell_distribution @ self.function)])
        return solution.stationary[self.entries]


def read_target(solution: Solution, of: Any, entries: Any) -> Target:
    """Check what the interval is wanted of."""
    if entries is not None and not (isinstance(of, str) and of == "stationary"):
        raise ValueError('entries= picks from of="stationary"; leave it out of other intervals')
    if isinstance(of, str):
        require_choice("of", of, OF)
        if of == "value":
            if solution.operator.reward is None:
                raise ValueError(
                    "the data hold no rewards, so there is no value; pass reward= to solve, "
                    "or take of='stationary'"
                )
            return Target("value", None, None)
        size = solution.stationary.size
        if entries is None:
            return Target("stationary", np.arange(size), None)
        chosen = np.atleast_1d(plain_array("entries", entries))
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
            raise ValueError("entries must be whole numbers: positions in sol.stationary")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < size):
            raise ValueError(f"entries must lie in 0..{size - 1}, got {chosen.min()}..{chosen.max()}")
        return Target("stationary", chosen.astype(np.int64), None)
    operator = solution.operator
    function = numeric_array("of", read_rewards("of", of, operator.counts)).astype(float)
    require_finite("of", function)
    n_actions = operator.n_cells // operator.n_states
    if function.shape in ((operator.n_cells,), (operator.n_states, n_actions)):
        return Target("function", None, function.reshape(-1))
    if function.shape == (operator.n_states,):
        return Target("function", None, np.repeat(function, n_actions))
    raise ValueError(
        f"of has shape {function.shape}; give one number per state ({operator.n_states},) or one per cell "
        f"({operator.n_cells},), or one of the words 'value', 'return', 'length' and 'stationary'"
    )


def require_level(level: Any) -> float:
    """Check a confidence level."""
    if not 0.0 < require_number("level", level) < 1.0:
        hint = f"; {level:g} % is level={level / 100:g}" if 1.0 < level < 100.0 else ""
        raise ValueError(f"level must lie between 0 and 1, got {level!r}{hint}")
    return float(level)


def student_quantile(level: float, degrees: float) -> float:
    """Standard errors from the estimate to each end; infinite degrees of freedom are a Gaussian's."""
    from scipy.special import ndtri, stdtrit

    tail = 0.5 + level / 2.0
    return float(ndtri(tail) if math.isinf(degrees) else stdtrit(degrees, tail))


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
    weighed: str = "transitions"
    """What the method gives weights to: "transitions" or "episodes"."""
    settled: bool = True
    """Whether the method came to its end."""
    steps: float | None = None
    """How many steps' value a return is, where that is not 1 / (1 - gamma)."""
    mean_ratio: float = 1.0
    """Mean of the weights over the log, visits after the end of an episode counted in: 1 on average where the
    log shows what the target does, and less by what it lost."""
    largest_weight: float | None = None
    """Share of the heaviest episode in the sum of weights; None where episodes have none."""

    def interval(self, level: float = 0.95) -> Interval:
        """Student interval of the value, clustered by episode."""
        error = self.standard_error
        if error is None:
            raise ValueError(f"{self.method} gives no standard error; use solve(...).interval instead")
        level = require_level(level)
        return Interval.around(
            self.value,
            error * student_quantile(level, self.degrees),
            standard_error=error,
            level=level,
            method=self.method,
            note=self.note + self.doubt,
        )

    @property
    def doubt(self) -> str:
        """What to hold against the standard error where few weights make it up; empty where many do."""
        largest = self.largest_weight
        if largest is None or largest <= HEAVIEST:
            return ""
        return f"; one episode has {largest:.0%} of all weight, so the standard error is probably too small"

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
