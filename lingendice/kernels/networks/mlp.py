"""Forward and backward passes of a multilayer perceptron with one output, over the rows of a tile.

A network is one flat float32 vector of parameters and a table of where its layers lie: row l of ``layout``
holds (inputs, stride of the inputs, width, place of the weights, place of the biases, place of the transposed
weights), the last row the output layer. Widths are padded to ``vectors.PANEL``; padded units carry zeros, and
gradients leave them so. Two engines compute the same: explicit vectors, or BLAS with plain loops.
"""

from __future__ import annotations

import numpy as np

from lingendice.kernels.blas import PLAIN, SINGLE, single_gemm
from lingendice.kernels.jit import fused_kernel, internal
from lingendice.kernels.networks.vectors import (
    GRADIENT_REST,
    GRADIENT_ROWS,
    PANEL,
    ROWS,
    TANH,
    TANH_CLAMP,
    TANH_P,
    TANH_Q,
    activate_run,
    add_outer_block,
    add_outer_rest,
    affine_block,
    backpropagate_block,
    last_layer_block,
)

VECTOR, BLAS = None, 1
"""Engines: by their types, so that only the one in use is compiled."""

# Products of this many multiplications OpenBLAS would share among threads of its own (see blas.py).
_SHARED_WORK = 2**19
# Factors of a product and of what it is added to: BLAS takes them by address.
_IN_PLACE_OF, _ADDED_TO = np.array([1.0, 0.0], np.float32), np.array([1.0, 1.0], np.float32)
# Rows over which a gradient block is accumulated while both its operands stay in the nearest cache.
_NEAR_ROWS = 192

_CLAMP = np.float32(TANH_CLAMP)
_P0, _P1, _P2, _P3 = (np.float32(c) for c in TANH_P)
_Q0, _Q1, _Q2, _Q3, _Q4 = (np.float32(c) for c in TANH_Q)
_ONE, _ZERO = np.float32(1), np.float32(0)


@fused_kernel
def forward(parameters, layout, scratch, span, out, activation, engine):
    """Outputs of the network into ``out``; the hidden layers' stay in ``scratch`` for the way back."""
    inputs_at, hidden_at, capacity, rows = span
    depth = layout.shape[0] - 1
    source, target = inputs_at, hidden_at
    for layer in range(depth):
        inner, stride, width = layout[layer, 0], layout[layer, 1], layout[layer, 2]
        weights_at, bias_at = layout[layer, 3], layout[layer, 4]
        place = (source, stride, target, width, rows, inner, weights_at, bias_at)
        if engine is None:
            _activate_rows(parameters, scratch, place, activation)
        else:
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
def backward(parameters, transposed, gradient, layout, scratch, span, factor, activation, engine, spare):
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
    if engine is None:
        for c in range(0, width, PANEL):
            last_layer_block(
                scratch, at + c, width, rows, factor, parameters, weights_at + c, gradient, to_bias + c,
                activation,
            )  # fmt: skip
    else:
        _last_layer(parameters, gradient, scratch, at, width, rows, factor, weights_at, to_bias, activation)
    for layer in range(depth - 1, -1, -1):
        stride, width, weights_at = layout[layer, 1], layout[layer, 2], layout[layer, 3]
        below = inputs_at if layer == 0 else at - capacity * stride
        if engine is None:
            _add_outer_rows(gradient, scratch, below, stride, at, width, rows, weights_at)
        else:
            _add_outer(gradient, scratch, below, stride, at, width, rows, weights_at, spare)
        if layer == 0:
            break
        outputs = layout[layer + 1, 0]
        to_bias = layout[layer - 1, 4]
        if engine is None:
            _backpropagate_rows(
                transposed, gradient, scratch, at, width, below, stride, rows, outputs, layout[layer, 5],
                to_bias, activation,
            )  # fmt: skip
        else:
            _backpropagate(
                transposed, gradient, scratch, at, width, below, stride, rows, layout[layer, 5], to_bias,
                activation, spare,
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


# -- explicit vectors ----------------------------------------------------------------------------------


@internal
def _activate_rows(parameters, scratch, place, activation):
    source, stride, target, width, rows, inner, weights_at, bias_at = place
    for r in range(0, rows, ROWS):
        for c in range(0, width, PANEL):
            affine_block(
                scratch, source + r * stride, stride, parameters, weights_at + c, width, inner,
                parameters, bias_at + c, scratch, target + r * width + c,
            )  # fmt: skip
        activate_run(scratch, target + r * width, ROWS * width, activation)


@internal
def _add_outer_rows(gradient, scratch, below, stride, at, width, rows, weights_at):
    # Strides are multiples of 8: what whole blocks leave is made 0, 4 or 8 rows.
    whole = stride // GRADIENT_ROWS * GRADIENT_ROWS
    whole -= GRADIENT_ROWS if (stride - whole) % GRADIENT_REST else 0
    for first in range(0, rows, _NEAR_ROWS):
        inner = min(_NEAR_ROWS, rows - first)
        left, right = below + first * stride, at + first * width
        for c in range(0, width, PANEL):
            for k in range(0, whole, GRADIENT_ROWS):
                add_outer_block(
                    scratch, left + k, stride, scratch, right + c, width, inner, gradient,
                    weights_at + k * width + c,
                )  # fmt: skip
            for k in range(whole, stride, GRADIENT_REST):
                add_outer_rest(
                    scratch, left + k, stride, scratch, right + c, width, inner, gradient,
                    weights_at + k * width + c,
                )  # fmt: skip


@internal
def _backpropagate_rows(transposed, gradient, scratch, at, width, below, stride, rows, outputs, turned,
                        to_bias, activation):  # fmt: skip
    for r in range(0, rows, ROWS):
        for c in range(0, stride, PANEL):
            backpropagate_block(
                scratch, at + r * width, width, transposed, turned + c, stride, outputs,
                below + r * stride + c, gradient, to_bias + c, activation,
            )  # fmt: skip


# -- BLAS and plain loops ------------------------------------------------------------------------------


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
                x = min(max(run[j], -_CLAMP), _CLAMP)
                y = x * x
                run[j] = (
                    x * (((_P3 * y + _P2) * y + _P1) * y + _P0)
                    / ((((_Q4 * y + _Q3) * y + _Q2) * y + _Q1) * y + _Q0)
                )  # fmt: skip
        else:
            for j in range(n * width):
                run[j] = max(run[j], _ZERO)


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
