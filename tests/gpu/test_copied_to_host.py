"""Data on the device and the defaults of the host: the same answer there, and no copy in silence."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.device import EmulatedDevice

import lingendice as lg
from gpu.test_device_data import device_type
from gpu.test_device_ridge import POLICY
from gpu.test_device_solve import random_log
from lingendice.gpu import HostCopyWarning, count_transitions
from lingendice.gpu.equation import HISTORY
from lingendice.results.remote_solution import DeviceSolution
from lingendice.results.status import Status

ALLOWED = {"copy_to_host": True}


def both(device, n=400):
    """The same log counted on the device and on the host."""
    log, up = random_log(n), device.upload
    there = count_transitions(
        up(log["state"]), up(log["next_state"]), up(log["action"]), n_states=12, n_actions=3,
        reward=up(log["reward"]), first_state=up(log["state"][::20]),
    )  # fmt: skip
    return there, lg.Counts.from_transitions(**log)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_default_with_a_policy_is_that_of_the_host(device, gamma):
    counts, host_counts = both(device)
    with pytest.warns(HostCopyWarning, match=r"default with a policy .* MB\) are copied") as caught:
        there = lg.solve(counts, gamma, policy=device.upload(POLICY), device="cuda")
    assert {warning.filename for warning in caught} == {__file__}
    here = lg.solve(host_counts, gamma, policy=POLICY)
    assert isinstance(there, DeviceSolution)
    assert there.status is Status.SOLVED
    assert there.method == here.method == "shrinkage"
    for name in ("stationary", "tau", "data_distribution", "cell_distribution", "supported"):
        array = getattr(there, name)
        assert isinstance(array, device_type(device))
        np.testing.assert_allclose(device.download(array), getattr(here, name), rtol=1e-7, atol=1e-10)
    assert there.value == pytest.approx(here.value, rel=1e-8)
    assert there.leak == pytest.approx(here.leak, abs=1e-12)
    assert there.effective_sample_size == pytest.approx(here.effective_sample_size, rel=1e-7)
    assert there.to_host().interval().estimate == pytest.approx(here.value, rel=1e-8)
    assert f"{there.value:.6g}" in str(there)


CASES = {
    "a number": {"ridge": 1e-3},
    "cloned": {"clone": 5.0, "ratio": "state", "ridge": 0},
    "state": {"ratio": "state"},
    "smoothed": {"smoothing": 2.0, "ridge": 0, "clone": 0},
    "behavior": {"behavior": np.full((12, 3), 1 / 3), "ratio": "state", "ridge": 0},
    "saddle": {"method": "extragradient", "tol": 1e-3},
    "features": {"features": np.kron(np.eye(12), np.ones((3, 1))), "tol": 1e-3},
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_else_is_asked_comes_by_way_of_the_host(device, case):
    counts, host_counts = both(device)
    choices = {"policy": POLICY} | CASES[case]
    put = {
        name: device.upload(value) if isinstance(value, np.ndarray) else value
        for name, value in choices.items()
    }
    there = lg.solve(counts, 0.5, device="cuda", options=ALLOWED, **put)
    expected = lg.solve(host_counts, 0.5, device="cuda", **choices)
    assert isinstance(there.stationary, device_type(device))
    assert there.method == expected.method
    np.testing.assert_allclose(device.download(there.stationary), expected.stationary, rtol=1e-9, atol=1e-12)
    assert there.value == pytest.approx(expected.value, rel=1e-9)


def test_entries_stay_on_the_device(emulator, monkeypatch):
    """The host composes from sums over cells: no array of entries comes down."""
    counts, _ = both(emulator, 4000)
    sizes, plain = [], EmulatedDevice.download
    monkeypatch.setattr(
        EmulatedDevice, "download", lambda self, array: (sizes.append(array.size), plain(self, array))[1]
    )
    policy = {"policy": emulator.upload(POLICY)}
    for choices in ({"ridge": 0, "clone": 0}, {"leak": "absorb"}, {"smoothing": 2.0}, {"unseen": "mean"}):
        assert lg.solve(counts, 0.9, device="cuda", **policy, **choices).converged
    kept = HISTORY  # errors of the last cycles
    assert max(size for size in sizes if size != kept) <= counts.n_cells < counts.count.size


def test_host_arrays_do_not_mix_in(emulator):
    counts, host_counts = both(emulator)
    with pytest.raises(ValueError, match="policy lies on the host and the data on the device"):
        lg.solve(counts, 0.9, policy=POLICY, device="cuda")
    with pytest.raises(ValueError, match="features lies on the host"):
        lg.solve(counts, 0.9, features=np.ones((36, 1)), device="cuda")
    with pytest.raises(ValueError, match="copy_to_host"):
        lg.solve(host_counts, 0.9, policy=POLICY, ridge=0, clone=0, device="cuda", options=ALLOWED)
