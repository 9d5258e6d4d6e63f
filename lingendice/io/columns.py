"""Columns of a batch, from Arrow or NumPy, as the arrays that are counted; every error names the entry.

One rule distinguishes ids from names: integers are ids that count from 0 where the largest is below
``20 * (distinct ones) + 10,000``; sparser ones (account numbers, hashes) are names, and only those that occur
are numbered. Strings are names always.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import LARGEST_REWARD, is_missing, missing_entry, plain_array
from lingendice.data.saving import arrow
from lingendice.io.formats import FileError
from lingendice.io.roles import FLAG_ROLES, ID_ROLES, join_ends


class Coded(NamedTuple):
    """A column of strings: ``values[codes]``."""

    codes: NDArray[Any]
    values: list[str]


Column = NDArray[Any] | Coded


@dataclass(frozen=True)
class Batch:
    """Rows of a log by role, and where they come from."""

    columns: dict[str, Column]
    n_rows: int
    where: Callable[[int], str] = field(repr=False)
    """Tells in words where a row of the batch stands; may take a while, for errors."""
    fraction: float | None = None
    """Share of the whole that is read after this batch; None where the end is unknown."""
    n_rows_known: int = 0
    """Rows that the log is known to have at least."""
    largest: dict[str, int] = field(default_factory=dict)
    """The largest integer of each column of ids, or one beyond 63 bits where some are negative."""
    place: Callable[[int], str] | None = field(default=None, repr=False)
    """The same at once, where ``where`` takes a while."""


Batches = Generator[Batch, None, None]


def read_batch(
    table: Mapping[str, Any] | Any,
    found: Mapping[str, str],
    where: Callable[[int], str],
    labels: bool | None,
    fraction: float | None = None,
    *,
    from_text: bool = False,
) -> Batch:
    """Convert the wanted columns of a table (anything with ``table[name]``).

    ``from_text`` says that strings come from a text file: blanks around them mean nothing, and an empty one
    is a missing entry.
    """
    columns: dict[str, Any] = {}
    entries = {
        role: _Entry(table[name], f"column {name!r}", where, from_text) for role, name in found.items()
    }
    n_rows = len(entries.get("state", next(iter(entries.values()))).column)
    for role, entry in entries.items():
        if len(entry.column) != n_rows:
            raise FileError(f"{where(0)}: {entry.name} has {len(entry.column)} rows, the others {n_rows}")
        if role in ID_ROLES:
            columns[role] = entry.ids(bool(labels) and role != "episode")
        elif role in FLAG_ROLES:
            columns[role] = entry.flags()
        elif role == "time":
            columns[role] = entry.times()
        else:
            columns[role] = entry.numbers(role)
    integers = {role: column for role, column in columns.items() if isinstance(column, np.ndarray)}
    largest = {role: _largest(integers[role]) for role in ID_ROLES if role in integers}
    return Batch(join_ends(columns), n_rows, where, fraction, largest=largest)


def _largest(ids: NDArray[Any]) -> int:
    """The largest of some integers, or one beyond 63 bits where some are negative: one pass, not two."""
    largest = int(ids.view(ids.dtype.str.replace("i", "u")).max(initial=0))
    return largest if ids.dtype.kind == "u" or largest >> (8 * ids.itemsize - 1) == 0 else 1 << 63


class _Entry:
    """One column of one batch, on its way to an array."""

    def __init__(self, column: Any, name: str, where: Callable[[int], str], from_text: bool) -> None:
        self.name, self.where, self.from_text = name, where, from_text
        self.is_arrow = type(column).__module__.startswith("pyarrow")
        if self.is_arrow:
            if hasattr(column, "combine_chunks"):
                column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            self._refuse_nulls(column)
        else:
            missing = missing_entry(column)
            if missing is not None:
                self._null(missing[0])
            if (
                isinstance(column, (list, tuple))
                and str in (kinds := set(map(type, column)))
                and len(kinds) > 1
            ):
                # NumPy would make text of all of them: "nan" of a missing entry, "1" of 1.
                column = np.fromiter(column, object, len(column))
            column = plain_array(name, column)
            if column.ndim == 0:
                raise FileError(
                    f"{where(0)}: {name} is {column.item()!r}, a single entry; of such rows make a frame: "
                    "pandas.DataFrame(rows)"
                )
            if column.ndim != 1:
                raise FileError(
                    f"{where(0)}: {name} has shape {column.shape}; give one-dimensional columns, one entry "
                    "per step"
                )
        self.column = column

    def _null(self, row: int, what: str = "null") -> None:
        raise FileError(f"{self.where(row)}: {self.name} is {what}; fill it in or leave the row out")

    def _refuse(self, wrong: NDArray[np.bool_], column: NDArray[Any], why: str) -> None:
        """Name the first entry that is wrong, if any is."""
        if wrong.any():
            row = int(wrong.argmax())
            raise FileError(f"{self.where(row)}: {self.name} is {column[row]!s}{why}")

    def _refuse_nulls(self, column: Any) -> None:
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            self._null(row, "empty" if self.from_text else "null")

    def _wrong(self, kind: Any, wanted: str) -> FileError:
        return FileError(f"{self.where(0)}: {self.name} holds {kind}; {wanted}")

    # -- ids ---------------------------------------------------------------------------------------------

    def ids(self, labels: bool) -> Column:
        if not self.is_arrow:
            return self._numpy_ids(self.column, labels)
        types, column = arrow("types"), self._decoded()
        kind = column.type
        if types.is_dictionary(kind):
            return self._coded(column.indices.to_numpy(), _strings(column.dictionary))
        if is_text(kind):
            coded = column.dictionary_encode()
            return self._coded(coded.indices.to_numpy(), _strings(coded.dictionary))
        if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
            return self._numpy_ids(column.to_numpy(zero_copy_only=False), labels)
        raise self._wrong(kind, _IDS)

    def _decoded(self) -> Any:
        """The Arrow column, with dictionaries kept only where they hold strings and no null."""
        column, types = self.column, arrow("types")
        if not types.is_dictionary(column.type):
            return column
        if is_text(column.type.value_type) and not column.dictionary.null_count:
            return column
        column = column.dictionary_decode()
        self._refuse_nulls(column)
        return column

    def _coded(self, codes: NDArray[Any], values: list[str]) -> Coded:
        if self.from_text:
            values = [value.strip(BLANKS) for value in values]
            if "" in values:
                empty = [code for code, value in enumerate(values) if value == ""]
                rows = np.flatnonzero(np.isin(codes, empty))
                if rows.size:
                    self._null(int(rows[0]), "empty")
        return Coded(codes, values)

    def _numpy_ids(self, column: NDArray[Any], labels: bool) -> Column:
        if column.dtype.kind == "O":
            column = self._one_kind(column)
        if column.dtype.kind == "f":
            column = self._whole(column, labels)
        if column.dtype.kind == "b":
            column = column.astype(np.int64)
        if column.dtype.kind in "US" or (labels and column.dtype.kind in "iuf"):
            values, codes = np.unique(column.astype(np.str_), return_inverse=True)
            return self._coded(codes, values.tolist())
        if column.dtype.kind not in "iu":
            raise self._wrong(column.dtype, _IDS)
        return self._signed(column, "pass labels=True to read them as names")

    def _signed(self, column: NDArray[Any], remedy: str) -> NDArray[Any]:
        """Integers as they are, but for those of 64 bits without a sign."""
        if column.dtype != np.uint64:
            return column
        if column.size and column.max() > np.iinfo(np.int64).max:
            raise self._wrong("integers beyond 63 bits", remedy)
        return column.astype(np.int64)

    def _one_kind(self, column: NDArray[Any]) -> NDArray[Any]:
        """Objects as an array of strings or of integers."""
        entries = column.tolist()
        for row, entry in enumerate(entries):
            if is_missing(entry):
                self._null(row)
            if not isinstance(entry, (str, int)) or isinstance(entry, str) != isinstance(entries[0], str):
                raise FileError(
                    f"{self.where(row)}: {self.name} holds {entry!r}, a {type(entry).__name__}; a column "
                    "holds integers or strings, not both"
                )
        try:
            return column.astype(np.str_ if entries and isinstance(entries[0], str) else np.int64)
        except OverflowError:
            raise self._wrong("integers beyond 64 bits", "pass them as strings") from None

    def _whole(self, column: NDArray[Any], labels: bool) -> NDArray[Any]:
        """Floats that are whole numbers as integers: other tools make floats of a column with gaps."""
        missing = np.isnan(column)
        if missing.any():
            self._null(int(missing.argmax()), "nan")
        if labels:
            return column
        why = f", which is no id; {_IDS}, bin it, or pass labels=True to read it as a name"
        self._refuse(column != np.floor(column), column, why)
        rounded = np.abs(column) >= 2.0 ** (np.finfo(column.dtype).nmant + 1)
        self._refuse(rounded, column, f", from where on {column.dtype} rounds integers; keep ids as integers")
        return column.astype(np.int64)

    # -- numbers and flags -------------------------------------------------------------------------------

    def _plain(self, wanted: str) -> NDArray[Any]:
        """A column of numbers or booleans as an array."""
        column = self.column
        if self.is_arrow:
            types, column = arrow("types"), self._decoded()
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
            for row, entry in enumerate(column.tolist()):
                if is_missing(entry):
                    self._null(row)
                if not isinstance(entry, (int, float, np.number, np.bool_)):
                    raise FileError(f"{self.where(row)}: {self.name} is {entry!r}; {wanted}")
            column = column.astype(np.float64)
        if column.dtype.kind not in "biuf":
            raise self._wrong(column.dtype, wanted)
        return column

    def numbers(self, role: str) -> NDArray[Any]:
        column = self._plain("give numbers")
        if whole := role == "weight" and column.dtype.kind in "biu":
            column = self._signed(column, "scale the weights down")
        numbers = column.astype(np.int64 if whole else np.float64, copy=False)
        low, high = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
        if not (np.isfinite(low) and np.isfinite(high)):
            self._refuse(~np.isfinite(numbers), numbers, ", not a finite number; fix that entry")
        if role == "reward" and max(high, -low) > LARGEST_REWARD:
            why = "where sums of squares overflow; divide all rewards by a constant"
            self._refuse(np.abs(numbers) > LARGEST_REWARD, numbers, f", beyond {LARGEST_REWARD:g}, {why}")
        if role != "reward" and low < 0:
            self._refuse(numbers < 0, numbers, f"; a {role.replace('_', ' ')} is at least 0")
        return numbers

    def times(self) -> NDArray[Any]:
        """Numbers or dates, which sort like times."""
        wanted = "times are numbers or dates"
        column, types = self.column, arrow("types") if self.is_arrow else None
        if types is not None and types.is_temporal(column.type) and not types.is_time(column.type):
            column = column.to_numpy(zero_copy_only=False)
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "Mm":
            column = self._plain(wanted)
        if column.dtype.kind == "b":
            raise self._wrong("booleans", wanted)
        column = self._signed(column, "subtract the first")
        missing = column != column  # NaN or NaT
        if missing.any():
            self._null(int(missing.argmax()), "missing")
        if column.dtype.kind in "iu":
            return column.astype(np.int64)
        return column.astype(np.float64) if column.dtype.kind == "f" else column

    def flags(self) -> NDArray[np.bool_]:
        if self.is_arrow:
            column = self._decoded()
            if arrow("types").is_boolean(column.type):
                return _unpack_bits(column)
            of_text = is_text(column.type) or arrow("types").is_dictionary(column.type)
        else:
            column = self.column
            of_text = column.dtype.kind in "USO" and all(isinstance(entry, str) for entry in column.tolist())
        if of_text:
            return self._flags_of_text(self.ids(labels=False))
        column = self._plain(_FLAGS)
        if column.dtype.kind == "b":
            return column
        self._refuse((column != 0) & (column != 1), column, f"; {_FLAGS}")
        return column.astype(bool)

    def _flags_of_text(self, column: Column) -> NDArray[np.bool_]:
        assert isinstance(column, Coded)
        words = [value.strip().casefold() for value in column.values]
        wrong = [code for code, word in enumerate(words) if word not in _YES and word not in _NO]
        rows = np.flatnonzero(np.isin(column.codes, wrong)) if wrong else NO_ROWS
        if rows.size:
            row = int(rows[0])
            raise FileError(
                f"{self.where(row)}: {self.name} is {column.values[int(column.codes[row])]!r}; {_FLAGS}"
            )
        return np.array([word in _YES for word in words], bool)[column.codes]


_IDS = "ids are integers or strings: cast it"
_FLAGS = "flags are true/false, yes/no or 1/0"
_YES, _NO = {"1", "1.0", "true", "t", "yes", "y"}, {"0", "0.0", "false", "f", "no", "n"}
NO_ROWS = np.zeros(0, np.int64)
BLANKS = " \t\r\n\f\v"
"""What means nothing around the entries of a text file: other blanks of Unicode belong to a name."""


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


# -- numbers of states, actions and episodes ------------------------------------------------------------

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

    def read(self, batch: Batch, role: str) -> NDArray[Any]:
        """The column of a role as integers; those of states and actions must not be negative."""
        column = batch.columns[role]
        self._expect(isinstance(column, Coded), batch, role)
        if isinstance(column, Coded):
            return np.take(self._number(column.values), column.codes)
        if batch.largest[role] >> 63 and self.what != "episode":
            row = int((column < 0).argmax())
            raise FileError(
                f"{batch.where(row)}: {role} is {column[row]}, but ids run from 0; fix it, or pass "
                "labels=True to read ids as names"
            )
        self.size = max(self.size, batch.largest[role] + 1)
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

    def _number(self, labels: list[str]) -> NDArray[Any]:
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


def distinct(ids: NDArray[Any]) -> NDArray[Any]:
    """The integers that occur (none of them negative), sorted; O(N) where they are dense."""
    if ids.size and int(ids.max()) < IDS_PER_STATE * ids.size + SPARE_IDS:
        return np.flatnonzero(np.bincount(ids))
    return np.unique(ids)
