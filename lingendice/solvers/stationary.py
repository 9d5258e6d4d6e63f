"""Choose and run exact solvers: from a chain over states to its stationary distribution or distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.model.classes import Classes, find_classes, submatrix
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers import choose
from lingendice.solvers.control import Controls, EliminationError, Outcome, combined

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Distributions(NamedTuple):
    """Stationary distributions over states and how they were found."""

    single: Floats | None
    every: tuple[Floats, ...]
    outcome: Outcome
    """Of the hardest class solved, with the largest error of any."""


def stationary_distributions(
    chain: TransitionRows,
    gamma: float,
    initial: Floats | None,
    follow_initial: bool,
    method: str,
    controls: Controls,
) -> Distributions:
    """Solve mu = (1 - gamma) mu0 + gamma P' mu exactly.

    At gamma = 1 every recurrent class is solved on its own; with several of them and
    ``follow_initial`` the limit distribution from ``initial`` weighs them by where the chain ends up.
    """
    if gamma < 1.0:
        if initial is None:
            raise ValueError("gamma < 1 needs an initial distribution")
        distribution, outcome = _discounted(chain, gamma, initial, method, controls)
        return Distributions(distribution, (distribution,), outcome)
    rates, _ = chain.extended()
    classes = find_classes(rates)
    outcomes = [_solve_class(rates, nodes, chain.n, method, controls) for nodes in classes.recurrent]
    distributions = []
    for nodes, outcome in zip(classes.recurrent, outcomes, strict=True):
        distribution = np.zeros(rates.shape[0])
        distribution[nodes] = outcome.distribution
        distributions.append(distribution[: chain.n] / distribution[: chain.n].sum())
    return limit_distributions(
        distributions, outcomes, rates, classes, initial if follow_initial else None, method, controls
    )


def limit_distributions(
    distributions: list[Floats], outcomes: list[Outcome], rates: csr_array, classes: Classes,
    initial: Floats | None,
    method: str, controls: Controls,
) -> Distributions:  # fmt: skip
    """The distributions of all recurrent classes, and their mixture that the chain ends up in from
    ``initial``."""
    worst = combined(outcomes)
    if len(distributions) == 1:
        return Distributions(distributions[0], (distributions[0],), worst)
    if initial is None:
        return Distributions(None, tuple(distributions), worst)
    share, found = _absorption(rates, classes, initial, method, controls)
    outcome = combined([*outcomes, found])
    if worst.error is not None and found.error is not None:
        outcome.error = worst.error + found.error  # relative errors of the two factors of every entry
    return Distributions(np.einsum("c,cs->s", share, np.stack(distributions)), tuple(distributions), outcome)


def _solve_class(
    rates: csr_array, nodes: NDArray[Any], n_states: int, method: str, controls: Controls, **known: bool
) -> Outcome:
    """Solve one recurrent class; what fails there is named by its number in the whole chain."""
    n_hubs = int((nodes >= n_states).sum())
    try:
        return choose.solve_irreducible(submatrix(rates, nodes), n_hubs, method, controls, **known)
    except EliminationError as error:
        raise error.renumbered(nodes) from None


def _discounted(
    chain: TransitionRows, gamma: float, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    outcome = choose.solve_discounted(chain, gamma, initial, method, controls)
    if outcome is not None:
        return outcome.distribution, outcome
    rates, feeds = chain.extended(gamma, initial)
    (nodes,) = find_classes(rates).recurrent
    sweeps_failed = nodes.size > choose.DENSE_NODES
    outcome = _solve_class(rates, nodes, chain.n, method, controls, sweeps_failed=sweeps_failed)
    visits = np.zeros(rates.shape[0])
    visits[nodes] = outcome.distribution
    # Every restart is one visit to the initial distribution: (1 - gamma) visits per step, absorbed
    # mass included.
    distribution = (1.0 - gamma) * visits[: chain.n] / float(visits @ feeds)
    absorbing = chain.absorbed > 0.0
    if outcome.error is not None and absorbing.any():
        # Shares that end are what rows fall short of 1: the smaller, the fewer of their digits are right.
        outcome.error += 2.0 * float(np.finfo(float).eps / feeds[: chain.n][absorbing].min())
    return distribution, outcome


def _absorption(
    rates: csr_array, classes: Classes, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    """Probability of ending up in each recurrent class from ``initial``, and how it was found.

    Each class is collapsed to one node that restarts from ``initial``; the visits to these nodes
    under the stationary distribution of that chain are in proportion to the probabilities.
    """
    from scipy import sparse

    n, transient = rates.shape[0], classes.transient
    place = np.empty(n, dtype=np.int64)
    place[transient] = np.arange(transient.size)
    for number, nodes in enumerate(classes.recurrent):
        place[nodes] = transient.size + number
    size = transient.size + len(classes.recurrent)
    collapse = sparse.csr_array((np.ones(n), (np.arange(n), place)), shape=(n, size))
    start = np.zeros(n)
    start[: initial.size] = initial
    restart = sparse.csr_array(np.tile(start @ collapse, (len(classes.recurrent), 1)))
    collapsed = sparse.vstack([rates[transient] @ collapse, restart], format="csr")
    (nodes,) = find_classes(collapsed).recurrent
    outcome = choose.solve_irreducible(
        submatrix(collapsed, nodes), n_hubs=0, method=method, controls=controls
    )
    visits = np.zeros(size)
    visits[nodes] = outcome.distribution
    ends = visits[transient.size :]
    outcome.residual = None  # of the collapsed chain
    return ends / ends.sum(), outcome
