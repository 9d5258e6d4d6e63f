"""Large arrays on pages of the usual size, for what is written once from end to end."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np

_LARGE = 1 << 22  # bytes from which NumPy asks Linux for huge pages


@cache
def _advise() -> Any:
    """The C library's ``madvise``, or None where the system has no such advice."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def empty(size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """As ``np.empty(size, dtype)``, without NumPy's hint for huge pages.

    Where few huge pages are free, the kernel compacts memory to make some, and charges that to whoever
    asks: filling a fresh array then costs up to several times as much system time as on usual pages.
    An array that is walked in order gains next to nothing from huge pages. The advice is only that:
    where it cannot be given, the array is an ordinary one.
    """
    array = np.empty(size, dtype)
    advise = _advise() if array.nbytes >= _LARGE else None
    if advise is not None:
        address = array.ctypes.data
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(first, address + array.nbytes - first, mmap.MADV_NOHUGEPAGE)
    return array
