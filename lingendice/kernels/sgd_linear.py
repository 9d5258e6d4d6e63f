"""Minibatch primal-dual SGD over dense features, and single-sample SGD over sparse ones."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.conjugates import excess_and_slope
from lingendice.kernels.jit import fused_kernel, kernel
from lingendice.kernels.prefetch import prefetch, prefetch_row
from lingendice.kernels.sampling import draw, draw_event, draw_next, mix, place_event

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@fused_kernel
def project_step(w, step, gradient, low, high, sums):  # type: ignore[no-untyped-def]
    """sums += w, w <- clip(w + step gradient), gradient <- 0."""
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])
        gradient[j] = 0.0


# Samples whose rows are fetched ahead of those being worked on.
AHEAD = 4


@fused_kernel
def prefetch_sample(psi, phi, x, y):  # type: ignore[no-untyped-def]
    """Fetch the rows of features that a sample needs."""
    prefetch_row(psi, x)
    prefetch_row(phi, x)
    prefetch_row(phi, y)


@kernel
def draw_batch(counter, events, tables, redirects, gamma, actions, xs, ys, weights):  # type: ignore[no-untyped-def]
    """Draw (x, x', gamma or the weight that x' has) for a batch; returns the next counter."""
    plain = actions == 1 and redirects[0].size == 0
    for b in range(xs.size):
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
    Samples go in pairs, so that weights and gradients are loaded half as often.
    """
    gamma, penalty, u_step, u_top = scalars[0], scalars[1], scalars[5], scalars[6]
    n_w, n_v = w.size, v.size
    to_w = np.zeros(n_w)
    to_v = np.zeros(n_v)
    zero = np.zeros(n_w)
    low = -v_box
    share = 1.0 / batch
    offset = scalars[2]
    point = np.empty(n_w)
    # Drawn before they are used; an odd batch is filled up by a sample without weight.
    size = batch + batch % 2
    xs, ys, weights = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size)
    for _ in range(first, last):
        counter = draw_batch(
            counter, events, tables, redirects, gamma, actions, xs[:batch], ys[:batch], weights[:batch]
        )
        for b in range(min(AHEAD, batch)):
            prefetch_sample(psi, phi, xs[b], ys[b])
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
        upcoming = counter
        for b in range(0, batch, 2):
            for k in range(b + AHEAD, min(b + AHEAD + 2, batch)):
                prefetch_sample(psi, phi, xs[k], ys[k])
            # The next batch's events, too (a guess where a draw takes more than one random number).
            prefetch(events, place_event(mix(upcoming), events), 0)
            prefetch(events, place_event(mix(upcoming + _GOLDEN), events), 0)
            upcoming += _GOLDEN + _GOLDEN
            # Unsigned: Numba then leaves out the test for negative indices.
            x_0, x_1 = np.uint64(xs[b]), np.uint64(xs[b + 1])
            y_0, y_1 = np.uint64(ys[b]), np.uint64(ys[b + 1])
            tau_0, tau_1 = 0.0, 0.0
            for j in range(n_w):
                tau_0 += psi[x_0, j] * point[j]
                tau_1 += psi[x_1, j] * point[j]
            f_0, f_1, ahead_0, ahead_1 = 0.0, 0.0, 0.0, 0.0
            for j in range(n_v):
                f_0 += phi[x_0, j] * v[j]
                f_1 += phi[x_1, j] * v[j]
                ahead_0 += phi[y_0, j] * v[j]
                ahead_1 += phi[y_1, j] * v[j]
            down_0, on_0, out_0, more_0 = pull(
                tau_0, f_0, ahead_0, mass_weight[x_0], weights[b], u, scalars, code, by_ratio
            )
            down_1, on_1, out_1, more_1 = pull(
                tau_1, f_1, ahead_1, mass_weight[x_1], weights[b + 1], u, scalars, code, by_ratio
            )
            share_1 = share if b + 1 < batch else 0.0
            down_0, on_0, out_0 = -share * down_0, share * on_0, share * out_0
            down_1, on_1, out_1 = -share_1 * down_1, share_1 * on_1, share_1 * out_1
            to_u += share * more_0 + share_1 * more_1
            for j in range(n_w):
                to_w[j] += down_0 * psi[x_0, j] + down_1 * psi[x_1, j]
            for j in range(n_v):
                to_v[j] += on_0 * phi[x_0, j] + out_0 * phi[y_0, j] + on_1 * phi[x_1, j] + out_1 * phi[y_1, j]
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
               psi, phi, w, v, u, w_sum, v_sum, u_sum, w_last, v_last, w_step, v_step, mass_weight,
               w_top, v_box):  # type: ignore[no-untyped-def]  # fmt: skip
    """Single-sample steps over compressed rows: a step costs the entries of four rows."""
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, ridge, centre, u_step, u_top = scalars
    psi_p, psi_i, psi_d = psi
    phi_p, phi_i, phi_d = phi
    plain = actions == 1 and redirects[0].size == 0
    zero = np.zeros(w.size)
    low = -v_box
    for t in range(first, last):
        x, y = draw_event(mix(counter), events)
        counter += _GOLDEN
        factor = 1.0
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
