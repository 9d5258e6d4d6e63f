"""PageRank from many seeds on one prepared graph: all share its edges, and on small graphs the sweeps.

A seed is the personalization of one PageRank. With R(v) the solution of ``x = v + alpha P' x``, a PageRank is
R(v) divided by its sum where nodes without edges are followed by v, else a combination of R(v) and R(w), w
what follows them. Blocks of eight seeds are swept together while a block fits into the cache: the edges are
then read once for eight. Beyond that every gathered row of a block is a miss of the cache, and eight single
vectors take less time (measured at a million nodes: 10.8 ms a sweep for one, 26 for one of eight).

References
----------
R. Andersen, F. Chung, K. Lang (2006). Local graph partitioning using PageRank vectors. FOCS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.kernels.parallel import run_all
from lingendice.kernels.seed_sweeps import COLUMNS, push, sweep_columns
from lingendice.model.prepared_graph import PreparedGraph
from lingendice.model.pull_system import CALL_WORK, PullSystem
from lingendice.solvers.control import Controls, Monitor
from lingendice.solvers.discounted import discounted_distribution
from lingendice.solvers.stationary import SWEEPS_TRIED

Seed = tuple[NDArray[np.int64], Floats]
"""Nodes and their weights, which sum to 1."""

BLOCK_BYTES = 2**23
"""Size of a block of vectors up to which sweeps of it stay in the cache."""
MOST_SWEEPS = 150
"""Sweeps of a block before its seeds are solved one by one, where slow convergence is extrapolated."""
LEAST_PUSHED = 20_000
"""Nodes from which on forward push is tried: sweeps of fewer take a few milliseconds."""
PUSHED_SHARE = 0.1
"""Edges that may be pushed, in numbers of edges of the graph, before sweeps take over. Sweeps read each edge
some forty times, and a push costs about fifty times as much: this is a tenth of their time."""
FIRST_LIMIT, NEXT_LIMIT = 1e-3, 0.25


@dataclass(frozen=True)
class SeedRanks:
    """The PageRank of one seed, and a bound on its L1 error; None where it was not found."""

    ranks: Floats | None
    error: float


def rank_seeds(
    graph: PreparedGraph,
    alpha: float,
    seeds: Sequence[Seed],
    after: Floats | None,
    limits: Controls,
    monitor: Monitor,
    finish: Callable[[int, SeedRanks], None],
    *,
    only_top: bool = False,
) -> None:
    """Find the PageRank of every seed, O(edges) per sweep and block, and hand it to ``finish`` by its place.

    Blocks are spread over the threads; the bits do not depend on their number. ``after`` is what follows
    nodes without edges (None: the seed); 0 < alpha < 1. ``only_top`` tries forward push first.
    """
    work = _Work(graph, alpha, after, limits, monitor, only_top and len(graph) >= LEAST_PUSHED)

    def solve(places: range) -> None:
        for place, found in zip(places, work.solve([seeds[place] for place in places]), strict=True):
            finish(place, found)

    step = 1 if work.one_by_one else COLUMNS
    blocks = [range(first, min(first + step, len(seeds))) for first in range(0, len(seeds), step)]
    run_all([partial(solve, block) for block in blocks], limits.threads)


class _Work:
    """What all blocks share."""

    def __init__(
        self, graph: PreparedGraph, alpha: float, after: Floats | None, limits: Controls, monitor: Monitor,
        pushes: bool,
    ) -> None:  # fmt: skip
        self.graph, self.alpha, self.limits, self.monitor, self.pushes = graph, alpha, limits, monitor, pushes
        n = len(graph)
        self.is_dangling = graph.is_dangling
        self.after = after if self.is_dangling.any() else None
        self.one_by_one = pushes or 8 * n * COLUMNS > BLOCK_BYTES
        self.system: PullSystem = replace(graph.system(limits.threads), tick=monitor.check)
        system = self.system
        self.c = alpha * system.sorted(graph.rows.counted.share)
        self.f = 1.0 / (1.0 - self.c * system.loops)
        self.loss = system.sorted(1.0 - alpha * graph.rows.keep)
        self.from_after: Floats | None = None
        if self.after is not None and not self.one_by_one:
            self.from_after = self._relaxed([system.sorted(self.after)])[0]

    def solve(self, seeds: Sequence[Seed]) -> list[SeedRanks]:
        """The PageRanks of a block, or of one seed."""
        if not self.one_by_one:
            return self._block(seeds)
        return [self._pushed(seed) if self.pushes else self._single(seed) for seed in seeds]

    # -- blocks ------------------------------------------------------------------------------------------

    def _block(self, seeds: Sequence[Seed]) -> list[SeedRanks]:
        system, alpha = self.system, self.alpha
        starts = [system.sorted(self._dense(seed)) for seed in seeds]
        found = []
        for start, ranks in zip(starts, self._relaxed(starts), strict=True):
            follows = start
            if self.from_after is not None and self.after is not None:
                follows = system.sorted(self.after)
                dangling = system.sorted(self.is_dangling)
                mass = (1 - alpha) * (dangling @ ranks) / (1.0 - alpha * (dangling @ self.from_after))
                ranks = (1.0 - alpha) * ranks + alpha * mass * self.from_after
            ranks = ranks / ranks.sum()
            stopped = float(system.sorted(self.is_dangling) @ ranks)
            base = (1.0 - alpha) * start + alpha * stopped * follows
            error = system.imbalance(ranks, self.c * ranks, base) / (1.0 - alpha)
            found.append(SeedRanks(system.unsorted(ranks) if error <= self.limits.tol else None, error))
        return found

    def _relaxed(self, starts: Sequence[Floats]) -> Floats:
        """R(v) of up to eight columns v, by Gauss-Seidel; a column that is slow is returned as it is."""
        n, system = len(self.graph), self.system
        inflow = np.zeros((n, COLUMNS))
        for k in range(COLUMNS):
            inflow[:, k] = self.f * starts[min(k, len(starts) - 1)]
        x = inflow.copy()
        y = self.c[:, None] * x
        scale, drawn = np.ones(COLUMNS), np.empty(COLUMNS)
        previous = np.zeros(COLUMNS)
        goal = 0.3 * self.limits.tol * (1.0 - self.alpha)
        for _ in range(min(MOST_SWEEPS, self.limits.max_iter or MOST_SWEEPS)):
            sums = np.zeros((3, COLUMNS))
            for first, last in system.ranges:
                system.tick()
                sweep_columns(
                    system.rows, self.f, self.c, self.loss, scale, inflow, x, y, first, last, drawn, sums
                )
            change, lost, mass = sums
            moved = (change + np.abs(lost - scale)) / lost
            scale = lost
            # The next pass would move x by about the residual that this one leaves.
            pace = np.divide(moved, previous, out=np.ones(COLUMNS), where=previous > moved)
            estimate, previous = moved * pace, moved
            if (estimate * lost <= goal * mass).all():
                break
        return np.ascontiguousarray((x / scale).T[: len(starts)])

    # -- one by one --------------------------------------------------------------------------------------

    def _dense(self, seed: Seed) -> Floats:
        start = np.zeros(len(self.graph))
        start[seed[0]] = seed[1]
        return start

    def _single(self, seed: Seed) -> SeedRanks:
        start = self._dense(seed)
        found = discounted_distribution(
            self.graph.chain(start if self.after is None else self.after), self.alpha, start,
            tol=self.limits.tol, threads=1, max_sweeps=self.limits.max_iter or SWEEPS_TRIED,
            monitor=self.monitor, system=self.system,
        )  # fmt: skip
        self.monitor.check()
        error = found.residual / (1.0 - self.alpha)
        return SeedRanks(found.solution if found.converged else None, error)

    def _pushed(self, seed: Seed) -> SeedRanks:
        """Forward push with falling limits, until the L1 error is ``tol``; sweeps where that takes too much.

        What follows nodes without edges can be pushed on where that is the seed.
        """
        if self.after is not None:
            return self._single(seed)
        counted, n = self.graph.rows.counted, len(self.graph)
        edges = np.diff(counted.indptr)
        ranks, rest = np.zeros(n), self._dense(seed)
        queue, queued = np.empty(n, dtype=np.int64), np.zeros(n, dtype=bool)
        limit, pushed = FIRST_LIMIT, 0
        while (error := float(rest.sum())) > self.limits.tol:
            waiting = np.flatnonzero(rest > limit * np.maximum(edges, 1))
            queue[: waiting.size], queued[waiting] = waiting, True
            state = np.array([0, waiting.size], dtype=np.int64)
            while state[1]:
                self.monitor.check()
                pushed += push(
                    counted.indptr, counted.indices, counted.data, counted.share, *seed, self.alpha, limit,
                    CALL_WORK, ranks, rest, queue, queued, state,
                )  # fmt: skip
                if pushed > PUSHED_SHARE * counted.indices.size:
                    return self._single(seed)
            limit *= NEXT_LIMIT
        return SeedRanks(ranks, error)
