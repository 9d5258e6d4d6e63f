"""Passes over x = (b + T x) / D, nonnegative throughout, and what their residual proves.

T holds rates off the diagonal, D what leaves each state: the sum of its row of T and of what ends.
"""

from __future__ import annotations

from lingendice.kernels.jit import fused_kernel


@fused_kernel
def relax_rows(indptr, indices, rates, leaving, source, x, first, last, step):
    """Gauss-Seidel over the rows from ``first`` to ``last`` (exclusive) in steps of 1 or -1, in place.

    Returns the largest relative change.
    """
    largest = 0.0
    for i in range(first, last, step):
        total = source[i]
        for e in range(indptr[i], indptr[i + 1]):
            total += rates[e] * x[indices[e]]
        value = total / leaving[i]
        if value > 0.0:
            change = abs(value - x[i]) / value
            if change > largest:
                largest = change
        x[i] = value
    return largest


@fused_kernel
def residual_ratio(indptr, indices, rates, leaving, source, x, scale, first, last):
    """Least and largest (D x - T x - b) / scale over rows whose scale is positive."""
    least, largest = 1e308, -1e308
    for i in range(first, last):
        total = source[i]
        for e in range(indptr[i], indptr[i + 1]):
            total += rates[e] * x[indices[e]]
        if scale[i] > 0.0:
            ratio = (leaving[i] * x[i] - total) / scale[i]
            if ratio < least:
                least = ratio
            if ratio > largest:
                largest = ratio
    return least, largest
