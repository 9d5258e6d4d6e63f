"""What ``solve`` returns for :class:`lingendice.Transitions`: a ratio for every transition, and its value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lingendice.continuous.outcome import Evidence, Ratio, ValueEstimate
from lingendice.data.checks import Floats
from lingendice.data.rows import read_only
from lingendice.data.transitions import Transitions, step_discounts
from lingendice.results.diagnostics import Check, diagnose_continuous
from lingendice.results.plots import plot_continuous
from lingendice.results.result import Result, Row
from lingendice.results.solution import effective_size
from lingendice.results.status import Status
from lingendice.results.tables import continuous_frame
from lingendice.results.targets import Interval, ValueScores, require_level, student_quantile

NOTE = (
    "spread of the model's members, and the distance between both estimates or the noise of the doubly "
    "robust value over episodes, whichever is larger; it cannot account for what the log never shows"
)

OPINIONS = ("model", "FQE", "DR")
"""Estimates that rest on different errors: members of one model may agree and all be wrong. An interval names
those outside of it. That is no check: in the committed runs of benchmarks/paper/control.py FQE is outside in
30 % of the intervals that hold the true value, and in 70 % of the ten that do not."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ContinuousSolution(Result, Ratio):
    """tau(s, a) = mu(s, a) / p(s, a) at every logged transition, and the value that follows from it.

    ``estimates`` holds every estimate of the value that was made; ``value`` is one of them: the model's by
    default, or for a ratio method E_p[tau r] / E_p[nu tau]. nu is 1 but for transitions into terminal
    states at gamma < 1, where it counts what those states hold; ``mean_ratio`` = E_p[nu tau] is 1 at the
    optimum.
    """

    status: Status
    seconds: float
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("tau", "members", "mass_weight"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def converged(self) -> bool:
        """Whether the method ran to its end (networks carry no certificate: see residual and spread)."""
        return self.status in (Status.SOLVED, Status.TRAINED)

    @cached_property
    def mean_ratio(self) -> float:
        """E_p[nu tau]: how well the ratio is normalized."""
        return float(np.mean(self.mass_weight * self.tau))

    @cached_property
    def value(self) -> float | None:
        """Per-step value: the headline of ``estimates``; None without rewards, nan at tau = 0."""
        if self.evidence is not None:
            return self.evidence.value
        if self.value_plain is None:
            return None
        return self.value_plain / self.mean_ratio if self.mean_ratio != 0.0 else math.nan

    @cached_property
    def value_plain(self) -> float | None:
        """E_p[tau r], not rescaled; None without rewards."""
        reward = self.transitions.reward
        return None if reward is None else float(np.mean(self.tau * reward))

    @property
    def member_values(self) -> Floats | None:
        """The value by each member of an ensemble (read-only)."""
        return None if self._member_values is None else read_only(self._member_values)

    @cached_property
    def _member_values(self) -> Floats | None:
        if self.evidence is not None:
            return self.evidence.members
        reward = self.transitions.reward
        if reward is None:
            return None
        earned, mass = (
            np.mean(self.members * reward, axis=1),
            np.mean(self.members * self.mass_weight, axis=1),
        )
        return np.divide(earned, mass, out=np.full(mass.shape, math.nan), where=mass != 0.0)

    @cached_property
    def estimates(self) -> tuple[ValueEstimate, ...]:
        """Every estimate of the value that was made, with its standard error and seconds."""
        reward = self.transitions.reward
        if self.evidence is not None or reward is None:
            return () if self.evidence is None else self.evidence.estimates
        own = ValueEstimate("ratio", float(self.value or 0.0), self.spread, self.seconds)
        # As every other method has it: what the behavior earned, ended episodes earning nothing more.
        weight = step_discounts(self.transitions.episode, len(self.transitions), self.gamma)
        naive = float(weight @ reward) / float(weight @ self.mass_weight)
        return own, ValueEstimate("naive", naive, None, 0.0)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the value among members: the noise of training, not of the data."""
        values = self.member_values
        return None if values is None or len(values) < 2 else float(np.std(values, ddof=1))

    @cached_property
    def effective_sample_size(self) -> float:
        """(sum tau)^2 / sum tau^2."""
        return effective_size(1.0, float(self.tau.sum()), float(self.tau @ self.tau))

    def ratio(self, state: Any, action: Any = None) -> Floats:
        """tau at new states and actions."""
        if self.evaluate is None:
            raise ValueError(
                f"{self.method} gives the ratio at the logged transitions only; read sol.tau "
                "(networks without options['base'] know it everywhere)"
            )
        return self.evaluate(state, action)

    def _checks(self) -> tuple[Check, ...]:
        return diagnose_continuous(self)

    def to_frame(self, library: str | None = None) -> Any:
        """A frame of ``"pandas"`` or ``"polars"`` (default: the one in use) with one row per transition."""
        return continuous_frame(self, library)

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        """value +- (t se(DR) + B), t of the episodes less one.

        At 95 % it is value +- t sqrt(sd(members)^2 + max(se(DR)^2, (DR - model)^2)), and what that is beyond
        t se(DR) is B, the allowance for bias: it is the same at every level.
        E (DR - model)^2 = se^2 + bias^2: added to se^2 it would count the noise twice. On the tuning logs of
        benchmarks/paper/control.py (72) intervals with the sum and with the maximum both held the true value
        in 69 cases, the latter being 0.86 times as long; without the members' spread they held it in 68,
        without the distance in 62.
        """
        if not isinstance(of, str) or of != "value" or method != "influence" or options:
            raise ValueError(
                "over continuous states there is an interval of the value only: sol.interval(level)"
            )
        level = require_level(level)
        evidence = self.evidence
        if evidence is not None and evidence.scores.size == 1:
            raise ValueError("the log is one episode, and no noise shows between episodes; log more of them")
        if evidence is None or not evidence.scores.size:
            raise ValueError(
                f"method={self.method!r} gives no interval: the noise of the data is not measured; "
                'method="auto" and method="dr" measure it'
            )
        robust, value = evidence["DR"], evidence.value
        direct = evidence["FQE" if evidence.headline == "FQE" else "model"].value
        error, apart = float(robust.standard_error or 0.0), abs(robust.value - direct)
        degrees = evidence.scores.size - 1.0
        off = math.hypot(float(evidence.members.std(ddof=1)), max(error, apart))
        allowance = student_quantile(0.95, degrees) * (off - error)
        if math.isnan(apart) or math.isnan(error):  # nothing audits the value
            allowance = math.inf
        half = student_quantile(level, degrees) * error + allowance if allowance < math.inf else math.inf
        return Interval.around(
            value,
            half,
            standard_error=error,
            level=level,
            method=method,
            note=NOTE + _contradictions(evidence, half),
            bias_allowance=allowance,
        )

    def value_scores(self) -> ValueScores:
        """What the covariance of several values on one log is made of.

        Scores of the doubly robust value by episode, with the rest of the interval as an allowance.
        """
        found = self._interval(0.95, "value", "influence")
        assert self.evidence is not None
        return _scores(self.evidence.scores, float(found.bias_allowance))

    def scores(self, of: str = "value") -> ValueScores:
        """The same of the value or the return."""
        return self.value_scores().scaled(self._steps_of(of))

    def _steps_of(self, of: str) -> float:
        """Value per step times this is what is meant."""
        if of == "value":
            return 1.0
        if of == "length" or self.gamma == 1.0:
            raise ValueError(f"{self.method} gives the return for gamma < 1, and no length")
        return 1.0 / (1.0 - self.gamma)

    @property
    def _episodes_end(self) -> bool:
        terminal = self.transitions.terminal
        return terminal is not None and bool(terminal.any())

    def behavior_estimate(self, of: str) -> float | None:
        """The behavior's value or return, on the scale of the target's."""
        found = self.behavior_value
        return None if found is None else found * self._steps_of(of)

    def behavior_note(self, of: str) -> str:
        """What ``behavior_estimate`` is."""
        return "mean over the logged episodes"

    @property
    def behavior_value(self) -> float | None:
        """What the logged behavior earns, on the scale of the value."""
        return next((one.value for one in self.estimates if one.name == "naive"), None)

    def behavior_scores(self, of: str = "value") -> ValueScores:
        """The same as ``scores``, of what the behavior earns."""
        if self.evidence is None or self.evidence.naive_scores.size < 2:
            return ValueScores(None, math.inf, "the behavior's value has no interval here")
        return _scores(self.evidence.naive_scores).scaled(self._steps_of(of))

    @property
    def leak(self) -> float:
        """Share of the simulated coordinates that leave the range of the log."""
        return 0.0 if self.evidence is None else self.evidence.clipped

    state_distribution = None
    """There are no cells to hold one; see ``tau``."""

    listed = (
        "divergence", "threads", "value", "value_plain", "mean_ratio", "spread", "residual",
        "effective_sample_size", "member_values", "estimates", "tau", "history",
    )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known, as strict JSON types: nan and infinity become None."""
        return {**super().to_dict(), "transitions": len(self.transitions)}

    def _drawn(self, kind: str | None, ax: Any) -> Any:
        return plot_continuous(self, kind, ax)

    @property
    def headline(self) -> str:
        """The value as it may be shown: a number, or that none can be relied on."""
        if self.value is None:
            return "no rewards"
        if self.status in (Status.NOT_RELIABLE, Status.NOT_IDENTIFIED, Status.NOT_FINITE):
            return f"none to rely on ({self.status.value}; see the checks and sol.estimates)"
        return f"{self.value:.6g}"

    @property
    def _data(self) -> Transitions:
        return self.transitions

    def _value_rows(self) -> list[Row]:
        rows = []
        if self.value is not None:
            rows.append(("value per step", self.headline))
            if self.expected_return is not None and self.converged:
                place = 0 if self.headline_of == "return" else 1
                rows.insert(place, ("return", f"{self.expected_return:.6g}  ({self.return_note})"))
        if self.spread is not None and self.member_values is not None:
            rows.append(("  spread", f"{self.spread:.2g} among {len(self.member_values)} members"))
        for name, value, error, seconds in self.estimates:
            noise = "" if error is None else f" +- {error:.2g}"
            rows.append((f"  by {name}", f"{value:.6g}{noise}  ({seconds:.1f} s)"))
        return rows

    def _accuracy_rows(self) -> list[Row]:
        rows = [("steps", f"{self.n_iter:,}")]
        if math.isnan(self.residual):
            return rows
        where = "in sample" if self.method == "linear" else "held out"
        return [(f"residual ({where})", f"{self.residual:.2e}"), *rows]


def _contradictions(evidence: Evidence, half: float) -> str:
    """Which other opinions lie outside of the interval, as the end of its note; empty where none does."""
    others = [one for one in evidence.estimates if one.name in OPINIONS and one.name != evidence.headline]
    apart = [f"{one.name} says {one.value:.4g}" for one in others if abs(one.value - evidence.value) > half]
    return f"; outside of it: {', '.join(apart)}" if apart else ""


def _scores(by_episode: Floats, allowance: float = 0.0) -> ValueScores:
    n = by_episode.size
    rows = (by_episode - by_episode.mean())[:, None] / math.sqrt(n * (n - 1.0))
    return ValueScores(rows, n - 1.0, NOTE, allowance)
