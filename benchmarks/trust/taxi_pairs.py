"""Taxi: sixteen pairs of behavior and target, half of them (of another training run) for the report."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trust import methods
from trust.model import Floats, Model, explore, greedy, mix, sharpen
from trust.problem import Problem

SIZES = ((25, 100), (50, 200), (100, 400), (200, 800))
"""Four sizes, so that one sees whether the error falls with data."""

DEVELOPMENT_SEED, REPORT_SEED = 0, 1


@lru_cache(maxsize=1)
def taxi_model() -> Model:
    """The exact table; the taxi starts empty, its place and the passengers are uniform."""
    matrix, reward = methods.taxi_tables()
    n_states, n_actions = reward.shape
    initial = np.zeros(n_states)
    initial[4::5] = 1 / (n_states // 5)
    matrix.eliminate_zeros()
    worth = np.repeat(reward.ravel(), np.diff(matrix.indptr))
    return Model(
        n_states, n_actions, matrix.indptr.astype(np.int64), matrix.data, matrix.indices.astype(np.int64),
        worth, np.zeros(matrix.nnz, dtype=bool), initial,
    )  # fmt: skip


@lru_cache(maxsize=2)
def policies(seed: int) -> dict[str, Floats]:
    """A trained policy, the same a little and much earlier, and variations."""
    trained, base = methods.taxi_policies(seed, 950)
    _, earlier = methods.taxi_policies(seed, 700)
    return {
        "trained": trained,
        "base": base,
        "earlier": earlier,
        "uniform": np.full_like(trained, 1 / trained.shape[1]),
        "trained+5": explore(trained, 0.05),
        "trained+20": explore(trained, 0.2),
        "base+20": explore(base, 0.2),
        "half uniform": explore(trained, 0.5),
        "base, half uniform": explore(base, 0.5),
        "two thirds trained": mix(trained, base, 0.34),
        "sharpened 2": sharpen(trained, 2),
        "sharpened 4": sharpen(trained, 4),
        "greedy": greedy(trained),
    }


DEVELOPMENT_PAIRS = [
    ("base", "trained"),
    ("base", "trained+20"),
    ("base", "sharpened 2"),
    ("base & earlier", "trained"),
    ("trained", "base"),
    ("earlier", "trained+5"),
    ("base, half uniform", "trained"),
    ("base+20", "greedy"),
]
REPORT_PAIRS = [
    ("base", "trained+5"),
    ("base", "greedy"),
    ("earlier", "trained"),
    ("base & earlier & half uniform", "trained+20"),
    ("trained", "earlier"),
    ("two thirds trained", "sharpened 4"),
    ("half uniform", "trained"),
    ("base", "base+20"),
]


def _pairs(pairs: list[tuple[str, str]], seed: int) -> list[Problem]:
    known = policies(seed)
    return [
        Problem(
            "Taxi", f"{behavior} -> {target}", taxi_model(), known[target],
            tuple(known[one] for one in behavior.split(" & ")), SIZES,
        )
        for behavior, target in pairs
    ]  # fmt: skip


def development() -> list[Problem]:
    """Half of the pairs."""
    return _pairs(DEVELOPMENT_PAIRS, DEVELOPMENT_SEED)


def report() -> list[Problem]:
    """The other half."""
    return _pairs(REPORT_PAIRS, REPORT_SEED)
