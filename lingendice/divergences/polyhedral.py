"""Integral metrics whose dual set is a polyhedron over a graph or a metric: distances are linear programs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, numeric_array, require_nonnegative
from lingendice.divergences.base import IntegralMetric

if TYPE_CHECKING:
    from lingendice.model.operator import Flow

LARGEST_METRIC = 1500
"""Cells up to which all pairs are written out as constraints."""


def edges_of(metric: Any, graph: Any, flow: Flow) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Pairs (i, j, length) with i < j on which f may differ by at most length.

    A metric gives all pairs; a graph only its edges (paths do the rest); neither gives the graph of the
    transitions that were seen, every edge of length 1.
    """
    from scipy import sparse

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
    from scipy import sparse

    if flow.policy is not None:
        raise ValueError(
            "for state-action cells give metric= or graph= over cells: none can be read off the log"
        )
    rows = flow.rows
    ones = np.ones(rows.indices.size)
    return sparse.csr_array((ones, rows.indices, rows.indptr), shape=(flow.n_cells, flow.n_cells)).tocoo()


def differences(i: NDArray[np.int64], j: NDArray[np.int64], n: int) -> Any:
    """Sparse D with (D f)(edge) = f(i) - f(j)."""
    from scipy import sparse

    k = np.arange(i.size)
    return sparse.csr_array(
        (
            np.concatenate([np.ones(i.size), -np.ones(i.size)]),
            (np.concatenate([k, k]), np.concatenate([i, j])),
        ),
        shape=(i.size, n),
    )


class DualSet(NamedTuple):
    """{f : on_dual f + on_extra e <= limit for some e}."""

    on_dual: Any
    """Sparse, constraints by cells."""
    on_extra: Any
    """Sparse, constraints by auxiliary variables."""
    limit: Floats


class PolyhedralMetric(IntegralMetric):
    """A metric max over f in a :class:`DualSet`."""

    @abstractmethod
    def dual_set(self, n: int, bound: float) -> DualSet:
        """The constraints on f over ``n`` cells, with |f| <= bound where the set itself has no bound."""

    def distance(self, residual: Floats) -> float:
        """max over the set of residual' f, by the HiGHS linear-programming solver."""
        from scipy.optimize import linprog
        from scipy.sparse import hstack

        limits = self.dual_set(residual.size, self.default_bound)
        extra = limits.on_extra.shape[1]
        solved = linprog(
            np.concatenate([-residual, np.zeros(extra)]),
            A_ub=hstack([limits.on_dual, limits.on_extra], format="csr"),
            b_ub=limits.limit,
            bounds=(None, None),
            method="highs",
        )
        if solved.status != 0:
            raise ValueError(f"the distance could not be computed: {solved.message}")
        return float(-solved.fun)
