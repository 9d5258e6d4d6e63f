"""Columns under all their names, ids and labels, flags in words, rows out of order: nothing is guessed."""

from __future__ import annotations

import gzip
import warnings
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from logs import random_mdp, walk
from typer.testing import CliRunner
from written_logs import assert_same, cut

import lingendice as lg
from lingendice.cli import app
from lingendice.io import read as reading
from lingendice.io import stream_counter
from lingendice.io.roles import ALIASES, ONLY_WHEN_NAMED
from lingendice.io.segments import join

CORE = ("state", "next_state", "action", "reward", "episode", "terminal")


def episodes(n=40, seed=0):
    """Episodes one after another that end, of a small MDP."""
    return walk(random_mdp(), n, 12, seed=seed, ending=0.15)


def renamed(log, **names):
    return {names.get(role, role): column for role, column in log.items()}


# -- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        {"state": "obs", "next_state": "next_obs", "terminal": "terminated"},
        {"state": "observations", "next_state": "next_observations", "action": "actions", "reward": "rewards",
         "terminal": "terminals"},
        {"state": "s", "action": "a", "reward": "r", "next_state": "s_next", "episode": "traj_id"},
        {"next_state": "nextstate", "terminal": "terminations", "episode": "episode_id"},
        {"state": " State", "next_state": "Next State", "reward": "REWARD ", "terminal": "done"},
    ],
)  # fmt: skip
def test_logs_of_other_libraries_are_read_as_they_are(tmp_path, names):
    log = episodes()
    expected = lg.Counts.from_transitions(**log)
    frame = pd.DataFrame(renamed(log, **names))
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    np.savez(tmp_path / "log.npz", **renamed(log, **names))
    for source in (frame, *sorted(tmp_path.iterdir())):
        assert_same(lg.read_transitions(source), expected)
    policy = np.full((expected.n_states, expected.n_actions), 1 / expected.n_actions)
    right, found = (lg.solve(c, 0.9, policy=policy).value for c in (expected, lg.read_transitions(frame)))
    assert found == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize(("role", "name"), [(role, name) for role in ALIASES for name in ALIASES[role]])
def test_every_alias_is_found_or_waits_to_be_named(role, name):
    log = {"state": [0, 1, 1], "next_state": [1, 1, 0], "episode": [0, 0, 0]}
    columns = {**{key: column for key, column in log.items() if key != role}, name: [0, 0, 1]}
    if role in ONLY_WHEN_NAMED:
        with pytest.warns(lg.UnusedColumnWarning, match=f"'{name}'.*{role}="):
            lg.read_transitions(columns)
        lg.read_transitions(columns | {"reward": [1.0, 1.0, 1.0]}, **{role: name})
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.RowOrderWarning)
        named = "terminal" if role == "done" else role
        assert lg.read_transitions(columns) == lg.read_transitions(columns, **{named: name})


@pytest.mark.parametrize("present", ["done", "done truncated", "done terminal", "done terminal truncated"])
def test_done_is_resolved(present):
    done = np.array([False, True, False, True, True])
    cut_off = np.array([False, True, False, False, True])
    log = {"state": np.array([0, 1, 0, 1, 2]), "next_state": np.array([1, 2, 1, 2, 0])}
    flags = {"done": done, "truncated": cut_off, "terminal": done & ~cut_off}
    found = lg.read_transitions(log | {role: flags[role] for role in present.split()})
    if present == "done":
        assert_same(found, lg.Counts.from_transitions(**log, terminal=done))
    else:
        assert_same(found, lg.Counts.from_transitions(**log, terminal=done & ~cut_off, truncated=cut_off))


def test_a_vector_log_may_say_done():
    state = np.array([[0], [1], [2], [0], [1]])
    log = {"obs": state, "done": np.array([[0], [1], [0], [0]])}
    found = lg.read_transitions(log)
    assert_same(found, lg.read_transitions({"state": state, "terminal": log["done"]}))


def test_columns_that_are_not_used_are_told_once(tmp_path):
    log = episodes()
    extra = renamed(log, next_state="nextt_state", reward="rewrad") | {"color": log["state"]}
    pq.write_table(pa.table(extra), tmp_path / "log.parquet", row_group_size=50)
    with pytest.warns(lg.UnusedColumnWarning) as told:
        lg.read_transitions(tmp_path / "log.parquet", threads=2, ends="terminal")
    (message,) = [str(warning.message) for warning in told]
    assert "'nextt_state' (name it by next_state=)" in message
    assert "'rewrad' (name it by reward=)" in message
    assert "'color'" in message
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "log.parquet")])
    assert "--next-state" in done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.read_transitions(log, reward=False, action=False)


