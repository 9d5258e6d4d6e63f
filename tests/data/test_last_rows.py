"""Logs without next states lose no row and no reward in silence: the last rows of episodes."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner
from written_logs import assert_same, cut

import lingendice as lg
from lingendice.cli.app import app
from lingendice.io import stream_counter

LATE = {"state": [0, 1, 0, 0, 1, 2, 0], "reward": [0, 9, 0, 0, 0, 6, 3], "episode": [1, 1, 2, 2, 2, 2, 3]}
"""Three episodes that pay when they end: 18 in 7 rows."""


def silently(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args, **options)


@pytest.fixture(params=["arrays", "mapping", "batches", "pieces"])
def count(request, monkeypatch):
    """One way to count a log of columns."""
    if request.param == "arrays":
        return lambda log, **options: lg.Counts.from_transitions(**log, **options)
    if request.param == "pieces":
        monkeypatch.setattr(stream_counter, "ROWS", 2)
        monkeypatch.setattr(stream_counter, "MOST_ROWS", 2)
        return lambda log, **options: lg.read_transitions([log], **options, keep_episodes=False)
    if request.param == "mapping":
        return lg.read_transitions
    return lambda log, **options: lg.read_transitions(cut(log, range(1, len(log["state"]))), **options)


def test_the_last_row_ends_its_episode_and_its_reward_counts(count):
    with pytest.warns(
        lg.EpisodeEndWarning, match=r"3 last rows are counted as the end of the episode, with reward"
    ):
        counts = count(LATE)
    assert (counts.total, counts.n_states) == (7, 3)
    assert counts.reward_mean @ counts.reward_count == 18
    assert counts.terminal_count.tolist() == [1, 1, 1]
    assert counts.initial_count.tolist() == [3, 0, 0]
    assert_same(silently(count, LATE, ends="terminal"), counts)
    # By hand: from 0 the chain goes to 1 (2 of 4 times), stays or ends; from 1 to 2 or the end; 2 ends.
    half = Fraction(1, 2)
    visits_0 = 1 / (1 - Fraction(1, 4))
    value = visits_0 * (half * (half * 9 + half * 6) + Fraction(1, 4) * 3)
    assert counts.total == 7
    solution = lg.solve(counts)
    assert float(solution.value * (visits_0 * (1 + half + half * half))) == pytest.approx(float(value))


def test_a_row_that_is_cut_off_is_left_out_and_counted(count):
    with pytest.warns(
        lg.EpisodeEndWarning, match=r"3 last rows are cut off: what followed is unknown, and reward"
    ):
        counts = count(LATE, ends="truncated")
    expected = lg.Counts.from_transitions([0, 0, 0, 1], [1, 0, 1, 2], reward=[0.0] * 4, n_states=3)
    for name in ("indptr", "indices", "count", "reward_mean"):
        np.testing.assert_array_equal(getattr(counts, name), getattr(expected, name))
    assert counts.initial_count.tolist() == [3, 0, 0]  # the third began, too


@pytest.mark.parametrize(
    ("flags", "options", "n_terminal", "says"),
    [
        ({"terminal": [0, 1, 0, 0, 0, 0, 0]}, {}, 1, "2 last rows are cut off"),
        ({"terminal": [0, 1, 0, 0, 0, 0, 0]}, {"ends": "terminal"}, 3, None),
        ({"truncated": [0, 1, 0, 0, 0, 0, 0]}, {}, 2, "2 last rows are counted .*; 1 last row is cut off"),
        (
            {"truncated": [0, 1, 0, 0, 0, 0, 0]},
            {"ends": "terminal"},
            2,
            "^[^;]*: 1 last row is cut off[^;]*$",
        ),
        ({"truncated": [0, 0, 0, 1, 0, 0, 0]}, {"ends": "truncated"}, 0, "4 last rows are cut off"),
    ],
)
def test_marks_of_the_log_come_first(count, flags, options, n_terminal, says):
    log = LATE | flags
    if says is None:
        counts = silently(count, log, **options)
    else:
        with pytest.warns(lg.EpisodeEndWarning, match=says):
            counts = count(log, **options)
    assert counts.terminal_count.sum() == n_terminal


def test_a_path_without_episodes_goes_on(count):
    """Nothing tells that a single path ended: its last state is where recording stopped."""
    path = {"state": [0, 1, 0, 1]}
    counts = silently(count, path)
    assert counts.matrix.toarray().tolist() == [[0, 2], [1, 0]]
    assert not counts.has_terminals
    with pytest.warns(lg.EpisodeEndWarning, match=r"1 last row is cut off.*action and reward left out"):
        counts = count(path | {"action": [0, 0, 1, 1], "reward": [1.0, 2.0, 3.0, 4.0]})
    assert counts.total == 3
    assert silently(count, path, ends="terminal").terminal_count.tolist() == [0, 1]


def paid_at_the_end(n_episodes=3000, n_rows=10_393):
    """Episodes of three or four rows whose reward comes with the last row, and the mean reward of a row."""
    rng = np.random.default_rng(17)
    lengths = np.full(n_episodes, n_rows // n_episodes)
    lengths[: n_rows - lengths.sum()] += 1
    step = np.concatenate([np.arange(length) for length in lengths])
    is_last = np.append(step[1:] == 0, True)
    log = {
        "state": step, "action": rng.integers(0, 2, n_rows),
        "reward": np.where(is_last, 20.0, 0.0) + rng.integers(0, 2, n_rows),
        "episode": np.repeat(np.arange(n_episodes), lengths),
    }  # fmt: skip
    return log, log["reward"].mean()


def doors(folder):
    """Every way to read a log of columns, by name: functions of the log and ``ends``."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    def from_csv(log, **options):
        pd.DataFrame(log).to_csv(folder / "log.csv", index=False)
        return lg.read_transitions(folder / "log.csv", **options)

    def from_parquet(log, **options):
        pd.DataFrame(log).to_parquet(folder / "log.parquet")
        return lg.read_transitions(folder / "log.parquet", **options)

    def from_stream(log, **options):
        return lg.read_transitions(iter(cut(log, [10, 4000, 4001])), **options)

    return {
        "arrays": lambda log, **options: lg.Counts.from_transitions(**log, **options),
        "mapping": lg.read_transitions,
        "pandas": lambda log, **options: lg.read_transitions(pd.DataFrame(log), **options),
        "polars": lambda log, **options: lg.read_transitions(pl.DataFrame(log), **options),
        "arrow": lambda log, **options: lg.read_transitions(pa.table(log), **options),
        "csv": from_csv,
        "parquet": from_parquet,
        "stream": from_stream,
    }


