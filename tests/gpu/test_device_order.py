"""What the host asks of graphs and memory: what they can hold, limits inside trials, estimates that hold."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from emulator import device as emulated
from emulator.device import EmulatedDevice, OrderError
from problems import birth_death

import lingendice as lg
from gpu.test_device_solve import assert_same_distribution, random_counts, random_log
from lingendice.gpu import chain, count_transitions, solver
from lingendice.gpu.device import DeviceMemoryError, using
from lingendice.gpu.device_counts import counting_bytes
from lingendice.results.status import Status
from lingendice.solvers.control import Controls

SLOW = birth_death(np.full(39, 0.3), np.full(39, 0.5))
STREAMED = {"device": "cuda", "options": {"chunk_rows": 7}}


# -- chunks of rows --------------------------------------------------------------------------------------


def test_chunks_are_copied_before_every_pass(emulator):
    counts = random_counts(50, seed=4)
    chunked = lg.solve(counts, 0.9, **STREAMED)
    assert_same_distribution(chunked, lg.solve(counts, 0.9))
    assert emulator.graph_launches == 0
    assert emulator.uploaded > chunked.n_iter * 12 * counts.nnz


def test_pageable_memory_is_noticed(emulator, monkeypatch):
    monkeypatch.setattr(EmulatedDevice, "pinned", lambda self, array, dtype: np.array(array, dtype))
    with pytest.raises(OrderError, match="page-locked"):
        lg.solve(random_counts(50, seed=4), 0.9, **STREAMED)


# -- captured sequences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sin", ["download", "allocate", "assign"])
def test_what_a_graph_cannot_hold_is_noticed(emulator, sin):
    array = emulator.zeros(3, np.float64)
    ways = {
        "download": lambda: emulator.download(array),
        "allocate": lambda: emulator.empty(3, np.float64),
        "assign": lambda: array.__setitem__(slice(None), 1.0),
    }
    with pytest.raises(OrderError, match="a capture"):
        emulator.record(ways[sin])


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_cycles_are_launched_as_graphs(emulator, gamma):
    assert lg.solve(random_counts(), gamma, device="cuda").converged
    assert emulator.graph_launches > 3


# -- limits ----------------------------------------------------------------------------------------------


class TrialDevice(EmulatedDevice):
    """Calls ``on_trial`` when the trial of the condition begins, and counts launches from then on."""

    on_trial, since = None, None

    def run(self, name, *rest):
        if name == "draw_factors<double>" and self.on_trial is not None:
            self.on_trial()
            self.since = 0
        if self.since is not None:
            self.since += 1
        super().run(name, *rest)


@pytest.fixture
def trial_device(libraries):
    device = TrialDevice(libraries())
    with using(device):
        yield device


def launches_of_trial(device):
    device.on_trial = lambda: None
    assert lg.solve(SLOW, device="cuda").status is Status.SOLVED
    return device.since


def test_ctrl_c_ends_the_trial_of_the_condition(trial_device):
    all_of_it = launches_of_trial(trial_device)
    trial_device.on_trial = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(lg.Interrupted) as caught:
        lg.solve(SLOW, device="cuda")
    assert trial_device.since < 20 < all_of_it / 10
    best = caught.value.solution
    assert best.status is Status.INTERRUPTED
    assert best.stationary.sum() == pytest.approx(1.0)
    assert best.error > 1e-10  # nothing was seen that would say less


def test_the_time_limit_ends_the_trial_of_the_condition(trial_device, monkeypatch):
    late = []
    plain = Controls.elapsed
    monkeypatch.setattr(Controls, "elapsed", lambda self: 1e9 if late else plain(self))
    trial_device.on_trial = lambda: late.append(True)
    stopped = lg.solve(SLOW, time_limit=1e6, device="cuda")
    assert stopped.status is Status.TIME_LIMIT
    assert trial_device.since < 20
    assert not stopped.converged


# -- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("storage", ["float32", "float64"])
@pytest.mark.parametrize("chunk_rows", [None, 300])
@pytest.mark.parametrize("n_actions", [None, 3])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_solve_takes_what_was_estimated(emulator, monkeypatch, gamma, storage, chunk_rows, n_actions):
    estimates = []
    plain = chain.require_memory
    monkeypatch.setattr(
        chain, "require_memory", lambda *given: (estimates.append(given[1]), plain(*given))[1]
    )
    emulator.block = 256
    policy = None
    data = random_counts(1500, density=0.0008)
    if n_actions:
        log = random_log(9000, n_states=1500)
        data, policy = lg.Counts.from_transitions(**log), np.full((1500, 3), 1.0 / 3.0)
    options = {"storage": storage, "chunk_rows": chunk_rows}
    before = emulated.MEMORY.watch()
    solution = lg.solve(
        data, gamma, policy=policy, ridge=0, clone=0, tol=1e-3, device="cuda", options=options
    )
    assert solution.converged  # at gamma = 1 the trial of the condition was made, too
    taken = emulated.MEMORY.peak - before
    assert taken <= estimates[0] <= 3 * taken


def taken_by(work):
    """Most bytes of the device that lived at once during the work, beside those before it."""
    before = emulated.MEMORY.watch()
    kept = work()
    taken = emulated.MEMORY.peak - before
    del kept
    return taken


@pytest.mark.parametrize(("n_states", "reward"), [(20, False), (3000, False), (3000, True)])
def test_counting_takes_what_was_estimated(emulator, monkeypatch, n_states, reward):
    n = 20_000
    log = random_log(n, n_states=n_states)
    columns = [emulator.upload(log[name]) for name in ("state", "next_state", "action")]
    more = {"reward": emulator.upload(log["reward"])} if reward else {}
    sizes = {"n_states": n_states, "n_actions": 3}
    n_pairs = 3 * n_states * (n_states + 1)
    emulator.block = 256
    taken = taken_by(lambda: count_transitions(*columns, **sizes, **more))
    assert (
        taken
        <= counting_bytes(n, 3 * n_states, n_pairs, not reward and n_states < 2000, 8 * reward)
        <= 3 * taken
    )
    emulator.free = taken // 2
    with pytest.raises(DeviceMemoryError, match="count parts of the log"):
        count_transitions(*columns, **sizes, **more)


@pytest.mark.parametrize("storage", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_sgd_takes_what_was_estimated(emulator, monkeypatch, storage):
    estimates = []
    plain = solver.require_bytes
    monkeypatch.setattr(solver, "require_bytes", lambda *given: (estimates.append(given[1]), plain(*given)))
    counts = lg.Counts.from_transitions(**random_log(9000, n_states=800))
    choices = {"policy": np.full((800, 3), 1.0 / 3.0), "bound": 4.0, "max_iter": 8, "method": "sgd"}
    choices["options"] = {"storage": storage, "batch": 100}
    emulator.block = 256
    taken = taken_by(lambda: lg.solve(counts, 0.9, device="cuda", **choices))
    assert taken <= estimates[0] <= 3 * taken
    emulator.free = taken // 2
    with pytest.raises(DeviceMemoryError, match="GB of device memory"):
        lg.solve(counts, 0.9, device="cuda", **choices)
