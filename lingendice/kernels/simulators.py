"""Simulators on raw arrays: Taxi, its logs and tabular Q-learning, and a step of a policy in a fitted model.

A state of Taxi is ``taxi + 5 * (waiting + 16 * (5 * x + y))``: ``taxi`` is the destination corner carried or
4 when empty, ``waiting`` the bit mask of corners with a passenger. The rules are described in
:mod:`lingendice.environments.taxi`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lingendice.kernels.jit import fused_kernel, internal, kernel
from lingendice.kernels.mlp import SILU, Net, outputs
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


# -- a policy followed in a model of the dynamics -----------------------------------------------------------

FAR = 8.0
"""Standardized coordinates are cut off here where a probability rests on their squares, which grow fast."""


class Simulation(NamedTuple):
    """What :func:`simulate_step` knows of model and policy; float64, but for the networks."""

    parameters: Any
    """(members, parameters): float32."""
    layout: Any
    state_scaling: Any
    """(2, d): shift and scale of the states, as they are standardized."""
    action_scaling: Any
    """(2, k): the same of the actions."""
    action_noise: Any
    """(3, k): standard deviation, least and largest value of an action, before it is standardized."""
    change: Any
    """(4, d): scale of the networks' change, least and largest state, how far beyond counts; standardized."""
    errors: Any
    """(rows, d): the noise of a step is one of these rows, in units of the change; float32."""
    reward: Any
    """[center, scale, what the step that ends adds]."""
    end_constant: Any
    """One entry, or none where nothing ends."""
    end_linear: Any
    end_quadratic: Any


class Paths(NamedTuple):
    """Paths under way, which :func:`simulate_step` moves on; rows are in equal shares of each member."""

    states: Any
    """(n, d): standardized."""
    raw: Any
    """(n, d): as policies see them."""
    alive: Any
    earned: Any
    inputs: Any
    """(n, d + k): of the networks at this step, float32."""
    outputs: Any
    hidden: Any
    visited: Any
    """Rows whose inputs were drawn as a visit."""
    restarted: Any
    """Rows that begin again."""


@kernel
def simulate_step(model, paths, actions, action_draws, visit_draws, error_draws, end_draws, terms):
    """Move all paths on by a step, (number of visited rows, of restarted ones, weight clipped, weight lived).

    ``terms`` is (weight of the step, rate of visits, whether what ends stays ended). Actions are
    ``actions + std * action_draws``, clipped; where the draw is below its probability a row is visited or
    begins again, which the caller sees to. Compiled with IEEE semantics: the states, where small differences
    grow, are the same bits in whatever form these sums are written.
    """
    states, raw, alive, earned, inputs, out, hidden, visited, restarted = paths
    share, visit_rate, absorbing = terms
    n, d = states.shape
    _put_inputs(model, states, actions, action_draws, inputs)
    _predict(model, inputs, hidden, out)
    may_end = model.end_constant.size > 0
    n_visited, n_restarted, clipped, lived = 0, 0, 0.0, 0.0
    for r in range(n):
        state, step = states[r], out[r]
        for j in range(d):
            state[j] = inputs[r, j] + np.float64(step[j]) * model.change[0, j]
        ends = _end_probability(model, state) if may_end else 0.0
        weight = share * alive[r]
        earned[r] += weight * (model.reward[0] + model.reward[1] * step[d] + ends * model.reward[2])
        if visit_draws[r] < visit_rate * weight:
            visited[n_visited] = r
            n_visited += 1
        # What has ended is simulated on, at no weight: where it goes does not count.
        stays = weight * (1.0 - ends)
        clipped += stays * _shake(state, model.errors, error_draws[r], model.change)
        lived += stays * d
        for j in range(d):
            raw[r, j] = model.state_scaling[0, j] + state[j] * model.state_scaling[1, j]
        if absorbing:
            alive[r] *= 1.0 - ends
        elif may_end and end_draws[r] < ends:
            restarted[n_restarted] = r
            n_restarted += 1
    return n_visited, n_restarted, clipped, lived


@kernel
def _shake(state, errors, draws, change):
    """Add the first noise that stays in the range, or the last, clipped; how many were outside."""
    scale, low, high, nearly = change[0], change[1], change[2], change[3]
    d = state.size
    for k in range(draws.size):
        error, beyond = errors[draws[k]], False
        for j in range(d):
            x = state[j] + scale[j] * np.float64(error[j])
            beyond = beyond or x < low[j] or x > high[j]
        if not beyond or k == draws.size - 1:
            break
    outside = 0
    for j in range(d):
        x = state[j] + scale[j] * np.float64(error[j])
        state[j] = min(max(x, low[j]), high[j])
        outside += abs(x - state[j]) > nearly[j]
    return outside


@kernel
def _put_inputs(model, states, actions, draws, inputs):
    """Standardized states and actions, side by side."""
    d = states.shape[1]
    std, low, high = model.action_noise[0], model.action_noise[1], model.action_noise[2]
    for r in range(states.shape[0]):
        state, row = states[r], inputs[r]
        for j in range(d):
            row[j] = np.float32(state[j])
        for j in range(actions.shape[1]):
            action = min(max(actions[r, j] + std[j] * draws[r, j], low[j]), high[j])
            row[d + j] = np.float32((action - model.action_scaling[0, j]) / model.action_scaling[1, j])


@fused_kernel
def _predict(model, inputs, hidden, out):
    """The outputs of each member at its share of the rows."""
    members = model.parameters.shape[0]
    rows = inputs.shape[0] // members
    for k in range(members):
        mine = slice(k * rows, (k + 1) * rows)
        outputs(Net(model.parameters[k], model.layout, SILU + rows - rows), inputs[mine], hidden, out[mine])


@internal
def _end_probability(model, state):
    """1 / (1 + exp(-(constant + linear'z + z' quadratic z))), z the state within ``FAR``."""
    logit = model.end_constant[0]
    for i in range(model.end_linear.size):
        row, total = model.end_quadratic[i], model.end_linear[i]
        for j in range(i, row.size):
            total += row[j] * min(max(state[j], -FAR), FAR)
        logit += total * min(max(state[i], -FAR), FAR)
    return 1.0 / (1.0 + math.exp(-min(max(logit, -40.0), 40.0)))
