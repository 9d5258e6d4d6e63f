"""PageRank against igraph's PRPACK: interleaved runs, medians, certified errors.

    python benchmarks/bench_pagerank.py compare [--nodes N] [--gamma G] [--repeats R] [--threads 1 2]
    python benchmarks/bench_pagerank.py growth
    python benchmarks/bench_pagerank.py graph FILE.npz --gamma 0.85 0.999

Each side starts from its own form in memory: an igraph.Graph, and a SciPy CSR adjacency. Times of
ours include validation, transpose and the final certificate. CPU seconds are shown beside wall
seconds, since on a shared machine they are the steadier of the two.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import scipy.sparse as sp
from graphs import scale_free_digraph

from lingendice.solvers.discounted import DiscountedResult, LeakyChain, discounted_law

TOL = 1e-10


def pagerank_residual(graph: sp.csr_matrix, law: np.ndarray, gamma: float) -> float:
    """L1 residual of a PageRank law, dangling nodes going to the uniform law, by SciPy."""
    degree = np.asarray(graph.sum(axis=1)).ravel()
    moved = gamma * (graph.T @ (law / np.where(degree > 0.0, degree, 1.0)))
    return float(np.abs(moved + (law.sum() - moved.sum()) / law.size - law).sum())


def timed(run) -> tuple[float, float, object]:
    """Wall seconds, CPU seconds and the result of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def ours(graph: sp.csr_matrix, gamma: float, threads: int) -> DiscountedResult:
    """One solve from the adjacency."""
    chain = LeakyChain(graph.indptr, graph.indices, graph.data)
    return discounted_law(chain, gamma, tol=TOL, threads=threads)


def compare(graph: sp.csr_matrix, gamma: float, repeats: int, threads: list[int]) -> None:
    """Print medians of interleaved runs of igraph and of this library."""
    import igraph

    for count in threads:
        ours(graph, gamma, count)
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    edges = np.column_stack([rows, graph.indices])
    peer = igraph.Graph(n=graph.shape[0], edges=edges, directed=True)
    runs: dict[str, list[tuple[float, float, object]]] = {}
    for _ in range(repeats):
        call = timed(lambda: peer.pagerank(damping=gamma, implementation="prpack"))
        runs.setdefault("igraph prpack", []).append(call)
        for count in threads:
            runs.setdefault(f"ours, {count} thread(s)", []).append(
                timed(lambda c=count: ours(graph, gamma, c))
            )
    base = runs["igraph prpack"]
    print(f"{graph.shape[0]} nodes, {graph.nnz} edges, gamma {gamma}, {repeats} interleaved runs")
    print(f"{'':20s} {'wall s':>8s} {'cpu s':>8s} {'speed-up':>9s} {'cpu':>6s} {'residual':>9s} sweeps")
    for name, calls in runs.items():
        wall = statistics.median(call[0] for call in calls)
        cpu = statistics.median(call[1] for call in calls)
        ratio = statistics.median(b[0] / call[0] for b, call in zip(base, calls, strict=True))
        cpu_ratio = statistics.median(b[1] / call[1] for b, call in zip(base, calls, strict=True))
        last = calls[-1][2]
        law = last.solution if isinstance(last, DiscountedResult) else np.array(last)
        sweeps = last.sweeps if isinstance(last, DiscountedResult) else "-"
        check = pagerank_residual(graph, law, gamma)
        print(f"{name:20s} {wall:8.3f} {cpu:8.3f} {ratio:9.2f} {cpu_ratio:6.2f} {check:9.1e} {sweeps}")


def growth_point(nodes: int) -> None:
    """One size: time and peak memory of a solve in this process."""
    graph = scale_free_digraph(nodes)
    ours(scale_free_digraph(1000), 0.85, 1)
    chain = LeakyChain(graph.indptr, graph.indices, None)
    graph.data = np.ones(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    wall, cpu, result = timed(lambda: discounted_law(chain, 0.85, tol=TOL, threads=2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (
        f"{(peak * 1024 - resident) / graph.indices.size:.1f}"
        if peak > before
        else "(below generator's peak)"
    )
    print(
        f"{nodes:9d} nodes {graph.indices.size:10d} edges {wall:8.3f} s {cpu:8.3f} cpu s "
        f"{1e9 * cpu / graph.indices.size / result.sweeps:6.2f} cpu ns/edge/sweep {result.sweeps} sweeps "
        f"peak over input, bytes/edge {grown}",
        flush=True,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["compare", "growth", "growth-point", "graph"])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.85])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    if args.what == "growth":
        for nodes in (10_526, 105_263, 1_052_631):
            subprocess.run([sys.executable, __file__, "growth-point", "--nodes", str(nodes)], check=True)
        return
    if args.what == "growth-point":
        growth_point(args.nodes)
        return
    if args.what == "graph":
        stored = np.load(args.file)
        size = stored["indptr"].size - 1
        graph = sp.csr_matrix(
            (np.ones(stored["indices"].size), stored["indices"], stored["indptr"]), shape=(size, size)
        )
    else:
        graph = scale_free_digraph(args.nodes)
    for gamma in args.gamma:
        compare(graph, gamma, args.repeats, args.threads)


if __name__ == "__main__":
    main()
