"""Pull forms of chains watched when they move, their blocks, and the chains between blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from lingendice.kernels import aggregation_steps as kernels
from lingendice.kernels.gth_dense import gth_dense
from lingendice.kernels.parallel import run_all
from lingendice.model.pull_system import (
    CALL_WORK,
    FloatArray,
    IntArray,
    PullSystem,
    is_arbitrary,
    row_ranges,
    transposed_system,
)

Indices = NDArray[np.uint32]

PARALLEL_FROM = 2_000_000  # entries from which two half sweeps side by side beat one
DENSE_LIMIT = 256  # blocks up to which the chain between them is solved densely
CLUSTERS = 128  # clusters over which a settled distribution is checked
GAP_BINS = 3  # factors of two without a merge that make a gap
GAP_VISITS = 12  # cycles spent at most on a chain between blocks that is itself large
STRONG = 0.25  # inflow, relative to the largest, that links a state to its source
ROUNDING = 2e-14  # relative changes below this are rounding
WINDOW = 4096  # neighboring states renumbered by their number of sources: few enough to stay near each other


@dataclass(frozen=True)
class CycleEffort:
    """How much a cycle does: sweeps before and after the correction, cycles of the chain between blocks."""

    before: int
    after: int
    visits: int


@dataclass
class Level(PullSystem):
    """A chain watched when it moves, in pull form, and the blocks that its states fall into."""

    label: Indices | None = None
    count: int = 0
    gap: bool = False
    members: tuple[IntArray, Indices] | None = None

    @classmethod
    def of(cls, system: PullSystem) -> Level:
        """A system of jumps: numbers of states unsigned, as the kernels take them."""
        return cls(
            system.indptr, system.sources.view(np.uint32), system.weights, system.loops, system.order,
            system.threads, system.tick,
        )  # fmt: skip

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """Rows that one kernel call covers: a sweep takes them one after another."""
        return row_ranges(self.indptr, 0, self.size, least=1)

    @cached_property
    def edges(self) -> kernels.Pull:
        """The pull form as the kernels take it."""
        return kernels.Pull(self.indptr, self.sources, self.weights)

    @property
    def stay(self) -> FloatArray:
        """Mean number of steps in each state before it is left."""
        return 1.0 + self.loops

    def jumps_back(self) -> Level:
        """The same jumps by source: a row lists targets and probabilities."""
        sources = self.sources.view(np.int32)
        return Level.of(transposed_system(self.indptr, sources, self.weights, tick=self.tick))

    def sweep(self, y: FloatArray, forward: bool, relaxation: float = 1.0) -> float:
        """One sweep in place; return the largest relative change."""
        if self.threads > 1 and self.sources.size >= PARALLEL_FROM:
            return self._sweep_halves(y, forward, relaxation)
        largest = 0.0
        for first, last in self.ranges if forward else reversed(self.ranges):
            self.tick()
            largest = max(largest, kernels.sweep(*self.edges, y, first, last, forward, relaxation))
        return largest

    def _sweep_halves(self, y: FloatArray, forward: bool, relaxation: float) -> float:
        # Both halves read and write the same vector: whichever value a thread finds, old or new, the sweep
        # converges. Working on copies instead would more than double the number of sweeps.
        middle = int(np.searchsorted(self.indptr, self.indptr[-1] // 2))
        pieces = [row_ranges(self.indptr, *half) for half in ((0, middle), (middle, self.size))]
        if not forward:
            pieces = [piece[::-1] for piece in pieces]
        largest = 0.0
        for step in range(max(map(len, pieces))):
            self.tick()
            tasks = [
                partial(kernels.sweep, *self.edges, y, *piece[step], forward, relaxation)
                for piece in pieces
                if step < len(piece)
            ]
            largest = max(largest, *run_all(tasks, 2))
        return largest

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
        block_source = np.empty(self.sources.size, dtype=np.uint32)
        flow = np.empty(self.sources.size)
        outflow = np.zeros(self.count)
        slot = np.full(self.count, -1, dtype=np.int64)
        partition = kernels.Partition(self.label, begin, member)
        blocks = kernels.Pull(block_start, block_source, flow)
        per_block = max(1, CALL_WORK * self.count // max(1, self.sources.size))
        for first in range(0, self.count, per_block):
            self.tick()
            last = min(self.count, first + per_block)
            kernels.coarsen(self.edges, y, partition, first, last, slot, blocks, outflow)
        used = block_start[-1]
        block_source, flow = block_source[:used], flow[:used]
        for first in range(0, used, CALL_WORK):
            piece = slice(first, first + CALL_WORK)
            flow[piece] /= outflow[block_source[piece]]
        loops = np.zeros(self.count)
        return Level(block_start, block_source, flow, loops, None, self.threads, self.tick), outflow


def jump_chain(
    indptr: IntArray, indices: NDArray[np.int32], data: FloatArray, tick: Callable[[], None], threads: int = 1
) -> Level:
    """The chain watched when it moves.

    Where the numbering is arbitrary, states with equally many sources are put side by side, within windows:
    a processor foresees the ends of equally long rows, which halves the time of a sweep over short ones.
    """
    window = WINDOW if is_arbitrary(indptr, indices) else 0
    return Level.of(
        transposed_system(indptr, indices, data, window=window, jumps=True, threads=threads, tick=tick)
    )


def gap_blocks(level: Level) -> tuple[Indices | None, int]:
    """Blocks at the finest gap of the weights: components of the graph of all weights above it.

    Weights are taken by their binary exponent, strongest first. A gap is a run of ``GAP_BINS`` exponents in
    which no component joins another. ``O(nnz)`` for every exponent in use until all is joined.
    """
    n = level.size
    bits = level.weights.view(np.int64)
    histogram = np.zeros(kernels.WEIGHT_BINS, dtype=np.int64)
    for first in range(0, bits.size, CALL_WORK):
        level.tick()
        kernels.count_bins(bits, first, min(bits.size, first + CALL_WORK), histogram)
    parent = np.arange(n, dtype=np.uint32)
    # Exponents up to GAP_BINS count as one: a gap needs stronger weights above it.
    components, last_merge, strongest = n, GAP_BINS, 0
    for weakest in np.flatnonzero(histogram).tolist():
        # These edges are merged together with those of the next exponent, which spares a pass over all edges.
        if weakest <= GAP_BINS and components == n and histogram[weakest + 1 :].any():
            continue
        # Blocks of fewer than two states on average would leave a chain between them that is hardly smaller.
        candidate = 1 < components <= n // 2 and weakest - last_merge > GAP_BINS
        before = parent.copy() if candidate else parent
        remaining = components
        for first, last in level.ranges:
            level.tick()
            remaining = kernels.merge_bins(
                level.indptr, level.sources, bits, first, last, strongest, weakest, remaining, parent
            )
        if candidate and remaining < components:
            # Only this merge shows that the exponents before it were a gap: the blocks are those from before
            # it.
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
    edges = level.edges
    count = 0
    for first, last in level.ranges:
        level.tick()
        count = kernels.root_blocks(*edges, y, STRONG, first, last, count, label)
    for first, last in level.ranges:
        level.tick()
        kernels.join_blocks(*edges, y, first, last, label)
    level.use_blocks(label, count, gap=False)


def join_clusters(
    level: Level, y: FloatArray, label: Indices, count: int, clusters: int = CLUSTERS,
    combine: Callable[[FloatArray, Indices], None] | None = None,
) -> int:  # fmt: skip
    """Join blocks of states along their strongest inflows until about ``clusters`` are left.

    ``label`` names the block of every state, of ``count``, and is overwritten; returns how many are left.
    ``combine`` puts the strongest inflows of all parts in the place of those of one, where a chain is in
    parts.
    """
    size = np.ones(count, dtype=np.int64)
    most = max(2, 4 * count // clusters)
    while count > 2 * clusters:
        best, origin = np.zeros(count), np.arange(count, dtype=np.uint32)
        for first, last in level.ranges:
            level.tick()
            kernels.strongest_inflows(*level.edges, y, label, first, last, best, origin)
        if combine is not None:
            combine(best, origin)
        joined = kernels.join_strongest(origin, most, clusters, size, label)
        if joined == count and most > size.size:
            # Nothing flows between what is left: neighbors by number are as good as any.
            label[:] = label.astype(np.int64) * clusters // count
            return clusters
        # bounded sizes keep one cluster from swallowing all; the bound gives way where it stops progress
        most = most if 2 * joined < count else 4 * most
        count = joined
    return count


def cluster_flows(level: Level, y: FloatArray, label: Indices, count: int) -> FloatArray:
    """Flows between blocks under ``y``, from rows to columns; none within a block."""
    flow = np.zeros((count, count))
    for first, last in level.ranges:
        level.tick()
        kernels.dense_flows(*level.edges, y, label, first, last, flow)
    return flow


def cluster_correct(level: Level, y: FloatArray) -> float:
    """Rescale ``y`` over about ``CLUSTERS`` clusters, in place; return the largest change.

    The chain between clusters is solved densely. A few passes over the edges show slow modes that changes
    from sweep to sweep would hide.
    """
    label = np.arange(level.size, dtype=np.uint32)
    count = join_clusters(level, y, label, level.size)
    # The flows contain y. Taken as rates, they have as their distribution not the clusters' masses but the
    # factors by which the masses are off; these are scaled so that all mass together stays.
    factor, _ = gth_dense(cluster_flows(level, y, label, count))
    factor *= y.sum() / np.dot(factor, np.bincount(label, y, count))
    return _spread(y, label, factor)


def _spread(y: FloatArray, label: Indices, factor: FloatArray) -> float:
    """Rescale ``y`` block by block; infinity, and nothing done, where masses left the range of doubles."""
    if not (np.all(np.isfinite(factor)) and factor.min() > 0.0):
        return np.inf
    y *= factor[label]
    return float(np.abs(factor - 1.0).max())


def correct(level: Level, y: FloatArray, effort: CycleEffort) -> float:
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
        kernels.scatter_dense(*coarse.edges, dense)
        z, _ = gth_dense(dense)
    else:
        # The answer if the masses of the blocks are right already.
        z = outflow / outflow.sum()
        if level.gap:
            label, count = gap_blocks(coarse)
            if label is not None:
                coarse.use_blocks(label, count, gap=True)
        # Between blocks of neighbors a rough answer will do, since the next cycle chooses other blocks.
        # Behind a gap sweeps repair nothing between blocks, so that the answer has to be right.
        for _ in range(GAP_VISITS if level.gap else effort.visits):
            change = cycle(coarse, z, effort)
            if not np.isfinite(change):
                return np.inf
            if change < ROUNDING:
                break
            if not coarse.gap:
                coarse.label = None
    # z is the distribution of the chain watched when it moves from block to block, in proportion to the
    # outflow under the right masses.
    factor = z / outflow
    factor *= outflow.sum() / z.sum()
    return _spread(y, level.label, factor)


def cycle(level: Level, y: FloatArray, effort: CycleEffort) -> float:
    """Sweeps, a correction between blocks, sweeps the other way; return the largest relative change seen."""
    change = 0.0
    for _ in range(effort.before):
        change = max(change, level.sweep(y, True))
    change = max(change, correct(level, y, effort))
    for _ in range(effort.after):
        change = max(change, level.sweep(y, False))
    return change
