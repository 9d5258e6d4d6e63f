"""Values of states: the adjoint of the stationary equation, by the solver that suits the chain.

References
----------
C. D. Meyer (1975). The role of the group generalized inverse in the theory of finite Markov chains. SIAM
    Review 17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.model.transition_rows import TransitionRows, find_classes, submatrix
from lingendice.solvers.control import Monitor, Stopped
from lingendice.solvers.stationary import (
    MODERATE_FLOPS,
    PATIENT_FLOPS,
    SWEEPS_TRIED,
    analyzed,
    csr_arrays,
    sweeps_goal,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from lingendice.solvers.discounted import DiscountedResult
    from lingendice.solvers.elimination import Elimination

DENSE_STATES = 400
SHARED_STATES = 2000
"""States up to which one dense factorization serves all functions."""


@heeds_ctrl_c
def solve_adjoint(
    chain: TransitionRows, gamma: float, reward: Floats, distribution: Floats, tol: float, threads: int,
    monitor: Monitor | None = None,
) -> Floats:  # fmt: skip
    """V = r + gamma P V; at gamma = 1 the bias: V = r - g + P V with mu V = 0 (g = mu r).

    At gamma = 1 the chain must have one recurrent class: with several the bias is not unique. A chain that
    absorbs has returns at gamma = 1, too, where every state leads to an end: V = r + P V. Where the
    monitor ends the work (``monitor.stopped`` says so) V is what was reached, 0 if that is nothing.
    """
    monitor = monitor or Monitor()
    if chain.n <= DENSE_STATES:
        return _dense(chain, gamma, distribution)(reward[:, None])[:, 0]
    try:
        if gamma < 1.0:
            return _discounted(chain, gamma, reward, tol, threads, monitor)
        if chain.absorbed.any():
            return _restarting(chain, gamma, reward, tol, threads, monitor)
        return _average(chain, reward, distribution, tol, threads, monitor)
    except Stopped:
        return np.zeros(chain.n)


def _dense(chain: TransitionRows, gamma: float, distribution: Floats) -> Callable[[Floats], Floats]:
    """A solver for columns r of  h + c s = r + gamma P h ,  mu h = 0 :  V = h + c, or h where nothing ends.

    s is the share of each visit that restarts, or 1: (I - gamma P) 1 = s. Rounding of what all entries of V
    share, which grows as 1 / (1 - gamma), is kept out of h, and h is regular for one recurrent class.
    """
    from scipy.linalg import lu_factor, lu_solve

    n, ends = chain.n, gamma < 1.0 or bool(chain.absorbed.any())
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = np.eye(n) - gamma * chain.dense()
    system[:n, n] = chain.restarts(gamma) if ends else 1.0
    system[n, :n] = distribution
    factor = lu_factor(system, check_finite=False)

    def solve(columns: Floats) -> Floats:
        right = np.vstack([columns, np.zeros((1, columns.shape[1]))])
        solved: Floats = lu_solve(factor, right, check_finite=False)
        return solved[:n] + solved[n] if ends else solved[:n]

    return solve


def _discounted(
    chain: TransitionRows, gamma: float, reward: Floats, tol: float, threads: int, monitor: Monitor
) -> Floats:
    """Sweeps where rounding leaves them the digits and they are soon done, as for the distribution."""
    scale = max(float(np.abs(reward).max()), np.finfo(float).tiny)
    earned = reward / scale
    if sweeps_goal(gamma, tol) > 0.0:
        found = _swept(chain, gamma, earned, tol, threads, monitor)
        if found.converged or monitor.stopped is not None:
            return found.solution[: chain.n] * scale
    return _restarting(chain, gamma, earned, tol, threads, monitor) * scale


def _swept(
    chain: TransitionRows, gamma: float, earned: Floats, tol: float, threads: int, monitor: Monitor
) -> DiscountedResult:
    from lingendice.solvers.discounted import discounted_values

    if chain.absorbed.any():
        chain, earned = chain.with_sink(), np.append(earned, 0.0)
    held = chain.returning(np.full(chain.n, 1.0 / chain.n))
    return discounted_values(
        held, earned, gamma, tol=tol / (1 - gamma), threads=threads, max_sweeps=SWEEPS_TRIED, monitor=monitor
    )


def _restarting(
    chain: TransitionRows, gamma: float, earned: Floats, tol: float, threads: int, monitor: Monitor
) -> Floats:
    """V as the bias h of a chain that restarts anywhere and pays c for it.

    With s the share of each visit that restarts, h = r - c s + gamma P h + s mean(h), and then
    V = h - mean(h) + c. What all entries of V share grows as 1 / (1 - gamma), and rounding with it; h does
    not.
    """
    n = chain.n
    rates, restarts = chain.extended(gamma, np.full(n, 1.0 / n))
    (nodes,) = find_classes(rates).recurrent
    earned = np.append(earned, np.zeros(rates.shape[0] - n))
    cost, bias = _recurrent_bias(
        submatrix(rates, nodes), earned[nodes], restarts[nodes], None, tol, threads, monitor
    )
    return bias[:n] - bias[:n].mean() + cost


def _average(
    chain: TransitionRows, reward: Floats, distribution: Floats, tol: float, threads: int, monitor: Monitor
) -> Floats:
    """Bias of the recurrent class first, then that of the transient states, which lead into it."""
    from scipy import sparse

    rates, _ = chain.extended()
    classes = find_classes(rates)
    (nodes,) = classes.recurrent
    # Hubs take no time and earn nothing.
    earned = np.zeros(rates.shape[0])
    earned[: chain.n] = reward - distribution @ reward
    visits = np.concatenate([distribution, distribution @ chain.out])[nodes]
    bias = np.zeros(rates.shape[0])
    time = np.where(nodes < chain.n, 1.0, 0.0)
    _, bias[nodes] = _recurrent_bias(
        submatrix(rates, nodes), earned[nodes], time, visits / visits.sum(), tol, threads, monitor
    )
    monitor.check()
    transient = classes.transient
    if transient.size:
        from scipy.sparse.linalg import spsolve

        onward = rates[transient]
        inside = sparse.eye_array(transient.size) - onward[:, transient]
        bias[transient] = spsolve(inside.tocsc(), earned[transient] + onward @ bias)
    return bias[: chain.n] - distribution @ bias[: chain.n]


def _recurrent_bias(
    rates: csr_array, earned: Floats, time: Floats, visits: Floats | None, tol: float, threads: int,
    monitor: Monitor,
) -> tuple[float, Floats]:  # fmt: skip
    """What is earned per time, and the bias, which one constant may be added to.

    By elimination where it is affordable, else by the levels of the iterative solver; where these do not
    settle, by an elimination that takes long. ``visits``: the stationary distribution, where it is known.
    """
    from lingendice.solvers.aggregation import relative_values, solve_stationary

    def eliminated(factor: Elimination) -> tuple[float, Floats]:
        return factor.factorize(rates.data, threads=threads, monitor=monitor).bias(earned, time, monitor)

    if (factor := analyzed(rates, 0, MODERATE_FLOPS, monitor)) is not None:
        return eliminated(factor)
    arrays = csr_arrays(rates)
    if visits is None:
        visits = solve_stationary(*arrays, tol=tol, threads=threads, monitor=monitor).distribution
    gain = float(visits @ earned) / float(visits @ time)
    found = relative_values(*arrays, visits, earned - gain * time, tol=tol, threads=threads, monitor=monitor)
    if found.converged or found.stopped:
        return gain, found.h
    if (factor := analyzed(rates, 0, PATIENT_FLOPS, monitor)) is not None:
        return eliminated(factor)
    raise ValueError(
        f"the values of states did not settle (residual {found.residual:.1e}), and an elimination would take "
        f"more than {PATIENT_FLOPS:.0e} operations: the chain is too slow and too large for both; raise tol"
    )


@heeds_ctrl_c
def adjoint_of(
    chain: TransitionRows, gamma: float, distribution: Floats, tol: float, threads: int
) -> Callable[[Floats], Floats]:
    """A function that solves V = f + gamma P V for every column f over states.

    At gamma = 1, V = f - mu f + P V with mu V = 0. Small chains take one dense factorization
    (2/3 n^3 operations, then 2 n^2 per column); others one iterative or sparse solve per column.
    """
    if chain.n <= SHARED_STATES:
        return _dense(chain, gamma, distribution)

    def one_by_one(columns: Floats) -> Floats:
        solved = [
            solve_adjoint(chain, gamma, np.ascontiguousarray(column), distribution, tol, threads)
            for column in columns.T
        ]
        return np.stack(solved, axis=1)

    return one_by_one
