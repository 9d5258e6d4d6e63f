"""The short way through ``solve`` for a plain dense chain: no graph, no sparse matrix, microseconds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import LARGEST_EXACT_COUNT, require_gamma
from lingendice.data.counts import Counts
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator
from lingendice.results.solution import Solution, settled_status, stated_error
from lingendice.solvers.control import Controls, direct_error

LARGEST = 1000
"""States up to which dense elimination of a full matrix is the fastest exact method."""


def solve_small(matrix: NDArray[Any], gamma: Any, controls: Controls) -> Solution | None:
    """Solve an irreducible dense chain, or return None for the long way to solve or to complain."""
    from lingendice.kernels.chains.dense_setup import dense_residual, prepare_dense
    from lingendice.kernels.chains.gth_dense import gth_dense, is_irreducible_dense

    n = matrix.shape[0]
    if n != matrix.shape[1] or not 0 < n <= LARGEST or matrix.dtype not in _PLAIN_DTYPES:
        return None
    gamma = require_gamma(gamma)
    whole = matrix.dtype.kind in "iu"
    if matrix.dtype.itemsize != 8 or not matrix.flags.c_contiguous:
        matrix = np.ascontiguousarray(matrix, dtype=np.int64 if whole else np.float64)
    ok, rates, _ = prepare_dense(matrix, gamma, float(LARGEST_EXACT_COUNT) if whole else np.inf)
    if not ok or not is_irreducible_dense(rates):
        return None
    nodes, trusted = gth_dense(rates)
    if not trusted:
        return None
    distribution = nodes if gamma == 1.0 else nodes[:n] / nodes[:n].sum()
    residual = dense_residual(rates, distribution, gamma)
    error, kind = stated_error(direct_error(rates.shape[0]), "direct", residual, gamma, controls.tol)
    return Solution(
        status=settled_status(False, error, controls.tol),
        gamma=gamma,
        method="gth",
        reason=_REASON,
        state_distribution=distribution,
        state_distributions=(distribution,),
        residual=residual,
        error=error,
        error_kind=kind,
        condition=None,
        n_iter=0,
        seconds=controls.elapsed(),
        tol=controls.tol,
        source=partial(_operator, matrix.copy(), gamma),
    )


_REASON = "a small dense chain"
_PLAIN_DTYPES = frozenset(np.dtype(kind) for kind in ("f8", "f4", "i8", "i4", "i2", "i1", "u4", "u2", "u1"))


def _operator(matrix: NDArray[Any], gamma: float) -> EmpiricalOperator:
    return compose(Counts.from_matrix(matrix), Choices(gamma=gamma))
