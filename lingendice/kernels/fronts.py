"""Sparse elimination of a Markov chain without subtractions, front by front.

Each supernode gathers the rates among its own states (pivots) and those it borders into one dense front,
adds what its children in the tree left over, eliminates the pivots block by block, and leaves the
rates among its border for its parent. A pivot's row is complete in its front: S_k is a plain row sum there.

References
----------
I. S. Duff, J. K. Reid (1983). The multifrontal solution of indefinite sparse symmetric linear equations. ACM
    Transactions on Mathematical Software 9.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.gth_dense import (
    BLOCK,
    SAFE_HIGH,
    SAFE_LOW,
    SAFE_SUM,
    carried_by_blas,
    carry_pivots,
    eliminate_pivots,
    rows_at_once,
    solve_pivot_wide,
)
from lingendice.kernels.jit import fused_kernel, kernel

# Progress of one run of fronts: next place in the schedule, what is done with that front, from which row on,
# the child whose left-over is being added, pivots done, and -1 or the step at which the elimination broke
# down.
NEXT_PLACE, PHASE, ROW, CHILD, PIVOTS_DONE, BROKEN_STEP, PROGRESS_SIZE = range(7)

# What is done with a front, one after the other; pivots and carrying take turns, block by block.
_CLEAR, _GATHER, _PIVOTS, _CARRY, _STORE, _LEAVE = range(6)

# What moving an entry in memory takes, in operations of a matrix product.
_MOVE = 50.0
# Entries cleared, and pivots stored, between two looks at the budget.
_CLEARED_AT_ONCE, _STORED_AT_ONCE = 1 << 20, 16


class Fronts(NamedTuple):
    """Supernodes: their first steps, their fronts' sizes, what they border, where their factors begin."""

    begin: Any
    size: Any
    border_start: Any
    border: Any
    block: Any


class FrontPlan(NamedTuple):
    """The order of the fronts, the tree among them, and where each leaves what its parent adds."""

    schedule: Any
    child: Any
    sibling: Any
    left_over: Any


class FrontEntries(NamedTuple):
    """Entries of the matrix by the supernode that eliminates them; ``where`` they are in the data."""

    start: Any
    row: Any
    column: Any
    where: Any


class FrontFactor(NamedTuple):
    """W_ik by columns, U_kj by rows (empty where only the distribution is wanted), and S_k."""

    columns: Any
    rows: Any
    exit_rate: Any


class Room(NamedTuple):
    """Scratch of one run: a front, one integer per state, and what `eliminate_pivots` works with."""

    front: Any
    local: Any
    work: Any


@kernel
def plan_runs(begin, size, above, n_parts):
    """Share the tree among ``n_parts`` runs of whole subtrees, and a last run for what joins them.

    Subtrees of less than half a share of the work go to the run that has least so far. Left-over matrices
    live on one stack for each run, the stacks side by side in one array.

    Returns (schedule, start of each run in it, offsets of factor blocks, offsets of left-overs, their total,
    first child and next sibling of each supernode).
    """
    groups = size.size
    block = np.zeros(groups + 1, np.int64)
    child = np.empty(groups, np.int32)
    sibling = np.empty(groups, np.int32)
    work = np.zeros(groups)
    total = 0.0
    for s in range(groups):
        pivots = begin[s + 1] - begin[s]
        block[s + 1] = block[s] + pivots * size[s]
        work[s] += 2.0 * pivots * size[s] * size[s]
        child[s] = -1
        if above[s] >= 0:
            work[above[s]] += work[s]
        else:
            total += work[s]
    # Half a share: runs that get subtrees of at most that size end at about the same time. What is larger is
    # left to the last run, which begins when the others have ended.
    limit = total if n_parts == 1 else total / (2.0 * n_parts)
    part = np.empty(groups, np.int32)
    load = np.zeros(n_parts)
    start = np.zeros(n_parts + 2, np.int64)
    # Parents have higher numbers than their children: a subtree's root is met first, and the rest follows it.
    for s in range(groups - 1, -1, -1):
        if above[s] >= 0:
            sibling[s] = child[above[s]]
            child[above[s]] = s
        if above[s] >= 0 and part[above[s]] < n_parts:
            part[s] = part[above[s]]
        elif work[s] > limit:
            part[s] = n_parts
        else:
            best = 0
            for r in range(n_parts):
                if load[r] < load[best]:
                    best = r
            part[s] = best
            load[best] += work[s]
        start[part[s] + 1] += 1
    schedule = np.empty(groups, np.int32)
    left_over = np.empty(groups, np.int64)
    base = 0
    at = 0
    # In postorder a front's children lie on top of the stack when it is assembled, and what it leaves takes
    # their place. Children from other runs lie on the stacks of those runs, which stay until the end.
    for r in range(n_parts + 1):
        start[r + 1] += start[r]
        top = base
        peak = base
        for s in range(groups):
            if part[s] != r:
                continue
            schedule[at] = s
            at += 1
            c = child[s]
            while c >= 0:
                if part[c] == r:
                    b = size[c] - (begin[c + 1] - begin[c])
                    top -= b * b
                c = sibling[c]
            left_over[s] = top
            b = size[s] - (begin[s + 1] - begin[s])
            top += b * b
            peak = max(peak, top)
        base = peak
    return schedule, start, block, left_over, base, child, sibling


