"""One HTML page that tells all of a result: estimate, trust, audit, pictures, and how to get it again.

The page needs nothing but itself: styles and pictures are inside, there is no script, and a content
security policy forbids the browser to fetch anything. It follows the reader's light or dark setting,
and everything that a picture shows stands in a table too.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from datetime import datetime, timezone
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from lingendice.audit import Audit, audit
from lingendice.checks import require_number
from lingendice.compose import Choices
from lingendice.counts import Counts
from lingendice.diagnostics import diagnose
from lingendice.linear_solution import LinearSolution
from lingendice.many import Comparison
from lingendice.markup import table
from lingendice.plots import COLOURS, TOP_CELLS, cell_name, contributions, svg
from lingendice.report_style import STYLE
from lingendice.ridge_path import ridge_path
from lingendice.solution import Solution

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PACKAGES = ("lingendice", "numpy", "scipy", "numba", "matplotlib")


def report(
    result: Solution | Comparison,
    path: str | Path | None = None,
    *,
    title: str = "lingendice report",
    call: str | None = None,
    source: str | None = None,
    level: float = 0.95,
    plots: bool = True,
) -> str:
    """Write a self-contained HTML page about a solution, or about many policies at once.

    Parameters
    ----------
    result
        What :func:`lingendice.solve` returned.
    path
        The file to write; None only returns the text.
    title
        Heading of the page.
    call
        The exact call or command that made the result; by default it is put together from the result.
    source
        Where the data come from, in words.
    level
        Confidence level of the intervals.
    plots
        False leaves the pictures out, and matplotlib is not needed then.

    Returns
    -------
    str
        The page.

    Examples
    --------
    >>> import lingendice as lg
    >>> page = lg.report(lg.solve([[90, 10], [30, 70]]), plots=False)
    >>> page.startswith("<!doctype html>")
    True
    """
    if not isinstance(result, (Solution, Comparison)):
        raise ValueError(
            f"a report is about a Solution or a Comparison, not about a {type(result).__name__}; "
            "pass what solve returned for counts, a matrix or a graph"
        )
    if not 0.0 < require_number("level", level) < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    best = result if isinstance(result, Solution) else result[result.best]
    examined = audit(best)
    sections: list[tuple[str, str, str]] = []
    if isinstance(result, Comparison):
        sections.append(("policies", "Policies", _policies(result, level)))
        warning = (
            '<p class="note">The policy was picked for its value, so the interval here, which is for one '
            "policy named beforehand, flatters it; the table above does not.</p>"
        )
        sections.append(("estimate", f"Best policy: {result.best}", warning + _estimate(best, level)))
    else:
        sections.append(("estimate", "Estimate", _estimate(best, level)))
    sections.append(("trust", "Can it be trusted?", _trust(best)))
    sections.append(("audit", "What the data can tell", _audit(examined)))
    if plots:
        sections.append(("pictures", "Pictures", _pictures(result, best, examined, level)))
    sections.append(("again", "How to get this again", _again(best, call, source)))
    page = _page(title, sections)
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


# -- the page -----------------------------------------------------------------------------------------


def _page(title: str, sections: list[tuple[str, str, str]]) -> str:
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "\n".join(
        f'<section id="{key}" aria-labelledby="{key}-h">'
        f'<h2 id="{key}-h">{escape(name)}</h2>\n{content}\n</section>'
        for key, name, content in sections
    )
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
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


def _scrolling(content: str, label: str) -> str:
    """A box that scrolls by itself, also by keyboard, so that the page never does sideways."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def _sentence(text: str) -> str:
    """A remark as a sentence: first letter large, a full stop at the end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _facts(rows: list[tuple[str, str]]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows) + "</dl>"
    )


# -- sections -----------------------------------------------------------------------------------------


def _policies(comparison: Comparison, level: float) -> str:
    rows = [
        (
            str(row["policy"]),
            f"{row['value']:.5g}",
            f"{row['low']:.5g} to {row['high']:.5g}",
            f"{row['leak']:.2%}",
            "yes" if row["may_be_best"] else "no",
        )
        for row in comparison.table(level)
    ]
    heading = ("policy", "value per step", f"{level:.0%}, all at once", "leak", "may be the best")
    return _scrolling(table(heading, rows, "Best first; the intervals hold all at once."), "Policies")


def _estimate(solution: Solution, level: float) -> str:
    if solution.state_law is None:
        sizes = [(f"law {k}", f"{int((law > 0).sum()):,}") for k, law in enumerate(solution.laws[:TOP_CELLS])]
        many = f"<p>{escape(_sentence(solution.status.advice))}</p>"
        return many + _scrolling(table(("law", "entries with mass"), sizes), "Laws")
    parts = []
    if solution.value is not None:
        said, note = _interval_of_value(solution, level)
        parts.append(f'<p class="big"><strong>{solution.value:.6g}</strong> per step</p>')
        parts.append(f"<p>{escape(said)}</p>" + (f'<p class="note">{escape(note)}</p>' if note else ""))
    rows = [("status", f"{solution.status.value}, by {solution.method} ({solution.reason})")]
    if solution.status.advice:
        rows.append(("next step", solution.status.advice))
    rows += [("gamma", f"{solution.gamma:g}"), ("data", repr(solution.operator.counts)[7:-1])]
    if solution.operator.logged_average is not None:
        rows.append(("average of the log", f"{solution.operator.logged_average:.6g}"))
    if solution.value_bounds is not None:
        low, high = solution.value_bounds
        rows.append(("hard bounds", f"{low:.6g} to {high:.6g}, whatever happens where there is no data"))
    if solution.ridge > 0.0:
        rows.append(("ridge", f"{solution.ridge:.2g}"))
    rows.append(("residual", f"{solution.residual:.1e}"))
    if solution.error is not None and not isinstance(solution, LinearSolution):
        rows.append((f"error of the law ({solution.error_kind})", f"{solution.error:.1e}"))
    if solution.gap is not None:
        rows.append(("primal-dual gap", f"{solution.gap:.1e}"))
    return "".join(parts) + _facts(rows) + _heaviest(solution, level)


def _interval_of_value(solution: Solution, level: float) -> tuple[str, str]:
    try:
        found = solution.interval(level)
    except ValueError as error:
        return "No interval can be given.", _sentence(str(error))
    said = f"{level:.0%} interval: {found.low:.6g} to {found.high:.6g}"
    said += f" (standard error {found.standard_error:.2g})."
    return (
        said,
        f"{_sentence(found.note)} It covers the noise of the data, not the bias of what was never logged.",
    )


def _heaviest(solution: Solution, level: float) -> str:
    """The cells that matter most, as a table: what the pictures show, for those who cannot see them."""
    counts, law, reward = solution.operator.counts, solution.cell_law, solution.operator.reward
    with_value = solution.value is not None
    contribution, top = contributions(solution)
    headings = ["cell", "mu", "p", "tau = mu / p", "seen"] + (
        ["reward", "contribution"] if with_value else []
    )
    intervals = None if with_value else _law_interval(solution, top, level)
    if intervals is not None:
        headings.insert(2, f"{level:.0%} interval")
    rows = []
    for place, cell in enumerate(top):
        p = float(counts.data_law[cell])
        row = [cell_name(counts, int(cell)), f"{law[cell]:.4g}", f"{p:.4g}"]
        row += [f"{law[cell] / p:.4g}" if p > 0 else "no data", f"{counts.cell_count[cell]:,.6g}"]
        if with_value:
            row += [f"{np.asarray(reward)[cell]:.4g}", f"{contribution[cell]:.4g}"]
        if intervals is not None:
            row.insert(2, f"{intervals.low[place]:.4g} to {intervals.high[place]:.4g}")
        rows.append(row)
    caption = "Cells that earn or cost most" if with_value else "Heaviest cells"
    return _scrolling(table(headings, rows, caption), caption)


def _law_interval(solution: Solution, cells: Any, level: float) -> Any:
    if isinstance(solution, LinearSolution) or not solution._over_cells:
        return None
    try:
        return solution.interval(level, of="stationary", entries=cells)
    except ValueError:  # a matrix without a sample size, or several classes: the table does without
        return None


def _trust(solution: Solution) -> str:
    checks = diagnose(solution)
    if not checks:
        return "<p>Nothing can be checked: there are several stationary laws.</p>"
    bad = sum(not check.ok for check in checks)
    verdict = "All checks pass." if not bad else f"{bad} of {len(checks)} checks need a look."
    items = "".join(
        f'<li class="{"good" if check.ok else "bad"}"><p><strong>{escape(check.name)}</strong> '
        f'<span class="verdict">{"ok" if check.ok else "look here"}</span></p>'
        f"<p>{escape(_sentence(check.sentence))}</p>"
        + (
            f'<p class="remedy"><strong>Remedy:</strong> {escape(_sentence(check.remedy))}</p>'
            if check.remedy
            else ""
        )
        + "</li>"
        for check in checks
    )
    return f'<p>{verdict}</p><ul class="checks">{items}</ul>'


def _audit(examined: Audit) -> str:
    facts = [row for row in examined._table() if row[0] != "note"]
    remedies = "".join(f"<li>{escape(_sentence(note))}</li>" for note in examined.remedies())
    return _facts(facts) + (f'<ul class="notes">{remedies}</ul>' if remedies else "")


def _pictures(result: Solution | Comparison, best: Solution, examined: Audit, level: float) -> str:
    drawn: list[tuple[str, Callable[[], Any]]] = []
    if isinstance(result, Comparison):
        drawn.append(("Values of all policies with intervals that hold at once.", lambda: result.plot(level)))
    if best.state_law is None:
        drawn.append(("Size of each stationary law.", lambda: best.plot("laws")))
    else:
        drawn.append(
            ("Ratio tau against the share p of the data, a point a cell.", lambda: best.plot("ratio"))
        )
        drawn.append(("The cells that contribute most.", lambda: best.plot("cells")))
    if len(best.history) > 1:
        drawn.append((f"How {best.method} came to the answer.", lambda: best.plot("history")))
    if best.ridge > 0.0 and best.value is not None and not isinstance(best, LinearSolution):
        drawn.append(
            ("Value along the ridge: where it is flat, the ridge matters little.", ridge_path(best).plot)
        )
    drawn.append(("States by what the chain does with them.", lambda: examined.plot("states")))
    drawn.append(("Cells from which the next step leaves the data.", lambda: examined.plot("leak")))
    figures = []
    for k, (caption, draw) in enumerate(drawn):
        picture = _themed(svg(draw(), f"f{k}-"))
        named = picture.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
        figures.append(f"<figure>{named}<figcaption>{escape(caption)}</figcaption></figure>")
    return f'<div class="figures">{"".join(figures)}</div>'


def _themed(picture: str) -> str:
    """Let the page choose the colours: every colour of ours becomes a variable of its style."""
    for name, colour in COLOURS.items():
        picture = picture.replace(colour, f"var(--{name})")
    return picture


def _again(solution: Solution, call: str | None, source: str | None) -> str:
    rows = [] if source is None else [("data", source)]
    rows.append(("fingerprint of the counts", _fingerprint(solution.operator.counts)))
    rows.append(("time to solve", f"{solution.seconds:.3g} s"))
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    versions = [(name, found) for name in _PACKAGES if (found := _version(name)) is not None]
    told = ", ".join(f"{name} {number}" for name, number in versions)
    return f"<pre><code>{escape(call or describe_call(solution))}</code></pre>" + _facts(
        [*rows, ("versions", f"{told}; {machine}")]
    )


def describe_call(solution: Solution) -> str:
    """The call of ``solve`` that gives a solution, as far as the solution knows it; arrays by their shape."""
    choices = solution.operator.choices
    parts = ["data", f"gamma={solution.gamma!r}"]
    if choices is not None:
        default = Choices(gamma=solution.gamma)._asdict()
        shown = {name: _shown(value) for name, value in zip(Choices._fields, choices, strict=True)}
        parts += [
            f"{name}={text}"
            for name, text in shown.items()
            if name not in ("gamma", "row_freedom") and text != _shown(default[name])
        ]
    if solution.ridge > 0.0:
        parts.append(f"ridge={solution.ridge!r}")
    if isinstance(solution, LinearSolution):
        parts.append(f"divergence={solution.divergence!r}, features=...")
    parts.append(f"tol={solution.tol!r}")
    return f"lingendice.solve({', '.join(parts)})"


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, float, bool)):
        return repr(value)
    shape = np.shape(value)
    return f"<array {' x '.join(map(str, shape))}>" if shape else repr(value)


def _fingerprint(counts: Counts) -> str:
    digest = hashlib.sha256()
    for array in (counts.indptr, counts.indices, counts.count, counts.reward_mean):
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    return f"sha256 {digest.hexdigest()[:32]}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
