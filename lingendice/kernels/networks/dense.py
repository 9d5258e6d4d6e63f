"""Training of multilayer perceptrons with any number of outputs: regression, and fitted Q evaluation.

A network is one flat float32 vector of parameters and a table of where its layers lie: row l of ``layout``
holds (inputs, outputs, place of the weights, place of the biases). Hidden layers are x * sigmoid(x) (SiLU).
A step draws its rows from (seed, step, place) and adds up gradients in a fixed order: bits depend on the seed
alone.
"""

from __future__ import annotations

import math

import numpy as np

from lingendice.kernels.blas import PLAIN, SINGLE, TURNED, single_gemm
from lingendice.kernels.jit import fused_kernel, internal
from lingendice.kernels.networks.mlp import tanh
from lingendice.kernels.networks.ratio_step import adam
from lingendice.kernels.random_numbers import row_below, stream_key

HUBER, LOGISTIC, SOFTMAX, GAUSSIAN = 0, 1, 2, 3
"""Losses of :func:`train_steps`."""
_ROWS, _BRANCH = 0, 1
"""Purposes of random numbers."""

# Products of 2^19 multiplications OpenBLAS shares among threads of its own, which fight with ours: a fit took
# seven times as many CPU seconds.
_ALONE = 2**19 - 1
# Factors of a product and of what it is added to: BLAS takes them by address.
_IN_PLACE_OF, _ADDED_TO = np.array([1.0, 0.0], np.float32), np.array([1.0, 1.0], np.float32)

_ONE, _HALF = np.float32(1), np.float32(0.5)


@internal
def _activate(run, slope, keep):
    """x sigmoid(x) in place, sigmoid(x) = (1 + tanh(x / 2)) / 2; the derivatives into ``slope`` if kept."""
    for i in range(run.size):
        x = run[i]
        gate = _HALF + _HALF * tanh(_HALF * x)
        run[i] = x * gate
        if keep:
            slope[i] = gate * (_ONE + x * (_ONE - gate))


@internal
def _forward(parameters, layout, rows, inputs, hidden, slope, out, keep):
    """Outputs of the first ``rows`` rows of ``inputs``; all arrays are flat and packed row by row."""
    depth = layout.shape[0]
    source, source_at, target_at = inputs, rows - rows, rows - rows
    for layer in range(depth):
        inner, width, weights_at, bias_at = layout[layer]
        last = layer == depth - 1
        target = out if last else hidden
        at = rows - rows if last else target_at
        bias = parameters[bias_at : bias_at + width]
        for r in range(rows):
            row = target[at + r * width : at + (r + 1) * width]
            for j in range(width):
                row[j] = bias[j]
        chunk = max(1, _ALONE // (inner * width))
        for first in range(0, rows, chunk):
            n = min(chunk, rows - first)
            single_gemm(
                SINGLE, PLAIN, PLAIN, width, n, inner, _ADDED_TO.ctypes, parameters[weights_at:].ctypes,
                width, source[source_at + first * inner :].ctypes, inner, _ADDED_TO[1:].ctypes,
                target[at + first * width :].ctypes, width,
            )  # fmt: skip
        if not last:
            _activate(hidden[at : at + rows * width], slope[at : at + rows * width], keep)
            source, source_at, target_at = hidden, at, at + rows * width


@internal
def _backward(parameters, layout, rows, inputs, hidden, slope, delta, spare, gradient):
    """gradient = d loss / d parameters from ``delta`` = d loss / d outputs, which is overwritten."""
    depth = layout.shape[0]
    at = rows - rows
    for layer in range(depth - 1):
        at += rows * layout[layer, 1]
    for layer in range(depth - 1, -1, -1):
        inner, width, weights_at, bias_at = layout[layer]
        source = inputs if layer == 0 else hidden
        at = at - rows * inner if layer > 0 else rows - rows
        sums = gradient[bias_at : bias_at + width]
        for j in range(width):
            sums[j] = np.float32(0)
        for r in range(rows):
            row = delta[r * width : (r + 1) * width]
            for j in range(width):
                sums[j] += row[j]
        chunk = max(1, _ALONE // (inner * width))
        for first in range(0, rows, chunk):
            n = min(chunk, rows - first)
            factors = _IN_PLACE_OF if first == 0 else _ADDED_TO
            single_gemm(
                SINGLE, PLAIN, TURNED, width, inner, n, factors.ctypes, delta[first * width :].ctypes,
                width, source[at + first * inner :].ctypes, inner, factors[1:].ctypes,
                gradient[weights_at:].ctypes, width,
            )  # fmt: skip
            if layer > 0:
                single_gemm(
                    SINGLE, TURNED, PLAIN, inner, n, width, _IN_PLACE_OF.ctypes,
                    parameters[weights_at:].ctypes, width, delta[first * width :].ctypes, width,
                    _IN_PLACE_OF[1:].ctypes, spare[first * inner :].ctypes, inner,
                )  # fmt: skip
        if layer > 0:
            below, derivative = spare[: rows * inner], slope[at : at + rows * inner]
            for i in range(rows * inner):
                below[i] *= derivative[i]
            delta, spare = spare, delta


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
def _step(network, rows, buffers, moments, rate, decay, taken):
    """Backward pass and one step of Adam, the ``taken``-th."""
    parameters, layout = network
    inputs, hidden, slope, _, delta, spare, gradient = buffers
    _backward(parameters, layout, rows, inputs, hidden, slope, delta, spare, gradient)
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
    """The learning rate after ``done`` steps: constant, or a half cosine over ``planned`` steps."""
    rate, planned = rates[0], rates[2]
    return rate if planned == 0.0 else rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / planned)))


