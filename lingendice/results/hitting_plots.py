"""Plots of hitting probabilities and times; the style is that of :mod:`lingendice.results.plots`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.display import printable
from lingendice.results.plots import BLUE, GRAY, ORANGE, VERMILION, draw_kind, dress, legend

if TYPE_CHECKING:
    from lingendice.hitting import Hitting

SHOWN = 20
"""States that are drawn by name: those nearest to the targets."""
_SETS = ((BLUE, "o"), (VERMILION, "s"), (ORANGE, "^"), (GRAY, "D"))


def plot_hitting(hit: Hitting, kind: str | None = None, ax: Any = None) -> Any:
    """Draw probabilities and steps by state; see :meth:`lingendice.Hitting.plot`."""
    drawers: dict[str, Callable[[Any], None]] = {"probability": partial(_probability, hit)}
    if np.isfinite(hit.mean_steps[hit.target_of < 0]).any():
        drawers["steps"] = partial(_steps, hit)
    why = "no state is certain to reach a target"
    return draw_kind(drawers, kind, ("probability", "steps"), why, ax)


def _name_states(hit: Hitting, ax: Any, states: NDArray[np.int64]) -> None:
    if states.size <= SHOWN:
        labels = [printable(hit.counts.label_of(int(s))) for s in states]
        ax.set_xticks(np.arange(states.size), labels, rotation=45, ha="right")


def _probability(hit: Hitting, ax: Any) -> None:
    outside = np.flatnonzero(hit.target_of < 0)
    by_set = hit.probability.reshape(hit.counts.n_states, -1)
    order = outside[np.argsort(-by_set[outside, 0], kind="stable")]
    for k, name in enumerate(hit.names):
        color, marker = _SETS[k % len(_SETS)]
        ax.plot(
            by_set[order, k], marker, color=color, markersize=4, rasterized=order.size > 1500,
            label="target" if name is None else printable(name),
        )  # fmt: skip
    _name_states(hit, ax, order)
    dress(ax, "Which set is reached first" if len(hit.names) > 1 else "Is it reached", "state", "probability")
    ax.set_ylim(-0.03, 1.03)
    if len(hit.names) > 1:
        legend(ax)


def _steps(hit: Hitting, ax: Any) -> None:
    certain = np.flatnonzero(np.isfinite(hit.mean_steps) & (hit.target_of < 0))
    order = certain[np.argsort(hit.mean_steps[certain], kind="stable")]
    mean, spread = hit.mean_steps[order], hit.sd_steps[order]
    place = np.arange(order.size)
    ax.fill_between(place, np.maximum(mean - spread, 0.0), mean + spread, color=BLUE, alpha=0.15, linewidth=0)
    ax.plot(place, mean, "o", color=BLUE, markersize=4, rasterized=order.size > 1500)
    _name_states(hit, ax, order)
    dress(ax, "How long until it is reached", "state", "steps (mean, 1 standard deviation)")
