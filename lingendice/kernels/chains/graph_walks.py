"""Graph walks on compressed rows."""

from __future__ import annotations

from math import gcd

import numpy as np

from lingendice.kernels.jit import kernel


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
def strong_components(indptr, indices, rank):  # type: ignore[no-untyped-def]
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
def closed_components(indptr, indices, component, count):  # type: ignore[no-untyped-def]
    """For every component, whether no edge leaves it."""
    closed = np.ones(count, dtype=np.bool_)
    for i in range(indptr.size - 1):
        own = component[i]
        for entry in range(indptr[i], indptr[i + 1]):
            if component[indices[entry]] != own:
                closed[own] = False
                break
    return closed
