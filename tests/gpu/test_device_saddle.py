"""Saddle-point methods and the bootstrap on the device, and the self-test that runs everything."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from gpu.test_device_solve import counted_log, random_log
from lingendice.divergences import Chi2
from lingendice.divergences.base import CONJUGATES
from lingendice.gpu.chain import Settings
from lingendice.gpu.device import launch
from lingendice.gpu.device_bootstrap import _Replicator, bootstrap
from lingendice.gpu.device_saddle import _DeviceSteps
from lingendice.gpu_selftest import main
from lingendice.model.compose import Choices, compose
from lingendice.results.bootstrap import bootstrap as host_bootstrap
from lingendice.results.status import Status
from lingendice.solvers.extragradient import Geometry, SaddlePoint
from lingendice.solvers.request import ObjectiveChoices
from lingendice.solvers.saddle import read_problem

POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)


def small_counts(**more):
    return counted_log(**more)


@pytest.mark.parametrize(
    ("gamma", "choices"),
    [
        (0.9, {}),
        (1.0, {"normalize": "self"}),
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


def features_of(kind, n_cells=36):
    rng = np.random.default_rng(7)
    aggregates = np.kron(np.eye(12), np.ones((3, 1)))  # one per state: the ratio of the state-action cells
    dense = np.concatenate([aggregates, rng.random((n_cells, 4))], axis=1)
    return sparse.csr_array(aggregates) if kind == "sparse" else dense


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("choices", [{}, {"normalize": "self"}, {"ridge": 0.05}, {"dual_features": "dense"}])
def test_the_field_over_features_is_the_gradient(device, kind, choices):
    """Against the host's gradients, at a random point; gamma 0.9."""
    choices = dict(choices)
    if "dual_features" in choices:
        choices["dual_features"] = np.random.default_rng(8).standard_normal((36, 5))
    linear = ObjectiveChoices(features=features_of(kind), **choices)
    problem, _ = read_problem(compose(small_counts(), Choices(0.9, policy=POLICY)), linear)
    assert_same_field(device, problem)


