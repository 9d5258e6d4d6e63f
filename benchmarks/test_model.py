"""Model of the dynamics and fitted Q evaluation against PyTorch and d3rlpy, on all cores.

The log is HalfCheetah's, 50 x 100 steps.
"""

from __future__ import annotations

import numpy as np
import pytest
from control import environments as control
from model_peers import D3rlpyFittedQ, TorchFittedQ, TorchModel

import lingendice as lg
from lingendice.continuous import dynamics, fitted_q
from lingendice.continuous.samples import prepare
from lingendice.kernels.parallel import available_threads

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
PATHS, STEPS = 300, 500


@pytest.fixture(scope="module")
def log():
    behavior = control.policy("halfcheetah", 0.0)
    return lg.Transitions(**control.collect("halfcheetah", behavior, 50, 100, seed=903)._asdict())


def on_threads(action):
    """The action with PyTorch on one thread, and on all cores: the faster one counts."""

    def run(threads):
        torch.set_num_threads(threads)
        action()

    return {f"PyTorch, {n} threads": (lambda n=n: run(n)) for n in sorted({1, available_threads()})}


def test_model_against_torch(record, log):
    threads, gamma = available_threads(), 1.0
    samples = prepare(log, control.policy("halfcheetah"), gamma)

    def fit():
        return dynamics.fit_dynamics(samples, "auto", 0, threads)

    model = fit()
    peer = TorchModel(model)
    peer.fit()

    def roll_out():
        return dynamics.roll_out(model, gamma, PATHS, 0, threads)

    assert roll_out().value == pytest.approx(peer.roll_out(gamma, PATHS), rel=0.1)
    note = f"three members of 128 x 128, 1,000 steps of batch 256; {threads} cores"
    record.ratio("model: fit", fit, on_threads(peer.fit), 2.0, 3, note)
    note = f"{PATHS} paths of 1,000 steps per member; {threads} cores"
    record.ratio("model: rollout", roll_out, on_threads(lambda: peer.roll_out(gamma, PATHS)), 2.0, 5, note)
    parts = [record.rows[f"model: {name}"]["seconds"] for name in ("fit", "rollout")]
    whole = {name: sum(part[name] for part in parts) for name in parts[0]}
    ratio = min(seconds for name, seconds in whole.items() if name != "lingendice") / whole["lingendice"]
    record.least("model: fit and rollout", ratio, 2.0, "x PyTorch", f"sums of both; {threads} cores")


@pytest.mark.parametrize("peer", ["PyTorch eager", "d3rlpy"])
def test_fitted_q_against_peers(record, log, peer):
    gamma, fitting = 0.99, fitted_q.FITTING
    samples = prepare(log, control.policy("halfcheetah"), gamma)
    arrivals, weight = fitted_q.branches(
        samples, samples.following, np.arange(len(log)), np.random.default_rng(0)
    )
    reward = (log.reward * (1.0 - gamma)).astype(np.float32)
    steps = fitted_q.Steps(samples.logged, reward, arrivals, gamma * weight, False)
    ours = fitted_q.Learner(steps, np.arange(len(log)), gamma, fitting, 0)
    if peer == "d3rlpy":
        pytest.importorskip("d3rlpy", reason="d3rlpy is not installed")
        other, goal = D3rlpyFittedQ(log, fitting.hidden, fitting.batch, gamma), 1.0
    else:
        other, goal = TorchFittedQ(steps, gamma, fitting.hidden, fitting.batch), 1.5
    torch.set_num_threads(1)
    note = "one network of 64 x 64, batch 256; times of 500 steps, one thread"
    name = f"fitted Q: step against {peer}"
    record.ratio(name, lambda: ours.advance(STEPS), {peer: lambda: other.run(STEPS)}, goal, 3, note)
