"""What ``solve`` is told about GenDICE's objective, apart from it so that importing costs nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

SADDLE_METHODS = ("sgd", "extragradient", "convex")
DIVERGENCE_NAMES = (
    "chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation", "weighted_l2", "equality",
    "wasserstein", "mmd", "dudley",
)  # fmt: skip


class ObjectiveChoices(NamedTuple):
    """What the user may say about the objective; the names are those of ``solve``."""

    features: Any = None
    dual_features: Any = None
    divergence: Any = "chi2"
    penalty: float = 1.0
    normalize: str = "penalty"
    bound: float | None = None
    ridge: Any = None

    @property
    def is_asked(self) -> bool:
        """Whether the exact tabular solvers do not give the answer, whatever the method."""
        return (
            self.features is not None
            or self.dual_features is not None
            or self.bound is not None
            or (self.is_special and self.ridge is not None and self.ridge != 0)
        )

    @property
    def is_special(self) -> bool:
        """Whether the objective is not the default one (its tabular optimum without a ridge is the same)."""
        plain = isinstance(self.divergence, str) and self.divergence in ("chi2", "weighted_l2")
        return not plain or self.penalty != 1.0 or self.normalize != "penalty"
