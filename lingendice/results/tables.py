"""Results as frames of pandas or polars, and the cells that matter most in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats, require_choice
from lingendice.data.display import amount

if TYPE_CHECKING:
    from lingendice.data.counts import Counts
    from lingendice.results.comparison import Comparison
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.solution import Solution

LIBRARIES = ("pandas", "polars")
TOP_CELLS = 10


def make_frame(columns: dict[str, Any], library: str | None = None) -> Any:
    """A frame, with arrays of its own, of the library asked for, else of the one in use or installed."""
    if library is not None:
        library = require_choice("library", library, LIBRARIES)
    else:
        ready = [name for name in LIBRARIES if name in sys.modules]
        ready += [name for name in LIBRARIES if find_spec(name) is not None]
        library = ready[0] if ready else "pandas"
    own = {name: np.array(part) if isinstance(part, np.ndarray) else part for name, part in columns.items()}
    # Labels of several types are one column of text in polars, which refuses them otherwise.
    options = {"strict": False} if library == "polars" else {}
    try:
        return import_module(library).DataFrame(own, **options)
    except ImportError as error:
        raise ImportError(
            f"to_frame needs {library}: pip install {library}, or pip install 'lingendice[io]' for pandas"
        ) from error


def solution_frame(solution: Solution, library: str | None) -> Any:
    """One row per entry of ``solution.stationary``, under the labels of its state and action."""
    operator, counts = solution.operator, solution.operator.counts
    by_action = solution.over_actions
    n_actions = (counts.n_actions or 1) if by_action else 1
    columns: dict[str, Any] = {
        "state": [counts.label_of(s) for s in range(counts.n_states) for _ in range(n_actions)]
    }
    if by_action:
        columns["action"] = [
            counts.label_of_action(a) for _ in range(counts.n_states) for a in range(n_actions)
        ]
    if solution.state_distribution is None:
        columns |= {f"stationary_{k}": each for k, each in enumerate(solution.distributions)}
    else:
        columns |= {"stationary": solution.stationary, "tau": solution.tau}
    columns["data_distribution"] = solution.data_distribution
    count = counts.cell_count.reshape(counts.n_states, -1)
    if operator.reward is not None:
        columns["reward"] = _mean_reward(operator.reward.reshape(count.shape), count, by_action)
    columns["count"] = count.ravel() if by_action else count.sum(axis=1)
    return make_frame(columns, library)


def _mean_reward(reward: Any, count: Any, by_action: bool) -> Any:
    """Of each cell; of each state as its logged actions earned it, nan where nothing is known."""
    if by_action:
        return reward.ravel()
    weight = np.where(np.isfinite(reward), count, 0)
    total = (np.where(weight > 0, reward, 0.0) * weight).sum(axis=1)
    seen = weight.sum(axis=1)
    return np.divide(total, seen, out=np.full(seen.shape, np.nan), where=seen > 0)


def continuous_frame(solution: ContinuousSolution, library: str | None) -> Any:
    """One row per logged transition: coordinates of state and action, reward and tau."""
    log = solution.transitions
    columns: dict[str, Any] = {}
    for name in ("state", "action"):
        values = getattr(log, name)
        if values is not None and values.ndim == 2:
            columns |= {f"{name}_{k}": values[:, k] for k in range(values.shape[1])}
        elif values is not None:
            columns[name] = values
    if log.reward is not None:
        columns["reward"] = log.reward
    return make_frame({**columns, "tau": solution.tau}, library)


def comparison_frame(comparison: Comparison, level: float, library: str | None) -> Any:
    """One row per policy, best first."""
    rows = comparison.table(level)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["failed_checks"] = [", ".join(names) for names in columns["failed_checks"]]
    return make_frame(columns, library)


# -- cells ---------------------------------------------------------------------------------------------------


def cell_name(counts: Counts, cell: int) -> str:
    """The name of a cell: its state's label, and its action's where there are actions."""
    if counts.n_actions is None:
        return str(counts.label_of(cell))
    state, action = divmod(cell, counts.n_actions)
    return f"{counts.label_of(state)}, {counts.label_of_action(action)}"


def contributions(solution: Solution) -> tuple[Floats, NDArray[np.int64]]:
    """What each cell adds to the value (to the distribution, without rewards), and the cells that add
    most."""
    weight, reward = solution.cell_distribution, solution.operator.reward
    if solution.value is not None and reward is not None:
        weight = np.where(solution.operator.seen, weight * np.nan_to_num(reward), 0.0)
    top = np.argsort(-np.abs(weight), kind="stable")[:TOP_CELLS]
    return weight, top[weight[top] != 0.0]


def heaviest(solution: Solution, **more: Sequence[str]) -> tuple[str, list[str], list[list[str]]]:
    """A caption, headings and a row for each cell that matters most; ``more`` columns come after mu."""
    counts, mass = solution.operator.counts, solution.cell_distribution
    contribution, top = contributions(solution)
    p = counts.data_distribution[top]
    columns: dict[str, Any] = {
        "cell": [cell_name(counts, int(cell)) for cell in top],
        "mu": [f"{held:.4g}" for held in mass[top]],
        **more,
        "p": [f"{share:.4g}" for share in p],
        "tau = mu / p": [f"{m / q:.4g}" if q > 0 else "no data" for m, q in zip(mass[top], p, strict=True)],
        "seen": [amount(count) for count in counts.cell_count[top]],
    }
    if solution.value is not None:
        columns["reward"] = [f"{earned:.4g}" for earned in np.asarray(solution.operator.reward)[top]]
        columns["contribution"] = [f"{added:.4g}" for added in contribution[top]]
    caption = "Heaviest cells" if solution.value is None else "Cells that earn or cost most"
    return caption, list(columns), [list(row) for row in zip(*columns.values(), strict=True)]
