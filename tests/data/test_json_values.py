"""Everything that results hold survives a strict JSON encoder, and finite numbers keep their bits."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingendice.data.json_values import strict_json
from lingendice.results.variants import Estimate

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
