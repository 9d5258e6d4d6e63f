"""Text files (CSV, TSV, compressed or not): their rows, and logs with PyArrow in batches or without it.

:func:`text_rows` reads policies, lists of edges and logs. Text has no types, so both ways of reading a log
decide them alike. A column of ids holds numbers where all of the first 10,000 entries read as such, else
names; states and next states are of one kind. Numbers with zeros in front are names: 007 is not 7. Names
that turn up later are an error. Flags are words, the other columns are numbers. Blanks around entries mean
nothing. An empty entry is missing, and so is a word like NA among numbers.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.saving import arrow
from lingendice.io.columns import BLANKS, Batches, read_batch
from lingendice.io.formats import COMPRESSED, FileError, format_of, in_one_line
from lingendice.io.roles import FLAG_ROLES, ColumnNames

_ID_GROUPS = (("state", "next_state"), ("action",), ("episode",))
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA",
     "NULL", "NaN", "n/a", "nan", "null")
)  # fmt: skip
"""Words that PyArrow takes for missing numbers."""
_WHOLE = re.compile(r"-?[0-9]+")
_PADDED = re.compile(r"-?0[0-9]+")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BLOCK = 1 << 23
_PLAIN_ROWS = 1 << 18
_FIRST_ROWS = 10_000
"""Rows that decide whether ids are numbers or names: with PyArrow and without it the same."""


Rows = Iterator[tuple[int, list[str]]]
"""Lines by their numbers, with their entries."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def text_rows(file: Path, comments: str = "") -> Rows:
    """Line and entries of each row, the header among them; all rows are equally long.

    Entries are divided by commas in CSV, by tabs in TSV, by blanks in other text, where quotes mean nothing.
    Blanks around an entry are not part of it, empty lines are passed over, and so are lines that begin with a
    character of ``comments``.
    """
    delimiter, width = _DELIMITERS.get(format_of(file)), 0
    try:
        with _opened(file) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
            lines: Iterable[str] = _lines(file, stream)
            if comments:
                lines = ("\n" if line[0] in comments else line for line in lines)
            if delimiter is None:
                lines = (" ".join(line.split()) for line in lines)
            rows = csv.reader(
                lines,
                delimiter=delimiter or " ",
                quoting=csv.QUOTE_MINIMAL if delimiter else csv.QUOTE_NONE,
            )
            for row in filter(None, rows):
                if len(row) != (width := width or len(row)):
                    raise FileError(
                        f"{file}, line {rows.line_num}: {len(row)} entries, {width} in the lines before"
                    )
                yield rows.line_num, [entry.strip(BLANKS) for entry in row]
    except UnicodeDecodeError as error:
        raise FileError(f"{file}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise FileError(f"{file}, line {rows.line_num}: not a readable csv file ({error})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{file}: cannot be read ({error}); it is damaged: fetch it again") from None


def _lines(file: Path, stream: TextIOWrapper) -> Iterator[str]:
    """Lines of bounded length: a few megabytes that are packed may unfold into one of gigabytes."""
    number = 0
    while line := stream.readline(_BLOCK):
        number += 1
        if len(line) == _BLOCK and line[-1] not in "\r\n":
            raise FileError(
                f"{file}, line {number}: longer than {_BLOCK:,} characters; a table has one line per row: is "
                "this file one?"
            )
        yield line


def _opened(file: Path) -> Any:
    """The bytes of a file, unpacked."""
    suffix = file.suffix.lower()
    if suffix == ".gz" or suffix not in COMPRESSED:
        return gzip.open(file) if suffix == ".gz" else file.open("rb")
    try:
        return arrow().input_stream(str(file), compression="detect")
    except ImportError:
        raise ImportError(
            f"{file}: compressed by {file.suffix} needs PyArrow: pip install 'lingendice[io]'"
        ) from None


def read_text_file(file: Path, names: ColumnNames, threads: int) -> Batches:
    """Batches of a log in text: by PyArrow, or by the standard library where that is not installed."""
    try:
        pa = arrow()
    except ImportError:
        yield from _read_plainly(file, names)
        return
    first = 0
    try:
        reader, found = _open_by_arrow(file, names, threads)
        with reader:
            for rows in reader:
                batch = read_batch(
                    rows, found, partial(_line_of, file, names, first), names.labels, from_text=True
                )
                yield replace(batch, place=partial(_row_of, file, first))
                first += len(rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The standard library says what is wrong, with its line.
        for _ in _read_plainly(file, names):
            pass
        raise FileError(f"{file}: cannot be read ({in_one_line(error)}); fix the file") from None


def _row_of(file: Path, first: int, row: int) -> str:
    return f"{file}, row {first + row}"


def _line_of(file: Path, names: ColumnNames, first: int, row: int) -> str:
    """The line of a row, found by reading the file once more."""
    for line, _ in islice(_with_header(file, names)[2], first + row, first + row + 1):
        return f"{file}, line {line}"
    return _row_of(file, first, row)  # it changed while it was read


# -- with PyArrow ---------------------------------------------------------------------------------------


def _open_by_arrow(file: Path, names: ColumnNames, threads: int) -> tuple[Any, dict[str, str]]:
    """A reader of batches, and the column of each role."""
    module = arrow("csv")
    # Entries may hold line ends: without saying so a block could end inside of quotes.
    parsing = module.ParseOptions(delimiter=_DELIMITERS[format_of(file)], newlines_in_values=True)
    with module.open_csv(str(file), parse_options=parsing) as first:
        kinds = dict(zip(first.schema.names, first.schema.types, strict=True))
        found = names.find(first.schema.names, str(file))
    named = _named(found, _first_ids(file, found, parsing), names.labels)
    # Only what is empty is missing: NA is the name of a country. Among numbers it is an error.
    converting = module.ConvertOptions(
        include_columns=list(dict.fromkeys(found.values())),
        column_types=_arrow_types(found, kinds, named),
        null_values=[""],
        strings_can_be_null=True,
    )
    reading = module.ReadOptions(use_threads=threads > 1, block_size=_BLOCK)
    opened = module.open_csv(
        str(file), read_options=reading, parse_options=parsing, convert_options=converting
    )
    numbers = [name for name, is_named in named.items() if not is_named]
    return _NumberedIds(opened, numbers, names.labels), found


class _NumberedIds:
    """Batches of PyArrow, in which ids that are numbers have become such.

    PyArrow itself would take 007 for 7. It parses text as fast, and so takes this no longer.
    """

    def __init__(self, reader: Any, numbers: list[str], labels: bool | None) -> None:
        self._reader, self._numbers, self._labels = reader, numbers, labels

    def __enter__(self) -> _NumberedIds:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[Any]:
        for rows in self._reader:
            for name in self._numbers:
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, name, self._as_numbers(rows.column(at)))
            yield rows

    def _as_numbers(self, column: Any) -> Any:
        """Entries as integers, else as floats, without the blanks around them where these are in the way."""
        pa, compute = arrow(), arrow("compute")
        try:
            entries, numbers = column, column.cast(pa.int64())
        except pa.ArrowInvalid:
            entries = compute.utf8_trim(column, BLANKS)
            try:
                numbers = entries.cast(pa.int64())
            except pa.ArrowInvalid:
                numbers = entries.cast(pa.float64())
        # By prefixes, which takes half the time of a pattern.
        padded = compute.and_(
            compute.greater(compute.binary_length(entries), 1),
            compute.or_(compute.starts_with(entries, "0"), compute.starts_with(entries, "-0")),
        )
        if self._labels is not False and compute.any(padded).as_py():
            suspects = entries.filter(padded).to_pylist()
            if any(entry is not None and _PADDED.fullmatch(entry) for entry in suspects):
                raise pa.ArrowInvalid("numbers with zeros in front")
        return numbers


def _first_ids(file: Path, found: Mapping[str, str], parsing: Any) -> dict[str, list[str]]:
    """The first entries of every column of ids."""
    module, text = arrow("csv"), arrow().string()
    wanted = _id_columns(found)
    first: dict[str, list[str]] = {name: [] for name in wanted}
    if not wanted:
        return first
    options = module.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, text))
    with module.open_csv(str(file), parse_options=parsing, convert_options=options) as reader:
        for rows in reader:
            for name in wanted:
                first[name] += rows.column(name).slice(0, _FIRST_ROWS - len(first[name])).to_pylist()
            if len(first[wanted[0]]) >= _FIRST_ROWS:
                break
    return {name: [entry.strip(BLANKS) for entry in entries] for name, entries in first.items()}


