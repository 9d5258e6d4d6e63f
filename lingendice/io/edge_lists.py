"""Lists of edges, in memory or in files, as counts: pairs, arrays of two or three columns, frames and text.

The nodes are those that the edges name. Entries of text are integers where all of them read as integers, else
names. A third entry of an edge is its weight; parallel edges add up.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from lingendice.data.arrow import arrow
from lingendice.data.by_label import is_table, table_columns
from lingendice.data.checks import numeric_array
from lingendice.data.counts import Counts
from lingendice.data.labels import encode
from lingendice.io.formats import IPC, PARQUET, FileError, format_of

SOURCES = ("source", "src", "from", "state", "u")
TARGETS = ("target", "dst", "destination", "to", "next_state", "v")


def edge_counts(edges: Any, weight: str | None = "weight") -> Counts:
    """Count edges given as pairs or triples, an array of two or three columns, or a frame; O(edges).

    A frame has columns ``source`` and ``target`` (or the like), else its first two are taken; the column that
    ``weight`` names holds the weights, where there is one.
    """
    if is_table(edges):
        return _count(*_from_columns(table_columns(edges), weight))
    if isinstance(edges, np.ndarray):
        return _count(*_split(edges.T, "the array"), weight)
    rows = list(edges)
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(
            f"edges have {min(lengths)} to {max(lengths)} entries; give pairs, or triples with a weight"
        )
    return _count(*_split(_transposed(rows), "the list"), weight)


def read_edge_file(path: Path, weight: str | None = "weight") -> Counts:
    """Edges of a Parquet, Arrow, CSV, TSV or other text file, also compressed as ``.gz``.

    CSV has commas and TSV tabs between entries, other text has blanks; a first line with the names of columns
    is recognized by them, and lines that begin with ``#`` or ``%`` are comments.
    """
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    suffix = format_of(path)
    if suffix in PARQUET or suffix in IPC:
        module = "parquet" if suffix in PARQUET else "feather"
        return edge_counts(arrow(module).read_table(path), weight)
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    delimiter = {".csv": ",", ".tsv": "\t"}.get(suffix)
    with opened(path, "rt", encoding="utf-8-sig") as stream:
        return _read_text(path, stream, delimiter, weight)


def _read_text(path: Path, stream: TextIO, delimiter: str | None, weight: str | None) -> Counts:
    rows: list[list[str]] = []
    for number, line in enumerate(stream, start=1):
        if line.isspace() or line[0] in "#%":
            continue
        entries = [entry.strip() for entry in line.split(delimiter)]
        if rows and len(entries) != len(rows[0]):
            raise FileError(
                f"{path}, line {number}: {len(entries)} entries, {len(rows[0])} in the lines before"
            )
        rows.append(entries)
    header: list[str] = []
    if rows and {name.casefold() for name in rows[0]} & {*SOURCES, *TARGETS}:
        header = rows.pop(0)
    columns = _transposed(rows, len(header) or 2)
    if header:
        return _count(*_from_columns(dict(zip(header, columns, strict=True)), weight))
    return _count(*_split(columns, str(path)), weight)


def _transposed(rows: Sequence[Sequence[Any]], width: int = 2) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _split(columns: Sequence[Any], where: str) -> tuple[Any, Any, Any]:
    if len(columns) not in (2, 3):
        raise ValueError(f"{where} has {len(columns)} columns; edges have two ends, and perhaps a weight")
    return columns[0], columns[1], columns[2] if len(columns) == 3 else None


def _from_columns(columns: dict[Any, Any], weight: str | None) -> tuple[Any, Any, Any, str | None]:
    by_name = {str(name).casefold(): column for name, column in columns.items()}
    source, target = (next((by_name[n] for n in names if n in by_name), None) for names in (SOURCES, TARGETS))
    if source is None or target is None:
        if len(columns) < 2:
            raise ValueError(f"found the columns {list(columns)}; edges have the columns source and target")
        source, target = list(columns.values())[:2]
    return source, target, None if weight is None else columns.get(weight), weight


def _count(source: Any, target: Any, value: Any, weight: str | None) -> Counts:
    (first, second), nodes = encode(("source", "target"), [_entries(end) for end in (source, target)])
    if nodes is None:
        found, ids = np.unique(np.concatenate([first, second]), return_inverse=True)
        nodes, (first, second) = tuple(found.tolist()), np.split(ids, [first.size])
    held = None if value is None or weight is None else _numbers(value)
    counts = Counts.from_transitions(first, second, weight=held, n_states=len(nodes))
    return replace(counts, state_labels=nodes, has_sample_size=False)


def _entries(end: Iterable[Any]) -> Any:
    """A column of ends: text of integers is numbers where all of it is."""
    if isinstance(end, np.ndarray):
        whole = end.dtype.kind == "f" and bool((end == np.floor(end)).all())
        return end.astype(np.int64) if whole else end
    listed = list(end)
    if not listed:
        return np.empty(0, dtype=np.int64)
    if all(type(entry) is str and entry.lstrip("-").isdigit() for entry in listed):
        return [int(entry) for entry in listed]
    return listed


def _numbers(value: Iterable[Any]) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    listed = list(value)
    if any(isinstance(entry, str) for entry in listed):
        try:
            return np.array([float(entry) for entry in listed])
        except ValueError as error:
            raise ValueError(f"weight: {error}; pass weight=None to take 1 for every edge") from None
    return numeric_array("weight", listed)
