"""``solve``: read the request, pick a solver, build the solution of its outcome. No algorithm lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike

from lingendice.data.by_label import holds_several
from lingendice.data.checks import lies_on_device, refuse_unknown, require_choice
from lingendice.data.counts import Counts
from lingendice.data.interrupts import check, interruptible, pending, unmask
from lingendice.data.policies import is_list_of_policies
from lingendice.data.transitions import Transitions
from lingendice.kernels.parallel import run_all
from lingendice.model.compose import compose, compose_episodes
from lingendice.results.build import (
    continuous_solution,
    exact_solution,
    horizon_solution,
    policy_solution,
    ridge_solution,
    saddle_solution,
    small_solution,
)
from lingendice.results.calls import recorded
from lingendice.results.comparison import Comparison
from lingendice.results.continuous_solution import ContinuousSolution
from lingendice.results.few_ends import shrink_with_few_ends
from lingendice.results.solution import Solution
from lingendice.results.status import Status
from lingendice.solvers.request import SADDLE_METHODS, Distribution, Request, require_transitions_terms
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.stationary import solve_small, stationary_distributions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lingendice.model.operator import EmpiricalOperator
    from lingendice.solvers.problem import SaddleFit
    from lingendice.solvers.request import Arguments, ManyPolicies, OnePolicy
    from lingendice.solvers.stationary import Distributions

CONTINUOUS_METHODS = ("auto", "model", "fqe", "dr", "gendice", "linear")


@overload
def solve(  # type: ignore[overload-overlap]
    data: Transitions, gamma: float = 1.0, *, policy: Mapping[Any, Any], **arguments: Unpack[Arguments]
) -> Comparison: ...


@overload
def solve(
    data: Transitions, gamma: float = 1.0, *, policy: object = None, **arguments: Unpack[Arguments]
) -> ContinuousSolution: ...


@overload
def solve(
    data: Any, gamma: float = 1.0, *, policy: OnePolicy = None, **arguments: Unpack[Arguments]
) -> Solution: ...


@overload
def solve(
    data: Any, gamma: float = 1.0, *, policy: ManyPolicies, **arguments: Unpack[Arguments]
) -> Comparison: ...


@recorded("solve")
def solve(
    data: Any,
    gamma: float = 1.0,
    *,
    policy: Any = None,
    behavior: Any = None,
    reward: Any = None,
    initial: Distribution = None,
    horizon: int | None = None,
    ratio: str = "auto",
    leak: str = "restart",
    restart: Distribution = None,
    unseen: str = "auto",
    terminal: str = "auto",
    ridge: float | None = None,
    clone: float | None = None,
    smoothing: float | tuple[float, ArrayLike] | None = None,
    features: Any = None,
    dual_features: Any = None,
    divergence: Any = "chi2",
    penalty: float | None = None,
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
        sparse, labeled pandas frame), or a NetworkX, igraph or rustworkx graph. A sparse matrix is
        referred to, not copied: do not change it while the solution is in use. Or :class:`Transitions`
        between continuous states: then ``method`` is ``"auto"``, ``"model"``, ``"fqe"``, ``"dr"``,
        ``"gendice"`` or ``"linear"``, and a :class:`ContinuousSolution` is returned.
    gamma
        In (0, 1]; 1 is the average-reward (undiscounted) distribution.
    policy
        Target policy: a table (n_states, n_actions), one action per state, or by label
        (:mod:`lingendice.data.by_label`): ``{"new": "run"}``, ``{"new": {"run": 0.9, "repair": 0.1}}``, a
        frame with the columns state, action and probability, or a function of a state's label. Without it
        the logged chain. Several at once, as ``{"name": policy}`` or a list: a :class:`Comparison` is
        returned, with ranking and simultaneous intervals.
    behavior
        Probabilities of the logged actions, if known; else cloned from the log. The default with a policy
        uses them to judge how rare an action is; ``ratio="state", ridge=0`` weighs by target / behavior.
    reward
        Rewards by state, or by state and action, in place of the logged ones: arrays, or by label mappings,
        Series by their index, and frames.
    initial
        Distribution of the first state, which sums to 1: an array, by label (``{"new": 1.0}``), or one label.
        Default: the logged first states where episodes are known; else uniform for a chain at gamma < 1. At
        gamma = 1 it matters only to chains with several recurrent classes.
    horizon
        Count the first H steps only, gamma in (0, 1]: ``sol.expected_return`` is their discounted (or plain)
        sum from the initial distribution, ``sol.value`` their mean. By H applications of the same operator,
        O(H nnz); ended episodes earn nothing more, and target actions never logged in a state take the mean
        of its logged ones (``unseen=``).
    ratio
        ``"state_action"`` or ``"state"``. Default: ``"state"`` for the default with a policy (see ``ridge``),
        else ``"state_action"``.
    leak
        What happens past a cell that is reached but has no outgoing transitions: ``"restart"`` from the
        distribution ``restart``, ``"absorb"`` (gamma < 1; gives ``value_bounds``), or ``"error"``.
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
        Also the weight of 1/2 E_p (tau - 1)^2 in GenDICE's objective. Default: 0, but with a policy, where
        ``clone``, ``unseen``, ``smoothing``, ``leak`` and ``method`` are left out, too, and
        rewards are known: advantages of logged actions shrunk toward a regression
        (:mod:`lingendice.solvers.shrinkage`), which assumes nothing about the target; a
        :class:`PolicySolution` is returned. ``ridge=0, clone=0`` is the plain plug-in.
    clone
        For ``ratio="state"``: shrink the cloned behavior toward the target by this many visits. Default: 0.
    smoothing
        Total weight of a Dirichlet prior on every row, uniform, or a pair (weight, distribution). Default:
        none. Its bias is in no standard error, so that intervals are refused.
    reward_range
        (lowest, highest) possible reward, for ``value_bounds`` (default: the range seen) and for intervals of
        the value and of returns, which then allow for rewards that were never logged and keep to what follows
        from the range: a probability, paid at ends alone, stays in [0, 1]. After the end of an episode the
        reward is 0, which the bounds allow for by themselves.
    features, dual_features
        Features of tau (nonnegative) and f, one row per cell: an array, a sparse matrix, or what a builder of
        :mod:`lingendice.features` returns. ``dual_features`` defaults to ``features``. tau = features @ w,
        w >= 0, then minimizes GenDICE's objective instead of solving the equation exactly.
    divergence, penalty, normalize
        The objective's divergence (a name or an object of :mod:`lingendice.divergences`), the weight of its
        penalty on E_p tau - 1 (default 1; of networks see :class:`NeuralOptions`), or ``normalize="self"`` to
        impose it. The tabular answer depends on none.
    bound
        The paper's C: 0 <= w <= C and |w_f| <= C. Without it w and w_f are free, but ``method="sgd"`` steps
        within |w_f| <= 2, over an orthonormal basis of the same features where these are a matrix;
        ``sol.gap`` is that of the free problem, so that it shows where 2 is too small. Divergences whose best
        f is unbounded are defined with |w_f| <= 10 for the features as they are given (KL, reverse KL,
        Jensen-Shannon, Hellinger), or |f| <= 10 (Wasserstein), unless ``bound=`` says otherwise.
    method
        ``"auto"``, or ``"gth"`` (dense elimination), ``"elimination"`` (sparse), ``"gauss-seidel"``,
        ``"aggregation"`` for the exact equation; ``"convex"``, ``"extragradient"``, ``"sgd"`` for
        GenDICE's saddle point, which stop at a primal-dual gap of ``tol`` (``sol.gap``). At ``gamma=1``
        they refuse several recurrent classes, of which every mixture is an optimum, unless ``ridge`` or the
        features leave a single one.
    tol
        L1 error of the distribution for gamma < 1; entrywise relative error for iterations at gamma = 1.
    max_iter, time_limit
        End early with the best so far; ``status`` says so. For networks ``max_iter`` is the number of steps;
        with ``horizon`` the best so far are the steps that were counted, and ``sol.error`` bounds the rest.
    progress
        Show a line on standard error during long work.
    device
        ``"cpu"``, or ``"cuda"`` for an NVIDIA GPU through CuPy: the exact equation by extrapolated power
        steps, and ``method="sgd"`` without features. Counts are copied there and the distributions back.
        Everything else is solved on the host, and ``reason`` says so; so is the default with a policy: pass
        ``ridge=0, clone=0`` for the device. Data that lie on the device (CuPy, cupyx, DLPack,
        ``lingendice.gpu.DeviceCounts``) are copied to the host first, with a ``HostCopyWarning``.
    options
        ``{"on_interrupt": "return"}`` returns the best so far on Ctrl-C instead of raising. For
        ``method="sgd"``: ``batch``, ``step_scale``, ``first_epoch``, ``average``. For ``device="cuda"``:
        ``storage`` ("float64" or "float32", for SGD, too), ``chunk_rows`` (stream the matrix from
        the host, that many states at a time), ``poll_every`` (cycles between two looks at the device).

    Returns
    -------
    Solution

    References
    ----------
    R. Zhang, B. Dai, L. Li, D. Schuurmans (2020). GenDICE: Generalized offline estimation of stationary
    values. ICLR.
    W. K. Grassmann, M. I. Taksar, D. P. Heyman (1985). Regenerative analysis and steady state distributions
    for Markov chains. Operations Research.
    T. B. Armstrong, M. Kolesar (2018). Optimal inference in a class of regression models. Econometrica.

    Examples
    --------
    >>> import lingendice as lg
    >>> lg.solve([[90, 10], [30, 70]]).stationary
    array([0.75, 0.25])
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> round(lg.solve(counts, gamma=0.9, policy=[[0.9, 0.1], [0.2, 0.8]]).value, 2)
    0.63
    """
    request = Request.read(
        gamma=gamma, policy=policy, behavior=behavior, reward=reward, initial=initial, horizon=horizon,
        ratio=ratio, leak=leak, restart=restart, unseen=unseen, terminal=terminal, ridge=ridge, clone=clone,
        smoothing=smoothing, features=features, dual_features=dual_features, divergence=divergence,
        penalty=penalty, normalize=normalize, bound=bound, reward_range=reward_range, method=method, tol=tol,
        max_iter=max_iter, time_limit=time_limit, seed=seed, threads=threads, device=device,
        progress=progress, warm_start=warm_start, options=options,
    )  # fmt: skip
    if type(data) is np.ndarray and data.ndim == 2 and request.is_plain:
        try:
            outcome = solve_small(data, request.problem.gamma, request.limits.tol)
        except SystemError as error:
            unmask(error)
            raise
        if outcome is not None:
            return small_solution(outcome, data, request.problem.gamma, request.limits)
    if isinstance(data, Transitions):
        return _solve_transitions(data, request)
    if lies_on_device(data):
        from lingendice.gpu.device_counts import on_host

        data, request = on_host(data, request)
        policy = request.problem.policy
    if hasattr(data, "solve_request"):
        solution: Solution = data.solve_request(request)  # rows elsewhere: see lingendice.distributed
        return solution
    if policy is not None and holds_several(policy, data if isinstance(data, Counts) else None):
        return _compare(data, request)
    return _solve_counts(data, request)


