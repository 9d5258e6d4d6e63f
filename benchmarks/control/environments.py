"""Cartpole, Reacher and HalfCheetah for off-policy evaluation: policies, logs and true values.

The protocol is that of the GenDICE paper, Appendix D, with policies of our own. For alpha from 0 to 1:

=============  ==================================================  ==============
environment    behavior at alpha                                  target
=============  ==================================================  ==============
``cartpole``   0.55 + 0.15 alpha trained, the rest uniform         0.7 trained
``reacher``    normal around the trained mean, sd 0.4 - 0.3 alpha  sd 0.1
``halfcheetah`` normal around the trained mean, sd 0.2 - 0.1 alpha sd 0.1
=============  ==================================================  ==============

So alpha = 1 is the target itself, and alpha = 0 the behavior farthest from it. Normal actions are clipped to
[-1, 1] by the policy itself and have an atom at each bound, which their densities know. All three are endless
chains:

Cartpole: the dynamics are Gymnasium's ``CartPole-v1`` (Euler steps of 0.02 s), compiled. There an episode
ends when the cart is beyond 2.4 or the pole beyond 12 degrees. Here such a step pays -1 and ``next_state`` is
a new draw of the initial distribution (every coordinate uniform on [-0.05, 0.05)), any other step pays +1:
the chain is ergodic and never ends. Without the restart the average reward at gamma = 1 would drift to -1
under every policy. Reward is a function of (state, action) alone.

Reacher (``Reacher-v5``: 10 observations; v4 had an eleventh, which is always zero): Gymnasium stops an
episode after 50 steps, at whatever place. Here, after every step, the arm and the goal are drawn afresh
with probability 0.03, and ``next_state`` is then that fresh start: the chain is ergodic and its distribution
does not depend on a hidden clock.

HalfCheetah (``HalfCheetah-v5``, 17 observations) is restarted with probability 0.001, in place of Gymnasium's
limit of 1,000 steps: a runner that fell on its back may stay there, and without restarts the rarest of falls
would decide the average reward. Both need ``pip install 'gymnasium[mujoco]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from control import cartpole
from lingendice.data.checks import Floats, require_gamma, require_whole
from lingendice.data.policies import ContinuousPolicy, DiscretePolicy, GaussianPolicy, Policy
from lingendice.environments.taxi import draw_streams, walk_all

TRAINED_POLICIES = Path(__file__).parent / "trained_policies"
ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
_DEVIATION = {"reacher": (0.4, 0.1), "halfcheetah": (0.2, 0.1)}
_SHARE = (0.55, 0.7)


class OnPolicyValue(NamedTuple):
    """A value by simulation of the policy itself, with its standard error over trajectories."""

    value: float
    standard_error: float
    n_trajectories: int
    n_steps: int


def policy(name: str, alpha: float = 1.0, *, stage: str = "trained") -> CartpolePolicy | GaussianPolicy:
    """The target (alpha = 1, the default) or a behavior policy of an environment.

    Parameters
    ----------
    name : {"cartpole", "reacher", "halfcheetah"}
    alpha : float
        From 0 (far from the target) to 1 (the target).
    stage : {"trained", "early"}
        "early" takes the mean of a less-trained policy of the same run (Reacher and HalfCheetah only).

    Examples
    --------
    >>> import numpy as np
    >>> from control import environments as control
    >>> target = control.policy("cartpole")
    >>> target.share, target.probabilities(np.zeros((2, 4))).shape
    (0.7, (2, 2))
    """
    _require_name(name)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
    if stage not in ("trained", "early") or (stage == "early" and name == "cartpole"):
        raise ValueError(f'stage must be "trained", or "early" for Reacher and HalfCheetah, got {stage!r}')
    stored, prefix = trained_arrays(name), "early_" if stage == "early" else ""
    if name == "cartpole":
        low, high = _SHARE
        share = high if alpha == 1 else low + alpha * (high - low)
        return CartpolePolicy(stored["weights"], float(stored["bias"]), share)
    far, near = _DEVIATION[name]
    deviation = near if alpha == 1 else far + alpha * (near - far)
    mean = SquashedMean(stored[f"{prefix}weights"], stored[f"{prefix}center"])
    return GaussianPolicy(mean, deviation, low=-1.0, high=1.0)


def collect(
    name: str,
    policies: Policy | Sequence[Policy],
    n_trajectories: int,
    n_steps: int,
    *,
    seed: int = 0,
    first: int = 0,
) -> ControlLog:
    """Log trajectories of one behavior policy, or of several in turn.

    Trajectory i follows ``policies[i % len(policies)]``: each of the policies gets the same number of
    trajectories, give or take one. Nothing in the log tells which policy acted. The log depends on the seed
    alone, and its first trajectories and steps not on how many follow.

    Parameters
    ----------
    name : {"cartpole", "reacher", "halfcheetah"}
    policies : policy or sequence of policies
        From :func:`policy`, or for Reacher and HalfCheetah any continuous policy.
    n_trajectories, n_steps : int
        Each trajectory begins with a draw of the initial distribution; ``n_trajectories * n_steps`` rows are
        returned.
    seed, first : int
        Trajectory i draws from random stream ``first + i`` of the seed: logs with the same seed whose
        ranges of streams do not meet are independent.

    Returns
    -------
    ControlLog
        The fields of :class:`lingendice.Transitions`: ``lg.Transitions(**log._asdict())``.

    Examples
    --------
    >>> from control import environments as control
    >>> behaviors = [control.policy("cartpole", alpha) for alpha in (0.0, 0.33)]
    >>> log = control.collect("cartpole", behaviors, n_trajectories=4, n_steps=50, seed=1)
    >>> log.state.shape, log.initial_state.shape
    ((200, 4), (4, 4))
    """
    _require_name(name)
    choice = list(policies) if isinstance(policies, Sequence) else [policies]
    if not choice:
        raise ValueError("policies is empty; give at least one behavior policy")
    n_trajectories = require_whole("n_trajectories", n_trajectories)
    turns = [choice[i % len(choice)] for i in range(n_trajectories)]
    if name == "cartpole":
        return simulate_cartpole(turns, n_steps, seed=seed, first=first)  # type: ignore[arg-type]
    return simulate_mujoco(name, turns, n_steps, seed=seed, first=first)  # type: ignore[arg-type]


def on_policy_value(
    name: str,
    policy: Policy,
    gammas: Sequence[float],
    n_trajectories: int,
    n_steps: int,
    *,
    warm_up: int = 0,
    seed: int = 0,
    block: int = 50,
) -> list[OnPolicyValue]:
    """Reward per step of a policy by simulating it, for several discounts from the same trajectories.

    For gamma = 1 the mean reward after ``warm_up`` steps; for gamma < 1, ``sum_t gamma^t r_t / sum_t
    gamma^t`` over all steps. What is beyond them has weight ``gamma ** n_steps``: a gamma for which that is
    above 1e-4 is refused. Standard errors are over trajectories, which are independent. ``block``
    trajectories are in memory at a time.
    """
    n_trajectories = require_whole("n_trajectories", n_trajectories, at_least=1)
    n_steps, block = require_whole("n_steps", n_steps, at_least=1), require_whole("block", block, at_least=1)
    gammas = [require_gamma(gamma) for gamma in gammas]
    for gamma in gammas:
        if gamma < 1 and gamma**n_steps > 1e-4:
            needed = int(np.ceil(np.log(1e-4) / np.log(gamma)))
            raise ValueError(f"{n_steps} steps are too few for gamma = {gamma:g}; give at least {needed}")
    if not 0 <= warm_up < n_steps:
        raise ValueError(f"warm_up must lie between 0 and n_steps - 1, got {warm_up!r}")
    each = []
    for first in range(0, n_trajectories, block):
        count = min(block, n_trajectories - first)
        reward = collect(name, policy, count, n_steps, seed=seed, first=first).reward.reshape(count, n_steps)
        values = [
            reward[:, warm_up:].mean(axis=1)
            if gamma == 1
            else (1 - gamma) / (1 - gamma**n_steps) * reward @ gamma ** np.arange(n_steps)
            for gamma in gammas
        ]
        each.append(np.array(values))
    found = np.concatenate(each, axis=1)
    errors = (
        found.std(axis=1, ddof=1) / np.sqrt(n_trajectories)
        if n_trajectories > 1
        else np.full(len(found), np.nan)
    )
    return [
        OnPolicyValue(float(value), float(error), n_trajectories, n_steps)
        for value, error in zip(found.mean(axis=1), errors, strict=True)
    ]


def _require_name(name: str) -> None:
    if name not in ENVIRONMENTS:
        raise ValueError(f"there is no environment {name!r}; the environments are {', '.join(ENVIRONMENTS)}")


# -- trained policies, and the mean action they define ------------------------------------------------------


UPPER_ARM = 0.1
"""Length of Reacher's first link."""


