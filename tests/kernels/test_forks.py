"""Processes that are started after the library was used: none hangs, and each gets the answers of its parent.

Every case runs in a process of its own, with a deadline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SLOW = pytest.mark.slow
DEADLINE = 180.0

WORK = """
import copy, multiprocessing, os, sys, threading, time
import numpy as np
import lingendice as lg
from lingendice.kernels import parallel

def chain(n):
    rng = np.random.default_rng(0)
    cells = np.repeat(np.arange(n), 6)
    after = np.append(rng.integers(0, n, 5 * n).reshape(n, 5), np.roll(np.arange(n), -1)[:, None], axis=1)
    return lg.Counts.from_transitions(cells, after.ravel(), threads=2)

def log():
    rng = np.random.default_rng(1)
    states = rng.integers(0, 30, 4001)
    return lg.Counts.from_transitions(
        states[:-1], states[1:], action=rng.integers(0, 2, 4000), reward=rng.random(4000),
        episode=np.arange(4000) // 20, keep_episodes=True, threads=2,
    )

def solving():
    return lg.solve(chain(30_000), 0.95, method="gauss-seidel", threads=2).stationary[:50].tolist()

def counting():
    rng = np.random.default_rng(2)
    return int(lg.Counts.from_transitions(*rng.integers(0, 900, (2, 600_000)), threads=2).count.sum())

def stepping():
    features = np.random.default_rng(3).random((500, 40))
    found = lg.solve(
        chain(500), 0.9, features=features, bound=5.0, method="sgd", max_iter=2000, threads=2,
        options={"batch": 512},
    )
    return found.stationary[:50].tolist()

def resampling():
    found = lg.solve(log(), 0.9, policy=np.full((30, 2), 0.5), ridge=0)
    limits = found.interval(method="bootstrap", replicates=64, threads=2)
    return [float(limits.low), float(limits.high)]

def comparing():
    rng = np.random.default_rng(4)
    policies = {k: rng.dirichlet(np.ones(2), 30) for k in range(6)}
    return lg.solve(log(), 0.9, policy=policies, ridge=0, threads=2).values.tolist()

def everything(_=None):
    return [work() for work in (counting, stepping, resampling, solving, comparing)]

def same(found, expected):
    # The same bits of counts, steps and replicates; distributions of sweeps side by side within their
    # tolerance.
    return found[:3] == expected[:3] and all(map(close, found, expected))

def close(one, other):
    return np.allclose(one, other, rtol=0, atol=1e-9)
"""

BY_MULTIPROCESSING = """
if __name__ == "__main__":
    expected = everything()
    assert parallel._pool.cache_info().currsize > 0, "the pool was not used"
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        for found in pool.map(everything, range(2)):
            assert same(found, expected)
    assert same(everything(), expected)  # and the parent goes on
    print("ok")
"""

BY_FORKS_OF_FORKS = """
if __name__ == "__main__":
    expected = everything()
    def descend(depth):
        child = os.fork()
        if not child:
            good = same(everything(), expected) and (depth == 0 or descend(depth - 1))
            os._exit(0 if good else 1)
        return os.waitpid(child, 0)[1] == 0
    # From a thread of the pool, too, whose child has it as its main thread.
    assert descend(1)
    assert parallel.run_all([lambda: descend(0), lambda: True], 2) == [True, True]
    print("ok")
"""

BESIDE_A_STREAM = """
if __name__ == "__main__":
    online, over = lg.OnlineRatio(100), threading.Event()
    if sys.argv[1] == "copied":
        online = copy.deepcopy(online)
    def update():
        rng = np.random.default_rng(0)
        while not over.is_set():
            online.update(*rng.integers(0, 100, (2, 2000)))
            online.stationary
    thread = threading.Thread(target=update)
    thread.start()
    time.sleep(0.5)
    for _ in range(8):
        child = os.fork()
        if not child:
            distribution = online.stationary
            expected = lg.solve(online.snapshot()).stationary
            os._exit(0 if np.allclose(distribution, expected, rtol=1e-8) else 1)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    print("ok")
