"""Primal-dual SGD over dense features, a sample or a minibatch a step.

Each sample has its own place in the sequence of random numbers, whatever the sizes of batches and chunks.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import fused_kernel, inlined
from lingendice.kernels.saddle.draws import GOLDEN, draw_event, draw_next, mix
from lingendice.kernels.saddle.sgd_tabular import sample_pull


@inlined
def counter_after(counter, draws):  # type: ignore[no-untyped-def]
    """The counter past so many draws."""
    return counter + np.uint64(draws) * GOLDEN


@inlined
def draw_batch(counter, source, gamma, mass_weight, xs, ys, weights, masses):  # type: ignore[no-untyped-def]
    """Draw (x, x', gamma or the weight of x', nu(x)) of a batch, each sample from its own counters."""
    events, tables, redirects, _, actions, most_draws = source
    plain = actions == 1 and redirects[0].size == 0
    for b in range(xs.size):
        x, y = draw_event(mix(counter), events)
        factor = 1.0
        if not plain or y < 0:
            y, factor, _ = draw_next(counter_after(counter, 1), y, actions, tables, redirects)
        counter = counter_after(counter, most_draws)
        if y < 0:
            # Nothing follows: x stands in with weight zero, so that the loops stay free of branches.
            y, factor = x, 0.0
        xs[b], ys[b], weights[b], masses[b] = x, y, gamma * factor, mass_weight[x]
    return counter


@inlined
def project_step(block, gradient):  # type: ignore[no-untyped-def]
    """sums += w, w <- clip(w + step gradient)."""
    w, sums, _, step, low, high = block
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])


@inlined
def take_out_scale(gradient, own, w, scale, held):  # type: ignore[no-untyped-def]
    """The gradient through w / a'w: what would only change the scale is taken out of it."""
    along = 0.0
    for j in range(w.size):
        along += gradient[j] * w[j]
    for j in range(w.size):
        gradient[j] = scale * (gradient[j] - own[j] * along / held)


@fused_kernel
def sgd_dense(counter, count, batch, source, terms, features, start, primal, dual, u, u_sum):  # type: ignore[no-untyped-def]
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
