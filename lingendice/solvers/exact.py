"""Choose and run exact solvers: from a chain over states to its stationary law or laws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lingendice.checks import Floats
from lingendice.classes import Classes, extend, find_classes, submatrix
from lingendice.operator import FlowChain
from lingendice.solvers import choose
from lingendice.solvers.iterate import Controls, Outcome

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Laws(NamedTuple):
    """Stationary laws over states and how they were found."""

    single: Floats | None
    every: tuple[Floats, ...]
    outcome: Outcome
    """Of the hardest problem solved: a class, or where the chain ends up."""


def stationary_laws(
    chain: FlowChain,
    gamma: float,
    initial: Floats | None,
    follow_initial: bool,
    method: str,
    controls: Controls,
) -> Laws:
    """Solve mu = (1 - gamma) mu0 + gamma P' mu exactly.

    At gamma = 1 every recurrent class is solved on its own; with several of them and
    ``follow_initial`` the limit law from ``initial`` weighs them by where the chain ends up.
    """
    if gamma < 1.0:
        if initial is None:
            raise ValueError("gamma < 1 needs an initial law")
        law, outcome = _discounted(chain, gamma, initial, method, controls)
        return Laws(law, (law,), outcome)
    rates, _ = extend(chain)
    classes = find_classes(rates)
    outcomes = [
        choose.solve_irreducible(
            submatrix(rates, nodes), n_hubs=int((nodes >= chain.n).sum()), method=method, controls=controls
        )
        for nodes in classes.recurrent
    ]
    laws = []
    for nodes, outcome in zip(classes.recurrent, outcomes, strict=True):
        law = np.zeros(rates.shape[0])
        law[nodes] = outcome.law
        laws.append(law[: chain.n] / law[: chain.n].sum())
    return limit_laws(laws, outcomes, rates, classes, initial if follow_initial else None, method, controls)


def limit_laws(
    laws: list[Floats], outcomes: list[Outcome], rates: csr_array, classes: Classes, initial: Floats | None,
    method: str, controls: Controls,
) -> Laws:  # fmt: skip
    """The laws of all recurrent classes, and their mixture that the chain ends up in from ``initial``."""
    hardest = max(outcomes, key=_hardness)
    if len(laws) == 1:
        return Laws(laws[0], (laws[0],), hardest)
    if initial is None:
        return Laws(None, tuple(laws), hardest)
    share, outcome = _absorption(rates, classes, initial, method, controls)
    if not outcome.converged:
        hardest = max(hardest, outcome, key=_hardness)
    mixture = np.einsum("c,cs->s", share, np.stack(laws))
    return Laws(mixture, tuple(laws), hardest)


def _hardness(outcome: Outcome) -> tuple[bool, int, int]:
    return not outcome.converged, outcome.n_iter, outcome.law.size


def _discounted(
    chain: FlowChain, gamma: float, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    outcome = choose.solve_discounted(chain, gamma, initial, method, controls)
    if outcome is not None:
        return outcome.law, outcome
    rates, feeds = extend(chain, gamma, initial)
    (nodes,) = find_classes(rates).recurrent
    outcome = choose.solve_irreducible(
        submatrix(rates, nodes),
        n_hubs=int((nodes >= chain.n).sum()),
        method=method,
        controls=controls,
        sweeps_failed=nodes.size > choose.DENSE_NODES,
    )
    visits = np.zeros(rates.shape[0])
    visits[nodes] = outcome.law
    # Every restart is one visit to the initial law: (1 - gamma) visits a step, absorbed mass included.
    law = (1.0 - gamma) * visits[: chain.n] / float(visits @ feeds)
    return law, outcome


def _absorption(
    rates: csr_array, classes: Classes, initial: Floats, method: str, controls: Controls
) -> tuple[Floats, Outcome]:
    """Probability of ending up in each recurrent class from ``initial``.

    Each class is collapsed to one node that restarts from ``initial``; the visits to these nodes
    under the stationary law of that chain are in proportion to the probabilities.
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
    visits[nodes] = outcome.law
    ends = visits[transient.size :]
    outcome.residual = None  # of the collapsed chain
    return ends / ends.sum(), outcome
