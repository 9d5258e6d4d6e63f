"""The stationarity equation over the cells that have data, as sparse matrices.

The test function f of a cell without data has no counter-term in any of these saddle points; it is held
at zero, which is what absorbing the mass that goes there amounts to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_gamma
from lingendice.data.counts import Counts
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.baseline_solution import BaselineSolution, Weighing
from lingendice.results.build import baseline_solution

if TYPE_CHECKING:
    from scipy.sparse import csc_array


class Stationarity(NamedTuple):
    """M tau = b over seen cells: M = diag(p) - gamma T' diag(p), b = (1 - gamma) mu0."""

    seen: NDArray[np.int64]
    p: Floats
    matrix: csc_array
    right: Floats
    reward: Floats
    operator: EmpiricalOperator

    def answer(
        self, method: str, tau: Floats, note: str, started: float, settled: bool = True
    ) -> BaselineSolution:
        """The solution that a ratio over the seen cells amounts to; the value E_p[tau r] is not rescaled."""
        distribution = np.zeros(self.operator.n_cells)
        distribution[self.seen] = self.p * tau
        size = float(self.operator.counts.total) * float(self.p @ tau) ** 2 / float(self.p @ tau**2)
        value = float(self.p @ (tau * self.reward))
        return baseline_solution(
            method,
            self.operator,
            distribution,
            Weighing(value, note, effective_size=size, settled=settled),
            started,
        )


def stationarity(counts: Counts, policy: Any, gamma: float, initial: Any) -> Stationarity:
    """Build the equation; nnz(counts) times the number of actions entries."""
    from scipy import sparse

    gamma = require_gamma(gamma)
    operator = target_operator(counts, gamma, policy, initial)
    if operator.reward is None:
        raise ValueError("the data hold no rewards; pass reward= to Counts.from_transitions")
    seen = np.flatnonzero(operator.seen)
    n_states, n_actions = operator.n_states, operator.n_cells // operator.n_states
    policy_table = np.ones((n_states, 1)) if operator.policy is None else operator.policy
    rows = np.repeat(np.arange(n_states), n_actions)
    choose = sparse.csr_array(
        (policy_table.ravel(), (rows, np.arange(operator.n_cells))), shape=(n_states, operator.n_cells)
    )
    step = operator.rows.kernel()[seen]
    # Of the distributions that rows fall back to, only restarts after terminal states concern cells with
    # data.
    back = operator.rows.out[seen]
    used = np.flatnonzero(back.any(axis=0))
    if used.size:
        step = step + sparse.csr_array(back[:, used]) @ sparse.csr_array(operator.rows.distribution[used])
    moves = (step @ choose)[:, seen]
    p = counts.data_distribution[seen]
    matrix = sparse.diags_array(p) - gamma * (moves.T @ sparse.diags_array(p))
    right = np.zeros(seen.size)
    if gamma < 1.0 and operator.cell_initial is not None:
        right = (1.0 - gamma) * operator.cell_initial[seen]
    return Stationarity(seen, p, matrix.tocsc(), right, operator.reward[seen], operator)


def target_operator(
    counts: Counts, gamma: float, policy: Any = None, initial: Any = None
) -> EmpiricalOperator:
    """The operator over cells that a baseline is measured against; by default the logged chain."""
    ratio = "auto" if counts.n_actions is None else "state_action"
    return compose(counts, Choices(gamma=gamma, policy=policy, initial=initial, ratio=ratio))
