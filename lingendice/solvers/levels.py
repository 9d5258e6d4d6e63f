"""Chains in the layout the kernels sweep over, their blocks, and the chains between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels import aggregation_steps as kernels
from lingendice.kernels.gth_dense import gth_dense
from lingendice.kernels.parallel import run_all
from lingendice.kernels.sparse_rows import order_by_count
from lingendice.solvers.pull_system import is_arbitrary, row_ranges

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Indices = NDArray[np.uint32]

CHUNK = 4_000_000  # entries a kernel call may touch: well below 0.2 s
PARALLEL_FROM = 2_000_000  # entries from which two half sweeps side by side beat one
DENSE_LIMIT = 256  # blocks up to which the chain between them is solved densely
CLUSTERS = 128  # clusters over which a settled distribution is checked
GAP_BINS = 3  # factors of two without a merge that make a gap
GAP_VISITS = 12  # cycles spent at most on a chain between blocks that is itself large
STRONG = 0.25  # inflow, relative to the largest, that links a state to its source
ROUNDING = 2e-14  # relative changes below this are rounding
WINDOW = 4096  # neighboring states renumbered by their number of sources: few enough to stay near each other


@dataclass(frozen=True)
class Effort:
    """How much a cycle does: sweeps before and after the correction, cycles of the chain between blocks."""

    before: int
    after: int
    visits: int


@dataclass
class Level:
    """One chain in pull layout: sources and probabilities of each target (see the kernels)."""

    start: IntArray
    source: Indices
    weight: FloatArray
    tick: Callable[[], None]
    threads: int = 1
    label: Indices | None = None
    count: int = 0
    gap: bool = False
    members: tuple[IntArray, Indices] | None = None
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranges = row_ranges(self.start, 0, self.size, CHUNK)

    @property
    def size(self) -> int:
        return self.start.size - 1

    def sweep(self, y: FloatArray, forward: bool, relaxation: float = 1.0) -> float:
        """One sweep in place; return the largest relative change."""
        if self.threads > 1 and self.source.size >= PARALLEL_FROM:
            return self._sweep_halves(y, forward, relaxation)
        largest = 0.0
        for first, last in self.ranges if forward else reversed(self.ranges):
            self.tick()
            change = kernels.sweep(self.start, self.source, self.weight, y, first, last, forward, relaxation)
            largest = max(largest, change)
        return largest

    def _sweep_halves(self, y: FloatArray, forward: bool, relaxation: float) -> float:
        # Both halves read and write the same vector: whichever value a thread finds, old or new, the sweep
        # converges. Working on copies instead would more than double the number of sweeps.
        middle = int(np.searchsorted(self.start, self.start[-1] // 2))
        pieces = [row_ranges(self.start, *half, CHUNK) for half in ((0, middle), (middle, self.size))]
        if not forward:
            pieces = [piece[::-1] for piece in pieces]
        largest = 0.0
        for step in range(max(map(len, pieces))):
            self.tick()
            edges = (self.start, self.source, self.weight)
            tasks = [
                partial(kernels.sweep, *edges, y, *piece[step], forward, relaxation)
                for piece in pieces
                if step < len(piece)
            ]
            largest = max(largest, *run_all(tasks, 2))
        return largest

    def residual(self, y: FloatArray) -> float:
        """L1 norm of ``y - Q'y``."""
        total = 0.0
        for first, last in self.ranges:
            self.tick()
            total += kernels.residual(self.start, self.source, self.weight, y, first, last)
        return total

    def use_blocks(self, label: Indices, count: int, gap: bool) -> None:
        self.label, self.count, self.gap = label, count, gap
        self.members = kernels.list_members(label, count)

    def coarse(self, y: FloatArray) -> tuple[Level, FloatArray]:
        """The chain between blocks under ``y``, and the flow out of every block."""
        assert self.label is not None
        assert self.members is not None
        begin, member = self.members
        block_start = np.zeros(self.count + 1, dtype=np.int64)
        # room for every edge: pages never written to cost nothing
        block_source = np.empty(self.source.size, dtype=np.uint32)
        flow = np.empty(self.source.size)
        outflow = np.zeros(self.count)
        slot = np.full(self.count, -1, dtype=np.int64)
        pull = kernels.Pull(self.start, self.source, self.weight)
        partition = kernels.Partition(self.label, begin, member)
        blocks = kernels.Pull(block_start, block_source, flow)
        per_block = max(1, CHUNK * self.count // max(1, self.source.size))
        for first in range(0, self.count, per_block):
            self.tick()
            last = min(self.count, first + per_block)
            kernels.coarsen(pull, y, partition, first, last, slot, blocks, outflow)
        used = block_start[-1]
        block_source, flow = block_source[:used], flow[:used]
        for first in range(0, used, CHUNK):
            piece = slice(first, first + CHUNK)
            kernels.divide_by_outflow(block_source[piece], flow[piece], outflow)
        return Level(block_start, block_source, flow, self.tick, self.threads), outflow


@dataclass
class JumpChain:
    """The chain watched when it moves, over renumbered states.

    State ``order[k]`` is number ``k`` of the level. ``stay`` is the mean stay ``s_i / D_i``, by that number.
    """

    level: Level
    stay: FloatArray
    order: IntArray

    def by_state(self, values: FloatArray) -> FloatArray:
        """Values of the level's numbers, by state."""
        ordered = np.empty_like(values)
        ordered[self.order] = values
        return ordered


def jump_chain(
    indptr: IntArray, indices: NDArray[np.int32], data: FloatArray, tick: Callable[[], None], threads: int = 1
) -> JumpChain:
    """Pull layout of the chain watched when it moves.

    Where the numbering is arbitrary, states with equally many sources are put side by side, within windows:
    a processor foresees the ends of equally long rows, which halves the time of a sweep over short ones.
    """
    n = indptr.size - 1
    columns = indices.view(np.uint32)
    exit_weight, total_weight = np.empty(n), np.empty(n)
    count = np.zeros(n + 1, dtype=np.int64)
    ranges = row_ranges(indptr, 0, n, CHUNK)
    for first, last in ranges:
        tick()
        kernels.count_targets(indptr, columns, data, first, last, exit_weight, total_weight, count[1:])
    if n > 1 and not exit_weight.min() > 0.0:
        raise ValueError(f"state {int(np.argmin(exit_weight))} has no way out: the chain is not irreducible")
    order = np.arange(n)
    if is_arbitrary(indptr, indices):
        order_by_count(count[1:], WINDOW, order)
    place = np.empty(n, dtype=np.uint32)
    place[order] = np.arange(n, dtype=np.uint32)
    start = np.concatenate([[0], np.cumsum(count[1:][order])])
    cursor = start[place]
    source = np.empty(start[-1], dtype=np.uint32)
    weight = np.empty(start[-1])
    for first, last in ranges:
        tick()
        kernels.fill_pull(indptr, columns, data, first, last, exit_weight, place, cursor, source, weight)
    stay = (total_weight / exit_weight)[order] if n > 1 else np.ones(n)
    return JumpChain(Level(start, source, weight, tick, threads), stay, order)


def rows(level: Level) -> tuple[IntArray, Indices, FloatArray]:
    """The same chain by source: start, targets, probabilities."""
    start = np.concatenate([[0], np.cumsum(np.bincount(level.source, minlength=level.size))]).astype(np.int64)
    cursor = start[:-1].copy()
    target = np.empty(level.source.size, dtype=np.uint32)
    weight = np.empty(level.source.size)
    for first, last in level.ranges:
        level.tick()
        kernels.fill_rows(level.start, level.source, level.weight, first, last, cursor, target, weight)
    return start, target, weight


def gap_blocks(level: Level) -> tuple[Indices | None, int]:
    """Blocks at the finest gap of the weights: components of the graph of all weights above it.

    Weights are taken by their binary exponent, strongest first. A gap is a run of ``GAP_BINS`` exponents in
    which no component joins another. ``O(nnz)`` for every exponent in use until all is joined.
    """
    n = level.size
    bits = level.weight.view(np.int64)
    histogram = np.zeros(kernels.WEIGHT_BINS, dtype=np.int64)
    for first in range(0, bits.size, CHUNK):
        level.tick()
        kernels.count_bins(bits, first, min(bits.size, first + CHUNK), histogram)
    parent = np.arange(n, dtype=np.uint32)
    components, last_merge, strongest = n, GAP_BINS, 0
    for weakest in np.flatnonzero(histogram).tolist():
        if weakest <= GAP_BINS and components == n and histogram[weakest + 1 :].any():
            continue
        candidate = 1 < components <= n // 2 and weakest - last_merge > GAP_BINS
        before = parent.copy() if candidate else parent
        remaining = components
        for first, last in level.ranges:
            level.tick()
            remaining = kernels.merge_bins(
                level.start, level.source, bits, first, last, strongest, weakest, remaining, parent
            )
        if candidate and remaining < components:
            label = np.empty(n, dtype=np.uint32)
            return label, kernels.label_components(before, label)
        if remaining < components:
            components, last_merge = remaining, max(last_merge, weakest)
        if components == 1:
            break
        strongest = weakest + 1
    return None, 1


def choose_blocks(level: Level, y: FloatArray) -> None:
    """Blocks of strongly linked neighbors under the present ``y``, which must be finite."""
    label = np.full(level.size, level.size, dtype=np.uint32)
    edges = (level.start, level.source, level.weight)
    count = 0
    for first, last in level.ranges:
        level.tick()
        count = kernels.root_blocks(*edges, y, STRONG, first, last, count, label)
    for first, last in level.ranges:
        level.tick()
        kernels.join_blocks(*edges, y, first, last, label)
    level.use_blocks(label, count, gap=False)


def cluster_correct(level: Level, y: FloatArray) -> float:
    """Rescale ``y`` over about ``CLUSTERS`` clusters, in place; return the largest change.

    Blocks join along their strongest inflows until few enough are left, and the chain between them is solved
    densely. A few passes over the edges show slow modes that changes from sweep to sweep would hide.
    """
    label = np.arange(level.size, dtype=np.uint32)
    size = np.ones(level.size, dtype=np.int64)
    edges = (level.start, level.source, level.weight)
    count, most = level.size, 4 * level.size // CLUSTERS
    while count > 2 * CLUSTERS:
        best, best_source = np.zeros(count), np.zeros(count, dtype=np.uint32)
        for first, last in level.ranges:
            level.tick()
            kernels.strongest_inflows(*edges, y, label, first, last, best, best_source)
        joined = kernels.join_strongest(best_source, most, CLUSTERS, size, label)
        # bounded sizes keep one cluster from swallowing all; the bound gives way where it stops progress
        most = most if 2 * joined < count else 4 * most
        count = joined
    flow = np.zeros((count, count))
    for first, last in level.ranges:
        level.tick()
        kernels.dense_flows(*edges, y, label, first, last, flow)
    factor, _ = gth_dense(flow)
    factor *= y.sum() / np.dot(factor, np.bincount(label, y, count))
    return _spread(y, label, factor)


def _spread(y: FloatArray, label: Indices, factor: FloatArray) -> float:
    """Rescale ``y`` block by block; infinity, and nothing done, where masses left the range of doubles."""
    if not (np.all(np.isfinite(factor)) and factor.min() > 0.0):
        return np.inf
    return float(kernels.spread(y, label, factor))


def correct(level: Level, y: FloatArray, effort: Effort) -> float:
    """Solve the chain between blocks and rescale ``y`` block by block, in place; return the largest change.

    The chain between blocks is solved densely when small, else by cycles of its own: ``effort.visits`` of
    them, more behind a gap, where the blocks' masses must be right before sweeps can help. Infinity means
    that flows have underflowed, and that ``y`` is left as it was.
    """
    if not np.isfinite(y.sum()):
        return np.inf
    if level.label is None:
        choose_blocks(level, y)
    assert level.label is not None
    if level.count == 1:
        return 0.0
    coarse, outflow = level.coarse(y)
    if not (outflow.min() > 0.0 and np.isfinite(outflow.sum())):
        return np.inf
    if level.count <= DENSE_LIMIT:
        dense = np.zeros((level.count, level.count))
        kernels.scatter_dense(coarse.start, coarse.source, coarse.weight, dense)
        z, _ = gth_dense(dense)
    else:
        z = outflow / outflow.sum()
        if level.gap:
            label, count = gap_blocks(coarse)
            if label is not None:
                coarse.use_blocks(label, count, gap=True)
        for _ in range(GAP_VISITS if level.gap else effort.visits):
            change = cycle(coarse, z, effort)
            if not np.isfinite(change):
                return np.inf
            if change < ROUNDING:
                break
            if not coarse.gap:
                coarse.label = None
    factor = z / outflow
    factor *= outflow.sum() / z.sum()
    return _spread(y, level.label, factor)


def cycle(level: Level, y: FloatArray, effort: Effort) -> float:
    """Sweeps, a correction between blocks, sweeps the other way; return the largest relative change seen."""
    change = 0.0
    for _ in range(effort.before):
        change = max(change, level.sweep(y, True))
    change = max(change, correct(level, y, effort))
    for _ in range(effort.after):
        change = max(change, level.sweep(y, False))
    return change
