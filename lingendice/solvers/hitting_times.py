"""Mean times until a chain in continuous time first enters one of some states.

References
----------
C. A. O'Cinneide (1993). Entrywise perturbation theory and error analysis for Markov chains. Numerische
    Mathematik 65.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.model.transition_rows import find_classes
from lingendice.solvers.control import Controls, EliminationError, watch
from lingendice.solvers.stationary import PATIENT_FLOPS, analyzed

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def mean_times_to(rates: csr_array, targets: NDArray[np.int64], controls: Controls) -> Floats:
    """h = 0 in the targets, and elsewhere ``exit_i h_i = 1 + sum_j W_ij h_j``; inf where they may be missed.

    The targets become one node, which is eliminated last and leads back to every other: the bias of that
    chain for a cost of 1 per unit of time off the target, measured from the target, is h. Nothing in it is
    subtracted. Cost: that of the elimination.
    """
    from scipy import sparse

    n = rates.shape[0]
    times = np.zeros(n)
    is_target = np.zeros(n, dtype=bool)
    is_target[targets] = True
    times[~is_target] = np.inf
    sure = np.flatnonzero(~is_target & ~may_miss(rates, is_target))
    if not sure.size:
        return times
    inside = rates[sure]
    into = np.asarray(inside[:, targets].sum(axis=1)).reshape(-1, 1)
    back = np.append(np.ones(sure.size), 0.0)[None, :]
    joined = sparse.hstack([inside[:, sure], sparse.csr_array(into)])
    nodes = sparse.vstack([joined, sparse.csr_array(back)], format="csr").astype(float)
    cost = np.append(np.ones(sure.size), 0.0)
    with watch(controls) as monitor:
        factor = analyzed(nodes, 1, PATIENT_FLOPS, monitor)
        if factor is None:
            raise ValueError(
                f"an elimination of {sure.size:,} states would take more than {PATIENT_FLOPS:.0e} "
                "operations; merge states, or ask for fewer"
            )
        try:
            factor.factorize(nodes.data, threads=controls.threads, monitor=monitor)
            _, bias = factor.bias(cost, 1.0 - cost, monitor)
        except EliminationError as error:
            raise error.renumbered(np.append(sure, targets[0])) from None
    times[sure] = bias[:-1] - bias[-1]
    return times


def may_miss(rates: csr_array, is_target: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """States from which the chain, stopped at the targets, may end up in a class without any. O(nnz)."""
    from scipy import sparse

    stopped = sparse.diags_array((~is_target).astype(float)).tocsr() @ rates
    stopped.eliminate_zeros()
    lost = np.zeros(is_target.size, dtype=bool)
    for nodes in find_classes(stopped.tocsr()).recurrent:
        if not is_target[nodes].any():
            lost[nodes] = True
    into = stopped.T.tocsr()
    front = np.flatnonzero(lost)
    while front.size:
        reached = np.unique(into[front].indices)
        front = reached[~lost[reached]]
        lost[front] = True
    return lost
