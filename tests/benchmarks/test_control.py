"""Reacher and HalfCheetah as endless chains, their policies, logs and on-policy values."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lingendice.data.policies import SampledPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from control import environments as control

SIZES = {"reacher": (10, 2), "halfcheetah": (17, 6)}


@pytest.fixture(scope="module", params=sorted(SIZES))
def name(request):
    pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    return request.param


def test_logs_have_the_fields_of_transitions(name):
    n_observations, n_coordinates = SIZES[name]
    behaviors = [control.policy(name, alpha) for alpha in (0.0, 0.33, 0.66)]
    log = control.collect(name, behaviors, n_trajectories=4, n_steps=30, seed=2)
    assert log.state.shape == log.next_state.shape == (120, n_observations)
    assert log.action.shape == (120, n_coordinates)
    assert log.reward.shape == log.episode.shape == (120,)
    assert log.initial_state.shape == (4, n_observations)
    assert np.abs(log.action).max() <= 1
    for values in log:
        assert np.isfinite(values).all()
    inside = np.flatnonzero(np.diff(log.episode) == 0)
    np.testing.assert_array_equal(log.next_state[inside], log.state[inside + 1])


def test_a_log_depends_on_the_seed_alone(name):
    policy = control.policy(name, 0.33)
    whole = control.collect(name, policy, 3, 20, seed=5)
    for one, other in zip(whole, control.collect(name, policy, 3, 20, seed=5), strict=True):
        np.testing.assert_array_equal(one, other)
    part = control.collect(name, policy, 1, 12, seed=5, first=2)
    np.testing.assert_array_equal(part.state, whole.state[40:52])
    np.testing.assert_array_equal(part.reward, whole.reward[40:52])
    assert not np.array_equal(control.collect(name, policy, 3, 20, seed=6).state, whole.state)


def test_any_continuous_policy_acts_as_its_own_sample_does(name):
    """The short cut for normal policies draws what ``GaussianPolicy.sample`` draws."""
    normal = control.policy(name, 0.0)
    direct = control.collect(name, SampledPolicy(normal.sample), 2, 25, seed=8)
    short = control.collect(name, normal, 2, 25, seed=8)
    for one, other in zip(direct, short, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_rewards_follow_from_the_log():
    """Reacher: minus the distance after the step and |a|^2; HalfCheetah: speed less |a|^2 / 10."""
    pytest.importorskip("mujoco")
    log = control.collect("reacher", control.policy("reacher", 0.0), 3, 60, seed=4)
    stayed = np.flatnonzero(np.linalg.norm(log.state[:, 4:6] - log.next_state[:, 4:6], axis=1) == 0)
    assert 100 < len(stayed) < 180, "some steps restart with a new goal"
    distance = np.linalg.norm(log.next_state[stayed, 8:10], axis=1)
    effort = (log.action[stayed] ** 2).sum(axis=1)
    np.testing.assert_allclose(log.reward[stayed], -distance - effort, atol=1e-6)

    log = control.collect("halfcheetah", control.policy("halfcheetah"), 1, 200, seed=4)
    speed = log.reward + 0.1 * (log.action**2).sum(axis=1)
    # Mean speed over a step of 0.05 s lies near the mean of the speeds at its ends.
    assert np.abs(speed - 0.5 * (log.state[:, 8] + log.next_state[:, 8])).mean() < 0.15 * np.abs(speed).mean()


def test_reacher_restarts_with_probability_three_hundredths():
    pytest.importorskip("mujoco")
    log = control.collect("reacher", control.policy("reacher", 0.0), 40, 150, seed=9)
    moved = np.linalg.norm(log.state[:, 4:6] - log.next_state[:, 4:6], axis=1) > 0
    assert stats.binomtest(int(moved.sum()), moved.size, 0.03).pvalue > 1e-3
    # A fresh start: the goal uniform on a disc of radius 0.2, the joints near zero.
    fresh = log.next_state[moved]
    assert np.linalg.norm(fresh[:, 4:6], axis=1).max() <= 0.2
    assert np.abs(fresh[:, 2:4]).max() <= np.sin(0.1) + 1e-12
    share = (fresh[:, 4:6] ** 2).sum(axis=1) / 0.04
    assert stats.kstest(share, "uniform").pvalue > 1e-3


def test_samples_of_a_clipped_policy_agree_with_its_density(name):
    """Atoms at the bounds have the probability the density states; in all it integrates to 1."""
    policy = control.policy(name, 0.0)
    n_observations, n_coordinates = SIZES[name]
    state = 3.0 * np.random.default_rng(0).standard_normal((1, n_observations))
    actions = policy.sample(np.repeat(state, 40_000, axis=0), np.random.default_rng(1))
    (std,) = {float(policy.std)}
    for k, mean in enumerate(policy.means(state)[0]):
        for bound, tail in ((-1.0, stats.norm.cdf(-1.0, mean, std)), (1.0, stats.norm.sf(1.0, mean, std))):
            hits = int((actions[:, k] == bound).sum())
            assert stats.binomtest(hits, len(actions), min(max(tail, 1e-300), 1.0)).pvalue > 1e-4
    # The log density of a product distribution is a sum: every coordinate at the low bound, the high bound,
    # and between.
    grid = np.linspace(-1, 1, 2001)[1:-1]
    base = np.zeros((1, n_coordinates))
    reference = policy.log_density(state, base)[0]
    for k in range(n_coordinates):
        points = np.repeat(base, grid.size + 2, axis=0)
        points[:, k] = np.concatenate([[-1.0, 1.0], grid])
        masses = np.exp(policy.log_density(np.repeat(state, len(points), axis=0), points) - reference)
        own = np.exp(stats.norm.logpdf(0.0, policy.means(state)[0, k], std))
        total = masses[0] + masses[1] + masses[2:].sum() * (grid[1] - grid[0])
        assert total * own == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "steps", "episodes", "least"), [("reacher", 50, 60, -6.0), ("halfcheetah", 1000, 2, 3000.0)]
)
def test_trained_policies_are_trained(name, steps, episodes, least):
    """Return of an episode as Gymnasium defines it (no restart within), under the mean action."""
    pytest.importorskip("mujoco")
    environment, policy = control.make_mujoco(name), control.policy(name)
    totals = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=1000 + episode)
        total = 0.0
        for _ in range(steps):
            observation, reward, _, _, _ = environment.step(policy.means(observation[None])[0])
            total += reward
        totals.append(total)
    assert np.mean(totals) > least


def test_early_policies_are_worse_and_noise_costs():
    pytest.importorskip("mujoco")
    means = {}
    for stage, alpha in (("trained", 1.0), ("trained", 0.0), ("early", 1.0)):
        policy = control.policy("reacher", alpha, stage=stage)
        means[stage, alpha] = control.collect("reacher", policy, 20, 100, seed=1).reward.mean()
    assert means["trained", 1.0] > means["trained", 0.0]
    assert means["trained", 1.0] > means["early", 1.0]


def test_lever_arms_are_those_of_the_simulated_arm():
    """Cross products with the places of joints and fingertip that MuJoCo reports."""
    pytest.importorskip("mujoco")
    environment = control.make_mujoco("reacher")
    observation, _ = environment.reset(seed=3)
    for action in np.random.default_rng(2).uniform(-1, 1, (10, 2)):
        observation, *_ = environment.step(action)
        tip, goal = (environment.get_body_com(part)[:2] for part in ("fingertip", "target"))
        elbow = environment.get_body_com("body1")[:2]
        arms = [tip, tip - elbow]
        turns = [np.cross([*arm, 0.0], [*(goal - tip), 0.0])[2] for arm in arms]
        folds = [arm @ (goal - tip) for arm in arms]
        found = control.with_lever_arms(observation[None])[0]
        np.testing.assert_array_equal(found[:10], observation)
        np.testing.assert_allclose(found[10:], turns + folds, atol=1e-6)


def test_behaviors_move_from_far_to_the_target():
    shares = [control.policy("cartpole", alpha).share for alpha in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(shares, [0.55, 0.625, 0.7])
    for name, (far, near) in {"reacher": (0.4, 0.1), "halfcheetah": (0.2, 0.1)}.items():
        deviations = [float(control.policy(name, alpha).std) for alpha in (0.0, 0.33, 0.66, 1.0)]
        assert deviations[0] == far
        assert deviations[-1] == near
        assert all(left > right for left, right in pairwise(deviations))


def test_on_policy_values_against_direct_sums():
    policy = control.policy("cartpole", 0.0)
    found = control.on_policy_value("cartpole", policy, [0.9, 1.0], 60, 300, warm_up=100, seed=3, block=25)
    reward = control.collect("cartpole", policy, 60, 300, seed=3).reward.reshape(60, 300)
    weight = [0.9**t for t in range(300)]
    by_hand = np.array([sum(w * r for w, r in zip(weight, row, strict=True)) for row in reward]) / sum(weight)
    assert found[0].value == pytest.approx(by_hand.mean(), abs=1e-12)
    assert found[0].standard_error == pytest.approx(by_hand.std(ddof=1) / np.sqrt(60), rel=1e-9)
    assert found[1].value == pytest.approx(reward[:, 100:].mean(), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: control.policy("pendulum"), "there is no environment 'pendulum'"),
        (lambda: control.policy("reacher", 1.2), r"alpha must lie in \[0, 1\]"),
        (lambda: control.policy("cartpole", stage="early"), "stage must be"),
        (lambda: control.collect("reacher", [], 2, 5), "policies is empty"),
        (lambda: control.collect("cartpole", control.policy("cartpole"), 0, 5), "n_trajectories"),
        (lambda: control.collect("cartpole", control.policy("cartpole"), 2, 5.5), "n_steps must be a whole"),
        (
            lambda: control.on_policy_value("cartpole", control.policy("cartpole"), [1.0], 0, 100),
            "n_trajectories must be a whole",
        ),
        (
            lambda: control.on_policy_value("cartpole", control.policy("cartpole"), [0.99], 2, 100),
            "give at least 917",
        ),
        (
            lambda: control.on_policy_value("cartpole", control.policy("cartpole"), [1.5], 2, 100),
            "gamma must",
        ),
        (
            lambda: control.on_policy_value("cartpole", control.policy("cartpole"), [1.0], 2, 5, warm_up=5),
            "warm_up must",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_missing_package_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install 'gymnasium\[mujoco\]'"):
        control.make_mujoco("reacher")
