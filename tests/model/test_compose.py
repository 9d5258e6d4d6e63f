"""Policies, restarts and terminals as the user's choices shape them."""

from __future__ import annotations

import numpy as np
import pytest
from problems import logged_mdp

import lingendice as lg
from lingendice.model.compose import Choices, compose, effective_policy


@pytest.fixture
def counts():
    # state 0: action 0 three times, 1 once, 2 never; state 1: action 2 alone; state 2 never left
    return lg.Counts.from_transitions(
        [0, 0, 0, 0, 1], [1, 1, 0, 1, 2], action=[0, 0, 0, 1, 2], n_states=3, n_actions=3
    )


POLICY = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]])


def policy_of(counts, **choices):
    return effective_policy(counts, Choices(policy=POLICY, **choices))[0]


def test_state_action_ratio_follows_the_target(counts):
    assert np.array_equal(policy_of(counts), POLICY)


def test_unseen_actions_renormalized(counts):
    policy = policy_of(counts, ratio="state")
    assert np.allclose(policy[0], [0.4, 0.6, 0.0])
    assert np.allclose(policy[1], [0.0, 0.0, 1.0])
    assert np.allclose(policy[2], POLICY[2])  # never visited: its cells leak


def test_unseen_actions_take_the_mean(counts):
    policy = policy_of(counts, ratio="state", unseen="mean")
    assert np.allclose(policy[0], [0.2 + 0.5 * 0.75, 0.3 + 0.5 * 0.25, 0.0])
    assert np.allclose(policy[1], [0.0, 0.0, 1.0])


def test_no_mean_is_taken_where_all_actions_of_the_target_were_logged():
    """1 - (sum of a row) is 2.2e-16 here: it joined two classes by an action that the target never takes."""
    row = np.array([13, 19, 16, 15, 14, 3, 0]) / 80
    state, action = np.repeat([0, 1], 7), np.tile(np.arange(7), 2)
    following = np.where(action < 6, state, 1 - state)
    log = lg.Counts.from_transitions(state, following, action, reward=state, episode=state)
    target = np.stack([row, row])
    choices = Choices(policy=target, unseen="mean")
    assert not effective_policy(log, choices)[0][:, 6].any()
    found = lg.solve(log, policy=target, unseen="mean", ridge=0, clone=0)
    assert found.status is lg.Status.SEVERAL_DISTRIBUTIONS


def test_unseen_actions_leak(counts):
    assert np.allclose(policy_of(counts, ratio="state", unseen="leak"), POLICY)


def test_clone_shrinks_toward_the_behavior(counts):
    n = np.array([3.0, 1.0, 0.0])
    strength = 4.0
    expected = POLICY[0] * n / (n + strength * POLICY[0])
    assert np.allclose(policy_of(counts, ratio="state", clone=strength)[0], expected / expected.sum())
    huge = policy_of(counts, ratio="state", clone=1e12)[0]
    assert np.allclose(huge, n / n.sum(), atol=1e-9)


def test_known_behavior_weights_have_mean_one_in_each_state(counts):
    behavior = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
    policy = policy_of(counts, ratio="state", behavior=behavior)
    expected = np.array([3 * 0.2 / 0.5, 1 * 0.3 / 0.25, 0.0])
    assert np.allclose(policy[0], expected / expected.sum())


def test_behavior_that_excludes_a_logged_action_is_refused(counts):
    with pytest.raises(ValueError, match=r"behavior\[0, 1\] is 0 but that action was logged"):
        policy_of(counts, ratio="state", behavior=[[1, 0, 0], [0, 0, 1], [1, 0, 0]])


def test_without_a_policy_the_logged_chain_is_followed(counts):
    policy, ratio = effective_policy(counts, Choices())
    assert ratio == "state"
    assert np.allclose(policy[0], [0.75, 0.25, 0.0])


def test_deterministic_policies_are_one_action_a_state(counts):
    table = effective_policy(counts, Choices(policy=[1, 2, 0]))[0]
    assert np.array_equal(table, np.eye(3)[[1, 2, 0]])


def test_default_initial_distributions():
    chain = lg.Counts.from_transitions([0, 1], [1, 0])
    assert compose(chain, Choices(gamma=1.0)).initial is None
    assert np.allclose(compose(chain, Choices(gamma=0.9)).initial, 0.5)
    logged = lg.Counts.from_transitions([0, 1, 1], [1, 0, 0], episode=[0, 0, 1])
    assert np.allclose(compose(logged, Choices(gamma=0.9)).initial, [0.5, 0.5])
    mdp = lg.Counts.from_transitions([0, 1], [1, 0], action=[0, 0])
    with pytest.raises(ValueError, match="distribution of the first state"):
        compose(mdp, Choices(gamma=0.9))


def test_restart_defaults_to_initial_or_data_distribution():
    dangling = lg.Counts.from_transitions([0, 0, 1], [1, 2, 2], n_states=3)
    assert np.allclose(compose(dangling, Choices(gamma=1.0)).rows.distribution, [[2 / 3, 1 / 3, 0]])
    assert np.allclose(compose(dangling, Choices(gamma=0.5)).rows.distribution, [[1 / 3, 1 / 3, 1 / 3]])
    assert np.allclose(
        compose(dangling, Choices(gamma=0.5, restart=[1, 0, 0])).rows.distribution, [[1, 0, 0]]
    )


def test_distributions_that_coincide_share_one_hub():
    log = lg.Counts.from_transitions([0, 1, 0], [1, 2, 1], terminal=[0, 1, 0], episode=[0, 0, 1], n_states=3)
    operator = compose(log, Choices(gamma=0.9, terminal="restart"))
    assert operator.rows.distribution.shape[0] == 1
    assert np.allclose(operator.rows.keep + operator.rows.out[:, 0], 1.0)


def test_terminal_needs_an_initial_distribution():
    log = lg.Counts.from_transitions([0, 1], [1, 0], terminal=[0, 1], episode=[0, 0])
    assert compose(log, Choices(gamma=1.0)).initial is not None
    with pytest.raises(ValueError, match='terminal="absorb"'):
        compose(log, Choices(gamma=1.0, terminal="absorb"))


def test_rewards_of_every_shape():
    mdp = logged_mdp(0, n_episodes=3, length=10)
    by_state = compose(mdp.counts, Choices(policy=mdp.policy, reward=np.arange(6))).reward
    by_cell = compose(mdp.counts, Choices(policy=mdp.policy, reward=np.repeat(np.arange(6), 2))).reward
    by_table = compose(
        mdp.counts, Choices(policy=mdp.policy, reward=np.repeat(np.arange(6), 2).reshape(6, 2))
    ).reward
    assert np.array_equal(by_state, by_cell)
    assert np.array_equal(by_state, by_table)
    with pytest.raises(ValueError, match="reward has shape"):
        compose(mdp.counts, Choices(policy=mdp.policy, reward=np.arange(5)))
