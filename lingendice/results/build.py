"""From outcomes to solutions: the only maker of solutions, and the judge of their leaks."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.outcome import Ratio
from lingendice.data.checks import Floats, outside_level
from lingendice.data.counts import Counts
from lingendice.model import leaks
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.allowance import known_rewards
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.diagnostics import decisive_checks
from lingendice.results.interval import UNIDENTIFIED
from lingendice.results.solution import Solution
from lingendice.results.status import Status, status_of, with_identified_status
from lingendice.results.targets import Estimate
from lingendice.results.variants import (
    BaselineSolution,
    HorizonSolution,
    LinearSolution,
    PolicySolution,
    fitted_fields,
)
from lingendice.solvers.control import Controls, Outcome, Stop, stated_error
from lingendice.solvers.horizon import visits
from lingendice.solvers.shrinkage import ROUNDING

if TYPE_CHECKING:
    from lingendice.continuous.outcome import RatioOutcome
    from lingendice.solvers.problem import SaddleFit
    from lingendice.solvers.request import Request
    from lingendice.solvers.ridge import RidgeFit
    from lingendice.solvers.shrinkage import Shrinkage
    from lingendice.solvers.stationary import Distributions


class LeakWarning(UserWarning):
    """More than 1 % of the stationary mass lies where there is no data."""


def small_solution(outcome: Outcome, matrix: NDArray[Any], gamma: float, controls: Controls) -> Solution:
    """Of a dense chain solved at once; its operator is composed when first asked for."""
    # Nothing leaks in an irreducible chain, and a matrix has no rewards.
    return Solution(
        **_told(outcome, controls, outcome.distribution),
        gamma=gamma,
        residual=math.nan if outcome.residual is None else outcome.residual,
        source=partial(_chain_operator, matrix.copy(), gamma),
    )


def _chain_operator(matrix: NDArray[Any], gamma: float) -> EmpiricalOperator:
    return compose(Counts.from_matrix(matrix), Choices(gamma=gamma))


def exact_solution(
    operator: EmpiricalOperator,
    distributions: Distributions,
    controls: Controls,
    reward_range: tuple[float, float] | None = None,
    **where: Any,
) -> Solution:
    """Of stationary distributions; leaks are reported or refused. ``where``: see `certified_solution`."""
    return _judged(certified_solution(operator, distributions, controls, reward_range, **where))


def certified_solution(
    operator: EmpiricalOperator,
    distributions: Distributions,
    controls: Controls,
    reward_range: tuple[float, float] | None = None,
    *,
    residual: float | None = None,
    kind: type[Solution] = Solution,
) -> Solution:
    """Of stationary distributions, whoever found them; their residual and error are measured here.

    Where rows lie elsewhere, the ``residual`` was measured there, and the ``kind`` of solution asks there.
    """
    outcome = distributions.outcome
    _require_finite(outcome, distributions.every)
    if residual is None and operator.policy is None and distributions.single is not None:
        residual = outcome.residual
    if residual is None:
        residual = max(
            float(np.abs(operator.residual(operator.spread(distribution))).sum())
            for distribution in distributions.every
        )
    stated = stated_error(outcome.error, outcome.error_kind, residual, operator.gamma, controls.tol)
    return kind(
        **_told(outcome, controls, distributions.single, distributions.every, stated),
        gamma=operator.gamma,
        residual=residual,
        source=operator,
        reward_range=reward_range,
    )


def ridge_solution(operator: EmpiricalOperator, fit: RidgeFit, request: Request) -> Solution:
    """Of a fit to the ridge problem."""
    states, cells = operator.over_states_and_cells(fit.row_distribution)
    _require_finite(fit.outcome, (cells,))
    solution = Solution(
        **_told(fit.outcome, request.limits, states),
        gamma=operator.gamma,
        residual=float(np.abs(operator.residual(cells)).sum()),
        source=operator,
        reward_range=request.reward_range,
        ridge=fit.system.ridge,
        cell_ridge_distribution=cells,
    )
    return _judged(solution)


def policy_solution(fit: Shrinkage, request: Request) -> Solution:
    """Of the default with a policy."""
    operator, distribution, outcome = fit.operator, fit.state_distribution, fit.solved
    _require_finite(outcome, (distribution,))
    residual = float(np.abs(operator.residual(operator.spread(distribution))).sum())
    stated = outcome.error, outcome.error_kind
    if fit.ridge == 0.0:
        stated = stated_error(*stated, residual, operator.gamma, request.limits.tol)
    solution = PolicySolution(
        **_told(outcome, request.limits, distribution, stated=stated) | fitted_fields(fit),
        gamma=operator.gamma,
        residual=residual,
        reward_range=request.reward_range,
        asked=request.problem,
    )
    return _judged(solution.corrected())


def horizon_solution(operator: EmpiricalOperator, request: Request) -> Solution:
    """Of the first steps from the initial distribution."""
    horizon = request.problem.horizon
    found = visits(operator, horizon, request.limits)
    solution = HorizonSolution(
        **_told(found.outcome, request.limits, found.outcome.distribution),
        gamma=operator.gamma,
        residual=0.0 if found.outcome.converged else math.nan,
        source=operator,
        reward_range=request.reward_range,
        horizon=horizon,
        ended_mass=found.terminal_mass,
    )
    return _judged(solution)


def saddle_solution(operator: EmpiricalOperator, fit: SaddleFit, request: Request) -> LinearSolution:
    """Of a point of the saddle problem, with its certificate."""
    problem, outcome, back = fit
    states, cells = operator.over_states_and_cells(problem.flow.completed(outcome.distribution))
    solution = LinearSolution(
        **_told(outcome, request.limits, states, stated=(None, "gap")) | {"error": outcome.gap.value},
        gamma=operator.gamma,
        residual=outcome.residual if outcome.residual is not None else math.nan,
        source=operator,
        reward_range=request.reward_range,
        cell_ridge_distribution=cells,
        w_tau=outcome.w,
        w_f=outcome.v if back is None else back @ outcome.v,
        u=outcome.u,
        objective=outcome.gap.primal,
        lower_bound=outcome.gap.dual,
        gap_kind=outcome.gap.kind,
        gap_trace=outcome.trace,
        divergence=problem.divergence.name,
    )
    return _judged(solution)


def continuous_solution(outcome: RatioOutcome, controls: Controls) -> ContinuousSolution:
    """Of a ratio over continuous states."""
    status = status_of(outcome, None, controls.tol)
    if status is Status.SOLVED and not outcome.certified:
        status = Status.TRAINED
    solution = ContinuousSolution(
        status=status,
        seconds=controls.elapsed(),
        threads=controls.threads,
        **{part.name: getattr(outcome, part.name) for part in fields(Ratio)},
    )
    solution = with_identified_status(solution)
    if solution.status is Status.TRAINED and not all(check.ok for check in decisive_checks(solution)):
        return replace(solution, status=Status.NOT_RELIABLE)
    return solution


def baseline_solution(
    operator: EmpiricalOperator, cell_distribution: Floats, found: Estimate, started: float
) -> BaselineSolution:
    """Of another method: what it found, and the distribution over cells that its weights amount to."""
    states, _ = operator.over_states_and_cells(cell_distribution)
    stopped = None if found.settled else Stop.ITERATIONS
    outcome = Outcome(states, found.method, found.note, found.settled, error_kind="", stopped=stopped)
    solution = BaselineSolution(
        **_told(outcome, Controls(tol=math.nan, started=started), states),
        gamma=operator.gamma,
        residual=float(np.abs(operator.residual(cell_distribution)).sum()),
        source=operator,
        cell_ridge_distribution=cell_distribution,
        found=found,
    )
    if not solution.is_identified:
        error = None if found.standard_error is None else math.nan
        nothing = replace(found, value=math.nan, standard_error=error, effective_sample_size=0.0)
        solution = replace(solution, found=replace(nothing, note=f"{found.note}; {UNIDENTIFIED}"))
    return with_identified_status(solution)


def _told(
    outcome: Outcome, controls: Controls, single: Any, every: tuple[Any, ...] | None = None,
    stated: tuple[float | None, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What was found over states and how, with the error that is ``stated``: by default the outcome's own."""
    error, error_kind = (outcome.error, outcome.error_kind) if stated is None else stated
    return {
        "status": status_of(outcome, error, controls.tol, single is None),
        "state_distribution": single,
        "state_distributions": (single,) if every is None else every,
        "error": error,
        "error_kind": error_kind,
        "method": outcome.method,
        "reason": outcome.reason,
        "condition": outcome.condition,
        "n_iter": outcome.n_iter,
        "seconds": controls.elapsed(),
        "tol": controls.tol,
        "history": outcome.history,
        "threads": controls.threads,
    }


