"""NetworkX finds the backend by its entry points, and its own tests of PageRank pass on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg
from lingendice import networkx_backend as backend

nx = pytest.importorskip("networkx", minversion="3.4")
ROOT = Path(__file__).resolve().parents[1]


def random_graph(n=400, seed=0):
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph()
    graph.add_nodes_from(f"n{k}" for k in range(n))
    for source, target in rng.integers(0, n - 20, (4 * n, 2)):
        graph.add_edge(f"n{source}", f"n{target}", weight=float(rng.random()), cost=1.0)
    return graph


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment in which the sources are found as an installed distribution, with its entry points."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "lingendice-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lingendice\nVersion: 0\n")
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in one.items()) for group, one in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def run(command, environment):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_networkx_passes_its_own_tests(installed):
    said = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "networkx.algorithms.link_analysis.tests"
         ".test_pagerank", "-rx", "-W", "ignore"],
        {**installed, "NETWORKX_TEST_BACKEND": "lingendice", "NETWORKX_FALLBACK_TO_NX": "True"},
    )  # fmt: skip
    assert "failed" not in said
    assert "xfailed" not in said
    assert int(said.rsplit(" passed", 1)[0].split()[-1]) >= 40


def test_a_call_by_name_in_a_fresh_process(installed):
    code = """
import networkx as nx
nx.config.warnings_to_ignore.add("cache")
graph = nx.gnp_random_graph(400, 0.02, seed=1, directed=True)
theirs = nx.pagerank(graph, tol=1e-15, max_iter=1000)
import lingendice.networkx_backend as backend
calls = []
prepare = backend.lg.prepare
backend.lg.prepare = lambda *given: calls.append(given) or prepare(*given)
ours = [nx.pagerank(graph, tol=1e-12, backend="lingendice") for _ in range(3)]
assert len(calls) == 1, "converted more than once"
assert all(abs(ours[0][node] - theirs[node]) < 1e-12 for node in graph) and list(ours[0]) == list(graph)
graph.add_edge(0, 399)
nx.pagerank(graph, backend="lingendice")
assert len(calls) == 2, "a changed graph was not read again"
with nx.config.backend_priority(algos=["lingendice"]):
    nx.pagerank(graph)
    assert len(calls) == 2
    graph.add_edge(3, 4, weight=-0.5)
    assert nx.pagerank(graph, max_iter=1000)[4] < 1  # by NetworkX itself
import lingendice as lg
graph = nx.path_graph(3)
prepared = nx.pagerank(lg.prepare(graph))  # as a graph of this backend
theirs = nx.pagerank(graph, tol=1e-9, max_iter=900)
assert all(abs(prepared[node] - theirs[node]) < 1e-5 for node in graph)
print(sorted(prepared))
"""
    assert run(["-c", code], installed).strip() == "[0, 1, 2]"


@pytest.mark.parametrize("options", [{}, {"weight": None}, {"weight": "cost", "alpha": 0.5}])
def test_the_numbers_are_those_of_networkx(options):
    graph = random_graph()
    attribute = options.get("weight", "weight")
    prepared = backend.convert_from_nx(graph, edge_attrs=attribute and {attribute: 1})
    home, after = {"n3": 1, "n9": 2.0, "nowhere": 5.0}, {"n1": 1.0}
    for given in (options, {**options, "personalization": home}, {**options, "dangling": after}):
        theirs = nx.pagerank(graph, tol=1e-17, max_iter=5000, **given)
        ours = backend.pagerank(prepared, tol=1e-13, **given)
        assert list(ours) == list(theirs)
        assert all(type(rank) is float for rank in ours.values())
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-11, atol=1e-16)


def test_the_exceptions_are_those_of_networkx():
    prepared = backend.convert_from_nx(random_graph(3000), edge_attrs={"weight": 1})
    for limit in (0, 1):
        with pytest.raises(nx.PowerIterationFailedConvergence):
            backend.pagerank(prepared, alpha=0.9999, max_iter=limit)
    for given in ({"n1": 0.0}, {"nowhere": 1.0}, {}):
        with pytest.raises(ZeroDivisionError):
            backend.pagerank(prepared, personalization=given)
        with pytest.raises(ZeroDivisionError):
            backend.pagerank(prepared, dangling=given)
    assert backend.pagerank(lg.prepare(nx.DiGraph())) == {}


def test_what_is_left_to_networkx():
    assert backend.can_run("pagerank", (None, 0.85), {}) is True
    assert backend.can_run("pagerank", (), {"alpha": 1.5}) == "alpha must lie in [0, 1]"
    assert backend.can_run("hits", (), {}) != True  # noqa: E712
    assert set(backend.backend_info()["functions"]) == {"pagerank"}
    graph = nx.DiGraph([(0, 1, {"weight": -1.0}), (1, 0, {"weight": 1.0})])
    with pytest.raises(NotImplementedError, match="negative"):
        backend.convert_from_nx(graph, edge_attrs={"weight": 1})
    with pytest.raises(NotImplementedError, match="one attribute"):
        backend.convert_from_nx(graph, preserve_edge_attrs=True)
    with pytest.raises(NotImplementedError, match="pass the graph it was made of"):
        backend.convert_to_nx(lg.prepare([(0, 1)]))
    assert backend.convert_to_nx({0: 1.0}) == {0: 1.0}
