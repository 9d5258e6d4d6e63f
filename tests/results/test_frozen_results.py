"""Nobody can write to a solution, before or after it was pickled; streams pickle with their exact state."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from problems import logged_mdp

import lingendice as lg

ARRAYS = (
    "stationary",
    "tau",
    "data_distribution",
    "cell_distribution",
    "state_distribution",
    "state_values",
    "q_values",
)


def solutions():
    mdp = logged_mdp(0)
    chain = np.array([[1.0, 2.0], [3.0, 4.0]])
    sparse_chain = [[0, 2, 0], [1, 0, 3], [0, 0, 0]]
    yield "small", lambda: lg.solve(chain)
    yield "discounted", lambda: lg.solve(chain, 0.9)
    yield "long way", lambda: lg.solve(chain.tolist(), reward=[1, 2])
    yield "leak", lambda: lg.solve(sparse_chain, 0.5, reward=[1, 2, 3], restart=[0.25, 0.25, 0.5])
    yield "ridge", lambda: lg.solve(mdp.counts, 0.9, policy=mdp.policy)
    yield "exact", lambda: lg.solve(mdp.counts, 0.9, policy=mdp.policy, ridge=0, ratio="state_action")
    yield "states", lambda: lg.solve(mdp.counts, 0.9, policy=mdp.policy, ridge=0, ratio="state")
    yield "saddle", lambda: lg.solve(mdp.counts, 0.9, policy=mdp.policy, method="convex")


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize(("name", "build"), list(solutions()))
@pytest.mark.parametrize("pickled", [False, True])
def test_no_array_of_a_solution_can_be_written_to(name, build, pickled):
    solution = build()
    if pickled:
        solution = pickle.loads(pickle.dumps(solution))
    names = [array for array in ARRAYS if solution.value is not None or not array.endswith("_values")]
    names += ["mass", "w_tau", "w_f"] if name == "saddle" else []
    for array in [
        *(getattr(solution, array) for array in names),
        *solution.distributions,
        *solution.state_distributions,
    ]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.25
    assert solution.stationary.sum() == pytest.approx(1.0 if name != "saddle" else solution.mass.sum())


def test_counts_stay_read_only_when_pickled():
    log = lg.Counts.from_transitions([0, 1], [1, 0], reward=[1, 2], episode=[0, 1], weight=[1.0, 2.0])
    counts = pickle.loads(pickle.dumps(log))
    assert all(part is not None for part in counts.episodes)
    kept = *log.episodes, *counts.episodes
    for array in (counts.indptr, counts.indices, counts.count, counts.reward_mean, counts.cell_count, *kept):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_ratios_of_continuous_states_cannot_be_written_to():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(41, 1))
    log = lg.Transitions(states[:-1], None, np.ones(40), states[1:])
    solution = lg.solve(log, method="linear")
    for array in (solution.tau, solution.members, solution.mass_weight, solution.member_values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


@pytest.mark.parametrize("pickled", [False, True])
def test_values_of_a_comparison_cannot_be_written_to(pickled):
    """Sorting them in place changed the ranking."""
    mdp = logged_mdp(0)
    found = lg.solve(mdp.counts, 0.9, policy={"target": mdp.policy, "first": np.zeros(6, int)})
    _ = found.values, found.covariance
    found = pickle.loads(pickle.dumps(found)) if pickled else found
    for array in (found.values, found.covariance):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        found.values.sort()


def arguments(mdp):
    """Each case: arguments of ``solve`` that are arrays, what else it is called with, what is read later."""
    rng = np.random.default_rng(5)
    shape, n = mdp.policy.shape, len(mdp.policy)
    (initial, restart), behavior = rng.dirichlet(np.ones(n), 2), rng.dirichlet(np.ones(shape[1]), n)
    policy, reward = mdp.policy.copy(), rng.normal(size=shape)
    exact = {"policy": policy, "behavior": behavior, "initial": initial}
    yield exact, {"ratio": "state", "ridge": 0.0}, lambda found: found.interval().low
    yield exact, {"ratio": "state", "ridge": 0.0}, lambda found: found.interval(of="stationary").high
    yield {"policy": policy, "reward": reward, "initial": initial}, {}, lambda found: found.behavior_value
    yield {"policy": policy, "initial": initial}, {"horizon": 4}, lambda found: found.behavior_value
    plain = {"initial": initial, "restart": restart, "reward": reward}
    yield plain, {"ridge": 0.0}, lambda found: found.interval(method="bootstrap", replicates=20).low


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("as_given", [np.array, np.ndarray.tolist, lambda array: array.view()])
def test_what_is_read_later_is_that_of_the_arguments_when_solved(case, as_given):
    """Policies changed in place, as by policy iteration, changed the intervals of solutions made before."""
    mdp = logged_mdp(0)
    arrays, options, read = list(arguments(mdp))[case]
    expected = read(lg.solve(mdp.counts, 0.9, **arrays, **options))
    given = {name: as_given(array) for name, array in arrays.items()}
    solution = lg.solve(mdp.counts, 0.9, **given, **options)
    for values in given.values():
        values[:] = values[::-1]
    np.testing.assert_array_equal(read(solution), expected)


def test_a_prior_that_changes_later_does_not_change_what_was_solved():
    mdp, prior = logged_mdp(0), np.arange(1.0, 7.0) / 21
    found = [lg.solve(mdp.counts, 0.9, policy=mdp.policy, smoothing=(3.0, prior)) for _ in range(2)]
    expected = found[0].behavior_value
    prior[:] = prior[::-1]
    assert found[1].behavior_value == expected


def some_stream(n, size, seed, local):
    rng = np.random.default_rng(seed)
    state = rng.integers(0, n, size)
    following = (state + rng.integers(-1, 2, size)) % n if local else rng.integers(0, n, size)
    return state, following, rng.random(size)


CLONES = [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy, copy.copy]


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("forgetting", [1.0, 0.99])
@pytest.mark.parametrize(("n", "local"), [(6, False), (80, True)])
@pytest.mark.parametrize("clone", CLONES)
def test_a_stream_goes_on_where_it_was_pickled(gamma, forgetting, n, local, clone):
    online = lg.OnlineRatio(n, gamma, forgetting=forgetting)
    online.update(*some_stream(n, 40 * n, 1, local))
    if gamma < 1.0:
        online.stationary  # noqa: B018  a factor, or a plan, is part of the state
    online.update(0, 1, 0.5)
    other = clone(online)
    assert (other.n_transitions, repr(other)) == (online.n_transitions, repr(online))
    for seed in (2, 3):
        more = some_stream(n, 30, seed, local)
        for stream in (online, other):
            stream.update(*more)
            stream.update(1, 2)
        assert online.stationary.tobytes() == other.stationary.tobytes()
        assert online.value == other.value
        assert (online.n_steps, online.n_factorizations) == (other.n_steps, other.n_factorizations)
        assert online.snapshot() == other.snapshot()
    assert not other.stationary.flags.writeable
    before = online.snapshot()
    other.update(0, 0)
    assert online.snapshot() == before


@pytest.mark.parametrize("clone", CLONES)
def test_a_copied_stream_keeps_the_limit_from_its_initial_distribution(clone):
    """It took the distribution of the first class for it."""
    online = lg.OnlineRatio(4, initial=[0.25, 0.0, 0.75, 0.0])
    online.update([0, 1, 2, 3], [1, 0, 3, 2])
    np.testing.assert_allclose(online.stationary, [0.125, 0.125, 0.375, 0.375])
    other = clone(online)
    np.testing.assert_array_equal(other.stationary, online.stationary)
    np.testing.assert_array_equal(other.solution().stationary, online.stationary)
    assert not other.stationary.flags.writeable
