"""Numbers for people."""

from __future__ import annotations

import numpy as np
import pytest

from lingendice.data.markup import amount, duration, rounded


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
