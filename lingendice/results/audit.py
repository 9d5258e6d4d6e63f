"""What the data can identify, found in O(nnz) without solving anything; what the chain is like in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import Floats, require_gamma, require_policy
from lingendice.data.counts import Counts
from lingendice.data.display import amount
from lingendice.data.labels import label_or_number
from lingendice.data.transitions import Transitions
from lingendice.model.compose import Choices, compose
from lingendice.model.leaks import LARGE_LEAK
from lingendice.model.operator import EmpiricalOperator
from lingendice.model.transition_rows import find_classes, period, submatrix
from lingendice.results.comparison import Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.plots import plot_audit
from lingendice.results.result import Row, Shown
from lingendice.results.solution import Solution

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.results.chain_times import ChainTimes


@dataclass(frozen=True, eq=False, repr=False)
class Audit(Shown):
    """Structure of the empirical chain under the policy, and how well the log covers it."""

    n_states: int
    n_actions: int | None
    transitions: float | None
    gamma: float
    recurrent_classes: tuple[NDArray[np.int64], ...]
    """States of each closed communicating class of the chain at gamma = 1."""
    transient_states: NDArray[np.int64]
    periods: tuple[int, ...]
    """Period of each recurrent class; none where rows lie on a cluster, which does not look for them."""
    dangling: NDArray[np.int64]
    """States without outgoing transitions."""
    leak: Floats
    """For each cell, the probability that its next step lands where there is no data."""
    total_leak: float
    """The same, averaged over the data."""
    coverage: float
    """Share of the policy's actions, at the states of the log, that the log contains."""
    least_covered: tuple[int, float]
    """The visited state whose actions are covered least, and its coverage."""
    effective_sample_size: float | None
    """Of the ratio; known once solved: pass a Solution."""
    state_labels: tuple[Any, ...] | None = None
    action_labels: tuple[Any, ...] | None = None
    operator: EmpiricalOperator | None = None

    @cached_property
    def times(self) -> ChainTimes:
        """Recurrence times, spectral gap, relaxation time and Kemeny's constant; computed when first read.

        One stationary solve, and eigenvalues and an inverse, O(n^3), of classes of up to 1,500 states.
        """
        from lingendice.results.chain_times import chain_times

        if self.operator is None or len(self.periods) != len(self.recurrent_classes):
            raise ValueError(
                "the times of a chain whose rows lie on a cluster are not computed; audit them here"
            )
        return chain_times(self.operator, self.recurrent_classes, self.periods)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        return {
            "n_states": self.n_states,
            "n_actions": self.n_actions,
            "transitions": self.transitions,
            "gamma": self.gamma,
            "recurrent_classes": len(self.recurrent_classes),
            "largest_class": max(map(len, self.recurrent_classes), default=0),
            "periods": list(self.periods),
            "transient_states": int(self.transient_states.size),
            "dangling_states": int(self.dangling.size),
            "total_leak": self.total_leak,
            "coverage": self.coverage,
            "least_covered_state": self.least_covered[0],
            "least_coverage": self.least_covered[1],
            "effective_sample_size": self.effective_sample_size,
            "times": self.times.to_dict() if "times" in self.__dict__ else None,
        }

    def plot(self, kind: str | None = None, *, ax: Any = None) -> Any:
        """Draw where the states belong (``"states"``) and where data end (``"leak"``); None: both.

        ``ax`` is the axes to draw on, one per panel; by default those of a new figure, which is returned.
        Needs matplotlib (``pip install 'lingendice[plots]'``).
        """
        return plot_audit(self, kind, ax)

    def cell_name(self, cell: int) -> str:
        """The label of a cell's state, and of its action where there are actions."""
        state, action = divmod(cell, self.n_actions or 1)
        name = label_or_number(self.state_labels, state)
        if self.n_actions is None:
            return str(name)
        return f"{name}, {label_or_number(self.action_labels, action)}"

    def __repr__(self) -> str:
        return f"Audit({self.n_states:,} states, {len(self.recurrent_classes)} recurrent classes)"

    def _table(self) -> list[Row]:
        size = f"{self.n_states:,} states" + (f" x {self.n_actions:,} actions" if self.n_actions else "")
        seen = "probabilities or edges, not a sample"
        if self.transitions is not None:
            seen = f"{amount(self.transitions)} transitions"
        classes = len(self.recurrent_classes)
        largest = max(map(len, self.recurrent_classes), default=0)
        rows = [
            ("data", f"{size}, {seen}"),
            ("recurrent classes", f"{classes:,}, the largest of {largest:,} state{'s' * (largest != 1)}"),
            ("transient states", f"{self.transient_states.size:,}"),
            ("period", _period_text(self.periods) if self.periods or not classes else "not looked for"),
            ("dangling states", f"{self.dangling.size:,} without outgoing transitions"),
            ("leak", f"{self.total_leak:.2%} of next steps land where there is no data"),
        ]
        if self.n_actions is not None:
            state, share = self.least_covered
            name = label_or_number(self.state_labels, state)
            rows.append(("policy coverage", f"{self.coverage:.2%}; least in state {name!r}: {share:.2%}"))
        if self.effective_sample_size is not None and self.transitions is not None:
            rows.append(
                ("effective sample size", f"{self.effective_sample_size:,.0f} of {amount(self.transitions)}")
            )
        if "times" in self.__dict__:
            rows += self.times._table()
        for remedy in self.remedies():
            rows.append(("note", remedy))
        return rows

    def remedies(self) -> list[str]:
        """What stands in the way of an estimate, each with the next step."""
        notes = []
        if self.gamma == 1.0 and len(self.recurrent_classes) > 1:
            notes.append(
                "several recurrent classes: at gamma=1 pass initial=, read sol.distributions, or take "
                "gamma < 1"
            )
        if self.total_leak > LARGE_LEAK and self.transitions is not None:
            notes.append(
                "over 1 % leak: collect data there, or bound the value with leak='absorb' (gamma < 1)"
            )
        if self.n_actions is not None and self.coverage < 0.95:
            notes.append("the log misses actions of the policy: nothing logged says what they are worth")
        return notes


