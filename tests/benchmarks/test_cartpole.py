"""Endless Cartpole: Gymnasium's dynamics, restarts, rewards and distributions of actions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from control import cartpole
from control import environments as control
from control.environments import CartpolePolicy, simulate_cartpole

SMALLEST, LARGEST = -0.05, 0.05


@pytest.fixture(scope="module")
def log():
    """A clumsy policy, which falls every 20 steps or so."""
    return simulate_cartpole([CartpolePolicy(np.array([0.0, 0.0, 3.0, 1.0]), 0.2, 0.3)] * 400, 250, seed=3)


def test_every_step_is_gymnasiums(log):
    """The log replayed in CartPole-v1, state by state; where Gymnasium terminates we pay -1 and restart."""
    gymnasium = pytest.importorskip("gymnasium")
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.reset(seed=0)
    following = np.empty(4)
    falls = 0
    for row in range(3000):
        environment.state = tuple(log.state[row])
        environment.steps_beyond_terminated = None
        observation, _, terminated, _, _ = environment.step(int(log.action[row]))
        fell = cartpole.cartpole_step(log.state[row], log.action[row], following)
        np.testing.assert_allclose(following, environment.state, rtol=0, atol=1e-14)
        np.testing.assert_allclose(following.astype(np.float32), observation)
        assert fell == terminated
        assert log.reward[row] == (-1.0 if terminated else 1.0)
        if terminated:
            falls += 1
        else:
            np.testing.assert_array_equal(log.next_state[row], following)
    assert falls > 50


def test_trajectories_run_on_after_falls_without_a_gap(log):
    inside = np.flatnonzero(np.diff(log.episode) == 0)
    np.testing.assert_array_equal(log.next_state[inside], log.state[inside + 1])
    assert np.unique(log.episode).size == 400
    np.testing.assert_array_equal(log.initial_state, log.state[::250])


def test_restarts_and_starts_have_the_uniform_initial_distribution(log):
    fresh = np.concatenate([log.next_state[log.reward == -1], log.initial_state])
    assert len(fresh) > 3000
    for coordinate in fresh.T:
        assert coordinate.min() >= SMALLEST
        assert coordinate.max() < LARGEST
        assert stats.kstest(coordinate, stats.uniform(SMALLEST, LARGEST - SMALLEST).cdf).pvalue > 1e-3


def test_actions_have_the_probabilities_the_policy_states(log):
    policy = CartpolePolicy(np.array([0.0, 0.0, 3.0, 1.0]), 0.2, 0.3)
    distribution = policy.probabilities(log.state)
    np.testing.assert_allclose(distribution.sum(axis=1), 1, atol=1e-15)
    by_hand = 0.3 / (1 + np.exp(-(log.state @ policy.weights + 0.2))) + 0.35
    np.testing.assert_allclose(distribution[:, 1], by_hand, atol=1e-14)
    # Standardized sums over bins of equal probability are normal.
    for some in np.array_split(np.argsort(by_hand), 8):
        expected, variance = by_hand[some].sum(), (by_hand[some] * (1 - by_hand[some])).sum()
        assert abs(log.action[some].sum() - expected) < 4 * np.sqrt(variance)


def test_a_log_depends_on_the_seed_alone():
    policy = control.policy("cartpole", 0.33)
    whole = simulate_cartpole([policy] * 5, 40, seed=7, threads=2)
    again = simulate_cartpole([policy] * 5, 40, seed=7, threads=1)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one, other)
    part = simulate_cartpole([policy] * 2, 25, seed=7, first=3)
    np.testing.assert_array_equal(part.state[:25], whole.state[120:145])
    other_seed = simulate_cartpole([policy] * 5, 40, seed=8)
    assert not np.array_equal(other_seed.state, whole.state)


def test_the_trained_policy_hardly_falls_and_behaviors_fall_more():
    values = [
        control.on_policy_value("cartpole", control.policy("cartpole", alpha), [1.0], 100, 2000, seed=1)[0]
        for alpha in (0.0, 1.0)
    ]
    assert values[1].value > 0.99
    gap = values[1].value - values[0].value
    assert gap > 5 * np.hypot(values[0].standard_error, values[1].standard_error)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CartpolePolicy(np.zeros(3), 0.0, 0.5), r"shape \(4,\)"),
        (lambda: CartpolePolicy(np.zeros(4), 0.0, 1.5), "share must lie"),
        (lambda: simulate_cartpole([], 5), "n_trajectories must be a whole number of at least 1"),
        (lambda: simulate_cartpole([control.policy("cartpole")], 5, seed=-1), "seed must be a whole"),
        (
            lambda: simulate_cartpole([control.policy("cartpole"), CartpolePolicy(np.zeros(4), 0.0, 1.0)], 5),
            "policy 1 has other weights",
        ),
        (lambda: control.collect("cartpole", control.policy("reacher"), 1, 5), "needs CartpolePolicy"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
