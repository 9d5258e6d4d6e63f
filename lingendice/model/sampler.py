"""Tables from which the stochastic solvers draw (x, x', x0) in O(1), built once from the flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.rows import row_of_entry
from lingendice.kernels.random_numbers import Source, build_alias, build_alias_rows, pack_events
from lingendice.model.operator import Flow

Alias = tuple[Floats, NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Alias tables in the layout that the kernels read."""

    events: NDArray[np.int64]
    """A record for each observed pair, each draw from a distribution, each end: see
    `kernels.random_numbers.pack_events`."""
    cell: NDArray[np.int32]
    """The cell that each event leaves."""
    following: NDArray[np.int32]
    tables: tuple[Any, ...]
    redirects: tuple[Any, ...]
    starts: tuple[Any, ...]
    """(threshold, alias, total mass) of (1 - gamma) mu0."""
    actions: int
    probability: Floats
    """Of every event."""
    most_draws: int
    """Random numbers that an event and what follows it may take."""

    @property
    def source(self) -> Source:
        """What the kernels draw from."""
        return Source(self.events, self.tables, self.redirects, self.starts, self.actions, self.most_draws)


def build_sampler(flow: Flow) -> Sampler:
    """O(nnz) time and memory; nothing of the data is copied per sample."""
    rows, p = flow.rows, flow.p
    n_cells, n_states = p.size, flow.n_states
    counted = rows.weight * (p * rows.scale)[row_of_entry(rows.indptr)]
    cells = [row_of_entry(rows.indptr)]
    following = [np.asarray(rows.indices, dtype=np.int64)]
    chance = [np.asarray(counted, dtype=float)]
    ends = p.copy()
    ends -= np.bincount(cells[0], counted, n_cells)
    for k in range(rows.n_hubs):
        share = p * rows.out[:, k]
        ends -= share
        some = np.flatnonzero(share > 0)
        cells.append(some)
        following.append(np.full(some.size, -2 - k))
        chance.append(share[some])
    some = np.flatnonzero(ends > 1e-12 * p)
    cells.append(some)
    following.append(np.full(some.size, -1))
    chance.append(ends[some])
    probability = np.concatenate(chance)
    keep = probability > 0
    cell = np.concatenate(cells)[keep].astype(np.int32)
    code = np.concatenate(following)[keep].astype(np.int32)
    closure = flow.closure
    seen = np.zeros(0, dtype=np.bool_) if closure is None else flow.seen
    factor, restart = 0.0, np.ones(1)
    if closure is not None:
        onward = np.where(flow.seen, flow.spread(closure.continuation), 0.0)
        factor = float(onward.sum())
        restart = onward if factor > 0.0 else restart
    start_mass = float(flow.start.sum())
    starts = (*alias_table(flow.start if start_mass > 0 else np.ones(1)), start_mass)
    actions = 1 if flow.policy is None else flow.policy.shape[1]
    policy = np.ones((n_states if actions > 1 else 1, actions)) if flow.policy is None else flow.policy
    policy_t, policy_a = alias_rows(policy)
    distribution_t, distribution_a = (
        alias_rows(rows.distribution) if rows.n_hubs else (np.ones((1, 1)), np.zeros((1, 1), np.int32))
    )
    tables = (distribution_t, distribution_a, policy_t.ravel(), policy_a.ravel(), *alias_table(restart))
    return Sampler(
        event_table(probability[keep], cell, code), cell, code, tables, (seen, factor), starts, actions,
        probability[keep], 1 + int(rows.n_hubs > 0) + int(actions > 1) + int(closure is not None),
    )  # fmt: skip


def event_table(probability: Floats, cell: NDArray[np.int32], following: NDArray[np.int32]) -> Any:
    """Alias table of events that carries where each of them leads."""
    events = np.empty((probability.size, 4), dtype=np.int64)
    pack_events(*alias_table(probability), cell, following, events)
    return events


def alias_table(weight: Floats) -> Alias:
    """Thresholds and aliases of one distribution.

    References
    ----------
    A. J. Walker (1977). An efficient method for generating discrete random variables with general
        distributions. ACM Transactions on Mathematical Software 3.
    M. D. Vose (1991). A linear algorithm for generating random numbers with a given distribution. IEEE
        Transactions on Software Engineering 17.
    """
    threshold, alias = np.empty(weight.size), np.empty(weight.size, dtype=np.int32)
    build_alias(np.ascontiguousarray(weight, dtype=float), threshold, alias)
    return threshold, alias


def alias_rows(table: Floats) -> Alias:
    """One alias table per row, aliases counted from the start of the row."""
    threshold, alias = np.empty(table.shape), np.empty(table.shape, dtype=np.int32)
    build_alias_rows(np.ascontiguousarray(table, dtype=float), threshold, alias)
    return threshold, alias
