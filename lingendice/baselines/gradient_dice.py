"""GradientDICE with a table for every function."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lingendice.baselines.stationarity import stationarity
from lingendice.data.checks import require_gamma, require_number
from lingendice.data.counts import Counts
from lingendice.results.baseline_solution import BaselineSolution


def gradient_dice(
    counts: Counts, gamma: float = 1.0, *, policy: Any, initial: Any = None, penalty: float = 1.0
) -> BaselineSolution:
    """min over tau of |M tau - b|^2 / (2 p) + penalty (E_p tau - 1)^2 / 2, tau of either sign.

    The saddle point's linear system in (f, tau, u), 2 n + 1 unknowns for n cells with data, is factorized
    once; normal equations would square its condition. The expectation in the penalty is that of the data,
    E_p. The value is E_p[tau r], not rescaled.

    gamma = 1 is supported (``penalty`` > 0 and one recurrent class).

    References
    ----------
    S. Zhang, B. Liu, S. Whiteson (2020). GradientDICE: Rethinking generalized offline estimation of
        stationary values. ICML.
    """
    from scipy import sparse
    from scipy.sparse.linalg import spsolve

    started = time.perf_counter()
    gamma = require_gamma(gamma)
    if require_number("penalty", penalty) == 0.0 and gamma == 1.0:
        raise ValueError("gradient_dice at gamma=1 needs penalty > 0: without it tau = 0 is optimal")
    system = stationarity(counts, policy, gamma, initial)
    n = system.seen.size
    p = sparse.csc_array(system.p[:, None])
    saddle = sparse.block_array(
        [
            [sparse.diags_array(system.p), system.matrix, None],
            [system.matrix.T, None, -penalty * p],
            [None, p.T, sparse.csc_array([[-1.0]])],
        ],
        format="csc",
    )
    solved = spsolve(saddle, np.concatenate([system.right, np.zeros(n), [1.0]]))
    tau = solved[n : 2 * n]
    note = f"E_p tau = {float(system.p @ tau):.4f}, least tau {tau.min():.3g}"
    return system.answer("GradientDICE", tau, note, started)
