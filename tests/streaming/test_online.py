"""``OnlineRatio`` agrees with ``solve`` on the same counts, whatever arrives and in whatever portions."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lingendice as lg

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def walk(n: int, length: int, seed: int = 0, successors: int = 5) -> np.ndarray:
    """States of a walk on a random graph in which every state has a few successors."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, n, (n, successors))
    targets[:, 0] = (np.arange(n) + 1) % n
    choices = rng.integers(0, successors, length)
    states = np.zeros(length, np.int64)
    for t in range(1, length):
        states[t] = targets[states[t - 1], choices[t]]
    return states


def agrees(online, gamma, rtol=2e-10, method="elimination", **distributions):
    """Compare with sparse elimination of the snapshot, another method than the dense factor."""
    reference = lg.solve(online.snapshot(), gamma, method=method, **distributions)
    np.testing.assert_allclose(online.stationary, reference.stationary, rtol=rtol, atol=1e-300)
    np.testing.assert_allclose(online.tau, reference.tau, rtol=rtol, atol=1e-300)
    assert online.leak == pytest.approx(reference.leak, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("gamma", [1.0, 0.95])
def test_follows_a_stream(gamma):
    n = 60
    states = walk(n, 60_000)
    online = lg.OnlineRatio(n, gamma)
    steps = []
    for start in range(0, 59_000, 1000):
        online.update(states[start : start + 1000], states[start + 1 : start + 1001])
        agrees(online, gamma)
        steps.append(online.n_steps)
    # Most reads went on from the last one: a factor serves several. Rounding decides when a factor is worn,
    # so that another BLAS may renew one or two more: the stream is long enough for that.
    assert online.n_factorizations < 30
    assert sum(step > 0 for step in steps) > 30
    assert online.snapshot() == lg.Counts.from_transitions(states[:59_000], states[1:59_001], n_states=n)


def ring_walk(n: int, length: int, seed: int = 0) -> np.ndarray:
    steps = np.random.default_rng(seed).choice([-1, 1], length - 1)
    return np.concatenate([[0], np.cumsum(steps)]) % n


def test_follows_a_distribution_with_rare_states():
    """Rare states change by much at once, which single precision must not be left to forget."""
    rng = np.random.default_rng(0)
    n = 120
    matrix = rng.random((n, n)) * np.exp(-8.0 * rng.random(n))
    cumulative = np.cumsum(matrix / matrix.sum(axis=1, keepdims=True), axis=1)
    states = [0]
    for draw in rng.random(45_000):
        states.append(min(int(np.searchsorted(cumulative[states[-1]], draw)), n - 1))
    online, steps = lg.OnlineRatio(n), []
    online.update(states[:30_000], states[1:30_001])
    _ = online.stationary
    for start in range(30_000, 45_000, 500):
        online.update(states[start : start + 500], states[start + 1 : start + 501])
        found, expected = online.stationary, lg.solve(online.snapshot()).stationary
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        steps.append(online.n_steps)
    assert np.count_nonzero(steps) >= 10


@pytest.mark.parametrize("options", [{}, {"gamma": 0.95}, {"forgetting": 0.9999}, {"restart": "given"}])
def test_follows_a_local_chain(options):
    """States are met one after another, two without transitions out at first; later a short cut opens."""
    n = 200
    distributions = {}
    if "restart" in options:
        distributions = {"restart": np.random.default_rng(1).dirichlet(np.ones(n))}
    gamma = options.get("gamma", 1.0)
    online = lg.OnlineRatio(n, **(options | distributions))
    states = ring_walk(n, 60_001)
    source, target = states[:-1], states[1:]
    for start in range(0, 60_000, 2000):
        part = slice(start, start + 2000)
        keep = ~np.isin(source[part], [5, 6]) if start < 30_000 else slice(None)
        online.update(source[part][keep], target[part][keep])
        if start == 50_000:
            online.update([3, 40], [40, 3])
        agrees(online, gamma, method="gth", **distributions)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("given_distributions", [False, True])
def test_leaks_restart_as_in_solve(gamma, given_distributions):
    n = 30
    states = walk(n, 6000, seed=2)
    rng = np.random.default_rng(8)
    distributions = {"restart": rng.dirichlet(np.ones(n))} if given_distributions else {}
    if given_distributions and gamma < 1.0:
        distributions["initial"] = rng.dirichlet(np.ones(n))
    online = lg.OnlineRatio(n, gamma, **distributions)
    # Two states are entered but have no outgoing transitions.
    keep = ~np.isin(states[:-1], [4, 17])
    source, target = states[:-1][keep], states[1:][keep]
    for start in range(0, source.size, 200):
        online.update(source[start : start + 200], target[start : start + 200])
        agrees(online, gamma, **distributions)
    assert online.leak > 0.01
    if not (given_distributions and gamma < 1.0):
        assert online.n_factorizations < 20  # of 28 reads


def test_several_classes_are_refused_as_in_solve():
    online = lg.OnlineRatio(4)
    online.update([0, 1, 2, 3], [1, 0, 3, 2])
    with pytest.raises(lg.SeveralDistributions):
        _ = online.stationary
    assert online.solution().status is lg.Status.SEVERAL_DISTRIBUTIONS
    assert len(online.solution().distributions) == 2
    # Once a transition joins them there is one distribution again.
    online.update(1, 2)
    np.testing.assert_allclose(online.stationary, [0, 0, 0.5, 0.5])
    online.update(3, 0)
    agrees(online, 1.0)


def test_initial_distribution_decides_between_classes():
    initial = [0.5, 0.0, 0.5, 0.0]
    online = lg.OnlineRatio(4, initial=initial)
    online.update([0, 1, 2, 3], [1, 0, 3, 2])
    np.testing.assert_allclose(online.stationary, lg.solve(online.snapshot(), initial=initial).stationary)


def test_a_class_that_grows_is_noticed():
    online = lg.OnlineRatio(5)
    online.update([0, 1], [1, 0])
    np.testing.assert_allclose(online.stationary, [0.5, 0.5, 0, 0, 0])
    online.update(1, 2)
    agrees(online, 1.0)
    online.update([2, 3], [3, 4])
    agrees(online, 1.0)
    online.update(4, 0)
    agrees(online, 1.0)


@settings(max_examples=40, deadline=None)
@given(
    portions=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12),
        min_size=1,
        max_size=5,
    ),
    gamma=st.sampled_from([1.0, 0.7]),
)
@example(portions=[[(0, 0), (0, 1), (0, 2), (1, 2)], [(0, 0), (1, 1)]], gamma=1.0)
def test_any_stream_agrees_with_solve(portions, gamma):
    online = lg.OnlineRatio(6, gamma)
    for portion in portions:
        for state, next_state in portion:
            online.update(state, next_state)
        reference = lg.solve(online.snapshot(), gamma)
        if reference.status is lg.Status.SEVERAL_DISTRIBUTIONS:
            with pytest.raises(lg.SeveralDistributions):
                _ = online.tau
        else:
            np.testing.assert_allclose(online.stationary, reference.stationary, rtol=1e-9, atol=1e-300)
            np.testing.assert_allclose(online.tau, reference.tau, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("forgetting", [0.999, 0.5])
def test_forgetting_weighs_by_age(forgetting):
    n, length = 12, 5000
    states = walk(n, length + 1, seed=4)
    rewards = np.random.default_rng(1).normal(size=length) + states[:-1]
    online = lg.OnlineRatio(n, forgetting=forgetting, initial=np.full(n, 1 / n))
    for start in range(0, length, 500):
        part = slice(start, start + 500)
        online.update(states[:-1][part], states[1:][part], rewards[part])
        _ = online.solution()
    weight = forgetting ** np.arange(length - 1, -1, -1.0)
    recent = weight > 1e-60
    reference = lg.Counts.from_transitions(
        states[:-1][recent], states[1:][recent], reward=rewards[recent], weight=weight[recent], n_states=n
    )
    held = online.snapshot()
    np.testing.assert_allclose(held.matrix.toarray(), reference.matrix.toarray(), rtol=1e-9, atol=1e-50)
    assert held.total == pytest.approx(weight.sum(), rel=1e-12)
    expected = lg.solve(reference, initial=np.full(n, 1 / n))
    if forgetting == 0.999:
        np.testing.assert_allclose(online.stationary, expected.stationary, rtol=1e-8)
        assert online.value == pytest.approx(expected.value, rel=1e-8)


def test_what_is_dropped_by_forgetting_is_whole_rows_whatever_the_batches():
    """State 3 was left in the beginning only: its row is exact, or (1e-210 later) gone; never in between."""
    length, forgetting, gamma = 1500, 0.5, 0.9
    later = walk(3, length + 1, seed=8)
    states = np.concatenate([[3] * 4, later[:-1], [later[-1]]])
    next_states = np.concatenate([[0, 0, 0, 1], later[1:], [3]])
    rewards = np.arange(states.size, dtype=float)
    cut = {size: lg.OnlineRatio(4, gamma, forgetting=forgetting) for size in (1, 7, states.size)}
    kept = []
    for size, online in cut.items():
        for start in range(0, states.size, size):
            part = slice(start, start + size)
            online.update(states[part], next_states[part], rewards[part])
            row = online.snapshot().matrix.toarray()[3] if size == 1 else np.zeros(4)
            if row.any() and start > 2:
                kept.append(start)
                np.testing.assert_allclose(row / row.sum(), [7 / 15, 8 / 15, 0, 0], rtol=1e-14)
    assert 700 < max(kept) < 1100
    solutions = [online.solution() for online in cut.values()]  # denormal rows would be refused here
    weight = forgetting ** np.arange(states.size - 1, -1, -1.0)
    table, earned = np.zeros((4, 4)), np.zeros(4)
    np.add.at(table, (states[4:], next_states[4:]), weight[4:])
    np.add.at(earned, states[4:], (weight * rewards)[4:])
    total = table.sum(axis=1)
    step = np.vstack([table[:3] / total[:3, None], np.full(4, 0.25)])
    mu = np.linalg.solve(np.eye(4) - gamma * step.T, np.full(4, (1 - gamma) / 4))
    for online, solution in zip(cut.values(), solutions, strict=True):
        np.testing.assert_array_equal(online.stationary, solutions[0].stationary)
        np.testing.assert_allclose(solution.stationary, mu, rtol=1e-12)
        assert online.value == pytest.approx(mu[:3] @ (earned[:3] / total[:3]) / mu[:3].sum(), rel=1e-12)


def test_value_and_interval_are_those_of_solve():
    n = 20
    states = walk(n, 4001, seed=6)
    rewards = np.random.default_rng(3).normal(size=4000) + states[:-1]
    online = lg.OnlineRatio(n, 0.9)
    assert online.value is None
    for t in range(1500):
        online.update(int(states[t]), int(states[t + 1]), float(rewards[t]))
    online.update(states[1500:4000], states[1501:4001], rewards[1500:])
    counts = lg.Counts.from_transitions(states[:-1], states[1:], reward=rewards, n_states=n)
    reference = lg.solve(counts, 0.9)
    assert online.value == pytest.approx(reference.value, rel=1e-10)
    solution = online.solution()
    assert solution.value == pytest.approx(reference.value, rel=1e-10)
    ours, theirs = solution.interval(0.95), reference.interval(0.95)
    assert ours.low == pytest.approx(theirs.low, rel=1e-8)
    assert ours.high == pytest.approx(theirs.high, rel=1e-8)
    np.testing.assert_allclose(online.snapshot().reward_m2, counts.reward_m2, rtol=1e-9, atol=1e-12)


def test_rewards_may_be_missing_for_some():
    online = lg.OnlineRatio(3)
    online.update([0, 1, 2, 0], [1, 2, 0, 1], [1.0, 2.0, 4.0, 3.0])
    online.update(1, 0)
    online.update(0, 2, 5.0)
    value = online.solution().value
    assert online.value == pytest.approx(value, rel=1e-12)


def test_a_batch_of_nothing_counts_nothing():
    """An empty list has the type of floating-point numbers, and was refused for it."""
    online = lg.OnlineRatio(3)
    online.update([], [])
    online.update([0, 1], [1, 0], [1.0, 2.0])
    online.update([], [], [])
    assert online.n_transitions == 2
    np.testing.assert_allclose(online.stationary, [0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"shape \(0, 2\)"):
        online.update(np.empty((0, 2)), [])


def test_nearly_decomposable_chain_is_solved_afresh():
    # Rounding in a residual would be amplified by 1 / 1e-12 here, so the old factor must not be used.
    online = lg.OnlineRatio(4, forgetting=0.5)
    online.update([0, 3], [2, 0])
    online.update(np.tile([0, 1, 2, 3], 12), np.tile([1, 0, 3, 2], 12))
    _ = online.stationary
    online.update([0, 1, 2, 3], [1, 0, 3, 2])
    agrees(online, 1.0)
    assert online.n_steps == 0


def test_snapshot_and_solution_stay_as_they_were():
    online = lg.OnlineRatio(3)
    online.update([0, 1, 2], [1, 2, 0])
    counts, solution, distribution = online.snapshot(), online.solution(), online.stationary
    kept = distribution.copy()
    online.update([0, 0, 0], [0, 0, 2])
    _ = online.stationary
    assert counts.total == 3
    np.testing.assert_array_equal(distribution, kept)
    np.testing.assert_array_equal(solution.stationary, kept)
    with pytest.raises(ValueError, match="read-only"):
        distribution[0] = 1.0


def test_threads_may_update_and_read_at_once():
    n, each = 25, 4000
    walks = [walk(n, each + 1, seed=seed) for seed in range(4)]
    online = lg.OnlineRatio(n, 0.9)
    wrong: list[str] = []

    def write(states: np.ndarray) -> None:
        for start in range(0, each, 100):
            if start % 200:
                online.update(states[start : start + 100], states[start + 1 : start + 101])
            else:
                for t in range(start, start + 100):
                    online.update(int(states[t]), int(states[t + 1]))

    def read() -> None:
        while any(thread.is_alive() for thread in writers):
            if online.n_transitions and abs(online.stationary.sum() - 1.0) > 1e-9:
                wrong.append("a distribution does not sum to one")
            counts = online.snapshot()
            if counts.total != counts.cell_count.sum():
                wrong.append("a snapshot is torn")

    writers = [threading.Thread(target=write, args=(states,)) for states in walks]
    reader = threading.Thread(target=read)
    for thread in [*writers, reader]:
        thread.start()
    for thread in [*writers, reader]:
        thread.join()
    assert not wrong
    whole = sum(
        (lg.Counts.from_transitions(states[:-1], states[1:], n_states=n) for states in walks),
        lg.Counts.empty(n),
    )
    assert online.snapshot() == whole
    agrees(online, 0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lg.OnlineRatio(0), "n_states must be"),
        (lambda: lg.OnlineRatio(5000), "add up Counts"),
        (lambda: lg.OnlineRatio(3, 1.5), "gamma must lie"),
        (lambda: lg.OnlineRatio(3, forgetting=0.0), "forgetting must lie"),
        (lambda: lg.OnlineRatio(3, forgetting=1e-150), "forgetting must lie"),
        (lambda: lg.OnlineRatio(3, tol=0.0), "tol must be positive"),
        (lambda: lg.OnlineRatio(3, initial=[1, 2]), "initial must have"),
        (lambda: lg.OnlineRatio(3).stationary, "call update first"),
        (lambda: lg.OnlineRatio(3).update(3, 0), r"state\[0\] is 3"),
        (lambda: lg.OnlineRatio(3).update([0, 1], [1, -1]), r"next_state\[1\] is -1"),
        (lambda: lg.OnlineRatio(3).update([0, 1], [1]), "next_state has 1 entries"),
        (lambda: lg.OnlineRatio(3).update(0.5, 1), "must be a whole number"),
        (lambda: lg.OnlineRatio(3).update(0, 1, float("nan")), r"reward\[0\] is nan"),
        (lambda: lg.OnlineRatio(3).update([0, 1], [1, 2], [1.0]), "reward has shape"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_repr_is_short():
    online = lg.OnlineRatio(3, 0.9, forgetting=0.99)
    online.update(0, 1)
    assert repr(online) == "OnlineRatio(3 states, gamma=0.9, forgetting=0.99, 1 transitions)"
