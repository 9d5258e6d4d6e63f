"""What is recorded of an answer, and when two records differ."""

from __future__ import annotations

import enum
import json
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

RELATIVE, ABSOLUTE = 1e-10, 1e-12
"""Two numbers agree where ``|a - b| <= RELATIVE max(|a|, |b|) + ABSOLUTE``; nan agrees with nan."""
CERTIFICATE = 1e-8
"""Residuals, stated errors and gaps of solved problems are rounding: they agree within this much."""
PARALLEL = 1e-7
"""Cases of two threads agree within this much, relative and absolute: parallel solvers are exact to tol."""
CERTIFICATES = ("residual", "error", "gap")
NUMBERS = (
    "value", "expected_return", "expected_length", "behavior_value", "value_bounds", "leak", "terminal_mass",
    "effective_sample_size", "ridge", "stationary", "tau", "distributions", "state_values", "q_values",
    "values_by_step", "values", "covariance", "spread", "mean_ratio", "shrinkage",
)  # fmt: skip
WORDS = ("method", "error_kind", "converged", "trusted", "ranking")
INTERVALS = ("value", "return", "length", "stationary")
LONGEST = 4
"""Arrays with more entries are recorded as sums."""

PLAIN = (int, float, str, np.ndarray, list, tuple, dict)


def ask(call: Callable[[], Any]) -> dict[str, Any]:
    """Everything a call answers: numbers, intervals, checks, status, warnings; or the kind of its error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = call()
            record = {"answer": plain(found)} if isinstance(found, PLAIN) else _read(found)
        except Exception as error:  # an error is an answer, too
            record = {"raises": type(error).__name__}
    names = sorted({warning.category.__name__ for warning in caught})
    return record | ({"warns": names} if names else {})


def _read(found: Any) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if hasattr(found, "status"):
        record["status"] = found.status.name
    for name in (*NUMBERS, *CERTIFICATES, *WORDS):
        answer = _attempt(lambda name=name: getattr(found, name))
        if answer is not None and not (name == "distributions" and len(answer) == 1):
            record[name] = answer
    if hasattr(found, "interval"):
        record |= _intervals(found)
    if hasattr(found, "diagnose"):
        record["checks"] = _attempt(
            lambda: {check.name: [bool(check.ok), float(check.number)] for check in found.diagnose()}
        )
    if hasattr(found, "estimates"):
        record["estimates"] = _attempt(lambda: {one.name: one.value for one in found.estimates})
    return record


def _intervals(found: Any) -> dict[str, Any]:
    if not hasattr(found, "expected_return"):  # a Comparison has one kind
        return {"interval": _attempt(lambda: _ends(found.interval(0.9)))}
    answers = {
        f"interval of {of}": _attempt(lambda of=of: _ends(found.interval(0.9, of=of))) for of in INTERVALS
    }
    return {of: answer for of, answer in answers.items() if answer is not None}


def _ends(interval: Any) -> dict[str, Any]:
    names = ("low", "high", "standard_error", "bias_allowance")
    return {name: getattr(interval, name) for name in names}


def _attempt(read: Callable[[], Any]) -> Any:
    """A plain answer; None for a field that the answer does not have."""
    try:
        return plain(read())
    except AttributeError:
        return None
    except Exception as error:
        return f"raises {type(error).__name__}"


def plain(thing: Any) -> Any:
    """Strict JSON with 12 digits; long arrays as sums, one of which weighs every entry differently."""
    if isinstance(thing, dict):
        return {str(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, enum.Enum):
        return thing.name
    if isinstance(thing, np.ndarray) and thing.size > LONGEST and thing.dtype.kind in "fiub":
        return _sums(thing.astype(float).ravel())
    if isinstance(thing, np.ndarray):
        return [plain(entry) for entry in thing.tolist()]
    if isinstance(thing, (list, tuple)):
        return [plain(entry) for entry in thing]
    if isinstance(thing, (bool, np.bool_)):
        return bool(thing)
    if isinstance(thing, (int, np.integer)):
        return int(thing)
    if isinstance(thing, (float, np.floating)):
        return float(f"{thing:.12g}") if math.isfinite(thing) else str(float(thing))
    return thing if thing is None else str(thing)


def _sums(entries: np.ndarray) -> dict[str, Any]:
    known = np.isfinite(entries)
    place = np.arange(1, entries.size + 1)
    held = np.where(known, entries, 0.0)
    sums = {
        "size": entries.size,
        "sum": plain(float(held.sum())),
        "squares": plain(float((held**2).sum())),
        "by place": plain(float((held * np.cos(place)).sum())),
    }
    return sums if known.all() else sums | {"not finite": plain(float(place[~known].sum()))}


# -- comparing ---------------------------------------------------------------------------------------------


def moved(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(case, field, before, now) wherever two recordings differ."""
    for case in sorted(before.keys() | now.keys()):
        if case not in before or case not in now:
            yield case, "(case)", *("present" if case in held else "absent" for held in (before, now))
            continue
        for field in sorted(before[case].keys() | now[case].keys()):
            old, new = before[case].get(field), now[case].get(field)
            for path, one, other in _differences(field, old, new, _tolerances(case, field)):
                yield case, path, one, other


def _tolerances(case: str, field: str) -> tuple[float, float]:
    if field in CERTIFICATES:
        return CERTIFICATE, CERTIFICATE
    return (PARALLEL, PARALLEL) if "threads=2" in case else (RELATIVE, ABSOLUTE)


def _differences(
    path: str, old: Any, new: Any, tolerances: tuple[float, float]
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(f"{path} / {key}", old.get(key), new.get(key), tolerances)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{place}]", one, other, tolerances)
    elif not agree(old, new, *tolerances):
        yield path, old, new


def agree(old: Any, new: Any, relative: float = RELATIVE, absolute: float = ABSOLUTE) -> bool:
    """Whether two plain values are the same up to rounding; words, lists and truth values must be equal."""
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (old, new))
    if not numbers:
        return type(old) is type(new) and bool(old == new)
    return abs(old - new) <= relative * max(abs(old), abs(new)) + absolute


def dump(cases: dict[str, Any], about: dict[str, Any]) -> str:
    """JSON with one line per case, in the order of names, so that a diff shows which cases moved."""
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(cases[name], sort_keys=True, allow_nan=False)}"
        for name in sorted(cases)
    )
    return f'{{\n{head},\n "cases": {{\n{lines}\n }}\n}}\n'
