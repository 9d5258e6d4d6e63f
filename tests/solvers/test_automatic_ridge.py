"""The default with a policy: what it chooses, and that its judgments are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import logged_mdp

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.solvers.automatic_ridge import fit_automatically, judge
from lingendice.solvers.control import Controls

CONTROLS = Controls(tol=1e-11)


def ring(seed, n_states=40, n_steps=4000, turn=0.5):
    """A slow walk on a ring, two actions (clockwise or not), rewarded in one half."""
    rng = np.random.default_rng(seed)
    state, log = 0, []
    for _ in range(n_steps):
        action = int(rng.random() < 0.5)
        step = (2 * action - 1) if rng.random() < turn else 0
        following = (state + step) % n_states
        log.append((state, action, following, float(state < n_states // 2)))
        state = following
    s, a, t, r = (np.array(column) for column in zip(*log, strict=True))
    return lg.Counts.from_transitions(s.astype(int), t.astype(int), action=a.astype(int), reward=r)


def test_ridge_and_clone_chosen_from_the_data():
    mdp = logged_mdp(2)
    solution = lg.solve(mdp.counts, policy=mdp.policy, ridge="auto", clone="auto")
    assert solution.operator.ratio == "state"
    assert 0 < solution.ridge <= 1 / mdp.counts.total
    assert solution.stationary.sum() == pytest.approx(1.0)
    assert solution.tau.shape == (6,)
    weights = solution.cell_distribution / np.where(
        mdp.counts.data_distribution > 0, mdp.counts.data_distribution, 1.0
    )
    weighted = weights[mdp.state * 2 + mdp.action]
    assert solution.value == pytest.approx(weighted @ mdp.rewards / weighted.sum())
    assert "ridge" in str(solution)
    assert solution.to_dict()["ridge"] == solution.ridge


def test_what_asks_for_the_exact_equation_gets_it():
    mdp = logged_mdp(2)
    assert lg.solve(mdp.counts).ridge == 0
    assert lg.solve(mdp.counts, policy=mdp.policy, method="gth").ridge == 0
    assert lg.solve(mdp.counts, 0.9, policy=mdp.policy, leak="absorb").ridge == 0
    known = lg.solve(mdp.counts, 0.9, policy=mdp.policy, unseen="leak")
    assert known.operator.ratio == "state_action"
    assert np.allclose(known.operator.policy, mdp.policy)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
def test_the_visible_bias_is_the_bias(gamma, ratio):
    mdp = logged_mdp(6, length=100)
    operator = compose(mdp.counts, Choices(gamma=gamma, policy=mdp.policy, ratio=ratio))
    exact = lg.solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=0, clone=0).value
    for ridge in (1e-5, 1e-4):
        judged = judge(operator, ridge, 1.0, CONTROLS)
        moved = lg.solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=ridge, clone=0).value
        assert judged.bias == pytest.approx(moved - exact, rel=0.05, abs=1e-9)


def log_again(mdp, seed, n_steps=2000):
    """Another log of the same MDP, one long path."""
    rng = np.random.default_rng(seed)
    action = rng.integers(2, size=n_steps)
    chance = rng.random(n_steps)
    cumulative = np.cumsum(mdp.kernel, axis=2)
    path = [0]
    for a, u in zip(action, chance, strict=True):
        path.append(min(int(np.searchsorted(cumulative[path[-1], a], u)), 5))
    state, following = np.array(path[:-1]), np.array(path[1:])
    reward = mdp.reward[state, action] + rng.normal(size=n_steps)
    return lg.Counts.from_transitions(state, following, action, reward, n_states=6, n_actions=2)


def test_the_standard_error_is_that_of_repeated_logs():
    mdp = logged_mdp(6)
    values, errors = [], []
    for seed in range(120):
        counts = log_again(mdp, seed)
        operator = compose(counts, Choices(policy=mdp.policy, ratio="state_action"))
        errors.append(judge(operator, 1e-6, 1.0, CONTROLS).standard_error)
        values.append(lg.solve(counts, policy=mdp.policy, ratio="state_action", ridge=1e-6).value)
    assert np.median(errors) == pytest.approx(np.std(values), rel=0.2)


def test_the_ridge_is_lowered_where_it_biases_the_value():
    """On a slow ring the ridge 1 / N draws tau visibly toward 1."""
    counts = ring(0)
    policy = np.tile([0.45, 0.55], (40, 1))
    operator = compose(counts, Choices(policy=policy, ratio="state_action"))
    level = 1.0 / counts.total
    judged = judge(operator, level, 1.0, CONTROLS)
    choices = Choices(policy=policy, ratio="state_action")
    _, fit = fit_automatically(counts, choices, None, 1.0, CONTROLS)
    lowered = fit.system.ridge < level
    assert lowered == (abs(judged.bias) > judged.standard_error)
    final = judge(operator, fit.system.ridge, 1.0, CONTROLS)
    assert abs(final.bias) <= final.standard_error


def test_rewards_unknown_leave_a_small_ridge():
    mdp = logged_mdp(3)
    silent = replace(mdp.counts, reward_count=None, reward_mean=None, reward_m2=None)
    solution = lg.solve(silent, policy=mdp.policy)
    assert solution.ridge <= 1e-5
    assert solution.value is None


def test_freed_rows_keep_the_distribution_a_distribution():
    """Rows whose weights do not total 1 send the rest to the restart distribution: mass is kept."""
    mdp = logged_mdp(3, n_episodes=3, length=6)
    for gamma in (0.9, 1.0):
        operator = compose(mdp.counts, Choices(gamma=gamma, policy=mdp.policy, clone="auto", row_freedom=1.0))
        assert not np.allclose(operator.policy.sum(axis=1), 1.0)
        assert np.allclose(operator.chain.pull(np.ones(6)), 1.0)
        distribution = np.random.default_rng(0).dirichlet(np.ones(6))
        assert operator.next_state_distribution(operator.spread(distribution)).sum() == pytest.approx(1.0)
        assert np.allclose(
            operator.next_state_distribution(operator.spread(distribution)), operator.chain.push(distribution)
        )


def test_a_known_behavior_may_serve_the_clone():
    mdp = logged_mdp(3)
    uniform = np.full(mdp.policy.shape, 0.5)
    plain = lg.solve(mdp.counts, policy=mdp.policy, behavior=uniform, ratio="state", ridge=0)
    cloned = lg.solve(mdp.counts, policy=mdp.policy, behavior=uniform, ratio="state", ridge=0, clone="auto")
    visits = mdp.counts.cell_count.reshape(6, 2).sum(axis=1)
    assert (visits > 15).any()
    often = visits > 15
    assert np.allclose(cloned.operator.policy[often], mdp.policy[often], atol=1e-3)
    assert not np.allclose(plain.operator.policy[often], mdp.policy[often], atol=1e-3)


def test_nothing_to_learn_from_is_said_as_ever():
    with pytest.raises(ValueError, match="no transitions"):
        lg.solve(lg.Counts.empty(3, 2), policy=np.full((3, 2), 0.5))


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_terminal_states(gamma):
    """Two-step episodes; the default agrees with what is plain to see."""
    n = 200
    action = np.random.default_rng(0).integers(2, size=2 * n)
    counts = lg.Counts.from_transitions(
        np.tile([0, 1], n), np.tile([1, 1], n), action, 1.0 * action,
        np.repeat(np.arange(n), 2), terminal=np.tile([False, True], n),
    )  # fmt: skip
    solution = lg.solve(counts, gamma, policy=np.array([[0.2, 0.8], [0.5, 0.5]]))
    expected = (0.8 + 0.5) / 2 if gamma == 1.0 else 0.1 * (0.8 + 0.9 * 0.5)
    assert solution.value == pytest.approx(expected, abs=2e-3)
    assert solution.terminal_mass == pytest.approx(0.81 if gamma < 1 else 0.0, abs=2e-3)
