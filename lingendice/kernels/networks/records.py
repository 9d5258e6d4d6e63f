"""What the kernels of networks take together, as named tuples of arrays and numbers."""

from __future__ import annotations

from typing import Any, NamedTuple


class Shape(NamedTuple):
    """Sizes of the samples, and how actions are given."""

    n_rows: Any
    n_firsts: Any
    stride: Any
    n_states: Any
    n_actions: Any
    kind: Any
    branches: Any
    restarts: Any


class Rows(NamedTuple):
    """Samples as steps gather them: (x, s') side by side, first states, actions, flags, nu."""

    shape: Any
    pairs: Any
    firsts: Any
    next_action: Any
    first_action: Any
    limits: Any
    flags: Any
    mass: Any


class Table(NamedTuple):
    """Arrivals: state ``step * i + shift`` of ``source`` belongs to row i of ``action``."""

    source: Any
    action: Any
    step: Any
    shift: Any


class Loss(NamedTuple):
    """Numbers of the objective; see ``continuous/objective.py``."""

    gamma: Any
    code: Any
    by_ratio: Any
    output: Any
    penalty: Any
    ridge: Any
    center: Any
    bound: Any
    limit: Any


class Settings(NamedTuple):
    """Rows of a batch, of a group and of a tile, and the activation's number."""

    batch: Any
    group: Any
    tile: Any
    activation: Any


class Rates(NamedTuple):
    """Step lengths of both networks, and when and how they change."""

    learning: Any
    dual_learning: Any
    clip: Any
    planned: Any
    average_from: Any
    decay: Any
    momentum: Any


class Pair(NamedTuple):
    """Both networks: where their layers lie, their parameters, and their weights turned for the way back."""

    layout: Any
    tau: Any
    f: Any
    tau_turned: Any
    f_turned: Any


class Gradients(NamedTuple):
    """Of each group: in tau's and f's parameters, and the sum of nu tau."""

    tau: Any
    f: Any
    mass: Any


class Span(NamedTuple):
    """Where a tile's inputs and hidden layers lie in the scratch, rows it has room for, and rows in use."""

    inputs_at: Any
    hidden_at: Any
    capacity: Any
    rows: Any


class Work(NamedTuple):
    """Scratch of one thread."""

    scratch: Any
    out: Any
    factor: Any
    weights: Any
    noise: Any
    integers: Any
    as_floats: Any
    indices: Any
    spare: Any
