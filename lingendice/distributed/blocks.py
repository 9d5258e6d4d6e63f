"""Row blocks: the counts of consecutive source states, whole rows, as one worker keeps and stores them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import CellSums, Counts

STATISTICS = ("reward_count", "reward_mean", "reward_m2")
"""Columns beside the count that a log with rewards has."""


class RowBlock(Counts):
    """Counts of the transitions that leave some consecutive states; next states are numbered in the whole.

    ``n_states`` is that of the whole, and as a next state the terminal one.
    """

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
    terminal_count: NDArray[Any]
    reward: NDArray[np.float64] | None
    unrewarded: NDArray[np.bool_] | None
    n_entries: int
    nbytes: int


def margins_of(block: RowBlock) -> Margins:
    """Sums over the rows of a block."""
    sums = block.cell_count, block.terminal_count, block.reward, block.unrewarded
    return Margins(*sums, block.count.size, block.nbytes)


def cell_sums(frame: Counts, margins: Sequence[Margins]) -> CellSums:
    """Sizes, labels and first states of ``frame``, sums of all blocks."""
    joined: list[Any] = [
        np.concatenate(sums) if all(held is not None for held in sums) else None
        for sums in list(zip(*margins, strict=True))[:4]
    ]
    counted, ended, *rewards = joined
    return CellSums.of(frame, counted, ended if ended.any() else None, *rewards)


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
        blocks.append(RowBlock(*sizes, **kept))
    return blocks


def gather_blocks(blocks: Sequence[RowBlock], frame: Counts) -> Counts:
    """The counts of all rows; ``frame`` has their labels and first states."""
    starts = np.cumsum([0, *(block.count.size for block in blocks)])
    indptr = [block.indptr[:-1] + start for block, start in zip(blocks, starts, strict=False)]
    columns = {name: [getattr(block, name) for block in blocks] for name in ("indices", "count", *STATISTICS)}
    joined: dict[str, Any] = {
        name: None if held[0] is None else np.concatenate(held) for name, held in columns.items()
    }
    kept = (
        "n_states", "n_actions", "state_labels", "action_labels", "has_sample_size", "initial_count", "lag",
    )  # fmt: skip
    facts = {name: getattr(frame, name) for name in kept}
    return Counts(**facts, indptr=np.append(np.concatenate(indptr), starts[-1]), **joined)


def work_edges(lengths: NDArray[Any], n_parts: int) -> list[int]:
    """States cut into parts of about equal work, given their entries: where each begins, and the end."""
    n_parts, work = min(n_parts, lengths.size), np.cumsum(lengths + 1.0)
    cuts = np.searchsorted(work, np.arange(1, n_parts) * work[-1] / n_parts)
    edges: list[int] = np.unique(np.concatenate([[0], cuts, [lengths.size]])).tolist()
    return edges


def block_file(folder: str, number: int) -> str:
    """Where a block is stored."""
    return f"{folder}/block-{number:05d}.parquet"
