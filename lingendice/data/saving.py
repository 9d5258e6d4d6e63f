"""Files that are written whole or not at all, and counts in them: checksummed, without pickle.

The bytes of a file go into ``.lingendice-*.part`` in its folder, which then takes its place in one move: a
reader finds the old file or the new one, and never a part. A process that is killed while it writes leaves
such a file behind; it is in nobody's way, and is removed by the next writing into that folder once it is a
day old. An archive holds named arrays and a record of plain JSON values; a SHA-256 over all of them is
checked on reading.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lingendice.data.episodes import Episodes
from lingendice.data.labels import Labels

if TYPE_CHECKING:
    from lingendice.data.counts import Counts


PREFIX, SUFFIX = ".lingendice-", ".part"
KEPT_SECONDS = 86_400.0
"""Age at which an unfinished file is taken for abandoned: no writing of ours lasts a day."""


class StoredFileError(ValueError):
    """A stored file that cannot be used; the message says which and what to do."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A stream whose bytes take the place of ``path`` at the end, or never.

    Links are followed, and permissions are those that an ordinary writing would leave. What is no ordinary
    file (``/dev/stdout``, a pipe) is written as it is, and ``s3://`` and the like as fsspec does it.
    """
    given = _located(path)
    if isinstance(given, str):
        with _remote(given, "wb") as stream:
            yield stream
        return
    if given.parent == Path("/dev") or (given.exists() and not given.is_file()):
        with given.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(given))
    if not target.parent.is_dir():
        raise StoredFileError(f"{path}: there is no folder {target.parent}; make it first")
    remove_abandoned(target.parent)
    unfinished = target.parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    try:
        with _created(unfinished, path) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileNotFoundError):
            os.chmod(unfinished, stat.S_IMODE(target.stat().st_mode))
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _created(unfinished: Path, path: str | Path) -> BinaryIO:
    # Mode 0o666 is cut down by the umask, as for any new file; what tempfile makes only its owner can read.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    try:
        return os.fdopen(os.open(unfinished, flags, 0o666), "wb")
    except OSError as error:
        reason = f"no file can be made in {unfinished.parent} ({error.strerror}); choose another folder"
        raise OSError(error.errno, reason, str(path)) from None


def _located(path: str | Path) -> str | Path:
    """A path on this machine, or as it is what only fsspec knows: ``s3://bucket/name``."""
    return str(path) if "://" in str(path) else Path(path)


def _remote(path: str, mode: str) -> Any:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"{path} needs fsspec: pip install 'lingendice[dask]'") from error
    return fsspec.open(path, mode).open()


def write_text(path: str | Path, text: str) -> None:
    """Put a text in the place of a file, in UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode())


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder more than a day ago."""
    latest = time.time() - KEPT_SECONDS
    for left in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # somebody else removes it, or it is not ours to remove
            if left.stat().st_mtime < latest:
                left.unlink()


def arrow(part: str = "") -> Any:
    """PyArrow, or one of its parts: ``"parquet"``, ``"csv"``, ``"ipc"``, ``"compute"``."""
    try:
        return import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ImportError as error:
        raise ImportError("Parquet and Arrow need PyArrow: pip install 'lingendice[io]'") from error


# -- archives of arrays --------------------------------------------------------------------------------------


FORMAT = 1
_RECORD, _DIGEST = "record", "sha256"
COUNTS_KEY, _PARQUET_DIGEST = b"lingendice", b"lingendice.sha256"
"""Metadata of a Parquet file of counts."""
_COLUMNS = ("count", "reward_count", "reward_mean", "reward_m2")


