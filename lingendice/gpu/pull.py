"""A matrix in pull form on the device, its rows grouped by degree, whole or streamed in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.gpu.catalog import LANES, c_type
from lingendice.gpu.device import Device, for_each, n_blocks

FEW, SOME, MANY = 6, 96, 2048
"""Longest rows of 1, 8 and 32 lanes; longer ones are cut into segments of MANY entries, one block each."""


class LongRows(NamedTuple):
    """Rows cut into segments."""

    rows: Any
    first_segment: Any
    segment_first: Any
    segment_last: Any
    n_segments: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows: lists of row numbers by lanes, and their entries on the device or, to be fed to it,
    in page-locked memory of the host.
    """

    lists: tuple[tuple[int, Any], ...]
    long: LongRows | None
    first_entry: int
    sources: Any
    rates: Any


class Feed:
    """Two buffers that chunks of a matrix on the host pass through in turn, copied on a stream of their own.

    While kernels of the current stream read one buffer the other is filled. A buffer is filled again only
    after the kernels that read it, and read only after it is filled: events say so, the host never waits.
    """

    def __init__(self, device: Device, most_entries: int, value_type: Any) -> None:
        self.device, self.value_type = device, np.dtype(value_type)
        self._side = device.side_stream()
        self._buffers = [
            (device.empty(most_entries, np.int32), device.empty(most_entries, value_type)) for _ in range(2)
        ]
        # Their memory may still be in use by what the current stream has been asked to do before.
        self._free = [device.mark() for _ in range(2)]
        self._turn = 0

    def bring(self, chunk: Chunk) -> tuple[Any, Any]:
        """Sources and rates of a chunk on the device, for kernels launched from now on."""
        self._turn = 1 - self._turn
        self._side.after(self._free[self._turn])
        sources, rates = (buffer[: chunk.rates.size] for buffer in self._buffers[self._turn])
        if chunk.rates.size:
            self._side.copy(sources, chunk.sources)
            self._side.copy(rates, chunk.rates)
        self.device.after(self._side.mark())
        return sources, rates

    def done(self) -> None:
        """The kernels that read the last chunk have been launched."""
        self._free[self._turn] = self.device.mark()


