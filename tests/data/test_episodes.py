"""Degrees of freedom of a standard error that few pieces make up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import t

import lingendice as lg
from lingendice.data.episodes import Sample, effective_degrees, group_sample

ROWS = arrays(float, st.integers(1, 30), elements=st.floats(-1e3, 1e3))


def test_equal_pieces_all_count_and_a_single_one_counts_once():
    assert effective_degrees(np.full(40, -0.3), math.inf) == math.inf
    assert effective_degrees(np.full(40, -0.3), 100.0) == pytest.approx(40.0)
    assert effective_degrees(np.full(40, -0.3), 39.0) == 39.0
    assert effective_degrees(np.array([0.0, 5.0, 0.0]), 2.0) == pytest.approx(1.0)
    assert effective_degrees(np.array([[1.0], [1.0], [2.0]]), 9.0) == pytest.approx(6.0**2 / 18.0)
    assert effective_degrees(np.zeros(7), 6.0) == 6.0


@given(ROWS, st.sampled_from([1e-160, 1e-3, 1e150]))
def test_units_and_order_do_not_matter(rows, unit):
    found = effective_degrees(rows, rows.size)
    assert found * (1 + 1e-12) >= 1.0
    assert found <= rows.size
    if np.abs(rows).max() > 1e-3:
        assert effective_degrees(unit * rows[::-1], rows.size) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize(("skewed", "least", "most"), [(True, 0.90, 0.95), (False, 0.95, 0.975)])
def test_a_mean_that_few_draws_decide_is_covered(skewed, least, most):
    """Forty episodes of which one in ten pays: Student's interval of 39 degrees covers 79 %, not 95."""
    rng, n = np.random.default_rng(0), 40
    draws = rng.normal(size=(4000, n))
    mean = 0.0
    if skewed:
        draws, mean = (rng.random((4000, n)) < 0.1) * rng.exponential(size=(4000, n)), 0.1
    covered = {"plain": 0, "effective": 0}
    for x in draws:
        rows = (x - x.mean()) / math.sqrt(n * (n - 1))
        error = abs(x.mean() - mean)
        spread = math.sqrt((rows**2).sum())
        covered["plain"] += error <= t.ppf(0.975, n - 1) * spread
        covered["effective"] += error <= t.ppf(0.975, effective_degrees(rows, n - 1)) * spread
    assert least <= covered["effective"] / len(draws) <= most
    assert (covered["plain"] / len(draws) < 0.85) == skewed


def test_masked_times_are_missing():
    times = np.ma.array([3, 1, 2], mask=[False, True, False])
    with pytest.raises(ValueError, match=r"time\[1\] is missing \(masked"):
        lg.Counts.from_transitions([0, 1, 2], [1, 2, 0], episode=[0, 0, 0], time=times)


def test_blocks_of_one_path_count_as_many_as_a_chi_squared_variance_says():
    sample = Sample(np.arange(40), 40, None, 39.0, "", are_blocks=True)
    rows = np.random.default_rng(0).normal(size=(4000, 40))
    found = np.array([sample.effective_degrees(row) for row in rows])
    assert 30.0 < np.median(found) <= 39.0  # where pieces differ in size, 40 normal ones count 13
    assert sample._replace(are_blocks=False).effective_degrees(rows[0]) < 20.0
    one = np.zeros(40)
    one[3] = 5.0
    assert sample.effective_degrees(one) < 2.1
    assert sample.effective_degrees(np.zeros(40)) == 39.0


@pytest.mark.parametrize(("lag", "most"), [(1, 100), (50, 25), (400, 8)])
def test_one_path_is_cut_into_blocks_as_long_as_lag_and_memory_ask_for(lag, most):
    rng = np.random.default_rng(1)
    independent = rng.integers(0, 4, 10_000)
    cut = group_sample(lg.Counts.from_paths(independent, lag))
    assert abs(cut.n_clusters - most) <= 1
    lasting = np.repeat(rng.permutation(20) % 4, 500)
    assert group_sample(lg.Counts.from_paths(lasting, lag)).n_clusters == min(20, cut.n_clusters)
