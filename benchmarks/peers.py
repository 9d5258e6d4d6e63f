"""What users of SciPy write for stationary distributions, and answers in extended precision to judge by."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla


def power(matrix: sp.csr_matrix, tol: float = 1e-10, max_steps: int = 3000) -> np.ndarray:
    """Power iteration that stops when the extrapolated entrywise error is within ``tol``."""
    transposed = matrix.T.tocsr()
    x = np.full(matrix.shape[0], 1.0 / matrix.shape[0])
    previous = 0.0
    for _ in range(max_steps):
        new = transposed @ x
        change = np.max(np.abs(new - x) / new)
        x = new
        rate = change / previous if previous else 1.0
        if rate < 1.0 and change * rate / (1.0 - rate) <= tol:
            break
        previous = change
    return x / x.sum()


def arnoldi(matrix: sp.csr_matrix) -> np.ndarray:
    """The leading eigenvector by ARPACK, to machine precision."""
    vector = sla.eigs(matrix.T, k=1, which="LM", tol=0)[1][:, 0].real
    return vector / vector.sum()


def sparse_lu(matrix: sp.csr_matrix, order: str = "MMD_AT_PLUS_A") -> np.ndarray:
    """SuperLU on (I - P)' with the last unknown fixed at one: its fastest correct form."""
    system = (sp.eye(matrix.shape[0], format="csc") - matrix.T).tocsc()
    last = system[:-1, -1].toarray().ravel()
    x = np.append(sla.spsolve(system[:-1, :-1], -last, permc_spec=order), 1.0)
    return x / x.sum()


def eliminated(rates: np.ndarray) -> np.ndarray:
    """Distribution of dense rates by elimination without subtraction, in the precision given."""
    n = len(rates)
    rates = rates.copy()
    exits = np.zeros(n, rates.dtype)
    for k in range(n - 1, 0, -1):
        exits[k] = rates[k, :k].sum()
        rates[:k, :k] += np.outer(rates[:k, k] / exits[k], rates[k, :k])
    x = np.zeros(n, rates.dtype)
    x[0] = 1
    for k in range(1, n):
        x[k] = x[:k] @ rates[:k, k] / exits[k]
    return x / x.sum()


def iterated(
    matrix: sp.csr_matrix, label: np.ndarray | None, rounds: int = 14, steps: int = 12
) -> np.ndarray:
    """Extended-precision power steps; with known blocks, also their masses by elimination."""
    wide = np.longdouble
    transposed = matrix.T.tocsr()
    source = transposed.indices
    target = np.repeat(np.arange(matrix.shape[0]), np.diff(transposed.indptr))
    weight = transposed.data.astype(wide)
    total = np.zeros(matrix.shape[0], wide)
    np.add.at(total, source, weight)
    weight /= total[source]
    x = np.full(matrix.shape[0], wide(1) / matrix.shape[0])
    for _ in range(rounds):
        for _ in range(steps):
            x = np.add.reduceat(weight * x[source], transposed.indptr[:-1])
            x /= x.sum()
        if label is not None:
            count = int(label.max()) + 1
            mass = np.zeros(count, wide)
            np.add.at(mass, label, x)
            flow = np.zeros((count, count), wide)
            np.add.at(flow, (label[source], label[target]), weight * x[source])
            x *= (eliminated(flow / mass[:, None]) / mass)[label]
    return x


def refined(matrix: sp.csr_matrix, rounds: int = 6) -> np.ndarray:
    """SuperLU refined with residuals in extended precision, rows scaled to sum to one exactly there."""
    wide = np.longdouble
    n = matrix.shape[0]
    row = np.repeat(np.arange(n), np.diff(matrix.indptr))
    weight = matrix.data.astype(wide)
    total = np.zeros(n, wide)
    np.add.at(total, row, weight)
    weight /= total[row]
    factor = sla.splu((sp.eye(n, format="csc") - matrix.T).tocsc()[:-1, :-1], permc_spec="MMD_AT_PLUS_A")
    x = np.append(np.ones(n - 1, wide), wide(1))
    for _ in range(rounds):
        inflow = np.zeros(n, wide)
        np.add.at(inflow, matrix.indices, weight * x[row])
        x[:-1] += factor.solve((inflow - x)[:-1].astype(float)).astype(wide)
    return x / x.sum()