def _id_columns(found: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(found[role] for group in _ID_GROUPS for role in group if role in found))


def _named(found: Mapping[str, str], first: Mapping[str, list[str]], labels: bool | None) -> dict[str, bool]:
    """Whether each column of ids holds names, by its first entries."""
    named: dict[str, bool] = {}
    for group in _ID_GROUPS:
        columns = [found[role] for role in group if role in found]
        wanted = bool(labels) and "episode" not in group
        numbers = all(_are_numbers(first[name]) for name in columns)
        padded = labels is not False and any(
            _PADDED.fullmatch(entry) for name in columns for entry in set(first[name])
        )
        named |= dict.fromkeys(columns, wanted or padded or not numbers)
    return named


def _arrow_types(
    found: Mapping[str, str], kinds: Mapping[str, Any], named: Mapping[str, bool]
) -> dict[str, Any]:
    """The type in which each column is read, from those that its first rows suggest."""
    pa, types = arrow(), arrow("types")
    words = pa.dictionary(pa.int32(), pa.string())
    chosen: dict[str, Any] = {name: words if named[name] else pa.string() for name in named}
    for role, name in found.items():
        if role in FLAG_ROLES:
            chosen[name] = words
        elif role == "weight" and types.is_integer(kinds[name]):
            chosen[name] = pa.int64()
        elif role == "time" and (types.is_date(kinds[name]) or types.is_timestamp(kinds[name])):
            # Of one unit, as files may have days and seconds.
            chosen[name] = pa.timestamp("ns", getattr(kinds[name], "tz", None))
        elif role == "time":
            chosen[name] = pa.float64() if types.is_null(kinds[name]) else kinds[name]
        elif name not in chosen:
            chosen[name] = pa.float64()
    return chosen


