"""What the logged behavior earns, on the scale of the target's value, and its noise.

    gamma < 1, horizon      the value of the logged chain from the initial distribution: one solve
    gamma = 1               the mean reward of the log

The behavior is that of the log, cloned: n(s, a) / n(s).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.episodes import group_sample
from lingendice.data.rows import row_of_entry
from lingendice.results.targets import ValueScores

if TYPE_CHECKING:
    from lingendice.results.solution import Solution


def average_scores(solution: Solution, average: float) -> ValueScores:
    """Rows whose products add up to the variance of the mean reward, in the order of other values' rows."""
    operator, counts = solution.operator, solution.operator.counts
    sample = group_sample(counts)
    assert operator.reward is not None
    logged = operator.choices is None or operator.choices.reward is None
    cell = row_of_entry(counts.indptr)
    mean: Floats = operator.reward[cell]
    m2 = np.zeros(counts.count.size)
    if logged and counts.reward_mean is not None and counts.reward_m2 is not None:
        mean, m2 = counts.reward_mean, counts.reward_m2
    off = np.where(np.isfinite(mean), mean - average, 0.0)
    total = float(counts.count[np.isfinite(mean)].sum())
    episodes = counts.episodes
    if sample.cluster is None or episodes is None:
        rows = np.concatenate([off * np.sqrt(counts.count), np.sqrt(m2)]) / total
        return ValueScores(rows[:, None], sample.degrees, sample.note)
    moved = off[episodes.entry]
    if logged and episodes.reward is not None:
        moved = np.where(np.isfinite(episodes.reward), episodes.reward - average, 0.0)
    if episodes.weight is not None:
        moved = moved * episodes.weight
    n = sample.n_clusters
    rows = np.bincount(sample.cluster, weights=moved, minlength=n) / total
    return ValueScores((rows * math.sqrt(n / max(n - 1, 1)))[:, None], sample.degrees, sample.note)
