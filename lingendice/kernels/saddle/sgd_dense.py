"""Primal-dual SGD over dense features, a sample or a minibatch a step, by one thread or several.

A batch is cut into parts that depend on the problem alone. Each part adds up a gradient of its own, and the
parts are added up in order, so that a step gives the same bits on any number of threads. Each sample has its
own place in the sequence of random numbers, so that a thread draws its next samples while others still work
on the step before.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.jit import borrowing_kernel, inlined, internal
from lingendice.kernels.networks.tickets import (
    await_round,
    claim_part,
    dismissed,
    is_last,
    open_next,
    wait_for_all,
)
from lingendice.kernels.prefetch import prefetch
from lingendice.kernels.saddle.draws import GOLDEN, draw_event, draw_next, mix, place_event
from lingendice.kernels.saddle.feature_rows import GROUP, add_rows, dot_rows
from lingendice.kernels.saddle.sgd_tabular import sample_pull

# Entries of the state that the threads share, beside the vectors.
U, U_SUM, SCALE, HELD, STATE = 0, 1, 2, 3, 8


@inlined
def counter_after(counter, draws):  # type: ignore[no-untyped-def]
    """The counter past so many draws."""
    return counter + np.uint64(draws) * GOLDEN


@internal
def draw_batch(counter, most_draws, n, events, tables, redirects, gamma, actions, mass_weight, xs, ys,
               weights, masses):  # type: ignore[no-untyped-def]  # fmt: skip
    """Draw (x, x', gamma or the weight of x', nu(x)) of ``n`` samples, each from ``most_draws`` counters."""
    plain = actions == 1 and redirects[0].size == 0
    # Events lie anywhere in memory: all are asked for before the first is read.
    for b in range(n):
        prefetch(events, place_event(mix(counter_after(counter, b * most_draws)), events), 0)
    for b in range(n):
        x, y = draw_event(mix(counter), events)
        factor = 1.0
        if not plain or y < 0:
            y, factor, _ = draw_next(counter_after(counter, 1), y, actions, tables, redirects)
        counter = counter_after(counter, most_draws)
        if y < 0:
            # Nothing follows: x stands in with weight zero, so that the loops stay free of branches.
            y, factor = x, 0.0
        xs[b], ys[b], weights[b] = x, y, gamma * factor
    for b in range(n):
        masses[b] = mass_weight[xs[b]]


@inlined
def pull(tau, f_x, f_y, nu, weight, u, scalars, code, by_ratio):  # type: ignore[no-untyped-def]
    """Gradients of J's sample in tau(x), f(x), f(x'), and u (before the penalty)."""
    to_tau, to_f = sample_pull(f_x, f_y, tau, u, nu, weight, scalars, code, by_ratio)
    return to_tau, to_f, weight * tau, nu * tau + scalars[2] - 1.0 - u


@internal
def part_gradient(n, share, u, xs, ys, weights, masses, scalars, code, by_ratio, psi, phi, point, dual,
                  on_tau, on_f, on_next, to_w, to_v):  # type: ignore[no-untyped-def]  # fmt: skip
    """Gradients in w and v of ``n`` samples, each weighing ``share``; returns that in u."""
    for j in range(to_w.size):
        to_w[j] = 0.0
    for j in range(to_v.size):
        to_v[j] = 0.0
    to_u = 0.0
    for first in range(0, n, GROUP):
        # A group's rows stay in the first-level cache between their products and their sums.
        last = min(first + GROUP, n)
        dot_rows(psi, phi, xs, ys, first, last, point, dual, on_tau, on_f, on_next)
        for k in range(first, last):
            down, here, there, more = pull(
                on_tau[k], on_f[k], on_next[k], masses[k], weights[k], u, scalars, code, by_ratio
            )
            # What the sample adds to the gradients takes the place of what was needed for it.
            on_tau[k], on_f[k], on_next[k] = -share * down, share * here, share * there
            to_u += share * more
        add_rows(psi, phi, xs, ys, first, last, to_w, to_v, on_tau, on_f, on_next)
    return to_u


@inlined
def project_step(w, step, gradient, low, high, sums):  # type: ignore[no-untyped-def]
    """sums += w, w <- clip(w + step gradient)."""
    for j in range(w.size):
        sums[j] += w[j]
        w[j] = min(max(w[j] + step[j] * gradient[j], low[j]), high[j])


@inlined
def whole_lines(size):  # type: ignore[no-untyped-def]
    """A number of float64 entries rounded up to cache lines."""
    return (size + 7) // 8 * 8


@inlined
def add_parts(gradients, size):  # type: ignore[no-untyped-def]
    """Add all parts to the first, in order."""
    for low in range(whole_lines(size), gradients.size, whole_lines(size)):
        for j in range(size):
            gradients[j] += gradients[low + j]


@borrowing_kernel
def show_point(w, v, own, offset, state, point, dual):  # type: ignore[no-untyped-def]
    """The point at which the next gradients are taken, where all threads see it."""
    held, scale = 1.0, 1.0
    if own.size:
        held = 0.0
        for j in range(w.size):
            held += own[j] * w[j]
        held = max(held, 1e-3)
        scale = (1.0 - offset) / held
    state[SCALE], state[HELD] = scale, held
    for j in range(w.size):
        point[j] = scale * w[j]
    for j in range(v.size):
        dual[j] = v[j]


@inlined
def add_up(start, own, w, state, to_w, to_v):  # type: ignore[no-untyped-def]
    """The whole gradient in the place of the first part's."""
    n_v = start.size
    add_parts(to_w, w.size)
    add_parts(to_v, n_v + 1)
    for j in range(n_v):
        to_v[j] += start[j]
    if own.size:
        # Of w / a'w: what would only change the scale is taken out of the gradient.
        along = 0.0
        for j in range(w.size):
            along += to_w[j] * w[j]
        for j in range(w.size):
            to_w[j] = state[SCALE] * (to_w[j] - own[j] * along / state[HELD])


