"""Importance sampling against a behaviour that a network clones from the log."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.baselines.estimate import Estimate
from lingendice.baselines.paths import effective_size
from lingendice.checks import Floats, require_choice, require_gamma
from lingendice.neural.network import Network
from lingendice.neural.regression import Regression
from lingendice.neural.samples import prepare
from lingendice.policies import ContinuousPolicy, DiscretePolicy, GaussianPolicy, normal_log_density
from lingendice.transitions import Transitions

SMALLEST_STD = 1e-3


def clone_log_density(
    transitions: Transitions,
    *,
    steps: int = 3000,
    batch: int = 2048,
    learning_rate: float = 1e-3,
    hidden: tuple[int, ...] = (64, 64),
    low: Any = None,
    high: Any = None,
    seed: int = 0,
) -> Floats:
    """Log density of every logged action under the cloned behaviour.

    Discrete actions: a softmax over the outputs of networks, by cross entropy. Continuous ones: a Gaussian
    whose means and log standard deviations are networks of the state, by likelihood; ``low`` and ``high`` are
    the bounds that actions were clipped to.
    """
    inputs = prepare(_without_actions(transitions), None, 1.0).logged
    network = Network(inputs.shape[1], hidden)
    action = transitions.action
    if action is None:
        raise ValueError("importance sampling needs actions; pass action= to Transitions")
    if transitions.n_actions is not None:
        return _clone_softmax(
            network, inputs, action, transitions.n_actions, steps, batch, learning_rate, seed
        )
    centre, scale = action.mean(axis=0), np.maximum(action.std(axis=0), SMALLEST_STD)
    standard = (action - centre) / scale
    k = standard.shape[1]
    clone = Regression(network, 2 * k, seed)

    def slope(out: Floats, rows: NDArray[np.int64]) -> Floats:
        z = (standard[rows] - out[:, :k]) * np.exp(-out[:, k:])
        return np.hstack([-z * np.exp(-out[:, k:]), 1.0 - z * z])

    clone.fit(inputs, slope, steps, batch, learning_rate, seed)
    out = clone(inputs)
    bounds = [np.full(k, end) if given is None else np.broadcast_to(np.asarray(given, float), (k,))
              for given, end in ((low, -np.inf), (high, np.inf))]  # fmt: skip
    std = np.maximum(np.exp(out[:, k:]) * scale, SMALLEST_STD)
    return normal_log_density(action, centre + out[:, :k] * scale, std, bounds[0], bounds[1])


def _clone_softmax(
    network: Network,
    inputs: Any,
    action: NDArray[Any],
    n_actions: int,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> Floats:
    clone = Regression(network, n_actions, seed)
    taken = np.eye(n_actions)[action]

    def chances(out: Floats) -> Floats:
        grown = np.exp(out - out.max(axis=1, keepdims=True))
        return grown / grown.sum(axis=1, keepdims=True)

    clone.fit(inputs, lambda out, rows: chances(out) - taken[rows], steps, batch, rate, seed)
    return np.log(chances(clone(inputs))[np.arange(len(action)), action])


def _without_actions(transitions: Transitions) -> Transitions:
    return Transitions(transitions.state, next_state=transitions.next_state, n_states=transitions.n_states)


def _target_log_density(transitions: Transitions, policy: Any) -> Floats:
    target = transitions.read_policy(policy)
    if isinstance(target, DiscretePolicy):
        with np.errstate(divide="ignore"):
            return np.log(
                target.probabilities(transitions.state)[np.arange(len(transitions)), transitions.action]
            )
    if not isinstance(target, ContinuousPolicy) or transitions.action is None:
        raise ValueError("importance sampling needs actions and a policy")
    return target.log_density(transitions.state, transitions.action)


def neural_importance_sampling(
    transitions: Transitions,
    gamma: float = 1.0,
    *,
    policy: Any,
    weighting: str = "step",
    behaviour_log_density: Any = None,
    clone_options: dict[str, Any] | None = None,
    seed: int = 0,
) -> Estimate:
    """Weigh rewards by target / behaviour along each episode, the behaviour cloned where it is not given.

    ``weighting="step"``: each reward by the product of ratios up to its step, normalised over the episodes
    that reach the step; ``"trajectory"``: each whole episode by the product over all its steps. An episode
    that ended goes on with its last weight and reward 0. The value is sum gamma^t mean_t / sum gamma^t over
    the logged horizon: at gamma = 1 the average over it, refused where episodes end in terminal states. Takes
    O(episodes x longest episode) memory; products are kept as logarithms. The standard error treats episodes
    as independent and the weights as known: it is short where few episodes carry most of the weight.
    """
    gamma = require_gamma(gamma)
    require_choice("weighting", weighting, ("step", "trajectory"))
    if transitions.episode is None or transitions.reward is None:
        raise ValueError("importance sampling needs whole episodes and rewards; pass episode= and reward=")
    note = "behaviour as given"
    if behaviour_log_density is None:
        note = "behaviour cloned by a network"
        bounds: dict[str, Any] = {}
        target = transitions.read_policy(policy)
        if isinstance(target, GaussianPolicy):
            bounds = {"low": target.low, "high": target.high}
        behaviour_log_density = clone_log_density(
            transitions, seed=seed, **{**bounds, **(clone_options or {})}
        )
    log_ratio = _target_log_density(transitions, policy) - np.asarray(behaviour_log_density, dtype=np.float64)
    log_weight, reward = _by_step(transitions, log_ratio, gamma)
    share = gamma ** np.arange(reward.shape[1])
    reached = np.isfinite(log_weight)
    last = log_weight[np.arange(len(reached)), reached.shape[1] - 1 - np.argmax(reached[:, ::-1], axis=1)]
    final = np.exp(last - last.max())
    if weighting == "trajectory":
        weight = np.where(reached, final[:, None], 0.0)
        value = float((weight * reward).sum(axis=0) @ share / (weight.sum(axis=0) @ share))
        influence = (weight * (reward - value)) @ share / (weight.sum(axis=0) @ share)
    else:
        weight = np.exp(log_weight - log_weight.max(axis=0))
        weight /= weight.sum(axis=0)
        mean = (weight * reward).sum(axis=0)
        value = float(share @ mean / share.sum())
        influence = (weight * (reward - mean)) @ share / share.sum()
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


def _by_step(transitions: Transitions, log_ratio: Floats, gamma: float) -> tuple[Floats, Floats]:
    """(log of the running product, reward), episodes by steps; -inf and 0 where an episode was cut off."""
    assert transitions.episode is not None
    assert transitions.reward is not None
    order = np.argsort(transitions.episode, kind="stable")
    episode = transitions.episode[order]
    n = int(episode.max()) + 1
    step = np.arange(episode.size) - np.searchsorted(episode, np.arange(n))[episode]
    shape = (n, int(step.max()) + 1)
    ratios, reward, known = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    ratios[episode, step], reward[episode, step] = log_ratio[order], transitions.reward[order]
    known[episode, step] = True
    if transitions.terminal is not None and transitions.terminal.any():
        if gamma == 1.0:
            raise ValueError(
                "importance sampling at gamma=1 averages over the logged horizon, and here episodes end in "
                "terminal states; take gamma < 1, or solve(...), which restarts them"
            )
        known[episode[transitions.terminal[order]]] = True
    return np.where(known, np.cumsum(ratios, axis=1), -np.inf), reward
