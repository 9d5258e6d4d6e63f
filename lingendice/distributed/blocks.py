"""Row blocks: the counts of consecutive source states, whole rows, as one worker keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import Counts
from lingendice.data.merging import merge_rewards, unite
from lingendice.data.rows import row_sums

STATISTICS = ("reward_count", "reward_mean", "reward_m2")
"""Columns beside the count that a log with rewards has."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Counts of the transitions that leave states ``first .. last``; next states are numbered in the whole.

    A next state of ``n_states`` is the terminal one, as in :class:`lingendice.Counts`.
    """

    n_states: int
    """Of the whole."""
    n_actions: int | None
    first: int
    last: int
    indptr: NDArray[np.int64]
    """By cell: state, then action."""
    indices: NDArray[Any]
    count: NDArray[Any]
    reward_count: NDArray[Any] | None = None
    reward_mean: NDArray[Any] | None = None
    reward_m2: NDArray[Any] | None = None

    @property
    def n_cells(self) -> int:
        """Number of the block's rows."""
        return self.indptr.size - 1

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(value.nbytes for value in self.__dict__.values() if isinstance(value, np.ndarray))

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
    terminal = block.indices == block.n_states
    reward = None
    if block.reward_count is not None and block.reward_mean is not None:
        seen = row_sums(block.indptr, block.reward_count).astype(float)
        total = row_sums(block.indptr, block.reward_count * block.reward_mean)
        reward = np.divide(total, seen, out=np.full(seen.shape, np.nan), where=seen > 0)
    return Margins(
        row_sums(block.indptr, block.count),
        row_sums(block.indptr, np.where(terminal, block.count, 0)) if terminal.any() else None,
        reward,
        block.count.size,
        block.nbytes,
    )


def cut_rows(counts: Counts, edges: Sequence[int], n_states: int | None = None) -> list[RowBlock]:
    """Counts cut between states; ``n_states`` where the whole has more states than these counts."""
    n_actions = counts.n_actions or 1
    whole = counts.n_states if n_states is None else n_states
    column_type = np.int32 if whole + 1 < 2**31 else np.int64
    blocks = []
    for first, last in itertools.pairwise(edges):
        known = min(first, counts.n_states), min(last, counts.n_states)
        begin, end = (int(counts.indptr[state * n_actions]) for state in known)
        indptr = np.full((last - first) * n_actions + 1, end - begin, np.int64)
        rows = counts.indptr[known[0] * n_actions : known[1] * n_actions + 1] - begin
        indptr[: rows.size] = rows
        entries = slice(begin, end)
        indices = counts.indices[entries].astype(column_type)
        indices[indices == counts.n_states] = whole
        columns = {name: getattr(counts, name) for name in STATISTICS}
        kept = {name: None if column is None else column[entries].copy() for name, column in columns.items()}
        blocks.append(
            RowBlock(
                whole,
                counts.n_actions,
                int(first),
                int(last),
                indptr,
                indices,
                counts.count[entries].copy(),
                **kept,
            )
        )
    return blocks


def join_blocks(*blocks: RowBlock) -> RowBlock:
    """The sum of blocks over the same rows, joined in order."""
    joined = blocks[0]
    for other in blocks[1:]:
        has_rewards = joined.reward_mean is not None or other.reward_mean is not None
        indptr, indices, count, places = unite(joined, other, has_rewards, 1)
        n, mean, m2 = merge_rewards(count.size, places, joined, other)
        joined = replace(
            joined,
            indptr=indptr,
            indices=indices,
            count=count,
            reward_count=n,
            reward_mean=mean,
            reward_m2=m2,
        )
    return joined


def gather_blocks(blocks: Sequence[RowBlock], **rest: Any) -> Counts:
    """The counts of all rows; ``rest`` is what the client knows of them."""
    starts = np.cumsum([0, *(block.count.size for block in blocks)])
    indptr = [block.indptr[:-1] + start for block, start in zip(blocks, starts, strict=False)]

    def column(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        return None if parts[0] is None else np.concatenate(parts)

    return Counts(
        n_states=blocks[0].n_states,
        n_actions=blocks[0].n_actions,
        indptr=np.append(np.concatenate(indptr), starts[-1]),
        indices=column("indices"),
        count=column("count"),
        **{name: column(name) for name in STATISTICS},
        **rest,
    )


def work_edges(lengths: NDArray[Any], n_parts: int) -> list[int]:
    """States cut into parts of about equal work, given their entries: where each begins, and the end."""
    work = np.cumsum(lengths, dtype=np.float64) + np.arange(1, lengths.size + 1)
    cuts = np.searchsorted(work, np.arange(1, n_parts) * work[-1] / n_parts)
    edges: list[int] = np.unique(np.concatenate([[0], cuts, [lengths.size]])).tolist()
    return edges
