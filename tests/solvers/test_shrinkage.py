"""The shrinkage estimate against loops over raw transitions, on degenerate logs, and as data grow."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import A, S, count, exact, random_mdp, walk
from problems import logged_mdp
from shrinkage_by_hand import FEW, ByHand, deterministic_log, few_actions

import lingendice as lg
from lingendice.model.compose import Choices
from lingendice.solvers import control, shrinkage
from lingendice.solvers.shrinkage import shrink

# Rows out of order are among what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("ending", [0.0, 0.15])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_what_loops_over_transitions_give(gamma, ending, seed):
    mdp = few_actions(random_mdp())
    log = walk(mdp, **FEW, seed=seed, ending=ending)
    expected = ByHand(log, mdp["policy"], gamma)
    found = shrink(count(log), Choices(gamma=gamma, policy=mdp["policy"]))
    assert (expected.k == 0).any()
    assert expected.gate > 0
    assert found.kappa == pytest.approx(expected.kappa, rel=1e-6)
    assert found.gate == pytest.approx(expected.gate, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(found.operator.policy, expected.policy, atol=1e-6)
    np.testing.assert_allclose(found.delta, expected.delta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.state_distribution, expected.distribution, atol=1e-7)
    np.testing.assert_allclose(found.values, expected.V, rtol=1e-5, atol=1e-5)
    assert found.value == pytest.approx(expected.value, rel=1e-5, abs=1e-7)
    assert found.ridge_error == pytest.approx(expected.ridge_error, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_order_of_rows_does_not_matter_to_the_value(gamma):
    mdp = few_actions(random_mdp())
    log = walk(mdp, **FEW, seed=3)
    first = np.flatnonzero(np.r_[True, log["episode"][1:] != log["episode"][:-1]])
    start = np.bincount(log["state"][first], minlength=S) / first.size
    order = np.random.default_rng(0).permutation(log["state"].size)
    shuffled = {name: column[order] for name, column in log.items()}
    values = [
        shrink(count(one), Choices(gamma=gamma, policy=mdp["policy"], initial=start)).value
        for one in (log, shuffled)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-7)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_actions_that_nobody_takes_do_not_matter(gamma):
    mdp = random_mdp()
    log = walk(mdp, 8, 8, seed=27) | {"terminal": None}
    found = []
    for more in (0, 5):
        counts = lg.Counts.from_transitions(**log, n_states=S, n_actions=A + more, keep_episodes=True)
        policy = np.column_stack([mdp["policy"], np.zeros((S, more))])
        told = lg.solve(counts, gamma, policy=policy).interval()
        found.append((told.estimate, told.standard_error, told.bias_allowance))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-8)


@given(st.integers(0, 10_000), st.sampled_from([0.3, 0.9, 0.99, 0.9999]), st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=30, deadline=None)
def test_stationary_and_terminal_mass_are_1(seed, gamma, ending):
    mdp = few_actions(random_mdp())
    counts = count(walk(mdp, 6, 5, seed=seed, ending=ending))
    found = shrink(counts, Choices(gamma=gamma, policy=mdp["policy"]))
    assert found.state_distribution.sum() + found.terminal_mass == pytest.approx(1.0, abs=1e-7)
    assert (found.state_distribution >= 0).all()
    np.testing.assert_allclose(found.operator.policy.sum(axis=1), 1.0, atol=1e-12)
    unlogged = (found.cell_count == 0) & found.visited[:, None]
    assert (found.operator.policy[unlogged] == 0).all()


def test_a_corridor_that_ends_has_its_return():
    """Ten steps at -1: a ridge toward mass 1 would make it -442."""
    steps = np.arange(10)
    log = {"state": np.tile(steps, 3), "next_state": np.tile(steps + 1, 3), "action": np.zeros(30, int)}
    end = np.tile(steps == 9, 3)
    counts = lg.Counts.from_transitions(
        **log, reward=-np.ones(30), episode=np.repeat([0, 1, 2], 10), terminal=end, n_states=11, n_actions=1
    )
    found = shrink(counts, Choices(gamma=0.9999, policy=np.ones((11, 1))))
    assert found.value / 1e-4 == pytest.approx(-(1 - 0.9999**10) / 1e-4, rel=1e-6)
    assert found.mass + found.terminal_mass == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_one_action_leaves_the_plug_in(gamma):
    mdp = random_mdp()
    log = walk(mdp, 10, 20, seed=1) | {"action": np.zeros(200, int)}
    counts = lg.Counts.from_transitions(**(log | {"terminal": None}), n_states=S, n_actions=1)
    found = shrink(counts, Choices(gamma=gamma, policy=np.ones((S, 1))))
    plain = lg.solve(counts, gamma, policy=np.ones((S, 1)), ridge=0.0, clone=0.0)
    assert found.value == pytest.approx(plain.value, rel=1e-5)
    assert not found.extra_reward.any()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_without_noise_nothing_is_shrunk(gamma):
    target = np.tile([0.2, 0.8], (5, 1))
    counts = deterministic_log(10, 40, 1)
    found = shrink(counts, Choices(gamma=gamma, policy=target))
    assert found.kappa == 0.0
    plain = lg.solve(counts, gamma, policy=target, ridge=0.0, clone=0.0, ratio="state_action")
    assert found.value == pytest.approx(plain.value, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_cells_seen_once_each_give_an_answer(gamma):
    state, action = np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    following = np.array([1, 2, 2, 3, 3, 0, 0, 1])
    counts = lg.Counts.from_transitions(
        state, following, action=action, reward=np.arange(8.0), episode=np.arange(8), n_states=4, n_actions=2
    )
    found = shrink(counts, Choices(gamma=gamma, policy=np.tile([0.9, 0.1], (4, 1))))
    assert 0.0 <= found.value <= 7.0
    assert found.kappa == 1.0


def test_a_single_transition_and_equal_rewards_give_that_reward():
    one = lg.Counts.from_transitions([0], [0], action=[0], reward=[3.0], episode=[0], n_actions=2)
    assert shrink(one, Choices(gamma=0.9, policy=[[0.5, 0.5]])).value == pytest.approx(3.0)
    mdp = random_mdp()
    log = walk(mdp, 5, 10, seed=1)
    same = count(log | {"reward": np.full(50, 2.5)})
    for gamma in (0.9, 1.0):
        assert shrink(same, Choices(gamma=gamma, policy=mdp["policy"])).value == pytest.approx(2.5)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_unlogged_states_leak_and_the_rest_answers(gamma):
    mdp = random_mdp()
    log = walk(mdp, 10, 10, seed=1)
    stay = log["state"] != 2
    counts = count({name: column[stay] for name, column in log.items()})
    found = shrink(counts, Choices(gamma=gamma, policy=mdp["policy"]))
    assert 0.0 < found.leak < 0.6
    assert found.identified == pytest.approx(1.0 - found.leak)
    assert found.operator.reward[:6].min() <= found.value <= np.nanmax(found.operator.reward)


def test_near_1_it_goes_over_into_that_of_gamma_1():
    log = walk(few_actions(random_mdp()), **FEW, seed=4)
    # State 0 loses its exits but the last, which now leads back to it: at gamma = 1 that is a trap.
    keep = log["state"] != 0
    keep[np.flatnonzero(~keep)[-1]] = True
    log = {name: column[keep] for name, column in log.items()}
    log["next_state"] = np.where(log["state"] == 0, 0, log["next_state"])
    counts, policy = count(log), random_mdp()["policy"]
    nearly, one = (shrink(counts, Choices(gamma=gamma, policy=policy)) for gamma in (1 - 1e-6, 1.0))
    assert nearly.value == pytest.approx(one.value, rel=1e-3)
    np.testing.assert_allclose(nearly.state_distribution, one.state_distribution, rtol=1e-3)
    assert nearly.state_distribution[0] < 0.5
    trapped = lg.solve(counts, 1 - 1e-6, policy=policy, ratio="state", ridge=0.0, clone=0.0)
    assert trapped.stationary[0] > 0.9


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_errors_fall_with_data_for_a_target_unlike_the_behavior(gamma):
    mdp = few_actions(random_mdp())
    # Every action is taken now and then: without that no data identify the value.
    mdp["behavior"] = 0.95 * mdp["behavior"] + 0.05 / A
    truth = exact(mdp, gamma)[0]
    errors = []
    for n_episodes in (4, 40, 400):
        logs = [count(walk(mdp, n_episodes, 20, seed=seed)) for seed in range(8)]
        off = [shrink(log, Choices(gamma=gamma, policy=mdp["policy"])).value - truth for log in logs]
        errors.append(np.sqrt(np.mean(np.square(off))))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < errors[0] / 3


def test_a_known_behavior_is_used():
    mdp = few_actions(random_mdp())
    counts = count(walk(mdp, 30, 20, seed=1))
    choices = Choices(gamma=0.9, policy=mdp["policy"])
    known = shrink(counts, choices._replace(behavior=mdp["behavior"]))
    assert known.behavior is not None
    assert known.value != shrink(counts, choices).value
    np.testing.assert_allclose(
        known.regression.features[:, 1], np.log(mdp["behavior"].ravel()[known.regression.cells]) + 1.5
    )


def test_a_known_behavior_goes_through_the_default():
    mdp = few_actions(random_mdp())
    counts = count(walk(mdp, 30, 20, seed=1))
    given = {"policy": mdp["policy"], "behavior": mdp["behavior"]}
    solution = lg.solve(counts, 0.9, **given)
    assert solution.method == "shrinkage"
    assert solution.value == pytest.approx(shrink(counts, Choices(gamma=0.9, **given)).value)
    taken = np.flatnonzero(counts.cell_count)[0]
    impossible = mdp["behavior"].copy()
    impossible[taken // A] = np.where(np.arange(A) == taken % A, 0.0, 1.0 / (A - 1))
    with pytest.raises(ValueError, match="is 0 but that action was logged"):
        lg.solve(counts, 0.9, policy=mdp["policy"], behavior=impossible)


def test_an_action_rarer_than_any_logged_is_not_extrapolated_to():
    mdp = few_actions(random_mdp())
    counts = count(walk(mdp, 30, 20, seed=1))
    never = counts.cell_count.reshape(S, A) == 0
    behavior = np.where(never, 1e-9, mdp["behavior"])
    behavior /= behavior.sum(axis=1, keepdims=True)
    found = shrink(counts, Choices(gamma=0.9, policy=mdp["policy"], behavior=behavior))
    least = np.log(behavior[~never].min()) + 1.5
    assert never.any()
    np.testing.assert_allclose(found.regression.fill_features[never.ravel(), 1], least)


def test_a_given_reward_takes_the_place_of_the_logs():
    mdp = random_mdp()
    counts = count(walk(mdp, 10, 20, seed=1))
    found = shrink(counts, Choices(gamma=0.9, policy=mdp["policy"], reward=np.full((S, A), 4.0)))
    assert found.value == pytest.approx(4.0)


def test_what_is_missing_is_named():
    mdp = random_mdp()
    log = walk(mdp, 3, 5, seed=1)
    with pytest.raises(ValueError, match="policy="):
        shrink(count(log), Choices(gamma=0.9))
    with pytest.raises(ValueError, match="no rewards"):
        shrink(count(log, reward=None), Choices(gamma=0.9, policy=mdp["policy"]))


@pytest.mark.slow
def test_taxi_takes_a_fifth_of_a_second():
    from lingendice.environments import taxi
    from lingendice.results.trust_checks import trust_checks

    trained = taxi.train_policies()
    counts = taxi.simulate(trained.base, 200, 400, seed=1).counts(keep_episodes=True)
    for gamma in (0.99, 1.0):
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            found = shrink(counts, Choices(gamma=gamma, policy=trained.target))
            trust_checks(found)
            seconds.append(time.perf_counter() - started)
        assert min(seconds) < 0.2


def test_what_asks_for_the_exact_equation_gets_it():
    mdp = logged_mdp(2)
    silent = replace(mdp.counts, reward_count=None, reward_mean=None, reward_m2=None)
    asked = [
        (mdp.counts, {"ridge": 0}), (mdp.counts, {"clone": 0}), (mdp.counts, {"method": "gth"}),
        (mdp.counts, {"leak": "absorb"}), (mdp.counts, {"unseen": "leak"}), (mdp.counts, {"smoothing": 0}),
        (mdp.counts, {"ratio": "state_action"}), (silent, {}),
    ]  # fmt: skip
    for counts, options in asked:
        solution = lg.solve(counts, 0.9, policy=mdp.policy, **options)
        assert solution.ridge == 0.0
        assert solution.method != "shrinkage"
        assert solution.operator.ratio == "state_action"
        assert np.allclose(solution.operator.policy, mdp.policy)


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


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_a_time_limit_ends_the_adjoint_solve(monkeypatch, gamma):
    """What runs out of time in the last adjoint solve is no solution."""
    n = 500
    rng = np.random.default_rng(0)
    state, action, following = rng.integers(0, n, 5000), rng.integers(0, 2, 5000), rng.integers(0, n, 5000)
    counts = lg.Counts.from_transitions(state, following, action, reward=rng.random(5000))
    choices = Choices(gamma=gamma, policy=np.full((n, 2), 0.5), initial=np.full(n, 1 / n))
    controls = control.Controls(tol=1e-8, time_limit=1e6)
    assert shrink(counts, choices, controls).solved.converged
    plain, begun = shrinkage._Estimate._limited, []

    def late(self):
        begun.append(1)
        if len(begun) == shrinkage.ROUNDS:
            self.rough = replace(self.rough, started=-1e9)
        return plain(self)

    monkeypatch.setattr(shrinkage._Estimate, "_limited", late)
    found = shrink(counts, choices, controls)
    assert len(begun) == shrinkage.ROUNDS
    assert found.solved.stopped is control.Stop.TIME
    assert not found.solved.converged
    assert np.isfinite(found.value)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_leaks_and_ends_have_the_value_of_the_plug_in(gamma):
    """One action, so that nothing is shrunk, and every reward negative.

    The largest reward times a mass that counted leaks in took the value below the plug-in's.
    """
    rng, n, lower = np.random.default_rng(0), 60, 0
    for _ in range(20):
        state, following = rng.integers(0, 3, n), rng.integers(0, 4, n)  # nothing leaves state 3
        counts = lg.Counts.from_transitions(
            state, following, np.zeros(n, int), -1.0 - rng.random(n) / 100, np.arange(n) // 6,
            terminal=rng.random(n) < 0.3, n_states=4, n_actions=1,
        )  # fmt: skip
        found = shrink(counts, Choices(gamma=gamma, policy=np.ones((4, 1))))
        plain = lg.solve(counts, gamma, policy=np.ones((4, 1)), ridge=0.0, clone=0.0)
        assert found.leak > 0.0
        assert found.terminal_mass > 0.0
        assert found.value == pytest.approx(plain.value, rel=1e-6)
        living = found.state_distribution[:3].sum()
        assert found.mass == pytest.approx(living / (1 - found.leak))
        lower += found.reward_bounds[1] * found.state_distribution.sum() < plain.value
    assert lower > 0  # where the bound was wrong
