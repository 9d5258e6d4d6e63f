"""The first H steps from the initial distribution: the operator applied H times.

    d_0 = mu0 ,             d_{t+1} = K' (d_t W)                     forward: where step t is
    V_H = 0 ,               Q_t = r + gamma K V_{t+1} ,  V_t = W Q_t     backward: what is still to come

    return = sum_{t<H} gamma^t d_t W r = mu0 V_0

Each direction costs O(H nnz); the values take O(H n_states) memory. Nothing is subtracted, so that rounding
is the only error.

References
----------
R. Bellman (1957). Dynamic Programming. Princeton University Press.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lingendice.data.checks import Floats
from lingendice.data.interrupts import check
from lingendice.model.operator import EmpiricalOperator
from lingendice.solvers.control import Controls, Outcome, watch


class Visits(NamedTuple):
    """Where the first H steps are, step t weighted by gamma^t / sum gamma^t."""

    outcome: Outcome
    """Its distribution is that over states."""
    terminal_mass: float
    """Share of the steps after the end of their episode."""


def total_weight(gamma: float, horizon: int) -> float:
    """sum_{t<H} gamma^t."""
    return float(horizon) if gamma == 1.0 else -float(np.expm1(horizon * np.log(gamma))) / (1.0 - gamma)


def forward(operator: EmpiricalOperator, horizon: int) -> Iterator[tuple[float, Floats]]:
    """gamma^t and d_t for t = 0, 1, ..., H - 1."""
    assert operator.initial is not None
    weight, state = 1.0, operator.initial
    for step in range(horizon):
        if step:
            weight, state = weight * operator.gamma, operator.next_state_distribution(operator.spread(state))
        yield weight, state


def visits(operator: EmpiricalOperator, horizon: int, controls: Controls | None = None) -> Visits:
    """Add up where the first H steps are.

    Ended early by a limit or Ctrl-C, it is where the steps so far are. Those that are missing can move it by
    twice their weight in L1, which is the error stated.
    """
    whole = total_weight(operator.gamma, horizon)
    mass, ended, terminal, done = np.zeros(operator.n_states), 0.0, 0.0, 0.0
    n_steps, error = 0, 2.0
    with watch(controls or Controls()) as monitor:
        for weight, state in forward(operator, horizon):
            mass += weight * state
            terminal += weight * ended
            ended += float(np.einsum("x,x->", operator.spread(state), operator.ended))
            done += weight
            n_steps += 1
            error = 2.0 * max(1.0 - done / whole, 0.0)
            if n_steps < horizon and monitor.note(n_steps, error):
                break
    converged = n_steps == horizon
    outcome = Outcome(
        mass / (whole if converged else done),
        "recursion",
        f"the first {horizon:,} steps" if converged else f"{n_steps:,} of the first {horizon:,} steps",
        converged=converged,
        n_iter=n_steps,
        error=None if converged else error,
        error_kind="direct" if converged else "bound",
        stopped=None if converged else monitor.stopped,
    )
    return Visits(outcome, terminal / (whole if converged else done))


def backward(operator: EmpiricalOperator, horizon: int, cell_reward: Floats) -> Floats:
    """V_0, V_1, ..., V_H as rows."""
    values = np.zeros((horizon + 1, operator.n_states))
    for step in range(horizon - 1, -1, -1):
        check()
        onward = operator.gamma * operator.expected_next(values[step + 1])
        values[step] = operator.gather(cell_reward + onward)
    return values
