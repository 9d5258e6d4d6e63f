"""On a cluster of separate processes: counts equal those of one machine, distributions agree within tol, and
a worker
that is killed on the way changes nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster
from written_logs import assert_same, cut, make_log

import lingendice as lg
from lingendice.distributed import cluster as cluster_module
from lingendice.distributed import rounds as distributed
from lingendice.model.compose import Choices, compose
from lingendice.solvers.control import Controls


def random_chain(n, degree, seed):
    """Counts of a random graph made irreducible by a ring."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (np.repeat(np.arange(n), degree), rng.integers(0, n, n * degree)), 1)
    return matrix + np.roll(np.eye(n), 1, axis=1)


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


def write_parts(folder, log, places):
    for number, part in enumerate(cut(log, places)):
        pq.write_table(pa.table(part), folder / f"part-{number:02d}.parquet", row_group_size=23)


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("derived", [False, True])
def test_counts_of_files(client, tmp_path, monkeypatch, labeled, derived):
    monkeypatch.setattr(distributed, "ROWS_PER_TASK", 50)  # several tasks a file
    log = make_log(labeled=labeled)
    write_parts(tmp_path, log, [100, 101, 350])
    options = {"next_state": False} if derived else {}
    found = lg.distributed.count(str(tmp_path / "*.parquet"), client, **options)
    assert_same(found, lg.read_transitions(log, **options))


def test_counts_of_a_dask_dataframe(client):
    log = make_log()
    frame = dd.from_pandas(pd.DataFrame(log), npartitions=5, sort=False)
    assert_same(lg.distributed.count(frame, client), lg.Counts.from_transitions(**log))


def kill_one_worker(client):
    """Kill the process of a worker, as the system would when memory runs out."""
    (pid, *_) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGKILL)


def counting_with_signals(folder):
    """A task that notes its beginning, and from a worker's second one on waits until a worker was killed."""

    def count_part(source, first, stop, columns):
        from lingendice.distributed import rounds as distributed

        pid = os.getpid()
        before = list(folder.glob(f"{pid}-*"))
        (folder / f"{pid}-{len(before)}-{Path(source).stem}-{first}").touch()
        deadline = time.monotonic() + 60
        while before and not (folder / "killed").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return distributed._count_part(source, first, stop, columns)

    return count_part


