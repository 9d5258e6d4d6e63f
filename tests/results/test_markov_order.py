"""Tests of order and drift: their moments against all permutations, their levels, and what they find."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

import lingendice as lg
from lingendice.results.markov_order import permutation_moments


def walk(matrix, steps, rng):
    bounds, path = np.cumsum(matrix, axis=1), [int(rng.integers(len(matrix)))]
    for draw in rng.random(steps - 1):
        path.append(min(int(np.searchsorted(bounds[path[-1]], draw, "right")), len(matrix) - 1))
    return np.array(path)


def x_squared(rows, columns):
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1.0)
    return chi2_contingency(table, correction=False).statistic


def test_moments_are_those_of_all_permutations():
    rows, columns = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 2, 2])
    every = [x_squared(rows, columns[list(order)]) for order in permutations(range(7))]
    sizes = [np.bincount(part) for part in (rows, columns)]
    (mean,), (variance,) = permutation_moments(
        np.array([7.0]), *(np.array([float(v)]) for size in sizes for v in (size.size, (1.0 / size).sum()))
    )
    assert (mean, variance) == pytest.approx((np.mean(every), np.var(every)), rel=1e-12)


def test_the_statistic_is_the_sum_of_those_of_the_tables():
    path = np.random.default_rng(0).integers(0, 3, 400)
    found = lg.markov_order(path)
    assert found["order 0"].statistic == pytest.approx(x_squared(path[:-1], path[1:]), rel=1e-12)
    tables = [
        x_squared(path[:-2][here], path[2:][here]) for here in (path[1:-1] == state for state in range(3))
    ]
    assert found["order 1"].statistic == pytest.approx(sum(tables), rel=1e-12)


def test_levels_hold_where_nothing_is_to_be_found():
    matrix = np.random.default_rng(3).dirichlet(np.ones(4), 4)
    rejected = np.zeros(5)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found = lg.markov_order([walk(matrix, 50, rng) for _ in range(10)], ends="truncated")
        rejected += [found[name].p_value < 0.05 for name in ("order 1", "order 2", "drift", "step", "path")]
    assert (rejected / 300 < 0.09).all()  # three standard deviations above .05
    assert (rejected > 2).all()


def test_orders_are_found():
    rng = np.random.default_rng(5)
    assert lg.markov_order(rng.integers(0, 4, 3000)).order == 0
    assert lg.markov_order(walk(rng.dirichlet(np.ones(4), 4), 3000, rng)).order == 1
    second = [0, 1]
    for draw in rng.random(3000):
        second.append(int(draw < (0.8 if second[-2] else 0.3)))
    assert lg.markov_order(second).order == 2
    third = [0, 1, 1]
    for draw in rng.random(3000):
        third.append(int(draw < (0.8 if third[-3] else 0.3)))
    assert lg.markov_order(third).order is None
    assert "more than 2" in str(lg.markov_order(third))
    assert lg.markov_order(second, lag=40).order == 0  # far apart, states are independent


def test_drift_steps_and_paths_are_found():
    rng = np.random.default_rng(2)
    one, other = (rng.dirichlet(np.ones(3), 3) for _ in range(2))
    drifting = [walk(one if k < 30 else other, 40, rng) for k in range(60)]
    found = lg.markov_order(drifting, ends="truncated")
    assert found["drift"].p_value < 1e-6
    assert found["path"].p_value < 1e-3
    assert found["step"].p_value > 0.01
    slowing = [np.concatenate([walk(one, 5, rng), walk(other, 35, rng)]) for _ in range(60)]
    assert lg.markov_order(slowing, ends="truncated")["step"].p_value < 1e-6


def test_starts_and_ends_of_journeys_are_states():
    rng = np.random.default_rng(4)
    journeys = [
        [first, "b"] + (["c"] if (first == "a") == (rng.random() < 0.8) else []) for first in "ad" * 200
    ]
    found = lg.markov_order(journeys)
    assert found["order 1"].p_value < 1e-6
    assert found.n_pairs == sum(map(len, journeys))
    assert list(found.to_frame(library="pandas").name) == [
        "order 0",
        "order 1",
        "order 2",
        "drift",
        "step",
        "path",
    ]
    assert found.to_dict()["order"] == found.order
    with pytest.raises(KeyError, match="there is no test 'order 3'"):
        found["order 3"]


def test_nothing_to_compare_is_said():
    found = lg.markov_order([0, 1])
    assert found.order == 0
    assert "nothing to compare" in str(found)


def test_a_table_of_distinct_paths_tells_nothing_of_drift():
    paths, times = ["a > b > a", "b > b", "a > c"], [50, 30, 20]
    grouped = lg.markov_order(paths, weight=times)
    assert [test.name for test in grouped.tests] == ["order 0", "order 1", "order 2", "step"]
    listed = lg.markov_order([path for path, n in zip(paths, times, strict=True) for _ in range(n)])
    assert [listed[test.name] for test in grouped.tests[:2]] == list(grouped.tests[:2])