def audit(
    data: Any,
    gamma: float = 1.0,
    *,
    policy: ArrayLike | None = None,
    initial: ArrayLike | None = None,
    leak: str = "restart",
    restart: ArrayLike | None = None,
    terminal: str = "auto",
) -> Audit:
    """Report what a log, a matrix or a graph can identify about the chain under ``policy``.

    Pass a :class:`Solution` to audit what was solved, with the effective sample size of its ratio.

    Examples
    --------
    >>> import lingendice as lg
    >>> lg.audit([[0, 1], [1, 0]]).periods
    (2,)
    >>> times = lg.audit([[90, 10], [30, 70]]).times
    >>> times.recurrence.round(3), [round(time, 3) for time in times.relaxation]
    (array([1.333, 4.   ]), [2.5])
    """
    terms: dict[str, Any] = {
        "policy": policy, "initial": initial, "leak": leak, "restart": restart, "terminal": terminal
    }  # fmt: skip
    if isinstance(data, Solution):
        usual = Choices._field_defaults
        said = {name: term for name, term in terms.items() if term is not None}
        given = [name for name, term in said.items() if not (isinstance(term, str) and term == usual[name])]
        if gamma not in (usual["gamma"], data.gamma):
            given.append("gamma")
        if given:
            raise ValueError(
                f"{given[0]}= was settled when this was solved; leave it out, or audit sol.operator.counts"
            )
        size = None if data.state_distribution is None else data.effective_sample_size
        return audit_operator(data.operator, size, data.asked_choices.policy)
    if isinstance(data, (Comparison, ContinuousSolution, Transitions)):
        raise ValueError(
            "an audit is of counts, a matrix, a graph or a Solution of them, not of a "
            f"{type(data).__name__}; audit one solution of a Comparison, and diagnose() what was solved over "
            "continuous states"
        )
    choices = Choices(gamma=require_gamma(gamma), **terms)
    if hasattr(data, "operator_of"):  # rows elsewhere: see lingendice.distributed
        return audit_operator(data.operator_of(choices))
    counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
    return audit_operator(compose(counts, choices))


