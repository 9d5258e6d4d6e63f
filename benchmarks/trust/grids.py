"""Grids: plain and slippery (development), with cliffs and with sparse rewards (report)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trust.model import Model, explore, from_outcomes, greedy, mix, optimal_q, restarted, soft, uniform
from trust.problem import Problem

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
SIZES = ((30, 80), (200, 80))


@dataclass(frozen=True)
class Grid:
    """A rectangle walked by four actions; slips go to one of the two sides."""

    rows: int
    columns: int
    slip: float = 0.0
    step: float = -0.1
    goal: float = 1.0
    cliff: float = -5.0
    cliffs: frozenset[tuple[int, int]] = frozenset()
    """Places that cost ``cliff``."""
    cliff_ends: bool = True
    """Whether a cliff ends the episode; else it is climbed out of at the start."""
    walls: frozenset[tuple[int, int]] = frozenset()
    starts: tuple[tuple[int, int], ...] = ((0, 0),)
    goal_at: tuple[int, int] | None = None
    """The far corner if not given; it ends the episode."""

    def model(self) -> Model:
        """The table of outcomes."""
        initial = np.zeros(self.rows * self.columns)
        initial[[self._place(*start) for start in self.starts]] = 1.0
        return from_outcomes(self.rows * self.columns, 4, self._outcomes, initial)

    def _place(self, row: int, column: int) -> int:
        return row * self.columns + column

    def _outcomes(self, state: int, action: int):
        directions = (
            (action, 1 - self.slip),
            ((action + 1) % 4, self.slip / 2),
            ((action - 1) % 4, self.slip / 2),
        )
        for direction, probability in directions:
            yield probability, *self._entered(state, direction)

    def _entered(self, state: int, direction: int) -> tuple[int, float, bool]:
        row, column = divmod(state, self.columns)
        down, right = MOVES[direction]
        place = (min(max(row + down, 0), self.rows - 1), min(max(column + right, 0), self.columns - 1))
        if place in self.walls:
            place = (row, column)
        if place == (self.goal_at or (self.rows - 1, self.columns - 1)):
            return self._place(*place), self.goal, True
        if place in self.cliffs:
            landed = place if self.cliff_ends else self.starts[0]
            return self._place(*landed), self.cliff, self.cliff_ends
        return self._place(*place), self.step, False


def edge(columns: int, row: int) -> frozenset[tuple[int, int]]:
    """A cliff along a row, between its corners."""
    return frozenset((row, column) for column in range(1, columns - 1))


def _problem(family, name, model, target, behaviors, sizes=SIZES) -> Problem:
    q = optimal_q(model)
    even = uniform(model)
    policies = {
        "greedy": greedy(q),
        "greedy+5": explore(greedy(q), 0.05),
        "greedy+10": explore(greedy(q), 0.1),
        "greedy+20": explore(greedy(q), 0.2),
        "greedy+40": explore(greedy(q), 0.4),
        "greedy+60": explore(greedy(q), 0.6),
        "soft": soft(q, 0.3),
        "softer": soft(q, 1.0),
        "half": mix(soft(q, 0.3), even, 0.5),
        "uniform": even,
    }
    logged = tuple(policies[one] for one in behaviors.split(" & "))
    return Problem(family, name, model, policies[target], logged, sizes)


def plain() -> list[Problem]:
    """Grids that do as they are told."""
    room = frozenset({(1, 2), (2, 2), (3, 2), (5, 2)})
    every = tuple((row, column) for row in range(4) for column in range(4))
    return [
        _problem("grids", "4 x 4", Grid(4, 4).model(), "greedy+10", "greedy+40"),
        _problem("grids", "6 x 6 with a wall", Grid(6, 6, walls=room).model(), "soft", "softer"),
        _problem("grids", "6 x 6, many starts", Grid(6, 6, starts=every).model(), "greedy", "half & uniform"),
        _problem("grids", "5 x 5, endless", restarted(Grid(5, 5).model()), "soft", "greedy+60"),
    ]


def slippery() -> list[Problem]:
    """Grids with slips."""
    pits = frozenset({(1, 1), (2, 3)})
    return [
        _problem("grids, slippery", "4 x 4", Grid(4, 4, slip=0.2).model(), "greedy+10", "greedy+40"),
        _problem("grids, slippery", "6 x 6", Grid(6, 6, slip=0.3).model(), "soft", "softer & half"),
        _problem(
            "grids, slippery",
            "5 x 5 with pits",
            Grid(5, 5, slip=0.2, cliffs=pits).model(),
            "greedy+5",
            "half",
        ),
        _problem(
            "grids, slippery",
            "5 x 5, endless",
            restarted(Grid(5, 5, slip=0.3).model()),
            "greedy+20",
            "uniform",
        ),
    ]


def cliffs() -> list[Problem]:
    """Edges that cost much, beside the shortest way."""
    family = "cliffs"

    def edged(rows: int, columns: int, **options) -> Model:
        corner = (rows - 1, 0)
        return Grid(
            rows, columns, cliffs=edge(columns, rows - 1), starts=(corner,), goal=3.0, **options
        ).model()

    islands = frozenset({(1, 2), (1, 5), (3, 2), (3, 5), (2, 4)})
    return [
        _problem(family, "4 x 6", edged(4, 6), "greedy+5", "greedy+20"),
        _problem(family, "4 x 8, -100 and back", edged(4, 8, cliff=-100.0, step=-1.0, cliff_ends=False),
                 "greedy+10", "greedy+40"),
        _problem(family, "5 x 8, slips", edged(5, 8, slip=0.1), "soft", "softer"),
        _problem(family, "5 x 8, slips, -100", edged(5, 8, slip=0.1, cliff=-100.0, step=-1.0), "greedy+5",
                 "half"),
        _problem(family, "6 x 10, pooled", edged(6, 10), "greedy", "greedy+20 & half & uniform"),
        _problem(family, "5 x 7, islands", Grid(5, 7, slip=0.2, cliffs=islands).model(), "greedy+10",
                 "greedy+40"),
    ]  # fmt: skip


def sparse_rewards() -> list[Problem]:
    """Nothing but the goal pays."""
    family = "sparse rewards"
    traps = frozenset({(1, 1), (3, 2), (2, 4)})
    pay = {"step": 0.0, "goal": 1.0, "cliff": 0.0}
    return [
        _problem(family, "5 x 5", Grid(5, 5, **pay).model(), "greedy+10", "greedy+40"),
        _problem(family, "7 x 7", Grid(7, 7, **pay).model(), "greedy+10", "half"),
        _problem(family, "6 x 6, slips and traps", Grid(6, 6, slip=0.2, cliffs=traps, **pay).model(),
                 "greedy+5", "softer"),
        _problem(family, "6 x 6, uniform behavior", Grid(6, 6, **pay).model(), "greedy+20", "uniform"),
        _problem(family, "5 x 5, endless", restarted(Grid(5, 5, slip=0.1, **pay).model()), "soft",
                 "greedy+60 & uniform"),
    ]  # fmt: skip
