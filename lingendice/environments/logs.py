"""Logs of the control environments: the fields of :class:`lingendice.Transitions`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats


class ControlLog(NamedTuple):
    """Logged transitions, one entry per step: ``lg.Transitions(**log._asdict())``."""

    state: Floats
    action: NDArray[Any]
    reward: Floats
    next_state: Floats
    initial_state: Floats
    episode: NDArray[np.int64]

    @classmethod
    def from_trajectories(
        cls, state: Floats, action: NDArray[Any], reward: Floats, following: Floats
    ) -> ControlLog:
        """Join arrays of shape (trajectories, steps, ...)."""
        n, steps = reward.shape
        return cls(
            state.reshape(n * steps, -1),
            action.reshape(n * steps, *action.shape[2:]),
            reward.reshape(n * steps),
            following.reshape(n * steps, -1),
            state[:, 0].copy(),
            np.repeat(np.arange(n), steps),
        )


def check_sizes(n_trajectories: int, n_steps: int, seed: int) -> None:
    """Complain of numbers that no log can have."""
    for name, number in (("n_trajectories", n_trajectories), ("n_steps", n_steps)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie between 0 and 2**63 - 1, got {seed!r}")
