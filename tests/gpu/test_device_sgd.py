"""SGD on the device against plain loops, and what is solved on the host though the device was asked for."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from gpu.test_device_solve import counted_log
from lingendice.gpu.device import launch
from lingendice.results.status import Status

POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)


def small_counts(**more):
    return counted_log(**more)


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
    start = np.abs(first.data_distribution - exact).sum()
    assert np.abs(first.stationary - exact).sum() < 0.5 * start


def test_sgd_does_not_talk_to_the_host_in_between(emulator, monkeypatch):
    """Steps are repeated as graphs; between two looks nothing comes down, and nothing goes up in an epoch."""
    from lingendice.gpu import device_sgd as stochastic

    monkeypatch.setattr(stochastic, "POLL_SECONDS", 1e9)
    counts = small_counts()
    options = {"batch": 16, "first_epoch": 320}
    first = lg.solve(
        counts, 0.5, policy=POLICY, method="sgd", bound=4.0, device="cuda", max_iter=320, options=options
    )
    assert first.n_iter == 320
    assert emulator.graph_launches == 320 // stochastic.STEPS_AT_ONCE - 1  # the first was recorded
    cells, looks = 36, 4  # after 1, 2, 4 and the last 3 rounds
    point = 8 * (2 * cells + 2)
    assert emulator.downloaded == looks * 2 * 8 + point


@pytest.mark.parametrize("batch", [3, 256])
def test_sgd_is_what_a_plain_loop_makes_of_the_same_samples(device, batch, monkeypatch):
    """Every step against NumPy, from the samples that the device drew; the last chunk is cut short."""
    from lingendice.gpu import device_sgd as stochastic

    runs = []
    plain = stochastic._SgdSteps.begin_epoch

    def begin_epoch(self, n_steps):
        if not runs:
            runs.append(self)
        plain(self, n_steps)

    monkeypatch.setattr(stochastic._SgdSteps, "begin_epoch", begin_epoch)
    counts, steps = small_counts(), 40
    solution = lg.solve(
        counts, 0.5, policy=POLICY, method="sgd", bound=4.0, device="cuda", max_iter=steps,
        options={"batch": batch, "first_epoch": steps, "step_scale": 30.0, "average": False},
    )  # fmt: skip
    (run,) = runs
    expected = replay(device, run, steps)
    np.testing.assert_allclose(solution.w_tau, expected, rtol=1e-9, atol=1e-12)


def replay(device, run, n_steps):
    """tau after the steps of a run: its samples are drawn again, its steps made one sample at a time."""
    problem, samples, batch, chunk = run.problem, run.samples, run.batch, 32
    samples.counter[:] = device.upload(np.random.SeedSequence(0).generate_state(1, np.uint64))
    run.begin_epoch(n_steps)
    drawn = []
    for _ in range(-(-n_steps // chunk)):
        samples.draw()
        drawn.append([device.download(part) for part in (samples.from_, samples.to, samples.started)])
        drawn[-1].append(device.download(samples.discount))
        arguments = (np.int32(chunk), np.int32(batch), run.clock, samples.counter)
        launch(device, "advance_clock", (), 1, arguments, block=1)
    from_, to, started, discount = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    pace = run.scale / np.sqrt(n_steps)
    tau, f, u = np.clip(problem.start(), 0.0, problem.upper), np.zeros(from_.max() + 1), 0.0
    weight = problem.flow.mass_weight
    for step in range(n_steps):
        on_tau, on_f, on_u = np.zeros_like(tau), np.zeros_like(tau), 0.0
        for i in range(step * batch, (step + 1) * batch):
            x, y, start = from_[i], to[i], started[i]
            ahead = discount[i] * f[y] if y >= 0 else 0.0
            on_tau[x] += problem.penalty * u * weight[x] - f[x] + ahead - 0.25 * f[x] ** 2
            on_f[x] -= tau[x] + tau[x] * 0.5 * f[x]
            if y >= 0:
                on_f[y] += discount[i] * tau[x]
            if start >= 0:
                on_f[start] += samples.start_mass
            on_u += problem.penalty * (weight[x] * tau[x] + problem.flow.mass_offset - 1.0 - u)
        tau = np.clip(tau - pace * run.lengths.w * on_tau / batch, 0.0, problem.upper)
        f = np.clip(f + pace * run.lengths.v * on_f / batch, -problem.dual_box, problem.dual_top)
        u = float(np.clip(u + pace * run.lengths.u * on_u / batch, -run.lengths.u_top, run.lengths.u_top))
    return tau


WHAT_THE_HOST_SOLVES = {
    "SGD over features": {"features": np.eye(36)[:, :20] + 0.1, "method": "sgd", "max_iter": 64},
    "SGD that normalizes itself": {"normalize": "self", "method": "sgd", "max_iter": 64},
    "extragradient": {"method": "extragradient", "tol": 1e-2},
    "a metric": {"divergence": "wasserstein", "method": "convex", "ratio": "state", "tol": 1e-6},
    "Newton steps": {"method": "convex", "tol": 1e-6},
    "features": {"features": np.kron(np.eye(12), np.ones((3, 1))), "tol": 1e-6},
    "a ridge": {"ridge": 1e-3},
    "a ridge and a divergence": {"ridge": 0.1, "divergence": "kl", "tol": 1e-4},
    "elimination": {"method": "gth", "ridge": 0, "clone": 0},
    "a horizon": {"horizon": 3},
    "the default with a policy": {},
}


@pytest.mark.parametrize("case", WHAT_THE_HOST_SOLVES)
def test_everything_else_is_the_hosts_and_says_so(emulator, case):
    """Bit for bit, with a reason that names the host; nothing is sent to the device."""
    choices = {"policy": POLICY, "initial": np.full(12, 1 / 12)} | WHAT_THE_HOST_SOLVES[case]
    there, here = (lg.solve(small_counts(), 0.5, device=where, **choices) for where in ("cuda", "cpu"))
    assert there.reason == f"{here.reason}; solved on the host: the GPU has no solver for it (see device=)"
    assert there.status is here.status
    assert there.method == here.method
    np.testing.assert_array_equal(there.cell_distribution, here.cell_distribution)
    assert there.value == here.value
    assert emulator.uploaded == emulator.launches == 0


def test_a_warm_start_of_sgd_is_the_hosts(emulator):
    counts, choices = small_counts(), {"policy": POLICY, "method": "sgd", "bound": 4.0, "max_iter": 64}
    first = lg.solve(counts, 0.5, **choices)
    there = lg.solve(counts, 0.5, warm_start=first, device="cuda", **choices)
    assert "on the host" in there.reason
    np.testing.assert_array_equal(there.w_tau, lg.solve(counts, 0.5, warm_start=first, **choices).w_tau)


@pytest.mark.parametrize("name", ["storage", "chunk_rows", "poll_every"])
@pytest.mark.parametrize("choices", [{}, {"ridge": 0.1}, {"horizon": 3}, {"method": "extragradient"}])
def test_options_of_the_device_are_not_ignored_on_the_host(emulator, choices, name):
    options = {name: "float32" if name == "storage" else 7}
    choices = {"initial": np.full(12, 1 / 12), "options": options} | choices
    with pytest.raises(ValueError, match=rf"options\['{name}'\] is for what the GPU solves, .* on the host"):
        lg.solve(small_counts(), 0.5, policy=POLICY, device="cuda", **choices)


def test_transitions_name_the_host():
    data = lg.Transitions(state=np.zeros((4, 1)), next_state=np.zeros((4, 1)))
    with pytest.raises(ValueError, match='use device="cpu"'):
        lg.solve(data, device="cuda")