def test_through_every_door_no_reward_at_the_end_is_lost(tmp_path):
    """10,393 rows of mean 5.8 became 7,393, and a value per step near 0.5 that was trusted."""
    pytest.importorskip("pandas"), pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    log, mean = paid_at_the_end()
    assert mean > 5.8
    for door in doors(tmp_path).values():
        with pytest.warns(lg.EpisodeEndWarning, match=r"3,000 last rows are counted .* action and reward"):
            counts = door(log)
        assert counts.total == 10_393
        assert counts.reward_mean @ counts.reward_count / counts.total == pytest.approx(mean, rel=1e-12)
        assert counts.terminal_count.sum() == 3000
        assert_same(silently(door, log, ends="terminal"), counts)
        with pytest.warns(lg.EpisodeEndWarning, match="3,000 last rows are cut off"):
            assert door(log, ends="truncated").total == 7393
    with pytest.warns(lg.EpisodeEndWarning, match="3,000 last rows are counted"):
        points = lg.Transitions(**log)
    assert (len(points), points.reward.mean()) == (10_393, mean)
    # What was logged is what the logging policy earns: by step, and by episode.
    solution = lg.solve(counts)
    assert solution.value == pytest.approx(mean, rel=1e-9)
    assert solution.expected_return == pytest.approx(log["reward"].sum() / 3000, rel=1e-9)


def test_states_alone_end_without_a_word(count):
    counts = silently(count, {name: LATE[name] for name in ("state", "episode")})
    assert (counts.total, counts.terminal_count.sum()) == (7, 3)


@pytest.mark.parametrize("ends", ["terminal", "truncated"])
def test_interleaved_episodes_labels_weights_and_times(ends):
    rng = np.random.default_rng(0)
    n = 300
    episode = rng.integers(0, 40, n)
    log = {
        "state": np.array(list("abcde"))[rng.integers(0, 5, n)], "action": rng.integers(0, 3, n), 
        "reward": rng.normal(size=n), "weight": rng.integers(0, 4, n), "time": rng.permutation(n),
        "episode": episode,
    }  # fmt: skip
    order = np.lexsort((log["time"], episode))
    pairs = {}
    for row, following in zip(order, [*order[1:], None], strict=True):
        is_last = following is None or episode[following] != episode[row]
        if is_last and ends == "truncated":
            continue
        key = (
            str(log["state"][row]),
            int(log["action"][row]),
            None if is_last else str(log["state"][following]),
        )
        pairs.setdefault(key, []).append((int(log["weight"][row]), log["reward"][row]))
    columns = {name: column for name, column in log.items() if name != "weight"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.EpisodeEndWarning)
        counts = lg.Counts.from_transitions(**columns, weight=log["weight"], ends=ends)
        together = {name: column[np.argsort(episode, kind="stable")] for name, column in log.items()}
        assert_same(lg.read_transitions([together], weight="weight", time="time", ends=ends), counts)
    assert counts.total == sum(weight for rows in pairs.values() for weight, _ in rows)
    earned = counts.reward_mean @ counts.reward_count
    assert earned == pytest.approx(sum(weight * reward for rows in pairs.values() for weight, reward in rows))
    assert counts.count.size == sum(any(weight for weight, _ in rows) for rows in pairs.values())