def test_close_names_are_suggested():
    with pytest.raises(ValueError, match=r"no column 'stat' .*did you mean 'state'\?.*state="):
        lg.read_transitions({"state": [0], "next_state": [0]}, state="stat")
    with pytest.raises(ValueError, match=r"no column 'state' .*did you mean 'statee'\?"):
        lg.read_transitions({"statee": [0], "next_state": [0]})
    with pytest.raises(ValueError, match="appears twice"):
        lg.read_transitions({"State": [0], "STATE": [1]})
    with pytest.warns(lg.UnusedColumnWarning, match="column 'state' was present"):
        assert lg.read_transitions({"State": [0, 1], "state": [1, 1]}, state="State").n_states == 2


def test_a_column_that_was_named_for_one_role_is_not_guessed_for_another():
    found = lg.read_transitions({"state": [0, 1], "next_state": [1, 0], "r": [2, 3]}, weight="r")
    assert found.reward_mean is None
    assert found.total == 5


# -- ids and names ----------------------------------------------------------------------------------------


def test_sparse_integers_are_names_in_every_reader(tmp_path):
    log = {"state": [0, 5_000_000], "next_state": [5_000_000, 0], "action": [3, 4]}
    frame = pd.DataFrame(log)
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    np.savez(tmp_path / "log.npz", **log)
    for source in (frame, *sorted(tmp_path.iterdir())):
        counts = lg.read_transitions(source)
        assert counts.state_labels == ("0", "5000000")
        assert counts.action_labels is None
        assert lg.read_transitions(source, labels=True).action_labels == ("3", "4")
    for file in sorted(tmp_path.iterdir()):
        assert (
            '"state_labels": ["0", "5000000"]'
            in CliRunner().invoke(app, ["audit", str(file), "--json"]).stdout
        )
    few = {"state": [0, 20_000], "next_state": [20_000, 0]}
    assert lg.read_transitions(few).n_states == 2
    assert lg.read_transitions(few, n_states=20_001).state_labels is None
    pd.DataFrame(few).to_csv(tmp_path / "few.csv", index=False)
    ids = CliRunner().invoke(app, ["audit", str(tmp_path / "few.csv"), "--ids", "--json"])
    assert '"n_states": 20001' in ids.stdout