"""

BESIDE_THE_COMPILER = """
import numba
def compile_one(number):
    made = {}
    exec(f"def f(x):\\n    return x * {number}", made)
    return numba.njit(made["f"])(3)

if __name__ == "__main__":
    everything()
    over = threading.Event()
    def compile_on():
        number = 0
        while not over.is_set():
            number += 1
            compile_one(number)
    thread = threading.Thread(target=compile_on)
    thread.start()
    time.sleep(0.2)
    for _ in range(4):
        child = os.fork()
        if not child:
            os._exit(0 if compile_one(7) == 21 else 1)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    print("ok")
"""

BY_DASK = """
import dask
if __name__ == "__main__":
    expected = everything()
    with dask.config.set(scheduler="processes", num_workers=2, **{"multiprocessing.context": sys.argv[1]}):
        found = dask.compute(*[dask.delayed(everything)(k) for k in range(2)])
    assert all(same(one, expected) for one in found)
    print("ok")
"""

BY_A_CLUSTER = """
import dask
from distributed import Client, LocalCluster
if __name__ == "__main__":
    expected = everything()
    with dask.config.set({"distributed.worker.multiprocessing-method": sys.argv[1]}):
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
    with cluster, Client(cluster) as client:
        found = client.gather(client.map(everything, range(2)))
        distribution = lg.distributed.solve(chain(2000), 0.9, client=client).stationary
    assert all(same(one, expected) for one in found)
    np.testing.assert_allclose(distribution, lg.solve(chain(2000), 0.9).stationary, atol=1e-9)
    print("ok")
"""

BY_THE_EMULATOR = """
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from emulator import build
from emulator.device import EmulatedDevice
from lingendice.gpu.device import using

def on_device(library):
    with using(EmulatedDevice(Path(library))):
        return lg.solve(chain(200), 0.9, device="cuda").stationary.tolist()

if __name__ == "__main__":
    library = str(build.build_emulator(Path(sys.argv[3]), "plain"))
    expected = on_device(library), everything()
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        assert pool.apply(on_device, (library,)) == expected[0]
        assert same(pool.apply(everything), expected[1])
    print("ok")
"""


def run(tmp_path, case, *arguments):
    script = tmp_path / "case.py"
    script.write_text(textwrap.dedent(WORK + case), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, script, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children hang with it
        raise
    assert out == "ok\n", err


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
class TestForks:
    def test_a_child_does_what_its_parent_did(self, tmp_path):
        run(tmp_path, BY_FORKS_OF_FORKS)

    @SLOW
    def test_a_pool_of_processes(self, tmp_path):
        run(tmp_path, BY_MULTIPROCESSING, "fork")

    @SLOW
    @pytest.mark.parametrize("made", ["new", "copied"])
    def test_while_another_thread_updates_a_stream(self, tmp_path, made):
        run(tmp_path, BESIDE_A_STREAM, made)

    @SLOW
    def test_while_another_thread_compiles(self, tmp_path):
        run(tmp_path, BESIDE_THE_COMPILER)

    @SLOW
    def test_processes_of_dask(self, tmp_path):
        pytest.importorskip("dask")
        run(tmp_path, BY_DASK, "fork")

    @SLOW
    def test_a_cluster(self, tmp_path):
        pytest.importorskip("distributed")
        run(tmp_path, BY_A_CLUSTER, "fork")

    @SLOW
    def test_the_emulator(self, tmp_path):
        run(tmp_path, BY_THE_EMULATOR, "fork", Path(__file__).parents[1], tmp_path)


@SLOW
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
class TestNewInterpreters:
    def test_a_pool_of_processes(self, tmp_path, method):
        run(tmp_path, BY_MULTIPROCESSING, method)

    def test_processes_of_dask(self, tmp_path, method):
        pytest.importorskip("dask")
        run(tmp_path, BY_DASK, method)

    def test_a_cluster(self, tmp_path, method):
        pytest.importorskip("distributed")
        run(tmp_path, BY_A_CLUSTER, method)

    def test_the_emulator(self, tmp_path, method):
        run(tmp_path, BY_THE_EMULATOR, method, Path(__file__).parents[1], tmp_path)
