"""The Markov test: its moments against every permutation, its size, and its power."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import A, S, count, random_mdp, walk
from scipy.stats import norm

import lingendice as lg
from lingendice.model.compose import Choices
from lingendice.results.markov_test import (
    RowOrder,
    _History,
    _Outcomes,
    _permutation_moments,
    combined_z,
    markov_test,
    ranks_within,
    row_order,
)
from lingendice.solvers.shrinkage import shrink

# Rows out of order are among what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")


def strongest(counts, values, gamma, ending=0.0):
    found = markov_test(counts, values, gamma, ending)
    return None if found is None else found.z


@pytest.mark.parametrize("sizes", [(3, 2, 1), (4, 2), (1, 1, 1, 1, 2), (7,)])
def test_moments_are_those_of_all_permutations(sizes):
    k = sum(sizes)
    y = np.random.default_rng(k).exponential(size=k)
    y -= y.mean()
    group = np.repeat(np.arange(len(sizes)), sizes)
    every = [
        (np.bincount(group, weights=np.array(one)) ** 2 / sizes).sum() for one in itertools.permutations(y)
    ]
    found = _permutation_moments(
        *(
            np.array([float(v)])
            for v in (k, len(sizes), sum(1 / n for n in sizes), (y**2).sum(), (y**4).sum())
        )
    )
    expected = (np.mean(every), np.var(every)) if len(sizes) > 1 else (0.0, 0.0)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_chance_is_a_standard_normal():
    rng = np.random.default_rng(1)
    found = [
        _Outcomes.of(rng.exponential(size=300), rng.integers(0, 8, 300)).group_z(rng.integers(-1, 6, 300))
        for _ in range(1500)
    ]
    assert np.mean(found) == pytest.approx(0.0, abs=0.1)
    assert np.std(found) == pytest.approx(1.0, abs=0.08)
    assert np.mean(np.array(found) > 2.326) == pytest.approx(0.01, abs=0.008)
    assert max(found) < 5


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ending", [0.0, 0.1])
def test_logs_of_a_markov_chain_raise_no_alarm(gamma, ending):
    mdp = random_mdp()
    for seed in range(25):
        counts = count(walk(mdp, 40, 30, seed=seed, ending=ending))
        found = shrink(counts, Choices(gamma=gamma, policy=mdp["policy"]))
        assert strongest(counts, found.values, gamma, found.outcome.ending) < 3


def hidden_log(seed, n_episodes=60, unit=1.0):
    """Two steps from one visible state; the reward of the second asks what the first action was."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2, (2, n_episodes * 4))
    n = first.size
    state, action = np.tile([0, 1], n), np.stack([first, second], axis=1).ravel()
    reward = np.stack([np.zeros(n), np.where(first == second, unit, -unit)], axis=1).ravel()
    return lg.Counts.from_transitions(
        state, np.tile([1, 0], n), action=action, reward=reward, episode=np.repeat(np.arange(n), 2),
        terminal=np.tile([False, True], n), n_states=2, n_actions=2, keep_episodes=True,
    )  # fmt: skip


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_a_hidden_state_is_found(gamma):
    for seed in range(10):
        counts = hidden_log(seed)
        found = shrink(counts, Choices(gamma=gamma, policy=np.full((2, 2), 0.5)))
        assert strongest(counts, found.values, gamma, found.outcome.ending) > 8


def test_the_unit_of_rewards_makes_no_difference():
    """Rewards of 1e-12 were taken for rounding, and the check passed over what it finds in other units."""
    policy = np.full((2, 2), 0.5)
    checks = [lg.solve(hidden_log(0, unit=one), 0.9, policy=policy).diagnose() for one in (1.0, 1e-12)]
    plain, scaled = ({check.name: check for check in some}["Markov property"] for some in checks)
    assert not plain.ok
    assert scaled.number == pytest.approx(plain.number, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"horizon": 5}])
