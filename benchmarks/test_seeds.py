"""PageRank from many seeds, and by way of NetworkX: against single calls, igraph and NetworkX itself."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from graphs import scale_free_digraph  # noqa: E402


def random_graph(n_nodes, n_edges, seed=0):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, n_nodes, (2, n_edges))
    graph = sparse.coo_array((np.ones(n_edges), tuple(ends)), shape=(n_nodes, n_nodes)).tocsr()
    graph.data[:] = 1.0
    return graph


def single_calls(graph, seeds, **options):
    return np.array([lg.pagerank(graph, personalization=seed, **options) for seed in seeds])


def test_a_thousand_seeds_on_a_small_graph(record):
    import igraph

    graph, rng = random_graph(3_500, 40_000), np.random.default_rng(1)
    seeds = [rng.choice(3_500, 5, replace=False).tolist() for _ in range(1_000)]
    counts, prepared = lg.Counts.from_matrix(graph), lg.prepare(graph)
    rows, columns = graph.nonzero()
    peer = igraph.Graph(n=3_500, edges=np.column_stack([rows, columns]), directed=True)
    together, apart = lg.pagerank(prepared, seeds=seeds, tol=1e-13), single_calls(counts, seeds, tol=1e-13)
    off = float(np.abs(together - apart).max())
    assert off < 1e-12
    theirs = np.array(
        [peer.personalized_pagerank(reset_vertices=seed, implementation="prpack") for seed in seeds[:20]]
    )
    assert np.abs(together[:20] - theirs).sum(axis=1).max() < 1e-9
    size = "3,500 nodes, 40,000 edges"
    others = {"single calls on the counts": lambda: single_calls(counts, seeds)}
    mine = partial(lg.pagerank, prepared, seeds=seeds)
    record.ratio(f"PageRank of 1,000 seeds, {size}", mine, others, 1 / 0.3, 3, f"largest gap {off:.0e}")
    few = seeds[:20]
    others = {
        "igraph prpack": lambda: [
            peer.personalized_pagerank(reset_vertices=seed, implementation="prpack") for seed in few
        ]
    }
    record.ratio(f"PageRank of 20 seeds, {size}", lambda: lg.pagerank(prepared, seeds=few), others, 1.0, 3)


def test_seeds_on_a_million_nodes(record):
    graph = scale_free_digraph(1_000_000)
    rng, counts = np.random.default_rng(1), lg.Counts.from_matrix(graph, copy=False)
    prepared = lg.prepare(counts)
    seeds = [rng.choice(graph.shape[0], 20, replace=False) for _ in range(4)]
    name = f"PageRank of 4 seeds, {graph.shape[0]:,} nodes, {graph.nnz:,} edges"
    others = {"single calls on the counts": lambda: single_calls(counts, seeds)}
    record.ratio(name, lambda: lg.pagerank(prepared, seeds=seeds), others, 2.0, 3)


def test_by_way_of_networkx(record):
    nx = pytest.importorskip("networkx", minversion="3.4")
    from lingendice import networkx_backend

    edges = np.random.default_rng(0).integers(0, 20_000, (200_000, 2))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(20_000))
    graph.add_edges_from(edges.tolist())
    # What NetworkX keeps with the graph after the first call.
    kept = networkx_backend.convert_from_nx(graph, edge_attrs={"weight": 1})
    others = {"NetworkX": lambda: nx.pagerank(graph)}
    name = 'nx.pagerank(G, backend="lingendice"), 20,000 nodes, 200,000 edges, the graph cached'
    record.ratio(name, lambda: networkx_backend.pagerank(kept), others, 20.0, 5)
