"""Read transitions, matrices, policies and laws from files, with the core install alone.

================  =====================================================================
``.csv``          a table of transitions with a header; labels are integers or strings
``.npz``          a matrix saved by ``scipy.sparse.save_npz``, a graph as ``indptr`` and
                  ``indices``, or arrays named like the columns of the table
``.npy``          a dense square matrix
``.mtx``          a Matrix Market file
================  =====================================================================

Every error is a :class:`FileError` whose message names the file, the line or array, and
what to do.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.atomic import replacing, write_text


class FileError(ValueError):
    """A file that cannot be used; the message says which entry and what to do."""


@dataclass(frozen=True)
class ColumnNames:
    """Names of columns in a table, or of arrays in an npz file.

    ``state`` and ``next_state`` must be there. The others are used where present; one that the
    caller asked for (its role is in ``required``) must be present too. ``weight`` is used only
    when asked for, as many tables have a column of that name that counts nothing.
    """

    state: str = "state"
    next_state: str = "next_state"
    action: str = "action"
    reward: str = "reward"
    episode: str = "episode"
    terminal: str = "terminal"
    truncated: str = "truncated"
    weight: str | None = None
    required: frozenset[str] = frozenset()

    def by_role(self) -> dict[str, str]:
        """Column name for each role that has one."""
        names = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "required"}
        return {role: name for role, name in names.items() if name is not None}


@dataclass(frozen=True)
class TransitionTable:
    """Transitions as arrays of one length, with the names of ``Counts.from_transitions``.

    States and actions are integer ids from 0, or strings where the file uses labels.
    """

    state: NDArray[Any]
    next_state: NDArray[Any]
    action: NDArray[Any] | None = None
    reward: NDArray[np.float64] | None = None
    episode: NDArray[Any] | None = None
    terminal: NDArray[np.bool_] | None = None
    truncated: NDArray[np.bool_] | None = None
    weight: NDArray[np.float64] | None = None

    def as_dict(self) -> dict[str, NDArray[Any]]:
        """The arrays that are present, by role."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {role: array for role, array in arrays.items() if array is not None}


def read_data(path: str | Path, names: ColumnNames | None = None) -> TransitionTable | Any:
    """Read transitions (a :class:`TransitionTable`) or a matrix (dense or SciPy sparse) by suffix."""
    path, names = Path(path), names or ColumnNames()
    readers: dict[str, Callable[[], Any]] = {
        ".csv": lambda: _read_csv(path, names),
        ".npz": lambda: _read_npz(path, names),
        ".npy": lambda: _square(path, _load_array(path)),
        ".mtx": lambda: _read_mtx(path),
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"{path}: cannot tell the format by its suffix; use one of {', '.join(readers)}")
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    return reader()


