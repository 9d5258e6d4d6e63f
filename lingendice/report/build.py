"""One HTML page that tells all of a result: estimate, trust, audit, plots, and how to get it again.

The page needs nothing but itself: styles and plots are inside, there is no script, and a content
security policy forbids the browser to fetch anything. It follows the reader's light or dark setting,
and everything that a plot shows stands in a table too.
"""

from __future__ import annotations

import math
from functools import partial
from html import escape
from typing import Any

import numpy as np

from lingendice.data.display import rounded, table
from lingendice.report.page import (
    Page,
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
from lingendice.results.calls import call_of
from lingendice.results.comparison import BEHAVIOR, Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import Check, diagnose
from lingendice.results.ridge_path import ridge_path
from lingendice.results.solution import Solution
from lingendice.results.tables import TOP_CELLS, contributions, heaviest
from lingendice.results.targets import Interval, require_level
from lingendice.results.variants import LinearSolution

NOT_RECORDED = "# This result was not returned by a public function; pass call= to lingendice.report."


def page_of(
    result: Solution | Comparison | ContinuousSolution,
    title: str,
    call: str | None,
    source: str | None,
    level: float,
    plots: bool,
) -> Page:
    """The whole page; see :func:`lingendice.report`."""
    if not isinstance(result, (Solution, Comparison, ContinuousSolution)):
        raise ValueError(
            f"a report is about a result, not about a {type(result).__name__}; pass what solve returned"
        )
    require_level(level)
    best = result[result.ranking[0]] if isinstance(result, Comparison) else result
    sections: list[Section] = []
    if isinstance(result, Comparison):
        if not np.isnan(result.estimates).all():
            sections.append(("differences", "Differences", _differences(result, level)))
        sections.append(("policies", "Policies", _policies(result, level)))
    if isinstance(best, ContinuousSolution):
        sections += _continuous_sections(result, best, call, source, level, plots)
    else:
        sections += _sections(result, best, call, source, level, plots)
    said = f'<p class="says">{escape(verdict(result, level))}</p>'
    return whole_page(title, [("verdict", "Verdict", said), *sections])


def _sections(
    result: Any, best: Solution, call: str | None, source: str | None, level: float, plots: bool
) -> list[Section]:
    examined, checks = audit(best), diagnose(best)  # first of all: facts leave out what checks tell
    heading, warning = "Estimate", ""
    if isinstance(result, Comparison):
        heading = f"Policy: {result.ranking[0]}"
        if not np.isnan(result.estimates).all():
            shown = "Best policy" if all(check.ok for check in checks) else "Policy of the best estimate"
            heading = f"{shown}: {result.best}"
            warning = (
                '<p class="note">This interval ignores that the policy was picked as the best; the table '
                "above accounts for it.</p>"
            )
    sections = [("estimate", heading, warning + _estimate(best, level))]
    nothing = "<p>Nothing can be checked: there are several stationary distributions.</p>"
    sections.append(("trust", "Can it be trusted?", verdicts(checks) if checks else nothing))
    sections.append(("audit", "What the data identify", _audit(examined)))
    if plots:
        sections.append(("plots", "Plots", inline_plots(_plots(result, best, examined, level))))
    mark = fingerprint(best.operator.counts, "indptr", "indices", "count", "reward_mean")
    rows = [("fingerprint of the counts", mark)]
    rows.append(("computed for this page", _computed(result, best, plots)))
    return [*sections, _again(result, call, source, rows)]


def _again(result: Any, call: str | None, source: str | None, rows: list[tuple[str, str]]) -> Section:
    """The call that made the result as it was told, or as it was recorded."""
    held = rows if source is None else [("data", source), *rows]
    made = call_of(result)
    if call is None and made is not None:
        call = made.script()
        held = [*((name, f"{what}, to be supplied") for name, what in made.supplied()), *held]
    return "again", "How to reproduce this", reproduction(call or NOT_RECORDED, held)


def _computed(result: Solution | Comparison, best: Solution, plots: bool) -> str:
    """What the page took beyond the solve."""
    parts = ["intervals in closed form", "all checks", "an audit"]
    if best.has_target and best.value is not None:
        parts.insert(1, "the behavior's value")
    if best.known("value_bounds") is not None:
        parts.append("bounds on the value (one solve)")
    if best.known("gap") is not None:
        parts.append("the primal-dual gap (one adjoint solve)")
    if plots and _shows_ridge_path(best):
        parts.append("the ridge path (about 20 solves)")
    if isinstance(result, Comparison):
        parts.append(f"checks and scores of {len(result):,} policies")
    return ", ".join(parts)


def _shows_ridge_path(best: Solution) -> bool:
    return best.ridge > 0.0 and best.value is not None and not isinstance(best, LinearSolution)


# -- the first sentence: what was found beside the logged behavior, and whether to trust it ------------


def verdict(result: Solution | Comparison | ContinuousSolution, level: float) -> str:
    """One sentence. Computes the interval of the gain over the behavior, and runs the checks."""
    if isinstance(result, Comparison):
        return _of_policies(result, level)
    if not result.converged:
        return f"There is no answer to rely on: {result.status.value}; {result.status.advice}."
    if isinstance(result, Solution) and result.state_distribution is None:
        count = len(result.state_distributions)
        return (
            f"There are {count:,} stationary distributions, one for each recurrent class: no single answer."
        )
    if result.value is None:
        what = "distribution" if isinstance(result, Solution) else "ratio"
        return _sentence(f"the stationary {what} is known; there are no rewards", result.diagnose())
    if isinstance(result, Solution) and not result.has_target:
        return _sentence(f"the logged process earns {_headline(result, level)}", result.diagnose())
    try:
        if result.behavior_value is None:
            raise ValueError("there is nothing to compare with")
        alone = Comparison(("the target",), (result,))
        gain = alone.difference("the target", BEHAVIOR, level)
        said = _gain("the target", gain, alone.unit, result.diagnose())
    except ValueError:  # or a matrix carries no sample size
        said = f"the target earns {_headline(result, level)}"
    return _sentence(said, result.diagnose())


def _of_policies(comparison: Comparison, level: float) -> str:
    if all(map(math.isnan, comparison.estimates)):
        return f"No policy can be judged: the data say nothing about their {comparison.of}s."
    if comparison.unfinished:
        return f"There is no ranking to rely on: solves ended short of their goals: {comparison.unfinished}."
    best = comparison.best
    row = next(row for row in comparison.differences(level) if row["policy"] == best)
    said = _gain(str(best), row["over_behavior"], comparison.unit, comparison[best].diagnose())
    others_left = [str(name) for name in comparison.contenders(level) if name != best]
    if others_left:
        others = f"{others_left[0]} is" if len(others_left) == 1 else f"{len(others_left)} other policies are"
        said += f"; {others} not ruled out as the best"
    return _sentence(said, comparison[best].diagnose())


def _gain(name: str, gain: Interval, unit: str, checks: tuple[Check, ...]) -> str:
    """More, less, or not shown to differ: an interval means nothing where what it rests on fails a check."""
    number, low, high = gain.rounded()
    number = number.lstrip("-")
    if not all(check.ok for check in checks):
        sign = "+" if gain.estimate >= 0.0 else "-"
        return (
            f"{name} is not shown to differ from the logged behavior, since the estimate fails checks that "
            f"it rests on: {sign}{number} {unit} [{low}, {high}]"
        )
    if gain.low > 0.0 or gain.high < 0.0:
        more = "more" if gain.low > 0.0 else "less"
        low, high = (low, high) if gain.low > 0.0 else (high.lstrip("-"), low.lstrip("-"))
        return f"{name} earns {more} than the logged behavior by {number} {unit} [{low}, {high}]"
    sign = "+" if gain.estimate >= 0.0 else "-"
    return f"{name} is not shown to differ from the logged behavior: {sign}{number} {unit} [{low}, {high}]"


def _headline(solution: Solution | ContinuousSolution, level: float) -> str:
    """The return or the value with its interval and unit."""
    of = solution.headline_of
    try:
        found = "{} [{}, {}]".format(*solution.interval(level, of=of).rounded())
    except ValueError:
        found = f"{solution.estimate_of(of):.6g}"
    return f"{found} {solution.unit_of(of)}"


def _sentence(said: str, checks: tuple[Check, ...]) -> str:
    failed = [check.name for check in checks if not check.ok]
    if not checks:
        told = "nothing could be checked"
    elif not failed:
        told = "all checks pass"
    else:
        verb = "fail" if len(failed) > 1 else "fails"
        told = f"{len(failed)} of {len(checks)} checks {verb}: {', '.join(failed)}"
    # The name of a policy is left as it is.
    return f"{said.replace('the ', 'The ', 1) if said.startswith('the ') else said}; {told}."


# -- sections -----------------------------------------------------------------------------------------


def _differences(comparison: Comparison, level: float) -> str:
    """What each policy gains over the behavior, and loses to the best."""
    rows = []
    for row in comparison.differences(level):
        over, to_best = row["over_behavior"], row["to_best"]
        cells = [over.rounded()[0], _ends(over)]
        cells += ["", ""] if to_best is None else [to_best.rounded()[0], _ends(to_best)]
        rows.append((str(row["policy"]), *cells))
    said = f"{level:.0%}, simultaneous"
    headings = ("policy", "over the behavior", said, "to the best", said)
    gain = "Gain" if comparison.of != "length" else "Steps more"
    caption = f"{gain} {comparison.unit} over the logged behavior, and distance to the best estimate; paired."
    return scrolling(table(headings, rows, caption), "Differences")


def _ends(found: Interval) -> str:
    return "{1} to {2}".format(*found.rounded())


def _policies(comparison: Comparison, level: float) -> str:
    comparison.table(level)
    headings, rows = comparison.columns()
    behavior = comparison.behavior_estimate
    if behavior is not None:
        error = comparison.solutions[0].behavior_scores(comparison.of).standard_error
        rows.append(["the logged behavior", rounded(behavior, error), *[""] * (len(headings) - 2)])
    return scrolling(table(headings, rows, "Best first; the intervals are simultaneous."), "Policies")


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
        first = solution.headline_of
        shown, said, note = _interval_of(solution, first, level)
        unit = escape(solution.unit_of(first))
        parts.append(f'<p class="big"><strong>{escape(shown)}</strong> {unit}</p>')
        parts.append(f"<p>{escape(said)}</p>" + (f'<p class="note">{escape(note)}</p>' if note else ""))
        if first != "value":
            per_step, said, _ = _interval_of(solution, "value", level)
            parts.append(f"<p>{escape(per_step)} per step. {escape(said)}</p>")
        # These are shown once they were asked for.
        _ = solution.value_bounds, solution.gap
        _ = solution.has_target and (solution.behavior_value, solution.behavior_return)
    return "".join(parts) + _facts(solution) + _heaviest(solution, level)


def _facts(solution: Solution | ContinuousSolution) -> str:
    rows = [("status", solution.told_status)]
    if solution.status.advice:
        rows.append(("next step", solution.status.advice))
    return fact_list([*rows, *solution.facts(asked=False)])


def _interval_of(solution: Solution, of: str, level: float) -> tuple[str, str, str]:
    """A return or value with the digits that its error leaves, its interval, and what that covers."""
    try:
        found = solution.interval(level, of=of)
    except ValueError as error:
        return f"{solution.estimate_of(of):.6g}", "No interval can be given.", sentence(str(error))
    said = f"{level:.0%} interval: {_ends(found)} (standard error {found.standard_error:.2g})."
    covers = " It covers the noise of the data, not the bias of what was never logged."
    return (
        found.rounded()[0],
        said,
        sentence(found.full_note) + ("" if found.bias_allowance > 0.0 else covers),
    )


def _heaviest(solution: Solution, level: float) -> str:
    """The cells that matter most, as a table: what the plots show, for those who cannot see them."""
    more = {}
    found = _distribution_interval(solution, contributions(solution)[1], level)
    if found is not None:
        ends = zip(found.low, found.high, strict=True)
        more[f"{level:.0%} interval"] = [f"{low:.4g} to {high:.4g}" for low, high in ends]
    caption, headings, rows = heaviest(solution, **more)
    return scrolling(table(headings, rows, caption), caption)


def _distribution_interval(solution: Solution, cells: Any, level: float) -> Any:
    if solution.value is not None or isinstance(solution, LinearSolution):
        return None
    if solution.stationary.size < solution.operator.n_cells:
        return None
    try:
        return solution.interval(level, of="stationary", entries=cells)
    except ValueError:  # a matrix without a sample size, or several classes: the table does without
        return None


def _audit(examined: Audit) -> str:
    facts = [row for row in examined._table() if row[0] != "note"]
    remedies = "".join(f"<li>{escape(sentence(note))}</li>" for note in examined.remedies())
    return fact_list(facts) + (f'<ul class="notes">{remedies}</ul>' if remedies else "")


_CAPTIONS = {
    "distributions": "Size of each stationary distribution.",
    "value": "{What} with its interval, beside the behavior's.",
    "ratio": "Ratio tau against the share p of the data, one point per {unit}.",
    "cells": "The cells that contribute most.",
}


def _plots(result: Solution | Comparison, best: Solution, examined: Audit, level: float) -> list[Plot]:
    kinds = ["distributions"]
    if best.state_distribution is not None:
        kinds = ["ratio", "cells"] if best.value is None else ["value", "ratio", "cells"]
    over_states = best.operator.ratio == "state" or best.operator.n_cells == best.operator.n_states
    unit = "state" if over_states else "cell"
    words = {"unit": unit, "What": best.headline_of.capitalize()}
    drawn: list[Plot] = [(_CAPTIONS[kind].format(**words), partial(best.plot, kind)) for kind in kinds]
    if isinstance(result, Comparison):
        said = f"{result.of.capitalize()}s of all policies with simultaneous intervals."
        drawn.insert(0, (said, partial(result.plot, level)))
    if _shows_ridge_path(best):
        drawn.append(
            ("Value along the ridge: if it is flat, the ridge matters little.", ridge_path(best).plot)
        )
    drawn.append(("States by what the chain does with them.", partial(examined.plot, "states")))
    drawn.append(("Cells from which the next step leaves the data.", partial(examined.plot, "leak")))
    return drawn


# -- continuous states ---------------------------------------------------------------------------------

_CONTINUOUS_CAPTIONS = {
    "ratio": "How the ratio tau is spread over the transitions.",
    "weight": "Share of the distribution that the heaviest transitions carry.",
    "value": "The value while training, one line per member.",
    "residual": "Stationarity left on held-out rows while training, one line per member.",
}


def _continuous_sections(
    result: Any, solution: ContinuousSolution, call: str | None, source: str | None, level: float, plots: bool
) -> list[Section]:
    """Estimate, checks, plots, and how to get the result again."""
    checks = diagnose(solution)
    sections = [
        ("estimate", "Estimate", _continuous_estimate(solution, level)),
        ("trust", "Can it be trusted?", verdicts(checks)),
    ]
    if plots:
        kinds = ["ratio", "weight"]
        if any(len(member) > 1 for member in solution.history):
            kinds += ["residual"] if solution.value is None else ["value", "residual"]
        drawn: list[Plot] = [(_CONTINUOUS_CAPTIONS[kind], partial(solution.plot, kind)) for kind in kinds]
        sections.append(("plots", "Plots", inline_plots(drawn)))
    mark = fingerprint(solution.transitions, "state", "action", "reward", "next_state")
    rows = [("fingerprint of the transitions", mark)]
    return [*sections, _again(result, call, source, rows)]


def _continuous_estimate(solution: ContinuousSolution, level: float) -> str:
    parts = []
    if solution.value is not None:
        of, shown = solution.headline_of, solution.headline
        known = shown[0] in "-0123456789"
        shown, unit = (
            (f"{solution.estimate_of(of):.6g}", f" {solution.unit_of(of)}") if known else (shown, "")
        )
        parts.append(f'<p class="big"><strong>{escape(shown)}</strong>{unit}</p>')
        if solution.evidence is not None and solution.evidence.scores.size > 1 and unit:
            parts.append(f'<p class="note">{escape(str(solution.interval(level, of=of)))}</p>')
        else:
            noise = "No interval is given: the noise of the data is not measured for this method."
            parts.append(f'<p class="note">{escape(noise)}</p>')
    return "".join(parts) + _facts(solution)
