"""The scaffold of a page that needs nothing but itself: styles and plots inside, no script, no network."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lingendice.data.display import printable_lines
from lingendice.data.saving import digest_of
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
    found = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    versions = f"{', '.join(found)}; {machine}"
    return f"<pre><code>{escape(call)}</code></pre>" + fact_list([*rows, ("versions", versions)])


def fingerprint(data: Any, *names: str) -> str:
    """A digest of the data, by which a reader knows that theirs are the same."""
    return f"sha256 {digest_of({name: getattr(data, name) for name in names}).hex()[:32]}"


# -- the style sheet: one column on a phone, light or dark as the reader has it -----------------------------

STYLE = """
:root {
  --ink: #24292f; --paper: #ffffff; --panel: #f6f8fa; --rule: #d0d7de; --gray: #59636e; --link: #0550ae;
  --blue: #0072b2; --orange: #e69f00; --vermilion: #d55e00; --bad: #a33e00; --good: #0a6640;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --paper: #0d1117; --panel: #161b22; --rule: #3d444d; --gray: #9198a1; --link: #79b8ff;
    --blue: #56b4e9; --orange: #e69f00; --vermilion: #ff8c42; --bad: #ffa270; --good: #5fd3a4;
  }
}
/* Points drawn as pixels cannot change color; they can shine. */
@media (prefers-color-scheme: dark) { figure image { filter: brightness(2); } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--rule); }
p { margin: 0.4rem 0; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--orange); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; }
.skip:focus { left: 1rem; top: 0.5rem; background: var(--paper); padding: 0.4rem; }
.when, .note { color: var(--gray); font-size: 0.9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; list-style: none; padding: 0; margin: 0.6rem 0; }
.says { font-size: 1.25rem; line-height: 1.4; border-left: 4px solid var(--blue); padding-left: 0.9rem; }
.big { font-size: 1.2rem; }
.big strong { font-size: 2.6rem; line-height: 1.1; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) minmax(0, 1fr); gap: 0.2rem 1.2rem; }
dt { color: var(--gray); }
dd { margin: 0; }
/* A shade at an edge tells that there is more beyond it. */
.scroll {
  overflow-x: auto; margin: 1rem 0; background-repeat: no-repeat;
  background-image: linear-gradient(to right, var(--paper) 40%, transparent),
    linear-gradient(to left, var(--paper) 40%, transparent),
    linear-gradient(to right, var(--rule), transparent), linear-gradient(to left, var(--rule), transparent);
  background-size: 2.5rem 100%, 2.5rem 100%, 1rem 100%, 1rem 100%;
  background-position: 0 0, 100% 0, 0 0, 100% 0; background-attachment: local, local, scroll, scroll;
}
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
table { overflow-wrap: normal; }
caption { text-align: left; color: var(--gray); padding-bottom: 0.3rem; }
th, td { padding: 0.25rem 1rem 0.25rem 0; text-align: right; white-space: nowrap; }
tr { border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; font-weight: 600; max-width: 18rem; }
th:first-child { overflow: hidden; text-overflow: ellipsis; }
thead th { color: var(--gray); font-weight: 400; }
.checks {
  list-style: none; padding: 0; display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr));
}
.checks li { background: var(--panel); padding: 0.5rem 0.9rem; border-radius: 4px; }
.checks li.good { border-left: 4px solid var(--good); }
.checks li.bad { border-left: 4px solid var(--bad); }
.verdict { float: right; font-weight: 600; color: var(--good); }
.bad .verdict { color: var(--bad); }
.figures { display: grid; gap: 1.5rem; }
.figures { grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); }
figure { margin: 0; }
figure svg { width: 100%; height: auto; max-width: 36rem; }
figcaption { color: var(--gray); font-size: 0.9rem; }
pre { background: var(--panel); padding: 0.8rem; border-radius: 4px; white-space: pre-wrap; }
/* On a phone every row is a block of its own: nothing has to be scrolled for. */
@media (max-width: 40rem) {
  table, caption, tbody, tr, th, td { display: block; }
  thead { position: absolute; left: -100vw; }
  tr { padding: 0.4rem 0; }
  th:first-child { max-width: none; }
  td { display: flex; justify-content: space-between; gap: 1rem; padding: 0.1rem 0; white-space: normal; }
  td::before { content: attr(data-label); color: var(--gray); text-align: left; }
  td:empty { display: none; }
}
@media (max-width: 32rem) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: 0.4rem; } }
@media print { nav, .skip { display: none; } }
"""
