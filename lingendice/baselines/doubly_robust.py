"""Step-wise doubly robust estimation with the plug-in's values as control variates."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lingendice.baselines.direct import continuous_estimate, model_based
from lingendice.baselines.paths import (
    Paths,
    effective_size,
    read_paths,
    running_products,
    standard_error,
    step_ratios,
)
from lingendice.continuous.evaluation import Evaluation
from lingendice.continuous.outcome import Estimate as Found
from lingendice.data.checks import numeric_array, require_gamma, require_length
from lingendice.data.counts import Counts
from lingendice.data.transitions import Transitions
from lingendice.results.build import baseline_solution
from lingendice.results.variants import Estimate, Weighing


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
    "fqe"; ``tau`` is "model" (simulated over logged distribution), "cloned" (products of cloned ratios), an
    array such as ``sol.tau`` of a ratio method, or "auto": cloned where the policy has a density. Where
    restarts are inferred each is replaced by its probability. ``effort``, ``restarts``, ``terminal``,
    ``seed`` and ``threads`` as for ``model_based``.

    References
    ----------
    N. Jiang, L. Li (2016). Doubly robust off-policy value evaluation for reinforcement learning. ICML.
    N. Kallus, M. Uehara (2020). Double reinforcement learning for efficient off-policy evaluation. JMLR.
    """
    if isinstance(counts, Transitions):
        return _of_transitions(counts, gamma, policy, q, tau, arguments)
    if arguments or q != "model" or not isinstance(tau, str) or tau != "auto":
        raise ValueError(f"{', '.join(arguments) or 'q and tau'} belong to Transitions; leave them out")
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    if gamma == 1.0:
        raise ValueError("doubly_robust needs gamma < 1; at gamma=1 use solve(...), which it would equal")
    paths = read_paths(counts, "doubly_robust")
    n = paths.n_episodes
    if not 1 <= int(folds) <= n:
        raise ValueError(f"folds must lie between 1 and the {n} episodes, got {folds!r}")
    weight = running_products(paths, step_ratios(counts, paths, policy, behavior))
    if weighted:
        alive = np.bincount(paths.step).astype(float)
        mean = np.bincount(paths.step, weights=weight) / alive
        weight = np.divide(weight, mean[paths.step], out=np.zeros_like(weight), where=mean[paths.step] > 0)
    fold = np.arange(n) * int(folds) // n
    model = model_based(counts, gamma, policy=policy)
    earned = np.zeros(n)
    for number in range(int(folds)):
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
    found = Weighing(float(scores.mean()), note, error, n - 1, effective_size(weight[paths.last]), "episodes")
    name = f"{'weighted ' * weighted}doubly robust"
    return baseline_solution(name, model.operator, model.cell_distribution, found, started)


def _of_transitions(
    transitions: Transitions, gamma: float, policy: Any, q: str, tau: Any, arguments: dict[str, Any]
) -> Estimate:
    if not isinstance(tau, str):
        tau = numeric_array("tau", tau).astype(np.float64)
        require_length("tau", tau, len(transitions))

    def make(found: Evaluation) -> Found:
        weighted = found.doubly_robust(q, tau)
        error = None if np.isnan(weighted.standard_error) else weighted.standard_error
        return Found("DR", weighted.value, error, 0.0)

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
