"""PageRank is what NetworkX and igraph compute, from any kind of graph, and bit by bit what solve gives."""

from __future__ import annotations

import gzip
import inspect
import pickle
import warnings

import networkx as nx
import numpy as np
import pytest
from scipy import io as scipy_io
from scipy import sparse

import lingendice as lg

MAKERS = (nx.DiGraph, nx.Graph, nx.MultiDiGraph, nx.MultiGraph)


def random_graph(make=nx.DiGraph, n=60, seed=0, weighted=True):
    """Named nodes, some dangling, some isolated; loops, zero weights, and parallel edges where allowed."""
    rng = np.random.default_rng(seed)
    graph = make()
    graph.add_nodes_from(f"n{k}" for k in rng.permutation(n))
    for source, target in rng.integers(0, n - 5, (3 * n, 2)):
        if source % 7:
            options = {"weight": float(rng.choice([0.0, 0.5, 1.0, 3.0]))} if weighted and source % 2 else {}
            graph.add_edge(f"n{source}", f"n{target}", **options)
    return graph


def theirs(graph, **options):
    """NetworkX stops at a change of len(G) * tol: this is as far as rounding lets it go."""
    return nx.pagerank(graph, tol=6e-15 / len(graph), max_iter=20_000, **options)


def assert_same(ours, expected, rtol=1e-12):
    assert type(ours) is dict
    assert all(type(rank) is float for rank in ours.values())
    assert list(ours) == list(expected)
    np.testing.assert_allclose(list(ours.values()), list(expected.values()), rtol=rtol)


# -- as NetworkX ------------------------------------------------------------------------------------------


def test_the_arguments_are_those_of_networkx():
    ours, signature = (inspect.signature(each).parameters for each in (lg.pagerank, nx.pagerank))
    named = [name for name in signature if name not in ("backend", "backend_kwargs")]
    assert list(ours)[: len(named)] == named
    for name in ("alpha", "personalization", "nstart", "weight", "dangling"):
        assert ours[name].default == signature[name].default


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("alpha", [0.5, 0.85, 0.99])
def test_every_kind_of_graph(make, alpha):
    graph = random_graph(make)
    assert_same(lg.pagerank(graph, alpha), theirs(graph, alpha=alpha))
    assert_same(lg.pagerank(graph, alpha, weight=None), theirs(graph, alpha=alpha, weight=None))


def test_personalization_and_dangling_with_missing_nodes():
    graph = random_graph()
    home, after = {"n3": 1, "n8": 3.0}, {"n1": 2.0, "n50": 0}
    for options in (
        {"personalization": home},
        {"dangling": after},
        {"personalization": home, "dangling": after},
    ):
        ours, expected = lg.pagerank(graph, **options), theirs(graph, **options)
        assert list(ours) == list(expected)
        np.testing.assert_allclose(list(ours.values()), list(expected.values()), rtol=1e-12, atol=1e-300)


def test_other_attributes_hold_weights():
    graph = nx.DiGraph()
    graph.add_edge("a", "b", cost=3)
    graph.add_edge("a", "c", weight=9)
    graph.add_edge("c", "a")
    for weight in ("cost", "weight", None):
        assert_same(lg.pagerank(graph, weight=weight), theirs(graph, weight=weight))


def test_empty_graphs_and_graphs_without_edges():
    assert lg.pagerank(nx.DiGraph()) == {} == nx.pagerank(nx.DiGraph())
    assert lg.pagerank([]) == {}
    assert lg.pagerank(np.zeros((0, 0))).shape == (0,)
    graph = nx.empty_graph(4, create_using=nx.DiGraph)
    for options in (
        {},
        {"alpha": 1.0},
        {"dangling": {0: 1}},
        {"personalization": {1: 1}, "dangling": {0: 1}},
    ):
        ours, expected = lg.pagerank(graph, **options), theirs(graph, **options)
        np.testing.assert_allclose(list(ours.values()), list(expected.values()), rtol=1e-12)


def test_the_ends_of_alpha():
    graph = nx.DiGraph([(0, 1), (1, 0), (0, 0), (2, 0), (1, 3)])  # 3 dangles
    for alpha in (0.0, 1.0):
        for options in ({}, {"personalization": {2: 1.0}}):
            ours, expected = lg.pagerank(graph, alpha, **options), theirs(graph, alpha=alpha, **options)
            np.testing.assert_allclose(list(ours.values()), list(expected.values()), rtol=1e-9, atol=1e-15)


