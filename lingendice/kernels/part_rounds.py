"""Rounds over a part of the rows whose sources may lie in other parts: ``x <- base + scale A diag(c) x``.

A round is made of sums by target and of an update of the whole part. An empty ``weights`` stands for ones;
``base``, ``c`` and ``loss`` may hold one number for all rows.
"""

from __future__ import annotations

from lingendice.kernels.jit import fused_kernel


@fused_kernel
def pull_rows(indptr, sources, weights, y, first, last, drawn):
    """``drawn[t - first] = sum of w y`` over the sources of targets ``first .. last``."""
    weighted = weights.size > 0
    for row in range(first, last):
        total = 0.0
        if weighted:
            for entry in range(indptr[row], indptr[row + 1]):
                total += weights[entry] * y[sources[entry]]
        else:
            for entry in range(indptr[row], indptr[row + 1]):
                total += y[sources[entry]]
        drawn[row - first] = total


@fused_kernel
def push_rows(indptr, sources, weights, values, gathered):
    """The transpose: add ``w values[t]`` of every target to each of its sources."""
    weighted = weights.size > 0
    for row in range(values.size):
        value = values[row]
        for entry in range(indptr[row], indptr[row + 1]):
            gathered[sources[entry]] += weights[entry] * value if weighted else value


@fused_kernel
def add_at(places, values, total):
    """``total[places] += values``."""
    for place in range(values.size):
        total[places[place]] += values[place]


@fused_kernel
def finish_round(base, scale, drawn, step, c, loss, x, y):
    """``x <- (1 - step) scale x + step (base + scale drawn)`` and ``y = c x``, in place.

    Returns the L1 norm of the change from ``scale x``, its largest size relative to the new entry,
    ``sum(loss x)`` and ``sum(x)``.
    """
    by_base = 0 if base.size == 1 else 1
    by_c = 0 if c.size == 1 else 1
    by_loss = 0 if loss.size == 1 else 1
    change = 0.0
    largest = 0.0
    lost = 0.0
    mass = 0.0
    for row in range(x.size):
        old = scale * x[row]
        new = (1.0 - step) * old + step * (base[by_base * row] + scale * drawn[row])
        moved = abs(new - old)
        change += moved
        if moved > largest * new:
            largest = moved / new
        lost += loss[by_loss * row] * new
        mass += new
        x[row] = new
        y[row] = c[by_c * row] * new
    return change, largest, lost, mass
