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
            neighbour = indices[entry]
            if depth[neighbour] < 0:
                depth[neighbour] = depth[node] + 1
                queue[tail] = neighbour
                tail += 1
            else:
                divisor = gcd(divisor, abs(depth[node] + 1 - depth[neighbour]))
    return divisor
