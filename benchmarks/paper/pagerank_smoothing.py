"""Offline PageRank: a prior on every row against the efficiency bound of the walk.

    python benchmarks/paper/pagerank_smoothing.py [--walks 100]

One walk of N steps on a Barabasi-Albert graph whose edges carry a weight |N(0, 1)| for each direction,
normalized by row. Reported: the mean over walks (each on its own graph) of log KL(mu || mu^), and the
asymptotic bound (1 / 2N) sum_i S_ii / mu_i with S = diag(mu) Z + Z' diag(mu) - diag(mu) - mu mu',
Z = (I - P + 1 mu')^-1.
"""

from __future__ import annotations

import argparse
import warnings

import networkx as nx
import numpy as np
from reporting import table, write

import lingendice as lg

SIZES = (100, 500)
STEPS = (1_000, 2_000, 5_000, 10_000, 20_000)
EDGES = 4
"""Edges that each new node brings."""


def random_walk_matrix(n: int, seed: int) -> np.ndarray:
    graph = nx.barabasi_albert_graph(n, EDGES, seed=seed)
    weights = nx.to_numpy_array(graph) * np.abs(np.random.default_rng(seed).standard_normal((n, n)))
    return weights / weights.sum(axis=1, keepdims=True)


def walk(matrix: np.ndarray, n_steps: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 1])
    cumulative = np.cumsum(matrix, axis=1)
    chance = rng.random(n_steps)
    path = np.empty(n_steps + 1, dtype=np.int64)
    path[0] = rng.integers(matrix.shape[0])
    for step in range(n_steps):
        row = cumulative[path[step]]
        path[step + 1] = np.searchsorted(row, chance[step] * row[-1], side="right")
    return path


def log_bound(matrix: np.ndarray, distribution: np.ndarray, n_steps: int) -> float:
    n = distribution.size
    Z = np.linalg.inv(np.eye(n) - matrix + distribution[None, :])
    spread = np.diag(distribution) @ Z
    covariance = spread + spread.T - np.diag(distribution) - np.outer(distribution, distribution)
    return float(np.log((np.diag(covariance) / distribution).sum() / (2 * n_steps)))


def log_divergence(distribution: np.ndarray, found: np.ndarray) -> float:
    return float(np.log((distribution * np.log(distribution / found)).sum()))


def estimates(counts: lg.Counts) -> dict[str, np.ndarray]:
    n = counts.n_states
    visits = counts.cell_count + 0.5
    arrivals = np.asarray(counts.matrix.sum(axis=0)).ravel() + 1.0
    return {
        "smoothing=3": lg.solve(counts, smoothing=3.0).stationary,
        "same weight, marginal distribution": lg.solve(
            counts, smoothing=(3.0, arrivals / arrivals.sum())
        ).stationary,
        "add one": lg.solve(counts, smoothing=float(n)).stationary,
        "visits + 1/2": visits / visits.sum(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=100)
    parser.add_argument("--first", type=int, default=5_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore", lg.LeakWarning)
    rows, result = [], []
    print(f"pagerank_smoothing: nothing kept, {len(SIZES)} sizes to compute", flush=True)
    for n in SIZES:
        bounds: dict[int, list[float]] = {size: [] for size in STEPS}
        found: dict[int, dict[str, list[float]]] = {size: {} for size in STEPS}
        for seed in range(given.first, given.first + given.walks):
            matrix = random_walk_matrix(n, seed)
            distribution = lg.solve(matrix).stationary
            path = walk(matrix, max(STEPS), seed)
            for size in STEPS:
                counts = lg.Counts.from_transitions(path[:size], path[1 : size + 1], n_states=n)
                bounds[size].append(log_bound(matrix, distribution, size))
                for name, estimate in estimates(counts).items():
                    found[size].setdefault(name, []).append(log_divergence(distribution, estimate))
        for size in STEPS:
            gap = np.array(found[size]["smoothing=3"]) - np.array(bounds[size])
            error = float(gap.std(ddof=1) / np.sqrt(gap.size))
            met = bool(gap.mean() <= 2 * error)
            means = {name: float(np.mean(values)) for name, values in found[size].items()}
            result.append(
                {"nodes": n, "steps": size, "walks": given.walks, "log_bound": float(np.mean(bounds[size])),
                 "log_kl": means, "gap": float(gap.mean()), "gap_se": error, "met": met}
            )  # fmt: skip
            rows.append(
                [str(n), f"{size:,}", f"{np.mean(bounds[size]):.2f}"]
                + [f"{value:.2f}" for value in means.values()]
                + [f"{gap.mean():+.3f} ± {error:.3f}", "yes" if met else "no"]
            )
            print(rows[-1], flush=True)
    header = ["nodes", "steps", "bound", *means, "smoothing=3 - bound", "met within 2 s.e."]
    write(
        "pagerank_smoothing",
        {"edges_per_node": EDGES, "first_seed": given.first, "rows": result},
        "# Offline PageRank: smoothing\n\nMean of log KL(mu || mu^) over "
        f"{given.walks} walks, each on its own Barabasi-Albert graph ({EDGES} edges a new node).\n\n"
        + table(header, rows),
    )


if __name__ == "__main__":
    main()
