"""One training step of a saddle point between two networks (see ``neural/objective.py``).

The batch is cut into groups and those into tiles; both depend on the batch alone. A group adds its rows to a
gradient of its own, and groups are added up in order, so that a step gives the same bits on any number of
threads. Rows, restarts and actions are drawn from (seed, step, purpose, place).
"""

from __future__ import annotations

import math

import numpy as np

from lingendice.kernels.jit import borrowing_kernel, inlined, internal, kernel, shared
from lingendice.kernels.networks.mlp import backward, forward, transpose_weights
from lingendice.kernels.networks.noise import fill_normals, row_below, stream_key
from lingendice.kernels.networks.tickets import draw_part, is_last, open_next, wait_for_all
from lingendice.kernels.networks.vectors import ROWS, copy_row
from lingendice.kernels.prefetch import prefetch_run
from lingendice.kernels.saddle.conjugates import excess_and_slope

TILE = 96
"""Rows of the batch whose activations are in the cache together."""
GROUP = 512
"""Rows of the batch that share one gradient."""
ACT_NONE, ACT_DISCRETE, ACT_GAUSSIAN, ACT_GIVEN = 0, 1, 2, 3
FLOWS, ABSORBED, RESTARTED = 0, 1, 2
_U_RATE = 0.1
# Purposes of random numbers; the noise of first actions is one further than that of next actions.
_ROWS, _FIRSTS, _RESTARTS, _NEXT_NOISE = 0, 1, 2, 3


@shared
def padded(rows):
    """Rows rounded up to whole blocks."""
    return (rows + ROWS - 1) // ROWS * ROWS


@kernel
def draw_rows(seed, step, batch, n_rows, n_firsts, flags, rows, firsts, restarts):
    """What a step draws: for policies that only the interpreter can sample."""
    origin = batch - batch
    key, key_first = stream_key(seed, step, origin + _ROWS), stream_key(seed, step, origin + _FIRSTS)
    key_restart = stream_key(seed, step, origin + _RESTARTS)
    for r in range(batch):
        rows[r] = row_below(key, r, n_rows)
        firsts[r] = row_below(key_first, r, n_firsts) if n_firsts > 0 else 0
        restarted = flags[rows[r]] == RESTARTED
        restarts[r] = row_below(key_restart, r, n_firsts) if restarted else -1


@internal
def dual_and_slope(y, bound, limit):
    """f from the network's output y, and df/dy: free, bounded by a tanh, or kept below a limit."""
    if math.isfinite(limit):
        shift = math.log(math.expm1(limit))
        rest = shift - y
        softplus = rest + math.log1p(math.exp(-rest)) if rest > 0.0 else math.log1p(math.exp(rest))
        return limit - softplus, 1.0 / (1.0 + math.exp(-rest))
    if math.isfinite(bound):
        turned = math.tanh(y / bound)
        return bound * turned, 1.0 - turned * turned
    return y, 1.0


@internal
def ratio_and_slope(z, output):
    """tau from the network's output z, and d tau / dz: square, softplus, exp, identity."""
    if output == 0:
        return z * z, 2.0 * z
    if output == 1:
        slope = 1.0 / (1.0 + math.exp(-z))
        return (z + math.log1p(math.exp(-z)) if z > 0.0 else math.log1p(math.exp(z))), slope
    if output == 2:
        grown = math.exp(min(z, 20.0))
        return grown, grown
    return z, 1.0


@internal
def _arrive(
    n, at, spacing, index, step, shift, shape, source, action, noise, noise_at, limits, scratch, weights
):
    """Inputs at ``n`` arrivals, branches ``spacing`` apart, and the branches' weights.

    Arrival r is row ``step * index[r] + shift`` of ``source``, which holds the means of Gaussian actions, and
    row ``index[r]`` of ``action``, the probabilities of discrete ones.
    """
    stride, n_states, n_actions, kind, branches = shape[3], shape[4], shape[5], shape[6], shape[7]
    eights = stride // 8
    for b in range(branches):
        place = at + b * spacing
        for r in range(n):
            copy_row(source, (step * index[r] + shift) * stride, scratch, place + r * stride, eights)
    if kind == ACT_DISCRETE:
        for r in range(n):
            for b in range(branches):
                scratch[at + b * spacing + r * stride + n_states + b] = np.float32(1)
                weights[r * branches + b] = action[index[r] * n_actions + b]
        return
    for r in range(n):
        weights[r] = np.float32(1)
    if kind == ACT_GAUSSIAN:
        std, low, high = limits
        per_row = n_actions + n_actions % 2
        for r in range(n):
            place = at + r * stride + n_states
            inputs = scratch[place : place + n_actions]
            drawn = noise[noise_at + r * per_row : noise_at + (r + 1) * per_row]
            for j in range(n_actions):
                inputs[j] = min(max(inputs[j] + std[j] * drawn[j], low[j]), high[j])
    elif kind == ACT_GIVEN:
        for r in range(n):
            for j in range(n_actions):
                scratch[at + r * stride + n_states + j] = noise[noise_at + r * n_actions + j]


