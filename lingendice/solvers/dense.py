"""The short way through ``solve`` for a plain dense chain: no graph, no sparse matrix, microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import LARGEST_EXACT_COUNT
from lingendice.data.matrices import MISTAKEN, row_sum_tolerance
from lingendice.solvers.control import Outcome, direct_error, stated_error

LARGEST = 1000
"""States up to which dense elimination of a full matrix is the fastest exact method."""


def solve_small(matrix: NDArray[Any], gamma: float, tol: float) -> Outcome | None:
    """Solve an irreducible dense chain, or return None for the long way to solve or to complain.

    The distribution is over states, the error and the residual are those to state.
    """
    from lingendice.kernels.chains.gth_dense import (
        dense_residual,
        gth_dense,
        is_irreducible_dense,
        prepare_dense,
    )

    n = matrix.shape[0]
    if n != matrix.shape[1] or not 0 < n <= LARGEST or matrix.dtype not in _PLAIN_DTYPES:
        return None
    whole, tolerance = matrix.dtype.kind in "iu", row_sum_tolerance(matrix.dtype)
    if matrix.dtype.itemsize != 8 or not matrix.flags.c_contiguous:
        matrix = np.ascontiguousarray(matrix, dtype=np.int64 if whole else np.float64)
    ok, rates, totals = prepare_dense(matrix, gamma, float(LARGEST_EXACT_COUNT) if whole else np.inf)
    if not ok or not is_irreducible_dense(rates):
        return None
    if not whole and tolerance < np.abs(totals - 1.0).max() <= MISTAKEN:
        return None  # rows may be probabilities that do not sum to 1: the long way says so
    nodes, trusted = gth_dense(rates)
    if not trusted:
        return None
    distribution = nodes if gamma == 1.0 else nodes[:n] / nodes[:n].sum()
    residual = dense_residual(rates, distribution, gamma)
    error, kind = stated_error(direct_error(rates.shape[0]), "direct", residual, gamma, tol)
    return Outcome(
        distribution, "gth", "a small dense chain", True, error=error, error_kind=kind, residual=residual
    )


_PLAIN_DTYPES = frozenset(np.dtype(kind) for kind in ("f8", "f4", "i8", "i4", "i2", "i1", "u4", "u2", "u1"))
