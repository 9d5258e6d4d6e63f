"""Results made safe to show: strict JSON, HTML, numbers for people, names without control characters."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

# Control characters (terminals obey them), line separators, marks that turn the direction of text, and halves
# of surrogate pairs, which no encoding of text can hold.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.8em 0.1em 0"


class ProgressLine:
    """One line on a terminal's standard error, rewritten in place, removed at the end; nothing in a pipe."""

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.width, self.shown_at = wanted, 0, -math.inf

    def __enter__(self) -> ProgressLine:
        return self

    def is_due(self) -> bool:
        """Whether to show something: ten times a second at most."""
        return self.wanted and time.monotonic() - self.shown_at >= 0.1 and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Put ``text`` in place of what the line says."""
        self.shown_at = time.monotonic()
        sys.stderr.write("\r" + text.ljust(self.width))
        sys.stderr.flush()
        self.width = len(text)

    def __exit__(self, *_: object) -> None:
        if self.width:
            self.show("")
            sys.stderr.write("\r")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """A time for people: 350 us, 12.3 ms, 15.5 s, 2,130 s."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 99.95 else f"{seconds:.3g} s"


def amount(number: float) -> str:
    """How many, for people: 5,000,000, and 12.5 where it is no whole number."""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.6g}"


def rounded(number: float, error: float) -> str:
    """A number to the place of the second significant digit of its standard error; six digits without one."""
    if not (math.isfinite(number) and math.isfinite(error) and error > 0.0):
        return f"{number:.6g}"
    places = 1 - math.floor(math.log10(error))
    # Rounding may carry the error into the next decade: 0.0996 has the digits 0.10.
    if round(error, places) >= 10.0 ** (2 - places):
        places -= 1
    number = round(number, places) or 0.0  # not -0.0
    return f"{number:,.{max(places, 0)}f}"


def printable(name: object) -> str:
    """A name from data on one line, with unsafe characters as Python writes them: ``\\x1b``."""
    return _UNSAFE.sub(_escaped, str(name))


def printable_lines(text: str) -> str:
    """The same for a text of several lines: line ends and tabs stay."""
    return _UNSAFE_IN_LINES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def table_of_facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts for a notebook: it takes the colors of the page around it."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escape(name.strip())}</th>'
        f'<td style="{_CELL}">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f'<table><caption style="text-align:left">{escape(title)}</caption><tbody>{body}</tbody></table>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table with a heading row; columns after the first hold numbers and are set to the right."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    labels = [escape(name) for name in headings[1:]]
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(
            f'<td data-label="{label}">{escape(text)}</td>' for label, text in zip(labels, rest, strict=True)
        )
        + "</tr>"
        for first, *rest in rows
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def strict_json(value: Any) -> Any:
    """The value as strict JSON types: arrays as lists, numbers that are not finite as None.

    Mappings, lists and tuples are converted entry by entry, named tuples by name; strings, bools, integers
    and None stay as they are. Python's own encoder writes nan as ``NaN``, which is not JSON, and
    refuses NumPy's scalars.

    Examples
    --------
    >>> strict_json({"value": np.float64("nan"), "tau": np.array([0.5, np.inf])})
    {'value': None, 'tau': [0.5, None]}
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iub" or (value.dtype.kind == "f" and np.isfinite(value).all()):
            return value.tolist()
        return strict_json(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: strict_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(entry) for entry in value]
    return value
