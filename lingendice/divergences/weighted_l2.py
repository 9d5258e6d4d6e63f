"""Weighted squared distance 1/2 sum (q - m)^2 / p: the objective of GradientDICE, and of the ridge."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class WeightedL2(FDivergence):
    """Excess y^2 / 2 weighted by p instead of p tau; the best f is (q - m) / p."""

    name = "weighted_l2"
    weighs_by_ratio = False
    quadratic = True

    def phi(self, t: Floats) -> Floats:
        return 0.5 * (t - 1.0) ** 2

    def slope(self, t: Floats) -> Floats:
        return t - 1.0

    def excess(self, y: Floats) -> Floats:
        return 0.5 * y * y

    def excess_slope(self, y: Floats) -> Floats:
        return 1.0 * y

    def excess_curvature(self, y: Floats) -> Floats:
        return np.ones_like(y)
