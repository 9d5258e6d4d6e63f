"""Counted chains as nodes and rates in compressed rows, for compiled code of other people.

Functions with annotations are public: :mod:`lingendice.embed` names them.

States come first, then hubs: nodes that take no time, from which mass restarts. In units of counts,

    W_ij = gamma c_ij ,   W_i,start = (1 - gamma) n_i ,   W_hub,j = its distribution ,

and a row without data (a leak) goes to its hub alone. Dividing a row of rates by anything divides the
distribution of that node by the inverse, so that raw counts give y = mu / n, the ratio up to scale, and
mu = y n. What leaks do is decided by `hubs_of` and `unit_mass`, as :mod:`lingendice.model.leaks` decides it
for composed operators; `rows_between_nodes` writes the rates for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.kernels.aggregation_steps import sweep
from lingendice.kernels.gth_dense import (
    BLOCK,
    SMALL,
    SMALLEST_TOTAL,
    dense_distribution,
    eliminate_block,
    gth_small,
)
from lingendice.kernels.jit import inlined, kernel
from lingendice.kernels.random_numbers import mix
from lingendice.kernels.sparse_rows import (
    closed_components,
    count_columns,
    rows_between_nodes,
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
    NO_MEMORY,
) = range(10)

# States whose pairs have numbers of 64 bits.
MOST_STATES = 3_037_000_499

# Nodes of a recurrent class up to which it is eliminated densely, whatever its structure.
DIRECT = 600


@kernel
def cuts_off(array, number):
    """Whether an array of whole numbers cannot hold a number."""
    return array.dtype.type(0.5) != 0.5 and array.dtype.type(number) != number


@kernel
def is_countable(counts, weight):
    """Whether a weight is a finite number from 0 on, and the type of ``counts`` holds it."""
    return weight >= 0 and weight < np.inf and not cuts_off(counts, weight)


@inlined
def total_of(entries):
    """The sum of counts or masses; nan where one is negative, or they are not finite."""
    total = 0.0
    for entry in entries:
        if not float(entry) >= 0.0:
            return np.nan
        total += entry
    return total if total < np.inf else np.nan


@inlined
def check_distribution(distribution, n):
    """Whether an optional distribution (empty: left to the defaults) is one, up to scale."""
    return distribution.size == 0 or (distribution.size == n and total_of(distribution) > 0.0)


@inlined
def first_fault(status, totals, gamma, initial, restart, distribution):
    """What is wrong with a problem, given the status of its counts, whose rows sum to ``totals``."""
    n = totals.size
    if not (gamma > 0.0 and gamma <= 1.0):
        return BAD_GAMMA
    if not (check_distribution(initial, n) and check_distribution(restart, n)):
        return BAD_DISTRIBUTION
    if cuts_off(distribution, 0.5):
        return BAD_ENTRY
    if status != SOLVED:
        return status
    whole, smallest = 0.0, np.inf
    for total in totals:
        whole += total
        if total > 0.0:
            smallest = min(smallest, total)
    # As `compose` asks: products of flows are out of range else, and what they stood for is lost.
    return SOLVED if smallest >= SMALLEST_TOTAL * max(1.0, whole) else BAD_ENTRY


@inlined
def compress(counts):
    """Dense counts as compressed rows, zeros included."""
    n = counts.shape[0]
    indptr, indices, data = np.empty(n + 1, np.int64), np.empty(n * n, np.int64), np.empty(n * n)
    indptr[0] = 0
    for i in range(n):
        for j in range(n):
            indices[i * n + j] = j
            data[i * n + j] = counts[i, j]
        indptr[i + 1] = (i + 1) * n
    return indptr, indices, data


@inlined
def unit_mass(total):
    """What one unit of y at a state weighs in mu: its count, and 1 for a leak."""
    return total if total > 0.0 else 1.0


@inlined
def hubs_of(totals, gamma, initial, restart):
    """Rates of states to hubs and of hubs to states; the first restarts at gamma < 1, the last is for leaks.

    They may be one. A distribution that is not given is uniform; without ``restart`` leaks go to the data at
    gamma = 1, and with the restarts below.
    """
    n, leaks = totals.size, False
    for i in range(n):
        leaks = leaks or totals[i] == 0.0
    starts = 1 if gamma < 1.0 else 0
    hubs = starts + (1 if leaks and (restart.size > 0 or gamma == 1.0) else 0)
    out, distribution = np.zeros((n, hubs)), np.empty((hubs, n))
    for i in range(n):
        for hub in range(hubs):
            distribution[hub, i] = 1.0
        if starts and initial.size:
            distribution[0, i] = initial[i]
        if hubs > starts:
            distribution[starts, i] = restart[i] if restart.size else totals[i]
        if starts:
            out[i, 0] = (1.0 - gamma) * unit_mass(totals[i])
        if totals[i] == 0.0:
            out[i, hubs - 1] += gamma
    return out, distribution


@inlined
def eliminate_dense(rates):
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


@inlined
def closed_class(indptr, indices):
    """Nodes of the one closed class of a graph, and how many closed classes there are."""
    component = np.zeros(indptr.size - 1, np.int64)
    count = strong_components(indptr, indices, component)
    closed = np.flatnonzero(closed_components(indptr, indices, component, count))
    return np.flatnonzero(component == closed[-1]), closed.size


@inlined
def to_dense(start, target, rate):
    """Rates between nodes as a matrix."""
    n = start.size - 1
    dense = np.zeros((n, n))
    for i in range(n):
        for entry in range(start[i], start[i + 1]):
            dense[i, target[entry]] += rate[entry]
    return dense


@inlined
def share_out(node_distribution, members, totals, distribution):
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
def count(counts: Any, state: Any, next_state: Any, weight: Any = 1) -> Any:
    """``counts[state, next_state] += weight`` with checks of both; O(1). Returns a status."""
    if state < 0 or state >= counts.shape[0] or next_state < 0 or next_state >= counts.shape[1]:
        return OUT_OF_RANGE
    if not is_countable(counts, weight):
        return BAD_ENTRY
    counts[state, next_state] += weight
    return SOLVED


@kernel
def count_sparse(keys: Any, counts: Any, n_states: Any, state: Any, next_state: Any, weight: Any = 1) -> Any:
    """Count a pair in a hash table of fixed size; O(1) while a third of it stays free. Returns a status.

    ``keys`` (int64, all -1 at first) and ``counts`` have one entry per slot. :func:`to_csr` reads the table.
    """
    # Chained comparisons of Python's would take three times as long, all in all.
    if state < 0 or state >= n_states or next_state < 0 or next_state >= n_states or n_states > MOST_STATES:
        return OUT_OF_RANGE
    capacity = keys.size
    if counts.size < capacity or not is_countable(counts, weight):
        return BAD_ENTRY
    key = np.int64(state) * n_states + next_state
    at = np.int64(mix(np.uint64(key)) % np.uint64(capacity))
    for _ in range(capacity):  # linear probing
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
def to_csr(keys: Any, counts: Any, n_states: Any, indptr: Any, indices: Any, data: Any) -> Any:
    """Write a table of pairs as compressed rows, columns ascending; returns their number.

    ``indptr`` has ``n_states + 1`` entries, ``indices`` and ``data`` at least as many as there are pairs:
    -1 is returned where they are too short, or where the table was filled for more states.
    """
    slots = np.flatnonzero(keys >= 0)
    fits = slots.size <= min(indices.size, data.size)
    if indptr.size != n_states + 1 or counts.size < keys.size or not fits:
        return -1
    indptr[:] = 0
    for slot in slots:
        if keys[slot] // n_states >= n_states:
            return -1
        indptr[keys[slot] // n_states + 1] += 1
    for i in range(n_states):
        indptr[i + 1] += indptr[i]
    slots = slots[np.argsort(keys[slots])]
    for at in range(slots.size):
        indices[at] = keys[slots[at]] % n_states
        data[at] = counts[slots[at]]
    return slots.size


@kernel
def visits_csr(indptr: Any, indices: Any, data: Any, out: Any) -> Any:
    """n(x) from compressed rows. Returns a status."""
    n = out.size
    if indptr.size != n + 1 or indptr[0] != 0:
        return BAD_ENTRY
    for i in range(n):
        if indptr[i + 1] < indptr[i]:
            return BAD_ENTRY
    if indptr[n] > indices.size or indptr[n] > data.size:
        return BAD_ENTRY
    largest = 0.0
    for i in range(n):
        total = total_of(data[indptr[i] : indptr[i + 1]])
        if not total >= 0.0 or cuts_off(out, total):
            return BAD_ENTRY
        for entry in range(indptr[i], indptr[i + 1]):
            if indices[entry] < 0 or indices[entry] >= n:
                return OUT_OF_RANGE
        out[i] = total
        largest = max(largest, total)
    return SOLVED if largest > 0.0 else NO_DATA


@kernel
def visits(counts: Any, out: Any) -> Any:
    """n(x): outgoing transitions of each state, from dense counts. Returns a status."""
    n = out.size
    if counts.shape[0] != n or counts.shape[1] != n:
        return BAD_ENTRY
    largest = 0.0
    for i in range(n):
        total = total_of(counts[i])
        if not total >= 0.0 or cuts_off(out, total):
            return BAD_ENTRY
        out[i] = total
        largest = max(largest, total)
    return SOLVED if largest > 0.0 else NO_DATA


@inlined
def rows_among(start, target, rate, members):
    """Compressed rows among some of the nodes, which no edge leaves."""
    place = np.full(start.size - 1, -1, np.int64)
    for k in range(members.size):
        place[members[k]] = k
    part_start = np.zeros(members.size + 1, np.int64)
    for k in range(members.size):
        part_start[k + 1] = part_start[k] + start[members[k] + 1] - start[members[k]]
    part_target = np.empty(part_start[-1], target.dtype)
    part_rate = np.empty(part_start[-1])
    for k in range(members.size):
        shift = part_start[k] - start[members[k]]
        for entry in range(start[members[k]], start[members[k] + 1]):
            part_target[entry + shift] = place[target[entry]]
            part_rate[entry + shift] = rate[entry]
    return part_start, part_target, part_rate


@inlined
def first_guess(distribution, totals, members, exits):
    """Visits to the nodes from a distribution of the states that may be given, 1 where it says nothing."""
    guess = np.ones(members.size)
    n = totals.size
    for k in range(members.size):
        i = members[k]
        if i < n and distribution[i] > 0.0 and distribution[i] < np.inf:
            guess[k] = n * distribution[i] / unit_mass(totals[i]) * exits[k]
    return guess


@inlined
def sweep_rows(start, target, rate, members, totals, tol, max_sweeps, distribution):
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
    label = np.empty(size, np.int64)
    for k in range(size):
        label[k] = k
    scatter_transpose(start, target, rate, exits, label, 0, size, slot, source, weight)
    visits = first_guess(distribution, totals, members, exits)
    before, last, change = np.inf, np.inf, 0.0
    settled = False
    for half in range(max_sweeps // 2 * 2):
        # Not two calls with True and with False, which would be compiled one by one.
        forward = half % 2 == 0
        change = sweep(sources, source, weight, visits, half - half, size, forward, 1.0)
        if forward:
            continue
        share = change / before
        # One change alone gives no pace, nor does one fall of it: from a poor start the first is steep.
        pace = max(share, last)
        if change == 0.0 or (pace < 1.0 and change * pace <= tol * (1.0 - pace)):
            settled = True
            break
        last = share if before < np.inf else np.inf
        before = change
    return visits / exits, settled


@kernel
def solve_checked_rows(
    indptr, indices, data, gamma, totals, out, hubs, direct, tol, max_sweeps, distribution
):
    """Solve counts and hubs; a recurrent class of up to ``direct`` nodes is eliminated densely. A status.

    All that solves a chain is compiled here, once: callers give numbers of one type, never literals, each of
    which Numba would compile all of it for.
    """
    scale = np.empty(totals.size)
    for i in range(totals.size):
        scale[i] = gamma
    start, target, rate = rows_between_nodes(indptr, indices, data, scale, out, hubs)
    members, classes = closed_class(start, target)
    if classes != 1:
        for i in range(totals.size):
            distribution[i] = np.nan
        return SEVERAL_DISTRIBUTIONS
    if members.size < start.size - 1:
        start, target, rate = rows_among(start, target, rate, members)
    if members.size <= direct:
        node_distribution, settled = eliminate_dense(to_dense(start, target, rate))
        if not settled:
            for i in range(totals.size):
                distribution[i] = np.nan
            return NOT_CONVERGED
    else:
        node_distribution, settled = sweep_rows(
            start, target, rate, members, totals, tol, max_sweeps, distribution
        )
    share_out(node_distribution, members, totals, distribution)
    return SOLVED if settled else NOT_CONVERGED


@kernel
def solve_dense_counts(counts, gamma, initial, restart, distribution):
    """mu = (1 - gamma) mu0 + gamma P' mu from dense counts into ``distribution``, eliminated; a status."""
    n = distribution.size
    totals = np.empty(n)
    status = first_fault(visits(counts, totals), totals, gamma, initial, restart, distribution)
    if status != SOLVED:
        distribution[:] = np.nan
        return status
    out, hubs = hubs_of(totals, gamma, initial, restart)
    size = n + hubs.shape[0]
    if size <= SMALL:
        rates = np.zeros((size, size))
        for i in range(n):
            for j in range(n):
                rates[i, j] = gamma * counts[i, j]
            for hub in range(size - n):
                rates[i, n + hub] = out[i, hub]
                rates[n + hub, i] = hubs[hub, i]
        node_distribution, trusted = gth_small(rates)
        if trusted:  # nonzero pivots and entries prove that every node reaches every other
            total = 0.0
            for i in range(n):
                distribution[i] = node_distribution[i] * unit_mass(totals[i])
                total += distribution[i]
            for i in range(n):
                distribution[i] /= total
            return SOLVED
    indptr, indices, data = compress(counts)
    return solve_checked_rows(
        indptr, indices, data, gamma, totals, out, hubs, size, np.float64(0.0), np.int64(0), distribution
    )


