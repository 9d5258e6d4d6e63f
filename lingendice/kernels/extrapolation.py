"""Anderson's extrapolation: the passes ``before -> x`` of any iteration, combined.

Of the steps that the last passes made, the combination is sought that is next to the last one; what the same
combination of outcomes changes is taken off x.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel


class Past(NamedTuple):
    """The passes so far."""

    before: np.ndarray
    last_step: np.ndarray
    last_x: np.ndarray
    steps: np.ndarray
    """Differences of weighted steps, one row for each pass kept."""
    moves: np.ndarray
    """Differences of outcomes."""
    gram: np.ndarray
    """Inner products of the rows of ``steps``."""


def empty_past(x, depth):
    """Room for ``depth`` passes of an iteration that starts from ``x``."""
    rows = np.zeros((2, depth, x.size))
    return Past(x.copy(), np.zeros(x.size), np.zeros(x.size), rows[0], rows[1], np.zeros((depth, depth)))


@fused_kernel
def weight_of(value, power):
    """``value**-power`` for powers 0, 1/2 and 1; 0 where a weighted entry is 0."""
    if power == 0.0:
        return 1.0
    if not value > 0.0:
        return 0.0
    return 1.0 / value if power == 1.0 else 1.0 / math.sqrt(value)


@fused_kernel
def record_pass(x, past, power, passes):
    """Keep how step and outcome of pass number ``passes`` (from 0) differ from those of the pass before."""
    before, last_step, last_x, steps, moves, gram = past
    depth = gram.shape[0]
    slot = (passes - 1) % depth
    for row in range(x.size):
        step = x[row] - before[row]
        steps[slot, row] = (step - last_step[row]) * weight_of(x[row], power)
        moves[slot, row] = x[row] - last_x[row]
        last_step[row] = step
        last_x[row] = x[row]
    for k in range(min(passes, depth)):
        total = 0.0
        for row in range(x.size):
            total += steps[k, row] * steps[slot, row]
        gram[slot, k] = total
        gram[k, slot] = total


@kernel
def solve_gram(products_of_steps, products):
    """Coefficients of the stored steps whose combination is next to the last step, by pivoted Cholesky.

    Those of `project` are of the passes in use. Of steps that are one up to rounding all but the first have
    coefficient 0.
    """
    n = products.size
    scale = 1.0 / np.sqrt(np.diag(products_of_steps)[:n])
    gram, right = products_of_steps[:n, :n] * (scale.reshape(n, 1) * scale), products * scale
    solution, order = np.zeros(n), np.arange(n)
    rank = 0
    while rank < n:
        best = rank
        for k in range(rank + 1, n):
            if gram[order[k], order[k]] > gram[order[best], order[best]]:
                best = k
        if not gram[order[best], order[best]] > 1e-13:
            break
        order[rank], order[best] = order[best], order[rank]
        pivot = order[rank]
        for k in range(rank + 1, n):
            i = order[k]
            share = gram[i, pivot] / gram[pivot, pivot]
            right[i] -= share * right[pivot]
            for q in range(rank + 1, n):
                gram[i, order[q]] -= share * gram[pivot, order[q]]
        rank += 1
    for k in range(rank - 1, -1, -1):
        i = order[k]
        total = right[i]
        for q in range(k + 1, rank):
            total -= gram[i, order[q]] * solution[order[q]]
        solution[i] = total / gram[i, i]
    return solution * scale


@fused_kernel
def project(x, past, power):
    """Inner products of the stored steps with the last step, weighted as they are."""
    products = np.zeros(past.gram.shape[0])
    for k in range(products.size):
        for row in range(x.size):
            products[k] += past.steps[k, row] * past.last_step[row] * weight_of(x[row], power)
    return products
