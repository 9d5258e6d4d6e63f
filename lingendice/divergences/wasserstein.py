"""Wasserstein-1: f is 1-Lipschitz over a metric or graph; optionally by a gradient penalty.

References
----------
I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin, A. Courville (2017). Improved training of Wasserstein GANs.
    NeurIPS.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lingendice.data.checks import Floats, numeric_array, require_nonnegative, require_number
from lingendice.divergences.base import DualSet, PolyhedralMetric

if TYPE_CHECKING:
    from typing_extensions import Self

    from lingendice.model.operator import Flow

LARGEST_METRIC = 1500
"""Cells up to which all pairs are written out as constraints."""


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

    def fit(self, flow: Flow) -> Self:
        """Read the edges for the cells of a problem."""
        fitted = copy(self)
        fitted.first, fitted.second, fitted.length = edges_of(self.metric, self.graph, flow)
        if self.gradient_penalty is not None and (fitted.length == 0).any():
            edge = int(np.argmin(fitted.length))
            raise ValueError(
                f"cells {fitted.first[edge]} and {fitted.second[edge]} lie at distance 0, by which the "
                "gradient penalty divides; give them a positive one, or leave gradient_penalty out"
            )
        return fitted

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


# -- lengths of edges ------------------------------------------------------------------------------------


def edges_of(metric: Any, graph: Any, flow: Flow) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Pairs (i, j, length) with i < j on which f may differ by at most length.

    A metric gives all pairs; a graph only its edges (paths do the rest); neither gives the graph of the
    transitions that were seen, every edge of length 1.
    """
    if metric is not None and graph is not None:
        raise ValueError("give a metric or a graph, not both")
    if metric is not None:
        table = numeric_array("metric", metric).astype(float)
        if table.shape != (flow.n_cells, flow.n_cells):
            raise ValueError(
                f"metric has shape {table.shape}; give one row and column per cell ({flow.n_cells})"
            )
        if flow.n_cells > LARGEST_METRIC:
            raise ValueError(
                f"a metric on {flow.n_cells} cells has too many pairs; give graph= with the short edges only"
            )
        require_nonnegative("metric", table, "distances are at least 0")
        i, j = np.triu_indices(flow.n_cells, k=1)
        return i, j, np.minimum(table[i, j], table[j, i])
    lengths = _seen_graph(flow) if graph is None else sparse.coo_array(graph)
    if lengths.shape != (flow.n_cells, flow.n_cells):
        raise ValueError(
            f"graph has shape {lengths.shape}; give one row and column per cell ({flow.n_cells})"
        )
    require_nonnegative("graph", lengths.data, "edge lengths are at least 0")
    i, j = np.minimum(lengths.row, lengths.col), np.maximum(lengths.row, lengths.col)
    keep = i < j
    pairs, inverse = np.unique(i[keep].astype(np.int64) * flow.n_cells + j[keep], return_inverse=True)
    shortest = np.full(pairs.size, np.inf)
    np.minimum.at(shortest, inverse, lengths.data[keep].astype(float))
    return pairs // flow.n_cells, pairs % flow.n_cells, shortest


def _seen_graph(flow: Flow) -> Any:
    if flow.policy is not None:
        raise ValueError(
            "for state-action cells give metric= or graph= over cells: none can be read off the log"
        )
    rows = flow.rows
    ones = np.ones(rows.indices.size)
    return sparse.csr_array((ones, rows.indices, rows.indptr), shape=(flow.n_cells, flow.n_cells)).tocoo()


def differences(i: NDArray[np.int64], j: NDArray[np.int64], n: int) -> Any:
    """Sparse D with (D f)(edge) = f(i) - f(j)."""
    k = np.arange(i.size)
    return sparse.csr_array(
        (
            np.concatenate([np.ones(i.size), -np.ones(i.size)]),
            (np.concatenate([k, k]), np.concatenate([i, j])),
        ),
        shape=(i.size, n),
    )
