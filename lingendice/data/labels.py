"""Map labels of any kind (strings, tuples, pandas categories) to consecutive ids, and keep them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import first_bad, is_missing, plain_array

Labels = tuple[Hashable, ...]


def encode(names: Sequence[str], columns: Sequence[Any]) -> tuple[list[NDArray[Any]], Labels | None]:
    """Turn columns that share one set of labels into integer ids.

    Integer columns are ids already and come back as int32 or int64 (uint64 where they exceed both), without
    labels: narrower types would wrap where ids are computed with. Strings get ids in sorted order, pandas
    categories in their own order, anything else in order of appearance.
    """
    categories = [_categories(column) for column in columns]
    if all(kind is not None for kind in categories):
        return _from_categories(names, columns, categories)
    arrays = [_one_dimensional(name, column) for name, column in zip(names, columns, strict=True)]
    kinds = {array.dtype.kind for array in arrays if array.size}
    if kinds <= set("iub"):
        return [_wide(array) for array in arrays], None
    if "f" in kinds:
        _refuse_floats(names, arrays)
    if kinds in ({"U"}, {"S"}):
        labels, ids = np.unique(np.concatenate(arrays), return_inverse=True)
        cuts = np.cumsum([array.size for array in arrays])[:-1]
        return list(np.split(ids, cuts)), tuple(labels.tolist())
    return _from_hashables(names, arrays)


def index_of(labels: Labels) -> dict[Hashable, int]:
    """The id of every label."""
    return {label: position for position, label in enumerate(labels)}


def union(first: Labels, second: Labels) -> tuple[Labels, NDArray[np.int64]]:
    """Labels of both in order of first appearance, and where those of ``second`` went."""
    position = index_of(first)
    for label in second:
        position.setdefault(label, len(position))
    moved = np.fromiter((position[label] for label in second), dtype=np.int64, count=len(second))
    return tuple(position), moved


def _categories(column: Any) -> Any:
    """The pandas Categorical behind a column, or None; pandas itself is never imported."""
    values = getattr(column, "array", column)
    if hasattr(values, "categories") and hasattr(values, "codes"):
        return values
    return None


def _from_categories(
    names: Sequence[str], columns: Sequence[Any], categories: Sequence[Any]
) -> tuple[list[NDArray[Any]], Labels]:
    ids: list[NDArray[Any]] = []
    labels: Labels = ()
    for name, values in zip(names, categories, strict=True):
        codes = np.asarray(values.codes)
        if codes.size and codes.min() < 0:
            raise ValueError(f"{name}[{first_bad(codes < 0)[0]}] is missing; drop or fill it first")
        labels, moved = union(labels, tuple(values.categories))
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
        # NumPy would make rows of tuples, and one string of 1 and "1".
        if tuple in kinds or (len(kinds) > 1 and any(issubclass(kind, (str, bytes)) for kind in kinds)):
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
        for row, label in enumerate(array.tolist()):
            if is_missing(label):
                raise ValueError(f"{name}[{row}] is {label!r}, a missing value; drop or fill it first")
            try:
                out[row] = position.setdefault(label, len(position))
            except TypeError:
                raise ValueError(
                    f"{name}[{row}] is {label!r}, which cannot be a label; use integers, strings or tuples"
                ) from None
        ids.append(out)
    return ids, tuple(position)
