"""Read square matrices and graphs (NetworkX, igraph and rustworkx, none imported) into compressed rows."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import is_table, table_shape
from lingendice.data.checks import (
    LARGEST_EXACT_COUNT,
    compressed_rows,
    described,
    numeric_array,
    outside_level,
)
from lingendice.data.labels import Labels, index_of
from lingendice.data.rows import row_sums


def read_matrix(matrix: Any, *, weight: str | None = "weight", copy: bool = True) -> dict[str, Any]:
    """Fields of the counts in a matrix or graph: compressed rows without explicit zeros or duplicates."""
    from scipy import sparse

    _refuse_logs(matrix)
    labels, tolerance = None, 0.0
    if library_of(matrix) is not None:
        matrix, labels = read_graph(matrix, weight)
    elif sparse.issparse(matrix):
        tolerance = row_sum_tolerance(matrix.dtype)
    elif is_pandas(matrix):
        matrix, labels = _with_names(matrix)
    if sparse.issparse(matrix):
        require_square(matrix.shape)
        compressed = compressed_rows("counts", matrix)
    else:
        dense = numeric_array("counts", matrix)
        require_square(dense.shape)
        compressed = sparse.csr_array(dense)
        tolerance, copy = row_sum_tolerance(dense.dtype), False
    return _finish(compressed, labels, copy, tolerance)


class RowSumWarning(UserWarning):
    """Rows of a matrix look like probabilities, and do not sum to 1; perhaps its columns do."""


EXACT = 1e-8
"""How far sums of probabilities may be from 1."""
EXACT_SINGLE = 1e-5
"""The same for entries that were stored in single precision."""
ROUNDED = 0.02
"""How far all sums are from 1 where probabilities were rounded."""
MISTAKEN = 0.2
"""How far the sums of some rows are from 1 where one of their entries is wrong."""


def row_sum_tolerance(dtype: np.dtype[Any]) -> float:
    """How far the sum of a row of probabilities of that type may be from 1."""
    return EXACT if dtype.itemsize >= 8 else EXACT_SINGLE


def are_probabilities(data: NDArray[Any], totals: NDArray[Any], tolerance: float) -> bool:
    """Whether rows of floating-point numbers each sum to one, or were meant to; the latter with a warning."""
    if data.dtype.kind != "f" or not data.size:
        return False
    off = np.abs(totals - 1.0)
    off[totals == 0.0] = 0.0
    row = int(off.argmax())
    if off[row] <= tolerance:
        return True
    sums = totals > 0.0
    right = np.count_nonzero(off[sums] <= tolerance) / np.count_nonzero(sums)
    if data.max() > 1.0 or off[row] > (MISTAKEN if right >= 0.5 else ROUNDED):
        return False
    warnings.warn(
        f"row {row} sums to {totals[row]:.6g}, not 1, in a matrix of what look like probabilities; each row "
        "is divided by its sum: fix the row, or scale the matrix where its entries are weights",
        RowSumWarning,
        stacklevel=outside_level(),
    )
    return True


def _finish(compressed: Any, labels: Labels | None, copy: bool, tolerance: float) -> dict[str, Any]:
    if not compressed.has_canonical_format:
        compressed = compressed.copy()
        compressed.sum_duplicates()
        copy = False
    require_entries(compressed.indptr, compressed.indices, compressed.data)
    if compressed.data.size and compressed.data.min() == 0:
        compressed = compressed.copy()
        compressed.eliminate_zeros()
        copy = False
    data, indices = compressed.data, compressed.indices
    data = data.astype(np.int64 if data.dtype.kind in "biu" else np.float64, copy=copy)
    small = compressed.shape[0] < 2**31 - 1
    indices = indices.astype(np.int32 if small else np.int64, copy=copy)
    indptr = compressed.indptr.astype(np.int64, copy=copy)
    # Edges are what a graph is, not a sample of it: no node lacks data, and nothing is noisy.
    totals = row_sums(indptr, data)
    sampled = tolerance > 0.0 and not are_probabilities(data, totals, tolerance)
    if sampled and data.dtype.kind == "f":
        _warn_of_columns(indices, data, totals, tolerance)
    return {
        "n_states": indptr.size - 1,
        "n_actions": None,
        "indptr": indptr,
        "indices": indices,
        "count": data,
        "state_labels": labels,
        "has_sample_size": sampled,
    }


def _warn_of_columns(
    indices: NDArray[Any], data: NDArray[Any], totals: NDArray[Any], tolerance: float
) -> None:
    """Warn of a matrix whose columns sum to 1: in many textbooks columns are sources."""
    if not totals.size or abs(totals.mean() - 1.0) > tolerance:
        return  # found without a look at the entries
    sums = np.bincount(indices, weights=data, minlength=totals.size)
    # Ones and zeros are edges to nodes that have one parent each.
    fractions = (data > tolerance) & (data < 1.0 - tolerance)
    if np.abs(sums - 1.0).max() <= tolerance and fractions.any():
        row = int(np.abs(totals - 1.0).argmax())
        warnings.warn(
            f"every column sums to 1, but row {row} sums to {totals[row]:.6g}; rows are sources here: pass "
            "matrix.T if columns are",
            RowSumWarning,
            stacklevel=outside_level(),
        )


def _refuse_logs(data: Any) -> None:
    """Say how a log is read to whom gives one where a matrix of counts is meant."""
    shape, log = "", isinstance(data, (str, os.PathLike)) or type(data) is dict or _has_fields(data)
    if is_table(data):
        # By names and shape alone: a long log is not looked through to say that it is one.
        names, n_rows = table_shape(data)
        unnamed_rows = not is_pandas(data) or set(names).isdisjoint(data.index[:1000].tolist())
        log = "state" in {str(name).casefold() for name in names} or (n_rows != len(names) and unnamed_rows)
        shape = f" of {n_rows:,} rows and {len(names):,} columns"
    if type(data) is dict and data and all(isinstance(row, Mapping) for row in data.values()):
        raise ValueError(
            "a dict of rows is not a matrix of counts; make a square table of it first, with pandas: "
            "DataFrame.from_dict(rows, orient='index'), reindex(index=names, columns=names), fillna(0)"
        )
    if log:
        raise ValueError(
            f"{described(data)}{shape} is not a matrix of counts; if it holds a log of transitions, "
            "count it first: lingendice.read_transitions(...)"
        )
    if not isinstance(data, (list, tuple)) and not hasattr(data, "shape") and library_of(data) is None:
        _refuse_objects(data)
    if (
        isinstance(data, (list, tuple))
        and data
        and all(isinstance(row, tuple) and isinstance(row[0], str) for row in data)
    ):
        raise ValueError(
            "pairs of names are not a matrix of counts; count them by Counts.from_transitions(state, "
            "next_state), or rank the nodes of a graph by pagerank(edges)"
        )


def _has_fields(data: Any) -> bool:
    """Whether this is an array of records, or a list of mappings: rows with named entries."""
    if isinstance(data, (list, tuple)):
        return len(data) > 0 and isinstance(data[0], Mapping)
    return np.ndim(data) == 1 and getattr(getattr(data, "dtype", None), "names", None) is not None


def _refuse_objects(data: Any) -> None:
    """Say what to pass to whom gives an object of another library, or None."""
    matrix: Any = getattr(data, "P", None)
    if np.ndim(matrix) == 2:
        raise ValueError(
            f"a {type(data).__name__} is not a matrix of counts; pass its transition matrix, the attribute P"
        )
    if np.ndim(data) == 0:
        raise ValueError(
            f"{described(data)} is not a matrix of counts; pass a square matrix, a graph, or "
            "Counts.from_transitions(state, next_state, ...) of a log"
        )


def is_pandas(frame: Any) -> bool:
    """Whether this is a frame whose rows have names, too; pandas is not imported for it."""
    return is_table(frame) and hasattr(frame, "iloc")


def _with_names(frame: Any) -> tuple[Any, Labels | None]:
    """A frame with its columns in the order of its rows, and the names of both.

    Rows that are only numbered, as those of a file are, stand for the columns in their order.
    """
    rows, columns = frame.index.tolist(), frame.columns.tolist()
    numbers = list(range(len(rows)))
    if rows == numbers and set(rows).isdisjoint(columns):
        return frame, None
    n_rows, n_columns = Counter(rows), Counter(columns)
    for name in (*rows, *columns):
        if not n_rows[name] == n_columns[name] == 1:
            raise ValueError(
                f"{name!r} names {n_rows[name]} of the rows and {n_columns[name]} of the columns, but every "
                "state needs one row and one column; frame.reindex(index=names, columns=names, fill_value=0) "
                "adds what is missing, and frame.to_numpy() ignores all names"
            )
    return frame[rows], None if rows == numbers else tuple(rows)


def require_square(shape: tuple[int, ...]) -> None:
    """Refuse anything but states by states."""
    if len(shape) != 2 or shape[0] != shape[1]:
        remedy = "for state-action data use Counts.from_transitions(state, next_state, action=...)"
        if len(shape) == 1:
            remedy = "for a sequence of states use Counts.from_paths(states)"
        elif len(shape) == 2 and shape[1] == 2:
            remedy = "for pairs of states use Counts.from_transitions(pairs[:, 0], pairs[:, 1])"
        raise ValueError(
            f"counts must be a square matrix (states by next states), got shape {shape}; {remedy}"
        )


def require_entries(indptr: Any, indices: Any, values: Any) -> None:
    """Check the entries of compressed rows, wherever they lie, naming row and column of the first bad one."""
    if not values.size:
        return
    largest, smallest = values.max(), values.min()
    too_large = np.inf if values.dtype.kind == "f" else LARGEST_EXACT_COUNT + 1
    if smallest >= 0 and largest < too_large:
        with np.errstate(over="ignore"):
            total = values.sum(dtype=np.float64)
        if not np.isfinite(total):
            raise ValueError("counts overflow when summed; scale them down")
        return
    bad = ~((values >= 0) & (values < too_large))
    entry = int(np.argmax(bad))
    row, column = int((indptr <= entry).sum()) - 1, int(indices[entry])
    if values.dtype.kind != "f" and values[entry] > 0:
        raise ValueError(f"counts[{row}, {column}] is {values[entry]}, beyond 2**53; scale the counts down")
    kind = "negative" if values[entry] < 0 and np.isfinite(values[entry]) else "not a finite number"
    remedy = "counts and probabilities are at least 0"
    if kind == "negative" and row == column:
        remedy += "; rates of continuous time, whose diagonal is negative, go to solve_rates(Q)"
    raise ValueError(f"counts[{row}, {column}] is {values[entry]!s}, which is {kind}; {remedy}")


# -- graphs, by their public methods -------------------------------------------------------------------------


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


def _edges(
    ends: list[tuple[int, int]], weights: list[Any], n_nodes: int, labels: Labels | None, directed: bool
) -> Edges:
    source, target = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    values = numeric_array("edge weight", weights) if weights else np.empty(0, dtype=np.int64)
    return Edges(source, target, values, n_nodes, labels, directed)


def _from_networkx(graph: Any, weight: str | None) -> Edges:
    labels: Labels = tuple(graph.nodes)
    position = index_of(labels)
    listed = list(graph.edges(data=False if weight is None else weight, default=1))
    ends = [(position[edge[0]], position[edge[1]]) for edge in listed]
    weights = [1 if weight is None else edge[2] for edge in listed]
    return _edges(ends, weights, len(labels), labels, graph.is_directed())


def _from_igraph(graph: Any, weight: str | None) -> Edges:
    ends = graph.get_edgelist()
    held = graph.es[weight] if weight is not None and weight in graph.es.attributes() else [1] * len(ends)
    names = graph.vs["name"] if "name" in graph.vs.attributes() else None
    labels = tuple(names) if names is not None and len(set(names)) == len(names) else None
    weights = [1 if value is None else value for value in held]
    edges = _edges(ends, weights, graph.vcount(), labels, graph.is_directed())
    if edges.directed:
        return edges
    # igraph counts a loop at both of its ends.
    return edges._replace(weight=np.where(edges.source == edges.target, 2 * edges.weight, edges.weight))


def _from_rustworkx(graph: Any, weight: str | None) -> Edges:
    """Nodes are named by their indices, which have holes where nodes were removed."""
    labels: Labels = tuple(graph.node_indices())
    position = index_of(labels)
    listed = graph.weighted_edge_list()
    ends = [(position[a], position[b]) for a, b, _ in listed]
    weights = [_payload_weight(payload, weight) for *_, payload in listed]
    directed = hasattr(graph, "in_degree")  # undirected graphs have one degree
    return _edges(ends, weights, len(labels), labels, directed)


def _payload_weight(payload: Any, weight: str | None) -> Any:
    if weight is None or payload is None:
        return 1
    return payload.get(weight, 1) if isinstance(payload, Mapping) else payload


_READERS = {"networkx": _from_networkx, "igraph": _from_igraph, "rustworkx": _from_rustworkx}
