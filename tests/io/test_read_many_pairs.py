"""Logs of too many pairs to look up: keys are gathered and sorted, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.io import pair_counter

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")  # rows are drawn at random


@pytest.fixture
def sorted_early(monkeypatch):
    """Sorting from a few pairs on, a few hundred keys at a time; how many keys were sorted at once."""
    monkeypatch.setattr(pair_counter, "_MANY", 40)
    monkeypatch.setattr(pair_counter, "_ROOM", 300)
    monkeypatch.setattr(pair_counter, "_STEP", 128)
    calls, count = [], pair_counter.SortedPairs.count

    def spy(self, *layout):
        calls.append(self.waiting)
        count(self, *layout)

    monkeypatch.setattr(pair_counter.SortedPairs, "count", spy)
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
def test_sorted_pairs_are_those_of_the_whole_log(tmp_path, sorted_early, role, threads):
    log = growing_log(**role)
    expected = lg.Counts.from_transitions(**log)
    assert lg.read_transitions(batches(log), threads=threads) == expected
    assert len(sorted_early) > 5
    assert max(sorted_early) == 300
    pq.write_table(pa.table(log), tmp_path / "log.parquet", row_group_size=190)
    assert lg.read_transitions(tmp_path / "log.parquet", threads=threads) == expected
    if "labeled" not in role:
        larger = lg.read_transitions(batches(log), threads=threads, n_states=5000)
        assert larger == expected.with_states(5000, expected.n_actions)


def test_derived_next_states_are_sorted_too(sorted_early):
    path = {"state": np.random.default_rng(0).integers(0, 400, 3000), "episode": np.arange(3000) // 100}
    inside = np.arange(3000) % 100 != 99
    expected = sparse.coo_array(
        (np.ones(2970, int), (path["state"][inside], path["state"][1:][inside[:-1]])), shape=(400, 400)
    )
    found = lg.read_transitions(batches(path), n_states=400)
    assert sorted_early
    assert (found.matrix - expected.tocsr()).count_nonzero() == 0


def test_keys_widen_while_some_wait(sorted_early):
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, top, (2, 250)) for top in (50, 10**5, 2 * 10**7, 60)]
    batches = [{"state": part[0], "next_state": part[1]} for part in parts]
    found = lg.read_transitions(batches, labels=False)
    pairs, times = np.unique(np.concatenate(parts, axis=1), axis=1, return_counts=True)
    state = np.repeat(np.arange(found.n_states), np.diff(found.indptr))
    np.testing.assert_array_equal(np.stack([state, found.indices]), pairs)
    np.testing.assert_array_equal(found.count, times)
    assert len(sorted_early) >= 3


def test_a_checkpoint_holds_what_was_gathered(tmp_path, sorted_early):
    log = growing_log(action=True, terminal=True)
    parts, checkpoint = batches(log), tmp_path / "half.npz"

    def stopped(at):
        yield from parts[:at]
        raise KeyboardInterrupt

    for at in (4, 9):
        with pytest.raises(KeyboardInterrupt):
            lg.read_transitions(stopped(at), checkpoint=checkpoint, checkpoint_every=0.0)
        with np.load(checkpoint) as kept:
            keys, count = kept["pairs"].T
        assert np.unique(keys).size == keys.size
        # The batch at which reading stops may not be counted yet.
        assert count.sum() in (170 * at, 170 * (at - 1))
    assert lg.read_transitions(parts, checkpoint=checkpoint) == lg.Counts.from_transitions(**log)


def test_a_log_shows_early_that_it_will_have_many_pairs():
    assert not pair_counter.are_many(90_000, 100_000)
    assert pair_counter.are_many(125_000, 1 << 17)
    assert not pair_counter.are_many(100_000, 1 << 17)
    assert pair_counter.are_many(150_000, 10**9)


def test_rewards_are_the_same_bits_where_a_second_side_is_begun(monkeypatch):
    log = growing_log() | {"reward": np.random.default_rng(6).normal(size=2000)}
    expected = lg.read_transitions(batches(log), threads=1)
    monkeypatch.setattr(pair_counter, "_WORTH_SHARING", 1)
    monkeypatch.setattr(pair_counter, "_IN_CACHE", 500)
    divided, plain = [], pair_counter.HashedPairs._divide

    def spy(self):
        divided.append(self.size)
        plain(self)

    monkeypatch.setattr(pair_counter.HashedPairs, "_divide", spy)
    assert lg.read_transitions(batches(log), threads=2) == expected
    assert len(divided) == 1
    assert divided[0] > 500


def test_merging_adds_up_as_matrices_do():
    """Long rows, empty rows, rows of one side alone, weights that are floats."""
    rng = np.random.default_rng(4)
    for kind in (np.int64, np.float64):
        first, second = (
            sparse.random_array((300, 300), density=density, rng=rng, format="csr") for density in (0.3, 0.02)
        )
        first.data, second.data = (np.ceil(9 * side.data).astype(kind) for side in (first, second))
        merged = lg.Counts.from_matrix(first) + lg.Counts.from_matrix(second)
        assert merged == lg.Counts.from_matrix((first + second).tocsr())
        assert merged.count.dtype == kind
