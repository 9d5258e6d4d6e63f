"""Sweeps for the stationary distribution of a sparse chain, and the chain between blocks of its states.

With off-diagonal weights ``W`` and exit weights ``D_i = sum_{j != i} W_ij`` the chain that is
watched only when it moves has transition probabilities ``Q_ij = W_ij / D_i``. Its distribution ``y``
solves ``y_j = sum_i y_i Q_ij``, and the distribution of the chain itself is ``x_i ~ y_i s_i / D_i`` with
``s_i = D_i + W_ii``. Every operation below acts on nonnegative numbers, so that rounding
errors stay relative, entry by entry.

Two layouts of ``Q`` are used. *Pull*: for each target ``j`` its sources and weights
(``start``, ``source``, ``weight``). *Row*: for each source its targets. Indices into the states are
unsigned: Numba then leaves out the test for negative ones, which makes a sweep half as long again.

The chain between blocks has weights ``F_IJ = sum_{i in I, j in J} y_i Q_ij``: sums of nonnegative terms only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel

WEIGHT_BINS = 128


@kernel
def weight_bin(bits):
    """Binary exponent of a probability given its bits: bin ``b`` holds ``2^-b <= Q < 2^(1-b)``."""
    exponent = 1023 - ((bits >> 52) & 0x7FF)
    return min(max(exponent, 0), 127)


@kernel
def count_bins(bits, first, last, histogram):
    """Count the weights ``first .. last`` in each bin."""
    for k in range(first, last):
        histogram[weight_bin(bits[k])] += 1


@kernel
def find_root(parent, state):
    """Root of a state in a union-find forest; paths are halved on the way."""
    while parent[state] != state:
        parent[state] = parent[parent[state]]
        state = parent[state]
    return state


@kernel
def merge_bins(start, source, bits, first, last, strongest, weakest, components, parent):
    """Union the ends of every edge into targets ``first .. last`` whose bin lies in ``strongest .. weakest``.

    ``parent`` is a union-find forest of ``components`` trees. Returns how many remain.
    """
    for j in range(first, last):
        b = find_root(parent, np.uint32(j))
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            a = source[k]
            if parent[a] == b:
                continue
            exponent = weight_bin(bits[k])
            if exponent < strongest or exponent > weakest:
                continue
            a = find_root(parent, a)
            if a != b:
                components -= 1
                if components == 1:
                    return components
                if a < b:
                    parent[b] = a
                    b = a
                else:
                    parent[a] = b
    return components


@kernel
def label_components(parent, label):
    """Number the trees of a union-find forest whose roots are their smallest members."""
    count = 0
    for i in range(parent.size):
        if parent[i] == i:
            label[i] = count
            count += 1
        else:
            label[i] = label[parent[i]]
    return count


@kernel
def strongest_inflows(start, source, weight, y, label, first, last, best, best_source):
    """For every block the largest inflow ``y_i Q_ij`` from another block, over targets ``first .. last``.

    ``best`` (zero before the first call) holds the inflow and ``best_source`` the block it comes from.
    """
    for j in range(first, last):
        own = label[j]
        largest = best[own]
        origin = best_source[own]
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            i = source[k]
            inflow = weight[k] * y[i]
            if inflow > largest and label[i] != own:
                largest = inflow
                origin = label[i]
        best[own] = largest
        best_source[own] = origin


@kernel
def join_strongest(best_source, most, least, size, label):
    """Join blocks with the sources of their strongest inflows, up to ``most`` states in one block.

    Blocks refused by the same source join each other: around a hub nothing else would make progress. No more
    are joined than leaves ``least`` blocks. ``size`` holds the states of every block. Relabels the states and
    renumbers ``size``, in place; returns the number of blocks.
    """
    blocks = best_source.size
    parent = np.arange(blocks).astype(np.uint32)
    waiting = parent.copy()
    spare = blocks - least
    for block in range(blocks):
        if spare == 0:
            break
        a = find_root(parent, np.uint32(block))
        b = find_root(parent, best_source[block])
        if a != b and size[a] + size[b] > most:
            b, waiting[b] = find_root(parent, waiting[b]), a
        if a != b and size[a] + size[b] <= most:
            low, high = min(a, b), max(a, b)
            parent[high] = low
            size[low] += size[high]
            spare -= 1
    renumbered = np.empty(blocks, np.uint32)
    count = label_components(parent, renumbered)
    for block in range(blocks):
        if parent[block] == block:
            size[renumbered[block]] = size[block]
    for i in range(label.size):
        label[i] = renumbered[label[i]]
    return count


@kernel
def dense_flows(start, source, weight, y, label, first, last, flow):
    """Add the flows ``F_IJ`` into the states ``first .. last`` to a dense matrix whose rows are sources."""
    for j in range(first, last):
        own = label[j]
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            other = label[source[k]]
            if other != own:
                flow[other, own] += weight[k] * y[source[k]]


@kernel
def root_blocks(start, source, weight, y, threshold, first, last, count, label):
    """Make blocks of states ``first .. last`` and the sources of their strongest inflows.

    An inflow ``y_i Q_ij`` is strong for ``j`` when it is at least ``threshold`` times the largest inflow of
    ``j``. A state whose strong sources are all free (labeled ``n``) founds a block with them. ``count``
    blocks exist before the call; returns how many do after it. Every block holds two states or more.
    """
    free = np.uint32(y.size)
    for j in range(first, last):
        if label[j] != free:
            continue
        strong = 0.0
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            strong = max(strong, weight[k] * y[source[k]])
        strong *= threshold
        root = True
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            if label[source[k]] != free and weight[k] * y[source[k]] >= strong:
                root = False
                break
        if not root:
            continue
        label[j] = count
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            if weight[k] * y[source[k]] >= strong:
                label[source[k]] = count
        count += 1
    return count


@kernel
def join_blocks(start, source, weight, y, first, last, label):
    """Let states ``first .. last`` that are still free join the block of their strongest source in one."""
    free = np.uint32(y.size)
    for j in range(first, last):
        if label[j] != free:
            continue
        largest = -1.0
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            inflow = weight[k] * y[source[k]]
            if label[source[k]] != free and inflow > largest:
                largest = inflow
                label[j] = label[source[k]]


@kernel
def list_members(label, count):
    """States sorted by block: ``member[begin[J] : begin[J + 1]]`` are those of block ``J``."""
    begin = np.zeros(count + 1, np.int64)
    for i in range(label.size):
        begin[label[i] + 1] += 1
    for block in range(count):
        begin[block + 1] += begin[block]
    cursor = begin[:-1].copy()
    member = np.empty(label.size, np.uint32)
    for i in range(label.size):
        member[cursor[label[i]]] = i
        cursor[label[i]] += 1
    return begin, member


class Pull(NamedTuple):
    """Rates into each state j: ``weight[start[j]:start[j + 1]]``, from the states in ``source``."""

    start: Any
    source: Any
    weight: Any


class Partition(NamedTuple):
    """The block of each state, and the members of each block."""

    label: Any
    begin: Any
    member: Any


@kernel
def coarsen(pull, y, partition, first, last, slot, blocks, outflow):
    """Flows ``F_IJ`` into blocks ``first .. last``, in the pull layout between blocks.

    ``slot`` (all -1 before the first call) remembers where a source block was written;
    ``outflow`` receives ``sum_J F_IJ``.
    """
    start, source, weight = pull
    label, begin, member = partition
    block_start, block_source, flow = blocks
    position = block_start[first]
    for block in range(first, last):
        opening = position
        for m in range(begin[block], begin[block + 1]):
            j = member[m]
            for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
                other = label[source[k]]
                if other == block:
                    continue
                amount = weight[k] * y[source[k]]
                at = slot[other]
                if at < opening:
                    slot[other] = position
                    block_source[position] = other
                    flow[position] = amount
                    position += 1
                else:
                    flow[at] += amount
        for at in range(opening, position):
            outflow[block_source[at]] += flow[at]
        block_start[block + 1] = position


@kernel
def scatter_dense(start, source, weight, dense):
    """Write a pull layout into a dense matrix whose rows are sources."""
    for j in range(start.size - 1):
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            dense[source[k], j] += weight[k]


@fused_kernel
def sweep(start, source, weight, y, first, last, forward, relaxation):
    """One relaxed Gauss-Seidel sweep ``y_j <- y_j + relaxation (sum_i y_i Q_ij - y_j)`` in place.

    ``relaxation`` 1 is Gauss-Seidel itself, which subtracts nothing. Above 1 an entry is kept from falling
    below a tenth of itself at one stroke. Returns the largest relative change of an entry.
    """
    largest = 0.0
    for step in range(last - first):
        j = first + step if forward else last - 1 - step
        total = 0.0
        for k in range(np.uint64(start[j]), np.uint64(start[j + 1])):
            total += weight[k] * y[source[k]]
        old = y[j]
        new = max(0.1 * old, (1.0 - relaxation) * old + relaxation * total) if relaxation > 1.0 else total
        y[j] = new
        change = abs(new - old)
        if change > largest * new:
            largest = change / new if new > 0.0 else np.inf
    return largest


@fused_kernel
def row_sweep(start, target, weight, d, h, first, last, forward):
    """One Gauss-Seidel sweep ``h_i <- d_i + sum_j Q_ij h_j`` in place (the adjoint equation)."""
    for step in range(last - first):
        i = first + step if forward else last - 1 - step
        total = d[i]
        for k in range(np.uint64(start[i]), np.uint64(start[i + 1])):
            total += weight[k] * h[target[k]]
        h[i] = total


@fused_kernel
def row_residual(start, target, weight, d, h, first, last, out):
    """Write ``d_i - sum_j Q_ij (h_i - h_j)``, differences first: a constant in ``h`` cancels."""
    for i in range(first, last):
        total = 0.0
        center = h[i]
        for k in range(np.uint64(start[i]), np.uint64(start[i + 1])):
            total += weight[k] * (center - h[target[k]])
        out[i] = d[i] - total
