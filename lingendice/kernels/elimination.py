"""Sparse elimination of a Markov chain without subtractions, front by front.

Each supernode gathers the rates among its own states (pivots) and those it borders into one dense front,
adds what its children in the tree left over, eliminates the pivots with `eliminate_block`, and leaves the
rates among its border for its parent. A pivot's row is complete in its front, so S_k is a plain row sum there.
"""

from __future__ import annotations

import numpy as np

from .gth_dense import BLOCK, SAFE_HIGH, SAFE_LOW, SAFE_SUM, eliminate_block, solve_pivot_wide
from .jit import fused_kernel, kernel

# Progress of one run of fronts: next place in the schedule, pivots done in that front, and -1 or the step
# at which the elimination broke down.
NEXT_PLACE, PIVOTS_DONE, BROKEN_STEP = range(3)


@kernel
def split_tree(begin, size, above, n_parts):  # type: ignore[no-untyped-def]
    """Share the tree among ``n_parts`` runs of whole subtrees, and a last run for what joins them.

    Returns (schedule, start of each run in it, part of each supernode, arithmetic of each run). Subtrees of
    less than a share of the work go to the run that has least so far.
    """
    groups = size.size
    work = np.zeros(groups)
    for s in range(groups):
        for k in range(begin[s + 1] - begin[s]):
            work[s] += 2.0 * (size[s] - k) * (size[s] - k)
        if above[s] >= 0:
            work[above[s]] += work[s]
    limit = np.inf
    if n_parts > 1:
        total = 0.0
        for s in range(groups):
            if above[s] < 0:
                total += work[s]
        limit = total / (2.0 * n_parts)
    part = np.empty(groups, np.int32)
    load = np.zeros(n_parts + 1)
    for s in range(groups - 1, -1, -1):
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
    start = np.zeros(n_parts + 2, np.int64)
    for s in range(groups):
        start[part[s] + 1] += 1
    for r in range(n_parts + 1):
        start[r + 1] += start[r]
    at = start.copy()
    schedule = np.empty(groups, np.int32)
    for s in range(groups):
        schedule[at[part[s]]] = s
        at[part[s]] += 1
    return schedule, start, part


@kernel
def plan_storage(begin, size, above, schedule, start, part):  # type: ignore[no-untyped-def]
    """Where each factor block and each left-over matrix will lie.

    Left-overs live on one stack for each run, side by side in one array. Returns (offsets of factor
    blocks, offsets of left-overs, total of left-overs, first child and next sibling of each supernode).
    """
    groups = size.size
    block = np.zeros(groups + 1, np.int64)
    child = np.full(groups, -1, np.int32)
    sibling = np.full(groups, -1, np.int32)
    for s in range(groups):
        block[s + 1] = block[s] + (begin[s + 1] - begin[s]) * size[s]
    for s in range(groups - 1, -1, -1):
        if above[s] >= 0:
            sibling[s] = child[above[s]]
            child[above[s]] = s
    left_over = np.empty(groups, np.int64)
    base = 0
    for r in range(start.size - 1):
        top = base
        peak = base
        for q in range(start[r], start[r + 1]):
            s = schedule[q]
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
    return block, left_over, base, child, sibling


@fused_kernel
def _assemble(s, front, local, tree, border_start, border, left_over, left, entry_start, row, column, where, data):  # type: ignore[no-untyped-def]
    """Fill a front with the matrix entries of its pivots and the left-overs of its children."""
    begin, child, sibling = tree
    size = front.shape[0]
    pivots = begin[s + 1] - begin[s]
    for i in range(size):
        line = front[i]
        for j in range(size):
            line[j] = 0.0
    for k in range(pivots):
        local[begin[s] + k] = k
    for q in range(border_start[s], border_start[s + 1]):
        local[border[q]] = pivots + q - border_start[s]
    for q in range(entry_start[s], entry_start[s + 1]):
        front[local[row[q]], local[column[q]]] += data[where[q]]
    c = child[s]
    while c >= 0:
        first = border_start[c]
        width = border_start[c + 1] - first
        at = left_over[c]
        for i in range(width):
            line = front[local[border[first + i]]]
            for j in range(width):
                line[local[border[first + j]]] += left[at + j]
            at += width
        c = sibling[c]


@fused_kernel
def _store(front, pivots, block, columns, rows, left_over, left):  # type: ignore[no-untyped-def]
    """Copy an eliminated front: W_ik by pivot, U_kj by pivot, and the rates left among the border."""
    size = front.shape[0]
    for k in range(pivots):
        at = block + k * size
        for i in range(k + 1, size):
            columns[at + i] = front[i, k]
    if rows.size > 0:
        for k in range(pivots):
            at = block + k * size
            for j in range(k + 1, size):
                rows[at + j] = front[k, j]
    width = size - pivots
    for i in range(width):
        source = front[pivots + i, pivots:]
        target = left[left_over + i * width : left_over + (i + 1) * width]
        for j in range(width):
            target[j] = source[j]


