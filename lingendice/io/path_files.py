"""Files of paths: a table with a row per state or per path, an array, or one path per line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lingendice.data.paths import find_columns
from lingendice.data.saving import arrow
from lingendice.io.array_files import load_array
from lingendice.io.csv_reader import text_rows
from lingendice.io.formats import IPC, PARQUET, TEXT, FileError, format_of, naming, require_file

WHOLE = ("count", "time")
"""Columns that hold numbers; states and paths are names where a text file has them."""


def read_path_file(
    file: Path, separator: str = ">", columns: Mapping[str, str] | None = None, numbers: tuple[str, ...] = ()
) -> Any:
    """Paths as :meth:`lingendice.Counts.from_paths` takes them: a frame, an array or a list of strings.

    ``.csv`` and ``.tsv`` (also compressed) with a header, ``.parquet``, ``.feather`` or ``.arrow`` hold
    tables, ``.npy`` an array of whole numbers, ``.txt`` one path per line. ``numbers`` are further columns of
    numbers.
    """
    require_file(file)
    kind = format_of(file)
    if kind in TEXT:
        return _table(file, columns or {}, numbers)
    if kind in PARQUET:
        with naming(file):
            return arrow("parquet").read_table(file)
    if kind in IPC:
        with naming(file):
            return arrow("feather").read_table(file)
    if kind == ".npy":
        return load_array(file)
    if kind == ".txt":
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
        return {"path": np.array([line for line in lines if line], dtype=object)}
    raise FileError(
        f"{file}: paths are read from .csv, .tsv, .parquet, .feather, .npy or .txt, not from {kind!r}"
    )


def _table(file: Path, columns: Mapping[str, str], numbers: tuple[str, ...]) -> dict[str, Any]:
    rows = [row for _, row in text_rows(file)]
    if len(rows) < 2:
        raise FileError(f"{file}: a table of paths has a header and at least one row")
    header = rows[0]
    table: dict[str, Any] = {
        name: np.array(column, dtype=object)
        for name, column in zip(header, zip(*rows[1:], strict=True), strict=True)
    }
    with naming(file):
        found = find_columns(table, columns)
    for name in {*numbers, *(found[role] for role in WHOLE if role in found)}:
        if name in table:
            table[name] = _numbers(file, name, table[name], is_time=name == found.get("time"))
    return table


def _numbers(file: Path, name: str, entries: Any, is_time: bool) -> Any:
    try:
        floats = entries.astype(float)
        return floats.astype(np.int64) if (floats == np.floor(floats)).all() else floats
    except ValueError:
        if is_time:
            try:
                return entries.astype("datetime64")
            except ValueError:
                raise FileError(f"{file}: {name} holds neither numbers nor dates") from None
        raise FileError(f"{file}: {name} holds entries that are no numbers; name another column") from None
