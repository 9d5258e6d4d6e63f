"""The saddle point that the networks are trained on, as numbers for the kernels.

With z and y the outputs of the two networks, tau = out(z), f = dual(y), and batch means for expectations,

    J = (1 - gamma) E f(x0) + gamma E tau f(x') - E tau f - E c excess(f)
        + lambda (u (E nu tau - 1) - u^2 / 2) + rho / 2 E (tau - center)^2

is minimized over tau and maximized over f and u; c = tau for f-divergences and 1 for the weighted L2 norm of
GradientDICE. DualDICE (its nu is our f, its zeta our tau) is the case out = identity, no excess, lambda = 0,
rho = 1, center = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lingendice.continuous.options import OUTPUTS
from lingendice.data.checks import require_number
from lingendice.divergences import DIVERGENCES, FDivergence
from lingendice.kernels.networks.records import Loss


@dataclass(frozen=True)
class Objective:
    """One saddle point of the family above."""

    gamma: float
    divergence: str
    code: int
    """Of the excess, in ``kernels/conjugates.py``."""
    by_ratio: bool
    """Whether the excess is weighted by tau."""
    output: str
    penalty: float
    ridge: float
    center: float
    bound: float
    """|f| <= bound, by f = bound tanh(y / bound); inf leaves f free."""
    limit: float
    """f < limit, by a softplus that is 0 at 0; inf leaves f free."""

    def numbers(self) -> Loss:
        """As the kernels take it."""
        return Loss(
            float(self.gamma), self.code, self.by_ratio, OUTPUTS.index(self.output), float(self.penalty),
            float(self.ridge), float(self.center), float(self.bound), float(self.limit),
        )  # fmt: skip


def gendice(
    gamma: float, divergence: Any, output: str, penalty: float, ridge: float, bound: float | None
) -> Objective:
    """GenDICE's objective for an f-divergence."""
    if isinstance(divergence, str):
        if divergence not in DIVERGENCES:
            raise ValueError(f"divergence must be one of {', '.join(DIVERGENCES)}, got {divergence!r}")
        divergence = DIVERGENCES[divergence]()
    if not isinstance(divergence, FDivergence) or divergence.name in ("total_variation", "equality"):
        known = "chi2, kl, reverse_kl, jensen_shannon, hellinger, weighted_l2"
        raise ValueError(
            f"{getattr(divergence, 'name', divergence)} needs a constrained f, which networks do not keep; "
            f"use one of {known}"
        )
    if output == "identity" and divergence.weighs_by_ratio:
        raise ValueError(
            "options['output']='identity' lets tau be negative, where the objective is not concave in f; use "
            "'square', 'softplus' or 'exp', or divergence='weighted_l2'"
        )
    free = math.isinf(divergence.dual_limit) and divergence.default_bound == math.inf
    limited = divergence.default_bound if math.isinf(divergence.dual_limit) and not free else math.inf
    return Objective(
        gamma,
        divergence.name,
        divergence.code,
        divergence.weighs_by_ratio,
        output,
        require_number("penalty", penalty),
        ridge,
        1.0,
        limited if bound is None else require_number("bound", bound),
        divergence.dual_limit,
    )


def dual_dice(gamma: float) -> Objective:
    """DualDICE with squares: min over nu of E (nu - gamma nu')^2 / 2 - (1 - gamma) E nu(x0)."""
    return Objective(gamma, "DualDICE", 7, False, "identity", 0.0, 1.0, 0.0, math.inf, math.inf)
