"""Gauss-Seidel sweeps for ``x = g + F A diag(c) x`` with a sparse nonnegative A in pull form.

Row i of A lists the sources it draws from; ``y = c x`` is kept beside ``x`` so that an inner
loop over unit weights (``weights`` empty) reads nothing but source numbers and y. Self-loops are
eliminated beforehand: they live in F and g. Symbols: ``g`` inflow from outside (times ``scale``),
``f`` the diagonal of F, ``c`` share that each source sends along an edge of weight one.

The inner loops are written out where they are used: one call per row doubles the time of a pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel


class PulledRows(NamedTuple):
    """Entries ``begin[i]:end[i]`` of each row i of A. Integers are unsigned."""

    begin: Any
    end: Any
    sources: Any
    weights: Any


class SweepTerms(NamedTuple):
    """Vectors of the equation; ``loss`` is the share of x that leaves the rows swept."""

    f: Any
    g: Any
    c: Any
    loss: Any


@fused_kernel
def sweep(rows, terms, scale, x, y, first, last):
    """One Gauss-Seidel pass over a range of rows, in place.

    Returns the L1 norm of the change, its largest size, ``sum(loss * x)`` and ``sum(|x|)``.
    """
    row_begin, row_end, sources, weights = rows
    f, g, c, loss = terms
    change = 0.0
    largest = 0.0
    lost = 0.0
    mass = 0.0
    weighted = weights.size > 0
    for row in range(np.uint64(first), np.uint64(last)):
        # Written out in three kernels: shared as one function, PageRank takes 1.7 to 2 times as long.
        drawn = 0.0
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        new = scale * g[row] + f[row] * drawn
        step = abs(new - x[row])
        change += step
        largest = max(largest, step)
        lost += loss[row] * new
        mass += abs(new)
        x[row] = new
        y[row] = c[row] * new
    return change, largest, lost, mass


@fused_kernel
def gather_inflow(rows, f, g, y, first, last, inflow):
    """``inflow = g + F A y`` over the given entries of a range of rows; returns ``sum(inflow / f)``."""
    row_begin, row_end, sources, weights = rows
    supply = 0.0
    weighted = weights.size > 0
    for row in range(np.uint64(first), np.uint64(last)):
        drawn = 0.0
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        inflow[row] = g[row] + f[row] * drawn
        supply += inflow[row] / f[row]
    return supply


@fused_kernel
def residual(rows, row_factor, base, loops, x, y, first, last, image):
    """Write ``image = base + row_factor (A y + loops y)`` on a range.

    Returns the L1 norm, the smallest and the largest entry of ``image - x``.
    """
    row_begin, row_end, sources, weights = rows
    first, last = np.uint64(first), np.uint64(last)
    size = 0.0
    low = 0.0
    high = 0.0
    weighted = weights.size > 0
    for row in range(first, last):
        drawn = loops[row] * y[row]
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        image[row] = base[row] + row_factor[row] * drawn
        rest = image[row] - x[row]
        size += abs(rest)
        if row == first or rest < low:
            low = rest
        if row == first or rest > high:
            high = rest
    return size, low, high


# A block whose largest change over this many passes is hardly below that of as many before has stalled.
WINDOW = 200
STALLED = 0.9999


@fused_kernel
def solve_blocks(upstream, own, terms, inflow, x, y, block_start, block, last_block, tolerance, work, state):
    """Solve strongly connected blocks one after another, upstream first.

    Each row's ``upstream`` entries come from blocks already solved, its ``own`` from its block. A block is
    done once the L1 norm of its residual is at most ``tolerance`` a row, or no longer falls: rounding,
    magnified by a small ``loss`` (the share of x that leaves the block), may keep it above. The outside
    inflow of the block is rescaled after every pass so that the block's total balance holds: this removes the
    slow mode that a nearly closed block has. The call ends after about ``work`` entries and returns the next
    block to do; an unfinished block goes on from its present x. ``state`` is [scale of the unfinished block
    or 0, entries handled so far, largest change in this window of passes, in the last one, passes].
    """
    epsilon = 2.220446049250313e-16
    indptr, c = upstream.begin, terms.c
    inside = SweepTerms(terms.f, inflow, c, terms.loss)
    done = 0
    while block < last_block and done < work:
        first = block_start[block]
        last = block_start[block + 1]
        supply = gather_inflow(upstream, terms.f, terms.g, y, first, last, inflow)
        passing = np.int64(indptr[last] - indptr[first]) + last - first
        done += passing
        if last - first == 1:
            x[first] = inflow[first]
            y[first] = c[first] * x[first]
            block += 1
            continue
        scale = state[0]
        if scale == 0.0:
            scale = 1.0
            state[2] = 0.0
            state[3] = np.inf
            state[4] = 0.0
        finished = False
        before = np.empty(last - first)
        while not finished and done < work:
            # A block that is slow may be going round in circles: every other pass then meets it halfway.
            halfway = state[3] < np.inf and state[4] % 2.0 == 1.0
            if halfway:
                before[:] = x[first:last]
            change, _, lost, mass = sweep(own, inside, scale, x, y, first, last)
            done += passing
            if halfway:
                for row in range(first, last):
                    x[row] = 0.5 * (x[row] + before[row - first])
                    y[row] = c[row] * x[row]
                lost = 0.5 * (lost + scale * supply) if supply > 0.0 else lost
            if supply > 0.0 and lost > 0.0:
                change += abs(lost / supply - scale) * supply
                scale = lost / supply
            finished = change <= max(tolerance * (last - first) * scale, 2.0 * epsilon * mass)
            state[2] = max(state[2], change)
            state[4] += 1.0
            if state[4] == WINDOW:
                finished = finished or state[2] > STALLED * state[3]
                state[3] = state[2]
                state[2] = 0.0
                state[4] = 0.0
        if finished:
            for row in range(first, last):
                x[row] /= scale
                y[row] /= scale
            state[0] = 0.0
            block += 1
        else:
            state[0] = scale
    state[1] += done
    return block
