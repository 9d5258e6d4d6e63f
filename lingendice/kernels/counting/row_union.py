"""Add up compressed rows whose columns ascend: the rows of two logs together.

Rows are merged from ``start`` to ``stop``, so that ranges of rows can be done side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import kernel

_END = np.int64(2**63 - 1)  # beyond every column


class Side(NamedTuple):
    """Compressed rows of counts."""

    start: Any
    columns: Any
    count: Any


@kernel
def _column(columns, at, stop):  # type: ignore[no-untyped-def]
    return np.int64(columns[np.uint64(at)]) if at < stop else _END


@kernel
def count_union(first_start, first_columns, second_start, second_columns, start, stop, sizes):  # type: ignore[no-untyped-def]
    """How many distinct columns each row has in both together."""
    for row in range(start, stop):
        i, last_i = first_start[row], first_start[row + 1]
        j, last_j = second_start[row], second_start[row + 1]
        found = 0
        while i < last_i and j < last_j:
            x, y = first_columns[np.uint64(i)], second_columns[np.uint64(j)]
            i += np.int64(x <= y)
            j += np.int64(y <= x)
            found += 1
        sizes[row] = found + (last_i - i) + (last_j - j)


@kernel
def unite_rows(first, second, start, stop, united, first_place, second_place):
    """Fill the rows whose starts are known with columns and sums of counts.

    The places say where each entry of either side went; they are left out where they have length zero.
    """
    first_start, first_columns, first_count = first
    second_start, second_columns, second_count = second
    starts, columns, count = united
    zero = count.dtype.type(0)
    want_places = first_place.size != 0 or second_place.size != 0
    for row in range(start, stop):
        i, last_i = first_start[row], first_start[row + 1]
        j, last_j = second_start[row], second_start[row + 1]
        for at in range(starts[row], starts[row + 1]):
            x, y = _column(first_columns, i, last_i), _column(second_columns, j, last_j)
            columns[at] = min(x, y)
            total = zero
            if x <= y:
                total += first_count[np.uint64(i)]
                if want_places:
                    first_place[i] = at
                i += 1
            if y <= x:
                total += second_count[np.uint64(j)]
                if want_places:
                    second_place[j] = at
                j += 1
            count[at] = total
