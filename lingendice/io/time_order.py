"""Rows in the order of their times: a log whose episodes come one after another is sorted as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.io.columns import Batch, Coded, Column, Position
from lingendice.io.decode_ahead import Part
from lingendice.io.formats import FileError
from lingendice.io.roles import Names
from lingendice.io.sources import Source

MOST_WAITING = 20_000_000
"""Rows of one episode, or of a log without episode ids, that are held to be sorted."""


class InTime:
    """A source whose rows come sorted by time within each episode; rows of equal times stay as they are."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def fingerprint(self) -> list[Any]:
        """That of the source."""
        return ["in time", *self.source.fingerprint()]

    def parts(self, start: Position, names: Names, threads: int) -> Iterator[Part]:
        """The whole in one part."""
        yield Part(partial(self._batches, names, threads))

    def _batches(self, names: Names, threads: int) -> Iterator[Batch]:
        rows = _Rows()
        for part in self.source.parts((0, 0), names, threads):
            for batch in part.read():
                if "time" not in batch.columns:
                    raise FileError(f"{batch.where(0)}: such a log has no column for time=; leave it out")
                if batch.n_rows:
                    rows.add(batch)
                    yield from rows.completed()
        yield from rows.rest()


class _Rows:
    """Rows that wait until all of their episode is there."""

    def __init__(self) -> None:
        self.waiting: Batch | None = None
        self.ended: set[Any] = set()
        """Ids of the episodes that are complete."""

    def add(self, batch: Batch) -> None:
        self.waiting = batch if self.waiting is None else _joined(self.waiting, batch)

    def completed(self) -> Iterator[Batch]:
        """All episodes but the last, whose rows go on waiting."""
        assert self.waiting is not None
        rows, episode = self.waiting, self.waiting.columns.get("episode")
        begins = _first_rows(episode, rows.n_rows)
        if rows.n_rows - begins[-1] > MOST_WAITING:
            raise FileError(
                f"{rows.where(rows.n_rows - 1)}: more than {MOST_WAITING:,} rows wait to be sorted by time; "
                "sort the log by episode and time, and leave time out, or name the episode column"
            )
        if episode is None or begins.size == 1:
            return
        for row in begins.tolist()[:-1]:
            self._end(rows, episode, row)
        self.waiting = _taken(rows, np.arange(begins[-1], rows.n_rows))
        yield _sorted(rows, begins[:-1], int(begins[-1]))

    def _end(self, rows: Batch, episode: Column, row: int) -> None:
        number = _entry(episode, row)
        if number in self.ended:
            raise FileError(
                f"{rows.where(row)}: episode {number!r} comes back after others; time= sorts logs whose "
                "episodes come one after another: sort the log by episode first, or read it into memory and "
                "use Counts.from_transitions(..., episode=, time=)"
            )
        self.ended.add(number)

    def rest(self) -> Iterator[Batch]:
        """What waits when the log is at its end."""
        if self.waiting is None:
            return
        rows, episode = self.waiting, self.waiting.columns.get("episode")
        begins = _first_rows(episode, rows.n_rows)
        for row in begins.tolist() if episode is not None else ():
            self._end(rows, episode, row)  # type: ignore[arg-type]
        yield _sorted(rows, begins, rows.n_rows)


def _entry(column: Column, row: int) -> Any:
    return column.values[int(column.codes[row])] if isinstance(column, Coded) else column[row].item()


def _first_rows(episode: Column | None, n: int) -> NDArray[np.int64]:
    """Rows at which the id of the episode changes."""
    if episode is None:
        return np.zeros(1, np.int64)
    codes = episode
    if isinstance(episode, Coded):
        # A label may have several codes.
        known: dict[str, int] = {}
        same = np.array([known.setdefault(label, len(known)) for label in episode.values], np.int64)
        codes = same[episode.codes]
    return np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))  # type: ignore[operator]


def _sorted(rows: Batch, begins: NDArray[np.int64], n: int) -> Batch:
    """The first rows, each episode by time."""
    run = np.repeat(np.arange(begins.size), np.diff(np.append(begins, n)))
    time: Any = rows.columns["time"]
    sorted_rows = _taken(rows, np.lexsort((time[:n], run)))
    columns = {role: column for role, column in sorted_rows.columns.items() if role != "time"}
    return Batch(columns, n, sorted_rows.where)


def _taken(rows: Batch, order: NDArray[Any]) -> Batch:
    """Some rows; of labels only those that occur, so that what waits does not grow."""
    columns: dict[str, Column] = {}
    for role, column in rows.columns.items():
        if isinstance(column, Coded):
            used, codes = np.unique(column.codes[order], return_inverse=True)
            columns[role] = Coded(codes, [column.values[code] for code in used.tolist()])
        else:
            columns[role] = column[order]
    return Batch(columns, order.size, lambda row: rows.where(int(order[row])))


def _joined(first: Batch, second: Batch) -> Batch:
    """Rows of both."""
    if first.columns.keys() != second.columns.keys():
        raise FileError(
            f"{second.where(0)}: columns for {', '.join(sorted(second.columns))} here, but for "
            f"{', '.join(sorted(first.columns))} before; name the columns to use, or pass False"
        )
    columns = {role: _appended(first.columns[role], second, role) for role in first.columns}
    n = first.n_rows
    return Batch(columns, n + second.n_rows, _where(first.where, second.where, n))


def _where(first: Callable[[int], str], second: Callable[[int], str], n: int) -> Callable[[int], str]:
    return lambda row: first(row) if row < n else second(row - n)


def _appended(column: Column, batch: Batch, role: str) -> Column:
    more = batch.columns[role]
    if isinstance(column, Coded) and isinstance(more, Coded):
        codes = np.concatenate(
            [column.codes.astype(np.int64), more.codes.astype(np.int64) + len(column.values)]
        )
        return Coded(codes, [*column.values, *more.values])
    if isinstance(column, Coded) or isinstance(more, Coded):
        kinds = ("integers", "strings")
        raise FileError(
            f"{batch.where(0)}: {role} holds {kinds[isinstance(more, Coded)]}, but before were "
            f"{kinds[isinstance(column, Coded)]}; pass labels=True to read all of them as strings"
        )
    return np.concatenate([column, more])
