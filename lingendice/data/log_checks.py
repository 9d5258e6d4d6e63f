"""Checks of a log as a whole: whether its rows are in order, and whether all of its columns were read."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import first_bad, require_length

Array = NDArray[Any]
_STEP = 1 << 20  # rows compared at a time: what is compared stays in the cache


class UnusedColumnWarning(UserWarning):
    """Columns of a log were present and not read: a misspelt name looks like that."""


class RowOrderWarning(UserWarning):
    """Next states disagree with the states of the rows that follow: rows are out of order, or missing."""


class Breaks(NamedTuple):
    """Rows that do not begin in the next state of the row before them in their episode."""

    n: int = 0
    first: int = -1
    """The first such row."""


def count_breaks(state: Array, next_state: Array, episode: Array) -> Breaks:
    """Compare every next state with the state of the following row of the same episode.

    ``episode`` has a number per row that is new after a terminal or truncated row, so that the last row of
    an episode is compared with nothing. O(N), or a sort where episodes are interleaved.
    """
    blocks = (episode[begin : begin + _STEP + 1] for begin in _blocks(episode.size))
    interleaved = any((block[1:] < block[:-1]).any() for block in blocks)
    order = np.argsort(episode, kind="stable") if interleaved else None
    n, first = 0, episode.size
    for begin in _blocks(episode.size):
        rows: Any = slice(begin, begin + _STEP + 1)
        if order is not None:
            rows = order[rows]
        number = episode[rows]
        broken = np.flatnonzero((number[1:] == number[:-1]) & (next_state[rows][:-1] != state[rows][1:]))
        if broken.size:
            n += broken.size
            first = min(first, int(broken[0]) + 1 + begin if order is None else int(rows[broken + 1].min()))
    return Breaks(n, first) if n else Breaks()


def _blocks(n: int) -> range:
    return range(0, max(n - 1, 0), _STEP)


def warn_breaks(n: int, where: str, stacklevel: int) -> None:
    """Say that rows are out of order; ``where`` names the first of them."""
    warnings.warn(
        f"{n:,} row{'s' * (n != 1)} do{'es' * (n == 1)} not begin in the next state of the row before in the "
        f"episode, the first at {where}: rows are out of order or missing, and first states may be wrong. "
        "Name the column of times with time=, or check the episode ids; where rows were drawn at random, "
        "leave episodes out and give solve the initial distribution",
        RowOrderWarning,
        stacklevel=stacklevel + 1,
    )


def time_order(time: Any, episode: Array | None, n: int) -> Array:
    """The order of rows by episode and then time; rows of equal times stay as they are."""
    times = np.asarray(time)
    if times.dtype.kind not in "iufMm":
        raise ValueError(f"time has dtype {times.dtype}; give numbers or dates (numpy.datetime64)")
    require_length("time", times, n)
    missing = times != times  # NaN or NaT
    if missing.any():
        (row,) = first_bad(missing)
        raise ValueError(f"time[{row}] is {times[row]!s}; drop or fill it first")
    return np.argsort(times, kind="stable") if episode is None else np.lexsort((times, episode))
