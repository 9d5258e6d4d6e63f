"""Anderson extrapolation on a linear iteration with a known limit."""

from __future__ import annotations

import numpy as np
import pytest

from lingendice.solvers.gauss_seidel import Extrapolation


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


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_linear_map_of_few_modes_is_solved_in_few_passes(power):
    rng = np.random.default_rng(1)
    size, modes = 60, 5
    basis = np.linalg.qr(rng.normal(size=(size, modes)))[0]
    push = basis @ np.diag(np.linspace(0.9, 0.99, modes)) @ basis.T
    limit = rng.normal(size=size) if power == 0.0 else rng.uniform(1.0, 2.0, size)
    inflow = limit - push @ limit
    x = limit + 0.01 * basis @ np.ones(modes)
    memory = Extrapolation(x, depth=modes + 1, period=1, power=power)
    for _ in range(modes + 4):
        x = inflow + push @ x
        memory.observe(x)
    assert np.abs(x - limit).max() < 1e-10


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_a_combination_below_a_tenth_of_an_entry_is_refused_and_forgotten(power):
    """Steps of -0.1 and -0.099 point to 0.801 - 99 * 0.099, far below zero."""
    memory = Extrapolation(np.array([1.0, 1.0]), depth=4, period=1, power=power)
    assert not memory.observe(np.array([0.9, 1.0]))
    x = np.array([0.801, 1.0])
    assert memory.observe(x) == (power == 0.0)
    assert x[0] == pytest.approx(-9.0 if power == 0.0 else 0.801)
    # What comes after is a beginning: two more passes make the first combination.
    x = np.array([0.7, 1.0])
    assert memory.observe(x) == (power == 0.0)
    x = np.array([0.66, 1.0])
    assert memory.observe(x)
    if power:
        assert x[0] == pytest.approx(0.66 - 0.04 * 0.04 / (0.101 - 0.04))
