"""Options of the ratio networks, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lingendice.data.checks import require_choice, require_number

ACTIVATIONS = ("tanh", "relu")
OUTPUTS = ("square", "softplus", "exp", "identity")
ENGINES = ("auto", "vector", "blas")
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
    """"cloned": networks learn what the target over a cloned behavior leaves open; see ``base.py``."""
    ensemble: int = 1
    """Members, each with its own seed, trained side by side."""
    report_every: int | None = None
    """Steps between entries of ``history``; default a fiftieth of all."""
    standardize: bool = True
    checkpoint: str | Path | None = None
    """File (.npz) that holds the state of training, rewritten at every report."""
    resume: bool = False
    """Go on from ``checkpoint`` where it exists."""
    engine: str = "auto"
    """"vector" (explicit vectors) or "blas" (portable); "auto" takes vectors where they are wide."""
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
    require_choice("options['engine']", options.engine, ENGINES)
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
