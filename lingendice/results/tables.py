"""Results as frames of pandas or polars."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import require_choice

if TYPE_CHECKING:
    from lingendice.results.comparison import Comparison
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.solution import Solution

LIBRARIES = ("pandas", "polars")


def make_frame(columns: dict[str, Any], library: str | None = None) -> Any:
    """A frame of the library asked for, else of the one in use, else of the one installed."""
    if library is not None:
        library = require_choice("library", library, LIBRARIES)
    else:
        ready = [name for name in LIBRARIES if name in sys.modules]
        ready += [name for name in LIBRARIES if find_spec(name) is not None]
        library = ready[0] if ready else "pandas"
    try:
        return import_module(library).DataFrame(columns)
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
    return make_frame(
        {
            name: np.array(values) if isinstance(values, np.ndarray) else values
            for name, values in columns.items()
        },
        library,
    )


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
            columns |= {f"{name}_{k}": values[:, k].copy() for k in range(values.shape[1])}
        elif values is not None:
            columns[name] = values.copy()
    if log.reward is not None:
        columns["reward"] = log.reward.copy()
    return make_frame({**columns, "tau": np.array(solution.tau)}, library)


def comparison_frame(comparison: Comparison, level: float, library: str | None) -> Any:
    """One row per policy, best first."""
    rows = comparison.table(level)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["failed_checks"] = [", ".join(names) for names in columns["failed_checks"]]
    return make_frame(columns, library)
