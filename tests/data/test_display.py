"""Everything that results hold survives a strict JSON encoder; numbers for people."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingendice.data.display import amount, duration, rounded, strict_json
from lingendice.results.targets import Estimate

SCALARS = (
    st.floats()
    | st.integers()
    | st.booleans()
    | st.none()
    | st.text()
    | st.floats().map(np.float64)
    | st.floats(width=32).map(np.float32)
    | st.integers(-(2**31), 2**31).map(np.int64)
)
ARRAYS = st.lists(st.floats(), max_size=4).map(np.array)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(MappingProxyType)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_everything_is_strict_json(value):
    converted = strict_json(value)
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted
    assert strict_json(converted) == converted


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_finite_numbers_keep_their_bits(numbers):
    assert strict_json(np.array(numbers)) == numbers
    assert strict_json(numbers) == numbers


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_null(wrong):
    assert strict_json({"a": wrong, "b": [1.0, np.float64(wrong)], "c": np.array([[wrong, 2.0]])}) == {
        "a": None,
        "b": [1.0, None],
        "c": [[None, 2.0]],
    }


def test_an_estimate_without_a_standard_error_is_strict_json():
    estimate = Estimate(value=1.0, gamma=0.9, method="naive", note="", standard_error=np.nan)
    assert estimate.to_dict()["standard_error"] is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.5e-4, "350 us"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (15.52, "15.5 s"),
        (99.96, "100 s"), (2130.4, "2,130 s"),
    ],
)  # fmt: skip
def test_times(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(5_000_000, "5,000,000"), (5e6, "5,000,000"), (np.int64(12), "12"), (12.5, "12.5")],
)
def test_counts(number, text):
    assert amount(number) == text


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (0.123456, 0.0123, "0.123"), (0.123456, 0.00123, "0.1235"), (12.3456, 1.23, "12.3"),
        (1234.56, 12.3, "1,235"), (1234.56, 123.0, "1,230"), (0.5, 0.0996, "0.50"), (0.5, 0.095, "0.500"),
        (1.0, 0.0, "1"), (0.3, np.inf, "0.3"), (np.nan, 0.1, "nan"), (-0.0004, 0.01, "0.000"),
    ],
)  # fmt: skip
def test_digits_follow_the_standard_error(number, error, text):
    assert rounded(number, error) == text
