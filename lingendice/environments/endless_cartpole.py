"""Cartpole made endless: a fall pays -1 and the next state is a fresh start; any other step pays +1.

The dynamics are Gymnasium's ``CartPole-v1`` (Euler steps of 0.02 s), compiled. There an episode ends when
the cart is beyond 2.4 or the pole beyond 12 degrees. Here such a step pays -1 and ``next_state`` is a new
draw of the initial distribution (every coordinate uniform on [-0.05, 0.05)), so that the chain is ergodic and
never
ends. Without the restart the average reward at gamma = 1 would drift to -1 under every policy. Reward is a
function of (state, action) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats
from lingendice.data.policies import DiscretePolicy
from lingendice.environments.logs import ControlLog, check_sizes
from lingendice.kernels import random_numbers, simulators
from lingendice.kernels.parallel import resolve_threads, run_all

# Well below a fifth of a second a call, so that Ctrl-C is prompt.
_STEPS_A_CALL = 500_000


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


def simulate(
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
    >>> from lingendice.environments.endless_cartpole import CartpolePolicy, simulate
    >>> log = simulate([CartpolePolicy(np.zeros(4), 0.0, 1.0)] * 2, n_steps=3, seed=1)
    >>> log.reward.tolist(), log.episode.tolist()
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1])
    """
    n = len(policies)
    check_sizes(n, n_steps, seed)
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
    streams = np.empty((n, 4), dtype=np.uint64)
    random_numbers.fill_streams(seed, first, streams)
    states = np.empty((n, 4))
    for stream, state in zip(streams, states, strict=True):
        simulators.cartpole_initial(stream, state)
    log_state, log_next = np.empty((n, n_steps, 4)), np.empty((n, n_steps, 4))
    log_action, log_reward = np.empty((n, n_steps), dtype=np.int64), np.empty((n, n_steps))

    steps_a_call = min(n_steps, _STEPS_A_CALL)
    trajectories_a_call = max(1, _STEPS_A_CALL // steps_a_call)

    def walk(begin: int) -> None:
        some = slice(begin, min(begin + trajectories_a_call, n))
        for start in range(0, n_steps, steps_a_call):
            part = (some, slice(start, min(start + steps_a_call, n_steps)))
            simulators.simulate_cartpole(
                weights, bias, shares[some], streams[some], states[some],
                log_state[part], log_action[part], log_reward[part], log_next[part],
            )  # fmt: skip

    tasks = [lambda begin=begin: walk(begin) for begin in range(0, n, trajectories_a_call)]
    run_all(tasks, resolve_threads(threads))
    return ControlLog.from_trajectories(log_state, log_action, log_reward, log_next)
