"""Where batches come from: files by suffix, DuckDB, frames, anything that speaks Arrow, plain arrays.

Every source yields :class:`~lingendice.io.columns.Batch` in the order of the log. A file that cannot be read
is a :class:`FileError` that names the file, the row group or batch, and the column.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lingendice.data.by_label import is_table
from lingendice.data.matrices import is_pandas
from lingendice.data.saving import COUNTS_KEY, arrow
from lingendice.io.columns import Batches, is_text, read_batch
from lingendice.io.csv_reader import read_text_file
from lingendice.io.formats import (
    COMPRESSED,
    IPC,
    PARQUET,
    STREAMED,
    FileError,
    format_of,
    in_one_line,
    require_file,
)
from lingendice.io.roles import ID_ROLES, ColumnNames

_BATCH_ROWS = 1 << 18
_GROUP_ROWS = 1 << 20  # rows of a row group that are decoded together; labels are looked up once for them


class LogSource(Protocol):
    """A log that yields batches."""

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches in the order of the log."""


def read_ahead(batches: Batches) -> Batches:
    """The same batches, each decoded in a thread of its own while the one before is counted."""
    with ThreadPoolExecutor(1, "lingendice-read") as decoder:
        coming = decoder.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = decoder.submit(next, batches, None)
            yield batch


def find_files(paths: Any) -> list[Path]:
    """The files behind a path, a folder, a glob pattern, or a list of these; patterns sort by name.

    Hidden files and folders are passed over, as patterns do.
    """
    if isinstance(paths, (list, tuple)):
        return [file for path in paths for file in find_files(path)]
    text = os.fspath(paths)
    path = Path(text)
    if path.is_dir():
        # Spark writes a table as a folder that is called like a file.
        inside = (file for file in path.rglob("*") if format_of(file) in STREAMED and file.is_file())
        # Hidden ones are copies that other programs keep: .ipynb_checkpoints, ._ of macOS.
        found = sorted(file for file in inside if not re.search(r"(^|[\\/])\.", str(file.relative_to(path))))
        if not found:
            raise FileError(f"{path}: no {', '.join(STREAMED)} file in this folder")
        return found
    if path.is_file() or not glob.has_magic(text):
        require_file(path)
        return [path]
    matches = sorted(Path(match) for match in glob.glob(text, recursive=True))
    found = [match for match in matches if match.is_file()]
    if not found:
        raise FileError(f"{text}: no file matches this pattern")
    return found


class LogFiles:
    """Parquet, Arrow IPC (Feather) and CSV files, one after another; episodes may run over their ends."""

    def __init__(self, files: list[Path], row_groups: range | None = None) -> None:
        self.files, self.row_groups = files, row_groups
        for file in files:
            if format_of(file) not in STREAMED:
                raise FileError(
                    f"{file}: unknown suffix; use one of {', '.join(STREAMED)} (text "
                    f"also with {', '.join(COMPRESSED)} behind)"
                )

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches of all files; with several threads, decoded ahead of the counting."""
        found = self._batches(names, threads)
        if threads == 1:
            yield from found
            return
        facts = [_size_and_time(file) for file in self.files]
        yield from read_ahead(found)
        # Decoding may have come to the end of a file long before its rows were counted.
        for file, fact in zip(self.files, facts, strict=True):
            _require_unchanged(file, fact)

    def _batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches with the share of all files read; an error where a file changes meanwhile."""
        whole, before = sum(file.stat().st_size for file in self.files) or 1, 0
        for file in self.files:
            fact = _size_and_time(file)
            for batch in self._read(file, names, threads):
                within = 1.0 if batch.fraction is None else batch.fraction
                yield replace(batch, fraction=(before + within * fact[0]) / whole)
            _require_unchanged(file, fact)
            before += fact[0]

    def _read(self, file: Path, names: ColumnNames, threads: int) -> Batches:
        suffix = format_of(file)
        if suffix in PARQUET:
            return _read_parquet(file, names, threads, self.row_groups)
        return _read_ipc(file, names) if suffix in IPC else read_text_file(file, names, threads)


def _size_and_time(file: Path) -> tuple[int, int]:
    fact = file.stat()
    return fact.st_size, fact.st_mtime_ns


def _require_unchanged(file: Path, before: tuple[int, int]) -> None:
    now = _size_and_time(file)
    if now != before:
        raise FileError(
            f"{file}: changed while it was read ({before[0]:,} bytes at first, {now[0]:,} now); read it once "
            "nobody writes to it, or read a copy"
        )


