"""Variance-reduced primal-dual steps over tabular tau and f: O(1) a step around a snapshot."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.jit import kernel
from lingendice.kernels.sampling import draw_event, draw_next, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def svrg_tabular(counter, first, last, events, tables, redirects, scalars, code, by_ratio, actions, ratio,
                 tau, f, u, tau_0, f_0, u_0, tau_drift, f_drift, u_drift, tau_last, f_last, p, mass_weight,
                 tau_top, f_low, f_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """Steps ``first : last`` around the snapshot (tau_0, f_0, u_0); returns (counter, u).

    The full field at the snapshot moves every coordinate each step. It is constant, so a coordinate that
    was left alone is brought up to date by one clipped move (``tau_last``, ``f_last``) when it is met.
    ``ratio`` holds p(x) / (chance of drawing x); lengths are those of the metric p.
    """
    gamma, penalty, ridge, step = scalars
    plain = actions == 1 and redirects[0].size == 0
    for t in range(first, last):
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        tau[x] = min(max(tau[x] - (t - tau_last[x]) * tau_drift[x], 0.0), tau_top[x])
        tau_last[x] = t
        f[x] = min(max(f[x] + (t - f_last[x]) * f_drift[x], f_low), f_high)
        f_last[x] = t
        nu = mass_weight[x]
        excess, slope = excess_and_slope(code, f[x])
        excess_0, slope_0 = excess_and_slope(code, f_0[x])
        moved = tau[x] - tau_0[x]
        to_tau = penalty * nu * (u - u_0) - (f[x] - f_0[x]) + ridge * moved
        if by_ratio:
            to_tau -= excess - excess_0
            slope = slope * tau[x] - slope_0 * tau_0[x]
        else:
            slope = slope - slope_0
        scale = step * ratio[x]
        if y >= 0:
            f[y] = min(max(f[y] + (t - f_last[y]) * f_drift[y], f_low), f_high)
            f_last[y] = t
            weight = gamma * factor
            to_tau += weight * (f[y] - f_0[y])
            f[y] += scale / p[y] * weight * moved
        f[x] -= scale / p[x] * (moved + slope)
        if y >= 0:
            f[y] = min(max(f[y], f_low), f_high)
        f[x] = min(max(f[x], f_low), f_high)
        tau[x] = min(max(tau[x] - scale / p[x] * to_tau, 0.0), tau_top[x])
        u += scale * nu * moved - step * (u - u_0) + u_drift
    return counter, u


@kernel
def finish_drift(t, values, drift, since, low, high):  # type: ignore[no-untyped-def]
    """Bring every coordinate up to step ``t``."""
    for j in range(values.size):
        values[j] = min(max(values[j] + (t - since[j]) * drift[j], low), high[j])
        since[j] = t
