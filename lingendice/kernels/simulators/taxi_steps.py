"""Taxi on raw arrays: one step of the rules, a sampler of logs, and tabular Q-learning.

A state is ``taxi + 5 * (waiting + 16 * (5 * x + y))``: ``taxi`` is the destination corner
carried or 4 when empty, ``waiting`` the bit mask of corners with a passenger. The rules are
described in :mod:`lingendice.environments.taxi`.
"""

from __future__ import annotations

import math

import numpy as np

from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import next_below, next_double

EMPTY = 4


@kernel
def _corner_at(x, y):
    """Number of the corner at (x, y), or -1."""
    if (x != 0 and x != 4) or (y != 0 and y != 4):
        return -1
    return (2 if x == 4 else 0) + (1 if y == 4 else 0)


@kernel
def step(state, action, appear, leave, stream):
    """Apply one action, then let passengers come and go. Returns (next state, reward)."""
    taxi = state % 5
    waiting = (state // 5) % 16
    place = state // 80
    x, y = place // 5, place % 5
    reward = -1.0
    if action == 0:
        x = min(x + 1, 4)
    elif action == 1:
        y = min(y + 1, 4)
    elif action == 2:
        x = max(x - 1, 0)
    elif action == 3:
        y = max(y - 1, 0)
    else:
        corner = _corner_at(x, y)
        if action == 4:
            if corner >= 0 and (waiting >> corner) & 1:
                waiting ^= 1 << corner
                taxi = (corner + 1 + next_below(stream, 3)) % 4
        else:
            if corner >= 0 and taxi == corner:
                reward = 20.0
            taxi = EMPTY
    for corner in range(4):
        present = (waiting >> corner) & 1
        change = leave[corner] if present else appear[corner]
        if next_double(stream) < change:
            waiting ^= 1 << corner
    return taxi + 5 * (waiting + 16 * (5 * x + y)), reward


@kernel
def draw_initial(stream):
    """Position and waiting passengers uniform, taxi empty."""
    return EMPTY + 5 * next_below(stream, 400)


@kernel
def draw_initial_all(streams, states):
    """Draw the first state of every episode."""
    for i in range(states.size):
        states[i] = draw_initial(streams[i])


@kernel
def simulate(cumulative, appear, leave, streams, states, log_state, log_action, log_reward, log_next):
    """Walk every episode (row of the log arrays) forward under a policy.

    ``cumulative[s, a]`` is the policy summed over actions up to ``a``; ``streams`` and
    ``states`` (one row per episode) are carried on, so a later call resumes where this ended.
    """
    last_action = cumulative.shape[1] - 1
    for i in range(log_state.shape[0]):
        stream = streams[i]
        state = states[i]
        for t in range(log_state.shape[1]):
            u = next_double(stream)
            action = 0
            while action < last_action and u >= cumulative[state, action]:
                action += 1
            following, reward = step(state, action, appear, leave, stream)
            log_state[i, t] = state
            log_action[i, t] = action
            log_reward[i, t] = reward
            log_next[i, t] = following
            state = following
        states[i] = state


@kernel
def softmax_into(values, temperature, out):
    """``out = softmax(values / temperature)`` along one row."""
    top = values.max()
    total = 0.0
    for a in range(values.size):
        out[a] = math.exp((values[a] - top) / temperature)
        total += out[a]
    for a in range(values.size):
        out[a] /= total


@kernel
def q_learning(q, state, n_steps, gamma, rate, temperature, appear, leave, stream):
    """Run ``n_steps`` of soft-max Q-learning in place; returns the state it stopped in."""
    n_actions = q.shape[1]
    chance = np.empty(n_actions)
    for _ in range(n_steps):
        softmax_into(q[state], temperature, chance)
        u = next_double(stream)
        action = 0
        while action < n_actions - 1 and u >= chance[action]:
            u -= chance[action]
            action += 1
        following, reward = step(state, action, appear, leave, stream)
        target = reward + gamma * q[following].max()
        q[state, action] += rate * (target - q[state, action])
        state = following
    return state
