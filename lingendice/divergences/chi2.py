"""Chi-square: phi(t) = (t - 1)^2, phi*(y) = y + y^2 / 4. The default, and the paper's."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class Chi2(FDivergence):
    """sum (q - m)^2 / m; the best f is 2 (q / m - 1), for linear f one linear solve."""

    name = "chi2"
    quadratic = True

    def phi(self, t: Floats) -> Floats:
        return (t - 1.0) ** 2

    def slope(self, t: Floats) -> Floats:
        return 2.0 * (t - 1.0)

    def excess(self, y: Floats) -> Floats:
        return 0.25 * y * y

    def excess_slope(self, y: Floats) -> Floats:
        return 0.5 * y

    def excess_curvature(self, y: Floats) -> Floats:
        return np.full_like(y, 0.5)
