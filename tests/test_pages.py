"""Large arrays come on usual pages, small ones untouched, and they can be shrunk in place as NumPy's own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lingendice import pages


def flags_of(array):
    """VmFlags of the mapping that holds the middle of an array."""
    address = array.ctypes.data + array.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("no mapping holds the array")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_large_arrays_decline_huge_pages():
    assert "nh" in flags_of(pages.empty(1 << 21, np.int32))
    assert "nh" not in flags_of(np.empty(1 << 21, np.int32))


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