def read_array(path: str | Path) -> NDArray[np.float64]:
    """Read a policy or a law: one array in ``.npy`` or ``.npz``, or numbers in ``.csv`` without a header."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        try:
            return np.loadtxt(path, delimiter=",", dtype=np.float64, ndmin=1)
        except ValueError as error:
            raise FileError(f"{path}: expected rows of numbers without a header ({error})") from None
    if suffix == ".npy":
        return _as_float(path, _load_array(path))
    if suffix == ".npz":
        arrays = _load_npz(path)
        if len(arrays) != 1:
            raise FileError(
                f"{path}: expected one array, found {_listed(arrays)}; save the one array as .npy"
            )
        return _as_float(path, next(iter(arrays.values())))
    raise FileError(f"{path}: cannot tell the format by its suffix; use one of .npy, .npz, .csv")


def write_result(path: str | Path, arrays: Mapping[str, NDArray[Any]], summary: Mapping[str, Any]) -> None:
    """Write a result by suffix: the arrays as ``.npz``, or the summary as strict ``.json``."""
    path = Path(path)
    check_result_path(path)
    if path.suffix.lower() == ".json":
        write_text(path, json.dumps(summary, allow_nan=False, indent=2) + "\n")
        return
    with replacing(path) as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def check_result_path(path: str | Path) -> None:
    """Raise unless a result can be written there, so that a typing error costs no solve."""
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".json"):
        raise FileError(f"{path}: results are written as .npz or .json; choose one of these suffixes")
    if not path.parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.parent}; make it first")


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _load_array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FileError(f"{path}: not a readable NumPy file ({error})") from None
    return array


def _load_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise FileError(f"{path}: not a readable npz file of plain arrays ({error})") from None


def _as_float(path: Path, array: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError):
        raise FileError(f"{path}: expected numbers, found an array of {array.dtype}") from None


def _square(path: Path, matrix: Any) -> Any:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise FileError(f"{path}: expected a square matrix (rows are sources), found shape {matrix.shape}")
    return matrix


def _read_mtx(path: Path) -> Any:
    from scipy.io import mmread

    try:
        matrix = mmread(path)
    except (ValueError, OSError, TypeError) as error:
        raise FileError(f"{path}: not a readable Matrix Market file ({error})") from None
    return _square(path, matrix if isinstance(matrix, np.ndarray) else matrix.tocsr())


def _read_npz(path: Path, names: ColumnNames) -> TransitionTable | Any:
    arrays = _load_npz(path)
    if "format" in arrays and "shape" in arrays:
        from scipy.sparse import load_npz

        return _square(path, load_npz(path).tocsr())
    if names.state not in arrays and {"indptr", "indices"} <= arrays.keys():
        return _adjacency(path, arrays)
    lengths = {name: array.shape for name, array in arrays.items() if name in names.by_role().values()}
    wrong = [f"{name!r} has shape {shape}" for name, shape in lengths.items() if len(shape) != 1]
    if wrong:
        raise FileError(f"{path}: {wrong[0]}; transitions are one-dimensional arrays, one entry a step")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} {shape[0]}" for name, shape in lengths.items())
        raise FileError(f"{path}: arrays differ in length ({told}); give every array one entry a step")
    return _table(path, arrays, names, lambda index: f"entry {index}")


def _adjacency(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Any:
    from scipy.sparse import csr_matrix

    indptr, indices = arrays["indptr"], arrays["indices"]
    weight = arrays.get("data", np.ones(indices.size))
    try:
        matrix = csr_matrix((weight, indices, indptr), shape=(indptr.size - 1, indptr.size - 1))
        matrix.check_format()
    except ValueError as error:
        raise FileError(f"{path}: 'indptr' and 'indices' are no CSR graph ({error})") from None
    return matrix


def _read_csv(path: Path, names: ColumnNames) -> TransitionTable:
    wanted = names.by_role()
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.reader(stream)
            header = [name.strip() for name in next(rows, [])]
            if not header:
                raise FileError(f"{path}: empty file; the first line must name the columns")
            repeated = [name for name in wanted.values() if header.count(name) > 1]
            if repeated:
                raise FileError(f"{path}: column {repeated[0]!r} appears twice in the header; rename one")
            positions = {name: header.index(name) for name in wanted.values() if name in header}
            columns: dict[str, list[str]] = {name: [] for name in positions}
            lines: list[int] = []
            _split_rows(path, rows, len(header), positions, columns, lines)
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except csv.Error as error:
        raise FileError(f"{path}: not a readable csv file ({error})") from None
    # Columns that nobody asked for stay empty; their names help the error that lists what is there.
    arrays = {name: np.asarray(columns.get(name, ()), dtype=np.str_) for name in header}
    return _table(path, arrays, names, lambda index: f"line {lines[index]}")


def _split_rows(
    path: Path,
    rows: Any,
    width: int,
    positions: Mapping[str, int],
    columns: Mapping[str, list[str]],
    lines: list[int],
) -> None:
    appends = [(position, columns[name].append) for name, position in positions.items()]
    for row in rows:
        if len(row) != width:
            if not row:
                continue
            raise FileError(f"{path}: line {rows.line_num} has {len(row)} fields, the header has {width}")
        for position, append in appends:
            append(row[position])
        lines.append(rows.line_num)


def _table(
    path: Path, arrays: Mapping[str, NDArray[Any]], names: ColumnNames, where: Callable[[int], str]
) -> TransitionTable:
    """Check that the columns are there and hold what their role asks for."""
    by_role = names.by_role()
    for role, name in by_role.items():
        if name not in arrays and role in {"state", "next_state"} | names.required:
            raise FileError(
                f"{path}: no column {name!r} for the {role.replace('_', ' ')}; found {_listed(arrays)}; "
                f"name the right one with --{role.replace('_', '-')}"
            )
    if arrays[names.state].size == 0:
        raise FileError(f"{path}: no transitions; give at least one row below the header")

    def column(role: str, convert: Callable[..., Any]) -> Any:
        name = by_role.get(role)
        return None if name is None or name not in arrays else convert(path, name, arrays[name], where)

    state, next_state = _ids_or_labels([column("state", _filled), column("next_state", _filled)])
    action = column("action", _filled)
    return TransitionTable(
        state=state,
        next_state=next_state,
        action=None if action is None else _ids_or_labels([action])[0],
        reward=column("reward", _numbers),
        episode=column("episode", _filled),
        terminal=column("terminal", _flags),
        truncated=column("truncated", _flags),
        weight=column("weight", _numbers),
    )


def _filled(path: Path, name: str, column: NDArray[Any], where: Callable[[int], str]) -> NDArray[Any]:
    if column.dtype.kind == "U":
        column = np.char.strip(column)
        empty = np.flatnonzero(column == "")
    elif column.dtype.kind == "f":
        empty = np.flatnonzero(~np.isfinite(column))
    else:
        return column
    if empty.size:
        raise FileError(f"{path}: {where(int(empty[0]))} has no {name}; fill it in or leave the row out")
    return column


def _numbers(path: Path, name: str, column: NDArray[Any], where: Callable[[int], str]) -> NDArray[np.float64]:
    try:
        numbers = column.astype(np.float64)
    except (ValueError, TypeError):
        index = next(index for index, entry in enumerate(column.tolist()) if not _is_number(entry))
        raise FileError(f"{path}: {where(index)}: {name} {column[index]!s} is not a number") from None
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        index = int(wrong[0])
        raise FileError(
            f"{path}: {where(index)}: {name} {column[index]!s} is not finite; correct or leave out"
        )
    return numbers


def _is_number(entry: Any) -> bool:
    try:
        float(entry)
    except (ValueError, TypeError):
        return False
    return True


def _flags(path: Path, name: str, column: NDArray[Any], where: Callable[[int], str]) -> NDArray[np.bool_]:
    text = np.char.lower(np.char.strip(column.astype(np.str_)))
    yes = np.isin(text, ("1", "1.0", "true"))
    wrong = np.flatnonzero(~yes & ~np.isin(text, ("0", "0.0", "false")))
    if wrong.size:
        index = int(wrong[0])
        raise FileError(f"{path}: {where(index)}: {name} {column[index]!s} is neither 0/1 nor true/false")
    return yes


def _ids_or_labels(columns: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Whole numbers that can count from 0 become integers; anything else becomes strings."""
    integers = [whole for whole in map(_whole_numbers, columns) if whole is not None]
    if len(integers) == len(columns):
        smallest = min(int(column.min()) for column in integers)
        largest = max(int(column.max()) for column in integers)
        # Far larger numbers than entries are names (account numbers, say), not positions.
        if smallest >= 0 and largest < 10 * sum(column.size for column in integers) + 1000:
            return integers
        columns = integers
    return [column.astype(np.str_) for column in columns]


def _whole_numbers(column: NDArray[Any]) -> NDArray[np.int64] | None:
    """The column as integers, or None where some entry is not one; "3.0" counts as 3."""
    if column.dtype.kind in "iub":
        return column.astype(np.int64)
    try:
        if column.dtype.kind == "U":
            with suppress(ValueError):
                return column.astype(np.int64)
        numbers = column.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    if (
        not np.isfinite(numbers).all()
        or (numbers != np.floor(numbers)).any()
        or np.abs(numbers).max() > 2**53
    ):
        return None
    return numbers.astype(np.int64)
