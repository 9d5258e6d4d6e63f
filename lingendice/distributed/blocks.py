"""Blocks of rows of an equation, each swept by itself: what a worker of a cluster keeps and does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.rows import kernel_array
from lingendice.kernels.chains import sweeps as gauss_seidel
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers.pull_system import PullSystem, row_ranges


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows of ``x = base + distribution' inflow + A' diag(c) x`` that one worker keeps."""

    indptr: Any
    sources: Any
    weights: Floats
    loops: Floats
    first: int
    c: Floats
    """For every state, not those of the block alone."""
    base: Floats
    distribution: Floats

    @property
    def own(self) -> slice:
        """Its rows."""
        return slice(self.first, self.first + self.indptr.size - 1)

    def is_inside(self) -> Any:
        """For every entry, whether its source is one of the block's rows."""
        return (self.sources >= self.own.start) & (self.sources < self.own.stop)


class Bench:
    """A block where it is swept, with memory that is kept from round to round.

    To touch new memory in every round would take longer than the sweep. Sources are numbered with the block's
    own rows first, then all others in their order.
    """

    def __init__(self, block: Block) -> None:
        # No reference to the block itself, whose end is to be that of its bench.
        own, size = block.own, block.indptr.size - 1
        self.own, self.distribution = own, block.distribution
        others = np.where(block.sources < own.start, block.sources + size, block.sources)
        renamed = np.where(block.is_inside(), block.sources - own.start, others)
        self.sources = renamed.astype(block.sources.dtype, copy=False)
        # What came over the wire may lie anywhere; kernels are compiled for arrays that lie at whole words.
        self.indptr, self.weights, self.base, self.loops = (
            kernel_array(array, array.dtype)
            for array in (block.indptr, block.weights, block.base, block.loops)
        )
        self.c = self._own_first(block.c, np.empty(block.c.size))
        self.ranges = row_ranges(self.indptr, 0, size)
        self.x, self.y = np.empty(size), np.empty(self.c.size)
        self.f, self.g, self.outside, self.unused = (np.zeros(size) for _ in range(4))
        self.active: Any = None

    def _own_first(self, values: Floats, out: Floats) -> Floats:
        own = self.own
        return np.concatenate([values[own], values[: own.start], values[own.stop :]], out=out)

    def _take(self, x: Floats, inflow: Floats) -> None:
        self.x[:] = x[self.own]
        self._own_first(x, self.y)
        self.y *= self.c
        np.matmul(inflow, self.distribution, out=self.outside)
        self.outside += self.base

    def sweep(self, x: Floats, inflow: Floats, active: Any, sweeps: int) -> Floats:
        """The block's rows of x after some sweeps."""
        self._take(x, inflow)
        if self.active is not active:
            stays = self.c[: self.x.size] * self.loops
            self.f[:] = np.where(active[self.own], 1.0 / np.where(stays < 1.0, 1.0 - stays, 1.0), 0.0)
            self.active = active
        np.multiply(self.outside, self.f, out=self.g)
        entries = gauss_seidel.Rows(self.indptr[:-1], self.indptr[1:], self.sources, self.weights)
        terms = gauss_seidel.Terms(self.f, self.g, self.c, self.unused)
        for _ in range(sweeps):
            for rows in self.ranges:
                gauss_seidel.sweep(entries, terms, 1.0, self.x, self.y, *rows)
        return self.x.copy()

    def residual(self, x: Floats, inflow: Floats, active: Any) -> float:
        """L1 norm of the block's rows of the equation's residual at x."""
        self._take(x, inflow)
        each = np.arange(self.x.size + 1)
        chunks = gauss_seidel.Chunks(self.indptr, each, self.sources, self.weights, 1)
        return sum(
            gauss_seidel.residual_chunks(chunks, self.outside, self.loops, self.x, self.y, *rows)
            for rows in self.ranges
        )


_benches: WeakKeyDictionary[Block, Bench] = WeakKeyDictionary()


def run_on_worker(name: str, block: Block, *rest: Any) -> Any:
    """Runs on a worker, never twice at a time for a block."""
    bench = _benches.get(block)
    if bench is None:
        bench = _benches[block] = Bench(block)
    return getattr(bench, name)(*rest)


def cut_rows(whole: PullSystem, chain: TransitionRows, c: Floats, base: Floats, n_blocks: int) -> list[Block]:
    """The transposed chain cut into blocks of rows of about equal work."""
    blocks = []
    for first, last in pairwise(work_edges(whole.indptr, n_blocks).tolist()):
        start, stop = int(whole.indptr[first]), int(whole.indptr[last])
        rows, entries = slice(first, last), slice(start, stop)
        system = whole.sources[entries], whole.weights[entries], whole.loops[rows]
        distribution = np.ascontiguousarray(chain.distribution[:, rows])
        blocks.append(
            Block(whole.indptr[first : last + 1] - start, *system, first, c, base[rows], distribution)
        )
    return blocks


def work_edges(indptr: Any, n_parts: int) -> Any:
    """Rows cut into parts of about equal work: where each begins, and the end."""
    work = indptr + np.arange(indptr.size)
    cuts = np.searchsorted(work, np.arange(1, n_parts) * work[-1] / n_parts)
    return np.unique(np.concatenate([[0], cuts, [indptr.size - 1]]))
