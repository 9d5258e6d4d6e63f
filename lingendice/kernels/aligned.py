"""Arrays that begin at a cache line: no vector of theirs lies across two, no two threads share one."""

from __future__ import annotations

from typing import Any

import numpy as np

_PAIR = 128  # bytes of a line and the one beside it, which is fetched along


def zeros_by_line(size: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    """Zeros from the beginning of a cache line on, and of the one beside it."""
    kind = np.dtype(dtype)
    room = np.zeros(size + _PAIR // kind.itemsize, kind)
    skipped = -room.ctypes.data % _PAIR // kind.itemsize
    return room[skipped : skipped + size]
