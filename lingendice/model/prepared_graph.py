"""A graph that was read once, for many PageRanks: its edges, and who draws on whom."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lingendice.data.by_label import state_names
from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.model.transition_rows import TransitionRows, add_hub

if TYPE_CHECKING:
    from lingendice.model.pull_system import PullSystem


@dataclass(frozen=True, eq=False, repr=False)
class PreparedGraph:
    """What :func:`lingendice.prepare` makes of a graph; :func:`lingendice.pagerank` takes it in its place.

    NetworkX takes it, too: ``nx.pagerank(prepared)`` needs no ``backend=``.
    """

    counts: Counts
    matrix: Any
    """The same edges in the form that ``solve`` is to be given."""
    has_names: bool
    """Whether ranks are returned by node."""
    directed: bool = True
    multigraph: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    __networkx_backend__: ClassVar[str] = "lingendice"

    def __len__(self) -> int:
        return self.counts.n_states

    def __repr__(self) -> str:
        return f"PreparedGraph({self.counts.n_states:,} nodes, {self.counts.count.size:,} edges)"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("counts", "matrix", "has_names", "directed", "multigraph")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def is_directed(self) -> bool:
        """Whether the graph that was read was directed."""
        return self.directed

    def is_multigraph(self) -> bool:
        """Whether the graph that was read could have parallel edges; here they are added up."""
        return self.multigraph

    @property
    def nodes(self) -> tuple[Any, ...]:
        """The nodes, in the order of the columns of a matrix of ranks."""
        if self.counts.state_labels is None:
            return tuple(range(len(self)))
        return tuple(map(self.counts.label_of, range(len(self))))  # states beyond the labels have numbers

    @cached_property
    def names(self) -> Any:
        """The names of the nodes, as arguments use them."""
        return state_names(self.counts)

    @cached_property
    def rows(self) -> TransitionRows:
        """Edges as probabilities; rows of nodes without edges are empty."""
        counts, total = self.counts, self.counts.cell_count.astype(float)
        n = counts.n_states
        leaves = (total > 0.0).astype(float)
        return TransitionRows(
            counts.indptr, counts.indices, counts.count, total, leaves, np.zeros((n, 0)), np.zeros((0, n))
        )

    @cached_property
    def is_dangling(self) -> Floats:
        """1 for nodes without edges, else 0."""
        return 1.0 - self.rows.keep

    def system(self, threads: int) -> PullSystem:
        """The edges transposed: made once, by the first who asks."""
        with self._lock:
            found: PullSystem | None = self.__dict__.get("_system")
            if found is None:
                from lingendice.model.pull_system import go_on

                found = self.rows.pull(threads, go_on)
                self.__dict__["_system"] = found
        return replace(found, threads=1)

    def chain(self, after: Floats) -> TransitionRows:
        """The walk whose nodes without edges are followed by ``after``. O(n)."""
        rows = self.rows
        if not self.is_dangling.any():
            return rows
        out, distribution = add_hub(rows.out, rows.distribution, self.is_dangling, after)
        chain = replace(rows, out=out, distribution=distribution)
        # The counted part is the same: what was computed of it need not be found again.
        chain.__dict__["counted"] = rows.counted
        return chain
