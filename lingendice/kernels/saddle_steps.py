"""Primal-dual SGD over tables, compressed features and dense features.

Over tables a step takes one sample and costs O(1), averages included; over features it takes one sample or a
minibatch. Each sample has its own place in the sequence of random numbers, whatever the sizes of batches and
chunks.

excess(y) = phi*(y) - y of a divergence is found by its place in ``divergences.base.CONJUGATES``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, inlined, kernel
from lingendice.kernels.random_numbers import GOLDEN, draw, draw_event, draw_next, mix

CHI2, KL, REVERSE_KL, JENSEN_SHANNON, HELLINGER, TOTAL_VARIATION, WEIGHTED_L2, EQUALITY = range(8)


@inlined
def excess_and_slope(code, y):
    """(excess, slope) at y; steps of SGD keep y inside the domain."""
    if code == CHI2:
        return 0.25 * y * y, 0.5 * y
    if code == WEIGHTED_L2:
        return 0.5 * y * y, y
    if code == KL:
        grown = math.expm1(y)
        return grown - y, grown
    if code == REVERSE_KL:
        return -math.log1p(-y) - y, y / (1.0 - y)
    if code == JENSEN_SHANNON:
        grown = math.expm1(y)
        return -math.log1p(-grown) - y, 2.0 * grown / (1.0 - grown)
    if code == HELLINGER:
        left = 1.0 - y
        return y * y / left, y * (2.0 - y) / (left * left)
    if code == TOTAL_VARIATION and y < -0.5:
        return -0.5 - y, -1.0
    return 0.0, 0.0  # equality, and total variation above -1/2


# Columns of the packed cells: what a step needs of a cell lies in one cache line.
TAU, TAU_MOVED, TAU_STEP, TOP, F, F_MOVED, F_STEP, WEIGHT = range(8)


class Terms(NamedTuple):
    """Numbers of the objective, the steps of u, and which conjugate it has."""

    gamma: Any
    penalty: Any
    offset: Any
    ridge: Any
    u_step: Any
    u_top: Any
    code: Any
    by_ratio: Any


class Features(NamedTuple):
    """Rows of tau's and f's features, nu(x), and the row a of the mass a'w where tau is normalized by it."""

    psi: Any
    phi: Any
    mass_weight: Any
    own: Any


class Block(NamedTuple):
    """Coordinates of one player: sums over the steps and when they were brought up, step lengths, box."""

    values: Any
    sums: Any
    since: Any
    step: Any
    low: Any
    high: Any


def pack(tau, tau_step, top, f, f_step, weight, cells):
    """Lay out the cells for an epoch: values, step lengths, the top of tau, and nu(x).

    ``MOVED`` sums every change of a value times the number of the step, counted from 1: over T steps a value
    is on average what it is at the end less that sum / T.
    """
    moved = np.zeros(tau.size)
    cells[:] = np.column_stack([tau, moved, tau_step, top, f, moved, f_step, weight])


@kernel
def move_f(cells, x, y, z, on_x, on_y, on_z, low, high, t):
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
def draw_block(counter, size, events, tables, redirects, starts, actions, xs, ys, zs, weights):
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


@inlined
def sample_pull(f_x, f_y, tau, u, nu, weight, terms):
    """Gradients of J's sample in tau(x) and f(x)."""
    excess, slope = excess_and_slope(terms.code, f_x)
    to_tau = terms.penalty * u * nu - f_x + terms.ridge * (tau - 1.0) + weight * f_y
    if terms.by_ratio:
        to_tau -= excess
        slope *= tau
    return to_tau, -tau - slope


@kernel
def sgd_tabular(counter, first, last, source, terms, cells, u, u_sum, f_low, f_high):
    """Take steps ``first : last`` of an epoch from sampled (x, x', x0); returns (counter, u, sum of u).

    J's terms at a sample: gamma tau(x) f(x') - tau(x) f(x) - c(x) excess(f(x)) + (1 - gamma) f(x0)
    + penalty (u (nu(x) tau(x) + offset - 1) - u^2/2) + ridge/2 (tau(x) - 1)^2.
    """
    events, tables, redirects, starts, actions, _ = source
    start_mass = starts[2]
    gamma, u_step, u_top = terms.gamma, terms.u_step, terms.u_top
    xs, ys, zs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    factors = np.empty(BLOCK)
    for begin in range(first, last, BLOCK):
        size = min(BLOCK, last - begin)
        counter = draw_block(counter, size, events, tables, redirects, starts, actions, xs, ys, zs, factors)
        for k in range(np.uint64(size)):
            t = float(begin + k) + 1.0
            # Unsigned: Numba then leaves out the test for negative indices.
            x, y, follows = np.uint64(xs[k]), np.uint64(ys[k]), ys[k] >= 0
            tau_x, f_x, nu = cells[x, TAU], cells[x, F], cells[x, WEIGHT]
            to_u = terms.penalty * (nu * tau_x + terms.offset - 1.0 - u)
            weight = gamma * factors[k]
            f_y = cells[y, F] if follows else 0.0
            to_tau, to_f = sample_pull(f_x, f_y, tau_x, u, nu, weight, terms)
            started = zs[k] if start_mass > 0.0 else -1
            move_f(cells, xs[k], ys[k], started, to_f, weight * tau_x, start_mass, f_low, f_high, t)
            moved = min(max(tau_x - cells[x, TAU_STEP] * to_tau, 0.0), cells[x, TOP])
            cells[x, TAU] = moved
            cells[x, TAU_MOVED] += t * (moved - tau_x)
            u_sum += u
            u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum


