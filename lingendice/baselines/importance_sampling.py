"""What episodes earned: on average, and weighed by importance over whole episodes or over their prefixes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.baselines.dice import target_operator
from lingendice.baselines.paths import (
    Paths,
    effective_size,
    read_paths,
    running_products,
    standard_error,
    step_ratios,
)
from lingendice.continuous.clone import clone_log_ratio, target_log_density
from lingendice.data.checks import (
    Floats,
    numeric_array,
    require_choice,
    require_gamma,
    require_length,
    require_whole,
)
from lingendice.data.counts import Counts
from lingendice.data.transitions import Transitions
from lingendice.model.operator import average_reward, total_weight
from lingendice.results.build import baseline_solution
from lingendice.results.variants import BaselineSolution, Estimate, Weighing


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
        average = average_reward(distribution, counts.reward)
        value = np.nan if average is None else average
        # Where first states are unknown, ended episodes restart as the log's steps do.
        starts = counts.initial_count is not None and counts.initial_count.any()
        initial = None if starts else distribution.reshape(counts.n_states, -1).sum(axis=1)
        operator = target_operator(counts, gamma, initial=initial)
        found = Weighing(value, note, effective_size=counts.total)
        return baseline_solution("naive average", operator, distribution, found, started)
    paths = read_paths(counts, "naive_average at gamma < 1")
    n = paths.n_episodes
    earned = np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
    span = _spans(paths, gamma, None)
    value = float(earned.sum() / span.sum())
    weight = gamma**paths.step / span.sum()
    error = standard_error((earned - value * span) / span.sum())
    found = Weighing(value, note, error, n - 1, effective_size(weight))
    distribution = paths.distribution(weight, counts)
    return baseline_solution("naive average", target_operator(counts, gamma), distribution, found, started)


def trajectory_wise(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    weighted: bool = True,
    horizon: int | None = None,
) -> BaselineSolution:
    """Weigh each episode by the product of target / behavior over all its steps.

    With W_e that product, G_e = sum gamma^t r and Z_e = sum gamma^t over an episode (one that ended goes on
    at zero reward: 1 / (1 - gamma)), the value is sum W G / sum W Z (``weighted``, biased but bounded) or
    sum W G / sum Z. ``horizon`` counts the first H steps only. O(N). The variance grows exponentially with
    length.

    gamma = 1 without a horizon: the average over the logged steps, biased toward the start of episodes;
    refused where episodes end in terminal states. The value is nan where no episode has a positive weight.
    """
    started = time.perf_counter()
    gamma, paths = _read(counts, gamma, "trajectory_wise", horizon)
    ratio = step_ratios(counts, paths, policy, behavior)
    n = paths.n_episodes
    weight = running_products(paths, ratio)[paths.last]
    earned = weight * np.bincount(paths.episode, weights=gamma**paths.step * paths.reward, minlength=n)
    span = _spans(paths, gamma, horizon)
    if weighted:
        span = weight * span
    whole = float(span.sum())
    # Products over long episodes may be tiny: they are divided by their sum before anything is squared.
    value = float(earned.sum()) / whole if whole > 0 else float("nan")
    influence = earned / whole - value * (span / whole) if whole > 0 else np.full(n, np.nan)
    share = gamma**paths.step * (weight / whole if whole > 0 else np.full(n, np.nan))[paths.episode]
    found = _weighing(value, influence, weight, behavior, counted_steps(gamma, horizon))
    return baseline_solution(
        f"trajectory-wise {'weighted ' * weighted}importance sampling",
        target_operator(counts, gamma, policy), paths.distribution(share, counts), found, started,
    )  # fmt: skip


def step_wise(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    weighted: bool = True,
    horizon: int | None = None,
) -> BaselineSolution:
    """Weigh each reward by the product of target / behavior up to its own step.

    Step t has the mean A_t = sum_e w r / sum_e w (``weighted``) or sum_e w r / E over the episodes that
    reach it; one that ended in a terminal state goes on with its last weight and reward 0. The value is
    sum gamma^t A_t over the T logged steps, divided by sum_{t<T} gamma^t + e sum_{t>=T} gamma^t, with e the
    share of the weight at step T that has ended: what was cut off is left out, what ended counts. So the
    value is (1 - gamma) times the discounted return where all episodes end. ``horizon`` counts the first H
    steps only. nan where no episode has a positive weight. O(N).

    gamma = 1 without a horizon: the average over the logged steps, biased toward the start of episodes;
    refused where episodes end in terminal states.
    """
    started = time.perf_counter()
    gamma, paths = _read(counts, gamma, "step_wise", horizon)
    weight = running_products(paths, step_ratios(counts, paths, policy, behavior))
    n, logged = paths.n_episodes, int(paths.step.max()) + 1
    ends, counted = paths.terminal, weight if weighted else np.ones(paths.step.size)
    # Episodes that ended still stand in the denominator of every later step.
    ended = _sums(paths.step[ends], counted[ends], logged)
    below = _sums(paths.step, counted, logged) + _after(ended)
    mean = np.divide(
        _sums(paths.step, weight * paths.reward, logged),
        below,
        out=np.zeros(logged),
        where=below > 0,
    )
    share = gamma ** np.arange(logged)
    beyond = tail_weight(gamma, logged, horizon)
    left = float(below[-1])
    ended_share = float(ended.sum()) / left if left > 0 else 0.0
    whole = float(share.sum()) + beyond * ended_share
    value = float(share @ mean) / whole if below.any() else float("nan")
    scale = np.divide(share / whole, below, out=np.zeros(logged), where=below > 0)
    centered = (
        weight * (paths.reward - mean[paths.step]) if weighted else weight * paths.reward - mean[paths.step]
    )
    influence = _sums(paths.episode, scale[paths.step] * centered, n)
    influence += _ended_influence(paths, counted, scale * mean)
    if beyond > 0.0 and left > 0.0:
        at_end = ends | (paths.step == logged - 1)
        moved = counted[at_end] * (ends[at_end] - ended_share) / left
        influence -= value * beyond / whole * _sums(paths.episode[at_end], moved, n)
    found = _weighing(value, influence, weight[paths.last], behavior, counted_steps(gamma, horizon))
    return baseline_solution(
        f"step-wise {'weighted ' * weighted}importance sampling",
        target_operator(counts, gamma, policy), paths.distribution(scale[paths.step] * weight, counts),
        found, started,
    )  # fmt: skip


def per_decision(
    counts: Counts,
    gamma: float = 1.0,
    *,
    policy: Any,
    behavior: Any = None,
    horizon: int | None = None,
) -> BaselineSolution:
    """Per-decision importance sampling: :func:`step_wise` without weighting, unbiased over a horizon.

    gamma = 1 without a horizon: the average over the logged steps; refused where episodes end in terminal
    states.

    References
    ----------
    D. Precup, R. S. Sutton, S. Singh (2000). Eligibility traces for off-policy policy evaluation. ICML.
    """
    return step_wise(counts, gamma, policy=policy, behavior=behavior, weighted=False, horizon=horizon)


def _read(counts: Counts, gamma: float, method: str, horizon: int | None) -> tuple[float, Paths]:
    gamma, paths = require_gamma(gamma), read_paths(counts, method)
    require_horizon(horizon)
    if horizon is not None:
        return gamma, paths.first_steps(horizon)
    if gamma == 1.0 and paths.terminal.any():
        raise ValueError(
            f"{method} at gamma=1 averages over the logged steps, and here episodes end in terminal "
            "states; pass horizon=, take gamma < 1, or solve(...), which restarts them"
        )
    return gamma, paths


def require_horizon(horizon: int | None) -> None:
    """Refuse a horizon of no steps."""
    if horizon is not None and require_whole("horizon", horizon) < 1:
        raise ValueError(f"horizon must be at least 1 step, got {horizon!r}; None counts all")


def counted_steps(gamma: float, horizon: int | None) -> float | None:
    """How many steps' value a return is; None where it is infinite."""
    if horizon is not None:
        return total_weight(gamma, horizon)
    return None if gamma == 1.0 else 1.0 / (1.0 - gamma)