def test_a_policy_tells_that_integers_are_ids(tmp_path):
    pd.DataFrame({"state": [0, 20_000], "next_state": [20_000, 0], "action": [0, 1]}).to_csv(
        tmp_path / "log.csv", index=False
    )
    np.save(tmp_path / "pi.npy", np.full((20_001, 2), 0.5))
    asked = ["audit", str(tmp_path / "log.csv"), "--policy", str(tmp_path / "pi.npy"), "--json"]
    done = CliRunner().invoke(app, asked)
    assert '"n_states": 20001' in done.stdout


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_integers_that_turn_out_to_be_names_late(tmp_path, threads, derived):
    """Small at first, then beyond what keys hold; counted ahead by other threads or not."""
    rng = np.random.default_rng(0)
    path = np.concatenate([rng.integers(0, 50, 4000), rng.choice([3, 10**9, 10**17], 4000)])
    log = {"state": path[:-1], "next_state": path[1:], "episode": np.arange(7999) // 100}
    log["action"] = np.where(np.arange(7999) < 7000, 1, 10**6)
    if derived:
        del log["next_state"]
    named = log | {name: log[name].astype(str) for name in ("state", "next_state", "action") if name in log}
    options = {"ends": "terminal"} if derived else {}
    expected = lg.read_transitions(named, **options)
    assert not derived or expected.total == 7999
    pq.write_table(pa.table(log), tmp_path / "log.parquet", row_group_size=500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lg.read_transitions(tmp_path / "log.parquet", threads=threads, **options) == expected
        assert lg.read_transitions(cut(log, [100, 4100]), **options) == expected
    options = reading.ReadOptions(threads=1)
    parts = [reading.count_piece(part, options, keep_ends=True) for part in cut(log, [2050, 4100, 6000])]
    while len(parts) > 1:
        parts = [join(parts[0], parts[1]), *parts[2:]]
    assert_same(parts[0].closed("terminal").result(), expected)


@pytest.mark.parametrize("rows", [7_000, 1 << 22])
@pytest.mark.parametrize("columns", [{}, {"reward": np.zeros(30_000)}])
@pytest.mark.parametrize(("spread", "labeled"), [(1, False), (20, False), (21, True)])
def test_where_many_integers_stop_being_ids(monkeypatch, columns, spread, labeled, rows):
    """30,000 integers: ids while the largest is below 610,000."""
    monkeypatch.setattr(stream_counter, "ROWS", rows)
    path = spread * np.arange(30_000)
    log = {"state": path, "next_state": np.roll(path, 1), **columns}
    found = lg.read_transitions(cut(log, [20_000]))
    assert (found.state_labels is not None) == labeled
    assert found.n_states == (30_000 if labeled else path.max() + 1)
    assert found.total == 30_000


def test_negative_and_fractional_ids_are_refused_with_their_row(tmp_path):
    (tmp_path / "a.csv").write_text("state,next_state\n0,1\n-1,0\n")
    (tmp_path / "b.csv").write_text("state,next_state\n0,1\n1.5,0\n")
    for name, says in (
        ("a.csv", "state is -1, but ids run from 0"),
        ("b.csv", r"'state' is 1\.5, which is no id"),
    ):
        with pytest.raises(ValueError, match=says):
            lg.read_transitions(tmp_path / name)
        assert lg.read_transitions(tmp_path / name, labels=True).n_states == 3
    assert lg.read_transitions({"state": [0.0, 1.0], "next_state": [1.0, 0.0]}).state_labels is None


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (["a", float("nan")], "row 1: column 'state' is null"),
        (["1", 1], "row 1: column 'state' holds 1, a int; a column holds integers or strings, not both"),
        ((0, "0"), "row 1: column 'state' holds '0', a str; a column holds integers or strings, not both"),
    ],
)
def test_lists_of_mixed_entries_are_no_text(column, says):
    for mixed in (column, np.array(column, object), pd.Series(column, dtype=object)):
        with pytest.raises(ValueError, match=says):
            lg.read_transitions({"state": mixed, "next_state": ["a", "a"]})


@pytest.mark.parametrize("batched", [False, True])
def test_weights_that_wrap_are_refused(batched):
    weight = np.array([2**62] * 4 + [5])  # their sum is 5 in 64 bits
    assert int(weight.sum()) == 5
    log = {"state": [0] * 5, "next_state": [1] * 5, "weight": weight}
    batches = [{name: column[k : k + 1] for name, column in log.items()} for k in range(5)]
    with pytest.raises(ValueError, match="weight sums beyond 64 bits"):
        lg.read_transitions(batches if batched else log, weight="weight")
    parts = [lg.Counts.from_transitions([0], [1], weight=[n]) for n in weight.tolist()]
    with pytest.raises(ValueError, match="weight sums beyond 64 bits"):
        reduce(lg.Counts.merge, parts)


