"""Weights of logged actions: unbiasedness by enumeration, the mixture against a general optimizer."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lingendice.model.behavior import fit_behavior, free_rows, weights_of_seen


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(0, 10_000))
def test_weights_of_seen_actions_are_unbiased(visits, seed):
    """Over every possible log of a state the expected weight of an action is its target probability."""
    rng = np.random.default_rng(seed)
    target, behavior = rng.dirichlet(np.ones(3), size=2)
    expected = np.zeros(3)
    for actions in product(range(3), repeat=visits):
        seen = np.bincount(actions, minlength=3).astype(float)[None]
        expected += np.prod(behavior[list(actions)]) * weights_of_seen(seen, target[None], behavior[None])[0]
    assert np.allclose(expected, target)


def test_often_seen_actions_keep_the_target_whatever_the_behavior():
    seen = np.array([[400.0, 600.0, 0.0]])
    target = np.array([[0.5, 0.3, 0.2]])
    for behavior in ([[0.4, 0.5, 0.1]], [[0.1, 0.1, 0.8]]):
        weights = weights_of_seen(seen, target, np.array(behavior))
        assert np.allclose(weights, [[0.5, 0.3, 0.0]])


def test_free_rows_lie_between_the_weights_and_their_normalized_form():
    rng = np.random.default_rng(0)
    weights = rng.random((20, 4))
    visits = rng.integers(1, 50, 20).astype(float)
    total, freed = weights.sum(axis=1), free_rows(weights, visits).sum(axis=1)
    assert (np.abs(freed - 1) <= np.abs(total - 1) + 1e-12).all()
    assert ((freed - 1) * (total - 1) >= -1e-12).all()
    many = free_rows(weights, np.full(20, 1e9))
    assert np.allclose(many.sum(axis=1), 1.0)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_mixture_is_the_most_likely_one(share):
    rng = np.random.default_rng(1)
    target = rng.dirichlet(np.full(4, 0.5), size=200)
    behavior = share * target + (1 - share) / 4
    seen = np.array([rng.multinomial(20, distribution) for distribution in behavior]).astype(float)
    fitted = fit_behavior(seen, target)
    assert np.allclose(fitted.sum(axis=1), 1.0)
    flat, sharp = np.sqrt(target), target**2
    distributions = np.stack(
        [
            target,
            flat / flat.sum(axis=1, keepdims=True),
            sharp / sharp.sum(axis=1, keepdims=True),
            np.tile(seen.sum(axis=0) / seen.sum(), (200, 1)),
            np.full(target.shape, 0.25),
        ]
    )

    def loss(logits):
        shares = np.exp(logits) / np.exp(logits).sum()
        return -(seen * np.log(np.tensordot(shares, distributions, 1) + 1e-300)).sum() / seen.sum()

    best = min(minimize(loss, start, method="BFGS").fun for start in (np.zeros(5), np.eye(5)[0] * 3))
    assert -(seen * np.log(fitted + 1e-300)).sum() / seen.sum() < best + 4e-3
    assert np.abs(fitted - behavior).mean() < 0.02
