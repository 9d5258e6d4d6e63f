"""What a report says of a ratio over continuous states."""

from __future__ import annotations

from functools import partial
from html import escape

import numpy as np

from lingendice.data.markup import table
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
    rows.append(("time to solve", f"{solution.seconds:.3g} s"))
    known = f"gamma={solution.gamma!r}, policy=..., method={solution.method!r}"
    again = reproduction(call or f"lingendice.solve(transitions, {known})", rows)
    return [*sections, ("again", "How to get this again", again)]


def _estimate(solution: ContinuousSolution) -> str:
    parts = []
    if solution.value is not None:
        parts.append(f'<p class="big"><strong>{solution.value:.6g}</strong> per step</p>')
        noise = "No interval is given: the noise of the data is not measured for this method."
        if solution.spread is not None:
            noise += f" Members of the ensemble spread by {solution.spread:.2g}, the noise of training alone."
        parts.append(f'<p class="note">{escape(noise)}</p>')
    rows = [("status", f"{solution.status.value}, by {solution.method} ({solution.reason})")]
    if solution.status.advice:
        rows.append(("next step", solution.status.advice))
    rows += [("gamma", f"{solution.gamma:g}"), ("data", repr(solution.transitions)[12:-1])]
    if solution.value is not None and solution.transitions.reward is not None:
        rows.append(("not rescaled", f"{solution.value_plain:.6g}"))
        rows.append(("average of the log", f"{float(np.mean(solution.transitions.reward)):.6g}"))
    rows.append(("residual", f"{solution.residual:.2e}"))
    rows.append(("steps", f"{solution.n_iter:,}"))
    if solution.member_values is not None and len(solution.members) > 1:
        members = [(f"member {k}", f"{value:.6g}") for k, value in enumerate(solution.member_values)]
        values = table(("member", "value per step"), members, "Values of the ensemble")
        return "".join(parts) + fact_list(rows) + scrolling(values, "Members")
    return "".join(parts) + fact_list(rows)
