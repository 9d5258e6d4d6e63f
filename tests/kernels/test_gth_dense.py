"""Dense elimination against closed forms, extended precision and published distributions."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import COURTOIS

from lingendice.kernels.gth_dense import dense_bias, dense_distribution, dense_factor, gth_dense, rows_at_once


def exact_distribution(rates: np.ndarray, digits: int = 400) -> np.ndarray:
    """The distribution by a linear solve in extended precision: no elimination of ours."""
    n = rates.shape[0]
    with mpmath.workdps(digits):
        system = mpmath.zeros(n, n)
        for i in range(n):
            for j in range(n):
                if i != j:
                    rate = mpmath.mpf(float(rates[i, j]))
                    system[j, i] += rate
                    system[i, i] -= rate
        for i in range(n):
            system[n - 1, i] = 1
        right = mpmath.zeros(n, 1)
        right[n - 1] = 1
        return np.array([float(v) for v in mpmath.lu_solve(system, right)])


def mutation_chain(n_players: int, epsilon: float) -> np.ndarray:
    """Kandori, Mailath and Rob's game: one player at a time revises, and errs with probability epsilon."""
    payoff = 1.0 / 3.0
    n = n_players
    rates = np.zeros((n + 1, n + 1))
    for k in range(n + 1):
        if k > 0:
            p_up = (k - 1) / (n - 1) >= payoff
            rates[k, k - 1] = k / n * (epsilon / 2 if p_up else 1 - epsilon / 2)
        if k < n:
            p_up = k / (n - 1) >= payoff
            rates[k, k + 1] = (n - k) / n * (1 - epsilon / 2 if p_up else epsilon / 2)
    return rates


def simultaneous_mutation_chain(n_players: int, epsilon: float) -> np.ndarray:
    """The same game when all revise at once: the next state is a sum of two binomial numbers."""
    from scipy.stats import binom

    n = n_players
    k = np.arange(n + 1)
    rates = np.empty((n + 1, n + 1))
    for state in range(n + 1):
        p = 1 - epsilon / 2 if state / n > 1 / 3 else epsilon / 2
        rates[state] = binom.pmf(k, n, p)
    return rates


def nearly_decomposable(seed: int, blocks: int, size: int, coupling: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    n = blocks * size
    rates = rng.random((n, n)) * coupling
    for b in range(blocks):
        part = slice(b * size, (b + 1) * size)
        rates[part, part] = rng.random((size, size))
    return rates


def relative_error(x: np.ndarray, distribution: np.ndarray) -> float:
    return float(np.abs(x / distribution - 1).max())


def test_courtois_published_distribution():
    x, ok = gth_dense(COURTOIS)
    assert ok
    published = [0.08928, 0.09276, 0.04049, 0.15853, 0.11894, 0.12039, 0.27780, 0.10182]
    np.testing.assert_allclose(x, published, atol=6e-6)
    assert relative_error(x, exact_distribution(COURTOIS)) < 1e-14


@pytest.mark.parametrize("epsilon", [1e-6, 1e-10])
@pytest.mark.parametrize("chain", [mutation_chain, simultaneous_mutation_chain])
def test_mutation_chain(chain, epsilon):
    rates = chain(27, epsilon)
    x, ok = gth_dense(rates)
    assert ok
    assert relative_error(x, exact_distribution(rates)) < 1e-12


@pytest.mark.parametrize("coupling", [1e-3, 1e-8, 1e-14])
def test_nearly_decomposable(coupling):
    rates = nearly_decomposable(3, 3, 8, coupling)
    x, ok = gth_dense(rates)
    assert ok
    assert relative_error(x, exact_distribution(rates)) < 1e-13


@pytest.mark.parametrize("n", [2, 60, 130])
@pytest.mark.parametrize("ratio", [1e-2, 1e2, 10.0**-2.3])
def test_birth_death_spans_the_whole_range(n, ratio):
    # Closed form x_k = ratio^k: entries down to 1e-297, from either end.
    up, down = min(1.0, ratio), min(1.0, 1 / ratio)
    rates = np.diag(np.full(n - 1, up), 1) + np.diag(np.full(n - 1, down), -1)
    x, ok = gth_dense(rates)
    assert ok
    exponent = np.arange(n) * np.log(up / down)
    distribution = np.array([float(mpmath.mpf(up / down) ** int(k)) for k in range(n)])
    if ratio > 1:
        distribution = np.array([float(mpmath.mpf(down / up) ** int(n - 1 - k)) for k in range(n)])
    distribution /= distribution.sum()
    seen = exponent - exponent.max() > np.log(1e-300)
    assert relative_error(x[seen], distribution[seen]) < 1e-12
    assert (x[~seen] < 1e-299).all()


def test_barrier_below_the_smallest_number():
    # Two wells of comparable mass, and between them states whose mass float64 cannot hold.
    n = 101
    rates = np.zeros((n, n))
    for k in range(n - 1):
        rates[k, k + 1], rates[k + 1, k] = (1e-8, 0.5) if k < 50 else (0.5, 1e-8)
    rates[0, 1] = 2e-8
    x, ok = gth_dense(rates)
    assert ok
    distribution = exact_distribution(rates, digits=900)
    assert distribution[0] > 0.1
    assert distribution[-1] > 0.1
    assert relative_error(x[[0, 1, 2, -2, -1]], distribution[[0, 1, 2, -2, -1]]) < 1e-12
    assert x[50] == distribution[50] == 0.0


@pytest.mark.parametrize("n", [3, 8, 60])
@pytest.mark.parametrize("largest", [1e-140, 1e-160, 1e-175])
def test_rates_whose_products_underflow(n, largest):
    rates = np.random.default_rng(n).random((n, n))
    x, ok = gth_dense(largest * rates)
    assert ok
    assert relative_error(x, by_plain_loops(rates)) < 1e-13


def by_plain_loops(rates):
    """One state after the other, without blocks."""
    left = rates.copy()
    n = len(left)
    for k in range(n - 1, 0, -1):
        left[:k, k] /= left[k, :k].sum()
        left[:k, :k] += np.outer(left[:k, k], left[k, :k])
    x = np.ones(n)
    for k in range(1, n):
        x[k] = x[:k] @ left[:k, k]
    return x / x.sum()


@pytest.mark.parametrize("n", [97, 130, 300, 750])
def test_blocks_agree_with_plain_loops(n):
    rng = np.random.default_rng(n)
    rates = rng.random((n, n)) ** 6 * (rng.random((n, n)) < 0.3) + np.roll(np.eye(n), 1, axis=1) * 1e-5
    np.fill_diagonal(rates, 0)
    before = rates.copy()
    x, ok = gth_dense(rates)
    assert ok
    assert relative_error(x, by_plain_loops(rates)) < 1e-13
    np.testing.assert_array_equal(rates, before)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.floats(0.1, 1.0))
