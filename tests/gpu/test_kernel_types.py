"""The operator in every type, over awkward shapes, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.device import EmulatedArray, EmulatedDevice, EmulatorError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from lingendice.gpu import equation as pull
from lingendice.gpu.device import for_each, launch
from lingendice.gpu.equation import CHECKED, Equation


def matrix_of(kind, n, rng):
    """Degrees: none, a few, one row with everything, or heavy tails with empty rows."""
    degrees = {
        "empty": np.zeros(n, int),
        "regular": np.full(n, 5),
        "one huge row": np.r_[5 * n + 3000, np.zeros(n - 1, int)],
        "skewed": np.where(rng.random(n) < 0.5, 0, rng.zipf(1.4, n).clip(0, 3000)),
    }[kind]
    rows = np.repeat(np.arange(n), degrees)
    columns = rng.integers(n, size=rows.size)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr, columns, rng.random(rows.size)


@pytest.mark.parametrize("value", ["float32", "float64"])
@pytest.mark.parametrize("offset", ["int32", "int64"])
@pytest.mark.parametrize("kind", ["empty", "regular", "one huge row", "skewed"])
@pytest.mark.parametrize("n", [1, 33, 130])
def test_a_step_agrees_with_scipy(device, value, offset, kind, n):
    rng = np.random.default_rng(n)
    indptr, columns, data = matrix_of(kind, n, rng)
    data, x, start = data.astype(value), rng.random(n).astype(value), rng.random(n).astype(value)
    up = device.upload
    matrix = pull.resident_matrix(device, up(indptr.astype(offset)), up(columns.astype(np.int32)), up(data))
    hub = rng.random(n).astype(value)
    equation = Equation(device, matrix, up(hub), up(start), 1, up(start), 0.9, n, 0.0)
    distribution, out = up(x), device.empty(n, value)
    equation.weigh(distribution)
    equation.step(distribution, out, 1.0, CHECKED)
    counted = sparse.csr_array((data.astype(float), columns, indptr), shape=(n, n))
    wide = [part.astype(float) for part in (x, start, hub)]
    expected = wide[1] + 0.9 * (counted @ wide[0] + wide[1] * (wide[2] @ wide[0]))
    precision = 1e-6 if value == "float32" else 1e-13
    np.testing.assert_allclose(device.download(out), expected, rtol=precision)
    residual = np.abs(expected - wide[0]).sum()
    assert device.download(equation.scalars)[9] == pytest.approx(residual, rel=1e-10)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), n=st.integers(1, 90), order=st.integers(0, 2))
def test_transposing_twice_changes_nothing(libraries, seed, n, order):
    device = EmulatedDevice(libraries(), seed, order)
    rng = np.random.default_rng(seed)
    given_matrix = sparse.csr_array(rng.random((n, n)) * (rng.random((n, n)) < 0.2))
    up = device.upload
    rows = np.repeat(np.arange(n), np.diff(given_matrix.indptr)).astype(np.int32)
    entries = (up(given_matrix.indices.astype(np.int32)), n, up(rows), up(given_matrix.data), np.int64)
    indptr, sources, rates = pull.transposed(device, *entries)
    columns = np.repeat(np.arange(n), np.diff(device.download(indptr))).astype(np.int32)
    back = pull.transposed(device, sources, n, up(columns), rates, np.int64)
    found = sparse.csr_array(
        tuple(device.download(part) for part in (back[2], back[1], back[0])), shape=(n, n)
    )
    assert (found != given_matrix).nnz == 0


def test_wrong_calls_are_errors_and_not_guesses(emulator):
    ends, weight = emulator.zeros(5, np.int64), emulator.zeros(8, np.float64)
    kinds, totals = ("double", "long long"), emulator.zeros(4, np.float64)
    with pytest.raises(TypeError, match="NumPy scalars"):
        launch(emulator, "row_totals", kinds, 1, (4, ends, weight, totals))
    with pytest.raises(TypeError, match="NumPy scalars"):
        launch(emulator, "row_totals", kinds, 1, (np.int32(4), np.zeros(5), weight, totals))
    with pytest.raises(EmulatorError, match=r"argument 0: wants i4, got i8"):
        launch(emulator, "row_totals", kinds, 1, (np.int64(4), ends, weight, totals))
    with pytest.raises(EmulatorError, match=r"argument 3: wants \*f8, got \*i8"):
        launch(emulator, "row_totals", kinds, 1, (np.int32(4), ends, weight, ends))
    given = (np.int32(4), ends, weight, totals)
    with pytest.raises(EmulatorError, match="shared memory"):
        launch(emulator, "row_totals", kinds, 1, given, shared_bytes=10**6)
    with pytest.raises(EmulatorError, match="limit of 256"):
        launch(emulator, "row_totals", kinds, 1, given, block=512)
    with pytest.raises(EmulatorError, match="not contiguous"):
        for_each(emulator, "row_totals", kinds, 4, (np.int32(4), ends, weight[::2], totals))


def test_emulated_arrays_do_not_mix_with_host_arrays(emulator):
    array = emulator.upload(np.arange(3.0))
    with pytest.raises(TypeError, match="implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="host array meets"):
        _ = array + np.ones(3)
    assert isinstance(array + 1.0, EmulatedArray)
    with pytest.raises(TypeError, match="one entry"):
        float(array)
    assert float(array.sum()) == 3.0
