"""Policies over continuous states: densities, samplers and tables; see :mod:`lingendice.data.policies`."""

from lingendice.data.policies import (
    CallablePolicy,
    ContinuousPolicy,
    DiscretePolicy,
    GaussianPolicy,
    SampledPolicy,
    TablePolicy,
)

__all__ = [
    "CallablePolicy",
    "ContinuousPolicy",
    "DiscretePolicy",
    "GaussianPolicy",
    "SampledPolicy",
    "TablePolicy",
]
