"""Fitted Q evaluation over continuous states."""

from __future__ import annotations

from typing import Any

from lingendice.baselines.continuous_estimate import continuous_estimate
from lingendice.data.transitions import Transitions
from lingendice.results.baseline_solution import Estimate


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
