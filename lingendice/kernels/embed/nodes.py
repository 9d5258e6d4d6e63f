"""A counted chain as nodes and rates, solved densely where compiled code of other people asks for it.

States come first, then hubs: nodes that take no time, from which mass restarts. In units of counts,

    W_ij = gamma c_ij ,   W_i,start = (1 - gamma) n_i ,   W_hub,j = its distribution ,

and a row without data (a leak) goes to its hub alone. Dividing a row of rates by anything divides the
distribution of that node by the inverse, so that raw counts give y = mu / n, the ratio up to scale, and
mu = y n. What leaks do is decided by `count_hubs`, `rates_to_hubs` and `unit_mass`, as
:mod:`lingendice.model.leaks` decides it for composed operators.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.chains.gth_dense import BLOCK, SMALL, dense_distribution, eliminate_block, gth_small
from lingendice.kernels.jit import kernel
from lingendice.kernels.sparse_rows import closed_components, strong_components

(
    SOLVED,
    BAD_ENTRY,
    NO_DATA,
    SEVERAL_DISTRIBUTIONS,
    NOT_CONVERGED,
    BAD_GAMMA,
    BAD_DISTRIBUTION,
    OUT_OF_RANGE,
    FULL,
) = range(9)


@kernel
def check_distribution(distribution, n):  # type: ignore[no-untyped-def]
    """Whether an optional distribution (empty: left to the defaults) is one, up to scale."""
    if distribution.size == 0:
        return True
    total = 0.0
    for i in range(distribution.size):
        if not distribution[i] >= 0.0:
            return False
        total += distribution[i]
    return distribution.size == n and total > 0.0 and total < np.inf


@kernel
def dense_totals(counts, totals):  # type: ignore[no-untyped-def]
    """Row sums of dense counts; returns a status."""
    n = counts.shape[0]
    if counts.shape[1] != n or totals.size != n:
        return BAD_ENTRY
    largest = 0.0
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = float(counts[i, j])
            if not entry >= 0.0:
                return BAD_ENTRY
            total += entry
        if not total < np.inf:
            return BAD_ENTRY
        totals[i] = total
        largest = max(largest, total)
    return SOLVED if largest > 0.0 else NO_DATA


@kernel
def count_hubs(totals, gamma, restart):  # type: ignore[no-untyped-def]
    """(hub that restarts at gamma < 1, hub of leaks), each a number of a hub or -1; they may be one."""
    leaks = False
    for i in range(totals.size):
        if totals[i] == 0.0:
            leaks = True
    start_hub = 0 if gamma < 1.0 else -1
    leak_hub = -1
    if leaks:
        leak_hub = start_hub + 1 if (restart.size > 0 or gamma == 1.0) else start_hub
    return start_hub, leak_hub


@kernel
def unit_mass(total):  # type: ignore[no-untyped-def]
    """What one unit of y at a state weighs in mu: its count, and 1 for a leak."""
    return total if total > 0.0 else 1.0


@kernel
def rates_to_hubs(total, gamma, start_hub, leak_hub):  # type: ignore[no-untyped-def]
    """Rates of a state to the hub that restarts and to that of leaks, in units of its counts."""
    to_start = (1.0 - gamma) * unit_mass(total) if start_hub >= 0 else 0.0
    if total > 0.0:
        return to_start, 0.0
    if leak_hub == start_hub:
        return 1.0, 0.0
    return to_start, gamma


@kernel
def hub_row(distribution, n, out):  # type: ignore[no-untyped-def]
    """Rates from a hub: the distribution given, or uniform where none is."""
    for j in range(n):
        out[j] = distribution[j] if distribution.size else 1.0


@kernel
def hub_rates(totals, gamma, initial, restart, start_hub, leak_hub, rates):  # type: ignore[no-untyped-def]
    """Fill the rates to and from hubs; without ``restart`` leaks go to the data at gamma = 1."""
    n = totals.size
    for i in range(n):
        to_start, to_leak = rates_to_hubs(totals[i], gamma, start_hub, leak_hub)
        if to_start > 0.0:
            rates[i, n + start_hub] = to_start
        if to_leak > 0.0:
            rates[i, n + leak_hub] = to_leak
    if start_hub >= 0:
        hub_row(initial, n, rates[n + start_hub])
    if leak_hub >= 0 and leak_hub != start_hub:
        hub_row(restart if restart.size else totals, n, rates[n + leak_hub])


@kernel
def dense_rates(counts, totals, gamma, initial, restart):  # type: ignore[no-untyped-def]
    """Rates among all nodes of dense counts."""
    n = totals.size
    start_hub, leak_hub = count_hubs(totals, gamma, restart)
    nodes = n + max(start_hub, leak_hub) + 1
    rates = np.zeros((nodes, nodes))
    for i in range(n):
        for j in range(n):
            rates[i, j] = gamma * counts[i, j]
    hub_rates(totals, gamma, initial, restart, start_hub, leak_hub, rates)
    return rates


@kernel
def eliminate_dense(rates):  # type: ignore[no-untyped-def]
    """Blocked elimination, in place; False where the chain is not irreducible."""
    n = rates.shape[0]
    exit_rate = np.empty(n)
    work = np.empty((n + BLOCK, BLOCK))
    step = BLOCK if n > 700 else BLOCK // 2
    for first in range(0, n, step):
        if eliminate_block(rates, first, min(n, first + step), exit_rate, work) >= 0:
            return exit_rate, False
    distribution, lost = dense_distribution(rates, exit_rate)
    return distribution, lost < 0


@kernel
def closed_class(indptr, indices):  # type: ignore[no-untyped-def]
    """Nodes of the one closed class of a graph, and how many closed classes there are."""
    n = indptr.size - 1
    component = np.zeros(n, np.int64)
    count = strong_components(indptr, indices, component)
    closed = closed_components(indptr, indices, component, count)
    found = 0
    which = -1
    for c in range(count):
        if closed[c]:
            found += 1
            which = c
    members = np.empty(n, np.int64)
    size = 0
    for i in range(n):
        if component[i] == which:
            members[size] = i
            size += 1
    return members[:size].copy(), found


@kernel
def dense_class(rates):  # type: ignore[no-untyped-def]
    """As `closed_class`, for the positive entries of dense rates."""
    n = rates.shape[0]
    indptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        total = 0
        for j in range(n):
            total += rates[i, j] > 0.0
        indptr[i + 1] = indptr[i] + total
    indices = np.empty(indptr[n], np.int64)
    at = 0
    for i in range(n):
        for j in range(n):
            if rates[i, j] > 0.0:
                indices[at] = j
                at += 1
    return closed_class(indptr, indices)


@kernel
def among(rates, members):  # type: ignore[no-untyped-def]
    """Rates among some of the nodes."""
    size = members.size
    part = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            part[i, j] = rates[members[i], members[j]]
    return part


@kernel
def share_out(node_distribution, members, totals, distribution):  # type: ignore[no-untyped-def]
    """Distribution of the states from that of the nodes in units of counts: mu = y n, hubs left out."""
    n = totals.size
    distribution[:] = 0.0
    total = 0.0
    for k in range(members.size):
        i = members[k]
        if i < n:
            distribution[i] = node_distribution[k] * unit_mass(totals[i])
            total += distribution[i]
    for i in range(n):
        distribution[i] /= total


@kernel
def solve_nodes(rates, totals, distribution):  # type: ignore[no-untyped-def]
    """Stationary distribution of the states from dense rates among nodes, which are overwritten; a status."""
    nodes = rates.shape[0]
    if nodes <= SMALL:
        node_distribution, trusted = gth_small(rates)
        if trusted:
            # Nonzero pivots and entries prove that every node reaches every other.
            share_out(node_distribution, np.arange(nodes), totals, distribution)
            return SOLVED
    members, classes = dense_class(rates)
    if classes != 1:
        distribution[:] = np.nan
        return SEVERAL_DISTRIBUTIONS
    node_distribution, regular = eliminate_dense(among(rates, members))
    if not regular:
        distribution[:] = np.nan
        return NOT_CONVERGED
    share_out(node_distribution, members, totals, distribution)
    return SOLVED


@kernel
def solve_dense_counts(counts, gamma, initial, restart, distribution):  # type: ignore[no-untyped-def]
    """mu = (1 - gamma) mu0 + gamma P' mu from dense counts into ``distribution``; a status."""
    n = counts.shape[0]
    totals = np.empty(n)
    status = dense_totals(counts, totals) if distribution.size == n else BAD_DISTRIBUTION
    if not (gamma > 0.0 and gamma <= 1.0):
        status = BAD_GAMMA
    elif not (check_distribution(initial, n) and check_distribution(restart, n)):
        status = BAD_DISTRIBUTION
    if status != SOLVED:
        distribution[:] = np.nan
        return status
    return solve_nodes(dense_rates(counts, totals, gamma, initial, restart), totals, distribution)


@kernel
def ratio_into(distribution, visits, tau):  # type: ignore[no-untyped-def]
    """tau = mu / p, nan where a state has no visits."""
    total = 0.0
    for i in range(visits.size):
        total += visits[i]
    for i in range(visits.size):
        tau[i] = distribution[i] * total / visits[i] if visits[i] > 0 else np.nan


@kernel
def value_of(distribution, visits, reward_total):  # type: ignore[no-untyped-def]
    """sum p tau r over the mass of states with data, r the mean reward of a visit."""
    earned = 0.0
    identified = 0.0
    for i in range(visits.size):
        if visits[i] > 0:
            earned += distribution[i] * reward_total[i] / visits[i]
            identified += distribution[i]
    return earned / identified if identified > 0.0 else np.nan
