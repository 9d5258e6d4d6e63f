"""Coverage of the intervals of a stationary distribution, entry by entry, on chains logged as one walk.

    python benchmarks/trust/stationary.py [--walks 100]

Slow, skewed and periodic chains; states that the walk never visits are counted apart. The truth is by
elimination in NumPy. Writes results/stationary.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import provenance

import lingendice as lg
from trust.tables import table

RESULTS = Path(__file__).resolve().parent / "results"


def lazy_line(n: int, drift: float, stay: float) -> np.ndarray:
    """A walk on a line that mostly stays where it is and is drawn to its lower end."""
    matrix = np.zeros((n, n))
    for place in range(n):
        matrix[place, max(place - 1, 0)] += (1 - stay) * drift
        matrix[place, min(place + 1, n - 1)] += (1 - stay) * (1 - drift)
        matrix[place, place] += stay
    return matrix


def rare_rooms(rooms: int, size: int, enter: float, leave: float, seed: int) -> np.ndarray:
    """A hall with doors that are seldom taken to rooms that are seldom left."""
    rng = np.random.default_rng(seed)
    n = size * (rooms + 1)
    matrix = np.zeros((n, n))
    for room in range(rooms + 1):
        inside = slice(room * size, (room + 1) * size)
        matrix[inside, inside] = rng.dirichlet(np.ones(size), size)
        if room:
            matrix[inside] *= 1 - leave
            matrix[inside, 0] += leave
            matrix[:size, room * size] += enter
    matrix[:size, :size] *= 1 - rooms * enter
    return matrix


def bigrams(n: int, seed: int) -> np.ndarray:
    """Words whose frequencies follow Zipf's law; each is followed by a few of them."""
    rng = np.random.default_rng(seed)
    frequency = 1.0 / np.arange(1, n + 1)
    return np.stack([rng.dirichlet(20.0 * frequency / frequency.sum() + 1e-3) for _ in range(n)])


def cycle(n: int, width: int, seed: int) -> np.ndarray:
    """Stages of ``width`` states one after the other: a periodic chain."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((n * width, n * width))
    for state in range(n * width):
        stage = (state // width + 1) % n
        matrix[state, stage * width : (stage + 1) * width] = rng.dirichlet(np.full(width, 0.3))
    return matrix


CHAINS = {
    "line of 40, stays 90 %": (lazy_line(40, 0.6, 0.9), 5000),
    "line of 60, stays 95 %": (lazy_line(60, 0.55, 0.95), 20_000),
    "20 rooms seldom entered": (rare_rooms(20, 4, 1e-4, 0.02, 1), 10_000),
    "10 rooms seldom left": (rare_rooms(10, 6, 5e-5, 0.005, 2), 20_000),
    "Zipf bigrams, 300 words": (bigrams(300, 3), 5000),
    "Zipf bigrams, 1,000 words": (bigrams(1000, 4), 20_000),
    "cycle of 12 stages": (cycle(12, 6, 5), 3000),
}


def stationary(matrix: np.ndarray) -> np.ndarray:
    """By the elimination of Grassmann, Taksar and Heyman, without subtractions."""
    work = matrix.copy()
    n = work.shape[0]
    for k in range(n - 1, 0, -1):
        total = work[k, :k].sum()
        work[:k, k] /= total
        work[:k, :k] += np.outer(work[:k, k], work[k, :k])
    mass = np.ones(n)
    for k in range(1, n):
        mass[k] = mass[:k] @ work[:k, k]
    return mass / mass.sum()


def walk(matrix: np.ndarray, start: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    cumulative, chance = np.cumsum(matrix, axis=1), rng.random(steps)
    path = np.empty(steps + 1, dtype=np.int64)
    path[0] = start
    for step in range(steps):
        path[step + 1] = min(np.searchsorted(cumulative[path[step]], chance[step]), matrix.shape[0] - 1)
    return path


def judge(matrix: np.ndarray, steps: int, walks: int) -> list[str]:
    truth = stationary(matrix)
    seen, never, distance = [], [], []
    for number in range(walks):
        rng = np.random.default_rng([number, 17])
        start = int(rng.choice(truth.size, p=truth))
        path = walk(matrix, start, steps, rng)
        counts = lg.Counts.from_transitions(
            path[:-1], path[1:], episode=np.zeros(steps, dtype=int), n_states=truth.size, keep_episodes=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = lg.solve(counts, initial=np.eye(truth.size)[start])
            found = solution.interval(of="stationary")
        held = found.contains(truth)
        visited = found.estimate > 0
        seen.append(held[visited].mean())
        if not visited.all():
            never.append(held[~visited].mean())
        distance.append(np.abs(found.estimate - truth).sum())
    return [f"{walks}", *(_percent(share) for share in (seen, never)), f"{np.mean(distance):.3f}"]


def _percent(shares: list[float]) -> str:
    if not shares:
        return "-"
    return f"{100 * np.mean(shares):.1f} ± {100 * np.std(shares, ddof=1) / len(shares) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=100)
    given = parser.parse_args()
    rows = []
    for name, (matrix, steps) in CHAINS.items():
        rows.append([name, f"{matrix.shape[0]}", f"{steps:,}", *judge(matrix, steps, given.walks)])
        print(rows[-1], flush=True)
    header = ["chain", "states", "steps", "walks", "visited states covered", "never visited covered", "L1"]
    text = (
        "# Intervals of a stationary distribution\n\n"
        "Share of the entries that 95 % intervals cover, in %, with one standard error over walks; L1 is the "
        "distance of the estimate from the truth.\n\n" + table(header, rows) + "\n"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "stationary.md").write_text(text)
    provenance.mark("trust_stationary")


if __name__ == "__main__":
    main()
