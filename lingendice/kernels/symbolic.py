"""What an elimination will cost and where its entries will lie, before any number is touched.

All functions work on the graph of the symmetrized pattern under an elimination order. The elimination tree
gives each state the first later state that its elimination touches; states that share a pattern are
gathered into supernodes, whose fronts are dense.

References
----------
J. W. H. Liu (1990). The role of elimination trees in sparse factorization. SIAM Journal on Matrix Analysis
    and Applications 11.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def elimination_tree(graph_start, graph, order):
    """The order, renumbered so that every subtree is contiguous and ends with its root; and the tree.

    Returns (order, parent of each step, -1 at a root). The fill is that of the given order. Cost nearly
    linear in the edges.
    """
    n = order.size
    step = np.empty(n, np.int32)
    parent = np.full(n, -1, np.int32)
    ancestor = np.full(n, -1, np.int32)
    for k in range(n):
        step[order[k]] = k
    for k in range(n):
        v = order[k]
        for q in range(graph_start[v], graph_start[v + 1]):
            i = step[graph[q]]
            # From each earlier neighbor up to the root of the subtree it is in so far, which is hung under k.
            # `ancestor` leads to such roots by short cuts: all steps on the way point to k from now on.
            while i >= 0 and i < k:
                above = ancestor[i]
                ancestor[i] = k
                if above < 0:
                    parent[i] = k
                i = above
    # Both arrays have served and are used again, for the children of each step in ascending order.
    child = ancestor
    sibling = step
    for k in range(n):
        child[k] = -1
    for k in range(n - 1, -1, -1):
        if parent[k] >= 0:
            sibling[k] = child[parent[k]]
            child[parent[k]] = k
    place = np.empty(n, np.int32)
    stack = np.empty(n, np.int32)
    filled = 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        stack[0] = root
        depth = 1
        while depth > 0:
            v = stack[depth - 1]
            # `child[v]` is the next child to visit: it moves on from sibling to sibling.
            c = child[v]
            if c < 0:
                place[v] = filled
                filled += 1
                depth -= 1
            else:
                child[v] = sibling[c]
                stack[depth] = c
                depth += 1
    new_order = np.empty(n, np.int32)
    new_parent = np.empty(n, np.int32)
    for k in range(n):
        new_order[place[k]] = order[k]
        new_parent[place[k]] = place[parent[k]] if parent[k] >= 0 else -1
    return new_order, new_parent


@kernel
def continue_counts(graph_start, graph, order, parent, step, seen, count, first, budget):
    """Count what is touched by each step's elimination, from step ``first`` on; see `count_columns`.

    Ends when ``budget`` entries were visited, or after the last step; returns the next one.
    """
    n = order.size
    visited = 0
    k = first
    while k < n and visited < budget:
        seen[k] = k
        v = order[k]
        for q in range(graph_start[v], graph_start[v + 1]):
            i = step[graph[q]]
            # Row k of the factor: the paths from its earlier neighbors up to k. A path ends where it meets
            # one that was walked for this k, so that each entry of the fill is visited once.
            while i < k and seen[i] != k:
                seen[i] = k
                count[i] += 1
                visited += 1
                i = parent[i]
        visited += 1
        k += 1
    return k


def count_columns(graph_start, graph, order, parent, budget, look):
    """Later states touched by each step's elimination, plus one, for a postordered tree.

    Step k is touched by those between its earlier neighbors and itself in the tree. O(fill), which is little
    beside what an elimination costs, but may be seconds: ``look()`` is called after every ``budget`` visits.
    """
    n = order.size
    step = np.empty(n, np.int32)
    step[order] = np.arange(n, dtype=np.int32)
    seen, count = np.full(n, -1, np.int32), np.ones(n, np.int64)
    first = 0
    while first < n:
        first = continue_counts(graph_start, graph, order, parent, step, seen, count, first, budget)
        look()
    return count


@kernel
def group_steps(parent, count):
    """Cut the postordered steps into supernodes.

    Returns (first step of each and n, front sizes, supernode of each step, parent of each supernode).

    A supernode is a path of the tree whose patterns nest. It absorbs its last child where the zeros this
    stores are few: small fronts cost more in overhead than in arithmetic.
    """
    n = parent.size
    begin = np.empty(n + 1, np.int32)
    size = np.empty(n, np.int64)
    zeros = np.empty(n, np.int64)
    groups = 0
    for k in range(n):
        begin[groups] = k
        size[groups] = count[k]
        zeros[groups] = 0
        groups += 1
        # The group on top of the stack ends at step k; try to take in the one that ends at k - 1.
        while groups > 1:
            top = groups - 1
            below = groups - 2
            # Numbers of a subtree are contiguous, so that the group below is a child of this one where its
            # last step's parent is this one's first step. Else it hangs under a later step, or is another
            # tree.
            if parent[begin[top] - 1] != begin[top]:
                break
            wide = begin[top] - begin[below]
            tall = k + 1 - begin[top]
            # A merged front holds the child's pivots and all of the parent's front.
            merged = wide + size[top]
            # Zeros that merging stores anew: the child's pivots get columns as long as the merged front.
            extra = wide * (merged - size[below])
            total = zeros[top] + zeros[below] + extra
            width = wide + tall
            stored = width * merged
            # Without new zeros groups are always merged. With them the fewer pivots there are, the more zeros
            # are worth it: any share for 4 pivots, 60 % for 16, 20 % for 48, 5 % beyond.
            if extra > 0 and not (
                width <= 4
                or (width <= 16 and total * 10 < stored * 6)
                or (width <= 48 and total * 10 < stored * 2)
                or total * 20 < stored
            ):
                break
            size[below] = merged
            zeros[below] = total
            groups -= 1
    begin[groups] = n
    owner = np.empty(n, np.int32)
    above = np.empty(groups, np.int32)
    for s in range(groups):
        for k in range(begin[s], begin[s + 1]):
            owner[k] = s
    for s in range(groups):
        p = parent[begin[s + 1] - 1]
        above[s] = owner[p] if p >= 0 else -1
    return begin[: groups + 1], size[:groups], owner, above


@kernel
def front_states(graph_start, graph, order, begin, size, above):
    """Steps that border each supernode, ascending: (start of each list, steps)."""
    n = order.size
    groups = size.size
    step = np.empty(n, np.int32)
    for k in range(n):
        step[order[k]] = k
    start = np.zeros(groups + 1, np.int64)
    for s in range(groups):
        start[s + 1] = start[s] + size[s] - (begin[s + 1] - begin[s])
    border = np.empty(start[groups], np.int32)
    filled = start[:groups].copy()
    seen = np.full(n, -1, np.int32)
    child = np.full(groups, -1, np.int32)
    sibling = np.empty(groups, np.int32)
    for s in range(groups):
        last = begin[s + 1]
        for k in range(begin[s], last):
            v = order[k]
            for q in range(graph_start[v], graph_start[v + 1]):
                i = step[graph[q]]
                if i >= last and seen[i] != s:
                    seen[i] = s
                    border[filled[s]] = i
                    filled[s] += 1
        # What a child borders, its parent borders too, but for the parent's own pivots.
        c = child[s]
        while c >= 0:
            for q in range(start[c], start[c + 1]):
                i = border[q]
                if i >= last and seen[i] != s:
                    seen[i] = s
                    border[filled[s]] = i
                    filled[s] += 1
            c = sibling[c]
        if above[s] >= 0:
            sibling[s] = child[above[s]]
            child[above[s]] = s
    # Two transpositions by counting leave every list sorted.
    by_step = np.zeros(n + 1, np.int64)
    for q in range(border.size):
        by_step[border[q] + 1] += 1
    for k in range(n):
        by_step[k + 1] += by_step[k]
    holder = np.empty(border.size, np.int32)
    for s in range(groups):
        for q in range(start[s], start[s + 1]):
            holder[by_step[border[q]]] = s
            by_step[border[q]] += 1
    q = 0
    for s in range(groups):
        filled[s] = start[s]
    for k in range(n):
        while q < by_step[k]:
            s = holder[q]
            border[filled[s]] = k
            filled[s] += 1
            q += 1
    return start, border


@kernel
def sort_entries(indptr, indices, place, order, owner):
    """File every matrix entry under the supernode that eliminates it.

    Returns (start, row step, column step, place in the data) with the entries of supernode s at
    ``start[s]:start[s + 1]``.
    """
    n = order.size
    step = np.empty(n, np.int32)
    for k in range(n):
        step[order[k]] = k
    start = np.zeros(owner[n - 1] + 2, np.int64)
    for v in range(n):
        for q in range(indptr[v], indptr[v + 1]):
            start[owner[min(step[v], step[indices[q]])] + 1] += 1
    for s in range(start.size - 1):
        start[s + 1] += start[s]
    at = start.copy()
    row = np.empty(indptr[n], np.int32)
    column = np.empty(indptr[n], np.int32)
    where = np.empty(indptr[n], np.int64)
    for k in range(n):
        v = order[k]
        for q in range(indptr[v], indptr[v + 1]):
            i = step[indices[q]]
            # An entry is added where the first of its two ends is eliminated; later fronts get it as left-
            # over.
            s = owner[min(k, i)]
            row[at[s]] = k
            column[at[s]] = i
            where[at[s]] = place[q]
            at[s] += 1
    return start, row, column, where