def _unreadable(where: str, error: Exception) -> FileError:
    return FileError(
        f"{where}: cannot be read ({in_one_line(error)}); it is damaged or cut short: fetch it again"
    )


# -- Parquet ------------------------------------------------------------------------------------------


def _open_parquet(file: Path, metadata: Any = None, labels: Sequence[str] = ()) -> Any:
    """Open a file; of the columns of labels, codes are read and each label once, where it was written so."""
    pa, parquet = arrow(), arrow("parquet")
    try:
        return parquet.ParquetFile(
            file,
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
            read_dictionary=list(labels),
        )
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(str(file), error) from None


def _read_parquet(file: Path, names: ColumnNames, threads: int, row_groups: range | None) -> Batches:
    """Row groups one after another; None for all of them."""
    with _open_parquet(file) as stored:
        metadata, schema = stored.metadata, stored.schema_arrow
    if COUNTS_KEY in (schema.metadata or {}):
        raise FileError(f"{file}: holds counts, not a log; read it with lg.Counts.load")
    found = names.find(schema.names, str(file))
    columns = list(dict.fromkeys(found.values()))
    texts = [name for role, name in found.items() if role in ID_ROLES and is_text(schema.field(name).type)]
    n_groups = metadata.num_row_groups
    with _open_parquet(file, metadata, texts) as stored:
        for group in range(n_groups) if row_groups is None else row_groups:
            first, n_rows = 0, metadata.row_group(group).num_rows
            options = {"batch_size": _GROUP_ROWS, "columns": columns, "use_threads": threads > 1}
            try:
                for rows in stored.iter_batches(row_groups=[group], **options):
                    where = _place(f"{file}, row group {group}", first)
                    first += len(rows)
                    share = (group + first / n_rows) / n_groups
                    batch = read_batch(rows, found, where, names.labels, share)
                    yield replace(batch, n_rows_known=metadata.num_rows)
            except (arrow().ArrowException, OSError) as error:
                raise _blame(stored, file, group, columns, error) from None


def _blame(stored: Any, file: Path, group: int, columns: list[str], error: Exception) -> FileError:
    """Find the column that cannot be read."""
    for column in columns:
        try:
            stored.read_row_group(group, columns=[column], use_threads=False)
        except (arrow().ArrowException, OSError) as own:
            return _unreadable(f"{file}, row group {group}, column {column!r}", own)
    return _unreadable(f"{file}, row group {group}", error)


def _place(what: str, first: int = 0) -> Callable[[int], str]:
    return lambda row: f"{what}, row {first + row}"


# -- Arrow IPC and CSV --------------------------------------------------------------------------------


def _read_ipc(file: Path, names: ColumnNames) -> Batches:
    """Files of record batches (Feather) or streams of them."""
    pa, ipc = arrow(), arrow("ipc")
    with pa.memory_map(str(file)) as mapped:
        try:
            stored = ipc.open_file(mapped)
            n_parts = stored.num_record_batches
            schema, get = stored.schema, stored.get_batch
        except pa.ArrowInvalid:
            mapped.seek(0)
            try:
                reader = ipc.open_stream(mapped)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(str(file), error) from None
            yield from read_stream(reader, str(file), names)
            return
        found = names.find(schema.names, str(file))
        for index in range(n_parts):
            where = f"{file}, record batch {index}"
            try:
                rows = get(index)
                rows.validate(full=False)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(where, error) from None
            yield read_batch(rows, found, _place(where), names.labels, (index + 1) / n_parts)


def read_stream(
    reader: Any,
    what: str,
    names: ColumnNames,
    found: Mapping[str, str] | None = None,
) -> Batches:
    """Batches of an Arrow stream."""
    pa = arrow()
    if found is None:
        found = names.find(reader.schema.names, what)
    index = first = 0
    while True:
        try:
            rows = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileError(
                f"{what}, batch {index} (from row {first}): cannot be read ({in_one_line(error)}); fix it, "
                "or give the column one type throughout"
            ) from None
        yield read_batch(rows, found, _place(what, first), names.labels)
        index, first = index + 1, first + len(rows)


# -- DuckDB and what is in memory -----------------------------------------------------------------------


_DUCK: dict[str, Any] = {"enable_external_access": False}
"""A view in a database from elsewhere may name any file or address to read from."""


