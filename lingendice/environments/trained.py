"""The trained policies that the package carries, and the mean action they define."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.checks import Floats


@dataclass(frozen=True, eq=False)
class SquashedMean:
    """Mean action tanh(W (phi(s) - c)), phi the observation or, where W is wider, also all products of two."""

    weights: Floats
    centre: Floats

    def __call__(self, states: Floats) -> Floats:
        features = np.asarray(states, dtype=np.float64)
        if features.shape[1] != self.centre.size:
            features = with_products(features)
        return np.tanh((features - self.centre) @ self.weights.T)


def with_products(states: Floats) -> Floats:
    """Each observation followed by the products of every two of its coordinates, squares among them."""
    rows, columns = np.triu_indices(states.shape[1])
    return np.concatenate([states, states[:, rows] * states[:, columns]], axis=1)


@lru_cache(maxsize=None)
def arrays(name: str) -> dict[str, NDArray[Any]]:
    """What is stored about one environment's policies."""
    path = files("lingendice.environments").joinpath("trained_policies", f"{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def squashed_mean(name: str, stage: str) -> SquashedMean:
    """Mean action of the trained policy, or of an ``early`` one from the same run."""
    stored = arrays(name)
    prefix = "early_" if stage == "early" else ""
    return SquashedMean(stored[f"{prefix}weights"], stored[f"{prefix}centre"])
