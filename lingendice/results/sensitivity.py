"""How a functional of the stationary distribution moves with the rows of the transition matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.by_label import state_names
from lingendice.data.checks import Floats
from lingendice.data.labels import label_or_number
from lingendice.data.rows import read_only
from lingendice.results.targets import read_target
from lingendice.solvers.adjoint import solve_adjoint

if TYPE_CHECKING:
    from lingendice.results.solution import Solution


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """The derivative by every entry of the transition matrix K: ``rows[x] * columns[y]`` for K(y|x).

    Rank one: two vectors stand for all entries. A change that keeps the sums of rows moves the functional by
    ``rows @ change @ columns``, to first order.
    """

    rows: Floats
    """By cell (state, or state and action): how much mass takes its row."""
    columns: Floats
    """By next state: what it is worth to arrive there. A constant added to all changes nothing."""
    estimate: float
    """The functional itself."""
    labels: tuple[Any, ...] | None = None
    """Of the states."""
    action_labels: tuple[Any, ...] | None = None

    def along(self, change: Any) -> float:
        """The derivative along a change of K: cells by next states, rows that sum to 0 (dense or sparse)."""
        if getattr(change, "shape", None) != (self.rows.size, self.columns.size):
            raise ValueError(
                f"change must have the shape of K, {(self.rows.size, self.columns.size)}, got "
                f"{getattr(change, 'shape', type(change).__name__)}"
            )
        moved = np.asarray(change @ self.columns).reshape(-1)
        sums = np.asarray(change @ np.ones(self.columns.size)).reshape(-1)
        row = int(np.abs(sums).argmax())
        if not abs(sums[row]) <= 1e-9 * max(1.0, float(abs(change).max())):
            raise ValueError(
                f"row {row} of change sums to {sums[row]:.3g}, not 0: what one probability gains, others "
                "of its row lose"
            )
        return float(np.einsum("x,x->", self.rows, moved))

    def row_pairs(self) -> list[tuple[Any, float]]:
        """(cell, weight) pairs, those first whose rows matter most."""
        n_actions = self.rows.size // self.columns.size

        def name(cell: int) -> Any:
            state = label_or_number(self.labels, cell // n_actions)
            if n_actions == 1 and self.action_labels is None:
                return state
            return state, label_or_number(self.action_labels, cell % n_actions)

        order = np.argsort(-np.abs(self.rows), kind="stable")
        return [(name(cell), float(self.rows[cell])) for cell in order.tolist()]

    def column_pairs(self) -> list[tuple[Any, float]]:
        """(state, weight) pairs, those first to which it is worth most to arrive."""
        order = np.argsort(-self.columns, kind="stable")
        return [(label_or_number(self.labels, state), float(self.columns[state])) for state in order.tolist()]

    def __repr__(self) -> str:
        return f"Sensitivity of {self.estimate:.6g} to {self.rows.size:,} rows"


def sensitivity(solution: Solution, of: Any, entry: Any) -> Sensitivity:
    """One adjoint solve: the derivative is gamma mu(x) V(y), V the values (at gamma = 1 the bias).

    References
    ----------
    C. D. Meyer (1975). The role of the group generalized inverse in the theory of finite Markov chains. SIAM
    Review 17.
    """
    if not solution.certified or solution.ridge > 0.0 or solution.cell_ridge_distribution is not None:
        raise ValueError(
            "the sensitivity is that of the exact equation; solve with ridge=0, clone=0 (and no features)"
        )
    if solution.operator.choices.horizon is not None or solution.operator.choices.smoothing:
        raise ValueError(
            "the sensitivity is that of the stationary equation; solve without horizon= and smoothing="
        )
    if isinstance(of, str) and of in ("return", "length"):
        raise ValueError(f"of={of!r} has no sensitivity yet; of='value' has, or pass a function on cells")
    if len(solution.state_distributions) > 1:
        raise ValueError(
            "the sensitivity is that of one recurrent class, and the chain has several: a row that leads "
            "from one to another changes which there are; take gamma < 1"
        )
    mu, operator = solution._single(), solution.operator
    identified = 1.0
    if isinstance(of, str) and of == "value" and entry is None:
        read_target(solution, of, None)
        values, estimate, identified = (
            solution.state_values,
            float(solution.value or 0.0),
            solution._identified,
        )
    else:
        function, estimate = _function(solution, of, entry)
        values = solve_adjoint(
            operator.chain, solution.gamma, operator.gather(function), mu, solution.tol, solution.threads
        )
    return Sensitivity(
        rows=read_only(solution.gamma * solution.cell_distribution / identified),
        columns=read_only(values - float(np.einsum("s,s->", mu, values)) / float(mu.sum())),
        estimate=estimate,
        labels=operator.counts.state_labels,
        action_labels=operator.counts.action_labels,
    )


def _function(solution: Solution, of: Any, entry: Any) -> tuple[Floats, float]:
    """The function on cells whose mean the functional is, and the mean."""
    over_actions = solution.over_actions
    if isinstance(of, str) and of == "stationary":
        if entry is None:
            raise ValueError('of="stationary" needs entry=, the state (or cell) that it is of')
        if not over_actions:
            names = state_names(solution.operator.counts)
            is_position = isinstance(entry, (int, np.integer)) and names.find(entry) is None
            entry = entry if is_position else names.require(entry, "entry")
        target = read_target(solution, of, [entry])
        function = np.eye(1, solution.stationary.size, int(entry))[0]
        cells = solution.operator.n_cells
        return np.repeat(function, cells // function.size), float(target.read(solution)[0])
    if entry is not None:
        raise ValueError('entry= picks from of="stationary"; leave it out of other functionals')
    target = read_target(solution, of, None)
    assert target.function is not None
    return target.function, float(target.read(solution)[0])
