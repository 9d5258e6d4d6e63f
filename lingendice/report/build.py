"""One HTML page that tells all of a result: estimate, trust, audit, plots, and how to get it again.

The page needs nothing but itself: styles and plots are inside, there is no script, and a content
security policy forbids the browser to fetch anything. It follows the reader's light or dark setting,
and everything that a plot shows stands in a table too.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from lingendice.data.atomic import write_text
from lingendice.data.checks import require_number
from lingendice.data.markup import amount, table
from lingendice.model.compose import Choices
from lingendice.report.continuous import continuous_sections
from lingendice.report.page import (
    Plot,
    Section,
    fact_list,
    fingerprint,
    inline_plots,
    reproduction,
    scrolling,
    sentence,
    verdicts,
    whole_page,
)
from lingendice.results.audit import Audit, audit
from lingendice.results.comparison import Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import diagnose
from lingendice.results.plots import TOP_CELLS, cell_name, contributions
from lingendice.results.ridge_path import ridge_path
from lingendice.results.saddle_solution import LinearSolution
from lingendice.results.solution import Solution


def report(
    result: Solution | Comparison | ContinuousSolution,
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
        False leaves the plots out, and matplotlib is not needed then.

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
    if not isinstance(result, (Solution, Comparison, ContinuousSolution)):
        raise ValueError(
            f"a report is about a result, not about a {type(result).__name__}; pass what solve returned"
        )
    if not 0.0 < require_number("level", level) < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    if isinstance(result, ContinuousSolution):
        sections = continuous_sections(result, call, source, plots)
    else:
        sections = _sections(result, call, source, level, plots)
    page = whole_page(title, sections)
    if path is not None:
        write_text(path, page)
    return page


def _sections(
    result: Solution | Comparison, call: str | None, source: str | None, level: float, plots: bool
) -> list[Section]:
    best = result if isinstance(result, Solution) else result[result.ranking[0]]
    examined = audit(best)
    sections: list[Section] = []
    if isinstance(result, Comparison):
        sections.append(("policies", "Policies", _policies(result, level)))
        warning = (
            '<p class="note">The policy was picked for its value, so the interval here, which is for one '
            "policy named beforehand, flatters it; the table above does not.</p>"
        )
        if np.isnan(result.values).all():
            sections.append(("estimate", f"Policy: {result.ranking[0]}", _estimate(best, level)))
        else:
            sections.append(("estimate", f"Best policy: {result.best}", warning + _estimate(best, level)))
    else:
        sections.append(("estimate", "Estimate", _estimate(best, level)))
    checks = diagnose(best)
    nothing = "<p>Nothing can be checked: there are several stationary distributions.</p>"
    sections.append(("trust", "Can it be trusted?", verdicts(checks) if checks else nothing))
    sections.append(("audit", "What the data can tell", _audit(examined)))
    if plots:
        sections.append(("plots", "Plots", inline_plots(_plots(result, best, examined, level))))
    counts = best.operator.counts
    rows = [] if source is None else [("data", source)]
    marks = (counts.indptr, counts.indices, counts.count, counts.reward_mean)
    rows.append(("fingerprint of the counts", fingerprint(marks)))
    rows.append(("time to solve", f"{best.seconds:.3g} s"))
    again = reproduction(call or describe_call(best), rows)
    sections.append(("again", "How to get this again", again))
    return sections


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
    heading = ("policy", "value per step", f"{level:.0%}, simultaneous", "leak", "may be the best")
    return scrolling(table(heading, rows, "Best first; the intervals are simultaneous."), "Policies")


def _estimate(solution: Solution, level: float) -> str:
    if solution.state_distribution is None:
        sizes = [
            (f"distribution {k}", f"{int((distribution > 0).sum()):,}")
            for k, distribution in enumerate(solution.distributions[:TOP_CELLS])
        ]
        many = f"<p>{escape(sentence(solution.status.advice))}</p>"
        return many + scrolling(table(("distribution", "entries with mass"), sizes), "Distributions")
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
        there = "whatever happens where there is no data"
        assumed = there if solution.reward_range else f"{there}, if rewards stay within those seen"
        rows.append(("hard bounds", f"{low:.6g} to {high:.6g}, {assumed}"))
    if solution.ridge > 0.0:
        rows.append(("ridge", f"{solution.ridge:.2g}"))
    rows.append(("residual", f"{solution.residual:.1e}"))
    if solution.error is not None and not isinstance(solution, LinearSolution):
        rows.append((f"error of the distribution ({solution.error_kind})", f"{solution.error:.1e}"))
    if solution.gap is not None:
        rows.append(("primal-dual gap", f"{solution.gap:.1e}"))
    return "".join(parts) + fact_list(rows) + _heaviest(solution, level)


def _interval_of_value(solution: Solution, level: float) -> tuple[str, str]:
    try:
        found = solution.interval(level)
    except ValueError as error:
        return "No interval can be given.", sentence(str(error))
    said = f"{level:.0%} interval: {found.low:.6g} to {found.high:.6g}"
    said += f" (standard error {found.standard_error:.2g})."
    return (
        said,
        f"{sentence(found.note)} It covers the noise of the data, not the bias of what was never logged.",
    )


def _heaviest(solution: Solution, level: float) -> str:
    """The cells that matter most, as a table: what the plots show, for those who cannot see them."""
    counts, distribution, reward = (
        solution.operator.counts,
        solution.cell_distribution,
        solution.operator.reward,
    )
    with_value = solution.value is not None
    contribution, top = contributions(solution)
    headings = ["cell", "mu", "p", "tau = mu / p", "seen"] + (
        ["reward", "contribution"] if with_value else []
    )
    intervals = None if with_value else _distribution_interval(solution, top, level)
    if intervals is not None:
        headings.insert(2, f"{level:.0%} interval")
    rows = []
    for place, cell in enumerate(top):
        p = float(counts.data_distribution[cell])
        row = [cell_name(counts, int(cell)), f"{distribution[cell]:.4g}", f"{p:.4g}"]
        row += [f"{distribution[cell] / p:.4g}" if p > 0 else "no data", f"{amount(counts.cell_count[cell])}"]
        if with_value:
            row += [f"{np.asarray(reward)[cell]:.4g}", f"{contribution[cell]:.4g}"]
        if intervals is not None:
            row.insert(2, f"{intervals.low[place]:.4g} to {intervals.high[place]:.4g}")
        rows.append(row)
    caption = "Cells that earn or cost most" if with_value else "Heaviest cells"
    return scrolling(table(headings, rows, caption), caption)


def _distribution_interval(solution: Solution, cells: Any, level: float) -> Any:
    if isinstance(solution, LinearSolution) or not solution._over_cells:
        return None
    try:
        return solution.interval(level, of="stationary", entries=cells)
    except ValueError:  # a matrix without a sample size, or several classes: the table does without
        return None


def _audit(examined: Audit) -> str:
    facts = [row for row in examined._table() if row[0] != "note"]
    remedies = "".join(f"<li>{escape(sentence(note))}</li>" for note in examined.remedies())
    return fact_list(facts) + (f'<ul class="notes">{remedies}</ul>' if remedies else "")


def _plots(result: Solution | Comparison, best: Solution, examined: Audit, level: float) -> list[Plot]:
    drawn: list[Plot] = []
    if isinstance(result, Comparison):
        drawn.append(("Values of all policies with simultaneous intervals.", lambda: result.plot(level)))
    if best.state_distribution is None:
        drawn.append(("Size of each stationary distribution.", lambda: best.plot("distributions")))
    else:
        drawn.append(
            ("Ratio tau against the share p of the data, one point per cell.", lambda: best.plot("ratio"))
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
    return drawn


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
            if name != "gamma" and text != _shown(default[name])
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
