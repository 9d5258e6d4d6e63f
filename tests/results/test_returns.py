"""Returns and lengths of episodes against dynamic programming, their intervals against resampling."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from toy_text import corridor, gymnasium_rules

import lingendice as lg

PROBLEMS = {
    "lake": lambda: gymnasium_rules("FrozenLake-v1"),
    "cliff": lambda: gymnasium_rules("CliffWalking-v1", policy_seed=3),
    "corridor": corridor,
}


@cache
def short_log(seed):
    """60 episodes of the corridor."""
    return corridor().sample(60, seed)


PLUG_IN = {"ridge": 0, "clone": 0, "ratio": "state_action"}


@pytest.mark.parametrize("gamma", [0.9, 0.999, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_returns_and_lengths_are_those_of_dynamic_programming(name, gamma):
    rules = PROBLEMS[name]()
    solution = lg.solve(rules.counts, gamma, policy=rules.policy, initial=rules.initial, **PLUG_IN)
    assert solution.expected_return == pytest.approx(rules.dynamic_programming(gamma), rel=1e-9)
    ones = np.ones(rules.reward.size)
    assert solution.expected_length == pytest.approx(rules.dynamic_programming(gamma, reward=ones), rel=1e-9)
    assert solution.to_dict()["expected_return"] == solution.expected_return
    shown = str(solution)
    assert f"{solution.value:.6g}" in shown
    assert f"{solution.expected_return:.6g}" in shown
    assert ("undiscounted" if gamma == 1.0 else "discounted: value / (1 - gamma)") in shown


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_default_tends_to_the_same_returns(gamma):
    rules = corridor()
    many = rules.sample(4000, seed=0)
    solution = lg.solve(many, gamma, policy=rules.policy)
    assert solution.method == "shrinkage"
    for of, reward in (("return", None), ("length", np.ones(rules.reward.size))):
        truth = rules.dynamic_programming(gamma, reward=reward)
        found = solution.interval(of=of)
        assert found.estimate == (solution.expected_return if of == "return" else solution.expected_length)
        assert found.estimate == pytest.approx(truth, rel=0.03)
        assert found.contains(truth)
        assert found.bias_allowance > 0.0


@pytest.mark.parametrize("of", ["return", "length"])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_standard_error_is_that_of_resampling_and_of_new_logs(gamma, of):
    """The delta method beside the bootstrap of one log, and beside the spread over 200 logs."""
    rules = corridor()

    def estimate(solution):
        return solution.expected_return if of == "return" else solution.expected_length

    def solved(seed):
        return lg.solve(short_log(seed), gamma, policy=rules.policy, **PLUG_IN)

    many = [solved(seed) for seed in range(200)]
    spread = np.std([estimate(one) for one in many], ddof=1)
    closed = np.mean([one.interval(of=of).standard_error for one in many[:40]])
    assert closed == pytest.approx(spread, rel=0.15)  # the spread of 200 is known to 5 %
    first = many[0]
    drawn = first.interval(of=of, method="bootstrap", replicates=400)
    assert first.interval(of=of).standard_error == pytest.approx(drawn.standard_error, rel=0.15)


@pytest.mark.parametrize("of", ["return", "length"])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_intervals_cover(gamma, of):
    rules = corridor()
    truth = rules.dynamic_programming(gamma, reward=None if of == "return" else np.ones(rules.reward.size))
    held = [
        lg.solve(short_log(1000 + seed), gamma, policy=rules.policy, **PLUG_IN).interval(of=of)
        for seed in range(200)
    ]
    assert 0.91 <= np.mean([found.contains(truth) for found in held]) <= 0.98


def test_a_discounted_return_is_the_value_in_other_units():
    rules = corridor()
    solution = lg.solve(rules.sample(30, 1), 0.9, policy=rules.policy)
    value, total = solution.interval(0.9), solution.interval(0.9, of="return")
    for name in ("low", "high", "estimate", "standard_error", "bias_allowance"):
        assert getattr(total, name) == pytest.approx(10.0 * getattr(value, name), rel=1e-12)


def test_rewards_by_state_count_as_given():
    rules = corridor()
    reward = np.linspace(-1.0, 1.0, rules.n_states)
    options = {"policy": rules.policy, "initial": rules.initial, "reward": reward, **PLUG_IN}
    solution = lg.solve(rules.counts, **options)
    truth = rules.dynamic_programming(1.0, reward=reward[rules.state])
    assert solution.expected_return == pytest.approx(truth, rel=1e-10)
    assert solution.interval(of="return").estimate == solution.expected_return
    assert solution.interval(of="return").standard_error > 0.0


def test_a_length_needs_no_rewards():
    rules = corridor()
    counts = lg.Counts.from_transitions(
        rules.state, rules.next_state, action=rules.action, terminal=rules.ends, weight=rules.chance * 40
    )
    solution = lg.solve(counts, policy=rules.policy, initial=rules.initial)
    assert solution.expected_return is None
    ones = np.ones(rules.reward.size)
    assert solution.expected_length == pytest.approx(rules.dynamic_programming(1.0, reward=ones), rel=1e-10)
    assert solution.interval(of="length").standard_error > 0.0
    with pytest.raises(ValueError, match="no rewards"):
        solution.interval(of="return")


def test_a_length_without_ends_is_known_but_for_unseen_ones():
    """All rewards of a length are 1, which says nothing against it: its interval was infinite."""
    rng = np.random.default_rng(0)
    state, action = rng.integers(3, size=600), rng.integers(2, size=600)
    counts = lg.Counts.from_transitions(state, (state + action) % 3, action=action, reward=rng.random(600))
    solution = lg.solve(counts, 0.9, policy=np.full((3, 2), 0.5), initial=0)
    low, high = solution.interval(of="length")
    assert 5.0 < low < high
    assert high == pytest.approx(10.0)


def test_without_ends_there_is_no_return_at_gamma_1():
    solution = lg.solve([[90, 10], [30, 70]], reward=[1.0, 2.0])
    assert solution.expected_return is None
    assert solution.expected_length is None
    with pytest.raises(ValueError, match="pass terminal="):
        solution.interval(of="return")
    discounted = lg.solve([[90, 10], [30, 70]], 0.5, reward=[1.0, 2.0])
    assert discounted.expected_return == pytest.approx(2.0 * discounted.value)
    assert discounted.expected_length == pytest.approx(2.0)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("of", ["return", "length"])
def test_what_is_said_of_a_return_is_in_its_units(gamma, of):
    """It told the allowance for bias of a value per step: a tenth of the return's at gamma = 0.9."""
    rng = np.random.default_rng(0)
    state, terminal = rng.integers(3, size=400), np.arange(400) % 4 == 3
    counts = lg.Counts.from_transitions(
        state, np.roll(state, -1), rng.integers(2, size=400), rng.normal(size=400), np.arange(400) // 4,
        terminal=terminal,
    )  # fmt: skip
    found = lg.solve(counts, gamma, policy=np.full((3, 2), 0.5)).interval(of=of)
    assert found.bias_allowance > 0.0
    assert str(found).endswith(f"allows {found.bias_allowance:.3g} for bias)")


