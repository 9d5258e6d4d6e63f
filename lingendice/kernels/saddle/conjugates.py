"""excess(y) = phi*(y) - y and its slope, by the place of a divergence in ``divergences.base.CONJUGATES``."""

from __future__ import annotations

import math

from lingendice.kernels.jit import inlined

CHI2, KL, REVERSE_KL, JENSEN_SHANNON, HELLINGER, TOTAL_VARIATION, WEIGHTED_L2, EQUALITY = range(8)


@inlined
def excess_and_slope(code, y):  # type: ignore[no-untyped-def]
    """(excess, slope) at y; steps of SGD keep y inside the domain."""
    if code == CHI2:
        return 0.25 * y * y, 0.5 * y
    if code == WEIGHTED_L2:
        return 0.5 * y * y, y
    if code == KL:
        grown = math.expm1(y)
        return grown - y, grown
    if code == REVERSE_KL:
        return -math.log1p(-y) - y, y / (1.0 - y)
    if code == JENSEN_SHANNON:
        grown = math.expm1(y)
        return -math.log1p(-grown) - y, 2.0 * grown / (1.0 - grown)
    if code == HELLINGER:
        left = 1.0 - y
        return y * y / left, y * (2.0 - y) / (left * left)
    if code == TOTAL_VARIATION and y < -0.5:
        return -0.5 - y, -1.0
    return 0.0, 0.0  # equality, and total variation above -1/2
