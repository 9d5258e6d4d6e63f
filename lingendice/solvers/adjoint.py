"""Values of states: the adjoint of the stationary equation."""

from __future__ import annotations

import numpy as np

from lingendice.checks import Floats
from lingendice.operator import FlowChain

DENSE_STATES = 512


def solve_adjoint(
    chain: FlowChain, gamma: float, reward: Floats, law: Floats, tol: float, threads: int
) -> Floats:
    """V = r + gamma P V; at gamma = 1 the bias: V = r - g + P V with mu V = 0 (g = mu r)."""
    n = chain.n
    dense = np.zeros((n, n))
    dense += chain.kernel().toarray() + chain.out @ chain.law
    system = np.eye(n) - gamma * dense
    if gamma == 1.0:
        # On the recurrent part I - P + 1 mu' is regular, and its solution has mu V = 0.
        system += law[None, :]
        return np.linalg.solve(system, reward - law @ reward)
    return np.linalg.solve(system, reward)