# -- text -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["with PyArrow", "without"])
def reader(request, monkeypatch):
    if request.param == "without":

        def absent(name):
            raise ImportError(name)

        monkeypatch.setattr("lingendice.data.saving.import_module", absent)
    return lg.read_transitions


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty file; the first line must name the columns"),
        ("state,next_state\n", "no rows"),
        ("x,next_state\n0,1\n", "no column 'state'"),
        ("state,next_state,state\n0,1,2\n", "'state' appears twice"),
        ("state,next_state\n0,1\n1\n", "line 3: 1 entries, 2 in the lines before"),
        ("state,next_state\na,b\n\udce9,a\n", "not UTF-8 text"),
        ("# made by hand\nstate,next_state\n0,1\n", "no column 'state'.*found '# made by hand'"),
        ("state,next_state\n0,1\n1,\n", r"(line 3|row 1).*next_state' is (empty|null)"),
        ("state,next_state\na,b\n ,a\n", r"(line 3|row 1).*state' is (empty|null)"),
        ("state,next_state\n1,0\nNA,0\n", r"line 3.*NA"),
        ("state,next_state,reward\n0,1,1\n1,0,much\n", r"line 3.*much"),
        ("state,next_state,reward\n0,1,1\n1,0,\n", r"(line 3|row 1).*reward' is (empty|null)"),
        ("state,next_state,reward\n0,1,1\n1,0,nan\n", r"(line 3|row 1).*reward' is nan"),
        ("state,next_state,terminal\n0,1,1\n1,0,maybe\n", r"(line 3|row 1).*'maybe'; flags are"),
        ("state,next_state,terminal\n0,1,1\n1,0,\n", r"(line 3|row 1).*terminal' is (empty|null)"),
        ("state,next_state,episode\n0,1,1\n1,0,\n", r"(line 3|row 1).*episode' is (empty|null)"),
    ],
)
def test_bad_text_is_told_by_its_row(tmp_path, reader, text, says):
    (tmp_path / "log.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=says):
        reader(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("state,next_state\n1,home\n2, 1\n", ("1", "2", "home")),
        ("state,next_state\n1.0,2.0\n2.0,1.0\n", None),
        ("state,next_state\nNA,DE\nDE,NA\n", ("DE", "NA")),
        ("state,next_state\n2024-01-01,2024-01-02\n2024-01-02,2024-01-01\n", ("2024-01-01", "2024-01-02")),
        ("state,next_state\ntrue,false\nfalse,true\n", ("false", "true")),
        ('state,next_state\n"a,b","c\nd"\n"c\nd","a,b"\n', ("a,b", "c\nd")),
        ("\ufeffstate,next_state\r\n0,1\r\n1,0\r\n", None),
        ("\n\nstate,next_state\n0,1\n\n1,0\n", None),
    ],
)
def test_what_text_means(tmp_path, reader, text, labels):
    (tmp_path / "log.csv").write_bytes(text.encode())
    found = reader(tmp_path / "log.csv")
    assert found.state_labels == labels
    assert found.total == 2


@pytest.mark.parametrize("words", ["0 1", "0.0 1.0", "false true", "False True", "no yes", "N Y", "f t"])
def test_flags_in_words(tmp_path, reader, words):
    no, yes = words.split()
    rows = f"0,1,{no}\n1,0,{yes}\n2,2,{no}\n"
    (tmp_path / "log.csv").write_text("state,next_state,terminal\n" + rows)
    with gzip.open(tmp_path / "log.csv.gz", "wt") as stream:
        stream.write("state,next_state,terminal\n" + rows)
    expected = lg.Counts.from_transitions([0, 1, 2], [1, 0, 2], terminal=[0, 1, 0])
    for name in ("log.csv", "log.csv.gz"):
        assert reader(tmp_path / name) == expected
    typed = {"state": [0, 1, 2], "next_state": [1, 0, 2], "terminal": np.array([no, yes, no])}
    assert reader(typed) == expected


def test_compressed_by_zstandard(tmp_path):
    with pa.output_stream(str(tmp_path / "log.csv.zst"), compression="zstd") as stream:
        stream.write(b"state,next_state\n0,1\n1,0\n")
    assert lg.read_transitions(tmp_path / "log.csv.zst").total == 2
    assert lg.read_transitions(tmp_path).total == 2
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"state,next_state\n0,1\n" * 99)[:-20])
    with pytest.raises(ValueError, match=r"cut\.csv\.gz"):
        lg.read_transitions(tmp_path / "cut.csv.gz")


@pytest.mark.parametrize("role", ["state", "next_state", "action", "episode", "terminal", "reward"])
def test_nulls_of_typed_files_name_their_row(tmp_path, role):
    log = {name: column.tolist() for name, column in episodes().items()}
    log[role][7] = None
    table = pa.table(log)
    pq.write_table(table, tmp_path / "log.parquet")
    pa.feather.write_feather(table, str(tmp_path / "log.feather"))
    for source in (tmp_path / "log.parquet", tmp_path / "log.feather", pd.DataFrame(log), log):
        with pytest.raises(ValueError, match=rf"row 7: column '{role}' is (null|nan)"):
            lg.read_transitions(source)


def test_saved_counts_are_read_as_counts(tmp_path):
    counts = lg.Counts.from_transitions(**episodes())
    counts.save(tmp_path / "counts.npz")
    assert lg.read_transitions(tmp_path / "counts.npz") == counts
    counts.save(tmp_path / "counts.parquet")
    with pytest.raises(ValueError, match=r"Counts\.load"):
        lg.read_transitions(tmp_path / "counts.parquet")


