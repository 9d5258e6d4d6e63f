"""Small helpers on compressed rows (CSR arrays), on columns and on arrays for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAIR = 128  # bytes of a cache line and the one beside it, which is fetched along


def row_sums(indptr: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Sum of the entries of each row."""
    sums = np.zeros(indptr.size - 1, dtype=values.dtype)
    filled = np.flatnonzero(indptr[1:] > indptr[:-1])
    if filled.size:
        sums[filled] = np.add.reduceat(values, indptr[filled])
    return sums


def stable_order(ids: NDArray[Any]) -> NDArray[np.int64]:
    """The positions sorted by integers from 0 on, equal ones as they come; O(N) for each 16 bits."""
    bits = max(int(ids.max(initial=0)).bit_length(), 1)
    # NumPy sorts digits of 16 bits by radix.
    return np.lexsort([(ids >> low).astype(np.uint16) for low in range(0, bits, 16)])


def unsorted_row(indptr: NDArray[Any], indices: NDArray[Any]) -> int:
    """The first row whose columns do not rise strictly, or -1; rows must lie within the entries."""
    falls = indices[1:] <= indices[:-1]
    begins = indptr[1:-1]
    falls[begins[(begins > 0) & (begins < indices.size)] - 1] = False
    return int(np.searchsorted(indptr, np.argmax(falls) + 1, side="right")) - 1 if falls.any() else -1


def row_of_entry(indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that each entry belongs to."""
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to; the array behind it stays as it was."""
    view = array.view()
    view.flags.writeable = False
    return view


def kernel_array(column: NDArray[Any], kind: Any) -> NDArray[Any]:
    """The column in the one form that kernels are compiled for, copied only where it must be.

    Always a read-only view: kernels write to none of their inputs, and are compiled once for arrays that may
    and may not be written to.
    """
    column = np.ascontiguousarray(column, dtype=kind)
    return read_only(column if column.flags.aligned else column.copy())


def index_array(indices: NDArray[Any]) -> NDArray[Any]:
    """Nonnegative integers as kernels read them fastest: a read-only view of unsigned ones.

    A signed index is tested for being negative at each access: half of the time of a sparse product.
    """
    return read_only(indices.view(f"u{indices.itemsize}"))


def zeros_by_line(size: int, dtype: Any = np.float64) -> NDArray[Any]:
    """Zeros from the beginning of a cache line on: no vector lies across two, no two threads share one."""
    kind = np.dtype(dtype)
    room = np.zeros(size + _PAIR // kind.itemsize, kind)
    skipped = -room.ctypes.data % _PAIR // kind.itemsize
    return room[skipped : skipped + size]