@kernel
def sgd_tabular_self(counter, first, last, source, terms, cells, shares, held, f_low, f_high):
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


def finish_averages(t, values, sums, last):
    """Bring all lazy sums up to step ``t``."""
    sums += values * (t - last)
    last[:] = t


# -- compressed features ------------------------------------------------------------------------------


@inlined
def sparse_dot(indptr, indices, data, x, weights):
    """Inner product of a compressed row and a vector."""
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        total += data[k] * weights[indices[k]]
    return total


@inlined
def sparse_move(indptr, indices, data, x, scale, step, weights, sums, since, t):
    """weights += scale step row, each coordinate's lazy sum brought up to step t first."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        sums[j] += weights[j] * (t + 1 - since[j])
        since[j] = t + 1
        weights[j] += scale * step[j] * data[k]


@inlined
def sparse_clip(indptr, indices, x, low, high, weights):
    """Bring the coordinates of a row back into their box."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        weights[j] = min(max(weights[j], low[j]), high[j])


@kernel
def sgd_sparse(counter, first, last, batch, source, terms, features, held, primal, dual, u, u_sum):
    """Steps over compressed rows, each the mean gradient of ``batch`` samples: four rows a sample.

    ``features.own`` is empty, or the row a of the mass ``held`` = a'w to which tau is normalized. Its part
    of the gradient is a product of two expectations, so that each takes its own samples. Returns (counter,
    u, sum of u, a'w).
    """
    events, tables, redirects, starts, actions, _ = source
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, _, u_step, u_top, _, _ = terms
    mass_weight, own = features.mass_weight, features.own
    psi_p, psi_i, psi_d = features.psi
    phi_p, phi_i, phi_d = features.phi
    w, w_sum, w_last, w_step, w_low, w_top = primal
    v, v_sum, v_last, v_step, v_low, v_high = dual
    plain = actions == 1 and redirects[0].size == 0
    share = 1.0 / batch
    scale, level = 1.0, 0.0
    xs, ys, zs = np.empty(batch, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    on_tau, on_f, on_next = np.empty(batch), np.empty(batch), np.empty(batch)
    for t in range(first, last):
        level, to_u = 0.0, 0.0
        if own.size:
            scale = (1.0 - offset) / held
        for b in range(batch):
            x, y = draw_event(mix(counter), events)
            counter += GOLDEN
            factor = 1.0
            if not plain or y < 0:
                y, factor, counter = draw_next(counter, y, actions, tables, redirects)
            if own.size:
                other, beyond = draw_event(mix(counter), events)
                counter += GOLDEN
                reach = 1.0
                if not plain or beyond < 0:
                    beyond, reach, counter = draw_next(counter, beyond, actions, tables, redirects)
                tau = scale * sparse_dot(psi_p, psi_i, psi_d, other, w)
                f = sparse_dot(phi_p, phi_i, phi_d, other, v)
                f_next = sparse_dot(phi_p, phi_i, phi_d, beyond, v) if beyond >= 0 else 0.0
                nu = mass_weight[other]
                pulled, _ = sample_pull(f, f_next, tau, u, nu, gamma * reach, terms)
                level += share * pulled * tau / (1.0 - offset)
            tau, nu, weight = scale * sparse_dot(psi_p, psi_i, psi_d, x, w), mass_weight[x], gamma * factor
            f = sparse_dot(phi_p, phi_i, phi_d, x, v)
            f_next = sparse_dot(phi_p, phi_i, phi_d, y, v) if y >= 0 else 0.0
            on_tau[b], on_f[b] = sample_pull(f, f_next, tau, u, nu, weight, terms)
            on_next[b] = weight * tau
            to_u += share * penalty * (nu * tau + offset - 1.0 - u)
            xs[b], ys[b], zs[b] = x, y, -1
            if start_mass > 0.0:
                zs[b] = draw(mix(counter), start_t, start_a, 0, start_t.size)
                counter += GOLDEN
        # Every sample has seen the same point: now it moves, and what was met is projected.
        for b in range(batch):
            x, y, z = xs[b], ys[b], zs[b]
            if y >= 0:
                sparse_move(phi_p, phi_i, phi_d, y, share * on_next[b], v_step, v, v_sum, v_last, t)
            sparse_move(phi_p, phi_i, phi_d, x, share * on_f[b], v_step, v, v_sum, v_last, t)
            if z >= 0:
                sparse_move(phi_p, phi_i, phi_d, z, share * start_mass, v_step, v, v_sum, v_last, t)
            down = -share * scale * (on_tau[b] - mass_weight[x] * level)
            for k in range(psi_p[x], psi_p[x + 1] if own.size else psi_p[x]):
                held += own[psi_i[k]] * down * w_step[psi_i[k]] * psi_d[k]
            sparse_move(psi_p, psi_i, psi_d, x, down, w_step, w, w_sum, w_last, t)
        for b in range(batch):
            x, y, z = xs[b], ys[b], zs[b]
            if z >= 0:
                sparse_clip(phi_p, phi_i, z, v_low, v_high, v)
            if y >= 0:
                sparse_clip(phi_p, phi_i, y, v_low, v_high, v)
            sparse_clip(phi_p, phi_i, x, v_low, v_high, v)
            for k in range(psi_p[x], psi_p[x + 1] if own.size else psi_p[x]):
                j = psi_i[k]
                held += own[j] * (min(max(w[j], w_low[j]), w_top[j]) - w[j])
            sparse_clip(psi_p, psi_i, x, w_low, w_top, w)
        held = max(held, 1e-3)
        u_sum += u
        u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum, held


# -- dense features -----------------------------------------------------------------------------------


@inlined
def draw_batch(counter, source, gamma, mass_weight, xs, ys, weights, masses):
    """Draw (x, x', gamma or the weight of x', nu(x)) of a batch, each sample from its own counters."""
    events, tables, redirects, _, actions, most_draws = source
    plain = actions == 1 and redirects[0].size == 0
    for b in range(xs.size):
        x, y = draw_event(mix(counter), events)
        factor = 1.0
        if not plain or y < 0:
            y, factor, _ = draw_next(counter + GOLDEN, y, actions, tables, redirects)
        counter += np.uint64(most_draws) * GOLDEN
        if y < 0:
            # Nothing follows: x stands in with weight zero, so that the loops stay free of branches.
            y, factor = x, 0.0
        xs[b], ys[b], weights[b], masses[b] = x, y, gamma * factor, mass_weight[x]
    return counter


@inlined
def project_step(block, gradient):
    """sums += w, w <- clip(w + step gradient)."""
    w, sums, _, step, low, high = block
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])


