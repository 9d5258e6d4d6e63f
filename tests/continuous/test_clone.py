"""tau = base * g: weights from a cloned behavior, and networks for the rest."""

from __future__ import annotations

import numpy as np
import pytest
from neural_problems import SMALL, small_mdp

import lingendice as lg
from lingendice.continuous.clone import (
    DEFENSIVE,
    LEAST_EFFECTIVE,
    base_of,
    clone_log_density,
    clone_policy,
    resampled,
)
from lingendice.continuous.samples import prepare


def episodes(lengths, rng):
    """Rows of several episodes, interleaved, each in its order."""
    episode = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    state = rng.normal(size=(len(episode), 1))
    return lg.Transitions(state, rng.integers(0, 2, len(episode)), state[:, 0], state, episode=episode)


def by_hand(transitions, log_ratio, window, distribution):
    """Products over the last ``window`` steps, of mean 1 at each step, times the distribution of steps."""
    products, steps = np.empty(len(log_ratio)), np.empty(len(log_ratio), dtype=int)
    for name in np.unique(transitions.episode):
        rows = np.flatnonzero(transitions.episode == name)
        for t, row in enumerate(rows):
            products[row] = np.exp(log_ratio[rows[max(0, t + 1 - window) : t + 1]].sum())
            steps[row] = t
    for t in np.unique(steps):
        products[steps == t] /= products[steps == t].mean()
    weight = products * distribution[steps]
    return (1.0 - DEFENSIVE) * weight / weight.mean() + DEFENSIVE, products


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("size", [0.1, 0.8])
def test_weights_are_products_over_a_window(gamma, size):
    rng = np.random.default_rng(0)
    transitions = episodes([12] * 30 + [7] * 10, rng)
    log_ratio = size * rng.normal(size=len(transitions))
    found = base_of(transitions, log_ratio, gamma)
    ramp = np.arange(12) + 0.5
    distribution = (1.0 - gamma) * gamma ** np.arange(12) + gamma**12 * ramp / ramp.sum()
    expected, products = by_hand(transitions, log_ratio, found.window, distribution)
    np.testing.assert_allclose(found.weight, expected, rtol=1e-10)
    assert found.weight.mean() == pytest.approx(1.0)
    assert found.window == (12 if size == 0.1 else 2)
    if found.window < 12:
        longer = by_hand(transitions, log_ratio, 2 * found.window, distribution)[1]
        kept = [w.sum() ** 2 / (w @ w) / len(w) for w in (products, longer)]
        assert kept[0] >= LEAST_EFFECTIVE > kept[1]


def test_steps_count_alike_where_episodes_end_or_are_unknown():
    rng = np.random.default_rng(1)
    state = rng.normal(size=(60, 1))
    action = rng.integers(0, 2, 60)
    log_ratio = 0.1 * rng.normal(size=60)
    alone = base_of(lg.Transitions(state, action, None, state), log_ratio, 1.0)
    assert alone.window == 1
    plain = np.exp(log_ratio) / np.exp(log_ratio).mean()
    np.testing.assert_allclose(alone.weight, (1.0 - DEFENSIVE) * plain + DEFENSIVE)
    ends = np.arange(60) % 6 == 5
    renewed = lg.Transitions(state, action, None, state, terminal=ends)
    np.testing.assert_allclose(base_of(renewed, np.zeros(60), 1.0).weight, 1.0)


def test_impossible_actions_leave_finite_weights():
    transitions = episodes([10] * 20, np.random.default_rng(2))
    log_ratio = np.zeros(len(transitions))
    log_ratio[:5] = -np.inf
    weight = base_of(transitions, log_ratio, 1.0).weight
    assert np.isfinite(weight).all()
    assert weight.min() >= DEFENSIVE


