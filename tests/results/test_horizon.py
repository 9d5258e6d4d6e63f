"""The first H steps: against dynamic programming and enumerated paths; intervals against resampling."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from itertools import pairwise, product
from threading import Timer

import numpy as np
import pytest
from toy_text import corridor, gymnasium_rules

import lingendice as lg

PROBLEMS = {
    "lake": lambda: gymnasium_rules("FrozenLake-v1"),
    "cliff": lambda: gymnasium_rules("CliffWalking-v1", policy_seed=3),
    "corridor": corridor,
}
NEVER_SLIPS = np.tile([0.9, 0.1], (6, 1))
"""A behavior that often leaves an action of a state unlogged in short logs."""


@cache
def short_log(seed):
    return corridor().sample(40, seed, behavior=NEVER_SLIPS)


@pytest.mark.parametrize("horizon", [1, 2, 7, 60])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_returns_are_those_of_dynamic_programming(name, gamma, horizon):
    rules = PROBLEMS[name]()
    options = {"policy": rules.policy, "initial": rules.initial, "horizon": horizon}
    solution = lg.solve(rules.counts, gamma, **options)
    assert solution.expected_return == pytest.approx(rules.dynamic_programming(gamma, horizon), rel=1e-10)
    ones = np.ones(rules.reward.size)
    assert solution.expected_length == pytest.approx(
        rules.dynamic_programming(gamma, horizon, ones), rel=1e-10
    )
    assert solution.stationary.sum() + solution.terminal_mass == pytest.approx(1.0, abs=1e-12)
    assert solution.operator.initial @ solution.state_values == pytest.approx(
        solution.expected_return, rel=1e-9
    )
    assert f"of the first {horizon} steps" in str(solution)
    assert solution.to_dict()["horizon"] == horizon


def test_every_path_of_a_small_chain():
    """All 3^4 paths of a chain, one by one."""
    chain, reward = np.array([[2, 1, 1], [0, 3, 1], [1, 1, 2]]), np.array([1.0, -2.0, 0.5])
    initial = np.array([0.2, 0.5, 0.3])
    kernel = chain / chain.sum(axis=1, keepdims=True)
    truth = 0.0
    for path in product(range(3), repeat=4):
        chance = initial[path[0]] * np.prod([kernel[a, b] for a, b in pairwise(path)])
        truth += chance * sum(0.8**t * reward[s] for t, s in enumerate(path))
    solution = lg.solve(chain, 0.8, reward=reward, initial=initial, horizon=4)
    assert solution.expected_return == pytest.approx(truth, rel=1e-13)


def test_a_long_horizon_is_the_discounted_value():
    rules = gymnasium_rules("FrozenLake-v1")
    options = {"policy": rules.policy, "initial": rules.initial}
    far = lg.solve(rules.counts, 0.9, horizon=400, **options)
    plug_in = lg.solve(rules.counts, 0.9, ridge=0, clone=0, ratio="state_action", **options)
    assert far.value == pytest.approx(plug_in.value, rel=1e-12)
    np.testing.assert_allclose(far.stationary, plug_in.stationary, atol=1e-14)
    assert far.interval().standard_error == pytest.approx(plug_in.interval().standard_error, rel=1e-9)
    assert far.interval(of="length").standard_error == pytest.approx(
        plug_in.interval(of="length").standard_error, rel=1e-9
    )


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize(("gamma", "horizon"), [(1.0, 5), (0.9, 12), (1.0, 40)])
def test_the_standard_error_is_that_of_new_logs(gamma, horizon, target):
    """Actions are missing in some of the logs, whose place others take."""
    policy = np.tile([0.6, 0.4], (6, 1)) if target else None

    def solved(seed):
        return lg.solve(short_log(seed), gamma, policy=policy, horizon=horizon)

    many = [solved(seed) for seed in range(300)]
    spread = np.std([one.expected_return for one in many], ddof=1)
    closed = np.sqrt(np.mean([one.interval(of="return").standard_error ** 2 for one in many]))
    assert closed == pytest.approx(spread, rel=0.15)  # the spread of 300 is known to 4 %


def test_the_standard_error_is_that_of_resampled_episodes():
    rules = corridor()
    counts = rules.sample(150, seed=5)
    rng = np.random.default_rng(0)
    episodes, cell = counts.episodes, np.repeat(np.arange(counts.n_cells), np.diff(counts.indptr))
    rows = [np.flatnonzero(episodes.episode == k) for k in range(150)]
    drawn = []
    for _ in range(300):
        chosen = [rows[k] for k in rng.integers(150, size=150)]
        entry = episodes.entry[np.concatenate(chosen)]
        following = counts.indices[entry]
        again = lg.Counts.from_transitions(
            cell[entry] // 2, np.where(following == 6, 0, following), action=cell[entry] % 2,
            reward=episodes.reward[np.concatenate(chosen)], terminal=following == 6,
            episode=np.repeat(np.arange(150), [part.size for part in chosen]), n_states=6, n_actions=2,
        )  # fmt: skip
        drawn.append(lg.solve(again, policy=rules.policy, horizon=8).expected_return)
    found = lg.solve(counts, policy=rules.policy, horizon=8).interval(of="return")
    assert found.standard_error == pytest.approx(np.std(drawn, ddof=1), rel=0.12)
    assert found.contains(rules.dynamic_programming(1.0, 8))


def test_intervals_cover():
    rules = corridor()
    truth = rules.dynamic_programming(1.0, 8)
    found = [
        lg.solve(rules.sample(40, seed), policy=rules.policy, horizon=8).interval(of="return")
        for seed in range(200)
    ]
    # Noise alone covers what it claims; the allowance for outcomes never seen comes on top.
    noise = [abs(one.estimate - truth) <= 2.02 * one.standard_error for one in found]
    assert 0.91 <= np.mean(noise) <= 0.98
    assert np.mean([one.contains(truth) for one in found]) >= np.mean(noise)
    assert all(one.bias_allowance > 0.0 for one in found)


def test_actions_never_logged_are_allowed_for():
    rules = corridor()
    unlogged = rules.sample(20, 0, behavior=np.tile([1.0, 0.0], (6, 1)))
    found = lg.solve(unlogged, policy=rules.policy, horizon=8).interval()
    assert "30.0% of the target's actions were never logged: allowed for as bias" in found.note
    assert found.standard_error == 0.0
    assert found.contains(rules.dynamic_programming(1.0, 8) / 8)
    logged = lg.solve(rules.sample(20, 0), policy=rules.policy, horizon=8).interval()
    assert "never logged" not in logged.note
    assert found.bias_allowance > logged.bias_allowance > 0.0


def test_policies_are_compared_over_a_horizon():
    rules = corridor()
    other = np.tile([0.9, 0.1], (6, 1))
    found = lg.solve(rules.sample(80, 2), policy={"slips": rules.policy, "walks": other}, horizon=5)
    assert found.best == "walks"
    gain = found.difference("walks", "slips")
    assert gain.estimate == pytest.approx(found["walks"].expected_return - found["slips"].expected_return)
    alone = [one.interval(of="return").standard_error for one in found]
    assert 0 < gain.standard_error < np.hypot(*alone)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"horizon": 0}, "at least 1 step"),
        ({"horizon": 2.5}, "horizon"),
        ({"horizon": 3, "ridge": 0.1}, "ridge= belongs to ratios in the long run"),
        ({"horizon": 3, "clone": 1.0}, "clone= belongs"),
        ({"horizon": 3, "features": np.ones(6)}, "^features= belongs"),
        ({"horizon": 3, "bound": 2.0}, "^bound= belongs"),
        ({"horizon": 3, "penalty": 2.0}, "^penalty= belongs"),
        ({"horizon": 3, "method": "gth"}, "method= belongs"),
        ({"horizon": 3, "method": "sgd"}, "method= belongs"),
        ({"horizon": 3, "leak": "absorb"}, "leak='absorb' is for the stationary equation"),
        ({"horizon": 3, "terminal": "restart"}, "terminal='restart'"),
        ({"horizon": 3, "ratio": "state"}, "ratio='state'"),
    ],
)
def test_what_has_no_use_for_a_horizon_is_refused(options, says):
    rules = corridor()
    gamma = 0.9 if "leak" in options else 1.0
    with pytest.raises(ValueError, match=says):
        lg.solve(rules.counts, gamma, policy=rules.policy, initial=rules.initial, **options)


def test_continuous_states_have_no_horizon():
    state = np.random.default_rng(0).normal(size=(50, 1))
    log = lg.Transitions(state, None, state[:, 0], state, episode=np.arange(50) // 5)
    with pytest.raises(ValueError, match="horizon does not apply to Transitions"):
        lg.solve(log, 0.9, horizon=3)


def test_intervals_that_a_horizon_does_not_give_are_refused():
    rules = corridor()
    solution = lg.solve(rules.sample(20, 0), policy=rules.policy, horizon=3)
    with pytest.raises(ValueError, match="intervals of the value, the return and the length"):
        solution.interval(of="stationary")
    with pytest.raises(ValueError, match="intervals of the value, the return and the length"):
        solution.interval(method="bootstrap")


def test_its_checks_are_those_of_the_default():
    """A log of every action raises no alarm; actions that the behavior leaves out do."""
    rules = corridor()
    names = ["effective sample", "leak", "never logged", "rewards"]
    whole = lg.solve(rules.sample(200, 0), 1.0, policy=rules.policy, horizon=20)
    assert [check.name for check in whole.diagnose()][:4] == names
    assert whole.trusted, whole.why_not

    rng = np.random.default_rng(0)
    state, action = rng.integers(5, size=4000), rng.integers(2, size=4000)
    counts = lg.Counts.from_transitions(
        state, (state + 1 + action) % 5, action=action, reward=state + action, n_actions=3,
        keep_episodes=False,
    )  # fmt: skip
    target = np.tile([0.4, 0.4, 0.2], (5, 1))
    solution = lg.solve(counts, 1.0, policy=target, initial=np.eye(5)[0], horizon=20)
    failed = [check.name for check in solution.diagnose() if not check.ok]
    assert failed == ["never logged"]


def test_a_horizon_is_any_whole_number():
    """2.0 ended in a TypeError of range(); the length of episodes without an end has nothing to allow for."""
    rules = corridor()
    log, options = rules.sample(40, 0), {"policy": rules.policy, "initial": rules.initial}
    steps = [lg.solve(log, 0.9, horizon=two, **options) for two in (2, 2.0, np.int8(2))]
    assert len({one.value for one in steps}) == 1
    assert {type(one.horizon) for one in steps} == {int}
    same = np.zeros(30, dtype=int)
    endless = lg.Counts.from_transitions(same, same, same, np.arange(30.0), same)
    length = lg.solve(endless, 0.9, policy=[[1.0]], horizon=4).interval(of="length")
    assert (length.low, length.high) == (length.estimate, length.estimate)
    assert length.bias_allowance == 0.0


@pytest.mark.parametrize("keep", [True, False])
def test_rewards_that_differ_in_one_pair_alone_are_not_all_the_same(keep):
    """The check said that every logged reward is 4.5, of rewards from 0 to 9."""
    same = np.zeros(10, dtype=int)
    for reward, passes in ((np.arange(10.0), True), (np.full(10, 4.5), False)):
        counts = lg.Counts.from_transitions(
            same, same, same, reward, np.arange(10), terminal=np.ones(10, dtype=bool), keep_episodes=keep
        )
        for options in ({"horizon": 3}, {}):
            checks = lg.solve(counts, 0.9, policy=[[1.0]], **options).diagnose()
            (check,) = (check for check in checks if check.name == "rewards")
            assert check.ok == passes
            assert ("every logged reward is 4.5" in check.sentence) != passes


def test_rounding_is_no_noise_beside_an_allowance():
    """Rewards that follow from the action: of two episodes nothing is left to chance but their actions.

    Noise of 1e-17 brought Student's quantile of one degree of freedom: the half-width was up to 6.5 times
    the allowance for bias, and another multiple in other units.
    """
    rng = np.random.default_rng(5)
    action, episode = rng.integers(3, size=52), np.repeat([0, 1], 26)
    state, reward = np.zeros(52, dtype=int), np.array([-0.12796454, -0.11968272, -0.04694998])[action]
    for unit in (1.0, 1e4, 1e-9):
        counts = lg.Counts.from_transitions(state, state, action, unit * reward, episode)
        found = lg.solve(counts, 1.0, policy=[[0.73, 0.25, 0.02]], horizon=5).interval()
        assert found.standard_error == 0.0
        assert found.bias_allowance > 0.0
        assert found.high - found.estimate == pytest.approx(found.bias_allowance, rel=1e-12)


# -- limits --------------------------------------------------------------------------------------------------


def first_steps(kernel, initial, gamma, horizon):
    """The distribution of the first steps, by powers of the dense matrix."""
    weights = gamma ** np.arange(horizon)
    return sum(
        weight * initial @ np.linalg.matrix_power(kernel, step) for step, weight in enumerate(weights)
    ) / weights.sum()  # fmt: skip


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("max_iter", [1, 5, 19, 20, 30])
def test_max_iter_ends_after_as_many_steps(gamma, max_iter):
    kernel, initial = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.9, 0.0, 0.1]]), np.array([1.0, 0.0, 0.0])
    found = lg.solve(kernel, gamma, initial=initial, horizon=20, max_iter=max_iter)
    counted = min(max_iter, 20)
    assert found.n_iter == counted
    assert found.status is (lg.Status.ITERATION_LIMIT if max_iter < 20 else lg.Status.SOLVED)
    np.testing.assert_allclose(found.stationary, first_steps(kernel, initial, gamma, counted), rtol=1e-13)
    if max_iter < 20:
        off = np.abs(found.stationary - first_steps(kernel, initial, gamma, 20)).sum()
        assert 0.0 < off <= found.error <= 2.0
        assert found.error_kind == "bound"
    else:
        assert found.error is None


def test_a_time_limit_ends_the_recursion():
    chain = {"data": np.ones((40, 40)), "initial": np.eye(40)[0]}
    lg.solve(**chain, horizon=2)  # compiled before the clock starts
    begun = time.perf_counter()
    found = lg.solve(**chain, horizon=10**9, time_limit=0.3)
    assert time.perf_counter() - begun < 3.0
    assert found.status is lg.Status.TIME_LIMIT
    assert 1 < found.n_iter < 10**9
    assert found.stationary.sum() == pytest.approx(1.0, abs=1e-9)
    assert "of the first 1,000,000,000 steps" in found.reason


def test_ctrl_c_ends_the_recursion_with_what_was_counted():
    chain = {"data": np.ones((40, 40)), "initial": np.eye(40)[0]}
    lg.solve(**chain, horizon=2)
    Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(lg.Interrupted) as caught:
        lg.solve(**chain, horizon=10**9)
    assert caught.value.solution.status is lg.Status.INTERRUPTED
    assert 1 < caught.value.solution.n_iter < 10**9
