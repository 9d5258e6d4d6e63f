"""Checks of user input. Every message names the offending entry and the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LARGEST_EXACT_COUNT = 2**53
"""Counts are exact in float64 up to here."""


class NotAvailableYet(ValueError):
    """An option of the one signature that this release does not serve."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} is not available yet in this release; {instead}")


def require_gamma(gamma: Any) -> float:
    """Return gamma as a float in (0, 1]."""
    try:
        value = float(gamma)
    except (TypeError, ValueError):
        raise ValueError(f"gamma must be a number in (0, 1], got {gamma!r}") from None
    if not 0.0 < value <= 1.0:
        raise ValueError(
            f"gamma must lie in (0, 1], got {gamma!r}; use 1 for the average-reward (undiscounted) law"
        )
    return value


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def require_number(name: str, value: Any, *, at_least: float = 0.0) -> float:
    """Return a finite number that is at least ``at_least``."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    if not np.isfinite(number) or number < at_least:
        raise ValueError(f"{name} must be finite and at least {at_least:g}, got {value!r}")
    return number


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


def numeric_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return an array of a real numeric dtype, refusing ragged, object and complex input."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} is ragged: its rows have different lengths; make it rectangular") from None
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind == "O":
        for index, entry in np.ndenumerate(array):
            if not isinstance(entry, (int, float, np.number)):
                raise ValueError(
                    f"{name}{_subscript(index)} is {entry!r}, which is not a number; give a numeric array"
                )
        if all(isinstance(entry, int) for entry in array.flat):
            raise ValueError(f"{name} holds an integer beyond 64 bits; counts are exact up to 2**53")
        raise ValueError(f"{name} is an object array; convert it with numpy.asarray({name}, dtype=float)")
    raise ValueError(f"{name} has dtype {array.dtype}; give integers or real floating-point numbers")


def require_law(name: str, values: ArrayLike, n: int) -> Floats:
    """Return a probability law over ``n`` entries; any positive total is normalised."""
    law = numeric_array(name, values).astype(np.float64)
    if law.shape != (n,):
        raise ValueError(f"{name} must have one entry a state, shape ({n},), got shape {law.shape}")
    require_nonnegative(name, law, "a law has entries of at least 0")
    total = law.sum()
    if not 0.0 < total < np.inf:
        raise ValueError(
            f"{name} sums to {total:g} and cannot be normalised; give at least one positive entry"
        )
    law /= total
    return law


def require_policy(name: str, values: Any, n_states: int, n_actions: int) -> Floats:
    """Return action probabilities of shape (n_states, n_actions).

    A one-dimensional integer array is a deterministic policy: one action for each state.
    """
    if hasattr(values, "toarray"):
        values = values.toarray()
    table = numeric_array(name, values)
    if table.ndim == 1 and table.dtype.kind in "iu" and table.shape == (n_states,):
        outside = (table < 0) | (table >= n_actions)
        if outside.any():
            (state,) = first_bad(outside)
            raise ValueError(
                f"{name}[{state}] is action {table[state]}, outside 0..{n_actions - 1}; "
                "a deterministic policy holds one known action a state"
            )
        policy = np.zeros((n_states, n_actions))
        policy[np.arange(n_states), table] = 1.0
        return policy
    if table.shape != (n_states, n_actions):
        raise ValueError(
            f"{name} must have shape (n_states, n_actions) = ({n_states}, {n_actions}), got {table.shape}; "
            "rows are states"
        )
    policy = table.astype(np.float64)
    require_nonnegative(name, policy, "action probabilities are at least 0")
    totals = policy.sum(axis=1)
    wrong = np.abs(totals - 1.0) > 1e-6
    if wrong.any():
        (state,) = first_bad(wrong)
        raise ValueError(
            f"{name}[{state}] sums to {totals[state]:.6g}, not 1; "
            f"normalise it first: {name} / {name}.sum(axis=1, keepdims=True)"
        )
    policy /= totals[:, None]
    return policy


def require_flags(name: str, values: ArrayLike | None, n: int) -> NDArray[np.bool_] | None:
    """Return a boolean array with one flag a transition, or None."""
    if values is None:
        return None
    flags = numeric_array(name, values)
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
        raise ValueError(f"{name} has {array.shape[0]} entries but state has {n}; give one a transition")


def require_finite(name: str, array: NDArray[Any]) -> None:
    """Refuse NaN and infinity, naming the first."""
    if array.size and not np.isfinite(array.min() + array.max()):
        bad = ~np.isfinite(array)
        if bad.any():
            index = first_bad(bad)
            raise ValueError(
                f"{name}{_subscript(index)} is {array[index]!s}, not a finite number; drop or mend that entry"
            )