METHODS = ("auto", "gth", "elimination", "gauss-seidel", "aggregation", *SADDLE_METHODS)


def _solve_counts(data: Any, request: Request) -> Solution:
    """Solve for counts or a matrix, for one policy at most."""
    if request.problem.horizon is not None:
        request.require_horizon_terms()
    _check_method(request)
    with interruptible(request.on_interrupt) as work:
        counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
        request = request._replace(problem=request.problem.as_arrays(counts))
        placed = _placed(counts, request)
        solution = _solution_of(counts, placed)
        if placed is not request:
            from lingendice.gpu.solver import ON_HOST

            solution = replace(solution, reason=solution.reason + ON_HOST)
        work.solution = solution
    return solution


def _check_method(request: Request) -> None:
    """Refuse methods and options that there are not, before any work; the saddle point reads its own."""
    methods: tuple[str, ...] = METHODS
    options: tuple[str, ...] = ("on_interrupt",)
    if request.method.device != "cpu":
        from lingendice.gpu.chain import METHOD, DeviceOptions

        methods, options = (*methods, METHOD), (*options, *DeviceOptions.NAMES)
    require_choice("method", request.method.name, methods)
    if not request.wants_saddle:
        request.require_exact_terms()
        refuse_unknown(request.method.options, options, "for this method")