# -- without --------------------------------------------------------------------------------------------


def _with_header(file: Path, names: ColumnNames) -> tuple[list[str], dict[str, str], Rows]:
    """The header, the column of each role, and the rows below."""
    rows = text_rows(file)
    _, header = next(rows, (0, []))
    if not header:
        raise FileError(f"{file}: empty file; the first line must name the columns")
    return header, names.find(header, str(file)), rows


def _read_plainly(file: Path, names: ColumnNames) -> Batches:
    """Batches by the standard library, whose errors name the line."""
    header, found, rows = _with_header(file, names)
    wanted = {name: header.index(name) for name in found.values()}
    named: dict[str, bool] | None = None
    while some := list(islice(rows, _PLAIN_ROWS)):
        lines, entries = zip(*some, strict=True)

        def where(row: int, lines: tuple[int, ...] = lines) -> str:
            return f"{file}, line {lines[row]}"

        columns = {name: [row[position] for row in entries] for name, position in wanted.items()}
        if named is None:
            first = {name: columns[name][:_FIRST_ROWS] for name in _id_columns(found)}
            named = _named(found, first, names.labels)
        typed = _typed(found, columns, named, names.labels, where)
        yield read_batch(typed, found, where, names.labels, from_text=True)


def _typed(
    found: Mapping[str, str],
    columns: Mapping[str, list[str]],
    named: Mapping[str, bool],
    labels: bool | None,
    where: Callable[[int], str],
) -> dict[str, NDArray[Any]]:
    """Every column as PyArrow would read it."""
    typed: dict[str, NDArray[Any]] = {}
    for name, is_named in named.items():
        entries = columns[name]
        wrong = set() if is_named else {entry for entry in set(entries) if _is_no_id(entry, labels)}
        if wrong:
            row = next(row for row, entry in enumerate(entries) if entry in wrong)
            raise _no_id(where(row), name, entries[row])
        typed[name] = np.array(entries, np.str_) if is_named else _numbers(name, entries, where)
    for role, name in found.items():
        if role in FLAG_ROLES:
            typed[name] = np.array(columns[name], np.str_)
        elif role == "time":
            typed[name] = _times(name, columns[name], where)
        elif name not in typed:
            numbers = _numbers(name, columns[name], where, hexadecimal=role == "weight")
            typed[name] = numbers if role == "weight" else numbers.astype(np.float64)
    return typed