@dataclass(frozen=True, eq=False)
class SquashedMean:
    """Mean action tanh(W (phi(s) - c)); phi(s) is s itself or, for Reacher, ``with_lever_arms(s)``."""

    weights: Floats
    center: Floats

    def __call__(self, states: Floats) -> Floats:
        features = np.asarray(states, dtype=np.float64)
        if features.shape[1] != self.center.size:
            features = with_lever_arms(features)
        return np.tanh((features - self.center) @ self.weights.T)


def with_lever_arms(states: Floats) -> Floats:
    """Reacher's observation, and how the way to the goal lies to the lever arms of both joints.

    With e the way from the fingertip to the goal and l the arm from a joint to the fingertip: the cross
    product l x e is the torque about that joint of a spring along e, and l . e tells how far the arm must
    fold. Without these a linear policy cannot reach in all directions.
    """
    cosine, sine, goal, way = states[:, 0], states[:, 2], states[:, 4:6], -states[:, 8:10]
    tip = goal - way
    elbow = UPPER_ARM * np.stack([cosine, sine], axis=1)
    arms = [tip, tip - elbow]
    turns = [arm[:, 0] * way[:, 1] - arm[:, 1] * way[:, 0] for arm in arms]
    folds = [(arm * way).sum(axis=1) for arm in arms]
    return np.concatenate([states, np.stack([*turns, *folds], axis=1)], axis=1)


