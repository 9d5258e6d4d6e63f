"""Ask for a row of a matrix before it is needed.

Rows drawn at random from a table beyond the second-level cache are waited for one after another: no
hardware guesses them. One instruction a cache line fetches them while earlier rows are worked on.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lingendice.kernels.jit import kernel

_LINE = 8  # float64 entries of a cache line
_FOR_READING, _KEEP, _DATA = 0, 3, 1


@intrinsic
def prefetch(typing_context, matrix, row, column):  # type: ignore[no-untyped-def]
    """Fetch the cache line of ``matrix[row, column]``; changes nothing."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array_type = signature.args[0]
        array = context.make_array(array_type)(context, builder, arguments[0])
        at = [context.cast(builder, arguments[k], signature.args[k], types.intp) for k in (1, 2)]
        entry = cgutils.get_item_pointer(context, builder, array_type, array, at, wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        hints = [ir.Constant(word, hint) for hint in (_FOR_READING, _KEEP, _DATA)]
        builder.call(function, [builder.bitcast(entry, byte), *hints])
        return context.get_dummy_value()

    return types.void(matrix, row, column), generate


@kernel
def prefetch_row(matrix, row):  # type: ignore[no-untyped-def]
    """Fetch a whole row of a float64 matrix."""
    for column in range(0, matrix.shape[1], _LINE):
        prefetch(matrix, row, column)
