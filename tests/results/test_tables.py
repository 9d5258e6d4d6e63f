"""Frames hold what the arrays hold, under the labels of the log."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import lingendice as lg

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


@pytest.fixture(scope="module")
def counts():
    state = ["ill", "well", "ill", "well", "ill", "ill"]
    following = ["well", "ill", "well", "ill", "ill", "dead"]
    action = ["rest", "rest", "drug", "rest", "drug", "drug"]
    return lg.Counts.from_transitions(state, following, action=action, reward=[1.0, 4.0, 2.0, 6.0, 3.0, 0.0])


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_states_and_actions_by_label(counts):
    policy = {"ill": {"drug": 0.5, "rest": 0.5}, "well": "rest"}
    solution = lg.solve(counts, 0.9, policy=policy, initial="ill", ratio="state_action", ridge=0, clone=0)
    frame = solution.to_frame("pandas")
    assert list(frame) == ["state", "action", "stationary", "tau", "data_distribution", "reward", "count"]
    row = frame.set_index(["state", "action"])
    assert row.loc[("ill", "drug"), "count"] == 3
    assert row.loc[("ill", "drug"), "reward"] == pytest.approx(5 / 3)
    assert row.loc[("well", "rest"), "reward"] == 5.0
    assert np.isnan(row.loc[("well", "drug"), "reward"])
    np.testing.assert_array_equal(frame["stationary"], solution.stationary)
    np.testing.assert_array_equal(frame["tau"], solution.tau)
    polars = solution.to_frame("polars")
    assert isinstance(polars, pl.DataFrame)
    assert polars["state"].to_list() == frame["state"].tolist()
    np.testing.assert_array_equal(polars["data_distribution"], frame["data_distribution"])


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_states_alone(counts):
    assert "action" not in lg.solve(counts, 0.9, initial="ill").to_frame("pandas")
    by_state = lg.solve(
        counts, 0.9, initial="ill", ratio="state", policy=np.full((3, 2), 0.5), clone=0, ridge=0
    )
    frame = by_state.to_frame("pandas").set_index("state")
    assert list(frame.index) == ["dead", "ill", "well"]
    assert frame.loc["ill", "reward"] == pytest.approx(6 / 4)  # of its four logged actions
    assert np.isnan(frame.loc["dead", "reward"])
    assert frame["count"].tolist() == [0, 4, 2]


def test_chains_and_several_distributions():
    frame = lg.solve([[90, 10], [30, 70]]).to_frame("pandas")
    assert list(frame) == ["state", "stationary", "tau", "data_distribution", "count"]
    np.testing.assert_allclose(frame["stationary"], [0.75, 0.25])
    apart = lg.solve([[1, 0], [0, 1]]).to_frame("pandas")
    assert apart["stationary_1"].tolist() == [0.0, 1.0]


def test_labels_of_several_types():
    """polars refused them, with a hint at arguments that are not ours."""
    state = np.array(["a", 1, 2.5], dtype=object)
    solution = lg.solve(lg.Counts.from_transitions(state, np.roll(state, 1)))
    assert set(solution.to_frame("pandas")["state"]) == {"a", 1, 2.5}
    assert set(solution.to_frame("polars")["state"]) == {"a", "1", "2.5"}


def test_comparisons_and_transitions():
    rng = np.random.default_rng(0)
    counts = lg.Counts.from_transitions(
        rng.integers(0, 2, 200),
        rng.integers(0, 2, 200),
        action=rng.integers(0, 2, 200),
        reward=rng.random(200),
    )
    several = lg.solve(counts, policy={"a": [[1, 0]] * 2, "b": [[0, 1]] * 2})
    frame = several.to_frame("pandas")
    assert frame["policy"].tolist() == list(several.ranking)
    assert (frame["low"] < frame["value"]).all()
    log = lg.Transitions(
        rng.normal(size=(60, 2)),
        rng.integers(0, 2, 60),
        rng.random(60),
        rng.normal(size=(60, 2)),
        episode=np.arange(60),
    )
    solution = lg.solve(log, 0.9, policy=[0.5, 0.5], method="linear")
    frame = solution.to_frame("polars")
    assert frame.columns == ["state_0", "state_1", "action", "reward", "tau"]
    np.testing.assert_array_equal(frame["tau"], solution.tau)


def test_which_library(monkeypatch):
    solution = lg.solve([[1, 2], [3, 4]])
    assert isinstance(solution.to_frame(), pd.DataFrame)
    monkeypatch.delitem(sys.modules, "pandas")
    assert isinstance(solution.to_frame(), pl.DataFrame)  # the one in use
    with pytest.raises(ValueError, match="library must be one of 'pandas', 'polars'"):
        solution.to_frame("arrow")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="to_frame needs polars: pip install polars"):
        solution.to_frame("polars")


def test_frames_do_not_share_memory():
    solution = lg.solve([[1, 2], [3, 4]])
    frame = solution.to_frame("pandas")
    frame.loc[0, "stationary"] = 9.0
    assert solution.stationary[0] == pytest.approx(9 / 23)