def test_where_iterations_begin_makes_no_difference():
    graph = random_graph()
    assert lg.pagerank(graph, nstart={"n1": 1}) == lg.pagerank(graph)


# -- as igraph --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_igraph(directed, weighted):
    igraph = pytest.importorskip("igraph")
    rng = np.random.default_rng(4)
    graph = igraph.Graph(n=50, edges=rng.integers(0, 47, (150, 2)).tolist(), directed=directed)
    graph.vs["name"] = [f"n{k}" for k in range(50)]
    weights = None
    if weighted:
        graph.es["weight"] = weights = (rng.random(150) + 0.1).tolist()
    expected = graph.pagerank(damping=0.85, weights=weights)
    np.testing.assert_allclose(lg.pagerank(graph), expected, rtol=1e-10)
    ranks = lg.pagerank(graph, personalization={"n3": 1.0})
    reset = [float(k == 3) for k in range(50)]
    np.testing.assert_allclose(
        ranks, graph.personalized_pagerank(damping=0.85, reset=reset, weights=weights), rtol=1e-9, atol=1e-15
    )


# -- rustworkx --------------------------------------------------------------------------------------------


def test_rustworkx():
    rx = pytest.importorskip("rustworkx")
    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(6))
    graph.add_edges_from(
        [(0, 1, 2.0), (1, 2, 1.0), (2, 0, 0.5), (4, 0, 1.0), (0, 5, None), (0, 5, {"weight": 2})]
    )
    graph.remove_node(3)
    expected = nx.MultiDiGraph()
    expected.add_nodes_from((0, 1, 2, 4, 5))
    weighted = [(0, 1, 2.0), (1, 2, 1.0), (2, 0, 0.5), (4, 0, 1.0), (0, 5, 1.0), (0, 5, 2.0)]
    expected.add_weighted_edges_from(weighted)
    assert_same(lg.pagerank(graph), theirs(expected))
    listed = lg.pagerank(graph.edge_list())
    np.testing.assert_allclose([listed[k] for k in expected], list(theirs(expected, weight=None).values()))
    both_ways = rx.PyGraph()
    both_ways.add_nodes_from(range(3))
    both_ways.add_edges_from([(0, 1, 1.0), (1, 2, 1.0)])
    assert_same(lg.pagerank(both_ways), theirs(nx.path_graph(3)))


# -- matrices, edge lists, files ----------------------------------------------------------------------------


def test_matrices_give_arrays():
    graph = random_graph()
    expected = np.array(list(theirs(graph).values()))
    matrix = nx.to_scipy_sparse_array(graph)
    for data in (matrix, matrix.toarray(), matrix.toarray().tolist(), sparse.coo_matrix(matrix)):
        ranks = lg.pagerank(data)
        assert isinstance(ranks, np.ndarray)
        np.testing.assert_allclose(ranks, expected, rtol=1e-12)
    node = list(graph).index("n3")
    by_number = lg.pagerank(matrix, personalization={node: 1.0})
    np.testing.assert_array_equal(by_number, lg.pagerank(matrix, personalization=np.eye(60)[node]))


def edges_of(graph):
    return [(a, b, data.get("weight", 1)) for a, b, data in graph.edges(data=True)]


def test_lists_of_edges():
    graph = random_graph(nx.MultiDiGraph)
    graph.remove_nodes_from(list(nx.isolates(graph)))  # a list names no others
    expected = theirs(graph)
    pairs, triples = list(graph.edges()), edges_of(graph)
    assert lg.pagerank(triples) == pytest.approx(expected, rel=1e-12)
    assert lg.pagerank(pairs) == pytest.approx(theirs(graph, weight=None), rel=1e-12)
    assert lg.pagerank(triples, weight=None) == pytest.approx(theirs(graph, weight=None), rel=1e-12)
    assert lg.pagerank(triples, personalization={"n3": 1})["n3"] > expected["n3"]


