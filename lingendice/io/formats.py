"""File formats by suffix: the one table of them, and the error of a file that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARQUET = (".parquet", ".pq")
IPC = (".arrow", ".feather", ".ipc")
TEXT = (".csv", ".tsv")
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
"""What may follow the suffix of a text file."""
DUCKDB = (".duckdb", ".db", ".ddb")
MATRICES = (".npz", ".npy", ".mtx")
"""Matrices, graphs and arrays, read whole."""
STREAMED = (*PARQUET, *IPC, *TEXT)
"""Tables of transitions, read batch by batch."""
ARRAYS = (".npy", ".npz", *TEXT, ".json")
"""Policies and distributions."""
RESULTS = (".npz", ".json")
"""What results are written as."""


class FileError(ValueError):
    """A file that cannot be used; the message says which entry and what to do."""


def format_of(file: str | os.PathLike[str]) -> str:
    """The suffix that decides the format: the one before that of a compressed text file, else the last."""
    *before, last = ["", "", *Path(file).suffixes][-2:]
    inner = before[0].lower() if before else ""
    return inner if last.lower() in COMPRESSED and inner in TEXT else last.lower()


def require_file(path: Path) -> None:
    """Raise unless there is such a file."""
    if not path.is_file():
        raise FileError(f"{path}: no such file")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in the errors of what was read from it."""
    try:
        yield
    except FileError:
        raise
    except ValueError as error:
        raise FileError(f"{path}: {error}") from None


def in_one_line(error: Exception) -> str:
    """What another library said, as a part of a message."""
    return " ".join(str(error).split())[:300]
