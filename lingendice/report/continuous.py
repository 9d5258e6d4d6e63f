"""What a report says of a ratio over continuous states."""

from __future__ import annotations

import math
from functools import partial
from html import escape

import numpy as np

from lingendice.data.markup import duration, table
from lingendice.report.page import (
    Plot,
    Section,
    fact_list,
    fingerprint,
    inline_plots,
    reproduction,
    scrolling,
    verdicts,
)
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import diagnose

_CAPTIONS = {
    "ratio": "How the ratio tau is spread over the transitions.",
    "weight": "Share of the distribution that the heaviest transitions carry.",
    "value": "The value while training, one line per member.",
    "residual": "Stationarity left on held-out rows while training, one line per member.",
}


def continuous_sections(
    solution: ContinuousSolution, call: str | None, source: str | None, plots: bool
) -> list[Section]:
    """Estimate, checks, plots, and how to get the result again."""
    sections = [
        ("estimate", "Estimate", _estimate(solution)),
        ("trust", "Can it be trusted?", verdicts(diagnose(solution))),
    ]
    if plots:
        kinds = ["ratio", "weight"]
        if any(len(member) > 1 for member in solution.history):
            kinds += ["residual"] if solution.value is None else ["value", "residual"]
        drawn: list[Plot] = [(_CAPTIONS[kind], partial(solution.plot, kind)) for kind in kinds]
        sections.append(("plots", "Plots", inline_plots(drawn)))
    rows = [] if source is None else [("data", source)]
    log = solution.transitions
    marks = (log.state, log.action, log.reward, log.next_state)
    rows.append(("fingerprint of the transitions", fingerprint(marks)))
    rows.append(("time to solve", duration(solution.seconds)))
    known = f"gamma={solution.gamma!r}, policy=..., method={solution.method!r}"
    again = reproduction(call or f"lingendice.solve(transitions, {known})", rows)
    return [*sections, ("again", "How to get this again", again)]


def _estimate(solution: ContinuousSolution) -> str:
    parts = []
    if solution.value is not None:
        unit = " per step" if solution.headline[0] in "-0123456789" else ""
        parts.append(f'<p class="big"><strong>{escape(solution.headline)}</strong>{unit}</p>')
        if solution.evidence is not None and solution.evidence.scores.size > 1 and unit:
            parts.append(f'<p class="note">{escape(str(solution.interval()))}</p>')
        else:
            noise = "No interval is given: the noise of the data is not measured for this method."
            parts.append(f'<p class="note">{escape(noise)}</p>')
    rows = [("status", f"{solution.status.value}, by {solution.method} ({solution.reason})")]
    if solution.status.advice:
        rows.append(("next step", solution.status.advice))
    rows += [("gamma", f"{solution.gamma:g}"), ("data", repr(solution.transitions)[12:-1])]
    if solution.value is not None and solution.transitions.reward is not None:
        rows.append(("average of the log", f"{float(np.mean(solution.transitions.reward)):.6g}"))
    if not math.isnan(solution.residual):
        rows.append(("residual", f"{solution.residual:.2e}"))
    rows.append(("steps", f"{solution.n_iter:,}"))
    estimates = [
        (one.name, f"{one.value:.6g}", "" if one.standard_error is None else f"{one.standard_error:.2g}",
         f"{one.seconds:.1f} s")
        for one in solution.estimates
    ]  # fmt: skip
    found = table(("method", "value per step", "standard error", "time"), estimates, "Every estimate made")
    return "".join(parts) + fact_list(rows) + (scrolling(found, "Estimates") if estimates else "")
