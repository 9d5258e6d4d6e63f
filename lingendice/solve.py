"""``solve``: validate, choose, run. No algorithm lives here."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike

from lingendice.data.checks import (
    Floats,
    NotAvailableYet,
    require_choice,
    require_gamma,
    require_number,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.interrupts import interruptible, read_on_interrupt, unmask
from lingendice.data.transitions import Transitions
from lingendice.gpu.arrays import lies_on_device
from lingendice.model.compose import Choices, compose, terminals_absorb
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.comparison import is_many, solve_many
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.solution import Solution, Status, settled_status, stated_error, with_identified_status
from lingendice.solvers.control import Controls, Outcome, Stop
from lingendice.solvers.linear_choices import DIVERGENCE_NAMES, LinearChoices

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lingendice.results.comparison import Comparison
    from lingendice.solve_arguments import Arguments, ManyPolicies, OnePolicy
    from lingendice.solvers.stationary import Distributions

METHODS = (
    "auto", "gth", "elimination", "gauss-seidel", "aggregation", "convex", "extragradient", "svrg", "sgd",
)  # fmt: skip
CONTINUOUS_METHODS = ("auto", "neural", "linear")
LEAK_WARNING = 0.01


class LeakWarning(UserWarning):
    """More than 1 % of the stationary mass lies where there is no data."""


@overload
def solve(
    data: Transitions, gamma: float = 1.0, *, policy: Any = None, **arguments: Unpack[Arguments]
) -> ContinuousSolution: ...


@overload
def solve(
    data: Any, gamma: float = 1.0, *, policy: OnePolicy = None, **arguments: Unpack[Arguments]
) -> Solution: ...


@overload
def solve(
    data: Any, gamma: float = 1.0, *, policy: ManyPolicies, **arguments: Unpack[Arguments]
) -> Comparison: ...


def solve(
    data: Any,
    gamma: float = 1.0,
    *,
    policy: Any = None,
    behavior: ArrayLike | None = None,
    reward: ArrayLike | None = None,
    initial: ArrayLike | None = None,
    ratio: str = "auto",
    leak: str = "restart",
    restart: ArrayLike | None = None,
    unseen: str = "auto",
    terminal: str = "auto",
    ridge: float | str | None = None,
    clone: float | str | None = None,
    smoothing: float | tuple[float, ArrayLike] | str | None = None,
    features: Any = None,
    dual_features: Any = None,
    divergence: Any = "chi2",
    penalty: float = 1.0,
    normalize: str = "penalty",
    bound: float | None = None,
    reward_range: tuple[float, float] | None = None,
    method: str = "auto",
    tol: float = 1e-10,
    max_iter: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    progress: bool = False,
    warm_start: Any = None,
    options: dict[str, Any] | None = None,
) -> Solution | Comparison | ContinuousSolution:
    """Estimate the stationary distribution mu and the ratio tau = mu / p from counted transitions.

    Solves ``mu = (1 - gamma) mu0 + gamma T' mu``, ``sum mu = 1``, with T the empirical operator of the
    data under ``policy``. Rows are sources; rows of a transition matrix sum to 1.

    Parameters
    ----------
    data
        :class:`Counts`, or a square matrix of counts or probabilities (nested list, array, SciPy
        sparse), or a NetworkX graph. A sparse matrix is referred to, not copied: do not change it
        while the solution is in use. Or :class:`Transitions` between continuous states: then ``method`` is
        ``"neural"``, ``"linear"`` or ``"auto"`` and a :class:`ContinuousSolution` is returned.
    gamma
        In (0, 1]; 1 is the average-reward (undiscounted) distribution.
    policy
        Target policy, (n_states, n_actions), or one action a state. Without it the logged chain.
        Several at once, as a mapping or a list of tables: a :class:`Comparison` is returned, with
        ranking and simultaneous intervals.
    behavior
        Logged action probabilities for ``ratio="state"``; cloned from the counts when left out.
    reward
        Rewards by state, or by state and action, in place of the logged ones.
    initial
        Distribution of the first state. Default: the logged first states where episodes are known; else
        uniform
        for a chain at gamma < 1. At gamma = 1 it matters only to chains with several recurrent classes.
    ratio
        ``"state_action"`` or ``"state"``. Default: ``"state"`` where the behavior is cloned automatically
        (see ``clone``), else ``"state_action"``.
    leak
        What happens past a cell that was reached but never seen leaving: ``"restart"`` from the distribution
        ``restart``, ``"absorb"`` (gamma < 1; gives ``value_bounds``), or ``"error"``.
    restart
        That distribution over states; default ``initial`` (gamma < 1) or the data distribution (gamma = 1).
        PageRank's dangling vector. Where it is given, a large leak brings no :class:`LeakWarning`.
    unseen
        Mass of target actions never logged in a state: ``"leak"``, ``"renormalize"`` to logged actions,
        or ``"mean"`` of the state's logged transitions. Default: leak for state-action ratios,
        renormalize for state ratios.
    terminal
        Terminal transitions are ``"absorb"``-ed at zero reward (default for gamma < 1) or
        ``"restart"`` from the initial distribution (default for gamma = 1).
    ridge
        Weight eps of ``E_p (tau - 1)^2`` beside the squared residual; 0 solves the equation exactly.
        ``"auto"``: 1 / N, lowered while it is seen to bias the value, and 0 where terminal transitions are
        absorbed (gamma < 1), since tau then has less than unit mass. Default: 0 without a policy or with
        a ``method``, ``leak`` or divergence that asks for the exact equation, else ``"auto"``. A number is
        also the weight of 1/2 E_p (tau - 1)^2 in GenDICE's objective.
    clone
        How the behavior is cloned for ``ratio="state"``: ``"auto"`` divides the target by each action's
        chance of having been seen; a number c shrinks the clone toward the target. Default: ``"auto"``
        where ``ratio`` is not ``"state_action"`` and ``unseen`` and ``behavior`` are left to the library,
        under the same terms as ``ridge``.
    smoothing
        Total weight of a Dirichlet prior on every row, uniform, or a pair (weight, distribution), or
        ``"auto"`` for the weight of highest marginal likelihood. Default: none.
    reward_range
        (lowest, highest) possible reward, for ``value_bounds``; default the range seen.
    features, dual_features
        Features of tau (nonnegative) and f, one row a cell: an array, a sparse matrix, or what a builder of
        :mod:`lingendice.features` returns. ``dual_features`` defaults to ``features``. tau = features @ w,
        w >= 0, then minimizes GenDICE's objective instead of solving the equation exactly.
    divergence, penalty, normalize
        The objective's divergence (a name or an object of :mod:`lingendice.divergences`), the weight of its
        penalty on E_p tau - 1, or ``normalize="self"`` to impose it. The tabular answer depends on none.
    bound
        The paper's C: 0 <= w <= C and |w_f| <= C.
    method
        ``"auto"``, or ``"gth"`` (dense elimination), ``"elimination"`` (sparse), ``"gauss-seidel"``,
        ``"aggregation"`` for the exact equation; ``"convex"``, ``"extragradient"``, ``"svrg"``, ``"sgd"`` for
        GenDICE's saddle point, which stop at a primal-dual gap of ``tol`` (``sol.gap``).
    tol
        L1 error of the distribution for gamma < 1; entrywise relative error for iterations at gamma = 1.
    max_iter, time_limit
        End early with the best so far; ``status`` says so. For networks ``max_iter`` is the number of steps.
    progress
        Show a line on standard error during long work.
    device
        ``"cpu"``, or ``"cuda"`` for an NVIDIA card through CuPy: the exact equation by extrapolated power
        steps, the ridge by conjugate gradients, or ``method="extragradient"`` (over features, too) or
        ``"sgd"``. Data on the host are copied there and the distributions back; data on the device (CuPy,
        cupyx, DLPack, ``lingendice.gpu.DeviceCounts``) stay there, and so do the arrays of the solution; what
        the exact equation does not give (the ridge of the default, say) is chosen on the host, with a
        ``HostCopyWarning`` or ``options={"copy_to_host": True}``.
    options
        ``{"on_interrupt": "return"}`` returns the best so far on Ctrl-C instead of raising. For
        ``method="sgd"``: ``batch``, ``step_scale``, ``first_epoch``, ``average``. For ``device="cuda"``:
        ``storage`` ("float64" or "float32", for any method there), ``chunk_rows`` (stream the matrix from
        the host, so many states at a time), ``poll_every`` (cycles between two looks at the device).

    Returns
    -------
    Solution

    Examples
    --------
    >>> import lingendice as lg
    >>> lg.solve([[90, 10], [30, 70]]).stationary
    array([0.75, 0.25])
    """
    if policy is not None and is_many(policy):
        arguments = dict(locals())
        return solve_many(arguments.pop("data"), arguments.pop("policy"), **arguments)
    controls = Controls.read(tol, max_iter, time_limit, threads, progress=progress)
    require_whole("seed", seed)
    require_number("penalty", penalty)
    limits = _reward_range(reward_range)
    if type(data) is np.ndarray and data.ndim == 2:
        from lingendice.solvers.dense import solve_small

        given = (
            policy, behavior, reward, initial, restart, ridge, clone, smoothing, features, dual_features,
            bound, reward_range, max_iter, time_limit, warm_start, options,
        )  # fmt: skip
        words = (ratio, leak, unseen, terminal, method, device, divergence, normalize)
        plain = penalty > 0 and all(option is None for option in given)
        if plain and set(map(type, words)) == {str} and words == _PLAIN_WORDS:
            try:
                solution = solve_small(data, gamma, controls)
            except SystemError as error:
                unmask(error)
                raise
            if solution is not None:
                return solution
    if isinstance(data, Transitions):
        if device != "cpu":
            raise NotAvailableYet(f"device={device!r} for Transitions", 'use device="cpu"')
        return _solve_transitions(dict(locals()))
    linear = LinearChoices(
        features, dual_features, divergence, penalty, normalize, bound, ridge, method, seed, warm_start,
        options,
    )  # fmt: skip
    choices = Choices(
        require_gamma(gamma), policy, behavior, reward, initial, ratio, leak, restart, unseen, terminal,
        clone, smoothing,
    )  # fmt: skip
    if device != "cpu" or lies_on_device(data):
        from lingendice.gpu.device_solve import solve_on_device

        return solve_on_device(data, choices, linear, controls, limits, device)
    return _dispatch(data, choices, linear, controls, limits)


def _dispatch(
    data: Any,
    choices: Choices,
    linear: LinearChoices,
    controls: Controls,
    reward_range: tuple[float, float] | None,
) -> Solution:
    """Send checked arguments to the exact, the regularized or the saddle-point solvers."""
    method = require_choice("method", linear.method, METHODS)
    on_interrupt = read_on_interrupt(linear.options)
    if not linear.is_asked:
        _refuse_unavailable(linear.divergence, linear.penalty, linear.normalize, linear.warm_start)
        _refuse_options(linear.options)
    counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
    choices, strength = _defaults(choices, linear, counts)
    with interruptible(on_interrupt) as work:
        if linear.is_asked:
            solution = _run_linear(compose(counts, choices), linear, controls, reward_range)
        elif strength == 0.0:
            follow_initial = choices.initial is not None
            solution = _run(compose(counts, choices), follow_initial, method, controls, reward_range)
        else:
            solution = _run_ridge(counts, choices, strength, controls, reward_range)
        work.solution = solution
    return solution


def _defaults(
    choices: Choices, linear: LinearChoices, counts: Counts | None = None
) -> tuple[Choices, float | None]:
    """What None means for the clone and the ridge: see :func:`solve`."""
    plain_leak = choices.leak == "restart"
    by_name = linear.method != "auto" or linear.is_asked or linear.is_special
    exact = choices.policy is None or not plain_leak or by_name
    left_to_us = choices.clone is None and choices.behavior is None and choices.unseen == "auto"
    if left_to_us and not exact and choices.ratio != "state_action":
        choices = choices._replace(clone="auto")
    # A ridge draws tau to 1, but where episodes end for good its mass is far below 1.
    ends = counts is not None and terminals_absorb(counts, choices)
    return choices, _ridge_strength(linear.ridge, exact, ends)


def _solve_transitions(given: dict[str, Any]) -> ContinuousSolution:
    """Check what does not apply to continuous states, and run the networks or the linear features."""
    from lingendice.continuous.dispatch import ContinuousChoices, solve_continuous

    controls = given["controls"]
    read = ("controls", "limits", "device", "tol", "max_iter", "time_limit", "threads", "progress")
    given = {name: value for name, value in given.items() if name not in read}
    for name in (
        "behavior",
        "reward",
        "initial",
        "restart",
        "clone",
        "smoothing",
        "reward_range",
        "warm_start",
    ):
        if given.pop(name) is not None:
            raise ValueError(f"{name} does not apply to Transitions; leave it out ({_INSTEAD[name]})")
    for name, plain in (("ratio", "auto"), ("leak", "restart"), ("unseen", "auto"), ("normalize", "penalty")):
        if given.pop(name) != plain:
            raise ValueError(f"{name} does not apply to Transitions; leave it out")
    require_choice("method", given["method"], CONTINUOUS_METHODS)
    given["gamma"] = require_gamma(given["gamma"])
    data, choices = given.pop("data"), ContinuousChoices(**given)
    with interruptible(read_on_interrupt(choices.options)) as work:
        work.solution = solution = solve_continuous(data, choices, controls)
    return solution


_INSTEAD = {
    "behavior": "no behavior policy is needed",
    "reward": "rewards belong to Transitions",
    "initial": "pass initial_state= to Transitions",
    "restart": "ended episodes restart from the initial distribution at gamma=1",
    "clone": "networks clone the behavior by options={'base': 'cloned'}",
    "smoothing": "it is a prior on counted rows",
    "reward_range": "there are no value bounds",
    "warm_start": "see options['checkpoint'] and options['resume']",
}


_PLAIN_WORDS = ("auto", "restart", "auto", "auto", "auto", "cpu", "chi2", "penalty")


def _run(
    operator: EmpiricalOperator,
    follow_initial: bool,
    method: str,
    controls: Controls,
    reward_range: tuple[float, float] | None,
    there: Any = None,
    stacklevel: int = 5,
) -> Solution:
    """Solve the exact equation, here or, with a device and its settings, there."""
    from lingendice.solvers.stationary import stationary_distributions

    if there is None:
        distributions = stationary_distributions(
            operator.chain, operator.gamma, operator.initial, follow_initial, method, controls
        )
    else:
        from lingendice.gpu.distributions import device_distributions

        distributions = device_distributions(there[0], operator, follow_initial, controls, there[1])
    solution = exact_solution(operator, distributions, controls, reward_range)
    check_leak(solution, stacklevel)
    return with_identified_status(solution)


def exact_solution(
    operator: EmpiricalOperator,
    distributions: Distributions,
    controls: Controls,
    reward_range: tuple[float, float] | None,
) -> Solution:
    """Certify stationary distributions, whoever found them, and make the solution of them."""
    outcome = distributions.outcome
    _require_finite_distributions(outcome, distributions.every)
    residual = outcome.residual if operator.policy is None and distributions.single is not None else None
    if residual is None:
        residual = max(
            float(np.abs(operator.residual(operator.spread(distribution))).sum())
            for distribution in distributions.every
        )
    error, kind = stated_error(outcome.error, outcome.error_kind, residual, operator.gamma, controls.tol)
    return Solution(
        **outcome_fields(outcome, distributions.single is None, error, controls),
        gamma=operator.gamma,
        state_distribution=distributions.single,
        state_distributions=distributions.every,
        residual=residual,
        error=error,
        error_kind=kind,
        source=operator,
        reward_range=reward_range,
    )


def _run_linear(
    operator: EmpiricalOperator,
    choices: LinearChoices,
    controls: Controls,
    reward_range: tuple[float, float] | None,
) -> Solution:
    from lingendice.solvers.saddle import solve_linear

    solution = solve_linear(operator, choices, controls, reward_range)
    check_leak(solution)
    return with_identified_status(solution)


def _run_ridge(
    counts: Counts,
    choices: Choices,
    strength: float | None,
    controls: Controls,
    reward_range: tuple[float, float] | None,
    build: Any = None,
    stacklevel: int = 5,
) -> Solution:
    """Solve the ridge problem, here or by the systems that ``build`` makes."""
    from lingendice.solvers.automatic_ridge import fit_automatically
    from lingendice.solvers.ridge import RidgeSystem

    operator, fit = fit_automatically(counts, choices, strength, 1.0, controls, build or RidgeSystem)
    distribution, outcome = fit.row_distribution, fit.outcome
    _require_finite_distributions(outcome, (distribution,))
    cell_distribution = distribution if fit.system.over_cells else operator.spread(distribution)
    state_distribution = distribution.reshape(operator.n_states, -1).sum(axis=1)
    solution = Solution(
        status=_status(outcome, False, outcome.error, controls.tol),
        gamma=operator.gamma,
        method=outcome.method,
        reason=outcome.reason,
        state_distribution=state_distribution,
        state_distributions=(state_distribution,),
        residual=float(np.abs(operator.residual(cell_distribution)).sum()),
        error=outcome.error,
        error_kind=outcome.error_kind,
        condition=outcome.condition,
        n_iter=outcome.n_iter,
        seconds=controls.elapsed(),
        tol=controls.tol,
        source=operator,
        reward_range=reward_range,
        history=outcome.history,
        threads=controls.threads,
        ridge=fit.system.ridge,
        cell_ridge_distribution=cell_distribution,
    )
    check_leak(solution, stacklevel)
    return with_identified_status(solution)


def _ridge_strength(ridge: float | str | None, exact: bool, ends: bool) -> float | None:
    """The weight of the ridge; None where it is to be chosen from the data."""
    if ridge is None:
        return 0.0 if exact or ends else None
    if isinstance(ridge, str):
        require_choice("ridge", ridge, ("auto",))
        return 0.0 if ends else None
    return require_number("ridge", ridge)


def outcome_fields(
    outcome: Outcome, several: bool, error: float | None, controls: Controls
) -> dict[str, Any]:
    """What a solution says of how it was found, given the error that it states."""
    return {
        "status": _status(outcome, several, error, controls.tol),
        "method": outcome.method,
        "reason": outcome.reason,
        "condition": outcome.condition,
        "n_iter": outcome.n_iter,
        "seconds": controls.elapsed(),
        "tol": controls.tol,
        "history": outcome.history,
        "threads": controls.threads,
    }


def _require_finite_distributions(outcome: Outcome, distributions: tuple[Floats, ...]) -> None:
    """Say so where a distribution came out as nan, which no solver may call solved or stalled."""
    if not all(np.isfinite(distribution).all() for distribution in distributions):
        outcome.converged = False
        outcome.stopped = outcome.stopped or Stop.NOT_FINITE


def _status(outcome: Outcome, several: bool, error: float | None, tol: float) -> Status:
    if outcome.stopped is not None:
        return _STOPPED[outcome.stopped]
    if not outcome.converged:
        return Status.STALLED
    return settled_status(several, error, tol)


_STOPPED = {
    Stop.ITERATIONS: Status.ITERATION_LIMIT,
    Stop.TIME: Status.TIME_LIMIT,
    Stop.INTERRUPT: Status.INTERRUPTED,
    Stop.NOT_FINITE: Status.NOT_FINITE,
}


def check_leak(solution: Solution, stacklevel: int = 5) -> None:
    """Say, or refuse, what the data cannot tell; a warning points ``stacklevel`` callers up."""
    operator = solution.operator
    if solution.state_distribution is None or operator.seen.all():
        return
    mass = np.where(operator.seen, 0.0, solution.cell_distribution)
    if operator.leak_policy == "error" and mass.any():
        cell = int(mass.argmax())
        raise ValueError(
            f"{_cell_name(operator, cell)} is reached but was never seen leaving "
            f"({mass.sum():.2%} of the stationary mass lies in such cells); "
            'add data there, or choose leak="restart" or leak="absorb"'
        )
    if (
        leak_needs_warning(solution.leak, operator.leak_policy, operator.choices)
        and operator.counts.has_sample_size
    ):
        warnings.warn(
            f"{solution.leak:.1%} of the stationary mass lies where there is no data, first of all "
            f"{_cell_name(operator, int(mass.argmax()))}; the value leaves it out. See lingendice.audit",
            LeakWarning,
            stacklevel=stacklevel,  # by default the caller of solve
        )


def leak_needs_warning(leak: float, leak_policy: str, choices: Choices) -> bool:
    """Whether a leak is worth a warning.

    Who names the restart distribution has decided what happens there: PageRank's dangling nodes are no
    surprise.
    """
    return leak > LEAK_WARNING and leak_policy == "restart" and choices.restart is None


def _cell_name(operator: EmpiricalOperator, cell: int) -> str:
    counts = operator.counts
    if counts.n_actions is None:
        return f"state {counts.label_of(cell)!r}"
    state, action = divmod(cell, counts.n_actions)
    return f"action {counts.label_of_action(action)!r} in state {counts.label_of(state)!r}"


def _reward_range(given: tuple[float, float] | None) -> tuple[float, float] | None:
    if given is None:
        return None
    try:
        low, high = given
    except (TypeError, ValueError):
        raise ValueError(f"reward_range must be a pair (lowest, highest), got {given!r}") from None
    low, high = (require_number("reward_range", bound, at_least=-np.inf) for bound in (low, high))
    if low > high:
        raise ValueError(f"reward_range must be (lowest, highest), got {given!r}")
    return low, high


def _refuse_options(options: dict[str, Any] | None) -> None:
    unknown = sorted(set(options or ()) - {"on_interrupt"})
    if unknown:
        raise ValueError(f"options has no entry {unknown[0]!r} for this method; known: 'on_interrupt'")


def _refuse_unavailable(divergence: Any, penalty: float, normalize: str, warm_start: Any) -> None:
    """Check what the exact tabular answer does not depend on, and refuse what it cannot use."""
    if isinstance(divergence, str):
        require_choice("divergence", divergence, DIVERGENCE_NAMES)
    if require_number("penalty", penalty) == 0.0:
        raise ValueError("penalty must be positive: without it tau = 0 is a solution at gamma=1")
    require_choice("normalize", normalize, ("penalty", "self"))
    if warm_start is not None:
        raise NotAvailableYet("warm_start", "leave it out: exact solvers need no start")
