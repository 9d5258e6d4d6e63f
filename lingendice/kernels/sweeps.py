"""Gauss-Seidel sweeps for ``x = g + F A diag(c) x`` with a sparse nonnegative A in pull form.

Row i of A lists the sources it draws from; ``y = c x`` is kept beside ``x`` so that an inner
loop over unit weights (``weights`` empty) reads nothing but source numbers and y. Self-loops are
eliminated beforehand: they live in F and g. Symbols: ``g`` inflow from outside (times ``scale``),
``f`` the diagonal of F, ``c`` share that each source sends along an edge of weight one.

The inner loops are written out where they are used: one call per row doubles the time of a pass.

The kernels at the end are for a part of the rows whose sources are elsewhere: rounds of
``x <- base + scale A diag(c) x`` as sums by target and an update of the whole; passes of any iteration
``before -> x`` are combined by those of Anderson's extrapolation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel


class Rows(NamedTuple):
    """Entries ``begin[i]:end[i]`` of each row i of A. Integers are unsigned."""

    begin: Any
    end: Any
    sources: Any
    weights: Any


class Terms(NamedTuple):
    """Vectors of the equation; ``loss`` is the share of x that leaves the rows swept."""

    f: Any
    g: Any
    c: Any
    loss: Any


@fused_kernel
def sweep(rows, terms, scale, x, y, first, last):
    """One Gauss-Seidel pass over a range of rows, in place.

    Returns the L1 norm of the change, its largest size, ``sum(loss * x)`` and ``sum(|x|)``.
    """
    row_begin, row_end, sources, weights = rows
    f, g, c, loss = terms
    change = 0.0
    largest = 0.0
    lost = 0.0
    mass = 0.0
    weighted = weights.size > 0
    for row in range(np.uint64(first), np.uint64(last)):
        # Written out in three kernels: shared as one function, PageRank takes 1.7 to 2 times as long.
        drawn = 0.0
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        new = scale * g[row] + f[row] * drawn
        step = abs(new - x[row])
        change += step
        largest = max(largest, step)
        lost += loss[row] * new
        mass += abs(new)
        x[row] = new
        y[row] = c[row] * new
    return change, largest, lost, mass


@fused_kernel
def gather_inflow(rows, f, g, y, first, last, inflow):
    """``inflow = g + F A y`` over the given entries of a range of rows; returns ``sum(inflow / f)``."""
    row_begin, row_end, sources, weights = rows
    supply = 0.0
    weighted = weights.size > 0
    for row in range(np.uint64(first), np.uint64(last)):
        drawn = 0.0
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        inflow[row] = g[row] + f[row] * drawn
        supply += inflow[row] / f[row]
    return supply


@fused_kernel
def residual(rows, row_factor, base, loops, x, y, first, last, image):
    """Write ``image = base + row_factor (A y + loops y)`` on a range.

    Returns the L1 norm, the smallest and the largest entry of ``image - x``.
    """
    row_begin, row_end, sources, weights = rows
    first, last = np.uint64(first), np.uint64(last)
    size = 0.0
    low = 0.0
    high = 0.0
    weighted = weights.size > 0
    for row in range(first, last):
        drawn = loops[row] * y[row]
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                drawn += weights[entry] * y[sources[entry]]
        else:
            for entry in range(row_begin[row], row_end[row]):
                drawn += y[sources[entry]]
        image[row] = base[row] + row_factor[row] * drawn
        rest = image[row] - x[row]
        size += abs(rest)
        if row == first or rest < low:
            low = rest
        if row == first or rest > high:
            high = rest
    return size, low, high


# A block whose largest change over this many passes is hardly below that of as many before has stalled.
WINDOW = 200
STALLED = 0.9999


@fused_kernel
def solve_blocks(upstream, own, terms, inflow, x, y, block_start, block, last_block, tolerance, work, state):
    """Solve strongly connected blocks one after another, upstream first.

    Each row's ``upstream`` entries come from blocks already solved, its ``own`` from its block. A block is
    done once the L1 norm of its residual is at most ``tolerance`` a row, or no longer falls: rounding,
    magnified by a small ``loss`` (the share of x that leaves the block), may keep it above. The outside
    inflow of the block is rescaled after every pass so that the block's total balance holds: this removes the
    slow mode that a nearly closed block has. The call ends after about ``work`` entries and returns the next
    block to do; an unfinished block goes on from its present x. ``state`` is [scale of the unfinished block
    or 0, entries handled so far, largest change in this window of passes, in the last one, passes].
    """
    epsilon = 2.220446049250313e-16
    indptr, c = upstream.begin, terms.c
    inside = Terms(terms.f, inflow, c, terms.loss)
    done = 0
    while block < last_block and done < work:
        first = block_start[block]
        last = block_start[block + 1]
        supply = gather_inflow(upstream, terms.f, terms.g, y, first, last, inflow)
        passing = np.int64(indptr[last] - indptr[first]) + last - first
        done += passing
        if last - first == 1:
            x[first] = inflow[first]
            y[first] = c[first] * x[first]
            block += 1
            continue
        scale = state[0]
        if scale == 0.0:
            scale = 1.0
            state[2] = 0.0
            state[3] = np.inf
            state[4] = 0.0
        finished = False
        before = np.empty(last - first)
        while not finished and done < work:
            # A block that is slow may be going round in circles: every other pass then meets it halfway.
            halfway = state[3] < np.inf and state[4] % 2.0 == 1.0
            if halfway:
                before[:] = x[first:last]
            change, _, lost, mass = sweep(own, inside, scale, x, y, first, last)
            done += passing
            if halfway:
                for row in range(first, last):
                    x[row] = 0.5 * (x[row] + before[row - first])
                    y[row] = c[row] * x[row]
                lost = 0.5 * (lost + scale * supply) if supply > 0.0 else lost
            if supply > 0.0 and lost > 0.0:
                change += abs(lost / supply - scale) * supply
                scale = lost / supply
            finished = change <= max(tolerance * (last - first) * scale, 2.0 * epsilon * mass)
            state[2] = max(state[2], change)
            state[4] += 1.0
            if state[4] == WINDOW:
                finished = finished or state[2] > STALLED * state[3]
                state[3] = state[2]
                state[2] = 0.0
                state[4] = 0.0
        if finished:
            for row in range(first, last):
                x[row] /= scale
                y[row] /= scale
            state[0] = 0.0
            block += 1
        else:
            state[0] = scale
    state[1] += done
    return block


# -- rounds over a part of the rows --------------------------------------------------------------------------
# An empty ``weights`` stands for ones; ``base``, ``c`` and ``loss`` may hold one number for all rows.


@fused_kernel
def pull_rows(indptr, sources, weights, y, first, last, drawn):
    """``drawn[t - first] = sum of w y`` over the sources of targets ``first .. last``."""
    weighted = weights.size > 0
    for row in range(first, last):
        total = 0.0
        if weighted:
            for entry in range(indptr[row], indptr[row + 1]):
                total += weights[entry] * y[sources[entry]]
        else:
            for entry in range(indptr[row], indptr[row + 1]):
                total += y[sources[entry]]
        drawn[row - first] = total


@fused_kernel
def push_rows(indptr, sources, weights, values, gathered):
    """The transpose: add ``w values[t]`` of every target to each of its sources."""
    weighted = weights.size > 0
    for row in range(values.size):
        value = values[row]
        for entry in range(indptr[row], indptr[row + 1]):
            gathered[sources[entry]] += weights[entry] * value if weighted else value


@fused_kernel
def add_at(places, values, total):
    """``total[places] += values``."""
    for place in range(values.size):
        total[places[place]] += values[place]


@fused_kernel
def finish_round(base, scale, drawn, step, c, loss, x, y):
    """``x <- (1 - step) scale x + step (base + scale drawn)`` and ``y = c x``, in place.

    Returns the L1 norm of the change from ``scale x``, its largest size relative to the new entry,
    ``sum(loss x)`` and ``sum(x)``.
    """
    by_base = 0 if base.size == 1 else 1
    by_c = 0 if c.size == 1 else 1
    by_loss = 0 if loss.size == 1 else 1
    change = 0.0
    largest = 0.0
    lost = 0.0
    mass = 0.0
    for row in range(x.size):
        old = scale * x[row]
        new = (1.0 - step) * old + step * (base[by_base * row] + scale * drawn[row])
        moved = abs(new - old)
        change += moved
        if moved > largest * new:
            largest = moved / new
        lost += loss[by_loss * row] * new
        mass += new
        x[row] = new
        y[row] = c[by_c * row] * new
    return change, largest, lost, mass


# -- extrapolation (Anderson) --------------------------------------------------------------------------------


class Past(NamedTuple):
    """The passes so far."""

    before: np.ndarray
    last_step: np.ndarray
    last_x: np.ndarray
    steps: np.ndarray
    """Differences of weighted steps, one row for each pass kept."""
    moves: np.ndarray
    """Differences of outcomes."""
    gram: np.ndarray
    """Inner products of the rows of ``steps``."""


def empty_past(x, depth):
    """Room for ``depth`` passes of an iteration that starts from ``x``."""
    rows = np.zeros((2, depth, x.size))
    return Past(x.copy(), np.zeros(x.size), np.zeros(x.size), rows[0], rows[1], np.zeros((depth, depth)))


@fused_kernel
def weight_of(value, power):
    """``value**-power`` for powers 0, 1/2 and 1; 0 where a weighted entry is 0."""
    if power == 0.0:
        return 1.0
    if not value > 0.0:
        return 0.0
    return 1.0 / value if power == 1.0 else 1.0 / math.sqrt(value)


@fused_kernel
def record_pass(x, past, power, passes):
    """Keep how step and outcome of pass number ``passes`` (from 0) differ from those of the pass before."""
    before, last_step, last_x, steps, moves, gram = past
    depth = gram.shape[0]
    slot = (passes - 1) % depth
    for row in range(x.size):
        step = x[row] - before[row]
        steps[slot, row] = (step - last_step[row]) * weight_of(x[row], power)
        moves[slot, row] = x[row] - last_x[row]
        last_step[row] = step
        last_x[row] = x[row]
    for k in range(min(passes, depth)):
        total = 0.0
        for row in range(x.size):
            total += steps[k, row] * steps[slot, row]
        gram[slot, k] = total
        gram[k, slot] = total


@kernel
def solve_gram(products_of_steps, products):
    """Coefficients of the stored steps whose combination is next to the last step, by pivoted Cholesky.

    Those of `project` are of the passes in use. Of steps that are one up to rounding all but the first have
    coefficient 0.
    """
    n = products.size
    scale = 1.0 / np.sqrt(np.diag(products_of_steps)[:n])
    gram, right = products_of_steps[:n, :n] * (scale.reshape(n, 1) * scale), products * scale
    solution, order = np.zeros(n), np.arange(n)
    rank = 0
    while rank < n:
        best = rank
        for k in range(rank + 1, n):
            if gram[order[k], order[k]] > gram[order[best], order[best]]:
                best = k
        if not gram[order[best], order[best]] > 1e-13:
            break
        order[rank], order[best] = order[best], order[rank]
        pivot = order[rank]
        for k in range(rank + 1, n):
            i = order[k]
            share = gram[i, pivot] / gram[pivot, pivot]
            right[i] -= share * right[pivot]
            for q in range(rank + 1, n):
                gram[i, order[q]] -= share * gram[pivot, order[q]]
        rank += 1
    for k in range(rank - 1, -1, -1):
        i = order[k]
        total = right[i]
        for q in range(k + 1, rank):
            total -= gram[i, order[q]] * solution[order[q]]
        solution[i] = total / gram[i, i]
    return solution * scale


@fused_kernel
def project(x, past, power):
    """Inner products of the stored steps with the last step, weighted as they are."""
    products = np.zeros(past.gram.shape[0])
    for k in range(products.size):
        for row in range(x.size):
            products[k] += past.steps[k, row] * past.last_step[row] * weight_of(x[row], power)
    return products


# -- a chain whose weights moved, solved again from the distribution before ----------------------------------
# The pattern of a resampled log stays: coefficients alone are written anew; a replicate costs a few sweeps.


class Chain(NamedTuple):
    """mu = (1 - gamma) mu0 + gamma P' mu by states.

    ``coefficient[column[j]:column[j + 1]]`` are the rates into j from the states in ``source``; ``out``
    (states x hubs) is what falls back to each row of ``hub_distribution``.
    """

    column: Any
    source: Any
    coefficient: Any
    gamma: Any
    initial: Any
    out: Any
    hub_distribution: Any


@kernel
def reweigh(entry, cluster, weight, reward, factor, count, reward_sum):
    """Add up transitions by (cell, next state), each counted ``weight * factor[cluster]`` times."""
    for i in range(entry.size):
        w = factor[cluster[i]] * weight[i]
        count[entry[i]] += w
        reward_sum[entry[i]] += w * reward[i]


@kernel
def pull_coefficients(order, cell, n_actions, weight, scale, policy, source, coefficient):
    """Rates into each state: ``coefficient[k] = W(a|s) K(s'|x)`` for the entries in column order."""
    for k in range(order.size):
        entry = order[k]
        x = cell[entry]
        source[k] = x // n_actions
        coefficient[k] = policy[x] * scale[x] * weight[entry]


@fused_kernel
def sweep_once(mu, mass, stay, chain):
    """One forward Gauss-Seidel sweep in place, hubs kept up to date; returns the L1 change."""
    column, source, coefficient, gamma, initial, out, hub_distribution = chain
    n = mu.size
    hubs = hub_distribution.shape[0]
    change = 0.0
    for j in range(n):
        total = 0.0
        for k in range(column[j], column[j + 1]):
            total += mu[source[k]] * coefficient[k]
        for h in range(hubs):
            total += mass[h] * hub_distribution[h, j]
        old = mu[j]
        leaves = 1.0 - gamma * stay[j]
        if leaves > 1e-14:
            new = ((1.0 - gamma) * initial[j] + gamma * (total - stay[j] * old)) / leaves
            if new != old:
                change += abs(new - old)
                mu[j] = new
                for h in range(hubs):
                    mass[h] += (new - old) * out[j, h]
    return change


@fused_kernel
def refresh(mu, mass, out, gamma):
    """Scale a distribution to sum one (gamma = 1) and add up what falls back to each hub."""
    if gamma == 1.0:
        whole = 0.0
        for j in range(mu.size):
            whole += mu[j]
        for j in range(mu.size):
            mu[j] /= whole
    for h in range(mass.size):
        mass[h] = 0.0
        for j in range(mu.size):
            mass[h] += mu[j] * out[j, h]


DEPTH = 8
"""Sweeps between two extrapolations."""


@kernel
def begin_warm(mu, mass, chain):
    """The share of every state that stays where it is; ``mu`` and ``mass`` are made ready for sweeps."""
    stay = np.zeros(mu.size)
    for j in range(mu.size):
        for k in range(chain.column[j], chain.column[j + 1]):
            if chain.source[k] == j:
                stay[j] += chain.coefficient[k]
        for h in range(chain.hub_distribution.shape[0]):
            stay[j] += chain.out[j, h] * chain.hub_distribution[h, j]
    refresh(mu, mass, chain.out, chain.gamma)
    return stay


@kernel
def warm_rounds(mu, mass, stay, past, chain, tol, slowest, rounds):
    """Solve for mu by Gauss-Seidel sweeps in place, the last eight extrapolated together.

    Stops after some rounds of nine sweeps, or once the L1 error, the last change times rho / (1 - rho) for
    the contraction rho seen between extrapolations, is below ``tol``. Returns that error, ``slowest`` (rho)
    for the next call, and whether it is done.
    """
    error = np.inf
    out, gamma = chain.out, chain.gamma
    for _ in range(rounds):
        sweep_once(mu, mass, stay, chain)
        refresh(mu, mass, out, gamma)
        past.before[:] = mu
        before = np.inf
        for step in range(DEPTH):
            change = sweep_once(mu, mass, stay, chain)
            refresh(mu, mass, out, gamma)
            record_pass(mu, past, 0.0, step)
            past.before[:] = mu
            # A change that grows in one sweep is the extrapolation's dust settling, not the chain.
            if change < before < np.inf:
                slowest = max(slowest, change / before)
            before = change
        error = before * slowest / (1.0 - slowest)
        if before == 0.0 or error <= tol:
            return error, slowest, True
        if np.diag(past.gram).min() > 0.0:
            share = solve_gram(past.gram, project(mu, past, 0.0))
            for j in range(mu.size):
                for k in range(share.size):
                    mu[j] -= share[k] * past.moves[k, j]
            refresh(mu, mass, out, gamma)
    return error, slowest, False
