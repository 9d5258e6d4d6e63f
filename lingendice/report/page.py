"""The scaffold of a page that needs nothing but itself: styles and plots inside, no script, no network."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from lingendice.data.markup import printable_lines
from lingendice.report.style import STYLE
from lingendice.results.diagnostics import Check
from lingendice.results.plots import COLORS, svg

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PACKAGES = ("lingendice", "numpy", "scipy", "numba", "matplotlib")
Section = tuple[str, str, str]
"""The anchor, the heading and the content."""
Plot = tuple[str, Callable[[], Any]]
"""A caption, and what draws the figure."""


class Page(str):
    """The text of a page; a notebook shows it in a frame of its own."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self)}" sandbox style="width:100%;height:40em;border:1px solid #888" '
            'title="lingendice report"></iframe>'
        )


def whole_page(title: str, sections: list[Section]) -> Page:
    """The page, with its table of contents."""
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        f'<section id="{key}" aria-labelledby="{key}-h">'
        f'<h2 id="{key}-h">{escape(name)}</h2>\n{content}\n</section>'
        for key, name, content in sections
    )
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    text = printable_lines(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#content">Skip to the content</a>\n'
        f'<header><h1>{escape(title)}</h1><p class="when">made {when}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f'<main id="content">\n{body}\n</main>\n</body>\n</html>\n'
    )
    return Page(text)


def scrolling(content: str, label: str) -> str:
    """A box that scrolls by itself, also by keyboard, so that the page never does sideways."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def sentence(text: str) -> str:
    """A remark as a sentence: first letter large, a full stop at the end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def fact_list(rows: list[tuple[str, str]]) -> str:
    """Names and what is said of them."""
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows) + "</dl>"
    )


def inline_plots(drawn: list[Plot]) -> str:
    """Every plot inline, each with its caption for those who see it and those who do not."""
    figures = []
    for k, (caption, draw) in enumerate(drawn):
        plot = themed(svg(draw(), f"f{k}-"))
        named = plot.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
        figures.append(f"<figure>{named}<figcaption>{escape(caption)}</figcaption></figure>")
    return f'<div class="figures">{"".join(figures)}</div>'


def themed(plot: str) -> str:
    """Let the page choose the colors: every color of ours becomes a variable of its style."""
    for name, color in COLORS.items():
        plot = plot.replace(color, f"var(--{name})")
    return plot


def verdicts(checks: tuple[Check, ...]) -> str:
    """Every check with its verdict in words, and the remedy where one is needed."""
    bad = sum(not check.ok for check in checks)
    verdict = "All checks pass." if not bad else f"{bad} of {len(checks)} checks need a look."
    items = "".join(
        f'<li class="{"good" if check.ok else "bad"}"><p><strong>{escape(check.name)}</strong> '
        f'<span class="verdict">{"ok" if check.ok else "look here"}</span></p>'
        f"<p>{escape(sentence(check.sentence))}</p>"
        + (
            f'<p class="remedy"><strong>Remedy:</strong> {escape(sentence(check.remedy))}</p>'
            if check.remedy
            else ""
        )
        + "</li>"
        for check in checks
    )
    return f'<p>{verdict}</p><ul class="checks">{items}</ul>'


def reproduction(call: str, rows: list[tuple[str, str]]) -> str:
    """The call, what is known of the data, and the versions."""
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    versions = [(name, found) for name in _PACKAGES if (found := _version(name)) is not None]
    told = ", ".join(f"{name} {number}" for name, number in versions)
    return f"<pre><code>{escape(call)}</code></pre>" + fact_list([*rows, ("versions", f"{told}; {machine}")])


def fingerprint(arrays: Iterable[Any]) -> str:
    """A digest of the data, by which a reader knows that theirs are the same."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    return f"sha256 {digest.hexdigest()[:32]}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
