"""Classes and periods against NetworkX."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lingendice.model.transition_rows import find_classes, period


def graph_of(n, edges):
    matrix = sparse.lil_array((n, n))
    for i, j in edges:
        matrix[i, j] = 1.0
    return sparse.csr_array(matrix)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_recurrent_classes_are_the_attracting_components(case):
    n, edges = case
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    expected = {frozenset(c) for c in nx.attracting_components(graph)}
    found = find_classes(graph_of(n, edges))
    assert {frozenset(nodes.tolist()) for nodes in found.recurrent} == expected
    assert set(found.transient.tolist()) == set(range(n)) - set().union(*expected)
    # Solvers go through components upstream first, by this numbering.
    assert all(found.component[i] >= found.component[j] for i, j in edges)
    components = {frozenset(c) for c in nx.strongly_connected_components(graph)}
    assert {frozenset(np.flatnonzero(found.component == k).tolist()) for k in found.component} == components


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=6))
def test_period_is_the_common_divisor_of_cycles(n, extra):
    edges = {(i, (i + 1) % n) for i in range(n)} | {(i, j) for i, j in extra if i < n and j < n}
    graph = nx.DiGraph(list(edges))
    expected = int(np.gcd.reduce([len(cycle) for cycle in nx.simple_cycles(graph)]))
    assert period(graph_of(n, edges)) == expected


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_period_of_a_cycle(n):
    assert period(graph_of(n, [(i, (i + 1) % n) for i in range(n)])) == n
