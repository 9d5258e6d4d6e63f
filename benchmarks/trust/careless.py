"""Logs that a Markov model does not fit: hidden states, forgotten flags, shuffled rows. A flag is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trust import grids, operations, people, toy_text
from trust.model import explore, from_outcomes, greedy, optimal_q
from trust.problem import Problem, maker

SIZES = ((100, 100), (400, 100))


def repeat_game() -> Problem:
    """Two steps: the second pays +1 for repeating the first action, -1 else; the first action is not shown.

    Two behaviors that each stick to an action make every second action look good; the target switches.
    """

    def outcomes(state: int, action: int):
        if state == 0:
            yield 1.0, 1 + action, 0.0, False
        else:
            yield 1.0, state, 1.0 if action == state - 1 else -1.0, True

    model = from_outcomes(3, 2, outcomes, np.array([1.0, 0.0, 0.0]))
    stick = tuple(np.tile([share, 1 - share], (2, 1)) for share in (0.9, 0.1))
    target = np.array([[0.9, 0.1], [0.1, 0.9]])
    return Problem(
        "hidden or merged states", "repeat the first action", model, target, stick, ((200, 2), (2000, 2)),
        observe=np.array([0, 1, 1]),
    )  # fmt: skip


def tiger() -> Problem:
    """Listen (-1, right in 85 % of cases) or open a door (+10 or -100); only the last sound is shown."""

    # state: tiger side (2) x last sound (none, left, right)
    def outcomes(state: int, action: int):
        side = state // 3
        if action == 0:
            for sound in (0, 1):
                yield 0.85 if sound == side else 0.15, side * 3 + 1 + sound, -1.0, False
        else:
            reward = -100.0 if action - 1 == side else 10.0
            for other in (0, 1):
                yield 0.5, other * 3, reward, False

    model = from_outcomes(6, 3, outcomes, np.array([1.0, 0, 0, 1.0, 0, 0]))
    target = np.array([[0.9, 0.05, 0.05], [0.2, 0.05, 0.75], [0.2, 0.75, 0.05]])
    behavior = np.array([[0.8, 0.1, 0.1], [0.7, 0.1, 0.2], [0.7, 0.2, 0.1]])
    return Problem(
        "hidden or merged states",
        "tiger",
        model,
        target,
        (behavior,),
        SIZES,
        observe=np.array([0, 1, 2, 0, 1, 2]),
    )


def momentum() -> Problem:
    """A cart on a ring of 20 places pushed left or right; its speed is not shown; two places pay."""
    paying = {5: 1.0, 15: -1.0}

    def outcomes(state: int, action: int):
        place, speed = divmod(state, 5)
        for push, chance in ((action - 1, 0.8), (0, 0.2)):
            faster = min(max(speed - 2 + push, -2), 2)
            landed = (place + faster) % 20
            yield chance, landed * 5 + faster + 2, paying.get(landed, 0.0), False

    model = from_outcomes(100, 3, outcomes, np.tile([0, 0, 1.0, 0, 0], 20))
    place = np.arange(20)
    toward = np.where((place > 5) & (place < 15), 0, 2)
    target = explore(np.eye(3)[toward], 0.2)
    behavior = explore(np.eye(3)[2 - toward], 0.6)
    return Problem(
        "hidden or merged states", "momentum", model, target, (behavior,), SIZES, observe=np.arange(100) // 5
    )


def worn_machine() -> Problem:
    """An aging machine of which only new, used and old is shown."""
    model = operations.aging_machine(24, 0.004)
    target, behavior = np.eye(3)[[0, 1, 2]], np.eye(3)[[0, 0, 1]]
    return Problem(
        "hidden or merged states", "worn machine", model, explore(target, 0.1), (explore(behavior, 0.3),),
        SIZES, observe=np.arange(24) // 8,
    )  # fmt: skip


def coarse_grid() -> Problem:
    """A grid with pits seen through squares of 2 x 2."""
    model = grids.Grid(8, 8, slip=0.1, cliffs=frozenset({(2, 2), (3, 5), (5, 1), (6, 6)})).model()
    row, column = np.divmod(np.arange(64), 8)
    seen = row // 2 * 4 + column // 2
    choice = greedy(optimal_q(model))
    target = np.stack([choice[seen == square].mean(axis=0) for square in range(16)])
    return Problem(
        "hidden or merged states",
        "coarse grid",
        model,
        explore(target, 0.1),
        (explore(target, 0.6),),
        SIZES,
        observe=seen,
    )


def hidden_users() -> Problem:
    """Users whose kind is not shown and does not change: what they clicked before tells of it."""
    model = people.user_model(maker("hidden or merged states", "users"), 4, 6, 0.03, turns=0.0)
    rng = maker("hidden or merged states", "policies")
    target = rng.dirichlet(np.full(6, 0.3), 5) * 0.9 + 0.1 / 6
    behaviors = tuple(rng.dirichlet(np.full(6, 0.3), 5) * 0.7 + 0.3 / 6 for _ in range(2))
    return Problem(
        "hidden or merged states", "users", model, target, behaviors, SIZES, observe=np.arange(20) % 5
    )


def hidden() -> list[Problem]:
    """States that are logged only in part (development)."""
    return [repeat_game(), tiger(), momentum(), worn_machine(), coarse_grid(), hidden_users()]


def corrupted() -> list[Problem]:
    """Forgotten terminal flags and rows out of order."""
    family = "careless logs"
    cliff, lake = grids.cliffs()[0], toy_text.problems()[0]
    patient, stock = people.clinical()[0], operations.inventory()[0]
    plan = [
        (cliff, "cliff, no flags", "no flags"),
        (patient, "clinical, no flags", "no flags"),
        (lake, "FrozenLake, no flags, next episode's state", "no flags, reset"),
        (stock, "inventory, shuffled", "shuffled"),
        (patient, "clinical, shuffled", "shuffled"),
    ]
    return [replace(one, family=family, name=name, corruption=how) for one, name, how in plan]
