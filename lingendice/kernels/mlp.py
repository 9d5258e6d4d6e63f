"""Forward and backward passes of multilayer perceptrons: over tiles for one output, and training for several.

A network is one flat float32 vector of parameters and a table of where its layers lie: row l of ``layout``
holds (inputs, stride of the inputs, width, place of the weights, place of the biases, place of the transposed
weights), the last row the output layer. Widths are padded to whole cache lines (``WIDTH``); padded units
carry zeros, and gradients leave them so.

Networks with any number of outputs (regression, and fitted Q evaluation) pad nothing: row l of their
``layout`` holds (inputs, outputs, place of the weights, place of the biases), and hidden layers are
x * sigmoid(x) (SiLU). A step draws its rows from (seed, step, place) and adds up gradients in a fixed order:
bits depend on the seed alone.
"""

from __future__ import annotations

import math

import numpy as np

from lingendice.kernels.blas import PLAIN, SINGLE, TURNED, single_gemm
from lingendice.kernels.jit import fused_kernel, internal
from lingendice.kernels.random_numbers import row_below, stream_key

WIDTH = 16
"""Widths are padded to a multiple of it."""
TANH, RELU = 0, 1
"""Activations."""

# Products of this many multiplications OpenBLAS shares among threads of its own, which fight with ours: a fit
# took seven times as many CPU seconds.
_SHARED_WORK = 2**19
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
_ONE, _ZERO = np.float32(1), np.float32(0)


@internal
def tanh(x):
    """tanh of a float32 to 4e-7 of itself, in a form that loops vectorize; NaN stays NaN."""
    x = min(max(x, -_CLAMP), _CLAMP)
    y = x * x
    above = x * (((_P3 * y + _P2) * y + _P1) * y + _P0)
    return above / ((((_Q4 * y + _Q3) * y + _Q2) * y + _Q1) * y + _Q0)


@fused_kernel
def forward(parameters, layout, scratch, span, out, activation):
    """Outputs of the network into ``out``; the hidden layers' stay in ``scratch`` for the way back."""
    inputs_at, hidden_at, capacity, rows = span
    depth = layout.shape[0] - 1
    source, target = inputs_at, hidden_at
    for layer in range(depth):
        inner, stride, width = layout[layer, 0], layout[layer, 1], layout[layer, 2]
        weights_at, bias_at = layout[layer, 3], layout[layer, 4]
        place = (source, stride, target, width, rows, inner, weights_at, bias_at)
        _activate(parameters, scratch, place, activation)
        source, target = target, target + capacity * width
    width, weights_at, bias_at = layout[depth, 0], layout[depth, 3], layout[depth, 4]
    out_weights = parameters[weights_at : weights_at + width]
    for r in range(rows):
        # A slice indexed from 0: indices that might be negative would keep the loop from vectorizing.
        row = scratch[source + r * width : source + (r + 1) * width]
        total = _ZERO
        for j in range(width):
            total += row[j] * out_weights[j]
        out[r] = total + parameters[bias_at]


@fused_kernel
def backward(parameters, transposed, gradient, layout, scratch, span, factor, activation, spare):
    """gradient += sum over rows of factor * d output / d parameters. The hidden layers are overwritten."""
    inputs_at, hidden_at, capacity, rows = span
    depth = layout.shape[0] - 1
    width, weights_at, bias_at = layout[depth, 0], layout[depth, 3], layout[depth, 4]
    at = hidden_at
    for layer in range(depth - 1):
        at += capacity * layout[layer, 2]
    total = 0.0  # in double precision: the terms cancel
    for r in range(rows):
        total += factor[r]
    gradient[bias_at] += np.float32(total)
    to_bias = layout[depth - 1, 4]
    _last_layer(parameters, gradient, scratch, at, width, rows, factor, weights_at, to_bias, activation)
    for layer in range(depth - 1, -1, -1):
        stride, width, weights_at = layout[layer, 1], layout[layer, 2], layout[layer, 3]
        below = inputs_at if layer == 0 else at - capacity * stride
        _add_outer(gradient, scratch, below, stride, at, width, rows, weights_at, spare)
        if layer == 0:
            break
        _backpropagate(
            transposed, gradient, scratch, at, width, below, stride, rows, layout[layer, 5],
            layout[layer - 1, 4], activation, spare,
        )  # fmt: skip
        at = below


@fused_kernel
def transpose_weights(parameters, layout, transposed):
    """Weights of all layers but the first, turned, for the way back."""
    for layer in range(1, layout.shape[0] - 1):
        stride, width = layout[layer, 1], layout[layer, 2]
        weights_at, turned = layout[layer, 3], layout[layer, 5]
        for j in range(width):
            column = transposed[turned + j * stride : turned + (j + 1) * stride]
            weights = parameters[weights_at + j : weights_at + stride * width]
            for i in range(stride):
                column[i] = weights[i * width]


