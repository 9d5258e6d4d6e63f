"""The backend of NetworkX: ``nx.pagerank(G, backend="lingendice")``, from the entry points of the package.

NetworkX converts a graph once and keeps it with the graph until that changes; later calls read no edge again.
NetworkX is imported by what it calls alone, and never by ``import lingendice``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lingendice as lg
from lingendice.model.prepared_graph import PreparedGraph

USUAL_ITERATIONS = 100
"""NetworkX's default of ``max_iter``, which bounds steps of the power method."""


def backend_info() -> dict[str, Any]:
    """What NetworkX shows of this backend, and which functions it may send here."""
    return {
        "backend_name": "lingendice",
        "project": "lingendice",
        "package": "lingendice",
        "short_summary": "PageRank with a proven error, in compiled code.",
        "functions": {
            "pagerank": {
                "additional_docs": "tol bounds the L1 error of the answer; max_iter=100, the default, is no "
                "limit, since sweeps are not steps of the power method; nstart is not used.",
            }
        },
    }


def can_run(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | str:
    """Whether a call can be answered; a text says why not."""
    if name != "pagerank":
        return "lingendice serves pagerank alone"
    alpha = kwargs.get("alpha", args[1] if len(args) > 1 else 0.85)
    if not isinstance(alpha, (int, float)) or not 0.0 <= alpha <= 1.0:
        return "alpha must lie in [0, 1]"
    return True


def should_run(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | str:
    """Whether it pays: it does for every graph."""
    return True


def convert_from_nx(
    graph: Any,
    edge_attrs: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, Any] | None = None,
    preserve_edge_attrs: bool = False,
    **options: Any,
) -> PreparedGraph:
    """Read a graph of NetworkX with the weights that the call names; negative ones are left to NetworkX."""
    if preserve_edge_attrs or (edge_attrs is not None and len(edge_attrs) > 1):
        raise NotImplementedError("lingendice reads one attribute of edges, by its name")
    weight = next(iter(edge_attrs), None) if edge_attrs else None
    try:
        return lg.prepare(graph, weight)
    except ValueError as error:
        raise NotImplementedError(f"lingendice does not read this graph: {error}") from error


def convert_to_nx(found: Any, **options: Any) -> Any:
    """What was found, as it is; a prepared graph has lost attributes and parallel edges."""
    if isinstance(found, PreparedGraph):
        raise NotImplementedError("a prepared graph has no attributes; pass the graph it was made of")
    return found


def pagerank(
    G: PreparedGraph,
    alpha: float = 0.85,
    personalization: Mapping[Any, float] | None = None,
    max_iter: int = USUAL_ITERATIONS,
    tol: float = 1e-6,
    nstart: Any = None,
    weight: str | None = "weight",
    dangling: Mapping[Any, float] | None = None,
) -> dict[Any, float]:
    """``networkx.pagerank``, with its exceptions, and an L1 error of at most ``tol``."""
    import networkx as nx

    if not len(G):
        return {}
    if max_iter < 1:
        raise nx.PowerIterationFailedConvergence(max_iter)
    home, after = _known(G, personalization), _known(G, dangling)
    limit = None if max_iter == USUAL_ITERATIONS else max_iter
    try:
        ranks = lg.pagerank(G, alpha, home, limit, tol, dangling=after)
    except RuntimeError as error:
        raise nx.PowerIterationFailedConvergence(max_iter) from error
    return ranks if isinstance(ranks, dict) else dict(zip(G.nodes, ranks.tolist(), strict=True))


def _known(graph: PreparedGraph, weights: Mapping[Any, float] | None) -> dict[Any, float] | None:
    """The weights of nodes of the graph; NetworkX leaves others out, and divides by a sum of 0."""
    if weights is None:
        return None
    known = {node: weight for node, weight in weights.items() if node in graph.names.place}
    if sum(known.values()) == 0:
        raise ZeroDivisionError("the weights of the graph's nodes sum to 0")
    return known
