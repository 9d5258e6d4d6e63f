"""Jensen-Shannon: phi(t) = t log t - (t + 1) log((t + 1) / 2), phi*(y) = -log(2 - exp(y)), y < log 2."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import xlogy

from lingendice.data.checks import Floats
from lingendice.divergences.base import FDivergence


class JensenShannon(FDivergence):
    """Twice the usual Jensen-Shannon divergence; the best f is log(2 q / (q + m))."""

    name = "jensen_shannon"
    dual_limit = math.log(2.0)
    default_bound = 10.0

    def phi(self, t: Floats) -> Floats:
        return xlogy(t, t) - (t + 1.0) * np.log((t + 1.0) / 2.0)

    def slope(self, t: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.log(2.0 * t / (t + 1.0))

    def excess(self, y: Floats) -> Floats:
        grown = np.expm1(np.minimum(y, self.dual_limit))
        with np.errstate(divide="ignore", invalid="ignore"):
            direct = -np.log1p(-grown) - y
        series = y * y * (1.0 + y * (1.0 + y * (13.0 / 12.0 + 1.25 * y)))
        return np.where(y < self.dual_limit, np.where(np.abs(y) < 0.003, series, direct), np.inf)

    def excess_slope(self, y: Floats) -> Floats:
        grown = np.expm1(np.minimum(y, self.dual_limit))
        with np.errstate(divide="ignore"):
            return np.where(grown < 1.0, 2.0 * grown / (1.0 - grown), np.inf)

    def excess_curvature(self, y: Floats) -> Floats:
        grown = np.exp(np.minimum(y, self.dual_limit))
        with np.errstate(divide="ignore"):
            return np.where(grown < 2.0, 2.0 * grown / (2.0 - grown) ** 2, np.inf)
