"""One part of a spread chain: its rows in pull form, and sums that cross from part to part.

A part holds the rows of its own source states, so whatever belongs to a source (counts, policy, what is kept)
is local. In pull form the same entries are sorted by target: the sums for targets of other parts travel, one
number for each target reached, whatever the number of entries behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.rows import row_sums
from lingendice.distributed.blocks import RowBlock
from lingendice.distributed.mesh import PIECE, Array, Mesh
from lingendice.kernels.chains import power_rounds
from lingendice.solvers.pull_system import row_ranges

NO_WEIGHTS, EVERYWHERE = np.empty(0), np.empty(0, np.int32)


@dataclass
class PullForm:
    """Entries of a part sorted by target; targets are those of part 0, then of part 1, ..."""

    indptr: Array
    sources: Array
    weights: Array
    cuts: list[int]
    """First target of every part, and the end. All states of the part itself are among its targets."""
    targets: Array
    """Their numbers in the whole."""
    places: list[Array]
    """For every other part, where the sums that it sends go; empty for all states in order."""
    sizes: list[int]
    """How many sums every other part sends."""
    row_weight: Any
    """What it was made for: the weights of cells, or None for plain counts."""


class Part:
    """A row block where it is worked on, with what was made of it."""

    def __init__(self, block: RowBlock, index: int, edges: list[int]) -> None:
        self.block, self.index, self.edges = block, index, edges
        self.size = block.last - block.first
        self.pull: PullForm | None = None
        self.system: Any = None
        """Key of the system that ``pull`` belongs to."""

    # -- building ------------------------------------------------------------------------------------------

    def prepare(self, mesh: Mesh, system: Any, row_weight: Any) -> int:
        """Make the pull form and exchange which targets are reached; nothing to do for the same system."""
        if self.system != system:
            self.pull = None
            self.pull = self._pull_form(row_weight)
            self.system = system
            self._exchange_targets(mesh)
        assert self.pull is not None
        return int(self.pull.sources.size)

    def _pull_form(self, row_weight: Any) -> PullForm:
        from scipy.sparse import csr_array

        block, n_actions = self.block, self.block.n_actions or 1
        goes_on = block.indices != block.n_states
        if row_weight is None:
            data: Any = block.count
        else:
            total = row_sums(block.indptr, np.where(goes_on, block.count, 0)).astype(float)
            scale = np.divide(row_weight, total, out=np.zeros(block.n_cells), where=total > 0)
            data = block.count * np.repeat(scale, np.diff(block.indptr))
            goes_on &= data > 0.0
        indices, indptr = block.indices, block.indptr[::n_actions]
        if not goes_on.all():
            lengths = np.concatenate([[0], np.cumsum(goes_on)])
            indptr, indices, data = lengths[indptr], indices[goes_on], data[goes_on]
        data = _compact(data)
        reached = np.zeros(block.n_states, bool)
        reached[indices] = True
        reached[block.first : block.last] = True
        targets = np.flatnonzero(reached)
        label = np.cumsum(reached, dtype=np.int32)
        label -= 1
        unit = data.size == 0
        held = csr_array(
            (np.ones(indices.size, np.int8) if unit else data, label[indices], indptr),
            shape=(self.size, targets.size),
        ).tocsc()
        if n_actions > 1 and not unit:
            held.sum_duplicates()
        return PullForm(
            held.indptr.astype(np.int64),
            held.indices.astype(np.int32, copy=False),
            NO_WEIGHTS if unit else held.data,
            np.searchsorted(targets, self.edges).tolist(),
            targets,
            [EVERYWHERE] * (len(self.edges) - 1),
            [0] * (len(self.edges) - 1),
            row_weight,
        )

    def _exchange_targets(self, mesh: Mesh) -> None:
        pull = self.pull
        assert pull is not None
        mesh.begin()
        for dest in mesh.others:
            reached = pull.targets[pull.cuts[dest] : pull.cuts[dest + 1]] - self.edges[dest]
            everywhere = reached.size == self.edges[dest + 1] - self.edges[dest]
            mesh.post(
                dest, 0, np.array([reached.size]), EVERYWHERE if everywhere else reached.astype(np.int32)
            )
        for source in mesh.others:
            size, places = mesh.take(source)
            pull.sizes[source], pull.places[source] = int(size[0]), np.array(places)

    # -- sums over entries ---------------------------------------------------------------------------------

    def pushed(
        self, mesh: Mesh, y: Array, numbers: Floats, buffers: Any, *, from_others: bool = False
    ) -> tuple[Floats, list[Floats]]:
        """Sums of ``w y`` into the part's own states from all parts, and everybody's ``numbers``.

        Sums for others are sent piece by piece before the part's own are made, so that they travel meanwhile.
        """
        pull = self.pull
        assert pull is not None
        buffer = buffers[mesh.begin()]
        for dest in mesh.others:
            first, last = pull.cuts[dest], pull.cuts[dest + 1]
            for piece, (begin, end) in enumerate(pieces_of(last - first)):
                sums = buffer[dest][begin:end] if y.dtype == np.float64 else buffer[dest].view(np.float32)
                sums = sums if y.dtype == np.float64 else sums[begin:end]
                self._pull(y, first + begin, first + end, sums)
                mesh.post(dest, piece, *((numbers, sums) if piece == 0 else (sums,)))
        drawn = buffer[self.index]
        own = pull.cuts[self.index]
        if from_others:
            drawn[:] = 0.0
        else:
            self._pull(y, own, own + self.size, drawn)
        everybody = [numbers] * mesh.n_parts
        for source in mesh.others:
            for piece, (begin, end) in enumerate(pieces_of(pull.sizes[source])):
                came = mesh.take(source, piece)
                if piece == 0:
                    everybody[source] = came[0]
                places = pull.places[source]
                where = drawn[begin:end] if places.size == 0 else drawn
                power_rounds.add_at(places[begin:end], _aligned(came[-1]), where)
        return drawn, everybody

    def buffers(self) -> list[list[Floats]]:
        """Room for the sums of two rounds, so that one can be written while the other still travels."""
        pull = self.pull
        assert pull is not None
        return [[np.empty(last - first) for first, last in pairwise(pull.cuts)] for _ in range(2)]

    def _pull(self, y: Array, first: int, last: int, drawn: Array) -> None:
        pull = self.pull
        assert pull is not None
        for begin, end in row_ranges(pull.indptr, first, last) if last > first else ():
            power_rounds.pull_rows(
                pull.indptr, pull.sources, pull.weights, y, begin, end, drawn[begin - first : end - first]
            )

    def fetched(self, mesh: Mesh, values: Array) -> Array:
        """Values of all targets, given those of the part's own states."""
        pull = self.pull
        assert pull is not None
        mesh.begin()
        for dest in mesh.others:
            places = pull.places[dest]
            wanted = values[:0] if pull.sizes[dest] == 0 else values if places.size == 0 else values[places]
            for piece, (begin, end) in enumerate(pieces_of(pull.sizes[dest])):
                mesh.post(dest, piece, wanted[begin:end])
        held = np.empty((pull.cuts[-1], *values.shape[1:]), values.dtype)
        held[pull.cuts[self.index] : pull.cuts[self.index + 1]] = values
        for source in mesh.others:
            first, last = pull.cuts[source], pull.cuts[source + 1]
            for piece, (begin, end) in enumerate(pieces_of(last - first)):
                (came,) = mesh.take(source, piece)
                held[first + begin : first + end] = came
        return held

    def pulled_back(self, values: Floats) -> Floats:
        """For every own state, the sum of ``w values`` over its targets; ``values`` of all targets."""
        pull = self.pull
        assert pull is not None
        gathered = np.zeros(self.size)
        for begin, end in row_ranges(pull.indptr, 0, pull.cuts[-1]):
            power_rounds.push_rows(
                pull.indptr, pull.sources, pull.weights, values[begin:end], begin, end, gathered
            )
        return gathered


def pieces_of(size: int) -> list[tuple[int, int]]:
    """Ranges that a message of so many numbers is cut into; one, maybe empty, at least."""
    return [(begin, min(begin + PIECE, size)) for begin in range(0, max(size, 1), PIECE)]


def _compact(weights: Array) -> Array:
    """Weights in four bytes where that loses nothing, and in none where all are one."""
    if weights.size == 0 or (weights.min() == 1 and weights.max() == 1):
        return NO_WEIGHTS
    if weights.dtype.kind in "iu" and weights.max() < 2**24:
        return weights.astype(np.float32)
    return weights.astype(np.float64)


def _aligned(array: Array) -> Array:
    """What came over the wire may lie anywhere; kernels are compiled for arrays that lie at whole words."""
    return np.require(array, requirements=["C", "A"])
