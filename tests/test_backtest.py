"""What one part of a log predicts of the other, against mean returns, dense algebra and known drifts."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.backtest import Question, clone_table, earned_by_rows
from lingendice.data.parts import counts_of, find_pieces
from tests import logs

MDP = logs.random_mdp()


def episodic(n=80, seed=1, **changes):
    return logs.walk(MDP | changes, n, 200, seed=seed, ending=0.1)


def drifting(shift, n=80, seed=1):
    """Rewards are ``shift`` higher in the second half of the log."""
    log = episodic(n, seed)
    return log | {"reward": log["reward"] + shift * (log["episode"] >= n // 2)}


def held_out(found, log, n):
    """Episodes of the log that the time splits hold out, by row of the backtest."""
    return [(row, log["episode"] >= n - row.n_held_out) for row in found.rows if row.split == "time"]


# -- what is compared ---------------------------------------------------------------------------------------


def test_what_was_earned_is_the_mean_return_where_all_episodes_end():
    log = episodic()
    found = lg.backtest(logs.count(log), split="time")
    assert found.of == "return"
    for row, later in held_out(found, log, 80):
        returns = np.bincount(log["episode"][later], log["reward"][later])[-row.n_held_out :]
        assert row.earned == pytest.approx(returns.mean(), rel=1e-9)


def test_without_ends_the_value_of_the_held_out_chain_is_meant():
    log = logs.walk(MDP, 40, 30, seed=2)
    found = lg.backtest(logs.count(log), 0.9, split="time", n_splits=1)
    (row,) = found.rows
    later = log["episode"] >= 20
    state, following = log["state"][later], log["next_state"][later]
    chain, reward = np.zeros((logs.S, logs.S)), np.zeros(logs.S)
    np.add.at(chain, (state, following), 1.0)
    np.add.at(reward, state, log["reward"][later])
    visits = chain.sum(axis=1)
    first = np.bincount(state[::30], minlength=logs.S) / 20
    # The behavior is a mixture over actions, so that the chain of states alone has the same value.
    value = 0.1 * first @ np.linalg.solve(np.eye(logs.S) - 0.9 * chain / visits[:, None], reward / visits)
    assert found.of == "value"
    assert row.earned == pytest.approx(value, rel=1e-9)


def test_the_prediction_is_the_default_for_the_cloned_behavior_of_the_other_part():
    counts = logs.count(episodic())
    pieces = find_pieces(counts)
    later = np.arange(80) >= 40
    fitted, held = counts_of(counts, pieces, ~later), counts_of(counts, pieces, later)
    taken = held.cell_count.reshape(logs.S, logs.A)
    policy = taken / taken.sum(axis=1, keepdims=True)
    expected = lg.solve(fitted, 1.0, policy=policy)
    (row,) = lg.backtest(counts, split="time", n_splits=1).rows
    assert row.predicted == pytest.approx(expected.expected_return, rel=1e-12)
    (plain,) = lg.backtest(counts, split="time", n_splits=1, ridge=0.0, clone=0.0).rows
    assert plain.predicted == pytest.approx(
        lg.solve(fitted, 1.0, policy=policy, ridge=0.0, clone=0.0).expected_return, rel=1e-12
    )
    assert plain.predicted != row.predicted


def test_states_that_were_not_held_out_take_the_actions_of_the_other_part():
    rows = {"next_state": [0, 0, 0], "n_states": 3, "n_actions": 2}
    held = lg.Counts.from_transitions([0, 0, 0], action=[0, 0, 1], **rows)
    fitted = lg.Counts.from_transitions([0, 1, 1], action=[1, 1, 1], **rows)
    np.testing.assert_allclose(clone_table(held, fitted), [[2 / 3, 1 / 3], [0, 1], [0.5, 0.5]])


def test_the_noise_of_actions_that_both_parts_share_is_not_counted():
    # Rewards tell nothing but the action: with its shares given, nothing is left to be noise.
    rng = np.random.default_rng(4)
    action = rng.integers(0, 2, 2000)
    log = {"state": np.zeros(2000, int), "next_state": np.zeros(2000, int), "action": action}
    log |= {"episode": np.arange(2000) // 20, "reward": action.astype(float)}
    found = lg.backtest(lg.Counts.from_transitions(**log))
    assert found.inside() == (10, 10)
    assert all(abs(row.difference) < 1e-9 for row in found.rows)
    assert found.smallest_visible < 0.01 < 0.5 / 1000**0.5


def test_chains_without_actions_and_single_paths():
    path = np.random.default_rng(0).integers(0, 4, 3001)
    chain = lg.Counts.from_transitions(
        path[:-1], path[1:], reward=path[:-1].astype(float), episode=np.zeros(3000, int)
    )
    found = lg.backtest(chain)
    assert found.pieces == "blocks of one path"
    assert found.inside()[0] >= 8
    assert found.rows[-1].earned == pytest.approx(path[2500:-1].mean(), abs=0.02)


# -- the verdict --------------------------------------------------------------------------------------------


def test_logs_without_drift_are_inside_as_often_as_their_level_says():
    inside = {"random": [], "time": []}
    flagged = 0
    for seed in range(40):
        found = lg.backtest(logs.count(episodic(60, seed)), n_splits=3, level=0.8)
        for kind, each in inside.items():
            each += [row.inside for row in found.rows if row.split == kind]
        flagged += found.drift
    for kind, each in inside.items():
        assert 0.75 <= np.mean(each) <= 0.93, kind  # of 120, not independent of each other
    assert flagged <= 8


@pytest.mark.parametrize("gamma", [0.95, 1.0])
def test_a_drift_is_flagged(gamma):
    found = lg.backtest(logs.count(drifting(1.0)), gamma)
    assert found.drift
    assert found.agrees("random")
    assert "Drift" in found.verdict
    halves = [row for row in found.rows if row.split == "time"][2]
    assert halves.difference < 0  # earlier rows earned less


def test_a_behavior_that_changes_is_no_drift():
    greedy = np.exp(2.0 * MDP["reward"])
    better = greedy / greedy.sum(axis=1, keepdims=True)
    log, later = episodic(300, 1, behavior=0.9 / logs.A + 0.1 * better), episodic(300, 2, behavior=better)
    both = {name: np.concatenate([log[name], later[name] + 300 * (name == "episode")]) for name in log}
    earned = [np.bincount(part["episode"], part["reward"]).mean() for part in (log, later)]
    found = lg.backtest(logs.count(both), split=("random", "interleaved", "time"))
    assert abs(earned[0] - earned[1]) > 3 * found.smallest_visible
    assert not found.drift
    assert found.agrees("time")


def test_rewards_with_heavy_tails_are_not_called_drift():
    """One disaster in the log: the half without it predicts, at most, that there is none."""
    log = episodic(60)
    log["reward"] = log["reward"].copy()
    log["reward"][log["episode"] == 50] -= 1e4
    found = lg.backtest(logs.count(log))
    assert not found.drift


# -- continuous states --------------------------------------------------------------------------------------


def rides(n, seed=0, shift=0.0):
    """Two coordinates, two actions; episodes end where the first is large."""
    rng, rows = np.random.default_rng(seed), []
    for episode in range(n):
        state, ended = rng.normal(size=2), False
        while not ended:
            action = int(rng.random() < 1 / (1 + np.exp(-state[1])))
            following = 0.8 * state + (0.3 * action, 0.1) + 0.4 * rng.normal(size=2)
            ended = following[0] > 1.2
            reward = state[1] - 0.3 * action + shift * (episode >= n // 2)
            rows.append((state, action, reward, following, episode, ended))
            state = following
    names = ("state", "action", "reward", "next_state", "episode", "terminal")
    return dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))


def test_rows_earn_the_mean_discounted_return():
    log, gamma = rides(40), 0.9
    pieces = np.unique(log["episode"], return_index=True)[1]
    weight = gamma ** (np.arange(len(log["reward"])) - pieces[log["episode"]])
    returns = np.bincount(log["episode"], weight * log["reward"])
    found, degrees = earned_by_rows(lg.Transitions(**log), Question(gamma, "return", 0.95, {}))
    assert found.estimate == pytest.approx(returns.mean(), rel=1e-9)
    assert found.standard_error == pytest.approx(returns.std(ddof=1) / 40**0.5, rel=1e-9)
    assert degrees == 39


def test_rows_without_ends_earn_their_discounted_average():
    log, gamma = rides(30) | {"terminal": None}, 0.9
    steps = np.bincount(log["episode"])
    weight = np.concatenate([gamma ** np.arange(n) for n in steps])
    found, _ = earned_by_rows(lg.Transitions(**log), Question(gamma, "value", 0.95, {}))
    assert found.estimate == pytest.approx(np.average(log["reward"], weights=weight), rel=1e-9)
    undiscounted, _ = earned_by_rows(lg.Transitions(**log), Question(1.0, "value", 0.95, {}))
    assert undiscounted.estimate == pytest.approx(log["reward"].mean(), rel=1e-9)


def test_the_clone_of_continuous_states_is_what_the_default_predicts(monkeypatch):
    """Networks are not trained here: what they are asked for is looked at."""
    asked = []

    def solve(part, gamma, policy, **options):
        asked.append((part, gamma, policy, options))
        return exact

    exact = lg.solve(logs.count(episodic()), 0.9, policy=np.full((logs.S, logs.A), 1 / logs.A))
    monkeypatch.setattr(lg, "solve", solve)
    log = rides(400)
    found = lg.backtest(lg.Transitions(**log), 0.9, split="time", n_splits=1, seed=3, method="fqe")
    ((part, gamma, policy, options),) = asked
    assert (gamma, found.of, part.n_episodes) == (0.9, "return", 200)
    assert (options["seed"], options["method"]) == (3, "fqe")
    np.testing.assert_array_equal(part.state, log["state"][log["episode"] < 200])
    states = np.random.default_rng(5).normal(size=(200, 2))
    share = 1 / (1 + np.exp(-states[:, 1]))
    assert np.abs(policy.probabilities(states)[:, 1] - share).mean() < 0.08  # .05 at 2,200 rows
    assert found.rows[0].predicted == exact.expected_return


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "drift"), [(0.0, False), (1.5, True)])
def test_drift_over_continuous_states(shift, drift):
    log = lg.Transitions(**rides(150, shift=shift))
    found = lg.backtest(log, 0.9, n_splits=2, options={"effort": "quick"})
    assert found.drift is drift
    assert found.agrees("random")


# -- options, limits and bad input --------------------------------------------------------------------------


def test_a_seed_gives_the_same_rows_whatever_the_threads():
    counts = logs.count(episodic())
    first, second = (lg.backtest(counts, seed=5, threads=threads) for threads in (1, 2))
    assert first.to_dict() == second.to_dict()
    other = lg.backtest(counts, seed=6)
    assert [row.predicted for row in other.rows[:5]] != [row.predicted for row in first.rows[:5]]
    assert other.rows[5:] == first.rows[5:]


def test_interleaved_parts_hold_out_every_episode_once():
    found = lg.backtest(logs.count(episodic()), split="interleaved", n_splits=4)
    assert [(row.n_fitted, row.n_held_out) for row in found.rows] == [(60, 20)] * 4


def test_random_halves_are_halves():
    found = lg.backtest(logs.count(episodic(81)), split="random", n_splits=2)
    assert [(row.n_fitted, row.n_held_out) for row in found.rows] == [(40, 41)] * 2


def test_splits_beyond_the_time_limit_have_no_answer():
    found = lg.backtest(logs.count(episodic()), time_limit=1e-9)
    assert found.inside() == (0, 0)
    assert "Nothing can be said" in found.verdict
    assert "time limit" in found.verdict


def test_a_part_without_ends_is_named_and_the_others_stand():
    log = episodic(40)
    log["terminal"] = log["terminal"] & (log["episode"] < 30)
    found = lg.backtest(logs.count(log), split="time", n_splits=3)
    assert [row.answered for row in found.rows] == [True, True, False]
    assert "no ends of episodes" in found.rows[2].note


def test_a_trap_in_the_held_out_part_is_no_answer():
    """One episode stays where no other came: at gamma = 1 the chain of its part earns the reward there."""
    log = logs.walk(MDP, 40, 30, seed=2) | {"terminal": None}
    stuck = (log["episode"] == 15) & (np.arange(1200) % 30 > 10)
    log["next_state"] = np.where(stuck, 0, log["next_state"] + 1)
    log["state"] = np.where(stuck & (np.arange(1200) % 30 > 11), 0, log["state"] + 1)
    counts = lg.Counts.from_transitions(**log, n_actions=logs.A)
    found = lg.backtest(counts, split="time", n_splits=2)
    assert [row.answered for row in found.rows] == [False, True]  # episodes from 13, and from 26
    assert "a trap that more rows would open" in found.verdict
    assert lg.backtest(counts, 0.9, split="time", n_splits=2).inside("time")[1] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"split": "month"}, "split must be one of"),
        ({"split": ("time", "month")}, "split must be one of"),
        ({"n_splits": 0}, "n_splits"),
        ({"n_splits": 40}, "need 82 episodes, and the log has 80 episodes"),
        ({"level": 95}, "level=0.95"),
        ({"time_limit": 0}, "time_limit"),
        ({"policy": [0, 1]}, "policy"),
        ({"gamma": 1.5}, "gamma"),
        ({"method": "none such"}, "method"),
    ],
)
def test_bad_arguments_are_named(change, says):
    with pytest.raises(ValueError, match=says):
        lg.backtest(logs.count(episodic()), **change)


def test_bad_logs_are_named():
    with pytest.raises(ValueError, match="Counts or Transitions"):
        lg.backtest([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="keep_episodes=True"):
        lg.backtest(logs.count(episodic(), keep=False))
    with pytest.raises(ValueError, match="no rewards"):
        lg.backtest(logs.count(episodic() | {"reward": None}))
    with pytest.raises(ValueError, match=r"Counts\.from_transitions"):
        lg.backtest(lg.Transitions(**episodic()))
