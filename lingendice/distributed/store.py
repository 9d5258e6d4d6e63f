"""Row blocks as Parquet files, one each, under any path that fsspec knows."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from lingendice.data.arrow import arrow
from lingendice.data.atomic import StoredFileError
from lingendice.distributed.blocks import STATISTICS, RowBlock

_KEY = b"lingendice"
_VECTORS = "vectors.npz"


def _opened(folder: str, name: str, mode: str) -> Any:
    import fsspec  # type: ignore[import-untyped]

    system, path = fsspec.core.url_to_fs(folder)
    if "w" in mode:
        system.makedirs(path, exist_ok=True)
    try:
        return system.open(f"{path.rstrip('/')}/{name}", mode)
    except FileNotFoundError:
        raise StoredFileError(f"{folder}: no counts saved there ({name} is missing)") from None


def _file_name(number: int) -> str:
    return f"block-{number:05d}.parquet"


def write_block(folder: str, number: int, block: RowBlock) -> int:
    """Write one block; runs on the worker that has it."""
    columns = {
        "row": np.repeat(np.arange(block.n_cells), np.diff(block.indptr)),
        "next_state": block.indices,
        "count": block.count,
    }
    columns |= {name: getattr(block, name) for name in STATISTICS if getattr(block, name) is not None}
    record = {
        "n_states": block.n_states,
        "n_actions": block.n_actions,
        "first": block.first,
        "last": block.last,
    }
    table = arrow().table(columns).replace_schema_metadata({_KEY: json.dumps(record)})
    with _opened(folder, _file_name(number), "wb") as stream:
        arrow("parquet").write_table(table, stream)
    return number


def read_block(folder: str, number: int) -> RowBlock:
    """Read one block; runs on the worker that needs it."""
    with _opened(folder, _file_name(number), "rb") as stream:
        table = arrow("parquet").read_table(stream)
    record = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    if "first" not in record:
        raise StoredFileError(f"{folder}/{_file_name(number)}: not a block of counts; save them again")
    n_cells = (record["last"] - record["first"]) * (record["n_actions"] or 1)
    held = {name: table.column(name).to_numpy() for name in table.column_names}
    lengths = np.bincount(held.pop("row"), minlength=n_cells)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return RowBlock(**record, indptr=indptr, indices=held.pop("next_state"), **held)


def write_vectors(folder: str, vectors: dict[str, Any], record: str) -> None:
    """Write what the client keeps; comes last, so that a folder without it was not finished."""
    held = {name: array for name, array in vectors.items() if array is not None}
    stream = io.BytesIO()
    np.savez(stream, record=np.frombuffer(record.encode(), np.uint8), **held)
    with _opened(folder, _VECTORS, "wb") as file:
        file.write(stream.getbuffer())


def read_vectors(folder: str) -> tuple[dict[str, Any], str]:
    """What the client keeps, and the record beside it."""
    with _opened(folder, _VECTORS, "rb") as stream:
        held = dict(np.load(io.BytesIO(stream.read()), allow_pickle=False))
    record = held.pop("record").tobytes().decode()
    wanted = ("cell_count", "terminal_count", "reward", "initial_count")
    return {name: held.get(name) for name in wanted}, record
