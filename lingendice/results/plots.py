"""Plots of results. The only home of matplotlib in the package.

Every function draws on the ``ax`` it is given, or on a new figure of its own; pyplot, its current
figure and rcParams are never touched. The colors are those of Okabe and Ito, which people with any
kind of color vision can tell apart; what a color says, a marker or a word says too.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_choice
from lingendice.data.display import printable
from lingendice.results.tables import TOP_CELLS, cell_name, contributions

if TYPE_CHECKING:
    from lingendice.results.attribution import Attribution
    from lingendice.results.audit import Audit
    from lingendice.results.comparison import Comparison
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.lags import Lags
    from lingendice.results.ridge_path import RidgePath
    from lingendice.results.solution import Solution

INK, RULE, GRAY = "#24292f", "#d0d7de", "#7d8590"
BLUE, ORANGE, VERMILION = "#0072b2", "#e69f00", "#d55e00"
COLORS = {"ink": INK, "rule": RULE, "gray": GRAY, "blue": BLUE, "orange": ORANGE, "vermilion": VERMILION}
"""All the colors there are, by the names that a page may give other colors to."""

PANEL = (4.6, 3.3)
"""Inches of one panel."""
RATIO_TITLE = "Ratio: above 1, visited more than logged"
LABEL_LENGTH = 22
MANY_POINTS = 1500
"""From here on points are drawn as pixels, so that a vector graphic stays small."""


def new_figure(width: float, height: float) -> Any:
    """A figure that belongs to nobody else; notebooks show it without pyplot."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'lingendice[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def svg(figure: Any, prefix: str) -> str:
    """The figure as SVG for a page: transparent, the same text every time, ids under ``prefix``."""
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box stands in for it
        figure.savefig(
            stream, format="svg", transparent=True, dpi=200, metadata={"Date": None, "Creator": None}
        )
    text = re.sub(r"^.*?(?=<svg)", "", stream.getvalue(), count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Matplotlib numbers alike in every figure, and salts the rest at random.
    names = {name: f"{prefix}{k}" for k, name in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    pattern = r'(\bid="|href="#|url\(#)([^")]+)'
    return re.sub(pattern, lambda found: found[1] + names.get(found[2], found[2]), text)


def dress(ax: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Our one style, put on an axes without touching any global setting."""
    ax.set_facecolor("none")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(GRAY)
    ax.grid(True, color=RULE, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", colors=INK, labelsize=9)
    ax.set_title(title, fontsize=11, color=INK, loc="left")
    ax.set_xlabel(x, fontsize=9.5, color=INK)
    ax.set_ylabel(y, fontsize=9.5, color=INK)


def panels(drawers: Sequence[Callable[[Any], None]], ax: Any = None, height: float = PANEL[1]) -> Any:
    """Run each drawer on an axes of its own: those given, or those of a new figure. Returns the figure."""
    if ax is None:
        figure = new_figure(PANEL[0] * len(drawers), height)
        axes = list(np.ravel(figure.subplots(1, len(drawers))))
    else:
        axes = list(np.ravel(ax))
    if len(axes) != len(drawers):
        raise ValueError(
            f"there are {len(drawers)} panels to draw and {len(axes)} axes to draw on; "
            f"name one panel by kind=, or pass {len(drawers)} axes"
        )
    for drawer, on in zip(drawers, axes, strict=True):
        drawer(on)
    return axes[0].figure


def draw_kind(
    drawers: dict[str, Callable[[Any], None]], kind: str | None, kinds: Sequence[str], why: str, ax: Any,
    on_request: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Draw the panel named ``kind``, or all but those ``on_request``; ``why`` says what may keep one away."""
    if kind is None:
        return panels([drawer for name, drawer in drawers.items() if name not in on_request], ax)
    require_choice("kind", kind, tuple(kinds))
    if kind not in drawers:
        raise ValueError(f"there is no {kind!r} to draw: {why}; choose from {', '.join(map(repr, drawers))}")
    return panels([drawers[kind]], ax)


def legend(ax: Any, **where: Any) -> None:
    """The legend in our style."""
    ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, **where)


# -- a solution ---------------------------------------------------------------------------------------


def plot_solution(solution: Solution, kind: str | None = None, ax: Any = None) -> Any:
    """Draw what a solution says; see :meth:`lingendice.Solution.plot`."""
    drawers: dict[str, Callable[[Any], None]] = {}
    if solution.state_distribution is None:
        drawers["distributions"] = partial(_distributions, solution)
    else:
        if solution.value is not None:
            drawers["value"] = partial(_value, solution)
        drawers["ratio"] = partial(_ratio, solution)
        drawers["cells"] = partial(_cells, solution)
    if len(solution.history) > 1:
        drawers["history"] = partial(_history, solution)
    why = (
        f"status {solution.status.value!r}, method {solution.method!r} (a direct method keeps no history, "
        "data without rewards have no value)"
    )
    kinds = ("value", "ratio", "cells", "history", "distributions")
    return draw_kind(drawers, kind, kinds, why, ax, on_request=("history",))


def _value(solution: Solution, ax: Any) -> None:
    """The headline, a return or the value per step, and its interval beside the behavior's."""
    of = solution.headline_of
    worth = solution.estimate_of(of)
    assert worth is not None
    rows: list[tuple[str, float, float, float, str, str]] = []
    try:
        found = solution.known_interval(of) or solution.interval(of=of)
        name = "target" if solution.has_target else of
        rows.append((name, worth, found.low, found.high, BLUE, "o"))
        said = f"{found.level:.0%} interval" + (", unbounded" if math.isinf(found.high - found.low) else "")
    except ValueError:  # a matrix carries no sample size
        rows.append((of, worth, worth, worth, BLUE, "o"))
        said = "no interval"
    behavior = solution.behavior_estimate(of) if solution.has_target else None
    if behavior is not None:
        sampled = solution.operator.counts.has_sample_size
        error = solution.behavior_scores(of).standard_error if sampled else 0.0
        rows.append(("behavior", behavior, behavior - 2 * error, behavior + 2 * error, GRAY, "s"))
        said += ", behavior with two standard errors"
    place = np.arange(len(rows))[::-1]
    for at, (_, value, low, high, color, marker) in zip(place, rows, strict=True):
        ends = np.nan_to_num(np.array([[value - low], [high - value]]), posinf=0.0, neginf=0.0)
        ax.errorbar([value], [at], xerr=ends, fmt=marker, color=color, markersize=7, capsize=4, linewidth=1.8)
        if np.isfinite(value):
            ax.annotate(f"{value:.4g}", (value, at), xytext=(0, 9), textcoords="offset points", ha="center",
                        fontsize=9, color=INK)  # fmt: skip
    dress(ax, f"{of.capitalize()} {solution.unit_of(of)}", said)
    _named(ax, place, [row[0] for row in rows])
    ax.set_ylim(-0.8, len(rows) - 0.2)
    ax.margins(x=0.2)


def _ratio(solution: Solution, ax: Any) -> None:
    tau, p = solution.tau, solution.data_distribution
    shown = solution.supported & (np.nan_to_num(tau) > 0)
    hidden = int(solution.supported.sum() - shown.sum())
    ax.loglog(
        p[shown], tau[shown], "o", markersize=3.5 if shown.sum() > 200 else 6.0, alpha=0.5, color=BLUE,
        markeredgewidth=0, rasterized=bool(shown.sum() > MANY_POINTS),
    )  # fmt: skip
    ax.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    _at_least_a_decade(ax, p[shown], tau[shown])
    dress(ax, RATIO_TITLE, f"p: share of the data{_left_out(hidden)}", "tau = mu / p")


def _left_out(hidden: int) -> str:
    return f" ({hidden:,} with tau = 0 left out)" if hidden else ""


def _at_least_a_decade(ax: Any, x: Floats, y: Floats) -> None:
    """Ratios that differ by rounding alone should look equal."""
    for values, set_limits, axis in ((x, ax.set_xlim, ax.xaxis), (y, ax.set_ylim, ax.yaxis)):
        if not values.size:
            continue
        low, high = float(values.min()), float(values.max())
        widen = max(10.0 / (high / low), 1.0) ** 0.5 * 1.2
        set_limits(low / widen, high * widen)
        readable_log_ticks(axis, high * widen / (low / widen))


def readable_log_ticks(axis: Any, span: float) -> None:
    """Numbers as one writes them, 0.01 or 1e-06, and at least two of them on the axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    digits = (1.0, 2.0, 5.0) if span < 20.0 else (1.0, 3.0) if span < 160.0 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=digits, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axis.set_minor_formatter(NullFormatter())


def _cells(solution: Solution, ax: Any) -> None:
    """The cells that contribute most: to the value where rewards are known, else to the distribution."""
    counts = solution.operator.counts
    weight, top = contributions(solution)
    title, x = "Cells that earn or cost most", "mu r: reward per step from this cell"
    if solution.value is None:
        title, x = "Heaviest cells", "mu: stationary mass (line: p, share of the data)"
    place = np.arange(top.size)[::-1]
    negative = weight[top] < 0
    for chosen, color, hatch in ((~negative, BLUE, ""), (negative, VERMILION, "////")):
        ax.barh(place[chosen], weight[top][chosen], color=color, hatch=hatch, edgecolor="white", linewidth=0)
    if solution.value is None:
        ax.plot(counts.data_distribution[top], place, "|", color=INK, markersize=10, markeredgewidth=1.5)
    dress(ax, title, x, _cell_axis(counts.n_actions))
    ax.axvline(0.0, color=INK, linewidth=0.8)
    _named(ax, place, [cell_name(counts, int(cell)) for cell in top])


def _history(solution: Solution, ax: Any) -> None:
    trace = getattr(solution, "gap_trace", ())
    if trace:
        steps, sizes = np.array(trace, dtype=float).T
        x, y, title = "steps", "gap", "Primal-dual gap"
    else:
        sizes = np.asarray(solution.history, dtype=float)
        steps = np.arange(1, sizes.size + 1)
        exact_average = solution.gamma == 1.0 and solution.ridge == 0.0
        x, y = "checkpoint", "relative change" if exact_average else "residual"
        title = "Convergence"
    positive = sizes > 0
    ax.semilogy(steps[positive], sizes[positive], "o-", color=BLUE, markersize=3, linewidth=1.2)
    ax.axhline(solution.tol, color=VERMILION, linewidth=0.9, linestyle="--", label=f"tol = {solution.tol:g}")
    dress(ax, f"{title} ({solution.method})", x, y)
    if positive.any():
        shown = np.append(sizes[positive], solution.tol)
        readable_log_ticks(ax.yaxis, float(shown.max() / shown.min()))
    legend(ax)


def _distributions(solution: Solution, ax: Any) -> None:
    """Several distributions: how many states each one lives on."""
    sizes = np.array([int((distribution > 0).sum()) for distribution in solution.distributions])
    top = np.argsort(-sizes, kind="stable")[:TOP_CELLS]
    place = np.arange(top.size)[::-1]
    ax.barh(place, sizes[top], color=BLUE)
    dress(ax, f"{sizes.size:,} stationary distributions, one per class", "entries with mass")
    _named(ax, place, [f"distribution {k}" for k in top])


# -- a ratio over continuous states -------------------------------------------------------------------

BINS = 60
CURVE_POINTS = 400


def plot_continuous(solution: ContinuousSolution, kind: str | None = None, ax: Any = None) -> Any:
    """Draw what a solution says; see :meth:`lingendice.ContinuousSolution.plot`."""
    drawers: dict[str, Callable[[Any], None]] = {
        "ratio": partial(_row_ratios, solution),
        "weight": partial(_weight, solution),
    }
    if any(len(member) > 1 for member in solution.history):
        if solution.value is not None:
            drawers["value"] = partial(_training_value, solution)
        drawers["residual"] = partial(_training_residual, solution)
    why = f"method {solution.method!r} kept no history, or the data have no rewards"
    kinds = ("ratio", "weight", "value", "residual")
    return draw_kind(drawers, kind, kinds, why, ax, on_request=("value", "residual"))


def _row_ratios(solution: ContinuousSolution, ax: Any) -> None:
    positive = solution.tau[solution.tau > 0]
    low, high = float(positive.min()), float(positive.max())
    # Ratios that differ by rounding alone should look equal.
    widen = max(10.0 / (high / low), 1.0) ** 0.5
    ax.hist(positive, bins=np.geomspace(low / widen, high * widen, BINS), color=BLUE)
    ax.set_xscale("log")
    readable_log_ticks(ax.xaxis, high / low * widen**2)
    ax.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")
    dress(ax, RATIO_TITLE, f"tau = mu / p{_left_out(solution.tau.size - positive.size)}", "transitions")


def _weight(solution: ContinuousSolution, ax: Any) -> None:
    """How few transitions carry how much of the distribution."""
    share = np.cumsum(np.sort(solution.tau)[::-1]) / solution.tau.sum()
    rows = np.arange(1, share.size + 1) / share.size
    shown = np.unique(np.linspace(0, share.size - 1, CURVE_POINTS).astype(np.int64))
    ax.plot(rows[shown], share[shown], color=BLUE, linewidth=1.4, label="this ratio")
    ax.plot([0, 1], [0, 1], color=GRAY, linewidth=0.9, linestyle="--", label="all alike")
    size, total = solution.effective_sample_size, solution.tau.size
    dress(
        ax, f"Effective sample: {size:,.0f} of {total:,}", "share of the transitions, heaviest first",
        "share of the distribution",
    )  # fmt: skip
    legend(ax, loc="lower right")


def _training_value(solution: ContinuousSolution, ax: Any) -> None:
    for number, member in enumerate(solution.history):
        steps, values = np.array([(point.step, point.value) for point in member]).T
        ax.plot(steps, values, color=BLUE, linewidth=1.0, alpha=0.6, label="members" if number == 0 else None)
    assert solution.value is not None
    ax.axhline(solution.value, color=VERMILION, linewidth=1.0, linestyle="--", label="value")
    dress(ax, "Value while training", "steps", "value per step")
    legend(ax)


def _training_residual(solution: ContinuousSolution, ax: Any) -> None:
    for member in solution.history:
        points = [(point.step, point.residual) for point in member if point.residual > 0]
        if points:
            steps, residuals = np.array(points).T
            ax.semilogy(steps, residuals, color=BLUE, linewidth=1.0, alpha=0.6)
    dress(ax, "Stationarity left, on held-out rows", "steps", "residual")


# -- an audit -----------------------------------------------------------------------------------------


def plot_audit(audit: Audit, kind: str | None = None, ax: Any = None) -> Any:
    """Draw what the data can identify; see :meth:`lingendice.Audit.plot`."""
    drawers: dict[str, Callable[[Any], None]] = {
        "states": partial(_states, audit),
        "leak": partial(_leaks, audit),
    }
    return draw_kind(drawers, kind, tuple(drawers), "", ax)


def _states(audit: Audit, ax: Any) -> None:
    # Every state stands in one bar: those without transitions out are transient, or in a class, by way of
    # what happens past them.
    left = [np.setdiff1d(nodes, audit.dangling).size for nodes in audit.recurrent_classes]
    sizes = sorted((size for size in left if size), reverse=True)
    transient = np.setdiff1d(audit.transient_states, audit.dangling).size
    rows = [(f"recurrent class {k + 1}", size, BLUE) for k, size in enumerate(sizes[:5])]
    if len(sizes) > 5:
        rows.append((f"{len(sizes) - 5:,} smaller classes", sum(sizes[5:]), BLUE))
    rows.append(("transient", transient, ORANGE))
    rows.append(("no transitions out", int(audit.dangling.size), VERMILION))
    place = np.arange(len(rows))[::-1]
    bars = ax.barh(place, [size for _, size, _ in rows], color=[color for _, _, color in rows])
    ax.bar_label(bars, [f"{size:,}" for _, size, _ in rows], fontsize=8.5, color=INK, padding=3)
    ax.margins(x=0.18)
    dress(ax, f"Where the {audit.n_states:,} states belong", "states")
    _named(ax, place, [name for name, _, _ in rows])


def _leaks(audit: Audit, ax: Any) -> None:
    top = np.argsort(-audit.leak, kind="stable")[:TOP_CELLS]
    top = top[audit.leak[top] > 0]
    title = f"Leak: {audit.total_leak:.2%} of next steps, most from"
    if not top.size:
        dress(ax, "Leak: none")
        ax.text(0.5, 0.5, "every next step lands\nwhere there is data", ha="center", va="center", fontsize=10,
                color=INK, transform=ax.transAxes)  # fmt: skip
        ax.set_xticks([])
        ax.set_yticks([])
        return
    place = np.arange(top.size)[::-1]
    ax.barh(place, audit.leak[top], color=VERMILION)
    dress(ax, title, "probability of leaving the data in the next step", _cell_axis(audit.n_actions))
    ax.set_xlim(0.0, 1.0)
    _named(ax, place, [audit.cell_name(int(cell)) for cell in top])


# -- many policies, and the ridge ---------------------------------------------------------------------


def plot_comparison(comparison: Comparison, level: float = 0.95, ax: Any = None) -> Any:
    """Intervals of many policies, best on top; see :meth:`lingendice.Comparison.plot`."""
    height = min(1.3 + 0.28 * max(len(comparison), 4), 14.0)
    return panels([partial(_intervals, comparison, level)], ax, height)


def _intervals(comparison: Comparison, level: float, ax: Any) -> None:
    found = comparison.interval(level)
    may_win = set(comparison.contenders(level))
    order = [comparison.names.index(name) for name in comparison.ranking]
    place = np.arange(len(order))[::-1]
    good = np.array([comparison.names[k] in may_win for k in order])
    groups = ((good, BLUE, "o", "may be the best"), (~good, GRAY, "s", "not the best"))
    for chosen, color, marker, label in groups:
        if not chosen.any():
            continue
        k = np.array(order)[chosen]
        ends = np.stack([found.estimate[k] - found.low[k], found.high[k] - found.estimate[k]])
        ax.errorbar(
            found.estimate[k], place[chosen], xerr=ends, fmt=marker, color=color, markersize=5, capsize=3,
            linewidth=1.4, label=label, markerfacecolor=color if marker == "o" else "none",
        )  # fmt: skip
    behavior = comparison.behavior_estimate
    if behavior is not None:
        ax.axvline(behavior, color=INK, linewidth=0.9, linestyle="--")
        ax.annotate(
            " logged behavior", (behavior, 0.02), xycoords=("data", "axes fraction"), fontsize=8.5, color=INK
        )
    what = "reward per step" if comparison.of == "value" else f"{comparison.of} {comparison.unit}"
    dress(
        ax,
        f"{comparison.of.capitalize()} of {len(comparison):,} policies",
        f"{what} ({level:.0%}, simultaneous)",
    )
    if len(order) <= 60:
        endless = np.isinf(found.high - found.low)
        _named(ax, place, ["unbounded: " * bool(endless[k]) + str(comparison.names[k]) for k in order])
    legend(ax, loc="upper right", bbox_to_anchor=(1.0, -0.24), ncols=2, columnspacing=1.0)


def plot_ridge_path(path: RidgePath, ax: Any = None) -> Any:
    """The value along the ridge with the chosen point; see :meth:`lingendice.RidgePath.plot`."""
    return panels([partial(_path, path)], ax)


def _path(path: RidgePath, ax: Any) -> None:
    ax.semilogx(path.ridges, path.values, "-", color=BLUE, linewidth=1.5, label="value")
    width = np.where(np.isfinite(path.standard_errors), path.standard_errors, np.nan)
    ax.fill_between(
        path.ridges, path.values - width, path.values + width, color=BLUE, alpha=0.18, linewidth=0,
        label="plus and minus one standard error",
    )  # fmt: skip
    ax.axhline(path.logged_average, color=INK, linewidth=0.9, linestyle="--", label="average of the log")
    if path.chosen > 0.0:
        ax.plot([path.chosen], [path.chosen_value], "D", color=VERMILION, markersize=7, label="chosen")
    dress(ax, "Value along the ridge", "ridge", "reward per step")
    legend(ax)


# -- names --------------------------------------------------------------------------------------------


def _named(ax: Any, place: NDArray[Any], names: Sequence[str]) -> None:
    """Names from data are shown as they are, but for control characters: a dollar sign starts no formula."""
    safe = map(printable, names)
    short = [name if len(name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 3] + "..." for name in safe]
    ax.set_yticks(place, [""] * len(short))
    ax.set_yticklabels(short, parse_math=False)
    ax.grid(False, axis="y")
    ax.set_ylim(-0.7 - max(5 - len(short), 0), len(short) - 0.3)  # few bars stay as thin as many


def _cell_axis(n_actions: int | None) -> str:
    return "state" if n_actions is None else "state, action"


# -- attribution ----------------------------------------------------------------------------------------


def plot_attribution(found: Attribution, level: float, ax: Any = None) -> Any:
    """Shares of the channels that have most, with their intervals."""
    return panels([partial(_shares, found, level)], ax)


def _shares(found: Attribution, level: float, ax: Any) -> None:
    top = np.argsort(-found.share, kind="stable")[:TOP_CELLS]
    interval, place = found.interval(level), np.arange(top.size)[::-1]
    share = found.share[top]
    ends = np.stack([share - interval.low[top], interval.high[top] - share])
    ax.errorbar(share, place, xerr=ends, fmt="o", color=BLUE, markersize=6, capsize=4, linewidth=1.6)
    dress(ax, "Share of the conversions" if found.total == found.conversions else "Share of the value",
          f"{level:.0%} intervals")  # fmt: skip
    _named(ax, place, [str(found.channels[i]) for i in top])
    ax.set_xlim(left=0.0)


# -- lags -----------------------------------------------------------------------------------------------


def plot_lags(found: Lags, level: float, kind: str | None, ax: Any = None) -> Any:
    """Draw implied timescales and the Chapman-Kolmogorov comparison; see ``Lags.plot``."""
    drawers: dict[str, Callable[[Any], None]] = {"timescales": partial(_timescales, found, level)}
    if found.chapman_kolmogorov:
        drawers["chapman_kolmogorov"] = partial(_chapman_kolmogorov, found)
    why = "no lag beyond the first is a multiple of it"
    return draw_kind(drawers, kind, ("timescales", "chapman_kolmogorov"), why, ax)


def _timescales(found: Lags, level: float, ax: Any) -> None:
    """One line per process; below the diagonal a process is over before the lag is."""
    low, high = found.interval(level)
    lags, colors = np.array(found.lags, float), (BLUE, ORANGE, VERMILION)
    for k in range(found.timescales.shape[1]):
        scale, color = found.timescales[:, k], colors[k % len(colors)]
        shown = np.isfinite(scale) & np.isfinite(high[:, k]) & (scale > 0.0)
        ends = np.stack([scale - low[:, k], high[:, k] - scale])[:, shown]
        marker = "os^Dv"[k % 5]
        style = {"fmt": f"{marker}-", "color": color, "capsize": 3, "linewidth": 1.2}
        ax.errorbar(lags[shown], scale[shown], yerr=ends, label=f"process {k + 1}", **style)
    ax.plot(lags, lags, color=GRAY, linestyle="--", linewidth=1.0, label="the lag itself")
    dress(ax, "Implied timescales", "lag (steps)", f"steps, {level:.0%} intervals")
    ax.set_xscale("log")
    ax.set_yscale("log")
    legend(ax)


def _chapman_kolmogorov(found: Lags, ax: Any) -> None:
    """Predicted probabilities as lines, counted ones as points with two standard errors."""
    colors = (BLUE, ORANGE, VERMILION, INK, GRAY)
    for k, name in enumerate(dict.fromkeys(one.name for one in found.chapman_kolmogorov)):
        rows = [one for one in found.chapman_kolmogorov if one.name == name]
        lag, color = [one.lag for one in rows], colors[k % len(colors)]
        ax.plot(lag, [one.predicted for one in rows], color=color, linewidth=1.2)
        ax.errorbar(lag, [one.estimated for one in rows], yerr=[2.0 * one.estimated_error for one in rows],
                    fmt="os^Dv"[k % 5], color=color, capsize=3, label=printable(name))  # fmt: skip
    dress(ax, "Chapman-Kolmogorov: line predicted", "lag (steps)", "still in the set, two standard errors")
    legend(ax)
