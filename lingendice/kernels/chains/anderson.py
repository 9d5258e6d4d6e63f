"""Loops of Anderson extrapolation on a fixed-point iteration ``before -> x``."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel


class Past(NamedTuple):
    """The passes so far."""

    before: np.ndarray
    last_step: np.ndarray
    last_x: np.ndarray
    steps: np.ndarray
    """Differences of weighted steps, one row for each pass kept."""
    moves: np.ndarray
    """Differences of outcomes."""


@fused_kernel
def weight_of(value, power):
    """``value**-power`` for powers 0, 1/2 and 1; 0 where a weighted entry is 0."""
    if power == 0.0:
        return 1.0
    if not value > 0.0:
        return 0.0
    return 1.0 / value if power == 1.0 else 1.0 / math.sqrt(value)


@fused_kernel
def record(x, past, power, slot, used, products):
    """Store how step and x differ from the last pass in row ``slot``; products of steps with it.

    ``products[k]`` becomes the inner product of stored step k with the new one.
    """
    steps = past.steps
    for row in range(x.size):
        step = x[row] - past.before[row]
        steps[slot, row] = (step - past.last_step[row]) * weight_of(x[row], power)
        past.moves[slot, row] = x[row] - past.last_x[row]
        past.last_step[row] = step
        past.last_x[row] = x[row]
    for k in range(used):
        total = 0.0
        for row in range(x.size):
            total += steps[k, row] * steps[slot, row]
        products[k] = total


@fused_kernel
def project(x, past, power, used, products):
    """Inner products of the stored steps with the last step, weighted as they are."""
    for k in range(used):
        total = 0.0
        for row in range(x.size):
            total += past.steps[k, row] * past.last_step[row] * weight_of(x[row], power)
        products[k] = total
