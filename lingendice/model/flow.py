"""The stationarity residual of a ratio: what flows into each cell against what sits there.

For m = p tau, the mass that a ratio puts on the cells,

    inflow(m) = (1 - gamma) mu0 + gamma T' m ,     residual(m) = inflow(m) - m ,

and the normalization N(m) = 1 is the total mass, with what sits in unseen and terminal cells counted in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.model.operator import EmpiricalOperator, FlowChain

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class Flow:
    """One step of the chain on masses over cells (columns of a matrix are stepped together).

    ``redirect`` closes the chain over the cells that were seen leaving: mass that enters an unseen cell
    is counted there and goes on from the restart distribution at once. Without it unseen cells are ends of
    the data, and what is learnt there is what the dual features carry over from seen cells.
    """

    gamma: float
    p: Floats
    """Data distribution over cells."""
    initial: Floats
    """mu0 over cells; zeros where gamma = 1 and none is needed."""
    rows: FlowChain
    """Distribution of the next state for every cell (cells by states)."""
    policy: Floats | None
    """Actions of the next state; None where cells are states."""
    ended: Floats
    """Share of each cell's transitions absorbed at a terminal state."""
    redirect: bool
    absorb: bool = field(default=False)
    """Whether unseen cells keep all that would have followed (``leak="absorb"``)."""

    @classmethod
    def of(cls, operator: EmpiricalOperator, redirect: bool) -> Flow:
        """Read the flow over cells, or over states for ``ratio="state"``."""
        over_states = operator.policy is not None and operator.ratio == "state"
        data_distribution = operator.counts.data_distribution
        if over_states:
            rows, policy = operator.chain, None
            p = data_distribution.reshape(operator.n_states, -1).sum(axis=1)
            initial, ended = operator.initial, operator.gather(operator.ended)
        else:
            rows = FlowChain(
                operator.indptr,
                operator.indices,
                operator.weight,
                operator.total,
                operator.keep,
                operator.out,
                operator.distribution,
            )
            policy, p, initial, ended = (
                operator.policy,
                data_distribution,
                operator.cell_initial,
                operator.ended,
            )
        if initial is None or operator.gamma == 1.0:
            initial = np.zeros(p.size)
        return cls(
            operator.gamma,
            np.asarray(p),
            initial,
            rows,
            policy,
            ended,
            redirect,
            operator.leak_policy == "absorb",
        )

    @property
    def n_cells(self) -> int:
        """Number of cells (or states, for a state ratio)."""
        return self.p.size

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Cells with data."""
        return self.p > 0

    @cached_property
    def start(self) -> Floats:
        """(1 - gamma) mu0, with what starts in unseen cells moved on where ``redirect`` says so."""
        return self._close((1.0 - self.gamma) * self.initial)

    def push(self, mass: Any) -> Any:
        """gamma T' m over cells; O(nnz) a column."""
        scaled = (mass.T * self._scale).T
        states = self._counted.T @ scaled + self.rows.distribution.T @ (self.rows.out.T @ mass)
        return self._close(self.gamma * self._spread(states))

    def pull(self, values: Floats) -> Floats:
        """The adjoint of :meth:`push`: gamma T f over cells."""
        if self._closes:
            values = np.where(self.seen, values, self._return_rate * (self._restart @ values))
        states = values if self.policy is None else (self.policy * values.reshape(self.policy.shape)).sum(1)
        stepped = self._scale * (self._counted @ states) + self.rows.out @ (self.rows.distribution @ states)
        return self.gamma * stepped

    def inflow(self, mass: Floats) -> Floats:
        """(1 - gamma) mu0 + gamma T' m."""
        return self.start + self.push(mass)

    @cached_property
    def mass_weight(self) -> Floats:
        """nu: the total mass is ``nu' m + mass_offset``; 1 everywhere without leak and terminals."""
        weight = np.ones(self.n_cells)
        if self._closes:
            entering = self._one_step((~self.seen).astype(float))
            weight += entering * self._stay
        if self.ended.any():
            weight += self.gamma / (1.0 - self.gamma) * self.ended
        return weight

    @cached_property
    def mass_offset(self) -> float:
        """Mass of unseen cells that the initial distribution alone puts there."""
        if not self._closes:
            return 0.0
        return float((1.0 - self.gamma) * self.initial[~self.seen].sum() * self._stay)

    def completed(self, mass: Floats) -> Floats:
        """m on seen cells, and on unseen ones the mass that visits them."""
        if self.seen.all():
            return mass
        states = self._counted.T @ (mass * self._scale) + (mass @ self.rows.out) @ self.rows.distribution
        arriving = (1.0 - self.gamma) * self.initial + self.gamma * self._spread(states)
        entering = float(arriving[~self.seen].sum())
        if self._closes and not self.absorb:
            arriving = arriving + self.gamma * entering * self._stay * self._restart_everywhere
        return np.where(self.seen, mass, arriving)

    # -- how unseen cells go on ----------------------------------------------------------------------

    @property
    def _closes(self) -> bool:
        return self.redirect and not bool(self.seen.all())

    @cached_property
    def _restart_everywhere(self) -> Floats:
        first = int(np.argmin(self.seen))
        distribution = self.rows.out[first] @ self.rows.distribution
        return self._spread(distribution)

    @cached_property
    def _restart(self) -> Floats:
        return np.where(self.seen, self._restart_everywhere, 0.0)

    @cached_property
    def _stay(self) -> float:
        """Mass that unseen cells hold in all, for each unit that enters them."""
        if self.absorb:
            return 1.0 / (1.0 - self.gamma)
        again = float(self._restart_everywhere[~self.seen].sum())
        return 1.0 / (1.0 - self.gamma * again)

    @property
    def _return_rate(self) -> float:
        return 0.0 if self.absorb else self.gamma * self._stay

    def _close(self, arriving: Any) -> Any:
        if not self._closes:
            return arriving
        unseen = ~self.seen
        entering = arriving[unseen].sum(axis=0)
        closed = arriving + self._return_rate * np.multiply.outer(self._restart, entering)
        closed[unseen] = 0.0
        return closed

    def _spread(self, states: Any) -> Any:
        if self.policy is None:
            return states
        if states.ndim == 1:
            return (states[:, None] * self.policy).ravel()
        return (states[:, None, :] * self.policy[:, :, None]).reshape(self.n_cells, -1)

    def _one_step(self, values: Floats) -> Floats:
        states = values if self.policy is None else (self.policy * values.reshape(self.policy.shape)).sum(1)
        return self.gamma * (
            self._scale * (self._counted @ states) + self.rows.out @ (self.rows.distribution @ states)
        )

    @cached_property
    def _scale(self) -> Floats:
        return self.rows.scale()

    @cached_property
    def _counted(self) -> csr_array:
        from scipy.sparse import csr_array

        n_states = self.n_cells if self.policy is None else self.policy.shape[0]
        rows = self.rows
        return csr_array((rows.weight, rows.indices, rows.indptr), shape=(self.n_cells, n_states))
