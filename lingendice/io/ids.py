"""Ids of states, actions and episodes as integers from 0, and the one rule that tells ids from names.

Integers are ids that count from 0 where the largest is below ``20 * (distinct ones) + 10,000``; sparser ones
(account numbers, hashes) are names, and only those that occur are numbered. Strings are names always.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.rows import kernel_array
from lingendice.io.columns import Batch, Coded
from lingendice.io.formats import FileError
from lingendice.io.keys import NO_INTS
from lingendice.kernels.counting import stream_tables as streaming

Array = NDArray[Any]
IDS_PER_STATE, SPARE_IDS = 20, 10_000


@dataclass(frozen=True)
class IdRule:
    """Whether integers are ids or names, for states and for actions."""

    labels: bool | None = None
    """True: names always; False: ids always; None: by how dense they are."""
    sizes: tuple[int | None, int | None] = (None, None)
    """Numbers of states and actions that the caller gave: integers are ids then."""
    at_least: tuple[int, int] = (0, 0)
    """Sizes that something else (a policy) speaks of: integers below them are ids."""

    def is_open(self, what: str) -> bool:
        """Whether it depends on the integers."""
        return self.labels is None and self.sizes[what == "action"] is None

    def are_ids(self, what: str, largest: int, distinct: int) -> bool:
        """Whether these integers count from 0."""
        dense = IDS_PER_STATE * distinct + SPARE_IDS
        return not self.is_open(what) or largest < max(dense, self.at_least[what == "action"])


@dataclass
class IdMap:
    """Ids of states, actions or episodes: integers as they are, or labels numbered as they come."""

    what: str
    coded: bool | None = None
    numbered: bool = False
    """Whether integers are looked up like labels, since they are too sparse to be used as they are."""
    position: dict[Any, int] = field(default_factory=dict)
    size: int = 0
    """One more than the largest id."""

    def read(self, batch: Batch, role: str, rows: Any = slice(None)) -> Array:
        """The column of a role, or some rows of it, as integers."""
        column = batch.columns[role]
        if batch.n_rows == 0:
            return NO_INTS
        self.expect(isinstance(column, Coded), batch, role)
        if isinstance(column, Coded):
            return np.take(self.number(column.values), column.codes[rows])
        if self.what != "episode":
            size = self.checked_size(batch, role)
            if self.numbered:
                values, codes = np.unique(column[rows], return_inverse=True)
                return np.take(self.number(values.tolist()), codes)
            self.size = max(self.size, size)
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

    def number(self, labels: list[Any]) -> Array:
        """Numbers of some labels; new ones take the next."""
        known = self.position
        # In a log of many parts nearly all labels are known: one lookup each, and no more.
        for label in itertools.filterfalse(known.__contains__, labels):
            known.setdefault(label, len(known))
        self.size = len(known)
        return np.fromiter(map(known.__getitem__, labels), np.int64, len(labels))

    def checked_size(self, batch: Batch, role: str) -> int:
        """One more than the largest integer of a column; an error where one is negative."""
        column = batch.columns[role]
        assert not isinstance(column, Coded)
        low, high = streaming.extent(kernel_array(column, column.dtype))
        if low < 0:
            row = int((column < 0).argmax())
            raise FileError(
                f"{batch.where(row)}: {role} is {column[row]}, but ids run from 0; fix it, or pass "
                "labels=True to read ids as names"
            )
        return int(high) + 1
