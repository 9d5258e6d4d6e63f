"""Reading Parquet to counts, against DuckDB and Arrow merely summing the same columns; memory of a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lingendice as lg
from lingendice.environments import taxi

N = 10_000_000
COLUMNS = {
    "states": ["state", "next_state"],
    "states, actions, rewards": ["state", "action", "reward", "next_state"],
    "six columns": ["state", "action", "reward", "next_state", "episode", "terminal"],
}


def taxi_log():
    """Twenty-five thousand drives of a uniformly random driver, 400 steps each."""
    policy = np.full((taxi.N_STATES, taxi.N_ACTIONS), 1 / taxi.N_ACTIONS)
    log = taxi.simulate(policy, N // 400, 400, seed=0)
    columns = log._asdict()
    columns["terminal"] = np.zeros(N, bool)
    return columns


def uniform_log():
    """Independent uniform states and actions, three successors: no locality at all."""
    rng = np.random.default_rng(0)
    state, action = rng.integers(0, 2000, N), rng.integers(0, 6, N)
    successors = rng.integers(0, 2000, (12_000, 3))
    following = successors[state * 6 + action, rng.choice(3, N, p=[0.8, 0.15, 0.05])]
    row = np.arange(N)
    return {
        "state": state, "action": action, "reward": rng.normal(size=N), "next_state": following,
        "episode": row // 400, "terminal": row % 400 == 399,
    }  # fmt: skip


LOGS = {"taxi": taxi_log, "uniform": uniform_log}


@pytest.fixture(scope="module", params=LOGS)
def log(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    pq.write_table(pa.table(LOGS[request.param]()), path)
    return request.param, path


@pytest.mark.parametrize("columns", COLUMNS)
def test_throughput(record, log, columns):
    name, path = log
    wanted = COLUMNS[columns]
    absent = {
        role: False for role in ("action", "reward", "episode", "terminal", "truncated") if role not in wanted
    }
    sums = ", ".join(f"sum({column}::INT)" if column == "terminal" else f"sum({column})" for column in wanted)
    connection = duckdb.connect()

    def arrow_sums():
        for batch in ds.dataset(path).to_batches(columns=wanted):
            for column in batch.columns:
                pc.sum(column)

    record.ratio(
        f"read 10M rows of Parquet to counts, {name}, {columns}",
        lambda: lg.read_transitions(path, **absent),
        {
            "duckdb sums": lambda: connection.execute(f"SELECT {sums} FROM '{path}'").fetchall(),
            "arrow sums": arrow_sums,
        },
        0.7,
        5,
        "peers merely sum each column",
    )


def stream(n_rows):
    script = Path(__file__).with_name("stream_memory.py")
    done = subprocess.run([sys.executable, script, str(n_rows)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_memory_of_a_stream(record):
    small, large = stream(50_000_000), stream(200_000_000)
    note = (
        f"{large['pairs']:,} distinct pairs; peak {small['peak_mb']:.0f} MB at 50M rows, "
        f"{large['rows'] / large['seconds'] / 1e6:.0f}M rows/s with generation"
    )
    record.limit(
        "count a generated stream of 200M rows, peak memory", large["peak_mb"] / 1024, 2.0, "GB", note
    )


@pytest.mark.slow
def test_memory_of_a_billion_rows(record):
    large = stream(1_000_000_000)
    note = f"{large['pairs']:,} distinct pairs, {large['seconds']:.0f} s with generation"
    record.limit(
        "count a generated stream of 1e9 rows, peak memory", large["peak_mb"] / 1024, 2.0, "GB", note
    )