def tail_weight(gamma: float, logged: int, horizon: int | None) -> float:
    """Weight of the steps beyond those logged: 0 where nothing is asked of them."""
    if horizon is None and gamma == 1.0:
        return 0.0
    whole = 1.0 / (1.0 - gamma) if horizon is None else total_weight(gamma, horizon)
    return max(whole - total_weight(gamma, logged), 0.0)


def _spans(paths: Paths, gamma: float, horizon: int | None) -> Floats:
    """sum gamma^t over each episode, to the horizon for one that ended."""
    length = np.bincount(paths.episode, minlength=paths.n_episodes).astype(float)
    own = length if gamma == 1.0 else (1.0 - gamma**length) / (1.0 - gamma)
    ended = np.bincount(paths.episode, weights=paths.terminal, minlength=paths.n_episodes) > 0
    whole = counted_steps(gamma, horizon)
    return own if whole is None else np.where(ended, whole, own)


def _sums(place: NDArray[np.int64], weights: Floats, size: int) -> Floats:
    return np.bincount(place, weights=weights, minlength=size).astype(np.float64)


def _after(at_step: Floats) -> Floats:
    """Sums over all earlier steps."""
    return np.concatenate([[0.0], np.cumsum(at_step)[:-1]])


def _ended_influence(paths: Paths, counted: Floats, scaled_mean: Floats) -> Floats:
    """Ended episodes earn 0 where the others earn the mean, at every later step."""
    later = np.concatenate([np.cumsum(scaled_mean[::-1])[::-1][1:], [0.0]])
    ends = paths.terminal
    return _sums(paths.episode[ends], -later[paths.step[ends]] * counted[ends], paths.n_episodes)


