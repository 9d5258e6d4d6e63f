"""What the stochastic kernels take together, as named tuples of arrays and numbers."""

from __future__ import annotations

from typing import Any, NamedTuple


class Source(NamedTuple):
    """Where samples (x, x', x0) are drawn from; see `model.sampler.Sampler`."""

    events: Any
    tables: Any
    redirects: Any
    starts: Any
    actions: Any
    most_draws: Any


class Terms(NamedTuple):
    """Numbers of the objective, the steps of u, and which conjugate it has."""

    gamma: Any
    penalty: Any
    offset: Any
    ridge: Any
    center: Any
    u_step: Any
    u_top: Any
    code: Any
    by_ratio: Any


class Features(NamedTuple):
    """Rows of tau's and f's features, nu(x), and the row a of the mass a'w where tau is normalized by it."""

    psi: Any
    phi: Any
    mass_weight: Any
    own: Any


class Block(NamedTuple):
    """Coordinates of one player: sums over the steps and when they were brought up, step lengths, box."""

    values: Any
    sums: Any
    since: Any
    step: Any
    low: Any
    high: Any
