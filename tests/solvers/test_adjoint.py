"""Values of states where sweeps are too slow, or rounding leaves them no digits."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

import lingendice as lg
from lingendice.solvers import adjoint, aggregation

ROUNDING = 16 * np.finfo(float).eps


def cycle(n):
    here = np.arange(n)
    return sp.csr_array((np.ones(n), (here, (here + 1) % n)), shape=(n, n))


def ring(n, onward):
    return onward * cycle(n) + (1.0 - onward) * cycle(n).T


def drifting_grid(side, drift):
    """A walk on a cube whose steps up are (1 + drift) / (1 - drift) times as frequent as those down."""
    place = np.arange(side**3).reshape((side,) * 3)
    total = sp.csr_array((side**3,) * 2)
    for axis in range(3):
        low = np.take(place, range(side - 1), axis).ravel()
        high = np.take(place, range(1, side), axis).ravel()
        shape = total.shape
        total += sp.csr_array((np.full(low.size, 1.0 + drift), (low, high)), shape=shape)
        total += sp.csr_array((np.full(low.size, 1.0 - drift), (high, low)), shape=shape)
    return total


def varying(values):
    return values - values.mean()


@pytest.mark.parametrize("left", [1e-3, 1e-5, 1e-7, 1e-9])
def test_values_of_a_cycle_by_the_sum_of_its_rewards(left):
    n, gamma = 3000, 1.0 - left
    reward = np.random.default_rng(0).random(n)
    values = lg.solve(cycle(n), gamma=gamma, reward=reward).state_values
    exact = np.empty(n, np.longdouble)
    one_round = gamma ** np.arange(n, dtype=np.longdouble) @ reward.astype(np.longdouble)
    exact[0] = one_round / -np.expm1(n * np.log(np.longdouble(gamma)))
    for state in reversed(range(1, n)):
        exact[state] = reward[state] + gamma * exact[(state + 1) % n]
    np.testing.assert_allclose(values, exact, rtol=1e-9)
    np.testing.assert_allclose(varying(values), varying(exact), atol=1e-9 + ROUNDING * np.abs(exact).max())


@pytest.mark.parametrize("left", [1e-6, 1e-10, 1e-14])
def test_values_of_few_states_are_right_to_the_last_digits(left):
    n, gamma = 12, 1.0 - left
    reward = np.random.default_rng(0).integers(0, 9, n)
    values = lg.solve(cycle(n), gamma=gamma, reward=reward).state_values
    rate = Fraction(gamma)
    exact = [sum(rate**k * int(earned) for k, earned in enumerate(reward)) / (1 - rate**n)]
    for earned in reward[:0:-1]:
        exact.append(int(earned) + rate * exact[-1])
    np.testing.assert_allclose(values, [float(value) for value in [exact[0], *exact[:0:-1]]], rtol=1e-15)


@pytest.mark.parametrize("gamma", [0.999, 1.0 - 1e-6, 1.0 - 1e-8])
@pytest.mark.parametrize("weights", [ring(4000, 0.5), ring(4000, 0.9)], ids=["even", "drifting"])
def test_values_of_slow_chains_by_sparse_elimination_of_their_differences(weights, gamma):
    n = weights.shape[0]
    reward = np.random.default_rng(1).random(n)
    values = lg.solve(weights, gamma=gamma, reward=reward).state_values
    left = reward + gamma * (weights @ values) - values
    assert np.abs(left).max() < 1e-9 + ROUNDING * np.abs(values).max()


@pytest.mark.parametrize("gamma", [0.999, 1.0 - 1e-7])
def test_values_where_some_steps_end_and_others_fall_back(gamma):
    n = 2500
    rng = np.random.default_rng(2)
    here = np.arange(n)
    state = np.tile(here[here != 7], 3)  # the log enters state 7 and never leaves it
    following = (state + rng.integers(-1, 2, state.size)) % n
    reward, terminal = rng.random(state.size), rng.random(state.size) < 3e-4
    counts = lg.Counts.from_transitions(
        state, following, terminal=terminal, reward=reward, episode=np.arange(state.size), n_states=n
    )
    restart = rng.dirichlet(np.ones(n))
    solution = lg.solve(counts, gamma=gamma, restart=restart)
    values = solution.state_values
    onward = np.where(terminal, 0.0, values[following])
    again = np.bincount(state, reward + gamma * onward, n) / np.maximum(np.bincount(state, minlength=n), 1)
    again[7] = solution.value + gamma * restart @ values  # what was never left earns the value
    assert np.abs(again - values).max() < 1e-9 + ROUNDING * np.abs(values).max()


@pytest.fixture
def unsettled(monkeypatch):
    """The levels of the iterative solver get one cycle, and nothing is eliminated before."""
    monkeypatch.setattr(adjoint, "MODERATE_FLOPS", 0.0)
    monkeypatch.setattr(aggregation, "relative_values", partial(aggregation.relative_values, max_cycles=1))


@pytest.mark.parametrize("gamma", [1.0, 1.0 - 1e-6])
def test_values_are_eliminated_where_the_levels_do_not_settle(unsettled, gamma):
    weights = drifting_grid(10, 0.9)
    reward = np.random.default_rng(3).random(weights.shape[0])
    solution = lg.solve(weights, gamma=gamma, reward=reward)
    values = solution.state_values
    following = sp.diags_array(1.0 / weights.sum(axis=1)) @ weights
    left = reward - (gamma == 1.0) * solution.value + gamma * (following @ values) - values
    assert np.abs(left).max() < 1e-14 * np.abs(values).max()


@pytest.mark.parametrize("gamma", [1.0, 1.0 - 1e-6])
def test_values_that_nothing_settles_are_refused(unsettled, monkeypatch, gamma):
    monkeypatch.setattr(adjoint, "PATIENT_FLOPS", 1.0)
    weights = drifting_grid(10, 0.9)
    solution = lg.solve(weights, gamma=gamma, reward=np.arange(weights.shape[0], dtype=float))
    with pytest.raises(ValueError, match="values of states did not settle"):
        _ = solution.state_values
