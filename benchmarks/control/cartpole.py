"""Compiled steps of the cart and pole, whose rules :mod:`control.environments` describes.

A state is (x, x', theta, theta'): position and speed of the cart, angle and angular speed of the pole.
"""

from __future__ import annotations

import math

from lingendice.kernels.jit import kernel
from lingendice.kernels.random_numbers import next_double

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
