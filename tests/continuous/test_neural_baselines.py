"""The neural baselines where episodes end, against sums over paths and closed forms; standard errors."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.baselines import model_based, neural_importance_sampling

TARGET = np.array([0.3, 0.7])


def two_steps(rng, n):
    """At most two steps: action 1 ends the episode. Reward 1 + 2 a at the first step, 5 at the second."""
    state, action, reward, following, episode, terminal = [], [], [], [], [], []
    for e in range(n):
        for t in range(2):
            a = int(rng.random() < 0.5)
            state.append([float(t)])
            action.append(a)
            reward.append(1.0 + 2.0 * a if t == 0 else 5.0)
            following.append([float(t + 1)])
            episode.append(e)
            terminal.append(a == 1 or t == 1)
            if terminal[-1]:
                break
    return lg.Transitions(state, action, reward, following, episode=episode, terminal=terminal)


def by_hand(transitions, gamma):
    """Weigh every episode step by step in plain loops, reward 0 and the last weight after its end."""
    episodes = {}
    for e, a, r in zip(transitions.episode, transitions.action, transitions.reward, strict=True):
        episodes.setdefault(int(e), []).append((TARGET[a] / 0.5, r))
    total = 0.0
    for t in range(2):
        above = below = 0.0
        for steps in episodes.values():
            weight = np.prod([ratio for ratio, _ in steps[: t + 1]])
            above += weight * (steps[t][1] if t < len(steps) else 0.0)
            below += weight
        total += gamma**t * above / below
    return total


@pytest.mark.parametrize("weighting", ["step", "trajectory"])
def test_the_horizon_of_importance_sampling(weighting):
    transitions = two_steps(np.random.default_rng(3), 200)
    options = {"policy": TARGET, "behavior_log_density": np.full(len(transitions), np.log(0.5))}
    options["weighting"] = weighting
    both = neural_importance_sampling(transitions, 1.0, horizon=2, **options).value
    longer = neural_importance_sampling(transitions, 1.0, horizon=8, **options).value
    assert longer == pytest.approx(both / 4, rel=1e-12)  # all have ended: six steps more earn nothing
    if weighting == "step":
        assert both == pytest.approx(by_hand(transitions, 1.0) / 2, rel=1e-10)
    with pytest.raises(ValueError, match="at least 1 step"):
        neural_importance_sampling(transitions, 0.9, horizon=0, **options)


def test_importance_sampling_where_episodes_end():
    gamma, values, errors = 0.8, [], []
    # First reward 1 + 2 * .7; the second step is reached by action 0 and pays 5.
    truth = (1.0 - gamma) * (2.4 + gamma * 0.3 * 5.0)
    for seed in range(60):
        transitions = two_steps(np.random.default_rng([70, seed]), 150)
        behavior = np.full(len(transitions), np.log(0.5))
        found = neural_importance_sampling(transitions, gamma, policy=TARGET, behavior_log_density=behavior)
        assert found.value == pytest.approx((1.0 - gamma) * by_hand(transitions, gamma), rel=1e-10)
        values.append(found.value)
        errors.append(found.standard_error)
    spread = np.std(values, ddof=1)
    assert np.mean(values) == pytest.approx(truth, abs=4 * spread / np.sqrt(60))
    assert np.mean(errors) == pytest.approx(spread, rel=0.3)
    with pytest.raises(ValueError, match="terminal"):
        neural_importance_sampling(transitions, 1.0, policy=TARGET, behavior_log_density=behavior)


def test_standard_error_of_whole_trajectories():
    values, errors = [], []
    for seed in range(60):
        rng = np.random.default_rng([71, seed])
        action = rng.integers(0, 2, 300)
        episode = np.repeat(np.arange(100), 3)
        transitions = lg.Transitions(
            np.zeros((300, 1)), action, action + 1.0, np.zeros((300, 1)), episode=episode
        )
        behavior = np.full(300, np.log(0.5))
        found = neural_importance_sampling(
            transitions, 1.0, policy=TARGET, weighting="trajectory", behavior_log_density=behavior
        )
        values.append(found.value)
        errors.append(found.standard_error)
    assert np.mean(values) == pytest.approx(1.7, abs=0.03)
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.3)


@pytest.mark.parametrize(("gamma", "terminal"), [(0.9, "absorb"), (0.9, "restart"), (1.0, "restart")])
def test_model_rollouts_where_episodes_end(gamma, terminal):
    rng = np.random.default_rng(72)
    n = 3000
    ends = rng.random(n) < 0.25
    state = rng.normal(size=(n, 1))
    transitions = lg.Transitions(
        state, None, np.ones(n), 0.5 * state, initial_state=np.zeros((5, 1)), terminal=ends
    )
    # Reward 1 until the end: absorbed, (1 - g) sum g^t .75^t; restarted, 1 at every step.
    truth = 1.0 if terminal == "restart" else (1 - gamma) / (1 - gamma * np.mean(~ends))
    found = model_based(transitions, gamma, policy=None, terminal=terminal, effort="quick")
    assert found.value == pytest.approx(truth, abs=0.02 * truth)


def test_densities_of_the_behavior_are_one_a_row():
    transitions = two_steps(np.random.default_rng(0), 20)
    for wrong in (np.log(0.5), np.zeros((len(transitions), 1)), np.zeros(3)):
        with pytest.raises(ValueError, match="behavior_log_density"):
            neural_importance_sampling(transitions, 0.9, policy=TARGET, behavior_log_density=wrong)