@inlined
def _gather(low, n, draws, shape, starts, data, mass, given, given_at, scratch, weights, noise, integers,
            as_floats, indices):  # fmt: skip
    """Inputs of a tile: logged rows, arrivals at s', and (where used) initial states, branch by branch."""
    seed, step = draws
    pairs, firsts, next_action, first_action, limits, flags = data
    n_rows, n_firsts, stride, n_actions = shape[0], shape[1], shape[3], shape[5]
    kind, branches, restarts = shape[6], shape[7], shape[8]
    rows, first_rows = indices[0], indices[1]
    origin, one = low - low, n // n  # a literal would compile every callee once more
    key, key_first = stream_key(seed, step, origin + _ROWS), stream_key(seed, step, origin + _FIRSTS)
    # Rows lie anywhere in memory: all of a tile are asked for before the first is copied.
    for r in range(n):
        i = row_below(key, low + r, n_rows)
        rows[r] = i
        prefetch_run(pairs, i * 2 * stride, 2 * stride)
        if kind == ACT_DISCRETE:
            prefetch_run(next_action, i * n_actions, n_actions)
        prefetch_run(flags, i, one)
        prefetch_run(mass, i, one)
    if starts:
        for r in range(n):
            i = row_below(key_first, low + r, n_firsts)
            first_rows[r] = i
            prefetch_run(firsts, i * stride, stride)
            if kind == ACT_DISCRETE:
                prefetch_run(first_action, i * n_actions, n_actions)
    next_noise, first_noise = noise[0], noise[1]
    per_row, noise_at = n_actions, origin
    if kind == ACT_GAUSSIAN:
        per_row = n_actions + n_actions % 2
        count = n * per_row
        for which in range(2 if starts else 1):
            key_noise = stream_key(seed, step, which + _NEXT_NOISE)
            fill_normals(
                key_noise, low * per_row, count, integers[0], as_floats[0], integers[1], noise[which]
            )  # fmt: skip
    elif kind == ACT_GIVEN:
        next_noise, first_noise = given
        noise_at = (given_at + low) * n_actions
    at = spacing = n * stride
    for r in range(n):
        copy_row(pairs, rows[r] * 2 * stride, scratch, r * stride, stride // 8)
    _arrive(n, at, spacing, rows, one + one, one, shape, pairs, next_action, next_noise, noise_at, limits,
            scratch, weights[0])  # fmt: skip
    if restarts > 0:
        key_restart = stream_key(seed, step, origin + _RESTARTS)
        restart_row = indices[2]
        for r in range(n):
            if flags[rows[r]] == RESTARTED:
                restart_row[0] = row_below(key_restart, low + r, n_firsts)
                _arrive(one, at + r * stride, spacing, restart_row, one, origin, shape, firsts, first_action,
                        next_noise, noise_at + r * per_row, limits, scratch,
                        weights[0][r * branches :])  # fmt: skip
    if starts:
        _arrive(n, at + branches * spacing, spacing, first_rows, one, origin, shape, firsts, first_action,
                first_noise, noise_at, limits, scratch, weights[1])  # fmt: skip


@inlined
def _saddle_gradient(n, branches, starts, share, objective, u, out, out_tau, weights, mass, flags, rows,
                     factor, factor_tau):  # fmt: skip
    """d J / d y at every row of f and d J / d z at every row of tau; returns the sum of nu tau."""
    gamma, code, by_ratio, output = objective[0], int(objective[1]), objective[2], int(objective[3])
    penalty, ridge, center, bound, limit = (
        objective[4],
        objective[5],
        objective[6],
        objective[7],
        objective[8],
    )
    total = 0.0
    for r in range(n):
        i = rows[r]
        tau, tau_slope = ratio_and_slope(np.float64(out_tau[r]), output)
        f, f_slope = dual_and_slope(np.float64(out[r]), bound, limit)
        excess, slope = excess_and_slope(code, f)
        flows = 0.0 if flags[i] == ABSORBED else gamma * share
        following = 0.0
        for b in range(branches):
            place = (1 + b) * n + r
            f_next, next_slope = dual_and_slope(np.float64(out[place]), bound, limit)
            weight = np.float64(weights[0, r * branches + b])
            following += weight * f_next
            factor[place] = flows * tau * weight * next_slope
            if starts:
                place += branches * n
                weight = np.float64(weights[1, r * branches + b])
                _, first_slope = dual_and_slope(np.float64(out[place]), bound, limit)
                factor[place] = (1.0 - gamma) * share * weight * first_slope
        weighed = tau * slope if by_ratio != 0.0 else slope
        factor[r] = -(tau + weighed) * f_slope * share
        charge = excess if by_ratio != 0.0 else 0.0
        nu = np.float64(mass[i])
        pull = flows * following + (penalty * u * nu + ridge * (tau - center) - f - charge) * share
        factor_tau[r] = pull * tau_slope
        total += nu * tau
    return total


@inlined
def group_gradient(group, slot, draws, settings, shape, objective, u, data, mass, nets, gradients, given,
                   given_at, work, engine):  # fmt: skip
    """Add up the gradients of one group of the batch; returns its sum of nu tau.

    ``slot`` names the scratch in use: one for each thread, so that it stays in the thread's cache.
    """
    batch, group_rows, tile, activation = settings
    layout, tau, f, tau_turned, f_turned = nets
    scratches, outs, factors, weights, noises, integers, as_floats, indices, spares = work
    to_tau, to_f = gradients[0][group], gradients[1][group]
    for i in range(to_tau.size):
        to_tau[i] = to_f[i] = np.float32(0)
    scratch, out, factor, weight = scratches[slot], outs[slot], factors[slot], weights[slot]
    tile_indices, spare = indices[slot], spares[slot]
    stride, branches = shape[3], shape[7]
    starts = objective[0] < 1.0
    sets = 1 + branches * (2 if starts else 1)
    widths = 0
    for layer in range(layout.shape[0] - 1):
        widths += layout[layer, 2]
    capacity, capacity_tau = padded(tile * (1 + 2 * branches)), padded(tile)
    hidden_at = capacity * stride
    hidden_tau = hidden_at + capacity * widths
    origin = group - group  # a literal would compile every callee once more
    total = 0.0
    end = min(batch, (group + 1) * group_rows)
    for low in range(group * group_rows, end, tile):
        n = min(tile, end - low)
        rows, rows_tau = padded(n * sets), padded(n)
        _gather(low, n, draws, shape, starts, data, mass, given, given_at, scratch, weight,
                noises[slot], integers[slot], as_floats[slot], tile_indices)  # fmt: skip
        forward(f, layout, scratch, origin, hidden_at, capacity, rows, out[0], origin, activation, engine)
        forward(
            tau,
            layout,
            scratch,
            origin,
            hidden_tau,
            capacity_tau,
            rows_tau,
            out[1],
            origin,
            activation,
            engine,
        )
        total += _saddle_gradient(
            n, branches, starts, 1.0 / batch, objective, u, out[0], out[1], weight, mass, data[5],
            tile_indices[0], factor[0], factor[1],
        )  # fmt: skip
        for r in range(n * sets, rows):
            factor[0, r] = np.float32(0)
        for r in range(n, rows_tau):
            factor[1, r] = np.float32(0)
        backward(f, f_turned, to_f, layout, scratch, origin, hidden_at, capacity, rows, factor[0], origin,
                 activation, engine, spare)  # fmt: skip
        backward(tau, tau_turned, to_tau, layout, scratch, origin, hidden_tau, capacity_tau, rows_tau,
                 factor[1], origin, activation, engine, spare)  # fmt: skip
    return total


@internal
def _reduced_norm(gradients):
    """Add all groups to the first, in order; returns the Euclidean norm."""
    first = gradients[0]
    for g in range(1, gradients.shape[0]):
        other = gradients[g]
        for i in range(first.size):
            first[i] += other[i]
    total = 0.0
    for i in range(first.size):
        total += np.float64(first[i]) * np.float64(first[i])
    return math.sqrt(total)


@borrowing_kernel
def adam(parameters, gradient, moments, scale, rate, late, momentum):
    """One step of Adam along ``scale * gradient``; ``rate`` is the signed step over its bias correction."""
    one, first_decay, second_decay = np.float32(1), np.float32(momentum), np.float32(0.999)
    tiny = np.float32(1e-8)
    first, second = moments[0], moments[1]
    for i in range(parameters.size):
        g = gradient[i] * scale
        m = first_decay * first[i] + (one - first_decay) * g
        v = second_decay * second[i] + (one - second_decay) * g * g
        first[i] = m
        second[i] = v
        parameters[i] += rate * m / (np.sqrt(v * late) + tiny)


@internal
def _average(mean, parameters, weight):
    for i in range(mean.size):
        mean[i] += weight * (parameters[i] - mean[i])


@inlined
def finish_step(total, batch, objective, rates, nets, gradients, moments, mean, state):
    """Clip, step both networks and u, and average tau; ``state`` is [u, -, -, steps, steps averaged]."""
    learning, dual_learning, clip, planned, average_from, decay, momentum = rates
    layout, tau, f, tau_turned, f_turned = nets
    steps = state[3] + 1.0
    state[3] = steps
    share = 1.0
    if decay != 0.0:
        share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, (steps - 1.0) / planned)))
    early, late = 1.0 - momentum**steps, 1.0 / (1.0 - 0.999**steps)
    norm_tau, norm_f = _reduced_norm(gradients[0]), _reduced_norm(gradients[1])
    scale_tau, scale_f = (
        np.float32(min(1.0, clip / (norm_tau + 1e-30))),
        np.float32(min(1.0, clip / (norm_f + 1e-30))),
    )
    rate_tau, rate_f = np.float32(-learning * share / early), np.float32(dual_learning * share / early)
    adam(tau, gradients[0][0], moments[0], scale_tau, rate_tau, np.float32(late), momentum)
    adam(f, gradients[1][0], moments[1], scale_f, rate_f, np.float32(late), momentum)
    # Plain ascent along d J / d u = penalty (E nu tau - 1 - u): u follows E nu tau - 1 closely.
    state[0] += _U_RATE * (total / batch - 1.0 - state[0])
    if steps > average_from:
        state[4] += 1.0
        _average(mean, tau, np.float32(1.0 / state[4]))
    transpose_weights(tau, layout, tau_turned)
    transpose_weights(f, layout, f_turned)


