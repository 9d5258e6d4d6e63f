"""Graphs of NetworkX, igraph and rustworkx as sparse matrices, by their public methods; none is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import numeric_array
from lingendice.data.labels import Labels, index_of


class Edges(NamedTuple):
    """Edges between numbered nodes; an undirected edge is there once."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    weight: NDArray[Any]
    n_nodes: int
    labels: Labels | None
    directed: bool


def library_of(data: Any) -> str | None:
    """``"networkx"``, ``"igraph"`` or ``"rustworkx"`` for a graph; None for anything else."""
    module = type(data).__module__.partition(".")[0]
    if module == "rustworkx":
        return module if hasattr(data, "weighted_edge_list") else None
    if hasattr(data, "get_edgelist") and hasattr(data, "vcount"):
        return "igraph"
    by_methods = all(hasattr(data, name) for name in ("is_directed", "nodes", "edges", "is_multigraph"))
    return "networkx" if module == "networkx" or by_methods else None


def read_graph(graph: Any, weight: str | None) -> tuple[Any, Labels | None]:
    """Adjacency matrix, parallel edges not yet summed, and the labels of the nodes.

    An undirected edge counts in both directions, a loop once (in igraph twice). ``weight`` names the
    attribute of edges that holds the weight: 1 where it is missing, and everywhere where it is None.
    """
    from scipy.sparse import coo_array

    edges = _READERS[library_of(graph) or "networkx"](graph, weight)
    row, column, data = edges.source, edges.target, edges.weight
    if not edges.directed:
        apart = row != column
        row, column = np.concatenate([row, column[apart]]), np.concatenate([column, row[apart]])
        data = np.concatenate([data, data[apart]])
    return coo_array((data, (row, column)), shape=(edges.n_nodes, edges.n_nodes)), edges.labels


def _weights(values: list[Any]) -> NDArray[Any]:
    return numeric_array("edge weight", values) if values else np.empty(0, dtype=np.int64)


def _from_networkx(graph: Any, weight: str | None) -> Edges:
    labels: Labels = tuple(graph.nodes)
    position = index_of(labels)
    edges: Iterable[Any] = (
        graph.edges(data=weight, default=1) if weight is not None else graph.edges(data=False)
    )
    source, target, value = [], [], []
    for edge in edges:
        source.append(position[edge[0]])
        target.append(position[edge[1]])
        value.append(edge[2] if weight is not None else 1)
    row, column = (np.array(nodes, dtype=np.int64) for nodes in (source, target))
    return Edges(row, column, _weights(value), len(labels), labels, graph.is_directed())


def _from_igraph(graph: Any, weight: str | None) -> Edges:
    ends = np.array(graph.get_edgelist(), dtype=np.int64).reshape(-1, 2)
    held = graph.es[weight] if weight is not None and weight in graph.es.attributes() else [1] * len(ends)
    names = graph.vs["name"] if "name" in graph.vs.attributes() else None
    labels = tuple(names) if names is not None and len(set(names)) == len(names) else None
    values = _weights([1 if value is None else value for value in held])
    if not graph.is_directed():  # igraph counts a loop at both of its ends
        values = np.where(ends[:, 0] == ends[:, 1], 2 * values, values)
    return Edges(ends[:, 0], ends[:, 1], values, graph.vcount(), labels, graph.is_directed())


def _from_rustworkx(graph: Any, weight: str | None) -> Edges:
    """Nodes are named by their indices, which have holes where nodes were removed."""
    labels: Labels = tuple(graph.node_indices())
    position = index_of(labels)
    listed = [
        (position[a], position[b], _payload_weight(payload, weight))
        for a, b, payload in graph.weighted_edge_list()
    ]
    ends = np.array([edge[:2] for edge in listed], dtype=np.int64).reshape(-1, 2)
    directed = hasattr(graph, "in_degree")  # undirected graphs have one degree
    values = _weights([edge[2] for edge in listed])
    return Edges(ends[:, 0], ends[:, 1], values, len(labels), labels, directed)


def _payload_weight(payload: Any, weight: str | None) -> Any:
    if weight is None or payload is None:
        return 1
    return payload.get(weight, 1) if isinstance(payload, Mapping) else payload


_READERS = {"networkx": _from_networkx, "igraph": _from_igraph, "rustworkx": _from_rustworkx}
