"""Reading Parquet to counts, against DuckDB, which can group to the same counts; memory of a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import alternate

import lingendice as lg
from lingendice.environments import taxi

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")  # rows are drawn at random
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


def million_log():
    """A million states with eight successors each: most pairs are seen once or twice."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, 1_000_000, N)
    return {"state": state, "next_state": (state * 31 + rng.integers(0, 8, N) * 7919) % 1_000_000}


def labeled_log():
    """Two thousand states by name."""
    rng = np.random.default_rng(0)
    names = pa.array([f"state-{i:05d}" for i in range(2000)])
    state = rng.integers(0, 2000, N)
    following = (state * 31 + rng.integers(0, 8, N) * 7919) % 2000
    return {"state": names.take(pa.array(state)), "next_state": names.take(pa.array(following))}


LOGS = {
    "taxi": (taxi_log, COLUMNS),
    "uniform": (uniform_log, COLUMNS),
    "million states": (million_log, ["states"]),
    "labels": (labeled_log, ["states"]),
}
CASES = [(log, columns) for log, (_, every) in LOGS.items() for columns in every]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Where each log lies, written when first asked for."""
    folder, paths = tmp_path_factory.mktemp("logs"), {}

    def path_of(name):
        if name not in paths:
            paths[name] = folder / f"{len(paths)}.parquet"
            pq.write_table(pa.table(LOGS[name][0]()), paths[name])
        return paths[name]

    return path_of


def decode_alone(path, wanted, labeled):
    """Decode row groups by two threads and do nothing with them: no reader on Arrow is faster."""
    metadata = pq.read_metadata(path)
    options = {"metadata": metadata, "pre_buffer": False, "read_dictionary": wanted if labeled else []}

    def decode(group):
        with pq.ParquetFile(path, **options) as file:
            file.read_row_group(group, columns=wanted, use_threads=False)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(decode, range(metadata.num_row_groups)))


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_throughput(record, written, name, columns):
    path, wanted = written(name), COLUMNS[columns]
    absent = {
        role: False for role in ("action", "reward", "episode", "terminal", "truncated") if role not in wanted
    }
    cell = [column for column in ("state", "action", "next_state", "terminal") if column in wanted]
    moments = ", avg(reward), var_pop(reward)" if "reward" in wanted else ""
    grouped = f"SELECT {', '.join(cell)}, count(*){moments} FROM '{path}' GROUP BY {', '.join(cell)}"
    connection = duckdb.connect()
    decoding = alternate({"arrow": lambda: decode_alone(path, wanted, name == "labels")}, 5)["arrow"]
    record.ratio(
        f"read 10M rows of Parquet to counts, {name}, {columns}",
        lambda: lg.read_transitions(path, **absent),
        {"duckdb group by": lambda: connection.execute(grouped).fetchnumpy()},
        1,
        5,
        f"decoding alone takes Arrow {1e3 * decoding:.0f} ms",
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
