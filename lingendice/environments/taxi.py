"""Taxi: a 5 x 5 town with 2,000 states, 6 actions and every exact answer at hand.

Rules. Passengers wait at the corners (0,0), (0,4), (4,0), (4,4). A state is
``taxi + 5 * (waiting + 16 * (5 * x + y))``, where ``waiting`` is a bit mask over corners and
``taxi`` is the destination corner of the passenger carried, or 4 when empty. Actions 0 to 3
move x+1, y+1, x-1, y-1, stopped by the walls. Action 4 picks up: at a corner where someone
waits, that passenger boards (replacing whoever was carried) and names one of the other three
corners, each as likely. Action 5 drops off: +20 at the destination, and the taxi is empty
wherever it is done. Every other step costs 1. After the action, independently at each
corner, a passenger appears where none waits (with probability .3, .05, .1, .2) or leaves where one waits
(.05, .1, .1, .05). An episode starts at a uniform place with uniform passengers and an
empty taxi, and never ends by itself.

The environment is that of Liu, Li, Tang and Zhou, "Breaking the Curse of Horizon" (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from lingendice.data.checks import require_gamma, require_positive, require_whole
from lingendice.data.counts import Counts
from lingendice.kernels import random_numbers, simulators
from lingendice.kernels.parallel import resolve_threads, run_all

N_STATES = 2000
N_ACTIONS = 6
CORNERS = ((0, 0), (0, 4), (4, 0), (4, 4))
APPEAR = (0.3, 0.05, 0.1, 0.2)
LEAVE = (0.05, 0.1, 0.1, 0.05)
EMPTY = simulators.EMPTY

# Well below a fifth of a second a call, so that Ctrl-C is prompt.
_STEPS_A_CALL = 500_000


class TaxiLog(NamedTuple):
    """Logged transitions, one entry per step, episodes one after the other."""

    state: NDArray[np.int32]
    action: NDArray[np.int32]
    reward: NDArray[np.float64]
    next_state: NDArray[np.int32]
    episode: NDArray[np.int32]

    def counts(self, *, keep_episodes: bool | None = None, threads: int | None = None) -> Counts:
        """The log as counts over all states and actions of the taxi."""
        return Counts.from_transitions(
            self.state, self.next_state, self.action, self.reward, self.episode,
            n_states=N_STATES, n_actions=N_ACTIONS, keep_episodes=keep_episodes, threads=threads,
        )  # fmt: skip


class TrainedPolicies(NamedTuple):
    """Two policies of one training run, each of shape (2000, 6)."""

    target: NDArray[np.float64]
    base: NDArray[np.float64]


def initial_distribution() -> NDArray[np.float64]:
    """Initial distribution: 1/400 on every state with an empty taxi."""
    distribution = np.zeros(N_STATES)
    distribution[EMPTY::5] = 1 / 400
    return distribution


def _passenger_matrix() -> NDArray[np.float64]:
    """Chance of each mask of waiting passengers after one of coming and going (16 x 16)."""
    mask = np.arange(16)
    matrix = np.ones((16, 16))
    for corner in range(4):
        waits, appear, leave = (mask >> corner) & 1, APPEAR[corner], LEAVE[corner]
        one_corner = np.array([[1 - appear, appear], [leave, 1 - leave]])
        matrix *= one_corner[waits[:, None], waits[None, :]]
    return matrix


def _action_outcomes(state: int, action: int) -> tuple[list[tuple[float, int, int, int]], float]:
    """What an action does before passengers come and go: (probability, place, waiting, taxi), and reward."""
    taxi, waiting, place = state % 5, (state // 5) % 16, state // 80
    x, y = divmod(place, 5)
    if action < 4:
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[action]
        x, y = min(max(x + dx, 0), 4), min(max(y + dy, 0), 4)
        return [(1.0, 5 * x + y, waiting, taxi)], -1.0
    corner = CORNERS.index((x, y)) if (x, y) in CORNERS else None
    if action == 5:
        return [(1.0, place, waiting, EMPTY)], 20.0 if corner == taxi else -1.0
    if corner is None or not waiting >> corner & 1:
        return [(1.0, place, waiting, taxi)], -1.0
    others = [destination for destination in range(4) if destination != corner]
    return [(1 / 3, place, waiting ^ (1 << corner), destination) for destination in others], -1.0


@lru_cache(maxsize=1)
def _exact() -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    passengers = _passenger_matrix()
    reward = np.empty(N_STATES * N_ACTIONS)
    rows, probabilities, first_columns, masks = [], [], [], []
    for cell in range(N_STATES * N_ACTIONS):
        outcomes, reward[cell] = _action_outcomes(*divmod(cell, N_ACTIONS))
        for probability, place, waiting, taxi in outcomes:
            rows.append(cell)
            probabilities.append(probability)
            first_columns.append(taxi + 80 * place)
            masks.append(waiting)
    columns = np.asarray(first_columns)[:, None] + 5 * np.arange(16)
    data = np.asarray(probabilities)[:, None] * passengers[np.asarray(masks)]
    matrix = sparse.csr_matrix(
        (data.ravel(), (np.repeat(rows, 16), columns.ravel())), shape=(N_STATES * N_ACTIONS, N_STATES)
    )
    return matrix, reward.reshape(N_STATES, N_ACTIONS)


def transition_matrix() -> sparse.csr_matrix:
    """Exact probabilities: row ``s * 6 + a``, column ``s'`` (12,000 x 2,000, about 195,000 entries)."""
    return _exact()[0].copy()


