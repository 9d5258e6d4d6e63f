"""Maximum mean discrepancy with a Gaussian kernel: half the squared metric, dual f = K (q - m).

References
----------
A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schoelkopf, A. Smola (2012). A kernel two-sample test. Journal of
    Machine Learning Research 13.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import Floats, numeric_array, require_finite, require_positive
from lingendice.divergences.base import Divergence

if TYPE_CHECKING:
    from typing_extensions import Self

    from lingendice.model.operator import Flow

LARGEST = 4000
"""Cells up to which the kernel is held in full; beyond, give Nystroem dual features."""


class MMD(Divergence):
    """1/2 (q - m)' K (q - m) = max over f of (q - m)' f - 1/2 ||f||_H^2.

    The metric itself, the maximum over the unit ball of H, has the same minimizer where the minimum is zero
    but is not smooth there.

    Parameters
    ----------
    points
        Coordinates of the cells, one row each; default: cells have nothing in common (one-hot).
    bandwidth
        A number, ``"median"`` of the distances between cells, or ``"learned"``: the one that tells inflow
        and data apart best at tau = 1, which is how a learned kernel is trained.
    """

    name = "mmd"
    kernel: Floats
    """K over the cells, once fitted."""

    def __init__(self, points: Any = None, bandwidth: float | str = "median") -> None:
        self.points = points
        if isinstance(bandwidth, str):
            if bandwidth not in ("median", "learned"):
                raise ValueError(f"bandwidth must be a number, 'median' or 'learned', got {bandwidth!r}")
        else:
            require_positive("bandwidth", bandwidth)
        self.bandwidth = bandwidth

    def fit(self, flow: Flow) -> Self:
        """Form the kernel over the cells of a problem."""
        n = flow.n_cells
        if n > LARGEST:
            raise ValueError(
                f"the kernel over {n} cells would not fit; pass dual_features=nystroem(...) and chi2"
            )
        fitted = copy(self)
        square = _square_distances(self.points, n)
        apart = square[square > 0]
        median = float(np.sqrt(np.median(apart))) if apart.size else 1.0
        if self.bandwidth == "median":
            width = median
        elif self.bandwidth == "learned":
            residual = flow.inflow(flow.p) - flow.p
            trial = median * np.geomspace(0.1, 10.0, 21)
            power = [residual @ np.exp(-square / (2.0 * h * h)) @ residual for h in trial]
            width = float(trial[int(np.argmax(power))])
        else:
            width = float(self.bandwidth)
        fitted.kernel = np.exp(-square / (2.0 * width * width))
        return fitted

    def root(self) -> Floats:
        """R with R R' = K: dual features whose coefficients have the norm of H."""
        values, vectors = np.linalg.eigh(self.kernel)
        keep = values > values[-1] * 1e-14
        return vectors[:, keep] * np.sqrt(values[keep])


def _square_distances(points: Any, n: int) -> Floats:
    if points is None:
        return 2.0 * (1.0 - np.eye(n))
    at = numeric_array("points", points).astype(float)
    if at.ndim not in (1, 2) or len(at) != n:
        raise ValueError(f"points has shape {at.shape}; give one row of coordinates per cell ({n})")
    require_finite("points", at)
    at = at.reshape(n, -1)
    square = (at * at).sum(axis=1)
    return np.maximum(square[:, None] + square[None, :] - 2.0 * at @ at.T, 0.0)
