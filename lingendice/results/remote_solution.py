"""Solutions of problems whose data lie elsewhere: on a device, where arrays stay, or in rows on a cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.gpu.chain import COVERED, EARNED, ENDED, KNOWN, LEAKED, SQUARED, DeviceProblem
from lingendice.gpu.device import Device
from lingendice.gpu.equation import row_totals
from lingendice.model.compose import Choices, compose
from lingendice.model.leaks import absorbs, mass_per_visit
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.interval import Influence
from lingendice.results.result import Row
from lingendice.results.solution import Solution, effective_size
from lingendice.results.targets import Interval


@dataclass(frozen=True, eq=False, repr=False)
class DeviceSolution(Solution):
    """A :class:`lingendice.Solution` whose ``stationary``, ``tau``, ``distributions``, ``data_distribution``
    are device arrays.

    Numbers (``value``, ``leak``, ``residual``, ...) are plain floats. What needs the data on the host
    (intervals, diagnostics, values of states) asks for ``to_host()``.
    """

    problem: DeviceProblem | None = None
    choices: Choices | None = None
    certified: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Arrays on the device have no flag that would keep them from being written to."""

    @property
    def _parts(self) -> DeviceProblem:
        assert self.problem is not None
        return self.problem

    def to_host(self) -> Solution:
        """Copy counts and distributions to the host and return an ordinary solution; the one way back."""
        parts, choices = self._parts, self.choices
        assert choices is not None
        device = parts.counts.device
        moved: dict[str, Any] = {
            name: device.download(device.adopt(getattr(choices, name)))
            for name in ("policy", "reward", "initial", "restart")
            if getattr(choices, name) is not None
        }
        counts = parts.counts.to_host()
        if "policy" in moved:
            moved["policy"] = moved["policy"].reshape(counts.n_states, -1)
        operator = compose(counts, choices._replace(**moved))
        every = tuple(device.download(one).astype(np.float64) for one in self.state_distributions)
        single = self.state_distribution
        if single is not None:
            single = device.download(single).astype(np.float64)
        return self.as_plain(state_distribution=single, state_distributions=every, source=operator)

    @property
    def operator(self) -> EmpiricalOperator:  # type: ignore[override]
        """Not there: the operator would have to move to the host."""
        raise ValueError("the data of this solution lie on the device; call sol.to_host() to copy them first")

    @cached_property
    def _report(self) -> tuple[Any, Any, Any]:
        """mu and tau over cells, and the sums that all numbers are made of: one pass, one small download."""
        return self._parts.report(self._single())

    @property
    def _over_cells(self) -> bool:
        return self._parts.ratio == "state_action" or self._parts.counts.n_actions is None

    @property
    def stationary(self) -> Any:
        """mu: the stationary distribution, on the device."""
        return self._report[0] if self._over_cells else self.state_distribution

    def _show(self, state_distribution: Any) -> Any:
        return self._parts.report(state_distribution)[0] if self._over_cells else state_distribution

    @cached_property
    def data_distribution(self) -> Any:
        """p: share of the logged transitions that start in each entry, on the device."""
        p = self._parts.p
        return p if self._over_cells else p.reshape((self._parts.counts.n_states, -1)).sum(axis=1)

    @cached_property
    def tau(self) -> Any:
        """mu / p, nan where there is no data, on the device."""
        if self._over_cells:
            return self._report[1]
        device, p = self._parts.counts.device, self.data_distribution
        return device.where(p > 0.0, self.stationary / device.where(p > 0.0, p, 1.0), np.nan)

    @property
    def cell_distribution(self) -> Any:  # type: ignore[override]
        """mu over cells, on the device."""
        return self._report[0]

    @cached_property
    def leak(self) -> float:
        """Stationary mass in cells without outgoing transitions."""
        return self._leak_of(self._report[2])

    @property
    def leaks(self) -> tuple[float, ...]:
        """The leak of the one distribution, or of each where there are several."""
        if self.state_distribution is not None:
            return (self.leak,)
        return tuple(self._leak_of(self._parts.report(one)[2]) for one in self.state_distributions)

    def _leak_of(self, sums: Any) -> float:
        absorbed = float(absorbs(self._parts.leak_policy))
        return float(sums[LEAKED]) * float(mass_per_visit(absorbed, self.gamma))

    @cached_property
    def terminal_mass(self) -> float:
        """Mass of the distribution that sits in terminal states, at zero reward (gamma < 1)."""
        return 0.0 if self.gamma == 1.0 else self.gamma / (1.0 - self.gamma) * float(self._report[2][ENDED])

    @cached_property
    def effective_sample_size(self) -> float | None:
        """N (E_p tau)^2 / E_p tau^2; None for a matrix without a sample size."""
        counts = self._parts.counts
        if not counts.has_sample_size:
            return None
        total = float(counts.device.download(row_totals(counts.device, counts.indptr, counts.count)[0].sum()))
        sums = self._report[2]
        return effective_size(total, float(sums[COVERED]), float(sums[SQUARED]))

    @cached_property
    def value(self) -> float | None:
        """Per-step value, sum p tau r over the mass whose rewards are known; nan where that is 0.

        None where no reward (or no single distribution) is known.
        """
        if self._parts.reward is None or self.state_distribution is None:
            return None
        sums = self._report[2]
        identified = float(sums[KNOWN]) + self.terminal_mass
        return float(sums[EARNED]) / identified if identified > 0 else math.nan

    @cached_property
    def episode_steps(self) -> float | None:
        """1 / (1 - gamma); at gamma = 1 the ends of episodes are counted on the host: see ``to_host()``."""
        return None if self.gamma == 1.0 else 1.0 / (1.0 - self.gamma)

    @property
    def expected_length(self) -> None:  # type: ignore[override]
        """Not made on the device: see ``to_host()``."""
        return None

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Any:
        raise ValueError(
            "intervals need the data on the host: sol.to_host().interval(...); lingendice.gpu.bootstrap "
            "resamples on the device"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types, which means a copy on the host."""
        return self.to_host().to_dict()

    has_target = False
    """What the behavior earns is told on the host."""

    @property
    def _data(self) -> Any:
        return self._parts.counts

    def _asked(self) -> list[Row]:
        return [("interval, checks", "not computed: sol.to_host()")] * (self.state_distribution is not None)

    def __getstate__(self) -> dict[str, Any]:
        raise ValueError("a solution on the device does not pickle; pickle sol.to_host()")


@dataclass(frozen=True, eq=False, repr=False)
class HostedSolution(DeviceSolution):
    """A solution made by way of the host; its arrays lie on the device, ``to_host()`` costs nothing."""

    host: Solution | None = None
    device: Device | None = None

    @classmethod
    def of(cls, host: Solution, device: Device) -> HostedSolution:
        """Put the distributions of a solution on the device."""
        up = device.upload
        held = {part.name: getattr(host, part.name) for part in fields(Solution)}
        held |= {
            "state_distribution": None if host.state_distribution is None else up(host.state_distribution),
            "state_distributions": tuple(up(distribution) for distribution in host.state_distributions),
            "cell_ridge_distribution": None,
        }
        return cls(**held, host=host, device=device)

    def to_host(self) -> Solution:
        """The solution with its arrays on the host."""
        assert self.host is not None
        return self.host

    def facts(self, asked: bool = True) -> list[Row]:
        """Those of the solution on the host."""
        return self.to_host().facts(asked)


def _array(name: str) -> Any:
    def read(self: HostedSolution) -> Any:
        assert self.device is not None
        value = getattr(self.to_host(), name)
        if isinstance(value, tuple):
            return tuple(map(self.device.upload, value))
        return self.device.upload(np.asarray(value))

    return property(read, doc=f"``{name}`` of a solution, on the device.")


def _number(name: str) -> Any:
    return property(lambda self: getattr(self.to_host(), name), doc=f"``{name}`` of a solution.")


for _name in ("stationary", "distributions", "data_distribution", "supported", "tau", "cell_distribution"):
    setattr(HostedSolution, _name, _array(_name))
for _name in (
    "leak", "terminal_mass", "effective_sample_size", "value", "value_bounds", "gap", "expected_return",
    "expected_length", "episode_steps",
):  # fmt: skip
    setattr(HostedSolution, _name, _number(_name))


# -- rows on a cluster -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class SpreadSolution(Solution):
    """A :class:`lingendice.Solution` whose operator has vectors alone and asks the cluster for the rest.

    Values of states, intervals by influence function and bounds on the value are computed there; what else
    needs the rows (bootstrap, diagnostics, audit) says so, and works after ``counts.gather()``.
    """

    def _adjoint_values(self) -> Floats:
        operator: Any = self.operator
        values: Floats = operator.state_values(self._mean_reward, self._single(), self.tol)
        return values

    def _next_values(self, state_values: Floats) -> Floats:
        return self.operator.gather(self.operator.expected_next(state_values))

    @cached_property
    def _absorbed(self) -> Solution:
        operator: Any = self.operator
        absorbing, found = operator.absorbing(self.tol)
        return replace(
            self, state_distribution=found.single, state_distributions=found.every, source=absorbing
        )

    def _interval(self, level: float, of: Any, method: str, **options: Any) -> Interval:
        if method == "bootstrap":
            raise ValueError(
                "the bootstrap resamples rows, which lie on the workers of a cluster; leave method= out, or "
                "solve counts.gather()"
            )
        return super()._interval(level, of, method, **options)

    def influence(self) -> Influence:
        """Of every logged transition and first state, as sums over the blocks of rows."""
        return SpreadInfluence(self)


class StandardError(NamedTuple):
    """The standard errors of a few functionals, in place of what they are made of."""

    errors: Floats

    def scores(self) -> Floats:
        """One row whose squares are the variances."""
        return self.errors[None, :]


class SpreadInfluence(Influence):
    """Influence where entries lie elsewhere: what belongs to cells is here, squares are summed there."""

    def value(self) -> Any:
        """On the value: its own reward noise, and the division by what is identified."""
        solution, operator = self.solution, self.operator
        error = self._error(solution._filled_reward, solution.state_values, operator.logged_reward)
        return StandardError(np.array([error / solution._identified]))

    def functions(self, columns: Floats) -> Any:
        """On sum mu f, for every column f over cells: one solve for values each."""
        operator: Any = self.operator
        errors = []
        for column in columns.T:
            gathered = operator.gather(column)
            values = operator.state_values(gathered, self.solution._single(), self.solution.tol)
            errors.append(self._error(column, values, None))
        return StandardError(np.array(errors))

    def _error(self, function: Floats, values: Floats, reward: Floats | None) -> float:
        operator: Any = self.operator
        column = values[:, None]
        restarted = self._restart_shift(self._fallen(column))
        shift = (self._policy_shift(function[:, None], column) + restarted)[:, 0]
        factor, share = self.tau * self.spread_again, self.solution.gamma * self._observed_share()
        ending = float(self._value_of_ending(column)[0])
        sums = operator.entry_sums(values, ending, factor, share, shift, reward)
        variance = (sums.level + sums.reward) / self.total**2
        first, logged = self._first_state(column), self.counts.initial_count
        if first is not None and logged is not None:
            variance += float(first[:, 0] ** 2 @ logged) / float(logged.sum()) ** 2
        # Cells seen once show no spread: they get that of the others.
        once, more = (self.n > 0) & (self.n <= 1.0), self.n > 1.0
        owed = float((self.n * self.tau**2)[once].sum()) / self.total**2
        spare = float((self.n - 1.0)[more].sum())
        return math.sqrt(variance + (owed / spare * sums.pooled if spare > 0.0 else 0.0))

    def _counts_with(self, action: int, step: float) -> Counts:
        held: Any = self.counts
        moved: Counts = held.without_rows()
        n_actions = moved.n_actions or 1
        taken = np.arange(self.n.size) % n_actions == action
        moved.__dict__["cell_count"] = self.n * np.where(taken, 1.0 + step, 1.0)
        return moved