def test_arrays_of_edges():
    rng = np.random.default_rng(5)
    edges = rng.integers(100, 130, (90, 2))
    graph = nx.MultiDiGraph(edges.tolist())
    assert lg.pagerank(edges=edges) == pytest.approx(theirs(graph), rel=1e-12)
    assert lg.pagerank(edges=edges.tolist()) == lg.pagerank(edges=edges)
    assert set(map(type, lg.pagerank(edges=edges))) == {int}
    weight = rng.random(90)
    graph = nx.MultiDiGraph()
    graph.add_weighted_edges_from((int(a), int(b), w) for (a, b), w in zip(edges, weight, strict=True))
    assert lg.pagerank(edges=np.column_stack([edges, weight])) == pytest.approx(theirs(graph), rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_how_many_edges_there_are_does_not_decide_what_they_are(n):
    """Three edges of an array were a matrix, four were edges; ones of shape (2, 3) ranked one node."""
    pd = pytest.importorskip("pandas")
    rows = [[k, (k + 1) % n, 1 + k] for k in range(n)]
    expected = dict.fromkeys(range(n), pytest.approx(1 / n))
    for edges in (rows, np.array(rows), [tuple(row) for row in rows], pd.DataFrame(rows)):
        assert lg.pagerank(edges=edges) == expected
    assert lg.pagerank([tuple(row) for row in rows]) == expected
    assert lg.pagerank(pd.DataFrame(rows, columns=["source", "target", "weight"])) == expected
    for matrix in (rows, np.array(rows)):
        if n == 3:
            by_hand = nx.from_numpy_array(np.array(rows), create_using=nx.DiGraph)
            np.testing.assert_allclose(lg.pagerank(matrix), list(theirs(by_hand).values()), rtol=1e-12)
            continue
        with pytest.raises(ValueError, match=rf"square matrix .*shape \({n}, 3\).*pagerank\(edges=\.\.\.\)"):
            lg.pagerank(matrix)
    if n != 3:
        with pytest.raises(ValueError, match=r"found the columns \[0, 1, 2\].*edges="):
            lg.pagerank(pd.DataFrame(rows))
    with pytest.raises(ValueError, match=r"got shape \(2, 3\).*edges="):
        lg.pagerank(np.ones((2, 3)))


def test_edges_have_one_door():
    graph = nx.DiGraph([(0, 1), (1, 0)])
    with pytest.raises(ValueError, match="a graph, or edges=; give one"):
        lg.pagerank()
    with pytest.raises(ValueError, match="a graph, or edges=; give one"):
        lg.pagerank(graph, edges=[(0, 1)])
    # A view of a multigraph's edges holds keys where a weight is meant.
    for given in (graph, graph.edges, sparse.eye(2), lg.Counts.from_matrix([[0, 1], [1, 0]]), {"a": "b"}):
        with pytest.raises(ValueError, match=r"edges= is .*graphs and matrices as the first argument"):
            lg.pagerank(edges=given)
    with pytest.raises(ValueError, match=r"edges are pairs, or triples .*no sequence"):
        lg.pagerank(edges=[1, 2])
    with pytest.raises(ValueError, match=r"rows of two or three entries, got shape \(4,\)"):
        lg.pagerank(edges=np.arange(4))
    assert lg.pagerank(edges=set(graph.edges)) == lg.pagerank(graph)
    assert lg.pagerank(edges=[]) == {}


def test_frames_of_edges():
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    columns = {"source": ["a", "b", "c", "a"], "target": ["b", "c", "a", "c"], "weight": [1.0, 2.0, 1.0, 3.0]}
    expected = theirs(nx.from_pandas_edgelist(pd.DataFrame(columns), edge_attr=True, create_using=nx.DiGraph))
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns), pl.LazyFrame(columns), pa.table(columns)):
        assert lg.pagerank(frame) == pytest.approx(expected, rel=1e-12)
    first_two = pd.DataFrame(
        {"citing": columns["source"], "cited": columns["target"], "weight": columns["weight"]}
    )
    assert lg.pagerank(edges=first_two) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="edges have the columns source and target"):
        lg.pagerank(pd.DataFrame({"x": [1]}))


