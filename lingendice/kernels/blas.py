"""Matrix products inside kernels, on strided views and added in place.

Numba's own ``np.dot`` wants contiguous operands and overwrites its target. The BLAS entry point that lies
under it takes leading dimensions and a factor for the target, compiles in a fraction of the time and is kept
in the on-disk cache like any other symbol of Numba's runtime. SciPy supplies the library.
"""

from __future__ import annotations

from numba import types

from .jit import kernel

_matrix = types.CPointer(types.float64)
_gemm = types.ExternalFunction(
    "numba_xxgemm",
    types.intc(
        types.char, types.char, types.char,  # kind, and whether either operand is transposed
        types.intp, types.intp, types.intp,  # rows, columns, inner dimension
        _matrix, _matrix, types.intp, _matrix, types.intp,  # alpha, a, lda, b, ldb
        _matrix, _matrix, types.intp,  # beta, c, ldc
    ),
)  # fmt: skip
_DOUBLE = ord("d")
_PLAIN = ord("n")


@kernel
def add_product(left, right, keep, target):  # type: ignore[no-untyped-def]
    """``target = keep * target + left @ right`` for views whose rows are contiguous.

    ``keep`` is a two-entry array ``[1, keep]``: BLAS takes its factors by address. BLAS counts columns
    first, so it is handed the transposed product, which needs no copy.
    """
    _gemm(
        _DOUBLE, _PLAIN, _PLAIN, target.shape[1], target.shape[0], left.shape[1],
        keep.ctypes, right.ctypes, right.strides[0] // 8, left.ctypes, left.strides[0] // 8,
        keep[1:].ctypes, target.ctypes, target.strides[0] // 8,
    )  # fmt: skip
