"""Counting and solving inside other people's compiled code: a simulator's ``@njit`` loop, or C.

Every function here but :func:`message` and :func:`c_addresses` is compiled by Numba without the object mode
and may be called from your own ``@njit`` functions or from Python. They write into arrays that you allocate,
and return a status instead of raising: ``SOLVED`` (0) or one of the codes below; :func:`message` puts it into
words.

The equation, its defaults and its treatment of leaks are those of :func:`lingendice.solve` for a chain; a
chain with several recurrent classes at gamma = 1 gives ``SEVERAL_DISTRIBUTIONS`` and a distribution of nan,
whatever ``initial`` says.
Importing this module loads Numba.

Examples
--------
>>> import numpy as np
>>> from lingendice import embed
>>> counts, distribution = np.zeros((2, 2)), np.empty(2)
>>> for s, s_next in [(0, 1), (1, 0), (0, 0), (0, 1), (1, 0)]:
...     status = embed.count(counts, s, s_next)
>>> embed.solve(counts, 1.0, distribution)
0
>>> distribution
array([0.6, 0.4])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.kernels.counted_chains import (
    BAD_DISTRIBUTION,
    BAD_ENTRY,
    BAD_GAMMA,
    FULL,
    NO_DATA,
    NO_MEMORY,
    NOT_CONVERGED,
    OUT_OF_RANGE,
    SEVERAL_DISTRIBUTIONS,
    SOLVED,
    count,
    count_sparse,
    ratio,
    solve_dense_counts,
    solve_row_counts,
    to_csr,
    value,
    visits,
    visits_csr,
)
from lingendice.kernels.jit import kernel

__all__ = [
    "BAD_DISTRIBUTION",
    "BAD_ENTRY",
    "BAD_GAMMA",
    "FULL",
    "NOT_CONVERGED",
    "NO_DATA",
    "NO_MEMORY",
    "OUT_OF_RANGE",
    "SEVERAL_DISTRIBUTIONS",
    "SOLVED",
    "c_addresses",
    "count",
    "count_sparse",
    "message",
    "ratio",
    "solve",
    "solve_csr",
    "to_csr",
    "value",
    "visits",
    "visits_csr",
]

_MESSAGES = {
    SOLVED: "solved",
    BAD_ENTRY: (
        "an array has the wrong shape or holds whole numbers only, indptr does not rise from 0 within the "
        "arrays, or a count or weight is negative, nan, infinite, or too small next to others to divide by"
    ),
    NO_DATA: "there are no transitions; count some first",
    SEVERAL_DISTRIBUTIONS: (
        "the chain has several recurrent classes, so several distributions; lingendice.solve gives them all"
    ),
    NOT_CONVERGED: "not within tol after max_sweeps; raise max_sweeps, or use lingendice.solve",
    BAD_GAMMA: "gamma must lie in (0, 1]",
    BAD_DISTRIBUTION: "a distribution has the wrong length, a negative or infinite entry, or no mass",
    OUT_OF_RANGE: "a state lies outside 0..n-1, or n is beyond 3,037,000,499, where pairs have no numbers",
    FULL: "the table of pairs is full; allocate a larger one",
    NO_MEMORY: "memory ran out, and nothing was written; ask for fewer states at a time",
}


def message(status: int) -> str:
    """What a status means and what to do about it."""
    return _MESSAGES[status]


@kernel
def solve(counts: Any, gamma: Any, distribution: Any, initial: Any = None, restart: Any = None) -> Any:
    """Write the stationary distribution of dense counts into ``distribution``; returns a status.

    Solves ``mu = (1 - gamma) mu0 + gamma P' mu`` by elimination without subtractions, every entry accurate;
    2 n^3 / 3 operations, about a microsecond for ten states. ``initial`` and ``restart`` are distributions
    over states, of any positive total, or None for the defaults of :func:`lingendice.solve`. ``counts`` is
    not changed.
    """
    start = np.empty(0) if initial is None else initial
    again = np.empty(0) if restart is None else restart
    return solve_dense_counts(counts, gamma, start, again, distribution)


@kernel
def solve_csr(
    indptr: Any,
    indices: Any,
    data: Any,
    gamma: Any,
    distribution: Any,
    initial: Any = None,
    restart: Any = None,
    tol: Any = 1e-10,
    max_sweeps: Any = 10_000,
) -> Any:
    """Write the stationary distribution of counts in compressed rows into ``distribution``; returns a status.

    Recurrent classes of up to 600 nodes are eliminated densely. Larger ones take Gauss-Seidel sweeps, O(nnz)
    each, from what ``distribution`` holds where it is positive (a warm start; fill it with 0 for none), until
    the extrapolated relative change of every entry is within ``tol``: an estimate. :func:`lingendice.solve`
    has direct and certified methods for large chains.
    """
    start = np.empty(0) if initial is None else initial
    again = np.empty(0) if restart is None else restart
    return solve_row_counts(indptr, indices, data, gamma, start, again, tol, max_sweeps, distribution)


def c_addresses() -> dict[str, int]:
    """Addresses of C functions, by name: ``count``, ``solve``, ``solve_csr``, ``ratio``, ``value``.

    Their signatures, with ``int64_t`` sizes and a pointer with length 0 for a distribution left to the
    default::

        int32_t count(double *counts, int64_t n, int64_t state, int64_t next_state, double weight);
        int32_t solve(double *counts, int64_t n, double gamma, double *initial, int64_t n_initial,
                      double *restart, int64_t n_restart, double *distribution);
        int32_t solve_csr(int64_t *indptr, int64_t *indices, double *data, int64_t n, double gamma,
                          double *initial, int64_t n_initial, double *restart, int64_t n_restart,
                          double tol, int64_t max_sweeps, double *distribution);
        void ratio(double *distribution, double *visits, int64_t n, double *tau);
        double value(double *distribution, double *visits, double *reward_total, int64_t n);

    The addresses hold as long as the process. The functions need no interpreter lock.
    """
    from lingendice.kernels import c_entries

    return {
        "count": c_entries.c_count.address,
        "solve": c_entries.c_solve.address,
        "solve_csr": c_entries.c_solve_csr.address,
        "ratio": c_entries.c_ratio.address,
        "value": c_entries.c_value.address,
    }
