"""Columns of a batch, from Arrow or NumPy, as the arrays that are counted; every error names the entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.arrow import arrow
from lingendice.checks import LARGEST_REWARD, is_missing, missing_entry, plain_array
from lingendice.io.files import FileError

ID_ROLES = ("state", "next_state", "action", "episode")
FLAG_ROLES = ("terminal", "truncated")
NUMBER_ROLES = ("reward", "weight", "reward_m2")
ROLES = (*ID_ROLES, *FLAG_ROLES, *NUMBER_ROLES)


class Coded(NamedTuple):
    """A column of strings: ``values[codes]``."""

    codes: NDArray[Any]
    values: list[str]


Column = NDArray[Any] | Coded
Position = tuple[int, ...]
"""A place in a log: source, part of it and, where a part can be cut, rows of the part."""


class Packed(NamedTuple):
    """Rows made ready for counting; see :mod:`lingendice.io.packing`."""

    keys: NDArray[np.int64] | None
    """State, action and next state of each row in one integer; None where that cannot be told yet."""
    n_states: int
    n_actions: int
    """One more than the largest ids."""
    events: NDArray[np.int64] | None
    """Rows at which an episode may begin or end."""
    counted: bool = False
    """Whether the pairs were counted already, apart from the order of rows."""


@dataclass(frozen=True)
class Batch:
    """Rows of a log by role, and where they come from."""

    columns: dict[str, Column]
    n_rows: int
    where: Callable[[int], str] = field(repr=False)
    """Tells in words where a row of the batch stands."""
    after: Position | None = None
    """Where reading can go on after this batch; None inside a part that cannot be cut."""
    fraction: float | None = None
    """Share of the whole that is read after this batch; None where the end is unknown."""
    packed: Packed | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Names:
    """Which column plays which role.

    A name must be there; None stands for the usual name where there is such a column; False for no
    column. The state must always be there, and a weight is used only when it is named.
    """

    given: Mapping[str, str | bool | None]
    labels: bool = False

    def find(self, present: list[str], where: str) -> dict[str, str]:
        """The column of each role among those present."""
        found = {}
        for role, name in self.given.items():
            if name is False or (name is None and role in ("weight", "reward_m2")):
                continue
            asked = isinstance(name, str)
            column = str(name) if asked else role
            if present.count(column) > 1:
                raise FileError(f"{where}: column {column!r} appears twice; rename one")
            if column in present:
                found[role] = column
            elif asked or role == "state":
                listed = ", ".join(map(repr, present)) or "nothing"
                raise FileError(
                    f"{where}: no column {column!r} for the {role.replace('_', ' ')}; found {listed}; "
                    f"name the right one with {role}="
                )
        return found


def read_batch(
    table: Mapping[str, Any] | Any,
    found: Mapping[str, str],
    n_rows: int,
    where: Callable[[int], str],
    labels: bool,
    after: Position | None = None,
    fraction: float | None = None,
) -> Batch:
    """Convert the wanted columns of a table (anything with ``table[name]``)."""
    columns: dict[str, Column] = {}
    for role, name in found.items():
        entry = _Entry(table[name], f"column {name!r}", where)
        if len(entry.column) != n_rows:
            raise FileError(f"{where(0)}: {entry.name} has {len(entry.column)} rows, the others {n_rows}")
        if role in ID_ROLES:
            columns[role] = entry.ids(labels and role != "episode")
        elif role in FLAG_ROLES:
            columns[role] = entry.flags()
        else:
            columns[role] = entry.numbers(role)
    return Batch(columns, n_rows, where, after, fraction)


class _Entry:
    """One column of one batch, on its way to an array."""

    def __init__(self, column: Any, name: str, where: Callable[[int], str]) -> None:
        self.name, self.where = name, where
        self.is_arrow = type(column).__module__.startswith("pyarrow")
        if self.is_arrow:
            if hasattr(column, "combine_chunks"):
                column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            if column.null_count:
                self._null(int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))))
        else:
            missing = missing_entry(column)
            if missing is not None:
                self._null(missing[0])
            column = plain_array(name, column)
            if column.ndim != 1:
                raise FileError(
                    f"{where(0)}: {name} has shape {column.shape}; give one-dimensional columns, one entry a "
                    "step"
                )
        self.column = column

    def _null(self, row: int) -> None:
        raise FileError(f"{self.where(row)}: {self.name} is null; fill it in or leave the row out")

    def _wrong(self, kind: Any, wanted: str) -> FileError:
        return FileError(f"{self.where(0)}: {self.name} holds {kind}; {wanted}")

    def ids(self, labels: bool) -> Column:
        wanted = "ids are integers or strings: cast it"
        if not self.is_arrow:
            return self._numpy_ids(self.column, labels, wanted)
        types, kind = arrow("types"), self.column.type
        column = self.column
        if types.is_dictionary(kind):
            if is_text(kind.value_type):
                if column.dictionary.null_count:
                    column, kind = column.dictionary_decode(), kind.value_type
                    if column.null_count:
                        self._null(int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))))
                else:
                    return Coded(column.indices.to_numpy(), _strings(column.dictionary))
            else:
                column, kind = column.dictionary_decode(), kind.value_type
        if is_text(kind):
            coded = column.dictionary_encode()
            return Coded(coded.indices.to_numpy(), _strings(coded.dictionary))
        if types.is_boolean(kind) or types.is_integer(kind):
            return self._numpy_ids(column.to_numpy(zero_copy_only=False), labels, wanted)
        raise self._wrong(kind, wanted)

    def _numpy_ids(self, column: NDArray[Any], labels: bool, wanted: str) -> Column:
        if column.dtype.kind in "US":
            return _code(column.astype(np.str_))
        if column.dtype.kind == "O":
            for row, entry in enumerate(column.tolist()):
                if is_missing(entry):
                    self._null(row)
                if not isinstance(entry, str):
                    raise FileError(
                        f"{self.where(row)}: {self.name} holds {entry!r}, a {type(entry).__name__}; a column "
                        "holds integers or strings, not both"
                    )
            return _code(column.astype(np.str_))
        if column.dtype.kind == "b":
            column = column.astype(np.int64)
        if column.dtype.kind not in "iu":
            raise self._wrong(column.dtype, wanted)
        if labels:
            return _code(column.astype(np.str_))
        if column.dtype == np.uint64:
            if column.size and column.max() > np.iinfo(np.int64).max:
                raise self._wrong("integers beyond 63 bits", "pass labels=True to read them as names")
            column = column.astype(np.int64)
        return column if column.dtype in (np.int32, np.int64) else column.astype(np.int64)

    def numbers(self, role: str) -> NDArray[Any]:
        wanted = "give numbers"
        column = self.column
        if self.is_arrow:
            types = arrow("types")
            if types.is_decimal(column.type):
                column = column.cast(arrow().float64())
            if not (
                types.is_integer(column.type)
                or types.is_floating(column.type)
                or types.is_boolean(column.type)
            ):
                raise self._wrong(column.type, wanted)
            column = column.to_numpy(zero_copy_only=False)
        if column.dtype.kind == "O":
            missing = [row for row, entry in enumerate(column.tolist()) if is_missing(entry)]
            if missing:
                self._null(missing[0])
        if column.dtype.kind not in "biuf":
            raise self._wrong(column.dtype, wanted)
        whole = role == "weight" and column.dtype.kind in "biu"
        if whole and column.dtype == np.uint64 and column.size and column.max() > np.iinfo(np.int64).max:
            raise self._wrong("integers beyond 63 bits", "scale the weights down")
        numbers = column.astype(np.int64 if whole else np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not whole and not np.isfinite(numbers.sum())
        if suspect:
            bad = ~np.isfinite(numbers)
            if bad.any():
                row = int(bad.argmax())
                raise FileError(
                    f"{self.where(row)}: {self.name} is {numbers[row]}, not a finite number; mend that entry"
                )
        if role == "reward" and numbers.size and not max(numbers.max(), -numbers.min()) <= LARGEST_REWARD:
            row = int((np.abs(numbers) > LARGEST_REWARD).argmax())
            raise FileError(
                f"{self.where(row)}: {self.name} is {numbers[row]}, beyond {LARGEST_REWARD:g}, where sums of "
                "squares overflow; divide all rewards by a constant"
            )
        if role != "reward" and numbers.size and numbers.min() < 0:
            row = int((numbers < 0).argmax())
            raise FileError(
                f"{self.where(row)}: {self.name} is {numbers[row]}; a {role.replace('_', ' ')} is at least 0"
            )
        return numbers

    def flags(self) -> NDArray[np.bool_]:
        column = self.column
        if self.is_arrow:
            if arrow("types").is_boolean(column.type):
                return _unpack_bits(column)
            column = column.to_numpy(zero_copy_only=False)
        if column.dtype.kind == "b":
            return column
        if column.dtype.kind not in "iuf":
            raise self._wrong(column.dtype, "flags are true/false or 1/0")
        other = (column != 0) & (column != 1)
        if other.any():
            row = int(other.argmax())
            raise FileError(f"{self.where(row)}: {self.name} is {column[row]}; flags are true/false or 1/0")
        return column.astype(bool)


def _unpack_bits(column: Any) -> NDArray[np.bool_]:
    """Arrow's booleans, eight a byte from the lowest bit on, as bytes; Arrow itself takes far longer."""
    begin, end = column.offset, column.offset + len(column)
    _, held = column.buffers()
    bits = np.frombuffer(held, np.uint8)[begin // 8 : (end + 7) // 8]
    return np.unpackbits(bits, bitorder="little")[begin % 8 :][: len(column)].view(np.bool_)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds strings."""
    types = arrow("types")
    view = getattr(types, "is_string_view", None)
    return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))


def _strings(column: Any) -> list[str]:
    """Strings of Arrow, made together: several times as fast as one by one."""
    strings: list[str] = column.to_numpy(zero_copy_only=False).tolist()
    return strings


def _code(column: NDArray[np.str_]) -> Coded:
    values, codes = np.unique(column, return_inverse=True)
    return Coded(codes, values.tolist())
