"""Samples in O(1): alias tables, and the distribution of the sampled transitions."""

from __future__ import annotations

import numpy as np
import pytest
from flows import mdp_flow
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lingendice.kernels.random_numbers import draw, draw_event, draw_next, mix
from lingendice.solvers.sgd import alias_table, build_sampler

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@settings(deadline=None)
@given(weights=st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), min_size=1, max_size=40).filter(any))
def test_alias_table_holds_the_distribution_exactly(weights):
    weights = np.array(weights)
    threshold, alias = alias_table(weights)
    distribution = np.bincount(np.arange(weights.size), threshold, weights.size)
    distribution += np.bincount(alias, 1.0 - threshold, weights.size)
    assert np.allclose(distribution / weights.size, weights / weights.sum(), atol=1e-12)
    assert (threshold[weights == 0] == 0).all()


def test_draws_follow_the_distribution():
    weights = np.array([1.0, 0.0, 5.0, 3.0, 0.5])
    threshold, alias = alias_table(weights)
    counter, seen = np.uint64(12345), np.zeros(5, dtype=np.int64)
    with np.errstate(over="ignore"):
        for _ in range(20000):
            seen[draw(np.uint64(mix(counter)), threshold, alias, 0, 5)] += 1
            counter = np.uint64(counter + GOLDEN)
    assert seen[1] == 0
    positive = weights > 0
    assert stats.chisquare(seen[positive], 20000 * weights[positive] / weights.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("gamma", "leak"), [(1.0, "restart"), (0.9, "restart"), (0.9, "absorb")])
def test_sampled_transitions_have_the_distribution_of_the_flow(gamma, leak):
    """E over events of factor * f(x') is (T f)(x) weighted by p: checked by many draws, seed fixed."""
    flow, _ = mdp_flow(gamma, True, leak=leak)
    sampler = build_sampler(flow)
    source = sampler.source
    rng = np.random.default_rng(0)
    f = np.where(flow.seen, rng.standard_normal(flow.n_cells), 0.0)
    tau = rng.uniform(size=flow.n_cells)
    counter, total, square, n = np.uint64(7), 0.0, 0.0, 60000
    with np.errstate(over="ignore"):
        for _ in range(n):
            x, following = draw_event(np.uint64(mix(counter)), source.events)
            counter = np.uint64(counter + GOLDEN)
            y, factor, after = draw_next(counter, following, source.actions, source.tables, source.redirects)
            # Steps over dense features give each sample as many numbers as it may need.
            assert np.uint64(after) in [counter + np.uint64(k) * GOLDEN for k in range(source.most_draws)]
            counter = np.uint64(after)
            value = 0.0 if y < 0 else gamma * factor * tau[x] * f[y]
            total, square = total + value, square + value * value
    mean = total / n
    error = np.sqrt((square / n - mean**2) / n)
    assert abs(mean - flow.apply_transpose(flow.p * tau) @ f) < 4 * error
    assert np.allclose(np.bincount(sampler.cell, sampler.probability, flow.n_cells), flow.p)
