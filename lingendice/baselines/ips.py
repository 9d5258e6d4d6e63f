"""Stationary state ratios with importance-weighted actions (Liu, Li, Tang and Zhou, 2018)."""

from __future__ import annotations

import warnings
from typing import Any

import lingendice as lg
from lingendice.data.counts import Counts
from lingendice.results.build import LeakWarning
from lingendice.results.solution import Solution


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakWarning)
        return lg.solve(
            counts,
            gamma,
            policy=policy,
            behavior=behavior,
            ratio="state",
            clone=0.0,
            ridge=0.0,
            smoothing=0.0,
            **arguments,
        )
