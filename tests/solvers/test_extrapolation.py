"""Anderson extrapolation on a linear iteration with a known limit."""

from __future__ import annotations

import numpy as np

from lingendice.solvers.extrapolation import Extrapolation


def passes_needed(accelerate: bool) -> int:
    rng = np.random.default_rng(0)
    size = 200
    chain = 0.995 * np.eye(size) + 0.005 * rng.dirichlet(np.ones(size), size)
    push = 0.99 * chain.T
    inflow = rng.random(size)
    limit = np.linalg.solve(np.eye(size) - push, inflow)
    x = inflow.copy()
    memory = Extrapolation(x)
    for count in range(1, 5000):
        x = inflow + push @ x
        if accelerate:
            memory.observe(x)
        if np.abs(x - limit).sum() < 1e-9 * limit.sum():
            return count
        assert (x >= 0.0).all()
    return 5000


def test_extrapolation_saves_most_passes_and_keeps_the_limit():
    assert passes_needed(True) * 10 < passes_needed(False) < 5000
