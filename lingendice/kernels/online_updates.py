"""Counting a stream in place, and one step with the factor of an older chain."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel


@kernel
def add_transitions(states, next_states, weight, growth, counts, totals, inside):
    """Count transitions in place, each weighing ``growth`` times its predecessor.

    ``inside`` says which states are in the recurrent class. Returns (next weight, whether the classes of the
    chain may have changed).
    """
    changed = False
    for t in range(states.size):
        i = states[t]
        j = next_states[t]
        # Only a row's first transition and one that leaves the recurrent class can change the classes.
        if totals[i] == 0.0 or (inside[i] and not inside[j]):
            changed = True
        counts[i, j] += weight
        totals[i] += weight
        weight *= growth
    return weight, changed


@kernel
def add_rewards(states, next_states, rewards, weight, growth, pair_weight, pair_mean, pair_m2, cells):
    """Weight, mean and squared deviations of the rewards of every pair, and cells' (weight, total)."""
    for t in range(states.size):
        i = states[t]
        j = next_states[t]
        seen = pair_weight[i, j] + weight
        away = rewards[t] - pair_mean[i, j]
        pair_mean[i, j] += away * weight / seen
        pair_m2[i, j] += weight * away * (rewards[t] - pair_mean[i, j])
        pair_weight[i, j] = seen
        cells[0, i] += weight
        cells[1, i] += weight * rewards[t]
        weight *= growth


@fused_kernel
def carry_changes(shares, z):
    """Turn residuals relative to flows into the relative changes of y that make up for them, in place.

    Two triangular solves with a unit diagonal, as sums of rows: the factor is read row by row.
    """
    n = z.size
    for k in range(n - 1):
        # Slices of one length: indexed by j, z[k] might be written too, and the loop is not vectorized.
        value, row, later = z[k], shares[k, k + 1 :], z[k + 1 :]
        for j in range(n - 1 - k):
            later[j] += value * row[j]
    for k in range(n - 1, 0, -1):
        value, row = z[k], shares[k]
        for j in range(k):
            z[j] += value * row[j]


@fused_kernel
def entering(y, counts):
    """y' counts. BLAS would be as fast, but its threads may wait for each other longer than that takes."""
    total = np.zeros(y.size)
    for i in range(y.size):
        value, row = y[i], counts[i]
        for j in range(y.size):
            total[j] += value * row[j]
    return total
