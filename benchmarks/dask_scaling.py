"""Counting and solving on local Dask clusters of one and two single-threaded workers, as JSON lines.

python benchmarks/dask_scaling.py solve [states degree]    seconds of interleaved runs, against lg.solve
python benchmarks/dask_scaling.py slow                     slow chains against lg.solve, entry by entry
python benchmarks/dask_scaling.py count                    seconds to count 16M rows
python benchmarks/dask_scaling.py memory [gigabytes]       a client of 1 GB solves counts that it cannot hold
python benchmarks/dask_scaling.py model FILE               1e9 states, 1e11 entries, from lines of solve
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import chains
import numpy as np
from distributed import Client, LocalCluster

import lingendice as lg

GAMMAS = 0.99, 0.85
REPEATS = 3


def say(**facts):
    """One JSON line."""
    print(json.dumps(facts), flush=True)


@contextmanager
def cluster(workers, **options):
    """A client of ``workers`` processes with one thread each."""
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50, **options
        ) as made,
        Client(made) as client,
    ):
        yield client


def random_chain(n_states, degree):
    """Counts of a random graph made irreducible by a ring."""
    rng = np.random.default_rng(1)
    ring = np.arange(n_states)
    state = np.concatenate([np.repeat(ring, degree), ring])
    following = np.concatenate([rng.integers(0, n_states, n_states * degree), (ring + 1) % n_states])
    return lg.Counts.from_transitions(state, following)


def timed(action):
    """Seconds, and what it returned."""
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result


def solve(n_states=200_000, degree=100):
    """Blocks in place: one solve with each number of workers goes before."""
    counts = random_chain(n_states, degree)
    with ExitStack() as stack:
        spread = {}
        for workers in (1, 2):
            client = stack.enter_context(cluster(workers))
            spread[workers] = lg.distributed.DistributedCounts.from_counts(counts, client)
        for gamma in GAMMAS:
            ways = {w: lambda w=w, g=gamma: lg.solve(spread[w], g) for w in spread}
            ways[0] = lambda g=gamma: lg.solve(counts, g, threads=1)
            seconds = {w: [] for w in ways}
            found = {w: way() for w, way in ways.items()}
            for _ in range(REPEATS):
                for w, way in ways.items():
                    spent, found[w] = timed(way)
                    seconds[w].append(spent)
            off = max(float(np.abs(found[w].stationary - found[0].stationary).sum()) for w in (1, 2))
            median = {w: statistics.median(seconds[w]) for w in ways}
            say(
                what="solve", states=n_states, entries=int(counts.count.size), gamma=gamma,
                alone=round(median[0], 3), one=round(median[1], 3), two=round(median[2], 3),
                two_over_one=round(median[1] / median[2], 2), one_over_alone=round(median[1] / median[0], 2),
                rounds=[found[w].n_iter for w in (1, 2)], sweeps=found[0].n_iter, apart=off,
                between=found[2].reason, runs={w: [round(s, 3) for s in seconds[w]] for w in ways},
            )  # fmt: skip


def slow():
    """A ring whose states send to neighbors, and a nearly decomposable chain; gamma 1."""
    rng = np.random.default_rng(4)
    state = np.repeat(np.arange(20_000), 5)
    ring = lg.Counts.from_transitions(state, (state + rng.integers(-9, 10, state.size)) % 20_000)
    apart = lg.Counts.from_matrix(chains.nearly_decomposable())
    for workers in (1, 2):
        with cluster(workers) as client:
            for name, counts in (("ring 20k", ring), ("nearly decomposable 20k", apart)):
                spread = lg.distributed.DistributedCounts.from_counts(counts, client)
                lg.solve(spread)
                spent, found = timed(lambda held=spread: lg.solve(held))
                expected = lg.solve(counts, threads=1).stationary
                off = np.abs(found.stationary - expected) / np.where(expected > 0, expected, 1.0)
                say(
                    what="slow", chain=name, workers=workers, status=found.status.value, rounds=found.n_iter,
                    seconds=round(spent, 2), stated_error=found.error, entrywise=float(off.max()),
                )  # fmt: skip


def write_log(folder, n_rows=16_000_000, n_files=8):
    """Files of two million rows: 12,000 cells, three successors, episodes of 400 steps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    successors = rng.integers(0, 2000, (12_000, 3))
    share = n_rows // n_files
    for number in range(n_files):
        state, action = rng.integers(0, 2000, share), rng.integers(0, 6, share)
        following = successors[state * 6 + action, rng.choice(3, share, p=[0.8, 0.15, 0.05])]
        row = number * share + np.arange(share)
        columns = {"state": state, "action": action, "next_state": following, "episode": row // 400}
        pq.write_table(pa.table(columns | {"reward": rng.normal(size=share)}), folder / f"{number}.parquet")


def count():
    """Next states are given and rows are in any order, so their order is not looked at."""
    import warnings

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_log(folder)
        clients = {w: stack.enter_context(cluster(w)) for w in (1, 2)}
        ways = {w: lambda c=client: lg.distributed.count(folder, c) for w, client in clients.items()}
        ways[0] = lambda: lg.read_transitions(folder, threads=1)
        for way in ways.values():
            way()
        seconds = {w: [timed(way)[0] for _ in range(REPEATS)] for w, way in ways.items()}
        say(what="count", rows=16_000_000, **{f"workers_{w}": sorted(s)[1] for w, s in seconds.items()})


def made_block(n_states, first, last, degree):
    """A block of random rows with rewards, made where it is kept."""
    from lingendice.distributed.blocks import RowBlock

    rng = np.random.default_rng(first)
    n = last - first
    stride = n_states // degree
    # One successor in each of as many stretches: columns rise without being sorted.
    indices = np.arange(degree, dtype=np.int32) * np.int32(stride) + rng.integers(
        0, stride, (n, degree), dtype=np.int32
    )
    size = n * degree
    return RowBlock(
        n_states, None, np.arange(0, size + 1, degree), indices.ravel(), np.ones(size, np.int64),
        np.ones(size, np.int64), rng.random(size), np.zeros(size),
    )  # fmt: skip


def worker_memory():
    """Peak of a worker's resident memory in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def memory(gigabytes=4):
    """Blocks are made on the workers; the client's address space is limited to 1 GB."""
    n_states, degree = 1_000_000, 115 * gigabytes // 4
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=0
    ) as made:
        command = [
            sys.executable,
            __file__,
            "small_client",
            made.scheduler_address,
            str(n_states),
            str(degree),
        ]
        import subprocess

        print(subprocess.run(command, check=True, text=True, capture_output=True).stdout, end="")


