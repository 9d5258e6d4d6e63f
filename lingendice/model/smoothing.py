"""The weight of a Dirichlet prior on every row, from the data."""

from __future__ import annotations

import numpy as np

from lingendice.data.counts import Counts

_LOWEST, _HIGHEST = 1e-4, 1e4
_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def marginal_likelihood_weight(counts: Counts) -> float:
    """Total weight c of a uniform Dirichlet prior on rows that makes the counts most likely.

    Golden-section search over log c, O(nnz) an evaluation, about 30 of them. The prior distribution is
    uniform: the
    marginal distribution of next states has the higher likelihood on scale-free graphs and yet gives the
    worse stationary distribution, often above the efficiency bound (benchmarks/paper/pagerank_smoothing.py).
    """
    from lingendice.kernels.sparse_rows import dirichlet_log_likelihood

    if not counts.has_sample_size:
        raise ValueError(
            'smoothing="auto" weighs the prior against the number of observations, and a row-stochastic '
            "matrix carries none; pass counts, or the weight of the prior as a number"
        )
    data = np.ascontiguousarray(counts.count, dtype=np.float64)

    def likelihood(log_weight: float) -> float:
        return float(
            dirichlet_log_likelihood(counts.indptr, data, 1.0 / counts.n_states, float(np.exp(log_weight)))
        )

    low, high = np.log(_LOWEST), np.log(_HIGHEST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = likelihood(left), likelihood(right)
    while high - low > 1e-4:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = likelihood(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = likelihood(right)
    return float(np.exp((low + high) / 2.0))