@fused_kernel
def train_steps(network, moments, rows, data, loss, shape, rates, batch, draws, n_steps, buffers):
    """Take ``n_steps`` steps on batches drawn from ``rows``; ``rates`` is (rate, weight decay, planned).

    ``data`` holds inputs (N, d), targets (N, m) and weights (N); ``draws`` the seed and the steps taken.
    """
    parameters, layout = network
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
        _forward(parameters, layout, batch, inputs, hidden, slope, out, True)
        for r in range(batch):
            row = rows[row_below(key, r, rows.size)]
            here = delta[r * m : (r + 1) * m]
            _slope(loss, out[r * m : (r + 1) * m], targets[row], shape, here)
            for j in range(m):
                here[j] *= share * weights[row]
        _step(network, batch, buffers, moments, _scheduled(rates, step), rates[1], step + 1)


@fused_kernel
def fitted_q_steps(network, slow, moments, rows, data, terms, rates, batch, draws, n_steps, buffers, state):
    """Temporal-difference steps: the squared error of Q(x) to r - rho + sum_b w_b Qslow(x'_b).

    ``data`` holds inputs (N, d), rewards (N), inputs at the arrivals (N, branches, d) and their weights
    (N, branches), gamma included. ``terms`` is (whether one branch is drawn, pull of the slow parameters,
    pull of rho, least and largest value that Qslow may take); ``state`` is [rho, mean absolute error].
    """
    parameters, layout = network
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
        _forward(slow, layout, batch * branches, inputs, hidden, slope, out, False)
        for r in range(batch):
            row = rows[row_below(key, r, rows.size)]
            first = row_below(key_branch, r, total) if one_branch else 0
            value = rewards[row] - np.float32(state[0])
            for b in range(branches):
                value += weights[row, first + b] * min(max(out[r * branches + b], least), largest)
            targets[r] = value
            for j in range(d):
                inputs[r * d + j] = all_inputs[row, j]
        _forward(parameters, layout, batch, inputs, hidden, slope, out, True)
        error, size = 0.0, 0.0
        for r in range(batch):
            off = out[r] - targets[r]
            delta[r] = share * off
            error -= off
            size += abs(off)
        _step(network, batch, buffers, moments, _scheduled(rates, step), rates[1], step + 1)
        state[0] += pull * error / batch
        state[1] += 0.01 * (size / batch - state[1])
        near = np.float32(follow)
        for i in range(slow.size):
            slow[i] += near * (parameters[i] - slow[i])


@fused_kernel
def outputs(network, all_inputs, hidden, out):
    """The network's outputs at all rows of inputs, some hundred rows at a time."""
    parameters, layout = network
    n, d = all_inputs.shape
    m = layout[layout.shape[0] - 1, 1]
    room = hidden.size // max(1, _widths(layout))
    flat, written = all_inputs.reshape(n * d), out.reshape(n * m)
    for first in range(0, n, room):
        rows = min(room, n - first)
        _forward(
            parameters, layout, rows, flat[first * d : (first + rows) * d], hidden, hidden,
            written[first * m : (first + rows) * m], False,
        )  # fmt: skip


@internal
def _widths(layout):
    total = 0
    for layer in range(layout.shape[0] - 1):
        total += layout[layer, 1]
    return total
