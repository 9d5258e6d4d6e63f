"""The call that made a result, kept with it, and written as a script that makes it again.

Numbers, words, short arrays and mappings of them are kept as they were when they were passed. Functions,
frames and long arrays are not: the script takes them by their names, and a report says what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

MOST_ENTRIES = 1000
"""Of one argument; longer ones are not written out."""
CALL = "call"
"""The name in a result's dictionary."""
_WITHOUT_EFFECT = ("progress",)
Function = TypeVar("Function", bound=Callable[..., Any])


class Supplied(NamedTuple):
    """An argument that is not kept: whoever makes the call again has to supply it."""

    what: str


class Call(NamedTuple):
    """A public function, and the arguments that were passed to it beside the data."""

    function: str
    arguments: dict[str, Any]

    def script(self) -> str:
        """Python that makes the call on ``data``."""
        written = {name: _written(name, value) for name, value in self.arguments.items()}
        lines = "".join(f"\n    {name}={text}," for name, text in written.items())
        text = f"result = lg.{self.function}(\n    data,{lines}\n)\n"
        needed = [name for name in ("array", "inf", "nan") if any(name in each for each in written.values())]
        header = "import lingendice as lg\n"
        return header + (f"from numpy import {', '.join(needed)}\n" if needed else "") + "\n" + text

    def supplied(self) -> list[tuple[str, str]]:
        """Arguments that the script takes by name, and what they were."""
        return [(name, value.what) for name, value in self.arguments.items() if isinstance(value, Supplied)]


def recorded(name: str) -> Callable[[Function], Function]:
    """Keep the arguments of a public function, which ``lg.<name>`` is, with the result that it returns."""

    def decorate(function: Function) -> Function:
        parameters = tuple(signature(function).parameters)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # What is passed may be changed later, even by the call itself where it is consumed.
            given = dict(zip(parameters[1:], args[1:], strict=False)) | kwargs
            kept = {
                each: _kept(value)
                for each, value in given.items()
                if each not in _WITHOUT_EFFECT and each != parameters[0]
            }
            result = function(*args, **kwargs)
            result.__dict__[CALL] = Call(name, kept)
            for place, member in enumerate(getattr(result, "solutions", ())):  # one for each policy
                policy = _one_of(kept.get("policy"), place, result.names[place])
                member.__dict__[CALL] = Call(name, kept | {"policy": policy})
            return result

        return cast(Function, call)

    return decorate


def call_of(result: Any) -> Call | None:
    """The call that made a result; None where no public function recorded it."""
    found: Call | None = result.__dict__.get(CALL)
    return found


def kept_call(result: Any) -> dict[str, Any]:
    """The call of a result under the name that it is kept by, for its pickles."""
    return {CALL: result.__dict__[CALL]} if CALL in result.__dict__ else {}


def _one_of(policies: Any, place: int, name: Any) -> Any:
    """One of several policies that were passed together."""
    if isinstance(policies, Mapping):
        return list(policies.values())[place]
    if isinstance(policies, (list, np.ndarray)) or type(policies) is tuple:
        return policies[place]
    return Supplied(f"the policy {name!r} of those compared")


# -- arguments, kept and written --------------------------------------------------------------------------


def _kept(value: Any) -> Any:
    copied = _copied(value, [MOST_ENTRIES])
    if copied is not _TOO_MUCH:
        return copied
    shape = getattr(value, "shape", None)
    what = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    what = type(value).__name__ if what.startswith("builtins.") else what
    if isinstance(shape, tuple):
        return Supplied(f"a {what} of shape {' x '.join(map(str, shape))}")
    return Supplied(f"a {what} of {len(value):,} entries" if hasattr(value, "__len__") else f"a {what}")


_TOO_MUCH = object()


def _copied(value: Any, room: list[int]) -> Any:
    """A copy of plain data while there is ``room`` for its entries, else ``_TOO_MUCH``."""
    if value is None or type(value) in (bool, int, float, str):
        room[0] -= 1
        return value if room[0] >= 0 else _TOO_MUCH
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return value
    if type(value) is np.ndarray and value.dtype.kind in "biufU":
        room[0] -= value.size
        if room[0] < 0:
            return _TOO_MUCH
        array = value.copy()
        array.flags.writeable = False
        return array
    if type(value) in (list, tuple):
        entries = []
        for entry in value:
            entries.append(_copied(entry, room))
            if entries[-1] is _TOO_MUCH:
                return _TOO_MUCH
        return type(value)(entries)
    if type(value) is dict:
        names, entries = _copied(list(value), room), _copied(list(value.values()), room)
        if names is _TOO_MUCH or entries is _TOO_MUCH:
            return _TOO_MUCH
        return dict(zip(names, entries, strict=True))
    return _TOO_MUCH


def _written(name: str, value: Any) -> str:
    """Python that evaluates to the value."""
    if isinstance(value, Supplied):
        return name
    if isinstance(value, np.generic):
        return _written(name, value.item())
    if isinstance(value, np.ndarray):
        entries = value.tolist()
        usual = value.dtype == np.asarray(entries).dtype and value.size > 0
        shape = "" if value.size else f".reshape({value.shape})"
        return f"array({_written(name, entries)}{'' if usual else f', dtype={value.dtype.str!r}'}){shape}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_written(name, entry) for entry in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Mapping):
        pairs = (f"{_written(name, key)}: {_written(name, entry)}" for key, entry in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("-inf" if value < 0 else "inf")
    return repr(value)