def _weighing(
    value: float, influence: Floats, weight: Floats, behavior: Any, steps: float | None
) -> Weighing:
    """A value with the noise and the effective number of its episodes."""
    note = "behavior cloned from the log" if behavior is None else "behavior as given"
    error, size = standard_error(influence), effective_size(weight)
    return Weighing(value, note, error, influence.size - 1, size, "episodes", steps=steps)


def neural_importance_sampling(
    transitions: Transitions,
    gamma: float = 1.0,
    *,
    policy: Any,
    weighting: str = "step",
    behavior_log_density: Any = None,
    clone_options: dict[str, Any] | None = None,
    horizon: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Weigh rewards by target / behavior along each episode, the behavior cloned where it is not given.

    ``weighting="step"``: each reward by the product of ratios up to its step, normalized over the episodes
    that reach the step; ``"trajectory"``: each whole episode by the product over all its steps. An episode
    that ended goes on with its last weight and reward 0. The value is sum gamma^t mean_t / sum gamma^t over
    the logged steps, and beyond them for what has ended by then: see :func:`step_wise`. ``horizon`` counts
    the first H steps only; without it gamma = 1 is refused where episodes end in terminal states. Takes
    O(episodes x longest episode) memory; products are kept as logarithms. The standard error treats episodes
    as independent and the weights as known: it is short where few episodes carry most of the weight.
    """
    gamma = require_gamma(gamma)
    require_horizon(horizon)
    require_choice("weighting", weighting, ("step", "trajectory"))
    if transitions.episode is None or transitions.reward is None:
        raise ValueError("importance sampling needs whole episodes and rewards; pass episode= and reward=")
    if behavior_log_density is None:
        note = "behavior cloned by a network"
        log_ratio = clone_log_ratio(transitions, policy, **{"seed": seed, **(clone_options or {})})
    else:
        note = "behavior as given"
        given = numeric_array("behavior_log_density", behavior_log_density).astype(np.float64)
        require_length("behavior_log_density", given, len(transitions))
        log_ratio = target_log_density(transitions, policy) - given
    log_weight, reward, ended = _by_step(transitions, log_ratio, gamma, horizon)
    beyond = tail_weight(gamma, reward.shape[1], horizon)
    share = gamma ** np.arange(reward.shape[1])
    reached = np.isfinite(log_weight)
    last = log_weight[np.arange(len(reached)), reached.shape[1] - 1 - np.argmax(reached[:, ::-1], axis=1)]
    final = np.exp(last - last.max())
    if weighting == "trajectory":
        weight = np.where(reached, final[:, None], 0.0)
        later = beyond * ended * final
        whole = float(weight.sum(axis=0) @ share + later.sum())
        value = float((weight * reward).sum(axis=0) @ share / whole)
        influence = ((weight * (reward - value)) @ share - value * later) / whole
    else:
        weight = np.exp(log_weight - log_weight.max(axis=0))
        weight /= weight.sum(axis=0)
        mean = (weight * reward).sum(axis=0)
        at_end = float(weight[:, -1] @ ended)
        whole = float(share.sum()) + beyond * at_end
        value = float(share @ mean) / whole
        moved = value * beyond * weight[:, -1] * (ended - at_end)
        influence = ((weight * (reward - mean)) @ share - moved) / whole
    name = f"{weighting}-wise weighted importance sampling"
    error, size = standard_error(influence), effective_size(final)
    return Estimate(value, gamma, name, note, error, influence.size - 1, size)


def _by_step(
    transitions: Transitions, log_ratio: Floats, gamma: float, horizon: int | None
) -> tuple[Floats, Floats, Floats]:
    """Logs of the running products and rewards, episodes by steps, and which episodes have ended.

    -inf and 0 where an episode was cut off.
    """
    assert transitions.episode is not None
    assert transitions.reward is not None
    order = np.argsort(transitions.episode, kind="stable")
    episode = transitions.episode[order]
    n = int(episode.max()) + 1
    step = np.arange(episode.size) - np.searchsorted(episode, np.arange(n))[episode]
    counts = step < (step.size if horizon is None else horizon)
    order, episode, step = order[counts], episode[counts], step[counts]
    shape = (n, int(step.max()) + 1)
    ratios, reward, known = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    ratios[episode, step], reward[episode, step] = log_ratio[order], transitions.reward[order]
    known[episode, step] = True
    ended = np.zeros(n)
    if transitions.terminal is not None and transitions.terminal.any():
        if gamma == 1.0 and horizon is None:
            raise ValueError(
                "importance sampling at gamma=1 averages over the logged steps, and here episodes end in "
                "terminal states; pass horizon=, take gamma < 1, or solve(...), which restarts them"
            )
        ended[episode[transitions.terminal[order]]] = 1.0
        known[ended > 0] = True
    return np.where(known, np.cumsum(ratios, axis=1), -np.inf), reward, ended
