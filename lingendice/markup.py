"""HTML fragments: everything that comes from data is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.8em 0.1em 0"


def table_of_facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts for a notebook: it takes the colours of the page around it."""
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escape(name.strip())}</th>'
        f'<td style="{_CELL}">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f'<table><caption style="text-align:left">{escape(title)}</caption><tbody>{body}</tbody></table>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table with a heading row; columns after the first hold numbers and are set to the right."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'
        for first, *rest in rows
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
