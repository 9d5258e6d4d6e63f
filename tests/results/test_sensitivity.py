"""Derivatives by rows agree with finite differences of whole solves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from problems import logged_mdp
from scipy import sparse

import lingendice as lg


def random_chain(n, seed):
    rng = np.random.default_rng(seed)
    chain = rng.random((n, n)) * (rng.random((n, n)) < 0.5) + np.eye(n, k=1) + np.eye(n, k=1 - n)
    return chain / chain.sum(axis=1, keepdims=True), rng


def random_change(chain, rng):
    change = np.where(chain > 0, rng.normal(size=chain.shape), 0.0)
    support = chain > 0
    change -= support * (change.sum(axis=1, keepdims=True) / support.sum(axis=1, keepdims=True))
    return change * 0.01


def value_by_dense_solve(chain, gamma, reward, initial):
    n = len(chain)
    if gamma == 1.0:
        system = np.vstack([(chain.T - np.eye(n))[:-1], np.ones(n)])
        return np.linalg.solve(system, np.eye(1, n, n - 1)[0]) @ reward
    return np.linalg.solve(np.eye(n) - gamma * chain.T, (1 - gamma) * initial) @ reward


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_chains_against_finite_differences(gamma, seed):
    n = 12
    chain, rng = random_chain(n, seed)
    reward, initial, change = rng.normal(size=n), rng.dirichlet(np.ones(n)), random_change(chain, rng)
    given = {} if gamma == 1.0 else {"initial": initial}
    solution = lg.solve(chain, gamma, reward=reward, **given)
    step = 1e-4
    for of, entry, function in (
        ("value", None, reward), (reward**2, None, reward**2), ("stationary", 3, np.eye(n)[3])
    ):  # fmt: skip
        found = solution.sensitivity(of, entry=entry)
        up, down = (
            value_by_dense_solve(chain + sign * step * change, gamma, function, initial) for sign in (1, -1)
        )
        exact = (up - down) / (2 * step)
        assert found.along(change) == pytest.approx(exact, rel=1e-6)
        assert found.along(sparse.csr_array(change)) == pytest.approx(found.along(change), rel=1e-12)
        assert found.along(change) == pytest.approx(
            np.einsum("x,xy,y->", found.rows, change, found.columns), rel=1e-10
        )
        assert found.estimate == pytest.approx(
            value_by_dense_solve(chain, gamma, function, initial), rel=1e-10, abs=1e-14
        )


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_a_policy_over_logged_actions(gamma):
    """By cell: the counts of one state and action are moved, and everything is solved again."""
    mdp = logged_mdp(3)
    solution = lg.solve(mdp.counts, gamma, policy=mdp.policy, ridge=0, clone=0, unseen="renormalize")
    found = solution.sensitivity()
    counts = mdp.counts
    cell = int(np.argmax(solution.cell_distribution * (np.diff(counts.indptr) > 1)))
    first = counts.indptr[cell]
    move = 1e-5 * counts.cell_count[cell]
    values = []
    for sign in (1, -1):
        count = counts.count.astype(float)
        count[first] += sign * move
        count[first + 1] -= sign * move
        moved = lg.Counts(
            counts.n_states, counts.n_actions, counts.indptr, counts.indices, count,
            initial_count=counts.initial_count,
        )  # fmt: skip
        values.append(
            lg.solve(
                moved, gamma, policy=mdp.policy, ridge=0, clone=0, unseen="renormalize",
                reward=counts.reward.reshape(counts.n_states, -1),
            ).value
        )  # fmt: skip
    exact = (values[0] - values[1]) / 2e-5
    change = np.zeros((counts.n_cells, counts.n_states))
    change[cell, counts.indices[first]], change[cell, counts.indices[first + 1]] = 1.0, -1.0
    assert found.along(change) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize("leaks", [False, True])
def test_logs_with_ends_and_leaks(gamma, leaks):
    """Episodes that end, a state without outgoing transitions, and a row that is moved by counts."""
    rng = np.random.default_rng(5)
    state, onward = rng.integers(0, 5, 300), rng.integers(0, 6 if leaks else 5, 300)
    log = {"state": state, "next_state": onward, "terminal": rng.random(300) < 0.2, "n_states": 6}
    counts = lg.Counts.from_transitions(**log, reward=rng.normal(size=300), episode=np.arange(300))
    reward, cell = counts.reward, 2
    first = counts.indptr[cell]
    move = 1e-5 * counts.cell_count[cell]

    def solved(sign):
        count = counts.count.astype(float)
        count[first] += sign * move
        count[first + 1] -= sign * move
        moved = lg.Counts(6, None, counts.indptr, counts.indices, count, initial_count=counts.initial_count)
        start = counts.initial_count / counts.initial_count.sum()
        restart = np.full(6, 1 / 6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lg.LeakWarning)
            return lg.solve(moved, gamma, reward=np.nan_to_num(reward), initial=start, restart=restart)

    exact = (solved(1).value - solved(-1).value) / 2e-5
    change = np.zeros((6, 6))
    change[cell, counts.indices[first]], change[cell, counts.indices[first + 1]] = 1.0, -1.0
    assert (solved(0).leak > 0.001) == leaks
    assert solved(0).sensitivity().along(change) == pytest.approx(exact, rel=1e-6)


def test_pairs_are_named_and_sorted():
    counts = lg.Counts.from_transitions(list("abcabcb"), list("bcabcba"))
    found = lg.solve(counts, reward={"a": 0.0, "b": 1.0, "c": 5.0}).sensitivity()
    pairs = found.row_pairs()
    assert sorted(name for name, _ in pairs) == list("abc")
    assert [weight for _, weight in pairs] == sorted((weight for _, weight in pairs), reverse=True)
    worth = found.column_pairs()
    assert [weight for _, weight in worth] == sorted((weight for _, weight in worth), reverse=True)
    by_label = lg.solve(counts).sensitivity("stationary", entry="b")
    np.testing.assert_array_equal(
        by_label.columns, lg.solve(counts).sensitivity("stationary", entry=1).columns
    )


def test_what_is_refused():
    solution = lg.solve([[90, 10], [30, 70]], reward=[0, 1])
    with pytest.raises(ValueError, match="needs entry="):
        solution.sensitivity("stationary")
    with pytest.raises(ValueError, match="entry= picks from"):
        solution.sensitivity(np.ones(2), entry=0)
    with pytest.raises(ValueError, match="has no sensitivity yet"):
        solution.sensitivity("length")
    with pytest.raises(ValueError, match=r"row 0 of change sums to 1, not 0"):
        solution.sensitivity().along(np.array([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="shape of K"):
        solution.sensitivity().along(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="exact equation"):
        lg.solve([[90, 10], [30, 70]], reward=[0, 1], ridge=0.1).sensitivity()
    for given in ({}, {"initial": [0.5, 0.5]}):
        with pytest.raises(ValueError, match="that of one recurrent class"):
            lg.solve(np.eye(2), reward=[0, 1], **given).sensitivity([1.0, 2.0])
