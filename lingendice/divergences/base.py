"""What every divergence offers, and the algebra the members share.

All of them enter the saddle point in one form. With q the inflow, m = p tau the mass and f the dual,

    D(q || m) = max_f  (q - m)' f - sum_x c(x) excess(f(x)) ,      excess(y) = phi*(y) - y >= 0 ,

since phi(1) = phi'(1) = 0 makes phi*(0) = 0 and (phi*)'(0) = 1. For f-divergences c = m; for the weighted
L2 distance of GradientDICE c = p; integral probability metrics have no excess but a set that f must stay in.
Writing the excess instead of phi* keeps full precision where f is small, which is where solutions lie.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from lingendice.data.checks import Floats, NotAvailableYet

CONJUGATES = (
    "chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation", "weighted_l2", "equality",
)  # fmt: skip
"""Divergences that compiled code knows, by their number in ``kernels/saddle_steps.py`` and
``cuda/saddle.cu``."""


class Divergence(ABC):  # noqa: B024 - the two families below add what is abstract
    """A way to measure how far the inflow q is from the mass m."""

    name: str = ""
    dual_limit: float = math.inf
    """phi*(y) is finite for y below this."""
    default_bound: float = math.inf
    """Bound on |f| where the user gives none; inf where the maximum over f needs none."""


class FDivergence(Divergence):
    """sum_x m phi(q / m) for a convex phi with phi(1) = phi'(1) = 0."""

    weighs_by_ratio: bool = True
    """Whether the excess is weighted by m = p tau (an f-divergence) or by p."""
    quadratic: bool = False
    """Whether the excess is a square, so that the best linear f is one linear solve."""

    @property
    def code(self) -> int:
        """Number of the conjugate in compiled code; an error for divergences that it does not know."""
        name = type(self).__dict__.get("name")  # a class that inherits its name may differ from its parent
        if name not in CONJUGATES:
            raise NotAvailableYet(
                f"divergence {type(self).__name__} in compiled code (SGD and networks)",
                'use method="convex" or method="extragradient"',
            )
        return CONJUGATES.index(name)

    @abstractmethod
    def phi(self, t: Floats) -> Floats:
        """The divergence generator at t >= 0."""

    @abstractmethod
    def slope(self, t: Floats) -> Floats:
        """phi'(t): the f that attains the maximum where q / m = t."""

    @abstractmethod
    def excess(self, y: Floats) -> Floats:
        """phi*(y) - y, accurate for small y; inf outside the domain."""

    @abstractmethod
    def excess_slope(self, y: Floats) -> Floats:
        """Derivative of the excess."""

    @abstractmethod
    def excess_curvature(self, y: Floats) -> Floats:
        """Second derivative of the excess."""

    def conjugate(self, y: Floats) -> Floats:
        """phi*(y) = max over t of t y - phi(t)."""
        return y + self.excess(y)

    def best_dual(self, inflow: Floats, mass: Floats, weight: Floats, low: Floats, high: Floats) -> Floats:
        """The f in [low, high] that maximizes (q - m) f - c excess(f), cell by cell."""
        residual = inflow - mass
        counts = weight > 0
        t = np.divide(residual, weight, out=np.zeros_like(weight), where=counts) + 1.0
        inside = self.slope(np.maximum(t, 0.0) if self.weighs_by_ratio else t)
        outside = np.where(residual > 0, np.inf, np.where(residual < 0, -np.inf, 0.0))
        return np.clip(np.where(counts, inside, outside), low, high)

    def value(self, inflow: Floats, mass: Floats, weight: Floats, low: Floats, high: Floats) -> float:
        """D(q || m) with f bounded to [low, high]; the divergence itself where the bounds are infinite."""
        f = self.best_dual(inflow, mass, weight, low, high)
        residual = inflow - mass
        if np.any(~np.isfinite(f) & (residual != 0)):
            return math.inf
        used = np.isfinite(f)
        weighed = used & (weight > 0)
        return float(residual[used] @ f[used] - weight[weighed] @ self.excess(f[weighed]))


class DualSet(NamedTuple):
    """{f : on_dual f + on_extra e <= limit for some e}."""

    on_dual: Any
    """Sparse, constraints by cells."""
    on_extra: Any
    """Sparse, constraints by auxiliary variables."""
    limit: Floats


class PolyhedralMetric(Divergence):
    """A metric max over f in a :class:`DualSet` of (q - m)' f: its distance is a linear program."""

    @abstractmethod
    def dual_set(self, n: int, bound: float) -> DualSet:
        """The constraints on f over ``n`` cells, with |f| <= bound where the set itself has no bound."""
