"""Transitions to CSR counts, against SciPy: ``python benchmarks/bench_counting.py [--n 20000000]``.

SciPy is given its best: int32 indices, and ones made beforehand (int32 in the first column of figures,
float64 and int64 indices, as most people write it, in the second). Runs alternate, medians are shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix

from lingendice.tally import count_pairs

Array = np.ndarray[Any, Any]


def cases(n: int) -> Iterator[tuple[str, int, int, Array, Array]]:
    """Name, number of rows and of columns, row and column of every transition."""
    rng = np.random.default_rng(0)
    row = rng.integers(0, 12_000, n)
    yield "12,000 x 2,000, uniform", 12_000, 2_000, row, rng.integers(0, 2_000, n)
    successors = rng.integers(0, 2_000, (12_000, 3))
    column = successors[row, rng.choice(3, n, p=[0.8, 0.15, 0.05])]
    yield "12,000 x 2,000, three successors", 12_000, 2_000, row, column
    million = 1_000_000
    yield "1M x 1M, uniform", million, million, rng.integers(0, million, n), rng.integers(0, million, n)


def scipy_counts(ones: Array, pair: tuple[Array, Array], shape: tuple[int, int]) -> object:
    return coo_matrix((ones, pair), shape=shape).tocsr()


def alternate(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each action; one round to warm up is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(times[1:])) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    ones32, ones = np.ones(arguments.n, np.int32), np.ones(arguments.n)
    for name, n_rows, n_columns, row, column in cases(arguments.n):
        wide, narrow = (row, column), (row.astype(np.int32), column.astype(np.int32))
        shape = (n_rows, n_columns)
        actions: dict[str, Callable[[], object]] = {
            "scipy int32": partial(scipy_counts, ones32, narrow, shape),
            "scipy usual": partial(scipy_counts, ones, wide, shape),
        }
        for threads in sorted({1, arguments.threads}):
            for kind, pair in (("int64", wide), ("int32", narrow)):
                label = f"ours {kind}, {threads} thread{'s' * (threads > 1)}"
                actions[label] = partial(count_pairs, pair[0], pair[1], n_rows, n_columns, threads=threads)
        medians = alternate(actions, arguments.repeats)
        print(f"{name}, {arguments.n:,} transitions")
        for label, seconds in medians.items():
            ratios = [medians[peer] / seconds for peer in ("scipy int32", "scipy usual")]
            print(f"  {label:24s} {seconds:7.3f} s   {ratios[0]:5.1f} x   {ratios[1]:5.1f} x")
    few = np.random.default_rng(1).integers(0, 50, (2, 100))
    action = {"ours": lambda: [count_pairs(few[0], few[1], 50, 50) for _ in range(1000)]}
    print(f"100 transitions: {1000 * alternate(action, arguments.repeats)['ours']:.0f} microseconds")


if __name__ == "__main__":
    main()
