"""Minibatch primal-dual SGD over dense features, and single-sample SGD over sparse ones."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.feature_rows import GROUP, add_rows, dot_rows
from lingendice.kernels.jit import fused_kernel, kernel
from lingendice.kernels.prefetch import prefetch
from lingendice.kernels.sampling import draw, draw_event, draw_next, mix, place_event
from lingendice.kernels.sgd_tabular import sample_pull

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@fused_kernel
def project_step(w, step, gradient, low, high, sums):  # type: ignore[no-untyped-def]
    """sums += w, w <- clip(w + step gradient), gradient <- 0."""
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])
        gradient[j] = 0.0


# Samples between a row's being fetched and its use.
AHEAD = 4


@kernel
def draw_batch(counter, events, tables, redirects, gamma, actions, first, last, xs, ys, weights):  # type: ignore[no-untyped-def]
    """Draw (x, x', gamma or the weight of x') for samples ``first : last``; returns the next counter."""
    plain = actions == 1 and redirects[0].size == 0
    for b in range(first, last):
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        if y < 0:
            # Nothing follows: x stands in with weight zero, so that the loops stay free of branches.
            y, factor = x, 0.0
        xs[b], ys[b], weights[b] = x, y, gamma * factor
    return counter


@fused_kernel
def pull(tau, f_x, f_y, nu, weight, u, scalars, code, by_ratio):  # type: ignore[no-untyped-def]
    """Gradients of J's sample in tau(x), f(x), f(x'), and u (before the penalty)."""
    _, penalty, offset, ridge, centre, _, _ = scalars
    excess, slope = excess_and_slope(code, f_x)
    to_tau = penalty * u * nu - f_x + ridge * (tau - centre) + weight * f_y
    if by_ratio:
        to_tau -= excess
        slope *= tau
    return to_tau, -tau - slope, weight * tau, nu * tau + offset - 1.0 - u


@fused_kernel
def sgd_dense(counter, first, last, batch, events, tables, redirects, scalars, code, by_ratio, actions,
              start, own, psi, phi, w, v, u, w_sum, v_sum, u_sum, w_step, v_step, mass_weight, w_top,
              v_box):  # type: ignore[no-untyped-def]  # fmt: skip
    """Steps ``first : last``, each the mean gradient of ``batch`` samples; returns (counter, u, sum of u).

    ``start`` is the gradient of (1 - gamma) E_mu0 f, which is linear and known: nothing is drawn for it.
    ``own`` is empty, or the row a of the mass a'w to which tau is normalised: it then stands for the penalty.
    Samples are drawn a step before they are used, so that their rows can be fetched meanwhile.
    """
    gamma, penalty, u_step, u_top = scalars[0], scalars[1], scalars[5], scalars[6]
    n_w, n_v = w.size, v.size
    to_w, to_v, point = np.zeros(n_w), np.zeros(n_v), np.empty(n_w)
    zero = np.zeros(n_w)
    low = -v_box
    share = 1.0 / batch
    offset = scalars[2]
    ahead = min(AHEAD, batch)
    # This batch, the next one, and cell 0 in place of what is not drawn yet.
    size = batch + max(batch, AHEAD + GROUP)
    xs, ys, weights = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size)
    tau, f, f_next = np.empty(batch), np.empty(batch), np.empty(batch)
    following = counter
    if first < last:
        following = draw_batch(counter, events, tables, redirects, gamma, actions, 0, batch, xs, ys, weights)
    for t in range(first, last):
        counter = following
        if t + 1 < last:
            following = draw_batch(
                counter, events, tables, redirects, gamma, actions, batch, 2 * batch, xs, ys, weights
            )
        for j in range(n_v):
            to_v[j] = start[j]
        held, scale = 1.0, 1.0
        if own.size:
            held = 0.0
            for j in range(n_w):
                held += own[j] * w[j]
            held = max(held, 1e-3)
            scale = (1.0 - offset) / held
        for j in range(n_w):
            point[j] = scale * w[j]
        to_u = 0.0
        upcoming = following
        for b in range(0, batch, GROUP):
            stop = min(b + GROUP, batch)
            dot_rows(psi, xs, b, stop, point, tau, ahead)
            dot_rows(phi, xs, b, stop, v, f, ahead)
            dot_rows(phi, ys, b, stop, v, f_next, ahead)
            for k in range(b, stop):
                # Events of the batch to be drawn (a guess where a draw takes more than one random number).
                prefetch(events, place_event(mix(upcoming), events), 0)
                upcoming += _GOLDEN
                down, here, there, more = pull(
                    tau[k], f[k], f_next[k], mass_weight[xs[k]], weights[k], u, scalars, code, by_ratio
                )
                # What the sample adds to the gradients takes the place of what was needed for it.
                tau[k], f[k], f_next[k] = -share * down, share * here, share * there
                to_u += share * more
            add_rows(psi, xs, b, stop, tau, to_w, ahead)
            add_rows(phi, xs, b, stop, f, to_v, ahead)
            add_rows(phi, ys, b, stop, f_next, to_v, ahead)
        for k in range(batch):
            xs[k], ys[k], weights[k] = xs[batch + k], ys[batch + k], weights[batch + k]
        if own.size:
            # Of w / a'w: what would only change the scale is taken out of the gradient.
            along = 0.0
            for j in range(n_w):
                along += to_w[j] * w[j]
            for j in range(n_w):
                to_w[j] = scale * (to_w[j] - own[j] * along / held)
        project_step(w, w_step, to_w, zero, w_top, w_sum)
        project_step(v, v_step, to_v, low, v_box, v_sum)
        u_sum += u
        u = min(max(u + u_step * penalty * to_u, -u_top), u_top)
    return counter, u, u_sum


@kernel
def sparse_dot(indptr, indices, data, x, weights):  # type: ignore[no-untyped-def]
    """Inner product of a compressed row and a vector."""
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        total += data[k] * weights[indices[k]]
    return total


@kernel
def sparse_move(indptr, indices, data, x, scale, step, weights, sums, since, t):  # type: ignore[no-untyped-def]
    """weights += scale step row, each coordinate's lazy sum brought up to step t first."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        sums[j] += weights[j] * (t + 1 - since[j])
        since[j] = t + 1
        weights[j] += scale * step[j] * data[k]


