"""No slack at all: the inflow equals the mass, with f the multiplier (DualDICE's constraint)."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class Equality(FDivergence):
    """q = m imposed; |f| is bounded, far out, so that the price of a rounding error stays finite."""

    name = "equality"
    default_bound = 1e4

    def phi(self, t: Floats) -> Floats:
        return np.where(t == 1.0, 0.0, np.inf)

    def slope(self, t: Floats) -> Floats:
        return np.where(t == 1.0, 0.0, np.copysign(np.inf, t - 1.0))

    def excess(self, y: Floats) -> Floats:
        return np.zeros_like(y)

    excess_slope = excess_curvature = excess
