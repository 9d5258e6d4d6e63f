"""Visits and returns of episodes that end, against dense linear algebra and loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.solvers.absorbing import find_traps, open_traps, visits_of_an_episode, with_more_ends
from lingendice.solvers.adjoint import solve_adjoint
from lingendice.solvers.control import Controls


def ending_chain(n, seed, degree=3, ending=0.3):
    """Random counts of a chain some of whose transitions end, with its absorbing rows and dense matrix."""
    rng = np.random.default_rng(seed)
    state = np.repeat(np.arange(n), degree)
    following = rng.integers(0, n, state.size)
    ends = rng.random(state.size) < ending
    ends[0] = True
    episode = np.arange(state.size)
    counts = lg.Counts.from_transitions(
        state, following, reward=rng.normal(size=state.size), terminal=ends, episode=episode, n_states=n
    )
    operator = compose(counts, Choices(gamma=1.0, initial=np.full(n, 1.0 / n)))
    rows = replace(operator.chain, out=np.zeros_like(operator.chain.out))
    dense = np.zeros((n, n))
    np.add.at(dense, (state[~ends], following[~ends]), 1.0 / degree)
    return rows, dense, rng


def can_end(dense):
    reach = np.eye(len(dense)) + (dense > 0)
    for _ in range(len(dense)):
        reach = np.minimum(reach @ reach, 1.0)
    return reach @ (dense.sum(axis=1) < 1 - 1e-9) > 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [5, 30, 500])
def test_visits_and_returns_solve_their_equations(n, seed):
    rows, dense, rng = ending_chain(n, seed)
    if not can_end(dense).all():
        rows = open_traps(rows, np.where(can_end(dense), 0.0, 0.25), np.full(n, 0.5 / n))
        dense = rows.dense()
    initial, reward = rng.dirichlet(np.ones(n)), rng.normal(size=n)
    visits, outcome = visits_of_an_episode(rows, initial, "auto", Controls(tol=1e-10))
    expected = np.linalg.solve((np.eye(n) - dense).T, initial)
    assert outcome.converged
    np.testing.assert_allclose(visits, expected, rtol=1e-10, atol=1e-14)
    values = solve_adjoint(rows, 1.0, reward, visits / visits.sum(), 1e-10, 1)
    np.testing.assert_allclose(values, np.linalg.solve(np.eye(n) - dense, reward), rtol=1e-8, atol=1e-9)
    assert initial @ values == pytest.approx(visits @ reward, rel=1e-9)


def test_traps_are_the_states_without_a_way_to_an_end():
    found = []
    for seed in range(20):
        rows, dense, _ = ending_chain(40, seed, degree=1, ending=0.05)
        np.testing.assert_array_equal(find_traps(rows), ~can_end(dense))
        found.append(find_traps(rows).any())
    assert 5 < sum(found) < 20


def test_open_traps_go_on_and_end_as_they_are_told():
    rows, dense, _ = ending_chain(12, 3, degree=1)
    trap, onward = ~can_end(dense), np.full(12, 0.9 / 12)
    opened = open_traps(rows, np.where(trap, 0.2, 0.0), onward)
    expected = np.where(trap, 0.8, 1.0)[:, None] * dense + np.where(trap, 0.2, 0.0)[:, None] * onward
    np.testing.assert_allclose(opened.dense(), expected, atol=1e-15)
    assert not find_traps(opened).any()


def test_more_ends_take_their_share_of_every_visit():
    rows, dense, _ = ending_chain(12, 4)
    np.testing.assert_allclose(with_more_ends(rows, 0.1).dense(), 0.9 * dense, atol=1e-15)
