"""Taxi: the rules, the exact answers, the sampler and the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lingendice.environments import taxi

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "taxi"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="published Taxi policies not present")


def state_of(x, y, waiting, carried):
    return carried + 5 * (waiting + 16 * (5 * x + y))


@pytest.fixture(scope="module")
def random_policy():
    return np.random.default_rng(5).dirichlet(np.ones(6), size=2000)


@pytest.fixture(scope="module")
def log(random_policy):
    return taxi.simulate(random_policy, n_episodes=5000, n_steps=200, seed=11)


def test_rows_of_the_exact_kernel_are_distributions():
    matrix = taxi.transition_matrix()
    assert matrix.shape == (12_000, 2_000)
    assert matrix.data.min() > 0
    np.testing.assert_allclose(np.asarray(matrix.sum(axis=1)).ravel(), 1, atol=1e-15)


def test_picking_up_and_coming_and_going_by_hand():
    """At (4, 0), corner 2, with corners 0 and 2 waiting: pick up, then passengers change."""
    matrix, reward = taxi.transition_matrix(), taxi.expected_reward()
    start = state_of(4, 0, 0b0101, taxi.EMPTY)
    assert reward[start, 4] == -1
    row = matrix[start * 6 + 4].toarray().ravel()
    # Corner 0 stays (.95), 1 stays empty (.95), 2 was just emptied and fills again (.1), 3 fills (.2).
    expected = 0.95 * 0.95 * 0.1 * 0.2 / 3
    for destination in (0, 1, 3):
        assert row[state_of(4, 0, 0b1101, destination)] == pytest.approx(expected, rel=1e-14)
    assert row[state_of(4, 0, 0b1101, 2)] == 0
    assert row[state_of(4, 0, 0b1101, taxi.EMPTY)] == 0


@pytest.mark.parametrize(
    ("place", "carried", "expected"),
    [((0, 4), 1, 20.0), ((0, 4), 2, -1.0), ((2, 2), 1, -1.0), ((0, 4), taxi.EMPTY, -1.0)],
)
def test_dropping_off_pays_at_the_destination_and_always_empties(place, carried, expected):
    start = state_of(*place, 0b0000, carried)
    assert taxi.expected_reward()[start, 5] == expected
    reached = taxi.transition_matrix()[start * 6 + 5].indices
    assert np.all(reached % 5 == taxi.EMPTY)


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        (0, (1, 1), (2, 1)),
        (1, (1, 1), (1, 2)),
        (2, (1, 1), (0, 1)),
        (3, (1, 1), (1, 0)),
        (0, (4, 3), (4, 3)),
        (3, (2, 0), (2, 0)),
    ],
)
def test_moves_stop_at_the_walls(action, before, after):
    reached = taxi.transition_matrix()[state_of(*before, 0, 3) * 6 + action].indices
    assert set(reached // 80) == {5 * after[0] + after[1]}
    assert set(reached % 5) == {3}


def test_the_sampler_follows_the_exact_kernel(log):
    """Chi-square of sampled next states against exact chances, over all well-visited cells."""
    matrix, reward = taxi.transition_matrix(), taxi.expected_reward()
    cell = log.state.astype(np.int64) * 6 + log.action
    np.testing.assert_array_equal(log.reward, reward.ravel()[cell])
    visits = np.bincount(cell, minlength=12_000)
    seen, counts = np.unique(cell * 2000 + log.next_state, return_counts=True)
    chance = np.asarray(matrix[seen // 2000, seen % 2000]).ravel()
    assert chance.min() > 0, "a transition was drawn that the rules forbid"
    # sum over s' of (n - v P)^2 / (v P) = sum n^2 / (v P) - v, over the drawn entries alone
    per_cell = np.bincount(
        seen // 2000, weights=counts**2 / (visits[seen // 2000] * chance), minlength=12_000
    )
    often = visits >= 2000
    assert often.sum() > 20
    freedom = np.diff(matrix.indptr)[often] - 1
    statistic = (per_cell[often] - visits[often]).sum()
    assert 1e-4 < stats.chi2.sf(statistic, freedom.sum()) < 1 - 1e-4


def test_the_sampler_follows_the_policy_and_the_initial_distribution(log, random_policy):
    first = log.state[::200]
    assert np.all(first % 5 == taxi.EMPTY)
    assert stats.chisquare(np.bincount(first // 5, minlength=400)).pvalue > 1e-3
    visits = np.bincount(log.state, minlength=2000)
    counts = np.bincount(log.state.astype(np.int64) * 6 + log.action, minlength=12_000).reshape(2000, 6)
    z = (counts - visits[:, None] * random_policy) / np.sqrt(
        visits[:, None] * random_policy * (1 - random_policy) + 1e-300
    )
    z = z[visits > 300]
    assert abs(np.mean(z**2) - 1) < 0.1
    np.testing.assert_array_equal(log.state[1:200], log.next_state[:199])


def test_logs_depend_on_the_seed_alone(monkeypatch, random_policy):
    whole = taxi.simulate(random_policy, 40, 50, seed=3, threads=1)
    monkeypatch.setattr(taxi, "_STEPS_A_CALL", 17)
    pieces = taxi.simulate(random_policy, 40, 50, seed=3, threads=2)
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)
    fewer = taxi.simulate(random_policy, 7, 50, seed=3)
    np.testing.assert_array_equal(fewer.next_state, whole.next_state[: 7 * 50])
    assert not np.array_equal(taxi.simulate(random_policy, 40, 50, seed=4).state, whole.state)


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_discounted_value_is_the_sum_of_discounted_rewards(random_policy, gamma):
    chain, reward = taxi.policy_chain(random_policy)
    distribution, total, weight = taxi.initial_distribution(), 0.0, 1 - gamma
    while weight > 1e-16:
        total += weight * (distribution @ reward)
        distribution, weight = chain.T @ distribution, weight * gamma
    assert taxi.policy_value(random_policy, gamma) == pytest.approx(total, abs=1e-12)


def test_average_value_agrees_with_power_iteration(random_policy):
    chain, reward = taxi.policy_chain(random_policy)
    distribution = taxi.initial_distribution()
    for _ in range(3000):
        distribution = chain.T @ distribution
    assert np.abs(distribution - taxi.stationary_distribution(random_policy)).sum() < 1e-12
    assert taxi.policy_value(random_policy) == pytest.approx(distribution @ reward, abs=1e-12)


@needs_published
@pytest.mark.parametrize(
    ("name", "gamma", "value"),
    [
        ("pi19", 0.9, -0.632557),
        ("pi19", 0.99, -0.195819),
        ("pi19", 0.999, -0.129469),
        ("pi19", 1.0, -0.121727),
        ("pi18", 1.0, -0.248597),
    ],
)
def test_published_policies_have_their_published_values(name, gamma, value):
    assert taxi.policy_value(np.load(PUBLISHED / f"{name}.npy"), gamma) == pytest.approx(value, abs=6e-7)


@needs_published
def test_published_stationary_distribution():
    distribution = taxi.stationary_distribution(np.load(PUBLISHED / "pi19.npy"))
    np.testing.assert_allclose(distribution, np.load(PUBLISHED / "true_stationary_pi19.npy"), rtol=1e-9)


def test_training_is_reproducible_and_better_than_chance():
    short = {"target_iterations": 60, "base_iterations": 50, "rate": 0.1}
    one, again = taxi.train_policies(seed=1, **short), taxi.train_policies(seed=1, **short)
    np.testing.assert_array_equal(one.target, again.target)
    np.testing.assert_array_equal(one.base, again.base)
    other = taxi.train_policies(seed=2, **short)
    assert not np.array_equal(one.target, other.target)
    assert not np.array_equal(one.target, one.base)
    chance = taxi.policy_value(np.full((2000, 6), 1 / 6))
    assert taxi.policy_value(one.target) > chance + 0.3


def test_training_by_default_gives_a_target_better_than_its_base():
    trained = taxi.train_policies()
    assert taxi.policy_value(trained.target) > taxi.policy_value(trained.base) + 0.1
    assert trained.base.min() > 0


def test_behavior_mixture_and_its_checks(random_policy):
    uniform = np.full((2000, 6), 1 / 6)
    np.testing.assert_array_equal(taxi.mix_policies(random_policy, uniform, 1.0), random_policy)
    half = taxi.mix_policies(random_policy, uniform, 0.5)
    np.testing.assert_allclose(half, (random_policy + uniform) / 2)
    with pytest.raises(ValueError, match="alpha"):
        taxi.mix_policies(random_policy, uniform, 1.5)
    broken = random_policy.copy()
    broken[17, 2] = -0.5
    with pytest.raises(ValueError, match="row 17"):
        taxi.simulate(broken, 1, 1)
    with pytest.raises(ValueError, match="shape"):
        taxi.policy_value(uniform[:10])
    with pytest.raises(ValueError, match="n_steps"):
        taxi.simulate(uniform, 1, 0)
    with pytest.raises(ValueError, match="gamma"):
        taxi.policy_value(uniform, 1.1)
    with pytest.raises(ValueError, match="n_episodes must be a whole"):
        taxi.simulate(uniform, 2.5, 1)
    with pytest.raises(ValueError, match="seed must be a whole"):
        taxi.simulate(uniform, 1, 1, seed=1.5)
    with pytest.raises(ValueError, match="base_iterations must be a whole"):
        taxi.train_policies(target_iterations=2, base_iterations=1.5)
    for call in (lambda: taxi.train_policies(temperature=0.0), lambda: taxi.soft_policy(uniform, 0.0)):
        with pytest.raises(ValueError, match="temperature must be positive"):
            call()
