"""Primal-dual SGD over compressed features, a sample or a minibatch a step."""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import inlined, kernel
from lingendice.kernels.saddle.draws import GOLDEN, draw, draw_event, draw_next, mix
from lingendice.kernels.saddle.sgd_tabular import sample_pull


@inlined
def sparse_dot(indptr, indices, data, x, weights):  # type: ignore[no-untyped-def]
    """Inner product of a compressed row and a vector."""
    total = 0.0
    for k in range(indptr[x], indptr[x + 1]):
        total += data[k] * weights[indices[k]]
    return total


@inlined
def sparse_move(indptr, indices, data, x, scale, step, weights, sums, since, t):  # type: ignore[no-untyped-def]
    """weights += scale step row, each coordinate's lazy sum brought up to step t first."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        sums[j] += weights[j] * (t + 1 - since[j])
        since[j] = t + 1
        weights[j] += scale * step[j] * data[k]


@inlined
def sparse_clip(indptr, indices, x, low, high, weights):  # type: ignore[no-untyped-def]
    """Bring the coordinates of a row back into their box."""
    for k in range(indptr[x], indptr[x + 1]):
        j = indices[k]
        weights[j] = min(max(weights[j], low[j]), high[j])


@kernel
def sgd_sparse(counter, first, last, batch, source, terms, features, held, primal, dual, u, u_sum):  # type: ignore[no-untyped-def]
    """Steps over compressed rows, each the mean gradient of ``batch`` samples: four rows a sample.

    ``features.own`` is empty, or the row a of the mass ``held`` = a'w to which tau is normalized. Its part
    of the gradient is a product of two expectations, so that each takes its own samples. Returns (counter,
    u, sum of u, a'w).
    """
    events, tables, redirects, starts, actions, _ = source
    start_t, start_a, start_mass = starts
    gamma, penalty, offset, _, _, u_step, u_top, _, _ = terms
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