def small_client(address, n_states, degree):
    """Runs in a process of its own, with 1 GB of address space."""
    limit = 10**9
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from lingendice.distributed.blocks import margins_of

    with Client(address) as client:
        edges = [0, n_states // 2, n_states]
        blocks = [
            client.submit(made_block, n_states, first, last, degree, pure=False)
            for first, last in itertools.pairwise(edges)
        ]
        margins = client.gather([client.submit(margins_of, block) for block in blocks])
        sources = [lambda block=block: block for block in blocks]
        frame = lg.Counts.empty(n_states)
        counts = lg.distributed.DistributedCounts(client, sources, edges, margins, frame)
        first, _ = timed(lambda: lg.solve(counts, 0.99))
        spent, found = timed(lambda: lg.solve(counts, 0.99))
        held = client.run(worker_memory)
        say(
            what="memory", gigabytes=counts.nbytes / 1e9, entries=counts.n_entries, limit=limit / 1e9,
            status=found.status.value, error=found.error, rounds=found.n_iter, first_seconds=round(first, 2),
            seconds=round(spent, 2), client_peak=worker_memory(), worker_peaks=sorted(held.values()),
            value=found.value,
        )  # fmt: skip


def model(file, workers=100, states=10**9, entries=10**11, gigabits=10):
    """What a solve would take on a cluster, from the slowest measured line; nothing of this size was run."""
    lines = [json.loads(line) for line in Path(file).read_text().splitlines() if '"solve"' in line]
    slowest = max(lines, key=lambda line: line["one"] / line["entries"] / line["rounds"][0])
    per_entry = slowest["one"] / slowest["entries"] / slowest["rounds"][0]
    sent = float(slowest["between"].split(" MB")[0].split()[-1].replace(",", "")) * 1e6
    # Two parts, each of which sends a number for every state of the other.
    per_state = sent / slowest["rounds"][1] / slowest["states"]
    share = (workers - 1) / workers
    say(
        what="model", workers=workers, states=states, entries=entries, ns_per_entry=1e9 * per_entry,
        bytes_per_state_and_round=per_state, rounds=slowest["rounds"][1],
        compute_seconds_per_round=per_entry * entries / workers,
        gigabytes_sent_per_worker_and_round=per_state * states * share / 1e9,
        message_seconds_per_round=per_state * states * share * 8 / (gigabits * 1e9),
        messages_per_worker_and_round=workers - 1,
        rows_gigabytes_per_worker=(12 * entries + 8 * states) / workers / 1e9,
        pull_gigabytes_per_worker=8 * entries / workers / 1e9,
        preparing_gigabytes_per_worker=5 * states / 1e9,
        client_gigabytes_per_vector=8 * states / 1e9,
    )  # fmt: skip


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {
        "solve": solve,
        "slow": slow,
        "count": count,
        "memory": memory,
        "small_client": small_client,
        "model": model,
    }[what](*(int(word) if word.isdigit() else word for word in rest))
