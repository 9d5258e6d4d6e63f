"""The empirical transition operator: counts, policy, restart, smoothing and gamma composed.

Nothing of the size cells x cells is ever formed. With ``K(s'|x)`` the estimated distribution of the next
state (:mod:`lingendice.model.transition_rows`) and ``W(a|s)`` the (effective) policy,

    T(x'|x)  = K(s'|x) W(a'|s')
    G        = gamma T + (1 - gamma) 1 mu0'

Solvers ask the operator for the view that they work on: ``rows`` (K over cells), ``chain`` (over states),
``chain.extended()`` (hubs written as nodes) and ``flow()`` (masses over the cells that have data).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.model.flow import Flow
from lingendice.model.leaks import absorbs, mass_per_visit
from lingendice.model.transition_rows import TransitionRows


def average_reward(data_distribution: Floats, reward: Floats) -> float | None:
    """Mean reward over the cells whose reward is known, weighted by the data; None where none is known."""
    known = np.isfinite(reward) & (data_distribution > 0)
    mass = float(data_distribution[known].sum())
    return float(data_distribution[known] @ reward[known]) / mass if mass > 0.0 else None


@dataclass(frozen=True, eq=False)
class EmpiricalOperator:
    """What the data say about one step under the target policy.

    Built by :func:`lingendice.model.compose.compose`. Vectors over cells have length ``n_cells``.
    """

    counts: Counts
    gamma: float
    initial: Floats | None
    """Initial distribution; None at gamma = 1 where none was given."""
    policy: Floats | None
    """The effective policy W, states by actions; None for a chain."""
    ratio: str
    rows: TransitionRows
    """K: the distribution of the next state for every cell."""
    ended: Floats
    """Share of each cell's transitions that ended in a terminal state and were absorbed."""
    reward: Floats | None
    leak_policy: str
    choices: Any = None
    """The :class:`lingendice.model.compose.Choices` it was built from: what to repeat on resampled counts."""

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.counts.n_states

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.counts.n_cells

    @property
    def logged_average(self) -> float | None:
        """Average reward of the data as they are, where known, without any correction; None without any."""
        return None if self.reward is None else average_reward(self.counts.data_distribution, self.reward)

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Cells with outgoing transitions: p > 0."""
        seen: NDArray[np.bool_] = self.counts.cell_count > 0
        return seen

    @property
    def absorbs_leaks(self) -> bool:
        """Whether mass that arrives in cells without outgoing transitions stays there; a prior leads on."""
        return absorbs(self.leak_policy) and bool(self.rows.absorbed[~self.seen].all())

    @cached_property
    def visit_mass(self) -> Floats:
        """Mass that a visit to each cell stands for: 1, and in a leak that absorbs all that would follow."""
        return np.where(self.seen, 1.0, mass_per_visit(self.rows.absorbed, self.gamma))

    @cached_property
    def cell_initial(self) -> Floats | None:
        """mu0 over cells: first state, then an action of the policy."""
        return None if self.initial is None else self.spread(self.initial)

    def spread(self, state_values: Floats) -> Floats:
        """Multiply values over states by the policy: a distribution over states becomes one over cells."""
        if self.policy is None:
            return state_values
        return (state_values[:, None] * self.policy).ravel()

    def gather(self, cell_values: Floats) -> Floats:
        """Average values over cells, or each column of them, by the policy: Q becomes V."""
        if self.policy is None:
            return cell_values
        by_action = cell_values.reshape(*self.policy.shape, *cell_values.shape[1:])
        return np.einsum("sa,sa...->s...", self.policy, by_action)

    def next_state_distribution(self, cell_distribution: Floats) -> Floats:
        """K' applied to a distribution over cells: the distribution of the next state."""
        return self.rows.apply_transpose(cell_distribution)

    def expected_next(self, state_values: Floats) -> Floats:
        """K applied to values over states."""
        return self.rows.apply(state_values)

    def apply(self, values: Floats) -> Floats:
        """G values, for values over cells."""
        stepped = self.gamma * self.expected_next(self.gather(np.asarray(values, dtype=float)))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * (self.cell_initial @ values)
        return stepped

    def apply_transpose(self, distribution: Floats) -> Floats:
        """G' distribution, for a (signed) distribution over cells."""
        stepped = self.gamma * self.spread(
            self.next_state_distribution(np.asarray(distribution, dtype=float))
        )
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * np.sum(distribution) * self.cell_initial
        return stepped

    def residual(self, cell_distribution: Floats) -> Floats:
        """mu - (1 - gamma) mu0 - gamma T' mu over cells; absorbed mass makes it no distribution of G."""
        stepped = self.gamma * self.spread(self.next_state_distribution(cell_distribution))
        if self.gamma < 1.0 and self.cell_initial is not None:
            stepped += (1.0 - self.gamma) * self.cell_initial
        return cell_distribution - stepped

    # -- views -----------------------------------------------------------------------------------------

    @cached_property
    def chain(self) -> TransitionRows:
        """The chain over states under the policy; mu(s, a) = d(s) W(a|s) for its distribution d."""
        rows = self.rows
        if self.policy is None:
            return rows
        from scipy.sparse import csr_array

        n_states, n_actions = self.policy.shape
        first = np.arange(0, self.n_cells + 1, n_actions)
        choose = csr_array(
            (self.policy.ravel() * rows.scale, np.arange(self.n_cells), first), shape=(n_states, self.n_cells)
        )
        choose.eliminate_zeros()
        mixed = choose @ csr_array((rows.weight, rows.indices, rows.indptr), shape=(rows.n, n_states))
        keep = np.minimum(self.gather(rows.keep), 1.0)  # an average of shares, rounded
        indptr, out = mixed.indptr.astype(np.int64), self.gather(rows.out)
        return TransitionRows(indptr, mixed.indices, mixed.data, keep, keep, out, rows.distribution)

    def flow(self, *, closed: bool) -> Flow:
        """Masses over cells, or over states for ``ratio="state"``; ``closed`` folds leaks away."""
        data_distribution = np.asarray(self.counts.data_distribution)
        if self.policy is not None and self.ratio == "state":
            rows, policy = self.chain, None
            p = data_distribution.reshape(self.n_states, -1).sum(axis=1)
            initial, ended = self.initial, self.gather(self.ended)
        else:
            rows, policy, p = self.rows, self.policy, data_distribution
            initial, ended = self.cell_initial, self.ended
        if initial is None or self.gamma == 1.0:
            initial = np.zeros(p.size)
        return Flow(self.gamma, p, initial, rows, policy, ended, closed)
