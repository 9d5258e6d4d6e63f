"""Wasserstein-1: f is 1-Lipschitz over a metric or graph; optionally by a gradient penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lingendice.data.checks import Floats, require_number
from lingendice.divergences.polyhedral import DualSet, PolyhedralMetric, differences, edges_of

if TYPE_CHECKING:
    from lingendice.model.operator import Flow


class Wasserstein(PolyhedralMetric):
    """max over |f(i) - f(j)| <= length(i, j) of (q - m)' f.

    Constants are Lipschitz, so |f| is bounded too: where the total masses of q and m differ, the
    distance is that of partial transport at a price of ``bound`` for each unit that is left over.

    Parameters
    ----------
    metric, graph
        Distances between all cells, or a sparse matrix of edge lengths. Default: the graph of the
        transitions that were seen, edges of length 1.
    gradient_penalty
        Weight of mean((|f(i) - f(j)| / length - 1)_+^2) in place of the hard constraint, as in the
        paper's ablation; served by ``method="extragradient"``.
    """

    name = "wasserstein"
    default_bound = 10.0
    first: NDArray[np.int64]
    """One end of every edge, once fitted."""
    second: NDArray[np.int64]
    length: Floats

    def __init__(self, metric: Any = None, graph: Any = None, gradient_penalty: float | None = None) -> None:
        self.metric, self.graph = metric, graph
        self.gradient_penalty = (
            None if gradient_penalty is None else require_number("gradient_penalty", gradient_penalty)
        )

    def fit(self, flow: Flow) -> Wasserstein:
        """Read the edges for the cells of a problem."""
        fitted = Wasserstein(self.metric, self.graph, self.gradient_penalty)
        fitted.first, fitted.second, fitted.length = edges_of(self.metric, self.graph, flow)
        return fitted

    def lipschitz(self, f: Floats) -> float:
        """The largest |f(i) - f(j)| / length."""
        rise = np.abs(f[self.first] - f[self.second])
        ratio = np.divide(rise, self.length, out=np.where(rise > 0, np.inf, 0.0), where=self.length > 0)
        return float(ratio.max(initial=0.0))

    def project(self, f: Floats) -> Floats:
        """f scaled into the set."""
        return f / max(1.0, self.lipschitz(f))

    def dual_set(self, n: int, bound: float) -> DualSet:
        rise = differences(self.first, self.second, n)
        eye = sparse.eye_array(n)
        rows = sparse.vstack([rise, -rise, eye, -eye], format="csr")
        limit = np.concatenate([self.length, self.length, np.full(2 * n, bound)])
        return DualSet(rows, sparse.csr_array((rows.shape[0], 0)), limit)

    # -- the smooth stand-in of the ablation ---------------------------------------------------------

    def penalty(self, f: Floats) -> tuple[float, Floats]:
        """Value and gradient of the gradient penalty."""
        rise = (f[self.first] - f[self.second]) / self.length
        over = np.maximum(np.abs(rise) - 1.0, 0.0)
        weight = (self.gradient_penalty or 0.0) / max(rise.size, 1)
        push = 2.0 * weight * over * np.sign(rise) / self.length
        gradient = np.zeros(f.size)
        np.add.at(gradient, self.first, push)
        np.subtract.at(gradient, self.second, push)
        return weight * float(over @ over), gradient
