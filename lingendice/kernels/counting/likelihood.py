"""Marginal likelihood of counts under a Dirichlet prior on every row."""

from __future__ import annotations

import math

from lingendice.kernels.jit import kernel


@kernel
def dirichlet_log_likelihood(indptr, count, prior, strength):
    """log P(counts | strength), rows independent Dirichlet(strength x prior distribution), up to a constant.

    sum_i [ln G(c) - ln G(n_i + c)] + sum_ij [ln G(c_ij + c m) - ln G(c m)], with G the gamma function,
    c the total weight and m = ``prior``, the same for every column. O(nnz).
    """
    alpha = strength * prior
    start = math.lgamma(alpha)
    total_start = math.lgamma(strength)
    # ln G(c + alpha) - ln G(alpha) for the small whole counts, which are nearly all of them.
    log_alpha = math.log(alpha)
    log_two = log_alpha + math.log1p(alpha)
    total = 0.0
    for row in range(indptr.size - 1):
        visits = 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            seen = count[entry]
            visits += seen
            if seen == 1.0:
                total += log_alpha
            elif seen == 2.0:
                total += log_two
            else:
                total += math.lgamma(seen + alpha) - start
        if visits > 0.0:
            total += total_start - math.lgamma(visits + strength)
    return total
