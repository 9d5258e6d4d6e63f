"""Row blocks: the counts of consecutive source states, whole rows, as one worker keeps and stores them."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import CellSums, Counts
from lingendice.data.merging import merge
from lingendice.data.rows import row_of_entry
from lingendice.data.saving import StoredFileError, arrow

STATISTICS = ("reward_count", "reward_mean", "reward_m2")
"""Columns beside the count that a log with rewards has."""
VECTORS = ("cell_count", "terminal_count", "reward", "initial_count")
"""What the client keeps of stored blocks, in a file of their own."""
_KEY = b"lingendice"
_VECTORS_FILE = "vectors.npz"


@dataclass(frozen=True, eq=False, repr=False)
class RowBlock(Counts):
    """Counts of the transitions that leave states ``first .. last``; next states are numbered in the whole.

    ``n_states`` is that of the whole, and as a next state the terminal one.
    """

    first: int = 0
    last: int = 0

    def _require_rows(self) -> None:
        """Rows of counts that were checked."""

    @property
    def n_cells(self) -> int:
        """Number of the block's rows."""
        return self.indptr.size - 1

    @property
    def nbytes(self) -> int:
        """Bytes of its entries."""
        return sum(array.nbytes for array in self.__getstate__().values() if isinstance(array, np.ndarray))

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes


class Margins(NamedTuple):
    """What the client keeps of a block: sums over its rows."""

    cell_count: NDArray[Any]
    terminal_count: NDArray[Any] | None
    reward: NDArray[np.float64] | None
    n_entries: int
    nbytes: int


def margins_of(block: RowBlock) -> Margins:
    """Sums over the rows of a block."""
    ended = block.terminal_count if block.has_terminals else None
    return Margins(block.cell_count, ended, block.reward, block.count.size, block.nbytes)


def hollow(counts: Counts) -> Counts:
    """The same states, labels and first states, without rows."""
    empty = Counts.empty(counts.n_states, counts.n_actions)
    absent: dict[str, Any] = dict.fromkeys((*STATISTICS, "episodes"))
    return replace(counts, indptr=empty.indptr, indices=empty.indices, count=counts.count[:0], **absent)


def cell_sums(frame: Counts, margins: Sequence[Margins]) -> CellSums:
    """Sizes, labels and first states of ``frame``, sums of all blocks."""
    ends = [np.zeros_like(m.cell_count) if m.terminal_count is None else m.terminal_count for m in margins]
    rewards = [held.reward for held in margins if held.reward is not None]
    return CellSums.of(
        frame,
        np.concatenate([held.cell_count for held in margins]),
        np.concatenate(ends) if any(held.terminal_count is not None for held in margins) else None,
        np.concatenate(rewards) if len(rewards) == len(margins) else None,
    )


def cut_rows(counts: Counts, edges: Sequence[int], n_states: int | None = None) -> list[RowBlock]:
    """Counts cut between states; ``n_states`` where the whole has more states than these counts."""
    n_actions = counts.n_actions or 1
    whole = counts.n_states if n_states is None else n_states
    column_type = np.int32 if whole + 1 < 2**31 else np.int64
    columns = {name: getattr(counts, name) for name in ("count", *STATISTICS)}
    blocks = []
    for first, last in itertools.pairwise(edges):
        known = min(first, counts.n_states), min(last, counts.n_states)
        begin, end = (int(counts.indptr[state * n_actions]) for state in known)
        indptr = np.full((last - first) * n_actions + 1, end - begin, np.int64)
        rows = counts.indptr[known[0] * n_actions : known[1] * n_actions + 1] - begin
        indptr[: rows.size] = rows
        indices = counts.indices[begin:end].astype(column_type)
        indices[indices == counts.n_states] = whole
        kept: dict[str, Any] = {
            name: None if held is None else held[begin:end].copy() for name, held in columns.items()
        }
        sizes = (whole, counts.n_actions, indptr, indices)
        blocks.append(RowBlock(*sizes, **kept, first=int(first), last=int(last)))
    return blocks


def join_blocks(*blocks: RowBlock) -> RowBlock:
    """The sum of blocks over the same rows, joined in order."""
    return reduce(partial(merge, threads=1), blocks)  # type: ignore[arg-type]


def gather_blocks(blocks: Sequence[RowBlock], frame: Counts) -> Counts:
    """The counts of all rows; ``frame`` has their labels and first states."""
    starts = np.cumsum([0, *(block.count.size for block in blocks)])
    indptr = [block.indptr[:-1] + start for block, start in zip(blocks, starts, strict=False)]
    columns = {name: [getattr(block, name) for block in blocks] for name in ("indices", "count", *STATISTICS)}
    joined: dict[str, Any] = {
        name: None if held[0] is None else np.concatenate(held) for name, held in columns.items()
    }
    kept = ("n_states", "n_actions", "state_labels", "action_labels", "has_sample_size", "initial_count")
    facts = {name: getattr(frame, name) for name in kept}
    return Counts(**facts, indptr=np.append(np.concatenate(indptr), starts[-1]), **joined)


def work_edges(lengths: NDArray[Any], n_parts: int) -> list[int]:
    """States cut into parts of about equal work, given their entries: where each begins, and the end."""
    work = np.cumsum(lengths, dtype=np.float64) + np.arange(1, lengths.size + 1)
    cuts = np.searchsorted(work, np.arange(1, n_parts) * work[-1] / n_parts)
    edges: list[int] = np.unique(np.concatenate([[0], cuts, [lengths.size]])).tolist()
    return edges


# -- files: one Parquet file for each block, under any path that fsspec knows ------------------------------


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
        "row": row_of_entry(block.indptr),
        "next_state": block.indices,
        "count": block.count,
    }
    columns |= {name: getattr(block, name) for name in STATISTICS if getattr(block, name) is not None}
    record = {name: getattr(block, name) for name in ("n_states", "n_actions", "first", "last")}
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
    with _opened(folder, _VECTORS_FILE, "wb") as file:
        file.write(stream.getbuffer())


def read_vectors(folder: str) -> tuple[dict[str, Any], str]:
    """What the client keeps, and the record beside it."""
    with _opened(folder, _VECTORS_FILE, "rb") as stream:
        held = dict(np.load(io.BytesIO(stream.read()), allow_pickle=False))
    record = held.pop("record").tobytes().decode()
    return {name: held.get(name) for name in VECTORS}, record
