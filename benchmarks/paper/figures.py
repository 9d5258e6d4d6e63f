"""One style for the figures of the paper scripts: colors that color-blind readers can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from reporting import HERE

FIGURES = HERE / "figures"

# Okabe and Ito's palette, distinguished by markers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#A6761D")
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "*")


def new_figure(n_panels: int, width: float = 4.0, height: float = 3.9) -> tuple[Figure, list[Any]]:
    """A row of panels and their axes."""
    figure = Figure(figsize=(width * n_panels, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, n_panels, squeeze=False)[0])
    for one in axes:
        one.grid(alpha=0.25, linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_line(axes: Any, place: int, label: str, x: Any, y: Any, spread: Any = None) -> None:
    """One method's curve, its look decided by its place in the list of methods."""
    look = {
        "color": COLORS[place % len(COLORS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": "-" if place < len(COLORS) else "--",
    }
    axes.errorbar(x, y, yerr=spread, label=label, markersize=4.5, linewidth=1.4, capsize=2, **look)


def draw_bound(axes: Any, x: Any, y: Any, label: str = "efficiency bound") -> None:
    """The bound no regular estimator beats for long logs."""
    axes.plot(x, y, color="black", linestyle="--", linewidth=1.2, label=label)


def finish(figure: Figure, axes: list[Any], name: str, *, legend: bool = True) -> Path:
    """Put one legend below the panels and write NAME.png."""
    shown: dict[str, Any] = {}
    for one in axes:
        handles, labels = one.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            shown.setdefault(label, handle)
    if legend:
        figure.legend(
            shown.values(),
            shown.keys(),
            loc="outside lower center",
            ncols=min(6, 2 * len(axes)),
            frameon=False,
            fontsize=9,
        )
    FIGURES.mkdir(exist_ok=True)
    path = FIGURES / f"{name}.png"
    figure.savefig(path, dpi=110)
    return path
