"""Pieces of a log, and logs of some of them, against counting those rows anew."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.data.parts import counts_of, find_pieces, transitions_of
from tests import logs

LOG = logs.walk(logs.random_mdp(), 12, 20, seed=3, ending=0.1)


def rows_of(log, kept):
    return {name: column[kept] for name, column in log.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_of_some_episodes_are_those_of_their_rows_alone(weighted):
    log = dict(LOG)
    if weighted:
        log["weight"] = np.random.default_rng(0).integers(1, 4, len(log["state"]))
    chosen = np.arange(12) % 3 == 1
    found = counts_of(logs.count(log), find_pieces(logs.count(log)), chosen)
    expected = logs.count(rows_of(log, chosen[log["episode"]]))
    for name in ("indptr", "indices", "count", "reward_count", "initial_count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("reward_mean", "reward_m2"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(found.episodes.episode, expected.episodes.episode)


def test_episodes_are_numbered_as_they_begin_in_the_log():
    order = np.random.default_rng(1).permutation(12)
    log = rows_of(LOG, np.concatenate([np.flatnonzero(LOG["episode"] == e) for e in order]))
    for data in (logs.count(log), lg.Transitions(**log)):
        pieces = find_pieces(data)
        assert (pieces.n, pieces.kind) == (12, "episodes")
        np.testing.assert_array_equal(order[pieces.of_row], log["episode"])


def test_labels_and_sizes_are_those_of_the_whole_log():
    log = {**LOG, "state": LOG["state"].astype(str), "next_state": LOG["next_state"].astype(str)}
    counts = lg.Counts.from_transitions(**log)
    part = counts_of(counts, find_pieces(counts), np.arange(12) == 0)
    assert part.state_labels == counts.state_labels
    assert (part.n_states, part.n_actions) == (counts.n_states, counts.n_actions)


def test_one_path_is_cut_into_blocks_that_follow_each_other():
    path = {name: np.arange(400) % size for name, size in (("state", 5), ("action", 2))}
    path |= {"next_state": (path["state"] + 1) % 5, "episode": np.zeros(400, int)}
    counts = lg.Counts.from_transitions(**path, reward=np.ones(400))
    pieces = find_pieces(counts)
    assert (pieces.n, pieces.kind) == (20, "blocks of one path")
    np.testing.assert_array_equal(pieces.of_row, np.repeat(np.arange(20), 20))
    assert counts_of(counts, pieces, np.arange(20) < 10).total == 200


def test_transitions_keep_their_columns():
    log = {**LOG, "state": LOG["state"] + 0.5, "next_state": LOG["next_state"] + 0.5}
    data = lg.Transitions(**log)
    chosen = np.arange(12) >= 8
    part, kept = transitions_of(data, find_pieces(data), chosen), chosen[log["episode"]]
    for name in ("state", "action", "reward", "next_state", "terminal"):
        np.testing.assert_array_equal(getattr(part, name), getattr(data, name)[kept], err_msg=name)
    assert part.n_episodes == 4
    assert part.n_actions == data.n_actions


def test_a_log_without_episodes_is_refused():
    rows = {"state": [0, 1], "next_state": [1, 0], "reward": [1.0, 2.0]}
    with pytest.raises(ValueError, match="keep_episodes=True"):
        find_pieces(lg.Counts.from_transitions(**rows))
    with pytest.raises(ValueError, match="pass episode= to Transitions"):
        find_pieces(lg.Transitions(np.zeros((2, 1)), reward=[1.0, 2.0], next_state=np.ones((2, 1))))
