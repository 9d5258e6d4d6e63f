"""One training step of a saddle point between two networks (see ``continuous/learner.py``).

The batch is cut into groups and those into tiles; both depend on the batch alone. A group adds its rows to a
gradient of its own, and groups are added up in order, so that a step gives the same bits on any number of
threads that share its groups. SampleRows, restarts and actions are drawn from (seed, step, purpose, place).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, inlined, internal, kernel
from lingendice.kernels.mlp import adam, backward, forward
from lingendice.kernels.random_numbers import fill_normals, row_below, stream_key
from lingendice.kernels.saddle_steps import excess_and_slope

TILE = 96
"""Rows of the batch whose activations are in the cache together."""
GROUP = 512
"""Rows of the batch that share one gradient."""
ACT_NONE, ACT_DISCRETE, ACT_GAUSSIAN, ACT_GIVEN = 0, 1, 2, 3
FLOWS, ABSORBED, RESTARTED = 0, 1, 2
_U_RATE = 0.1
# Purposes of random numbers; the noise of first actions is one further than that of next actions.
_ROWS, _FIRSTS, _RESTARTS, _NEXT_NOISE = 0, 1, 2, 3


# -- what kernels take together ------------------------------------------------------------------------


class Shape(NamedTuple):
    """Sizes of the samples, and how actions are given."""

    n_rows: Any
    n_firsts: Any
    width: Any
    n_states: Any
    n_actions: Any
    kind: Any
    branches: Any
    restarts: Any


class SampleRows(NamedTuple):
    """Samples as steps gather them: (x, s') side by side, first states, actions, flags, nu."""

    shape: Any
    pairs: Any
    firsts: Any
    next_action: Any
    first_action: Any
    limits: Any
    flags: Any
    mass: Any


class ArrivalTable(NamedTuple):
    """Arrivals: state ``step * i + shift`` of ``source`` belongs to row i of ``action``."""

    source: Any
    action: Any
    step: Any
    shift: Any


class Loss(NamedTuple):
    """Terms of the objective; see ``continuous/learner.py``."""

    gamma: Any
    code: Any
    """Of the excess, in ``saddle_steps.py``."""
    by_ratio: Any
    """Whether the excess is weighted by tau."""
    output: Any
    """How tau follows from z: see :func:`ratio_and_slope`."""
    penalty: Any
    ridge: Any
    center: Any
    bound: Any
    """|f| <= bound, by f = bound tanh(y / bound); inf leaves f free."""
    limit: Any
    """f < limit, by a softplus that is 0 at 0; inf leaves f free."""


class Rates(NamedTuple):
    """Step lengths of both networks, and when and how they change."""

    learning: Any
    dual_learning: Any
    clip: Any
    planned: Any
    average_from: Any
    decay: Any
    momentum: Any


class Gradients(NamedTuple):
    """Of each group: in tau's and f's parameters, and the sum of nu tau."""

    tau: Any
    f: Any
    mass: Any


class Scratch(NamedTuple):
    """Scratch of one thread: of f, then of tau, where there are two."""

    inputs: Any
    hidden: Any
    slopes: Any
    out: Any
    delta: Any
    spare: Any
    weights: Any
    noise: Any
    integers: Any
    as_floats: Any
    indices: Any


# -- steps ---------------------------------------------------------------------------------------------


@internal
def _copy_row(source, source_at, target, target_at, size):
    # Indices that might be negative would be checked one by one, and the loop not vectorized.
    to, come = np.uint64(target_at), np.uint64(source_at)
    for j in range(np.uint64(size)):
        target[to + j] = source[come + j]


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
        # softplus(shift) = limit, so that f = 0 at y = 0, where networks start. The softplus is written so
        # that neither end overflows.
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
        # exp(20) is 5e8, whose square still is far from the end of float32, in which gradients are kept.
        grown = math.exp(min(z, 20.0))
        return grown, grown
    return z, 1.0


@internal
def _arrive(n, at, spacing, index, table, shape, noise, noise_at, limits, scratch, weights):
    """Inputs at ``n`` arrivals, branches ``spacing`` apart, and the branches' weights.

    The table's source holds the means of Gaussian actions, its ``action`` the probabilities of discrete ones.
    """
    source, action, step, shift = table
    stride, n_states, n_actions = shape.width, shape.n_states, shape.n_actions
    kind, branches = shape.kind, shape.branches
    for b in range(branches):
        place = at + b * spacing
        for r in range(n):
            _copy_row(source, (step * index[r] + shift) * stride, scratch, place + r * stride, stride)
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
        # Normals are made in pairs. An even number per row keeps a row's noise the same wherever tiles begin.
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
def _gather(low, n, draws, starts, rows, given, work):
    """Inputs of a tile: logged rows, arrivals at s', and (where used) initial states, branch by branch."""
    seed, step = draws
    shape, limits, scratch, noise, integers = rows.shape, rows.limits, work.inputs, work.noise, work.integers
    stride, n_actions, kind, branches = shape.width, shape.n_actions, shape.kind, shape.branches
    drawn, first_drawn = work.indices[0], work.indices[1]
    origin, one = low - low, n // n  # a literal would compile every callee once more
    key, key_first = stream_key(seed, step, origin + _ROWS), stream_key(seed, step, origin + _FIRSTS)
    for r in range(n):
        drawn[r] = row_below(key, low + r, shape.n_rows)
    if starts:
        for r in range(n):
            first_drawn[r] = row_below(key_first, low + r, shape.n_firsts)
    next_noise, first_noise = noise[0], noise[1]
    per_row, noise_at = n_actions, origin
    if kind == ACT_GAUSSIAN:
        per_row = n_actions + n_actions % 2
        count = n * per_row
        for which in range(2 if starts else 1):
            key_noise = stream_key(seed, step, which + _NEXT_NOISE)
            fill_normals(
                key_noise, low * per_row, count, integers[0], work.as_floats[0], integers[1], noise[which]
            )  # fmt: skip
    elif kind == ACT_GIVEN:
        next_noise, first_noise = given
        noise_at = low * n_actions
    at = spacing = n * stride
    for r in range(n):
        _copy_row(rows.pairs, drawn[r] * 2 * stride, scratch, r * stride, stride)
    following = ArrivalTable(rows.pairs, rows.next_action, one + one, one)
    starting = ArrivalTable(rows.firsts, rows.first_action, one, origin)
    _arrive(n, at, spacing, drawn, following, shape, next_noise, noise_at, limits, scratch, work.weights[0])
    if shape.restarts > 0:
        key_restart = stream_key(seed, step, origin + _RESTARTS)
        restart_row = work.indices[2]
        for r in range(n):
            if rows.flags[drawn[r]] == RESTARTED:
                restart_row[0] = row_below(key_restart, low + r, shape.n_firsts)
                _arrive(one, at + r * stride, spacing, restart_row, starting, shape, next_noise,
                        noise_at + r * per_row, limits, scratch,
                        work.weights[0][r * branches :])  # fmt: skip
    if starts:
        _arrive(n, at + branches * spacing, spacing, first_drawn, starting, shape, first_noise, noise_at,
                limits, scratch, work.weights[1])  # fmt: skip


@inlined
def _saddle_gradient(n, starts, share, loss, u, rows, work):
    """d J / d y at every row of f and d J / d z at every row of tau; returns the sum of nu tau."""
    gamma, code, by_ratio, output, penalty, ridge, center, bound, limit = loss
    branches, mass, flags, drawn = rows.shape.branches, rows.mass, rows.flags, work.indices[0]
    out, out_tau, factor, factor_tau = work.out[0], work.out[1], work.delta[0], work.delta[1]
    weights = work.weights
    total = 0.0
    for r in range(n):
        i = drawn[r]
        tau, tau_slope = ratio_and_slope(np.float64(out_tau[r]), output)
        f, f_slope = dual_and_slope(np.float64(out[r]), bound, limit)
        excess, slope = excess_and_slope(code, f)
        # Nothing follows an absorbed row. One that restarts was given a first state as its next by `_gather`.
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
        # J holds -tau f - excess(f) for each row, the excess times tau where it is weighted by the ratio, and
        # gamma tau f(s') and (1 - gamma) f(s0) at the arrivals above.
        weighed = tau * slope if by_ratio else slope
        factor[r] = -(tau + weighed) * f_slope * share
        charge = excess if by_ratio else 0.0
        nu = np.float64(mass[i])
        pull = flows * following + (penalty * u * nu + ridge * (tau - center) - f - charge) * share
        factor_tau[r] = pull * tau_slope
        total += nu * tau
    return total


@fused_kernel
def add_gradients(first, last, draws, batch, loss, u, rows, tau, f, gradients, given, work):
    """Add up the gradients of the groups ``first : last`` of one step, and their sums of nu tau."""
    inputs, out, delta, spare = work.inputs, work.out, work.delta, work.spare
    (hidden_f, hidden_tau), (slopes_f, slopes_tau) = work.hidden, work.slopes
    starts = loss.gamma < 1.0
    sets = 1 + rows.shape.branches * (2 if starts else 1)
    for group in range(first, last):
        to_tau, to_f = gradients.tau[group], gradients.f[group]
        for i in range(to_tau.size):
            to_tau[i] = to_f[i] = np.float32(0)
        total = 0.0
        end = min(batch, (group + 1) * GROUP)
        for low in range(group * GROUP, end, TILE):
            n = min(TILE, end - low)
            _gather(low, n, draws, starts, rows, given, work)
            # The logged rows come first: they are all that tau is evaluated at.
            forward(f, n * sets, inputs, hidden_f, slopes_f, out[0], True)
            forward(tau, n, inputs, hidden_tau, slopes_tau, out[1], True)
            total += _saddle_gradient(n, starts, 1.0 / batch, loss, u, rows, work)
            backward(f, n * sets, inputs, hidden_f, slopes_f, delta[0], spare, to_f)
            backward(tau, n, inputs, hidden_tau, slopes_tau, delta[1], spare, to_tau)
        gradients.mass[group] = total


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


@internal
def _average(mean, parameters, weight):
    for i in range(mean.size):
        mean[i] += weight * (parameters[i] - mean[i])


@fused_kernel
def finish_step(batch, rates, tau, f, gradients, moments, mean, state):
    """Clip, step both networks and u, and average tau; ``state`` is [u, -, -, steps, steps averaged]."""
    learning, dual_learning, clip, planned, average_from, decay, momentum = rates
    total = 0.0
    for group in range(gradients.mass.size):
        total += gradients.mass[group]
    steps = state[3] + 1.0
    state[3] = steps
    share = 1.0
    if decay != 0.0:
        share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, (steps - 1.0) / planned)))
    # Adam's running means begin at 0: early on they are divided by the weight that they have gathered.
    early, late = 1.0 - momentum**steps, 1.0 / (1.0 - 0.999**steps)
    # In the order of the groups, whichever thread made them: the same bits for any number of threads.
    norm_tau, norm_f = _reduced_norm(gradients.tau), _reduced_norm(gradients.f)
    scale_tau, scale_f = (
        np.float32(min(1.0, clip / (norm_tau + 1e-30))),
        np.float32(min(1.0, clip / (norm_f + 1e-30))),
    )
    rate_tau, rate_f = np.float32(-learning * share / early), np.float32(dual_learning * share / early)
    adam(tau, gradients.tau[0], moments[0], scale_tau, rate_tau, np.float32(late), momentum)
    adam(f, gradients.f[0], moments[1], scale_f, rate_f, np.float32(late), momentum)
    # Plain ascent along d J / d u = penalty (E nu tau - 1 - u): u follows E nu tau - 1 closely.
    state[0] += _U_RATE * (total / batch - 1.0 - state[0])
    if steps > average_from:
        state[4] += 1.0
        _average(mean, tau, np.float32(1.0 / state[4]))