def _placed(counts: Counts, request: Request) -> Request:
    """The request with the device that it is solved on: the host, where the GPU has no solver for it."""
    if request.method.device == "cpu":
        return request
    from lingendice.gpu import solver

    if counts.total and solver.serves(request) and not request.shrinks(counts):
        return request
    solver.refuse_options(request)
    return request._replace(method=request.method._replace(device="cpu"))


def _solution_of(counts: Counts, request: Request) -> Solution:
    """The exact equation, the ridge problem, the saddle point or the default with a policy."""
    if request.problem.horizon is not None:
        return horizon_solution(compose_episodes(counts, request.problem), request)
    if request.shrinks(counts):
        request.refuse_exact_method()
        return policy_solution(shrink_with_few_ends(counts, request.problem, request.limits), request)
    operator = compose(counts, request.problem)
    if request.wants_saddle:
        return saddle_solution(operator, _saddle(operator, request), request)
    if request.ridge == 0.0:
        found = _stationary(operator, request)
        return exact_solution(operator, found, request.limits, request.reward_range)
    request.refuse_exact_method()
    fit = RidgeSystem(operator, request.ridge).solve(request.limits)
    return ridge_solution(operator, fit, request)


def _stationary(operator: EmpiricalOperator, request: Request) -> Distributions:
    """Every stationary distribution, by the solver of the device."""
    if request.method.device != "cpu":
        from lingendice.gpu import solver

        return solver.stationary(operator, request)
    limits, method = request.limits, request.method.name
    return stationary_distributions(
        operator.chain, operator.gamma, operator.initial, request.follows_initial, method, limits
    )


