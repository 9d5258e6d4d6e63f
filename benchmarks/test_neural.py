"""One training step of GenDICE's networks against JAX and PyTorch, one core, fresh actions in every step.

Every thread of the process is pinned to one core, those that the libraries started before included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import alternate
from neural_peers import GAMMA, PENALTY, RATE, JaxTrainer, Problem, TorchTrainer, flops, problem

import lingendice as lg
from lingendice.continuous.learner import Batches, Learner, NeuralOptions, gendice
from lingendice.continuous.network import Network
from lingendice.continuous.samples import prepare
from lingendice.data.policies import GaussianPolicy

SHAPES = {6: (4, 2), 13: (11, 2), 23: (17, 6)}
STEPS = 20


def pin(cores: set[int]) -> None:
    """All threads of this process, and those they start."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Everything on one core, whatever threads the libraries start."""
    held = os.sched_getaffinity(0)
    pin({min(held)})
    yield
    pin(held)


def learner(data: Problem) -> Learner:
    n_states = data.n_states
    actions = {len(part): part[:, n_states:] for part in (data.following, data.starting)}
    transitions = lg.Transitions(
        data.logged[:, :n_states], data.logged[:, n_states:], None, data.following[:, :n_states],
        initial_state=data.starting[:, :n_states],
    )  # fmt: skip
    policy = GaussianPolicy(lambda states: actions[len(states)], data.std)
    samples = prepare(transitions, policy, GAMMA, standardize=False)
    network = Network(samples.n_inputs, (64, 64))
    options = NeuralOptions(learning_rate=RATE, decay=False)
    objective = gendice(GAMMA, "chi2", "square", PENALTY, 0.0, None)
    return Learner(Batches(samples), network, objective, options, 10**6, 0)


def peers(data: Problem, names: tuple[str, ...]) -> dict:
    made = {}
    if "jax" in names:
        pytest.importorskip("jax", reason="JAX is not installed")
        made["JAX jit + scan"] = JaxTrainer(data)
    if "torch" in names:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        torch.set_num_threads(1)
        made["PyTorch eager"] = TorchTrainer(data)
    return {name: (lambda peer=peer: peer.run(STEPS)) for name, peer in made.items()}


@pytest.mark.parametrize("d", SHAPES)
@pytest.mark.parametrize(("peer", "goal"), [("jax", 2.0), ("torch", 2.8)])
def test_step_against_peer(record, d, peer, goal):
    data = problem(*SHAPES[d])
    ours = learner(data)
    record.ratio(
        f"neural: step, d = {d}, against {peer}", lambda: ours.advance(STEPS), peers(data, (peer,)), goal,
        repeats=7, note=f"{STEPS} steps, batch 2048, 2 x 64 tanh, one core",
    )  # fmt: skip


@pytest.mark.parametrize("d", SHAPES)
def test_share_of_matrix_product_speed(record, d):
    ours = learner(problem(*SHAPES[d]))
    left = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    ours.advance(STEPS)
    shares = []
    for _ in range(9):
        start = time.perf_counter()
        left @ left
        product = 2.0 * 1024**3 / (time.perf_counter() - start)
        start = time.perf_counter()
        ours.advance(STEPS)
        shares.append(STEPS * flops(d) / (time.perf_counter() - start) / product)
    share = statistics.median(shares)
    record.rows[f"neural: share of sgemm speed, d = {d}"] = {
        "goal": ">= 0.7", "measured": f"{share:.2f}", "met": bool(share >= 0.7), "seconds": {},
        "note": "multiplications of the step a second, over those of a 1024 x 1024 product, one core",
    }  # fmt: skip


_PRODUCTS = """
import sys
import numpy as np
left = np.ones((1024, 1024), dtype=np.float32)
for _ in sys.stdin:
    left @ left, left @ left
    print(flush=True)
"""


def products_in_processes(processes: list[subprocess.Popen]) -> None:
    """The same matrix products in each process, side by side."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.stdout.readline()


def test_two_cores(record, one_core):
    """Beside it, what the machine gives: two processes that share nothing, at the same moments."""
    cores = os.sched_getaffinity(os.getppid())
    if len(cores) < 2:
        pytest.skip("one core only")
    ours = learner(problem(*SHAPES[23]))
    held = os.sched_getaffinity(0)
    pin(cores)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-c", _PRODUCTS], subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(2)
    ]
    try:
        medians = alternate(
            {
                "lingendice": lambda: ours.advance(STEPS, threads=2),
                "lingendice on one": lambda: ours.advance(STEPS),
                "one process": lambda: products_in_processes(processes[:1]),
                "two processes": lambda: products_in_processes(processes),
            },
            repeats=25,
        )
    finally:
        for process in processes:
            process.communicate()
        pin(held)
    gain = medians["lingendice on one"] / medians["lingendice"]
    machine = 2.0 * medians["one process"] / medians["two processes"]
    record.rows["neural: step on two cores, d = 23"] = {
        "goal": ">= 1.4 x lingendice on one", "measured": f"{gain:.2f} x", "met": bool(gain >= 1.4),
        "seconds": {name: medians[name] for name in ("lingendice", "lingendice on one")},
        "note": f"same bits; two processes of sgemm did {machine:.2f} x the work of one at the same moments",
    }  # fmt: skip


_FIRST_CALL = """
import time
start = time.perf_counter()
import numpy as np, lingendice as lg
from lingendice.data.policies import GaussianPolicy
rng = np.random.default_rng(0)
s = rng.normal(size=(500, 3))
log = lg.Transitions(s, s[:, :1], s[:, 0], s, initial_state=s[:10])
lg.solve(log, 0.9, policy=GaussianPolicy(lambda x: x[:, :1], 0.1), method="gendice", max_iter=2)
print(time.perf_counter() - start)
"""


def test_first_call(record, tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for what, at_most in (("compiled anew", 15.0), ("from the cache", 1.5)):
        done = subprocess.run(
            [sys.executable, "-c", _FIRST_CALL], env=environment, capture_output=True, text=True, check=True
        )
        record.limit(
            f"neural: import and first call, {what}", float(done.stdout), at_most, "s", "wall time, one core"
        )
