"""Checks of user input. Every message names the offending entry and the next step."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
LARGEST_EXACT_COUNT = 2**53
"""Counts are exact in float64 up to here."""
LARGEST_REWARD = 1e140
"""Sums of larger squares, as many as 64 bits can count, could overflow."""


class NotAvailableYet(ValueError):
    """An option of the one signature that this release does not serve."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} is not available yet in this release; {instead}")


def require_gamma(gamma: Any) -> float:
    """Return gamma as a float in (0, 1]."""
    try:
        value = _number(gamma)
    except (TypeError, ValueError):
        raise ValueError(f"gamma must be a number in (0, 1], got {gamma!r}") from None
    if not 0.0 < value <= 1.0:
        raise ValueError(
            f"gamma must lie in (0, 1], got {gamma!r}; use 1 for the average-reward (undiscounted) "
            f"distribution"
        )
    return value


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def refuse_unknown(options: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse entries of ``options={...}`` that there are not ``where``."""
    known = tuple(known)
    for name in options:
        if name not in known:
            raise ValueError(f"options has no entry {name!r} {where}; known: {', '.join(map(repr, known))}")


def require_number(name: str, value: Any, *, at_least: float = 0.0) -> float:
    """Return a finite number that is at least ``at_least``."""
    try:
        number = _number(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number) or number < at_least:
        raise ValueError(f"{name} must be finite and at least {at_least:g}, got {value!r}")
    return number


def require_positive(name: str, value: Any) -> float:
    """Return a finite number above 0."""
    number = require_number(name, value)
    if number == 0.0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def _number(value: Any) -> float:
    """A number as a float; digits in a string are none, and neither are True and False."""
    if isinstance(value, (str, bytes, bool, np.bool_)):
        raise TypeError("not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("beyond the range of float64") from None


def require_sum(*weights: Any) -> None:
    """Refuse counts or weights whose sum would wrap, or be infinite, wherever the arrays lie."""
    with np.errstate(over="ignore"):
        total = sum(float(part.sum(dtype=np.float64)) for part in weights)
    whole = all(part.dtype.kind in "biu" for part in weights)
    if total >= 2.0**63 if whole else not np.isfinite(total):
        raise ValueError("weight sums beyond 64 bits; scale the weights down")


def require_whole(name: str, value: Any, *, at_least: int = 0, at_most: int | None = None) -> int:
    """Return a whole number, given as any kind of number."""
    try:
        sound = _number(value).is_integer()
    except (TypeError, ValueError):
        sound = False
    if not sound or int(value) < at_least or (at_most is not None and int(value) > at_most):
        wanted = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise ValueError(f"{name} must be a whole number {wanted}, got {value!r}")
    return int(value)


def require_horizon(horizon: Any) -> int | None:
    """Return a number of steps; None counts all."""
    if horizon is not None and (horizon := require_whole("horizon", horizon)) < 1:
        raise ValueError(f"horizon must be at least 1 step, got {horizon!r}; None counts all")
    return horizon  # type: ignore[no-any-return]


def require_room(n_cells: int) -> None:
    """Refuse more cells than the machine can hold: ids that are hashes or timestamps, not numbers from 0."""
    if not has_room(n_cells):
        raise ValueError(
            f"{n_cells:,} cells (the largest id plus one, times the actions) would need "
            f"{16e-9 * n_cells:,.0f} GB; ids count from 0: pass them as labels (strings), or number them "
            "with numpy.unique(ids, return_inverse=True)"
        )


def has_room(n_cells: int) -> bool:
    """Whether the machine can hold that many cells."""
    return 16 * n_cells <= _memory_bytes()


@cache
def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40  # no machine that hides its memory has more


def require_flag(name: str, value: Any) -> bool:
    """Return True or False, given as just that."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def first_bad(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Index of the first true entry, as plain integers."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _subscript(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"


def require_nonnegative(name: str, values: NDArray[Any], remedy: str) -> None:
    """Refuse NaN, infinite and negative entries, naming the first."""
    if values.size == 0:
        return
    smallest, largest = values.min(), values.max()
    if smallest >= 0 and np.isfinite(largest):
        return
    bad = ~np.isfinite(values) | (values < 0)
    index = first_bad(bad)
    kind = "not a finite number" if not np.isfinite(values[index]) else "negative"
    raise ValueError(f"{name}{_subscript(index)} is {values[index]!s}, which is {kind}; {remedy}")


# -- the one way in for arrays -------------------------------------------------------------------------


def missing_entry(values: Any) -> tuple[int, ...] | None:
    """Index of the first entry that a mask, or a type with room for NA, marks as missing."""
    if isinstance(values, np.ma.MaskedArray):
        mask = np.asarray(np.ma.getmask(values))
        return first_bad(mask) if mask.dtype.kind == "b" and mask.any() else None
    if isinstance(values, (list, tuple)):
        if any(issubclass(kind, np.ma.MaskedArray) for kind in set(map(type, values))):
            for position, row in enumerate(values):
                inner = missing_entry(row)
                if inner is not None:
                    return (position, *inner)
        return None
    if callable(getattr(values, "isna", None)):  # pandas, which is not imported for it
        mask = np.asarray(values.isna())
        return first_bad(mask) if mask.any() else None
    return None


def is_missing(value: Any) -> bool:
    """Whether a single value of an object array is None, nan or NA."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # NA answers neither yes nor no
        return type(value).__name__ == "NAType"


def lies_on_device(value: Any) -> bool:
    """Whether a value is an array, a sparse matrix or counts in the memory of a CUDA device."""
    if value is None or isinstance(value, (str, int, float, list, tuple, dict)):
        return False
    if hasattr(value, "__cuda_array_interface__") or getattr(value, "on_device", False) is True:
        return True
    if type(value).__module__.partition(".")[0] in ("cupy", "cupyx"):
        return True
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) in (2, 13)  # device memory, managed memory
    return False


def plain_array(name: str, values: Any) -> NDArray[Any]:
    """Return a bare array of native byte order; masked and missing entries are refused.

    NumPy's own conversion would drop the mask and keep what lies under it.
    """
    entry = missing_entry(values)
    if entry is not None:
        raise ValueError(f"{name}{_subscript(entry)} is missing (masked, or NA); drop or fill it first")
    behind = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    if isinstance(behind, np.dtype) and behind.kind in "biuf":
        values = values.to_numpy(dtype=behind)  # a nullable type of pandas without anything missing
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} is ragged: its rows have different lengths; make it rectangular") from None
    except TypeError:
        if not lies_on_device(values):
            raise
        raise ValueError(
            f"{name} lies on the device and is needed on the host; copy it there first: "
            "nothing is copied implicitly"
        ) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def described(value: Any) -> str:
    """What kind of thing was given in place of numbers."""
    kind = "function" if isinstance(value, FunctionType) else type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def numeric_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return an array of a real numeric dtype, refusing ragged, masked, object and complex input."""
    array = plain_array(name, values)
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "f":
        if array.dtype.itemsize in (4, 8):
            return array
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    if array.dtype.kind != "O":
        raise ValueError(f"{name} has dtype {array.dtype}; give integers or real floating-point numbers")
    if array.ndim == 0 and not isinstance(array.item(), (int, float)):
        raise ValueError(f"{name} is {described(values)}; give an array of numbers")
    for index, entry in np.ndenumerate(array):
        if not isinstance(entry, (int, float, np.number)):
            raise ValueError(
                f"{name}{_subscript(index)} is {entry!r}, which is not a number; give a numeric array"
            )
        if isinstance(entry, int) and not -(2**63) <= entry < 2**64:
            raise ValueError(
                f"{name}{_subscript(index)} is an integer beyond 64 bits; counts are exact up to 2**53"
            )
    raise ValueError(f"{name} is an object array; convert it with numpy.asarray({name}, dtype=float)")


def whole_array(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers as int64, refusing those beyond it."""
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        index = first_bad(array > np.iinfo(np.int64).max)
        raise ValueError(f"{name}{_subscript(index)} is {array[index]}, beyond the 64-bit signed integers")
    return array.astype(np.int64, copy=False)


def compressed_rows(name: str, matrix: Any) -> csr_array:
    """Return any SciPy sparse matrix as rows of int64 or float64 entries, duplicates still apart or summed.

    Positions are checked first, since SciPy's own conversions trust them with the memory of the process, and
    entries widened before any duplicates are summed: narrow types would wrap, and True + True is True.
    """
    from scipy import sparse

    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {matrix.dtype}; give integers or real floating-point numbers")
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {matrix.shape}")
    if matrix.format in ("lil", "dok", "dia"):  # these hold no entry twice
        matrix = matrix.tocsr()
    rows, columns = matrix.shape
    if matrix.format == "coo":
        for axis, (size, places) in enumerate(zip(matrix.shape, matrix.coords, strict=True)):
            _require_places(name, places, size, f"coords[{axis}]")
    else:
        high, wide = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        sizes = (columns, rows) if matrix.format == "csc" else (rows // high, columns // wide)
        require_compressed(name, matrix.indptr, matrix.indices, *sizes, len(matrix.data))
    values = plain_array(f"{name}.data", matrix.data)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {values.max()}, beyond 2**53, where counts stop being exact")
    if values.dtype.kind in "iu":
        require_sum(values)
    wanted = np.dtype(np.int64 if matrix.dtype.kind in "biu" else np.float64)
    return sparse.csr_array(matrix.astype(wanted, copy=False))


def require_compressed(
    name: str, indptr: NDArray[Any], indices: NDArray[Any], n_rows: int, n_columns: int, n_entries: int
) -> None:
    """Refuse compressed rows that point outside: kernels trust them. O(rows + entries), no Python loop."""
    if indptr.dtype.kind not in "iu" or indptr.ndim != 1 or indptr.size != n_rows + 1:
        raise ValueError(
            f"{name}.indptr must hold n_rows + 1 = {n_rows + 1} integers, got shape {indptr.shape} of "
            f"{indptr.dtype}; rebuild the matrix from its entries"
        )
    if indptr[0] != 0 or not 0 <= indptr[-1] <= n_entries or indices.shape != (n_entries,):
        raise ValueError(
            f"{name}.indptr runs from {indptr[0]} to {indptr[-1]}, but there are {n_entries} entries in "
            f"columns of shape {indices.shape}; rebuild the matrix from its entries"
        )
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        row = int(np.argmax(falls))
        raise ValueError(
            f"{name}.indptr[{row + 1}] is {indptr[row + 1]}, below {indptr[row]} before it; "
            "rebuild the matrix from its entries"
        )
    _require_places(name, indices, n_columns, "indices")


def _require_places(name: str, places: NDArray[Any], size: int, what: str) -> None:
    if places.dtype.kind not in "iu":
        raise ValueError(f"{name}.{what} has dtype {places.dtype}; give integers")
    require_below(f"{name}.{what}", places, size, "rebuild the matrix from its entries")


def require_below(name: str, ids: NDArray[Any], n: int, remedy: str = "fix it", kind: str = "") -> None:
    """Refuse ids outside 0..n-1, naming the first."""
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        (entry,) = first_bad((ids < 0) | (ids >= n))
        raise ValueError(f"{name}[{entry}] is {kind}{ids[entry]}, outside 0..{n - 1}; {remedy}")


# -- distributions, policies, columns ------------------------------------------------------------------


SUM_TOLERANCE = 1e-6
"""How far probabilities may be from summing to 1: as far as single precision rounds them."""


def require_distribution(name: str, values: ArrayLike, n: int) -> Floats:
    """Return a probability distribution over ``n`` entries, as exact in its sum as rounding allows.

    Like a row of a policy it has to sum to 1: weights that do not are often a typing error.
    """
    weights = _require_weights(name, values, n)
    total = weights.sum()
    if abs(total - 1.0) > SUM_TOLERANCE:
        remedy = "divide its entries by their sum first" if 0.0 < total < np.inf else "give probabilities"
        raise ValueError(f"{name} sums to {total:.6g}, not 1; {remedy}")
    return weights / total


def normalized_weights(name: str, values: ArrayLike, n: int) -> Floats:
    """Weights of ``n`` entries divided by their sum, for arguments that are weights by their definition."""
    weights = _require_weights(name, values, n)
    total = weights.sum()
    if not 0.0 < total < np.inf:
        raise ValueError(
            f"{name} sums to {total:g} and cannot be normalized; give at least one positive entry"
        )
    return weights / total


def _require_weights(name: str, values: ArrayLike, n: int) -> Floats:
    weights = numeric_array(name, values).astype(np.float64)
    if weights.shape != (n,):
        raise ValueError(f"{name} must have one entry per state, shape ({n},), got {weights.shape}")
    require_nonnegative(name, weights, "a distribution has entries of at least 0")
    return weights


def require_policy(name: str, values: Any, n_states: int, n_actions: int) -> Floats:
    """Return action probabilities of shape (n_states, n_actions).

    A one-dimensional integer array is a deterministic policy: one action for each state.
    """
    if hasattr(values, "toarray"):
        values = compressed_rows(name, values).toarray()
    table = numeric_array(name, values)
    if table.ndim == 1 and table.dtype.kind in "iu" and table.shape == (n_states,):
        remedy = "a deterministic policy holds one known action per state"
        require_below(name, table, n_actions, remedy, "action ")
        policy = np.zeros((n_states, n_actions))
        policy[np.arange(n_states), table] = 1.0
        return policy
    if table.shape != (n_states, n_actions):
        remedy = "rows are states"
        if table.shape == (n_states,):
            remedy = f"cast one action per state to integers: {name}.astype(int)"
        elif table.shape == (n_actions,):
            remedy = f"for the same row in every state pass np.tile({name}, ({n_states}, 1))"
        elif table.shape == (n_actions, n_states):
            remedy = f"rows are states: pass its transpose, {name}.T"
        elif table.shape == (n_states - 1, n_actions):
            remedy = "rows are states, numbered from 0: subtract 1 from ids that begin at 1, or add a row"
        elif table.ndim == 2 and table.shape[0] > n_states and table.shape[1] == n_actions:
            remedy = f"the log does not show the last states: count it with n_states={table.shape[0]}"
        elif table.ndim == 2 and table.shape[0] == n_states and table.shape[1] > n_actions:
            remedy = f"the log does not show the last actions: count it with n_actions={table.shape[1]}"
        raise ValueError(
            f"{name} must have shape (n_states, n_actions) = ({n_states}, {n_actions}), got {table.shape}; "
            f"{remedy}"
        )
    return normalized_rows(
        name, table, SUM_TOLERANCE, f"it first: {name} / {name}.sum(axis=1, keepdims=True)"
    )


def normalized_rows(name: str, table: NDArray[Any], off: float, what: str) -> Floats:
    """Action probabilities of each row, which sum to 1 up to ``off``, made to sum to 1."""
    policy = table.astype(np.float64)
    require_nonnegative(name, policy, "action probabilities are at least 0: take the softmax of logits")
    totals = policy.sum(axis=1)
    wrong = np.abs(totals - 1.0) > off
    if wrong.any():
        (row,) = first_bad(wrong)
        raise ValueError(f"{name}[{row}] sums to {totals[row]:.6g}, not 1; normalize {what}")
    policy /= totals[:, None]
    return policy


def require_flags(name: str, values: ArrayLike | None, n: int) -> NDArray[np.bool_] | None:
    """Return a boolean array with one flag per transition, or None."""
    if values is None:
        return None
    return read_flags(name, numeric_array(name, values), n)


def read_flags(name: str, flags: Any, n: int) -> Any:
    """The same for an array, wherever it lies."""
    require_length(name, flags, n)
    if flags.dtype.kind != "b":
        other = (flags != 0) & (flags != 1)
        if other.any():
            (row,) = first_bad(other)
            raise ValueError(f"{name}[{row}] is {flags[row]!s}; flags are True/False or 1/0")
        flags = flags.astype(bool)
    return flags


def require_length(name: str, array: NDArray[Any], n: int) -> None:
    """Refuse anything but a one-dimensional array of ``n`` entries."""
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if array.shape[0] != n:
        raise ValueError(f"{name} has {array.shape[0]} entries but state has {n}; give one per transition")


def require_finite(name: str, array: NDArray[Any]) -> None:
    """Refuse NaN and infinity, naming the first."""
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        index = first_bad(~np.isfinite(array))
        raise ValueError(
            f"{name}{_subscript(index)} is {array[index]!s}, not a finite number; drop or fix that entry"
        )


def require_reward(name: str, array: NDArray[Any]) -> None:
    """Refuse NaN, infinity, and numbers whose squares would overflow when they are summed."""
    require_finite(name, array)
    if array.size and not max(float(array.max()), -float(array.min())) <= LARGEST_REWARD:
        index = first_bad(np.abs(array) > LARGEST_REWARD)
        raise ValueError(
            f"{name}{_subscript(index)} is {array[index]!s}, beyond {LARGEST_REWARD:g}, where sums of "
            "squares overflow; divide all rewards by a constant"
        )


def outside_level() -> int:
    """The ``stacklevel`` at which a warning points to the first caller outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lingendice":
        level, frame = level + 1, frame.f_back
    return level
