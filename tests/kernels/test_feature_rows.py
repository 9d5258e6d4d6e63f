"""Rows worked on in vectors and groups against plain matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from lingendice.kernels.feature_rows import GROUP, add_rows, dot_rows

AHEAD = 3


def some_rows(width, padded, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((20, padded))
    numbers = rng.integers(0, 20, 5 + AHEAD + GROUP)
    return rng, matrix, numbers


@pytest.mark.parametrize("count", [1, 3, GROUP])
@pytest.mark.parametrize(("width", "padded"), [(1, 1), (7, 8), (8, 8), (13, 13), (64, 64), (50, 56)])
def test_products_and_sums_of_rows(width, padded, count):
    rng, matrix, numbers = some_rows(width, padded)
    vector, scales = rng.standard_normal(width), rng.standard_normal(6)
    rows = matrix[numbers[1 : 1 + count], :width]
    out = np.full(6, 7.0)
    dot_rows(matrix, numbers, 1, 1 + count, vector, out, AHEAD)
    assert np.allclose(out[1 : 1 + count], rows @ vector, rtol=1e-13, atol=1e-13)
    assert (np.delete(out, np.arange(1, 1 + count)) == 7.0).all()
    target = rng.standard_normal(width)
    expected = target + scales[1 : 1 + count] @ rows
    add_rows(matrix, numbers, 1, 1 + count, scales, target, AHEAD)
    assert np.allclose(target, expected, rtol=1e-13, atol=1e-13)