def test_rewards_in_place_of_the_logged_ones_are_what_is_tested(options):
    """The logged rewards tell of a hidden state, those that are asked for do not."""
    policy, reward = np.full((2, 2), 0.5), np.array([[1.0, 2.0], [3.0, 5.0]])
    counts = hidden_log(0)
    checks = lg.solve(counts, 0.9, policy=policy, reward=reward, **options).diagnose()
    (check,) = (check for check in checks if check.name == "Markov property")
    assert check.ok
    logged = lg.solve(counts, 0.9, policy=policy, **options).diagnose()
    assert not all(check.ok for check in logged)


def persistence_z(worth, cell, episode):
    """Whether outcomes of a cell agree within episodes; rows are in the order of time."""
    seen = _Outcomes.of(worth, cell)
    return seen.slope_z(seen.earlier_here(episode)[0])


def test_what_lasts_through_an_episode_is_found_and_chance_is_not():
    rng = np.random.default_rng(1)
    episode, cell = np.repeat(np.arange(40), 25), rng.integers(0, 5, 1000)
    by_chance = [persistence_z(rng.exponential(size=1000), cell, episode) for _ in range(400)]
    assert np.mean(by_chance) == pytest.approx(-0.1, abs=0.2)
    assert np.std(by_chance) == pytest.approx(1.0, abs=0.12)
    kind = rng.choice([-0.6, 0.6], (40, 5))[episode, cell]
    assert persistence_z(rng.normal(size=1000) + kind, cell, episode) > 5
    earlier, before = [], {}
    worth = rng.normal(size=1000)
    mean = np.array([worth[cell == x].mean() for x in range(5)])
    scale = np.array([worth[cell == x].std(ddof=1) for x in range(5)])
    for e, x, y in zip(episode, cell, (worth - mean[cell]) / scale[cell], strict=True):
        earlier.append(before.get((e, x), 0.0))
        before[e, x] = before.get((e, x), 0.0) + y
    usual = np.array([np.array(earlier)[cell == x].mean() for x in range(5)])
    by_hand = (worth - mean[cell]) / scale[cell] * (np.array(earlier) - usual[cell])
    expected = np.sum(by_hand) / np.sqrt(np.sum(np.square(by_hand)))
    assert persistence_z(worth, cell, episode) == pytest.approx(expected)


def test_without_the_order_of_rows_there_is_no_test():
    mdp = random_mdp()
    log = walk(mdp, 20, 30, seed=1)
    values = np.arange(S, dtype=float)
    assert row_order(count(log, keep=False)) is None
    assert strongest(count(log, keep=False), values, 0.9) is None
    order = np.random.default_rng(0).permutation(log["state"].size)
    shuffled = count({name: column[order] for name, column in log.items()})
    assert row_order(shuffled).unbroken < 0.5
    assert strongest(shuffled, values, 0.9) is None
    assert row_order(count(log)).unbroken == 1.0


def test_interleaved_episodes_are_put_in_order():
    mdp = random_mdp()
    log = walk(mdp, 6, 20, seed=1)
    together = {name: column.reshape(6, 20).T.ravel() for name, column in log.items()}
    values = np.arange(S, dtype=float)
    assert row_order(count(together)).unbroken == 1.0
    assert strongest(count(together), values, 0.9) == pytest.approx(strongest(count(log), values, 0.9))


def test_too_little_to_compare_says_nothing():
    counts = lg.Counts.from_transitions(
        [0, 1, 0], [1, 0, 1], action=[0, 0, 0], reward=[1.0, 2.0, 3.0], episode=[0, 0, 0], n_actions=A,
        keep_episodes=True,
    )  # fmt: skip
    assert strongest(counts, np.zeros(2), 0.9) == 0.0
    assert _Outcomes.of(np.ones(100), np.zeros(100, int)).group_z(np.arange(100) % 3) == 0.0