def expected_reward() -> NDArray[np.float64]:
    """Expected reward of every state and action, shape (2000, 6). It does not depend on chance."""
    reward: NDArray[np.float64] = _exact()[1].copy()
    return reward


def check_policy(policy: ArrayLike) -> NDArray[np.float64]:
    """Return the policy as a (2000, 6) array of doubles, or raise naming the row that is wrong."""
    array = np.ascontiguousarray(policy, dtype=np.float64)
    if array.shape != (N_STATES, N_ACTIONS):
        raise ValueError(f"a Taxi policy has shape ({N_STATES}, {N_ACTIONS}), got {array.shape}")
    wrong = ~((array >= 0).all(axis=1) & (np.abs(array.sum(axis=1) - 1) < 1e-9))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"policy row {row} is not a distribution: {array[row]}; make it nonnegative with sum 1"
        )
    return array


def mix_policies(target: ArrayLike, base: ArrayLike, alpha: float) -> NDArray[np.float64]:
    """Behavior ``alpha * target + (1 - alpha) * base``: larger alpha is closer to the target."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
    return alpha * check_policy(target) + (1 - alpha) * check_policy(base)


def policy_chain(policy: ArrayLike) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """State chain and expected reward of each state under a policy: ``P(s'|s)``, ``r(s)``."""
    matrix, reward = _exact()
    probabilities = check_policy(policy)
    cells = np.arange(N_STATES * N_ACTIONS)
    average = sparse.csr_matrix(
        (probabilities.ravel(), cells, np.append(cells[::N_ACTIONS], cells.size)),
        shape=(N_STATES, N_STATES * N_ACTIONS),
    )
    return (average @ matrix).tocsr(), (probabilities * reward).sum(axis=1)


def stationary_distribution(policy: ArrayLike, gamma: float = 1.0) -> NDArray[np.float64]:
    """Exact distribution over states: ``mu = (1 - gamma) mu0 + gamma P' mu``, ``sum mu = 1``.

    One sparse LU factorization of a 2,000 x 2,000 matrix (a fraction of a second). At gamma = 1 one
    equation, which the others imply, gives way to ``sum mu = 1``; the policy must then leave
    one recurrent class, as any policy with positive probabilities does. Multiply row by row
    with the policy for the distribution over state-action cells.
    """
    gamma = require_gamma(gamma)
    chain, _ = policy_chain(policy)
    system = (sparse.identity(N_STATES) - gamma * chain.T).tocsr()
    right_side = (1 - gamma) * initial_distribution()
    if gamma == 1:
        system = sparse.vstack([np.ones((1, N_STATES)), system[1:]])
        right_side[0] = 1.0
    distribution: NDArray[np.float64] = spsolve(system.tocsc(), right_side, permc_spec="MMD_AT_PLUS_A")
    distribution /= distribution.sum()
    return distribution


def policy_value(policy: ArrayLike, gamma: float = 1.0) -> float:
    """Exact reward per step: the average (gamma = 1), or ``(1 - gamma) sum gamma^t E r_t``."""
    probabilities = check_policy(policy)
    reward = (probabilities * _exact()[1]).sum(axis=1)
    return float(stationary_distribution(probabilities, gamma) @ reward)


def simulate(
    policy: ArrayLike, n_episodes: int, n_steps: int, *, seed: int = 0, threads: int | None = None
) -> TaxiLog:
    """Log ``n_episodes`` episodes of ``n_steps`` steps each under a policy.

    Each episode draws from its own random stream, so the log depends on the seed alone: not
    on the number of threads, and its first episodes not on how many follow.

    Parameters
    ----------
    policy : array of shape (2000, 6)
        Probabilities of actions; rows sum to 1.
    n_episodes, n_steps : int
        Positive whole numbers; ``n_episodes * n_steps`` entries are returned.
    seed : int
        Any whole number from 0 to 2**63 - 1.
    threads : int or None
        Threads to use; None takes every core.

    Returns
    -------
    TaxiLog
        ``state, action, reward, next_state, episode``.

    Examples
    --------
    >>> from lingendice.environments import taxi
    >>> policy = np.full((2000, 6), 1 / 6)
    >>> log = taxi.simulate(policy, n_episodes=2, n_steps=3, seed=1)
    >>> log.episode.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    n_episodes = require_whole("n_episodes", n_episodes, at_least=1)
    n_steps = require_whole("n_steps", n_steps, at_least=1)
    cumulative = np.cumsum(check_policy(policy), axis=1)
    appear, leave = np.array(APPEAR), np.array(LEAVE)
    streams = draw_streams(seed, n_episodes)
    states = np.array([simulators.taxi_initial(stream) for stream in streams])
    shape = (n_episodes, n_steps)
    state, action, following = (np.empty(shape, dtype=np.int32) for _ in range(3))
    reward = np.empty(shape)

    def walk(part: tuple[slice, slice]) -> None:
        simulators.simulate_taxi(
            cumulative, appear, leave, streams[part[0]], states[part[0]],
            state[part], action[part], reward[part], following[part],
        )  # fmt: skip

    walk_all(walk, shape, threads)
    episode = np.repeat(np.arange(n_episodes, dtype=np.int32), n_steps)
    return TaxiLog(state.ravel(), action.ravel(), reward.ravel(), following.ravel(), episode)


def draw_streams(seed: int, count: int, first: int = 0) -> NDArray[np.uint64]:
    """Random streams ``first``, ``first + 1``, ... of a seed, one for each trajectory."""
    seed = require_whole("seed", seed, at_most=2**63 - 1)
    streams = np.empty((count, 4), dtype=np.uint64)
    random_numbers.fill_streams(seed, first, streams)
    return streams


def walk_all(
    walk: Callable[[tuple[slice, slice]], None], shape: tuple[int, int], threads: int | None
) -> None:
    """Fill a log of (trajectories, steps) part by part, each short enough for Ctrl-C to be prompt.

    The parts of one trajectory follow one another.
    """
    n, n_steps = shape
    steps_a_call = min(n_steps, _STEPS_A_CALL)
    trajectories_a_call = max(1, _STEPS_A_CALL // steps_a_call)

    def walk_some(begin: int) -> None:
        some = slice(begin, begin + trajectories_a_call)
        for start in range(0, n_steps, steps_a_call):
            walk((some, slice(start, start + steps_a_call)))

    tasks = [partial(walk_some, begin) for begin in range(0, n, trajectories_a_call)]
    run_all(tasks, resolve_threads(threads))


def train_policies(
    *,
    seed: int = 0,
    target_iterations: int = 1000,
    base_iterations: int = 950,
    steps_per_iteration: int = 5000,
    gamma: float = 0.99,
    rate: float = 0.005,
    temperature: float = 1.0,
) -> TrainedPolicies:
    """Train a target and a base policy by tabular Q-learning, as soft-max policies over Q.

    One run, one endless episode: act by ``softmax(Q / temperature)``, and after each step
    ``Q(s,a) += rate * (r + gamma max Q(s', .) - Q(s,a))`` from ``Q = 0``. The base policy is the
    soft-max after ``base_iterations``, the target after ``target_iterations``, as in the
    protocol of Liu et al. (2018), which leaves rate, temperature and length of an iteration
    open; the defaults here are ours. The same seed gives the same bits.
    """
    target_iterations = require_whole("target_iterations", target_iterations, at_least=1)
    base_iterations = require_whole("base_iterations", base_iterations, at_least=1, at_most=target_iterations)
    temperature = require_positive("temperature", temperature)
    stream = draw_streams(seed, 1)[0]
    appear, leave = np.array(APPEAR), np.array(LEAVE)
    q = np.zeros((N_STATES, N_ACTIONS))
    state = simulators.taxi_initial(stream)
    for iteration in range(1, target_iterations + 1):
        state = simulators.q_learning(
            q, state, steps_per_iteration, gamma, rate, temperature, appear, leave, stream
        )
        if iteration == base_iterations:
            base = soft_policy(q, temperature)
    return TrainedPolicies(target=soft_policy(q, temperature), base=base)


def soft_policy(q: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """``softmax(q / temperature)`` row by row."""
    scaled = np.asarray(q, dtype=np.float64) / require_positive("temperature", temperature)
    weight = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    distribution: NDArray[np.float64] = weight / weight.sum(axis=1, keepdims=True)
    return distribution
