"""Divergences between inflow and mass, one short file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lingendice.data.checks import require_choice
from lingendice.divergences.base import Divergence, FDivergence, PolyhedralMetric
from lingendice.divergences.chi2 import Chi2
from lingendice.divergences.dudley import Dudley
from lingendice.divergences.equality import Equality
from lingendice.divergences.hellinger import Hellinger
from lingendice.divergences.jensen_shannon import JensenShannon
from lingendice.divergences.kl import KL
from lingendice.divergences.mmd import MMD
from lingendice.divergences.reverse_kl import ReverseKL
from lingendice.divergences.total_variation import TotalVariation
from lingendice.divergences.wasserstein import Wasserstein
from lingendice.divergences.weighted_l2 import WeightedL2

if TYPE_CHECKING:
    from lingendice.model.operator import Flow

DIVERGENCES: dict[str, type[Divergence]] = {
    one.name: one
    for one in (
        Chi2, KL, ReverseKL, JensenShannon, Hellinger, TotalVariation, WeightedL2, Equality, Wasserstein, MMD,
        Dudley,
    )
}  # fmt: skip

__all__ = [
    "DIVERGENCES",
    "KL",
    "MMD",
    "Chi2",
    "Divergence",
    "Dudley",
    "Equality",
    "FDivergence",
    "Hellinger",
    "JensenShannon",
    "PolyhedralMetric",
    "ReverseKL",
    "TotalVariation",
    "Wasserstein",
    "WeightedL2",
    "read_divergence",
    "require_divergence",
]


def require_divergence(divergence: Any) -> Divergence:
    """A divergence from its name or object; an error says what else was given."""
    if isinstance(divergence, str):
        require_choice("divergence", divergence, tuple(DIVERGENCES))
        return DIVERGENCES[divergence]()
    if not isinstance(divergence, Divergence):
        raise ValueError(f"divergence must be a name or a Divergence, got {type(divergence).__name__}")
    return divergence


def read_divergence(divergence: Any, flow: Flow) -> Divergence:
    """A divergence from its name or object, fitted to the cells of a problem where it needs to be."""
    found = require_divergence(divergence)
    return found.fit(flow) if isinstance(found, (Wasserstein, MMD)) else found
