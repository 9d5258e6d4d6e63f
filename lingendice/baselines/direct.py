"""Values of a fitted model or Q: the plug-in chain of counts, and networks for continuous states.

The state ratio of Liu et al. is here as another exact solve of the counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, overload

import lingendice as lg
from lingendice.continuous.evaluation import Evaluation, Preparation, Settings
from lingendice.continuous.outcome import Estimate as Found
from lingendice.data.checks import require_gamma, require_number
from lingendice.data.counts import Counts
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.data.transitions import Transitions
from lingendice.kernels.parallel import resolve_threads
from lingendice.results.build import LeakWarning
from lingendice.results.solution import Solution
from lingendice.results.variants import Estimate

_NOTES = {
    "model": "the standard error is the spread of the members, each without a third of the episodes",
    "FQE": "the standard error is the spread of the members, each without a third of the episodes",
    "DR": "clustered by episode; Q and the ratio are taken as known",
}


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
    if transitions.reward is None:
        raise ValueError("a value needs rewards; pass reward= to Transitions")
    settings = Settings.read({"effort": effort, "restarts": restarts}, seed, resolve_threads(threads))
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
    """
    if isinstance(counts, Transitions):
        return continuous_estimate(counts, gamma, policy, lambda found: found.estimate("model"), **arguments)
    if isinstance(smoothing, str):
        if smoothing != "add-one":
            raise ValueError(f"smoothing must be a weight or 'add-one', got {smoothing!r}")
        smoothing = float(counts.n_states)
    if policy is not None:
        arguments.setdefault("ratio", "state_action")
    return _exact(counts, gamma, policy=policy, smoothing=require_number("smoothing", smoothing), **arguments)


def _exact(counts: Counts, gamma: float, **arguments: Any) -> Solution:
    """What ``solve`` finds without a ridge; a leak is part of what these methods are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return lg.solve(counts, gamma, ridge=0.0, **arguments)


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
    """
    state_ratio = {"ratio": "state", "clone": 0.0, "smoothing": 0.0}
    return _exact(counts, gamma, policy=policy, behavior=behavior, **state_ratio, **arguments)


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
    """
    return continuous_estimate(transitions, gamma, policy, lambda found: found.estimate("FQE"), **arguments)
