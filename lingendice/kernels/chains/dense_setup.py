"""Checks and set-up of a small dense chain in one pass, so that a call costs microseconds."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

SMALLEST_TOTAL = 2.2250738585072014e-308
"""The smallest normal number: what divides by less overflows, or keeps few digits."""


@kernel
def prepare_dense(matrix, gamma, largest):  # type: ignore[no-untyped-def]
    """Rates of a dense chain, with a restart node at gamma < 1, and its row sums.

    Returns (ok, rates, totals); ok is False for anything that is not a plain chain (a bad entry or one
    above ``largest``, an empty row, sums that overflow or are too small to divide by), which the caller
    then treats at leisure. At gamma < 1 node n restarts uniformly.
    """
    n = matrix.shape[0]
    nodes = n if gamma == 1.0 else n + 1
    rates = np.zeros((nodes, nodes))
    totals = np.zeros(n)
    grand, smallest = 0.0, np.inf
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = float(matrix[i, j])
            if not (entry >= 0.0 and entry <= largest):
                return False, rates, totals
            total += entry
        grand, smallest = grand + total, min(smallest, total)
        if not (total >= SMALLEST_TOTAL and grand < np.inf):
            return False, rates, totals
        totals[i] = total
        for j in range(n):
            rates[i, j] = gamma * (matrix[i, j] / total)
    if smallest < SMALLEST_TOTAL * grand:
        return False, rates, totals
    if nodes > n:
        for i in range(n):
            rates[i, n] = 1.0 - gamma
            rates[n, i] = 1.0 / n
    return True, rates, totals


@kernel
def dense_residual(rates, distribution, gamma):  # type: ignore[no-untyped-def]
    """L1 norm of mu - (1 - gamma) / n - gamma P' mu for the first n nodes of ``rates`` (= gamma P)."""
    n = distribution.size
    stepped = np.full(n, (1.0 - gamma) / n)
    for i in range(n):
        for j in range(n):
            stepped[j] += distribution[i] * rates[i, j]
    total = 0.0
    for j in range(n):
        total += abs(distribution[j] - stepped[j])
    return total
