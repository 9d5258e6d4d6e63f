"""Compressed-row helpers: transpose, uniform rows, degree order, block splitting, union of rows, walks.

All arrays are raw: ``indptr`` int64, ``indices`` int32 (int64 beyond 2**31 columns), ``data``
float64 or empty. An empty ``data`` means that every stored entry has weight one, which halves
the memory traffic of every loop. Kernels work on ranges, so that callers decide how long one
call lasts and which thread runs it.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def rows_are_uniform(indptr, data, first, last):
    """Whether in each row of a range all entries are equal and positive."""
    for row in range(first, last):
        begin = indptr[row]
        end = indptr[row + 1]
        if begin < end:
            weight = data[begin]
            if not weight > 0.0:
                return False
            for entry in range(begin + 1, end):
                if data[entry] != weight:
                    return False
    return True


@kernel
def count_columns(indptr, indices, data, first, last, counts, loops, leaving):
    """Count the entries of each column in a range of rows, and add up what leaves each row.

    Self-loops go to ``loops`` instead; entries of weight 0 are none.
    """
    weighted = data.size > 0
    for row in range(first, last):
        away = 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            weight = data[entry] if weighted else 1.0
            column = indices[entry]
            if column == row:
                loops[row] += weight
            elif weight > 0.0:
                counts[column] += 1
                away += weight
        leaving[row] = away


@kernel
def order_by_count(counts, window, order):
    """Stable counting sort of nodes by falling count, each ``window`` of consecutive nodes on its own.

    Counts of 4095 or more share a bucket.
    """
    top = 4096
    start = np.empty(top + 1, np.int64)
    for first in range(0, counts.size, window):
        last = min(counts.size, first + window)
        start[:] = 0
        start[0] = first
        for node in range(first, last):
            start[top - min(counts[node], top - 1)] += 1
        for bucket in range(top):
            start[bucket + 1] += start[bucket]
        for node in range(first, last):
            bucket = top - 1 - min(counts[node], top - 1)
            order[start[bucket]] = node
            start[bucket] += 1


@kernel
def scatter_transpose(indptr, indices, data, divisor, label, first, last, slot, sources, weights):
    """Write one range of rows, each over its ``divisor``, into a transposed matrix without self-loops.

    ``slot[column]`` is the next free place for that column and is advanced; a row is written
    under its new number ``label[row]``.
    """
    weighted = data.size > 0
    for row in range(first, last):
        new = label[row]
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            if column != row and (not weighted or data[entry] > 0.0):
                place = slot[column]
                slot[column] = place + 1
                sources[place] = new
                if weighted:
                    weights[place] = data[entry] / divisor[row]


@kernel
def rows_between_nodes(indptr, indices, data, scale, out, distribution):
    """Compressed rows without zeros: rows times ``scale``, each with what falls to hubs, then those of hubs.

    ``out`` is rows by hubs, ``distribution`` hubs by rows; hubs are numbered after the rows.
    """
    n, hubs = out.shape
    size = indptr[n] + n * hubs  # and what hubs lead to
    for hub in range(hubs):
        for j in range(n):
            size += distribution[hub, j] > 0.0
    start = np.zeros(n + hubs + 1, np.int64)
    target = np.empty(size, np.int32)
    rate = np.empty(size)
    at = 0
    for i in range(n):
        for entry in range(indptr[i], indptr[i + 1]):
            weight = data[entry] * scale[i]
            if weight > 0.0:
                target[at] = indices[entry]
                rate[at] = weight
                at += 1
        for hub in range(hubs):
            if out[i, hub] > 0.0:
                target[at] = n + hub
                rate[at] = out[i, hub]
                at += 1
        start[i + 1] = at
    for hub in range(hubs):
        for j in range(n):
            if distribution[hub, j] > 0.0:
                target[at] = j
                rate[at] = distribution[hub, j]
                at += 1
        start[n + hub + 1] = at
    return start, target[:at], rate[:at]


@kernel
def split_blocks(indptr, sources, weights, block_of, first, last, split, outside):
    """Put the entries that come from the row's own block last, and weigh the others.

    ``split[row]`` becomes the place of the first of them; ``outside[source]`` gains the weight that its
    source sends to other blocks.
    """
    weighted = weights.size > 0
    for row in range(first, last):
        block = block_of[row]
        place = indptr[row + 1]
        entry = indptr[row]
        while entry < place:
            source = sources[entry]
            if block_of[source] == block:
                place -= 1
                sources[entry] = sources[place]
                sources[place] = source
                if weighted:
                    weight = weights[entry]
                    weights[entry] = weights[place]
                    weights[place] = weight
            else:
                outside[source] += weights[entry] if weighted else 1.0
                entry += 1
        split[row] = place


_END = np.int64(2**63 - 1)  # beyond every column


class Side(NamedTuple):
    """Compressed rows of counts."""

    start: Any
    columns: Any
    count: Any


@kernel
def _column(columns, at, stop):
    return np.int64(columns[np.uint64(at)]) if at < stop else _END


@kernel
def count_union(first_start, first_columns, second_start, second_columns, start, stop, sizes):
    """How many distinct columns each row has in both together."""
    for row in range(start, stop):
        i, last_i = first_start[row], first_start[row + 1]
        j, last_j = second_start[row], second_start[row + 1]
        found = 0
        while i < last_i and j < last_j:
            x, y = first_columns[np.uint64(i)], second_columns[np.uint64(j)]
            i += np.int64(x <= y)
            j += np.int64(y <= x)
            found += 1
        sizes[row] = found + (last_i - i) + (last_j - j)


@kernel
def unite_rows(first, second, start, stop, united, first_place, second_place):
    """Fill the rows whose starts are known with columns and sums of counts.

    The places say where each entry of either side went; they are left out where they have length zero.
    """
    first_start, first_columns, first_count = first
    second_start, second_columns, second_count = second
    starts, columns, count = united
    zero = count.dtype.type(0)
    want_places = first_place.size != 0 or second_place.size != 0
    for row in range(start, stop):
        i, last_i = first_start[row], first_start[row + 1]
        j, last_j = second_start[row], second_start[row + 1]
        for at in range(starts[row], starts[row + 1]):
            x, y = _column(first_columns, i, last_i), _column(second_columns, j, last_j)
            columns[at] = min(x, y)
            total = zero
            if x <= y:
                total += first_count[np.uint64(i)]
                if want_places:
                    first_place[i] = at
                i += 1
            if y <= x:
                total += second_count[np.uint64(j)]
                if want_places:
                    second_place[j] = at
                j += 1
            count[at] = total


# -- walks on the graph of compressed rows -------------------------------------------------------------------


@kernel
def cycle_divisor(indptr, indices):
    """Greatest common divisor of the cycle lengths of a strongly connected graph (its period).

    With breadth-first depths from node 0, the divisor is that of depth[i] + 1 - depth[j] over all
    edges i -> j. O(nnz).
    """
    n = indptr.size - 1
    depth = np.full(n, -1, dtype=np.int64)
    queue = np.empty(n, dtype=np.int64)
    depth[0] = 0
    queue[0] = 0
    head, tail = 0, 1
    divisor = 0
    while head < tail:
        node = queue[head]
        head += 1
        for entry in range(indptr[node], indptr[node + 1]):
            neighbor = indices[entry]
            if depth[neighbor] < 0:
                depth[neighbor] = depth[node] + 1
                queue[tail] = neighbor
                tail += 1
            else:
                divisor = gcd(divisor, abs(depth[node] + 1 - depth[neighbor]))
    return divisor


@kernel
def strong_components(indptr, indices, rank):
    """Strongly connected components: their number; ``rank`` becomes the component of every node. O(n + nnz).

    Pearce's one-array form of Tarjan's search, without recursion. Components are numbered in the order
    in which they are completed: an edge never leads to a component of a higher number. ``rank`` holds
    zeros at first, of an integer type that can hold twice the number of nodes.
    """
    n = indptr.size - 1
    # In rank, 0: not seen; 1 .. n: being searched; beyond n: done.
    edge = indptr[:-1].copy()
    path = np.empty(n, dtype=rank.dtype)
    waiting = np.empty(n, dtype=rank.dtype)
    is_root = np.ones(n, dtype=np.bool_)
    n_waiting = 0
    next_rank = 1
    count = 0
    for start in range(n):
        if rank[start] != 0:
            continue
        path[0] = start
        depth = 1
        rank[start] = next_rank
        next_rank += 1
        while depth > 0:
            node = path[depth - 1]
            if edge[node] < indptr[node + 1]:
                neighbor = indices[edge[node]]
                if rank[neighbor] == 0:
                    # The edge is looked at again on the way back.
                    path[depth] = neighbor
                    depth += 1
                    rank[neighbor] = next_rank
                    next_rank += 1
                    continue
                edge[node] += 1
                if rank[neighbor] < rank[node]:
                    rank[node] = rank[neighbor]
                    is_root[node] = False
                continue
            depth -= 1
            if not is_root[node]:
                waiting[n_waiting] = node
                n_waiting += 1
                continue
            next_rank -= 1
            done = 2 * n - count  # above every rank in use
            while n_waiting > 0 and rank[node] <= rank[waiting[n_waiting - 1]]:
                n_waiting -= 1
                rank[waiting[n_waiting]] = done
                next_rank -= 1
            rank[node] = done
            count += 1
    for node in range(n):
        rank[node] = 2 * n - rank[node]
    return count


@kernel
def closed_components(indptr, indices, component, count):
    """For every component, whether no edge leaves it."""
    closed = np.ones(count, dtype=np.bool_)
    for i in range(indptr.size - 1):
        own = component[i]
        for entry in range(indptr[i], indptr[i + 1]):
            if component[indices[entry]] != own:
                closed[own] = False
                break
    return closed
