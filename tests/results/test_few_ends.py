"""Returns of the default at gamma = 1: the limit of gamma -> 1, traps, and ends that are few."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.model.compose import Choices
from lingendice.results.few_ends import ENOUGH_ENDS
from lingendice.solvers.shrinkage import shrink


def episodic(n_episodes, seed=0, ends=0.08, n=10, actions=3):
    rng = np.random.default_rng(seed)
    moves, pays = rng.dirichlet(np.full(n, 0.4), (n, actions)), rng.normal(size=(n, actions))
    behavior, target = (
        rng.dirichlet(np.ones(actions), n) * 0.9 + 0.1 / actions,
        rng.dirichlet(np.ones(actions), n),
    )
    rows = []
    for episode in range(n_episodes):
        state = rng.integers(n)
        while True:
            action = rng.choice(actions, p=behavior[state])
            following, end = rng.choice(n, p=moves[state, action]), rng.random() < ends
            rows.append((state, following, action, pays[state, action] + rng.normal(), episode, end))
            if end:
                break
            state = following
    state, following, action, reward, episode, end = map(np.array, zip(*rows, strict=True))
    counts = lg.Counts.from_transitions(
        state, following, action=action, reward=reward, episode=episode, terminal=end.astype(bool), n_states=n
    )
    return counts, target


@pytest.fixture(scope="module")
def many():
    return episodic(1300)


def test_gamma_1_is_the_limit_where_ends_are_many(many):
    counts, target = many
    assert counts.terminal_count.sum() > ENOUGH_ENDS
    limit = lg.solve(counts, 1.0, policy=target)
    for k in range(4, 10):
        near = lg.solve(counts, 1.0 - 10.0**-k, policy=target)
        step = 400.0 * 10.0**-k + 1e-7
        assert near.expected_return == pytest.approx(limit.expected_return, rel=step)
        assert near.expected_length == pytest.approx(limit.expected_length, rel=step)
        here, there = near.interval(of="return"), limit.interval(of="return")
        assert here.low == pytest.approx(there.low, rel=step)
        assert here.high == pytest.approx(there.high, rel=step)
        assert [check.ok for check in near.diagnose()] == [check.ok for check in limit.diagnose()]


def test_value_times_length_is_the_return(many):
    counts, target = many
    solution = lg.solve(counts, 1.0, policy=target)
    assert solution.value * solution.expected_length == pytest.approx(solution.expected_return, rel=1e-12)
    for of in ("return", "length", "value"):
        found = solution.interval(of=of)
        assert found.low < found.estimate < found.high
    assert solution.interval(of="return").estimate == solution.expected_return
    assert solution.interval(of="length").estimate == solution.expected_length
    assert solution.interval().estimate == solution.value


def test_values_of_states_and_cells_are_returns(many):
    counts, target = many
    solution, near = lg.solve(counts, 1.0, policy=target), lg.solve(counts, 1.0 - 1e-8, policy=target)
    np.testing.assert_allclose(solution.state_values, near.state_values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(solution.q_values, near.q_values, rtol=1e-4, atol=1e-5)
    first = solution.operator.initial @ solution.state_values
    # Values are those of the last round but one, in which cells rest on an earlier regression.
    assert first == pytest.approx(solution.expected_return, rel=1e-3)


def test_few_ends_are_shrunk_and_the_change_is_allowed_for():
    counts, target = episodic(12, seed=3)
    plain = shrink(counts, Choices(gamma=1.0, policy=target))
    solution = lg.solve(counts, 1.0, policy=target)
    assert 0.0 < solution.fit.added_ends <= 3.0
    assert solution.expected_length < plain.steps
    assert solution.fit.ridge_error > 0.0
    assert solution.interval(of="return").bias_allowance > 0.0


def test_a_state_that_never_leads_to_an_end_counts_as_unknown_mass():
    """Half of the episodes step into a loop of two states that the log never sees ending."""
    rows = []
    for episode in range(40):
        rows += [(0, 1, 0, 1.0, episode, False), (1, 0, 0, 0.0, episode, True)]
        rows += [(0, 2, 1, 1.0, 40 + episode, False)] + [
            (2 + k % 2, 3 - k % 2, 0, 0.0, 40 + episode, False) for k in range(6)
        ]
    state, following, action, reward, episode, end = map(np.array, zip(*rows, strict=True))
    counts = lg.Counts.from_transitions(
        state, following, action=action, reward=reward, episode=episode, terminal=end.astype(bool)
    )
    target = np.array([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    solution = lg.solve(counts, 1.0, policy=target)
    assert np.isfinite(solution.expected_return)
    assert np.isfinite(solution.expected_length)
    (leak,) = [check for check in solution.diagnose() if check.name == "leak"]
    assert not leak.ok
    assert "no logged step leads to an end" in leak.sentence
    safe = lg.solve(counts, 1.0, policy=np.eye(2)[[0, 0, 0, 0]])
    assert safe.expected_length == pytest.approx(2.0, rel=0.05)
    assert all(check.ok for check in safe.diagnose() if check.name == "leak")


def walk_past_the_log(n_episodes=32, places=20):
    """Costs of -1 a step; the log goes right, the target left, past the last visited places."""
    rng, rows = np.random.default_rng(1), []
    for episode in range(n_episodes):
        place = 14
        while True:
            right = rng.random() < 0.8
            after = place + (1 if right else -1)
            end = after == places
            rows.append((place, min(max(after, 0), places - 1), int(right), -1.0, episode, end))
            if end:
                break
            place = max(after, 0)
    state, following, action, reward, episode, end = map(np.array, zip(*rows, strict=True))
    return lg.Counts.from_transitions(
        state, following, action=action, reward=reward, episode=episode, terminal=end, n_states=places
    )


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_target_past_the_edge_of_the_log_fails_a_check():
    counts = walk_past_the_log()
    beyond = lg.solve(counts, 1.0, policy=np.tile([0.8, 0.2], (20, 1)))
    failed = {check.name for check in beyond.diagnose() if not check.ok}
    assert failed & {"frontier", "leak"}
    # How much of the mass has ended by then does not matter to where the log ends.
    near = lg.solve(counts, 1.0 - 1e-6, policy=np.tile([0.6, 0.4], (20, 1)))
    limit = lg.solve(counts, 1.0, policy=np.tile([0.6, 0.4], (20, 1)))
    frontier = [
        next(check.number for check in solution.diagnose() if check.name == "frontier")
        for solution in (near, limit)
    ]
    assert frontier[0] == pytest.approx(frontier[1], rel=0.2)
    assert frontier[0] > 0.0
    within = lg.solve(counts, 1.0, policy=np.tile([0.2, 0.8], (20, 1)))
    assert "frontier" not in {check.name for check in within.diagnose() if not check.ok}
