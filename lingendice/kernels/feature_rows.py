"""Inner products with rows of a matrix, and sums of them, for rows that lie anywhere in memory.

Written in vectors of eight: left to itself the compiler takes half the width of the widest machines, and
tests before each loop whether the arrays overlap (they never do here). Four rows at a time share the loads
of the other operand. Rows of later samples are fetched between the arithmetic, a cache line of each in turn:
asked for all at once they would hold up the loads that the arithmetic waits for.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lingendice.kernels.jit import kernel
from lingendice.kernels.prefetch import fetch

GROUP = 4
"""Rows worked on together."""
LANES = 8
"""float64 entries of a vector, and of a cache line."""
_NUMBER, _WORD = ir.DoubleType(), ir.IntType(32)
_VECTOR = ir.VectorType(_NUMBER, LANES)
_FUSED = ("contract",)


class _Rows:
    """Code for loops over the entries of some rows: whole vectors first, then what is left."""

    def __init__(self, context, builder, types_given, matrix, numbers, first, size):  # type: ignore[no-untyped-def]
        self.context, self.builder, self.first, self.size = context, builder, first, size
        self.matrix_type = types_given[0]
        self.matrix = context.make_array(types_given[0])(context, builder, matrix)
        self.numbers = context.make_array(types_given[1])(context, builder, numbers)

    def constant(self, value):  # type: ignore[no-untyped-def]
        return ir.Constant(self.size.type, value)

    def place(self, array, k):  # type: ignore[no-untyped-def]
        """Where entry first + k of an array over samples stands."""
        return self.builder.gep(array.data, [self.builder.add(self.first, self.constant(k))])

    def row(self, k):  # type: ignore[no-untyped-def]
        """Where row ``numbers[first + k]`` begins."""
        at = [self.builder.load(self.place(self.numbers, k)), self.constant(0)]
        return cgutils.get_item_pointer(
            self.context, self.builder, self.matrix_type, self.matrix, at, wraparound=False
        )

    def vectors(self):  # type: ignore[no-untyped-def]
        """A loop over j = 0, 8, 16, ... while eight entries follow."""
        whole = self.builder.and_(self.size, self.constant(-LANES))
        return cgutils.for_range_slice(
            self.builder, self.constant(0), whole, self.constant(LANES), self.size.type
        )

    def rest(self):  # type: ignore[no-untyped-def]
        """A loop over the entries that fill no vector."""
        whole = self.builder.and_(self.size, self.constant(-LANES))
        return cgutils.for_range_slice(self.builder, whole, self.size, self.constant(1), self.size.type)

    def entries(self, pointer, j):  # type: ignore[no-untyped-def]
        """Where a vector of entries from j on stands."""
        return self.builder.bitcast(self.builder.gep(pointer, [j]), _VECTOR.as_pointer())

    def add_product(self, total, x, y):  # type: ignore[no-untyped-def]
        return self.builder.fadd(total, self.builder.fmul(x, y, flags=_FUSED), flags=_FUSED)


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


def _dot(count):  # type: ignore[no-untyped-def]
    @intrinsic
    def dot(typing_context, matrix, numbers, first, vector, out, ahead):  # type: ignore[no-untyped-def]
        """out[k] = matrix[numbers[k], :] @ vector for k = first, ..., first + count - 1.

        Fetches the first half of the rows numbers[first + ahead : first + ahead + count].
        """

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            other, target = (
                context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (3, 4)
            )
            size = builder.extract_value(other.shape, 0)
            rows = _Rows(context, builder, signature.args, *arguments[:3], size)
            later = _Rows(
                context,
                builder,
                signature.args,
                *arguments[:2],
                builder.add(arguments[2], arguments[5]),
                size,
            )
            pointers = [rows.row(k) for k in range(count)]
            fetched = [later.row(k) for k in range((count + 1) // 2)]
            sums = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES)) for _ in pointers]
            with rows.vectors() as (j, _):
                for pointer in fetched:
                    fetch(builder, builder.gep(pointer, [j]))
                factor = builder.load(rows.entries(other.data, j), align=8)
                for pointer, total in zip(pointers, sums, strict=True):
                    entries = builder.load(rows.entries(pointer, j), align=8)
                    builder.store(rows.add_product(builder.load(total), entries, factor), total)
            totals = [cgutils.alloca_once_value(builder, _sum_of(builder, builder.load(s))) for s in sums]
            with rows.rest() as (j, _):
                factor = builder.load(builder.gep(other.data, [j]))
                for pointer, total in zip(pointers, totals, strict=True):
                    entry = builder.load(builder.gep(pointer, [j]))
                    builder.store(rows.add_product(builder.load(total), entry, factor), total)
            for k, total in enumerate(totals):
                builder.store(builder.load(total), rows.place(target, k))
            return context.get_dummy_value()

        return types.void(matrix, numbers, types.intp, vector, out, types.intp), generate

    return dot


def _add(count):  # type: ignore[no-untyped-def]
    @intrinsic
    def add(typing_context, matrix, numbers, first, scales, target, ahead):  # type: ignore[no-untyped-def]
        """target += scales[k] matrix[numbers[k], :] for k = first, ..., first + count - 1.

        Fetches the second half of the rows numbers[first + ahead : first + ahead + count].
        """

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            factors, total = (
                context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (3, 4)
            )
            size = builder.extract_value(total.shape, 0)
            rows = _Rows(context, builder, signature.args, *arguments[:3], size)
            later = _Rows(
                context,
                builder,
                signature.args,
                *arguments[:2],
                builder.add(arguments[2], arguments[5]),
                size,
            )
            pointers = [rows.row(k) for k in range(count)]
            fetched = [later.row(k) for k in range((count + 1) // 2, count)]
            numbers_ = [builder.load(rows.place(factors, k)) for k in range(count)]
            vectors = [_everywhere(builder, number) for number in numbers_]
            with rows.vectors() as (j, _):
                for pointer in fetched:
                    fetch(builder, builder.gep(pointer, [j]))
                held = builder.load(rows.entries(total.data, j), align=8)
                for pointer, factor in zip(pointers, vectors, strict=True):
                    held = rows.add_product(held, builder.load(rows.entries(pointer, j), align=8), factor)
                builder.store(held, rows.entries(total.data, j), align=8)
            with rows.rest() as (j, _):
                held = builder.load(builder.gep(total.data, [j]))
                for pointer, factor in zip(pointers, numbers_, strict=True):
                    held = rows.add_product(held, builder.load(builder.gep(pointer, [j])), factor)
                builder.store(held, builder.gep(total.data, [j]))
            return context.get_dummy_value()

        return types.void(matrix, numbers, types.intp, scales, target, types.intp), generate

    return add


_dot_group, _dot_one = _dot(GROUP), _dot(1)
_add_group, _add_one = _add(GROUP), _add(1)


@kernel
def dot_rows(matrix, numbers, first, last, vector, out, ahead):  # type: ignore[no-untyped-def]
    """out[k] = matrix[numbers[k], : vector.size] @ vector for ``first <= k < last <= first + GROUP``.

    ``numbers`` has entries up to last + ahead + GROUP: those rows are needed next.
    """
    if last - first == GROUP:
        _dot_group(matrix, numbers, first, vector, out, ahead)
    else:
        for k in range(first, last):
            _dot_one(matrix, numbers, k, vector, out, ahead)


@kernel
def add_rows(matrix, numbers, first, last, scales, target, ahead):  # type: ignore[no-untyped-def]
    """target += scales[k] matrix[numbers[k], : target.size] for ``first <= k < last <= first + GROUP``."""
    if last - first == GROUP:
        _add_group(matrix, numbers, first, scales, target, ahead)
    else:
        for k in range(first, last):
            _add_one(matrix, numbers, k, scales, target, ahead)
