"""Small chains and independent answers in extended precision."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def arrays(matrix: sp.spmatrix | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix = sp.csr_matrix(matrix)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float64)


def entrywise_error(x: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(x / exact - 1)))


def blocks_of_digraphs(n: int, blocks: int, coupling: float, seed: int, spread: float = 0.0) -> np.ndarray:
    """Dense weights: random digraphs in blocks, shuffled, joined by entries of size ``coupling``.

    ``spread`` draws the couplings over that many decades, so that the blocks' masses differ widely.
    """
    rng = np.random.default_rng(seed)
    block = np.arange(n) * blocks // n
    same = block[:, None] == block[None, :]
    inside = same & (rng.random((n, n)) < 8 * blocks / n)
    inside[np.arange(n), (np.arange(n) + 1) % n] |= block == np.roll(block, -1)
    last = np.searchsorted(block, np.arange(blocks), side="right") - 1
    inside[last, np.searchsorted(block, np.arange(blocks))] = True
    weights = np.where(inside, rng.uniform(0.05, 1.0, (n, n)), 0.0)
    outside = ~same & (rng.random((n, n)) < 2.0 / n)
    outside[last, (last + 1) % n] = blocks > 1
    weights += np.where(outside, coupling * 10 ** (-spread * rng.random((n, n))), 0.0)
    shuffled = rng.permutation(n)
    return weights[np.ix_(shuffled, shuffled)]


def birth_death(n: int, up: float, down: float) -> tuple[sp.csr_matrix, np.ndarray]:
    """Walk on a line and its distribution in closed form (detailed balance)."""
    stay = np.full(n, 1 - up - down)
    stay[0], stay[-1] = 1 - up, 1 - down
    matrix = sp.csr_matrix(sp.diags([np.full(n - 1, up), stay, np.full(n - 1, down)], [1, 0, -1]))
    x = (np.longdouble(up) / np.longdouble(down)) ** np.arange(n)
    return matrix, x / x.sum()


def power_long(matrix: sp.csr_matrix, steps: int) -> np.ndarray:
    """Power iteration in long double."""
    transposed = sp.csr_matrix(matrix.T)
    weight = transposed.data.astype(np.longdouble)
    total = np.zeros(matrix.shape[0], np.longdouble)
    np.add.at(total, transposed.indices, weight)
    weight /= total[transposed.indices]
    x = np.full(matrix.shape[0], np.longdouble(1) / matrix.shape[0])
    for _ in range(steps):
        x = np.add.reduceat(weight * x[transposed.indices], transposed.indptr[:-1])
    return x / x.sum()
