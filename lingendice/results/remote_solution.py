"""Solutions of problems whose data lie elsewhere: on a device, where arrays stay, or in rows on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from lingendice.data.checks import Floats
from lingendice.gpu.device import Device
from lingendice.gpu.device_counts import DeviceCounts
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.allowance import rounding_of
from lingendice.results.interval import Influence, Piece
from lingendice.results.result import Row
from lingendice.results.solution import Solution
from lingendice.results.targets import Interval
from lingendice.solvers.control import Controls


@dataclass(frozen=True, eq=False, repr=False)
class DeviceSolution(Solution):
    """A :class:`lingendice.Solution` whose ``stationary``, ``tau``, ``distributions``, ``data_distribution``
    are device arrays.

    Numbers (``value``, ``leak``, ``residual``, ...) are plain floats. What needs the data on the host
    (intervals, diagnostics, values of states) asks for ``to_host()``.
    """

    host: Solution | None = None
    """The same with arrays on the host."""
    device: Device | None = None
    rows: DeviceCounts | None = None
    """Counts whose rows lie on the device alone."""
    certified: ClassVar[bool] = False

    @classmethod
    def of(cls, host: Solution, device: Device, rows: DeviceCounts | None = None) -> DeviceSolution:
        """Show the arrays of a solution on the device."""
        up = device.upload
        held = {part.name: getattr(host, part.name) for part in fields(Solution)}
        held |= {
            "state_distribution": None if host.state_distribution is None else up(host.state_distribution),
            "state_distributions": tuple(map(up, host.state_distributions)),
            "cell_ridge_distribution": None,
        }
        return cls(**held, host=host, device=device, rows=rows)

    def __post_init__(self) -> None:
        """Arrays on the device have no flag that would keep them from being written to."""

    def to_host(self) -> Solution:
        """An ordinary solution; rows that lie on the device are copied, and this is the one way back."""
        assert self.host is not None
        if self.rows is None:
            return self.host
        return replace(self.host, source=compose(self.rows.to_host(), self.host.operator.choices))

    @property
    def operator(self) -> EmpiricalOperator:  # type: ignore[override]
        """Not there: the operator would have to move to the host."""
        raise ValueError("the data of this solution lie on the device; call sol.to_host() to copy them first")

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Any:
        raise ValueError(
            "intervals need the data on the host: sol.to_host().interval(...); lingendice.gpu.bootstrap "
            "resamples on the device"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types, which means a copy on the host."""
        return self.to_host().to_dict()

    def facts(self, asked: bool = True) -> list[Row]:
        """Those of the solution on the host; what needs rows is not computed there."""
        assert self.host is not None
        facts = self.host.facts(asked and self.rows is None)
        told = asked and self.rows is not None and self.state_distribution is not None
        return [*facts, ("interval, checks", "not computed: sol.to_host()")] if told else facts

    def __getstate__(self) -> dict[str, Any]:
        raise ValueError("a solution on the device does not pickle; pickle sol.to_host()")


def _array(name: str) -> Any:
    def read(self: DeviceSolution) -> Any:
        assert self.device is not None
        value = getattr(self.host, name)
        if isinstance(value, tuple):
            return tuple(map(self.device.upload, value))
        return self.device.upload(np.asarray(value))

    return property(read, doc=f"``{name}`` of a solution, on the device.")


def _number(name: str, by_rows: bool = False) -> Any:
    def read(self: DeviceSolution) -> Any:
        held = self.host if self.rows is None or not by_rows else self.operator  # which says why not
        return getattr(held, name)

    return property(read, doc=f"``{name}`` of a solution.")


for _name in ("stationary", "distributions", "data_distribution", "supported", "tau", "cell_distribution"):
    setattr(DeviceSolution, _name, _array(_name))
for _name in (
    "leak", "terminal_mass", "effective_sample_size", "value", "expected_return", "expected_length",
    "episode_steps",
):  # fmt: skip
    setattr(DeviceSolution, _name, _number(_name))
for _name in ("value_bounds", "gap"):
    setattr(DeviceSolution, _name, _number(_name, by_rows=True))


# -- rows on a cluster -----------------------------------------------------------------------------------

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
