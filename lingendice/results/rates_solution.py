"""What ``solve_rates`` returns: the shares of time of a chain in continuous time, and times to targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.by_label import Names
from lingendice.data.checks import Floats
from lingendice.data.display import strict_json
from lingendice.data.labels import Labels
from lingendice.data.rows import read_only
from lingendice.results.result import Row, Shown
from lingendice.results.solution import SeveralDistributions
from lingendice.results.status import Status
from lingendice.solvers.hitting_times import mean_times_to

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.solvers.control import Controls


@dataclass(frozen=True, eq=False, repr=False)
class RatesSolution(Shown):
    """A chain in continuous time: where it spends its time, how often it jumps, when it reaches a target."""

    status: Status
    method: str
    reason: str
    """Why this method was chosen."""
    distributions: tuple[Floats, ...]
    """Shares of time, one distribution for each recurrent class."""
    single: Floats | None
    """The one distribution; None where there are several and no ``initial`` says which."""
    error: float | None
    """Entrywise relative error of the distribution, an estimate."""
    rates: csr_array
    """Rates between states, without the diagonal."""
    reward: Floats | None
    """Reward per unit of time in each state."""
    controls: Controls
    state_labels: Labels | None = None

    @property
    def converged(self) -> bool:
        """Whether the distribution (or every one, where there are several) meets ``tol``."""
        return self.status in (Status.SOLVED, Status.SEVERAL_DISTRIBUTIONS)

    @property
    def stationary(self) -> Floats:
        """Share of time spent in each state: pi with pi Q = 0."""
        if self.single is None:
            raise SeveralDistributions(
                f"there are {len(self.distributions)} stationary distributions, one for each recurrent "
                "class; read .distributions, or pass initial= for the limit from a given start"
            )
        return self.single

    @cached_property
    def exit_rate(self) -> Floats:
        """Jumps per unit of time in each state; 0 in one that is never left."""
        return read_only(np.asarray(self.rates.sum(axis=1)).reshape(-1))

    @cached_property
    def dwell_time(self) -> Floats:
        """Mean time of one visit to each state; inf in one that is never left."""
        with np.errstate(divide="ignore"):
            return read_only(1.0 / self.exit_rate)

    @property
    def jump_rate(self) -> float:
        """Jumps per unit of time in the long run."""
        return float(np.einsum("s,s->", self.stationary, self.exit_rate))

    @property
    def jump_distribution(self) -> Floats:
        """Share of the visits that each state gets: of the chain watched at its jumps alone."""
        visits = self.stationary * self.exit_rate
        total = visits.sum()
        return visits / total if total > 0.0 else self.stationary

    @cached_property
    def residual(self) -> float:
        """L1 norm of pi Q, over the jumps per unit of time."""
        worst = 0.0
        for shares in self.distributions if self.single is None else (self.single,):
            flow = shares * self.exit_rate
            off = float(np.abs(self.rates.T @ shares - flow).sum())
            worst = max(worst, off / float(flow.sum()) if off > 0.0 else 0.0)
        return worst

    @property
    def value(self) -> float | None:
        """Reward per unit of time in the long run; None without rewards."""
        if self.reward is None or self.single is None:
            return None
        return float(np.einsum("s,s->", self.single, self.reward))

    def mean_time_to(self, targets: Any) -> Floats:
        """Mean time until one of the ``targets`` (a state or several) is first entered, from every state.

        0 in the targets, inf where they may never be reached. By elimination without subtractions, so that
        every entry is relatively accurate.
        """
        names = Names("state", self.state_labels, self.rates.shape[0])
        several = isinstance(targets, Iterable) and not isinstance(targets, (str, bytes, tuple))
        listed = list(targets) if several else [targets]
        if isinstance(targets, tuple) and names.find(targets) is None:
            listed = list(targets)
        if not listed:
            raise ValueError("targets holds no state; name at least one")
        places = np.unique([names.require(target, "targets") for target in listed])
        return mean_times_to(self.rates, places, self.controls)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        found = {
            "status": self.status.value, "method": self.method, "reason": self.reason, "error": self.error,
            "residual": self.residual, "stationary": self.single, "value": self.value,
            "distributions": list(self.distributions), "exit_rate": self.exit_rate,
        }  # fmt: skip
        return {name: strict_json(entry) for name, entry in found.items()}

    def __repr__(self) -> str:
        return f"RatesSolution({self.rates.shape[0]:,} states, {self.status.value})"

    def _table(self) -> list[Row]:
        rows = [("status", self.status.value), ("states", f"{self.rates.shape[0]:,}, in continuous time")]
        if self.single is None:
            rows.append(("distributions", f"{len(self.distributions)}, one for each recurrent class"))
        else:
            rows.append(("jumps per unit of time", f"{self.jump_rate:.6g}"))
        if self.value is not None:
            rows.append(("value per unit of time", f"{self.value:.6g}"))
        rows.append(("method", f"{self.method}: {self.reason}"))
        rows.append(("residual", f"{self.residual:.1e}"))
        if self.error is not None:
            rows.append(("error (estimate)", f"{self.error:.1e}"))
        return rows
