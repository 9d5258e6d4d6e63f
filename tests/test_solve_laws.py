"""Metamorphic laws of ``solve``: what may be done to a log without changing its answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import (
    DEFAULT,
    EXACT,
    assert_close,
    few,
    problems,
    shuffled,
    twice,
    with_actions_renamed,
    with_states_renamed,
)

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
ALL = EXACT | DEFAULT
NUMBERS = ("value", "expected_return", "expected_length", "leak", "terminal_mass")


def assert_same_numbers(found, expected, factor=1.0):
    """Values, returns and bounds, the rewards multiplied by ``factor``; the same status."""
    assert found.status is expected.status
    for name in NUMBERS:
        rewarded = factor if name in ("value", "expected_return") else 1.0
        true = getattr(expected, name)
        assert_close(getattr(found, name), None if true is None else rewarded * true, rewarded)
    bounds = expected.value_bounds
    assert_close(found.value_bounds, None if bounds is None else factor * np.array(bounds), factor)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems())
def test_names_of_states_do_not_matter(name, problem):
    found = ALL[name](problem, problem.counts())
    renamed, new_name = with_states_renamed(problem)
    again = ALL[name](renamed, renamed.counts())
    assert_same_numbers(again, found)
    assert_close(again.state_distribution[new_name], found.state_distribution)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems())
def test_names_of_actions_do_not_matter(name, problem):
    renamed = with_actions_renamed(problem)
    assert_same_numbers(ALL[name](renamed, renamed.counts()), ALL[name](problem, problem.counts()))


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems(), factor=st.sampled_from([1e-6, 0.37, 1000.0]))
def test_the_unit_of_reward_does_not_matter(name, problem, factor):
    scaled = replace(problem, reward=factor * problem.reward)
    found = ALL[name](scaled, scaled.counts())
    assert_same_numbers(found, ALL[name](problem, problem.counts()), factor)


@pytest.mark.parametrize("name", EXACT)
@few
@given(problem=problems())
def test_a_constant_reward_more_is_a_constant_value_more(name, problem):
    """At every step before the end: the return grows by the length."""
    more = replace(problem, reward=problem.reward + 3.0)
    found, expected = EXACT[name](more, more.counts()), EXACT[name](problem, problem.counts())
    if expected.expected_return is not None and expected.expected_length is not None:
        assert_close(found.expected_return, expected.expected_return + 3.0 * expected.expected_length, 3.0)
    if problem.terminal is None or (problem.gamma == 1.0 and name != "horizon"):
        assert_close(found.value, expected.value + 3.0, 3.0)


@pytest.mark.parametrize("name", EXACT)
@few
@given(problem=problems())
def test_a_log_said_twice_says_the_same(name, problem):
    both = twice(problem)
    heavy = replace(problem, weight=np.full(problem.rows, 2))
    expected = EXACT[name](problem, problem.counts())
    assert_same_numbers(EXACT[name](both, both.counts()), expected)
    assert_same_numbers(EXACT[name](heavy, heavy.counts(keep=False)), expected)


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems())
def test_the_order_of_rows_of_different_episodes_does_not_matter(name, problem):
    other = shuffled(problem)
    assert_same_numbers(ALL[name](other, other.counts()), ALL[name](problem, problem.counts()))


@pytest.mark.parametrize("name", ALL)
@few
@given(problem=problems(), cut=st.integers(1, 10))
def test_counts_of_parts_are_the_counts_of_the_whole(name, problem, cut):
    first = problem.episode < cut
    parts = [problem.taking(np.flatnonzero(part)).counts() for part in (first, ~first)]
    whole = ALL[name](problem, problem.counts())
    assert_same_numbers(ALL[name](problem, parts[0] + parts[1]), whole)
    assert_same_numbers(ALL[name](problem, parts[1] + parts[0]), whole)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u4", ">i4", "u8"])
@few
@given(problem=problems(gammas=(0.97, 1.0)))
def test_integer_types_give_the_same_bits(name, dtype, problem):
    columns = ("state", "next_state", "action", "episode")
    other = replace(problem, **{column: getattr(problem, column).astype(dtype) for column in columns})
    found, expected = ALL[name](other, other.counts()), ALL[name](problem, problem.counts())
    assert found.value == expected.value or np.isnan(expected.value)
    np.testing.assert_array_equal(found.state_distribution, expected.state_distribution)
