"""Matrix products on explicit vectors: what a Numba loop cannot be made to compile to.

A block of ``ROWS`` rows by ``PANEL`` columns of a product is held in registers over the whole inner
dimension, and what follows it (bias and activation, or the derivative and its column sums) is applied before
it leaves them. The blocks are written in LLVM's language through Numba's ``intrinsic``; they inline into the
kernels that call them and are kept in the on-disk cache with them. Matrices are float32, given as a flat
array, an offset and strides in elements.
"""

from __future__ import annotations

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic


def _features():
    """What Numba compiles for: this machine, unless its environment variables name another."""
    if config.CPU_FEATURES is None:
        return {name for name, present in binding.get_host_cpu_features().items() if present}
    return {entry[1:] for entry in config.CPU_FEATURES.split(",") if entry.startswith("+")}


def _shape():
    """(lanes of a vector, vectors of a panel, rows of a block)."""
    features = _features()
    if "avx512f" in features:
        return 16, 4, 6  # 24 of 32 registers accumulate
    if {"avx2", "fma"} <= features:
        return 8, 2, 6  # 12 of 16
    return 4, 2, 4


LANES, _VECTORS, ROWS = _shape()
GRADIENT_ROWS, GRADIENT_REST = 6, 4
"""Rows of a block of a gradient, and of those that fill up its last 4 or 8 rows."""
PANEL = LANES * _VECTORS
"""Columns of a block: widths are padded to a multiple of it."""
WIDE = LANES >= 8
"""Whether blocks on explicit vectors beat BLAS here."""

TANH, RELU = 0, 1
TANH_CLAMP = 8.0
# tanh(x) = x P(x^2) / Q(x^2) on [-8, 8] to 4e-7, fitted for the least maximal relative error; low orders
# first.
TANH_P = (0.9999998544263417, 0.12925659843920906, 0.002951020444440388, 1.1428388851043236e-05)
TANH_Q = (
    1.0, 0.4625887544825052, 0.023815540393841258, 0.0002386687050529389, 2.4592001316702766e-07,
)  # fmt: skip

_float = ir.FloatType()
_long = ir.IntType(64)
_int = ir.IntType(32)
_vector = ir.VectorType(_float, LANES)
_index = types.intp


class _Writer:
    """Writes vector instructions into one function."""

    def __init__(self, builder):
        self.builder = builder

    def constant(self, number):
        return ir.Constant(_vector, [float(np.float32(number))] * LANES)

    def everywhere(self, scalar):
        """A scalar in every lane."""
        empty = ir.Constant(_vector, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, _int(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_int, LANES), [0] * LANES))

    def address(self, base, offset):
        return self.builder.gep(base, [offset])

    def load(self, base, offset):
        place = self.builder.bitcast(self.address(base, offset), _vector.as_pointer())
        return self.builder.load(place, align=4)

    def store(self, value, base, offset):
        place = self.builder.bitcast(self.address(base, offset), _vector.as_pointer())
        self.builder.store(value, place, align=4)

    def load_everywhere(self, base, offset):
        return self.everywhere(self.builder.load(self.address(base, offset), align=4))

    def multiply_add(self, left, right, plus):
        # In one instruction where there is one; llvm.fma would else call a function for every number.
        name = f"llvm.fmuladd.v{LANES}f32"
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(_vector, [_vector] * 3), name=name)
        return self.builder.call(function, [left, right, plus])

    def polynomial(self, at, coefficients):
        value = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.multiply_add(value, at, self.constant(coefficient))
        return value

    def tanh(self, *several):
        """tanh of some vectors; NaN stays NaN."""
        builder = self.builder
        above, below = [], []
        for x in several:
            high, low = self.constant(TANH_CLAMP), self.constant(-TANH_CLAMP)
            x = builder.select(builder.fcmp_ordered("<", high, x), high, x)
            x = builder.select(builder.fcmp_ordered(">", low, x), low, x)
            square = builder.fmul(x, x)
            above.append(builder.fmul(x, self.polynomial(square, TANH_P)))
            below.append(self.polynomial(square, TANH_Q))
        if LANES <= 8:
            return tuple(map(builder.fdiv, above, below))
        # Vectors of 16 are divided in two halves one after the other: two tanh for one division.
        inverse = builder.fdiv(self.constant(1.0), builder.fmul(below[0], below[1]))
        return (
            builder.fmul(builder.fmul(above[0], below[1]), inverse),
            builder.fmul(builder.fmul(above[1], below[0]), inverse),
        )

    def relu(self, *several):
        """max(x, 0) of some vectors, written so that NaN passes through."""
        builder, zero = self.builder, self.constant(0.0)
        return tuple(builder.select(builder.fcmp_ordered("<", x, zero), zero, x) for x in several)


def _data(context, builder, array_type, array):
    return context.make_array(array_type)(context, builder, value=array).data


