"""Checks and set-up of a small dense chain in one pass, so that a call costs microseconds."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def prepare_dense(matrix, gamma):  # type: ignore[no-untyped-def]
    """Rates of a dense chain, with a restart node at gamma < 1, and its row sums.

    Returns (ok, rates, totals); ok is False for anything that is not a plain chain (a bad entry, an
    empty row), which the caller then treats at leisure. At gamma < 1 node n restarts uniformly.
    """
    n = matrix.shape[0]
    nodes = n if gamma == 1.0 else n + 1
    rates = np.zeros((nodes, nodes))
    totals = np.zeros(n)
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = float(matrix[i, j])
            if not entry >= 0.0:
                return False, rates, totals
            total += entry
        if not (total > 0.0 and total < np.inf):
            return False, rates, totals
        totals[i] = total
        for j in range(n):
            rates[i, j] = gamma * (matrix[i, j] / total)
    if nodes > n:
        for i in range(n):
            rates[i, n] = 1.0 - gamma
            rates[n, i] = 1.0 / n
    return True, rates, totals


@kernel
def dense_residual(rates, law, gamma):  # type: ignore[no-untyped-def]
    """L1 norm of mu - (1 - gamma) / n - gamma P' mu for the first n nodes of ``rates`` (= gamma P)."""
    n = law.size
    stepped = np.full(n, (1.0 - gamma) / n)
    for i in range(n):
        for j in range(n):
            stepped[j] += law[i] * rates[i, j]
    total = 0.0
    for j in range(n):
        total += abs(law[j] - stepped[j])
    return total
