"""Ids of states, actions and episodes as integers from 0."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.io.columns import Batch, Coded
from lingendice.io.files import FileError
from lingendice.io.packing import NO_INTS
from lingendice.kernels import streaming
from lingendice.rows import kernel_array

Array = NDArray[Any]


@dataclass
class IdMap:
    """Ids of states, actions or episodes: integers as they are, or labels numbered as they come."""

    what: str
    coded: bool | None = None
    position: dict[str, int] = field(default_factory=dict)
    size: int = 0
    """One more than the largest id."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, batch: Batch, role: str, rows: Any = slice(None)) -> Array:
        """The column of a role, or some rows of it, as integers."""
        column = batch.columns[role]
        if batch.n_rows == 0:
            return NO_INTS
        self.expect(isinstance(column, Coded), batch, role)
        if isinstance(column, Coded):
            return np.take(self.number(column.values), column.codes[rows])
        if self.what != "episode":
            self.size = max(self.size, self._checked_size(column, batch, role))
        return column[rows]

    def expect(self, coded: bool, batch: Batch, role: str) -> None:
        """Raise where labels follow integers, or integers labels."""
        if self.coded is None:
            self.coded = coded
        elif self.coded != coded:
            kinds = ("integers", "strings")
            raise FileError(
                f"{batch.where(0)}: {role} holds {kinds[coded]}, but {self.what} ids before were "
                f"{kinds[not coded]}; pass labels=True to read all of them as strings"
            )

    def number(self, labels: list[str]) -> Array:
        """Numbers of some labels; new ones take the next, whichever thread brings them."""
        with self.lock:
            known = self.position
            # In a log of many parts nearly all labels are known: one lookup each, and no more.
            for label in itertools.filterfalse(known.__contains__, labels):
                known.setdefault(label, len(known))
            self.size = len(known)
        return np.fromiter(map(known.__getitem__, labels), np.int64, len(labels))

    def _checked_size(self, column: Array, batch: Batch, role: str) -> int:
        low, high = streaming.extent(kernel_array(column, column.dtype))
        if low < 0:
            row = int((column < 0).argmax())
            raise FileError(
                f"{batch.where(row)}: {role} is {column[row]}, but ids run from 0; mend it, or pass "
                "labels=True to read ids as names"
            )
        return int(high) + 1
