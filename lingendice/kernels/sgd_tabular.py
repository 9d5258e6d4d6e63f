"""Single-sample primal-dual SGD over one tau and one f for each cell: O(1) a step, averages included."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.jit import kernel
from lingendice.kernels.prefetch import prefetch
from lingendice.kernels.sampling import draw, draw_event, draw_next, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


# Columns of the packed arrays: what a step needs of a cell lies in one cache line.
VALUE, SUM, LAST, STEP, TOP, WEIGHT, SHARE = 0, 1, 2, 3, 4, 5, 6


@kernel
def pack(value, step, top, weight, share, packed):  # type: ignore[no-untyped-def]
    """Lay out one block for an epoch: value, lazy sum, the step it was last met, step length; for tau also
    its top, nu(x), and p(x) nu(x), the share of the total mass."""
    for j in range(value.size):
        packed[j, VALUE] = value[j]
        packed[j, SUM] = 0.0
        packed[j, LAST] = 0.0
        packed[j, STEP] = step[j]
        if packed.shape[1] > TOP:
            packed[j, TOP] = top[j]
            packed[j, WEIGHT] = weight[j]
            packed[j, SHARE] = share[j]


@kernel
def note(packed, j, t):  # type: ignore[no-untyped-def]
    """Bring the lazy sum of coordinate j up to step t, before it moves."""
    packed[j, SUM] += packed[j, VALUE] * (t + 1.0 - packed[j, LAST])
    packed[j, LAST] = t + 1.0


# Samples drawn, and their rows fetched, before the first of them is used: cache misses then overlap.
# A power of two.
BLOCK = 32


@kernel
def draw_block(counter, events, tables, redirects, starts, actions, tau, f, xs, ys, zs, factors):  # type: ignore[no-untyped-def]
    """Draw (x, x', x0) for some steps, x' with the factor on gamma; returns the next counter."""
    start_t, start_a, start_mass = starts
    plain = actions == 1 and redirects[0].size == 0
    for k in range(xs.size):
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        z = x
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
        xs[k], ys[k], zs[k], factors[k] = x, y, z, factor
        prefetch(tau, x, 0)
        prefetch(f, x, 0)
        prefetch(f, max(y, 0), 0)
        prefetch(f, z, 0)
    return counter


@kernel
def sgd_tabular(counter, first, last, events, tables, redirects, starts, scalars, code, by_ratio, actions,
                tau, f, u, u_sum, f_low, f_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take steps ``first : last`` of an epoch from sampled (x, x', x0); returns (counter, u, sum of u).

    J's terms at a sample: gamma tau(x) f(x') - tau(x) f(x) - c(x) excess(f(x)) + (1 - gamma) f(x0)
    + penalty (u (nu(x) tau(x) + offset - 1) - u^2/2) + ridge/2 (tau(x) - centre)^2.
    ``tau`` and ``f`` are packed; a coordinate enters its sum with the number of steps it stayed unchanged.
    """
    start_mass = starts[2]
    gamma, penalty, offset, ridge, centre, u_step, u_top = scalars
    xs, ys, zs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    factors = np.empty(BLOCK)
    for step in range(first, last):
        k = np.uint64((step - first) & (BLOCK - 1))
        if k == 0:
            size = min(BLOCK, last - step)
            counter = draw_block(
                counter, events, tables, redirects, starts, actions, tau, f, xs[:size], ys[:size],
                zs[:size], factors[:size],
            )  # fmt: skip
        t = float(step)
        # Unsigned: Numba then leaves out the test for negative indices.
        x, y, follows = np.uint64(xs[k]), np.uint64(ys[k]), ys[k] >= 0
        tau_x, f_x, nu = tau[x, VALUE], f[x, VALUE], tau[x, WEIGHT]
        excess, slope = excess_and_slope(code, f_x)
        to_tau = penalty * u * nu - f_x + ridge * (tau_x - centre)
        if by_ratio:
            to_tau -= excess
            slope *= tau_x
        to_u = penalty * (nu * tau_x + offset - 1.0 - u)
        note(f, x, t)
        if follows:
            weight = gamma * factors[k]
            to_tau += weight * f[y, VALUE]
            note(f, y, t)
            f[y, VALUE] += f[y, STEP] * weight * tau_x
        f[x, VALUE] -= f[x, STEP] * (tau_x + slope)
        if start_mass > 0.0:
            z = np.uint64(zs[k])
            note(f, z, t)
            f[z, VALUE] = min(f[z, VALUE] + f[z, STEP] * start_mass, f_high)
        if follows:
            f[y, VALUE] = min(max(f[y, VALUE], f_low), f_high)
        f[x, VALUE] = min(max(f[x, VALUE], f_low), f_high)
        note(tau, x, t)
        tau[x, VALUE] = min(max(tau_x - tau[x, STEP] * to_tau, 0.0), tau[x, TOP])
        u_sum += u
        u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum


@kernel
def sample_pull(f_x, f_y, tau, u, nu, weight, scalars, code, by_ratio):  # type: ignore[no-untyped-def]
    """Gradients of J's sample in tau(x) and f(x)."""
    _, penalty, _, ridge, centre, _, _ = scalars
    excess, slope = excess_and_slope(code, f_x)
    to_tau = penalty * u * nu - f_x + ridge * (tau - centre) + weight * f_y
    if by_ratio:
        to_tau -= excess
        slope *= tau
    return to_tau, -tau - slope


@kernel
def sgd_tabular_self(counter, first, last, events, tables, redirects, starts, scalars, code, by_ratio,
                     actions, tau, f, held, f_low, f_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """The same for tau scaled to total mass 1; returns (counter, ``held``), the mass of the seen cells.

    ``held`` is kept exactly. Its part of the gradient is a product of two expectations, so that each takes
    its own sample.
    """
    start_t, start_a, start_mass = starts
    gamma, offset = scalars[0], scalars[2]
    plain = actions == 1 and redirects[0].size == 0
    for step in range(first, last):
        t = float(step)
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        other, beyond = draw_event(mix(counter), events)
        counter += _GOLDEN
        reach = 1.0
        if not plain or beyond < 0:
            beyond, reach, counter = draw_next(counter, beyond, actions, tables, redirects)
        scale = (1.0 - offset) / held
        ratio, f_next = scale * tau[other, VALUE], f[beyond, VALUE] if beyond >= 0 else 0.0
        level, _ = sample_pull(
            f[other, VALUE], f_next, ratio, 0.0, 1.0, gamma * reach, scalars, code, by_ratio
        )
        level *= ratio / (1.0 - offset)
        tau_x, weight = tau[x, VALUE], gamma * factor
        f_next = f[y, VALUE] if y >= 0 else 0.0
        to_tau, to_f = sample_pull(
            f[x, VALUE], f_next, scale * tau_x, 0.0, 1.0, weight, scalars, code, by_ratio
        )
        note(f, x, t)
        if y >= 0:
            note(f, y, t)
            f[y, VALUE] += f[y, STEP] * weight * scale * tau_x
        f[x, VALUE] += f[x, STEP] * to_f
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
            note(f, z, t)
            f[z, VALUE] = min(f[z, VALUE] + f[z, STEP] * start_mass, f_high)
        if y >= 0:
            f[y, VALUE] = min(max(f[y, VALUE], f_low), f_high)
        f[x, VALUE] = min(max(f[x, VALUE], f_low), f_high)
        note(tau, x, t)
        to_tau = scale * (to_tau - tau[x, WEIGHT] * level)
        moved = min(max(tau_x - tau[x, STEP] * to_tau, 0.0), tau[x, TOP])
        tau[x, VALUE] = moved
        held = max(held + tau[x, SHARE] * (moved - tau_x), 1e-3)
    return counter, held


@kernel
def finish_averages(t, values, sums, last):  # type: ignore[no-untyped-def]
    """Bring all lazy sums up to step ``t``."""
    for j in range(values.size):
        sums[j] += values[j] * (t - last[j])
        last[j] = t
