"""Saddle-point methods and the bootstrap on the device, and the self-test that runs everything."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lingendice as lg
from gpu.test_device_solve import random_log
from lingendice.gpu.__main__ import main
from lingendice.gpu.resampling import _Replicator, bootstrap
from lingendice.resampling import bootstrap as host_bootstrap
from lingendice.solution import Status

POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)


def small_counts(**more):
    return lg.Counts.from_transitions(**random_log(), **more)


@pytest.mark.parametrize(
    ("gamma", "choices"),
    [
        (0.9, {}),
        (1.0, {"normalise": "self"}),
        (0.9, {"divergence": "reverse_kl", "ratio": "state"}),
        (1.0, {"penalty": 3.0, "bound": 20.0}),
    ],
)
def test_extragradient_reaches_the_same_optimum(device, gamma, choices):
    counts = small_counts()
    choices = {"policy": POLICY, "method": "extragradient", "tol": 1e-4} | choices
    there = lg.solve(counts, gamma, device="cuda", **choices)
    assert there.status is Status.SOLVED
    assert there.gap <= 1e-4
    exact = lg.solve(counts, gamma, policy=POLICY, ratio=choices.get("ratio", "auto"), ridge=0, clone=0)
    assert np.abs(there.stationary - exact.stationary).sum() <= 0.02
    assert there.objective >= there.lower_bound


def test_extragradient_where_cells_leak(device):
    log = random_log()
    keep = ~((log["state"] == 4) & (log["action"] == 1))
    counts = lg.Counts.from_transitions(**{name: column[keep] for name, column in log.items()})
    choices = {"policy": POLICY, "method": "extragradient", "tol": 1e-4}
    with pytest.warns(lg.LeakWarning):
        there = lg.solve(counts, 0.9, device="cuda", **choices)
    with pytest.warns(lg.LeakWarning):
        here = lg.solve(counts, 0.9, **choices)
    assert there.status is Status.SOLVED
    assert np.abs(there.stationary - here.stationary).sum() <= 0.02
    assert there.leak == pytest.approx(here.leak, abs=2e-3)


def test_sgd_repeats_bit_for_bit_and_comes_nearer(device):
    counts = small_counts()
    choices = {
        "policy": POLICY, "method": "sgd", "bound": 4.0, "device": "cuda", "max_iter": 200, "ratio": "state",
        "options": {"batch": 256, "first_epoch": 8, "step_scale": 30.0},
    }  # fmt: skip
    first, second = (lg.solve(counts, 0.5, **choices) for _ in range(2))
    assert (first.stationary == second.stationary).all()
    assert first.status is Status.ITERATION_LIMIT
    assert first.n_iter == 200
    gaps = [gap for _, gap in first.gap_trace]
    assert gaps[-1] < 0.5 * gaps[0]
    exact = lg.solve(counts, 0.5, policy=POLICY, ratio="state", ridge=0, clone=0).stationary
    start = np.abs(first.data_law - exact).sum()
    assert np.abs(first.stationary - exact).sum() < 0.5 * start


def test_what_the_device_does_not_serve_is_refused(emulator):
    counts = small_counts()
    with pytest.raises(ValueError, match="features= on the device"):
        lg.solve(counts, 0.9, policy=POLICY, features=np.ones((36, 2)), method="sgd", device="cuda")
    with pytest.raises(ValueError, match="divergence equality on the device"):
        lg.solve(counts, 0.9, policy=POLICY, divergence="equality", method="extragradient", device="cuda")
    with pytest.raises(ValueError, match="method must be one of"):
        lg.solve(counts, 0.9, policy=POLICY, method="convex", device="cuda")


@pytest.mark.parametrize("kept", [True, False])
def test_a_replicate_is_the_solution_of_its_counts(device, kept):
    """The law and value of one replicate against the host's solution of the same drawn counts."""
    from dataclasses import replace

    counts = small_counts(keep_episodes=kept)
    solution = lg.solve(counts, policy=POLICY, device="cuda")
    replicator = _Replicator(solution, solution.operator)
    drawn, earned = map(device.download, replicator.draw(np.uint64(11)))
    mean = earned / np.where(drawn > 0, drawn, 1.0)
    redrawn = replace(
        counts, count=drawn, reward_count=drawn, reward_mean=mean, reward_m2=None, episodes=None
    )
    expected = lg.solve(redrawn, policy=POLICY, ridge=0, clone=0)
    assert replicator.value(np.uint64(11)) == pytest.approx(expected.value, rel=1e-6)


def test_replicates_spread_as_on_the_host(device):
    counts = small_counts(keep_episodes=True)
    solution = lg.solve(counts, policy=POLICY, device="cuda")
    values = bootstrap(solution, 60, seed=1)
    assert (values[:3] == bootstrap(solution, 3, seed=1)).all()
    host = host_bootstrap(solution, lambda again: np.array([again.value]), 200, seed=2)[:, 0]
    # Three standard errors of a ratio of deviations: 3 sqrt(1/120 + 1/400).
    assert values.std() / host.std() == pytest.approx(1.0, abs=0.31)
    assert values.mean() == pytest.approx(host.mean(), abs=4 * host.std() / np.sqrt(60))


def test_a_bootstrap_that_would_leave_noise_out_is_refused(emulator):
    counts = small_counts(keep_episodes=True)
    with pytest.raises(ValueError, match="initial law taken from the log"):
        bootstrap(lg.solve(counts, 0.9, policy=POLICY, device="cuda"), 3)
    with pytest.raises(ValueError, match="a ridge"):
        bootstrap(lg.solve(counts, policy=POLICY), 3)


def test_the_self_test_records_a_run(device, tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["selftest", "--output", str(path), "--states", "300"]) == 0
    record = json.loads(path.read_text())
    assert record["device"] == device.name
    assert len(record["checks"]) == 6
    assert all(check["agrees"] for check in record["checks"]), record["checks"]
    assert "0 failed" in capsys.readouterr().out


def test_the_self_test_says_when_there_is_no_device(tmp_path, capsys, monkeypatch):
    from lingendice.gpu import selftest
    from lingendice.gpu.device import DeviceUnavailable

    def absent():
        raise DeviceUnavailable("no card here")

    monkeypatch.setattr(selftest, "current_device", absent)
    path = tmp_path / "record.json"
    assert main(["selftest", "--output", str(path)]) == 2
    assert json.loads(path.read_text())["device"] is None
    assert "nothing was run on a GPU" in capsys.readouterr().out
