"""The stationarity residual of a ratio: what flows into each cell against what sits there.

For m = p tau, the mass that a ratio puts on the cells,

    inflow(m) = (1 - gamma) mu0 + gamma T' m ,     residual(m) = inflow(m) - m ,

and the normalization N(m) = 1 is the total mass, with what sits in unseen and terminal cells counted in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.model.leaks import Closure
from lingendice.model.transition_rows import TransitionRows


@dataclass(frozen=True, eq=False)
class Flow:
    """One step of the chain on masses over cells (columns of a matrix are stepped together).

    ``closed`` folds away the cells without outgoing transitions: mass that enters one is counted there and
    goes on from its hub at once. Without it such cells are ends of the data, and what is learnt there is what
    the dual features carry over from cells with data.
    """

    gamma: float
    p: Floats
    """Data distribution over cells."""
    initial: Floats
    """mu0 over cells; zeros where gamma = 1 and none is needed."""
    rows: TransitionRows
    """Distribution of the next state for every cell (cells by states)."""
    policy: Floats | None
    """Actions of the next state; None where cells are states."""
    ended: Floats
    """Share of each cell's transitions absorbed at a terminal state."""
    closed: bool

    @property
    def n_cells(self) -> int:
        """Number of cells (or states, for a state ratio)."""
        return self.p.size

    @property
    def n_states(self) -> int:
        """Number of states that cells lead to."""
        return self.rows.n_states

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Cells with data."""
        return self.p > 0

    @cached_property
    def closure(self) -> Closure | None:
        """How leaks are folded away; None without any, or where they are left as they are."""
        if not self.closed or bool(self.seen.all()):
            return None
        policy = np.ones((self.n_cells, 1)) if self.policy is None else self.policy
        return Closure.of(self.rows, policy, self.seen, self.gamma)

    @property
    def out(self) -> Floats:
        """Share of every row that falls back to each hub, leaks folded away."""
        return self.rows.out if self.closure is None else self.closure.out

    @cached_property
    def start(self) -> Floats:
        """(1 - gamma) mu0, with what starts in unseen cells moved on where leaks are folded away."""
        return self._arrive((1.0 - self.gamma) * self._starting)  # type: ignore[no-any-return]

    def apply_transpose(self, mass: Any) -> Any:
        """gamma T' m over cells; O(nnz) for each column."""
        return self._arrive(self.gamma * self.rows.apply_transpose(mass))

    def apply(self, values: Floats) -> Floats:
        """The adjoint of :meth:`apply_transpose`: gamma T f over cells."""
        return self.gamma * self.rows.apply(self.gather(self.with_leaks(values)))

    def with_leaks(self, values: Floats) -> Floats:
        """Values over cells, those of leaks filled in from where they lead."""
        if self.closure is None:
            return values
        filled = np.where(self.seen, values, 0.0)
        filled[~self.seen] = self.closure.values(self.gather(filled))
        return filled

    def inflow(self, mass: Floats) -> Floats:
        """(1 - gamma) mu0 + gamma T' m."""
        return self.start + self.apply_transpose(mass)  # type: ignore[no-any-return]

    @cached_property
    def mass_weight(self) -> Floats:
        """nu: the total mass is ``nu' m + mass_offset``; 1 everywhere without leak and terminals."""
        weight = np.ones(self.n_cells)
        if self.closure is not None:
            weight += self.gamma * self.rows.apply(self.closure.held_in_all)
        if self.ended.any():
            weight += self.gamma / (1.0 - self.gamma) * self.ended
        return weight

    @cached_property
    def mass_offset(self) -> float:
        """Mass of unseen cells that the initial distribution alone puts there."""
        if self.closure is None:
            return 0.0
        return float((1.0 - self.gamma) * self._starting @ self.closure.held_in_all)

    @property
    def loses_mass(self) -> bool:
        """Whether some mass is absorbed, so that the total of a stationary mass is below 1."""
        return bool((1.0 - self.gather(self.rows.keep + self.rows.out.sum(axis=1)) > 1e-12).any())

    def completed(self, mass: Floats) -> Floats:
        """m on seen cells, and on unseen ones the mass that visits them."""
        if self.seen.all():
            return mass
        arriving = (1.0 - self.gamma) * self._starting + self.gamma * self.rows.apply_transpose(mass)
        if self.closure is not None:
            arriving = self.closure.arrivals(arriving)
        return np.where(self.seen, mass, self.spread(arriving))

    def gather(self, values: Floats) -> Floats:
        """Average values over cells by the policy."""
        if self.policy is None:
            return values
        return np.einsum("sa,sa->s", self.policy, values.reshape(self.policy.shape))

    @property
    def _starting(self) -> Floats:
        """mu0 over states."""
        return self.initial.reshape(self.n_states, -1).sum(axis=1)

    def _arrive(self, arriving: Any) -> Any:
        """Mass over states as mass over cells."""
        if self.closure is None:
            return self.spread(arriving)
        cells = self.spread(self.closure.arrivals(arriving))
        cells[~self.seen] = 0.0
        return cells

    def spread(self, states: Any) -> Any:
        """Mass over states times the policy: mass over cells."""
        if self.policy is None:
            return states
        if states.ndim == 1:
            return (states[:, None] * self.policy).ravel()
        return (states[:, None, :] * self.policy[:, :, None]).reshape(self.n_cells, -1)