@cache
def trained_arrays(name: str) -> dict[str, NDArray[Any]]:
    """The stored weights of one environment's policies."""
    with np.load(TRAINED_POLICIES / f"{name}.npz", allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


# -- logs --------------------------------------------------------------------------------------------------


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


# -- Cartpole ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CartpolePolicy(DiscretePolicy):
    """P(right | s) = share sigma(weights . s + bias) + (1 - share) / 2: the rest of the share is uniform."""

    weights: Floats
    bias: float
    share: float

    def __post_init__(self) -> None:
        if np.shape(self.weights) != (4,):
            raise ValueError(f"weights must have shape (4,), got {np.shape(self.weights)}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share!r}")

    def probabilities(self, states: NDArray[np.float64]) -> Floats:
        """Probabilities of pushing left and right, one row per state."""
        score = np.asarray(states) @ self.weights + self.bias
        right = self.share * 0.5 * (1.0 + np.tanh(0.5 * score)) + 0.5 * (1.0 - self.share)
        return np.stack([1.0 - right, right], axis=1)


def simulate_cartpole(
    policies: Sequence[CartpolePolicy],
    n_steps: int,
    *,
    seed: int = 0,
    first: int = 0,
    threads: int | None = None,
) -> ControlLog:
    """Log one trajectory of ``n_steps`` steps a policy in the list; all share one logistic part.

    Trajectory i draws from stream ``first + i`` of the seed, so the log depends neither on threads nor on
    how many trajectories or steps follow.

    Examples
    --------
    >>> import numpy as np
    >>> from control.environments import CartpolePolicy, simulate_cartpole
    >>> log = simulate_cartpole([CartpolePolicy(np.zeros(4), 0.0, 1.0)] * 2, n_steps=3, seed=1)
    >>> log.reward.tolist(), log.episode.tolist()
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1])
    """
    n = require_whole("n_trajectories", len(policies), at_least=1)
    n_steps = require_whole("n_steps", n_steps, at_least=1)
    for place, policy in enumerate(policies):
        if not isinstance(policy, CartpolePolicy):
            raise ValueError(
                f"policy {place} is a {type(policy).__name__}; Cartpole needs CartpolePolicy objects"
            )
        if policy.bias != policies[0].bias or not np.array_equal(policy.weights, policies[0].weights):
            raise ValueError(
                f"policy {place} has other weights than policy 0; simulate them in separate calls"
            )
    shares = np.array([policy.share for policy in policies])
    weights = np.ascontiguousarray(policies[0].weights, dtype=np.float64)
    bias = float(policies[0].bias)
    streams = draw_streams(seed, n, first)
    states = np.empty((n, 4))
    for stream, state in zip(streams, states, strict=True):
        cartpole.cartpole_initial(stream, state)
    log_state, log_next = np.empty((n, n_steps, 4)), np.empty((n, n_steps, 4))
    log_action, log_reward = np.empty((n, n_steps), dtype=np.int64), np.empty((n, n_steps))

    def walk(part: tuple[slice, slice]) -> None:
        some = part[0]
        cartpole.simulate_cartpole(
            weights, bias, shares[some], streams[some], states[some],
            log_state[part], log_action[part], log_reward[part], log_next[part],
        )  # fmt: skip

    walk_all(walk, (n, n_steps), threads)
    return ControlLog.from_trajectories(log_state, log_action, log_reward, log_next)


# -- Reacher and HalfCheetah ---------------------------------------------------------------------------------


ENVIRONMENT_IDS = {"reacher": "Reacher-v5", "halfcheetah": "HalfCheetah-v5"}
RESTART = {"reacher": 0.03, "halfcheetah": 0.001}
"""Chance of a fresh start after a step."""


def make_mujoco(name: str) -> Any:
    """The Gymnasium environment behind a name, without its step limit."""
    try:
        import gymnasium
        import mujoco
    except ImportError as problem:
        raise ImportError(f"{name} needs Gymnasium and MuJoCo: pip install 'gymnasium[mujoco]'") from problem
    # MuJoCo prints what it thinks of Gymnasium's model files; users can do nothing about it.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return gymnasium.make(ENVIRONMENT_IDS[name]).unwrapped
    finally:
        mujoco.set_mju_user_warning(None)


def simulate_mujoco(
    name: str, policies: Sequence[ContinuousPolicy], n_steps: int, *, seed: int = 0, first: int = 0
) -> ControlLog:
    """Log one trajectory of ``n_steps`` steps a policy in the list.

    Trajectory i has the random stream ``(seed, first + i)``, so the log does not depend on how many
    trajectories or steps follow. Costs about 0.1 ms per step.
    """
    n = require_whole("n_trajectories", len(policies), at_least=1)
    n_steps, seed = require_whole("n_steps", n_steps, at_least=1), require_whole("seed", seed)
    environment = make_mujoco(name)
    size, n_coordinates = environment.observation_space.shape[0], environment.action_space.shape[0]
    state, following = np.empty((n, n_steps, size)), np.empty((n, n_steps, size))
    action, reward = np.empty((n, n_steps, n_coordinates)), np.empty((n, n_steps))
    try:
        for i, policy in enumerate(policies):
            if not isinstance(policy, ContinuousPolicy):
                raise ValueError(f"policy {i} is a {type(policy).__name__}; {name} needs a ContinuousPolicy")
            rng = environment.np_random = np.random.default_rng([seed, first + i])
            act = _actor(policy, n_coordinates, rng)
            now, _ = environment.reset()
            for t in range(n_steps):
                state[i, t] = now
                action[i, t] = act(state[i, t : t + 1])
                now, reward[i, t], _, _, _ = environment.step(action[i, t])
                if rng.random() < RESTART[name]:
                    now, _ = environment.reset()
                following[i, t] = now
    finally:
        environment.close()
    return ControlLog.from_trajectories(state, action, reward, following)


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
