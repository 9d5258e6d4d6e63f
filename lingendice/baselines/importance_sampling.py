"""Importance sampling over whole episodes and over their prefixes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.baselines.paths import (
    Paths,
    effective_size,
    read_paths,
    running_products,
    standard_error,
    step_ratios,
)
from lingendice.baselines.stationarity import target_operator
from lingendice.data.checks import Floats, require_gamma
from lingendice.data.counts import Counts
from lingendice.results.baseline_solution import BaselineSolution, Weighing
from lingendice.results.build import baseline_solution


def trajectory_wise(
    counts: Counts, gamma: float = 1.0, *, policy: Any, behavior: Any = None, weighted: bool = True
) -> BaselineSolution:
    """Weigh each episode by the product of target / behavior over all its steps.

    With W_e that product, G_e = sum gamma^t r and Z_e = sum gamma^t over an episode (1 / (1 - gamma) for one
    that ended), the value is sum W G / sum W Z (``weighted``, biased but bounded) or sum W G / sum Z.
    O(N). The variance grows exponentially with length.

    gamma = 1: the average over the logged horizon, biased toward the start of episodes; refused where
    episodes end in terminal states. The value is nan where no episode has a positive weight.
    """
    started = time.perf_counter()
    gamma, paths = _read(counts, gamma, "trajectory_wise")
    ratio = step_ratios(counts, paths, policy, behavior)
    n = paths.n_episodes
    last = np.append(np.flatnonzero(paths.step == 0)[1:], paths.step.size) - 1
    weight = running_products(paths, ratio)[last]
    earned = weight * np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
    span = _spans(paths, gamma)
    if weighted:
        span = weight * span
    whole = float(span.sum())
    # Products over long episodes may be tiny: they are divided by their sum before anything is squared.
    value = float(earned.sum()) / whole if whole > 0 else float("nan")
    influence = earned / whole - value * (span / whole) if whole > 0 else np.full(n, np.nan)
    spread = float((influence**2).sum()) * n / max(n - 1, 1)
    share = gamma**paths.step * (weight / whole if whole > 0 else np.full(n, np.nan))[paths.episode]
    return baseline_solution(
        f"trajectory-wise {'weighted ' * weighted}importance sampling",
        target_operator(counts, gamma, policy),
        paths.distribution(share, counts),
        Weighing(
            value, _note(behavior), standard_error(spread, n), n - 1, effective_size(weight), "episodes"
        ),
        started,
    )


def step_wise(
    counts: Counts, gamma: float = 1.0, *, policy: Any, behavior: Any = None, weighted: bool = True
) -> BaselineSolution:
    """Weigh each reward by the product of target / behavior up to its own step.

    Step t has the mean A_t = sum_e w r / sum_e w (``weighted``) or sum_e w r / E over the episodes that
    reach it; one that ended in a terminal state goes on with its last weight and reward 0. The value is
    sum gamma^t A_t / sum gamma^t over the logged horizon, nan where no episode has a positive weight. O(N).

    gamma = 1: the average over the logged horizon, biased toward the start of episodes; refused where
    episodes end in terminal states.
    """
    started = time.perf_counter()
    gamma, paths = _read(counts, gamma, "step_wise")
    weight = running_products(paths, step_ratios(counts, paths, policy, behavior))
    n, horizon = paths.n_episodes, int(paths.step.max()) + 1
    ends, ones = paths.terminal, np.ones(paths.step.size)
    # Episodes that ended still stand in the denominator of every later step.
    counted = weight if weighted else ones
    below = _sums(paths.step, counted, horizon) + _after(_sums(paths.step[ends], counted[ends], horizon))
    mean = np.divide(
        _sums(paths.step, weight * paths.reward, horizon),
        below,
        out=np.zeros(horizon),
        where=below > 0,
    )
    share = gamma ** np.arange(horizon)
    share /= share.sum()
    value = float(share @ mean) if below.any() else float("nan")
    scale = np.divide(share, below, out=np.zeros(horizon), where=below > 0)
    centered = (
        weight * (paths.reward - mean[paths.step]) if weighted else weight * paths.reward - mean[paths.step]
    )
    influence = _sums(paths.episode, scale[paths.step] * centered, n)
    influence += _ended_influence(paths, weight, scale * mean, weighted)
    spread = float((influence**2).sum()) * n / max(n - 1, 1)
    last = np.append(np.flatnonzero(paths.step == 0)[1:], paths.step.size) - 1
    return baseline_solution(
        f"step-wise {'weighted ' * weighted}importance sampling",
        target_operator(counts, gamma, policy),
        paths.distribution(scale[paths.step] * weight, counts),
        Weighing(
            value,
            _note(behavior),
            standard_error(spread, n),
            n - 1,
            effective_size(weight[last]),
            "episodes",
        ),
        started,
    )


def per_decision(
    counts: Counts, gamma: float = 1.0, *, policy: Any, behavior: Any = None
) -> BaselineSolution:
    """Per-decision importance sampling: :func:`step_wise` without weighting, unbiased over the horizon.

    gamma = 1: the average over the logged horizon; refused where episodes end in terminal states.

    References
    ----------
    D. Precup, R. S. Sutton, S. Singh (2000). Eligibility traces for off-policy policy evaluation. ICML.
    """
    return step_wise(counts, gamma, policy=policy, behavior=behavior, weighted=False)


def _read(counts: Counts, gamma: float, method: str) -> tuple[float, Paths]:
    gamma, paths = require_gamma(gamma), read_paths(counts, method)
    if gamma == 1.0 and paths.terminal.any():
        raise ValueError(
            f"{method} at gamma=1 averages over the logged horizon, and here episodes end in terminal "
            "states; take gamma < 1, or solve(...), which restarts them"
        )
    return gamma, paths


def _spans(paths: Paths, gamma: float) -> Floats:
    """sum gamma^t over each episode, to infinity for one that ended."""
    length = np.bincount(paths.episode, minlength=paths.n_episodes).astype(float)
    if gamma == 1.0:
        return length
    ended = np.bincount(paths.episode, weights=paths.terminal, minlength=paths.n_episodes) > 0
    return np.where(ended, 1.0, 1.0 - gamma**length) / (1.0 - gamma)


def _sums(place: NDArray[np.int64], weights: Floats, size: int) -> Floats:
    return np.bincount(place, weights=weights, minlength=size).astype(np.float64)


def _after(at_step: Floats) -> Floats:
    """Sums over all earlier steps."""
    return np.concatenate([[0.0], np.cumsum(at_step)[:-1]])


def _ended_influence(paths: Paths, weight: Floats, scaled_mean: Floats, weighted: bool) -> Floats:
    """Ended episodes earn 0 where the others earn the mean, at every later step."""
    later = np.concatenate([np.cumsum(scaled_mean[::-1])[::-1][1:], [0.0]])
    ends = paths.terminal
    lost = -later[paths.step[ends]] * (weight[ends] if weighted else 1.0)
    return _sums(paths.episode[ends], lost, paths.n_episodes)


def _note(behavior: Any) -> str:
    return "behavior cloned from the log" if behavior is None else "behavior as given"
