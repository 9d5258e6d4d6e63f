"""On a cluster of separate processes: counts equal those of one machine and stay on the workers, solutions
agree with lg.solve, and workers that are killed change nothing."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster
from written_logs import assert_same, cut, make_log

import lingendice as lg
from lingendice.data.saving import read_archive, write_archive
from lingendice.distributed import DistributedCounts, counting
from lingendice.distributed import cluster as cluster_module
from lingendice.results import remote_solution


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


# -- counting ---------------------------------------------------------------------------------------------


def write_parts(folder, log, places, group=23):
    for number, part in enumerate(cut(log, places)):
        pq.write_table(pa.table(part), folder / f"part-{number:02d}.parquet", row_group_size=group)


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("derived", [False, True])
def test_counts_of_files(client, tmp_path, monkeypatch, labeled, derived):
    monkeypatch.setattr(counting, "ROWS_PER_TASK", 50)  # several tasks a file
    log = make_log(labeled=labeled)
    write_parts(tmp_path, log, [100, 101, 350])
    options = {"next_state": False, "ends": "terminal"} if derived else {}
    found = lg.distributed.count(str(tmp_path / "*.parquet"), client, **options)
    expected = lg.read_transitions(log, **options)
    assert_same(found.gather(), expected)
    assert found.n_blocks == 2
    np.testing.assert_array_equal(found.cell_count, expected.cell_count)
    np.testing.assert_array_equal(found.terminal_count, expected.terminal_count)
    np.testing.assert_allclose(found.reward, expected.reward)
    with pytest.raises(ValueError, match=r"lie on the workers.*counts\.gather\(\)"):
        _ = found.indices


@pytest.mark.parametrize("size", [2000, 10**9])
def test_integers_are_ids_or_names_as_the_whole_log_decides(client, tmp_path, size):
    """Sparse in one file, dense in another: the decision is that of one machine."""
    rng = np.random.default_rng(0)
    names = np.sort(rng.choice(size, 30, replace=False))
    state, following = names[rng.integers(0, 30, 400)], names[rng.integers(0, 30, 400)]
    state[:100], following[:100] = rng.integers(0, 5, 100), rng.integers(0, 5, 100)
    log = {"state": state, "next_state": following}
    write_parts(tmp_path, log, [100, 250])
    assert_same(lg.distributed.count(str(tmp_path), client).gather(), lg.read_transitions(log))


@pytest.mark.parametrize("ends", [None, "truncated"])
def test_last_rows_without_a_next_state_are_those_of_the_whole_log(client, tmp_path, ends):
    log = {name: column for name, column in make_log().items() if name not in ("next_state", "terminal")}
    write_parts(tmp_path, log, [100, 101, 350])
    says = f"{np.unique(log['episode']).size} last rows are {'cut off' if ends else 'counted as the end'}"
    with pytest.warns(lg.EpisodeEndWarning, match=says):
        expected = lg.read_transitions(log, ends=ends)
    assert ends or expected.total == 500
    with pytest.warns(lg.EpisodeEndWarning, match=says):
        found = lg.distributed.count(str(tmp_path / "*.parquet"), client, ends=ends)
    assert_same(found.gather(), expected)


def test_counts_of_a_dask_dataframe(client):
    log = make_log()
    frame = dd.from_pandas(pd.DataFrame(log), npartitions=5, sort=False)
    assert_same(lg.distributed.count(frame, client).gather(), lg.Counts.from_transitions(**log))


def test_rows_out_of_order_are_told_across_files_too(client, tmp_path):
    log = {"state": np.arange(60) % 7, "next_state": (np.arange(60) + 1) % 7, "episode": np.zeros(60, int)}
    log["next_state"][19] = log["next_state"][40] = 99  # the last row of a file, and one in the midst of one
    write_parts(tmp_path, log, [20])
    for read in (lg.read_transitions, lambda path: lg.distributed.count(path, client)):
        with pytest.warns(lg.RowOrderWarning, match="2 rows do not begin"):
            read(str(tmp_path))


@pytest.mark.parametrize("missing", ["reward", "terminal", "episode"])
def test_files_with_other_columns_are_refused_as_on_one_machine(client, tmp_path, missing):
    log = make_log()
    first, second = cut(log, [300])
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({name: part for name, part in second.items() if name != missing}), tmp_path / "b.parquet"
    )
    errors = []
    for read in (lg.read_transitions, lambda path: lg.distributed.count(path, client)):
        with pytest.raises(ValueError, match=r"b\.parquet.*row 0: columns for .* here, but for") as caught:
            read(str(tmp_path))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_blocks_in_files_are_opened_by_another_cluster(client, tmp_path):
    log = make_log(labeled=True)
    write_parts(tmp_path, log, [300])
    store = f"file://{tmp_path}/store"
    counts = lg.distributed.count(str(tmp_path / "*.parquet"), client, store=store, blocks=3)
    assert counts.n_blocks == 3
    assert len(list((tmp_path / "store").glob("block-*.parquet"))) == 3
    expected = lg.Counts.from_transitions(**log)
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0", silence_logs=50) as other,
        Client(other, set_as_default=False) as elsewhere,
    ):
        loaded = DistributedCounts.load(store, elsewhere)
        assert_same(loaded.gather(), expected)
        found = lg.solve(loaded, 0.9)
    assert found.value == pytest.approx(lg.solve(expected, 0.9, ridge=0).value, abs=1e-9)
    with pytest.raises(ValueError, match=r"nowhere/vectors\.npz: no such file"):
        DistributedCounts.load(str(tmp_path / "nowhere"), client)


def test_a_folder_that_was_half_overwritten_is_no_mixture(client, tmp_path, monkeypatch):
    store = str(tmp_path / "store")
    first, second = (DistributedCounts.from_counts(random_chain(40, 3, seed), client) for seed in (0, 1))
    first.save(store)

    def lost(*given):
        cluster_module.results(*given)
        raise RuntimeError("the client is gone")

    monkeypatch.setattr("lingendice.distributed.counts.results", lost)
    with pytest.raises(RuntimeError, match="gone"):
        second.save(store)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="store: is incomplete; save the counts there again"):
        DistributedCounts.load(store, client)
    assert second.save(store).gather() == second.gather()


def test_a_folder_of_an_earlier_version_says_what_to_do(client, tmp_path):
    """Such a folder does not tell which cells have transitions without a reward."""
    store = str(tmp_path / "store")
    DistributedCounts.from_counts(lg.Counts.from_transitions(**make_log()), client).save(store)
    arrays, record = read_archive(f"{store}/vectors.npz", "distributed counts")
    del arrays["unrewarded"]
    write_archive(f"{store}/vectors.npz", arrays, record)
    with pytest.raises(ValueError, match=r"store: written by an earlier .*count the log again with .*store="):
        DistributedCounts.load(store, client)


def test_closed_counts_say_that_their_rows_are_gone(client, tmp_path):
    counts = DistributedCounts.from_counts(np.ones((4, 4)), client)
    counts.close()
    for use in (lambda: lg.solve(counts, 0.9), counts.gather, lambda: counts.save(str(tmp_path / "store"))):
        with pytest.raises(ValueError, match=r"closed or pickled.*DistributedCounts\.load"):
            use()
    assert not (tmp_path / "store").exists()


def test_folders_are_strings_or_paths(client, tmp_path):
    log = {"state": [0, 1, 2], "next_state": [1, 2, 0]}
    write_parts(tmp_path, log, [])
    counts = lg.distributed.count(tmp_path / "part-00.parquet", client, store=tmp_path / "store")
    assert_same(DistributedCounts.load(tmp_path / "store", client).gather(), lg.read_transitions(log))
    assert counts.n_entries == 3


def test_a_file_without_rows_is_no_transitions(client, tmp_path):
    """Parquet has files without a single row group."""
    pq.ParquetWriter(tmp_path / "a.parquet", pa.table({"state": [0], "next_state": [0]}).schema).close()
    for source in (str(tmp_path), []):
        with pytest.raises(ValueError, match="no transitions: the log has no rows"):
            lg.distributed.count(source, client)
    with pytest.raises(ValueError, match="no states to spread: the counts are empty"):
        DistributedCounts.from_counts(lg.Counts.empty(), client)


@pytest.mark.parametrize("blocks", [0, -1, 2.5, "3"])
def test_the_number_of_blocks_is_checked(client, tmp_path, blocks):
    write_parts(tmp_path, {"state": [0, 1], "next_state": [1, 0]}, [])
    with pytest.raises(ValueError, match="blocks must be"):
        lg.distributed.count(str(tmp_path), client, blocks=blocks)
    with pytest.raises(ValueError, match="blocks must be"):
        DistributedCounts.from_counts(np.ones((4, 4)), client, blocks=blocks)


# -- solving -----------------------------------------------------------------------------------------------


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
    assert found.residual <= 1e-10


@pytest.mark.parametrize("gamma", [0.95, 1.0])
@pytest.mark.parametrize("terminal", ["auto", "restart"])
def test_a_policy_with_leaks_and_terminals(client, gamma, terminal):
    counts = lg.Counts.from_transitions(**make_log(), keep_episodes=False)
    spread = DistributedCounts.from_counts(counts, client)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    terms = {"policy": policy, "ridge": 0, "ratio": "state_action", "terminal": terminal}
    found, expected = lg.solve(spread, gamma, **terms), lg.solve(counts, gamma, **terms)
    np.testing.assert_allclose(found.stationary, expected.stationary, atol=1e-10)
    assert found.value == pytest.approx(expected.value, abs=1e-9)
    assert found.leak == pytest.approx(expected.leak, abs=1e-10)
    assert found.terminal_mass == pytest.approx(expected.terminal_mass, abs=1e-10)
    np.testing.assert_allclose(found.state_values, expected.state_values, atol=1e-7)
    np.testing.assert_allclose(found.q_values, expected.q_values, atol=1e-7)
    assert found.gap == pytest.approx(expected.gap, abs=1e-7)
    for of in ("value", np.arange(9.0)):
        ours, theirs = found.interval(0.9, of), expected.interval(0.9, of)
        assert ours.standard_error == pytest.approx(theirs.standard_error, rel=1e-6)
        assert tuple(ours) == pytest.approx(tuple(theirs), rel=1e-6)
    assert found.value_bounds == pytest.approx(expected.value_bounds, abs=1e-8)
    assert found.behavior_value == pytest.approx(expected.behavior_value, abs=1e-9)


def test_bounds_within_a_range_of_rewards(client):
    """Any range was refused for the rows of the log, which lie on the workers."""
    counts = lg.Counts.from_transitions(**make_log(), keep_episodes=False)
    spread = DistributedCounts.from_counts(counts, client)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    terms = {"policy": policy, "ridge": 0, "ratio": "state_action", "reward_range": (-50.0, 50.0)}
    found, expected = lg.solve(spread, 0.9, **terms), lg.solve(counts, 0.9, **terms)
    assert found.value_bounds == pytest.approx(expected.value_bounds, abs=1e-7)
    with pytest.raises(ValueError, match="does not hold the logged rewards"):
        lg.solve(spread, 0.9, **terms | {"reward_range": (0.0, 1e-3)})
    with pytest.raises(ValueError, match=r"lie on the workers of a cluster; counts\.gather"):
        lg.ridge_path(found)


def test_intervals_of_many_entries_take_a_limit(client, monkeypatch):
    """One solve on the cluster each: 30,000 of them did not end in minutes."""
    rng = np.random.default_rng(0)
    counts = lg.Counts.from_transitions(rng.integers(60, size=4000), rng.integers(60, size=4000), n_states=60)
    solution = lg.distributed.solve(counts, 0.8, client=client)
    monkeypatch.setattr(remote_solution, "MOST_ENTRIES", 50)
    with pytest.raises(ValueError, match=r"all 60 entries .* entries=.* time_limit=.*gather"):
        solution.interval(of="stationary")
    begun = time.perf_counter()
    found = solution.interval(of="stationary", time_limit=0.5)
    assert time.perf_counter() - begun < 10.0
    assert "of 60 entries were not reached within time_limit=0.5" in found.note
    few = solution.interval(of="stationary", entries=[7, 3])
    expected = lg.solve(counts, 0.8).interval(of="stationary", entries=[7, 3])
    np.testing.assert_allclose(few.low, expected.low, rtol=1e-6)


def test_rewards_logged_in_part_have_no_interval_of_the_value(client, tmp_path):
    """As on one machine; the mean of a function has one, and so has the value of rewards that are given."""
    log = make_log()
    some, rest = cut(log, [250])
    del rest["reward"]
    merged = lg.Counts.from_transitions(**some) + lg.Counts.from_transitions(**rest, n_states=9, n_actions=3)
    spread = DistributedCounts.from_counts(merged, client)
    for counts in (merged, spread, spread.save(str(tmp_path))):
        solution = lg.solve(counts, 0.9, ridge=0)
        with pytest.raises(ValueError, match=r"some transitions from cell 0 have no logged reward"):
            solution.interval()
        assert solution.interval(of=np.arange(9.0)).standard_error > 0
        assert lg.solve(counts, 0.9, ridge=0, reward=np.arange(9.0)).interval().standard_error > 0
    whole = DistributedCounts.from_counts(lg.Counts.from_transitions(**log), client)
    assert lg.solve(whole, 0.9, ridge=0).interval().standard_error > 0


def test_the_interval_says_that_it_is_not_clustered_and_what_is(client, tmp_path):
    """The advice works: it is clustered by episode then."""
    log = make_log()
    write_parts(tmp_path, log, [100, 350])
    spread = lg.solve(lg.distributed.count(str(tmp_path), client), 0.9, ridge=0).interval()
    assert "not clustered by episode" in spread.note
    assert "lg.read_transitions(..., keep_episodes=True)" in spread.note
    here = lg.solve(lg.read_transitions(str(tmp_path), keep_episodes=True), 0.9, ridge=0).interval()
    assert here.note.startswith("clustered by")
    assert spread.estimate == pytest.approx(here.estimate, abs=1e-9)


def test_a_solution_is_pickled_with_its_vectors(client):
    counts = lg.Counts.from_transitions(**make_log())
    found = lg.solve(DistributedCounts.from_counts(counts, client), 0.9)
    kept = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(kept.tau, found.tau)
    assert kept.value == found.value
    with pytest.raises(ValueError, match=r"pickled.*DistributedCounts\.load"):
        kept.interval()
    with pytest.raises(ValueError, match=r"bootstrap resamples rows.*counts\.gather"):
        found.interval(method="bootstrap")


def test_the_logged_chain_and_its_interval(client):
    """Without a policy the cloned behavior is followed, which moves with the counts."""
    counts = lg.Counts.from_transitions(**make_log(), keep_episodes=False)
    found = lg.solve(DistributedCounts.from_counts(counts, client), 0.9, ridge=0)
    expected = lg.solve(counts, 0.9, ridge=0)
    assert found.value == pytest.approx(expected.value, abs=1e-10)
    assert found.interval().standard_error == pytest.approx(expected.interval().standard_error, rel=1e-6)


def test_policies_by_function_and_in_pieces(client):
    counts = lg.Counts.from_transitions(**make_log())
    spread = DistributedCounts.from_counts(counts, client)
    table = np.random.default_rng(1).dirichlet(np.ones(3), 9)
    expected = lg.solve(counts, 0.9, policy=table, ridge=0, ratio="state_action").value
    by_state = {state: dict(enumerate(row)) for state, row in enumerate(table.tolist())}
    for policy in (da.from_array(table, chunks=(4, 3)), lambda states: table[states], by_state):
        found = lg.solve(spread, 0.9, policy=policy, ratio="state_action")
        assert found.value == pytest.approx(expected, abs=1e-9)
    with pytest.raises(lg.NotAvailableYet, match="a comparison of policies"):
        lg.solve(spread, 0.9, policy={"one": table, "other": table[::-1]})


def test_several_classes_and_a_periodic_chain(client):
    two = np.kron(np.eye(2), [[1, 3], [2, 1]])
    found = lg.distributed.solve(two, client=client)
    assert found.status is lg.Status.SEVERAL_DISTRIBUTIONS
    np.testing.assert_allclose(found.distributions, lg.solve(two).distributions, atol=1e-10)
    with pytest.raises(ValueError, match=r"2 recurrent classes.*counts\.gather\(\)"):
        lg.distributed.solve(two, client=client, initial=[0.25, 0, 0.25, 0.5])
    swap = np.array([[0, 0, 1, 3], [0, 0, 2, 1], [1, 1, 0, 0], [5, 1, 0, 0]])
    found = lg.distributed.solve(swap, client=client)
    np.testing.assert_allclose(found.stationary, lg.solve(swap).stationary, rtol=1e-9)


def test_transient_states_and_a_class_that_spans_parts(client):
    rng = np.random.default_rng(6)
    n = 300
    inside = np.arange(0, n, 3)  # recurrent: every third state, in a ring and at random
    state = np.concatenate([inside, inside, np.arange(n)])
    following = np.concatenate([np.roll(inside, -1), rng.choice(inside, inside.size), rng.choice(inside, n)])
    counts = lg.Counts.from_transitions(state, following)
    found, expected = lg.distributed.solve(counts, client=client), lg.solve(counts)
    assert found.converged
    np.testing.assert_allclose(found.stationary, expected.stationary, rtol=1e-9)
    assert (found.stationary > 0).sum() == inside.size


def test_the_audit_finds_classes_and_leaks_where_rows_lie(client):
    rng = np.random.default_rng(8)
    state = rng.integers(0, 60, 500)
    # Two classes that nothing leaves, states that lead to either, and one that is never left.
    following = np.where(state < 20, rng.integers(0, 20, 500), rng.integers(0, 60, 500))
    following = np.where((state >= 20) & (state < 40), rng.integers(20, 40, 500), following)
    chain = lg.Counts.from_transitions(np.append(state, 45), np.append(following, 60))
    pairs = lg.Counts.from_transitions(**make_log())
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    for counts, terms in ((chain, {}), (pairs, {"policy": policy, "gamma": 0.9})):
        found = lg.audit(DistributedCounts.from_counts(counts, client), **terms)
        expected = lg.audit(counts, **terms)
        for ours, theirs in zip(found.recurrent_classes, expected.recurrent_classes, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for name in ("transient_states", "dangling"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_allclose(found.leak, expected.leak, atol=1e-14)
        assert found.total_leak == pytest.approx(expected.total_leak)
        assert found.coverage == pytest.approx(expected.coverage)
        assert "not looked for" in str(found)


def test_limits_are_told(client):
    counts = lg.Counts.from_matrix(random_chain(100, 3, seed=2))
    found = lg.distributed.solve(counts, 0.99, client=client, max_iter=4)
    assert found.status is lg.Status.ITERATION_LIMIT
    assert not found.converged
    assert found.error_kind == "bound"
    off = np.abs(found.stationary - lg.solve(counts, 0.99).stationary).sum()
    assert 1e-10 < off <= found.error


@pytest.mark.parametrize("gamma", [1 - 1e-6, 1 - 1e-12])
def test_near_one_the_status_follows_the_stated_error(client, gamma):
    """A residual of exactly 0 proves nothing beyond rounding / (1 - gamma)."""
    rows = [[1, 1, 2], [1, 2, 1], [2, 1, 1]]
    found = lg.distributed.solve(np.array(rows), gamma, client=client, max_iter=60)
    assert found.error_kind == "bound"
    assert found.error > found.tol
    assert not found.converged


@pytest.mark.parametrize(
    ("name", "bad"),
    [("tol", 0), ("max_iter", 0), ("max_iter", 1.5), ("time_limit", -1), ("gamma", 2.0), ("leak", "none"),
     ("terminal", "stay"), ("penalty", -1.0), ("options", {"batch": 3})],
)  # fmt: skip
def test_arguments_are_checked_as_by_solve(client, name, bad):
    counts = lg.Counts.from_matrix(np.ones((2, 2)))
    spread = DistributedCounts.from_counts(counts, client)
    errors = []
    for data in (counts, spread):
        with pytest.raises(ValueError, match=name) as caught:
            lg.solve(data, **{"gamma": 0.9, name: bad})
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_what_is_for_one_machine_is_refused(client):
    spread = DistributedCounts.from_counts(lg.Counts.from_transitions(**make_log()), client)
    features = {"features": np.ones((27, 1))}, {"dual_features": np.ones((27, 1))}, {"bound": 2.0}
    for terms in ({"ridge": 0.1}, *features, {"method": "sgd"}, {"clone": 3.0}):
        with pytest.raises(ValueError, match=r"gather|method"):
            lg.solve(spread, 0.9, **terms)
    with pytest.raises(ValueError, match=r"keep_episodes= is an option of lg\.read_transitions alone"):
        lg.distributed.count("log.parquet", client, keep_episodes=True)
    with pytest.raises(ValueError, match="cannot count a dict on a cluster"):
        lg.distributed.count({"state": [0]}, client)


# -- time, Ctrl-C and silence ------------------------------------------------------------------------------


def slow_counts():
    ring = np.repeat(np.arange(3000), 5)
    moves = np.random.default_rng(0).integers(-9, 10, ring.size)
    return lg.Counts.from_transitions(ring, (ring + moves) % 3000)


def test_a_time_limit_and_ctrl_c_end_the_rounds(client, monkeypatch):
    from lingendice.distributed import rounds

    def never_slow():
        rounds._PATIENCE = 10**9

    client.run(never_slow)
    try:
        spread = DistributedCounts.from_counts(slow_counts(), client)
        found = lg.solve(spread, 0.999999, time_limit=1.0)
        assert found.status is lg.Status.TIME_LIMIT
        assert found.n_iter > 0
        assert found.seconds < 20.0
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(lg.Interrupted) as caught:
            lg.solve(spread, 0.999999)
        timer.join()
        assert caught.value.solution.status is lg.Status.INTERRUPTED
    finally:
        client.run(lambda: setattr(rounds, "_PATIENCE", 300))


def test_parts_that_never_answer_are_given_up(client, monkeypatch):
    monkeypatch.setattr(cluster_module, "PATIENCE", 0.2)
    spread = DistributedCounts.from_counts(np.ones((4, 4)), client)
    lg.solve(spread, 0.9)

    def drop(run, key, arrays):
        """Of a run, a message that is lost."""

    def make_deaf(deaf):
        from lingendice.distributed import mesh

        mesh.PhaseInbox.put, mesh.PhaseInbox.heard = (
            (drop, mesh.PhaseInbox.put) if deaf else (mesh.PhaseInbox.heard, None)
        )

    client.run(make_deaf, True)
    try:
        with pytest.raises(RuntimeError, match=r"lost \d+ rounds in a row .*sent nothing"):
            lg.solve(spread, 0.8)
    finally:
        client.run(make_deaf, False)


# -- workers that are killed ------------------------------------------------------------------------------


def counting_with_signals(folder):
    """A task that notes its beginning, and from a worker's second one on waits until a worker was killed."""

    def count_part(source, row_groups, columns):
        from lingendice.distributed import counting

        pid = os.getpid()
        before = list(folder.glob(f"{pid}-*"))
        (folder / f"{pid}-{len(before)}-{Path(source).stem}-{row_groups.start}").touch()
        deadline = time.monotonic() + 60
        while before and not (folder / "killed").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return counting._count_part(source, row_groups, columns)

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
    monkeypatch.setattr(counting, "ROWS_PER_TASK", 50)
    files, signals = tmp_path / "files", tmp_path / "signals"
    files.mkdir()
    signals.mkdir()
    log = make_log()
    write_parts(files, log, [170, 340])
    monkeypatch.setattr(counting, "_count_part", counting_with_signals(signals))
    killed: dict[str, str] = {}
    killer = threading.Thread(target=kill_while_counting, args=[signals, killed])
    killer.start()
    found = lg.distributed.count(str(files), client)
    killer.join()
    assert_same(found.gather(), lg.Counts.from_transitions(**log))
    begun = [path.name.split("-", 2) for path in signals.glob("*-*-*")]
    begun_again = {task for _, _, task in begun if sum(task == other for _, _, other in begun) > 1}
    assert killed["task"] in begun_again  # the kill fell into the midst of a task, which was then repeated
    client.wait_for_workers(2, timeout=60)


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


