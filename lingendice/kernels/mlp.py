"""Multilayer perceptrons: forward and backward passes, steps of Adam, and the training of regressions.

A network is one flat float32 vector of parameters, a table of where its layers lie, and the number of its
activation: row l of ``layout`` holds (inputs, outputs, place of the weights, place of the biases). Inputs,
hidden values and outputs are flat as well, row by row and layer after layer.

A step draws its rows from (seed, step, place) and adds up gradients in a fixed order: bits depend on the seed
alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.blas import PLAIN, SINGLE, TURNED, single_gemm
from lingendice.kernels.jit import fused_kernel, internal
from lingendice.kernels.random_numbers import row_below, stream_key

TANH, RELU, SILU = 0, 1, 2
"""Activations; SiLU is x sigmoid(x)."""

# OpenBLAS shares larger products (in multiplications) among threads of its own, which fight with ours: a fit
# took seven times as many CPU seconds.
_LARGEST_PRODUCT = 2**19 - 1
# Factors of a product and of what it is added to: BLAS takes them by address.
_IN_PLACE_OF, _ADDED_TO = np.array([1.0, 0.0], np.float32), np.array([1.0, 1.0], np.float32)

_CLAMP = np.float32(8.0)
# tanh(x) = x P(x^2) / Q(x^2) on [-8, 8] to 4e-7, fitted for the least maximal relative error; low orders
# first.
_P0, _P1, _P2, _P3 = (
    np.float32(c)
    for c in (0.9999998544263417, 0.12925659843920906, 0.002951020444440388, 1.1428388851043236e-05)
)
_Q0, _Q1, _Q2, _Q3, _Q4 = (
    np.float32(c)
    for c in (1.0, 0.4625887544825052, 0.023815540393841258, 0.0002386687050529389, 2.4592001316702766e-07)
)
_ONE, _HALF, _ZERO = np.float32(1), np.float32(0.5), np.float32(0)


@internal
def tanh(x):
    """tanh of a float32 to 4e-7 of itself, in a form that loops vectorize; NaN stays NaN."""
    x = min(max(x, -_CLAMP), _CLAMP)
    y = x * x
    above = x * (((_P3 * y + _P2) * y + _P1) * y + _P0)
    return above / ((((_Q4 * y + _Q3) * y + _Q2) * y + _Q1) * y + _Q0)


class Net(NamedTuple):
    """One network as kernels take it."""

    parameters: Any
    layout: Any
    activation: Any


@internal
def _activate(run, slope, activation, keep):
    """The activation in place; its derivatives into ``slope`` if kept, where they do not follow from it."""
    if activation == TANH:
        for i in range(run.size):
            run[i] = tanh(run[i])
    elif activation == RELU:
        for i in range(run.size):
            run[i] = _ZERO if run[i] < _ZERO else run[i]
    else:  # sigmoid(x) = (1 + tanh(x / 2)) / 2
        for i in range(run.size):
            x = run[i]
            gate = _HALF + _HALF * tanh(_HALF * x)
            run[i] = x * gate
            if keep:
                slope[i] = gate * (_ONE + x * (_ONE - gate))


@internal
def _chain_rule(delta, kept, activation):
    """delta times the activation's derivative, which ``kept`` holds (SiLU) or gives."""
    if activation == TANH:
        for i in range(delta.size):
            delta[i] *= _ONE - kept[i] * kept[i]
    elif activation == RELU:
        for i in range(delta.size):
            delta[i] = delta[i] if kept[i] > _ZERO else _ZERO
    else:
        for i in range(delta.size):
            delta[i] *= kept[i]


