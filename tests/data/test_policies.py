"""Policies as users have them, and logs of other libraries, by stand-ins and by the packages themselves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import lingendice as lg
from lingendice.data.policies import read_policy

STATES = np.random.default_rng(0).normal(size=(6, 2))


def discrete(given, n_actions=3):
    return read_policy(given, n_states=None, n_actions=n_actions).probabilities(STATES)


def continuous(given):
    policy = read_policy(given, n_states=None, n_actions=None)
    return policy, policy.sample(STATES, np.random.default_rng(1))


def test_discrete_functions_by_what_they_return():
    rows = np.full((6, 3), 1 / 3)
    np.testing.assert_allclose(discrete(lambda states: rows), rows)
    np.testing.assert_array_equal(
        discrete(lambda states: np.array([0, 1, 2, 0, 1, 2])), np.eye(3)[[0, 1, 2] * 2]
    )
    drawn = discrete(lambda states, rng: rng.integers(0, 2, len(states)))
    assert drawn[:, 2].max() == 0.0
    np.testing.assert_allclose(drawn[:, 0], 0.5, atol=0.25)
    with pytest.raises(ValueError, match="sums to"):
        discrete(lambda states: np.ones((6, 3)))
    with pytest.raises(ValueError, match=r"action 5, outside 0\.\.2"):
        discrete(lambda states: np.full(6, 5))


class Greedy:
    """As Stable-Baselines3: an action space, and (action, hidden state) in single precision."""

    action_space = SimpleNamespace(low=np.array([-0.5]), high=np.array([0.5]))
    observation_space = SimpleNamespace(dtype=np.float32)

    def predict(self, states, state=None, episode_start=None, deterministic=False):
        assert states.dtype == np.float32
        assert deterministic
        return 10.0 * states[:, :1], None


def test_models_that_predict():
    policy, actions = continuous(Greedy())
    np.testing.assert_allclose(actions, np.clip(10.0 * STATES[:, :1], -0.5, 0.5), rtol=1e-6)
    assert not policy.has_density
    ids = SimpleNamespace(predict=lambda states: np.arange(6) % 3)  # as d3rlpy
    np.testing.assert_array_equal(discrete(ids), np.eye(3)[np.arange(6) % 3])
    _, actions = continuous(lambda states: states[:, 0])
    np.testing.assert_array_equal(actions, STATES[:, :1])
    _, actions = continuous(lambda states, rng: rng.normal(size=(len(states), 2)))
    assert actions.shape == (6, 2)


def test_torch_modules_are_detached():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 1)
    _, actions = continuous(net)
    by_hand = STATES @ net.weight.detach().numpy().T + net.bias.detach().numpy()
    np.testing.assert_allclose(actions, by_hand, rtol=1e-5, atol=1e-6)
    soft = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softmax(dim=1))
    assert discrete(soft).shape == (6, 3)
    tensor = torch.tensor(STATES[:, :1], requires_grad=True)
    _, actions = continuous(lambda states: tensor)
    np.testing.assert_array_equal(actions, STATES[:, :1])


def test_stable_baselines_models():
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")
    states = np.random.default_rng(2).normal(size=(5, 4))
    found = read_policy(model, n_states=None, n_actions=2).probabilities(states)
    wanted, _ = model.predict(states.astype(np.float32), deterministic=True)
    np.testing.assert_array_equal(found.argmax(axis=1), wanted)
    model = sb3.SAC("MlpPolicy", "Pendulum-v1", buffer_size=8, device="cpu")
    states = 5.0 * np.random.default_rng(2).normal(size=(5, 3))
    found = read_policy(model, n_states=None, n_actions=None).sample(states, np.random.default_rng(1))
    wanted, _ = model.predict(states.astype(np.float32), deterministic=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert np.abs(found).max() <= 2.0


def test_algorithms_of_d3rlpy():
    d3rlpy = pytest.importorskip("d3rlpy")
    states = np.random.default_rng(3).normal(size=(5, 2))
    greedy = d3rlpy.algos.SACConfig(batch_size=2).create(device="cpu:0")
    greedy.create_impl((2,), 1)
    policy = read_policy(greedy, n_states=None, n_actions=None)
    found = policy.sample(states, np.random.default_rng(1))
    np.testing.assert_allclose(found, greedy.predict(states.astype(np.float32)), rtol=1e-6)
    # What it would do while it explores is drawn anew at each call.
    drawn = read_policy(greedy.sample_action, n_states=None, n_actions=None)
    first, second = (drawn.sample(states, np.random.default_rng(1)) for _ in range(2))
    assert first.shape == (5, 1)
    assert not np.array_equal(first, second)
    by_id = d3rlpy.algos.DQNConfig(batch_size=2).create(device="cpu:0")
    by_id.create_impl((2,), 3)
    chosen = read_policy(by_id, n_states=None, n_actions=3).probabilities(states)
    np.testing.assert_array_equal(chosen.argmax(axis=1), by_id.predict(states.astype(np.float32)))


def episode(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1)), rng.normal(size=n)


def test_d4rl_dictionaries():
    parts = [episode(4, 1), episode(3, 2)]
    dataset = {
        "observations": np.concatenate([o[:-1] for o, _, _ in parts]),
        "actions": np.concatenate([a for _, a, _ in parts]),
        "rewards": np.concatenate([r for _, _, r in parts]),
        "terminals": np.array([0, 0, 0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 0, 0, 1]),
    }
    with pytest.warns(
        lg.EpisodeEndWarning, match="1 last row is cut off: .*action and reward left out"
    ) as told:
        log = lg.Transitions.from_d4rl(dataset)
    assert "ends=" not in str(told[0].message)  # the log itself marks it
    assert (len(log), log.n_episodes) == (6, 2)  # the step that was cut off has no arrival
    np.testing.assert_array_equal(log.next_state[:3], parts[0][0][1:4])
    np.testing.assert_array_equal(log.terminal, [0, 0, 0, 1, 0, 0])
    whole = lg.Transitions.from_d4rl(
        {**dataset, "next_observations": np.concatenate([o[1:] for o, _, _ in parts])}
    )
    assert len(whole) == 7
    np.testing.assert_array_equal(whole.next_state[3], parts[0][0][4])
    with pytest.raises(ValueError, match="'rewards'"):
        lg.Transitions.from_d4rl({"observations": [], "actions": []})


def test_episodes_of_minari_and_d3rlpy():
    (first, a, r), (second, b, q) = episode(4, 3), episode(2, 4)
    ends = [np.array([False] * 3 + [True]), np.zeros(2, dtype=bool)]
    dataset = SimpleNamespace(
        iterate_episodes=lambda: iter(
            [
                SimpleNamespace(observations=first, actions=a, rewards=r, terminations=ends[0]),
                SimpleNamespace(observations=second, actions=b, rewards=q, terminations=ends[1]),
            ]
        )
    )
    log = lg.Transitions.from_minari(dataset)
    np.testing.assert_array_equal(log.next_state, np.concatenate([first[1:], second[1:]]))
    np.testing.assert_array_equal(log.episode, [0] * 4 + [1] * 2)
    assert log.terminal.tolist() == [False, False, False, True, False, False]
    kept = SimpleNamespace(
        episodes=[
            SimpleNamespace(observations=first[:-1], actions=a, rewards=r[:, None], terminated=True),
            SimpleNamespace(observations=second[:-1], actions=b, rewards=q[:, None], terminated=False),
        ]
    )
    with pytest.warns(lg.EpisodeEndWarning, match="1 last row is cut off"):
        log = lg.Transitions.from_d3rlpy(kept)
    assert len(log) == 5
    np.testing.assert_array_equal(log.next_state[:3], first[1:4])
    np.testing.assert_array_equal(log.next_state[4], second[1])


@pytest.mark.filterwarnings("ignore")  # Minari would like a description of the dataset
def test_real_datasets_of_minari(tmp_path, monkeypatch):
    minari, gymnasium = pytest.importorskip("minari"), pytest.importorskip("gymnasium")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    parts = [episode(4, 3), episode(2, 4)]
    buffers = [
        EpisodeBuffer(
            id=k, observations=states.astype(np.float32), actions=actions.astype(np.float32),
            rewards=rewards.tolist(), terminations=[False] * (len(rewards) - 1) + [k == 0],
            truncations=[False] * (len(rewards) - 1) + [k == 1],
        )
        for k, (states, actions, rewards) in enumerate(parts)
    ]  # fmt: skip
    dataset = minari.create_dataset_from_buffers(
        "tests/vectors-v0", buffer=buffers,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, parts[0][0].shape[1:]),
        action_space=gymnasium.spaces.Box(-np.inf, np.inf, parts[0][1].shape[1:]),
    )  # fmt: skip
    for source in (dataset, minari.load_dataset("tests/vectors-v0")):
        log = lg.Transitions.from_minari(source)
        np.testing.assert_allclose(log.state, np.concatenate([s[:-1] for s, _, _ in parts]), rtol=1e-6)
        np.testing.assert_allclose(log.next_state, np.concatenate([s[1:] for s, _, _ in parts]), rtol=1e-6)
        np.testing.assert_allclose(log.action, np.concatenate([a for _, a, _ in parts]), rtol=1e-6)
        np.testing.assert_allclose(log.reward, np.concatenate([r for _, _, r in parts]))
        np.testing.assert_array_equal(log.episode, [0] * 4 + [1] * 2)
        assert log.terminal.tolist() == [False, False, False, True, False, False]


def test_real_datasets_of_d3rlpy():
    d3rlpy = pytest.importorskip("d3rlpy")
    first, a, r = episode(5, 5)
    dataset = d3rlpy.dataset.MDPDataset(
        observations=first[:-1].astype(np.float32), actions=a.astype(np.float32),
        rewards=r.astype(np.float32), terminals=np.array([0, 0, 0, 0, 1.0]),
    )  # fmt: skip
    log = lg.Transitions.from_d3rlpy(dataset)
    np.testing.assert_allclose(log.state, first[:-1], rtol=1e-6)
    assert log.terminal.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", None])
def test_steps_of_gymnasium(mode):
    gymnasium = pytest.importorskip("gymnasium")
    modes = getattr(gymnasium.vector, "AutoresetMode", None)
    if modes is None and mode is not None:
        pytest.skip("there is one mode alone before Gymnasium 1.1")
    chosen = {} if mode is None else {"autoreset_mode": modes[mode]}
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, **chosen)
    rng = np.random.default_rng(6)
    seen, _ = envs.reset(seed=1)
    steps = []
    for _ in range(60):
        action = rng.integers(0, 2, 2)
        following, reward, ended, cut, info = envs.step(action)
        steps.append((seen.copy(), action, reward, following.copy(), ended, cut, info))
        seen = following
    log = lg.Transitions.from_gymnasium(steps)
    assert log.terminal.any()
    # Every step of CartPole earns 1; steps that only reset earn nothing.
    assert np.all(log.reward == 1.0)
    resets = sum(float((reward == 0.0).sum()) for _, _, reward, *_ in steps)
    assert len(log) == 120 - resets
    assert (resets > 0) == (mode != "SAME_STEP")
    # What a terminal step leads to is where the pole fell, not where the next one begins.
    assert np.all(np.abs(log.next_state[log.terminal]).max(axis=1) > 0.2)
    inside = ~log.terminal & (np.append(log.episode[1:], -1) == log.episode)
    np.testing.assert_array_equal(log.next_state[inside], log.state[1:][inside[:-1]])
    single = lg.Transitions.from_gymnasium(
        [([0.0, 1.0], 0, 1.0, [1.0, 1.0], False, False), ([1.0, 1.0], 1, 2.0, [2.0, 1.0], True, False)]
    )
    assert single.n_episodes == 1
    with pytest.raises(ValueError, match="no steps"):
        lg.Transitions.from_gymnasium([])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda states, actions: np.zeros(3), r"returned shape \(3,\) for 4 states; give one log density"),
        (lambda states, actions: np.array([0.0, np.nan, 0.0, 0.0]), r"\)\[1\] is nan; log densities"),
        (lambda states, actions: np.array([0.0, 0.0, 0.0, np.inf]), r"\)\[3\] is inf; log densities"),
    ],
)
def test_densities_are_checked(given, words):
    policy = lg.policies.SampledPolicy(lambda states, rng: states, density=given)
    with pytest.raises(ValueError, match=words):
        policy.log_density(np.zeros((4, 1)), np.zeros((4, 1)))


def test_densities_may_be_columns_and_impossible():
    policy = lg.policies.SampledPolicy(
        lambda states, rng: states, density=lambda states, actions: np.where(actions > 0.5, -np.inf, actions)
    )
    found = policy.log_density(np.zeros((2, 1)), np.array([[0.25], [1.0]]))
    np.testing.assert_array_equal(found, [0.25, -np.inf])


def test_bounds_and_deviations_are_per_coordinate():
    for name in ("std", "low", "high"):
        given = {"std": 0.1, name: np.ones((5, 1))}
        with pytest.raises(ValueError, match=rf"{name} has shape \(5, 1\); give one number, or one for each"):
            lg.policies.GaussianPolicy(lambda states: states, **given).scales(2)


def test_drawn_actions_of_another_shape_are_named():
    policy = read_policy(lambda states, rng: np.zeros(3, int), n_states=None, n_actions=2)
    with pytest.raises(ValueError, match=r"must have shape \(5, n_actions\), got \(3,\) of int64"):
        policy.probabilities(np.zeros((5, 1)))


def overwrites(states):
    states *= 0.0
    return states


@pytest.mark.parametrize("method", ["auto", "linear"])
@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_policies_cannot_change_the_log(kind, method):
    rng = np.random.default_rng(0)
    state, action = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    policy = lg.policies.GaussianPolicy(overwrites, 0.1)
    if kind == "discrete":
        action = rng.integers(0, 2, 60)
        policy = lambda states: 0.5 + overwrites(states)  # noqa: E731
    log = lg.Transitions(state, action, state[:, 0], state + 0.1, episode=np.arange(60) // 10)
    kept = [part.copy() for part in (log.state, log.next_state, log.action, log.first_states)]
    lg.solve(log, 0.9, policy=policy, method=method, options={"effort": "quick"} if method == "auto" else {})
    for part, before in zip((log.state, log.next_state, log.action, log.first_states), kept, strict=True):
        np.testing.assert_array_equal(part, before)


def test_a_policy_for_single_states_is_told_that_it_gets_batches():
    rng = np.random.default_rng(0)
    state = rng.normal(size=(60, 2))
    log = lg.Transitions(state, rng.integers(0, 2, 60), state[:, 0], state + 0.1, episode=np.arange(60) // 10)
    with pytest.raises(ValueError, match=r"called with all states at once, .*numpy\.where"):
        lg.solve(log, policy=lambda one: 1 if one[0] > 0 else 0, options={"effort": "quick"})
    assert "states of 1 coordinate, 1 action)" in repr(lg.Transitions([0.5], [0], [1.0], [0.1]))


def test_whole_numbers_are_one_action_per_state():
    """As for counts; a log of states by number took them for one distribution over all of its states."""
    log = lg.Transitions([0, 1, 2, 0], [1, 0, 1, 0], np.ones(4), [1, 2, 0, 1])
    policy = read_policy(np.array([1, 0, 1]), log.n_states, log.n_actions)
    np.testing.assert_array_equal(policy.probabilities(np.array([0, 1, 2])), [[0, 1], [1, 0], [0, 1]])
    with pytest.raises(ValueError, match="policy"):
        read_policy(np.array([1, 0, 2]), 3, 2)
    with pytest.raises(ValueError, match="may be one action per state or one distribution"):
        read_policy(np.array([0, 1]), 2, 2)
    even = read_policy(np.array([0.0, 1.0]), 2, 2)
    np.testing.assert_array_equal(even.probabilities(np.array([0, 1])), [[0, 1], [0, 1]])