@fused_kernel
def eliminate_fronts(progress, stop, plan, fronts, entries, data, left, factor, room, budget):
    """Run the schedule from ``progress`` up to place ``stop``, or until ``budget`` operations are spent.

    Any step of a front may be cut: the largest may hold most of the chain, and each of them takes seconds
    there. Returns True when the run has ended; `BROKEN_STEP` then says whether it broke down.
    """
    schedule, child, sibling, left_over = plan
    begin, size, border_start, border, block = fronts
    entry_start, row, column, where = entries
    columns, rows, exit_rate = factor
    matrix, local, work = room
    spent = 0.0
    while progress[NEXT_PLACE] < stop:
        s = schedule[progress[NEXT_PLACE]]
        n = size[s]
        pivots = np.int64(begin[s + 1] - begin[s])
        width = n - pivots
        front = matrix[: n * n].reshape((n, n))

        # The front: matrix entries that its pivots eliminate, and what its children left over.
        if progress[PHASE] == _CLEAR:
            at = progress[ROW]
            while at < n * n:
                if spent > budget:
                    progress[ROW] = at
                    return False
                end = min(n * n, at + _CLEARED_AT_ONCE)
                matrix[at:end] = 0.0
                spent += _MOVE * (end - at)
                at = end
            # Places of steps in this front. Those of other fronts are left as they are: nothing reads them
            # here.
            for k in range(pivots):
                local[begin[s] + k] = k
            for i in range(width):
                local[border[border_start[s] + i]] = pivots + i
            for q in range(entry_start[s], entry_start[s + 1]):
                front[local[row[q]], local[column[q]]] += data[where[q]]
            progress[PHASE] = _GATHER
            progress[CHILD] = child[s]
            progress[ROW] = 0
        if progress[PHASE] == _GATHER:
            c = progress[CHILD]
            while c >= 0:
                start = border_start[c]
                end = border_start[c + 1]
                first = start + progress[ROW]
                at = left_over[c] + progress[ROW] * (end - start)
                for i in range(first, end):
                    if spent > budget:
                        progress[CHILD] = c
                        progress[ROW] = i - start
                        return False
                    line = front[local[border[i]]]
                    for j in range(start, end):
                        line[local[border[j]]] += left[at]
                        at += 1
                    spent += _MOVE * (end - start)
                progress[ROW] = 0
                c = sibling[c]
            progress[PHASE] = _PIVOTS
            progress[PIVOTS_DONE] = 0

        # Small blocks while the pivot rows outweigh the update, large ones where memory traffic does.
        step = np.int64(BLOCK if n > 700 else BLOCK // 2)
        while progress[PHASE] == _PIVOTS or progress[PHASE] == _CARRY:
            first = progress[PIVOTS_DONE]
            last = min(pivots, first + step)
            if progress[PHASE] == _PIVOTS:
                if first >= pivots:
                    progress[PHASE] = _STORE
                    progress[ROW] = 0
                    break
                if spent > budget:
                    return False
                bad = eliminate_pivots(front, first, last, exit_rate[begin[s] : begin[s + 1]], work)
                # A front without border ends the chain: only the last of all may have no way out.
                if bad < 0 and last == n and s < size.size - 1:
                    bad = n - 1
                if bad >= 0:
                    progress[BROKEN_STEP] = begin[s] + bad
                    return True
                progress[PHASE] = _CARRY
                progress[ROW] = last
                if not carried_by_blas(n, first, last):
                    spent += 2.0 * (last - first) * (n - first) * (n - first)
                    progress[ROW] = n
            at_once = rows_at_once(n, first, last)
            while progress[ROW] < n:
                if spent > budget:
                    return False
                low = progress[ROW]
                high = min(n, low + at_once)
                carry_pivots(front, first, last, low, high, work)
                spent += 2.0 * (last - first) * (n - first) * (high - low)
                progress[ROW] = high
            progress[PHASE] = _PIVOTS
            progress[PIVOTS_DONE] = last

        # The factor by pivot, W_ik and U_kj, and the rates left among the border. Some pivots at a time share
        # the cache lines of the columns that they lie in.
        while progress[PHASE] == _STORE:
            first = progress[ROW]
            if first >= pivots:
                progress[PHASE] = _LEAVE
                progress[ROW] = pivots
                break
            if spent > budget:
                return False
            last = min(pivots, first + _STORED_AT_ONCE)
            at = block[s]
            for i in range(first + 1, n):
                for k in range(first, min(last, i)):
                    columns[at + k * n + i] = front[i, k]
            if rows.size > 0:
                for k in range(first, last):
                    for j in range(k + 1, n):
                        rows[at + k * n + j] = front[k, j]
            spent += 2.0 * _MOVE * (last - first) * n
            progress[ROW] = last
        at = left_over[s] + (progress[ROW] - pivots) * width
        for i in range(progress[ROW], n):
            if spent > budget:
                progress[ROW] = i
                return False
            for j in range(pivots, n):
                left[at] = front[i, j]
                at += 1
            spent += _MOVE * width
        progress[PHASE] = _CLEAR
        progress[ROW] = 0
        progress[NEXT_PLACE] += 1
    return True


@fused_kernel
def solve_distribution(fronts, factor, owner, x, high, low):
    """Back substitution over steps ``high - 1`` down to ``low``: x_k = sum_i x_i W_ik / S_k.

    ``owner`` is the supernode of every step, and ``x`` is by step, its last entry set by the caller. Returns
    whether all values stayed in the safe range.
    """
    begin, size, border_start, border, block = fronts
    columns, _, exit_rate = factor
    buffer = np.empty(1)
    for s in range(owner[high - 1], owner[low] - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        if buffer.size < n:
            buffer = np.empty(2 * n)
        for q in range(border_start[s], border_start[s + 1]):
            buffer[pivots + q - border_start[s]] = x[border[q]]
        # The call may begin within a front: x of its later pivots is known from the call before.
        k = min(begin[s + 1], high) - begin[s] - 1
        for j in range(k + 1, pivots):
            buffer[j] = x[begin[s] + j]
        # The last step of all leads nowhere later; its x is given.
        if begin[s] + k == x.size - 1:
            buffer[k] = x[begin[s] + k]
            k -= 1
        while k >= 0 and begin[s] + k >= low:
            at = block[s] + k * n
            line = columns[at + k + 1 : at + n]
            known = buffer[k + 1 : n]
            total = 0.0
            for i in range(n - k - 1):
                total += line[i] * known[i]
            value = total / exit_rate[begin[s] + k]
            if not (total > SAFE_SUM and SAFE_LOW < value < SAFE_HIGH):
                return False
            buffer[k] = value
            x[begin[s] + k] = value
            k -= 1
    return True


@kernel
def solve_distribution_wide(fronts, factor, owner, mantissa, exponent, high, low):
    """`solve_distribution` with one exponent per entry, for what spans more than float64 holds."""
    begin, size, border_start, border, block = fronts
    columns, _, exit_rate = factor
    for s in range(owner[high - 1], owner[low] - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        states = np.empty(n, np.int64)
        for k in range(pivots):
            states[k] = begin[s] + k
        for q in range(border_start[s], border_start[s + 1]):
            states[pivots + q - border_start[s]] = border[q]
        for k in range(min(begin[s + 1], high) - begin[s] - 1, max(begin[s], low) - begin[s] - 1, -1):
            if begin[s] + k < mantissa.size - 1:
                rate = exit_rate[begin[s] + k]
                solve_pivot_wide(columns, block[s], n, 1, k, states, rate, mantissa, exponent)


@fused_kernel
def push_rewards(fronts, factor, owner, r, t, buffer, low, high):
    """Forward pass of the adjoint over steps ``low`` to ``high - 1``, in place, by step.

    r_i += W_ik r_k / S_k, likewise t; r_k and t_k are left divided by S_k, except at the last step of all.
    ``buffer``, two rows as long as the largest front, carries a front that is cut over to the next call: the
    sums are the same bits wherever it is cut.
    """
    begin, size, border_start, border, block = fronts
    columns, _, exit_rate = factor
    for s in range(owner[low], owner[high - 1] + 1):
        n = size[s]
        first = begin[s]
        pivots = begin[s + 1] - first
        stop = min(pivots, high - first)
        if low <= first:
            buffer[:, :n] = 0.0
        for k in range(max(low - first, 0), stop):
            r[first + k] += buffer[0, k]
            t[first + k] += buffer[1, k]
            if first + k == r.size - 1:
                break
            r[first + k] /= exit_rate[first + k]
            t[first + k] /= exit_rate[first + k]
            a = r[first + k]
            b = t[first + k]
            at = block[s] + k * n
            line = columns[at + k + 1 : at + n]
            to_r = buffer[0, k + 1 : n]
            to_t = buffer[1, k + 1 : n]
            for i in range(n - k - 1):
                to_r[i] += a * line[i]
                to_t[i] += b * line[i]
        # Border rows are pushed once, when the front is done: added bit by bit, the sums would depend on the
        # cuts.
        if stop < pivots:
            break
        for q in range(border_start[s], border_start[s + 1]):
            r[border[q]] += buffer[0, pivots + q - border_start[s]]
            t[border[q]] += buffer[1, pivots + q - border_start[s]]


@fused_kernel
def solve_bias(fronts, factor, owner, r, t, gain, h, high, low):
    """Back substitution of the adjoint over steps ``high - 1`` down to ``low``.

    h_k = r_k - gain t_k + sum_j U_kj h_j (r, t as pushed).
    """
    begin, size, border_start, border, block = fronts
    rows = factor.rows
    buffer = np.empty(1)
    for s in range(owner[high - 1], owner[low] - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        if buffer.size < n:
            buffer = np.empty(2 * n)
        for q in range(border_start[s], border_start[s + 1]):
            buffer[pivots + q - border_start[s]] = h[border[q]]
        last = min(begin[s + 1], high) - begin[s] - 1
        for j in range(last + 1, pivots):
            buffer[j] = h[begin[s] + j]
        for k in range(last, max(begin[s], low) - begin[s] - 1, -1):
            total = 0.0
            if begin[s] + k < r.size - 1:
                at = block[s] + k * n
                line = rows[at + k + 1 : at + n]
                known = buffer[k + 1 : n]
                for j in range(n - k - 1):
                    total += line[j] * known[j]
                total += r[begin[s] + k] - gain * t[begin[s] + k]
            buffer[k] = total
            h[begin[s] + k] = total


@fused_kernel
def push_mass(fronts, factor, owner, mass, buffer, low, high):
    """Forward pass for visits over steps ``low`` to ``high - 1``, in place, by step: z_j += z_k U_kj.

    ``buffer``, as long as the largest front, carries a front that is cut over to the next call.
    """
    begin, size, border_start, border, block = fronts
    rows = factor.rows
    for s in range(owner[low], owner[high - 1] + 1):
        n = size[s]
        first = begin[s]
        pivots = begin[s + 1] - first
        stop = min(pivots, high - first)
        if low <= first:
            buffer[:n] = 0.0
        for k in range(max(low - first, 0), stop):
            mass[first + k] += buffer[k]
            a = mass[first + k]
            if first + k == mass.size - 1 or a == 0.0:
                continue
            at = block[s] + k * n
            line = rows[at + k + 1 : at + n]
            later = buffer[k + 1 : n]
            for i in range(n - k - 1):
                later[i] += a * line[i]
        if stop < pivots:
            break
        for q in range(border_start[s], border_start[s + 1]):
            mass[border[q]] += buffer[pivots + q - border_start[s]]


@fused_kernel
def solve_visits(fronts, factor, owner, mass, visits, high, low):
    """Back substitution for visits over steps ``high - 1`` down to ``low``.

    d_k = (z_k + sum_i d_i W_ik) / S_k with z as pushed; the last step of all is never left, and gets 0.
    """
    begin, size, border_start, border, block = fronts
    columns, _, exit_rate = factor
    buffer = np.empty(1)
    for s in range(owner[high - 1], owner[low] - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        if buffer.size < n:
            buffer = np.empty(2 * n)
        for q in range(border_start[s], border_start[s + 1]):
            buffer[pivots + q - border_start[s]] = visits[border[q]]
        last = min(begin[s + 1], high) - begin[s] - 1
        for j in range(last + 1, pivots):
            buffer[j] = visits[begin[s] + j]
        for k in range(last, max(begin[s], low) - begin[s] - 1, -1):
            value = 0.0
            if begin[s] + k < visits.size - 1:
                at = block[s] + k * n
                line = columns[at + k + 1 : at + n]
                known = buffer[k + 1 : n]
                total = 0.0
                for i in range(n - k - 1):
                    total += line[i] * known[i]
                value = (mass[begin[s] + k] + total) / exit_rate[begin[s] + k]
            buffer[k] = value
            visits[begin[s] + k] = value
