"""Dudley metric: f with sup norm plus Lipschitz constant at most 1.

References
----------
R. M. Dudley (2002). Real Analysis and Probability. Cambridge University Press, section 11.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from lingendice.divergences.base import DualSet
from lingendice.divergences.wasserstein import Wasserstein, differences


class Dudley(Wasserstein):
    """max over ||f||_inf + Lip(f) <= 1 of (q - m)' f; metrizes weak convergence, needs no bound."""

    name = "dudley"
    default_bound = 1.0

    def __init__(self, metric: Any = None, graph: Any = None) -> None:
        super().__init__(metric, graph)

    def dual_set(self, n: int, bound: float) -> DualSet:
        rise = differences(self.first, self.second, n)
        eye = sparse.eye_array(n)
        rows = sparse.vstack([rise, -rise, eye, -eye, sparse.csr_array((1, n))], format="csr")
        # Auxiliary variables: the sup norm, then the Lipschitz constant.
        edge, cell = self.length.size, n
        sup = np.concatenate([np.zeros(2 * edge), -np.ones(2 * cell), [1.0]])
        steep = np.concatenate([-self.length, -self.length, np.zeros(2 * cell), [1.0]])
        limit = np.concatenate([np.zeros(2 * edge + 2 * cell), [1.0]])
        return DualSet(rows, sparse.csr_array(np.stack([sup, steep], axis=1)), limit)
