"""A chain without transitions restarts for ever at gamma < 1: its distribution is where it restarts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def forms(n):
    yield np.zeros((n, n))
    yield np.zeros((n, n), int)
    yield np.zeros((n, n)).tolist()
    yield sparse.csr_array((n, n))
    yield sparse.csr_array((np.zeros(2), ([0, 0], [0, n - 1])), shape=(n, n))
    yield lg.Counts.empty(n)


@pytest.mark.parametrize("gamma", [0.85, 0.5, 1e-9, 1 - 1e-12])
@pytest.mark.parametrize("n", [1, 3, 2000])
def test_the_distribution_is_uniform(n, gamma):
    for data in forms(n) if n < 2000 else [sparse.csr_array((n, n))]:
        solution = lg.solve(data, gamma)
        assert solution.converged
        np.testing.assert_allclose(solution.stationary, np.full(n, 1.0 / n), rtol=1e-12)
        assert np.isnan(solution.tau).all()
        assert solution.leak == pytest.approx(1.0, rel=1e-12)
        assert solution.value is None
        assert solution.effective_sample_size == 0.0
        assert "100.00% of the stationary mass" in str(solution)
        json.dumps(solution.to_dict(), allow_nan=False)


@pytest.mark.parametrize("method", ["auto", "gth", "elimination", "gauss-seidel", "aggregation"])
def test_it_is_the_initial_one_where_that_is_given(method):
    initial = np.array([0.5, 0.3, 0.2, 0.0])
    solution = lg.solve(np.zeros((4, 4)), 0.85, initial=initial, reward=[1, 2, 3, 4], method=method)
    np.testing.assert_allclose(solution.stationary, initial, rtol=1e-12)
    assert math.isnan(solution.value)
    assert solution.status is lg.Status.NOT_IDENTIFIED


def test_a_restart_of_its_own_is_followed():
    initial, restart, gamma = np.array([0.9, 0.1, 0.0]), np.array([0.0, 0.5, 0.5]), 0.8
    solution = lg.solve(np.zeros((3, 3)), gamma, initial=initial, restart=restart)
    np.testing.assert_allclose(solution.stationary, (1 - gamma) * initial + gamma * restart, rtol=1e-12)
    absorbed = lg.solve(np.zeros((3, 3)), gamma, initial=initial, leak="absorb")
    np.testing.assert_allclose(absorbed.stationary, (1 - gamma) * initial, rtol=1e-12)
    assert absorbed.leak == pytest.approx(1.0)


def test_as_other_libraries_do():
    igraph = pytest.importorskip("igraph")
    theirs = igraph.Graph(n=4, directed=True).pagerank(damping=0.85)
    np.testing.assert_allclose(lg.solve(np.zeros((4, 4)), 0.85).stationary, theirs, rtol=1e-12)


def test_graphs_without_edges():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_nodes_from("abc")
    np.testing.assert_allclose(lg.solve(graph, 0.85).stationary, np.full(3, 1 / 3), rtol=1e-12)
    report = lg.audit(graph, 0.85)
    assert report.dangling.tolist() == [0, 1, 2]
    assert "3 without outgoing transitions" in str(report)


def test_what_stays_without_an_answer():
    for gamma, data in ((1.0, np.zeros((3, 3))), (0.9, np.zeros((0, 0))), (0.9, lg.Counts.empty(2, 2))):
        with pytest.raises(ValueError, match="the counts are empty"):
            lg.solve(data, gamma)
    with pytest.raises(ValueError, match="no outgoing transitions"):
        lg.solve(np.zeros((3, 3)), 0.9, leak="error")


def test_the_leak_is_said():
    with pytest.warns(lg.LeakWarning, match=r"100\.0% of the stationary mass"):
        lg.solve(np.zeros((3, 3)), 0.9)
