"""Results as tables: facts for people, dictionaries for machines, and frames of pandas or polars."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.checks import require_choice
from lingendice.data.display import duration, strict_json

if TYPE_CHECKING:
    from lingendice.results.comparison import Comparison
    from lingendice.results.continuous_solution import ContinuousSolution
    from lingendice.results.result import Result, Row
    from lingendice.results.solution import Solution

LIBRARIES = ("pandas", "polars")


# -- facts and dictionaries ----------------------------------------------------------------------------------


def told(result: Result) -> dict[str, Any]:
    """How a result was found, as strict JSON types."""
    return {
        "status": result.status.name.lower(),
        "converged": result.converged,
        "advice": result.status.advice,
        "gamma": result.gamma,
        "method": result.method,
        "reason": result.reason,
        "n_iter": result.n_iter,
        "seconds": strict_json(result.seconds),
    }


def solution_dict(solution: Solution) -> dict[str, Any]:
    """What :meth:`lingendice.Solution.to_dict` returns."""
    single = solution.state_distribution is not None
    counts = solution.operator.counts
    numbers = {
        name: getattr(solution, name) if single else None
        for name in (
            "value", "expected_return", "expected_length", "leak", "terminal_mass", "effective_sample_size",
        )
    }  # fmt: skip
    found = ("residual", "error", "error_kind", "condition")
    return {
        **told(solution),
        "ridge": solution.ridge,
        "ratio": solution.operator.ratio,
        "n_states": counts.n_states,
        "n_actions": counts.n_actions,
        "transitions": counts.total if counts.has_sample_size else None,
        "value_bounds": strict_json(solution.known("value_bounds")),
        "gap": strict_json(solution.known("gap")),
        "behavior_value": strict_json(solution.known_behavior_value),
        **solution.asked_json(),
        **strict_json(numbers),
        **strict_json({name: getattr(solution, name) for name in found}),
        "stationary": strict_json(solution.stationary) if single else None,
        "tau": strict_json(solution.tau) if single else None,
        "distributions": strict_json(solution.distributions),
        "state_labels": counts.state_labels and [str(name) for name in counts.state_labels],
    }


def solution_facts(solution: Solution) -> list[Row]:
    """What a solution over counts knows without computing anything."""
    rows = [("data", repr(solution.operator.counts)), ("gamma", f"{solution.gamma:g}")]
    if solution.ridge > 0.0:
        rows.append(("ridge", f"{solution.ridge:.1e}"))
    if solution.state_distribution is None:
        rows.append(several_row(solution))
    else:
        rows += solution._value_rows()
        if solution.value is not None and solution.has_target:
            found = solution.known_behavior_value
            asked = "not computed: sol.behavior_value" if found is None else f"{found:.6g}"
            rows.append(("behavior's value", asked))
        if not solution.is_checked:
            sampled = solution.operator.counts.has_sample_size
            where = "where there is no data" if sampled else "in states without outgoing transitions"
            rows.append(("leak", f"{solution.leak:.2%} of the stationary mass lies {where}"))
        rows += solution._asked()
    return [*rows, *accuracy_rows(solution)]


def several_row(solution: Solution) -> Row:
    """How many distributions there are, where there is not one."""
    where = "one for each recurrent class (sol.distributions)"
    return "distributions", f"{len(solution.state_distributions)}, {where}"


def accuracy_rows(solution: Solution) -> list[Row]:
    """How exact the answer is, and what it took."""
    rows = [("residual", f"{solution.residual:.1e}")]
    if solution.error is not None:
        rows.append((f"error ({solution.error_kind})", f"{solution.error:.1e}"))
    if solution.n_iter:
        rows.append(("iterations", f"{solution.n_iter:,}"))
    return [*rows, ("time", duration(solution.seconds))]


def continuous_dict(solution: ContinuousSolution) -> dict[str, Any]:
    """What :meth:`lingendice.ContinuousSolution.to_dict` returns."""
    found = (
        "divergence", "threads", "value", "value_plain", "mean_ratio", "spread", "residual",
        "effective_sample_size", "member_values",
    )  # fmt: skip
    return {
        **told(solution),
        "transitions": len(solution.transitions),
        **strict_json({name: getattr(solution, name) for name in found}),
        **solution.asked_json(),
        "estimates": [strict_json(one._asdict()) for one in solution.estimates],
        "tau": strict_json(solution.tau),
        "history": [strict_json([point._asdict() for point in member]) for member in solution.history],
    }


def continuous_facts(solution: ContinuousSolution) -> list[Row]:
    """What a solution over transitions knows without computing anything."""
    rows = [("data", repr(solution.transitions)), ("gamma", f"{solution.gamma:g}")]
    if solution.value is not None:
        rows.append(("value per step", solution.headline))
        if solution.expected_return is not None and solution.converged:
            rows.append(("return", f"{solution.expected_return:.6g}  ({solution.return_note})"))
    if solution.spread is not None and solution.member_values is not None:
        rows.append(("  spread", f"{solution.spread:.2g} among {len(solution.member_values)} members"))
    for name, value, error, seconds in solution.estimates:
        noise = "" if error is None else f" +- {error:.2g}"
        rows.append((f"  by {name}", f"{value:.6g}{noise}  ({seconds:.1f} s)"))
    rows += solution._asked()
    if not math.isnan(solution.residual):
        where = "in sample" if solution.method == "linear" else "held out"
        rows.append((f"residual ({where})", f"{solution.residual:.2e}"))
    return [*rows, ("steps", f"{solution.n_iter:,}"), ("time", duration(solution.seconds))]


# -- frames --------------------------------------------------------------------------------------------------


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
