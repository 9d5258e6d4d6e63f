"""The solution of a saddle-point problem: a :class:`Solution` with its coefficients and certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.json_values import strict_json
from lingendice.results.result import Row
from lingendice.results.solution import Solution


@dataclass(frozen=True, eq=False, repr=False)
class LinearSolution(Solution):
    """tau = features @ w_tau and f = dual_features @ w_f, with the primal-dual gap that certifies them."""

    mass: Floats = field(default_factory=lambda: np.empty(0))
    """p tau over cells (states, for a state ratio), with the mass that visits unseen cells."""
    w_tau: Floats = field(default_factory=lambda: np.empty(0))
    w_f: Floats = field(default_factory=lambda: np.empty(0))
    u: float = 0.0
    """Multiplier of the normalization."""
    objective: float = float("nan")
    """max over (f, u) of J at w_tau: divergence plus penalty plus ridge."""
    lower_bound: float = float("nan")
    """No w does better than this."""
    gap_kind: str = "exact"
    """"exact", or "bound" where the inner maximum is itself bounded."""
    gap_trace: tuple[tuple[int, float], ...] = ()
    """(steps, gap) at the checkpoints."""
    divergence: str = "chi2"

    @property
    def gap(self) -> float:  # type: ignore[override]
        """objective - lower_bound: an upper bound on how much any other w could improve the objective."""
        return self.objective - self.lower_bound

    @property
    def _identified(self) -> float:
        """Share of the mass whose rewards are known; the mass itself, 1 at the optimum, is not divided by."""
        total = self._known_mass + float(np.einsum("x,x->", self.cell_distribution, self._unknown_weight))
        return self._known_mass / total if total > 0.0 else 0.0

    @property
    def stationary(self) -> Floats:
        """mu = p tau."""
        return self.mass

    @property
    def distributions(self) -> tuple[Floats, ...]:
        """The one distribution that was fitted."""
        return (self.mass,)

    @property
    def cell_distribution(self) -> Floats:  # type: ignore[override]
        """mu over cells, whatever ``ratio`` is shown."""
        return self.mass if self._over_cells else self.operator.spread(self.mass)

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON types."""
        return {
            **super().to_dict(),
            "gap": strict_json(self.gap),
            "divergence": self.divergence,
            "objective": strict_json(self.objective),
            "lower_bound": strict_json(self.lower_bound),
            "gap_kind": self.gap_kind,
            "w_tau": strict_json(self.w_tau),
            "w_f": strict_json(self.w_f),
            "u": strict_json(self.u),
        }

    def _facts(self) -> list[Row]:
        rows = super()._facts()
        place = next(k for k, (name, _) in enumerate(rows) if name == "residual")
        mine = [
            ("divergence", f"{self.divergence}, objective {self.objective:.3e}"),
            (f"gap ({self.gap_kind})", f"{self.gap:.1e}"),
            ("coefficients", f"{self.w_tau.size:,} of tau, {self.w_f.size:,} of f"),
        ]
        return [row for row in (*rows[:place], *mine, *rows[place:]) if not row[0].startswith("error")]
