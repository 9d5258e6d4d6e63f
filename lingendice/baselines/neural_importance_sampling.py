"""Importance sampling against a behavior that a network clones from the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.baselines.importance_sampling import require_horizon, tail_weight
from lingendice.baselines.paths import effective_size
from lingendice.continuous.clone import clone_log_ratio, target_log_density
from lingendice.data.checks import Floats, numeric_array, require_choice, require_gamma, require_length
from lingendice.data.transitions import Transitions
from lingendice.results.baseline_solution import Estimate


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
    effective = effective_size(final)
    n = len(influence)
    return Estimate(
        value,
        gamma,
        f"{weighting}-wise weighted importance sampling",
        note,
        standard_error=float(np.sqrt(n / (n - 1) * influence @ influence)) if n > 1 else None,
        degrees=n - 1,
        effective_sample_size=effective,
    )


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
