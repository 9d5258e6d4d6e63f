"""What the log itself earned."""

from __future__ import annotations

import numpy as np

from lingendice.baselines.estimate import Estimate
from lingendice.baselines.paths import read_paths
from lingendice.checks import require_gamma
from lingendice.counts import Counts


def naive_average(counts: Counts, gamma: float = 1.0) -> Estimate:
    """Average reward of the log, the target ignored: the behaviour's value, not the target's.

    gamma = 1: mean reward, from counts alone. gamma < 1: sum gamma^t r / sum gamma^t over kept
    episodes (an episode that ended in a terminal state earns 0 for ever after). O(N).
    """
    gamma = require_gamma(gamma)
    note = "the behaviour's own reward; the target plays no part"
    if gamma == 1.0:
        if counts.reward is None:
            raise ValueError("naive_average needs logged rewards; pass reward= to Counts.from_transitions")
        return Estimate(float(np.nansum(counts.data_law * counts.reward)), gamma, "naive average", note)
    paths = read_paths(counts, "naive_average at gamma < 1")
    n = paths.n_episodes
    earned = np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
    length = np.bincount(paths.episode, minlength=n)
    ended = np.bincount(paths.episode, weights=paths.terminal, minlength=n) > 0
    span = np.where(ended, 1.0, 1.0 - gamma**length) / (1.0 - gamma)
    value = float(earned.sum() / span.sum())
    spread = float(((earned - value * span) ** 2).sum()) / span.sum() ** 2 * n / max(n - 1, 1)
    return Estimate(value, gamma, "naive average", note, float(np.sqrt(spread)), n - 1)
