"""Loops of Anderson extrapolation on a fixed-point iteration ``before -> x``.

References
----------
D. G. Anderson (1965). Iterative procedures for nonlinear integral equations. Journal of the ACM 12.
"""

from __future__ import annotations

import math

from lingendice.kernels.jit import fused_kernel


@fused_kernel
def record(x, before, last_step, last_x, steps, moves, slot, used, products):
    """Store how step and x differ from the last pass in row ``slot``; products of steps with it.

    Steps are weighted by ``1 / sqrt(x)``, so that an entry counts by its relative error and its mass.
    ``products[k]`` becomes the inner product of stored step k with the new one.
    """
    for row in range(x.size):
        step = x[row] - before[row]
        weight = 1.0 / math.sqrt(x[row]) if x[row] > 0.0 else 0.0
        steps[slot, row] = (step - last_step[row]) * weight
        moves[slot, row] = x[row] - last_x[row]
        last_step[row] = step
        last_x[row] = x[row]
    for k in range(used):
        total = 0.0
        for row in range(x.size):
            total += steps[k, row] * steps[slot, row]
        products[k] = total


@fused_kernel
def project(x, last_step, steps, used, products):
    """Inner products of the stored steps with the last step, weighted as they are."""
    for k in range(used):
        total = 0.0
        for row in range(x.size):
            if x[row] > 0.0:
                total += steps[k, row] * last_step[row] / math.sqrt(x[row])
        products[k] = total


@fused_kernel
def combine(x, moves, used, coefficients, least):
    """``x - sum_k coefficients[k] moves[k]``, no entry falling below ``least`` times itself."""
    for row in range(x.size):
        new = x[row]
        for k in range(used):
            new -= coefficients[k] * moves[k, row]
        x[row] = max(new, least * x[row])