# -- order ------------------------------------------------------------------------------------------------


def shuffled(log, seed=1):
    order = np.random.default_rng(seed).permutation(len(log["state"]))
    return {role: column[order] for role, column in log.items()}


@pytest.mark.parametrize("labeled", [False, True])
def test_rows_out_of_order_are_told(tmp_path, labeled):
    log = episodes()
    if labeled:
        log |= {name: np.char.mod("at %d", log[name]) for name in ("state", "next_state")}
    mixed = shuffled(log)
    pq.write_table(pa.table(mixed), tmp_path / "log.parquet", row_group_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.Counts.from_transitions(**log)
        lg.read_transitions(cut(log, [7, 100]))
        lg.Counts.from_transitions(**mixed, weight=np.ones(mixed["state"].size))  # rows may stand for many
    told = []
    for read in (
        lambda: lg.Counts.from_transitions(**mixed),
        lambda: lg.read_transitions(tmp_path / "log.parquet", threads=2),
        lambda: lg.read_transitions(cut(mixed, [1, 30, 31])),
        lambda: lg.read_transitions(mixed, keep_episodes=True),
    ):
        with pytest.warns(lg.RowOrderWarning, match=r"time=") as caught:
            read()
        told.append(str(caught[0].message).split()[0])
    assert len(set(told)) == 1


def test_time_puts_rows_in_order(tmp_path):
    log = episodes()
    expected = lg.Counts.from_transitions(**log, keep_episodes=True)
    log["t"] = np.arange(log["state"].size)
    mixed = shuffled(log)
    columns = {role: column for role, column in mixed.items() if role != "t"}
    found = lg.Counts.from_transitions(**columns, time=mixed["t"], keep_episodes=True)
    assert found == expected
    dates = np.datetime64("2024-01-01") + mixed["t"].astype("timedelta64[s]")
    assert lg.Counts.from_transitions(**columns, time=dates, keep_episodes=True) == expected
    # In a stream the rows of an episode come together, in any order.
    order = np.argsort(mixed["episode"], kind="stable")
    together = {role: column[order] for role, column in mixed.items()}
    pd.DataFrame(together).to_csv(tmp_path / "log.csv", index=False)
    for source in (together, cut(together, [5, 6, 100]), tmp_path / "log.csv"):
        assert_same(lg.read_transitions(source, time="t"), expected)
        derived = {"time": "t", "next_state": False, "ends": "terminal"}
        assert_same(lg.read_transitions(source, **derived), lg.read_transitions(log, **derived))
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "log.csv"), "--time", "t"])
    assert done.exit_code == 0
    assert "warning" not in done.stderr
    labels = together | {
        name: np.char.mod("at %d", together[name]) for name in ("state", "next_state", "episode")
    }
    assert lg.read_transitions(cut(labels, [50, 90]), time="t").initial_count.sum() == 40
    for source in (mixed, pd.DataFrame(mixed)):
        with pytest.raises(
            ValueError, match=r"comes back after others; time= sorts.*sort the rows by episode"
        ) as said:
            lg.read_transitions(source, time="t")
        assert "memory" not in str(said.value)  # where it lies already
    with pytest.raises(ValueError, match=r"time\[3\] is nan"):
        lg.Counts.from_transitions(**columns, time=np.where(np.arange(mixed["t"].size) == 3, np.nan, 0))


def test_time_without_episodes_sorts_the_whole_log(monkeypatch):
    path = {"state": np.array([2, 0, 1]), "time": [3, 1, 2]}
    found = lg.read_transitions(path, time="time")
    assert found.matrix.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    one = SimpleNamespace(
        observations=[0, 1, 2], actions=[0, 0], rewards=[1, 1], terminations=[0, 1], truncations=[0, 0]
    )
    minari = SimpleNamespace(total_steps=2, total_episodes=1, iterate_episodes=lambda: [one])
    assert lg.read_transitions(minari).total == 2
    with pytest.raises(ValueError, match="a Minari dataset has no columns to name; leave time= out"):
        lg.read_transitions(minari, time="t")
    monkeypatch.setattr(stream_counter, "MOST_WAITING", 2)
    with pytest.raises(ValueError, match="sort the log by episode and time"):
        lg.read_transitions(path, time="time")
