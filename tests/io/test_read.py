"""Reading logs: every source and every cut gives what counting the whole log at once gives."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import threading
import warnings
from fractions import Fraction
from unittest import mock

import networkx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from written_logs import assert_same, cut, make_log

import lingendice as lg
from lingendice.io import read as reading
from lingendice.io import sources, stream_counter
from lingendice.io.formats import FileError


def write_parquet(path, log):
    pq.write_table(pa.table(log), path, row_group_size=37)


def write_csv(path, log):
    pa.csv.write_csv(pa.table(log), path)


def write_feather(path, log):
    pa.feather.write_feather(pa.table(log), str(path), chunksize=41)


def write_ipc_stream(path, log):
    table = pa.table(log)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=29)


FILES = {
    "log.parquet": write_parquet,
    "log.csv": write_csv,
    "log.feather": write_feather,
    "log.arrow": write_ipc_stream,
}
FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "record batch": lambda log: pa.table(log).to_batches()[0],
    "reader": lambda log: pa.table(log).to_reader(max_chunksize=31),
    "mapping": lambda log: log,
    "batches": lambda log: cut(log, [3, 3, 100]),
    "generator": lambda log: (pa.table(part).to_batches()[0] for part in cut(log, [10, 60])),
    "pandas parts": lambda log: [pd.DataFrame(part) for part in cut(log, [7])],
}


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name, labeled, threads):
    log = make_log(labeled=labeled)
    FILES[name](tmp_path / name, log)
    assert_same(lg.read_transitions(tmp_path / name, threads=threads), lg.Counts.from_transitions(**log))


@pytest.mark.parametrize(
    "options", [{}, {"next_state": False, "ends": "terminal"}, {"action": False, "reward": False}]
)
@pytest.mark.parametrize("labeled", [False, True])
def test_threads_make_no_difference_to_any_bit(tmp_path, monkeypatch, labeled, options):
    """Row groups that are decoded ahead, in batches, in several files."""
    monkeypatch.setattr(sources, "_GROUP_ROWS", 100)
    monkeypatch.setattr(sources, "_BATCH_ROWS", 70)
    monkeypatch.setattr(stream_counter, "ROWS", 600)
    log = make_log(3000, labeled=labeled)
    for number, part in enumerate(cut(log, [1000, 1001, 2200])):
        pq.write_table(pa.table(part), tmp_path / f"{number}.parquet", row_group_size=170)
    whole = lg.read_transitions(log, threads=1, **options)
    for threads in (1, 2, 3, 8):
        assert lg.read_transitions(tmp_path, threads=threads, **options) == whole


def test_a_damaged_file_is_named_after_the_files_before_it_were_read(tmp_path):
    parts = cut(make_log(), [200, 300])
    for number, part in enumerate(parts):
        write_parquet(tmp_path / f"{number}.parquet", part)
    good = (tmp_path / "2.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(good[:-50])
    seen = []
    with pytest.raises(ValueError, match=r"2\.parquet: cannot be read"):
        lg.read_transitions(tmp_path, threads=2, progress=lambda rows, share: seen.append(rows))
    assert seen[-1] == 300
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lingendice-read")]


def test_pieces_end_where_they_should_though_row_groups_are_empty(tmp_path):
    table = pa.table(make_log())
    with pq.ParquetWriter(tmp_path / "log.parquet", table.schema) as writer:
        for group in (table[:200], table[:0], table[200:]):
            writer.write_table(group)
    for groups, total in ((range(2), 200), (range(2, 3), 300)):
        piece = reading.count_piece(
            tmp_path / "log.parquet", reading.ReadOptions(threads=1), keep_ends=True, row_groups=groups
        )
        assert piece.counts.total == total


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_frames_and_streams(name, labeled):
    log = make_log(labeled=labeled)
    assert_same(lg.read_transitions(FRAMES[name](log)), lg.Counts.from_transitions(**log))


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize(
    "name", ["pandas", "polars", "lazy", "pandas parts", "polars parts", "nullable", "categories"]
)
def test_frames_need_their_own_library_alone(name, labeled):
    frames = {
        "polars parts": lambda log: [pl.DataFrame(part) for part in cut(log, [7])],
        "lazy": lambda log: pl.DataFrame(log).lazy(),
        "nullable": lambda log: pd.DataFrame(log).convert_dtypes(dtype_backend="numpy_nullable"),
        "categories": lambda log: pd.DataFrame(log).astype({"state": "category", "action": "category"}),
    }
    log = make_log(labeled=labeled)
    frame, expected = (frames | FRAMES)[name](log), lg.Counts.from_transitions(**log)
    with mock.patch.dict("sys.modules", {"pyarrow": None}):
        assert_same(lg.read_transitions(frame), expected)
        with pytest.raises(FileError, match=r"(row|batch) 0.* column 'reward' is n"):
            lg.read_transitions(FRAMES["pandas"](broken(log, "reward", 0, None)))


def test_duckdb(tmp_path):
    import duckdb

    log = make_log()
    frame = pd.DataFrame(log)
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute("CREATE TABLE steps AS SELECT * FROM frame")
        expected = lg.Counts.from_transitions(**log)
        assert_same(lg.read_transitions(connection.sql("SELECT * FROM steps")), expected)
    assert_same(lg.read_transitions(tmp_path / "log.duckdb", table="steps"), expected)
    with pytest.raises(ValueError, match="name the table with table="):
        lg.read_transitions(tmp_path / "log.duckdb")
    with pytest.raises(ValueError, match="nothing"):
        lg.read_transitions(tmp_path / "log.duckdb", table="nothing")
    del frame


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6), st.booleans(), st.booleans(), st.integers(0, 5))
def test_cuts_make_no_difference_to_any_bit(places, labeled, derived, seed):
    log = make_log(200, seed, labeled)
    options = {"next_state": False, "ends": "terminal"} if derived else {}
    whole = lg.read_transitions(log, **options)
    assert lg.read_transitions(cut(log, places), **options) == whole
    assert lg.read_transitions(cut(log, places), threads=1, **options) == whole


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=6), st.booleans(), st.booleans(), st.integers(0, 5))
def test_counts_alone_however_the_log_is_cut(places, with_actions, with_ends, seed):
    """New states turn up in the middle of a batch, at its ends and after it."""
    rng = np.random.default_rng(seed)
    reach = np.repeat([4, 4, 11, 30], 100)
    log = {"state": rng.integers(0, reach), "next_state": rng.integers(0, reach)}
    log |= {"action": rng.integers(0, 3, 400)} if with_actions else {}
    log |= {"terminal": rng.random(400) < 0.1} if with_ends else {}
    expected = lg.Counts.from_transitions(**log)
    found = lg.read_transitions(cut(log, sorted([*places, 40, 80, 120, 250])))
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    narrow = {name: column.astype(np.int32) for name, column in log.items() if name != "terminal"}
    assert lg.read_transitions(cut(log | narrow, [40, 80, 120, 250])) == found


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("role", [None, "action", "terminal"])
def test_states_may_turn_up_late(tmp_path, labeled, role, threads):
    """No pair is counted twice or lost, whichever thread decodes the rows."""
    rng = np.random.default_rng(5)
    n = 20_000
    reach = 2 + np.arange(n) // 500
    log = {"state": rng.integers(0, reach), "next_state": rng.integers(0, reach)}
    if role == "action":
        log["action"] = rng.integers(0, 1 + np.arange(n) // 5000)
    if role == "terminal":
        log |= {"terminal": rng.random(n) < 0.01, "episode": np.arange(n) // 64}
    if labeled:
        log |= {name: np.char.mod("at %d", log[name]) for name in ("state", "next_state")}
    pq.write_table(pa.table(log), tmp_path / "log.parquet", row_group_size=1500)
    expected = lg.Counts.from_transitions(**log)
    assert lg.read_transitions(tmp_path / "log.parquet", threads=threads) == expected
    if not labeled:
        with pytest.raises(ValueError, match=r"row group 4, row \d+: .* outside 0\.\.13; raise n_states"):
            lg.read_transitions(tmp_path / "log.parquet", threads=threads, n_states=14)


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("kind", ["far from zero", "first far away", "a jump", "all equal"])
def test_moments_of_rewards_lose_no_digits(kind, times):
    normal = np.random.default_rng(0).normal(size=1000)
    reward = {
        "far from zero": 1e9 + normal,
        "first far away": np.concatenate([[1e8], normal]),
        "a jump": np.concatenate([normal, 1e7 + normal]),
        "all equal": np.full(1000, 0.1),
    }[kind]
    zeros = np.zeros(reward.size, int)
    log = {"state": zeros, "next_state": zeros, "reward": reward}
    if times:
        log["weight"] = np.ones(reward.size, int)
    found = lg.read_transitions(log, weight="weight" if times else None)
    exact = [Fraction(r) for r in reward.tolist()]
    mean = sum(exact) / len(exact)
    m2 = sum((r - mean) ** 2 for r in exact)
    assert found.reward_mean[0] == pytest.approx(float(mean), abs=2**-50 * np.abs(reward).max())
    assert found.reward_m2[0] == pytest.approx(float(m2), rel=1e-12)


def derived_by_hand(log, ends):
    """Transitions to the next row of the same episode, found by a dictionary of last rows."""
    waiting, rows = {}, []
    for i, e in enumerate(log["episode"].tolist()):
        if e in waiting:
            j = waiting.pop(e)
            rows.append((j, log["state"][i], False))
        if log["terminal"][i]:
            rows.append((i, log["state"][i], True))
        else:
            waiting[e] = i
    assert len(waiting) == 4
    if ends == "terminal":
        rows += [(i, 0, True) for i in waiting.values()]
    source, following, terminal = map(np.array, zip(*rows, strict=True))
    return lg.Counts.from_transitions(
        log["state"][source], following, action=log["action"][source], reward=log["reward"][source],
        terminal=terminal, n_states=9, n_actions=3,
    )  # fmt: skip


@pytest.mark.parametrize("ends", [None, "terminal", "truncated"])
def test_next_states_from_the_following_row(tmp_path, ends):
    log = make_log()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.RowOrderWarning)  # rows of one file are those of another
        expected = derived_by_hand(log, ends)
    write_parquet(tmp_path / "a.parquet", cut(log, [333])[0])
    write_parquet(tmp_path / "b.parquet", cut(log, [333])[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = lg.read_transitions(str(tmp_path / "*.parquet"), next_state=False, ends=ends)
    said = [str(each.message) for each in caught]
    assert len(said) == (ends != "terminal")
    assert all("4 last rows are cut off: what followed is unknown, and action and" in text for text in said)
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_allclose(found.reward_mean, expected.reward_mean, rtol=1e-13)
    starts = lg.Counts.from_transitions(**log).initial_count
    np.testing.assert_array_equal(found.initial_count, starts)


def test_a_path_without_episodes():
    counts = lg.read_transitions([{"state": [0, 1]}, {"state": [2, 0]}])
    assert counts.matrix.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert counts.initial_count is None
    flagged = lg.read_transitions([{"state": [0, 1, 2, 0], "truncated": [0, 1, 0, 0]}])
    assert flagged.matrix.toarray().tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert flagged.initial_count.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_weights(kind):
    log = make_log()
    weight = np.random.default_rng(1).integers(0, 4, 500).astype(kind)
    found = lg.read_transitions(cut(log | {"times": weight}, [100, 300]), weight="times")
    assert_same(found, lg.Counts.from_transitions(**log, weight=weight))
    assert found.count.dtype == kind


def test_rows_that_stand_for_many():
    """Sums by pair, as Spark or SQL would write them, give the counts of the rows themselves."""
    log = make_log()
    expected = lg.Counts.from_transitions(**{k: log[k] for k in ("state", "next_state", "action", "reward")})
    frame = pd.DataFrame(log)
    pairs = frame.groupby(["state", "action", "next_state"])["reward"]
    table = pairs.agg(times="count", mean="mean", m2=lambda r: ((r - r.mean()) ** 2).sum()).reset_index()
    found = lg.read_transitions(table, weight="times", reward="mean", reward_m2="m2")
    assert_same(found, expected)


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
def test_long_rows_come_out_sorted():
    rng = np.random.default_rng(3)
    n = 5000
    log = {
        role: rng.integers(0, size, n) for role, size in (("state", 3), ("action", 2), ("next_state", 300))
    }
    log |= {"reward": rng.normal(size=n), "terminal": rng.random(n) < 0.1}
    found = lg.read_transitions(log)
    assert np.diff(found.indptr).max() > 200
    assert_same(found, lg.Counts.from_transitions(**log))


def test_large_ids():
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, top, (2, 30_000)) for top in (50, 10**5, 2 * 10**7)]
    batches = [{"state": part[0], "next_state": part[1]} for part in parts]
    found = lg.read_transitions(batches, labels=False)
    joined = np.concatenate(parts, axis=1)
    pairs, times = np.unique(joined, axis=1, return_counts=True)
    state = np.repeat(np.arange(found.n_states), np.diff(found.indptr))
    np.testing.assert_array_equal(np.stack([state, found.indices]), pairs)
    np.testing.assert_array_equal(found.count, times)


def test_ids_too_large_to_count_are_refused_and_read_as_labels():
    batch = {"state": [2**40, 5], "next_state": [5, 2**40], "action": [0, 1]}
    with pytest.raises(ValueError, match="labels=True"):
        lg.read_transitions(batch, labels=False)
    counts = lg.read_transitions(batch)
    assert counts.state_labels == (str(2**40), "5")


def test_labels_are_sorted_whatever_the_order_of_the_batches():
    counts = lg.read_transitions(
        [{"state": ["b"], "next_state": ["c"]}, {"state": ["a"], "next_state": ["b"]}]
    )
    assert counts.state_labels == ("a", "b", "c")
    assert counts.matrix.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_columns_by_name_and_columns_left_out():
    log = make_log()
    renamed = {"s": log["state"], "s2": log["next_state"], "reward": log["reward"]}
    counts = lg.read_transitions(renamed, state="s", next_state="s2", reward=False)
    assert counts.reward_mean is None
    assert counts.total == 500


def test_graphs_and_matrices(tmp_path):
    matrix = sparse.csr_array([[0, 2], [3, 1]])
    assert lg.read_transitions(matrix).count.tolist() == [2, 3, 1]
    with pytest.raises(ValueError, match="a matrix or graph has no columns; leave state=, weight= out"):
        lg.read_transitions(matrix, state="s", weight="cost")
    sparse.save_npz(tmp_path / "m.npz", sparse.csr_matrix(matrix))
    assert lg.read_transitions(tmp_path / "m.npz").count.tolist() == [2, 3, 1]
    assert lg.read_transitions(networkx.path_graph(3)).n_states == 3


@pytest.mark.parametrize(
    ("source", "option", "says"),
    [
        ("matrix", {"labels": True}, "a matrix or graph has no columns; leave labels= out"),
        ("counts", {"labels": False}, "a matrix or graph has no columns; leave labels= out"),
        ("graph", {"keep_episodes": True}, "no columns; leave keep_episodes= out"),
        ("matrix", {"table": "steps"}, "only a DuckDB file has tables; leave table= out"),
        ("csv", {"table": "steps"}, "only a DuckDB file has tables; leave table= out"),
        ("csv", {"autoreset": "same_step"}, r"arrays of shape \(time, environments\).*leave autoreset= out"),
        ("frame", {"state": lambda seen: seen}, "is for Minari datasets; leave state= out"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, source, option, says):
    log = {"state": [0, 1], "next_state": [1, 0]}
    write_csv(tmp_path / "log.csv", log)
    lg.Counts.from_transitions(**log).save(tmp_path / "counts.npz")
    given = {
        "matrix": sparse.csr_array([[0, 2], [3, 1]]),
        "counts": tmp_path / "counts.npz",
        "graph": networkx.path_graph(3),
        "csv": tmp_path / "log.csv",
        "frame": pd.DataFrame(log),
    }
    lg.read_transitions(given[source])
    with pytest.raises(ValueError, match=says):
        lg.read_transitions(given[source], **option)


def test_sizes_that_are_asked_for_hold_for_matrices_and_files_of_counts(tmp_path):
    matrix = sparse.csr_array([[0, 2], [3, 1]])
    sparse.save_npz(tmp_path / "m.npz", sparse.csr_matrix(matrix))
    lg.Counts.from_transitions([0, 1], [1, 0], action=[0, 1]).save(tmp_path / "counts.npz")
    for source in (matrix, tmp_path / "m.npz", tmp_path / "counts.npz"):
        found = lg.read_transitions(source, n_states=5)
        assert found.n_states == 5
        assert found.cell_count[2 * (found.n_actions or 1) :].sum() == 0
        with pytest.raises(ValueError, match="n_states=1 but the data are over 2 states; raise n_states"):
            lg.read_transitions(source, n_states=1)
    assert lg.read_transitions(tmp_path / "counts.npz", n_actions=3).cell_count.tolist() == [1, 0, 0, 0, 1, 0]
    with pytest.raises(ValueError, match="n_actions=1 but the data are over 2 actions"):
        lg.read_transitions(tmp_path / "counts.npz", n_actions=1)
    with pytest.raises(ValueError, match="n_actions=3 but the data hold no actions"):
        lg.read_transitions(matrix, n_actions=3)


STAMPS = np.array(["2020-01-05", "2020-01-02", "2020-01-09", "2020-01-01"], "datetime64[D]")


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_dates_sort_rows_whatever_their_unit(unit):
    log = {"state": [0, 1, 2, 3], "t": STAMPS.astype(f"datetime64[{unit}]")}
    expected = lg.Counts.from_transitions([3, 1, 0], [1, 0, 2])
    assert lg.read_transitions(log, time="t") == expected
    assert (
        lg.read_transitions(
            [{"state": log["state"][k : k + 1], "t": log["t"][k : k + 1]} for k in range(4)], time="t"
        )
        == expected
    )


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (STAMPS[2:], r"batch 1, row 0: time changes from datetime64\[s\] to datetime64\[D\]"),
        (np.arange(2), r"time changes from datetime64\[s\] to int64; give it one type throughout"),
    ],
)
def test_times_in_two_units_are_not_compared(second, says):
    """In seconds and in days, 2020-01-05 was later than 2020-01-09."""
    batches = [{"state": [0, 1], "t": STAMPS[:2].astype("datetime64[s]")}, {"state": [2, 3], "t": second}]
    with pytest.raises(ValueError, match=says):
        lg.read_transitions(batches, time="t")


def test_times_that_are_no_numbers_from_0_are_refused():
    large = np.array([2**63 + 2, 2**63 + 1, 5], np.uint64)  # as signed integers they would be negative
    with pytest.raises(ValueError, match="integers beyond 63 bits; subtract the first"):
        lg.read_transitions({"state": [0, 1, 2], "t": large}, time="t")
    with pytest.raises(ValueError, match="column 't' holds booleans; times are numbers or dates"):
        lg.read_transitions({"state": [0, 1], "t": [True, False]}, time="t")
    clock = pa.table({"state": [0, 1], "t": pa.array([3, 2], pa.time64("ns"))})
    with pytest.raises(ValueError, match=r"column 't' holds time64\[ns\]; times are numbers or dates"):
        lg.read_transitions(clock, time="t")


def test_a_folder_of_tables_that_are_folders_is_read_file_by_file(tmp_path):
    table = pa.table({"state": [0, 1], "next_state": [1, 0]})
    for day in ("1", "2"):
        (tmp_path / f"day{day}.parquet").mkdir()
        pq.write_table(table, tmp_path / f"day{day}.parquet" / "part-0.parquet")
    assert lg.read_transitions(tmp_path).total == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"state": False}, "state= must be the name of a column, a string, got False"),
        ({"state": 0}, "state= must be the name of a column, a string, got 0"),
        ({"weight": True}, "weight= must be the name of a column, a string, got True"),
        ({"action": 2}, "action= must be the name of a column, a string, got 2"),
        ({"progress": "yes"}, "progress must be True or False"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        lg.read_transitions({"state": [0, 1], "next_state": [1, 0], "weight": [1, 2]}, **options)


@pytest.mark.parametrize("column", [pd.Series([0, 1]), pl.Series([0, 1]), pa.array([0, 1])])
def test_a_column_is_no_table(column):
    for source in (column, [column]):
        with pytest.raises(ValueError, match=r"is no table .*; give one|holds a int; give mappings"):
            lg.read_transitions(source)


def test_errors_of_matrices_name_their_file(tmp_path):
    np.save(tmp_path / "counts.npy", np.array([[1.0, -1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"counts\.npy: counts\[0, 1\] is -1.0, which is negative"):
        lg.read_transitions(tmp_path / "counts.npy")


def test_hidden_files_of_a_folder_are_no_part_of_the_log(tmp_path):
    log = make_log()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in ("log.csv", ".log.csv", ".ipynb_checkpoints/log-checkpoint.csv"):
        write_csv(tmp_path / name, log)
    assert lg.read_transitions(tmp_path) == lg.read_transitions(log)
    hidden = tmp_path / ".ipynb_checkpoints"  # asked for by name
    assert lg.read_transitions(hidden) == lg.read_transitions(log)


@pytest.mark.parametrize("role", ["action", "episode"])
def test_columns_in_the_names_of_folders_are_not_lost(tmp_path, role):
    log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 0], "action": [0, 1, 0, 1], "episode": [0, 0, 1, 1]}
    pq.write_to_dataset(pa.table(log), tmp_path / "log", partition_cols=[role])
    with pytest.raises(ValueError, match=rf"the folder '{role}=0' holds the {role}.*partitioning='hive'"):
        lg.read_transitions(tmp_path / "log")
    rest = {name: column for name, column in log.items() if name != role}
    found = lg.read_transitions(tmp_path / "log", **{role: False})
    assert found.count.sum() == 4
    assert found.n_actions == lg.read_transitions(rest).n_actions
    rows = pa.dataset.dataset(tmp_path / "log", partitioning="hive").scanner().to_reader()
    assert lg.read_transitions(rows) == lg.read_transitions(log)
    write_csv(tmp_path / "log" / f"{role}=0" / "whole.csv", log)
    assert lg.read_transitions(tmp_path / "log" / f"{role}=0" / "whole.csv") == lg.read_transitions(log)


def test_columns_of_a_frame_may_be_numbered():
    frame = pd.DataFrame([[0, 1, 2.0], [1, 0, 3.0]])
    found = lg.read_transitions(frame, state="0", next_state="1", reward="2")
    assert_same(found, lg.Counts.from_transitions([0, 1], [1, 0], reward=[2.0, 3.0]))


@pytest.mark.parametrize(("kind", "digits"), [("f2", 11), ("f4", 24), ("f8", 53)])
def test_ids_that_their_type_rounds_are_refused(kind, digits):
    """2**24 + 1 and 2**24 are one number in single precision."""
    largest = 2**digits - 1
    for below in (largest, -largest):
        found = lg.read_transitions({"state": [0], "next_state": [0], "episode": np.array([below], kind)})
        assert found.initial_count.tolist() == [1]
    if digits < 53:
        found = lg.read_transitions({"state": np.array([largest], kind), "next_state": [0]}, labels=False)
        assert found.n_states == 2**digits
    with pytest.raises(ValueError, match=rf"from where on float{8 * int(kind[1:])} rounds integers"):
        lg.read_transitions({"state": np.array([2**digits + 1], kind), "next_state": [0]})


# -- errors -----------------------------------------------------------------------------------------------


def broken(log, column, row, value):
    entries = log[column].tolist()
    entries[row] = value
    return log | {column: entries}


def test_nulls_name_file_row_group_row_and_column(tmp_path):
    write_parquet(tmp_path / "log.parquet", broken(make_log(), "reward", 40, None))
    with pytest.raises(ValueError, match=r"log\.parquet, row group 1, row 3: column 'reward' is null; fill"):
        lg.read_transitions(tmp_path / "log.parquet")


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("state", -3, r"row group 2, row 6: state is -3, but ids run from 0"),
        ("reward", float("nan"), r"row group 2, row 6: column 'reward' is nan, not a finite"),
        ("reward", float("inf"), r"row group 2, row 6: column 'reward' is inf"),
    ],
)
def test_bad_entries(tmp_path, column, value, says):
    write_parquet(tmp_path / "log.parquet", broken(make_log(), column, 80, value))
    with pytest.raises(ValueError, match=says):
        lg.read_transitions(tmp_path / "log.parquet")


def test_wrong_columns(tmp_path):
    write_parquet(tmp_path / "log.parquet", make_log())
    with pytest.raises(
        ValueError, match=r"log\.parquet: no column 's' for the state; found 'episode', .*state="
    ):
        lg.read_transitions(tmp_path / "log.parquet", state="s")
    with pytest.raises(
        ValueError, match=r"column 'state' is 0\.5, which is no id; ids are integers or strings"
    ):
        lg.read_transitions({"state": pa.array([0.5, 1.0]), "next_state": [1, 2]})
    with pytest.raises(ValueError, match=r"column 'terminal' is 2; flags are"):
        lg.read_transitions({"state": [0, 1], "next_state": [1, 0], "terminal": [0, 2]})
    with pytest.raises(ValueError, match="columns for"):
        lg.read_transitions(
            [{"state": [0, 1], "next_state": [1, 0]}, {"state": [0], "next_state": [1], "reward": [1.0]}]
        )


def test_mixed_types(tmp_path):
    (tmp_path / "a.csv").write_text("state,next_state\n0,1\n")
    (tmp_path / "b.csv").write_text("state,next_state\nx,1\n")
    with pytest.raises(ValueError, match=r"b\.csv.*state holds strings.*labels=True"):
        lg.read_transitions(tmp_path / "*.csv")
    assert lg.read_transitions(tmp_path / "*.csv", labels=True).state_labels == ("0", "1", "x")
    lines = "0,1\n" * 3_000_000 + "x,1\n"
    (tmp_path / "long.csv").write_text("state,next_state\n" + lines)
    with pytest.raises(ValueError, match=r"long\.csv, line 3000002: column 'state' is 'x'.*labels=True"):
        lg.read_transitions(tmp_path / "long.csv")


def test_truncated_and_corrupt_files(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(
        pa.table(make_log()), path, row_group_size=100, compression="zstd", write_page_checksum=True
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"log\.parquet: cannot be read .* fetch it again"):
        lg.read_transitions(path)
    path.write_bytes(whole)
    with pq.ParquetFile(path) as stored:
        place = stored.metadata.row_group(3).column(3)
        begins = place.dictionary_page_offset or place.data_page_offset
        where = begins + place.total_compressed_size - 10
    damaged = bytearray(whole)
    damaged[where] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"log\.parquet, row group 3, column 'reward': cannot be read"):
        lg.read_transitions(path)
    (tmp_path / "cut.arrow").write_bytes(_ipc_bytes()[:-900])
    with pytest.raises(ValueError, match=r"cut\.arrow.*cannot be read"):
        lg.read_transitions(tmp_path / "cut.arrow")


def _ipc_bytes():
    sink = io.BytesIO()
    table = pa.table(make_log())
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue()


def test_missing_files_and_unknown_sources(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        lg.read_transitions(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="no file matches"):
        lg.read_transitions(str(tmp_path / "*.parquet"))
    (tmp_path / "log.xyz").write_text("")
    with pytest.raises(ValueError, match="suffix"):
        lg.read_transitions(tmp_path / "log.xyz")
    with pytest.raises(ValueError, match="cannot read transitions from a float"):
        lg.read_transitions(1.5)
    with pytest.raises(ValueError, match="no rows"):
        lg.read_transitions({"state": np.zeros(0, int), "next_state": np.zeros(0, int)})


# -- progress ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [10, 100])
def test_progress_tells_rows_and_the_share_read(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(sources, "_GROUP_ROWS", rows)  # row groups have 37
    log = make_log()
    for name, part in zip("ab", cut(log, [250]), strict=True):
        write_parquet(tmp_path / f"{name}.parquet", part)
    seen = []
    lg.read_transitions(str(tmp_path / "*.parquet"), progress=lambda *told: seen.append(told))
    assert len(seen) == (50 + 4 if rows == 10 else 14)  # the last of the 7 row groups of a file has 28 rows
    assert seen[-1] == (500, 1.0)
    assert seen == sorted(seen)


def test_progress_line_vanishes_and_is_silent_when_piped(monkeypatch, capsys):
    log = make_log()
    lg.read_transitions(log, progress=True)
    assert capsys.readouterr().err == ""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    lg.read_transitions(log, progress=True)
    assert "500 rows" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("state;next_state\n0;1\n", "separate columns by commas, or by tabs in a .tsv file"),
        ("0,1,2.5\n1,0,1.5\n", "its first row seems to be data: put a row of column names above it"),
    ],
)
def test_tables_of_another_form_are_told_what_to_change(tmp_path, text, remedy):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"no column 'state' for the state; found .*; {remedy}"):
        lg.read_transitions(tmp_path / "log.csv")


def test_row_numbers_of_pandas_are_no_unused_column(tmp_path):
    (tmp_path / "log.csv").write_text(",state,next_state\n0,0,1\n1,1,0\n")
    assert lg.read_transitions(tmp_path / "log.csv").total == 2  # a warning would be an error


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"state": 0, "next_state": 1}],
            r"'state' is 0, a single entry; .*pandas\.DataFrame\(rows\)",
        ),
        ([{"state": "a", "next_state": "b"}], "column 'state' is 'a', a single entry"),
        ([(0, 1), (1, 0)], r"holds a tuple; .*pandas\.DataFrame\(rows, columns=\.\.\.\)"),
    ],
)
def test_single_rows_in_a_stream_are_told_to_become_a_frame(rows, message):
    with pytest.raises(ValueError, match=message):
        lg.read_transitions(rows)


# -- files that are hostile, damaged or written to --------------------------------------------------------


def test_views_of_a_database_from_elsewhere_read_no_other_files(tmp_path):
    import duckdb

    secret = tmp_path / "secret.csv"
    secret.write_text("state,next_state\n0,1\n1,0\n")
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute(f"CREATE VIEW steps AS SELECT * FROM read_csv('{secret}')")
        connection.execute("CREATE TABLE own AS SELECT 0 AS state, 0 AS next_state")
        connection.execute("CREATE VIEW mine AS SELECT * FROM own")
    with pytest.raises(FileError, match=r"log\.duckdb"):
        lg.read_transitions(tmp_path / "log.duckdb", table="steps")
    assert lg.read_transitions(tmp_path / "log.duckdb", table="mine").total == 1


@pytest.mark.parametrize("modules", [{}, {"pyarrow": None}], ids=["arrow", "plain"])
@pytest.mark.parametrize("size", [10, 25_000_000])
def test_a_file_that_grows_while_it_is_read_is_noticed(tmp_path, monkeypatch, modules, size):
    file = tmp_path / "log.csv"
    file.write_text("state,next_state\n" + "0,1\n" * (size // 4))
    plain = stream_counter.Accumulator.add

    def add(self, *given, **more):
        with file.open("a") as stream:
            stream.write("1,0\n")
        return plain(self, *given, **more)

    monkeypatch.setattr(stream_counter.Accumulator, "add", add)
    with mock.patch.dict("sys.modules", modules), pytest.raises(FileError, match="changed while it was read"):
        lg.read_transitions(file)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is asked of /proc")
@pytest.mark.parametrize("modules", [{}, {"pyarrow": None}], ids=["arrow", "plain"])
def test_one_line_of_gigabytes_is_refused_in_little_memory(tmp_path, modules):
    """A few megabytes that are packed unfold into one line: 130 here, of which a few blocks are held."""
    file = tmp_path / "log.csv.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(b"state,next_state\n")
        for _ in range(512):
            stream.write(b"1," * (1 << 17))
    code = (
        "import re, sys\n"
        f"sys.modules.update({modules!r})\n"
        "import lingendice as lg\n"
        "try:\n"
        f"    lg.read_transitions({str(file)!r})\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "print(re.search('VmHWM:(.*)kB', open('/proc/self/status').read())[1])\n"
    )
    said, held = subprocess.check_output([sys.executable, "-c", code], text=True).strip().split("\n")
    assert "log.csv.gz, line 2: longer than 8,388,608 characters" in said
    assert int(held) < 600_000  # kilobytes: the interpreter and PyArrow take half of them