@borrowing_kernel
def sgd_dense(slot, counters, patience, counter, most_draws, count, batch, part_size, events, tables,
              redirects, scalars, code, by_ratio, actions, start, own, psi, phi, mass_weight, w, v, w_sum,
              v_sum, w_step, v_step, boxes, state, point, dual, to_w, to_v, integers, floats):  # type: ignore[no-untyped-def]  # fmt: skip
    """``count`` steps, each the mean gradient of ``batch`` samples, by all threads that call this.

    ``start`` is the gradient of (1 - gamma) E_mu0 f, which is linear and known: nothing is drawn for it.
    ``own`` is empty, or the row a of the mass a'w to which tau is normalized: it then stands for the penalty.
    ``to_w`` and ``to_v`` hold the gradients of the parts, each from a cache line on, u after v.
    ``integers`` and ``floats`` are scratch, a slot for each thread.
    The caller in slot 0 comes back when all steps are done, any other when nothing is left for it to do.
    """
    xs, ys = integers[slot, 0], integers[slot, 1]
    weights, masses = floats[slot, 0], floats[slot, 1]
    on_tau, on_f, on_next = floats[slot, 2], floats[slot, 3], floats[slot, 4]
    w_low, w_top, v_low, v_top = boxes
    n_w, n_v = w.size, v.size
    parts = to_w.size // whole_lines(n_w)
    total = count * parts
    share = 1.0 / batch
    gamma, penalty, offset, u_step, u_top = scalars[0], scalars[1], scalars[2], scalars[5], scalars[6]
    while slot == 0 or not dismissed(counters):
        part = claim_part(counters)
        if part >= total:
            break
        step, place = part // parts, part % parts
        low = place * part_size
        n = min(part_size, batch - low)
        at = counter_after(counter, (step * batch + low) * most_draws)
        draw_batch(at, most_draws, n, events, tables, redirects, gamma, actions, mass_weight, xs, ys, weights,
                   masses)  # fmt: skip
        w_at, v_at = place * whole_lines(n_w), place * whole_lines(n_v + 1)
        await_round(counters, part, patience)
        to_v[v_at + n_v] = part_gradient(
            n, share, state[U], xs, ys, weights, masses, scalars, code, by_ratio, psi, phi, point, dual,
            on_tau, on_f, on_next, to_w[w_at : w_at + n_w], to_v[v_at : v_at + n_v],
        )  # fmt: skip
        if is_last(counters, part, parts):
            add_up(start, own, w, state, to_w, to_v)
            project_step(w, w_step, to_w, w_low, w_top, w_sum)
            project_step(v, v_step, to_v, v_low, v_top, v_sum)
            state[U_SUM] += state[U]
            state[U] = min(max(state[U] + u_step * penalty * to_v[n_v], -u_top), u_top)
            show_point(w, v, own, offset, state, point, dual)
            open_next(counters, part, parts)
    if slot == 0:
        wait_for_all(counters, total)
