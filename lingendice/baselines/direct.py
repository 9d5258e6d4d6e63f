"""Values of a fitted model or Q: the plug-in chain of counts, networks, and doubly robust values on both.

The state ratio of Liu et al. is here as another exact solve of the counts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, overload

import numpy as np

import lingendice as lg
from lingendice.baselines.importance_sampling import (
    Paths,
    effective_size,
    largest_by_step,
    largest_share,
    log_ratios,
    products,
    read_paths,
    running_logs,
    standard_error,
)
from lingendice.continuous.evaluation import Evaluation, EvaluationSettings, Preparation
from lingendice.continuous.outcome import ValueEstimate as Found
from lingendice.data.by_label import read_policy_table
from lingendice.data.checks import (
    numeric_array,
    require_finite,
    require_gamma,
    require_length,
    require_number,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.data.transitions import Transitions
from lingendice.kernels.parallel import resolve_threads
from lingendice.results.build import LeakWarning, baseline_solution
from lingendice.results.calls import recorded
from lingendice.results.solution import Solution
from lingendice.results.targets import Estimate

_NOTES = {
    "model": "the standard error is the spread of the members, each without a third of the episodes",
    "FQE": "the standard error is the spread of the members, each without a third of the episodes",
    "DR": "clustered by episode; Q and the ratio are taken as known",
}

_QUICK_RATIO_STEPS = 1000


@heeds_ctrl_c
def continuous_estimate(
    transitions: Transitions,
    gamma: float,
    policy: Any,
    make: Callable[[Evaluation], Found],
    *,
    terminal: str = "auto",
    effort: str = "default",
    restarts: str = "auto",
    seed: int = 0,
    threads: int | None = None,
) -> Estimate:
    """What ``make`` finds of one policy on one log."""
    seed, threads = require_whole("seed", seed), resolve_threads(threads)
    settings = EvaluationSettings.read({"effort": effort, "restarts": restarts}, seed, threads)
    found = make(Evaluation(Preparation(transitions, require_gamma(gamma), terminal, settings), policy))
    return Estimate(found.value, gamma, found.name, _NOTES[found.name], found.standard_error)


@overload
def model_based(
    counts: Transitions, gamma: float = 1.0, *, policy: Any = None, **arguments: Any
) -> Estimate: ...


@overload
def model_based(
    counts: Counts, gamma: float = 1.0, *, policy: Any = None, smoothing: float | str = 0.0, **arguments: Any
) -> Solution: ...


@recorded("baselines.model_based")
def model_based(
    counts: Any, gamma: float = 1.0, *, policy: Any = None, smoothing: float | str = 0.0, **arguments: Any
) -> Solution | Estimate:
    """Solve the empirical MDP under the policy, without any ridge or cloning.

    ``smoothing="add-one"`` adds one count to every next state of every cell (a Dirichlet prior of weight
    n_states per row), as the baseline in published comparisons seems to do; 0 is the maximum-likelihood
    model, whose optimum every exact tabular ratio method shares where all cells reached were seen. Further
    arguments go to ``solve``. Cost: one exact solve.

    For :class:`Transitions` the dynamics are an ensemble of three networks that knows of restarts, rolled out
    under the policy (:mod:`lingendice.continuous.dynamics`): ``effort`` ("default", "quick"), ``restarts``
    ("auto" infers those that are not flagged, "none"), ``terminal``, ``seed`` and ``threads``. The standard
    error is the spread of the members.

    gamma = 1 is supported.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.model_based(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    if isinstance(counts, Transitions):
        _refuse_for_transitions(smoothing=smoothing != 0.0)
        return continuous_estimate(counts, gamma, policy, lambda found: found.estimate("model"), **arguments)
    if isinstance(smoothing, str):
        if smoothing != "add-one":
            raise ValueError(f"smoothing must be a weight or 'add-one', got {smoothing!r}")
        smoothing = float(counts.n_states)
    if policy is not None:
        arguments.setdefault("ratio", "state_action")
    return _exact(counts, gamma, policy=policy, smoothing=require_number("smoothing", smoothing), **arguments)


def _refuse_for_transitions(**given: bool) -> None:
    """Refuse what is for counts alone."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} belongs to Counts; leave it out for Transitions")


def _exact(counts: Counts, gamma: float, **arguments: Any) -> Solution:
    """What ``solve`` finds without a ridge; a leak is part of what these methods are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return lg.solve(counts, gamma, ridge=0.0, **arguments)


@recorded("baselines.ips")
def ips(
    counts: Counts, gamma: float = 1.0, *, policy: Any, behavior: Any = None, **arguments: Any
) -> Solution:
    """Exact tabular solution of the state-ratio equation of Liu et al. (2018).

    Solves sum_s w(s) A(s, s') = w(s') n(s') (gamma = 1; with the initial distribution's share for gamma < 1),
    where A(s, s') adds up target / behavior over the transitions s -> s', each row scaled to the visits n(s)
    (self-normalized weights), and reports sum w rho r. ``behavior=None`` clones it from the counts, which
    leaves the target restricted to the actions logged in each state. The published code minimizes the
    squared residual of the unscaled equation with a ridge of 1e-3 by a dense quadratic program; scaled
    rows make an exact solution exist. Cost: one exact solve over states.

    gamma = 1 is supported.

    References
    ----------
    Q. Liu, L. Li, Z. Tang, D. Zhou (2018). Breaking the curse of horizon: Infinite-horizon off-policy
        estimation. NeurIPS.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.ips(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    state_ratio = {"ratio": "state", "clone": 0.0, "smoothing": 0.0}
    return _exact(counts, gamma, policy=policy, behavior=behavior, **state_ratio, **arguments)


@recorded("baselines.fitted_q")
def fitted_q(
    transitions: Transitions, gamma: float = 1.0, *, policy: Any = None, **arguments: Any
) -> Estimate:
    """Q(s, a) = r + gamma E_pi Q(s', a') by temporal differences, with a slow copy of Q on the right.

    Three networks, each without a third of the episodes; expectations over discrete actions are exact, others
    use six actions drawn for each row. Terminal rows bootstrap to zero at gamma < 1 and from the initial
    distribution at gamma = 1, where Q is differential (r - value + Q(s', a')). The value is mean Q at the
    initial states. ``terminal``, ``effort`` ("default", "quick"), ``seed`` and ``threads`` as for ``solve``.

    References
    ----------
    H. Le, C. Voloshin, Y. Yue (2019). Batch policy learning under constraints. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> import lingendice as lg
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.normal(size=(2, 200, 1))
    >>> episode = np.repeat(np.arange(10), 20)
    >>> data = lg.Transitions(state, action, state[:, 0], 0.5 * state + action, episode=episode)
    >>> target = lg.policies.GaussianPolicy(lambda states: 0.0 * states, std=0.5)
    >>> found = lg.baselines.fitted_q(data, 0.9, policy=target, effort="quick")
    >>> abs(found.value) < 1.0
    True
    """
    if "restarts" in arguments:
        raise ValueError("restarts is for models of the dynamics; leave it out of fitted_q")
    return continuous_estimate(transitions, gamma, policy, lambda found: found.estimate("FQE"), **arguments)


@recorded("baselines.doubly_robust")
def doubly_robust(
    counts: Any,
    gamma: float,
    *,
    policy: Any,
    behavior: Any = None,
    weighted: bool = False,
    folds: int = 1,
    q: str = "model",
    tau: Any = "auto",
    **arguments: Any,
) -> Any:
    """(1 - gamma) (V(s0) + sum_t gamma^t w_{0:t} (r + gamma V(s') - Q(s, a))), averaged over episodes.

    ``weighted`` scales the weights of each step to mean one over the episodes that reach it. ``folds`` > 1
    takes the Q of each episode from the other folds only (cross-fitting). A truncated episode ends with
    V of its last state, so the horizon is infinite. The distribution and ratio shown are the plug-in's; only
    the value is corrected. Cost: one plug-in solve and one adjoint per fold, and O(N).

    gamma = 1 is not supported: with infinite products of ratios there is no limit. There the doubly
    robust value with the exact empirical Q equals the plug-in's: use solve.

    For :class:`Transitions` the weights are a ratio tau(s, a) instead of products, at any gamma: mean V(s0) +
    E[tau (r + gamma V(s') - Q)], self-normalized, Q cross-fitted by episode. ``q`` is that of the "model" or
    "fqe"; ``tau`` is "model" (simulated over logged distribution), "cloned" (products of cloned ratios),
    "ratio" (GenDICE's), an array such as ``sol.tau``, or "auto": cloned where the policy has a density. Where
    restarts are inferred each is replaced by its probability. ``effort``, ``restarts``, ``terminal``,
    ``seed`` and ``threads`` as for ``model_based``.

    References
    ----------
    N. Jiang, L. Li (2016). Doubly robust off-policy value evaluation for reinforcement learning. ICML.
    N. Kallus, M. Uehara (2020). Double reinforcement learning for efficient off-policy evaluation. JMLR.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = {"state": [0, 1, 0, 1], "next_state": [1, 0, 1, 1], "action": [0, 1, 1, 0]}
    >>> counts = lg.Counts.from_transitions(**log, reward=[0, 1, 2, 0], episode=[0, 0, 1, 1])
    >>> policy = [[0.9, 0.1], [0.2, 0.8]]
    >>> round(lg.baselines.doubly_robust(counts, 0.9, policy=policy).value, 2)
    0.51
    """
    if isinstance(counts, Transitions):
        _refuse_for_transitions(behavior=behavior is not None, weighted=weighted, folds=folds != 1)
        return _of_transitions(counts, gamma, policy, q, tau, arguments)
    if arguments or q != "model" or not isinstance(tau, str) or tau != "auto":
        raise ValueError(f"{', '.join(arguments) or 'q and tau'} belong to Transitions; leave them out")
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    if gamma == 1.0:
        raise ValueError("doubly_robust needs gamma < 1; at gamma=1 use solve(...), which it would equal")
    paths = read_paths(counts, "doubly_robust")
    n = paths.n_episodes
    folds = require_whole("folds", folds, at_least=1, at_most=n)
    policy = read_policy_table("policy", policy, counts)
    logs = running_logs(paths, log_ratios(counts, paths, policy, behavior))
    weight = products(logs, largest_by_step(paths, logs)[paths.step] if weighted else 0.0)
    if weighted:
        alive = np.bincount(paths.step).astype(float)
        mean = np.bincount(paths.step, weights=weight) / alive
        weight = np.divide(weight, mean[paths.step], out=np.zeros_like(weight), where=mean[paths.step] > 0)
    fold = np.arange(n) * folds // n
    model = model_based(counts, gamma, policy=policy)
    earned = np.zeros(n)
    for number in range(folds):
        inside = fold[paths.episode] == number
        part = model
        if folds > 1:
            part = model_based(_without(counts, paths, inside), gamma, policy=policy)
        own_q, v = part.q_values.reshape(counts.n_states, -1), part.state_values
        after = np.append(v, 0.0)[paths.next_state]
        surprise = paths.reward + gamma * after - own_q[paths.cell]
        first = np.where(paths.step == 0, v[paths.state], 0.0)
        terms = np.where(inside, first + gamma**paths.step * weight * surprise, 0.0)
        earned += np.bincount(paths.episode, weights=terms, minlength=n)
    scores = (1.0 - gamma) * earned
    note = f"behavior {'cloned from the log' if behavior is None else 'as given'}, {folds} fold(s)"
    error = standard_error((scores - scores.mean()) / n)
    name, size = f"{'weighted ' * weighted}doubly robust", effective_size(weight[paths.last])
    found = Estimate(
        float(scores.mean()), gamma, name, note, error, n - 1, size, "episodes",
        largest_weight=largest_share(weight[paths.last]),
    )  # fmt: skip
    return baseline_solution(model.operator, model.cell_distribution, found, started)


def _of_transitions(
    transitions: Transitions, gamma: float, policy: Any, q: str, tau: Any, arguments: dict[str, Any]
) -> Estimate:
    if isinstance(tau, str) and tau == "ratio":
        shared = {name: arguments[name] for name in ("terminal", "seed", "threads") if name in arguments}
        steps = _QUICK_RATIO_STEPS if arguments.get("effort") == "quick" else None
        tau = lg.solve(transitions, gamma, policy=policy, method="gendice", max_iter=steps, **shared).tau
    if not isinstance(tau, str):
        tau = numeric_array("tau", tau).astype(np.float64)
        require_length("tau", tau, len(transitions))
        require_finite("tau", tau)
    make = partial(Evaluation.estimate, name="DR", q=q, tau=tau)
    return continuous_estimate(transitions, gamma, policy, make, **arguments)


def _without(counts: Counts, paths: Paths, left_out: Any) -> Counts:
    """Counts of the other episodes."""
    keep = ~left_out
    # A terminal step's next state is nowhere; any state stands in for it.
    following = np.where(paths.terminal, 0, paths.next_state)
    return Counts.from_transitions(
        paths.state[keep],
        following[keep],
        paths.action[keep],
        paths.reward[keep],
        paths.episode[keep],
        terminal=paths.terminal[keep] if paths.terminal.any() else None,
        n_states=counts.n_states,
        n_actions=counts.n_actions,
    )
