"""The behavior behind a log, cloned by networks, and the target's density beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingendice.continuous.regression import Fitting, fit
from lingendice.continuous.samples import prepare
from lingendice.data.checks import Floats
from lingendice.data.policies import ContinuousPolicy, DiscretePolicy, GaussianPolicy, normal_log_density
from lingendice.data.transitions import Transitions

SMALLEST_STD = 1e-3
WEIGHT_DECAY = 1e-4


def clone_log_density(
    transitions: Transitions,
    *,
    steps: int = 1000,
    batch: int = 512,
    learning_rate: float = 1e-3,
    hidden: tuple[int, ...] = (64, 64),
    low: Any = None,
    high: Any = None,
    seed: int = 0,
) -> Floats:
    """Log density of every logged action under the cloned behavior.

    Discrete actions: a softmax over the outputs of networks, by cross entropy. Continuous ones: a Gaussian
    whose means and log standard deviations are networks of the state, by likelihood; ``low`` and ``high`` are
    the bounds that actions were clipped to.
    """
    inputs = prepare(_without_actions(transitions), None, 1.0).logged
    fitting = Fitting(steps, batch, learning_rate, WEIGHT_DECAY, tuple(hidden))
    action = transitions.action
    if action is None:
        raise ValueError("cloning a behavior needs actions; pass action= to Transitions")
    if transitions.n_actions is not None:
        n = transitions.n_actions
        out = fit(inputs, np.eye(n)[action], fitting, seed, "softmax", n)(inputs).astype(np.float64)
        logs = out - out.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return logs[np.arange(len(action)), action]
    center, scale = action.mean(axis=0), np.maximum(action.std(axis=0), SMALLEST_STD)
    k = action.shape[1]
    out = fit(inputs, (action - center) / scale, fitting, seed, "gaussian", 2 * k)(inputs).astype(np.float64)
    bounds = [np.full(k, end) if given is None else np.broadcast_to(np.asarray(given, float), (k,))
              for given, end in ((low, -np.inf), (high, np.inf))]  # fmt: skip
    std = np.maximum(np.exp(out[:, k:]) * scale, SMALLEST_STD)
    return normal_log_density(action, center + out[:, :k] * scale, std, bounds[0], bounds[1])


def _without_actions(transitions: Transitions) -> Transitions:
    return Transitions(transitions.state, next_state=transitions.next_state, n_states=transitions.n_states)


def target_log_density(transitions: Transitions, policy: Any) -> Floats:
    target = transitions.read_policy(policy)
    if isinstance(target, DiscretePolicy):
        with np.errstate(divide="ignore"):
            return np.log(
                target.probabilities(transitions.state)[np.arange(len(transitions)), transitions.action]
            )
    if not isinstance(target, ContinuousPolicy) or transitions.action is None:
        raise ValueError("a ratio of policies needs actions and a policy")
    return target.log_density(transitions.state, transitions.action)


def clone_log_ratio(transitions: Transitions, policy: Any, **clone_options: Any) -> Floats:
    """log(target / clone) of every logged action; the clone has the bounds of a Gaussian target."""
    target = transitions.read_policy(policy)
    bounds = {"low": target.low, "high": target.high} if isinstance(target, GaussianPolicy) else {}
    return target_log_density(transitions, policy) - clone_log_density(
        transitions, **{**bounds, **clone_options}
    )
