"""Fill-reducing elimination order: approximate minimum degree on the symmetrized pattern.

Eliminating a state joins all its neighbors. The graph of what is left is never formed: it is kept as a
quotient graph of elements (eliminated cliques) and variables, after Amestoy, Davis and Duff. Variables with
the same neighbors are merged and eliminated together, and degrees are upper bounds that cost no search.

References
----------
P. R. Amestoy, T. A. Davis, I. S. Duff (1996). An approximate minimum degree ordering algorithm. SIAM
    Journal on Matrix Analysis and Applications 17.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

# Scalars of a run in progress, kept in one array so that the work can be cut and resumed.
SPACE_USED, PIVOT_STAMP, LEAST_DEGREE, N_DONE, N_PIVOTS, FILL, FLOPS, STATE_SIZE = range(8)

# What each node of the quotient graph is.
_VARIABLE, _ELEMENT, _MERGED, _LATE = range(4)


@kernel
def build_graph(indptr, indices, data, n):
    """The positive off-diagonal entries, and the undirected graph they make.

    Returns (start, column, place in ``data``) of the entries by row, then (start, neighbor) of the graph:
    each neighbor once, no loops.
    """
    start = np.zeros(n + 1, np.int64)
    degree = np.zeros(n + 1, np.int64)
    for i in range(n):
        for q in range(indptr[i], indptr[i + 1]):
            if indices[q] != i and data[q] > 0.0:
                start[i + 1] += 1
                degree[i + 1] += 1
                degree[indices[q] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i]
        degree[i + 1] += degree[i]
    column = np.empty(start[n], np.int32)
    place = np.empty(start[n], np.int64)
    both = np.empty(degree[n], np.int32)
    kept = 0
    for i in range(n):
        for q in range(indptr[i], indptr[i + 1]):
            j = indices[q]
            if j != i and data[q] > 0.0:
                column[kept] = j
                place[kept] = q
                kept += 1
                both[degree[i]] = j
                degree[i] += 1
                both[degree[j]] = i
                degree[j] += 1
    # Each degree now marks the end of its list. Close up the lists, dropping what was seen.
    seen = np.zeros(n, np.int32)
    graph_start = np.zeros(n + 1, np.int64)
    first = 0
    kept = 0
    for i in range(n):
        for q in range(first, degree[i]):
            j = both[q]
            if seen[j] != i + 1:
                seen[j] = i + 1
                both[kept] = j
                kept += 1
        first = degree[i]
        graph_start[i + 1] = kept
    return start, column, place, graph_start, both[:kept]


@kernel
def begin_order(graph_start, graph, n, n_last, dense_degree):
    """Set up a minimum-degree run.

    The ``n_last`` trailing nodes, and any node with more than ``dense_degree`` neighbors, are kept out
    and come last. Returns (state, integer node arrays, lists); see `continue_order`.
    """
    nodes = np.zeros((12, n), np.int64)
    kind, weight, start, length, degree = nodes[0], nodes[1], nodes[2], nodes[3], nodes[5]
    mark, head, after, before = nodes[6], nodes[7], nodes[8], nodes[9]
    weight[:] = mark[:] = 1
    nodes[7:11] = -1  # the lists by degree, and parents
    size = 0
    for i in range(n):
        if i >= n - n_last or graph_start[i + 1] - graph_start[i] > dense_degree:
            kind[i] = _LATE
            weight[i] = 0
        else:
            size += graph_start[i + 1] - graph_start[i]
    lists = np.empty(size + size // 5 + 2 * n + 16, np.int32)
    state = np.zeros(STATE_SIZE, np.int64)
    used = 0
    for i in range(n):
        if kind[i] == _LATE:
            state[N_DONE] += 1
            continue
        start[i] = used
        for q in range(graph_start[i], graph_start[i + 1]):
            j = graph[q]
            if kind[j] != _LATE:
                lists[used] = j
                used += 1
        length[i] = used - start[i]
        d = length[i]
        degree[i] = d
        if head[d] >= 0:
            before[head[d]] = i
        after[i] = head[d]
        head[d] = i
    state[SPACE_USED] = used
    state[PIVOT_STAMP] = 2
    return state, nodes, lists


@kernel
def _compact(nodes, lists, used):
    """Close the gaps between live lists; returns the space used."""
    kind, start, length = nodes[0], nodes[2], nodes[3]
    n = kind.size
    # The first entry of each live list changes place with a tag that names its owner.
    for i in range(n):
        if (kind[i] == _VARIABLE or kind[i] == _ELEMENT) and length[i] > 0:
            first = lists[start[i]]
            lists[start[i]] = -i - 1
            start[i] = first
    q = 0
    end = 0
    while q < used:
        if lists[q] >= 0:
            q += 1
            continue
        i = -np.int64(lists[q]) - 1
        lists[end] = start[i]
        start[i] = end
        end += 1
        q += 1
        for _ in range(length[i] - 1):
            lists[end] = lists[q]
            end += 1
            q += 1
    return end


@kernel
def continue_order(state, nodes, lists, budget):
    """Eliminate pivots until ``budget`` list entries were visited; returns whether all are done.

    ``nodes`` holds by row: kind; weight, the variables merged into one (negative while it lies in the
    current element); start and length of its list in ``lists``, of which the first ``n_elements`` are
    elements; degree bound; mark; degree lists (head, after, before); parent, what a node was merged into;
    and the pivots in order of elimination.
    """
    kind, weight, start = nodes[0], nodes[1], nodes[2]
    length, n_elements, degree = nodes[3], nodes[4], nodes[5]
    mark, head, after, before, parent, pivots = nodes[6], nodes[7], nodes[8], nodes[9], nodes[10], nodes[11]
    n = kind.size
    used = state[SPACE_USED]
    stamp = state[PIVOT_STAMP]
    least = state[LEAST_DEGREE]
    done = state[N_DONE]
    visited = 0
    bucket = np.full(n, -1)
    chain = np.empty(n, np.int64)
    hashes = np.empty(n, np.int64)
    while done < n and visited < budget:
        while head[least] < 0:
            least += 1
        me = head[least]
        head[least] = after[me]
        if after[me] >= 0:
            before[after[me]] = -1
        pivots[state[N_PIVOTS]] = me
        state[N_PIVOTS] += 1
        pivot_weight = weight[me]
        done += pivot_weight

        # The new element: all variables next to the pivot, directly or through an element.
        room = 0
        for q in range(start[me], start[me] + n_elements[me]):
            room += length[lists[q]]
        if used + min(room + length[me], n) > lists.size:
            used = _compact(nodes, lists, used)
        weight[me] = -pivot_weight
        first = used
        element_degree = 0
        for part in range(n_elements[me] + 1):
            if part < n_elements[me]:
                e = np.int64(lists[start[me] + part])
                lo = start[e]
                hi = lo + length[e]
            else:
                e = me
                lo = start[me] + n_elements[me]
                hi = start[me] + length[me]
            visited += hi - lo
            for q in range(lo, hi):
                i = lists[q]
                w = weight[i]
                if w > 0:
                    element_degree += w
                    weight[i] = -w
                    lists[used] = i
                    used += 1
                    # Its degree will change: take it out of the list of those with this degree.
                    if after[i] >= 0:
                        before[after[i]] = before[i]
                    if before[i] >= 0:
                        after[before[i]] = after[i]
                    else:
                        head[degree[i]] = after[i]
            if e != me:
                kind[e] = _MERGED
                mark[e] = 0
        kind[me] = _ELEMENT
        start[me] = first
        length[me] = used - first
        n_elements[me] = 0
        # Entries of L and U, and multiply-adds, of this pivot's variables: exact up to later merges.
        border = element_degree
        for v in range(pivot_weight):
            column = border + v
            state[FILL] += 2 * column + 1
            state[FLOPS] += 2 * column * column

        # |Le \ Lme| for every element e touching the new one, as mark[e] - stamp.
        for q in range(first, used):
            i = lists[q]
            w = -weight[i]
            for r in range(start[i], start[i] + n_elements[i]):
                e = lists[r]
                if mark[e] >= stamp:
                    mark[e] -= w
                elif mark[e] != 0:
                    mark[e] = degree[e] + stamp - w
            visited += n_elements[i]

        # New degree bounds; elements inside the new one vanish; hash for finding twins.
        for q in range(first, used):
            i = np.int64(lists[q])
            w = -weight[i]
            out = start[i]
            total = 0
            code = 0
            for r in range(start[i], start[i] + n_elements[i]):
                e = np.int64(lists[r])
                if mark[e] == 0:
                    continue
                outside = mark[e] - stamp
                if outside > 0:
                    total += outside
                    lists[out] = e
                    out += 1
                    code += e
                else:
                    kind[e] = _MERGED
                    mark[e] = 0
            kept_elements = out - start[i] + 1
            variables_from = out
            for r in range(start[i] + n_elements[i], start[i] + length[i]):
                j = np.int64(lists[r])
                if weight[j] > 0:
                    total += weight[j]
                    lists[out] = j
                    out += 1
                    code += j
            visited += length[i]
            if total == 0:
                # Only the pivot's element is left around i: it goes together with the pivot.
                parent[i] = me
                kind[i] = _MERGED
                element_degree -= w
                done += w
                for v in range(w):
                    column = element_degree + v
                    state[FILL] += 2 * column + 1
                    state[FLOPS] += 2 * column * column
                weight[i] = 0
                continue
            degree[i] = min(degree[i], total)
            # There is room for me: i has lost the pivot, or an element that me absorbed.
            lists[out] = lists[variables_from]
            lists[variables_from] = lists[start[i]]
            lists[start[i]] = me
            n_elements[i] = kept_elements
            length[i] = out - start[i] + 1
            code = (code + me) % n
            hashes[i] = code
            chain[i] = bucket[code]
            bucket[code] = i
        degree[me] = element_degree
        stamp += n + 1

        # Merge variables with equal lists.
        for q in range(first, used):
            i = np.int64(lists[q])
            if weight[i] >= 0:
                continue
            i = bucket[hashes[i]]
            bucket[hashes[lists[q]]] = -1
            while i >= 0 and chain[i] >= 0:
                for r in range(start[i] + 1, start[i] + length[i]):
                    mark[lists[r]] = stamp
                last = i
                j = chain[i]
                while j >= 0:
                    same = length[j] == length[i] and n_elements[j] == n_elements[i]
                    r = start[j] + 1
                    while same and r < start[j] + length[j]:
                        same = mark[lists[r]] == stamp
                        r += 1
                    visited += r - start[j]
                    if same:
                        parent[j] = i
                        kind[j] = _MERGED
                        weight[i] += weight[j]
                        weight[j] = 0
                        chain[last] = chain[j]
                    else:
                        last = j
                    j = chain[j]
                stamp += 1
                i = chain[i]

        # Put what is left of the element's variables back into the degree lists.
        out = first
        for q in range(first, used):
            i = np.int64(lists[q])
            w = -weight[i]
            if w <= 0:
                continue
            weight[i] = w
            d = min(degree[i] + element_degree - w, n - done - w)
            degree[i] = d
            if head[d] >= 0:
                before[head[d]] = i
            after[i] = head[d]
            before[i] = -1
            head[d] = i
            least = min(least, d)
            lists[out] = i
            out += 1
        length[me] = out - first
        used = out
        weight[me] = 0
        if out == first:
            kind[me] = _MERGED
        else:
            mark[me] = 1
    state[SPACE_USED] = used
    state[PIVOT_STAMP] = stamp
    state[LEAST_DEGREE] = least
    state[N_DONE] = done
    return done >= n


@kernel
def finish_order(state, nodes):
    """The order: each pivot with all that was merged into it, then the nodes kept for last, as numbered."""
    kind, parent, pivots = nodes[0], nodes[10], nodes[11]
    n = kind.size
    rank = np.full(n, -1)
    for k in range(state[N_PIVOTS]):
        rank[pivots[k]] = k
    n_groups = state[N_PIVOTS]
    for i in range(n):
        # Follow merges to the pivot, shortening the path for those who come later.
        top = i
        while rank[top] < 0 and parent[top] >= 0:
            top = parent[top]
        r = rank[top] if rank[top] >= 0 else n_groups
        v = i
        while rank[v] < 0 and parent[v] >= 0:
            rank[v] = r
            v = parent[v]
        if rank[v] < 0:
            rank[v] = r
    count = np.zeros(n_groups + 2, np.int64)
    for i in range(n):
        count[rank[i] + 1] += 1
    for k in range(n_groups + 1):
        count[k + 1] += count[k]
    order = np.empty(n, np.int32)
    for i in range(n):
        order[count[rank[i]]] = i
        count[rank[i]] += 1
    return order
