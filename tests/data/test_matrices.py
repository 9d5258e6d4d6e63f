"""Citation and web graphs, where the data folder is at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.model.transition_rows import find_classes

GRAPHS = Path(__file__).resolve().parents[3] / "shared" / "data" / "graphs"
pytestmark = [
    pytest.mark.skipif(not GRAPHS.is_dir(), reason="the graphs are not on this machine"),
    pytest.mark.filterwarnings("ignore::lingendice.LeakWarning"),
]


def citations(name):
    """Counts over papers, walking from the cited to the citing paper."""
    cited, citing = np.loadtxt(GRAPHS / f"{name}.cites", dtype=str, delimiter="\t").T
    return lg.Counts.from_transitions(cited, citing)


def web():
    stored = np.load(GRAPHS / "cnr-2000.npz")
    indptr, indices = stored["indptr"], stored["indices"]
    n = indptr.size - 1
    return sparse.csr_array((np.ones(indices.size), indices, indptr), shape=(n, n))


def pagerank_residual(adjacency, distribution, gamma):
    """L1 residual of PageRank with dangling nodes sent to the uniform distribution, by SciPy alone."""
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    moved = gamma * (adjacency.T @ (distribution / np.where(degree > 0, degree, 1.0)))
    return float(np.abs(moved + (1.0 - moved.sum()) / distribution.size - distribution).sum())


@pytest.mark.parametrize(("name", "papers", "dangling"), [("cora", 2708, 1143), ("citeseer", 3327, None)])
@pytest.mark.parametrize("gamma", [0.85, 0.99])
def test_citation_graphs_match_networkx(name, papers, dangling, gamma):
    nx = pytest.importorskip("networkx")
    counts = citations(name)
    assert counts.n_states == papers
    if dangling is not None:
        assert lg.audit(counts, gamma).dangling.size == dangling
    graph = nx.from_scipy_sparse_array(counts.matrix, create_using=nx.DiGraph)
    expected = nx.pagerank(graph, alpha=gamma, tol=1e-16, max_iter=20_000)
    solution = lg.solve(counts, gamma)
    assert solution.converged
    assert np.abs(solution.stationary - [expected[i] for i in range(papers)]).sum() < 2e-10


def test_citations_at_gamma_one_have_many_classes_without_restart():
    counts = citations("cora")
    assert len(find_classes(counts.matrix).recurrent) == 1171
    solution = lg.solve(counts)  # dangling papers restart from the data distribution
    for distribution in solution.distributions:
        assert distribution.sum() == pytest.approx(1.0)
    assert solution.residual < 1e-12


@pytest.mark.parametrize("gamma", [0.85, 0.999])
def test_web_graph(gamma):
    adjacency = web()
    solution = lg.solve(adjacency, gamma)
    assert solution.converged
    residual = pagerank_residual(adjacency, solution.stationary, gamma)
    assert residual / (1 - gamma) < 1.5e-10
    if gamma == 0.85:
        igraph = pytest.importorskip("igraph")
        rows = np.repeat(np.arange(adjacency.shape[0]), np.diff(adjacency.indptr))
        peer = igraph.Graph(
            n=adjacency.shape[0], edges=np.column_stack([rows, adjacency.indices]), directed=True
        )
        theirs = np.array(peer.pagerank(damping=gamma, implementation="prpack"))
        assert np.abs(solution.stationary - theirs).sum() < 2e-10


def test_web_graph_classes():
    found = find_classes(web())
    assert len(found.recurrent) == 88_050
    assert lg.audit(web(), 0.85).dangling.size == 78_056