def test_rows_are_drawn_in_proportion_to_the_base():
    transitions = episodes([10] * 20, np.random.default_rng(3))
    samples = prepare(transitions, np.array([0.5, 0.5]), 1.0)
    assert resampled(samples, 0) is samples
    weight = np.random.default_rng(4).gamma(1.0, size=len(transitions))
    samples.base[:] = weight
    drawn = resampled(samples, 0)
    copies = np.array([(drawn.logged[:, 0] == x).sum() for x in samples.logged[:, 0]])
    assert copies.sum() == 8 * len(transitions)
    assert np.abs(copies - 8 * len(transitions) * weight / weight.sum()).max() < 1.0


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_tabular_answer_with_a_cloned_base(gamma):
    transitions, _, policy = small_mdp(np.random.default_rng(1))
    solution = lg.solve(
        transitions,
        gamma,
        policy=policy,
        method="gendice",
        max_iter=1500,
        options={**SMALL, "base": "cloned"},
    )
    # The exact answer of the same log with every row counted as often as the base says.
    weighted = lg.Counts.from_transitions(
        transitions.state, transitions.next_state, transitions.action, transitions.reward,
        transitions.episode, weight=solution.details["base"],
    )  # fmt: skip
    exact = lg.solve(
        weighted, gamma, policy=policy, ratio="state_action", ridge=0.0, initial=np.array([1.0, 0.0, 0.0])
    )
    assert solution.value == pytest.approx(exact.value, abs=0.03)
    cells = transitions.state * 2 + transitions.action
    distribution = np.bincount(cells, solution.tau) / len(transitions)
    np.testing.assert_allclose(distribution, exact.stationary, atol=0.02)
    assert "cloned ratios" in solution.reason
    with pytest.raises(ValueError, match="logged transitions only"):
        solution.ratio(transitions.state[:2], transitions.action[:2])


def test_what_a_base_needs():
    rng = np.random.default_rng(5)
    state = rng.normal(size=(50, 1))
    continuous = lg.Transitions(state, state, state[:, 0], state)
    options = {"base": "cloned", **SMALL}
    with pytest.raises(ValueError, match="density"):
        lg.solve(continuous, policy=lambda s, rng: s, method="gendice", max_iter=1, options=options)
    with pytest.raises(ValueError, match="needs actions"):
        lg.solve(lg.Transitions(state, None, None, state), method="gendice", max_iter=1, options=options)
    with pytest.raises(ValueError, match="base"):
        lg.solve(continuous, policy=lambda s, rng: s, method="gendice", options={"base": "known"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be a whole"),
        ({"batch": 0}, "batch must be a whole"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"hidden": ()}, "at least one layer"),
        ({"low": [0.0, 0.0]}, r"low has shape \(2,\)"),
        ({"seed": 0.5}, "seed must be a whole"),
    ],
)
def test_what_a_clone_is_trained_by_is_checked(given, message):
    log = lg.Transitions([0.0, 1.0], [0.5, 0.2], next_state=[1.0, 0.0])
    with pytest.raises(ValueError, match=message):
        clone_log_density(log, **given)


def test_clones_do_not_depend_on_the_unit_of_actions():
    rng = np.random.default_rng(3)
    state = rng.normal(size=(400, 1))
    action = 0.5 * state + 0.3 * rng.normal(size=(400, 1))
    found = []
    for unit in (1.0, 1e-7):
        log = lg.Transitions(state, unit * action, next_state=state)
        found.append(clone_log_density(log, steps=200) + np.log(unit))
    np.testing.assert_allclose(*found, atol=1e-3)


# -- the clone as a policy ----------------------------------------------------------------------------------


def test_a_cloned_policy_has_the_probabilities_of_discrete_actions():
    rng = np.random.default_rng(0)
    state = rng.normal(size=(6000, 2))
    chance = 1 / (1 + np.exp(-2 * state[:, 0]))
    action = (rng.random(6000) < chance).astype(int)
    policy = clone_policy(lg.Transitions(state, action, next_state=state))
    fresh = rng.normal(size=(500, 2))  # of states that were not logged
    found = policy.probabilities(fresh)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-9)
    assert np.abs(found[:, 1] - 1 / (1 + np.exp(-2 * fresh[:, 0]))).mean() < 0.03


def test_a_cloned_policy_has_the_moments_and_the_density_of_continuous_actions():
    rng = np.random.default_rng(1)
    state = rng.normal(size=(6000, 1))
    action = 3 * state + 10 + 0.5 * np.exp(0.5 * state) * rng.normal(size=(6000, 1))
    policy = clone_policy(lg.Transitions(state, action, next_state=state))
    for at in (-1.0, 0.5):
        many = np.full((4000, 1), at)
        drawn, std = policy.sample(many, rng), 0.5 * np.exp(0.5 * at)
        assert drawn.mean() == pytest.approx(3 * at + 10, abs=0.15)
        assert drawn.std() == pytest.approx(std, rel=0.15)
        grid = np.linspace(3 * at + 5, 3 * at + 15, 4000)[:, None]
        density = np.exp(policy.log_density(many, grid))
        assert density.sum() * (grid[1, 0] - grid[0, 0]) == pytest.approx(1.0, abs=1e-3)


def test_a_chain_has_no_policy_to_clone():
    with pytest.raises(ValueError, match="needs actions"):
        clone_policy(lg.Transitions(np.zeros((3, 1)), next_state=np.ones((3, 1))))
