"""What ``solve`` returns for :class:`lingendice.Transitions`: a ratio for every transition, and its value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lingendice.continuous.outcome import Progress, self_normalized
from lingendice.data.checks import Floats
from lingendice.data.json_values import strict_json
from lingendice.data.markup import duration
from lingendice.data.rows import read_only
from lingendice.data.transitions import Transitions
from lingendice.results.continuous_diagnostics import diagnose_continuous
from lingendice.results.diagnostics import Check
from lingendice.results.result import Result, Row
from lingendice.results.solution import effective_size
from lingendice.results.status import Status


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousSolution(Result):
    """tau(s, a) = mu(s, a) / p(s, a) at every logged transition, and the value that follows from it.

    ``value`` is self-normalized, E_p[tau r] / E_p[nu tau]; ``value_plain`` is E_p[tau r]. nu is 1 but for
    transitions into terminal states at gamma < 1, where it counts what those states hold. The two values
    differ by the factor ``mean_ratio`` = E_p[nu tau], which is 1 at the optimum.
    """

    status: Status
    gamma: float
    method: str
    reason: str
    """Why this method was chosen."""
    tau: Floats
    """Ratio at each transition: the mean over the members of an ensemble."""
    members: Floats
    """(members, N): the ratio of each member."""
    mass_weight: Floats
    """nu at each transition."""
    residual: float
    """Stationarity left, as the root of a chi-square distance: on held-out rows for networks, in sample for
    linear features; a diagnostic."""
    n_iter: int
    seconds: float
    transitions: Transitions
    divergence: str = "chi2"
    threads: int = 1
    history: tuple[tuple[Progress, ...], ...] = ()
    """Progress of each member."""
    evaluate: Callable[[Any, Any], Floats] | None = field(default=None)
    details: dict[str, Any] = field(default_factory=dict)
    """What the method adds: options, coefficients, certificates."""

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
        """Per-step value, self-normalized: E_p[tau r] / E_p[nu tau]; None without rewards, nan at tau = 0."""
        return self_normalized(self.tau, self.mass_weight, self.transitions.reward)

    @cached_property
    def value_plain(self) -> float | None:
        """E_p[tau r], not rescaled; None without rewards."""
        reward = self.transitions.reward
        return None if reward is None else float(np.mean(self.tau * reward))

    @cached_property
    def member_values(self) -> Floats | None:
        """Self-normalized value of each member of an ensemble."""
        reward = self.transitions.reward
        if reward is None:
            return None
        earned, mass = (
            np.mean(self.members * reward, axis=1),
            np.mean(self.members * self.mass_weight, axis=1),
        )
        return np.divide(earned, mass, out=np.full(mass.shape, math.nan), where=mass != 0.0)

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
        from lingendice.results.frames import continuous_frame

        return continuous_frame(self, library)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is known, as strict JSON types: nan and infinity become None."""
        numbers = {
            "value": self.value,
            "value_plain": self.value_plain,
            "mean_ratio": self.mean_ratio,
            "spread": self.spread,
            "residual": self.residual,
            "effective_sample_size": self.effective_sample_size,
            "seconds": self.seconds,
        }
        return {
            "status": self.status.name.lower(),
            "converged": self.converged,
            "advice": self.status.advice,
            "gamma": self.gamma,
            "method": self.method,
            "reason": self.reason,
            "divergence": self.divergence,
            "transitions": len(self.transitions),
            "n_iter": self.n_iter,
            "threads": self.threads,
            **strict_json(numbers),
            **self._asked_json(),
            "member_values": strict_json(self.member_values),
            "tau": strict_json(self.tau),
            "history": [strict_json([point._asdict() for point in member]) for member in self.history],
        }

    def _drawn(self, kind: str | None, ax: Any) -> Any:
        from lingendice.results.continuous_plots import plot_continuous

        return plot_continuous(self, kind, ax)

    def _facts(self) -> list[Row]:
        rows = [("data", repr(self.transitions)), ("gamma", f"{self.gamma:g}")]
        if self.value is not None:
            rows += self._value_rows()
            rows.append(("  not rescaled", f"{self.value_plain:.6g}"))
        if self.spread is not None:
            rows.append(("  spread", f"{self.spread:.2g} among {len(self.members)} members"))
        rows += self._asked()
        where = "in sample" if self.method == "linear" else "held out"
        rows.append((f"residual ({where})", f"{self.residual:.2e}"))
        rows.append(("steps", f"{self.n_iter:,}"))
        return [*rows, ("time", duration(self.seconds))]
