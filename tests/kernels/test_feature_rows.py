"""Rows worked on in vectors and groups against plain matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from lingendice.kernels.jit import kernel
from lingendice.kernels.saddle.feature_rows import GROUP, add_rows, dot_rows


@kernel
def both(psi, phi, xs, ys, first, last, w, v, tau, f, f_next, to_w, to_v, scales):
    dot_rows(psi, phi, xs, ys, first, last, w, v, tau, f, f_next)
    add_rows(psi, phi, xs, ys, first, last, to_w, to_v, scales[0], scales[1], scales[2])


@pytest.mark.parametrize("count", [1, 3, GROUP])
@pytest.mark.parametrize(
    ("wide", "padded"),
    [((1, 1), (1, 1)), ((7, 20), (8, 24)), ((64, 64), (64, 64)), ((50, 13), (56, 13)), ((3, 8), (3, 8))],
)
def test_products_and_sums_of_rows(wide, padded, count):
    rng = np.random.default_rng(0)
    psi, phi = (rng.standard_normal((20, width)) for width in padded)
    w, v = (rng.standard_normal(width) for width in wide)
    xs, ys = rng.integers(0, 20, (2, GROUP + 2))
    out, scales = np.full((3, GROUP + 2), 7.0), rng.standard_normal((3, GROUP + 2))
    to_w, to_v = (rng.standard_normal(width) for width in wide)
    at = slice(1, 1 + count)
    rows = [psi[xs[at], : w.size], phi[xs[at], : v.size], phi[ys[at], : v.size]]
    expected_w = to_w + scales[0, at] @ rows[0]
    expected_v = to_v + scales[1, at] @ rows[1] + scales[2, at] @ rows[2]
    both(psi, phi, xs, ys, 1, 1 + count, w, v, out[0], out[1], out[2], to_w, to_v, scales)
    products = [rows[0] @ w, rows[1] @ v, rows[2] @ v]
    assert np.allclose(out[:, at], products, rtol=1e-13, atol=1e-13)
    assert (np.delete(out, np.arange(1, 1 + count), axis=1) == 7.0).all()
    assert np.allclose(to_w, expected_w, rtol=1e-13, atol=1e-13)
    assert np.allclose(to_v, expected_v, rtol=1e-13, atol=1e-13)
