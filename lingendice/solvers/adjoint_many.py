"""Values of many functions on one chain: a shared factorization where it is small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.interrupts import heeds_ctrl_c
from lingendice.model.transition_rows import TransitionRows
from lingendice.solvers.adjoint import solve_adjoint

DENSE_STATES = 2000
"""States up to which one dense factorization serves all functions."""


@heeds_ctrl_c
def adjoint_of(
    chain: TransitionRows, gamma: float, distribution: Floats, tol: float, threads: int
) -> Callable[[Floats], Floats]:
    """A function that solves V = f + gamma P V for every column f over states.

    At gamma = 1, V = f - mu f + P V with mu V = 0. Small chains take one dense factorization
    (2/3 n^3 operations, then 2 n^2 a column); others one iterative or sparse solve a column.
    """
    if chain.n > DENSE_STATES:

        def one_by_one(columns: Floats) -> Floats:
            solved = [
                solve_adjoint(chain, gamma, np.ascontiguousarray(column), distribution, tol, threads)
                for column in columns.T
            ]
            return np.stack(solved, axis=1)

        return one_by_one
    from scipy.linalg import lu_factor, lu_solve

    system = np.eye(chain.n) - gamma * chain.dense()
    if gamma == 1.0:
        # I - P + 1 mu' is regular for one recurrent class, and its solution has mu V = 0.
        system += distribution[None, :]
    factor = lu_factor(system, check_finite=False)

    def together(columns: Floats) -> Floats:
        right = columns - distribution @ columns if gamma == 1.0 else columns
        solved: Floats = lu_solve(factor, right, check_finite=False)
        return solved

    return together
