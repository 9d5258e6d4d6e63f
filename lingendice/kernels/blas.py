"""Matrix products inside kernels, on strided views and added in place.

Numba's own ``np.dot`` wants contiguous operands and overwrites its target. The BLAS entry point that lies
under it takes leading dimensions and a factor for the target, compiles in a fraction of the time and is kept
in the on-disk cache like any other symbol of Numba's runtime. SciPy supplies the library.
"""

from __future__ import annotations

from numba import types

from lingendice.kernels.jit import kernel


def _gemm(number):
    matrix = types.CPointer(number)
    return types.ExternalFunction(
        "numba_xxgemm",
        types.intc(
            types.char, types.char, types.char,  # kind, and whether either operand is transposed
            types.intp, types.intp, types.intp,  # rows, columns, inner dimension
            matrix, matrix, types.intp, matrix, types.intp,  # alpha, a, lda, b, ldb
            matrix, matrix, types.intp,  # beta, c, ldc
        ),
    )  # fmt: skip


double_gemm, single_gemm = _gemm(types.float64), _gemm(types.float32)
DOUBLE, SINGLE, PLAIN, TURNED = map(ord, "dsnt")


# BLAS shares larger products among threads of its own, which then fight with ours (and with those of other
# processes) for the cores. Tiles of this many rows, and of columns such that rows * columns * inner dimension
# stays within the bound, are computed where they are called, at little loss.
_TILE_ROWS = 64
_SINGLE_THREAD = 2**18


@kernel
def add_product(left, right, keep, target):
    """``target = keep * target + left @ right`` for views whose rows are contiguous.

    ``keep`` is a two-entry array ``[1, keep]``: BLAS takes its factors by address. BLAS counts columns
    first, so it is handed the transposed product, which needs no copy.
    """
    rows, columns = target.shape
    inner = left.shape[1]
    width = _SINGLE_THREAD // (_TILE_ROWS * inner)
    for i in range(0, rows, _TILE_ROWS):
        height = min(_TILE_ROWS, rows - i)
        for j in range(0, columns, width):
            double_gemm(
                DOUBLE, PLAIN, PLAIN, min(width, columns - j), height, inner,
                keep.ctypes, right[:, j:].ctypes, right.strides[0] // 8, left[i:].ctypes,
                left.strides[0] // 8, keep[1:].ctypes, target[i:, j:].ctypes, target.strides[0] // 8,
            )  # fmt: skip
