"""``pagerank``: the door for graphs, with the arguments and the answer that NetworkX has."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import lingendice as lg
from lingendice.data.by_label import is_table, read_distribution
from lingendice.data.checks import Floats, described, normalized_weights, outside_level, require_number
from lingendice.data.counts import Counts
from lingendice.data.matrices import library_of
from lingendice.results.status import Status


def pagerank(
    G: Any = None,
    alpha: float = 0.85,
    personalization: Any = None,
    max_iter: int | None = None,
    tol: float = 1e-10,
    nstart: Any = None,
    weight: str | None = "weight",
    dangling: Any = None,
    *,
    edges: Any = None,
    time_limit: float | None = None,
    threads: int | None = None,
) -> dict[Any, float] | Floats:
    """PageRank of the nodes of a graph: ``networkx.pagerank`` with a proven error.

    Solves ``x = alpha (P' x + (mass of dangling nodes) d) + (1 - alpha) v`` with P the weights of edges
    normalized by row, v the personalization and d the dangling weights, each divided by its sum; bit by bit
    what ``solve(G, gamma=alpha, initial=v, restart=d)`` gives. O(edges) per iteration.

    Parameters
    ----------
    G
        A graph of NetworkX, igraph or rustworkx; a square matrix (nested list, array, SciPy sparse, frame;
        rows are sources); edges as tuples (pairs, or triples with a weight) or as a frame with the columns
        source and target; a file of a matrix (Matrix Market, NumPy) or of edges (CSV, TSV, text, Parquet).
    alpha
        Probability of following an edge, from 0 to 1.
    personalization
        Weights of the nodes to which walks return: by node (0 where left out), or an array. Default: uniform.
    max_iter
        Limit of iterations; None for none. NetworkX's default is 100.
    tol
        L1 error of the answer; NetworkX's compares the last change with ``len(G) * tol``.
    nstart
        Taken for the sake of NetworkX's signature: the answer does not depend on where iterations begin.
    weight
        Attribute, or column, of edges that holds their weights: 1 where missing; None for 1 everywhere.
        Parallel edges add up.
    dangling
        Weights of the nodes that follow those without outgoing edges. Default: the personalization.
    edges
        Edges in place of ``G``, in any form: pairs or triples, an array or frame whose two or three columns
        are source, target and weight, a file.
    time_limit, threads
        As for :func:`lingendice.solve`.

    Returns
    -------
    dict or numpy.ndarray
        By node for NetworkX, rustworkx, edges and frames whose rows have names; an array in the order of rows
        for other matrices, and in that of vertices for igraph. An empty graph has no entries.

    Raises
    ------
    RuntimeError
        Where a limit was reached first; ``solve`` returns the best so far instead.

    References
    ----------
    L. Page, S. Brin, R. Motwani, T. Winograd (1999). The PageRank citation ranking: bringing order to the
    web. Stanford InfoLab.

    Examples
    --------
    >>> import lingendice as lg
    >>> ranks = lg.pagerank([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
    >>> {node: round(rank, 3) for node, rank in ranks.items()}
    {'a': 0.388, 'b': 0.215, 'c': 0.397}
    """
    if not require_number("alpha", alpha) <= 1.0:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
    if (G is None) == (edges is None):
        raise ValueError("pagerank needs a graph, or edges=; give one of the two")
    counts, data = _read(G, weight) if edges is None else _read_edges(edges, weight)
    ranks = np.empty(0)
    if counts.n_states:
        home = _node_weights("personalization", personalization, counts)
        after = _node_weights("dangling", dangling, counts)
        limits = {"tol": tol, "max_iter": max_iter, "time_limit": time_limit, "threads": threads}
        ranks = _ranks(counts, data, float(alpha), home, after, limits)
    if counts.state_labels is None or library_of(G) == "igraph":
        return ranks
    return dict(zip(map(counts.label_of, range(counts.n_states)), ranks.tolist(), strict=True))


def _ranks(
    counts: Counts,
    data: Any,
    alpha: float,
    personalization: Floats | None,
    dangling: Floats | None,
    limits: dict[str, Any],
) -> Floats:
    home = np.full(counts.n_states, 1.0 / counts.n_states) if personalization is None else personalization
    after = home if dangling is None else dangling
    if alpha == 0.0 or not counts.total:  # no edge is followed, or there is none
        return alpha * after + (1.0 - alpha) * home
    if alpha == 1.0:  # walks begin somewhere, although they never return there
        personalization, dangling = home, after
    solution = lg.solve(data, alpha, initial=personalization, restart=dangling, **limits)
    if solution.status is Status.ERROR_ABOVE_TOL:
        warnings.warn(
            f"PageRank has an error of {solution.error:.1e}, above tol={solution.tol:g}, by rounding",
            RuntimeWarning,
            stacklevel=outside_level(),
        )
    elif not solution.converged:
        raise RuntimeError(f"PageRank ended with status {solution.status.value!r}: {solution.status.advice}")
    return solution.stationary


def _node_weights(name: str, given: Any, counts: Counts) -> Floats | None:
    """Weights of nodes divided by their sum, as NetworkX takes them."""
    if given is None:
        return None
    return normalized_weights(name, read_distribution(name, given, counts), counts.n_states)


def _read(graph: Any, weight: str | None) -> tuple[Counts, Any]:
    """A graph as counts, and the same in the form that ``solve`` is to be given."""
    # Readers load when they are needed: the import of the package waits for them otherwise.
    from lingendice.io.array_files import load_array, read_matrix_file
    from lingendice.io.edge_lists import edge_counts, read_edge_file
    from lingendice.io.formats import MATRICES, format_of

    if isinstance(graph, (str, os.PathLike)):
        path = Path(graph)
        if format_of(path) not in MATRICES:
            counts = read_edge_file(path, weight, or_matrix=True)
            return counts, counts
        graph = load_array(path) if format_of(path) == ".npy" else read_matrix_file(path)
    if isinstance(graph, Counts):
        if graph.n_actions is not None or graph.has_terminals:
            raise ValueError("counts with actions or ends of episodes are no graph; solve(counts) takes them")
        counts = graph
    elif library_of(graph) is not None:
        counts = Counts.from_matrix(graph, weight=weight)
    elif is_table(graph) or _are_tuples(graph):
        counts = edge_counts(graph, weight, or_matrix=True)
    else:
        counts = _matrix_counts(graph)
        if type(graph) is np.ndarray and counts.cell_count.all():
            return counts, graph
    # Nodes without edges are no gaps in the data: nobody is warned of them.
    counts = replace(counts, has_sample_size=False)
    return counts, counts


def _read_edges(edges: Any, weight: str | None) -> tuple[Counts, Any]:
    from lingendice.io.array_files import load_array
    from lingendice.io.edge_lists import edge_counts, read_edge_file
    from lingendice.io.formats import format_of

    if isinstance(edges, (str, os.PathLike)):
        path = Path(edges)
        if format_of(path) != ".npy":
            counts = read_edge_file(path, weight)
            return counts, counts
        edges = load_array(path)
    if isinstance(edges, (Counts, dict)) or hasattr(edges, "tocsr") or library_of(edges) is not None:
        raise ValueError(
            f"edges= is {described(edges)}; give pairs, triples, an array or frame of two or three columns, "
            "or a file there, and graphs and matrices as the first argument"
        )
    counts = edge_counts(edges, weight)
    return counts, counts


def _matrix_counts(matrix: Any) -> Counts:
    """Counts of a square matrix; edges without a name are refused, whatever their number."""
    try:
        return Counts.from_matrix(matrix, copy=False)
    except ValueError as error:
        rows = matrix if isinstance(matrix, (list, np.ndarray)) else []
        if any(np.ndim(row) != 1 or len(row) not in (2, 3) for row in rows[:10]) or not len(rows):
            raise
        raise ValueError(
            f"{error}; if the rows are edges, pass them by name: pagerank(edges=...), or as tuples"
        ) from None


def _are_tuples(graph: Any) -> bool:
    """Whether this is a collection of edges as tuples; nested lists and arrays are matrices."""
    if type(graph).__module__.partition(".")[0] == "rustworkx":
        return True  # an EdgeList or a WeightedEdgeList
    if not isinstance(graph, (list, tuple, set, frozenset)):
        return False
    return all(isinstance(edge, tuple) and len(edge) in (2, 3) for edge in graph)
