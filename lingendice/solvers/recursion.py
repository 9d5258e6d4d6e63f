"""The first H steps: the operator applied H times to the initial distribution, or to values from the end.

    d_0 = mu0 ,             d_{t+1} = K' (d_t W)                     forward: where step t is
    V_H = 0 ,               Q_t = r + gamma K V_{t+1} ,  V_t = W Q_t     backward: what is still to come

    return = sum_{t<H} gamma^t d_t W r = mu0 V_0

Each direction costs O(H nnz); the values take O(H n_states) memory. Nothing is subtracted, so that rounding
is the only error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.counts import Counts
from lingendice.data.interrupts import check
from lingendice.model.compose import Choices, compose
from lingendice.model.operator import EmpiricalOperator


class Visits(NamedTuple):
    """Where the first H steps are, step t weighted by gamma^t / sum gamma^t."""

    state_distribution: Floats
    terminal_mass: float
    """Share of the steps after the end of their episode."""


def compose_episodes(counts: Counts, choices: Choices) -> EmpiricalOperator:
    """The operator of single episodes: they start from the initial distribution and end for good.

    Target actions never logged in a state take the mean of its logged ones.
    """
    unseen = "mean" if choices.policy is not None and choices.unseen == "auto" else choices.unseen
    return compose(counts, choices._replace(unseen=unseen))


def total_weight(gamma: float, horizon: int) -> float:
    """sum_{t<H} gamma^t."""
    return float(horizon) if gamma == 1.0 else -float(np.expm1(horizon * np.log(gamma))) / (1.0 - gamma)


def forward(operator: EmpiricalOperator, horizon: int) -> Iterator[tuple[float, Floats]]:
    """gamma^t and d_t for t = 0, 1, ..., H - 1."""
    assert operator.initial is not None
    weight, state = 1.0, operator.initial
    for step in range(horizon):
        if step:
            check()
            weight, state = weight * operator.gamma, operator.next_state_distribution(operator.spread(state))
        yield weight, state


def visits(operator: EmpiricalOperator, horizon: int) -> Visits:
    """Add up where the first H steps are."""
    mass, ended, terminal = np.zeros(operator.n_states), 0.0, 0.0
    for weight, state in forward(operator, horizon):
        mass += weight * state
        terminal += weight * ended
        ended += float(operator.spread(state) @ operator.ended)
    whole = total_weight(operator.gamma, horizon)
    return Visits(mass / whole, terminal / whole)


def backward(operator: EmpiricalOperator, horizon: int, cell_reward: Floats) -> Floats:
    """V_0, V_1, ..., V_H as rows."""
    values = np.zeros((horizon + 1, operator.n_states))
    for step in range(horizon - 1, -1, -1):
        check()
        onward = operator.gamma * operator.expected_next(values[step + 1])
        values[step] = operator.gather(cell_reward + onward)
    return values
