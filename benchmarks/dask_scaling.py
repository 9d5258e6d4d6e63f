"""Seconds to count and to solve on a local Dask cluster of one and of two workers, as JSON lines.

    python benchmarks/dask_scaling.py [states [degree]]

States of the random chain that is solved: 200,000 unless given, with ten successors and a neighbor each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

import lingendice as lg

N_ROWS, N_FILES = 16_000_000, 8


def write_log(folder):
    """Eight files of two million rows: 12,000 cells, three successors, episodes of 400 steps."""
    rng = np.random.default_rng(0)
    successors = rng.integers(0, 2000, (12_000, 3))
    share = N_ROWS // N_FILES
    for number in range(N_FILES):
        state, action = rng.integers(0, 2000, share), rng.integers(0, 6, share)
        following = successors[state * 6 + action, rng.choice(3, share, p=[0.8, 0.15, 0.05])]
        row = number * share + np.arange(share)
        columns = {"state": state, "action": action, "next_state": following, "episode": row // 400}
        pq.write_table(pa.table(columns | {"reward": rng.normal(size=share)}), folder / f"{number}.parquet")


def random_chain(n_states, degree):
    """Counts of a random graph made irreducible by a ring."""
    rng = np.random.default_rng(1)
    ring = np.arange(n_states)
    state = np.concatenate([np.repeat(ring, degree), ring])
    following = np.concatenate([rng.integers(0, n_states, n_states * degree), (ring + 1) % n_states])
    return lg.Counts.from_transitions(state, following)


def median_seconds(action, repeats=3):
    """Median after one run to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[repeats // 2]


def main(n_states=200_000, degree=10):
    chain = random_chain(n_states, degree)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder)
        for workers in (1, 2):
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
                Client(cluster) as client,
            ):
                rounds = lg.distributed.solve(chain, 0.99, client=client).n_iter
                result = {
                    "workers": workers,
                    "count_rows": N_ROWS,
                    "count_seconds": median_seconds(lambda c=client: lg.distributed.count(folder, c)),
                    "solve_entries": int(chain.count.size),
                    "solve_rounds": rounds,
                    "solve_seconds": median_seconds(
                        lambda c=client: lg.distributed.solve(chain, 0.99, client=c), 1
                    ),
                }
            print(json.dumps(result), flush=True)
        alone = {
            "count_seconds": median_seconds(lambda: lg.read_transitions(folder, threads=1)),
            "solve_seconds": median_seconds(lambda: lg.solve(chain, 0.99, threads=1)),
        }
        print(json.dumps({"workers": 0, **alone}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