def killing(seconds, pid):
    def kill():
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_at_random_moments_over_count_and_solve(tmp_path, monkeypatch, kills):
    """Every time the right answer or a clear error, never a hang, and nothing counted twice."""
    monkeypatch.setattr(counting, "ROWS_PER_TASK", 500)
    rng = random.Random(0)
    state = np.repeat(np.arange(500), 12)
    moves = np.random.default_rng(0).integers(-9, 10, state.size)
    log = {"state": state, "next_state": (state + moves) % 500, "reward": np.cos(state)}
    write_parts(tmp_path, log, [1500, 3000, 4500], group=500)
    expected = lg.read_transitions(log)
    answer = lg.solve(expected, 0.999)
    spent, errors = [], []
    with Killed() as cluster:

        def work():
            began = time.perf_counter()
            counts = lg.distributed.count(str(tmp_path), cluster.client)
            counted = time.perf_counter() - began
            assert counts.total == expected.total
            found = lg.solve(counts, 0.999)
            assert found.converged
            assert np.abs(found.stationary - answer.stationary).sum() <= 2e-10
            assert found.value == pytest.approx(answer.value, abs=1e-9)
            assert_same(counts.gather(), expected)
            return counted, time.perf_counter() - began

        cluster.workers()
        work()  # compiles
        _, whole = work()
        struck = 0
        for number in range(kills):
            # The first comes while the work surely runs, however slow the run without a kill was.
            moment = rng.uniform(0.0, whole) if number else 0.05
            killer = killing(moment, rng.choice(cluster.workers()))
            began = time.perf_counter()
            try:
                work()
            except RuntimeError as error:
                errors.append(str(error))
            spent.append(time.perf_counter() - began)
            struck += not killer.is_alive()
            killer.join()
    print(f"{kills} kills: {max(spent):.1f} s at most, {whole:.1f} s without; errors: {errors}")
    assert all("the cluster" in text for text in errors)
    assert len(errors) <= kills // 5
    assert max(spent) < 90.0
    assert struck > 0  # a worker died before the work was done


