"""Transitions, policies over them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import lingendice as lg
from lingendice.continuous.samples import Scaling, prepare
from lingendice.data.policies import GaussianPolicy, SampledPolicy

STATE = np.arange(8.0).reshape(4, 2)


def test_kinds_and_episodes():
    log = lg.Transitions(STATE, [0, 1, 0, 1], np.ones(4), STATE, truncated=[0, 1, 0, 0])
    assert repr(log) == "Transitions(4 rows, states of 2 coordinates, 2 actions, 2 episodes)"
    np.testing.assert_array_equal(log.first_states, STATE[[0, 2]])
    ids = lg.Transitions([0, 1, 2], None, None, [1, 2, 0], n_states=5)
    assert (ids.n_states, ids.n_actions, ids.first_states) == (5, None, None)
    vectors = lg.Transitions(STATE, STATE[:, :1], None, STATE, episode=["b", "a", "b", "a"])
    np.testing.assert_array_equal(vectors.first_states, STATE[[1, 0]])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"next_state": STATE[:2]}, "next_state has 2 rows"),
        ({"next_state": STATE[:, :1]}, "states of one kind"),
        ({"action": [0, 1]}, "action has 2 rows"),
        ({"action": [0, -1, 0, 0]}, r"action\[1\] is -1"),
        ({"reward": [0, np.nan, 0, 0]}, r"reward\[1\]"),
        ({"terminal": [0, 2, 0, 0]}, r"terminal\[1\]"),
        ({"state": [[0.0, np.inf]] * 4}, r"state\[0, 1\]"),
        ({"n_actions": 1, "action": [0, 1, 0, 0]}, "n_actions is 1"),
        ({"n_states": 3}, "n_states is given"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        lg.Transitions(**{"state": STATE, "next_state": STATE, **arguments})


def test_policies_must_fit():
    log = lg.Transitions(STATE, [0, 1, 0, 1], np.ones(4), STATE, initial_state=STATE[:1])
    for policy, words in (
        (None, "policy is missing"),
        (np.full((4, 2), 0.5), "states are vectors"),
        (lambda s: np.ones((len(s), 2)), "sums to 2"),
        (lambda s: np.full((len(s), 4), 0.25), "knows 4 actions"),
        (GaussianPolicy(lambda s: s, 1.0), "does not fit"),
    ):
        with pytest.raises(ValueError, match=words):
            lg.solve(log, 0.9, policy=policy, method="gendice")
    with pytest.raises(ValueError, match="initial distribution is unknown"):
        lg.solve(lg.Transitions(STATE, None, None, STATE), 0.9, method="gendice")
    with pytest.raises(ValueError, match="no entry 'widht'"):
        lg.solve(log, 0.9, policy=[0.5, 0.5], method="gendice", options={"widht": 3})
    with pytest.raises(ValueError, match="smoothing does not apply"):
        lg.solve(log, 0.9, policy=[0.5, 0.5], smoothing=1.0)
    with pytest.raises(ValueError, match="method must be one of"):
        lg.solve(log, 0.9, policy=[0.5, 0.5], method="gth")
    with pytest.raises(ValueError, match="no density"):
        SampledPolicy(lambda s, rng: s).log_density(STATE, STATE)


def test_clipped_densities_are_those_of_the_samples():
    policy = GaussianPolicy(lambda s: 0.6 + 0.0 * s[:, :1], 0.5, low=-1.0, high=1.0)
    states = np.zeros((200_000, 1))
    actions = policy.sample(states, np.random.default_rng(0))
    at_top = np.exp(policy.log_density(states[:1], np.array([[1.0]])))[0]
    assert at_top == pytest.approx(stats.norm.sf(0.8), rel=1e-9)
    assert np.mean(actions == 1.0) == pytest.approx(at_top, abs=4e-3)
    inside = np.exp(policy.log_density(states[:1], np.array([[0.2]])))[0]
    assert inside == pytest.approx(stats.norm.pdf(0.2, 0.6, 0.5), rel=1e-9)


def test_preparing_evaluates_the_policy_on_states_as_given():
    seen = []

    def policy(states):
        seen.append(states.copy())
        return np.tile([0.25, 0.75], (len(states), 1))

    log = lg.Transitions(STATE, [0, 1, 0, 1], np.ones(4), STATE + 1.0, initial_state=STATE[:1])
    samples = prepare(log, policy, 0.9)
    assert sorted(len(states) for states in seen) == [1, 4]
    assert any(np.array_equal(states, STATE + 1.0) for states in seen)
    together = np.concatenate([samples.logged[:, :2], samples.following.states])
    np.testing.assert_allclose(together.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(together.std(axis=0), 1.0, atol=1e-6)
    np.testing.assert_array_equal(samples.logged[:, 2:], np.eye(2)[[0, 1, 0, 1]])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_scaling_is_affine_and_keeps_constants(values):
    column = np.array(values)[:, None]
    scaling = Scaling.of(column)
    np.testing.assert_allclose(
        scaling(column) * scaling.scale + scaling.shift, column, atol=1e-6 * (1 + np.abs(column).max())
    )
    assert np.isfinite(scaling(column)).all()


@pytest.mark.parametrize(
    ("state", "action", "message"),
    [
        ([-1], [0], r"state\[0\] is -1, outside 0\.\.2"),
        ([3], [0], r"state\[0\] is 3, outside 0\.\.2"),
        ([True], [0], "state must be one-dimensional integers"),
        ([0], [-1], r"action\[0\] is -1, outside 0\.\.1"),
        ([0], np.ma.masked_array([1], [True]), r"action\[0\] is missing"),
    ],
)
def test_ratios_are_asked_for_at_states_and_actions_that_exist(state, action, message):
    log = lg.Transitions([0, 1, 2], [0, 1, 0], None, [1, 2, 0], initial_state=[0])
    samples = prepare(log, [0.5, 0.5], 0.9)
    assert samples.inputs(np.array([2], np.uint8), [1]).tolist() == [[0, 0, 1, 0, 1]]
    with pytest.raises(ValueError, match=message):
        samples.inputs(state, action)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"terminals": [0, np.nan, 1]}, r"terminals\[1\] is nan; flags are"),
        ({"terminals": [0, 2, 1]}, r"terminals\[1\] is 2; flags are"),
        (
            {"observations": np.ma.masked_array(np.ones((3, 1)), [[0], [1], [0]])},
            r"observations\[1, 0\] is",
        ),
        ({"timeouts": [0, -1, 0]}, r"timeouts\[1\] is -1; flags are"),
        ({"rewards": [1.0, 2.0]}, "reward has 2 entries but observations has 3"),
        ({"next_observations": np.zeros((2, 1))}, "next_state has 2 entries but observations has 3"),
    ],
)
def test_columns_of_d4rl_that_do_not_fit(changed, says):
    log = {
        "observations": np.arange(3.0)[:, None], "actions": [0, 1, 0], "rewards": np.ones((3, 1)),
        "terminals": np.array([[0], [0], [1]]), "next_observations": np.ones((3, 1)),
    }  # fmt: skip
    assert lg.Transitions.from_d4rl(log).terminal.tolist() == [False, False, True]
    with pytest.raises(ValueError, match=says):
        lg.Transitions.from_d4rl({**log, **changed})


def test_steps_of_too_few_entries_are_named():
    with pytest.raises(ValueError, match="a step has 5 entries; give"):
        lg.Transitions.from_gymnasium([(0, 0, 1.0, 1, False)])


def test_no_step_is_taken_for_a_reset_where_environments_reset_otherwise():
    # A walk of no reward that is cut off where episodes begin goes on as if from a reset.
    alone = [(0, 1, 0.0, 1, False, False), (1, 0, 0.0, 0, False, True), (0, 1, 0.0, 1, False, False)]
    read = lg.Transitions.from_gymnasium(alone)
    assert (len(read), read.n_episodes) == (3, 2)
    none, vector = np.zeros(1, bool), [[np.array([entry]) for entry in step] for step in alone]
    infos = [{}, {"final_obs": np.array([0])}, {}]
    read = lg.Transitions.from_gymnasium([(*step, info) for step, info in zip(vector, infos, strict=True)])
    assert (len(read), read.n_episodes) == (3, 2)
    later = [vector[0], vector[1], [np.array([0]), np.array([1]), np.zeros(1), np.array([0]), none, none]]
    assert len(lg.Transitions.from_gymnasium(map(tuple, later))) == 2


def test_empty_columns_are_refused():
    state = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"action must have shape \(rows, coordinates\), got \(3, 0\)"):
        lg.Transitions(state, np.zeros((3, 0)), next_state=state)
    nothing = {"observations": state[:0], "actions": [], "rewards": [], "terminals": []}
    with pytest.raises(ValueError, match="state has no rows"):
        lg.Transitions.from_d4rl(nothing)
    with pytest.raises(ValueError, match="initial_state has no rows; leave it out"):
        lg.Transitions(state, next_state=state, initial_state=np.zeros((0, 2)))
