"""The value along the ridge: how much an estimate owes to its regularization."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lingendice.data.checks import Floats, numeric_array
from lingendice.data.display import strict_json
from lingendice.data.interrupts import check, interruptible
from lingendice.results.interval import UNIDENTIFIED
from lingendice.results.plots import plot_ridge_path
from lingendice.results.solution import Solution
from lingendice.results.variants import LinearSolution, PolicySolution, Uncertified
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeSystem

GRID = np.logspace(-9.0, 0.0, 19)
ACCURATE = 1e-9
"""Relative accuracy of each solve on the path."""


@dataclass(frozen=True, eq=False, repr=False)
class RidgePath:
    """The ridge problem solved for many weights of the ridge, in increasing order."""

    ridges: Floats
    values: Floats
    standard_errors: Floats
    biases: Floats
    """Bias that the ridge can be seen to put on the value, to first order."""
    chosen: float
    """The ridge of the solution; 0 where it solved the exact equation."""
    chosen_value: float
    """Of the solution: the default with a policy extrapolates it to no ridge, to where the path begins."""
    logged_average: float
    """Average reward of the data: where the path of an exact or a ridge solution ends for a large ridge."""

    def plot(self, ax: Any = None) -> Any:
        """Draw the value with its standard error against the ridge, and the chosen point; a Figure."""
        return plot_ridge_path(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types: what is not finite becomes None."""
        arrays = ("ridges", "values", "standard_errors", "biases")
        numbers = ("chosen", "chosen_value", "logged_average")
        return {name: strict_json(getattr(self, name)) for name in (*arrays, *numbers)}

    def __repr__(self) -> str:
        low, high = float(self.values.min()), float(self.values.max())
        span = f"values from {low:.6g} to {high:.6g}"
        return f"RidgePath({self.ridges.size} ridges, {span}, chosen {self.chosen:.1e})"


def ridge_path(solution: Solution, ridges: ArrayLike | None = None) -> RidgePath:
    """Solve the ridge problem of a solution again for many weights of the ridge.

    For every eps, tau minimizes the squared stationarity residual plus ``eps E_p (tau - 1)^2``; a flat
    path says that the estimate does not hang on the ridge, a steep one that it does. Each point costs a
    solve and an adjoint solve by conjugate gradients, started from its neighbor.

    Parameters
    ----------
    solution
        What :func:`lingendice.solve` returned for data with rewards.
    ridges
        Positive weights; by default 19 from 1e-9 to 1, and the chosen one.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 1, 0], episode=[0, 0, 1, 1])
    >>> solution = lg.solve(counts, 0.9, policy=[[0.5, 0.5], [0.5, 0.5]])
    >>> lg.ridge_path(solution, [1e-6, 1e-3]).values.size
    3
    """
    if not isinstance(solution, Solution) or isinstance(solution, (LinearSolution, Uncertified)):
        saddle = isinstance(solution, LinearSolution)
        what = "GenDICE's saddle point" if saddle else f"a {type(solution).__name__}"
        raise ValueError(f"the ridge path is that of the tabular ridge problem, not of {what}")
    if solution.value is None:
        raise ValueError("the ridge path is one of values, and the solution has none; pass reward= to solve")
    if math.isnan(solution.value):
        raise ValueError(f"the ridge path is one of values, and here {UNIDENTIFIED}")
    asked = GRID if ridges is None else numeric_array("ridges", ridges).astype(float).ravel()
    if not asked.size or not (asked > 0).all() or not np.isfinite(asked).all():
        raise ValueError("ridges must be positive finite numbers; ridge=0 is the exact equation of solve")
    grid = np.unique(np.append(asked, solution.ridge) if solution.ridge > 0.0 else asked)
    operator = solution.operator
    _ = operator.counts.indptr  # rows on a cluster say that they are not here
    controls = Controls(tol=ACCURATE, threads=solution.threads)
    # What the default extrapolates to no ridge is no part of the value at any ridge.
    uncorrected = replace(solution, correction=0.0) if isinstance(solution, PolicySolution) else solution
    found: list[tuple[float, float, float]] = []
    start = None
    with interruptible() as work:
        work.solution = solution
        for ridge in map(float, grid[::-1]):  # the well-conditioned end first
            system = RidgeSystem(operator, ridge)
            fit = system.solve(controls, start, rough=True)
            check()
            start = fit.y
            states, cells = operator.over_states_and_cells(fit.row_distribution)
            fitted = uncorrected.moved_to(states, ridge=ridge, cell_ridge_distribution=cells)
            plain = fitted.as_plain(tol=ACCURATE)
            # The misfit is that of the fit, whose mass is scaled to 1 in the distribution.
            mass = 1.0 if system.loses_mass else float(system.completed(fit.y).sum())
            bias = float(fit.misfit @ plain.ridge_adjoint.scaled) / (plain._identified * mass)
            error = float(np.sqrt((plain.influence().value().scores() ** 2).sum()))
            found.append((float(np.asarray(fitted.value)), error, bias))
    values, errors, biases = np.array(found[::-1]).T
    return RidgePath(
        ridges=grid,
        values=values,
        standard_errors=errors,
        biases=biases,
        chosen=solution.ridge,
        chosen_value=float(solution.value),
        logged_average=math.nan if operator.logged_average is None else operator.logged_average,
    )