def test_a_cluster_without_workers_is_an_error(monkeypatch):
    """All workers leave for good: a deadline, and what to do."""
    monkeypatch.setattr(cluster_module, "REPLY", 2.0)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        spread = DistributedCounts.from_counts(lg.Counts.from_matrix(random_chain(300, 5, seed=3)), client)
        lg.solve(spread, 0.9)
        cluster.scale(0)
        began = time.perf_counter()
        with pytest.raises(RuntimeError, match=r"the cluster (has no worker|lost \d+ rounds)"):
            lg.solve(spread, 0.99)
        assert time.perf_counter() - began < 30.0


def test_an_error_of_a_task_is_no_lost_worker(client):
    """A file that may not be read is an OSError, as is a broken connection; the first is told at once."""
    begun = []

    def refused():
        raise PermissionError("access to the bucket is denied")

    def attempt():
        begun.append(True)
        return cluster_module.results(client, [client.submit(refused, pure=False)])

    with pytest.raises(PermissionError, match="access to the bucket"):
        cluster_module.insist(attempt)
    assert len(begun) == 1


def test_an_idle_cluster_is_not_waited_for(monkeypatch):
    class Waiting:
        status = "pending"

        def done(self):
            return False

    class Idle:
        def processing(self):
            return {"here": ()}

        def sync(self, function, *arguments, callback_timeout, **options):
            return function(*arguments, **options)

    monkeypatch.setattr(cluster_module, "PATIENCE", 0.02)
    monkeypatch.setattr(cluster_module, "_LOOKS", 0.01)
    with pytest.raises(RuntimeError, match=r"lost 3 rounds in a row \(last: nothing moved for 0 s\)"):
        cluster_module.insist(lambda: cluster_module.results(Idle(), [Waiting()]))
