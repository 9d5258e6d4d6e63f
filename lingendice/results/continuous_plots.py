"""Plots of a ratio over continuous states, in the style of :mod:`lingendice.results.plots`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.results.plots import BLUE, GREY, INK, VERMILION, draw_kind, dress, legend, readable_log_ticks

if TYPE_CHECKING:
    from lingendice.results.continuous_solution import ContinuousSolution

KINDS = ("ratio", "weight", "value", "residual")
BINS = 60
CURVE_POINTS = 400


def plot_continuous(solution: ContinuousSolution, kind: str | None = None, ax: Any = None) -> Any:
    """Draw what a solution says; see :meth:`lingendice.ContinuousSolution.plot`."""
    drawers: dict[str, Callable[[Any], None]] = {
        "ratio": partial(_ratio, solution),
        "weight": partial(_weight, solution),
    }
    history: dict[str, Callable[[Any], None]] = {}
    if any(len(member) > 1 for member in solution.history):
        if solution.value is not None:
            history["value"] = partial(_value, solution)
        history["residual"] = partial(_residual, solution)
    why = f"method {solution.method!r} kept no history, or the data have no rewards"
    return draw_kind(drawers, history, kind, KINDS, why, ax)


def _ratio(solution: ContinuousSolution, ax: Any) -> None:
    positive = solution.tau[solution.tau > 0]
    low, high = float(positive.min()), float(positive.max())
    # Ratios that differ by rounding alone should look equal.
    widen = max(10.0 / (high / low), 1.0) ** 0.5
    ax.hist(positive, bins=np.geomspace(low / widen, high * widen, BINS), color=BLUE)
    ax.set_xscale("log")
    readable_log_ticks(ax.xaxis, high / low * widen**2)
    ax.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")
    hidden = solution.tau.size - positive.size
    beside = f" ({hidden:,} with tau = 0 left out)" if hidden else ""
    dress(ax, "Ratio: above 1, visited more than logged", f"tau = mu / p{beside}", "transitions")


def _weight(solution: ContinuousSolution, ax: Any) -> None:
    """How few transitions carry how much of the distribution."""
    share = np.cumsum(np.sort(solution.tau)[::-1]) / solution.tau.sum()
    rows = np.arange(1, share.size + 1) / share.size
    shown = np.unique(np.linspace(0, share.size - 1, CURVE_POINTS).astype(np.int64))
    ax.plot(rows[shown], share[shown], color=BLUE, linewidth=1.4, label="this ratio")
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--", label="all alike")
    size, total = solution.effective_sample_size, solution.tau.size
    dress(
        ax, f"Effective sample: {size:,.0f} of {total:,}", "share of the transitions, heaviest first",
        "share of the distribution",
    )  # fmt: skip
    legend(ax, loc="lower right")


def _value(solution: ContinuousSolution, ax: Any) -> None:
    for number, member in enumerate(solution.history):
        steps, values = np.array([(point.step, point.value) for point in member]).T
        ax.plot(steps, values, color=BLUE, linewidth=1.0, alpha=0.6, label="members" if number == 0 else None)
    assert solution.value is not None
    ax.axhline(solution.value, color=VERMILION, linewidth=1.0, linestyle="--", label="value")
    dress(ax, "Value while training", "steps", "value per step")
    legend(ax)


def _residual(solution: ContinuousSolution, ax: Any) -> None:
    for member in solution.history:
        points = [(point.step, point.residual) for point in member if point.residual > 0]
        if points:
            steps, residuals = np.array(points).T
            ax.semilogy(steps, residuals, color=BLUE, linewidth=1.0, alpha=0.6)
    dress(ax, "Stationarity left, on held-out rows", "steps", "residual")
