"""Reacher and HalfCheetah by Gymnasium and MuJoCo, as endless chains (``pip install 'lingendice[control]'``).

Reacher (``Reacher-v5``: 10 observations; v4 had an eleventh, which is always zero): Gymnasium stops an
episode after 50 steps, at whatever place. Here, after every step, the arm and the goal are drawn afresh
with probability 0.03, and ``next_state`` is then that fresh start: the chain is ergodic and its distribution
does not depend on a hidden clock.

HalfCheetah (``HalfCheetah-v5``, 17 observations) is restarted with probability 0.001, in place of Gymnasium's
limit of 1,000 steps: a runner that fell on its back may stay there, and without restarts the rarest of falls
would decide the average reward.

Actions are clipped to [-1, 1] by the policy itself, so that what is logged is what was done and what its
density speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.policies import ContinuousPolicy, GaussianPolicy
from lingendice.environments.logs import ControlLog, check_sizes

ENVIRONMENT_IDS = {"reacher": "Reacher-v5", "halfcheetah": "HalfCheetah-v5"}
RESTART = {"reacher": 0.03, "halfcheetah": 0.001}
"""Chance of a fresh start after a step."""


def make(name: str) -> Any:
    """The Gymnasium environment behind a name, without its step limit."""
    try:
        import gymnasium
        import mujoco
    except ImportError as problem:
        raise ImportError(
            f"{name} needs Gymnasium and MuJoCo: pip install 'lingendice[control]'"
        ) from problem
    # MuJoCo prints what it thinks of Gymnasium's model files; users can do nothing about it.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return gymnasium.make(ENVIRONMENT_IDS[name]).unwrapped
    finally:
        mujoco.set_mju_user_warning(None)


def simulate(
    name: str, policies: Sequence[ContinuousPolicy], n_steps: int, *, seed: int = 0, first: int = 0
) -> ControlLog:
    """Log one trajectory of ``n_steps`` steps a policy in the list.

    Trajectory i has the random stream ``(seed, first + i)``, so the log does not depend on how many
    trajectories or steps follow. Costs about 0.1 ms per step.
    """
    check_sizes(len(policies), n_steps, seed)
    environment = make(name)
    size = environment.observation_space.shape[0]
    n, n_coordinates = len(policies), environment.action_space.shape[0]
    state, following = np.empty((n, n_steps, size)), np.empty((n, n_steps, size))
    action, reward = np.empty((n, n_steps, n_coordinates)), np.empty((n, n_steps))
    try:
        for i, policy in enumerate(policies):
            if not isinstance(policy, ContinuousPolicy):
                raise ValueError(f"policy {i} is a {type(policy).__name__}; {name} needs a ContinuousPolicy")
            rng = np.random.default_rng([seed, first + i])
            _walk(environment, policy, RESTART[name], rng, state[i], action[i], reward[i], following[i])
    finally:
        environment.close()
    return ControlLog.from_trajectories(state, action, reward, following)


def _walk(
    environment: Any,
    policy: ContinuousPolicy,
    restart: float,
    rng: np.random.Generator,
    state: Floats,
    action: Floats,
    reward: Floats,
    following: Floats,
) -> None:
    """Fill the arrays of one trajectory."""
    environment.np_random = rng
    act = _actor(policy, action.shape[1], rng)
    now, _ = environment.reset()
    for t in range(len(reward)):
        state[t] = now
        action[t] = act(state[t : t + 1])
        now, reward[t], _, _, _ = environment.step(action[t])
        if rng.random() < restart:
            now, _ = environment.reset()
        following[t] = now


def _actor(
    policy: ContinuousPolicy, n_coordinates: int, rng: np.random.Generator
) -> Callable[[Floats], Floats]:
    """``policy.sample`` for one state at a time, with the checks of a normal policy made once."""
    if not isinstance(policy, GaussianPolicy):
        return lambda state: policy.sample(state, rng)[0]
    mean, (deviation, low, high) = policy.mean, policy.scales(n_coordinates)

    def act(state: Floats) -> Floats:
        shock = rng.standard_normal((1, n_coordinates))[0]
        return np.minimum(np.maximum(np.asarray(mean(state))[0] + deviation * shock, low), high)

    return act
