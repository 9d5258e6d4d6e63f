"""The toy-text environments of Gymnasium, from their transition tables."""

from __future__ import annotations

import warnings

import numpy as np

from trust.model import Model, explore, from_outcomes, greedy, mix, optimal_q, soft, uniform
from trust.problem import Problem

FAMILY = "Gymnasium toy text"


def table(name: str, **options) -> Model:
    """The transition table of an environment."""
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = gymnasium.make(name, **options).unwrapped
    rows = environment.P
    start = np.asarray(environment.initial_state_distrib, dtype=float)
    return from_outcomes(len(rows), len(rows[0]), lambda state, action: rows[state][action], start)


def problems() -> list[Problem]:
    """FrozenLake of two sizes, CliffWalking and Taxi, each logged by what a user would have."""
    lake, dry = table("FrozenLake-v1"), table("FrozenLake-v1", is_slippery=False)
    wide = table("FrozenLake8x8-v1")
    cliff, windy = table("CliffWalking-v1"), table("CliffWalkingSlippery-v1")
    cab = table("Taxi-v4")

    def made(name, model, aim, logged, sizes):
        q = optimal_q(model, 0.99)
        policies = {
            "greedy": greedy(q),
            "near": explore(greedy(q), 0.1),
            "middle": explore(greedy(q), 0.3),
            "wide": explore(greedy(q), 0.5),
            "soft": soft(q, 0.5),
            "half": mix(soft(q, 0.3), uniform(model), 0.5),
            "uniform": uniform(model),
        }
        behaviors = tuple(policies[one] for one in logged.split(" & "))
        return Problem(FAMILY, name, model, policies[aim], behaviors, sizes)

    return [
        made("FrozenLake 4x4, near", lake, "near", "middle", ((50, 100), (400, 100))),
        made("FrozenLake 4x4, uniform behavior", lake, "near", "uniform", ((50, 100), (500, 100))),
        made("FrozenLake 4x4 without slips", dry, "near", "wide", ((50, 100), (400, 100))),
        made("FrozenLake 8x8", wide, "near", "middle", ((50, 200), (400, 200))),
        made("FrozenLake 8x8, pooled", wide, "greedy", "wide & half", ((100, 200), (600, 200))),
        made("CliffWalking", cliff, "near", "middle", ((50, 200), (200, 200))),
        made("CliffWalking, slippery", windy, "half", "middle & uniform", ((50, 200), (200, 200))),
        made("Taxi-v4", cab, "near", "middle & wide", ((100, 100), (600, 100))),
    ]
