"""BestDICE: the regularized Lagrangian of Yang et al. (2020) with a table for every function."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.baselines.stationarity import Stationarity, stationarity
from lingendice.data.checks import Floats, require_gamma, require_number
from lingendice.data.counts import Counts
from lingendice.results.baseline_solution import BaselineSolution

MOST_EXCHANGES = 100
"""Rounds in which cells enter or leave the set held at zero."""


def best_dice(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    initial: Any = None,
    alpha_zeta: float = 1.0,
    alpha_nu: float = 1e-6,
    alpha_reward: float = 1.0,
    nonnegative: bool = True,
) -> BaselineSolution:
    """Saddle point of the regularized Lagrangian with normalization and positivity.

        max over zeta >= 0, min over nu, lam of  (1 - gamma) E_mu0[nu] + lam
            + E_p[zeta (alpha_reward r + gamma nu(x') - nu(x) - lam)] + alpha_nu E_p[nu^2] / 2
            - alpha_zeta E_p[zeta^2] / 2

    so that E_p zeta = 1 holds exactly and stationarity up to ``alpha_nu``, which must be positive: where data
    leak the two constraints contradict each other. The value is E_p[zeta r]. Each round of the
    active-set method factorizes one sparse system of 2 n + 1 unknowns for n cells with data.

    gamma = 1 is supported.

    References
    ----------
    M. Yang, O. Nachum, B. Dai, L. Li, D. Schuurmans (2020). Off-policy evaluation via the regularized
        Lagrangian. NeurIPS.
    """
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    for name, number in (("alpha_zeta", alpha_zeta), ("alpha_nu", alpha_nu)):
        if require_number(name, number) == 0.0:
            raise ValueError(f"{name} must be positive: without it the tabular saddle point need not exist")
    system = stationarity(counts, policy, gamma, initial)
    free = np.ones(system.seen.size, dtype=bool)
    settled = False
    for _ in range(MOST_EXCHANGES):
        zeta, slope = _solve_free(system, free, alpha_zeta, alpha_nu, alpha_reward)
        size = 1e-12 * max(1.0, float(np.abs(zeta).max()))
        leave = free & (zeta < -size)
        enter = ~free & (slope > size)
        if not nonnegative or not (leave.any() or enter.any()):
            settled = True
            break
        free = (free & ~leave) | enter
    zeta = np.maximum(zeta, 0.0) if nonnegative else zeta
    note = f"{int((~free).sum()):,} cells held at zero"
    if not settled:
        note += "; the active set did not settle: raise alpha_zeta, or pass nonnegative=False"
    return system.answer("BestDICE", zeta, note, started, settled)


def _solve_free(
    system: Stationarity, free: NDArray[np.bool_], alpha_zeta: float, alpha_nu: float, alpha_reward: float
) -> tuple[Floats, Floats]:
    """zeta with the cells outside ``free`` held at 0, and the slope of the objective (per p) everywhere."""
    from scipy import sparse
    from scipy.sparse.linalg import spsolve

    n, m = system.seen.size, int(free.sum())
    inside = system.matrix[:, np.flatnonzero(free)]
    p = sparse.csc_array(system.p[free][:, None])
    saddle = sparse.block_array(
        [
            [alpha_nu * sparse.diags_array(system.p), -inside, None],
            [-inside.T, -alpha_zeta * sparse.diags_array(system.p[free]), -p],
            [None, -p.T, None],
        ],
        format="csc",
    )
    earned = alpha_reward * system.p * system.reward
    solved = spsolve(saddle, np.concatenate([-system.right, -earned[free], [-1.0]]))
    nu, multiplier = solved[:n], solved[n + m]
    zeta = np.zeros(n)
    zeta[free] = solved[n : n + m]
    slope = alpha_reward * system.reward - multiplier - (system.matrix.T @ nu) / system.p
    return zeta, np.where(free, 0.0, slope)
