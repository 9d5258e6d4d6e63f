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
[-1, 1] and have an atom at each bound, which their densities know. What follows a fall or a restart is told
in :mod:`lingendice.environments.simulators`: all three are
endless chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.policies import GaussianPolicy, Policy
from lingendice.environments.simulators import CartpolePolicy, ControlLog, simulate_cartpole, simulate_mujoco

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
    >>> from lingendice.environments import control
    >>> target = control.policy("cartpole")
    >>> target.share, target.probabilities(np.zeros((2, 4))).shape
    (0.7, (2, 2))
    """
    _require_name(name)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
    if stage not in ("trained", "early") or (stage == "early" and name == "cartpole"):
        raise ValueError(f'stage must be "trained", or "early" for Reacher and HalfCheetah, got {stage!r}')
    if name == "cartpole":
        stored = trained_arrays(name)
        low, high = _SHARE
        share = high if alpha == 1 else low + alpha * (high - low)
        return CartpolePolicy(stored["weights"], float(stored["bias"]), share)
    far, near = _DEVIATION[name]
    deviation = near if alpha == 1 else far + alpha * (near - far)
    return GaussianPolicy(squashed_mean(name, stage), deviation, low=-1.0, high=1.0)


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
    >>> from lingendice.environments import control
    >>> behaviors = [control.policy("cartpole", alpha) for alpha in (0.0, 0.33)]
    >>> log = control.collect("cartpole", behaviors, n_trajectories=4, n_steps=50, seed=1)
    >>> log.state.shape, log.initial_state.shape
    ((200, 4), (4, 4))
    """
    _require_name(name)
    choice = list(policies) if isinstance(policies, Sequence) else [policies]
    if not choice:
        raise ValueError("policies is empty; give at least one behavior policy")
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
    for gamma in gammas:
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma!r}")
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


# -- the trained policies that the package carries, and the mean action they define --------------------------


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
    """What is stored about one environment's policies."""
    path = files("lingendice.environments").joinpath("trained_policies").joinpath(f"{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def squashed_mean(name: str, stage: str) -> SquashedMean:
    """Mean action of the trained policy, or of an ``early`` one from the same run."""
    stored = trained_arrays(name)
    prefix = "early_" if stage == "early" else ""
    return SquashedMean(stored[f"{prefix}weights"], stored[f"{prefix}center"])
