"""Total variation: phi(t) = |t - 1| / 2, phi*(y) = max(y, -1/2) for y <= 1/2."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class TotalVariation(FDivergence):
    """sum |q - m| / 2: f in [-1/2, 1/2], both an f-divergence and an integral metric."""

    name = "total_variation"
    dual_limit = 0.5
    default_bound = 0.5

    def phi(self, t: Floats) -> Floats:
        return 0.5 * np.abs(t - 1.0)

    def slope(self, t: Floats) -> Floats:
        return 0.5 * np.sign(t - 1.0)

    def excess(self, y: Floats) -> Floats:
        return np.where(y <= 0.5, np.maximum(0.0, -0.5 - y), np.inf)

    def excess_slope(self, y: Floats) -> Floats:
        return np.where(y < -0.5, -1.0, 0.0)

    def excess_curvature(self, y: Floats) -> Floats:
        return np.zeros_like(y)
