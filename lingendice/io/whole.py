"""A Parquet or Arrow file of moderate size as whole arrays, where counts alone would not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lingendice.arrow import arrow
from lingendice.io.files import ColumnNames, TransitionTable
from lingendice.io.sources import PARQUET

MOST_ROWS = 20_000_000
"""Rows that are held at once; longer logs are streamed, without their episodes."""


def read_whole(path: Path, names: ColumnNames) -> TransitionTable | None:
    """The columns of a log with episodes; None where it has to be streamed.

    That is so where the log is long, has no episodes or no column of next states, or cannot be used as it
    is: the streaming reader then names the row group and column at fault.
    """
    try:
        table = _read(path, names)
    except (arrow().ArrowException, OSError):
        return None
    if table is None or any(column.null_count for column in table.columns):
        return None
    roles = {name: role for role, name in names.by_role().items()}
    arrays = {roles[name]: _array(table[name]) for name in table.column_names}
    for role in ("terminal", "truncated"):
        if role in arrays:
            arrays[role] = arrays[role].astype(np.bool_)
    return TransitionTable(**arrays)


def _read(path: Path, names: ColumnNames) -> Any:
    """The columns that have a role; None where they do not make a log with episodes, or are too long."""
    if path.suffix.lower() in PARQUET:
        file = arrow("parquet").ParquetFile(path)
        there, n_rows, read = file.schema_arrow.names, file.metadata.num_rows, file.read
    else:
        table = arrow("feather").read_table(path, memory_map=True)
        there, n_rows, read = table.column_names, table.num_rows, table.select
    present = {role: name for role, name in names.by_role().items() if name in there}
    ends = not present.keys().isdisjoint(("episode", "terminal", "truncated"))
    wanted = {"state", "next_state"} | names.required
    return read(list(present.values())) if ends and wanted <= present.keys() and n_rows <= MOST_ROWS else None


def _array(column: Any) -> Any:
    array = column.to_numpy()
    return array.astype(str) if array.dtype == object else array