@borrowing_kernel
def train_steps(slot, counters, totals, count, draws, settings, shape, objective, rates, data, mass, nets,
                gradients, given, moments, mean, state, work, engine):  # fmt: skip
    """``count`` steps, by all the threads that call this with the same counters, each with its own slot.

    The caller in slot 0 comes back when all steps are done, any other when nothing is left for it to do.
    """
    seed, first = draws
    batch, groups = settings[0], gradients[0].shape[0]
    parts = count * groups
    while True:
        part = draw_part(counters, parts)
        if part >= parts:
            break
        step, group = part // groups, part % groups
        totals[group] = group_gradient(group, slot, (seed, first + step), settings, shape, objective,
                                       state[0], data, mass, nets, gradients, given, step * batch, work,
                                       engine)  # fmt: skip
        if is_last(counters, part, groups):
            total = 0.0
            for other in range(groups):
                total += totals[other]
            finish_step(total, batch, objective, rates, nets, gradients, moments, mean, state)
            open_next(counters, part, groups)
    if slot == 0:
        wait_for_all(counters, parts)


@borrowing_kernel
def evaluate_rows(parameters, layout, inputs, scratch, part, out, activation, engine):
    """Outputs at rows of padded inputs, tile by tile; ``part`` is scratch of one tile.

    Loops instead of slices assigned to slices, whose checks take seconds to compile.
    """
    n, stride = inputs.shape
    origin = n - n
    capacity = padded(TILE)
    hidden_at = capacity * stride
    for low in range(0, n, TILE):
        rows = min(TILE, n - low)
        for r in range(rows):
            for j in range(stride):
                scratch[r * stride + j] = inputs[low + r, j]
        forward(
            parameters, layout, scratch, origin, hidden_at, capacity, padded(rows), part, origin, activation,
            engine,
        )  # fmt: skip
        for r in range(rows):
            out[low + r] = part[r]
