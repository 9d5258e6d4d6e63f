"""The saddle point that the networks are trained on, as numbers for the kernels, and the options of training.

With z and y the outputs of the two networks, tau = out(z), f = dual(y), and batch means for expectations,

    J = (1 - gamma) E f(x0) + gamma E tau f(x') - E tau f - E c excess(f)
        + lambda (u (E nu tau - 1) - u^2 / 2) + rho / 2 E (tau - center)^2

is minimized over tau and maximized over f and u; c = tau for f-divergences and 1 for the weighted L2 norm of
GradientDICE. DualDICE (its nu is our f, its zeta our tau) is the case out = identity, no excess, lambda = 0,
rho = 1, center = 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lingendice.data.checks import require_choice, require_number
from lingendice.divergences import DIVERGENCES, FDivergence
from lingendice.kernels.networks.ratio_step import Loss

ACTIVATIONS = ("tanh", "relu")
OUTPUTS = ("square", "softplus", "exp", "identity")
BASES = ("none", "cloned")
DEFAULT_STEPS = 10_000


@dataclass(frozen=True)
class NeuralOptions:
    """What ``options={...}`` may hold for ``method="gendice"``."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of tau and of f alike."""
    activation: str = "tanh"
    """Of hidden layers: "tanh" or "relu"."""
    output: str = "square"
    """What keeps tau nonnegative: "square", "softplus" or "exp"."""
    batch: int = 2048
    learning_rate: float = 1e-3
    """Adam's, for tau."""
    dual_learning_rate: float | None = None
    """Adam's, for f; default three times that of tau, so that f keeps up with it."""
    momentum: float = 0.0
    """Adam's decay of first moments; its usual 0.9 makes the iterates circle around a saddle point."""
    decay: bool = True
    """Lower the learning rates to zero along a half cosine over the planned steps."""
    clip: float = 1.0
    """Largest norm of each network's gradient; longer ones are scaled down."""
    average: float = 0.5
    """Share of the steps, at the end, whose tau parameters are averaged; 0 takes the last."""
    holdout: float = 0.1
    """Share of the episodes kept out of training, for the residual."""
    base: str = "none"
    """"cloned": networks learn what the target over a cloned behavior leaves open; see ``clone.py``."""
    ensemble: int = 1
    """Members, each with its own seed, trained side by side."""
    report_every: int | None = None
    """Steps between entries of ``history``; default a fiftieth of all."""
    standardize: bool = True
    checkpoint: str | Path | None = None
    """File (.npz) that holds the state of training, rewritten at every report."""
    resume: bool = False
    """Go on from ``checkpoint`` where it exists."""
    on_interrupt: str = "raise"


def read_neural_options(given: Mapping[str, Any] | None) -> NeuralOptions:
    """Check every entry and fill in the rest."""
    given = dict(given or {})
    known = [entry.name for entry in fields(NeuralOptions)]
    for name in given:
        if name not in known:
            raise ValueError(
                f"options has no entry {name!r} for method='gendice'; known: {', '.join(map(repr, known))}"
            )
    if "hidden" in given:
        widths = given["hidden"]
        widths = (widths,) if isinstance(widths, int) else tuple(widths)
        given["hidden"] = tuple(_whole("hidden", width) for width in widths)
        if not widths:
            raise ValueError("options['hidden'] must name at least one layer, e.g. (64, 64)")
    options = NeuralOptions(**given)
    require_choice("options['activation']", options.activation, ACTIVATIONS)
    require_choice("options['output']", options.output, OUTPUTS)
    require_choice("options['base']", options.base, BASES)
    for name in ("batch", "ensemble", "report_every"):
        if getattr(options, name) is not None:
            _whole(name, getattr(options, name))
    for name in ("learning_rate", "dual_learning_rate", "clip"):
        number = getattr(options, name)
        if number is not None and (number == 0 or require_number(f"options[{name!r}]", number) <= 0):
            raise ValueError(f"options[{name!r}] must be positive, got {number!r}")
    for name in ("average", "holdout", "momentum"):
        if not 0.0 <= getattr(options, name) < 1.0:
            raise ValueError(f"options[{name!r}] must lie in [0, 1), got {getattr(options, name)!r}")
    if options.resume and options.checkpoint is None:
        raise ValueError("options['resume'] needs options['checkpoint'], the file to go on from")
    return options


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"options[{name!r}] must be a whole number of at least 1, got {value!r}")
    return int(value)


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
