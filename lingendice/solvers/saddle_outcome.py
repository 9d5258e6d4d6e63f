"""What the solvers of the saddle point share: their outcome, with its certificate."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.model.features import FeatureMap, MatrixFeatures, Tabular
from lingendice.solvers.control import Controls, Outcome, Step, Stop, run
from lingendice.solvers.problem import Gap, RatioProblem


@dataclass
class SaddleOutcome(Outcome):
    """A point of the saddle problem and its primal-dual gap; ``distribution`` is the mass p tau over
    cells."""

    w: Floats = field(default_factory=lambda: np.empty(0))
    v: Floats = field(default_factory=lambda: np.empty(0))
    u: float = 0.0
    gap: Gap = field(default_factory=lambda: Gap(math.inf, -math.inf, "bound"))
    trace: tuple[tuple[int, float], ...] = ()
    """(steps, gap) at every checkpoint."""


class SaddleFit(NamedTuple):
    """A saddle-point problem and the point found for it."""

    problem: RatioProblem
    outcome: SaddleOutcome
    back: Floats | None
    """The matrix that takes dual coefficients back to the user's features; None where they are the same."""


def gap_order(gap: float) -> float:
    """The gap for comparisons: what is not finite comes last."""
    return gap if math.isfinite(gap) else math.inf


class Checkpoints:
    """The best point so far, and the gap at every checkpoint."""

    def __init__(self) -> None:
        self.best: SaddleOutcome | None = None
        self.trace: list[tuple[int, float]] = []

    @property
    def gap(self) -> float:
        """The least gap so far; inf before the first checkpoint."""
        return math.inf if self.best is None else self.best.gap.value

    def note(self, found: SaddleOutcome) -> None:
        """Take in a certified point; one that is not finite never replaces another."""
        self.trace.append((found.n_iter, found.gap.value))
        if self.best is None or gap_order(found.gap.value) < gap_order(self.gap):
            self.best = found

    def finish(self, n_iter: int) -> SaddleOutcome:
        """The best point, with the whole trace."""
        assert self.best is not None
        self.best.n_iter, self.best.trace = n_iter, tuple(self.trace)
        self.best.history = tuple(gap for _, gap in self.trace)
        return self.best


SaddleSolver = Generator[Step, "Stop | None", SaddleOutcome]


def certified(
    problem: RatioProblem, w: Floats, v: Floats, u: float, tol: float, method: str, n_iter: int
) -> SaddleOutcome:
    """Clean a point (w >= 0, N = 1 where self-normalized) and evaluate its gap."""
    w = np.maximum(w, 0.0) if problem.bound is None else np.clip(w, 0.0, problem.bound)
    if problem.self_normalized:
        w = problem.rescaled(w)
    if np.isfinite(w).all() and np.isfinite(v).all() and math.isfinite(u):
        gap, v, u = problem.best_gap(w, v, u)
    else:
        gap = Gap(math.nan, math.nan, "bound")
    mass = problem.mass(w)
    return SaddleOutcome(
        distribution=mass,
        method=method,
        reason="",
        converged=gap.value <= tol,
        n_iter=n_iter,
        error=gap.value,
        error_kind="bound",
        residual=float(np.abs(problem.residual(w)).sum()),
        w=w,
        v=v,
        u=u,
        gap=gap,
    )


def without_steps(problem: RatioProblem, tol: float, method: str, why: Stop) -> SaddleOutcome:
    """The starting point, for a problem that no steps can solve."""
    zero = np.zeros(problem.dual_features.n_features)
    outcome = certified(problem, problem.start(), zero, 0.0, tol, method, 0)
    outcome.converged, outcome.stopped = False, why
    return outcome


def run_saddle(solver: SaddleSolver, controls: Controls) -> SaddleOutcome:
    """Drive a solver of the saddle point; an end without a small gap states its reason."""
    # A solver of saddle points returns more than the outer loop knows of.
    outcome: SaddleOutcome = run(solver, controls)  # type: ignore[arg-type, assignment]
    if not outcome.converged:
        if math.isnan(outcome.gap.value):
            outcome.stopped = Stop.NOT_FINITE
        elif outcome.stopped is None:
            outcome.stopped = Stop.UNBOUNDED if math.isinf(outcome.gap.primal) else Stop.GAP
    return outcome


def diagonal_metric(features: FeatureMap, p: Floats) -> Floats:
    """E_p of each squared feature (1 where it is 0): lengths in which the coupling has norm near one."""
    if isinstance(features, Tabular):
        return np.where(p > 0, p, 1.0)
    diagonal = np.asarray(squared(features).T @ p).ravel()
    return np.where(diagonal > 0, diagonal, 1.0)


def squared(features: FeatureMap) -> Any:
    """The matrix of squared features."""
    assert isinstance(features, MatrixFeatures)
    return features.matrix.multiply(features.matrix) if features.is_sparse else features.matrix**2


def compressed(features: FeatureMap) -> tuple[Any, Any, Any]:
    """(indptr, indices, data) of the features, row by row; one entry per row for a table."""
    from scipy.sparse import csr_array

    if isinstance(features, Tabular):
        n = features.n_cells
        return np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32), np.ones(n)
    assert isinstance(features, MatrixFeatures)
    matrix = csr_array(features.matrix)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float64)
