"""``pagerank``: the door for graphs, with the arguments and the answer that NetworkX has; ``prepare``."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import lingendice as lg
from lingendice.data.by_label import is_table, read_seed
from lingendice.data.checks import Floats, described, outside_level, require_number, require_whole
from lingendice.data.counts import Counts
from lingendice.data.matrices import library_of
from lingendice.model.prepared_graph import PreparedGraph
from lingendice.results.status import Status
from lingendice.results.top_ranks import TopRanks

SOLVED, PUSHED = 1e-10, 1e-4
"""L1 error by default, and where the highest ranks alone are asked for."""


def pagerank(
    G: Any = None,
    alpha: float = 0.85,
    personalization: Any = None,
    max_iter: int | None = None,
    tol: float | None = None,
    nstart: Any = None,
    weight: str | None = "weight",
    dangling: Any = None,
    *,
    edges: Any = None,
    seeds: Any = None,
    top: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
) -> Any:
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
        Or what :func:`prepare` made of one of these, where the same graph is ranked more than once.
    alpha
        Probability of following an edge, from 0 to 1.
    personalization
        Weights of the nodes to which walks return: by node (0 where left out), or an array; or one node, or a
        list or set of nodes, which share the weight evenly. Default: uniform.
    max_iter
        Limit of iterations; None for none. NetworkX's default is 100.
    tol
        L1 error of the answer; NetworkX's compares the last change with ``len(G) * tol``. Default: 1e-10, and
        1e-4 with ``top``.
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
    dict, numpy.ndarray or TopRanks
        By node for NetworkX, rustworkx, edges and frames whose rows have names; an array in the order of rows
        for other matrices, and in that of vertices for igraph. An empty graph has no entries. With ``seeds``
        an array with a row per seed and a column per node, in the order of ``list(G)``
        (``prepare(G).nodes``); with ``top`` a :class:`TopRanks`.

    Raises
    ------
    RuntimeError
        Where a limit was reached first; ``solve`` returns the best so far instead.

    References
    ----------
    L. Page, S. Brin, R. Motwani, T. Winograd (1999). The PageRank citation ranking: bringing order to the
    web. Stanford InfoLab.
    R. Andersen, F. Chung, K. Lang (2006). Local graph partitioning using PageRank vectors. FOCS.

    Examples
    --------
    >>> import lingendice as lg
    >>> ranks = lg.pagerank([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
    >>> {node: round(rank, 3) for node, rank in ranks.items()}
    {'a': 0.388, 'b': 0.215, 'c': 0.397}
    >>> lg.pagerank([("a", "b"), ("b", "c"), ("c", "a")], seeds=["a", ["b", "c"]]).round(2)
    array([[0.39, 0.33, 0.28],
           [0.31, 0.33, 0.36]])
    """
    if not require_number("alpha", alpha) <= 1.0:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
    tol = require_number("tol", (SOLVED if top is None else PUSHED) if tol is None else tol)
    graph = prepare(G, weight, edges=edges)
    limits = {"tol": tol, "max_iter": max_iter, "time_limit": time_limit, "threads": threads}
    if seeds is not None:
        if personalization is not None:
            raise ValueError("seeds= are personalizations, each of its own ranks; pass one of the two")
        return _seed_ranks(graph, float(alpha), seeds, dangling, top, limits)
    if top is not None:
        raise ValueError("top= is of seeds=; pass seeds=[...] with it, or sort the ranks")
    ranks = np.empty(0)
    if len(graph):
        home = _node_weights("personalization", personalization, graph)
        after = _node_weights("dangling", dangling, graph)
        ranks = _ranks(graph.counts, graph.matrix, float(alpha), home, after, limits)
    return dict(zip(graph.nodes, ranks.tolist(), strict=True)) if graph.has_names else ranks


