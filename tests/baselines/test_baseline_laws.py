"""Metamorphic laws of the baselines: names, units, copies and the order of rows of a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_close, few, problems, shuffled, twice, with_actions_renamed, with_states_renamed

import lingendice as lg

baselines = lg.baselines
HORIZON = 4


def episodic(method, **options):
    """Weights of episodes: over a horizon at gamma = 1, where ends have no mean over logged steps."""

    def solve(problem, counts):
        horizon = {"horizon": HORIZON} if problem.gamma == 1.0 else {}
        return method(counts, problem.gamma, policy=problem.policy, **horizon, **options)

    return solve


def discounted(method, **options):
    return lambda problem, counts: method(counts, min(problem.gamma, 0.97), policy=problem.policy, **options)


def any_gamma(method, **options):
    return lambda problem, counts: method(counts, problem.gamma, policy=problem.policy, **options)


COUNTS_ALONE = {
    "model_based": any_gamma(baselines.model_based),
    "ips": any_gamma(baselines.ips),
    "dual_dice": discounted(baselines.dual_dice),
    "gradient_dice": any_gamma(baselines.gradient_dice),
    "best_dice": any_gamma(baselines.best_dice, alpha_nu=0.01, alpha_reward=0.0),
}
OF_EPISODES = {
    "naive_average": lambda problem, counts: baselines.naive_average(counts, problem.gamma),
    "trajectory_wise": episodic(baselines.trajectory_wise),
    "unweighted trajectory_wise": episodic(baselines.trajectory_wise, weighted=False),
    "step_wise": episodic(baselines.step_wise),
    "per_decision": episodic(baselines.per_decision),
    "doubly_robust": discounted(baselines.doubly_robust),
    "weighted doubly_robust": discounted(baselines.doubly_robust, weighted=True),
}
ALL = COUNTS_ALONE | OF_EPISODES


def assert_same(found, expected, factor=1.0, errors=1.0):
    """Value and standard error, the rewards multiplied by ``factor``; the same status."""
    assert found.status is expected.status
    assert_close(found.value, factor * expected.value, factor)
    before = getattr(expected, "standard_error", None)
    if before is not None:
        assert_close(found.standard_error, factor * errors * before, factor)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems())
def test_names_of_states_and_actions_do_not_matter(name, problem):
    expected = ALL[name](problem, problem.counts())
    renamed, new_name = with_states_renamed(problem)
    found = ALL[name](renamed, renamed.counts())
    assert_same(found, expected)
    assert_close(found.state_distribution[new_name], expected.state_distribution)
    renamed = with_actions_renamed(problem)
    assert_same(ALL[name](renamed, renamed.counts()), expected)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems(), factor=st.sampled_from([1e-6, 0.37, 1000.0]))
def test_the_unit_of_reward_does_not_matter(name, problem, factor):
    scaled = replace(problem, reward=factor * problem.reward)
    assert_same(ALL[name](scaled, scaled.counts()), ALL[name](problem, problem.counts()), factor)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems())
def test_a_log_said_twice_says_the_same(name, problem):
    """The standard error shrinks by the root of 2, but for n / (n - 1) of each number of episodes."""
    both, n = twice(problem), np.unique(problem.episode).size
    errors = np.sqrt(0.5 * (2 * n) / (2 * n - 1) * (n - 1) / n)
    expected = ALL[name](problem, problem.counts())
    assert_same(ALL[name](both, both.counts()), expected, errors=errors)


@pytest.mark.parametrize("name", COUNTS_ALONE)
@few
@given(problem=problems())
def test_weights_of_two_are_rows_said_twice(name, problem):
    heavy = replace(problem, weight=np.full(problem.rows, 2))
    assert_same(ALL[name](heavy, heavy.counts(keep=False)), ALL[name](problem, problem.counts(keep=False)))


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems(), cut=st.integers(1, 10))
def test_neither_the_order_of_rows_nor_a_merge_matters(name, problem, cut):
    expected = ALL[name](problem, problem.counts())
    other = shuffled(problem)
    assert_same(ALL[name](other, other.counts()), expected)
    first = problem.episode < cut
    one, two = (problem.taking(np.flatnonzero(part)).counts() for part in (first, ~first))
    assert_same(ALL[name](problem, one + two), expected)
    assert_same(ALL[name](problem, two + one), expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["i1", "u2", ">i4"])
@few
@given(problem=problems(gammas=(0.97, 1.0)))
def test_integer_types_give_the_same_bits(name, dtype, problem):
    columns = ("state", "next_state", "action", "episode")
    other = replace(problem, **{column: getattr(problem, column).astype(dtype) for column in columns})
    found, expected = ALL[name](other, other.counts()), ALL[name](problem, problem.counts())
    assert found.value == expected.value or np.isnan(expected.value)
