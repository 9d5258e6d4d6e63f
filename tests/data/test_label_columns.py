"""Columns of labels of every kind are counted alike, and so are frames that are read."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.data import logs
from lingendice.io import stream_counter

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")


def make_log(n_episodes=40, length=10):
    rng = np.random.default_rng(1)
    names = np.array(["b", "élan", "a", "long name", "zz"])
    walk = names[rng.integers(0, 5, (n_episodes, length + 1))]
    return {
        "state": walk[:, :-1].ravel(),
        "next_state": walk[:, 1:].ravel(),
        "action": np.array(["run", "rest"])[rng.integers(0, 2, n_episodes * length)],
        "reward": rng.normal(size=n_episodes * length),
        "episode": np.repeat(np.arange(n_episodes), length),
    }


KINDS = {
    "list": list,
    "tuple": tuple,
    "object array": lambda column: column.astype(object),
    "bytes": lambda column: np.array([entry.encode() for entry in column]),
    "pandas str": pd.Series,
    "pandas object": lambda column: pd.Series(column.tolist(), dtype=object),
    "pandas string": lambda column: pd.Series(column, dtype="string"),
    "pandas category": lambda column: pd.Series(column).astype("category"),
    "pandas index": pd.Index,
    "arrow": pa.array,
    "arrow large": lambda column: pa.array(column, pa.large_string()),
    "arrow dictionary": lambda column: pa.array(column).dictionary_encode(),
    "arrow chunks": lambda column: pa.chunked_array([column[:7], column[7:100], column[100:]]),
    "arrow dictionary chunks": lambda column: pa.chunked_array(
        [pa.array(part).dictionary_encode() for part in (column[:7], column[7:100], column[100:])]
    ),
    "polars": pl.Series,
    "polars category": lambda column: pl.Series(column, dtype=pl.Categorical),
}


def pair_counts(counts):
    """Counts by label, whatever order the labels are in."""
    dense = counts.matrix.toarray().reshape(counts.n_states, counts.n_actions, counts.n_states)

    def text(label):
        return label.decode() if isinstance(label, bytes) else label

    return {
        (text(counts.label_of(s)), text(counts.label_of_action(a)), text(counts.label_of(t))): int(
            dense[s, a, t]
        )
        for s, a, t in zip(*np.nonzero(dense), strict=True)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_column(kind):
    log = make_log()
    expected = lg.Counts.from_transitions(**log)
    assert expected.state_labels == tuple(sorted(set(log["state"].tolist())))
    names = {name: KINDS[kind](log[name]) for name in ("state", "next_state", "action")}
    found = lg.Counts.from_transitions(**{**log, **names})
    assert pair_counts(found) == pair_counts(expected)
    by_hand = {}
    for entry in zip(*(log[name].tolist() for name in ("state", "action", "next_state")), strict=True):
        by_hand[entry] = by_hand.get(entry, 0) + 1
    assert pair_counts(found) == by_hand


def test_orders_of_ids():
    """Strings are sorted; pandas categories keep their order; other objects appear as they come."""
    log = {"state": ["b", "a", "c"], "next_state": ["a", "c", "b"]}
    for kind in KINDS:
        columns = {name: KINDS[kind](np.array(column)) for name, column in log.items()}
        labels = lg.Counts.from_transitions(**columns).state_labels
        if kind not in ("arrow dictionary", "arrow dictionary chunks"):
            assert labels == tuple(sorted(labels)), kind
    assert lg.Counts.from_transitions(**log) == lg.read_transitions(pd.DataFrame(log))
    objects = {name: [(entry, 1) for entry in column] for name, column in log.items()}
    assert lg.Counts.from_transitions(**objects).state_labels == (("b", 1), ("a", 1), ("c", 1))
    category = pd.CategoricalDtype(["c", "b", "a"])
    ordered = {name: pd.Series(column, dtype=category) for name, column in log.items()}
    assert lg.Counts.from_transitions(**ordered).state_labels == ("c", "b", "a")


@pytest.mark.parametrize(
    "column",
    [
        ["a", None],
        np.array(["a", np.nan], dtype=object),
        pd.Series(["a", None]),
        pd.Series(["a", None], dtype=object),
        pa.array(["a", None]),
        pl.Series(["a", None]),
    ],
)
def test_missing_labels_are_named(column):
    with pytest.raises(ValueError, match=r"state\[1\] is .*(missing|NA).*drop or fill it first"):
        lg.Counts.from_transitions(column, ["a", "a"])


def test_entries_that_cannot_be_labels_are_named():
    column = np.empty(2, dtype=object)
    column[:] = ["a", ["b"]]
    with pytest.raises(ValueError, match=r"state\[1\] is \['b'\], which cannot be a label"):
        lg.Counts.from_transitions(column, ["a", "a"])
    with pytest.raises(ValueError, match=r"state\[1\] is \['b'\], which cannot be a label"):
        lg.Counts.from_transitions(pd.Series(column), ["a", "a"])


@pytest.mark.parametrize("kept", [False, True])
def test_frames_and_lazy_frames_are_read_alike(kept, tmp_path):
    log = make_log()
    expected = lg.Counts.from_transitions(**log, keep_episodes=kept)
    frame = pl.DataFrame(log)
    frame.write_parquet(tmp_path / "log.parquet")
    unused = frame.lazy().with_columns(other=pl.lit(1))
    sources = (frame, frame.lazy(), pl.scan_parquet(tmp_path / "log.parquet"), tmp_path / "log.parquet")
    for source in sources:
        assert pair_counts(lg.read_transitions(source, keep_episodes=kept)) == pair_counts(expected)
    with pytest.warns(lg.UnusedColumnWarning, match="'other'"):
        lg.read_transitions(unused, keep_episodes=kept)


def test_kept_episodes_of_files_give_clustered_intervals(tmp_path):
    log = make_log()
    pd.DataFrame(log).to_parquet(tmp_path / "log.parquet")
    pd.DataFrame(log).to_csv(tmp_path / "log.csv", index=False)
    counts = lg.Counts.from_transitions(**log)
    assert counts == lg.Counts.from_transitions(**log, keep_episodes=True)
    policy = {name: {"run": 0.8, "rest": 0.2} for name in counts.state_labels}
    expected = lg.solve(counts, 0.9, policy=policy).interval()
    for source in (tmp_path / "log.parquet", tmp_path / "log.csv", pd.DataFrame(log), pl.LazyFrame(log)):
        found = lg.solve(lg.read_transitions(source), 0.9, policy=policy).interval()
        assert "clustered by 40 episodes" in found.note
        np.testing.assert_allclose(tuple(found), tuple(expected), rtol=1e-9)
    plain = lg.solve(
        lg.read_transitions(tmp_path / "log.parquet", keep_episodes=False), 0.9, policy=policy
    ).interval()
    assert "not clustered" in plain.note


def test_episodes_of_long_logs_are_kept_on_demand_alone(monkeypatch):
    monkeypatch.setattr(logs, "MOST_KEPT", 399)
    monkeypatch.setattr(stream_counter, "MOST_KEPT", 399)
    log = make_log()  # of 400 rows
    assert lg.Counts.from_transitions(**log).episodes is None
    assert lg.read_transitions(log).episodes is None
    assert lg.read_transitions(log, keep_episodes=True) == lg.Counts.from_transitions(
        **log, keep_episodes=True
    )
    columns = {"state": log["state"], "next_state": log["next_state"]}
    assert lg.Counts.from_transitions(**columns).episodes is None  # no episodes, nothing to keep


@pytest.mark.parametrize("wrap", [list, np.array, pd.Series, pd.Categorical])
def test_numbers_never_follow_names(wrap):
    """A state "1" and a next state 1 were two states, and nothing led on from anywhere."""
    names, numbers = wrap(["1", "2"]), wrap([2, 1])
    with pytest.raises(ValueError, match="states are strings, next states numbers; use one type for both"):
        lg.Counts.from_transitions(names, numbers)
    with pytest.raises(ValueError, match="states are numbers, next states strings; use one type for both"):
        lg.Counts.from_transitions(numbers, names)
    mixed = np.array(["start", 1, 2], dtype=object)
    assert lg.Counts.from_transitions(mixed, [1, 2, 1]).state_labels == ("start", 1, 2)
