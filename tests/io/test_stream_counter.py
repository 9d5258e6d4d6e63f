"""Logs of more rows than are counted together: pieces are joined, and nothing else changes."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from written_logs import assert_same, cut, make_log

import lingendice as lg
from lingendice.io import stream_counter

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")  # rows are drawn at random


@pytest.fixture
def few_rows(monkeypatch):
    """A few hundred rows at a time; how many each time."""
    monkeypatch.setattr(stream_counter, "ROWS", 300)
    monkeypatch.setattr(stream_counter, "MOST_ROWS", 300)
    calls, count = [], stream_counter.Accumulator._count

    def spy(self, n, alone=False):
        calls.append(n)
        return count(self, n, alone)

    monkeypatch.setattr(stream_counter.Accumulator, "_count", spy)
    return calls


def growing_log(n=2000, *, action=False, terminal=False, labeled=False):
    """New states and actions turn up all the time."""
    rng = np.random.default_rng(3)
    reach = 5 + np.arange(n) // 4
    log = {"state": rng.integers(0, reach), "next_state": rng.integers(0, reach)}
    if action:
        log["action"] = rng.integers(0, 1 + np.arange(n) // 300)
    if terminal:
        log |= {"terminal": rng.random(n) < 0.1, "episode": np.arange(n) // 9}
    if labeled:
        log |= {name: np.char.mod("at %d", log[name]) for name in ("state", "next_state")}
    return log


def batches(log, step=170):
    n = len(log["state"])
    return [{role: column[i : i + step] for role, column in log.items()} for i in range(0, n, step)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("role", [{}, {"action": True}, {"terminal": True}, {"labeled": True}])
def test_pieces_make_up_the_whole_log(tmp_path, few_rows, role, threads):
    log = growing_log(**role)
    expected = lg.Counts.from_transitions(**log)
    assert lg.read_transitions(batches(log), threads=threads) == expected
    assert few_rows == [300] * 6 + [200]
    pq.write_table(pa.table(log), tmp_path / "log.parquet", row_group_size=150)  # pieces end where batches do
    assert lg.read_transitions(tmp_path / "log.parquet", threads=threads) == expected
    if "labeled" not in role:
        larger = lg.read_transitions(batches(log), threads=threads, n_states=5000)
        assert larger == expected.with_states(5000, expected.n_actions)


@pytest.mark.parametrize(
    "options", [{}, {"next_state": False, "ends": "terminal"}, {"weight": "times"}, {"action": False}]
)
@pytest.mark.parametrize("labeled", [False, True])
def test_interleaved_episodes_go_on_from_piece_to_piece(monkeypatch, few_rows, labeled, options):
    """Every kind of end falls on a border somewhere; next states are given, or those of the rows."""
    log = make_log(2000, labeled=labeled)
    log["times"] = np.random.default_rng(1).integers(0, 4, 2000)
    log = log if "weight" in options else {role: column for role, column in log.items() if role != "times"}
    found = lg.read_transitions(cut(log, [299, 300, 1111]), **options)
    assert len(few_rows) == 7
    monkeypatch.undo()
    assert_same(found, lg.read_transitions(log, **options))


def test_what_is_out_of_order_is_told_though_it_lies_on_a_border(few_rows):
    path = np.arange(1200) % 7
    log = {"state": path[:-1].copy(), "next_state": path[1:], "episode": np.zeros(1199, int)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.read_transitions(cut(log, [100]))
    log["state"][[600, 900]] = 6  # 5 and 4
    with pytest.warns(lg.RowOrderWarning, match=r"^2 rows do not begin"):
        lg.read_transitions(log)


def test_rows_are_sorted_by_time_in_whole_episodes(few_rows):
    rng = np.random.default_rng(4)
    length = rng.integers(1, 60, 40)
    length[[5, 20]] = 700  # longer than what is counted together
    episode = np.repeat(rng.permutation(40), length)
    log = {"episode": episode, "t": rng.permutation(episode.size), "state": rng.integers(0, 9, episode.size)}
    order = np.lexsort((log["t"], np.repeat(np.arange(40), length)))
    expected = lg.read_transitions({role: log[role][order] for role in ("episode", "state")})
    del few_rows[:]
    assert lg.read_transitions(cut(log, [10, 800, 2000]), time="t") == expected
    assert len(few_rows) > 4
    assert max(few_rows) >= 700
    assert not {*np.cumsum(few_rows)} - {*np.cumsum(length)}


@pytest.mark.parametrize("keep", [None, True])
def test_kept_episodes_are_counted_together(monkeypatch, few_rows, keep):
    log = make_log(1000)
    options = stream_counter.IdRule()
    monkeypatch.setattr(stream_counter, "MOST_KEPT", 800)
    counter = stream_counter.Accumulator(options, keep_episodes=keep)
    from lingendice.io.columns import read_batch

    for part in cut(log, [400, 700]):
        counter.add(read_batch(part, {role: role for role in part}, str, None))
    counts = counter.finish().result()
    assert (counts.episodes is not None) == bool(keep)
    assert few_rows == ([1000] if keep else [300, 300, 300, 100])
    assert_same(counts, lg.Counts.from_transitions(**log))


def test_large_ids_that_turn_up_late(few_rows):
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, top, (2, 250)) for top in (50, 10**5, 2 * 10**6, 60)]
    batches = [{"state": part[0], "next_state": part[1]} for part in parts]
    found = lg.read_transitions(batches, labels=False)
    pairs, times = np.unique(np.concatenate(parts, axis=1), axis=1, return_counts=True)
    state = np.repeat(np.arange(found.n_states), np.diff(found.indptr))
    np.testing.assert_array_equal(np.stack([state, found.indices]), pairs)
    np.testing.assert_array_equal(found.count, times)
    assert len(few_rows) == 4


@pytest.mark.parametrize("derived", [False, True])
def test_integers_of_rows_in_no_pair_are_names_too(monkeypatch, few_rows, derived):
    """Next states of terminal rows and rows of weight zero occur, if only once, in the first piece."""
    rng = np.random.default_rng(5)
    state, following = rng.integers(0, 40, (2, 1000))
    log = {"state": state, "next_state": following, "terminal": rng.random(1000) < 0.1}
    log["weight"] = np.where(rng.random(1000) < 0.1, 0, 2)
    log["next_state"][np.flatnonzero(log["terminal"])[0]] = 77
    log["state"][np.flatnonzero(log["weight"] == 0)[0]] = 88
    log["state"][-3:] = 10**9
    if derived:
        del log["next_state"]
    named = {role: column.astype(str) if "state" in role else column for role, column in log.items()}
    found = lg.read_transitions(batches(log), weight="weight")
    assert found.state_labels is not None
    assert found == lg.read_transitions(named, weight="weight")
    assert {"88"} | ({"77"} if not derived else set()) <= {*found.state_labels}


def test_merging_adds_up_as_matrices_do():
    """Long rows, empty rows, rows of one side alone, weights that are floats."""
    rng = np.random.default_rng(4)
    for kind in (np.int64, np.float64):
        first, second = (
            sparse.csr_array(rng.integers(1, 10, (300, 300)) * (rng.random((300, 300)) < density)).astype(
                kind
            )
            for density in (0.3, 0.02)
        )
        merged = lg.Counts.from_matrix(first) + lg.Counts.from_matrix(second)
        assert merged == lg.Counts.from_matrix((first + second).tocsr())
        assert merged.count.dtype == kind


def test_the_metadata_of_a_long_file_decide_at_once_that_no_row_is_kept(tmp_path, few_rows, monkeypatch):
    monkeypatch.setattr(stream_counter, "MOST_KEPT", 1000)
    log = growing_log(2000, terminal=True)
    pq.write_table(pa.table(log), tmp_path / "long.parquet", row_group_size=400)
    counts = lg.read_transitions(tmp_path / "long.parquet")
    assert counts == lg.Counts.from_transitions(**log)
    assert counts.episodes is None
    assert few_rows == [300] * 6 + [200]
    few_rows.clear()
    short = {role: column[:1000] for role, column in log.items()}
    pq.write_table(pa.table(short), tmp_path / "short.parquet", row_group_size=400)
    assert lg.read_transitions(tmp_path / "short.parquet").episodes is not None
    assert few_rows == [1000]


@pytest.mark.parametrize("first", [0, 700])
def test_a_batch_longer_than_a_piece_and_wider_integers_later(few_rows, first):
    log = growing_log(1500, action=True)
    narrow = {role: column[:first].astype(np.int32) for role, column in log.items()}
    wide = {role: column[first:] for role, column in log.items()}
    wide["state"] = np.append(wide["state"][:-1], 2**40)
    log["state"] = np.append(log["state"][:-1], 2**40)
    given = [narrow, wide] if first else [wide]
    assert lg.read_transitions(given) == lg.read_transitions(batches(log, 40))
    assert set(few_rows) == {300}
