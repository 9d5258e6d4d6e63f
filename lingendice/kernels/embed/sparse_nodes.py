"""Pairs counted into a table of fixed size, and the distribution of compressed rows, within compiled code."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.chains.aggregation_steps import count_targets, fill_pull, sweep
from lingendice.kernels.embed.nodes import (
    BAD_DISTRIBUTION,
    BAD_ENTRY,
    BAD_GAMMA,
    FULL,
    NO_DATA,
    NOT_CONVERGED,
    OUT_OF_RANGE,
    SEVERAL_DISTRIBUTIONS,
    SOLVED,
    check_distribution,
    closed_class,
    count_hubs,
    eliminate_dense,
    hub_row,
    rates_to_hubs,
    share_out,
    unit_mass,
)
from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import mix

# Nodes of a recurrent class up to which it is eliminated densely, whatever its structure.
DIRECT = 600


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
    """Rates among nodes as compressed rows without zeros; see `nodes`."""
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
    exits = np.zeros(size)
    whole = np.zeros(size)
    sources = np.zeros(size + 1, np.int64)
    count_targets(start, target, rate, 0, size, exits, whole, sources[1:])
    for k in range(size):
        sources[k + 1] += sources[k]
    source = np.empty(sources[size], np.int64)
    weight = np.empty(sources[size])
    fill_pull(start, target, rate, 0, size, exits, np.arange(size), sources[:-1].copy(), source, weight)
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
    if not (gamma > 0.0 and gamma <= 1.0):
        status = BAD_GAMMA
    elif not (check_distribution(initial, n) and check_distribution(restart, n)):
        status = BAD_DISTRIBUTION
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
