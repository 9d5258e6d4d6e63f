"""Minibatch primal-dual SGD over dense features, and single-sample SGD over sparse ones."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.jit import fused_kernel, kernel
from lingendice.kernels.sampling import draw, draw_next, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@fused_kernel
def project_step(w, step, gradient, low, high, sums):  # type: ignore[no-untyped-def]
    """sums += w, w <- clip(w + step gradient), gradient <- 0."""
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])
        gradient[j] = 0.0


@fused_kernel
def sgd_dense(counter, first, last, batch, events, tables, redirects, starts, scalars, code, by_ratio,
              actions, psi, phi, w, v, u, w_sum, v_sum, u_sum, w_step, v_step, mass_weight, w_top,
              v_box):  # type: ignore[no-untyped-def]  # fmt: skip
    """Steps ``first : last``, each the mean gradient of ``batch`` samples; returns (counter, u, sum of u)."""
    event_t, event_a, event_x, event_next = events
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, ridge, centre, u_step, u_top = scalars
    n_events = event_t.size
    plain = actions == 1 and redirects[0].size == 0
    n_w, n_v = w.size, v.size
    to_w = np.zeros(n_w)
    to_v = np.zeros(n_v)
    zero = np.zeros(n_w)
    low = -v_box
    share = 1.0 / batch
    # Drawn before they are used: the tables' cache misses then overlap instead of adding up.
    xs, ys, zs = np.empty(batch, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    weights = np.empty(batch)
    start = share * start_mass
    for _ in range(first, last):
        to_u = 0.0
        for b in range(batch):
            e = draw(mix(counter), event_t, event_a, 0, n_events)
            counter += _GOLDEN
            x = np.int64(event_x[e])
            y, factor = np.int64(event_next[e]), 1.0
            if not plain or y < 0:
                y, factor, counter = draw_next(counter, y, actions, tables, redirects)
            if y < 0:
                # Nothing follows: x stands in with weight zero, so that the loops stay free of branches.
                y, factor = x, 0.0
            xs[b], ys[b], zs[b], weights[b] = x, y, x, gamma * factor
            if start_mass > 0.0:
                zs[b] = draw(mix(counter), start_t, start_a, 0, start_t.size)
                counter += _GOLDEN
        for b in range(batch):
            x, y, z, weight = xs[b], ys[b], zs[b], weights[b]
            tau_x = 0.0
            for j in range(n_w):
                tau_x += psi[x, j] * w[j]
            f_x = 0.0
            f_y = 0.0
            for j in range(n_v):
                f_x += phi[x, j] * v[j]
                f_y += phi[y, j] * v[j]
            nu = mass_weight[x]
            excess, slope = excess_and_slope(code, f_x)
            to_tau = penalty * u * nu - f_x + ridge * (tau_x - centre) + weight * f_y
            if by_ratio:
                to_tau -= excess
                slope *= tau_x
            to_u += nu * tau_x + offset - 1.0 - u
            down, out, here = -share * to_tau, share * weight * tau_x, -share * (tau_x + slope)
            for j in range(n_w):
                to_w[j] += down * psi[x, j]
            for j in range(n_v):
                to_v[j] += here * phi[x, j] + out * phi[y, j] + start * phi[z, j]
        project_step(w, w_step, to_w, zero, w_top, w_sum)
        project_step(v, v_step, to_v, low, v_box, v_sum)
        u_sum += u
        u = min(max(u + u_step * penalty * share * to_u, -u_top), u_top)
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
               psi, phi, w, v, u, w_sum, v_sum, u_sum, w_last, v_last, w_step, v_step, mass_weight,
               w_top, v_box):  # type: ignore[no-untyped-def]  # fmt: skip
    """Single-sample steps over compressed rows: a step costs the entries of four rows."""
    event_t, event_a, event_x, event_next = events
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, ridge, centre, u_step, u_top = scalars
    psi_p, psi_i, psi_d = psi
    phi_p, phi_i, phi_d = phi
    n_events = event_t.size
    plain = actions == 1 and redirects[0].size == 0
    zero = np.zeros(w.size)
    low = -v_box
    for t in range(first, last):
        e = draw(mix(counter), event_t, event_a, 0, n_events)
        counter += _GOLDEN
        x = np.int64(event_x[e])
        y, factor = np.int64(event_next[e]), 1.0
        if not plain or y < 0:
            y, factor, counter = draw_next(counter, y, actions, tables, redirects)
        tau_x = sparse_dot(psi_p, psi_i, psi_d, x, w)
        f_x = sparse_dot(phi_p, phi_i, phi_d, x, v)
        nu = mass_weight[x]
        excess, slope = excess_and_slope(code, f_x)
        to_tau = penalty * u * nu - f_x + ridge * (tau_x - centre)
        if by_ratio:
            to_tau -= excess
            slope *= tau_x
        to_u = penalty * (nu * tau_x + offset - 1.0 - u)
        if y >= 0:
            weight = gamma * factor
            to_tau += weight * sparse_dot(phi_p, phi_i, phi_d, y, v)
            sparse_move(phi_p, phi_i, phi_d, y, weight * tau_x, v_step, v, v_sum, v_last, t)
        sparse_move(phi_p, phi_i, phi_d, x, -tau_x - slope, v_step, v, v_sum, v_last, t)
        if start_mass > 0.0:
            z = draw(mix(counter), start_t, start_a, 0, start_t.size)
            counter += _GOLDEN
            sparse_move(phi_p, phi_i, phi_d, z, start_mass, v_step, v, v_sum, v_last, t)
            sparse_clip(phi_p, phi_i, z, low, v_box, v)
        if y >= 0:
            sparse_clip(phi_p, phi_i, y, low, v_box, v)
        sparse_clip(phi_p, phi_i, x, low, v_box, v)
        sparse_move(psi_p, psi_i, psi_d, x, -to_tau, w_step, w, w_sum, w_last, t)
        sparse_clip(psi_p, psi_i, x, zero, w_top, w)
        u_sum += u
        u = min(max(u + u_step * to_u, -u_top), u_top)
    return counter, u, u_sum
