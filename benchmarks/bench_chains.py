"""Stationary laws of sparse chains against what a SciPy user would write.

Run ``python -m benchmarks.bench_chains``: interleaved medians of wall and processor time from a scipy CSR
matrix in memory to the law, and the entrywise relative error of each against extended precision.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from benchmarks.chains import nearly_decomposable, scale_free
from lingendice.solvers.aggregation import solve_stationary

Law = Callable[[sp.csr_matrix], np.ndarray]


def ours(matrix: sp.csr_matrix, threads: int | None = None) -> np.ndarray:
    indptr = matrix.indptr.astype(np.int64)
    return solve_stationary(indptr, matrix.indices, matrix.data, threads=threads).x


def power(matrix: sp.csr_matrix, tol: float = 1e-10, max_steps: int = 20_000) -> np.ndarray:
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
    vector = sla.eigs(matrix.T, k=1, which="LM", tol=0)[1][:, 0].real
    return vector / vector.sum()


def reference(
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
            x *= (_eliminate(flow / mass[:, None]) / mass)[label]
    return x


def _eliminate(rates: np.ndarray) -> np.ndarray:
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


def compare(name: str, matrix: sp.csr_matrix, exact: np.ndarray, rivals: dict[str, Law], repeat: int) -> None:
    wall: dict[str, list[float]] = {rival: [] for rival in rivals}
    processor: dict[str, list[float]] = {rival: [] for rival in rivals}
    errors: dict[str, float] = {}
    for _ in range(repeat + 1):
        for rival, law in rivals.items():
            begin, busy = time.perf_counter(), time.process_time()
            x = law(matrix)
            wall[rival].append(time.perf_counter() - begin)
            processor[rival].append(time.process_time() - busy)
            errors[rival] = float(np.max(np.abs(x / exact - 1)))
    for rival in rivals:
        seconds, busy = np.median(wall[rival][1:]), np.median(processor[rival][1:])
        figures = f"{seconds * 1e3:8.1f} ms, cpu {busy * 1e3:7.1f} ms, error {errors[rival]:.1e}"
        print(f"{name:20s} {rival:17s} {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    quick: dict[str, Law] = {"ours": ours, "ours, one thread": lambda p: ours(p, 1)}
    matrix = scale_free()
    exact = reference(matrix, None)
    compare("scale-free 20k", matrix, exact, {**quick, "power": power, "eigs": arnoldi}, repeat)
    for coupling in (1e-3, 1e-6, 1e-9, 1e-12):
        matrix = nearly_decomposable(coupling=coupling)
        strong = matrix.multiply(matrix > 2.5 * coupling)
        label = sp.csgraph.connected_components(strong, directed=False)[1]
        exact = reference(matrix, label)
        rivals = {**quick, "power 2000": lambda p: power(p, max_steps=2000), "eigs": arnoldi}
        compare(f"decomposable {coupling:.0e}", matrix, exact, rivals, max(1, repeat // 2))


if __name__ == "__main__":
    main()