@kernel
def solve_row_counts(indptr, indices, data, gamma, initial, restart, tol, max_sweeps, distribution):
    """The same from compressed rows of counts; a class of more than `DIRECT` nodes is swept."""
    n = max(0, indptr.size - 1)
    totals = np.empty(n)
    status = visits_csr(indptr, indices, data, totals) if distribution.size == n else BAD_DISTRIBUTION
    status = first_fault(status, totals, gamma, initial, restart, distribution)
    if status != SOLVED:
        distribution[:] = np.nan
        return status
    out, hubs = hubs_of(totals, gamma, initial, restart)
    return solve_checked_rows(
        indptr, indices, data, gamma, totals, out, hubs, np.int64(DIRECT), tol, max_sweeps, distribution
    )


# -- what is read off a distribution -------------------------------------------------------------------------


@kernel
def ratio(distribution: Any, visits: Any, tau: Any) -> None:
    """Write tau = mu / p into ``tau``, p = visits / sum(visits); nan where a state has no visits.

    All of it is nan where the arrays are not of one length.
    """
    if distribution.size != visits.size or tau.size != visits.size:
        tau[:] = np.nan
        return
    total = 0.0
    for i in range(visits.size):
        total += visits[i]
    for i in range(visits.size):
        tau[i] = distribution[i] * total / visits[i] if visits[i] > 0 else np.nan


@kernel
def value(distribution: Any, visits: Any, reward_total: Any) -> Any:
    """Per-step value sum p tau r / (1 - leak), with the mean reward of a visit r = reward_total / visits.

    nan where no mass has visits, or where the arrays are not of one length.
    """
    if distribution.size != visits.size or reward_total.size != visits.size:
        return np.nan
    earned = 0.0
    identified = 0.0
    for i in range(visits.size):
        if visits[i] > 0:
            earned += distribution[i] * reward_total[i] / visits[i]
            identified += distribution[i]
    return earned / identified if identified > 0.0 else np.nan
