"""From what ``solve`` is asked to a saddle-point problem, a method for it, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lingendice.data.checks import (
    Floats,
    refuse_unknown,
    require_choice,
    require_flag,
    require_positive,
    require_whole,
)
from lingendice.divergences import MMD, PolyhedralMetric, TotalVariation
from lingendice.model.features import MatrixFeatures, Tabular, orthonormalized, read_features
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers import convex, extragradient, sgd
from lingendice.solvers.control import Controls
from lingendice.solvers.problem import (
    Gap,
    RatioProblem,
    SaddleFit,
    SaddleOutcome,
    SaddleSolver,
    run_saddle,
    with_reason,
    without_steps,
)
from lingendice.solvers.request import SADDLE_METHODS, ObjectiveChoices
from lingendice.solvers.stationary import refusal_of_classes, several_classes, stationary_distributions

if TYPE_CHECKING:
    from lingendice.solvers.request import MethodChoices, Request

SGD_WORK = 10**8
"""Coordinates that SGD touches where neither max_iter nor time_limit is given."""
AIM = 0.9
"""Share of ``tol`` that SGD aims at where its own bound on f is narrower than the problem's: near the optimum
the gap without that bound is a few per cent larger."""
NEWTON_WORK = 2e13
"""Floating-point operations up to which the Newton matrix is formed."""
LARGEST_MATRIX = 10**9
"""Entries of features that the deterministic methods pass over again and again."""
LARGEST_BASIS = 2000
"""Sparse features of f up to which an orthonormal basis, which is dense, takes their place."""
LARGEST_TABLE = 600
"""Cells up to which a tabular problem is solved by dense Newton steps."""
EXPRESSED = 1e-8
"""1 - cosine between a mixture of distributions and its projection on features that can express it."""
Start: TypeAlias = "Callable[[RatioProblem, str, MethodChoices, dict[str, Any], Controls], SaddleSolver]"
"""Begins to solve a problem by a method."""


def solve_saddle(operator: EmpiricalOperator, request: Request, start: Start | None = None) -> SaddleFit:
    """Build the problem, choose a method and say why, and run it to a certified gap.

    ``start`` begins the steps where they are not made on the host.
    """
    controls = request.limits
    problem, back = read_problem(operator, request.objective)
    _require_one_optimum(operator, problem, controls)
    method, reason = choose_method(problem, request.method.name)
    options = read_options(method, request.method.options)
    asked = problem
    if method == "sgd":
        problem = sgd.bounded_for_sgd(problem)
    if problem.unsolvable is not None:
        outcome = without_steps(problem, controls.tol, method)
    else:
        controls = limited(method, problem, options, controls)
        narrowed = bool((problem.dual_box < asked.dual_box).any())
        aim = replace(controls, tol=AIM * controls.tol) if narrowed else controls
        solver = (start or _solver)(problem, method, request.method, options, aim)
        outcome = run_saddle(solver, aim)
        if narrowed and math.isfinite(outcome.gap.value):
            outcome = judged(asked, outcome, controls.tol)
            if not outcome.converged:
                reason += f"; SGD keeps |w_f| <= {problem.dual_box.max():.3g}: see bound="
    outcome.reason = reason
    return SaddleFit(problem, outcome, back)


def _require_one_optimum(operator: EmpiricalOperator, problem: RatioProblem, controls: Controls) -> None:
    """Refuse several recurrent classes at gamma = 1 where tau can express more than one of their mixtures.

    A ridge makes the optimum unique. So do features that can express a single mixture, or none.
    """
    n_classes = several_classes(operator.chain, operator.gamma)
    if n_classes == 1 or problem.ridge > 0.0:
        return
    features, flow = problem.features, problem.flow
    fits = max(features.n_features, n_classes) <= LARGEST_BASIS
    if isinstance(features, MatrixFeatures) and fits:
        found = stationary_distributions(operator.chain, 1.0, None, False, "auto", controls)
        root = np.sqrt(flow.p[flow.seen])
        masses = np.stack([flow.spread(mu)[flow.seen] for mu in found.every], axis=1) / root[:, None]
        lengths = np.linalg.norm(masses, axis=0)  # 0 for a class without data
        masses = masses[:, lengths > 0] / lengths[lengths > 0]  # orthogonal: classes share no cell
        basis, _ = orthonormalized(features, flow.p)
        cosines = np.linalg.svd((root[:, None] * basis.matrix[flow.seen]).T @ masses, compute_uv=False)
        if int((cosines > 1.0 - EXPRESSED).sum()) < 2:
            return
    raise refusal_of_classes("the saddle point without a ridge=", n_classes)


def judged(asked: RatioProblem, outcome: SaddleOutcome, tol: float) -> SaddleOutcome:
    """An outcome under a narrower bound than was asked for, with the gap of what was asked for."""
    gap = Gap(math.inf, -math.inf, "bound")
    v, u = outcome.v, outcome.u
    if asked.unsolvable is None:
        gap, v, u = asked.best_gap(outcome.w, v, u)
    found = replace(outcome, gap=gap, v=v, u=u, error=gap.value, converged=gap.value <= tol)
    return with_reason(found)


def read_problem(
    operator: EmpiricalOperator, choices: ObjectiveChoices
) -> tuple[RatioProblem, Floats | None]:
    """The problem, and the matrix that takes its dual coefficients back to the user's features."""
    tabular_dual = choices.dual_features is None and choices.features is None
    flow = operator.flow(closed=tabular_dual)
    psi = read_features("features", choices.features, flow.n_cells, nonnegative=True)
    given = choices.dual_features
    if given is None and not (isinstance(choices.divergence, MMD) or choices.divergence == "mmd"):
        given = choices.features  # MMD has its kernel
    phi = read_features("dual_features", given, flow.n_cells, nonnegative=False)
    if choices.features is None and not isinstance(phi, Tabular):
        unseen = int((~flow.seen).sum())
        if unseen:
            raise ValueError(
                f"{unseen} cells have no outgoing transitions: a tabular tau is unknown there; give features="
                " too"
            )
    for name, features in (("features", psi), ("dual_features", phi)):
        if not features.squares(flow.p).any():
            raise ValueError(
                f"{name} are 0 in every cell with data, or so small that their squares are; scale them, or "
                "give at least one that is not"
            )
    problem = RatioProblem.build(
        flow, psi, phi, choices.divergence, penalty=choices.mass_penalty, ridge=choices.ridge or 0.0,
        normalize=choices.normalize, bound=choices.bound,
    )  # fmt: skip
    large = isinstance(phi, MatrixFeatures) and phi.is_sparse and phi.n_features > LARGEST_BASIS
    return (problem, None) if large else problem.with_orthonormal_dual()


