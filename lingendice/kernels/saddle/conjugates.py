"""excess(y) = phi*(y) - y and its slope, by the number that each f-divergence carries."""

from __future__ import annotations

import math

from lingendice.kernels.jit import inlined


@inlined
def excess_and_slope(code, y):  # type: ignore[no-untyped-def]
    """(excess, slope) at y; steps of SGD keep y inside the domain."""
    if code == 0:  # chi-square
        return 0.25 * y * y, 0.5 * y
    if code == 6:  # weighted L2
        return 0.5 * y * y, y
    if code == 1:  # Kullback-Leibler
        grown = math.expm1(y)
        return grown - y, grown
    if code == 2:  # reverse Kullback-Leibler
        return -math.log1p(-y) - y, y / (1.0 - y)
    if code == 3:  # Jensen-Shannon
        grown = math.expm1(y)
        return -math.log1p(-grown) - y, 2.0 * grown / (1.0 - grown)
    if code == 4:  # squared Hellinger
        left = 1.0 - y
        return y * y / left, y * (2.0 - y) / (left * left)
    if code == 5 and y < -0.5:  # total variation
        return -0.5 - y, -1.0
    return 0.0, 0.0