class DuckTable:
    """A table (or view) of a DuckDB database file."""

    def __init__(self, file: Path, table: str) -> None:
        self.file, self.table = file, table

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches in the order of insertion."""
        try:
            import duckdb
        except ImportError as error:
            raise ImportError("DuckDB databases need DuckDB: pip install 'lingendice[io]'") from error
        what = f"{self.file}, table {self.table!r}"
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in self.table.split("."))
        try:
            connection = duckdb.connect(str(self.file), read_only=True, config=_DUCK | {"threads": threads})
        except duckdb.Error as error:
            raise _unreadable(str(self.file), error) from None
        with connection:
            try:
                present = [row[0] for row in connection.execute(f"DESCRIBE {quoted}").fetchall()]
            except duckdb.Error as error:
                raise FileError(f"{what}: {str(error).splitlines()[0]}; name a table that is there") from None
            found = names.find(present, what)
            wanted = ", ".join('"' + name.replace('"', '""') + '"' for name in dict.fromkeys(found.values()))
            try:
                relation = connection.sql(f"SELECT {wanted} FROM {quoted}")
                yield from read_stream(_duck_reader(relation), what, names, found)
            except duckdb.Error as error:
                raise _unreadable(what, error) from None


def _duck_reader(relation: Any) -> Any:
    for name in ("to_arrow_reader", "fetch_record_batch"):
        if hasattr(relation, name):
            return getattr(relation, name)(_BATCH_ROWS)
    raise ImportError("this DuckDB cannot hand over Arrow batches: pip install 'duckdb>=1.0'")


class Frame:
    """A pandas, polars or PyArrow table, lazy or not, a DuckDB relation, or any Arrow stream."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches of the frame."""
        what, (rows, found) = f"the {type(self.frame).__name__}", self.rows(names)
        if found is not None and isinstance(rows, dict):
            yield read_batch(rows, found, _place(what), names.labels)
        else:
            yield from read_stream(rows, what, names, found)

    def rows(self, names: ColumnNames) -> tuple[Any, dict[str, str] | None]:
        """A reader of record batches, and the columns of each role where they had to be found.

        Without PyArrow a frame of pandas or polars gives its columns as arrays.
        """
        frame, found = self.frame, None
        if is_pandas(frame):
            frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
            found = names.find(list(frame.columns), "the DataFrame")
        elif (
            hasattr(frame, "collect_schema") and hasattr(frame, "collect") and not hasattr(frame, "to_arrow")
        ):
            found = names.find(frame.collect_schema().names(), "the LazyFrame")
            frame = frame.select(list(dict.fromkeys(found.values()))).collect()
        try:
            pa = arrow()
        except ImportError:
            if not is_table(frame):
                raise
            found = found or names.find(list(frame.columns), f"the {type(frame).__name__}")
            return {name: frame[name].to_numpy() for name in found.values()}, found
        try:
            if found is not None and is_pandas(frame):
                wanted = list(dict.fromkeys(found.values()))
                frame = pa.Table.from_pandas(frame[wanted], preserve_index=False)
            if hasattr(frame, "read_next_batch"):
                return frame, found
            if not isinstance(frame, pa.Table):
                return pa.RecordBatchReader.from_stream(frame), found
            return frame.to_reader(max_chunksize=_BATCH_ROWS), found
        except (pa.ArrowException, TypeError) as error:
            raise FileError(
                f"a {type(self.frame).__name__} is no table ({in_one_line(error)}); give one with named "
                "columns, each of one type"
            ) from None


class Stream:
    """An iterable of batches: mappings of arrays, record batches, or frames."""

    def __init__(self, rows: Iterable[Any], what: str = "") -> None:
        self.rows, self.what = rows, what

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """Batches of the stream."""
        found: dict[str, str] | None = None
        for index, rows in enumerate(self.rows):
            what = self.what or f"batch {index}"
            if not isinstance(rows, Mapping):
                if not is_frame(rows):
                    raise ValueError(
                        f"a stream of batches holds a {type(rows).__name__}; give mappings of arrays, "
                        "batches or frames (of single rows make a frame: pandas.DataFrame(rows, columns=...))"
                    )
                rows = Frame(rows).rows(names)[0]
                rows = rows if isinstance(rows, dict) else rows.read_all()
            present = list(rows) if isinstance(rows, Mapping) else rows.column_names
            here = names.find([str(name) for name in present], what)
            if found is None:
                found = here
            elif set(here) != set(found):
                raise FileError(f"{what}: has columns for {sorted(here)}, those before had {sorted(found)}")
            yield read_batch(rows, here, _place(what), names.labels)


def is_frame(source: Any) -> bool:
    """Whether the object is a table that Arrow can read."""
    methods = ("__arrow_c_stream__", "__arrow_c_array__", "collect_schema", "read_next_batch")
    return is_pandas(source) or any(hasattr(source, name) for name in methods)