@kernel
def eliminate_fronts(  # type: ignore[no-untyped-def]
    progress, stop, schedule, tree, size, border_start, border, left_over, left, block, columns, rows,
    exit_rate, entry_start, row, column, where, data, room, local, work, budget,
):  # fmt: skip
    """Run ``schedule`` from ``progress`` up to place ``stop``, or until ``budget`` operations are spent.

    Returns True when the run has ended; `BROKEN_STEP` then tells whether it broke down. ``rows`` may be
    empty where only the law is wanted. ``room`` holds one front, ``local`` one integer a state.
    """
    begin = tree[0]
    spent = 0.0
    while progress[NEXT_PLACE] < stop:
        s = schedule[progress[NEXT_PLACE]]
        n = size[s]
        pivots = np.int64(begin[s + 1] - begin[s])
        front = room[: n * n].reshape((n, n))
        if progress[PIVOTS_DONE] == 0:
            _assemble(
                s, front, local, tree, border_start, border, left_over, left, entry_start, row, column, where, data
            )  # fmt: skip
            spent += 4.0 * n * n
        rates = exit_rate[begin[s] : begin[s + 1]]
        # Small blocks while the panel outweighs the update, large ones where memory traffic does.
        step = np.int64(BLOCK if n > 700 else BLOCK // 2)
        while progress[PIVOTS_DONE] < pivots:
            if spent > budget:
                return False
            first = progress[PIVOTS_DONE]
            last = min(pivots, first + step)
            bad = eliminate_block(front, first, last, rates, work)
            # A front without border ends the chain: only the last of all may have no way out.
            if bad < 0 and last == n and s < size.size - 1:
                bad = n - 1
            if bad >= 0:
                progress[BROKEN_STEP] = begin[s] + bad
                return True
            spent += 2.0 * (last - first) * (n - first) * (n - first)
            progress[PIVOTS_DONE] = last
        _store(front, pivots, block[s], columns, rows, left_over[s], left)
        progress[PIVOTS_DONE] = 0
        progress[NEXT_PLACE] += 1
    return True


@fused_kernel
def solve_law(begin, size, border_start, border, block, columns, exit_rate, x, high, low):  # type: ignore[no-untyped-def]
    """Back substitution over supernodes ``high - 1`` down to ``low``: x_k = sum_i x_i W_ik / S_k.

    ``x`` is by step, its last entry set by the caller. Returns whether all values stayed in the safe range.
    """
    buffer = np.empty(1)
    for s in range(high - 1, low - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        if buffer.size < n:
            buffer = np.empty(2 * n)
        for q in range(border_start[s], border_start[s + 1]):
            buffer[pivots + q - border_start[s]] = x[border[q]]
        k = pivots - 1
        if s == size.size - 1:
            buffer[k] = x[begin[s] + k]
            k -= 1
        while k >= 0:
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
def solve_law_wide(begin, size, border_start, border, block, columns, exit_rate, mantissa, exponent, high, low):  # type: ignore[no-untyped-def]
    """`solve_law` with an exponent for every entry: for laws that span more than float64 holds on the way."""
    for s in range(high - 1, low - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        states = np.empty(n, np.int64)
        for k in range(pivots):
            states[k] = begin[s] + k
        for q in range(border_start[s], border_start[s + 1]):
            states[pivots + q - border_start[s]] = border[q]
        for k in range(pivots - 1, -1, -1):
            if s < size.size - 1 or k < pivots - 1:
                rate = exit_rate[begin[s] + k]
                solve_pivot_wide(columns, block[s], n, 1, k, states, rate, mantissa, exponent)


@fused_kernel
def push_rewards(begin, size, border_start, border, block, columns, exit_rate, r, t, low, high):  # type: ignore[no-untyped-def]
    """Forward pass of the adjoint over supernodes ``low`` to ``high - 1``, in place, by step.

    r_i += W_ik r_k / S_k, likewise t; r_k and t_k are left divided by S_k, except at the last step of all.
    """
    buffer = np.empty((2, 1))
    for s in range(low, high):
        n = size[s]
        first = begin[s]
        pivots = begin[s + 1] - first
        if buffer.shape[1] < n:
            buffer = np.empty((2, 2 * n))
        for i in range(n):
            buffer[0, i] = 0.0
            buffer[1, i] = 0.0
        for k in range(pivots):
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
        for q in range(border_start[s], border_start[s + 1]):
            r[border[q]] += buffer[0, pivots + q - border_start[s]]
            t[border[q]] += buffer[1, pivots + q - border_start[s]]


@fused_kernel
def solve_bias(begin, size, border_start, border, block, rows, r, t, gain, h, high, low):  # type: ignore[no-untyped-def]
    """Back substitution of the adjoint: h_k = r_k - gain t_k + sum_j U_kj h_j (r, t as pushed)."""
    buffer = np.empty(1)
    for s in range(high - 1, low - 1, -1):
        n = size[s]
        pivots = begin[s + 1] - begin[s]
        if buffer.size < n:
            buffer = np.empty(2 * n)
        for q in range(border_start[s], border_start[s + 1]):
            buffer[pivots + q - border_start[s]] = h[border[q]]
        for k in range(pivots - 1, -1, -1):
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
    return
