"""Huge pages are declined from where they are dear; arrays are whole and shrink in place as NumPy's own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lingendice.data import pages


def flags_of(array, share=0.5):
    """VmFlags of the mapping that holds the entry so far into an array."""
    address = array.ctypes.data + int(array.nbytes * share)
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("no mapping holds the array")


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")


@on_linux
def test_huge_pages_that_are_dear_are_declined(monkeypatch):
    monkeypatch.setattr(pages, "_DEAR", -1.0)
    assert "nh" in flags_of(pages.empty(1 << 21, np.int32))
    assert "nh" not in flags_of(np.empty(1 << 21, np.int32))


@on_linux
def test_huge_pages_that_are_cheap_are_kept(monkeypatch):
    monkeypatch.setattr(pages, "_DEAR", np.inf)
    assert "nh" not in flags_of(pages.empty(1 << 21, np.int32))


@on_linux
def test_the_part_before_the_first_dear_page_keeps_its_huge_pages(monkeypatch):
    clock = iter([0.0, 0.0, 0.0, 1.0])
    monkeypatch.setattr(pages, "perf_counter", lambda: next(clock))
    array = pages.empty(12 << 20, np.int32)  # three stretches: the second is found dear, the third not tried
    assert "nh" not in flags_of(array, 0.2)
    assert "nh" in flags_of(array, 0.5)
    assert "nh" in flags_of(array, 0.9)


def test_only_the_range_to_be_written_is_touched():
    array = np.full(6 << 20, 7, np.int64)
    pages.settle(array, 2 << 20, 4 << 20)
    changed = np.flatnonzero(array != 7)
    assert changed.size <= 2
    assert ((changed >= 2 << 20) & (changed < 4 << 20)).all()
    pages.settle(array, 5 << 20, 5 << 20)
    assert (array[4 << 20 :] == 7).all()


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_arrays_are_whole_and_own_their_memory(size):
    array = pages.empty(size, np.float64)
    assert array.shape == (size,)
    assert array.dtype == np.float64
    assert array.flags.owndata
    array[:] = np.arange(size)
    array.resize(size // 2, refcheck=False)
    assert np.array_equal(array, np.arange(size // 2))


def test_no_advice_gives_ordinary_arrays(monkeypatch):
    monkeypatch.setattr(pages, "_advise", lambda: None)
    assert pages.empty(1 << 20, np.int64).nbytes == 1 << 23