@kernel
def sparse_clip(indptr, indices, x, low, high, weights):  # type: ignore[no-untyped-def]
    """Bring the coordinates of a row back into their box."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        weights[j] = min(max(weights[j], low[j]), high[j])


@kernel
def sgd_sparse(counter, first, last, events, tables, redirects, starts, scalars, code, by_ratio, actions,
               psi, phi, own, held, w, v, u, w_sum, v_sum, u_sum, w_last, v_last, w_step, v_step,
               mass_weight, w_top, v_low, v_high):  # type: ignore[no-untyped-def]  # fmt: skip
    """Single-sample steps over compressed rows: a step costs the entries of four rows.

    ``own`` is empty, or the row a of the mass ``held`` = a'w to which tau is normalised. Its part of the
    gradient is a product of two expectations, so that each takes its own sample. Returns (counter, u,
    sum of u, a'w).
    """
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, _, _, u_step, u_top = scalars
    psi_p, psi_i, psi_d = psi
    phi_p, phi_i, phi_d = phi
    plain = actions == 1 and redirects[0].size == 0
    zero = np.zeros(w.size)
    scale, level = 1.0, 0.0
    for t in range(first, last):
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        if own.size:
            other, beyond = draw_event(mix(counter), events)
            counter += _GOLDEN
            reach = 1.0
            if not plain or beyond < 0:
                beyond, reach, counter = draw_next(counter, beyond, actions, tables, redirects)
            scale = (1.0 - offset) / held
            tau = scale * sparse_dot(psi_p, psi_i, psi_d, other, w)
            f = sparse_dot(phi_p, phi_i, phi_d, other, v)
            f_next = sparse_dot(phi_p, phi_i, phi_d, beyond, v) if beyond >= 0 else 0.0
            nu = mass_weight[other]
            level, _ = sample_pull(f, f_next, tau, u, nu, gamma * reach, scalars, code, by_ratio)
            level *= tau / (1.0 - offset)
        tau_x, nu, weight = scale * sparse_dot(psi_p, psi_i, psi_d, x, w), mass_weight[x], gamma * factor
        f_x = sparse_dot(phi_p, phi_i, phi_d, x, v)
        f_y = sparse_dot(phi_p, phi_i, phi_d, y, v) if y >= 0 else 0.0
        to_tau, to_f = sample_pull(f_x, f_y, tau_x, u, nu, weight, scalars, code, by_ratio)
        to_u = penalty * (nu * tau_x + offset - 1.0 - u)
        if y >= 0:
            sparse_move(phi_p, phi_i, phi_d, y, weight * tau_x, v_step, v, v_sum, v_last, t)
        sparse_move(phi_p, phi_i, phi_d, x, to_f, v_step, v, v_sum, v_last, t)
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
            sparse_move(phi_p, phi_i, phi_d, z, start_mass, v_step, v, v_sum, v_last, t)
            sparse_clip(phi_p, phi_i, z, v_low, v_high, v)
        if y >= 0:
            sparse_clip(phi_p, phi_i, y, v_low, v_high, v)
        sparse_clip(phi_p, phi_i, x, v_low, v_high, v)
        # Not in a function of its own: counting the references to its arrays would take longer.
        for k in range(psi_p[x], psi_p[x + 1] if own.size else psi_p[x]):
            held -= own[psi_i[k]] * w[psi_i[k]]
        sparse_move(psi_p, psi_i, psi_d, x, -scale * (to_tau - nu * level), w_step, w, w_sum, w_last, t)
        sparse_clip(psi_p, psi_i, x, zero, w_top, w)
        for k in range(psi_p[x], psi_p[x + 1] if own.size else psi_p[x]):
            held += own[psi_i[k]] * w[psi_i[k]]
        held = max(held, 1e-3)
        u_sum += u
        u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum, held
