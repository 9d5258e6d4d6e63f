"""Counting where the data lie: pieces of the log apart, then their rows gathered block by block.

Pieces are counted by tasks. What belongs to the whole (labels, numbers of states, episodes that run from
piece to piece) is joined in a tree of hollow pieces, without rows. Every piece is then cut into blocks of
rows, and equal blocks are added up in a tree of their own: rows of one block meet on one worker, those of all
of them nowhere. A lost worker costs its tasks, which Dask repeats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import add, getitem
from pathlib import Path
from typing import Any

import numpy as np

from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible
from lingendice.data.last_rows import ends_of
from lingendice.data.merging import labels_to_ids, merge
from lingendice.data.saving import arrow
from lingendice.distributed.blocks import cut_rows, margins_of, work_edges
from lingendice.distributed.cluster import FAILED, blocks_of, client_of, insist, results
from lingendice.distributed.counts import DistributedCounts
from lingendice.io.formats import PARQUET, format_of
from lingendice.io.read import ReadOptions, count_piece
from lingendice.io.segments import LogPiece, join
from lingendice.io.sources import find_files

ROWS_PER_TASK = 20_000_000
"""Rows that one counting task takes at least, where a file has row groups to choose from."""
_JOINED_AT_ONCE = 8
_ALONE = {"progress", "threads", "keep_episodes", "time"}


def count(
    source: Any, client: Any = None, *, store: str | Path | None = None, blocks: int | None = None,
    **columns: Any,
) -> DistributedCounts:  # fmt: skip
    """Count a log on the workers of a Dask cluster; the counts stay there, in blocks of whole rows.

    Parameters
    ----------
    source
        Paths, folders or patterns as :func:`lingendice.read_transitions` takes them (the workers must see
        the files), or a Dask dataframe whose partitions are in the order of the log.
    client
        A ``dask.distributed.Client``; None takes the current one.
    store
        A folder, any path that fsspec knows, where every block is written as a Parquet file; blocks are then
        read again instead of counted again where a worker is lost, need not stay in memory, and
        :meth:`DistributedCounts.load` opens them on another cluster.
    blocks
        Number of blocks; default one for each thread of the workers.
    **columns
        Names of columns and other options of :func:`lingendice.read_transitions`.

    Returns
    -------
    DistributedCounts
        Their :meth:`~DistributedCounts.gather` equals the counts of one machine; means of rewards agree up to
        rounding.

    Notes
    -----
    Every task needs memory for the distinct pairs and the episodes of its piece, about 100 bytes per episode;
    what travels is counts, never rows of the log.

    Examples
    --------
    >>> client = dask.distributed.Client()                                        # doctest: +SKIP
    >>> lg.distributed.count("s3/log-*.parquet", client, state="s", episode="e")   # doctest: +SKIP
    """
    client = client_of(client)
    unknown = sorted(set(columns) & _ALONE)
    if unknown:
        raise ValueError(f"{unknown[0]}= is an option of lg.read_transitions alone; leave it out here")

    def attempt() -> DistributedCounts:
        return _count(client, source, columns, blocks_of(client, blocks))

    with interruptible():
        counts = insist(attempt)
        return counts if store is None else counts.save(store)


def _count(client: Any, source: Any, columns: dict[str, Any], n_blocks: int) -> DistributedCounts:
    """One attempt, in all its stages: futures of pieces and of what becomes of them."""
    submit = partial(client.submit, pure=False)
    tree = partial(_tree, submit)
    counted = [submit(_count_part, *part, columns) for part in _parts(source, client)]
    without_rows = [submit(LogPiece.without_rows, each) for each in counted]
    found = results(client, [tree(join, without_rows)] if counted else [])
    if not found or found[0].counts.n_states == 0:
        raise ValueError("no transitions: the log has no rows; give at least one")
    ends = columns.get("ends")
    whole = found[0].closed(ends_of(ends, found[0].roles))
    whole.warn(ends)
    frame = whole.result()
    numbering = replace(frame.without_rows(), initial_count=None)
    # Transitions between rows of different pieces, and ends of episodes.
    links = LogPiece(whole.counts, None, whole.numbered, whole.rule)
    pieces = [submit(_aligned, each, numbering, whole.numbered) for each in [*counted, links]]
    (lengths,) = results(client, [tree(add, [submit(_lengths, each, frame.n_states) for each in pieces])])
    edges = work_edges(lengths, n_blocks)
    cuts = [submit(cut_rows, each, edges, frame.n_states) for each in pieces]
    joined = [
        tree(partial(merge, threads=1), [submit(getitem, each, number) for each in cuts])
        for number in range(len(edges) - 1)
    ]
    margins = results(client, [submit(margins_of, block) for block in joined])
    return DistributedCounts(
        client, [partial(_held, client, block) for block in joined], edges, margins, frame
    )


def _tree(submit: Callable[..., Any], function: Callable[..., Any], futures: list[Any]) -> Any:
    """Neighbors joined in order, a few at a time."""
    while len(futures) > 1:
        groups = [
            futures[first : first + _JOINED_AT_ONCE] for first in range(0, len(futures), _JOINED_AT_ONCE)
        ]
        futures = [submit(_reduced, function, *group) if len(group) > 1 else group[0] for group in groups]
    return futures[0]


def _reduced(function: Callable[[Any, Any], Any], *values: Any) -> Any:
    return reduce(function, values)


def _held(client: Any, block: Any) -> Any:
    """A block that Dask holds, and makes again where it is lost."""
    if block.status in FAILED:
        client.retry([block])  # blamed for the end of too many workers
    return block


# -- pieces of the log ------------------------------------------------------------------------------------


def _parts(source: Any, client: Any) -> Iterator[tuple[Any, range | None]]:
    """Pieces of the log in order: (file or partition, row groups); None for all there is."""
    if hasattr(source, "to_delayed"):
        yield from ((partition, None) for partition in client.compute(source.to_delayed()))
        return
    if not isinstance(source, (str, os.PathLike, list, tuple)):
        raise ValueError(
            f"cannot count a {type(source).__name__} on a cluster; give paths or a Dask dataframe, or use "
            "lg.read_transitions here"
        )
    for file in find_files(source):
        if format_of(file) not in PARQUET:
            yield str(file), None
            continue
        yield from ((str(file), groups) for groups in _row_groups(str(file)))


def _row_groups(file: str) -> list[range | None]:
    """Ranges of row groups with about ``ROWS_PER_TASK`` rows; the whole of a file without any."""
    with arrow("parquet").ParquetFile(file) as stored:
        rows = [stored.metadata.row_group(group).num_rows for group in range(stored.num_row_groups)]
    ranges: list[range | None] = []
    first = held = 0
    for group, size in enumerate(rows):
        held += size
        if held >= ROWS_PER_TASK or group == len(rows) - 1:
            ranges.append(range(first, group + 1))
            first, held = group + 1, 0
    return ranges or [None]


def _count_part(source: Any, row_groups: range | None, columns: dict[str, Any]) -> LogPiece:
    """Runs on a worker, as all that follows does."""
    options = ReadOptions.of(threads=1, **columns)
    return count_piece(source, options, keep_ends=True, row_groups=row_groups)


# -- one numbering -----------------------------------------------------------------------------------------


def _aligned(piece: LogPiece, frame: Counts, numbered: frozenset[str]) -> Counts:
    """The counts of a piece in the numbering of the whole; ``numbered``: see :class:`LogPiece`."""
    if piece.counts.n_states == 0:
        return Counts.empty(0, frame.n_actions)
    for what in sorted(numbered):
        piece = piece.with_numbers(what)
    counts = replace(piece.counts, initial_count=None)
    for what in numbered:
        name = f"{what}_labels"
        if getattr(frame, name) is None:
            counts = labels_to_ids(counts, what)
        else:
            counts = replace(counts, **{name: tuple(map(str, getattr(counts, name)))})  # type: ignore[arg-type]
    if frame.state_labels is None and frame.action_labels is None:
        return counts.with_states(counts.n_states, frame.n_actions)
    return frame.merge(counts)


def _lengths(counts: Counts, n_states: int) -> Any:
    """Entries of each state of the whole."""
    lengths = np.zeros(n_states, np.int64)
    lengths[: counts.n_states] = np.diff(counts.indptr[:: counts.n_actions or 1])
    return lengths
