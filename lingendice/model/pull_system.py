"""The pull form of a chain, for ``x = g + F A diag(c) x``: how it is built, passed over and checked.

A row of A lists the sources that the row draws from. For a stationary distribution that is the transpose
of the transition matrix, for values it is the matrix itself. Unit weights need no weight array. Chains are
asked for it by :meth:`lingendice.model.transition_rows.TransitionRows.pull` and ``pull_values``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.rows import index_array, read_only, row_of_entry
from lingendice.kernels import gauss_seidel_steps
from lingendice.kernels import sparse_rows as sparse
from lingendice.kernels.parallel import run_all

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# One kernel call covers at most this many entries and rows, so that it ends within 0.1 s.
CALL_WORK = 2_000_000
# Below this many entries a second thread costs more than it saves.
THREAD_WORK = 200_000

_NO_WEIGHTS = np.empty(0)

CACHE_WINDOW = 32_768  # nodes whose values fit into a near cache together
FEW_NEAR = 0.25  # share of edges between near numbers below which the numbering has no locality
EVEN = 0.65  # share of edges in one direction above which the numbering follows the flow


def go_on() -> None:
    """What is asked between kernel calls by work that nothing ends early."""


def row_ranges(
    indptr: IntArray, first: int, last: int, work: int = CALL_WORK, least: int = 8
) -> list[tuple[int, int]]:
    """Cut rows into consecutive ranges of about equal work (entries plus rows), at most ``work`` each.

    Where threads share them there are at least ``least``.
    """
    # A few thousand places to cut at are enough: looking at every row would cost as much as a pass.
    rows = np.append(np.arange(first, last, max(1, (last - first) // 4096)), last)
    cost = indptr[rows] + rows
    total = int(cost[-1] - cost[0])
    pieces = max(-(-total // work), least if total > THREAD_WORK else 1)
    marks = cost[0] + np.arange(1, pieces) * total // pieces
    cuts = np.unique(np.concatenate([[first], rows[np.searchsorted(cost, marks)], [last]]))
    return list(pairwise(cuts.tolist()))


@dataclass
class PullSystem:
    """The structure shared by every solve: who draws from whom, in sweep order."""

    indptr: IntArray
    sources: NDArray[np.integer]
    weights: FloatArray
    loops: FloatArray  # self-loop weight of each row; self-loops are not among the entries
    order: IntArray | None  # node number of each row; None is the natural order
    threads: int
    tick: Callable[[], None]  # asked between kernel calls; it raises where the work must end

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.indptr.size - 1

    def sorted(self, values: FloatArray) -> FloatArray:
        """Values by node number, rearranged to rows."""
        return values if self.order is None else values[self.order]

    def unsorted(self, values: FloatArray) -> FloatArray:
        """Values by row, rearranged to node numbers."""
        if self.order is None:
            return values
        result = np.empty_like(values)
        result[self.order] = values
        return result

    def kernel_rows(self, begin: IntArray, end: IntArray) -> gauss_seidel_steps.PulledRows:
        """The entries ``begin[i]:end[i]`` of each row i as the kernels take them."""
        return gauss_seidel_steps.PulledRows(
            index_array(begin), index_array(end), index_array(self.sources), read_only(self.weights)
        )

    @cached_property
    def rows(self) -> gauss_seidel_steps.PulledRows:
        """All entries as the kernels take them."""
        return self.kernel_rows(self.indptr[:-1], self.indptr[1:])

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """Rows that one kernel call covers, for all rows."""
        return row_ranges(self.indptr, 0, self.size)

    def run(self, ranges: list[tuple[int, int]], task: Callable[[int, int], Any]) -> list[Any]:
        """Run a kernel over ranges, in order on one thread, side by side on several."""
        results: list[Any] = []
        for start in range(0, len(ranges), 4 * self.threads):
            self.tick()
            tasks = [partial(task, *rows) for rows in ranges[start : start + 4 * self.threads]]
            results += run_all(tasks, self.threads)
        return results

    def residual(
        self, x: FloatArray, y: FloatArray, base: FloatArray, row_factor: FloatArray, image: FloatArray
    ) -> tuple[float, float, float]:
        """L1 norm, smallest and largest entry of ``image - x``, image = base + row_factor (A + loops) y."""

        def task(first: int, last: int) -> tuple[float, float, float]:
            return gauss_seidel_steps.residual(
                self.rows, row_factor, base, self.loops, x, y, first, last, image
            )

        size, low, high = zip(*self.run(self.ranges, task), strict=True)
        return float(sum(size)), min(low), max(high)

    def imbalance(self, x: FloatArray, y: FloatArray, base: FloatArray) -> float:
        """L1 norm of ``base + (A + loops) y - x``."""
        return self.residual(x, y, base, np.ones(self.size), np.empty(self.size))[0]


def _lanes(indptr: IntArray, threads: int) -> list[list[tuple[int, int]]]:
    """One list of consecutive ranges for each thread."""
    ranges = row_ranges(indptr, 0, indptr.size - 1)
    cut = np.linspace(0, len(ranges), threads + 1).astype(int)
    return [ranges[a:b] for a, b in pairwise(cut.tolist())]


def _run_lanes(
    lanes: list[list[tuple[int, int]]],
    task: Callable[[int, int, int], object],
    tick: Callable[[], None],
) -> None:
    """Run ``task(lane, first, last)``: lanes side by side, the ranges of a lane one after another."""
    for step in range(max(len(lane) for lane in lanes)):
        tick()
        work = [(k, *lane[step]) for k, lane in enumerate(lanes) if step < len(lane)]
        run_all([partial(task, *item) for item in work], len(lanes))


def transposed_system(
    indptr: IntArray,
    indices: NDArray[np.integer],
    data: FloatArray,
    *,
    order: IntArray | None = None,
    window: int = 0,
    jumps: bool = False,
    threads: int = 1,
    tick: Callable[[], None] = go_on,
) -> PullSystem:
    """Transpose a matrix for pulling, in O(entries); the result does not depend on ``threads``.

    Each thread counts and scatters its own rows; its slots start where those of the threads
    before it end, so rows come out sorted by source for any number of threads. Without an ``order`` each
    ``window`` of nodes (0: none) is sorted by falling in-degree: rows of equal length cost no mispredicted
    branches, which pays where node numbers carry no locality anyway. ``jumps`` divides the weights of each
    source by what leaves it, and ``loops`` likewise: the chain watched when it moves.
    """
    size = indptr.size - 1
    lanes = _lanes(indptr, threads if indices.size > THREAD_WORK else 1)
    place_type = np.int64 if indices.size > np.iinfo(np.int32).max else np.int32
    slots = np.zeros((len(lanes), size), place_type)
    loops, leaving = np.zeros(size), np.empty(size)

    def count(lane: int, first: int, last: int) -> None:
        sparse.count_columns(indptr, indices, data, first, last, slots[lane], loops, leaving)

    _run_lanes(lanes, count, tick)
    if jumps and size > 1:
        if not leaving.min() > 0.0:
            raise ValueError(f"state {int(np.argmin(leaving))} has no way out: the chain is not irreducible")
        loops /= leaving
    else:
        leaving = np.ones(size)
    degree = slots.sum(axis=0, dtype=place_type)
    if order is None and window:
        order = np.empty(size, np.int64)
        sparse.order_by_count(degree, window, order)
    out_indptr = np.zeros(size + 1, np.int64)
    np.cumsum(degree if order is None else degree[order], out=out_indptr[1:])
    label, start = _labels(order, out_indptr, indices.dtype)
    for lane in slots:
        lane_count = lane.copy()
        lane[:] = start
        start += lane_count
    sources = np.empty(int(out_indptr[-1]), indices.dtype)
    weights = np.empty(sources.size) if data.size else _NO_WEIGHTS

    def scatter(lane: int, first: int, last: int) -> None:
        sparse.scatter_transpose(
            indptr, indices, data, leaving, label, first, last, slots[lane], sources, weights
        )

    _run_lanes(lanes, scatter, tick)
    loops = loops if order is None else loops[order]
    return PullSystem(out_indptr, sources, weights, loops, order, threads, tick)


def row_system(
    indptr: IntArray,
    indices: NDArray[np.integer],
    data: FloatArray,
    *,
    threads: int = 1,
    tick: Callable[[], None] = go_on,
) -> PullSystem:
    """The matrix itself for pulling, self-loops taken out; O(entries)."""
    size, row = indptr.size - 1, row_of_entry(indptr)
    loop = indices == row
    weights = data if data.size else np.ones(indices.size)
    loops: FloatArray = np.bincount(row[loop], weights[loop], size).astype(float)
    if loop.any():
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row[~loop], minlength=size))])
        indices, data = indices[~loop], data[~loop] if data.size else data
    return PullSystem(indptr, indices, data, loops, None, threads, tick)


def _labels(
    order: IntArray | None, out_indptr: IntArray, index_type: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """New number of each node, and where its row starts, by old number."""
    size = out_indptr.size - 1
    place_type = np.int64 if out_indptr[-1] > np.iinfo(np.int32).max else np.int32
    start = out_indptr[:-1].astype(place_type)
    if order is None:
        return np.arange(size, dtype=index_type), start
    label = np.empty(size, index_type)
    label[order] = np.arange(size, dtype=index_type)
    return label, start[label]


# -- what the numbers of nodes say about the edges, from an evenly spread sample of them ---------------------


def _steps(indptr: IntArray, indices: NDArray[np.signedinteger], sample: int) -> IntArray:
    """From source to target, in numbers, of the sampled edges."""
    places = np.linspace(0, indices.size - 1, sample).astype(np.int64)
    return np.asarray(indices[places] - (np.searchsorted(indptr, places, side="right") - 1), dtype=np.int64)


def lacks_locality(indptr: IntArray, indices: NDArray[np.signedinteger], window: int = CACHE_WINDOW) -> bool:
    """Whether most edges join nodes whose numbers are too far apart for a near cache."""
    if indptr.size - 1 <= 2 * window or not indices.size:
        return False
    return bool((np.abs(_steps(indptr, indices, 65_536)) > window).mean() > 0.5)


def is_arbitrary(indptr: IntArray, indices: NDArray[np.signedinteger]) -> bool:
    """Whether sweeps lose nothing by another order: edges lead far, and neither up nor down.

    Along a numbering that follows the flow of the chain one sweep does the work of many.
    """
    size = indptr.size - 1
    steps = _steps(indptr, indices, 2_048) if indices.size else np.zeros(0, dtype=np.int64)
    steps = steps[steps != 0]
    if not steps.size:
        return False
    near = float((np.abs(steps) < size / 32).mean())
    upwards = float((steps > 0).mean())
    return near < FEW_NEAR and 1.0 - EVEN < upwards < EVEN