@internal
def _multiply(left, left_at, left_stride, right, right_at, factors, target, target_at, width, rows, inner):
    """target[rows, width] = left @ right + factors[1] target, all of them row by row."""
    single_gemm(
        SINGLE, PLAIN, PLAIN, width, rows, inner, factors.ctypes, right[right_at:].ctypes, width,
        left[left_at:].ctypes, left_stride, factors[1:].ctypes, target[target_at:].ctypes, width,
    )  # fmt: skip


@internal
def _chunk(rows, work):
    """Rows of even parts, of ``work`` multiplications per row, that BLAS computes where it is called."""
    most = max(1, (_SHARED_WORK - 1) // work)
    parts = (rows + most - 1) // most
    return (rows + parts - 1) // parts


@internal
def _activate(parameters, scratch, place, activation):
    source, stride, target, width, rows, inner, weights_at, bias_at = place
    bias = parameters[bias_at : bias_at + width]
    chunk = _chunk(rows, width * inner)
    for first in range(0, rows, chunk):
        n = min(chunk, rows - first)
        at = target + first * width
        for r in range(n):
            row = scratch[at + r * width : at + (r + 1) * width]
            for j in range(width):
                row[j] = bias[j]
        _multiply(scratch, source + first * stride, stride, parameters, weights_at, _ADDED_TO, scratch, at,
                  width, n, inner)  # fmt: skip
        # One long run, by itself: with the bias in it, rows would be checked for overlap one by one.
        run = scratch[at : at + n * width]
        if activation == TANH:
            for j in range(n * width):
                run[j] = tanh(run[j])
        else:
            for j in range(n * width):
                run[j] = _ZERO if run[j] < _ZERO else run[j]


@internal
def _last_layer(parameters, gradient, scratch, at, width, rows, factor, weights_at, to_bias, activation):
    out = parameters[weights_at : weights_at + width]
    to_out = gradient[weights_at : weights_at + width]
    sums = gradient[to_bias : to_bias + width]
    for r in range(rows):
        g = factor[r]
        row = scratch[at + r * width : at + (r + 1) * width]
        for j in range(width):
            h = row[j]
            slope = _ONE - h * h if activation == TANH else (_ONE if h > _ZERO else _ZERO)
            to_out[j] += g * h
            row[j] = g * out[j] * slope
            sums[j] += row[j]


@internal
def _add_outer(gradient, scratch, below, stride, at, width, rows, weights_at, spare):
    # BLAS is slow at packing an operand that is to be turned: it is turned here.
    chunk = _chunk(rows, width * stride)
    for first in range(0, rows, chunk):
        n = min(chunk, rows - first)
        for r in range(n):
            row = scratch[below + (first + r) * stride : below + (first + r + 1) * stride]
            for i in range(stride):
                spare[i * n + r] = row[i]
        _multiply(spare, 0, n, scratch, at + first * width, _ADDED_TO, gradient, weights_at, width, stride, n)


@internal
def _backpropagate(transposed, gradient, scratch, at, width, below, stride, rows, turned, to_bias, activation,
                   spare):  # fmt: skip
    sums = gradient[to_bias : to_bias + stride]
    chunk = _chunk(rows, width * stride)
    for first in range(0, rows, chunk):
        n = min(chunk, rows - first)
        _multiply(scratch, at + first * width, width, transposed, turned, _IN_PLACE_OF, spare, 0, stride, n,
                  width)  # fmt: skip
        for r in range(n):
            row = scratch[below + (first + r) * stride : below + (first + r + 1) * stride]
            new = spare[r * stride : (r + 1) * stride]
            for j in range(stride):
                h = row[j]
                slope = _ONE - h * h if activation == TANH else (_ONE if h > _ZERO else _ZERO)
                row[j] = new[j] * slope
                sums[j] += row[j]


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


# -- networks with any number of outputs ---------------------------------------------------------------------


HUBER, LOGISTIC, SOFTMAX, GAUSSIAN = 0, 1, 2, 3
"""Losses of :func:`train_steps`."""
_ROWS, _BRANCH = 0, 1
"""Purposes of random numbers."""

_ALONE = _SHARED_WORK - 1
_HALF = np.float32(0.5)


@internal
def _apply_silu(run, slope, keep):
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
            _multiply(source, source_at + first * inner, inner, parameters, weights_at, _ADDED_TO, target,
                      at + first * width, width, n, inner)  # fmt: skip
        if not last:
            _apply_silu(hidden[at : at + rows * width], slope[at : at + rows * width], keep)
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
    """The learning rate after ``done`` steps: a half cosine over the planned ones."""
    return rates[0] * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done / rates[2])))


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
    room = hidden.size // max(1, layout[:-1, 1].sum())
    flat, written = all_inputs.reshape(n * d), out.reshape(n * m)
    for first in range(0, n, room):
        rows = min(room, n - first)
        _forward(
            parameters, layout, rows, flat[first * d : (first + rows) * d], hidden, hidden,
            written[first * m : (first + rows) * m], False,
        )  # fmt: skip