@fused_kernel
def forward(net, rows, inputs, hidden, slope, out, keep):
    """Outputs of the first ``rows`` rows of ``inputs``; for the way back, hidden values and slopes stay."""
    parameters, layout, activation = net
    depth = layout.shape[0]
    source, source_at, target_at = inputs, rows - rows, rows - rows
    for layer in range(depth):
        inner, width, weights_at, bias_at = layout[layer]
        last = layer == depth - 1
        target = out if last else hidden
        at = rows - rows if last else target_at
        bias = parameters[bias_at : bias_at + width]
        for r in range(rows):
            # A slice indexed from 0: indices that might be negative would keep the loop from vectorizing.
            row = target[at + r * width : at + (r + 1) * width]
            for j in range(width):
                row[j] = bias[j]
        chunk = max(1, _LARGEST_PRODUCT // (inner * width))
        for first in range(0, rows, chunk):
            n = min(chunk, rows - first)
            single_gemm(
                SINGLE, PLAIN, PLAIN, width, n, inner, _ADDED_TO.ctypes, parameters[weights_at:].ctypes,
                width, source[source_at + first * inner :].ctypes, inner, _ADDED_TO[1:].ctypes,
                target[at + first * width :].ctypes, width,
            )  # fmt: skip
        if not last:
            # One long run, by itself: with the bias in it, rows would be checked for overlap one by one.
            _activate(hidden[at : at + rows * width], slope[at : at + rows * width], activation, keep)
            source, source_at, target_at = hidden, at, at + rows * width


@fused_kernel
def backward(net, rows, inputs, hidden, slope, delta, spare, gradient):
    """gradient += d loss / d parameters from ``delta`` = d loss / d outputs, which is overwritten.

    ``delta`` and ``spare`` have room for ``rows`` rows of the widest layer.
    """
    parameters, layout, activation = net
    depth = layout.shape[0]
    at = rows - rows
    for layer in range(depth - 1):
        at += rows * layout[layer, 1]
    for layer in range(depth - 1, -1, -1):
        inner, width, weights_at, bias_at = layout[layer]
        source = inputs if layer == 0 else hidden
        at = at - rows * inner if layer > 0 else rows - rows
        sums = gradient[bias_at : bias_at + width]
        for r in range(rows):
            row = delta[r * width : (r + 1) * width]
            for j in range(width):
                sums[j] += row[j]
        chunk = max(1, _LARGEST_PRODUCT // (inner * width))
        for first in range(0, rows, chunk):
            n = min(chunk, rows - first)
            single_gemm(
                SINGLE, PLAIN, TURNED, width, inner, n, _ADDED_TO.ctypes, delta[first * width :].ctypes,
                width, source[at + first * inner :].ctypes, inner, _ADDED_TO[1:].ctypes,
                gradient[weights_at:].ctypes, width,
            )  # fmt: skip
            if layer > 0:
                single_gemm(
                    SINGLE, TURNED, PLAIN, inner, n, width, _IN_PLACE_OF.ctypes,
                    parameters[weights_at:].ctypes, width, delta[first * width :].ctypes, width,
                    _IN_PLACE_OF[1:].ctypes, spare[first * inner :].ctypes, inner,
                )  # fmt: skip
        if layer > 0:
            kept = slope if activation == SILU else hidden
            _chain_rule(spare[: rows * inner], kept[at : at + rows * inner], activation)
            delta, spare = spare, delta


@fused_kernel
def outputs(net, all_inputs, hidden, out):
    """The network's outputs at all rows of inputs, some hundred rows at a time."""
    n, d = all_inputs.shape
    layout = net.layout
    m = layout[layout.shape[0] - 1, 1]
    room = hidden.size // max(1, layout[:-1, 1].sum())
    flat, written = all_inputs.reshape(n * d), out.reshape(n * m)
    for first in range(0, n, room):
        rows = min(room, n - first)
        forward(
            net, rows, flat[first * d : (first + rows) * d], hidden, hidden,
            written[first * m : (first + rows) * m], False,
        )  # fmt: skip


@fused_kernel
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


# -- regressions --------------------------------------------------------------------------------------------


HUBER, LOGISTIC, SOFTMAX, GAUSSIAN = 0, 1, 2, 3
"""Losses of :func:`train_steps`."""
_ROWS, _BRANCH = 0, 1
"""Purposes of random numbers."""


@internal
def _slope(loss, out, target, shape, delta):
    """d loss / d outputs of one row; ``shape`` holds (factor, steepness, limit) of each output."""
    n = out.size
    if loss == HUBER:
        for j in range(n):
            error = (out[j] - target[j]) * shape[1, j]
            delta[j] = shape[0, j] * min(max(error, -shape[2, j]), shape[2, j])
    elif loss == LOGISTIC:
        for j in range(n):
            delta[j] = np.float32(1.0 / (1.0 + math.exp(-out[j]))) - target[j]
    elif loss == SOFTMAX:
        largest, total = out[0], 0.0
        for j in range(1, n):
            largest = max(largest, out[j])
        for j in range(n):
            total += math.exp(out[j] - largest)
        for j in range(n):
            delta[j] = np.float32(math.exp(out[j] - largest) / total) - target[j]
    else:
        half = n // 2
        for j in range(half):
            precision = math.exp(-out[half + j])
            z = (target[j] - out[j]) * precision
            delta[j] = np.float32(-z * precision)
            delta[half + j] = np.float32(1.0 - z * z)


@internal
def _step(net, rows, buffers, moments, rate, decay, taken):
    """Backward pass and one step of Adam, the ``taken``-th."""
    parameters = net.parameters
    inputs, hidden, slope, _, delta, spare, gradient = buffers
    for i in range(gradient.size):
        gradient[i] = _ZERO
    backward(net, rows, inputs, hidden, slope, delta, spare, gradient)
    if decay > 0.0:
        pull = np.float32(decay)
        for i in range(parameters.size):
            gradient[i] += pull * parameters[i]
    adam(
        parameters, gradient, moments, _ONE, np.float32(-rate / (1.0 - 0.9**taken)),
        np.float32(1.0 / (1.0 - 0.999**taken)), 0.9,
    )  # fmt: skip


@internal
def _scheduled(rates, done):
    """The learning rate after ``done`` steps: a half cosine over the planned ones."""
    return rates[0] * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / rates[2])))


