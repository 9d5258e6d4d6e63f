"""Metamorphic laws of intervals: names, units, copies and the order of rows of a log."""

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
NAMES = ("plug-in", "state ratio", "ridge", "horizon", "logged", "default")
ALL = EXACT | DEFAULT
OF = ("value", "return", "length")


def intervals(name, problem, counts, **options):
    """Intervals of all that the solution has any of."""
    solution, found = ALL[name](problem, counts), {}
    for of in OF:
        if of == "value" or getattr(solution, f"expected_{of}") is not None:
            found[of] = solution.interval(of=of, **options)
    return found


def assert_same(found, expected, factor=1.0):
    """The same limits, where rewards are multiplied by ``factor``."""
    assert found.keys() == expected.keys()
    for of, true in expected.items():
        unit = 1.0 if of == "length" else factor
        assert_close(found[of].estimate, unit * true.estimate, unit)
        assert_close(found[of].standard_error, unit * true.standard_error, unit * 0.1, 1e-6)
        assert_close(found[of].low, unit * true.low, unit, 1e-6)
        assert_close(found[of].high, unit * true.high, unit, 1e-6)


@pytest.mark.parametrize("name", NAMES)
@few
@given(problem=problems())
def test_names_of_states_do_not_matter(name, problem):
    renamed, _ = with_states_renamed(problem)
    expected = intervals(name, problem, problem.counts())
    assert_same(intervals(name, renamed, renamed.counts()), expected)


@pytest.mark.parametrize("name", NAMES)
@few
@given(problem=problems())
def test_names_of_actions_do_not_matter(name, problem):
    renamed = with_actions_renamed(problem)
    expected = intervals(name, problem, problem.counts())
    assert_same(intervals(name, renamed, renamed.counts()), expected)


@pytest.mark.parametrize("name", NAMES)
@few
@given(problem=problems(), factor=st.sampled_from([1e-6, 1000.0]))
def test_the_unit_of_reward_does_not_matter(name, problem, factor):
    scaled = replace(problem, reward=factor * problem.reward)
    expected = intervals(name, problem, problem.counts())
    assert_same(intervals(name, scaled, scaled.counts()), expected, factor)


@pytest.mark.parametrize("name", NAMES)
@few
@given(problem=problems())
def test_neither_the_order_of_rows_nor_a_merge_matters(name, problem):
    other = shuffled(problem)
    expected = intervals(name, problem, problem.counts())
    assert_same(intervals(name, other, other.counts()), expected)
    first = problem.episode < 6
    one, two = (problem.taking(np.flatnonzero(part)).counts() for part in (first, ~first))
    assert_same(intervals(name, problem, two + one), expected)


@pytest.mark.parametrize("name", ["plug-in", "state ratio", "horizon", "logged"])
@few
@given(problem=problems())
def test_a_log_said_twice_halves_the_variance_at_least(name, problem):
    """Corrections for cells and episodes of few visits shrink, too. Copies are no news."""
    both = twice(problem)
    found, expected = intervals(name, both, both.counts()), intervals(name, problem, problem.counts())
    assert found.keys() == expected.keys()
    for of, before in expected.items():
        assert_close(found[of].estimate, before.estimate)
        assert found[of].standard_error <= np.sqrt(0.5) * before.standard_error + 1e-9