class _Block:
    """Accumulators of one block, and the loop over the inner dimension."""

    def __init__(self, builder, rows):
        self.builder, self.rows = builder, rows
        self.write = _Writer(builder)
        self.sums = [[cgutils.alloca_once(builder, _vector) for _ in range(_VECTORS)] for _ in range(rows)]

    def columns(self, offset):
        """Offsets of the vectors of one row."""
        return [self.builder.add(offset, _long(k * LANES)) for k in range(_VECTORS)]

    def places(self, offset, stride):
        """Offsets of all vectors of the block."""
        builder = self.builder
        return [self.columns(builder.add(offset, builder.mul(stride, _long(r)))) for r in range(self.rows)]

    def begin(self, values):
        """Start every row from one vector of values (zeros, a bias) or each from its own."""
        for r in range(self.rows):
            for k in range(_VECTORS):
                self.builder.store(values[r][k], self.sums[r][k])

    def accumulate(
        self, left, left_offset, row_stride, inner_stride, right, right_offset, right_stride, inner
    ):
        """sums[r] += sum over k of left[r, k] right[k, panel]."""
        builder, write = self.builder, self.write
        with cgutils.for_range(builder, inner) as loop:
            at_left = builder.add(left_offset, builder.mul(loop.index, inner_stride))
            at_right = builder.add(right_offset, builder.mul(loop.index, right_stride))
            columns = [write.load(right, offset) for offset in self.columns(at_right)]
            for r in range(self.rows):
                place = builder.add(at_left, builder.mul(row_stride, _long(r)))
                factor = write.load_everywhere(left, place)
                for k in range(_VECTORS):
                    total = builder.load(self.sums[r][k])
                    builder.store(write.multiply_add(factor, columns[k], total), self.sums[r][k])

    def values(self):
        return [[self.builder.load(total) for total in row] for row in self.sums]


@intrinsic
def affine_block(
    typing, left, left_at, left_stride, weights, weights_at, width, inner, bias, bias_at, target, target_at
):
    """target[ROWS, PANEL] = left @ weights + bias."""
    signature = types.void(
        left, _index, _index, weights, _index, _index, _index, bias, _index, target, _index
    )

    def generate(context, builder, signature, arguments):
        (left, left_at, left_stride, weights, weights_at, width, inner, bias, bias_at, target,
         target_at) = arguments  # fmt: skip
        left, weights, bias, target = (
            _data(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 7, 9)
        )
        block = _Block(builder, ROWS)
        write = block.write
        start = [write.load(bias, offset) for offset in block.columns(bias_at)]
        block.begin([start] * ROWS)
        block.accumulate(left, left_at, left_stride, _long(1), weights, weights_at, width, inner)
        for row, offsets in zip(block.values(), block.places(target_at, width), strict=True):
            for value, offset in zip(row, offsets, strict=True):
                write.store(value, target, offset)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def activate_run(typing, values, first, count, activation):
    """values[first : first + count] = activation of them, TANH or RELU; a whole number of panels.

    In a loop of its own, where the constants of tanh stay in registers that a product would fill.
    """
    signature = types.void(values, _index, _index, _index)

    def generate(context, builder, signature, arguments):
        values, first, count, activation = arguments
        values = _data(context, builder, signature.args[0], values)
        write = _Writer(builder)
        together = 2 if LANES > 8 else 1
        steps = builder.sdiv(count, _long(together * LANES))
        is_tanh = builder.icmp_signed("==", activation, _long(TANH))
        with builder.if_else(is_tanh) as branches:
            for branch, function in zip(branches, (write.tanh, write.relu), strict=True):
                with branch, cgutils.for_range(builder, steps) as loop:
                    start = builder.add(first, builder.mul(loop.index, _long(together * LANES)))
                    places = [builder.add(start, _long(k * LANES)) for k in range(together)]
                    results = function(*(write.load(values, place) for place in places))
                    for result, place in zip(results, places, strict=True):
                        write.store(result, values, place)
        return context.get_dummy_value()

    return signature, generate


def _derivative(builder, write, output, activation):
    """Of the activation, from its output: 1 - h^2, or whether h > 0."""
    one, zero = write.constant(1.0), write.constant(0.0)
    of_tanh = write.multiply_add(builder.fneg(output), output, one)
    of_relu = builder.select(builder.fcmp_ordered(">", output, zero), one, zero)
    is_tanh = builder.icmp_signed("==", activation, _long(TANH))
    return builder.select(is_tanh, of_tanh, of_relu)