@fused_kernel
def train_steps(net, moments, rows, data, loss, shape, rates, batch, draws, n_steps, buffers):
    """Take ``n_steps`` steps on batches drawn from ``rows``; ``rates`` is (rate, weight decay, planned).

    ``data`` holds inputs (N, d), targets (N, m) and weights (N); ``draws`` the seed and the steps taken.
    """
    layout = net.layout
    all_inputs, targets, weights = data
    inputs, hidden, slope, out, delta, _, _ = buffers
    seed, done = draws
    d, m = all_inputs.shape[1], layout[layout.shape[0] - 1, 1]
    share = np.float32(1.0 / batch)
    for step in range(done, done + n_steps):
        key = stream_key(seed, step, _ROWS)
        for r in range(batch):
            row = all_inputs[rows[row_below(key, r, rows.size)]]
            for j in range(d):
                inputs[r * d + j] = row[j]
        forward(net, batch, inputs, hidden, slope, out, True)
        for r in range(batch):
            row = rows[row_below(key, r, rows.size)]
            here = delta[r * m : (r + 1) * m]
            _slope(loss, out[r * m : (r + 1) * m], targets[row], shape, here)
            for j in range(m):
                here[j] *= share * weights[row]
        _step(net, batch, buffers, moments, _scheduled(rates, step), rates[1], step + 1)


@fused_kernel
def fitted_q_steps(net, slow, moments, rows, data, terms, rates, batch, draws, n_steps, buffers, state):
    """Temporal-difference steps: the squared error of Q(x) to r - rho + sum_b w_b Qslow(x'_b).

    ``data`` holds inputs (N, d), rewards (N), inputs at the arrivals (N, branches, d) and their weights
    (N, branches), gamma included. ``terms`` is (whether one branch is drawn, pull of the slow parameters,
    pull of rho, least and largest value that Qslow may take); ``state`` is [rho, mean absolute error].
    """
    layout = net.layout
    all_inputs, rewards, arrivals, weights = data
    inputs, hidden, slope, out, delta, _, _ = buffers
    one_branch, follow, pull, least, largest = terms
    seed, done = draws
    d, total = all_inputs.shape[1], arrivals.shape[1]
    branches = 1 if one_branch else total
    share = np.float32(1.0 / batch)
    targets = np.empty(batch, np.float32)
    least, largest = np.float32(least), np.float32(largest)
    for step in range(done, done + n_steps):
        key, key_branch = stream_key(seed, step, _ROWS), stream_key(seed, step, _BRANCH)
        for r in range(batch):
            arrival = arrivals[rows[row_below(key, r, rows.size)]]
            first = row_below(key_branch, r, total) if one_branch else 0
            for b in range(branches):
                for j in range(d):
                    inputs[(r * branches + b) * d + j] = arrival[first + b, j]
        forward(Net(slow, layout, net.activation), batch * branches, inputs, hidden, slope, out, False)
        for r in range(batch):
            row = rows[row_below(key, r, rows.size)]
            first = row_below(key_branch, r, total) if one_branch else 0
            value = rewards[row] - np.float32(state[0])
            for b in range(branches):
                value += weights[row, first + b] * min(max(out[r * branches + b], least), largest)
            targets[r] = value
            for j in range(d):
                inputs[r * d + j] = all_inputs[row, j]
        forward(net, batch, inputs, hidden, slope, out, True)
        error, size = 0.0, 0.0
        for r in range(batch):
            off = out[r] - targets[r]
            delta[r] = share * off
            error -= off
            size += abs(off)
        _step(net, batch, buffers, moments, _scheduled(rates, step), rates[1], step + 1)
        state[0] += pull * error / batch
        state[1] += 0.01 * (size / batch - state[1])
        near = np.float32(follow)
        for i in range(slow.size):
            slow[i] += near * (net.parameters[i] - slow[i])