def test_what_the_cell_gave_last_time_is_a_memory():
    """One state whose rewards alternate within an episode, beside one that is visited far more often."""
    rng = np.random.default_rng(0)
    state = np.tile([0, 1, 1, 1, 1, 1], 300)
    reward = rng.normal(size=state.size)
    turn = np.tile([1.0, -1.0, 1.0], 100)
    reward[state == 0] += turn
    counts = lg.Counts.from_transitions(
        state, np.roll(state, -1), action=np.zeros_like(state), reward=reward,
        episode=np.arange(state.size) // 18, keep_episodes=True,
    )  # fmt: skip
    found = markov_test(counts, np.zeros(2), 0.9).memories
    assert found["the last outcome of the cell"] > 5.0
    assert found["earlier visits to the cell"] < 3.5


def test_ranks_are_those_of_scipy_within_each_cell():
    from scipy.stats import rankdata

    rng = np.random.default_rng(3)
    cell, values = rng.integers(0, 7, 400), np.round(rng.normal(size=400), 1)
    found = ranks_within(values, cell)
    for x in range(7):
        np.testing.assert_array_equal(found[cell == x], rankdata(values[cell == x]) - 1.0)


@pytest.mark.parametrize("events", ["actions", "outcomes"])
def test_scores_by_action_are_chi_squared_by_chance_and_as_by_hand(events):
    rng = np.random.default_rng(4)
    n, steps = 1200, 5
    cell, episode = rng.integers(0, 12, n), np.repeat(np.arange(20), 60)
    order = RowOrder(cell, np.where(np.arange(n) % 60, np.roll(cell, 1), -1), np.arange(n), 1.0)
    history = _History.of(order, episode, 3)
    by_chance = []
    for _ in range(400):
        seen = _Outcomes.of(rng.exponential(size=n), cell)
        score = seen.action_score_z if events == "actions" else seen.outcome_score_z
        by_chance.append(score(history, steps))
    assert np.mean(by_chance) == pytest.approx(0.0, abs=0.2)
    assert np.std(by_chance) == pytest.approx(1.0, abs=0.12)
    memory, pairs, total_score, degrees = np.zeros((n, 3)), np.zeros(n), 0.0, 0
    for row in range(n):
        for earlier in range(row - row % 60, row):
            left = (1 - 1 / steps) ** (row - 1 - earlier)
            memory[row, history.action[earlier]] += left * (seen.y[earlier] if events == "outcomes" else 1.0)
            pairs[row] += left * (cell[earlier] == cell[row]) / (cell == cell[row]).sum()
    if events == "actions":
        memory, pairs = memory[:, 1:], 0.0 * pairs
    for a in range(3):
        rows = np.flatnonzero(history.action == a)
        spread = np.array([memory[i] - memory[cell == cell[i]].mean(axis=0) for i in rows])
        terms = seen.y[rows, None] * spread
        total = terms.sum(axis=0)
        if events == "outcomes":
            total[a] += pairs[rows].sum()
        total_score += min(total @ np.linalg.solve(part.T @ part, total) for part in (terms, spread))
        degrees += total.size
    curve = 2 / (9 * degrees)
    expected = ((total_score / degrees) ** (1 / 3) - 1 + curve) / curve**0.5
    assert by_chance[-1] == pytest.approx(expected)


