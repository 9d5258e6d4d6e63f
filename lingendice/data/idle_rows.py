"""Policies that take no action in some states: accepted where it makes no difference, refused elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import compressed_rows
from lingendice.data.rows import row_of_entry

if TYPE_CHECKING:
    from lingendice.data.counts import Counts


def fill_idle_rows(name: str, given: Any, space: Counts, initial: Any = None) -> Any:
    """A policy table whose rows of zeros are uniform; whatever is no such table is returned as it is.

    A row of zeros is accepted in terminal states and others in which the log takes no action, and in states
    that the policy never reaches from the first states. Planners leave such rows empty.
    """
    table = compressed_rows(name, given).toarray() if hasattr(given, "toarray") else given
    if isinstance(table, (list, tuple)):
        try:
            table = np.array(table)
        except ValueError:
            return given  # ragged; refused later
    n_actions = space.n_actions or 0
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "biuf":
        return given
    if table.shape != (space.n_states, n_actions):
        return given
    idle = ~table.any(axis=1)
    if not idle.any():
        return given
    acts = np.asarray(space.cell_count).reshape(table.shape).sum(axis=1) > 0
    if (idle & acts).any():
        reached = idle & acts & _reached(table > 0, space, initial)
        if reached.any():
            state = space.label_of(int(np.argmax(reached)))
            raise ValueError(
                f"{name} takes no action in the state {state!r}, whose row sums to 0; give probabilities of "
                "actions for every state with data that it may reach"
            )
    filled = table.astype(np.float64)
    filled[idle] = 1.0 / n_actions
    return filled


def _reached(taken: NDArray[np.bool_], space: Counts, initial: Any) -> NDArray[np.bool_]:
    """States that a policy may reach from its first states; all of them where nobody knows.

    Past a cell without data the chain may go on anywhere, as it may where first states are not known.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n, everywhere = space.n_states, np.ones(space.n_states, dtype=bool)
    first = space.initial_count if initial is None else initial
    if first is None or np.shape(first) != (n,) or not isinstance(getattr(space, "indptr", None), np.ndarray):
        return everywhere
    cell = row_of_entry(space.indptr)
    goes_on = taken.ravel()[cell] & (space.indices < n)
    source, target = cell[goes_on] // taken.shape[1], space.indices[goes_on]
    starts = np.flatnonzero(first)
    # One node more leads to every first state.
    edges = np.append(source, np.full(starts.size, n)), np.append(target, starts)
    graph = csr_array((np.ones(edges[0].size), edges), shape=(n + 1, n + 1))
    reached = np.zeros(n + 1, dtype=bool)
    reached[breadth_first_order(graph, n, return_predecessors=False)] = True
    without_data = taken & (np.asarray(space.cell_count).reshape(taken.shape) == 0)
    return everywhere if (without_data.any(axis=1) & reached[:n]).any() else reached[:n]
