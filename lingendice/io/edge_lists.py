"""Lists of edges, in memory or in files, as counts.

The nodes are those that the edges name. Entries of text are integers where all of them read as integers, else
names. A third entry of an edge is its weight; parallel edges add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import is_table, named_columns, table_columns
from lingendice.data.checks import numeric_array
from lingendice.data.counts import Counts
from lingendice.data.labels import encode
from lingendice.data.matrices import is_pandas
from lingendice.data.saving import arrow
from lingendice.io.csv_reader import text_rows
from lingendice.io.formats import IPC, PARQUET, format_of, naming, require_file

SOURCE_COLUMNS = ("source", "src", "from", "state", "u")
TARGET_COLUMNS = ("target", "dst", "destination", "to", "next_state", "v")


def edge_counts(edges: Any, weight: str | None = "weight", or_matrix: bool = False) -> Counts:
    """Count edges given as pairs or triples, an array of two or three columns, or a frame; O(edges).

    A frame has columns ``source`` and ``target`` (or the like), else the first two of two or three are taken;
    the column that ``weight`` names holds the weights, where there is one. With ``or_matrix`` a square
    frame of numbers without such columns, or one of pandas whose rows are named like its columns, is a
    matrix; edges then need these names, or two of them would be a matrix and three of them not.
    """
    if is_table(edges):
        columns = table_columns(edges)
        if or_matrix and _is_matrix(edges, columns):
            return Counts.from_matrix(edges)
        return _count(*_from_columns(columns, weight, need_names=or_matrix))
    if isinstance(edges, np.ndarray):
        if edges.ndim != 2:
            raise ValueError(f"edges in an array are rows of two or three entries, got shape {edges.shape}")
        return _count(*_split(edges.T, "the array"), weight)
    rows = list(edges)
    if any(isinstance(row, (str, bytes)) or not hasattr(row, "__len__") for row in rows):
        raise ValueError("edges are pairs, or triples with a weight; one is no sequence of entries")
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(
            f"edges have {min(lengths)} to {max(lengths)} entries; give pairs, or triples with a weight"
        )
    return _count(*_split(_transposed(rows), "the list"), weight)


def _is_matrix(frame: Any, columns: dict[Any, list[Any]]) -> bool:
    if len(columns) < 2 or any(len(column) != len(columns) for column in columns.values()):
        return False
    if is_pandas(frame) and set(frame.index) == set(columns):
        return True
    names = {str(name).casefold() for name in columns}
    if not names.isdisjoint((*SOURCE_COLUMNS, *TARGET_COLUMNS, "weight")):
        return False
    return all(isinstance(entry, (int, float)) for column in columns.values() for entry in column)


def read_edge_file(path: Path, weight: str | None = "weight", or_matrix: bool = False) -> Counts:
    """Edges of a Parquet, Arrow, CSV, TSV or other text file, also compressed as ``.gz``.

    CSV has commas and TSV tabs between entries, other text has blanks; a first line with the names of columns
    is recognized by them, and lines that begin with ``#`` or ``%`` are comments. ``or_matrix`` is for
    tables in binary files: see :func:`edge_counts`.
    """
    require_file(path)
    suffix = format_of(path)
    with naming(path):
        if suffix in PARQUET or suffix in IPC:
            module = "parquet" if suffix in PARQUET else "feather"
            return edge_counts(arrow(module).read_table(path), weight, or_matrix)
        return _text_counts([entries for _, entries in text_rows(path, comments="#%")], weight)


def _text_counts(rows: list[list[str]], weight: str | None) -> Counts:
    header = rows.pop(0) if rows and _names_columns(rows) else []
    columns = _transposed(rows, len(header) or 2)
    if header:
        found = _from_columns(named_columns(header, columns), weight)
    else:
        found = *_split(columns, "the file"), weight
    for end in found[:2]:
        if "" in end:
            raise ValueError(f"edge {end.index('') + 1} has an empty end; fill it in or leave the line out")
    return _count(*found)


def _names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header; one that is neither known nor an edge of the others is refused."""
    first = rows[0]
    if {name.casefold() for name in first} & {*SOURCE_COLUMNS, *TARGET_COLUMNS}:
        # Nodes may be called "u" and "v", too.
        return not any(end in first for row in rows[1:] for end in row[:2])
    numbers = all(_INTEGER.fullmatch(end) for row in rows[1:] for end in row[:2])
    if numbers and len(rows) > 1 and not any(map(_INTEGER.fullmatch, first[:2])):
        raise ValueError(
            f"the first line {list(first)} is no edge between numbers; call its columns source and target, "
            "or leave it out"
        )
    return False


def _transposed(rows: Sequence[Sequence[Any]], width: int = 2) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _split(columns: Sequence[Any], where: str) -> tuple[Any, Any, Any]:
    if len(columns) not in (2, 3):
        raise ValueError(f"{where} has {len(columns)} columns; edges have two ends, and perhaps a weight")
    return columns[0], columns[1], columns[2] if len(columns) == 3 else None


def _from_columns(
    columns: dict[Any, Any], weight: str | None, need_names: bool = False
) -> tuple[Any, Any, Any, str | None]:
    by_name = {str(name).casefold(): column for name, column in columns.items()}
    source, target = (
        next((by_name[n] for n in names if n in by_name), None) for names in (SOURCE_COLUMNS, TARGET_COLUMNS)
    )
    value = None if weight is None else columns.get(weight, by_name.get(weight.casefold()))
    if value is None and weight not in (None, "weight"):
        raise ValueError(f"found no column {weight!r} for the weight; there are {list(columns)}")
    if source is None and target is None and len(columns) <= 3 and not need_names:
        source, target = [*(column for column in columns.values() if column is not value), None, None][:2]
    if source is None or target is None:
        remedy = "; pass edges= for other names, or a square frame for a matrix" if need_names else ""
        raise ValueError(
            f"found the columns {list(columns)}; edges have the columns source and target{remedy}"
        )
    return source, target, value, weight


def _count(source: Any, target: Any, value: Any, weight: str | None) -> Counts:
    (first, second), nodes = encode(("source", "target"), _ends(source, target))
    if nodes is None:
        found, ids = np.unique(np.concatenate([first, second]), return_inverse=True)
        nodes, (first, second) = tuple(found.tolist()), np.split(ids, [first.size])
    held = None if value is None or weight is None else _numbers(value)
    counts = Counts.from_transitions(first, second, weight=held, n_states=len(nodes))
    return replace(counts, state_labels=nodes, has_sample_size=False)


_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""Without zeros in front: 007 and 7 are two nodes."""


def _ends(*ends: Any) -> list[Any]:
    """Both columns of ends: text of integers is numbers where all of both is."""
    if all(isinstance(end, np.ndarray) for end in ends):
        return [end.astype(np.int64) if _is_whole(end) else end for end in ends]
    listed = [list(end) for end in ends]
    if all(type(entry) is str and _INTEGER.fullmatch(entry) for end in listed for entry in end):
        return [np.array(end, dtype=np.int64) for end in listed]
    return listed


def _is_whole(end: NDArray[Any]) -> bool:
    return end.dtype.kind == "f" and bool(((end == np.floor(end)) & (np.abs(end) < 2.0**53)).all())


def _numbers(value: Iterable[Any]) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    listed = list(value)
    for place, entry in enumerate(listed):
        if isinstance(entry, str):
            try:
                listed[place] = float(entry)
            except ValueError:
                raise ValueError(
                    f"edge {place + 1} has the weight {entry!r}, which is not a number; pass weight=None to "
                    "take 1 for every edge"
                ) from None
    return numeric_array("weight", listed)
