"""Map labels of any kind (strings, tuples, pandas categories) to consecutive ids, and keep them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import first_bad, is_missing, plain_array

Labels = tuple[Hashable, ...]
_STEP = 1 << 18  # labels held as Python objects at a time


def encode(names: Sequence[str], columns: Sequence[Any]) -> tuple[list[NDArray[Any]], Labels | None]:
    """Turn columns that share one set of labels into integer ids; O(N), a dictionary lookup per label.

    Integer columns are ids already and come back as int32 or int64 (uint64 where they exceed both), without
    labels: narrower types would wrap where ids are computed with. Strings get ids in sorted order, categories
    of pandas and dictionaries of Arrow in their own order, anything else in order of appearance.
    """
    columns = [_listed(column) for column in columns]
    coded = [codes for column in columns if (codes := _coded(column)) is not None]
    if len(coded) == len(columns):
        ids, labels = _from_codes(names, coded)
    else:
        arrays = [_one_dimensional(name, column) for name, column in zip(names, columns, strict=True)]
        kinds = {array.dtype.kind for array in arrays if array.size}
        if kinds <= set("iub"):
            return [_wide(array) for array in arrays], None
        if "f" in kinds:
            _refuse_floats(names, arrays)
        ids, labels = _from_hashables(names, arrays)
        coded = []
    are_strings = any(all(isinstance(label, kind) for label in labels) for kind in (str, bytes))
    if not are_strings or any(codes.keeps_order for codes in coded):
        return ids, labels
    in_order: Labels = tuple(sorted(labels))  # type: ignore[type-var]
    place = np.array([*map(index_of(in_order).__getitem__, labels)], dtype=np.int64)
    return [place[column] for column in ids], in_order


def index_of(labels: Labels) -> dict[Hashable, int]:
    """The id of every label."""
    return {label: position for position, label in enumerate(labels)}


def label_or_number(labels: Labels | None, number: int) -> Hashable:
    """What to call a state or an action: spaces may be larger than what the labels of a log name."""
    return number if labels is None or number >= len(labels) else labels[number]


def union(first: Labels, second: Labels) -> tuple[Labels, NDArray[np.int64]]:
    """Labels of both in order of first appearance, and where those of ``second`` went."""
    position = index_of(first)
    for label in second:
        position.setdefault(label, len(position))
    moved = np.fromiter((position[label] for label in second), dtype=np.int64, count=len(second))
    return tuple(position), moved


def _listed(column: Any) -> Any:
    """A polars Series of strings as a list, which is faster than an array of them."""
    text = type(column).__module__.startswith("polars") and str(column.dtype) in ("String", "Utf8")
    return column.to_list() if text else column


class _Codes(NamedTuple):
    """A column as places in a list of distinct labels; a negative place is a missing entry."""

    codes: NDArray[Any]
    labels: Labels
    keeps_order: bool
    """Whether the order of the labels is one that somebody chose."""


def _coded(column: Any) -> _Codes | None:
    """What pandas or Arrow number by themselves, neither of which is imported; None for anything else."""
    values = getattr(column, "array", column)
    if hasattr(values, "categories") and hasattr(values, "codes"):
        return _Codes(np.asarray(values.codes), tuple(values.categories), True)
    if hasattr(column, "dictionary_encode"):
        return _arrow_codes(column)
    if hasattr(column, "factorize") and getattr(column.dtype, "kind", "O") == "O":
        try:
            codes, labels = column.factorize()
        except TypeError:  # entries that cannot be labels are named elsewhere
            return None
        return _Codes(codes, tuple(labels.tolist()), False)
    return None


def _arrow_codes(column: Any) -> _Codes | None:
    """Of an Arrow column of strings or of a dictionary."""
    kind = str(column.type)
    if not kind.startswith(("string", "large_string", "dictionary", "binary", "large_binary")):
        return None
    keeps_order = kind.startswith("dictionary")
    encoded = column if keeps_order else column.dictionary_encode()
    if hasattr(encoded, "unify_dictionaries"):  # chunks may have dictionaries of their own
        encoded = encoded.unify_dictionaries().combine_chunks()
    if hasattr(encoded, "chunks"):
        if len(encoded.chunks) != 1:
            return None
        encoded = encoded.chunks[0]
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return _Codes(codes, tuple(encoded.dictionary.to_pylist()), keeps_order)


def _from_codes(names: Sequence[str], columns: Sequence[_Codes]) -> tuple[list[NDArray[Any]], Labels]:
    ids: list[NDArray[Any]] = []
    labels: Labels = ()
    for name, (codes, own, _) in zip(names, columns, strict=True):
        if codes.size and codes.min() < 0:
            raise ValueError(f"{name}[{first_bad(codes < 0)[0]}] is missing; drop or fill it first")
        labels, moved = union(labels, own)
        ids.append(moved[codes] if codes.size else codes.astype(np.int64))
    return ids, labels


def _wide(ids: NDArray[Any]) -> NDArray[Any]:
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        return ids
    short = ids.dtype.kind in "iu" and np.can_cast(ids.dtype, np.int32)
    return ids.astype(np.int32 if short else np.int64, copy=False)


def _one_dimensional(name: str, column: Any) -> NDArray[Any]:
    if isinstance(column, (list, tuple)):
        kinds = set(map(type, column))
        # NumPy would make rows of tuples, one string of 1 and "1", and wide arrays of strings.
        if tuple in kinds or any(issubclass(kind, (str, bytes)) for kind in kinds):
            array = np.empty(len(column), dtype=object)
            array[:] = column
            return array
    array = plain_array(name, column)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one entry per transition, got shape {array.shape}")
    if array.dtype.kind not in "iubfUSO":
        raise ValueError(f"{name} has dtype {array.dtype}; give integer ids or labels")
    return array


def _refuse_floats(names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> None:
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind != "f" or not array.size:
            continue
        fractional = ~(np.isfinite(array) & (array == np.floor(array)))
        if fractional.any():
            (row,) = first_bad(fractional)
            raise ValueError(
                f"{name}[{row}] is {array[row]!s}, not a state or action id; give integers or labels"
            )
        raise ValueError(f"{name} holds floating-point numbers; cast it: {name}.astype(int)")


def _from_hashables(
    names: Sequence[str], arrays: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], Labels]:
    position: dict[Hashable, int] = {}
    ids = []
    for name, array in zip(names, arrays, strict=True):
        out = np.empty(array.size, dtype=np.int64)
        for begin in range(0, array.size, _STEP):
            part = array[begin : begin + _STEP].tolist()
            try:
                for label in dict.fromkeys(part):
                    if label not in position:
                        if is_missing(label):
                            raise _unusable_label(name, part, begin)
                        position[label] = len(position)
            except TypeError:
                raise _unusable_label(name, part, begin) from None
            out[begin : begin + len(part)] = np.fromiter(map(position.__getitem__, part), np.int64, len(part))
        ids.append(out)
    return ids, tuple(position)


def _unusable_label(name: str, part: list[Any], begin: int) -> ValueError:
    """The error of the first entry that is missing or cannot be a label."""
    for row, label in enumerate(part, start=begin):
        if is_missing(label):
            return ValueError(f"{name}[{row}] is {label!r}, a missing value; drop or fill it first")
        try:
            hash(label)
        except TypeError:
            break
    return ValueError(f"{name}[{row}] is {label!r}, which cannot be a label; use integers, strings or tuples")
