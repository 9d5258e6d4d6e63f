"""Minari datasets and logs of Gymnasium vector environments."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg


class Walk:
    """A ring of five states; an episode ends at state 4, or is cut after six steps."""

    def __init__(self, n_environments, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n_environments

    def rollout(self, steps, autoreset):
        """What a loop over a vector environment records, and the true transitions beside it."""
        n = self.n
        state, age, asleep = np.zeros(n, int), np.zeros(n, int), np.zeros(n, bool)
        log = {
            "state": [state.copy()],
            "action": [],
            "reward": [],
            "terminal": [],
            "truncated": [],
            "final_state": [],
        }
        true = []
        number = np.arange(n)
        for _ in range(steps):
            action = self.rng.integers(0, 2, n)
            following = (state + action + 1) % 5
            terminal, age = following == 4, age + 1
            truncated = (age >= 6) & ~terminal
            reward = action + 0.5
            if autoreset == "next_step":
                following = np.where(asleep, 0, following)
                terminal, truncated = terminal & ~asleep, truncated & ~asleep
                reward = np.where(asleep, 0.0, reward)
            for i in np.flatnonzero(~asleep):
                true.append(
                    (number[i], state[i], action[i], reward[i], following[i], terminal[i], truncated[i])
                )
            done = terminal | truncated
            log["final_state"].append(np.where(done, following, -1))
            number = np.where(done, number + n, number)
            if autoreset == "next_step":
                age = np.where(asleep | done, 0, age)
                asleep = done
            else:
                following = np.where(done, 0, following)
                age = np.where(done, 0, age)
            for name, value in zip(
                ("action", "reward", "terminal", "truncated"),
                (action, reward, terminal, truncated),
                strict=True,
            ):
                log[name].append(value)
            state = following
            log["state"].append(state.copy())
        names = ("episode", "state", "action", "reward", "next_state", "terminal", "truncated")
        columns = dict(zip(names, map(np.array, zip(*true, strict=True)), strict=True))
        return {name: np.array(values) for name, values in log.items()}, columns


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_vector_logs_hold_the_true_transitions(autoreset):
    log, true = Walk(3, 0).rollout(60, autoreset)
    assert true["terminal"].any()
    assert true["truncated"].any()
    found = lg.read_transitions(log, autoreset=autoreset)
    expected = lg.Counts.from_transitions(**true)
    for name in ("indptr", "indices", "count", "initial_count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(found.reward_mean, expected.reward_mean)
    beside = log | {"next_state": log["state"][1:], "state": log["state"][:-1]}
    assert lg.read_transitions(beside, autoreset=autoreset) == found


@pytest.mark.parametrize("name", ["final_state", "final_obs"])
def test_last_observations_keep_their_digits(name):
    """They were cast to the type of the observations: 300 to 44 in eight bits, "ab" to "a"."""
    for low, high in ((np.uint8, np.int64), ("U1", "U3")):
        state = np.array([[0], [1], [0], [1]]).astype(low)
        final = np.array([[0], [300], [0]]).astype(high)
        log = {"state": state, name: final, "truncated": np.array([[0], [1], [0]])}
        found = lg.read_transitions(log, autoreset="same_step")
        path = {"state": state[:3, 0], "next_state": np.array([1, 300, 1]).astype(high)}
        expected = lg.Counts.from_transitions(**path, truncated=[0, 1, 0])
        assert found == expected


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("done", np.nan, r"environment 1, step 2: column 'done' is nan; flags are"),
        ("done", 2, r"environment 1, step 2: column 'done' is 2"),
        ("terminal", "maybe", r"environment 1, step 2: column 'terminal' is 'maybe'"),
        ("reward", np.ma.masked, r"reward\[2, 1\] is missing \(masked"),
        ("state", np.ma.masked, r"state\[2, 1\] is missing \(masked"),
        ("terminal", np.ma.masked, r"terminal\[2, 1\] is missing \(masked"),
        ("episode", 7, r"'episode' is there for the episode.*pass episode=False"),
    ],
)
def test_entries_of_vector_logs_are_checked_like_any_others(column, value, says):
    log = {"state": np.array([[0, 1], [1, 0], [0, 1], [1, 1]]), "reward": np.ones((3, 2))}
    lg.read_transitions(log)
    kind = object if isinstance(value, str) else float
    entries = np.ma.array(log.get(column, np.zeros((3, 2)))).astype(kind)
    entries[2, 1] = value
    bad = entries if value is np.ma.masked else np.asarray(entries)
    with pytest.raises(ValueError, match=says):
        lg.read_transitions(log | {column: bad})


def test_flags_of_vector_logs_may_be_words():
    log = {"state": np.array([[0], [1], [0], [1]]), "terminal": np.array([["False"], ["True"], ["no"]])}
    expected = log | {"terminal": np.array([[False], [True], [False]])}
    assert lg.read_transitions(log) == lg.read_transitions(expected)


def test_tuples_are_no_environments():
    cells = [(0, 0), (0, 1), (1, 1)]
    with pytest.raises(ValueError, match=r"states are tuples, which lg\.Counts\.from_transitions takes"):
        lg.read_transitions({"state": cells, "next_state": cells[::-1]})


def test_a_lost_last_observation_is_refused():
    log, _ = Walk(3, 0).rollout(60, "same_step")
    with pytest.raises(ValueError, match=r"final_state has shape \(5, 3\); give one last observation"):
        lg.read_transitions(log | {"final_state": log["final_state"][:5]}, autoreset="same_step")
    del log["final_state"]
    with pytest.raises(ValueError, match=r"environment 0, step \d+: truncated.*final_obs"):
        lg.read_transitions(log, autoreset="same_step")
    with pytest.raises(ValueError, match="autoreset must be one of"):
        lg.read_transitions(log, autoreset="never")
    with pytest.raises(ValueError, match="action has shape"):
        lg.read_transitions(log | {"action": log["action"][1:]})


@pytest.mark.filterwarnings("ignore")  # Minari would like a description of the dataset
def test_minari(tmp_path, monkeypatch):
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rng = np.random.default_rng(1)
    buffers, rows = [], []
    for number, length in enumerate((5, 1, 9)):
        path, action = rng.integers(0, 6, length + 1), rng.integers(0, 2, length)
        reward = rng.random(length)
        ended = np.arange(length) == length - 1
        cut = number == 2
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=path,
                actions=action,
                rewards=reward.tolist(),
                terminations=(ended & ~cut).tolist(),
                truncations=(ended & cut).tolist(),
            )
        )
        rows += [
            (number, path[i], action[i], reward[i], path[i + 1], ended[i] and not cut) for i in range(length)
        ]
    dataset = minari.create_dataset_from_buffers(
        "tests/ring-v0",
        buffer=buffers,
        observation_space=gymnasium.spaces.Discrete(6),
        action_space=gymnasium.spaces.Discrete(2),
    )
    names = ("episode", "state", "action", "reward", "next_state", "terminal")
    expected = lg.Counts.from_transitions(
        **dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    )
    for source in (dataset, "minari:tests/ring-v0"):
        found = lg.read_transitions(source)
        for name in ("indptr", "indices", "count", "initial_count", "n_states", "n_actions"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        np.testing.assert_allclose(found.reward_mean, expected.reward_mean)
    merged = lg.read_transitions(dataset, state=lambda seen: seen // 2)
    assert merged.n_states == 3
    with pytest.raises(ValueError, match="has no columns to name; leave reward=, weight= out"):
        lg.read_transitions(dataset, reward="rewards", weight="w")
    with pytest.raises(ValueError, match="no state ids; pass state="):
        lg.read_transitions(dataset, state=lambda seen: seen / 2)
    with pytest.raises(ValueError, match="no such local dataset"):
        lg.read_transitions("minari:tests/none-v0")
