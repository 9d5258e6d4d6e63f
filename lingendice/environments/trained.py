"""The trained policies that the package carries, and the mean action they define."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

UPPER_ARM = 0.1
"""Length of Reacher's first link."""


@dataclass(frozen=True, eq=False)
class SquashedMean:
    """Mean action tanh(W (phi(s) - c)); phi(s) is s itself or, for Reacher, ``with_lever_arms(s)``."""

    weights: Floats
    center: Floats

    def __call__(self, states: Floats) -> Floats:
        features = np.asarray(states, dtype=np.float64)
        if features.shape[1] != self.center.size:
            features = with_lever_arms(features)
        return np.tanh((features - self.center) @ self.weights.T)


def with_lever_arms(states: Floats) -> Floats:
    """Reacher's observation, and how the way to the goal lies to the lever arms of both joints.

    With e the way from the fingertip to the goal and l the arm from a joint to the fingertip: the cross
    product l x e is the torque about that joint of a spring along e, and l . e tells how far the arm must
    fold. Without these a linear policy cannot reach in all directions.
    """
    cosine, sine, goal, way = states[:, 0], states[:, 2], states[:, 4:6], -states[:, 8:10]
    tip = goal - way
    elbow = UPPER_ARM * np.stack([cosine, sine], axis=1)
    arms = [tip, tip - elbow]
    turns = [arm[:, 0] * way[:, 1] - arm[:, 1] * way[:, 0] for arm in arms]
    folds = [(arm * way).sum(axis=1) for arm in arms]
    return np.concatenate([states, np.stack([*turns, *folds], axis=1)], axis=1)


@cache
def arrays(name: str) -> dict[str, NDArray[Any]]:
    """What is stored about one environment's policies."""
    path = files("lingendice.environments").joinpath("trained_policies").joinpath(f"{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def squashed_mean(name: str, stage: str) -> SquashedMean:
    """Mean action of the trained policy, or of an ``early`` one from the same run."""
    stored = arrays(name)
    prefix = "early_" if stage == "early" else ""
    return SquashedMean(stored[f"{prefix}weights"], stored[f"{prefix}center"])
