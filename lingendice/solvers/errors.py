"""The errors that solvers state: bounds from residuals, and which of two errors is the one to state."""

from __future__ import annotations

import sys


def stated_error(
    error: float | None, kind: str, residual: float, gamma: float, tol: float
) -> tuple[float | None, str]:
    """The error to state of a distribution and its kind, from its solver's own error and its residual.

    At gamma < 1 the residual bounds the error. Where 1 - gamma is so small that rounding alone keeps this
    bound above ``tol``, a solver that is accurate entry by entry knows better.
    """
    if gamma == 1.0:
        return error, kind
    bound = error_bound(residual, gamma)
    if error is None or kind == "bound" or bound <= tol:
        return bound, "bound"
    return error, kind


def error_bound(residual: float, gamma: float) -> float:
    """Bound on the L1 error of a discounted distribution: G is a gamma-contraction in L1.

    The residual is itself rounded, by a few units in the last place of a total of 1.
    """
    return (residual + 4.0 * sys.float_info.epsilon) / (1.0 - gamma)