def prepare(G: Any = None, weight: str | None = "weight", *, edges: Any = None) -> PreparedGraph:
    """Read a graph once, for many calls of :func:`pagerank`; the arguments are those that ``pagerank`` has.

    Examples
    --------
    >>> import lingendice as lg
    >>> graph = lg.prepare([("a", "b"), ("b", "c"), ("c", "a")])
    >>> lg.pagerank(graph, personalization="a")["a"] > lg.pagerank(graph, personalization="b")["a"]
    True
    """
    if (G is None) == (edges is None):
        raise ValueError("pagerank needs a graph, or edges=; give one of the two")
    if isinstance(G, PreparedGraph):
        return G
    counts, matrix = _read(G, weight) if edges is None else _read_edges(edges, weight)
    library = library_of(G)
    return PreparedGraph(
        counts,
        matrix,
        has_names=counts.state_labels is not None and library != "igraph",
        directed=bool(G.is_directed()) if library == "networkx" else True,
        multigraph=bool(G.is_multigraph()) if library == "networkx" else False,
    )


def _seed_ranks(
    graph: PreparedGraph, alpha: float, seeds: Any, dangling: Any, top: int | None, limits: dict[str, Any]
) -> Any:
    """A row of ranks for every seed, or the highest of each."""
    from lingendice.solvers.control import Controls, Stopped, watch
    from lingendice.solvers.seed_ranks import SeedRanks, rank_seeds
    from lingendice.solvers.stationary import sweeps_goal

    n = len(graph)
    kept = None if top is None else min(require_whole("top", top, at_least=1), n)
    after = _node_weights("dangling", dangling, graph)
    read = [read_seed(f"seeds[{k}]", seed, graph.names) for k, seed in enumerate(_listed_seeds(seeds))]
    ranks = np.zeros((len(read), n if kept is None else kept))
    positions, errors = np.zeros((len(read), kept or 0), dtype=np.int64), np.zeros(len(read))

    def finish(place: int, found: SeedRanks) -> None:
        errors[place] = found.error
        full = found.ranks
        if full is None:
            home = np.zeros(n)
            home[read[place][0]] = read[place][1]
            full, errors[place] = (
                _ranks(graph.counts, graph.matrix, alpha, home, after, limits),
                limits["tol"],
            )
        if kept is None:
            ranks[place] = full
            return
        best = np.argpartition(full, n - kept)[n - kept :] if kept < n else np.arange(n)
        best = best[np.lexsort((best, -full[best]))]
        positions[place], ranks[place] = best, full[best]

    controls = Controls.read(**limits)
    if alpha in (0.0, 1.0) or not graph.counts.total or sweeps_goal(alpha, controls.tol) <= 0.0:
        for place in range(len(read)):
            finish(place, SeedRanks(None, np.inf))
    else:
        with watch(controls) as monitor:
            try:
                rank_seeds(graph, alpha, read, after, controls, monitor, finish, only_top=kept is not None)
            except Stopped:
                raise RuntimeError(
                    "PageRank of seeds= ended at its time limit; raise time_limit=, or give fewer seeds"
                ) from None
    if kept is None:
        return ranks
    names = graph.nodes
    nodes = tuple(tuple(names[position] for position in row) for row in positions.tolist())
    return TopRanks(nodes, ranks, errors, positions, n)


def _listed_seeds(seeds: Any) -> list[Any]:
    """The seeds one by one; rows of a sparse matrix as arrays."""
    if hasattr(seeds, "tocsr"):
        rows = seeds.tocsr()
        return [rows[[k]].toarray()[0] for k in range(rows.shape[0])]
    if isinstance(seeds, (str, bytes)) or not hasattr(seeds, "__iter__") or isinstance(seeds, dict):
        raise ValueError(f"seeds= is {described(seeds)}; give a list with one entry per seed: seeds=[...]")
    return list(seeds)


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


def _node_weights(name: str, given: Any, graph: PreparedGraph) -> Floats | None:
    """Weights of nodes divided by their sum, as NetworkX takes them."""
    if given is None:
        return None
    nodes, shares = read_seed(name, given, graph.names)
    weights = np.zeros(len(graph))
    weights[nodes] = shares
    return weights


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
