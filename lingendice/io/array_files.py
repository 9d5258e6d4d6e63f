"""Read matrices, arrays of transitions, policies and distributions from files, with the core install alone.

================  =====================================================================
``.npz``          a matrix saved by ``scipy.sparse.save_npz``, a graph as ``indptr`` and
                  ``indices``, or arrays named like the columns of a table of transitions
``.npy``          a dense square matrix
``.mtx``          a Matrix Market file
================  =====================================================================

Every error is a :class:`FileError` whose message names the file, the line or array, and
what to do.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import COLUMNS, named_columns
from lingendice.data.checks import compressed_rows
from lingendice.data.saving import numpy_reason, replacing, write_text
from lingendice.io.csv_reader import Rows, text_rows
from lingendice.io.formats import ARRAYS, RESULTS, TEXT, FileError, format_of, require_file


def read_matrix_file(path: Path) -> Any:
    """A matrix (dense or SciPy sparse), or the arrays of an ``.npz`` file of transitions by name."""
    require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _square(path, load_array(path))
    return _read_mtx(path) if suffix == ".mtx" else _read_npz(path)


def read_array(path: str | Path) -> Any:
    """Read a policy or a distribution: an array in ``.npy`` or ``.npz``, or text without a header.

    By label: ``.csv`` or ``.tsv`` with a header that names ``state``, ``action`` and ``probability``, or
    ``.json``; see :mod:`lingendice.data.by_label`.
    """
    path = Path(path)
    require_file(path)
    suffix = format_of(path)
    if suffix == ".json":
        return _read_json(path)
    if suffix in TEXT:
        return _read_text(path)
    if suffix == ".npy":
        return _numbers(path, load_array(path))
    if suffix == ".npz":
        arrays = _load_npz(path)
        if len(arrays) != 1:
            listed = ", ".join(map(repr, arrays)) or "nothing"
            raise FileError(f"{path}: expected one array, found {listed}; save the one array as .npy")
        return _numbers(path, next(iter(arrays.values())))
    raise FileError(f"{path}: unknown suffix; use one of {', '.join(ARRAYS)}")


def _read_json(path: Path) -> dict[str, Any]:
    """A policy or a distribution by label, as JSON writes mappings."""
    with _readable(path, "not readable as JSON"):
        held = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_named_once)
    if not isinstance(held, dict):
        raise FileError(f"{path}: expected an object that maps states to actions, or to probabilities")
    return held


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; of two entries with one name, JSON itself would keep the last."""
    held: dict[str, Any] = {}
    for name, entry in pairs:
        if name in held:
            raise ValueError(f"{name!r} appears twice; give it once")
        held[name] = entry
    return held


def _read_text(path: Path) -> NDArray[Any] | dict[str, list[Any]]:
    """The columns of a table whose header has a column of states, else an array of numbers."""
    rows = text_rows(path)
    _, header = next(rows, (0, []))
    names = {name.casefold() for name in header}
    usual = next((alias for alias in COLUMNS["state"] if alias in names), None)
    if usual is not None:
        # A mapping of columns is known by this name; a column of states may have others, as states may.
        return _read_columns(path, ["state" if name.casefold() == usual else name for name in header], rows)
    numbers: list[list[float]] = []
    whole = True
    for line, row in text_rows(path, comments="#"):
        whole = whole and all(map(_WHOLE.fullmatch, row))
        try:
            numbers.append([float(entry) for entry in row])
        except ValueError as error:
            raise FileError(f"{path}, line {line}: {error}; {_WANTED}") from None
    if not numbers:
        raise FileError(f"{path}: empty file; {_WANTED}")
    return np.atleast_1d(np.squeeze(np.array(numbers, np.int64 if whole else np.float64)))


_WHOLE = re.compile(r"[0-9]{1,15}")
_WANTED = "expected rows of numbers, or a header that names state, action and probability"


def _read_columns(path: Path, header: list[str], rows: Rows) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = named_columns(header, [[] for _ in header], f"{path}: ")
    text = {*COLUMNS["state"], *COLUMNS["action"], ""}
    kinds = [(name, columns[name].append, str if name.casefold() in text else float) for name in header]
    for line, row in rows:
        for (name, append, kind), entry in zip(kinds, row, strict=True):
            try:
                append(kind(entry))
            except ValueError as error:
                raise FileError(f"{path}, line {line}, column {name!r}: {error}; give numbers") from None
    return columns


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
    if path.suffix.lower() not in RESULTS:
        raise FileError(
            f"{path}: results are written as {' or '.join(RESULTS)}; choose one of these suffixes"
        )
    require_folder(path)


def require_folder(path: Path) -> None:
    """Raise unless there is a folder to write a file into."""
    if not path.parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.parent}; make it first")


@contextmanager
def _readable(path: Path, what: str) -> Iterator[None]:
    """Report whatever a parser raises.

    A damaged header may ask for petabytes, a password or another compression.
    """
    try:
        yield
    except (FileError, ImportError):
        raise
    except Exception as error:
        raise FileError(f"{path}: {what} ({numpy_reason(error) or type(error).__name__})") from None


def load_array(path: Path) -> NDArray[Any]:
    """The array of a NumPy file."""
    with _readable(path, "not a readable NumPy file"):
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return array


def _load_npz(path: Path) -> dict[str, NDArray[Any]]:
    # NumPy would leave a file open that it opened itself and cannot read.
    with _readable(path, "not a readable npz file of plain arrays"), path.open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        return {name: archive[name] for name in archive.files}


def _numbers(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as they are, since a policy may be one action per state."""
    if array.dtype.kind in "iu":
        return array
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError):
        raise FileError(f"{path}: expected numbers, found an array of {array.dtype}") from None


def _square(path: Path, matrix: Any) -> Any:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise FileError(f"{path}: expected a square matrix (rows are sources), found shape {matrix.shape}")
    return matrix


def _read_mtx(path: Path) -> Any:
    from scipy.io import mminfo, mmread

    with _readable(path, "not a readable Matrix Market file"), path.open("rb") as stream:
        # A byte order mark is no part of the text; readers of the format do not know it.
        begin = len(BOM_UTF8) if stream.read(len(BOM_UTF8)) == BOM_UTF8 else 0
        stream.seek(begin)
        # SciPy's reader aborts the process where memory does not suffice. An entry takes two bytes at least.
        entries, size = mminfo(stream)[2], path.stat().st_size
        if entries > size:
            raise ValueError(f"its header asks for {entries:,} entries, and there are {size:,} bytes")
        stream.seek(begin)
        matrix = mmread(stream)
        return _square(path, matrix if isinstance(matrix, np.ndarray) else matrix.tocsr())


def _read_npz(path: Path) -> Any:
    arrays = _load_npz(path)
    if "format" in arrays and "shape" in arrays:
        from scipy.sparse import load_npz

        with _readable(path, "not a readable sparse matrix"):
            matrix = load_npz(path)
        _square(path, matrix)
        with _readable(path, "not a usable sparse matrix"):
            return compressed_rows("its data", matrix)
    if {"indptr", "indices"} <= arrays.keys() and "sha256" not in arrays:
        return _adjacency(path, arrays)
    return arrays


def _adjacency(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Any:
    from scipy.sparse import csr_matrix

    indptr, indices = arrays["indptr"], arrays["indices"]
    weight = arrays.get("data", np.ones(indices.size))
    with _readable(path, "'indptr' and 'indices' are no CSR graph"):
        matrix = csr_matrix((weight, indices, indptr), shape=(indptr.size - 1, indptr.size - 1))
        matrix.check_format()
        return matrix