@pytest.mark.parametrize("of", ["return", "length"])
def test_why_there_is_no_return(of):
    """Of several distributions it was said that the data hold no rewards, or no ends of episodes."""
    rows = {"state": [0, 1, 0, 1, 2, 3, 2, 3, 4], "next_state": [1, 0, 1, 0, 3, 2, 3, 2, 4]}
    reward, ends = [1.0, 0, 1, 0, 2, 0, 2, 0, 1], [0] * 8 + [1]
    for terminal in (None, ends):
        several = lg.solve(
            lg.Counts.from_transitions(
                **rows, reward=reward, terminal=terminal, episode=[0] * 4 + [1] * 4 + [2]
            )
        )
        assert several.status is lg.Status.SEVERAL_DISTRIBUTIONS
        with pytest.raises(ValueError, match=r"there are \d stationary distributions.*pass initial="):
            several.interval(of=of)
    # The log ends where the policy does not: state 1 under action 1.
    log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 0], "action": [0, 0, 0, 1]}
    counts = lg.Counts.from_transitions(**log, reward=[1.0, 0, 1, 5], terminal=[0, 0, 0, 1], episode=[0] * 4)
    for options in ({}, PLUG_IN):
        endless = lg.solve(counts, policy=[0, 0], **options)
        with pytest.raises(ValueError, match="none ends: the ends that the data have are not reached"):
            endless.interval(of=of)
    without = lg.solve(lg.Counts.from_transitions([0, 1, 0], [1, 0, 1], reward=[1.0, 0, 1]))
    with pytest.raises(ValueError, match="the data have no ends of episodes"):
        without.interval(of=of)
