"""Counts on disk: what comes back is what was saved, damage is noticed, nothing is left half written."""

from __future__ import annotations

import os

import numpy as np
import pytest
from written_logs import make_log

import lingendice as lg
from lingendice.data import saving


def examples():
    log = make_log()
    named = make_log(labeled=True)
    plain = {"state": log["state"], "next_state": log["next_state"]}
    return {
        "plain": lg.Counts.from_transitions(**plain),
        "everything": lg.Counts.from_transitions(**log, keep_episodes=False),
        "labels": lg.Counts.from_transitions(**named, keep_episodes=False),
        "tuples": lg.Counts.from_transitions([(0, "a"), (1, "b")], [(1, "b"), (0, "a")]),
        "fractions": lg.Counts.from_transitions(**log, weight=np.linspace(0.5, 2, 500), keep_episodes=False),
        "spare states": lg.Counts.from_transitions(**plain, n_states=30),
        "matrix": lg.Counts.from_matrix([[0.5, 0.5], [1.0, 0.0]]),
        "empty": lg.Counts.empty(3, 2),
    }


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("name", examples())
def test_round_trip(tmp_path, name, suffix):
    counts = examples()[name]
    counts.save(tmp_path / f"counts{suffix}")
    loaded = lg.Counts.load(tmp_path / f"counts{suffix}")
    assert loaded == counts
    assert loaded.indices.dtype == counts.indices.dtype
    assert loaded.count.dtype == counts.count.dtype
    assert loaded.merge(counts).total == 2 * counts.total
    assert [entry.name for entry in tmp_path.iterdir()] == [f"counts{suffix}"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_paths_that_fsspec_knows(suffix):
    pytest.importorskip("fsspec")
    counts, path = examples()["everything"], f"memory://somewhere/counts{suffix}"
    counts.save(path)
    assert lg.Counts.load(path) == counts
    with pytest.raises(ValueError, match=r"memory://nowhere.*: no such file"):
        lg.Counts.load(f"memory://nowhere{suffix}")


def test_kept_episodes(tmp_path):
    counts = lg.Counts.from_transitions(**make_log(), keep_episodes=True)
    counts.save(tmp_path / "counts.npz")
    loaded = lg.Counts.load(tmp_path / "counts.npz")
    assert loaded == counts
    policy = np.full((9, 3), 1 / 3)
    sols = [lg.solve(c, gamma=0.9, policy=policy).interval(0.95) for c in (counts, loaded)]
    assert (sols[0].low, sols[0].high) == (sols[1].low, sols[1].high)
    counts.save(tmp_path / "counts.parquet")
    table = lg.Counts.load(tmp_path / "counts.parquet")
    assert table == lg.Counts.from_transitions(**make_log(), keep_episodes=False)
    assert "not clustered" in lg.solve(table, gamma=0.9, policy=policy).interval(0.95).note


def flipped(whole, n_flips, seed):
    """Copies with one bit flipped: every byte of a short file, else a sample of them."""
    rng = np.random.default_rng(seed)
    places = np.arange(len(whole)) if len(whole) <= n_flips else rng.integers(0, len(whole), n_flips)
    for place in places.tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        yield bytes(damaged)


@pytest.mark.parametrize("name", ["labels", "tuples"])
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_every_flipped_bit_is_harmless_or_a_value_error(tmp_path, name, suffix):
    """Labels, sizes and first states are covered as well as the numbers."""
    path = tmp_path / f"counts{suffix}"
    counts = examples()[name]
    counts.save(path)
    whole = path.read_bytes()
    noticed = 0
    for damaged in flipped(whole, 300, seed=len(name)):
        path.write_bytes(damaged)
        try:
            loaded = lg.Counts.load(path)
        except ValueError:
            noticed += 1
        else:
            assert loaded == counts  # a byte that carries nothing, such as a time stamp
    assert noticed > 100


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_cut_short_is_a_value_error(tmp_path, suffix):
    path = tmp_path / f"counts{suffix}"
    examples()["everything"].save(path)
    whole = path.read_bytes()
    for length in np.random.default_rng(0).integers(0, len(whole), 30):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="counts"):
            lg.Counts.load(path)


def test_a_wrong_number_with_a_right_zip_is_noticed(tmp_path):
    counts = examples()["plain"]
    arrays = saving.counts_arrays(counts)
    counts.save(tmp_path / "counts.npz")
    with np.load(tmp_path / "counts.npz") as stored:
        held = dict(stored)
    held["count"] = arrays["count"] + 1
    np.savez(tmp_path / "counts.npz", **held)
    with pytest.raises(ValueError, match="SHA-256"):
        lg.Counts.load(tmp_path / "counts.npz")


def test_an_older_file_stays_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "counts.npz"
    old, new = examples()["plain"], examples()["everything"]
    old.save(path)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        new.save(path)
    assert lg.Counts.load(path) == old
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="choose one of these suffixes"):
        examples()["plain"].save(tmp_path / "counts.csv")
    with pytest.raises(ValueError, match="no folder"):
        examples()["plain"].save(tmp_path / "none" / "counts.npz")
    with pytest.raises(ValueError, match="no such file"):
        lg.Counts.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    with pytest.raises(ValueError, match="not a file written by lingendice"):
        lg.Counts.load(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"objects\.npz"):
        lg.Counts.load(tmp_path / "objects.npz")
    saving.write_archive(tmp_path / "later.npz", {}, {"kind": "counts", "format": 99})
    with pytest.raises(ValueError, match="newer version of lingendice"):
        lg.Counts.load(tmp_path / "later.npz")
    with pytest.raises(ValueError, match="cannot be saved"):
        lg.Counts.from_transitions([frozenset({1})], [frozenset({2})]).save(tmp_path / "x.npz")
