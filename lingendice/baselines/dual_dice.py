"""DualDICE with a table for every function."""

from __future__ import annotations

import time
from typing import Any

from lingendice.baselines.stationarity import stationarity
from lingendice.data.checks import require_gamma
from lingendice.data.counts import Counts
from lingendice.results.baseline_solution import BaselineSolution


def dual_dice(counts: Counts, gamma: float, *, policy: Any, initial: Any = None) -> BaselineSolution:
    """min over nu of E_p[(nu - gamma T nu)^2] / 2 - (1 - gamma) E_mu0[nu]; tau = nu - gamma T nu.

    The optimum satisfies M tau = (1 - gamma) mu0 over the cells with data, solved here by one sparse
    factorization: with a table and nu held at 0 where there is no data, the mass that leaves the data is
    absorbed, E_p tau = 1 - leak, and the value E_p[tau r] is not rescaled, as in the original.

    gamma = 1 is not supported: the objective loses its linear term and tau = 0 is optimal.

    References
    ----------
    O. Nachum, Y. Chow, B. Dai, L. Li (2019). DualDICE: Behavior-agnostic estimation of discounted
        stationary distribution corrections. NeurIPS.
    """
    from scipy.sparse.linalg import spsolve

    started = time.perf_counter()
    if require_gamma(gamma) == 1.0:
        raise ValueError("dual_dice needs gamma < 1: at gamma=1 its optimum is tau = 0; use solve(...)")
    system = stationarity(counts, policy, gamma, initial)
    tau = spsolve(system.matrix, system.right)
    return system.answer("DualDICE", tau, f"E_p tau = {float(system.p @ tau):.4f}, not rescaled", started)