@inlined
def take_out_scale(gradient, own, w, scale, held):
    """The gradient through w / a'w: what would only change the scale is taken out of it."""
    along = 0.0
    for j in range(w.size):
        along += gradient[j] * w[j]
    for j in range(w.size):
        gradient[j] = scale * (gradient[j] - own[j] * along / held)


@fused_kernel
def sgd_dense(counter, count, batch, source, terms, features, start, primal, dual, u, u_sum):
    """``count`` steps, each the mean gradient of ``batch`` samples; returns (counter, u, sum of u).

    ``start`` is the gradient of (1 - gamma) E_mu0 f, which is linear and known: nothing is drawn for it.
    ``features.own`` is empty, or the row a of the mass a'w to which tau is normalized: it then stands for
    the penalty.
    """
    psi, phi, mass_weight, own = features
    w, v = primal.values, dual.values
    xs, ys = np.empty(batch, np.int64), np.empty(batch, np.int64)
    weights, masses = np.empty(batch), np.empty(batch)
    point, to_w, to_v = np.empty(w.size), np.empty(w.size), np.empty(v.size)
    share, scale, held = 1.0 / batch, 1.0, 1.0
    for _ in range(count):
        counter = draw_batch(counter, source, terms.gamma, mass_weight, xs, ys, weights, masses)
        if own.size:
            held = 0.0
            for j in range(w.size):
                held += own[j] * w[j]
            held = max(held, 1e-3)
            scale = (1.0 - terms.offset) / held
        for j in range(w.size):
            point[j], to_w[j] = scale * w[j], 0.0
        for j in range(v.size):
            to_v[j] = start[j]
        to_u = 0.0
        for k in range(batch):
            psi_x, phi_x, phi_y = psi[xs[k]], phi[xs[k]], phi[ys[k]]
            tau, f, f_next = 0.0, 0.0, 0.0
            for j in range(w.size):
                tau += psi_x[j] * point[j]
            for j in range(v.size):
                f += phi_x[j] * v[j]
                f_next += phi_y[j] * v[j]
            weight, nu = weights[k], masses[k]
            down, here = sample_pull(f, f_next, tau, u, nu, weight, terms)
            on_tau, on_f, on_next = -share * down, share * here, share * weight * tau
            to_u += share * (nu * tau + terms.offset - 1.0 - u)
            for j in range(w.size):
                to_w[j] += on_tau * psi_x[j]
            for j in range(v.size):
                to_v[j] += on_f * phi_x[j] + on_next * phi_y[j]
        if own.size:
            take_out_scale(to_w, own, w, scale, held)
        project_step(primal, to_w)
        project_step(dual, to_v)
        u_sum += u
        u = min(max(u + terms.u_step * terms.penalty * to_u, -terms.u_top), terms.u_top)
    return counter, u, u_sum