@intrinsic
def backpropagate_block(
    typing,
    left,
    left_at,
    left_stride,
    weights,
    weights_at,
    width,
    inner,
    target_at,
    sums,
    sums_at,
    activation,
):
    """target[ROWS, PANEL] = (left @ weights) * activation'(target); sums[PANEL] += its column sums.

    The target lies in the array that holds the left factor.
    """
    signature = types.void(
        left, _index, _index, weights, _index, _index, _index, _index, sums, _index, _index
    )

    def generate(context, builder, signature, arguments):
        (left, left_at, left_stride, weights, weights_at, width, inner, target_at, sums, sums_at,
         activation) = arguments  # fmt: skip
        left, weights, sums = (_data(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 8))
        block = _Block(builder, ROWS)
        write = block.write
        block.begin([[write.constant(0.0)] * _VECTORS] * ROWS)
        block.accumulate(left, left_at, left_stride, _long(1), weights, weights_at, width, inner)
        columns = block.columns(sums_at)
        totals = [write.load(sums, offset) for offset in columns]
        for row, offsets in zip(block.values(), block.places(target_at, width), strict=True):
            for k, (value, offset) in enumerate(zip(row, offsets, strict=True)):
                output = write.load(left, offset)
                value = builder.fmul(value, _derivative(builder, write, output, activation))
                write.store(value, left, offset)
                totals[k] = builder.fadd(totals[k], value)
        for total, offset in zip(totals, columns, strict=True):
            write.store(total, sums, offset)
        return context.get_dummy_value()

    return signature, generate


def _outer_block(height):
    """target[height, PANEL] += left[:, height]' @ right[:, PANEL] over ``inner`` rows."""

    @intrinsic
    def add(typing, left, left_at, left_stride, right, right_at, width, inner, target, target_at):
        signature = types.void(left, _index, _index, right, _index, _index, _index, target, _index)

        def generate(context, builder, signature, arguments):
            left, left_at, left_stride, right, right_at, width, inner, target, target_at = arguments
            left, right, target = (
                _data(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 7)
            )
            block = _Block(builder, height)
            write = block.write
            places = block.places(target_at, width)
            block.begin([[write.load(target, offset) for offset in row] for row in places])
            block.accumulate(left, left_at, _long(1), left_stride, right, right_at, width, inner)
            for row, offsets in zip(block.values(), places, strict=True):
                for value, offset in zip(row, offsets, strict=True):
                    write.store(value, target, offset)
            return context.get_dummy_value()

        return signature, generate

    return add


add_outer_block, add_outer_rest = _outer_block(GRADIENT_ROWS), _outer_block(GRADIENT_REST)


@intrinsic
def last_layer_block(
    typing, hidden, hidden_at, width, rows, factor, weights, weights_at, gradient, sums_at, activation
):
    """One panel of the gradient at the last hidden layer, row by row in place of its outputs h.

    gradient[weights_at] += g h; h = g w activation'(h); gradient[sums_at] += h.
    """
    signature = types.void(
        hidden, _index, _index, _index, factor, weights, _index, gradient, _index, _index
    )  # fmt: skip

    def generate(context, builder, signature, arguments):
        hidden, hidden_at, width, rows, factor, weights, weights_at, gradient, sums_at, activation = arguments
        hidden, factor, weights, gradient = (
            _data(context, builder, signature.args[i], arguments[i]) for i in (0, 4, 5, 7)
        )
        block = _Block(builder, 2)
        write = block.write
        of_weights, of_sums = block.columns(weights_at), block.columns(sums_at)
        block.begin(
            [
                [write.load(gradient, offset) for offset in of_weights],
                [write.load(gradient, offset) for offset in of_sums],
            ]
        )
        out = [write.load(weights, offset) for offset in of_weights]
        with cgutils.for_range(builder, rows) as loop:
            g = write.load_everywhere(factor, loop.index)
            row = builder.add(hidden_at, builder.mul(loop.index, width))
            for k, offset in enumerate(block.columns(row)):
                h = write.load(hidden, offset)
                products, totals = block.sums[0][k], block.sums[1][k]
                builder.store(write.multiply_add(g, h, builder.load(products)), products)
                value = builder.fmul(builder.fmul(g, out[k]), _derivative(builder, write, h, activation))
                write.store(value, hidden, offset)
                builder.store(builder.fadd(builder.load(totals), value), totals)
        for values, offsets in zip(block.values(), (of_weights, of_sums), strict=True):
            for value, offset in zip(values, offsets, strict=True):
                write.store(value, gradient, offset)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def copy_row(typing, source, source_at, target, target_at, eights):
    """Copy ``eights`` times eight numbers: shorter than a call of memcpy."""
    signature = types.void(source, _index, target, _index, _index)

    def generate(context, builder, signature, arguments):
        source, source_at, target, target_at, eights = arguments
        source = _data(context, builder, signature.args[0], source)
        target = _data(context, builder, signature.args[2], target)
        eight = ir.VectorType(_float, 8).as_pointer()
        with cgutils.for_range(builder, eights) as loop:
            step = builder.mul(loop.index, _long(8))
            read = builder.bitcast(builder.gep(source, [builder.add(source_at, step)]), eight)
            write = builder.bitcast(builder.gep(target, [builder.add(target_at, step)]), eight)
            builder.store(builder.load(read, align=4), write, align=4)
        return context.get_dummy_value()

    return signature, generate