@dataclass(frozen=True, eq=False)
class PullMatrix:
    """Row j lists where the mass that arrives in j comes from, and at which rate."""

    device: Device
    n_rows: int
    indptr: Any
    chunks: tuple[Chunk, ...]
    value_type: np.dtype[Any]
    feed: Feed | None = None

    @property
    def streamed(self) -> bool:
        """Whether entries come from the host in every pass."""
        return self.feed is not None

    @property
    def templates(self) -> tuple[str, str]:
        """C++ names of the types of rates and offsets."""
        return c_type(self.value_type), c_type(self.indptr.dtype)

    def entries(self) -> Iterator[tuple[Chunk, Any, Any]]:
        """Chunks with their sources and rates on the device, for the kernels launched before the next."""
        for chunk in self.chunks:
            if self.feed is None:
                yield chunk, chunk.sources, chunk.rates
            else:
                yield chunk, *self.feed.bring(chunk)
                self.feed.done()

    def n_parts(self) -> int:
        """Blocks of one pass, each of which writes its own partial sums."""
        return sum(blocks for chunk in self.chunks for blocks in self.grid(chunk))

    def grid(self, chunk: Chunk) -> list[int]:
        """Blocks of each launch over a chunk: the lists, then the long rows."""
        device = self.device
        blocks = [n_blocks(device, rows.size, device.block // lanes) for lanes, rows in chunk.lists]
        if chunk.long is not None:
            blocks.append(n_blocks(device, chunk.long.rows.size, device.block // 32))
        return blocks


def resident_matrix(device: Device, indptr: Any, sources: Any, rates: Any) -> PullMatrix:
    """A matrix that lies on the device as a whole."""
    n_rows = indptr.size - 1
    lists, long = _by_degree(device, indptr, 0, n_rows)
    chunk = Chunk(lists, long, 0, sources, rates)
    return PullMatrix(device, n_rows, indptr, (chunk,), np.dtype(rates.dtype))


def streamed_matrix(
    device: Device,
    indptr: NDArray[Any],
    sources: NDArray[Any],
    rates: NDArray[Any],
    chunk_rows: int,
    feed: Feed,
) -> PullMatrix:
    """A matrix that stays on the host: each pass feeds it to the device in chunks of ``chunk_rows`` rows."""
    n_rows = indptr.size - 1
    offset = np.int64 if sources.size >= 2**31 else np.int32
    on_device = device.upload(indptr.astype(offset))
    chunks = []
    for first in range(0, n_rows, chunk_rows):
        last = min(first + chunk_rows, n_rows)
        begin, end = int(indptr[first]), int(indptr[last])
        lists, long = _by_degree(device, on_device, first, last, begin)
        held = device.pinned(sources[begin:end], np.int32), device.pinned(rates[begin:end], feed.value_type)
        chunks.append(Chunk(lists, long, begin, *held))
    return PullMatrix(device, n_rows, on_device, tuple(chunks), feed.value_type, feed)


def most_entries(indptr: NDArray[Any], chunk_rows: int) -> int:
    """Entries of the largest chunk of ``chunk_rows`` rows."""
    return int(np.diff(np.append(indptr[:-1:chunk_rows], indptr[-1])).max(initial=0))


def _by_degree(
    device: Device, indptr: Any, first: int, last: int, first_entry: int = 0
) -> tuple[tuple[tuple[int, Any], ...], LongRows | None]:
    """Rows ``first:last`` grouped by degree. Only a handful of numbers comes to the host."""
    size = last - first
    kind = device.empty(size, np.int32)
    limits = (np.int32(FEW), np.int32(SOME), np.int32(MANY))
    for_each(
        device,
        "classify_rows",
        (c_type(indptr.dtype),),
        size,
        (np.int32(size), indptr[first : last + 1], *limits, kind),
    )
    order = device.sort_order(kind)
    starts = device.empty(5, np.int64)
    for_each(
        device, "lower_bounds", ("int", "long long"), 5, (np.int64(size), kind, order, np.int32(4), starts)
    )
    bounds = device.download(starts)
    rows = (order + np.int64(first)).astype(np.int32)
    lists = tuple(
        (lanes, rows[bounds[k] : bounds[k + 1]]) for k, lanes in enumerate(LANES) if bounds[k + 1] > bounds[k]
    )
    if bounds[4] == bounds[3]:
        return lists, None
    return lists, _segments(device, indptr, rows[bounds[3] :], first_entry)


def _segments(device: Device, indptr: Any, rows: Any, first_entry: int) -> LongRows:
    places = rows.astype(np.int64)
    begin = device.download(indptr[places]).astype(np.int64) - first_entry
    end = device.download(indptr[places + np.int64(1)]).astype(np.int64) - first_entry
    pieces = -(-(end - begin) // MANY)
    first_segment = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int32)
    inside = np.arange(first_segment[-1]) - np.repeat(first_segment[:-1], pieces)
    segment_first = np.repeat(begin, pieces) + inside * MANY
    segment_last = np.minimum(segment_first + MANY, np.repeat(end, pieces))
    offset = np.dtype(indptr.dtype)
    return LongRows(
        rows,
        device.upload(first_segment),
        device.upload(segment_first.astype(offset)),
        device.upload(segment_last.astype(offset)),
        int(first_segment[-1]),
    )


def transposed(
    device: Device, columns: Any, n_columns: int, sources: Any, rates: Any, offset: Any
) -> tuple[Any, Any, Any]:
    """Entries by column: (indptr, sources, rates). Entries beyond the last column are left out of it."""
    n_entries = columns.size
    order = device.sort_order(columns)
    sorted_sources, sorted_rates = device.empty(n_entries, np.int32), device.empty(n_entries, rates.dtype)
    for_each(
        device, "permute_entries", (c_type(rates.dtype),), n_entries,
        (np.int64(n_entries), order, sources, rates, sorted_sources, sorted_rates),
    )  # fmt: skip
    indptr = device.empty(n_columns + 1, offset)
    kinds = (c_type(columns.dtype), c_type(offset))
    for_each(
        device, "lower_bounds", kinds, n_columns + 1,
        (np.int64(n_entries), columns, order, np.int32(n_columns), indptr),
    )  # fmt: skip
    return indptr, sorted_sources, sorted_rates


def row_totals(device: Device, indptr: Any, weight: Any) -> tuple[Any, int | None]:
    """Sum of each compressed row, and the place of the first entry that is negative or not finite."""
    n_rows = indptr.size - 1
    totals = device.empty(n_rows, np.float64)
    nowhere = np.iinfo(np.uint64).max
    first_bad = device.upload(np.array([nowhere], np.uint64))
    kinds = (c_type(weight.dtype), c_type(indptr.dtype))
    arguments = (np.int32(n_rows), indptr, weight, totals, first_bad)
    for_each(device, "row_totals", kinds, n_rows, arguments, a_thread=8)
    bad = int(device.download(first_bad)[0])
    return totals, None if bad == nowhere else bad


def composed_rates(
    device: Device, indptr: Any, weight: Any, scale: Any, policy: Any, n_actions: int, value_type: Any
) -> tuple[Any, Any]:
    """Source state and rate of every entry: W(a|s) K(s'|x) from s = x // n_actions."""
    n_cells, n_entries = indptr.size - 1, weight.size
    sources, rates = device.empty(n_entries, np.int32), device.empty(n_entries, value_type)
    kinds = (c_type(value_type), c_type(weight.dtype), c_type(indptr.dtype))
    arguments = (np.int32(n_cells), np.int32(n_actions), indptr, weight, scale, policy, sources, rates)
    for_each(device, "compose_rates", kinds, n_cells, arguments, a_thread=8)
    return sources, rates
