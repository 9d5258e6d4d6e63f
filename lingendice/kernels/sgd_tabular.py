"""Single-sample primal-dual SGD over one tau and one f for each cell: O(1) a step, averages included."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.jit import kernel
from lingendice.kernels.sampling import draw, draw_next, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def sgd_tabular(counter, first, last, events, tables, redirects, starts, scalars, code, by_ratio, actions,
                tau, f, u, tau_sum, f_sum, tau_last, f_last, u_sum, tau_step, f_step,
                mass_weight, tau_top, f_low, f_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take steps ``first : last`` of an epoch from sampled (x, x', x0); returns (counter, u, sum of u).

    J's terms at a sample: gamma tau(x) f(x') - tau(x) f(x) - c(x) excess(f(x)) + (1 - gamma) f(x0)
    + penalty (u (nu(x) tau(x) + offset - 1) - u^2/2) + ridge/2 (tau(x) - centre)^2.
    A coordinate enters its sum with the number of steps it stayed unchanged (``tau_last``, ``f_last``).
    """
    event_t, event_a, event_x, event_next = events
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, ridge, centre, u_step, u_top = scalars
    n_events = event_t.size
    plain = actions == 1 and redirects[0].size == 0
    for t in range(first, last):
        e = draw(mix(counter), event_t, event_a, 0, n_events)
        counter += _GOLDEN
        x = np.int64(event_x[e])
        y, factor = np.int64(event_next[e]), 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        tau_x = tau[x]
        f_x = f[x]
        nu = mass_weight[x]
        excess, slope = excess_and_slope(code, f_x)
        to_tau = penalty * u * nu - f_x + ridge * (tau_x - centre)
        if by_ratio:
            to_tau -= excess
            slope *= tau_x
        to_u = penalty * (nu * tau_x + offset - 1.0 - u)
        f_sum[x] += f_x * (t + 1 - f_last[x])
        f_last[x] = t + 1
        if y >= 0:
            weight = gamma * factor
            to_tau += weight * f[y]
            f_sum[y] += f[y] * (t + 1 - f_last[y])
            f_last[y] = t + 1
            f[y] += f_step[y] * weight * tau_x
        f[x] -= f_step[x] * (tau_x + slope)
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
            f_sum[z] += f[z] * (t + 1 - f_last[z])
            f_last[z] = t + 1
            f[z] = min(f[z] + f_step[z] * start_mass, f_high)
        if y >= 0:
            f[y] = min(max(f[y], f_low), f_high)
        f[x] = min(max(f[x], f_low), f_high)
        tau_sum[x] += tau_x * (t + 1 - tau_last[x])
        tau_last[x] = t + 1
        tau[x] = min(max(tau_x - tau_step[x] * to_tau, 0.0), tau_top[x])
        u_sum += u
        u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum


@kernel
def sgd_tabular_self(counter, first, last, events, tables, redirects, starts, scalars, code, by_ratio,
                     actions,
                     tau, f, mass, tau_sum, f_sum, tau_last, f_last, tau_step, f_step, mass_row, tau_top,
                     f_low, f_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """The same for tau / N: N is kept exactly, its gradient needs a second, independent sample a step."""
    event_t, event_a, event_x, event_next = events
    start_t, start_a, start_mass = starts
    gamma = scalars[0]
    n_events = event_t.size
    plain = actions == 1 and redirects[0].size == 0
    for t in range(first, last):
        e = draw(mix(counter), event_t, event_a, 0, n_events)
        counter += _GOLDEN
        x = np.int64(event_x[e])
        y, factor = np.int64(event_next[e]), 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        e = draw(mix(counter), event_t, event_a, 0, n_events)
        counter += _GOLDEN
        other = np.int64(event_x[e])
        beyond, factor_2 = np.int64(event_next[e]), 1.0
        if not plain or beyond < 0:
            beyond, factor_2, counter = draw_next(counter, beyond, actions, tables, redirects)
        excess, slope = excess_and_slope(code, f[other])
        level = -f[other] - (excess if by_ratio else 0.0)
        if beyond >= 0:
            level += gamma * factor_2 * f[beyond]
        level *= tau[other] / mass
        tau_x = tau[x]
        f_x = f[x]
        excess, slope = excess_and_slope(code, f_x)
        to_tau = -f_x - (excess if by_ratio else 0.0)
        slope *= tau_x / mass if by_ratio else 1.0
        f_sum[x] += f_x * (t + 1 - f_last[x])
        f_last[x] = t + 1
        if y >= 0:
            weight = gamma * factor
            to_tau += weight * f[y]
            f_sum[y] += f[y] * (t + 1 - f_last[y])
            f_last[y] = t + 1
            f[y] += f_step[y] * weight * tau_x / mass
        f[x] -= f_step[x] * (tau_x / mass + slope)
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
            f_sum[z] += f[z] * (t + 1 - f_last[z])
            f_last[z] = t + 1
            f[z] = min(f[z] + f_step[z] * start_mass, f_high)
        if y >= 0:
            f[y] = min(max(f[y], f_low), f_high)
        f[x] = min(max(f[x], f_low), f_high)
        tau_sum[x] += tau_x * (t + 1 - tau_last[x])
        tau_last[x] = t + 1
        tau[x] = min(max(tau_x - tau_step[x] * (to_tau - level) / mass, 0.0), tau_top[x])
        mass = max(mass + mass_row[x] * (tau[x] - tau_x), 1e-3)
    return counter, mass


@kernel
def finish_averages(t, values, sums, last):  # type: ignore[no-untyped-def]
    """Bring all lazy sums up to step ``t``."""
    for j in range(values.size):
        sums[j] += values[j] * (t - last[j])
        last[j] = t
