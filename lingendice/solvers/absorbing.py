"""Episodes that end for good: visits of one episode, undiscounted.

    d = mu0 + T' d        expected visits of one episode to every state
    L = sum d             its expected length

with T the steps that do not end. Discounted problems tend to this one as gamma tends to 1. The chain that
begins anew after each end has the stationary distribution d / L, so that elimination without subtractions
gives d to the accuracy of its rates, entry by entry. Returns V = r + T V come from
:func:`lingendice.solvers.adjoint.solve_adjoint`.

d is finite only where every state that is reached leads to an end. A *trap* is a state from which no logged
step does; `open_traps` lets episodes leave them at a rate that the log cannot exclude.

References
----------
J. G. Kemeny, J. L. Snell (1976). Finite Markov Chains. Springer. Chapter 3: the fundamental matrix.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.model.transition_rows import TransitionRows, add_hub, find_classes
from lingendice.solvers.control import Controls, Outcome, direct_error
from lingendice.solvers.stationary import solve_class


def visits_of_an_episode(
    chain: TransitionRows, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    """d = mu0 + T' d for a chain that absorbs at ends, which every state must lead to."""
    rates, feeds = chain.extended(1.0, initial)
    (nodes,) = find_classes(rates).recurrent
    outcome = solve_class(rates, nodes, chain.n, method, controls)
    visits = np.zeros(rates.shape[0])
    visits[nodes] = outcome.distribution
    # Per episode: each begins with one visit to the hub of the initial distribution.
    visits = visits[: chain.n] / float(visits @ feeds)
    if outcome.error is not None:
        outcome.error = max(outcome.error, direct_error(chain.n))
    return visits, outcome


def find_traps(chain: TransitionRows) -> NDArray[np.bool_]:
    """States from which no number of steps leads to an end. O(nnz)."""
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import breadth_first_order

    rates, _ = chain.extended()
    n, ends = rates.shape[0], np.flatnonzero(chain.absorbed > 0.0)
    steps = coo_array(rates)
    used = steps.data > 0.0
    # Steps backwards, from one more node behind all ends.
    start = np.concatenate([steps.col[used], np.full(ends.size, n)])
    target = np.concatenate([steps.row[used], ends])
    backwards = csr_array((np.ones(start.size, dtype=np.int8), (start, target)), shape=(n + 1, n + 1))
    leads_to_an_end = np.zeros(n + 1, dtype=bool)
    leads_to_an_end[breadth_first_order(backwards, n, return_predecessors=False)] = True
    return ~leads_to_an_end[: chain.n]


def open_traps(chain: TransitionRows, exit_rate: Floats, onward: Floats) -> TransitionRows:
    """Let a share ``exit_rate`` of the visits to each state go on to ``onward``, and end where it sums to
    less than 1."""
    goes_on = float(onward.sum())
    stays = 1.0 - exit_rate
    out, distribution = chain.out * stays[:, None], chain.distribution
    if goes_on > 0.0:
        out, distribution = add_hub(out, distribution, exit_rate * goes_on, onward / goes_on)
    return replace(chain, keep=chain.keep * stays, out=out, distribution=distribution)


def with_more_ends(chain: TransitionRows, rate: float) -> TransitionRows:
    """The chain in which a share ``rate`` of all visits ends the episode."""
    return replace(chain, keep=chain.keep * (1.0 - rate), out=chain.out * (1.0 - rate))
