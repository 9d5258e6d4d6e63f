"""Policies with rows of zeros: accepted where what is done makes no difference, refused elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg

N_ACTIONS = 2


def log_of_a_detour(n=400, seed=0):
    """Episodes from 0 by way of 1 (action 0) or 2 (action 1) to 3, which ends; 4 was never seen."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2, n), rng.integers(0, 2, n)
    middle = np.where(first == 0, 1, 2)
    reward = np.array([0.0, 1.0, 5.0])
    return lg.Counts.from_transitions(
        np.column_stack([np.zeros(n, int), middle]).ravel(),
        np.column_stack([middle, np.full(n, 3)]).ravel(),
        action=np.column_stack([first, second]).ravel(),
        reward=np.column_stack([np.zeros(n), reward[middle] + second]).ravel(),
        episode=np.repeat(np.arange(n), 2),
        terminal=np.tile([False, True], n),
        n_states=5,
    )


ONLY_BY_1 = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
"""Zero in a state that it never reaches, in the terminal state, and in one that nobody saw."""


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("options", [{"ridge": 0}, {"ridge": 0, "ratio": "state"}, {"horizon": 2}])
def test_rows_that_make_no_difference_may_be_zero(gamma, options):
    counts = log_of_a_detour()
    # By hand: one step without reward, then 1 or 2 with even odds.
    expected = (gamma if gamma < 1 else 1.0) * 1.5
    for row in ([0.5, 0.5], [1.0, 0.0], [0.0, 1.0]):
        filled = np.where(ONLY_BY_1.any(axis=1, keepdims=True), ONLY_BY_1, row)
        assert lg.solve(counts, gamma, policy=filled, **options).expected_return == pytest.approx(expected)
    for policy in (ONLY_BY_1, ONLY_BY_1.tolist(), sparse.csr_array(ONLY_BY_1), dict(enumerate(ONLY_BY_1))):
        solution = lg.solve(counts, gamma, policy=policy, **options)
        assert solution.expected_return == pytest.approx(expected)


def test_the_default_and_the_baselines_take_them_too():
    counts = log_of_a_detour()
    filled = np.where(ONLY_BY_1.any(axis=1, keepdims=True), ONLY_BY_1, 0.5)
    for estimate in (
        lambda policy: lg.solve(counts, policy=policy).value,
        lambda policy: lg.baselines.ips(counts, 0.9, policy=policy).value,
        lambda policy: lg.baselines.doubly_robust(counts, 0.9, policy=policy).value,
        lambda policy: lg.solve(counts, policy={"a": policy, "b": filled}).values[0],
        lambda policy: lg.solve(counts, 0.9, policy=filled, behavior=policy * 0 + 0.5).value,
    ):
        assert estimate(ONLY_BY_1) == estimate(filled)
    assert not ONLY_BY_1[2:].any()  # what was given is not changed


def test_zeros_where_a_policy_may_come_are_refused():
    counts = log_of_a_detour()
    never = np.array([[1.0, 0.0], [0.0, 0.0], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match="policy takes no action in the state 1, whose row sums to 0"):
        lg.solve(counts, policy=never)
    # From other first states it comes by the row that it left out.
    elsewhere = [0.5, 0.0, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="policy takes no action in the state 2"):
        lg.solve(counts, policy=ONLY_BY_1, initial=elsewhere)
    assert lg.solve(counts, policy=never, initial=[0, 0, 1.0, 0, 0], ridge=0).value == pytest.approx(5.5)
    # Without episodes nobody knows where it starts.
    rows = {"state": [0, 1, 2], "next_state": [1, 2, 0], "action": [0, 1, 0], "reward": [1.0, 2.0, 3.0]}
    with pytest.raises(ValueError, match="policy takes no action in the state 2"):
        lg.solve(lg.Counts.from_transitions(**rows), policy=[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"policy\[0\] sums to 0.9, not 1"):
        lg.solve(counts, policy=ONLY_BY_1 * 0.9)
    named = lg.Counts.from_transitions(["a", "b"], ["b", "a"], action=["x", "y"], reward=[0.0, 1.0])
    with pytest.raises(ValueError, match="policy takes no action in the state 'b'"):
        lg.solve(named, policy={"a": "x", "b": {"y": 0.0}})


def test_past_a_cell_without_data_a_policy_may_come_anywhere():
    """Its action in state 0 was never logged: what follows is not known to avoid state 2."""
    counts = lg.Counts.from_transitions(
        [0, 1, 2], [1, 0, 1], action=[0, 0, 1], reward=[0.0, 1.0, 2.0], episode=[0, 0, 1]
    )
    with pytest.raises(ValueError, match="policy takes no action in the state 2"):
        lg.solve(counts, 0.9, policy=[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], initial=[1.0, 0.0, 0.0])
