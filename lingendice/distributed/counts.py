"""Counts whose rows lie on the workers of a cluster: the client keeps sizes, labels and vectors."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.rows import read_only
from lingendice.data.saving import plain_labels, read_labels
from lingendice.distributed import store
from lingendice.distributed.blocks import Margins, cut_rows, gather_blocks, margins_of, work_edges
from lingendice.distributed.cluster import REPLY, await_futures, client_of, within, workers_of
from lingendice.distributed.crew import Crew, abandon

if TYPE_CHECKING:
    from lingendice.results.solution import Solution
    from lingendice.solvers.request import Request

_ELSEWHERE = (
    "the rows of these counts lie on the workers of a cluster; counts.gather() brings them here, where they "
    "fit"
)


class DistributedCounts:
    """Counts of transitions in blocks of whole rows that stay on the workers.

    Made by :func:`lingendice.distributed.count`, :meth:`from_counts` or :meth:`load`. What runs over states
    or cells is here: ``cell_count``, ``reward``, ``initial_count``, labels; what runs over entries is not.
    """

    episodes = None

    def __init__(
        self, client: Any, sources: Sequence[Callable[[], Any]], edges: list[int], margins: Sequence[Margins],
        facts: dict[str, Any],
    ) -> None:  # fmt: skip
        self.client, self.edges, self.facts = client, list(edges), facts
        self.n_states: int = facts["n_states"]
        self.n_actions: int | None = facts["n_actions"]
        self.state_labels = facts.get("state_labels")
        self.action_labels = facts.get("action_labels")
        self.has_sample_size: bool = facts.get("has_sample_size", True)
        self.initial_count: NDArray[Any] | None = facts.get("initial_count")
        self.n_entries = sum(held.n_entries for held in margins)
        self.nbytes = sum(held.nbytes for held in margins)
        """Bytes of the rows, over all blocks."""
        self.cell_count = read_only(np.concatenate([held.cell_count for held in margins]))
        self.has_terminals = any(held.terminal_count is not None for held in margins)
        self.terminal_count = read_only(
            np.concatenate(
                [
                    np.zeros_like(held.cell_count) if held.terminal_count is None else held.terminal_count
                    for held in margins
                ]
            )
        )
        rewards = [held.reward for held in margins if held.reward is not None]
        self.reward = read_only(np.concatenate(rewards)) if len(rewards) == len(margins) else None
        self._sources = list(sources)
        self._crew: Crew | None = Crew(client, sources, self.edges)
        self._release = weakref.finalize(self, abandon, self._crew.name)

    @property
    def crew(self) -> Crew:
        """Who holds the rows."""
        if self._crew is None:
            raise ValueError(
                "these counts were pickled, and with them went the vectors alone; keep their rows by "
                "counts.save(folder) and open them by DistributedCounts.load(folder)"
            )
        return self._crew

    def __getstate__(self) -> dict[str, Any]:
        """The vectors: neither a cluster nor what lies on it can be pickled."""
        left_out: dict[str, Any] = {"client": None, "_crew": None, "_sources": [], "_release": None}
        return {**self.__dict__, **left_out}

    # -- what Counts has, too ------------------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        """Number of states, or of state-action pairs."""
        return self.n_states * (1 if self.n_actions is None else self.n_actions)

    @cached_property
    def total(self) -> int | float:
        """N: the number (or total weight) of transitions."""
        return self.cell_count.sum().item()  # type: ignore[no-any-return]

    @cached_property
    def data_distribution(self) -> Floats:
        """p = n / N over cells."""
        return read_only(self.cell_count / (self.total or 1.0))

    @property
    def n_blocks(self) -> int:
        """Number of row blocks."""
        return len(self._sources)

    @property
    def indptr(self) -> Any:
        """Not here."""
        raise ValueError(_ELSEWHERE)

    indices = count = reward_count = reward_mean = reward_m2 = matrix = indptr

    def label_of(self, state: int) -> Hashable:
        """The label of a state, or its number where states have no labels."""
        return state if self.state_labels is None else self.state_labels[state]

    def label_of_action(self, action: int) -> Hashable:
        """The label of an action, or its number where actions have no labels."""
        return action if self.action_labels is None else self.action_labels[action]

    def __repr__(self) -> str:
        size = f"{self.n_states:,} states" + (f" x {self.n_actions:,} actions" if self.n_actions else "")
        return (
            f"DistributedCounts({size}, {self.total:,} transitions, {self.n_entries:,} distinct, "
            f"{self.n_blocks} blocks)"
        )

    def without_rows(self) -> Counts:
        """The vectors alone, as counts without entries: what an operator is composed from."""
        return _WithoutRows.of(self)

    # -- making --------------------------------------------------------------------------------------------

    @classmethod
    def from_counts(cls, counts: Any, client: Any = None, blocks: int | None = None) -> DistributedCounts:
        """Spread counts (or a matrix) that lie here; they stay here, too, to replace blocks that are lost."""
        client = client_of(client)
        counts = counts if isinstance(counts, Counts) else Counts.from_matrix(counts, copy=False)
        n_actions = counts.n_actions or 1
        n_blocks = sum(workers_of(client).values()) if blocks is None else blocks
        edges = work_edges(np.diff(counts.indptr[::n_actions]), min(n_blocks, max(counts.n_states, 1)))
        made = cut_rows(counts, edges)
        facts = {
            "n_states": counts.n_states,
            "n_actions": counts.n_actions,
            "state_labels": counts.state_labels,
            "action_labels": counts.action_labels,
            "has_sample_size": counts.has_sample_size,
            "initial_count": counts.initial_count,
        }
        sources = [partial(_scatter, client, block) for block in made]
        return cls(client, sources, edges, [margins_of(block) for block in made], facts)

    def gather(self) -> Counts:
        """All rows, brought to the client."""
        futures = [source() for source in self._sources]
        await_futures(self.client, futures)
        blocks = within(self.client, 100 * REPLY, self.client.gather, futures)
        kept = ("state_labels", "action_labels", "has_sample_size", "initial_count")
        return gather_blocks(blocks, **{name: getattr(self, name) for name in kept})

    def save(self, folder: str) -> DistributedCounts:
        """Write every block to a Parquet file of its own, from the worker that has it.

        ``folder`` is any path that fsspec knows (local, ``s3://``, ...) and that all workers see. Returns the
        same counts, whose blocks are read from there where they are needed and no longer held in memory.
        """
        futures = [source() for source in self._sources]
        written = [
            self.client.submit(store.write_block, folder, number, block, pure=False)
            for number, block in enumerate(futures)
        ]
        await_futures(self.client, written)
        within(self.client, 10 * REPLY, self.client.gather, written)
        vectors = {
            "cell_count": self.cell_count,
            "terminal_count": self.terminal_count if self.has_terminals else None,
            "reward": self.reward,
            "initial_count": self.initial_count,
        }
        record = {
            "n_states": self.n_states,
            "n_actions": self.n_actions,
            "has_sample_size": self.has_sample_size,
            "state_labels": plain_labels(self.state_labels),
            "action_labels": plain_labels(self.action_labels),
            "edges": self.edges,
            "n_entries": self.n_entries,
            "nbytes": self.nbytes,
        }
        store.write_vectors(folder, vectors, json.dumps(record))
        return DistributedCounts.load(folder, self.client)

    @classmethod
    def load(cls, folder: str, client: Any = None) -> DistributedCounts:
        """Counts that :meth:`save` wrote, on this cluster or another."""
        client = client_of(client)
        vectors, record = store.read_vectors(folder)
        facts = json.loads(record)
        for name in ("state_labels", "action_labels"):
            facts[name] = read_labels(facts[name])
        facts["initial_count"] = vectors["initial_count"]
        edges = facts["edges"]
        sources = [
            partial(client.submit, store.read_block, folder, number, pure=False)
            for number in range(len(edges) - 1)
        ]
        whole = Margins(
            vectors["cell_count"],
            vectors["terminal_count"],
            vectors["reward"],
            facts["n_entries"],
            facts["nbytes"],
        )
        return cls(client, sources, edges, [whole], facts)

    def close(self) -> None:
        """Let the workers forget these counts now; otherwise that waits until they are next asked."""
        self._release()
        self.crew.release_abandoned()
        self._sources = []

    def operator_of(self, choices: Any) -> Any:
        """Called by :func:`lingendice.audit`: the operator of a policy and other choices."""
        from lingendice.distributed.spread_operator import SpreadOperator

        return SpreadOperator.of(self, choices)

    def solve_request(self, request: Request) -> Solution:
        """Called by :func:`lingendice.solve`, which has read and checked the arguments."""
        from lingendice.distributed.spread_operator import solve_spread

        return solve_spread(self, request)


class _WithoutRows(Counts):
    """Sums over rows, without the rows."""

    ends: bool = False

    @classmethod
    def of(cls, held: DistributedCounts) -> _WithoutRows:
        empty = Counts.empty(held.n_states, held.n_actions)
        own = cls(
            n_states=held.n_states,
            n_actions=held.n_actions,
            indptr=empty.indptr,
            indices=empty.indices,
            count=empty.count,
            initial_count=held.initial_count,
            state_labels=held.state_labels,
            action_labels=held.action_labels,
            has_sample_size=held.has_sample_size,
        )
        known = ("cell_count", "total", "data_distribution", "reward", "terminal_count")
        own.__dict__.update({name: getattr(held, name) for name in known}, ends=held.has_terminals)
        return own

    @property
    def has_terminals(self) -> bool:
        return self.ends


def _scatter(client: Any, block: Any) -> Any:
    (sent,) = within(client, REPLY + 1e-6 * block.nbytes, client.scatter, [block], hash=False)
    return sent
