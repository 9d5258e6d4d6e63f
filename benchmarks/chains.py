"""Seeded chains that defeat one method or another. All are scipy CSR, rows are sources and sum to 1."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def _row_stochastic(n: int, source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> sp.csr_matrix:
    matrix = sp.csr_matrix((weight, (source, target)), shape=(n, n))
    matrix.sum_duplicates()
    total = np.asarray(matrix.sum(axis=1)).ravel()
    matrix.data /= np.repeat(total, np.diff(matrix.indptr))
    return matrix


def scale_free(n: int = 20_000, links: int = 5, seed: int = 0) -> sp.csr_matrix:
    """Preferential attachment: each new node links to about ``links`` ends of earlier edges.

    Attachment to an end of a uniformly drawn earlier edge is preferential by degree; the draws are resolved
    together by following pointers, so that no loop over nodes is needed.
    """
    rng = np.random.default_rng(seed)
    newer = np.repeat(np.arange(1, n), links)
    edges = newer.size
    # end 2e is the new node of edge e, end 2e + 1 copies an end of an edge of an earlier node
    first_end = 2 * links * (newer - 1)
    pointer = np.arange(2 * edges)
    copied = np.where(first_end > 0, (rng.random(edges) * first_end).astype(np.int64), 0)
    value = np.empty(2 * edges, dtype=np.int64)
    value[0::2] = newer
    value[1::2] = -1
    root = newer == 1
    value[1::2][root] = 0
    pointer[1::2] = np.where(root, pointer[1::2], copied)
    while np.any(pointer != pointer[pointer]):
        pointer = pointer[pointer]
    older = value[pointer][1::2]
    source = np.concatenate([newer, older])
    target = np.concatenate([older, newer])
    weight = np.abs(rng.standard_normal(2 * edges)) + 1e-3
    return _row_stochastic(n, source, target, weight)


def grid(side: int = 200, dimensions: int = 2, seed: int = 0) -> sp.csr_matrix:
    """Nearest-neighbor walk on a box with uniform random weights drawn for each direction."""
    rng = np.random.default_rng(seed)
    number = np.arange(side**dimensions).reshape((side,) * dimensions)
    pairs = [
        (np.take(number, range(side - 1), axis).ravel(), np.take(number, range(1, side), axis).ravel())
        for axis in range(dimensions)
    ]
    low = np.concatenate([pair[0] for pair in pairs])
    high = np.concatenate([pair[1] for pair in pairs])
    weight = rng.uniform(0.1, 1.0, 2 * low.size)
    return _row_stochastic(number.size, np.concatenate([low, high]), np.concatenate([high, low]), weight)


def nearly_decomposable(
    n: int = 20_000, blocks: int = 150, coupling: float = 1e-6, out_edges: int = 10, seed: int = 0
) -> sp.csr_matrix:
    """Blocks of random digraphs, shuffled; one edge per state, of about ``coupling``, leaves its block."""
    rng = np.random.default_rng(seed)
    bounds = np.linspace(0, n, blocks + 1).astype(np.int64)
    block = np.repeat(np.arange(blocks), np.diff(bounds))
    low, size = bounds[block], np.diff(bounds)[block]
    state = np.arange(n)
    ring = low + (state - low + 1) % size
    inner_source = np.repeat(state, out_edges - 1)
    inner = low[inner_source] + (rng.random(inner_source.size) * size[inner_source]).astype(np.int64)
    source = np.concatenate([state, inner_source])
    target = np.concatenate([ring, inner])
    inside = _row_stochastic(n, source, target, rng.uniform(0.05, 1.0, source.size))
    away = (low + size + (rng.random(n) * (n - size)).astype(np.int64)) % n
    outside = sp.csr_matrix((rng.uniform(0.1, 1.9, n) * coupling, (state, away)), shape=(n, n))
    joined = (inside + outside).tocoo()
    shuffled = rng.permutation(n)
    return _row_stochastic(n, shuffled[joined.row], shuffled[joined.col], joined.data)
