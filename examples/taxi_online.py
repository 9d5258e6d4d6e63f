"""Taxi, followed as it drives: where it spends its time and what it earns, by two ways of embedding.

The first counts pairs of states into a table of fixed size inside the compiled simulator and solves there
(2,000 states, compressed rows). The second hands portions of the log to ``lg.OnlineRatio``, which goes on
from its last answer.

    python examples/taxi_online.py
"""

from __future__ import annotations

import numpy as np
from numba import njit

import lingendice as lg
from lingendice import embed
from lingendice.environments import taxi
from lingendice.kernels.random_numbers import next_double
from lingendice.kernels.simulators import taxi_step

N = taxi.N_STATES
TABLE = 2**18


@njit
def drive(cumulative, appear, leave, stream, state, n_steps, keys, pairs, visits, earned):
    """Drive on from ``state``, counting as the taxi goes; returns where it stops and the worst status."""
    worst = embed.SOLVED
    for _ in range(n_steps):
        u = next_double(stream)
        action = 0
        while action < cumulative.shape[1] - 1 and u >= cumulative[state, action]:
            action += 1
        following, reward = taxi_step(state, action, appear, leave, stream)
        worst = max(worst, embed.count_sparse(keys, pairs, visits.size, state, following))
        visits[state] += 1.0
        earned[state] += reward
        state = following
    return state, worst


@njit
def look(keys, pairs, visits, earned, distribution):
    """Solve from the table into ``distribution``, starting from what it holds; returns (status, reward a
    step)."""
    n = visits.size
    indptr = np.empty(n + 1, np.int64)
    indices = np.empty(keys.size, np.int64)
    data = np.empty(keys.size)
    size = embed.to_csr(keys, pairs, n, indptr, indices, data)
    status = embed.solve_csr(indptr, indices[:size], data[:size], 1.0, distribution)
    return status, embed.value(distribution, visits, earned)


def inside_the_simulator(policy: np.ndarray, n_steps: int, n_looks: int) -> list[float]:
    """Rewards a step estimated after each portion, counting and solving in compiled code."""
    cumulative = np.cumsum(policy, axis=1)
    appear, leave = np.array(taxi.APPEAR), np.array(taxi.LEAVE)
    stream = np.random.default_rng(2).integers(1, 2**63, 4).astype(np.uint64)
    keys, pairs = np.full(TABLE, -1), np.zeros(TABLE)
    visits, earned, distribution = np.zeros(N), np.zeros(N), np.zeros(N)
    state, values = 4, []
    for _ in range(n_looks):
        state, counted = drive(cumulative, appear, leave, stream, state, n_steps, keys, pairs, visits, earned)
        status, value = look(keys, pairs, visits, earned, distribution)
        if max(counted, status) != embed.SOLVED:
            raise RuntimeError(embed.message(max(counted, status)))
        values.append(value)
    return values


def beside_the_simulator(policy: np.ndarray, n_steps: int, n_looks: int) -> list[float]:
    """The same from portions of a log."""
    online = lg.OnlineRatio(N)
    log = taxi.simulate(policy, 1, n_steps * n_looks, seed=3)
    values = []
    for portion in np.array_split(np.arange(log.state.size), n_looks):
        online.update(log.state[portion], log.next_state[portion], log.reward[portion])
        values.append(online.value)
    return values


def main(n_steps: int = 200_000, n_looks: int = 5) -> tuple[float, list[float], list[float]]:
    """Follow a random driver both ways and print the estimates beside the exact reward."""
    policy = np.full((N, taxi.N_ACTIONS), 1.0 / taxi.N_ACTIONS)
    exact = taxi.policy_value(policy)
    inside = inside_the_simulator(policy, n_steps, n_looks)
    beside = beside_the_simulator(policy, n_steps, n_looks)
    print(f"exact reward a step {exact:.4f}")
    print("inside the simulator:", ", ".join(f"{value:.4f}" for value in inside))
    print("beside it:           ", ", ".join(f"{value:.4f}" for value in beside))
    return exact, inside, beside


if __name__ == "__main__":
    main()
