"""One part of a spread chain: its rows in pull form, and sums that cross from part to part.

A part holds the rows of its own source states, so whatever belongs to a source (counts, policy, what is kept)
is local. In pull form the same entries are sorted by target: the sums for targets of other parts travel, one
number for each target reached, whatever the number of entries behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.rows import row_sums
from lingendice.distributed.blocks import RowBlock
from lingendice.distributed.mesh import Array, Mesh, listen
from lingendice.kernels import part_rounds
from lingendice.model.transition_rows import find_classes
from lingendice.results.interval import Entries, Piece

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NO_WEIGHTS = np.empty(0)


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
    """For every other part, where the sums that it sends go."""
    weighted: bool
    """Whether weights are probabilities under a policy, not plain counts."""


class Condensed(NamedTuple):
    """A part's strongly connected components, and which of them lead to which of any part."""

    component: Array
    """Of every state of the part, numbered over all parts."""
    n_all: int
    edges: Array
    """Pairs of components, once each; distributions that rows fall back to are numbered after all of them."""


class Part:
    """A row block where it is worked on, with what is computed from it.

    Phases are called on all parts at once, :meth:`prepare` before any other.
    """

    pull: PullForm

    def __init__(self, block: RowBlock, index: int, edges: list[int]) -> None:
        self.block, self.index, self.edges = block, index, edges
        self.size = edges[index + 1] - edges[index]
        self.system: Any = None
        """Names what ``pull`` was made for; None before :meth:`prepare`."""

    # -- building ------------------------------------------------------------------------------------------

    def prepare(self, mesh: Mesh, system: Any, row_weight: Any) -> None:
        """Make the pull form and exchange which targets are reached; nothing to do for the same system.

        ``row_weight`` is by cell, or None for plain counts.
        """
        # One part that was made anew, as its worker was lost, is reason enough for all.
        if not all(held[0][0] for held in mesh.gather(np.array([self.system == system]))):
            self.__dict__.pop("pull", None)  # gone before the next is made
            self.pull = self._pull_form(
                None if row_weight is None else vector(row_weight, self.block.n_cells)
            )
            self._exchange_targets(mesh)
            self.system = system

    def _pull_form(self, row_weight: Any) -> PullForm:
        from scipy.sparse import csr_array

        block, n_actions = self.block, self.block.n_actions or 1
        goes_on = block.indices != block.n_states
        if row_weight is None:
            data: Any = block.count
        else:
            total = self._counted()
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
        reached[self.edges[self.index] : self.edges[self.index + 1]] = True
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
            [],
            row_weight is not None,
        )

    def totals(self) -> Floats | None:
        """What turns weights into probabilities: sums of counts; None where weights are probabilities."""
        return None if self.pull.weighted else self._counted()

    def _counted(self) -> Floats:
        """Transitions of each cell that go on."""
        block = self.block
        return row_sums(block.indptr, np.where(block.indices != block.n_states, block.count, 0)).astype(float)

    def own_matrix(self, c: Floats | None = None) -> csr_array:
        """Entries from the part's own states to its own states, by target: ones, or ``c`` times weights."""
        from scipy.sparse import csr_array

        pull, index = self.pull, self.index
        first, last = pull.cuts[index], pull.cuts[index + 1]
        begin, end = int(pull.indptr[first]), int(pull.indptr[last])
        sources = pull.sources[begin:end]
        data: Any = np.ones(sources.size, np.int8)
        if c is not None:
            data = c[sources] * (pull.weights[begin:end] if pull.weights.size else 1.0)
        return csr_array((data, sources, pull.indptr[first : last + 1] - begin), shape=(self.size, self.size))

    def _exchange_targets(self, mesh: Mesh) -> None:
        pull = self.pull
        mesh.begin()
        for dest in mesh.others:
            reached = pull.targets[pull.cuts[dest] : pull.cuts[dest + 1]] - self.edges[dest]
            mesh.post(dest, reached.astype(np.int32))
        pull.places = [
            np.empty(0, np.int32) if source == self.index else aligned(mesh.take(source)[0])
            for source in range(mesh.n_parts)
        ]

    # -- sums over entries ---------------------------------------------------------------------------------

    def pushed(
        self, mesh: Mesh, y: Array, numbers: Floats, *, from_others: bool = False
    ) -> tuple[Floats, list[Floats]]:
        """Sums of ``w y`` into the part's own states from all parts, and everybody's ``numbers``.

        Sums for others are sent before the part's own are made, so that they travel meanwhile.
        """
        mesh.begin()
        for dest in mesh.others:
            mesh.post(dest, numbers, self._pulled(y, dest, y.dtype))
        drawn = np.zeros(self.size) if from_others else self._pulled(y, self.index, np.float64)
        everybody = [numbers] * mesh.n_parts
        for source in mesh.others:
            everybody[source], sums = mesh.take(source)
            part_rounds.add_at(self.pull.places[source], aligned(sums), drawn)
        return drawn, everybody

    def _pulled(self, y: Array, dest: int, dtype: Any) -> Array:
        """Sums of ``w y`` into the targets in one part."""
        pull, (first, last) = self.pull, self.pull.cuts[dest : dest + 2]
        drawn = np.empty(last - first, dtype)
        part_rounds.pull_rows(pull.indptr, pull.sources, pull.weights, y, first, last, drawn)
        return drawn

    def fetched(self, mesh: Mesh, values: Array) -> Array:
        """Values of all targets, given those of the part's own states."""
        pull = self.pull
        mesh.begin()
        for dest in mesh.others:
            mesh.post(dest, values[pull.places[dest]])
        held = np.empty(pull.cuts[-1], values.dtype)
        for source in range(mesh.n_parts):
            came = values if source == self.index else mesh.take(source)[0]
            held[pull.cuts[source] : pull.cuts[source + 1]] = came
        return held

    def pulled_back(self, values: Floats) -> Floats:
        """For every own state, the sum of ``w values`` over its targets; ``values`` of all targets."""
        pull = self.pull
        gathered = np.zeros(self.size)
        part_rounds.push_rows(pull.indptr, pull.sources, pull.weights, values, gathered)
        return gathered

    # -- phases over entries -------------------------------------------------------------------------------

    def condense(self, mesh: Mesh, out: Floats, distribution: Floats) -> Condensed:
        """Components of the part's own graph: all that the whole graph's components are made of.

        What is left to look at is edges between components, on the client: few where a part holds most of
        what its states lead to.
        """
        pull = self.pull
        # Components are the same with all edges turned round.
        local = find_classes(self.own_matrix()).component.astype(np.int64)
        counts = [int(held[0][0]) for held in mesh.gather(np.array([int(local.max(initial=-1)) + 1]))]
        n_all = sum(counts)
        n_nodes = n_all + distribution.shape[1]
        component = local + sum(counts[: self.index])
        to = np.repeat(self.fetched(mesh, component), np.diff(pull.indptr))
        came = component[pull.sources]
        apart = to != came
        pairs = [np.unique(came[apart] * n_nodes + to[apart])]
        for hub, (leaving, entering) in enumerate(zip(out.T, distribution.T, strict=True)):
            pairs.append(np.unique(component[leaving > 0.0]) * n_nodes + n_all + hub)
            pairs.append((n_all + hub) * n_nodes + np.unique(component[entering > 0.0]))
        keys = np.concatenate(pairs)
        return Condensed(component, n_all, np.stack(np.divmod(keys, n_nodes)))

    def _after(self, mesh: Mesh, values: Any, ending: float) -> Floats:
        """Of every entry, the value of its next state; ``ending`` of the terminal one, numbered last."""
        fetched = np.append(self.fetched(mesh, vector(values, self.size)), ending)
        after: Floats = fetched[np.searchsorted(self.pull.targets, self.block.indices)]
        return after

    def expected_next(self, mesh: Mesh, values: Any) -> Floats:
        """For every cell, the sum of ``values`` over its counted next states, terminal ones aside."""
        return row_sums(self.block.indptr, self.block.count * self._after(mesh, values, 0.0))

    def influence(
        self, mesh: Mesh, values: Any, ending: float, tau: Any, total: float, share: Any, shift: Any,
        reward: Any,
    ) -> Floats:  # fmt: skip
        """Sums of squares of the influence of every entry; all but ``values`` is by cell."""

        def by_cell(given: Any) -> Floats:
            return vector(given, self.block.n_cells)

        after = self._after(mesh, values, ending)[:, None]
        entries = Entries(self.block, by_cell(tau), total)
        noise, moved = entries.noise(by_cell(share), after), by_cell(shift)[entries.cell, None]
        piece = Piece(entries, noise, moved, None, None if reward is None else by_cell(reward))
        return np.concatenate([(piece.rows_of_counts() ** 2).sum(axis=0), piece.pooled()])


def vector(value: Any, size: int) -> Floats:
    """One number for all entries, or one for each, as an array."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=np.float64), size))


def _compact(weights: Array) -> Array:
    """Weights in four bytes where that loses nothing, and in none where all are one."""
    if weights.size == 0 or (weights.min() == 1 and weights.max() == 1):
        return NO_WEIGHTS
    if weights.dtype.kind in "iu" and weights.max() < 2**24:
        return weights.astype(np.float32)
    return weights.astype(np.float64)


def aligned(array: Array) -> Array:
    """What came over the wire may lie anywhere; kernels are compiled for arrays that lie at whole words."""
    return np.require(array, requirements=["C", "A"])


def make_part(block: RowBlock, index: int, edges: list[int]) -> Part:
    """A part on the worker that this task runs on, which is made ready for messages."""
    listen()
    return Part(block, index, edges)
