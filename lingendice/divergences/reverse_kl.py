"""Reverse Kullback-Leibler: phi(t) = t - 1 - log t, phi*(y) = -log(1 - y) for y < 1."""

from __future__ import annotations

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class ReverseKL(FDivergence):
    """sum m log(m / q) + q - m; the best f is 1 - m / q."""

    name = "reverse_kl"
    dual_limit = 1.0
    default_bound = 10.0

    def phi(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return t - 1.0 - np.log(t)

    def slope(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return 1.0 - 1.0 / t

    def excess(self, y: Floats) -> Floats:
        inside = np.minimum(y, 1.0)
        with np.errstate(divide="ignore"):
            direct = -np.log1p(-inside) - inside
        series = y * y * (0.5 + y * (1.0 / 3.0 + y * (0.25 + y * (0.2 + y / 6.0))))
        return np.where(y < 1.0, np.where(np.abs(y) < 0.01, series, direct), np.inf)

    def excess_slope(self, y: Floats) -> Floats:
        return np.where(y < 1.0, y / np.where(y < 1.0, 1.0 - y, 1.0), np.inf)

    def excess_curvature(self, y: Floats) -> Floats:
        return np.where(y < 1.0, 1.0 / np.where(y < 1.0, 1.0 - y, 1.0) ** 2, np.inf)
