"""Entry points with plain C signatures: pointers, sizes and numbers in, a status out.

An optional distribution is a pointer with its length: 0 leaves it to the defaults. C knows no exceptions, and
one that is raised would be returned as 0, which means solved.
"""

from __future__ import annotations

from numba import carray, types

from lingendice.kernels.counted_chains import (
    BAD_ENTRY,
    NO_MEMORY,
    count,
    ratio,
    solve_dense_counts,
    solve_row_counts,
    value,
)
from lingendice.kernels.jit import c_callable

_doubles = types.CPointer(types.float64)
_integers = types.CPointer(types.int64)
_size, _number, _status = types.int64, types.float64, types.int32


@c_callable(_status(_doubles, _size, _size, _size, _number))
def c_count(counts, n, state, next_state, weight):
    """counts[state * n + next_state] += weight."""
    return count(carray(counts, (n, n)), state, next_state, weight)


@c_callable(_status(_doubles, _size, _number, _doubles, _size, _doubles, _size, _doubles))
def c_solve(counts, n, gamma, initial, n_initial, restart, n_restart, distribution):
    """The stationary distribution of dense counts."""
    if n < 0:
        return BAD_ENTRY
    status = NO_MEMORY
    try:
        status = solve_dense_counts(
            carray(counts, (n, n)),
            gamma,
            carray(initial, (n_initial,)),
            carray(restart, (n_restart,)),
            carray(distribution, (n,)),
        )
    except Exception:
        status = NO_MEMORY
    return status


@c_callable(
    _status(
        _integers, _integers, _doubles, _size, _number, _doubles, _size, _doubles, _size, _number, _size,
        _doubles,
    )
)  # fmt: skip
def c_solve_csr(
    indptr, indices, data, n, gamma, initial, n_initial, restart, n_restart, tol, max_sweeps, distribution
):
    """The stationary distribution of counts in compressed rows."""
    if n < 0:
        return BAD_ENTRY
    starts = carray(indptr, (n + 1,))
    status = NO_MEMORY
    try:
        status = solve_row_counts(
            starts,
            carray(indices, (starts[n],)),
            carray(data, (starts[n],)),
            gamma,
            carray(initial, (n_initial,)),
            carray(restart, (n_restart,)),
            tol,
            max_sweeps,
            carray(distribution, (n,)),
        )
    except Exception:
        status = NO_MEMORY
    return status


@c_callable(types.void(_doubles, _doubles, _size, _doubles))
def c_ratio(distribution, visits, n, tau):
    """tau = mu / p."""
    ratio(carray(distribution, (n,)), carray(visits, (n,)), carray(tau, (n,)))


@c_callable(_number(_doubles, _doubles, _doubles, _size))
def c_value(distribution, visits, reward_total, n):
    """The per-step value."""
    return value(carray(distribution, (n,)), carray(visits, (n,)), carray(reward_total, (n,)))
