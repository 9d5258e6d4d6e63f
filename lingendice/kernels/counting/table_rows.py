"""Keys and hash tables of pairs (see `streaming`) as compressed rows, columns ascending."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel

_SHORT = 48  # entries of a row up to which they are sorted by insertion


@kernel
def _cell(key, action_bits, next_bits, n_actions):  # type: ignore[no-untyped-def]
    cell = key >> next_bits
    return (cell >> action_bits) * n_actions + (cell & ((np.int64(1) << action_bits) - 1))


@kernel
def split_keys(keys, start, stop, action_bits, next_bits, n_actions, end, pairs):  # type: ignore[no-untyped-def]
    """Cell and column of each key; ``end`` is the column for ends of episodes.

    ``pairs`` may be the same memory as ``keys``, in which case the keys are gone.
    """
    following = (np.int64(1) << next_bits) - 1
    for i in range(start, stop):
        key = keys[i]
        column = key & following
        pairs[i, 0] = _cell(key, action_bits, next_bits, n_actions)
        pairs[i, 1] = column - 1 if column > 0 else end


@kernel
def count_rows(table, start, stop, cells, action_bits, next_bits, n_actions, sizes):  # type: ignore[no-untyped-def]
    """Add the number of pairs of every cell in a range, for records ``start`` to ``stop`` of the table."""
    for slot in range(start, stop):
        if table[slot, 0] >= 0:
            cell = _cell(table[slot, 0], action_bits, next_bits, n_actions)
            if cells[0] <= cell < cells[1]:
                sizes[cell] += 1


@kernel
def fill_rows(table, start, stop, cells, action_bits, next_bits, n_actions, end, cursor, columns, values):  # type: ignore[no-untyped-def]
    """Put records into the rows of their cells, where these are in a range, at the row's cursor.

    Column ``end`` is for ends of episodes; ``values`` takes the words after the key.
    """
    following = (np.int64(1) << next_bits) - 1
    for slot in range(start, stop):
        key = table[slot, 0]
        if key < 0:
            continue
        cell = _cell(key, action_bits, next_bits, n_actions)
        if not cells[0] <= cell < cells[1]:
            continue
        at = cursor[cell]
        cursor[cell] = at + 1
        column = key & following
        columns[at] = column - 1 if column > 0 else end
        for word in range(values.shape[1]):
            values[at, word] = table[slot, word + 1]


@kernel
def sort_rows(indptr, start, stop, columns, values):  # type: ignore[no-untyped-def]
    """Sort the entries of rows ``start`` to ``stop`` by column, in place."""
    width = values.shape[1]
    moved = np.empty(width, values.dtype)
    for row in range(start, stop):
        first, last = indptr[row], indptr[row + 1]
        if last - first > _SHORT:
            order = np.argsort(columns[first:last])
            columns[first:last] = columns[first:last][order]
            values[first:last] = values[first:last][order]
            continue
        for i in range(first + 1, last):
            column = columns[i]
            if columns[i - 1] <= column:
                continue
            moved[:] = values[i]
            j = i
            while j > first and columns[j - 1] > column:
                columns[j] = columns[j - 1]
                for word in range(width):
                    values[j, word] = values[j - 1, word]
                j -= 1
            columns[j] = column
            values[j] = moved