def write_archive(path: str | Path, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> None:
    """Write arrays and a record of JSON values as ``.npz``."""
    text = json.dumps({"format": FORMAT, **record}, allow_nan=False, sort_keys=True)
    held = {**arrays, _RECORD: np.frombuffer(text.encode(), dtype=np.uint8)}
    held[_DIGEST] = np.frombuffer(digest_of(held), dtype=np.uint8)
    with replacing(path) as stream:
        np.savez(stream, **held)  # type: ignore[arg-type]


def read_archive(path: str | Path, kind: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and record of a file of the given kind, checked."""
    with _opened(path) as stream, _damage(path, "npz"), np.load(stream, allow_pickle=False) as archive:
        held = {name: archive[name] for name in archive.files}
    digest = held.pop(_DIGEST, None)
    if digest is None or _RECORD not in held:
        raise StoredFileError(f"{path}: not a file written by lingendice; read matrices with lg.solve's data")
    _check_digest(path, digest.tobytes(), digest_of(held))
    record = json.loads(held.pop(_RECORD).tobytes())
    _check_record(path, record, kind)
    return held, record


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file, open; a file that is there and may not be read is no damage, and its OSError stands."""
    try:
        found = _located(path)
        stream = _remote(found, "rb") if isinstance(found, str) else found.open("rb")
    except FileNotFoundError:
        raise StoredFileError(f"{path}: no such file") from None
    with stream:
        yield stream


@contextmanager
def _damage(path: str | Path, kind: str) -> Iterator[None]:
    """Report whatever a parser raises as damage.

    A flipped bit may ask for anything, a password or terabytes of memory included.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (StoredFileError, ImportError)):
            raise
        reason = repr(error) if numpy_reason(error) == str(error) else numpy_reason(error)
        raise StoredFileError(
            f"{path}: not a readable {kind} file ({reason:.300}); the file is damaged: write it again"
        ) from None


def numpy_reason(error: Exception) -> str:
    """Why NumPy does not read a file, without its advice to unpickle what it takes for objects.

    It takes every file of unknown content for a pickle, and unpickling runs whatever code lies in there.
    """
    said = str(error)
    if "pickle" not in said:
        return said
    return "it holds Python objects" if said.startswith("Object arrays") else "it is not a NumPy file"


def _check_digest(path: str | Path, stored: Any, computed: Any) -> None:
    if stored != computed:
        raise StoredFileError(f"{path}: its SHA-256 does not match: the file is damaged; write it again")


def _check_record(path: str | Path, record: Mapping[str, Any], kind: str) -> None:
    if record.get("format", 0) > FORMAT:
        raise StoredFileError(
            f"{path}: written by a newer version of lingendice (format {record['format']}); update lingendice"
        )
    if record.get("kind") != kind:
        raise StoredFileError(f"{path}: holds {record.get('kind')!r}, not {kind!r}; name the other file")


def digest_of(arrays: Mapping[str, NDArray[Any] | None]) -> bytes:
    """SHA-256 over named arrays, their types and shapes; None stands for one that is not there."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray([] if arrays[name] is None else arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.data if array.size else b"")
    return digest.digest()


# -- labels -------------------------------------------------------------------------------------------


def plain_labels(labels: Labels | None) -> list[Any] | None:
    """Labels as JSON values: strings and numbers stand for themselves, tuples become lists."""
    return None if labels is None else [_plain(label) for label in labels]


def _plain(label: Hashable) -> Any:
    if isinstance(label, tuple):
        return [_plain(part) for part in label]
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, (str, bool, int, float)):
        return label
    raise ValueError(f"label {label!r} is a {type(label).__name__}, which cannot be saved; use strings")


def read_labels(labels: list[Any] | None) -> Labels | None:
    """Labels from the JSON values of :func:`plain_labels`."""
    return None if labels is None else tuple(_label(label) for label in labels)


def _label(value: Any) -> Hashable:
    return tuple(_label(part) for part in value) if isinstance(value, list) else value


# -- counts -------------------------------------------------------------------------------------------


def save_counts(counts: Counts, path: str | Path) -> None:
    """Write counts by suffix: ``.npz``, or ``.parquet`` as a table of pairs."""
    _by_suffix(path, {".npz": _save_npz, ".parquet": _save_parquet})(counts, path)


def load_counts(path: str | Path) -> dict[str, Any]:
    """The fields of the counts that :func:`save_counts` wrote."""
    loaded: dict[str, Any] = _by_suffix(path, {".npz": _load_npz, ".parquet": _load_parquet})(path)
    return loaded


def _by_suffix(path: str | Path, choices: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    chosen = choices.get(Path(path).suffix.lower())
    if chosen is None:
        raise StoredFileError(f"{path}: counts are saved as .npz or .parquet; choose one of these suffixes")
    return chosen


_PLAIN = ("n_states", "n_actions", "has_sample_size", "lag")
_LABELS = ("state_labels", "action_labels")


def record_of(counts: Counts) -> dict[str, Any]:
    """Sizes and labels of counts as JSON values."""
    plain = {name: getattr(counts, name) for name in _PLAIN}
    return {"kind": "counts", **plain, **{name: plain_labels(getattr(counts, name)) for name in _LABELS}}


def fields_of(
    record: Mapping[str, Any], arrays: Mapping[str, Any], episodes: Episodes | None
) -> dict[str, Any]:
    """Fields of counts from a record and the arrays beside it."""
    plain = {name: record[name] for name in _PLAIN if name in record}  # older files know of no lag
    labels = {name: read_labels(record[name]) for name in _LABELS}
    return {**plain, **labels, "episodes": episodes, **arrays}


def _save_npz(counts: Counts, path: str | Path) -> None:
    write_archive(path, counts_arrays(counts), record_of(counts))


def counts_arrays(counts: Counts) -> dict[str, NDArray[Any]]:
    """Every array of the counts by name; those of kept episodes with a prefix."""
    named = {field.name: getattr(counts, field.name) for field in fields(counts)}
    held = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
    if counts.episodes is not None:
        kept = counts.episodes._asdict()
        held |= {f"episodes_{name}": value for name, value in kept.items() if value is not None}
    return held


def _load_npz(path: str | Path) -> dict[str, Any]:
    arrays, record = read_archive(path, "counts")
    names = [name for name in arrays if name.startswith("episodes_")]
    kept = {name.removeprefix("episodes_"): arrays.pop(name) for name in names}
    episodes = None
    if kept:
        episodes = Episodes(**{name: kept.get(name) for name in Episodes._fields})  # type: ignore[arg-type]
    return fields_of(record, arrays, episodes)


def _save_parquet(counts: Counts, path: str | Path) -> None:
    """One row per pair: state, action, next_state (null: the episode ended), count and reward statistics."""
    pa, parquet = arrow(), arrow("parquet")
    cells = np.repeat(np.arange(counts.n_cells), np.diff(counts.indptr))
    columns: dict[str, Any] = {"state": cells // (counts.n_actions or 1)}
    if counts.n_actions is not None:
        columns["action"] = cells % counts.n_actions
    following = counts.indices.astype(np.int64)
    columns["next_state"] = pa.array(following, mask=following == counts.n_states)
    for name in _COLUMNS:
        if getattr(counts, name) is not None:
            columns[name] = getattr(counts, name)
    record = {"format": FORMAT, **record_of(counts), "n_cells": counts.n_cells, "initial_count": None}
    if counts.initial_count is not None:
        record["initial_count"] = _packed(counts.initial_count)
    text = json.dumps(record, allow_nan=False).encode()
    table = pa.table(columns)
    marks = {COUNTS_KEY: text, _PARQUET_DIGEST: _table_digest(table, text)}
    with replacing(path) as stream:
        parquet.write_table(table.replace_schema_metadata(marks), stream)


def _table_digest(table: Any, record: bytes) -> bytes:
    """SHA-256 of every column and of the record, as bytes of text.

    Widths may change on the way through Parquet: what is checked is the numbers.
    """
    columns = {}
    for name in table.column_names:
        # Only next states are ever null, and no state is -1.
        columns[name] = _wide(table[name].fill_null(-1).to_numpy())
    return digest_of({**columns, _RECORD: np.frombuffer(record, dtype=np.uint8)}).hex().encode()


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _packed(array: NDArray[Any]) -> list[str]:
    wide = _wide(array)
    return [wide.dtype.str, base64.b64encode(wide.tobytes()).decode()]


def _load_parquet(path: str | Path) -> dict[str, Any]:
    parquet = arrow("parquet")
    with _opened(path) as stream, _damage(path, "Parquet"):
        with parquet.ParquetFile(stream) as stored:
            table = stored.read()
        metadata = table.schema.metadata or {}
        if not {COUNTS_KEY, _PARQUET_DIGEST} <= metadata.keys():
            raise StoredFileError(
                f"{path}: not written by Counts.save, or damaged; read tables of transitions with "
                "lg.read_transitions"
            )
        text = metadata[COUNTS_KEY]
        _check_digest(path, metadata[_PARQUET_DIGEST], _table_digest(table, text))
    record = json.loads(text)
    _check_record(path, record, "counts")
    n_states, n_actions = record["n_states"], record["n_actions"]
    cells = table["state"].to_numpy().astype(np.int64) * (n_actions or 1)
    if n_actions is not None:
        cells = cells + table["action"].to_numpy()
    following = table["next_state"].fill_null(n_states).to_numpy()
    arrays = {name: table[name].to_numpy() for name in _COLUMNS if name in table.column_names}
    arrays["indices"] = following.astype(np.int32 if n_states + 1 < 2**31 else np.int64)
    n_cells = record.get("n_cells", n_states * (n_actions or 1))  # fewer in a block of rows
    arrays["indptr"] = np.searchsorted(cells, np.arange(n_cells + 1))
    if record["initial_count"] is not None:
        kind, packed = record["initial_count"]
        arrays["initial_count"] = np.frombuffer(base64.b64decode(packed), dtype=kind)
    return fields_of(record, arrays, None)
