"""Counts whose rows lie on the workers of a cluster, and the door to solving them there.

The client keeps sizes, labels and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.counts import Counts
from lingendice.data.saving import StoredFileError, fields_of, read_archive, record_of, write_archive
from lingendice.distributed import blocks as row_blocks
from lingendice.distributed import cluster
from lingendice.distributed.blocks import Margins, RowBlock
from lingendice.distributed.cluster import Crew, client_of, insist, results

if TYPE_CHECKING:
    from lingendice.results.solution import Solution
    from lingendice.solvers.request import Request

_HERE = {
    "n_states", "n_actions", "n_cells", "cell_count", "terminal_count", "has_terminals", "reward",
    "unrewarded", "partly_rewarded", "total",
    "data_distribution", "initial_count", "state_labels", "action_labels", "has_sample_size", "episodes",
    "label_of", "label_of_action", "lag",
}  # fmt: skip
"""What Counts has and the client keeps."""
_ELSEWHERE = {"indptr", "indices", "count", "reward_count", "reward_mean", "reward_m2", "matrix"}

_STORED = ("cell_count", "terminal_count", "reward", "unrewarded", "initial_count")
"""Vectors that the client keeps of stored blocks, in a file of their own: margins, and first states."""
_KIND, _VECTORS, _UNFINISHED = "distributed counts", "vectors.npz", "unfinished"


class DistributedCounts:
    """Counts of transitions in blocks of whole rows that stay on the workers.

    Made by :func:`lingendice.distributed.count`, :meth:`from_counts` or :meth:`load`. What runs over states
    or cells is here: ``cell_count``, ``reward``, ``initial_count``, labels; what runs over entries is not.
    """

    def __init__(
        self, client: Any, sources: Sequence[Callable[[], Any]], edges: list[int], margins: Sequence[Margins],
        frame: Counts,
    ) -> None:  # fmt: skip
        self.client, self.edges = client, list(edges)
        self.vectors = row_blocks.cell_sums(frame, margins)
        self.n_entries = sum(held.n_entries for held in margins)
        self.nbytes = sum(held.nbytes for held in margins)
        """Bytes of the rows, over all blocks."""
        self._crew: Crew | None = Crew(client, sources, self.edges)

    def __getattr__(self, name: str) -> Any:
        """What runs over states or cells, as :class:`lingendice.Counts` has it."""
        if name in _HERE:
            return getattr(self.vectors, name)
        if name in _ELSEWHERE:
            raise ValueError(
                "the rows of these counts lie on the workers of a cluster; counts.gather() brings them here, "
                "where they fit"
            )
        raise AttributeError(f"'DistributedCounts' object has no attribute {name!r}", name=name, obj=self)

    @property
    def crew(self) -> Crew:
        """Who holds the rows."""
        if self._crew is None:
            raise ValueError(
                "these counts were closed or pickled, which leaves only their vectors; save the rows first "
                "with counts.save(folder) and open them by DistributedCounts.load(folder)"
            )
        return self._crew

    def __getstate__(self) -> dict[str, Any]:
        """The vectors: neither a cluster nor what lies on it can be pickled."""
        return {**self.__dict__, "client": None, "_crew": None}

    @property
    def n_blocks(self) -> int:
        """Number of row blocks."""
        return len(self.edges) - 1

    def __repr__(self) -> str:
        size = f"{self.n_states:,} states" + (f" x {self.n_actions:,} actions" if self.n_actions else "")
        return (
            f"DistributedCounts({size}, {self.total:,} transitions, {self.n_entries:,} distinct, "
            f"{self.n_blocks} blocks)"
        )

    # -- making --------------------------------------------------------------------------------------------

    @classmethod
    def from_counts(cls, counts: Any, client: Any = None, blocks: int | None = None) -> DistributedCounts:
        """Spread counts (or a matrix) that lie here; they stay here, too, to replace blocks that are lost."""
        client = client_of(client)
        counts = counts if isinstance(counts, Counts) else Counts.from_matrix(counts, copy=False)
        n_actions = counts.n_actions or 1
        if not counts.n_states:
            raise ValueError("there are no states to spread: the counts are empty; add data first")
        lengths = np.diff(counts.indptr[::n_actions])
        edges = row_blocks.work_edges(lengths, cluster.blocks_of(client, blocks))
        made = row_blocks.cut_rows(counts, edges)
        sources = [partial(cluster.scattered, client, block) for block in made]
        return cls(client, sources, edges, [row_blocks.margins_of(block) for block in made], counts)

    def gather(self) -> Counts:
        """All rows, brought to the client."""
        sources = self.crew.sources
        blocks = insist(lambda: results(self.client, [source() for source in sources]))
        return row_blocks.gather_blocks(blocks, self.vectors)

    def save(self, folder: str | Path) -> DistributedCounts:
        """Write every block to a Parquet file of its own, from the worker that has it.

        ``folder`` is any path that fsspec knows (local, ``s3://``, ...) and that all workers see. Returns the
        same counts, whose blocks are read from there where they are needed and no longer held in memory.
        """
        crew, folder = self.crew, str(folder)
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)

        def write() -> list[Any]:
            written = [
                self.client.submit(Counts.save, source(), row_blocks.block_file(folder, number), pure=False)
                for number, source in enumerate(crew.sources)
            ]
            return results(self.client, written)

        # The vectors come last. What an earlier writing left must not stand for blocks of this one.
        write_archive(f"{folder}/{_VECTORS}", {}, {"kind": _KIND, _UNFINISHED: True})
        insist(write)
        arrays = {name: getattr(self, name) for name in _STORED if getattr(self, name) is not None}
        kept = {name: getattr(self, name) for name in ("edges", "n_entries", "nbytes")}
        write_archive(f"{folder}/{_VECTORS}", arrays, {**record_of(self.vectors), **kept, "kind": _KIND})
        return DistributedCounts.load(folder, self.client)

    @classmethod
    def load(cls, folder: str | Path, client: Any = None) -> DistributedCounts:
        """Counts that :meth:`save` wrote, on this cluster or another."""
        client, folder = client_of(client), str(folder)
        arrays, record = read_archive(f"{folder}/{_VECTORS}", _KIND)
        if _UNFINISHED in record:
            raise StoredFileError(f"{folder}: is incomplete; save the counts there again")
        if "reward" in arrays and "unrewarded" not in arrays:
            raise StoredFileError(
                f"{folder}: written by an earlier lingendice, which did not note where rewards are missing; "
                f"count the log again with lg.distributed.count(..., store={folder!r})"
            )
        first_states = {"initial_count": arrays.get("initial_count")}
        frame = replace(
            Counts.empty(record["n_states"], record["n_actions"]), **fields_of(record, first_states, None)
        )
        sources = [
            partial(client.submit, RowBlock.load, row_blocks.block_file(folder, number), pure=False)
            for number in range(len(record["edges"]) - 1)
        ]
        sums: dict[str, Any] = {name: arrays.get(name) for name in _STORED[:4]}
        whole = Margins(**sums, n_entries=record["n_entries"], nbytes=record["nbytes"])
        return cls(client, sources, record["edges"], [whole], frame)

    def close(self) -> None:
        """Let the workers forget these counts now, and not only when nothing refers to them any more."""
        self._crew = None

    def operator_of(self, choices: Any) -> Any:
        """Called by :func:`lingendice.audit`: the operator of a policy and other choices."""
        from lingendice.distributed.spread_operator import SpreadOperator

        return SpreadOperator.of(self, choices)

    def solve_request(self, request: Request) -> Solution:
        """Called by :func:`lingendice.solve`, which has read and checked the arguments."""
        from lingendice.distributed.spread_operator import solve_spread

        return solve_spread(self, request)


def solve(data: Any, gamma: float = 1.0, *, client: Any = None, **arguments: Any) -> Any:
    """Solve ``mu = (1 - gamma) mu0 + gamma T' mu`` with the rows of T on the workers of a Dask cluster.

    Parameters
    ----------
    data
        What :func:`lingendice.distributed.count` returns; or :class:`Counts`, a matrix or a graph, which is
        spread first.
    client
        A ``dask.distributed.Client``; None takes the current one. For data to be spread alone.
    gamma, **arguments
        Those of :func:`lingendice.solve`, with the same checks. The exact equation is solved: a policy is
        followed as it is (``ridge=0``); features, ridges and divergences are for one machine.

    Returns
    -------
    Solution
        The ordinary one. At gamma < 1 its error is a proven bound of the L1 error; at gamma = 1 an estimate
        of the largest relative error of an entry, confirmed by the chain between clusters of states.

    Notes
    -----
    One round takes one pass over the entries, side by side, and one message from every part to every other: a
    number for each state that it leads to. Memory of the client: vectors over states and cells. Where a
    worker is lost, its blocks are counted or read again and the rounds are repeated.

    Examples
    --------
    >>> counts = lg.distributed.count("log/*.parquet", client)          # doctest: +SKIP
    >>> sol = lg.distributed.solve(counts, gamma=0.99, policy=pi)        # doctest: +SKIP
    """
    import lingendice

    if not isinstance(data, DistributedCounts):
        data = DistributedCounts.from_counts(data, client)
    return lingendice.solve(data, gamma, **arguments)
