"""Random directed graphs for the benchmarks."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def scale_free_digraph(
    n: int, mean_out_degree: float = 9.5, dangling: float = 0.02, exponent: float = 2.1, seed: int = 0
) -> sp.csr_matrix:
    """Adjacency of a scale-free digraph, rows are sources, int32 indices, unit weights.

    Out-degrees are geometric (a share ``dangling`` of the nodes has none); targets are drawn
    independently with probability proportional to ``rank ** (-1 / (exponent - 1))``, mixed
    with a tenth of uniform draws, so that in-degrees follow a power distribution with that exponent.
    Repeated edges are merged and node numbers are permuted, so numbers tell nothing of degree.
    """
    rng = np.random.default_rng(seed)
    live_mean = mean_out_degree / (1.0 - dangling)
    out_degree = rng.geometric(1.0 / live_mean, n)
    out_degree[rng.random(n) < dangling] = 0
    edges = int(out_degree.sum())
    power = 1.0 / (exponent - 1.0)
    # Inverse of the continuous rank distribution on [1, n + 1), density proportional to rank ** -power.
    top = (n + 1.0) ** (1.0 - power)
    rank = (1.0 + rng.random(edges) * (top - 1.0)) ** (1.0 / (1.0 - power))
    target = np.minimum(rank.astype(np.int64) - 1, n - 1)
    plain = rng.random(edges) < 0.1
    target[plain] = rng.integers(0, n, int(plain.sum()))
    label = rng.permutation(n)
    source = np.repeat(rng.permutation(n), out_degree)
    graph = sp.csr_matrix((np.ones(edges), (source, label[target])), shape=(n, n))
    graph.sum_duplicates()
    graph.data[:] = 1.0
    graph.indices = graph.indices.astype(np.int32)
    graph.indptr = graph.indptr.astype(np.int64 if graph.nnz > 2**31 - 1 else np.int32)
    return graph
