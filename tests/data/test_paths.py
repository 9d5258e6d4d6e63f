"""Paths of every kind against pairs counted one by one, and intervals of pairs that overlap."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lingendice as lg
from lingendice.data.paths import find_lag

JOURNEYS = [["home", "cart", "buy"], ["home", "exit"], ["home", "cart", "cart", "exit"]]


def by_hand(paths, lag=1, ends=True):
    """Pairs of labels one by one; None stands for the end of a path."""
    pairs = Counter()
    for path in paths:
        for step, state in enumerate(path):
            if step + lag < len(path):
                pairs[state, path[step + lag]] += 1
            elif ends:
                pairs[state, None] += 1
    return dict(pairs)


def pairs_of(counts):
    cells = np.repeat(np.arange(counts.n_cells), np.diff(counts.indptr))
    return {
        (counts.label_of(cell), None if following == counts.n_states else counts.label_of(following)): count
        for cell, following, count in zip(cells.tolist(), counts.indices.tolist(), counts.count, strict=True)
    }


def random_walk(matrix, steps, seed):
    rng = np.random.default_rng(seed)
    bounds, draws = np.cumsum(matrix, axis=1), rng.random(steps)
    path = np.zeros(steps, np.int64)
    for step in range(1, steps):
        path[step] = min(np.searchsorted(bounds[path[step - 1]], draws[step], "right"), len(matrix) - 1)
    return path


# -- reading ------------------------------------------------------------------------------------------------


LONG = {
    "journey": ["x", "x", "y", "x", "y", "z", "z", "z", "z"],
    "channel": ["home", "cart", "home", "buy", "exit", "home", "cart", "cart", "exit"],
}


@pytest.mark.parametrize(
    "paths",
    [
        JOURNEYS,
        [tuple(path) for path in JOURNEYS],
        [" > ".join(path) for path in JOURNEYS],
        ["home>cart>buy", ["home", "exit"], np.array(JOURNEYS[2])],
        np.array([">".join(path) for path in JOURNEYS]),
        pd.Series([">".join(path) for path in JOURNEYS]),
        LONG,
        pd.DataFrame(LONG),
        pa.table(LONG),
        pd.DataFrame({"path": JOURNEYS}),
        pd.DataFrame({"path": [" > ".join(path) for path in JOURNEYS], "count": [1, 1, 1]}),
    ],
    ids=[
        "lists",
        "tuples",
        "strings",
        "mixed",
        "array",
        "series",
        "long-dict",
        "long",
        "arrow",
        "wide-lists",
        "wide",
    ],
)
def test_every_kind_of_paths_gives_the_same_counts(paths):
    counts = lg.Counts.from_paths(paths)
    assert pairs_of(counts) == by_hand(JOURNEYS)
    assert counts == lg.Counts.from_paths(JOURNEYS)
    assert counts.initial_count[counts.state_labels.index("home")] == 3 == counts.initial_count.sum()


def test_rows_of_a_frame_are_put_in_order_by_time():
    frame = pd.DataFrame(LONG).assign(clicked=pd.date_range("2024-01-01", periods=9))
    names = {"path": "journey", "state": "channel", "time": "clicked"}
    shuffled = frame.sample(frac=1.0, random_state=3)
    assert pairs_of(lg.Counts.from_paths(shuffled, columns=names)) == by_hand(JOURNEYS)


@pytest.mark.parametrize("lag", [1, 2, 3, 7])
@pytest.mark.parametrize("ends", ["terminal", "truncated"])
def test_pairs_at_every_lag_are_those_counted_one_by_one(lag, ends):
    rng = np.random.default_rng(lag)
    paths = [rng.integers(0, 4, size).tolist() for size in rng.integers(1, 20, 30)]
    counts = lg.Counts.from_paths(paths, lag, ends=ends)
    assert pairs_of(counts) == by_hand(paths, lag, ends == "terminal")
    assert counts.lag == lag
    np.testing.assert_array_equal(counts.initial_count, np.bincount([path[0] for path in paths], minlength=4))
    alone = [lg.Counts.from_paths([path], lag, ends=ends, n_states=4) for path in paths if len(path) > lag]
    merged = lg.Counts.from_paths([path for path in paths if len(path) > lag], lag, ends=ends, n_states=4)
    total = alone[0]
    for one in alone[1:]:
        total = total + one
    assert total == merged


def test_one_path_is_one_path_and_goes_on():
    states = [0, 1, 1, 2, 0]
    expected = lg.Counts.from_transitions(states[:-1], states[1:])
    for path in (
        states,
        np.array(states),
        np.array(states, np.uint8),
        [states],
        np.array([states]),
        pd.Series(states),
    ):
        counts = lg.Counts.from_paths(path)
        assert (counts.matrix != expected.matrix).nnz == 0
        assert not counts.has_terminals
    labeled = lg.Counts.from_paths("a > b > b > c > a")
    np.testing.assert_array_equal(labeled.matrix.toarray(), expected.matrix.toarray())


def test_several_paths_at_lag_1_are_the_episodes_of_a_log():
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, 50)
    states = rng.integers(0, 6, sizes.sum())
    log = lg.Counts.from_transitions(states, episode=np.repeat(np.arange(50), sizes), n_states=6)
    assert lg.Counts.from_paths(np.split(states, np.cumsum(sizes)[:-1]), n_states=6) == log


def test_counts_of_paths_are_paths_repeated():
    paths, times = ["a > b > c", "b > c", "a > a > b"], [3, 2, 4]
    repeated = [path for path, n in zip(paths, times, strict=True) for _ in range(n)]
    expected = lg.Counts.from_paths(repeated)
    assert lg.Counts.from_paths(paths, weight=times) == expected
    assert lg.Counts.from_paths({"path": paths, "n": times}) == expected
    by_weight = lg.Counts.from_paths(paths, weight=np.array(times, float))
    np.testing.assert_array_equal(by_weight.count, expected.count)
    np.testing.assert_array_equal(by_weight.initial_count, expected.initial_count)
    reward = np.array([1.0, 2.0, 5.0])
    shown = lg.solve(expected, reward=reward).interval(of="stationary")
    assert (np.asarray(shown.standard_error) > 0.0).all()
    found = lg.solve(lg.Counts.from_paths(paths, weight=times), reward=reward).interval(of="stationary")
    np.testing.assert_array_equal(found.low, shown.low)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"paths": ["a", "b"]}, r"none of the 2 strings holds the separator '>'"),
        ({"paths": ["a > > b"]}, r"paths\[0\] is 'a > > b', with a state that has no name"),
        ({"paths": [["a"], []]}, r"paths\[1\] has no states"),
        ({"paths": ["a > b", None]}, r"paths\[1\] is None, which is no path"),
        ({"paths": []}, "paths is empty"),
        ({"paths": 3}, "paths is a int"),
        ({"paths": [[0.5, 1.0], [2.0]]}, r"state\[0\] is 0.5, not a state .* numbered through all paths"),
        ({"paths": [[0, 1], [1]], "lag": 2}, r"no path has more than lag=2 states \(the longest has 2\)"),
        ({"paths": [[0, 1]], "lag": 0}, "lag"),
        ({"paths": [[0, 1]], "weight": [1, 2]}, r"weight has shape \(2,\) but there are 1 paths"),
        ({"paths": [[0, 1]], "columns": {"path": "x"}}, "columns= names the columns of a frame"),
        ({"paths": {"a": [1]}}, "no column of paths or states among a"),
        ({"paths": {"path": ["a > b"]}, "columns": {"pth": "path"}}, "columns has 'pth'; its keys are path"),
        ({"paths": {"path": ["a > b"]}, "columns": {"path": "x"}}, "is 'x', but the columns are path"),
        ({"paths": {"state": ["a"], "count": [2]}}, "one row per state, so that 'count' cannot count paths"),
        ({"paths": [["a", "b"]], "ends": "no"}, "ends"),
        ({"paths": ["a > b"], "separator": " "}, "separator"),
        ({"paths": [np.zeros((2, 2), int)]}, r"paths\[0\] has shape \(2, 2\)"),
    ],
)
def test_errors_name_the_entry_and_the_next_step(arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.Counts.from_paths(**arguments)


def test_lag_is_saved_merged_and_shown(tmp_path):
    counts = lg.Counts.from_paths([np.arange(9) % 3, np.arange(7) % 2], lag=2)
    counts.save(tmp_path / "counts.npz")
    assert lg.Counts.load(tmp_path / "counts.npz") == counts
    assert "at lag 2" in repr(counts)
    assert (counts + counts).lag == 2
    with pytest.raises(ValueError, match="lag 2 and lag 1 do not add up"):
        _ = counts + lg.Counts.from_paths([[0, 1]])
    counts.save(tmp_path / "counts.parquet")
    forgotten = lg.Counts.load(tmp_path / "counts.parquet")
    assert forgotten.lag == 2
    with pytest.raises(ValueError, match="pairs at lag 2 overlap"):
        lg.solve(forgotten, reward=np.arange(3.0)).interval()


# -- pairs given as two arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [2, 10, 50])
@pytest.mark.parametrize("stay", [0.0, 0.9])
def test_overlapping_pairs_are_recognized(lag, stay):
    n = 5
    path = random_walk(stay * np.eye(n) + (1.0 - stay) / n, 3000, seed=lag)
    with pytest.warns(lg.OverlapWarning, match=rf"from_paths\(path, lag={lag}\)"):
        lg.Counts.from_transitions(path[:-lag], path[lag:])
    parts = np.split(path, [800, 1900])
    state, following = (
        np.concatenate([part[cut] for part in parts]) for cut in (slice(-lag), slice(lag, None))
    )
    episode = np.repeat([0, 1, 2], [len(part) - lag for part in parts])
    with pytest.warns(lg.OverlapWarning, match=f"lag={lag}") as caught:
        lg.Counts.from_transitions(state, following, episode=episode)
    assert [warning.category for warning in caught] == [lg.OverlapWarning]  # rows are in order


def test_other_rows_are_not_taken_for_overlapping_pairs():
    rng = np.random.default_rng(0)
    path = random_walk(0.9 * np.eye(4) + 0.025, 3000, seed=1)
    order = rng.permutation(2999)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.Counts.from_transitions(path[:-1], path[1:])
        lg.Counts.from_transitions(path[:-1][order], path[1:][order])
        lg.Counts.from_paths(path, lag=10)
        lg.Counts.from_paths([path[:500], path[500:]], lag=10)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        rare = (rng.random((2, 3000)) < rng.choice([0.005, 0.02, 0.3])).astype(int)
        assert find_lag(*rare) is None


# -- intervals ------------------------------------------------------------------------------------------


def slow_chain(n=6, leave=0.006):
    """Two halves that mix at once and are left rarely: a relaxation time of some 80 steps."""
    half = n // 2
    matrix = np.zeros((n, n))
    matrix[:half, :half] = matrix[half:, half:] = 1.0 / half
    matrix[:half] *= 1.0 - leave
    matrix[:half, half:] = leave / half
    matrix[half:] *= 1.0 - leave
    matrix[half:, :half] = leave / half
    return matrix


@pytest.mark.parametrize("lag", [1, 10, 50])
def test_intervals_of_one_path_cover(lag):
    matrix = slow_chain()
    reward = np.array([1.0, 0.0, 2.0, 5.0, 3.0, 4.0])
    covered = 0
    for seed in range(120):
        path = random_walk(matrix, 10_000, seed)
        low, high = lg.solve(lg.Counts.from_paths(path, lag, n_states=6), reward=reward).interval()
        covered += low <= reward.mean() <= high
    assert 0.90 <= covered / 120 <= 0.99  # of pairs taken for independent 40 % at lag 10, 25 % at lag 50


def test_intervals_of_many_paths_cover_at_a_lag():
    matrix, reward, covered = slow_chain(leave=0.1), np.arange(6.0), 0
    start = np.random.default_rng(9).integers(0, 6, (120, 60))
    for seed in range(120):
        rng = np.random.default_rng(seed)
        bounds = np.cumsum(matrix, axis=1)
        paths = np.empty((60, 80), np.int64)
        paths[:, 0] = start[seed]
        for step in range(1, 80):
            drawn = (rng.random(60)[:, None] > bounds[paths[:, step - 1]]).sum(axis=1)
            paths[:, step] = np.minimum(drawn, 5)
        low, high = lg.solve(lg.Counts.from_paths(paths, 10, n_states=6), reward=reward).interval()
        covered += low <= reward.mean() <= high
    assert 0.90 <= covered / 120 <= 0.99
