"""Huge pages for large arrays where they come cheaply, for what is written once from end to end.

NumPy asks Linux for huge pages. One that is at hand costs a tenth of the usual pages it stands for. But where
few are free, the kernel compacts memory to make some, and a virtual machine whose free memory went back to
its host waits for the host: filling an array then takes several times as long as on usual pages. Which of
these it is shows only on the way, so every few megabytes one page is touched against the clock.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

_LARGE = 1 << 22  # bytes from which NumPy asks for huge pages
_HUGE_PAGE = 1 << 21
_STRETCH = 1 << 24  # bytes that one touched page speaks for
_DEAR = 1e-3  # seconds; a huge page at hand is filled with zeros in a quarter of this

Array = np.ndarray[Any, Any]


@cache
def _advise() -> Any:
    """The C library's ``madvise``, or None where the system has no such advice."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def empty(size: int, dtype: Any) -> Array:
    """As ``np.empty(size, dtype)`` for an array that will be filled, on the pages that come cheaper."""
    array = np.empty(size, dtype)
    settle(array, 0, size)
    return array


def settle(array: Array, start: int, stop: int) -> None:
    """Before ``array[start:stop]`` is first written: decline huge pages from where they are dear.

    The rest of the array then stays on usual pages, at the cost of one dear page. The advice is only that:
    where it cannot be given, the array is an ordinary one. Entries in the range may be overwritten.
    """
    advise = _advise() if array.nbytes >= _LARGE else None
    if advise is None:
        return
    bytes_of, address = array.view(np.uint8), array.ctypes.data
    end = address + array.nbytes
    page = -(-(address + start * array.itemsize) // _HUGE_PAGE) * _HUGE_PAGE
    for touched in range(page, address + stop * array.itemsize, _STRETCH):
        clock = perf_counter()
        bytes_of[touched - address] = 0
        if perf_counter() - clock > _DEAR:
            advise(touched, -(-(end - touched) // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MADV_NOHUGEPAGE)
            return
