"""Counting a stream in place, and following its stationary ratio with a factor that has grown old.

In units of counts the ratio y = mu / n solves y M = 0, M = D - W over nodes (see `counted_chains`).
A transition i -> j changes M in two or three entries. With the factor of an older M_0 a step

    dy = -(r M_0^-1) / (1 + g) ,   y <- y + dy ,   r = y M  becomes  r g / (1 + g) + dy (M - M_0)

costs one pair of triangular solves per step; the changes of y, not the residual alone, give the error. The
growth g of the data since the factor was made takes the uniform part out of M - M_0.

The factor is applied in single precision: relative changes of y come from residuals relative to the flows
through the nodes, by ratios of flows, so that no entry is too small for it. Steps start from the residual
that the transitions since the last solve bring; where what single precision did to it would begin to show,
the residual is computed anew from the counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, kernel
from lingendice.kernels.random_numbers import mix


class Nodes(NamedTuple):
    """A class of the chain: its nodes, the place of its one hub or -1, and where that leads."""

    gamma: Any
    members: Any
    hub: Any
    hub_distribution: Any
    follows_data: Any
    """Whether the hub restarts where the data are."""


# Steps that a refreshed ratio may take, and how fast they must shrink.
MOST_STEPS = 13
SLOWEST = 0.5
# How much coarser the kept factor is than the numbers that it is applied to.
COARSER = 2.0**29
# On the error that the last changes foretell.
CAUTION = 10.0


@kernel
def add_transitions(states, next_states, weight, growth, counts, totals, place, recent, n_recent):
    """Count transitions in place, each weighing ``growth`` times its predecessor.

    ``recent`` (places of pairs) and its weights keep what came since the factor was made, as far as there is
    room. Returns (next weight, number of recent ones, whether the classes of the chain may have changed,
    whether there is a pair that was never seen before).
    """
    changed = False
    widened = False
    pairs, weights = recent
    for t in range(states.size):
        i = states[t]
        j = next_states[t]
        # Only a row's first transition and one that leaves the recurrent class can change the classes.
        if totals[i] == 0.0 or (place[i] >= 0 and place[j] < 0):
            changed = True
        if counts[i, j] == 0.0:
            widened = True
        counts[i, j] += weight
        totals[i] += weight
        if n_recent < weights.size:
            pairs[n_recent, 0] = place[i]
            pairs[n_recent, 1] = place[j]
            weights[n_recent] = weight
        n_recent += 1
        weight *= growth
    return weight, n_recent, changed, widened


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


@kernel
def rates_among(counts, totals, gamma, members, hub_distribution, start, target):
    """Rates among the nodes of a class, in the order of a pattern, from the counts of now."""
    n = totals.size
    rate = np.empty(target.size)
    for k in range(members.size):
        i = members[k]
        for entry in range(start[k], start[k + 1]):
            j = members[target[entry]]
            if i >= n:
                rate[entry] = hub_distribution[j]
            elif j < n:
                rate[entry] = gamma * counts[i, j]
            else:
                rate[entry] = (1.0 - gamma) * totals[i] if totals[i] > 0.0 else 1.0
    return rate


@fused_kernel
def carry_four(shares, k, start, stop, a, b, c, d, out):
    """out[start:stop] += a, b, c, d times rows k to k + 3 of the shares; each slice is contiguous."""
    first = shares[k, start:stop]
    second = shares[k + 1, start:stop]
    third = shares[k + 2, start:stop]
    fourth = shares[k + 3, start:stop]
    target = out[start:stop]
    for j in range(stop - start):
        target[j] += a * first[j] + b * second[j] + c * third[j] + d * fourth[j]


@fused_kernel
def node_residual(counts, totals, nodes, y, out):
    """out = y M over the nodes of a class."""
    gamma, members, hub, hub_distribution, _ = nodes
    n = totals.size
    n_members = members.size
    inflow = np.zeros(n)
    for k in range(n_members):
        if members[k] < n:
            rate = gamma * y[k]
            row = counts[members[k]]
            for j in range(n):
                inflow[j] += rate * row[j]
    to_hub = 0.0
    hub_total = 0.0
    for k in range(n_members):
        i = members[k]
        if i >= n:
            continue
        if totals[i] > 0.0:
            out[k] = y[k] * totals[i] - inflow[i]
            to_hub += (1.0 - gamma) * totals[i] * y[k]
        else:
            out[k] = y[k] - inflow[i]
            to_hub += y[k]
        if hub >= 0:
            out[k] -= y[hub] * hub_distribution[i]
            hub_total += hub_distribution[i]
    if hub >= 0:
        out[hub] = y[hub] * hub_total - to_hub


@kernel
def flow_factor(front, exit_rate, distribution):
    """A factor of `gth_dense` as shares of flows in single precision, and the flows.

    With flow_k = distribution_k exit_k, the flow from a node to those eliminated after it, an entry is what
    its row's node sends to its column's, directly (below the diagonal) or in the end (above it), over the
    flow of the latter.
    """
    n = distribution.size
    flow = distribution * exit_rate
    flow[n - 1] = np.inf  # nothing is carried to the last node, whose change is fixed
    shares = np.zeros((n, n), np.float32)
    for k in range(n):
        for j in range(k):
            shares[k, j] = distribution[k] * front[k, j] / flow[j]
        for j in range(k + 1, n):
            shares[k, j] = flow[k] * front[k, j] / flow[j]
    return shares, flow


@fused_kernel
def step_through(shares, z):
    """Turn residuals relative to flows into the relative changes of y that make up for them, in place.

    The change of the last node is 0. Four rows of the factor are carried on at a time, which spares most of
    the traffic of z. O(n^2).
    """
    n = z.size
    k = 0
    while k + 4 < n:
        a = z[k]
        b = z[k + 1] + a * shares[k, k + 1]
        c = z[k + 2] + a * shares[k, k + 2] + b * shares[k + 1, k + 2]
        d = z[k + 3] + a * shares[k, k + 3] + b * shares[k + 1, k + 3] + c * shares[k + 2, k + 3]
        z[k + 1], z[k + 2], z[k + 3] = b, c, d
        carry_four(shares, k, k + 4, n, a, b, c, d, z)
        k += 4
    while k < n - 1:
        for j in range(k + 1, n):
            z[j] += z[k] * shares[k, j]
        k += 1
    z[n - 1] = 0.0
    i = n - 2
    while i >= 3:
        d = z[i]
        c = z[i - 1] + d * shares[i, i - 1]
        b = z[i - 2] + d * shares[i, i - 2] + c * shares[i - 1, i - 2]
        a = z[i - 3] + d * shares[i, i - 3] + c * shares[i - 1, i - 3] + b * shares[i - 2, i - 3]
        z[i - 3], z[i - 2], z[i - 1] = a, b, c
        carry_four(shares, i - 3, 0, i - 3, a, b, c, d, z)
        i -= 4
    while i >= 0:
        for j in range(i):
            z[j] += z[i] * shares[i, j]
        i -= 1


@kernel
def solve_with(factor, right, z, dy):
    """dy with dy M_0 = right, nearly, for the factor of M_0; ``z`` is room for the relative changes."""
    shares, flow, distribution = factor
    for k in range(z.size):
        z[k] = right[k] / flow[k]
    step_through(shares, z)
    for k in range(z.size):
        dy[k] = distribution[k] * z[k]


@kernel
def changes_since(nodes, recent, first, last, dy, out):
    """out += dy (M - M_0) from the transitions counted since M_0."""
    gamma, _, hub, _, follows_data = nodes
    pairs, weights = recent
    restarts = 0.0
    for t in range(first, last):
        a = pairs[t, 0]
        if a < 0:
            continue
        flow = weights[t] * dy[a]
        out[a] += flow
        out[pairs[t, 1]] -= gamma * flow
        if gamma < 1.0:
            restarts -= (1.0 - gamma) * flow
        elif follows_data:
            back = weights[t] * dy[hub]
            restarts += back
            out[a] -= back
    if hub >= 0:
        out[hub] += restarts


@kernel
def keep_mass(factor_distribution, mass, dy):
    """Shift dy along the distribution of the factor, which M_0 does not see, so that no mass is added."""
    added = 0.0
    whole = 0.0
    for k in range(dy.size):
        added += dy[k] * mass[k]
        whole += factor_distribution[k] * mass[k]
    for k in range(dy.size):
        dy[k] -= added / whole * factor_distribution[k]


@kernel
def refresh(counts, totals, nodes, mass, factor, growth, rounding, recent, solved, n_recent, tol, y):
    """Bring y up to date with an old factor (shares, flows, distribution); returns (steps or -1, error).

    y solves the chain without the recent transitions from ``solved`` on. The error is that of the worst
    entry, relative, as the last changes foretell it.
    """
    size = y.size
    residual = np.zeros(size)
    dy = np.empty(size)
    z = np.empty(size, np.float32)
    changes_since(nodes, recent, solved, n_recent, y, residual)
    before, slowest = np.inf, 0.0
    coarse = COARSER * rounding
    noise = tol  # error of y that the residual does not know of: here what the last solve left
    for step in range(MOST_STEPS):
        for k in range(size):
            residual[k] = -residual[k] / growth
        solve_with(factor, residual, z, dy)
        keep_mass(factor[2], mass, dy)
        change = 0.0
        for k in range(size):
            y[k] += dy[k]
            if not y[k] > 0.0:
                return -1, np.inf
            change = max(change, abs(dy[k]) / y[k])
        rate = change / before
        slowest = max(slowest, rate)
        noise += coarse * change
        # A residual measured anew in between makes the rate look smaller than it is.
        ahead = CAUTION * change * (slowest / (1.0 - slowest) if 0.0 < slowest < SLOWEST else 1.0)
        done = change <= 1e-3 * tol or (step > 0 and rate < SLOWEST and ahead <= 0.9 * tol)
        if done and noise <= 0.1 * tol:
            return step + 1, ahead + noise
        if step > 0 and not rate < SLOWEST:
            return -1, np.inf
        before = change
        if done or noise > 0.01 * change:
            node_residual(counts, totals, nodes, y, residual)
            before, noise = change + noise, 0.0
            continue
        # The sign was turned and the growth divided out above.
        for k in range(size):
            residual[k] *= 1.0 - growth
        changes_since(nodes, recent, 0, n_recent, dy, residual)
    return -1, np.inf


@kernel
def rounding_error(factor, exit_scale):
    """How far rounding in y M, of random signs, moves the worst entry of y (relative)."""
    distribution = factor[2]
    size = distribution.size
    right = np.empty(size)
    dy = np.empty(size)
    for k in range(size):
        sign = 1.0 if mix(np.uint64(k)) & np.uint64(1) else -1.0
        right[k] = sign * 2.0**-53 * distribution[k] * exit_scale[k]
    solve_with(factor, right, np.empty(size, np.float32), dy)
    keep_mass(distribution, exit_scale, dy)
    worst = 0.0
    for k in range(size):
        worst = max(worst, abs(dy[k]) / distribution[k])
    return worst
