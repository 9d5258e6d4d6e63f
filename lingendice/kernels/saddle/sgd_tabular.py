"""Single-sample primal-dual SGD over one tau and one f for each cell: O(1) a step, averages included."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import inlined, kernel
from lingendice.kernels.saddle.conjugates import excess_and_slope
from lingendice.kernels.saddle.draws import GOLDEN, draw, draw_event, draw_next, mix

# Columns of the packed cells: what a step needs of a cell lies in one cache line.
TAU, TAU_MOVED, TAU_STEP, TOP, F, F_MOVED, F_STEP, WEIGHT = range(8)


@kernel
def pack(tau, tau_step, top, f, f_step, weight, cells):  # type: ignore[no-untyped-def]
    """Lay out the cells for an epoch: values, step lengths, the top of tau, and nu(x).

    ``MOVED`` sums every change of a value times the number of the step, counted from 1: over T steps a value
    is on average what it is at the end less that sum / T.
    """
    for j in range(tau.size):
        cells[j, TAU] = tau[j]
        cells[j, TAU_MOVED] = 0.0
        cells[j, TAU_STEP] = tau_step[j]
        cells[j, TOP] = top[j]
        cells[j, F] = f[j]
        cells[j, F_MOVED] = 0.0
        cells[j, F_STEP] = f_step[j]
        cells[j, WEIGHT] = weight[j]


@kernel
def move_f(cells, x, y, z, on_x, on_y, on_z, low, high, t):  # type: ignore[no-untyped-def]
    """Add to f(x), f(y) and f(z) at step t (y, z may be -1), then project: right also where they are one."""
    for j, change in ((y, on_y), (x, on_x), (z, on_z)):
        if j >= 0:
            cells[j, F] += cells[j, F_STEP] * change
            cells[j, F_MOVED] += t * cells[j, F_STEP] * change
    for j in (z, y, x):
        if j >= 0:
            within = min(max(cells[j, F], low), high)
            cells[j, F_MOVED] += t * (within - cells[j, F])
            cells[j, F] = within


# Samples drawn before the first of them is used: the misses of the draws then overlap.
BLOCK = 32


@inlined
def draw_block(counter, size, events, tables, redirects, starts, actions, xs, ys, zs, weights):  # type: ignore[no-untyped-def]
    """Draw (x, x', x0) for ``size`` steps, x' with the factor on gamma; returns the next counter."""
    start_t, start_a, start_mass = starts
    plain = actions == 1 and redirects[0].size == 0
    for k in range(size):
        # Written out: a function for it counts references to its arrays, which makes a step twice as long.
        x, y = draw_event(mix(counter), events)
        counter += GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        z = x
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += GOLDEN
        xs[k], ys[k], zs[k], weights[k] = x, y, z, factor
    return counter


@kernel
def sgd_tabular(counter, first, last, source, terms, cells, u, u_sum, f_low, f_high):  # type: ignore[no-untyped-def]
    """Take steps ``first : last`` of an epoch from sampled (x, x', x0); returns (counter, u, sum of u).

    J's terms at a sample: gamma tau(x) f(x') - tau(x) f(x) - c(x) excess(f(x)) + (1 - gamma) f(x0)
    + penalty (u (nu(x) tau(x) + offset - 1) - u^2/2) + ridge/2 (tau(x) - center)^2.
    """
    events, tables, redirects, starts, actions, _ = source
    start_mass = starts[2]
    gamma, penalty, offset, ridge, center, u_step, u_top, code, by_ratio = terms
    xs, ys, zs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    factors = np.empty(BLOCK)
    for begin in range(first, last, BLOCK):
        size = min(BLOCK, last - begin)
        counter = draw_block(counter, size, events, tables, redirects, starts, actions, xs, ys, zs, factors)
        for k in range(np.uint64(size)):
            t = float(begin + k) + 1.0
            # Unsigned: Numba then leaves out the test for negative indices.
            x, y, z, follows = np.uint64(xs[k]), np.uint64(ys[k]), np.uint64(zs[k]), ys[k] >= 0
            tau_x, f_x, nu = cells[x, TAU], cells[x, F], cells[x, WEIGHT]
            excess, slope = excess_and_slope(code, f_x)
            to_tau = penalty * u * nu - f_x + ridge * (tau_x - center)
            if by_ratio:
                to_tau -= excess
                slope *= tau_x
            to_u = penalty * (nu * tau_x + offset - 1.0 - u)
            weight = gamma * factors[k]
            to_f = -tau_x - slope
            f_y = cells[y, F] if follows else 0.0
            to_tau += weight * f_y
            if follows and start_mass > 0.0 and x != y and x != z and y != z:
                # The usual case, apart: a function would count the references to its array.
                f_z = cells[z, F]
                new = min(max(f_y + cells[y, F_STEP] * weight * tau_x, f_low), f_high)
                cells[y, F] = new
                cells[y, F_MOVED] += t * (new - f_y)
                new = min(max(f_z + cells[z, F_STEP] * start_mass, f_low), f_high)
                cells[z, F] = new
                cells[z, F_MOVED] += t * (new - f_z)
                new = min(max(f_x + cells[x, F_STEP] * to_f, f_low), f_high)
                cells[x, F] = new
                cells[x, F_MOVED] += t * (new - f_x)
            else:
                started = zs[k] if start_mass > 0.0 else -1
                move_f(cells, xs[k], ys[k], started, to_f, weight * tau_x, start_mass, f_low, f_high, t)
            moved = min(max(tau_x - cells[x, TAU_STEP] * to_tau, 0.0), cells[x, TOP])
            cells[x, TAU] = moved
            cells[x, TAU_MOVED] += t * (moved - tau_x)
            u_sum += u
            u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum


@inlined
def sample_pull(f_x, f_y, tau, u, nu, weight, terms):  # type: ignore[no-untyped-def]
    """Gradients of J's sample in tau(x) and f(x)."""
    excess, slope = excess_and_slope(terms.code, f_x)
    to_tau = terms.penalty * u * nu - f_x + terms.ridge * (tau - terms.center) + weight * f_y
    if terms.by_ratio:
        to_tau -= excess
        slope *= tau
    return to_tau, -tau - slope


@kernel
def sgd_tabular_self(counter, first, last, source, terms, cells, shares, held, f_low, f_high):  # type: ignore[no-untyped-def]
    """The same for tau scaled to total mass 1; returns (counter, ``held``), the mass of the seen cells.

    ``shares`` holds p(x) nu(x). ``held`` is kept exactly. Its part of the gradient is a product of two
    expectations, so that each takes its own sample.
    """
    events, tables, redirects, starts, actions, _ = source
    start_t, start_a, start_mass = starts
    gamma, offset = terms.gamma, terms.offset
    plain = actions == 1 and redirects[0].size == 0
    for step in range(first, last):
        t = float(step) + 1.0
        x, y = draw_event(mix(counter), events)
        counter += GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        other, beyond = draw_event(mix(counter), events)
        counter += GOLDEN
        reach = 1.0
        if not plain or beyond < 0:
            beyond, reach, counter = draw_next(counter, beyond, actions, tables, redirects)
        scale = (1.0 - offset) / held
        ratio, f_next = scale * cells[other, TAU], cells[beyond, F] if beyond >= 0 else 0.0
        level, _ = sample_pull(cells[other, F], f_next, ratio, 0.0, 1.0, gamma * reach, terms)
        level *= ratio / (1.0 - offset)
        tau_x, weight = cells[x, TAU], gamma * factor
        f_next = cells[y, F] if y >= 0 else 0.0
        to_tau, to_f = sample_pull(cells[x, F], f_next, scale * tau_x, 0.0, 1.0, weight, terms)
        z = np.int64(-1)
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += GOLDEN
        move_f(cells, x, y, z, to_f, weight * scale * tau_x, start_mass, f_low, f_high, t)
        to_tau = scale * (to_tau - cells[x, WEIGHT] * level)
        moved = min(max(tau_x - cells[x, TAU_STEP] * to_tau, 0.0), cells[x, TOP])
        cells[x, TAU] = moved
        cells[x, TAU_MOVED] += t * (moved - tau_x)
        held = max(held + shares[x] * (moved - tau_x), 1e-3)
    return counter, held


@kernel
def finish_averages(t, values, sums, last):  # type: ignore[no-untyped-def]
    """Bring all lazy sums up to step ``t``."""
    for j in range(values.size):
        sums[j] += values[j] * (t - last[j])
        last[j] = t
