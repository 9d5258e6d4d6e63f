"""Visits and returns of episodes that end, against dense linear algebra and loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.solvers import absorbing
from lingendice.solvers.absorbing import (
    UntilEnd,
    find_traps,
    leads_to,
    open_traps,
    visits_of_an_episode,
    with_more_ends,
)
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


# -- values and visits until any end -------------------------------------------------------------------------


def steps_that_end(n, seed, ending=0.01):
    """Steps between states that all lead to an end, and the probability of ending."""
    rng = np.random.default_rng(seed)
    steps = sparse.random_array((n, n), density=min(1.0, 6 / n), rng=rng, format="csr")
    end = ending * rng.random(n) + 1e-6
    total = np.asarray(steps.sum(axis=1)).ravel() + end
    return sparse.csr_array(sparse.diags_array(1.0 / total) @ steps), end / total


@pytest.mark.parametrize("method", ["gth", "elimination", "gauss-seidel"])
@pytest.mark.parametrize("n", [1, 5, 60, 250])
def test_values_and_visits_solve_both_equations(method, n, monkeypatch):
    """Against dense solves, right-hand sides with zeros; in states that nothing reaches the answer is 0."""
    if method != "gth":
        monkeypatch.setattr(absorbing, "DENSE_NODES", 0)
    if method == "gauss-seidel":
        monkeypatch.setattr(absorbing, "SOON_FLOPS", -1.0)
    steps, ending = steps_that_end(n, n)
    rng = np.random.default_rng(0)
    reward, mass = (rng.random(n) * (rng.random(n) < 0.3) for _ in range(2))
    reward[0] = mass[-1] = 1.0
    system = UntilEnd(steps, ending, Controls())
    values, visits = system.values(reward), system.visits(mass)
    inverse = np.linalg.inv(np.eye(n) - steps.toarray())
    assert system.method == method
    np.testing.assert_allclose(values, inverse @ reward, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(visits, mass @ inverse, rtol=1e-9, atol=1e-13)
    assert (values >= 0.0).all()
    assert (visits >= 0.0).all()
    assert system.error <= 1e-10


@pytest.mark.parametrize("dense", [True, False])
def test_rare_ends_cost_no_digits(dense, monkeypatch):
    """Two states that are left with probability 1e-18: 1 - sum T has no digits of that."""
    monkeypatch.setattr(absorbing, "DENSE_NODES", 300 if dense else 0)
    steps = sparse.csr_array(np.array([[0.5, 0.5], [1.0, 0.0]]))
    system = UntilEnd(steps, np.array([1e-18, 0.0]), Controls())
    # d0 1e-18 = 1, d1 = d0 / 2.
    np.testing.assert_allclose(system.visits(np.array([0.0, 1.0])), [1e18, 0.5e18 + 1.0], rtol=1e-14)
    np.testing.assert_allclose(system.values(np.ones(2)), [1.5e18, 1.5e18 + 1.0], rtol=1e-14)


def test_paths_lead_to_a_goal_unless_stopped():
    steps = sparse.csr_array(np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0]]))
    goal = np.array([False, False, True, False])
    assert leads_to(steps, goal).tolist() == [True] * 4
    stopped = np.array([True, False, False, False])
    assert leads_to(steps, goal, stopped).tolist() == [False, True, True, False]