def _saddle(operator: EmpiricalOperator, request: Request) -> SaddleFit:
    """GenDICE's saddle point with its primal-dual gap, by the solver of the device."""
    if request.method.device != "cpu":
        from lingendice.gpu import solver

        return solver.saddle(operator, request)
    from lingendice.solvers.saddle import solve_saddle

    return solve_saddle(operator, request)


def _solve_transitions(data: Transitions, request: Request) -> ContinuousSolution | Comparison:
    """A model, FQE, networks or linear features over continuous states, for one policy or several."""
    require_transitions_terms(request)
    require_choice("method", request.method.name, CONTINUOUS_METHODS)
    from lingendice.continuous.dispatch import solve_continuous

    policy = request.problem.policy
    if not (holds_several(policy) or is_list_of_policies(policy)):
        with interruptible(request.on_interrupt) as work:
            ((_, outcome),) = solve_continuous(data, request, {None: policy})
            work.solution = continuous_solution(outcome, request.limits)
        return work.solution
    named = policy if isinstance(policy, Mapping) else dict(enumerate(policy))
    if not named:
        raise ValueError("there is no policy to solve for: the collection is empty")
    solved: dict[Any, ContinuousSolution] = {}
    with interruptible(request.on_interrupt) as work:
        for name, outcome in solve_continuous(data, request, named):
            solved[name] = continuous_solution(outcome, request.limits)
            work.solution = Comparison(tuple(solved), tuple(solved.values()), request.method.seed)
    return work.solution


# -- several policies ----------------------------------------------------------------------------------------


def _compare(data: Any, request: Request) -> Comparison:
    """Solve for several target policies, spread over the threads.

    Each is a whole solve of its own; what does not depend on the policy (counts, cell sums, mean rewards,
    first states) is read once. After a Ctrl-C the comparison in the exception (or returned, by
    ``options={"on_interrupt": "return"}``) is that of the policies finished by then, or of those begun where
    none was.
    """
    policies = request.problem.policy
    named = dict(policies) if isinstance(policies, Mapping) else dict(enumerate(policies))
    if not named:
        raise ValueError("there is no policy to solve for: the collection is empty")
    counts = data if isinstance(data, Counts) else Counts.from_matrix(data, copy=False)
    # Reading these once keeps every thread from doing so.
    _ = counts.cell_count, counts.data_distribution, counts.reward, counts.terminal_count
    threads = request.limits.threads
    each = 1 if len(named) >= threads else threads

    def solve_one(name: Any, table: Any) -> Solution | None:
        if pending():
            return None
        problem = request.problem._replace(policy=table)
        one = request._replace(problem=problem, limits=request.limits.begun_now(each))
        try:
            return _solve_counts(counts, one)
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            raise ValueError(f"for the policy {name!r}: {error}") from error

    tasks = [partial(solve_one, name, table) for name, table in named.items()]
    # A device's current stream belongs to the thread that asks: its solves follow one another there.
    beside = threads if each == 1 and request.method.device == "cpu" else 1
    with interruptible(request.on_interrupt) as work:
        work.hold()
        begun = {
            name: one for name, one in zip(named, run_all(tasks, beside), strict=True) if one is not None
        }
        if not begun:
            check()
        # Distributions that were cut short would be ranked with the others as if they were answers.
        whole = {name: one for name, one in begun.items() if one.status is not Status.INTERRUPTED} or begun
        work.solution = Comparison(tuple(whole), tuple(whole.values()), request.method.seed)
    return work.solution
