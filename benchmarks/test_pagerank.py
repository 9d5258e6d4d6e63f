"""PageRank of large graphs: against igraph, growth with size, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import provenance  # noqa: E402
from graphs import scale_free_digraph  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def peer_of(graph):
    import igraph

    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    return igraph.Graph(n=graph.shape[0], edges=np.column_stack([rows, graph.indices]), directed=True)


def test_a_million_nodes(record):
    graph = scale_free_digraph(1_000_000)
    peer = peer_of(graph)
    mine = lg.solve(graph, 0.85)
    theirs = np.array(peer.pagerank(damping=0.85, implementation="prpack"))
    note = (
        f"L1 error bound {mine.error:.0e}, L1 distance to igraph {np.abs(mine.stationary - theirs).sum():.0e}"
    )
    others = {"igraph prpack": lambda: peer.pagerank(damping=0.85, implementation="prpack")}
    size = f"{graph.shape[0]:,} nodes, {graph.nnz:,} edges"
    for threads, goal in ((2, 3.0), (1, 1.0)):
        name = f"PageRank 0.85, {size}, {threads} thread{'s' * (threads > 1)}"
        record.ratio(name, lambda t=threads: lg.solve(graph, 0.85, threads=t), others, goal, 5, note)


POINT = """
import json, resource, sys, time, warnings
sys.path.insert(0, {here!r})
warnings.simplefilter("ignore")
import lingendice as lg
from graphs import scale_free_digraph  # noqa: E402
lg.solve(scale_free_digraph(2000), 0.85)
graph = scale_free_digraph({nodes})
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")  # forget the peak of making the graph
start = time.perf_counter()
solution = lg.solve(graph, 0.85)
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps(dict(nodes=graph.shape[0], edges=graph.nnz, seconds=seconds, peak_gb=peak / 2**20,
                      sweeps=solution.n_iter, error=solution.error)))
"""


def grow(nodes: int) -> dict:
    """Solve one size in a process of its own: seconds, and the peak of its memory, graph included."""
    code = POINT.format(here=str(HERE), nodes=nodes)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_growth(record):
    points = [grow(nodes) for nodes in (10_526, 33_000, 105_263, 333_000, 1_052_631)]
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "growth.json").write_text(json.dumps(points, indent=1) + "\n")
    provenance.mark("growth")
    draw(points, HERE / "results" / "growth.png")
    edges, seconds = np.array([[p["edges"], p["seconds"] / p["sweeps"]] for p in points]).T
    slope = np.polyfit(np.log(edges), np.log(seconds), 1)[0]
    record.limit(
        "PageRank, growth of time a sweep, 1e5 to 1e7 edges",
        slope,
        1.25,
        "(log-log slope)",
        "results/growth.png",
    )
    memory = np.array([p["peak_gb"] for p in points])
    slope = np.polyfit(np.log(edges[2:]), np.log(memory[2:]), 1)[0]
    record.limit(
        "PageRank, growth of memory, 1e6 to 1e7 edges", slope, 1.0, "(log-log slope)", "whole process"
    )


def test_hundred_million_edges(record):
    point = grow(10_526_315)
    note = f"{point['nodes']:,} nodes, {point['edges']:,} edges, {point['seconds']:.0f} s, graph included"
    record.limit("PageRank, memory at 100M edges", point["peak_gb"], 16, "GB", note)


def draw(points: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    edges = [p["edges"] for p in points]
    for axes, key, label in zip(
        figure.subplots(1, 2),
        ("seconds", "peak_gb"),
        ("seconds to L1 error 1e-10", "peak memory, GB"),
        strict=True,
    ):
        values = [p[key] for p in points]
        axes.loglog(edges, values, "o-", color="#0072B2", label="lingendice")
        line = [values[-1] * e / edges[-1] for e in edges]
        axes.loglog(edges, line, "--", color="#999999", label="linear")
        axes.set(xlabel="edges", ylabel=label)
        axes.legend(frameon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.savefig(path, dpi=150)
