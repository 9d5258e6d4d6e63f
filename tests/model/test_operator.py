"""The operator: adjointness, agreement with a dense matrix, and the chain over states."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import dense_operator, logged_mdp

import lingendice as lg
from lingendice.model.compose import Choices, compose

CHOICES = {
    "chain": {},
    "discounted": {"gamma": 0.9},
    "smoothed": {"gamma": 0.9, "smoothing": 2.5},
    "smoothed to a distribution": {"smoothing": (1.5, np.arange(1.0, 7.0) / 21)},
    "restart distribution": {"gamma": 0.7, "restart": np.arange(6.0) / 15},
    "absorb": {"gamma": 0.9, "leak": "absorb"},
    "state ratio": {"gamma": 0.9, "ratio": "state"},
    "state ratio, mean": {"ratio": "state", "unseen": "mean"},
    "cloned": {"ratio": "state", "clone": 3.0},
}


def short_log(seed):
    """So short that some cells have no outgoing transitions."""
    return logged_mdp(seed, n_episodes=3, length=6)


def build(mdp, name):
    choices = dict(CHOICES[name])
    if name == "chain":
        log = lg.Counts.from_transitions(mdp.state, mdp.next_state, n_states=6)
        return compose(log, Choices())
    return compose(mdp.counts, Choices(policy=mdp.policy, **choices))


@pytest.mark.parametrize("name", CHOICES)
def test_apply_is_the_dense_matrix_and_its_transpose(name):
    operator = build(short_log(3), name)
    dense = operator.gamma * dense_operator(operator)
    if operator.gamma < 1:
        dense += (1 - operator.gamma) * np.outer(np.ones(operator.n_cells), operator.cell_initial)
    rng = np.random.default_rng(0)
    values, distribution = rng.normal(size=(2, operator.n_cells))
    assert np.allclose(operator.apply(values), dense @ values, atol=1e-13)
    assert np.allclose(operator.apply_transpose(distribution), dense.T @ distribution, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(CHOICES)))
def test_adjointness(seed, name):
    operator = build(short_log(seed % 50), name)
    rng = np.random.default_rng(seed)
    values, distribution = rng.normal(size=(2, operator.n_cells))
    assert operator.apply(values) @ distribution == pytest.approx(
        values @ operator.apply_transpose(distribution), rel=1e-10, abs=1e-12
    )
    chain = operator.chain
    values, distribution = rng.normal(size=(2, chain.n))
    assert chain.apply(values) @ distribution == pytest.approx(
        values @ chain.apply_transpose(distribution), rel=1e-10, abs=1e-12
    )


@pytest.mark.parametrize("name", [name for name in CHOICES if name != "absorb"])
def test_rows_sum_to_one(name):
    operator = build(short_log(5), name)
    assert np.allclose(operator.apply(np.ones(operator.n_cells)), 1.0, atol=1e-13)
    assert np.allclose(operator.chain.apply(np.ones(operator.chain.n)), 1.0, atol=1e-13)


def test_absorbed_rows_lose_their_mass():
    operator = build(short_log(5), "absorb")
    lost = dense_operator(operator).sum(axis=1)
    assert np.allclose(lost[~operator.seen], 0.0)
    assert np.allclose(lost[operator.seen], 1.0)
    assert (~operator.seen).any()


@pytest.mark.parametrize("name", CHOICES)
def test_state_chain_is_the_policy_average_of_the_cells(name):
    operator = build(short_log(7), name)
    n_states = operator.n_states
    cells = dense_operator(operator).reshape(operator.n_cells, n_states, -1).sum(axis=2)
    if operator.policy is not None:
        cells = np.einsum("sa,sat->st", operator.policy, cells.reshape(n_states, -1, n_states))
    pulled = np.stack([operator.chain.apply(unit) for unit in np.eye(n_states)], axis=1)
    assert np.allclose(pulled, cells, atol=1e-13)


FALLING_MASS = """
import numpy as np
from lingendice.model.transition_rows import TransitionRows

n = 50_000
rng = np.random.default_rng(0)
rows = TransitionRows(
    indptr=np.zeros(n + 1, np.int64), indices=np.empty(0, np.int32), weight=np.empty(0), total=np.zeros(n),
    keep=np.zeros(n), out=np.ones((n, 1)), distribution=np.ones((1, 1)),
)
print([float(rows.apply_transpose(rng.random(n))[0]).hex() for _ in range(20)])
"""


def test_mass_that_falls_back_has_the_same_bits_for_any_number_of_blas_threads():
    found = set()
    for threads in "12":
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        command = [sys.executable, "-c", FALLING_MASS]
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        found.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(found) == 1