def choose_method(problem: RatioProblem, method: str) -> tuple[str, str]:
    """A method for the size and kind of problem, and why."""
    if method != "auto":
        return require_choice("method", method, SADDLE_METHODS), "chosen by the caller"
    divergence = problem.divergence
    n_w, n_v = problem.features.n_features, problem.dual_features.n_features
    if problem.smooth_metric is not None:
        return "extragradient", "the gradient penalty is smooth but not strictly concave"
    if isinstance(divergence, (PolyhedralMetric, TotalVariation)):
        return "convex", f"{divergence.name} makes it a linear program"
    cells = problem.flow.n_cells
    entries = problem.features.n_entries + problem.dual_features.n_entries
    work = 25.0 * cells * (n_v * n_v + 2.0 * n_w * n_v)
    tabular = isinstance(problem.features, Tabular) or isinstance(problem.dual_features, Tabular)
    if max(n_w, n_v) <= (LARGEST_TABLE if tabular else convex.LARGEST) and work <= NEWTON_WORK:
        return "convex", f"{n_w} and {n_v} coefficients: Newton steps are cheap and exact"
    if entries <= LARGEST_MATRIX:
        return "extragradient", f"{max(n_w, n_v):,} coefficients are too many for a Newton matrix"
    return "sgd", f"{entries:,} feature entries are too many to pass over again and again"


def read_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method, checked."""
    known: dict[str, Any] = dict(sgd.OPTIONS) if method == "sgd" else {}
    refuse_unknown(options, (*known, "on_interrupt"), f"for method={method!r}")
    known.update(options)
    if method == "sgd":
        for name in ("batch", "first_epoch"):
            known[name] = require_whole(f"options[{name!r}]", known[name], at_least=1)
        known["step_scale"] = require_positive("options['step_scale']", known["step_scale"])
        known["average"] = require_flag("options['average']", known["average"])
    return known


def limited(method: str, problem: RatioProblem, options: Mapping[str, Any], controls: Controls) -> Controls:
    """The limits, with a number of steps for SGD where the user gives no limit at all."""
    if method != "sgd" or controls.max_iter is not None or controls.time_limit is not None:
        return controls
    entries = problem.features.n_entries + problem.dual_features.n_entries
    touched = options["batch"] * max(1.0, entries / problem.flow.n_cells / 2.0)
    return replace(controls, max_iter=max(10_000, int(SGD_WORK / touched)))


def _solver(
    problem: RatioProblem, method: str, choices: MethodChoices, options: dict[str, Any], controls: Controls
) -> SaddleSolver:
    tol, max_iter = controls.tol, controls.max_iter
    start = read_start(problem, choices.warm_start, method)
    if method == "convex":
        return convex.solve_convex(problem, tol)
    if method == "extragradient":
        return extragradient.solve_extragradient(problem, tol, start)
    return sgd.solve_sgd(problem, tol, choices.seed, options, max_iter, start)


def read_start(problem: RatioProblem, given: Any, method: str) -> tuple[Floats, Floats, float] | None:
    """The point to start from: that of an earlier solution over the same features, where one is given."""
    if given is None:
        return None
    if method not in ("sgd", "extragradient"):
        raise ValueError(
            f'method="{method}" starts afresh; leave warm_start out, or use sgd or extragradient'
        )
    w, u = getattr(given, "w_tau", None), getattr(given, "u", None)
    if w is None or u is None or np.shape(w) != (problem.features.n_features,):
        raise ValueError("warm_start must be a solution over the same features")
    if not (np.isfinite(w).all() and math.isfinite(u)):
        raise ValueError("warm_start ended with coefficients that are not finite; leave it out")
    return w, np.zeros(problem.dual_features.n_features), u
