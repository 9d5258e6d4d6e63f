"""Counted chains as nodes and rates, dense or in compressed rows, for compiled code of other people.

States come first, then hubs: nodes that take no time, from which mass restarts. In units of counts,

    W_ij = gamma c_ij ,   W_i,start = (1 - gamma) n_i ,   W_hub,j = its distribution ,

and a row without data (a leak) goes to its hub alone. Dividing a row of rates by anything divides the
distribution of that node by the inverse, so that raw counts give y = mu / n, the ratio up to scale, and
mu = y n. What leaks do is decided by `count_hubs`, `rates_to_hubs` and `unit_mass`, as
:mod:`lingendice.model.leaks` decides it for composed operators.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.aggregation_steps import sweep
from lingendice.kernels.gth_dense import BLOCK, SMALL, dense_distribution, eliminate_block, gth_small
from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import mix
from lingendice.kernels.sparse_rows import (
    closed_components,
    count_columns,
    scatter_transpose,
    strong_components,
)

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

# Nodes of a recurrent class up to which it is eliminated densely, whatever its structure.
DIRECT = 600


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
def first_fault(status, n, gamma, initial, restart):  # type: ignore[no-untyped-def]
    """What is wrong with a problem, given the status of its counts."""
    if not (gamma > 0.0 and gamma <= 1.0):
        return BAD_GAMMA
    if not (check_distribution(initial, n) and check_distribution(restart, n)):
        return BAD_DISTRIBUTION
    return status


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
def pattern(rates):  # type: ignore[no-untyped-def]
    """Where dense rates among nodes are positive, off the diagonal, as compressed rows."""
    n = rates.shape[0]
    start = np.zeros(n + 1, np.int64)
    for i in range(n):
        start[i + 1] = start[i]
        for j in range(n):
            start[i + 1] += rates[i, j] > 0.0 and i != j
    target = np.empty(start[n], np.int64)
    at = 0
    for i in range(n):
        for j in range(n):
            if rates[i, j] > 0.0 and i != j:
                target[at] = j
                at += 1
    return start, target


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
    members, classes = closed_class(*pattern(rates))
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
    status = first_fault(status, n, gamma, initial, restart)
    if status != SOLVED:
        distribution[:] = np.nan
        return status
    return solve_nodes(dense_rates(counts, totals, gamma, initial, restart), totals, distribution)


# -- compressed rows ----------------------------------------------------------------------------------------


@kernel
def count_pair(keys, counts, n, i, j, weight):  # type: ignore[no-untyped-def]
    """Add to the count of (i, j) in a hash table with linear probing; free keys are -1."""
    if i < 0 or i >= n or j < 0 or j >= n:
        return OUT_OF_RANGE
    capacity = keys.size
    key = np.int64(i) * n + j
    at = np.int64(mix(np.uint64(key)) % np.uint64(capacity))
    for _ in range(capacity):
        if keys[at] == key:
            counts[at] += weight
            return SOLVED
        if keys[at] < 0:
            keys[at] = key
            counts[at] = weight
            return SOLVED
        at += 1
        if at == capacity:
            at = 0
    return FULL


@kernel
def table_to_rows(keys, counts, n, indptr, indices, data):  # type: ignore[no-untyped-def]
    """Write the pairs of a table as compressed rows, columns ascending; their number, or -1 without room."""
    indptr[:] = 0
    pairs = 0
    for at in range(keys.size):
        if keys[at] >= 0:
            pairs += 1
            indptr[keys[at] // n + 1] += 1
    if pairs > indices.size or pairs > data.size:
        return -1
    for i in range(n):
        indptr[i + 1] += indptr[i]
    held = np.empty(pairs, np.int64)
    place = np.empty(pairs, np.int64)
    at = 0
    for slot in range(keys.size):
        if keys[slot] >= 0:
            held[at] = keys[slot]
            place[at] = slot
            at += 1
    order = np.argsort(held)
    for at in range(pairs):
        indices[at] = held[order[at]] % n
        data[at] = counts[place[order[at]]]
    return pairs


@kernel
def row_totals(indptr, indices, data, totals):  # type: ignore[no-untyped-def]
    """Row sums of compressed rows; returns a status."""
    n = totals.size
    if indptr.size != n + 1:
        return BAD_ENTRY
    largest = 0.0
    for i in range(n):
        total = 0.0
        for entry in range(indptr[i], indptr[i + 1]):
            if not float(data[entry]) >= 0.0:
                return BAD_ENTRY
            if indices[entry] < 0 or indices[entry] >= n:
                return OUT_OF_RANGE
            total += data[entry]
        if not total < np.inf:
            return BAD_ENTRY
        totals[i] = total
        largest = max(largest, total)
    return SOLVED if largest > 0.0 else NO_DATA


@kernel
def row_nodes(indptr, indices, data, totals, gamma, initial, restart):  # type: ignore[no-untyped-def]
    """Rates among nodes as compressed rows without zeros; see the top."""
    n = totals.size
    start_hub, leak_hub = count_hubs(totals, gamma, restart)
    hubs = max(start_hub, leak_hub) + 1
    size = indptr[n] + 2 * n + hubs * n
    start = np.zeros(n + hubs + 1, np.int64)
    target = np.empty(size, np.int64)
    rate = np.empty(size)
    at = 0
    for i in range(n):
        for entry in range(indptr[i], indptr[i + 1]):
            if data[entry] > 0.0:
                target[at] = indices[entry]
                rate[at] = gamma * data[entry]
                at += 1
        to_start, to_leak = rates_to_hubs(totals[i], gamma, start_hub, leak_hub)
        if to_start > 0.0:
            target[at] = n + start_hub
            rate[at] = to_start
            at += 1
        if to_leak > 0.0:
            target[at] = n + leak_hub
            rate[at] = to_leak
            at += 1
        start[i + 1] = at
    distribution = np.empty(n)
    for hub in range(hubs):
        if hub == start_hub:
            hub_row(initial, n, distribution)
        else:
            hub_row(restart if restart.size else totals, n, distribution)
        for j in range(n):
            if distribution[j] > 0.0:
                target[at] = j
                rate[at] = distribution[j]
                at += 1
        start[n + hub + 1] = at
    return start, target[:at].copy(), rate[:at].copy()


@kernel
def rows_among(start, target, rate, members):  # type: ignore[no-untyped-def]
    """Compressed rows among some of the nodes, which no edge leaves."""
    place = np.full(start.size - 1, -1, np.int64)
    for k in range(members.size):
        place[members[k]] = k
    part_start = np.zeros(members.size + 1, np.int64)
    for k in range(members.size):
        part_start[k + 1] = part_start[k] + start[members[k] + 1] - start[members[k]]
    part_target = np.empty(part_start[-1], np.int64)
    part_rate = np.empty(part_start[-1])
    for k in range(members.size):
        shift = part_start[k] - start[members[k]]
        for entry in range(start[members[k]], start[members[k] + 1]):
            part_target[entry + shift] = place[target[entry]]
            part_rate[entry + shift] = rate[entry]
    return part_start, part_target, part_rate


@kernel
def first_guess(distribution, totals, members, exits):  # type: ignore[no-untyped-def]
    """Visits to the nodes from a distribution of the states that may be given, 1 where it says nothing."""
    guess = np.ones(members.size)
    n = totals.size
    for k in range(members.size):
        i = members[k]
        if i < n and distribution[i] > 0.0 and distribution[i] < np.inf:
            guess[k] = n * distribution[i] / unit_mass(totals[i]) * exits[k]
    return guess


@kernel
def sweep_rows(start, target, rate, members, totals, tol, max_sweeps, distribution):  # type: ignore[no-untyped-def]
    """Gauss-Seidel sweeps to and fro from ``distribution``: (distribution, whether within ``tol``)."""
    size = members.size
    exits, loops = np.zeros(size), np.zeros(size)
    sources = np.zeros(size + 1, np.int64)
    count_columns(start, target, rate, 0, size, sources[1:], loops, exits)
    for k in range(size):
        sources[k + 1] += sources[k]
    source = np.empty(sources[size], np.int64)
    weight = np.empty(sources[size])
    slot = sources[:-1].copy()
    scatter_transpose(start, target, rate, exits, np.arange(size), 0, size, slot, source, weight)
    visits = first_guess(distribution, totals, members, exits)
    before = np.inf
    settled = False
    for _ in range(max_sweeps // 2):
        sweep(sources, source, weight, visits, 0, size, True, 1.0)
        change = sweep(sources, source, weight, visits, 0, size, False, 1.0)
        share = change / before
        # One change alone gives no rate.
        known = before < np.inf and share < 1.0
        before = change
        if change == 0.0 or (known and change * share <= tol * (1.0 - share)):
            settled = True
            break
    for k in range(size):
        visits[k] /= exits[k]
    return visits, settled


@kernel
def solve_row_counts(indptr, indices, data, gamma, initial, restart, tol, max_sweeps, distribution):  # type: ignore[no-untyped-def]
    """mu = (1 - gamma) mu0 + gamma P' mu from compressed rows of counts into ``distribution``; a status."""
    n = indptr.size - 1
    totals = np.empty(n)
    status = row_totals(indptr, indices, data, totals) if distribution.size == n else BAD_DISTRIBUTION
    status = first_fault(status, n, gamma, initial, restart)
    if status != SOLVED:
        distribution[:] = np.nan
        return status
    start, target, rate = row_nodes(indptr, indices, data, totals, gamma, initial, restart)
    members, classes = closed_class(start, target)
    if classes != 1:
        distribution[:] = np.nan
        return SEVERAL_DISTRIBUTIONS
    if members.size < start.size - 1:
        start, target, rate = rows_among(start, target, rate, members)
    if members.size <= DIRECT:
        dense = np.zeros((members.size, members.size))
        for k in range(members.size):
            for entry in range(start[k], start[k + 1]):
                dense[k, target[entry]] += rate[entry]
        node_distribution, settled = eliminate_dense(dense)
    else:
        node_distribution, settled = sweep_rows(
            start, target, rate, members, totals, tol, max_sweeps, distribution
        )
    share_out(node_distribution, members, totals, distribution)
    return SOLVED if settled else NOT_CONVERGED


# -- what is read off a distribution -------------------------------------------------------------------------


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