def assert_same_field(device, problem):
    """The field at a random point, on the device and on the host."""
    rng, up = np.random.default_rng(1), device.upload
    w, v = rng.random(problem.features.n_features), rng.random(problem.dual_features.n_features) - 0.4
    expected = Geometry(problem).field(SaddlePoint(w, v, 0.3))
    found = _DeviceSteps(device, problem, np.dtype(float)).geometry.field(SaddlePoint(up(w), up(v), 0.3))
    np.testing.assert_allclose(device.download(found.w), expected.w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(device.download(found.v), expected.v, rtol=1e-10, atol=1e-12)
    assert found.u == pytest.approx(expected.u, rel=1e-12)


class Steep(Chi2):
    """A divergence of one's own."""

    name = "steep"

    def excess(self, y):
        return 0.5 * y * y + np.where(y > 0, 0.1 * y * y * y, 0.0)

    def excess_slope(self, y):
        return y + np.where(y > 0, 0.3 * y * y, 0.0)


@pytest.mark.parametrize("divergence", [*CONJUGATES, "mmd", Steep()])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
def test_the_field_of_every_divergence_is_the_gradient(device, divergence, ratio):
    """The conjugates are the divergences' own; some cells leak."""
    log = random_log()
    keep = ~((log["state"] == 4) & (log["action"] == 1))
    counts = lg.Counts.from_transitions(**{name: column[keep] for name, column in log.items()})
    operator = compose(counts, Choices(0.9, policy=POLICY, ratio=ratio))
    assert_same_field(device, read_problem(operator, ObjectiveChoices(divergence=divergence))[0])


def test_steps_are_those_of_the_host(device):
    """The same points after as many steps, restarts and their new weights included."""
    choices = {"policy": POLICY, "method": "extragradient", "tol": 1e-9, "max_iter": 150}
    there, here = (lg.solve(small_counts(), 0.9, device=where, **choices) for where in ("cuda", "cpu"))
    np.testing.assert_allclose(there.w_tau, here.w_tau, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there.gap, here.gap, rtol=1e-3)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_extragradient_over_features(device, kind):
    counts = small_counts()
    choices = {"policy": POLICY, "features": features_of(kind), "tol": 1e-3}
    there = lg.solve(counts, 0.5, device="cuda", **choices)
    assert there.method == "extragradient"
    here = lg.solve(counts, 0.5, method="convex", **choices | {"tol": 1e-9})
    assert there.status is Status.SOLVED
    assert there.gap <= 1e-3
    assert there.objective == pytest.approx(here.objective, abs=2e-3)
    assert np.abs(there.stationary - here.stationary).sum() <= 0.05


def test_a_warm_start_is_that_of_the_host(device):
    counts = small_counts()
    choices = {"policy": POLICY, "method": "extragradient", "tol": 1e-6}
    first = lg.solve(counts, 0.9, **choices | {"tol": 1e-4})
    there, here = (
        lg.solve(counts, 0.9, warm_start=first, device=where, **choices) for where in ("cuda", "cpu")
    )
    assert there.status is here.status is Status.SOLVED
    assert there.n_iter == here.n_iter < lg.solve(counts, 0.9, **choices).n_iter
    with pytest.raises(ValueError, match="warm_start must be a solution"):
        lg.solve(counts, 0.9, warm_start=object(), device="cuda", **choices)


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
    from lingendice.gpu import device_saddle as stochastic

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
    from lingendice.gpu import device_saddle as stochastic

    runs = []
    plain = stochastic._Run.begin_epoch

    def begin_epoch(self, n_steps):
        if not runs:
            runs.append(self)
        plain(self, n_steps)

    monkeypatch.setattr(stochastic._Run, "begin_epoch", begin_epoch)
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


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"features": np.ones((36, 2)), "method": "sgd"}, "features= with SGD on the device"),
        ({"normalize": "self", "method": "sgd"}, "SGD on the device"),
        (
            {"divergence": "wasserstein", "method": "extragradient", "ratio": "state"},
            "divergence wasserstein on the device",
        ),
        ({"divergence": "mmd", "method": "sgd", "ratio": "state"}, "with SGD on the device"),
        ({"divergence": "equality", "method": "sgd"}, "divergence equality with SGD on the device"),
        ({"method": "convex"}, "method='convex' on the device"),
        ({"method": "sgd", "bound": 4.0, "warm_start": object()}, "warm_start with SGD on the device"),
    ],
)
def test_what_the_device_does_not_serve_names_the_host(emulator, choices, message):
    with pytest.raises(ValueError, match=message) as caught:
        lg.solve(small_counts(), 0.9, policy=POLICY, device="cuda", **choices)
    assert 'device="cpu"' in str(caught.value)


def test_transitions_name_the_host():
    data = lg.Transitions(state=np.zeros((4, 1)), next_state=np.zeros((4, 1)))
    with pytest.raises(ValueError, match='use device="cpu"'):
        lg.solve(data, device="cuda")


@pytest.mark.parametrize("kept", [True, False])
def test_a_replicate_is_the_solution_of_its_counts(device, kept):
    """The distribution and value of one replicate against the host's solution of the same drawn counts."""
    from dataclasses import replace

    counts = small_counts(keep_episodes=kept)
    solution = lg.solve(counts, policy=POLICY, ridge=0, clone=0, device="cuda")
    replicator = _Replicator(solution, solution.operator, Settings())
    drawn, earned = map(device.download, replicator.draw(np.uint64(11)))
    mean = earned / np.where(drawn > 0, drawn, 1.0)
    redrawn = replace(
        counts, count=drawn, reward_count=drawn, reward_mean=mean, reward_m2=None, episodes=None
    )
    expected = lg.solve(redrawn, policy=POLICY, ridge=0, clone=0)
    assert replicator.value(np.uint64(11)) == pytest.approx(expected.value, rel=1e-6)


def test_replicates_spread_as_on_the_host(device):
    counts = small_counts(keep_episodes=True)
    solution = lg.solve(counts, policy=POLICY, ridge=0, clone=0, device="cuda")
    values = bootstrap(solution, 60, seed=1)
    assert (values[:3] == bootstrap(solution, 3, seed=1)).all()
    host = host_bootstrap(solution, lambda again: np.array([again.value]), 200, seed=2)[:, 0]
    # Three standard errors of a ratio of deviations: 3 sqrt(1/120 + 1/400).
    assert values.std() / host.std() == pytest.approx(1.0, abs=0.31)
    assert values.mean() == pytest.approx(host.mean(), abs=4 * host.std() / np.sqrt(60))