def _are_numbers(entries: list[str]) -> bool:
    """Whether a column reads as numbers, apart from missing ones; a column of these alone does not."""
    numbers = {entry: _number(entry) for entry in set(entries) - _MISSING}
    if not numbers or None in numbers.values():
        return False
    # As PyArrow: floats are not hexadecimal.
    whole = all(isinstance(number, int) for number in numbers.values())
    return whole or not any(map(_HEXADECIMAL.fullmatch, numbers))


def _number(entry: str) -> int | float | None:
    if _WHOLE.fullmatch(entry) and -(2**63) <= int(entry) < 2**63:
        return int(entry)
    if _HEXADECIMAL.fullmatch(entry):
        return (int(entry, 16) ^ (1 << 63)) - (1 << 63)  # as PyArrow: the first bit is a sign
    if "_" in entry or not entry.isascii():
        return None
    try:
        return float(entry)
    except ValueError:
        return None


def _is_no_id(entry: str, labels: bool | None) -> bool:
    """Whether an entry among numbers is none of them; an empty one is missing."""
    entry = entry.strip(BLANKS)
    return bool(entry) and (
        _number(entry) is None or (labels is not False and bool(_PADDED.fullmatch(entry)))
    )


def _no_id(where: str, name: str, entry: str) -> FileError:
    if not _PADDED.fullmatch(entry):
        return FileError(
            f"{where}: column {name!r} is {entry!r}, which is not a number as the first rows are; fix it, or "
            "pass labels=True to read ids as names"
        )
    return FileError(
        f"{where}: column {name!r} is {entry!r}, and the first rows are numbers without zeros in front; pass "
        f"labels=True to read ids as names, or labels=False to take it for {int(entry)}"
    )


def _numbers(
    name: str, entries: list[str], where: Callable[[int], str], hexadecimal: bool = True
) -> NDArray[Any]:
    """Integers where all entries are, else floats, none of which is hexadecimal."""
    known = {entry: _number(entry) for entry in set(entries)}
    whole = all(isinstance(number, int) for number in known.values())
    for entry, number in known.items():
        if number is None or (not (hexadecimal and whole) and _HEXADECIMAL.fullmatch(entry)):
            row = entries.index(entry)
            what = f"{entry!r}, which is not a number" if entry else "empty; fill it in or leave the row out"
            raise FileError(f"{where(row)}: column {name!r} is {what}")
    return np.array([known[entry] for entry in entries], np.int64 if whole else np.float64)


def _times(name: str, entries: list[str], where: Callable[[int], str]) -> NDArray[Any]:
    if _are_numbers(entries):
        return _numbers(name, entries, where)
    # NumPy would take "0" for a year and "now" for a date.
    dates = [entry if _DATE.match(entry) else "NaT" if entry == "" else "text" for entry in entries]
    try:
        return np.array(dates, "datetime64[ns]")
    except ValueError:
        raise FileError(f"{where(0)}: column {name!r} holds text; times are numbers or dates") from None