def kill_while_counting(folder, killed):
    """Kill the first worker that is in the midst of its second task, with the result of one in its memory."""
    deadline = time.monotonic() + 60
    while not (second := list(folder.glob("*-1-*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    pid, _, killed["task"] = second[0].name.split("-", 2)
    os.kill(int(pid), signal.SIGKILL)
    (folder / "killed").touch()


def test_a_worker_lost_while_counting(client, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "ROWS_PER_TASK", 50)
    files, signals = tmp_path / "files", tmp_path / "signals"
    files.mkdir()
    signals.mkdir()
    log = make_log()
    write_parts(files, log, [170, 340])
    monkeypatch.setattr(distributed, "_count_part", counting_with_signals(signals))
    killed: dict[str, str] = {}
    killer = threading.Thread(target=kill_while_counting, args=[signals, killed])
    killer.start()
    found = lg.distributed.count(str(files), client)
    killer.join()
    assert_same(found, lg.Counts.from_transitions(**log))
    begun = [path.name.split("-", 2) for path in signals.glob("*-*-*")]
    begun_again = {task for _, _, task in begun if sum(task == other for _, _, other in begun) > 1}
    assert killed["task"] in begun_again  # the kill fell into the midst of a task, which was then repeated
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize("gamma", [0.9, pytest.param(0.999, marks=pytest.mark.slow), 1.0])
def test_distributions_agree_within_tol(client, gamma):
    counts = lg.Counts.from_matrix(random_chain(200, 5, seed=1))
    found = lg.distributed.solve(counts, gamma, client=client, tol=1e-10)
    expected = lg.solve(counts, gamma)
    assert found.converged
    assert found.error <= 1e-10
    assert found.error_kind == ("bound" if gamma < 1 else "estimate")
    assert np.abs(found.stationary - expected.stationary).sum() <= 1e-10
    np.testing.assert_allclose(found.tau, expected.tau, rtol=1e-8)


def test_a_policy_with_leaks_and_terminals(client):
    log = make_log()
    counts = lg.Counts.from_transitions(**log)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    for gamma in (0.95, 1.0):
        found = lg.distributed.solve(counts, gamma, policy=policy, client=client)
        expected = lg.solve(counts, gamma, policy=policy, ridge=0, ratio="state_action")
        np.testing.assert_allclose(found.stationary, expected.stationary, atol=1e-10)
        assert found.value == pytest.approx(expected.value, abs=1e-9)


def test_several_classes_and_a_periodic_chain(client):
    two = np.kron(np.eye(2), [[1, 3], [2, 1]])
    found = lg.distributed.solve(two, client=client)
    assert found.status is lg.Status.SEVERAL_DISTRIBUTIONS
    np.testing.assert_allclose(found.distributions, lg.solve(two).distributions, atol=1e-10)
    limit = lg.distributed.solve(two, client=client, initial=[1, 0, 1, 2])
    np.testing.assert_allclose(limit.stationary, lg.solve(two, initial=[1, 0, 1, 2]).stationary, atol=1e-10)
    swap = np.array([[0, 0, 1, 3], [0, 0, 2, 1], [1, 1, 0, 0], [5, 1, 0, 0]])
    found = lg.distributed.solve(swap, client=client, blocks=2)
    np.testing.assert_allclose(found.stationary, lg.solve(swap).stationary, rtol=1e-9)


class InThisProcess:
    """The few calls of a client that solving makes, answered at once: rounds cost nothing to send."""

    def nthreads(self):
        return {"here": 1}

    def sync(self, function, *arguments, callback_timeout, **options):
        return function(*arguments, **options)

    def scatter(self, data, **_):
        return data

    def submit(self, function, *arguments, **_):
        done = Future()
        done.set_result(function(*arguments))
        return done

    def gather(self, tasks):
        return [task.result() for task in tasks]


def test_mass_that_wanders_slowly_between_blocks(monkeypatch):
    """States on a ring that send to their neighbors: the sums over groups of rows save most rounds."""
    rng = np.random.default_rng(4)
    ring = np.repeat(np.arange(600), 5)
    counts = lg.Counts.from_transitions(ring, (ring + rng.integers(-9, 10, ring.size)) % 600)
    found = lg.distributed.solve(counts, 0.999, client=InThisProcess(), blocks=4)
    expected = lg.solve(counts, 0.999)
    assert found.converged
    assert np.abs(found.stationary - expected.stationary).sum() <= 1e-10
    monkeypatch.setattr(distributed._Coarse, "share", lambda self, x: x)
    plain = lg.distributed.solve(counts, 0.999, client=InThisProcess(), blocks=4, max_iter=found.n_iter + 10)
    assert not plain.converged


@pytest.mark.parametrize("gamma", [1 - 1e-6, 1 - 1e-12])
def test_near_one_the_status_follows_the_stated_error(gamma):
    """A residual of exactly 0 proves nothing beyond rounding / (1 - gamma)."""
    rows = [[1, 1, 2], [1, 2, 1], [2, 1, 1]]
    found = lg.distributed.solve(np.array(rows), gamma, client=InThisProcess(), max_iter=60)
    assert found.error_kind == "bound"
    assert found.error > found.tol
    assert not found.converged


def test_limits_are_told(client):
    counts = lg.Counts.from_matrix(random_chain(100, 3, seed=2))
    found = lg.distributed.solve(counts, 0.99, client=client, max_iter=2)
    assert found.status is lg.Status.ITERATION_LIMIT
    assert not found.converged
    assert found.error_kind == "bound"
    off = np.abs(found.stationary - lg.solve(counts, 0.99).stationary).sum()
    assert 1e-10 < off <= found.error


def test_one_sweep_and_few_groups_where_blocks_feed_each_other():
    ring = np.repeat(np.arange(600), 3)
    local = lg.Counts.from_transitions(ring, (ring + np.tile([-1, 1, 2], 600)) % 600)
    scattered = lg.Counts.from_matrix(random_chain(600, 5, seed=5))
    for counts, sweeps, groups in ((local, 2, 30), (scattered, 1, 8)):
        operator = compose(counts, Choices(0.9))
        system = distributed._Spread(operator, InThisProcess(), 3, None, Controls())
        assert system.sweeps == sweeps
        assert len(system.coarse.starts) == groups
        assert distributed._Spread(operator, InThisProcess(), 3, 5, Controls()).sweeps == 5


def test_a_worker_lost_while_solving(client, monkeypatch):
    counts = lg.Counts.from_matrix(random_chain(300, 5, seed=3))
    plain, rounds = distributed._Spread._ask_once, []

    def spy(self, x, active, *task):
        rounds.append(time.perf_counter())
        if len(rounds) == 4:
            kill_one_worker(client)
        return plain(self, x, active, *task)

    monkeypatch.setattr(distributed._Spread, "_ask_once", spy)
    found = lg.distributed.solve(counts, 0.99, client=client)
    assert found.converged
    assert len(rounds) > found.n_iter + 1  # some round was lost and repeated
    assert np.abs(found.stationary - lg.solve(counts, 0.99).stationary).sum() <= 1e-10
    client.wait_for_workers(2, timeout=60)


def test_what_to_do_without_a_client_and_with_wrong_options(client):
    with pytest.raises(ValueError, match=r"checkpoint= is an option of lg\.read_transitions alone"):
        lg.distributed.count("log.parquet", client, checkpoint="x.npz")
    with pytest.raises(ValueError, match="cannot count a dict on a cluster"):
        lg.distributed.count({"state": [0]}, client)


# -- workers that are killed ------------------------------------------------------------------------------


class Killed:
    """A cluster of two workers, made anew where Dask does not start one again, as it sometimes does not."""

    def __init__(self):
        self.stack = ExitStack()
        self.client = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def workers(self):
        """Processes of two workers that are there."""
        if self.client is not None:
            time.sleep(1.0)  # until the scheduler has seen who is gone
            with suppress(TimeoutError, OSError):
                self.client.wait_for_workers(2, timeout=10)
                return list(self.client.run(os.getpid).values())
            self.stack.close()
        cluster = self.stack.enter_context(
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
        )
        self.client = self.stack.enter_context(Client(cluster))
        return list(self.client.run(os.getpid).values())


def killing(seconds, pids):
    def kill():
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.slow
def test_twenty_kills_at_random_moments():
    """Each solve ends by itself and with the right answer: a round that lost a worker is made again."""
    rng = random.Random(0)
    ring = np.repeat(np.arange(3000), 5)
    moves = np.random.default_rng(0).integers(-9, 10, ring.size)
    counts = lg.Counts.from_transitions(ring, (ring + moves) % 3000)
    expected = lg.solve(counts, 0.9995).stationary
    spent, n_lost = [], 0
    with Killed() as cluster:
        cluster.workers()
        for _ in range(2):  # the first one compiles
            began = time.perf_counter()
            lg.distributed.solve(counts, 0.9995, client=cluster.client)
            whole = time.perf_counter() - began
        for _ in range(20):
            killer = killing(rng.uniform(0.0, whole), [rng.choice(cluster.workers())])
            began = time.perf_counter()
            found = lg.distributed.solve(counts, 0.9995, client=cluster.client)
            spent.append(time.perf_counter() - began)
            killer.join()
            n_lost += spent[-1] > 1.5 * whole
            assert found.converged
            assert np.abs(found.stationary - expected).sum() <= 2e-10
    print(f"20 kills: {max(spent):.1f} s at most, {whole:.1f} s without")
    assert n_lost > 0  # some rounds were lost
    assert max(spent) < 60.0


@pytest.mark.slow
def test_a_cluster_without_workers_is_an_error(monkeypatch):
    """All workers leave for good: a deadline, and what to do."""
    monkeypatch.setattr(cluster_module, "REPLY", 2.0)
    counts = lg.Counts.from_matrix(random_chain(300, 5, seed=3))
    plain, rounds = distributed._Spread._ask_once, []
    with Killed() as cluster:
        cluster.workers()

        def spy(self, x, active, *task):
            rounds.append(1)
            if len(rounds) == 3:
                cluster.client.cluster.scale(0)
            return plain(self, x, active, *task)

        monkeypatch.setattr(distributed._Spread, "_ask_once", spy)
        began = time.perf_counter()
        with pytest.raises(RuntimeError, match=r"the cluster (has no worker|lost \d+ rounds)"):
            lg.distributed.solve(counts, 0.99, client=cluster.client)
        assert time.perf_counter() - began < 30.0


class Silent(InThisProcess):
    """A cluster that takes tasks and never does them."""

    def submit(self, *_, **__):
        return Future()


def test_tasks_that_never_end_are_given_up(monkeypatch):
    monkeypatch.setattr(distributed, "REPLY", 0.05)
    counts = lg.Counts.from_matrix(random_chain(50, 3, seed=2))
    with pytest.raises(RuntimeError, match=r"lost 3 rounds in a row .*no answer to a round.*call again"):
        lg.distributed.solve(counts, 0.9, client=Silent())


def test_a_time_limit_and_ctrl_c_end_the_wait_for_a_round():
    counts = lg.Counts.from_matrix(random_chain(50, 3, seed=2))
    found = lg.distributed.solve(counts, 0.9, client=Silent(), time_limit=0.2)
    assert found.status is lg.Status.TIME_LIMIT
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(lg.Interrupted) as caught:
        lg.distributed.solve(counts, 0.9, client=Silent())
    timer.join()
    assert caught.value.solution.status is lg.Status.INTERRUPTED


def test_an_idle_cluster_does_not_keep_a_count_waiting(monkeypatch, tmp_path):
    class Idle(Silent):
        def processing(self):
            return {"here": ()}

    monkeypatch.setattr(cluster_module, "REPLY", 0.05)
    monkeypatch.setattr(cluster_module, "_LOOKS", 0.01)
    write_parts(tmp_path, make_log(), [100])
    with pytest.raises(RuntimeError, match=r"idle for 0 s while counting.*count again"):
        lg.distributed.count(str(tmp_path), Idle())


@pytest.mark.parametrize(
    ("name", "bad"),
    [("tol", 0), ("max_iter", 0), ("max_iter", 1.5), ("time_limit", -1), ("blocks", 0), ("sweeps", 0.5)],
)
def test_arguments_are_checked_as_by_solve(name, bad):
    with pytest.raises(ValueError, match=name):
        lg.distributed.solve(np.ones((2, 2)), client=InThisProcess(), **{name: bad})
    with pytest.raises(ValueError, match="episode= is for logs"):
        lg.distributed.solve(np.ones((2, 2)), client=InThisProcess(), episode="e")
