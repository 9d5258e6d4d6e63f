"""Ask for a row of a matrix before it is needed.

Rows drawn at random from a table beyond the second-level cache are waited for one after another: no
hardware guesses them. One instruction a cache line fetches them while earlier rows are worked on.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FOR_READING, _KEEP, _DATA = 0, 3, 1


def fetch(builder, entry):  # type: ignore[no-untyped-def]
    """Code that fetches the cache line at a pointer."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    hints = [ir.Constant(word, hint) for hint in (_FOR_READING, _KEEP, _DATA)]
    builder.call(function, [builder.bitcast(entry, byte), *hints])


@intrinsic
def prefetch(typing_context, matrix, row, column):  # type: ignore[no-untyped-def]
    """Fetch the cache line of ``matrix[row, column]``; changes nothing."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array_type = signature.args[0]
        array = context.make_array(array_type)(context, builder, arguments[0])
        at = [context.cast(builder, arguments[k], signature.args[k], types.intp) for k in (1, 2)]
        entry = cgutils.get_item_pointer(context, builder, array_type, array, at, wraparound=False)
        fetch(builder, entry)
        return context.get_dummy_value()

    return types.void(matrix, row, column), generate


@intrinsic
def prefetch_run(typing_context, flat, place, count):  # type: ignore[no-untyped-def]
    """Fetch the cache lines of ``flat[place : place + count]``; changes nothing."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array_type = signature.args[0]
        flat = context.make_array(array_type)(context, builder, arguments[0]).data
        place, count = arguments[1:]
        per_line = ir.Constant(place.type, 64 * 8 // array_type.dtype.bitwidth)
        end = builder.add(place, count)
        lines = builder.sdiv(builder.add(count, ir.Constant(place.type, per_line.constant - 1)), per_line)
        with cgutils.for_range(builder, lines) as loop:
            fetch(builder, builder.gep(flat, [builder.add(place, builder.mul(loop.index, per_line))]))
        # A run that begins within a line ends in one more.
        fetch(builder, builder.gep(flat, [builder.sub(end, ir.Constant(place.type, 1))]))
        return context.get_dummy_value()

    return types.void(flat, types.intp, types.intp), generate