def test_a_frame_of_many_columns_without_names_is_refused(tmp_path):
    """As a matrix that pandas wrote with its index, whose first two columns were taken for edges."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    matrix = pd.DataFrame(np.arange(9).reshape(3, 3), index=list("abc"), columns=list("abc"))
    matrix.to_parquet(tmp_path / "matrix.parquet")
    for given in (matrix.reset_index(), tmp_path / "matrix.parquet"):
        with pytest.raises(
            ValueError, match=r"found the columns \[.*'c'.*edges have the columns source and target"
        ):
            lg.pagerank(given)


def test_a_weight_is_no_end_of_an_edge():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"weight": [1, 2, 3], "x": [1, 2, 1], "y": [2, 1, 3]})
    assert lg.pagerank(edges=frame) == lg.pagerank([(1, 2, 1), (2, 1, 2), (1, 3, 3)])
    with pytest.raises(ValueError, match=r"found the columns .*edges have the columns source and target"):
        lg.pagerank(frame.rename(columns={"x": "source", "y": "friend"}))  # ends in what is no target


def test_square_frames_are_matrices():
    """As pandas and NetworkX write adjacency; their first two columns were taken for edges."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    graph = nx.gnp_random_graph(8, 0.4, seed=3, directed=True)
    graph = nx.relabel_nodes(graph, {node: f"n{node}" for node in graph} | {0: "source", 1: "target"})
    expected = nx.pagerank(graph, tol=1e-14)
    frame = nx.to_pandas_adjacency(graph)
    for given in (frame, frame[sorted(frame.columns, reverse=True)]):
        assert lg.pagerank(given) == pytest.approx(expected, abs=1e-10)
    bare = pd.DataFrame(frame.to_numpy())
    for unnamed in (bare, pl.from_pandas(bare.set_axis([f"c{k}" for k in bare], axis=1))):
        np.testing.assert_allclose(lg.pagerank(unnamed), list(expected.values()), atol=1e-10)


@pytest.mark.parametrize("column", [{"action": [0, 1, 0]}, {"terminal": [0, 1, 0]}])
def test_a_log_with_actions_or_ends_is_no_graph(column):
    """Where episodes end, mass is absorbed: ranks summed to less than 1."""
    log = {"state": [0, 1, 2], "next_state": [1, 2, 0]}
    assert lg.pagerank(lg.Counts.from_transitions(**log)).sum() == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"no graph; solve\(counts\) takes them"):
        lg.pagerank(lg.Counts.from_transitions(**log, **column))


def test_files(tmp_path):
    triples = [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 1.0), ("a", "c", 3.0)]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(triples)
    expected = theirs(graph)
    text = {
        "plain.txt": "# from to weight\n" + "".join(f"{a} {b}  {w}\n" for a, b, w in triples),
        "head.csv": "Target,weight,source\n" + "".join(f"{b},{w},{a}\n" for a, b, w in triples),
        "tabs.tsv": "\n".join(f"{a}\t{b}\t{w}" for a, b, w in triples) + "\n\n",
    }
    for name, content in text.items():
        (tmp_path / name).write_text(content)
        assert lg.pagerank(tmp_path / name) == pytest.approx(expected, rel=1e-12)
    with gzip.open(tmp_path / "packed.csv.gz", "wt") as stream:
        stream.write(text["head.csv"])
    assert lg.pagerank(str(tmp_path / "packed.csv.gz")) == pytest.approx(expected, rel=1e-12)
    (tmp_path / "numbers.edges").write_text("7 1\n1 7\n7 9\n")
    assert lg.pagerank(tmp_path / "numbers.edges") == pytest.approx(
        theirs(nx.DiGraph([(7, 1), (1, 7), (7, 9)])), rel=1e-12
    )
    matrix = nx.to_scipy_sparse_array(graph)
    scipy_io.mmwrite(tmp_path / "graph.mtx", matrix)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    np.testing.assert_allclose(lg.pagerank(tmp_path / "graph.mtx"), list(expected.values()), rtol=1e-12)
    assert lg.pagerank(edges=tmp_path / "edges.npy") == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert lg.pagerank(edges=tmp_path / "plain.txt") == lg.pagerank(tmp_path / "plain.txt")
    with pytest.raises(ValueError, match=r"got shape \(3, 2\).*edges="):
        lg.pagerank(tmp_path / "edges.npy")
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source, target, weight = zip(*triples, strict=True)
    parquet.write_table(
        pa.table({"source": source, "target": target, "weight": weight}), tmp_path / "e.parquet"
    )
    assert lg.pagerank(tmp_path / "e.parquet") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("root,1\n1,2\n2,3\n3,1\n", [("root", "1"), ("1", "2"), ("2", "3"), ("3", "1")]),
        ("1,2\n2,+1\n", [("1", "2"), ("2", "+1")]),
        ("u,v\nv,w\nw,u\n", [("u", "v"), ("v", "w"), ("w", "u")]),
        ("Source,Target,Weight\na,b,3\na,c,1\n", [("a", "b"), ("a", "b"), ("a", "b"), ("a", "c")]),
        (
            'source,target\n"a, the first",b\nb,"a, the first"\n',
            [("a, the first", "b"), ("b", "a, the first")],
        ),
    ],
)
def test_what_the_text_of_edges_means(tmp_path, text, edges):
    (tmp_path / "edges.csv").write_text(text)
    multigraph = nx.MultiDiGraph(edges)
    assert lg.pagerank(tmp_path / "edges.csv") == pytest.approx(theirs(multigraph), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("citing,cited\n1,2\n2,1\n", r"edges\.csv: the first line .*'citing', 'cited'.* source and target"),
        ("source,target\na,b\n,b\n", r"edges\.csv: edge 2 has an empty end"),
        ("source,target,weight\na,b,1\nb,a,x\n", r"edges\.csv: edge 2 has the weight 'x', .*weight=None"),
        ("source,target,weight\na,b,1\nb,a,-2\n", r"edges\.csv: weight\[1\] is -2.0, which is negative"),
        ("source,target,kilometers\na,b,3\n", r"no column 'km' for the weight; .*'kilometers'"),
    ],
)
def test_edges_that_are_none(tmp_path, text, says):
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        lg.pagerank(tmp_path / "edges.csv", weight="km" if "kilometers" in text else "weight")


