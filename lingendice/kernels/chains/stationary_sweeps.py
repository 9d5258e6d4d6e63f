"""Sweeps for the stationary distribution of a sparse chain, written without a subtraction.

With off-diagonal weights ``W`` and exit weights ``D_i = sum_{j != i} W_ij`` the chain that is
watched only when it moves has transition probabilities ``Q_ij = W_ij / D_i``. Its distribution ``y``
solves ``y_j = sum_i y_i Q_ij``, and the distribution of the chain itself is ``x_i ~ y_i s_i / D_i`` with
``s_i = D_i + W_ii``. Every operation below acts on nonnegative numbers, so that rounding
errors stay relative, entry by entry.

Two layouts of ``Q`` are used. *Pull*: for each target ``j`` its sources and weights
(``start``, ``source``, ``weight``). *Row*: for each source its targets. Indices into the states are
unsigned: Numba then leaves out the test for negative ones, which makes a sweep half as long again.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel


@kernel
def count_targets(indptr, indices, data, first, last, exit_weight, total_weight, count):  # type: ignore[no-untyped-def]
    """Sum the exit and total weights of rows ``first .. last`` and count positive entries by target."""
    for i in range(first, last):
        leaving = 0.0
        staying = 0.0
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            weight = data[k]
            if indices[k] == i:
                staying += weight
            elif weight > 0.0:
                leaving += weight
                count[indices[k]] += 1
        exit_weight[i] = leaving
        total_weight[i] = leaving + staying


@kernel
def fill_pull(indptr, indices, data, first, last, exit_weight, place, cursor, source, pull_weight):  # type: ignore[no-untyped-def]
    """Scatter ``Q`` for rows ``first .. last`` into a pull layout that numbers state ``i`` as ``place[i]``.

    ``cursor`` holds the next free position for every target, by its number in the rows, and carries on
    between calls.
    """
    for i in range(first, last):
        leaving = exit_weight[i]
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = indices[k]
            if j != i and data[k] > 0.0:
                position = cursor[j]
                source[position] = place[i]
                pull_weight[position] = data[k] / leaving
                cursor[j] = position + 1


@kernel
def fill_rows(start, source, weight, first, last, cursor, target, row_weight):  # type: ignore[no-untyped-def]
    """Scatter targets ``first .. last`` of the pull layout into the row layout."""
    for j in range(first, last):
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            i = source[k]
            position = cursor[i]
            target[position] = j
            row_weight[position] = weight[k]
            cursor[i] = position + 1


@fused_kernel
def sweep(start, source, weight, y, first, last, forward, relaxation):  # type: ignore[no-untyped-def]
    """One relaxed Gauss-Seidel sweep ``y_j <- y_j + relaxation (sum_i y_i Q_ij - y_j)`` in place.

    ``relaxation`` 1 is Gauss-Seidel itself, which subtracts nothing. Above 1 an entry is kept from falling
    below a tenth of itself at one stroke. Returns the largest relative change of an entry.
    """
    largest = 0.0
    for step in range(last - first):
        j = first + step if forward else last - 1 - step
        total = 0.0
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            total += weight[k] * y[source[k]]
        old = y[j]
        new = max(0.1 * old, (1.0 - relaxation) * old + relaxation * total) if relaxation > 1.0 else total
        y[j] = new
        change = abs(new - old)
        if change > largest * new:
            largest = change / new if new > 0.0 else np.inf
    return largest


@fused_kernel
def residual(start, source, weight, y, first, last):  # type: ignore[no-untyped-def]
    """Sum over targets ``first .. last`` of ``|y_j - sum_i y_i Q_ij|``."""
    total = 0.0
    for j in range(first, last):
        inflow = 0.0
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            inflow += weight[k] * y[source[k]]
        total += abs(inflow - y[j])
    return total


@fused_kernel
def row_sweep(start, target, weight, d, h, first, last, forward):  # type: ignore[no-untyped-def]
    """One Gauss-Seidel sweep ``h_i <- d_i + sum_j Q_ij h_j`` in place (the adjoint equation)."""
    for step in range(last - first):
        i = first + step if forward else last - 1 - step
        total = d[i]
        for k in range(np.uint64(start[i]), np.uint64(start[i + 1])):
            total += weight[k] * h[target[k]]
        h[i] = total


@fused_kernel
def row_residual(start, target, weight, d, h, first, last, out):  # type: ignore[no-untyped-def]
    """Write ``d_i - sum_j Q_ij (h_i - h_j)``, differences first: a constant in ``h`` cancels."""
    for i in range(first, last):
        total = 0.0
        center = h[i]
        for k in range(np.uint64(start[i]), np.uint64(start[i + 1])):
            total += weight[k] * (center - h[target[k]])
        out[i] = d[i] - total