def test_a_bootstrap_that_would_leave_noise_out_is_refused(emulator):
    counts = small_counts(keep_episodes=True)
    with pytest.raises(ValueError, match="initial distribution taken from the log"):
        bootstrap(lg.solve(counts, 0.9, policy=POLICY, ridge=0, clone=0, device="cuda"), 3)
    with pytest.raises(ValueError, match="a ridge"):
        bootstrap(lg.solve(counts, policy=POLICY), 3)
    # What stands for actions never logged is the mean of the logged ones, which moves with the counts.
    filled = lg.solve(counts, policy=POLICY, unseen="mean", ridge=0, clone=0, ratio="state_action")
    with pytest.raises(ValueError, match="a cloned behavior"):
        bootstrap(filled, 3)
    with pytest.raises(ValueError, match=r"replicates must be a whole number of at least 1, got 2\.5"):
        bootstrap(filled, 2.5)


def test_probabilities_have_no_bootstrap(emulator):
    """As on the host: they do not say how much data is behind them."""
    solution = lg.solve([[0.5, 0.5], [0.2, 0.8]], reward=[0.0, 1.0], device="cuda")
    with pytest.raises(ValueError, match="does not serve a graph or probabilities, which are no sample"):
        bootstrap(solution, 3)
    with pytest.raises(ValueError, match="no sample size"):
        solution.interval(method="bootstrap")


OTHER_ANSWERS = {
    "a horizon, a baseline or the default with a policy": ({}, {"horizon": 3}),
    "a saddle point": (
        {"bound": 1.0}, {"features": np.random.default_rng(0).random((36, 2)), "penalty": 0.5},
        {"method": "extragradient", "tol": 1e-2}, {"divergence": "kl", "ridge": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ANSWERS)
def test_a_bootstrap_of_another_answer_than_the_exact_one_is_refused(emulator, name):
    """Replicates are of the exact equation, whatever the solution was of."""
    counts = small_counts(keep_episodes=True)
    for choices in OTHER_ANSWERS[name]:
        solution = lg.solve(counts, 0.5, policy=POLICY, initial=np.ones(12), **choices)
        with pytest.raises(ValueError, match=f"does not serve ({name}|a ridge)"):
            bootstrap(solution, 3)


def test_a_bootstrap_of_rewards_logged_in_part_is_refused(emulator):
    """As on the host: of merged logs the rewards of episodes are unknown, and were taken for 0."""
    counts = small_counts(keep_episodes=True)
    without = dataclasses.replace(
        counts, reward_count=None, reward_mean=None, reward_m2=None,
        episodes=counts.episodes._replace(reward=None),
    )  # fmt: skip
    solution = lg.solve(counts + without, policy=POLICY, ridge=0, clone=0)
    with pytest.raises(ValueError, match="rewards logged in part"):
        bootstrap(solution, 3)
    with pytest.raises(ValueError, match="have no logged reward"):
        solution.interval(method="bootstrap")


def test_the_self_test_records_a_run(device, tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["--output", str(path), "--states", "300"]) == 0
    record = json.loads(path.read_text())
    assert record["device"] == device.name
    assert len(record["checks"]) == 8
    assert all(check["agrees"] for check in record["checks"]), record["checks"]
    assert "0 failed" in capsys.readouterr().out


def test_the_self_test_records_kernels_that_do_not_compile(emulator, monkeypatch):
    """What may happen first of all on a GPU that nobody has tried."""
    from lingendice import gpu_selftest

    def refuse(device):
        raise RuntimeError("nvrtc: error")

    monkeypatch.setattr(gpu_selftest, "load_everything", refuse)
    found = gpu_selftest._run(gpu_selftest._kernels, emulator, 50)
    assert found == {"name": "kernels", "agrees": False, "error": "RuntimeError: nvrtc: error"}


def test_the_self_test_says_when_there_is_no_device(tmp_path, capsys, monkeypatch):
    from lingendice import gpu_selftest
    from lingendice.gpu.device import DeviceUnavailable

    def absent():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr(gpu_selftest, "current_device", absent)
    path = tmp_path / "record.json"
    assert main(["--output", str(path)]) == 2
    assert json.loads(path.read_text())["device"] is None
    assert "nothing was run on a GPU" in capsys.readouterr().out
