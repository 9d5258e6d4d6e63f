"""Simulators on raw arrays: one step of the rules, samplers of logs, and tabular Q-learning for Taxi.

A state of Taxi is ``taxi + 5 * (waiting + 16 * (5 * x + y))``: ``taxi`` is the destination corner carried or
4 when empty, ``waiting`` the bit mask of corners with a passenger. A state of cart and pole is (x, x', theta,
theta'): place and speed of the cart, angle and turning speed of the pole. The rules are described in
:mod:`lingendice.environments.taxi` and :mod:`lingendice.environments.control`.
"""

from __future__ import annotations

import math

import numpy as np

from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import next_below, next_double

# -- Taxi ---------------------------------------------------------------------------------------------------

EMPTY = 4


@kernel
def _corner_at(x, y):
    """Number of the corner at (x, y), or -1."""
    if (x != 0 and x != 4) or (y != 0 and y != 4):
        return -1
    return (2 if x == 4 else 0) + (1 if y == 4 else 0)


@kernel
def taxi_step(state, action, appear, leave, stream):
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
def taxi_initial(stream):
    """Position and waiting passengers uniform, taxi empty."""
    return EMPTY + 5 * next_below(stream, 400)


@kernel
def taxi_initial_all(streams, states):
    """Draw the first state of every episode."""
    for i in range(states.size):
        states[i] = taxi_initial(streams[i])


@kernel
def simulate_taxi(cumulative, appear, leave, streams, states, log_state, log_action, log_reward, log_next):
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
            following, reward = taxi_step(state, action, appear, leave, stream)
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
        following, reward = taxi_step(state, action, appear, leave, stream)
        target = reward + gamma * q[following].max()
        q[state, action] += rate * (target - q[state, action])
        state = following
    return state


# -- cart and pole ------------------------------------------------------------------------------------------

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS_A_STEP = 0.02
LARGEST_PLACE = 2.4
LARGEST_ANGLE = 12 * 2 * math.pi / 360
INITIAL_RANGE = 0.05


@kernel
def cartpole_step(state, action, following):
    """Write the next state into ``following``; returns whether the pole fell or the cart left its track."""
    total_mass = CART_MASS + POLE_MASS
    pole_moment = POLE_MASS * HALF_LENGTH
    force = FORCE if action == 1 else -FORCE
    place, speed, angle, turning = state[0], state[1], state[2], state[3]
    cosine, sine = math.cos(angle), math.sin(angle)
    push = (force + pole_moment * turning * turning * sine) / total_mass
    turning_gain = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / total_mass)
    )
    speed_gain = push - pole_moment * turning_gain * cosine / total_mass
    following[0] = place + SECONDS_A_STEP * speed
    following[1] = speed + SECONDS_A_STEP * speed_gain
    following[2] = angle + SECONDS_A_STEP * turning
    following[3] = turning + SECONDS_A_STEP * turning_gain
    return abs(following[0]) > LARGEST_PLACE or abs(following[2]) > LARGEST_ANGLE


@kernel
def cartpole_initial(stream, state):
    """Every coordinate uniform on [-0.05, 0.05)."""
    for k in range(4):
        state[k] = INITIAL_RANGE * (2.0 * next_double(stream) - 1.0)


@kernel
def probability_right(state, weights, bias, share):
    """``share`` of the logistic policy, the rest uniform."""
    score = bias
    for k in range(4):
        score += weights[k] * state[k]
    return share / (1.0 + math.exp(-score)) + 0.5 * (1.0 - share)


@kernel
def simulate_cartpole(weights, bias, shares, streams, states, log_state, log_action, log_reward, log_next):
    """Walk every trajectory (row of the log arrays) forward; a fall pays -1 and restarts.

    ``shares[i]`` is the weight of the trained policy in trajectory i; ``streams`` and ``states`` are
    carried on, so a later call resumes where this ended.
    """
    for i in range(log_state.shape[0]):
        for t in range(log_state.shape[1]):
            for k in range(4):
                log_state[i, t, k] = states[i, k]
            right = probability_right(states[i], weights, bias, shares[i])
            action = 1 if next_double(streams[i]) < right else 0
            fell = cartpole_step(log_state[i, t], action, states[i])
            if fell:
                cartpole_initial(streams[i], states[i])
            log_action[i, t] = action
            log_reward[i, t] = -1.0 if fell else 1.0
            for k in range(4):
                log_next[i, t, k] = states[i, k]