def _require_finite(outcome: Outcome, distributions: tuple[Floats, ...]) -> None:
    """Say so where a distribution came out as nan, which no solver may call solved or stalled."""
    if not all(np.isfinite(distribution).all() for distribution in distributions):
        outcome.converged = False
        outcome.stopped = outcome.stopped or Stop.NOT_FINITE


# -- leaks ---------------------------------------------------------------------------------------------------


def _judged(solution: Any) -> Any:
    """The solution, its leak and range of rewards looked at; its status says if a value is identified."""
    _check_leak(solution)
    _check_reward_range(solution)
    return with_identified_status(solution)


def _check_leak(solution: Solution) -> None:
    """Say, or refuse, what the data cannot tell."""
    operator = solution.operator
    if operator.seen.all():
        return
    treatment = operator.choices.leak
    if solution.state_distribution is None:
        if leaks.refuses(treatment):
            for distribution in solution.state_distributions:
                # States that restart among themselves, and that no data lead to, have not been reached.
                reached = operator.expected_next((distribution > 0).astype(float))[operator.seen] > 0
                if reached.any():
                    _refuse_leak(operator, np.where(operator.seen, 0.0, operator.spread(distribution)))
        return
    mass = np.where(operator.seen, 0.0, solution.cell_distribution)
    if leaks.refuses(treatment):
        _refuse_leak(operator, mass)
    if operator.counts.has_sample_size:
        where = f", first of all {_cell_name(operator, int(mass.argmax()))}"
        text = leaks.warning(solution.leak, treatment, operator.choices.restart is not None, where)
        if text is not None:
            warnings.warn(f"{text}. See lingendice.audit", LeakWarning, stacklevel=outside_level())


def _check_reward_range(solution: Solution) -> None:
    """Refuse a range that rewards of the log lie outside of: bounds on the value would be none."""
    if solution.reward_range is None:
        return
    logged = known_rewards(solution.operator)
    if not logged.size:
        return
    low, high = solution.reward_range
    least, most = float(logged.min()), float(logged.max())
    rounding = ROUNDING * max(-least, most)  # in means of rewards that are all the same
    if least + rounding < low or most - rounding > high:
        raise ValueError(
            f"reward_range [{low:g}, {high:g}] does not hold the logged rewards [{least:g}, {most:g}]; "
            "widen it, or leave it out"
        )


def _refuse_leak(operator: EmpiricalOperator, mass: Floats) -> None:
    if mass.any():
        raise ValueError(leaks.refusal(float(mass.sum()), _cell_name(operator, int(mass.argmax()))))


def _cell_name(operator: EmpiricalOperator, cell: int) -> str:
    counts = operator.counts
    if counts.n_actions is None:
        return f"state {counts.label_of(cell)!r}"
    state, action = divmod(cell, counts.n_actions)
    return f"action {counts.label_of_action(action)!r} in state {counts.label_of(state)!r}"
