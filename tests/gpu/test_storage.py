"""Float32 where it is asked for: what it changes, what it costs, and that nobody gets it unasked."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.device import EmulatedDevice

import lingendice as lg
from gpu.test_device_sgd import POLICY, small_counts
from gpu.test_device_solve import random_counts, random_log
from lingendice.gpu import HostCopyWarning, count_transitions

SINGLE = {"storage": "float32"}
SGD = {"policy": POLICY, "method": "sgd", "bound": 4.0, "max_iter": 64, "device": "cuda"}
SGD_OPTIONS = {"batch": 64, "first_epoch": 16, "step_scale": 30.0}
CASES = {
    "chain": (random_counts(), 0.9, {"tol": 1e-5}),
    "policy": (small_counts(), 0.9, {"policy": POLICY, "ridge": 0, "clone": 0, "tol": 1e-5}),
    "sgd": (small_counts(), 0.5, {"policy": POLICY, "method": "sgd", "bound": 4.0, "max_iter": 32}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_store_what_was_asked_for(emulator, monkeypatch, case):
    """Float64 unless asked; then every vector of the method is float32."""
    counts, gamma, choices = CASES[case]
    launched = set()
    plain = EmulatedDevice.run
    monkeypatch.setattr(
        EmulatedDevice, "run", lambda self, name, *rest: (launched.add(name), plain(self, name, *rest))[1]
    )
    lg.solve(counts, gamma, device="cuda", **choices)
    assert any("<double" in name for name in launched)
    assert not any("<float" in name for name in launched)
    launched.clear()
    lg.solve(counts, gamma, device="cuda", options=SINGLE, **choices)
    by_value = {name for name in launched if "<float" in name or "<double" in name}
    # Totals of counts are read in their own type.
    assert {name for name in by_value if "<double" in name} <= {"row_totals<double, int>"}
    assert by_value


def test_sgd_in_single_precision_draws_the_same_samples(device):
    counts = small_counts()
    double = lg.solve(counts, 0.5, options=SGD_OPTIONS, **SGD)
    single, again = (lg.solve(counts, 0.5, options=SGD_OPTIONS | SINGLE, **SGD) for _ in range(2))
    assert (single.stationary == again.stationary).all()
    assert (single.stationary != double.stationary).any()
    np.testing.assert_allclose(single.stationary, double.stationary, atol=1e-6)
    assert single.gap == pytest.approx(double.gap, rel=1e-4)


@pytest.mark.parametrize("ids", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("numbers", [np.float32, np.float64])
def test_a_log_in_any_type_is_counted_exactly(device, ids, numbers):
    log = random_log(600, n_states=40)
    reward, weight = log["reward"].astype(numbers), np.random.default_rng(0).integers(1, 4, 600)
    up = device.upload
    columns = [up(log[name].astype(ids)) for name in ("state", "next_state", "action")]
    extra = {"reward": up(reward), "weight": up(weight.astype(numbers))}
    there = count_transitions(*columns, n_states=40, n_actions=3, **extra)
    assert there.indptr.dtype == np.int32
    here = lg.Counts.from_transitions(
        log["state"], log["next_state"], log["action"], n_states=40, n_actions=3,
        reward=reward.astype(float), weight=weight.astype(float),
    )  # fmt: skip
    host = there.to_host()
    for name in ("indptr", "indices", "count"):
        np.testing.assert_array_equal(getattr(host, name), getattr(here, name))
    np.testing.assert_allclose(host.reward_mean, here.reward_mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(host.reward_m2, here.reward_m2, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.float32, np.float64])
def test_a_matrix_in_any_type_is_solved_in_double(device, kind):
    matrix = random_counts(20).toarray().astype(kind)
    with pytest.warns(HostCopyWarning):
        there = lg.solve(device.upload(matrix), 0.9, device="cuda")
    here = lg.solve(matrix.astype(float), 0.9)
    assert there.stationary.dtype == np.float64
    assert np.abs(there.stationary - here.stationary).sum() <= 2e-10
    assert there.effective_sample_size == pytest.approx(here.effective_sample_size, rel=1e-9)
    assert there.operator.counts.count.dtype in (np.int64, np.float64)
