"""x -> start + gamma T' x on the device: one pass over a matrix in pull form, its residual made on the way.

Rows of the matrix are grouped by degree; it lies on the device as a whole, or is streamed in chunks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.gpu.catalog import LANES, c_type
from lingendice.gpu.device import Device, for_each, launch, n_blocks

MOST_HUBS = 4
SLOTS = 3 + MOST_HUBS
# Places in the array of scalars: see cuda/prelude.cu.
CHANGE, RELATIVE, MASS, HUBS = 0, 1, 2, 3
PREVIOUS, SLOWEST, RESIDUAL, LARGEST, ERROR, STEPS, CHECKS, SCALARS = range(SLOTS, SLOTS + 8)
WEIGHED, STEPPED, CHECKED, RESCALED = np.int32(0), np.int32(1), np.int32(2), np.int32(3)
HISTORY = 512
SCRATCH = 32 * 8
"""Bytes of shared memory for the sum of one number over a block."""
FEW, SOME, MANY = 6, 96, 2048
"""Longest rows of 1, 8 and 32 lanes; longer ones are cut into segments of MANY entries, one block each."""
# A group of lanes reads consecutive entries at once. With more lanes than entries some idle; with too few,
# each reads far from its neighbors, and a row of thousands still runs when all others have ended.


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


@dataclass(frozen=True, eq=False)
class PullMatrix:
    """Row j lists where the mass that arrives in j comes from, and at which rate."""

    device: Device
    n_rows: int
    indptr: Any
    chunks: tuple[Chunk, ...]
    value_type: np.dtype[Any]
    buffers: tuple[Any, Any] | None = None
    """Where sources and rates of chunks on the host pass through, one after another.

    By their data sheets buses take some twenty times as long for an entry as kernels do: copies beside the
    kernels, through two pairs of buffers, would save a twentieth and cost twice the memory.
    """

    @property
    def streamed(self) -> bool:
        """Whether entries come from the host in every pass."""
        return self.buffers is not None

    @property
    def templates(self) -> tuple[str, str]:
        """C++ names of the types of rates and offsets."""
        return c_type(self.value_type), c_type(self.indptr.dtype)

    def entries(self) -> Iterator[tuple[Chunk, Any, Any]]:
        """Chunks with their sources and rates on the device, for the kernels launched before the next."""
        for chunk in self.chunks:
            if self.buffers is None:
                yield chunk, chunk.sources, chunk.rates
                continue
            # The same buffers for every chunk: the stream makes each copy wait for the kernels before it.
            sources, rates = (buffer[: chunk.rates.size] for buffer in self.buffers)
            if chunk.rates.size:
                self.device.copy(sources, chunk.sources)
                self.device.copy(rates, chunk.rates)
            yield chunk, sources, rates

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


def streamed_matrix(device: Device, matrix: Any, chunk_rows: int, buffers: tuple[Any, Any]) -> PullMatrix:
    """A SciPy matrix that stays on the host: each pass feeds it to the device in chunks of rows."""
    kinds = [np.dtype(buffer.dtype) for buffer in buffers]
    indptr, sources, rates = matrix.indptr, matrix.indices, matrix.data
    n_rows = indptr.size - 1
    on_device = device.upload(indptr, index_type(sources.size))
    chunks = []
    for first in range(0, n_rows, chunk_rows):
        last = min(first + chunk_rows, n_rows)
        begin, end = int(indptr[first]), int(indptr[last])
        lists, long = _by_degree(device, on_device, first, last, begin)
        held = map(device.pinned, (sources[begin:end], rates[begin:end]), kinds)
        chunks.append(Chunk(lists, long, begin, *held))
    return PullMatrix(device, n_rows, on_device, tuple(chunks), kinds[1], buffers)


def most_entries(indptr: NDArray[Any], chunk_rows: int) -> int:
    """Entries of the largest chunk of ``chunk_rows`` rows."""
    return int(np.diff(np.append(indptr[:-1:chunk_rows], indptr[-1])).max(initial=0))


def _by_degree(
    device: Device, indptr: Any, first: int, last: int, first_entry: int = 0
) -> tuple[tuple[tuple[int, Any], ...], LongRows | None]:
    """Rows ``first:last`` grouped by degree. Only a handful of numbers comes to the host."""
    degree = indptr[first + 1 : last + 1] - indptr[first:last]
    kind = sum((degree > limit).astype(np.int32) for limit in (FEW, SOME, MANY))
    order = device.sort_order(kind)
    bounds = device.download(_lower_bounds(device, kind, order, 4, np.int64))
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
    bounds = [device.upload(part, indptr.dtype) for part in (segment_first, segment_last)]
    return LongRows(rows, device.upload(first_segment), bounds[0], bounds[1], int(first_segment[-1]))


# -- the equation --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Equation:
    """``T' = matrix + sum_k distribution_k share_k'``; ``shares`` is (K, n_in), ``distributions`` (K, n_out),
    flattened."""

    device: Device
    matrix: PullMatrix
    shares: Any
    distributions: Any
    n_hubs: int
    start: Any
    gamma: float
    n_in: int
    tol: float = 0.0

    def __post_init__(self) -> None:
        device = self.device
        self.scalars = device.zeros(SCALARS, np.float64)
        self.done = device.zeros(1, np.int32)
        self.history = device.zeros(HISTORY, np.float64)
        self.n_parts = self.matrix.n_parts()
        self.weigh_parts = n_blocks(device, self.n_in, device.block)
        self.partials = device.empty(SLOTS * max(self.n_parts, self.weigh_parts), np.float64)

    @property
    def value_type(self) -> np.dtype[Any]:
        """How distributions are stored."""
        return self.matrix.value_type

    @property
    def value(self) -> str:
        """The same in C++."""
        return c_type(self.value_type)

    @cached_property
    def rounding(self) -> float:
        """Unit in the last place of a stored total of one."""
        return float(np.finfo(self.value_type).eps)

    def reset(self) -> None:
        """Forget earlier steps."""
        self.scalars[:] = 0.0
        self.done[:] = 0
        self.history[:] = 0.0

    def finish(self, n_parts: int, role: Any) -> None:
        """Add up what the blocks of a pass left, and decide whether to stop, on the device."""
        # One block, which adds the partial sums in the order of the blocks that left them: the same bits on
        # every run. Launches that follow read the flag it sets, so that nobody waits for the host.
        launch(
            self.device, "finish_pass", (), 1,
            (np.int32(n_parts), self.partials, role, np.float64(self.gamma), np.float64(self.tol),
             np.float64(self.rounding), np.int32(HISTORY), self.scalars, self.done, self.history),
            shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip

    def weigh(self, x: Any) -> None:
        """Mass and hub masses of a distribution that no step has just made."""
        arguments = (np.int32(self.n_in), x, self.shares, np.int32(self.n_hubs), self.done, self.partials)
        launch(
            self.device, "weigh_distribution", (self.value,), self.weigh_parts,
            (*arguments, np.int32(self.weigh_parts)), shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip
        self.finish(self.weigh_parts, WEIGHED)

    def step(self, x: Any, out: Any, damping: float, role: Any) -> None:
        """out = x + damping (start + gamma T' x - x); x must have been weighed or stepped to."""
        self._pull(x, out, damping)
        self.finish(self.n_parts, role)

    def product(self, x: Any, out: Any, damping: float) -> None:
        """A step whose residual nobody asks for; x is new."""
        if self.n_hubs:
            self.weigh(x)
        self._pull(x, out, damping)

    def _pull(self, x: Any, out: Any, damping: float) -> None:
        value, offset = self.matrix.templates
        number = np.int64 if offset == "long long" else np.int32
        parts = np.int32(self.n_parts)
        first_part = 0
        around = (
            x, self.start, self.distributions, self.shares, np.int32(self.n_hubs),
            np.int32(self.matrix.n_rows),
            np.float64(self.gamma), np.float64(damping), self.scalars, self.done, out, self.partials,
        )  # fmt: skip
        for chunk, sources, rates in self.matrix.entries():
            blocks = self.matrix.grid(chunk)
            for (lanes, rows), grid in zip(chunk.lists, blocks, strict=False):
                launch(
                    self.device, "pull_rows", (value, offset, str(lanes)), grid,
                    (np.int32(rows.size), rows, self.matrix.indptr, number(chunk.first_entry), sources, rates,
                     *around, np.int32(first_part), parts),
                    shared_bytes=SLOTS * SCRATCH,
                )  # fmt: skip
                first_part += grid
            if chunk.long is not None:
                self._pull_long(chunk.long, (sources, rates), x, around, blocks[-1], first_part)
                first_part += blocks[-1]

    def _pull_long(
        self, long: LongRows, entries: tuple[Any, Any], x: Any, around: tuple[Any, ...], grid: int,
        first_part: int,
    ) -> None:  # fmt: skip
        sums = self._segment_sums
        launch(
            self.device, "pull_segments", self.matrix.templates,
            min(long.n_segments, self.device.most_blocks),
            (np.int32(long.n_segments), long.segment_first, long.segment_last, *entries, x, self.done,
             sums),
            shared_bytes=SCRATCH,
        )  # fmt: skip
        launch(
            self.device, "settle_long_rows", (self.value,), grid,
            (np.int32(long.rows.size), long.rows, long.first_segment, sums, *around, np.int32(first_part),
             np.int32(self.n_parts)),
            shared_bytes=SLOTS * SCRATCH,
        )  # fmt: skip

    @cached_property
    def _segment_sums(self) -> Any:
        # Kept between passes: a recorded pass must find its memory where it was.
        most = max((chunk.long.n_segments for chunk in self.matrix.chunks if chunk.long), default=0)
        return self.device.empty(most, np.float64)


def index_type(n_entries: int) -> np.dtype[Any]:
    """The type that numbers this many things."""
    return np.dtype(np.int32 if n_entries < 2**31 else np.int64)


# -- building the pull form ----------------------------------------------------------------------------------


def transposed(
    device: Device, columns: Any, n_columns: int, sources: Any, rates: Any, offset: Any
) -> tuple[Any, Any, Any]:
    """Entries by column: (indptr, sources, rates). Entries beyond the last column are left out of it."""
    order = device.sort_order(columns)
    indptr = _lower_bounds(device, columns, order, n_columns, offset)
    return indptr, sources[order], rates[order]


def _lower_bounds(device: Device, keys: Any, order: Any, n_values: int, kind: Any) -> Any:
    """For 0 .. n_values, how many sorted keys are below."""
    return np.searchsorted(keys[order], device.arange(n_values + 1)).astype(kind)


def row_totals(device: Device, indptr: Any, weight: Any) -> Any:
    """Sum of each compressed row, in a fixed order."""
    n_rows = indptr.size - 1
    totals = device.empty(n_rows, np.float64)
    kinds = (c_type(weight.dtype), c_type(indptr.dtype))
    for_each(device, "row_totals", kinds, n_rows, (np.int32(n_rows), indptr, weight, totals), a_thread=8)
    return totals


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