def audit_operator(
    operator: EmpiricalOperator, effective_sample_size: float | None = None, policy: ArrayLike | None = None
) -> Audit:
    """Audit a composed operator, which may follow another policy than the one asked for."""
    counts = operator.counts
    recurrent, transient, periods = _classes(operator)
    unseen = ~operator.seen
    leak = operator.expected_next(operator.gather(unseen.astype(float)))
    state_distribution = counts.data_distribution.reshape(counts.n_states, -1).sum(axis=1)
    covered, target = operator.gather(operator.seen.astype(float)), operator.target
    if target is not None:
        target = target if policy is None else require_policy("policy", policy, *target.shape)
        covered = np.einsum("sa,sa->s", target, operator.seen.reshape(target.shape).astype(float))
    visited = np.flatnonzero(state_distribution > 0)
    least = int(visited[np.argmin(covered[visited])]) if visited.size else 0
    leaving = operator.gather(operator.rows.keep) > 0
    return Audit(
        n_states=counts.n_states,
        n_actions=counts.n_actions,
        transitions=float(counts.total) if counts.has_sample_size else None,
        gamma=operator.gamma,
        recurrent_classes=recurrent,
        transient_states=transient,
        periods=periods,
        dangling=np.flatnonzero(~leaving & (state_distribution == 0)),
        leak=leak,
        total_leak=float(counts.data_distribution @ leak),
        coverage=float(state_distribution @ covered),
        least_covered=(least, float(covered[least])),
        effective_sample_size=effective_sample_size,
        state_labels=counts.state_labels,
        action_labels=counts.action_labels,
        operator=operator,
    )


def _classes(operator: EmpiricalOperator) -> tuple[Any, Any, tuple[int, ...]]:
    """States of each recurrent class, transient states, and periods."""
    if hasattr(operator, "recurrent_classes"):
        recurrent, transient = operator.recurrent_classes()
        return recurrent, transient, ()
    chain = operator.chain
    rates, _ = chain.extended()
    classes = find_classes(rates)
    closed = [nodes for nodes in classes.recurrent if nodes[0] < chain.n]
    periods = tuple(_period(submatrix(rates, nodes), int((nodes < chain.n).sum())) for nodes in closed)
    states = tuple(nodes[nodes < chain.n] for nodes in closed)
    return states, classes.transient[classes.transient < chain.n], periods


def _period(rates: csr_array, n_states: int) -> int:
    """Period of a recurrent class, whose hubs come after its states and take no time.

    A step by way of a hub has two edges: every other step gets two, too, by a node of its next state's own.
    """
    if n_states == rates.shape[0]:
        return period(rates) if n_states > 1 else 1
    from scipy.sparse import bmat, csr_array

    steps, enter, leave = (
        rates[:n_states, :n_states],
        rates[:n_states, n_states:],
        rates[n_states:, :n_states],
    )
    reached = np.unique(steps.indices)
    onward = csr_array(
        (np.ones(reached.size), (np.arange(reached.size), reached)), shape=(reached.size, n_states)
    )
    halves = bmat([[None, enter, steps[:, reached]], [leave, None, None], [onward, None, None]])
    return period(csr_array(halves)) // 2


def _period_text(periods: tuple[int, ...]) -> str:
    if not periods:
        return "none"
    if math.prod(periods) == 1:
        return "1 (aperiodic)"
    return ", ".join(map(str, periods[:5])) + (" ..." if len(periods) > 5 else "")
