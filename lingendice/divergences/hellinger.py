"""Squared Hellinger: phi(t) = (sqrt(t) - 1)^2, phi*(y) = y / (1 - y) for y < 1."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class Hellinger(FDivergence):
    """sum (sqrt(q) - sqrt(m))^2; the best f is 1 - sqrt(m / q)."""

    name = "hellinger"
    dual_limit = 1.0
    default_bound = 10.0

    def phi(self, t: Floats) -> Floats:
        return (np.sqrt(t) - 1.0) ** 2

    def slope(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return 1.0 - 1.0 / np.sqrt(t)

    def excess(self, y: Floats) -> Floats:
        return np.where(y < 1.0, y * y / np.where(y < 1.0, 1.0 - y, 1.0), np.inf)

    def excess_slope(self, y: Floats) -> Floats:
        gap = np.where(y < 1.0, 1.0 - y, 1.0)
        return np.where(y < 1.0, y * (2.0 - y) / gap**2, np.inf)

    def excess_curvature(self, y: Floats) -> Floats:
        return np.where(y < 1.0, 2.0 / np.where(y < 1.0, 1.0 - y, 1.0) ** 3, np.inf)