def test_distribution_of_random_chains(n, seed, density):
    rng = np.random.default_rng(seed)
    rates = 10.0 ** rng.uniform(-12, 0, (n, n)) * (rng.random((n, n)) < density)
    rates += np.roll(np.eye(n), 1, axis=1) * 1e-6
    rates[np.diag_indices(n)] = np.nan
    x, ok = gth_dense(rates)
    assert ok
    assert relative_error(x, exact_distribution(rates, 60)) < 1e-13


@pytest.mark.parametrize("n", [4, 120])
def test_reducible_chain_is_reported(n):
    rates = np.ones((n, n))
    rates[: n // 2, n // 2 :] = 0.0
    assert not gth_dense(rates)[1]
    assert not gth_dense(np.ascontiguousarray(rates.T))[1]


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.integers(1, 12), st.just(120)), st.integers(0, 10**6), st.floats(0.0, 0.6))
def test_irreducible_as_scipy_says(n, seed, density):
    from scipy.sparse.csgraph import connected_components

    rates = (np.random.default_rng(seed).random((n, n)) < density).astype(float)
    classes = connected_components(rates, directed=True, connection="strong")[0]
    assert gth_dense(rates)[1] == (classes == 1)


@pytest.mark.parametrize("n", [1, 5, 150])
def test_bias_solves_its_equation(n):
    rng = np.random.default_rng(n)
    rates = rng.random((n, n))
    np.fill_diagonal(rates, 0)
    reward = rng.normal(size=n)
    front, exit_rate, status = dense_factor(rates)
    assert status < 0
    h = dense_bias(front, exit_rate, reward)
    x, _ = gth_dense(rates)
    left = rates.sum(1) * h - rates @ h
    np.testing.assert_allclose(left, reward - x @ reward, atol=1e-11)
    assert h[-1] == 0.0


def test_stop_between_blocks():
    with pytest.raises(InterruptedError):
        gth_dense(np.ones((200, 200)), monitor=lambda: True)


def test_a_block_of_many_states_is_carried_in_portions():
    """64 pivots of 16,000 states take 3e10 operations, a second and more: Ctrl-C does not wait for them."""
    n, looks = 2000, []
    rates = np.random.default_rng(0).random((n, n))
    front, exit_rate, status = dense_factor(rates, lambda: looks.append(0) or False)
    assert status < 0
    blocks = -(-n // 64)
    assert len(looks) > blocks + blocks // 2
    portion = rows_at_once(16_000, 0, 64)
    assert portion % 64 == 0
    assert 2 * 64 * 16_000 * portion < 5e8
    x, lost = dense_distribution(front, exit_rate)
    assert lost < 0
    np.testing.assert_allclose(x @ rates, x * rates.sum(axis=1), rtol=1e-12)
