"""Forward and backward passes of a multilayer perceptron with one output, over the rows of a tile.

A network is one flat float32 vector of parameters and a table of where its layers lie: row l of ``layout``
holds (inputs, stride of the inputs, width, place of the weights, place of the biases, place of the transposed
weights), the last row the output layer. Widths are padded to whole cache lines (``WIDTH``); padded units
carry zeros, and gradients leave them so.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.blas import PLAIN, SINGLE, single_gemm
from lingendice.kernels.jit import fused_kernel, internal

WIDTH = 16
"""Widths are padded to a multiple of it."""
TANH, RELU = 0, 1
"""Activations."""

# Products of this many multiplications OpenBLAS would share among threads of its own (see blas.py).
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