def test_ends_where_they_mean_nothing_are_refused(tmp_path):
    log = {"state": [0, 1], "next_state": [1, 0]}
    for count in (
        lambda **ends: lg.Counts.from_transitions(**log, **ends),
        lambda **ends: lg.read_transitions(log, **ends),
    ):
        with pytest.raises(
            ValueError, match=r"ends='terminal' is for logs without next states.*leave ends out"
        ):
            count(ends="terminal")
        with pytest.raises(ValueError, match="ends must be one of 'terminal', 'truncated', got 'cut'"):
            count(ends="cut")
    with pytest.raises(ValueError, match="ends='truncated' is for logs without"):
        lg.Transitions([0.0, 1.0], next_state=[1.0, 0.0], ends="truncated")
    np.savez(tmp_path / "graph.npz", indptr=[0, 1, 2], indices=[1, 0])
    with pytest.raises(ValueError, match="no columns; leave ends= out"):
        lg.read_transitions(tmp_path / "graph.npz", ends="terminal")


@pytest.mark.parametrize("ends", ["terminal", "truncated"])
@pytest.mark.parametrize(
    "flags", [{}, {"truncated": [0, 0, 0, 1, 0, 0, 0]}, {"terminal": [0, 0, 0, 0, 0, 1, 0]}]
)
def test_continuous_states_are_read_alike(ends, flags):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.EpisodeEndWarning)
        counts = lg.Counts.from_transitions(**LATE, **flags, ends=ends)
        points = lg.Transitions(**LATE, **flags, ends=ends)
    again = lg.Counts.from_transitions(
        points.state,
        points.next_state,
        reward=points.reward,
        episode=points.episode,
        terminal=points.terminal,
        truncated=points.truncated,
    )
    for name in ("indptr", "indices", "count", "reward_mean"):
        np.testing.assert_array_equal(getattr(again, name), getattr(counts, name))


def test_vectors_whose_rows_follow_one_another():
    state = np.arange(14.0).reshape(7, 2)
    with pytest.warns(lg.EpisodeEndWarning, match="3 last rows are counted as the end"):
        log = lg.Transitions(state, reward=LATE["reward"], episode=LATE["episode"])
    assert log.terminal.tolist() == [False, True, False, False, False, True, True]
    np.testing.assert_array_equal(log.next_state[~log.terminal], state[1:][~log.terminal[:-1]])
    np.testing.assert_array_equal(
        log.next_state[log.terminal], state[log.terminal]
    )  # no state that nobody saw
    with pytest.warns(lg.EpisodeEndWarning, match="3 last rows are cut off"):
        log = lg.Transitions(state, reward=LATE["reward"], episode=LATE["episode"], ends="truncated")
    assert log.reward.tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(log.next_state, state[[1, 3, 4, 5]])
    with (
        pytest.raises(ValueError, match=r"no row has a next state.*ends="),
        pytest.warns(lg.EpisodeEndWarning),
    ):
        lg.Transitions([0.5, 1.5], reward=[1.0, 1.0], episode=[0, 1], ends="truncated")


def test_the_command_says_it_and_has_the_option(tmp_path):
    path = tmp_path / "log.csv"
    rows = zip(*LATE.values(), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(LATE), *rows]))

    def run(*options):
        done = CliRunner().invoke(app, ["audit", str(path), *options])
        return done.exit_code, done.stderr

    code, said = run()
    assert code == 0
    assert "3 last rows are counted as the end of the episode" in said
    assert "--ends truncated" in said
    assert run("--ends", "terminal") == (0, "")
    assert "3 last rows are cut off" in run("--ends", "truncated")[1]
    code, said = run("--ends", "cut")
    assert code == 2
    assert "ends must be one of 'terminal', 'truncated', got 'cut'" in said
