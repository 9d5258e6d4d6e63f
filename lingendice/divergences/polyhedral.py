"""Integral metrics whose dual set is a polyhedron: their distance is a linear program."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.divergences.base import IntegralMetric


class DualSet(NamedTuple):
    """{f : on_dual f + on_extra e <= limit for some e}."""

    on_dual: Any
    """Sparse, constraints by cells."""
    on_extra: Any
    """Sparse, constraints by auxiliary variables."""
    limit: Floats


class PolyhedralMetric(IntegralMetric):
    """A metric max over f in a :class:`DualSet`."""

    @abstractmethod
    def dual_set(self, n: int, bound: float) -> DualSet:
        """The constraints on f over ``n`` cells, with |f| <= bound where the set itself has no bound."""

    def distance(self, residual: Floats) -> float:
        """max over the set of residual' f, by the HiGHS linear-programming solver."""
        from scipy.optimize import linprog
        from scipy.sparse import hstack

        limits = self.dual_set(residual.size, self.default_bound)
        extra = limits.on_extra.shape[1]
        solved = linprog(
            np.concatenate([-residual, np.zeros(extra)]),
            A_ub=hstack([limits.on_dual, limits.on_extra], format="csr"),
            b_ub=limits.limit,
            bounds=(None, None),
            method="highs",
        )
        if solved.status != 0:
            raise ValueError(f"the distance could not be computed: {solved.message}")
        return float(-solved.fun)
