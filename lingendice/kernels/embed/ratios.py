"""Ratio and value from a distribution and visits."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import kernel


@kernel
def ratio_into(distribution, visits, tau):  # type: ignore[no-untyped-def]
    """tau = mu / p, nan where a state has no visits."""
    total = 0.0
    for i in range(visits.size):
        total += visits[i]
    for i in range(visits.size):
        tau[i] = distribution[i] * total / visits[i] if visits[i] > 0 else np.nan


@kernel
def value_of(distribution, visits, reward_total):  # type: ignore[no-untyped-def]
    """sum p tau r over the mass of states with data, r the mean reward of a visit."""
    earned = 0.0
    identified = 0.0
    for i in range(visits.size):
        if visits[i] > 0:
            earned += distribution[i] * reward_total[i] / visits[i]
            identified += distribution[i]
    return earned / identified if identified > 0.0 else np.nan
