"""What the log itself earned."""

from __future__ import annotations

import time

import numpy as np

from lingendice.baselines.dice import target_operator
from lingendice.baselines.paths import effective_size, read_paths, standard_error
from lingendice.data.checks import require_gamma
from lingendice.data.counts import Counts
from lingendice.model.operator import average_reward
from lingendice.results.baseline_solution import BaselineSolution, Weighing
from lingendice.results.build import baseline_solution


def naive_average(counts: Counts, gamma: float = 1.0) -> BaselineSolution:
    """Average reward of the log, the target ignored: the behavior's value, not the target's.

    gamma = 1: mean reward, from counts alone. gamma < 1: sum gamma^t r / sum gamma^t over kept
    episodes (an episode that ended in a terminal state earns 0 for ever after). O(N).
    """
    started = time.perf_counter()
    gamma = require_gamma(gamma)
    note = "the behavior's own reward; the target plays no part"
    if gamma == 1.0:
        if counts.reward is None:
            raise ValueError("naive_average needs logged rewards; pass reward= to Counts.from_transitions")
        distribution = counts.data_distribution
        found = average_reward(distribution, counts.reward)
        value = np.nan if found is None else found
        # Where first states are unknown, ended episodes restart as the log's steps do.
        starts = counts.initial_count is not None and counts.initial_count.any()
        initial = None if starts else distribution.reshape(counts.n_states, -1).sum(axis=1)
        operator = target_operator(counts, gamma, initial=initial)
        return baseline_solution(
            "naive average",
            operator,
            distribution,
            Weighing(value, note, effective_size=counts.total),
            started,
        )
    paths = read_paths(counts, "naive_average at gamma < 1")
    n = paths.n_episodes
    earned = np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
    length = np.bincount(paths.episode, minlength=n)
    ended = np.bincount(paths.episode, weights=paths.terminal, minlength=n) > 0
    span = np.where(ended, 1.0, 1.0 - gamma**length) / (1.0 - gamma)
    value = float(earned.sum() / span.sum())
    spread = float(((earned - value * span) ** 2).sum()) / span.sum() ** 2 * n / max(n - 1, 1)
    weight = gamma**paths.step / span.sum()
    return baseline_solution(
        "naive average",
        target_operator(counts, gamma),
        paths.distribution(weight, counts),
        Weighing(value, note, standard_error(spread, n), n - 1, effective_size(weight)),
        started,
    )
