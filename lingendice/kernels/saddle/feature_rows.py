"""Inner products with the rows of sampled cells, and sums of them, for rows that lie anywhere in memory.

A sample (x, x') needs psi(x), phi(x) and phi(x'), first for tau(x), f(x) and f(x'), then for the gradients.
The rows of a group of samples are walked side by side: their cache misses overlap, so that nothing need be
fetched beforehand, they share the loads of the other operand, and their sums just fit the registers. Written
in vectors as wide as the machine's: left to itself the compiler takes half the width of the widest machines,
and tests before each loop whether the arrays overlap (they never do here).
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lingendice.kernels.jit import inlined

GROUP = 4
"""Samples worked on together: twelve rows."""
LANES = 8 if binding.get_host_cpu_features().get("avx512f") else 4
"""float64 entries of a vector."""
UNROLLED = 8
"""Vectors of each row that the longest loop body takes."""
_NUMBER, _WORD, _PLACE = ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_NUMBER, LANES)
_FUSED = ("contract",)


def _constant(value):  # type: ignore[no-untyped-def]
    return ir.Constant(_PLACE, value)


class _Block:
    """Rows of one matrix that belong to a group of samples, and the vector that goes with all of them."""

    def __init__(self, context, builder, signature, arguments, matrix, lists, first, vector, count):  # type: ignore[no-untyped-def]
        self.builder = builder
        arrays = {
            at: context.make_array(signature.args[at])(context, builder, arguments[at])
            for at in (matrix, vector, *lists)
        }
        self.rows = []
        for numbers in lists:
            for k in range(count):
                place = builder.gep(arrays[numbers].data, [builder.add(first, _constant(k))])
                at = [builder.load(place), _constant(0)]
                self.rows.append(
                    cgutils.get_item_pointer(
                        context, builder, signature.args[matrix], arrays[matrix], at, wraparound=False
                    )
                )
        self.vector = arrays[vector].data
        self.size = builder.extract_value(arrays[vector].shape, 0)
        self.whole = builder.and_(self.size, _constant(-LANES))

    def entries(self, pointer, j, kind):  # type: ignore[no-untyped-def]
        """Where the entries from j on stand: a vector, or one."""
        return self.builder.bitcast(self.builder.gep(pointer, [j]), kind.as_pointer())

    def load(self, pointer, j, kind):  # type: ignore[no-untyped-def]
        return self.builder.load(self.entries(pointer, j, kind), align=8)


def _walk(builder, blocks, body):  # type: ignore[no-untyped-def]
    """Run ``body(block, j, vector type)`` over whole vectors: of both blocks together as far as both go."""
    both = builder.select(
        builder.icmp_signed("<", blocks[0].whole, blocks[1].whole), blocks[0].whole, blocks[1].whole
    )
    # Twelve rows and the rest take more pointers than there are registers: long bodies reload them seldom.
    long = builder.and_(both, _constant(-UNROLLED * LANES))
    for part, start, stop, repeats in (
        (blocks, _constant(0), long, UNROLLED),
        (blocks, long, both, 1),
        (blocks[:1], both, blocks[0].whole, 1),
        (blocks[1:], both, blocks[1].whole, 1),
    ):
        stride = _constant(repeats * LANES)
        with cgutils.for_range_slice(builder, start, stop, stride, _PLACE) as (j, _):
            for k in range(repeats):
                for block in part:
                    body(block, builder.add(j, _constant(k * LANES)), _VECTOR)


def _walk_rest(builder, blocks, body):  # type: ignore[no-untyped-def]
    """The same over the entries that fill no vector, one by one."""
    for block in blocks:
        with cgutils.for_range_slice(builder, block.whole, block.size, _constant(1), _PLACE) as (j, _):
            body(block, j, _NUMBER)


def _add_product(builder, total, x, y):  # type: ignore[no-untyped-def]
    return builder.fadd(total, builder.fmul(x, y, flags=_FUSED), flags=_FUSED)


def _sum_of(builder, vector):  # type: ignore[no-untyped-def]
    """The sum of a vector's entries, halves added to halves."""
    width = LANES
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    while width > 1:
        width //= 2
        low, high = (
            builder.shuffle_vector(
                vector, nothing, ir.Constant(ir.VectorType(_WORD, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = builder.fadd(low, high)
        nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.extract_element(vector, ir.Constant(_WORD, 0))


def _everywhere(builder, number):  # type: ignore[no-untyped-def]
    """A vector with the number in every entry."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    once = builder.insert_element(nothing, number, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(once, nothing, ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES))


def _pair_of_blocks(context, builder, signature, arguments, count):  # type: ignore[no-untyped-def]
    """psi(x) with w, and phi(x), phi(x') with v, from (psi, phi, xs, ys, first, w, v, ...)."""
    common = (context, builder, signature, arguments)
    first = arguments[4]
    return [_Block(*common, 0, (2,), first, 5, count), _Block(*common, 1, (2, 3), first, 6, count)]


def _places(context, builder, signature, arguments, count):  # type: ignore[no-untyped-def]
    """Where tau(x), f(x) and f(x') of the samples stand, in the order of the blocks' rows."""
    places = []
    for at in (7, 8, 9):
        array = context.make_array(signature.args[at])(context, builder, arguments[at])
        places += [builder.gep(array.data, [builder.add(arguments[4], _constant(k))]) for k in range(count)]
    return [places[:count], places[count:]]


def _dot(count):  # type: ignore[no-untyped-def]
    @intrinsic
    def dot(typing_context, psi, phi, xs, ys, first, w, v, tau, f, f_next):  # type: ignore[no-untyped-def]
        """`dot_rows` for ``count`` samples."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            blocks = _pair_of_blocks(context, builder, signature, arguments, count)
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            sums = {block: [cgutils.alloca_once_value(builder, zero) for _ in block.rows] for block in blocks}

            def body(block, j, kind):  # type: ignore[no-untyped-def]
                factor = block.load(block.vector, j, kind)
                for row, total in zip(block.rows, sums[block], strict=True):
                    product = _add_product(builder, builder.load(total), block.load(row, j, kind), factor)
                    builder.store(product, total)

            _walk(builder, blocks, body)
            for block in blocks:
                sums[block] = [
                    cgutils.alloca_once_value(builder, _sum_of(builder, builder.load(total)))
                    for total in sums[block]
                ]
            _walk_rest(builder, blocks, body)
            places = _places(context, builder, signature, arguments, count)
            for block, into in zip(blocks, places, strict=True):
                for total, place in zip(sums[block], into, strict=True):
                    builder.store(builder.load(total), place)
            return context.get_dummy_value()

        return types.void(psi, phi, xs, ys, types.intp, w, v, tau, f, f_next), generate

    return dot


def _add(count):  # type: ignore[no-untyped-def]
    @intrinsic
    def add(typing_context, psi, phi, xs, ys, first, to_w, to_v, on_tau, on_f, on_next):  # type: ignore[no-untyped-def]
        """`add_rows` for ``count`` samples."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            blocks = _pair_of_blocks(context, builder, signature, arguments, count)
            factors = {}
            for block, places in zip(
                blocks, _places(context, builder, signature, arguments, count), strict=True
            ):
                numbers = [builder.load(place) for place in places]
                factors[block, _NUMBER] = numbers
                factors[block, _VECTOR] = [_everywhere(builder, number) for number in numbers]

            def body(block, j, kind):  # type: ignore[no-untyped-def]
                # Two chains of sums: one of twice the length would be waited for.
                totals = [block.load(block.vector, j, kind), ir.Constant(kind, None)]
                for k, (row, factor) in enumerate(zip(block.rows, factors[block, kind], strict=True)):
                    totals[k % 2] = _add_product(builder, totals[k % 2], block.load(row, j, kind), factor)
                builder.store(builder.fadd(*totals), block.entries(block.vector, j, kind), align=8)

            _walk(builder, blocks, body)
            _walk_rest(builder, blocks, body)
            return context.get_dummy_value()

        return types.void(psi, phi, xs, ys, types.intp, to_w, to_v, on_tau, on_f, on_next), generate

    return add


_dot_group, _dot_one = _dot(GROUP), _dot(1)
_add_group, _add_one = _add(GROUP), _add(1)


@inlined
def dot_rows(psi, phi, xs, ys, first, last, w, v, tau, f, f_next):  # type: ignore[no-untyped-def]
    """tau[k], f[k], f_next[k] = psi(x) @ w, phi(x) @ v, phi(x') @ v, x = xs[k] and x' = ys[k].

    For ``first <= k < last <= first + GROUP``; columns beyond the sizes of w and v are not read.
    """
    if last - first == GROUP:
        _dot_group(psi, phi, xs, ys, first, w, v, tau, f, f_next)
    else:
        for k in range(first, last):
            _dot_one(psi, phi, xs, ys, k, w, v, tau, f, f_next)


@inlined
def add_rows(psi, phi, xs, ys, first, last, to_w, to_v, on_tau, on_f, on_next):  # type: ignore[no-untyped-def]
    """to_w += on_tau[k] psi(x) and to_v += on_f[k] phi(x) + on_next[k] phi(x') for the same samples."""
    if last - first == GROUP:
        _add_group(psi, phi, xs, ys, first, to_w, to_v, on_tau, on_f, on_next)
    else:
        for k in range(first, last):
            _add_one(psi, phi, xs, ys, k, to_w, to_v, on_tau, on_f, on_next)
