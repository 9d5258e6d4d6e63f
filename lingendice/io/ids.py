"""The one rule that distinguishes ids from names, and numbers for names.

Integers are ids that count from 0 where the largest is below ``20 * (distinct ones) + 10,000``; sparser ones
(account numbers, hashes) are names, and only those that occur are numbered. Strings are names always.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.io.columns import Batch, Coded
from lingendice.io.formats import FileError

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
    """Whether they are labels; None before the first row."""
    position: dict[str, int] = field(default_factory=dict)
    size: int = 0
    """One more than the largest id."""

    def read(self, batch: Batch, role: str) -> Array:
        """The column of a role as integers; those of states and actions must not be negative."""
        column = batch.columns[role]
        self._expect(isinstance(column, Coded), batch, role)
        if isinstance(column, Coded):
            return np.take(self._number(column.values), column.codes)
        if self.what != "episode":
            if column.min() < 0:
                row = int((column < 0).argmax())
                raise FileError(
                    f"{batch.where(row)}: {role} is {column[row]}, but ids run from 0; fix it, or pass "
                    "labels=True to read ids as names"
                )
            self.size = max(self.size, int(column.max()) + 1)
        return column

    def _expect(self, coded: bool, batch: Batch, role: str) -> None:
        """Raise where labels follow integers, or integers labels."""
        if self.coded is None:
            self.coded = coded
        elif self.coded != coded:
            kinds = ("integers", "strings")
            raise FileError(
                f"{batch.where(0)}: {role} holds {kinds[coded]}, but {self.what} ids before were "
                f"{kinds[not coded]}; pass labels=True to read all of them as strings"
            )

    def _number(self, labels: list[str]) -> Array:
        """Numbers of some labels; new ones take the next."""
        known = self.position
        # In a log of many parts nearly all labels are known: one lookup each, and no more.
        for label in itertools.filterfalse(known.__contains__, labels):
            known.setdefault(label, len(known))
        self.size = len(known)
        return np.fromiter(map(known.__getitem__, labels), np.int32, len(labels))

    def name(self, number: int) -> Any:
        """The label of a number, or the number where there are no labels."""
        return next(itertools.islice(self.position, number, None)) if self.coded else number


def distinct(ids: Array) -> Array:
    """The integers that occur (none of them negative), sorted; O(N) where they are dense."""
    if ids.size and int(ids.max()) < IDS_PER_STATE * ids.size + SPARE_IDS:
        return np.flatnonzero(np.bincount(ids))
    return np.unique(ids)