@pytest.mark.parametrize(("n_cells", "chance"), [(3, 0.01), (2, 0.05), (300, 0.5)])
def test_scores_raise_no_alarm_where_outcomes_are_rare_or_cells_small(n_cells, chance):
    rng = np.random.default_rng(8)
    n, found = 3000, []
    previous = np.arange(n) % 50 == 0
    for _ in range(150):
        # Long stays: the window is full of rows of the same cell.
        cell = np.repeat(rng.integers(0, n_cells, n // 5), 5)
        order = RowOrder(cell, np.where(previous, -1, np.roll(cell, 1)), np.arange(n), 1.0)
        history = _History.of(order, np.arange(n) // 50, 1)
        seen = _Outcomes.of((rng.random(n) < chance).astype(float), cell)
        found.append(max(seen.outcome_score_z(history, steps) for steps in (2, 10, 64)))
    assert max(found) < 3.7
    assert np.mean(np.array(found) > 2.0) < 0.08


def test_a_cell_of_which_three_outcomes_differ_is_left_out():
    rng = np.random.default_rng(5)
    cell, worth = np.repeat([0, 1], 500), np.zeros(1000)
    worth[rng.choice(500, 3, replace=False)] = -100.0
    worth[500 + rng.choice(500, 8, replace=False)] = -100.0
    assert set(_Outcomes.of(worth, cell).cell) == {1}


def test_fatigue_behind_rare_large_losses_is_found():
    """Work tires, rest restores; a tired step costs a little more. One step in fifty costs 20."""
    rng = np.random.default_rng(6)
    work = rng.integers(0, 2, (50, 60))
    tired = np.zeros((50, 60))
    for t in range(1, 60):
        tired[:, t] = np.clip(tired[:, t - 1] + 2 * work[:, t - 1] - 1, 0, 5)
    reward = work - 0.05 * tired - 20.0 * (rng.random((50, 60)) < 0.02)
    zero = np.zeros(3000, dtype=int)
    counts = lg.Counts.from_transitions(
        zero, zero, action=work.ravel(), reward=reward.ravel(), episode=np.repeat(np.arange(50), 60),
        keep_episodes=True,
    )  # fmt: skip
    found = markov_test(counts, np.zeros(1), 0.9).memories
    assert found["the actions of the last 10 steps or so"] > 10.0
    assert found["the outcomes of the last 10 steps or so"] > 10.0


@given(st.lists(st.floats(-10.0, 30.0), min_size=1, max_size=24))
def test_deviates_together_say_no_more_than_bonferroni_and_no_less_than_their_share(deviates):
    z = np.array(deviates)
    together, largest = combined_z(z), z.max()
    assert together <= max(largest, norm.isf(0.5)) + 1e-9
    smallest_p, n = norm.sf(largest), z.size
    if smallest_p * n < 1e-3:
        # cot(pi p) is nearly 1 / (pi p); the others subtract at most 3.1 each, or add.
        assert norm.sf(together) <= 1.02 * n * smallest_p
    assert combined_z(np.repeat(z, 3)) == pytest.approx(together, abs=1e-9)


def test_deviates_together_hold_their_level_independent_or_not():
    rng = np.random.default_rng(12)
    alone = rng.normal(size=(20_000, 20))
    shared = 0.9 * rng.normal(size=(20_000, 1)) + np.sqrt(1 - 0.81) * alone
    for deviates in (alone, shared):
        rate = np.mean([combined_z(z) > 2.326 for z in deviates])
        assert 0.005 < rate < 0.0125
    assert combined_z(np.empty(0)) == 0.0


@pytest.mark.parametrize(("episodes", "steps"), [(1, 4000), (800, 5)])
def test_one_path_and_many_short_episodes_hold_the_level(episodes, steps):
    """Rare and skewed rewards, a slow chain: alarms stay at one of a hundred."""
    rng = np.random.default_rng(20 + steps)
    alarms = 0
    for _ in range(150):
        path = np.empty((episodes, steps + 1), dtype=int)
        path[:, 0] = rng.integers(0, 3, episodes)
        for t in range(steps):
            path[:, t + 1] = (path[:, t] + (rng.random(episodes) < 0.1)) % 3
        action = (rng.random((episodes, steps)) < 0.3).astype(int)
        reward = np.where(
            rng.random((episodes, steps)) < 0.03, -20.0, rng.exponential(size=(episodes, steps))
        )
        counts = lg.Counts.from_transitions(
            path[:, :-1].ravel(), path[:, 1:].ravel(), action=action.ravel(), reward=reward.ravel(),
            episode=np.repeat(np.arange(episodes), steps), keep_episodes=True,
        )  # fmt: skip
        alarms += strongest(counts, np.array([0.0, 5.0, -3.0]), 0.9) > 2.33
    assert alarms <= 5  # of 1.5 expected at most, with probability .996
