"""PageRank from many seeds: sweeps over several columns at once, and forward push from one seed."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel

COLUMNS = 8
"""Columns of a block: a row of it is one line of the cache. Written out by the compiler."""


@fused_kernel
def sweep_columns(rows, f, c, loss, scale, inflow, x, y, first, last, drawn, sums):
    """One Gauss-Seidel pass of ``x = scale inflow + f A y``, ``y = c x``, over a range of rows of a block.

    ``sums`` gathers, by column, the L1 norm of the change, ``sum(loss x)`` and ``sum(x)``.
    """
    row_begin, row_end, sources, weights = rows
    weighted = weights.size > 0
    for row in range(np.uint64(first), np.uint64(last)):
        for k in range(COLUMNS):
            drawn[k] = 0.0
        if weighted:
            for entry in range(row_begin[row], row_end[row]):
                source = sources[entry]
                for k in range(COLUMNS):
                    drawn[k] += weights[entry] * y[source, k]
        else:
            for entry in range(row_begin[row], row_end[row]):
                source = sources[entry]
                for k in range(COLUMNS):
                    drawn[k] += y[source, k]
        for k in range(COLUMNS):
            new = scale[k] * inflow[row, k] + f[row] * drawn[k]
            sums[0, k] += abs(new - x[row, k])
            sums[1, k] += loss[row] * new
            sums[2, k] += new
            x[row, k] = new
            y[row, k] = c[row] * new


@kernel
def push(indptr, indices, weights, share, seed, seed_weight, alpha, limit, work, ranks, rest, queue, queued,
         state):  # fmt: skip
    """Forward push: pass on what rests in nodes whose rest exceeds ``limit`` for each edge.

    ``ranks + sum_u rest[u] pagerank_u`` is the PageRank of the seed at any time, so that ``sum(rest)`` is
    the L1 error of ``ranks``. Nodes without edges (share 0) pass on to the seed. ``queue`` is a ring;
    ``state`` is [its first place, its length]. Ends after about ``work`` edges, and returns how many
    they were.
    """
    weighted = weights.size > 0
    size = queue.size
    done = 0
    while state[1] > 0 and done < work:
        node = queue[state[0]]
        state[0] = (state[0] + 1) % size
        state[1] -= 1
        queued[node] = False
        passed = rest[node]
        first, last = indptr[node], indptr[node + 1]
        if passed <= limit * max(last - first, 1):
            continue
        rest[node] = 0.0
        ranks[node] += (1.0 - alpha) * passed
        done += last - first + 1
        onward = alpha * passed * share[node]
        if share[node] > 0.0:
            for entry in range(first, last):
                target = indices[entry]
                rest[target] += onward * (weights[entry] if weighted else 1.0)
                above = rest[target] > limit * max(indptr[target + 1] - indptr[target], 1)
                if above and not queued[target]:
                    queued[target] = True
                    queue[(state[0] + state[1]) % size] = target
                    state[1] += 1
        else:
            for k in range(seed.size):
                target = seed[k]
                rest[target] += alpha * passed * seed_weight[k]
                above = rest[target] > limit * max(indptr[target + 1] - indptr[target], 1)
                if above and not queued[target]:
                    queued[target] = True
                    queue[(state[0] + state[1]) % size] = target
                    state[1] += 1
    return done
