"""Values of states: the adjoint of the stationary equation, by the solver that suits the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.model.classes import extend, find_classes, submatrix
from lingendice.model.operator import FlowChain
from lingendice.solvers.choose import MODERATE_FLOPS, csr_arrays, leaky_chain

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_STATES = 400


@heeds_ctrl_c
def solve_adjoint(
    chain: FlowChain, gamma: float, reward: Floats, distribution: Floats, tol: float, threads: int
) -> Floats:
    """V = r + gamma P V; at gamma = 1 the bias: V = r - g + P V with mu V = 0 (g = mu r).

    At gamma = 1 the chain must have one recurrent class: with several the bias is not unique.
    """
    if chain.n <= DENSE_STATES:
        return _dense(chain, gamma, reward, distribution)
    if gamma < 1.0:
        return _discounted(chain, gamma, reward, tol, threads)
    return _average(chain, reward, distribution, tol, threads)


def _dense(chain: FlowChain, gamma: float, reward: Floats, distribution: Floats) -> Floats:
    system = np.eye(chain.n) - gamma * (chain.kernel().toarray() + chain.out @ chain.distribution)
    if gamma == 1.0:
        # With one recurrent class I - P + 1 mu' is regular, and its solution has mu V = 0.
        system += distribution[None, :]
        reward = reward - distribution @ reward
    return np.linalg.solve(system, reward)


def _discounted(chain: FlowChain, gamma: float, reward: Floats, tol: float, threads: int) -> Floats:
    from lingendice.solvers.discounted import LeakyChain, discounted_values

    scale = max(float(np.abs(reward).max()), np.finfo(float).tiny)
    if not chain.absorbed().any():
        held = leaky_chain(chain, np.full(chain.n, 1.0 / chain.n))
        found = discounted_values(held, reward / scale, gamma, tol=tol / (1 - gamma), threads=threads)
        return found.solution * scale
    # Absorbed mass goes to one more node, which stays where it is and earns nothing.
    n = chain.n
    distributions = np.vstack(
        [np.column_stack([chain.distribution, np.zeros(chain.n_hubs)]), np.eye(1, n + 1, n)]
    )
    out = np.vstack([np.column_stack([chain.out, chain.absorbed()]), np.zeros((1, chain.n_hubs + 1))])
    held = LeakyChain(
        indptr=np.append(chain.indptr, chain.indptr[-1] + 1),
        indices=np.append(chain.indices, n),
        data=np.append(chain.weight, 1.0),
        keep=np.append(chain.keep, 1.0),
        leak=out,
        distributions=distributions,
    )
    earned = np.append(reward / scale, 0.0)
    found = discounted_values(held, earned, gamma, tol=tol / (1 - gamma), threads=threads)
    return found.solution[:n] * scale


def _average(chain: FlowChain, reward: Floats, distribution: Floats, tol: float, threads: int) -> Floats:
    """Bias of the recurrent class first, then that of the transient states, which lead into it."""
    from scipy import sparse

    rates, _ = extend(chain)
    classes = find_classes(rates)
    (nodes,) = classes.recurrent
    # Hubs take no time and earn nothing.
    earned = np.zeros(rates.shape[0])
    earned[: chain.n] = reward - distribution @ reward
    visits = np.concatenate([distribution, distribution @ chain.out])[nodes]
    bias = np.zeros(rates.shape[0])
    bias[nodes] = _recurrent_bias(submatrix(rates, nodes), earned[nodes], visits / visits.sum(), tol, threads)
    transient = classes.transient
    if transient.size:
        from scipy.sparse.linalg import spsolve

        onward = rates[transient]
        inside = sparse.eye_array(transient.size) - onward[:, transient]
        bias[transient] = spsolve(inside.tocsc(), earned[transient] + onward @ bias)
    return bias[: chain.n] - distribution @ bias[: chain.n]


def _recurrent_bias(rates: csr_array, earned: Floats, visits: Floats, tol: float, threads: int) -> Floats:
    """Elimination where it is affordable, else the levels of the iterative solver."""
    from lingendice.solvers.aggregation_adjoint import solve_adjoint as solve_by_levels
    from lingendice.solvers.elimination import Elimination

    indptr, indices, data = csr_arrays(rates)
    factor = Elimination.analyze(indptr, indices, visits.size, data=data, max_flops=MODERATE_FLOPS)
    if factor.complete:
        return factor.factorize(data, threads=threads).bias(earned)[1]
    return solve_by_levels(indptr, indices, data, visits, earned, tol=tol, threads=threads).h
