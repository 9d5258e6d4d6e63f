"""``solve_rates``: the door for chains in continuous time, given by their rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lingendice.data.by_label import read_distribution, read_rewards
from lingendice.data.checks import (
    compressed_rows,
    numeric_array,
    require_distribution,
    require_finite,
    require_nonnegative,
)
from lingendice.data.counts import Counts
from lingendice.data.labels import Labels
from lingendice.data.matrices import is_pandas, require_square
from lingendice.data.rows import read_only
from lingendice.results.rates_solution import RatesSolution
from lingendice.results.status import status_of
from lingendice.solvers.control import Controls
from lingendice.solvers.stationary import distributions_of_rates

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BALANCED = 1e-8
"""How far the sum of a row of Q may be from 0, relative to its diagonal."""


def solve_rates(
    rates: Any,
    *,
    time: Any = None,
    reward: Any = None,
    initial: Any = None,
    tol: float = 1e-10,
    time_limit: float | None = None,
    threads: int | None = None,
) -> RatesSolution:
    """Where a chain in continuous time spends its time: pi with ``pi Q = 0`` and ``sum pi = 1``.

    Elimination without subtractions, sweeps or aggregation, as for :func:`lingendice.solve` at gamma = 1.

    Parameters
    ----------
    rates
        The generator Q (nested list, array, SciPy sparse, or a frame with the same names for rows and
        columns): rates of jumps, rows are sources, each diagonal entry minus the sum of its row, or 0. Or,
        with ``time``, how often each state followed each other: :class:`Counts`, or a matrix.
    time
        Total time that was spent in each state: a rate is then a number of jumps over it, the maximum
        likelihood estimate.
    reward
        Reward per unit of time in each state: ``.value`` is its long-run average.
    initial
        Distribution of the first state, for chains with several recurrent classes.
    tol, time_limit, threads
        As for :func:`lingendice.solve`.

    References
    ----------
    W. K. Grassmann, M. I. Taksar, D. P. Heyman (1985). Regenerative analysis and steady state distributions
    for Markov chains. Operations Research.

    Examples
    --------
    >>> import lingendice as lg
    >>> queue = lg.solve_rates([[-1, 1, 0], [2, -3, 1], [0, 2, -2]], reward=[0, 1, 2])
    >>> queue.stationary.round(3)
    array([0.571, 0.286, 0.143])
    >>> queue.mean_time_to(0)
    array([0.  , 0.75, 1.25])
    """
    controls = Controls.read(tol, None, time_limit, threads)
    matrix, labels = _read(rates)
    matrix = _without_diagonal(matrix) if time is None else _per_time(matrix, time)
    n = matrix.shape[0]
    if not n:
        raise ValueError("there are no states: the matrix of rates is empty")
    space = Counts(n, None, matrix.indptr, matrix.indices, matrix.data, state_labels=labels)
    if initial is not None:
        initial = require_distribution("initial", read_distribution("initial", initial, space), n)
    if reward is not None:
        reward = numeric_array("reward", read_rewards("reward", reward, space)).astype(float).reshape(-1)
        require_finite("reward", reward)
        if reward.shape != (n,):
            raise ValueError(f"reward must have one entry per state, shape ({n},), got {reward.shape}")
        reward = read_only(reward)
    found = distributions_of_rates(matrix, n, initial, "auto", controls)
    outcome = found.outcome
    return RatesSolution(
        status=status_of(outcome, outcome.error, controls.tol, several=found.single is None),
        method=outcome.method,
        reason=outcome.reason,
        distributions=tuple(map(read_only, found.every)),
        single=None if found.single is None else read_only(found.single),
        error=outcome.error,
        rates=matrix,
        reward=reward,
        controls=controls,
        state_labels=labels,
    )


def _read(rates: Any) -> tuple[csr_array, Labels | None]:
    """The matrix as compressed rows, and the names of its states."""
    from scipy import sparse

    labels: Labels | None = None
    if isinstance(rates, Counts):
        if rates.n_actions is not None or rates.has_terminals:
            raise ValueError("counts with actions or ends of episodes have no generator; count states alone")
        labels = rates.state_labels
        rates = sparse.csr_array(
            (rates.count.astype(float), rates.indices, rates.indptr), shape=(rates.n_states,) * 2
        )
    elif is_pandas(rates):
        names = rates.index.tolist()
        if names != list(range(len(names))) or set(names) == set(rates.columns):
            if sorted(map(repr, names)) != sorted(map(repr, rates.columns)):
                raise ValueError("rows and columns of the frame of rates must have the same names")
            labels, rates = tuple(names), rates[names]
        rates = rates.to_numpy()
    if not sparse.issparse(rates):
        rates = numeric_array("rates", rates)
        require_square(rates.shape)
        rates = sparse.csr_array(rates.astype(float))
    require_square(rates.shape)
    matrix = compressed_rows("rates", rates).astype(float)
    matrix.sum_duplicates()
    require_finite("rates", matrix.data)
    return matrix, labels


def _without_diagonal(matrix: csr_array) -> csr_array:
    """The rates of Q without its diagonal, which is to be minus their sums, or 0."""
    diagonal = matrix.diagonal()
    rates = _off_diagonal(matrix)
    leaving = np.asarray(rates.sum(axis=1)).reshape(-1)
    off = np.abs(diagonal + leaving)
    wrong = (diagonal != 0.0) & (off > BALANCED * np.maximum(leaving, np.abs(diagonal)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"rates[{row}, {row}] is {diagonal[row]:g}, but the other rates of its row sum to "
            f"{leaving[row]:g}; the diagonal of a generator is minus that sum (rows are sources: pass Q.T if "
            "columns are), or leave it 0; a matrix of probabilities goes to solve(P)"
        )
    return rates


def _per_time(matrix: csr_array, time: Any) -> csr_array:
    """Jumps over the time spent where they began."""
    n = matrix.shape[0]
    spent = numeric_array("time", time).astype(float)
    if spent.shape != (n,):
        raise ValueError(f"time must have one entry per state, shape ({n},), got {spent.shape}")
    require_nonnegative("time", spent, "a time is at least 0")
    jumps = _off_diagonal(matrix)
    leaves = np.diff(jumps.indptr) > 0
    if (leaves & (spent == 0.0)).any():
        state = int(np.argmax(leaves & (spent == 0.0)))
        raise ValueError(
            f"time[{state}] is 0, but state {state} was left; give the time that was spent there"
        )
    jumps.data /= np.repeat(spent, np.diff(jumps.indptr))
    return jumps


def _off_diagonal(matrix: csr_array) -> csr_array:
    """The entries off the diagonal, which are at least 0; explicit zeros are left out."""
    from scipy import sparse

    entries = matrix.tocoo()
    apart = (entries.row != entries.col) & (entries.data != 0.0)
    row, column, data = entries.row[apart], entries.col[apart], entries.data[apart]
    if (data < 0.0).any():
        bad = int(np.argmax(data < 0.0))
        raise ValueError(
            f"rates[{row[bad]}, {column[bad]}] is {data[bad]:g}, which is negative; rates off the diagonal "
            "are at least 0"
        )
    return sparse.csr_array((data, (row, column)), shape=matrix.shape)