def test_ends_beyond_integers_are_refused():
    with pytest.raises(ValueError, match=r"target\[1\] is inf, not a state"):
        lg.pagerank(edges=np.array([[0.0, 1.0], [1.0, np.inf], [2.0, 0.0]]))


def test_errors_of_files(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        lg.pagerank(tmp_path / "none.csv")
    (tmp_path / "ragged.txt").write_text("a b\nb c d\n")
    with pytest.raises(ValueError, match="line 2: 3 entries, 2 in the lines before"):
        lg.pagerank(tmp_path / "ragged.txt")
    (tmp_path / "words.txt").write_text("a b heavy\n")
    with pytest.raises(ValueError, match=r"words\.txt: edge 1 has the weight 'heavy'.*pass weight=None"):
        lg.pagerank(tmp_path / "words.txt")
    assert lg.pagerank(tmp_path / "words.txt", weight=None).keys() == {"a", "b"}


# -- as solve ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [12, 400])
def test_bit_by_bit_what_solve_gives(n):
    graph = random_graph(n=n, seed=7)
    assert lg.pagerank(graph) == dict(zip(graph, lg.solve(graph, 0.85).stationary.tolist(), strict=True))
    given = {"initial": {"n3": 0.25, "n4": 0.75}, "restart": {"n5": 1.0}}
    named = lg.pagerank(graph, personalization={"n3": 1, "n4": 3}, dangling={"n5": 2})
    assert list(named.values()) == lg.solve(graph, 0.85, **given).stationary.tolist()
    matrix = nx.to_scipy_sparse_array(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)
        np.testing.assert_array_equal(lg.pagerank(matrix), lg.solve(matrix, 0.85).stationary)
    dense = (
        np.random.default_rng(0).integers(0, 3, (n, n))
        + np.eye(n, k=1, dtype=int)
        + np.eye(n, k=1 - n, dtype=int)
    )
    np.testing.assert_array_equal(lg.pagerank(dense), lg.solve(dense, 0.85).stationary)


def test_graphs_are_not_spoken_of_as_logs():
    solution = lg.solve(random_graph(), 0.85)
    assert solution.leak > 0.01
    text = f"{solution} {solution.diagnose()} {solution.why_not} {lg.audit(random_graph(), 0.85)}"
    for word in ("collect", "log ", "logged", "data there", "sample size"):
        assert word not in text
    assert solution.trusted
    with pytest.raises(ValueError, match="a graph or a row-stochastic matrix carries no sample size"):
        solution.interval(of="stationary")


# -- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\]"),
        ({"alpha": -0.1}, "alpha must be finite and at least 0"),
        ({"personalization": {"n1": 0.0}}, "personalization sums to 0"),
        ({"personalization": {"n1": -1.0}}, r"personalization\['n1'\] must be finite and at least 0"),
        ({"personalization": {"nobody": 1.0}}, "personalization names the state 'nobody'"),
        ({"dangling": {"n1": 0}}, "dangling sums to 0"),
        ({"dangling": [1.0]}, r"dangling must have one entry per state, shape \(60,\)"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        lg.pagerank(random_graph(), **options)


def test_limits_are_no_answers():
    graph = random_graph(n=3000, seed=1)
    with pytest.raises(RuntimeError, match="iteration limit"):
        lg.pagerank(graph, 0.9999, max_iter=1)
    with pytest.warns(RuntimeWarning, match="by rounding"):
        lg.pagerank(graph, tol=1e-18)


# -- seeds --------------------------------------------------------------------------------------------------


def test_a_prepared_graph_stands_for_its_graph():
    graph = random_graph(n=400, seed=7)
    prepared = lg.prepare(graph)
    assert prepared.nodes == tuple(graph)
    assert len(prepared) == 400
    assert lg.prepare(prepared) is prepared
    assert lg.pagerank(prepared) == lg.pagerank(graph)
    assert lg.pagerank(pickle.loads(pickle.dumps(prepared))) == lg.pagerank(graph)
    matrix = nx.to_scipy_sparse_array(graph)
    np.testing.assert_array_equal(lg.pagerank(lg.prepare(matrix)), lg.pagerank(matrix))
    assert lg.pagerank(lg.prepare(edges=[(3, 4), (4, 3)])) == lg.pagerank(edges=[(3, 4), (4, 3)])


def test_a_set_of_nodes_shares_the_weight():
    graph = random_graph()
    expected = lg.pagerank(graph, personalization={"n3": 1, "n8": 1})
    for nodes in (["n3", "n8"], {"n3", "n8"}, ("n8", "n3"), ["n3", "n8", "n3"]):
        assert lg.pagerank(graph, personalization=nodes) == expected
    assert lg.pagerank(graph, personalization="n3") == lg.pagerank(graph, personalization={"n3": 1.0})
    number = list(graph).index("n3")
    matrix = nx.to_scipy_sparse_array(graph)
    by_weight = lg.pagerank(matrix, personalization=np.eye(60)[number])
    for node in (number, [number], {number}):
        np.testing.assert_array_equal(lg.pagerank(matrix, personalization=node), by_weight)
    assert lg.pagerank(graph, dangling=["n5"]) == lg.pagerank(graph, dangling={"n5": 2.0})


def test_a_list_of_one_number_per_node_holds_weights():
    graph = nx.path_graph(4)
    for weights in ([1, 1, 2, 0], [0, 1, 2, 3], [0.25] * 4):
        expected = lg.pagerank(graph, personalization=dict(enumerate(weights)))
        assert lg.pagerank(graph, personalization=weights) == expected
    grid = nx.grid_2d_graph(2, 2)  # whose nodes are tuples
    assert lg.pagerank(grid, personalization=(0, 1)) == lg.pagerank(grid, personalization={(0, 1): 1})
    both = lg.pagerank(grid, personalization=[(0, 1), (1, 1)])
    assert both == lg.pagerank(grid, personalization={(0, 1): 1, (1, 1): 1})


def test_seeds_of_every_kind_are_those_of_single_calls():
    graph = random_graph()
    array = np.random.default_rng(3).random(60)
    seeds = ["n3", ["n3", "n8"], {"n1"}, {"n2": 1, "n9": 3.0}, array]
    ranks = lg.pagerank(graph, seeds=seeds, tol=1e-13)
    called = [list(lg.pagerank(graph, personalization=seed, tol=1e-13).values()) for seed in seeds]
    np.testing.assert_allclose(ranks, called, rtol=1e-11, atol=1e-15)
    rows = np.vstack([array, array[::-1]])
    for given in (rows, sparse.csr_array(rows), rows.tolist()):
        np.testing.assert_array_equal(lg.pagerank(graph, seeds=given), lg.pagerank(graph, seeds=list(rows)))
    assert lg.pagerank(graph, seeds=[]).shape == (0, 60)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seeds": ["n1", "nobody"]}, r"seeds\[1\] names the state 'nobody'"),
        ({"seeds": [{"n1", "nobody"}]}, r"seeds\[0\] names the state 'nobody'"),
        ({"seeds": [set()]}, r"seeds\[0\] holds no node"),
        ({"seeds": [{"n1": 0}]}, r"seeds\[0\] sums to 0"),
        ({"seeds": [{"n1": -1}]}, r"seeds\[0\]\['n1'\] must be finite and at least 0"),
        ({"seeds": "n1"}, r"seeds= is .*a list with one entry per seed"),
        ({"seeds": {"n1": 1}}, r"seeds= is .*a list with one entry per seed"),
        ({"seeds": [[1.0, 2.0]]}, r"seeds\[0\] must have one entry per state"),
        ({"seeds": ["n1"], "personalization": "n1"}, "pass one of the two"),
        ({"top": 3}, r"top= is of seeds="),
        ({"seeds": ["n1"], "top": 0}, "top must be"),
    ],
)
def test_seeds_that_are_none(options, says):
    with pytest.raises(ValueError, match=says):
        lg.pagerank(random_graph(), **options)
