"""Kullback-Leibler: phi(t) = t log t - t + 1, phi*(y) = exp(y) - 1."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class KL(FDivergence):
    """sum q log(q / m) - q + m; the best f is log(q / m)."""

    name = "kl"
    default_bound = 10.0

    def phi(self, t: Floats) -> Floats:
        return xlogy(t, t) - t + 1.0

    def slope(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.log(t)

    def excess(self, y: Floats) -> Floats:
        with np.errstate(over="ignore"):
            direct = np.expm1(y) - y
        # exp(y) - 1 - y cancels for small y; its series does not.
        series = 0.5 * y * y * (1.0 + y / 3.0 * (1.0 + 0.25 * y * (1.0 + 0.2 * y * (1.0 + y / 6.0))))
        return np.where(np.abs(y) < 0.02, series, direct)

    def excess_slope(self, y: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.expm1(y)

    def excess_curvature(self, y: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.exp(y)
