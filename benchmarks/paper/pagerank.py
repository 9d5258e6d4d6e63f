"""Offline PageRank: log KL(mu || mu^) against the number of steps, on synthetic and citation graphs.

    python benchmarks/paper/pagerank.py [--quick] [--walks 20] [--direction cited_to_citing] [--eta 0.15]

One walk of N steps on each graph; every method sees its transitions alone. Barabasi-Albert graphs carry a
weight |N(0, 1)| for each direction, normalized by row, without teleport, a graph of its own for each walk.
On Cora and Citeseer the walker teleports with chance eta to a uniform paper, and always from a dangling
one; these steps are logged like any other. "link steps, eta known" counts only steps along links and is told
eta: the teleport needs no estimate. The truth is exact; the bound is that of ``pagerank_smoothing.py``.
Writes ``pagerank.json``, ``.md``, and ``.png`` (``pagerank_quick`` with ``--quick``).
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from citations import load_citations
from figures import draw_bound, draw_line, finish, new_figure
from pagerank_smoothing import log_bound, log_divergence, random_walk_matrix
from pagerank_smoothing import walk as walk_matrix
from reporting import data_directory, table, write

import lingendice as lg

STEPS = (1_000, 2_000, 5_000, 10_000, 20_000)
METHODS = ("plug-in", "smoothing=3", "add-one model", "visits + 1/2", "link steps, eta known")
BARABASI_ALBERT = {"BA small": 100, "BA large": 500}
CITATIONS = {"Cora": "cora", "Citeseer": "citeseer"}


@dataclass(frozen=True)
class Walk:
    """A path, which of its steps went along links, the exact distribution, and the log bound at one step."""

    path: np.ndarray
    linked: np.ndarray
    distribution: np.ndarray
    log_bound: float


class Citations:
    """PageRank's chain on a citation graph: matrix, exact distribution and bound made once for all walks."""

    def __init__(self, name: str, direction: str, eta: float) -> None:
        counts = load_citations(name, data_directory("graphs"), direction)
        self.eta, self.n = eta, counts.n_states
        self.links = counts.matrix.tocsr()
        uniform = np.full(self.n, 1 / self.n)
        self.distribution = lg.solve(counts, 1 - eta, initial=uniform, restart=uniform).stationary
        out = np.asarray(self.links.sum(axis=1)).ravel()
        self.dangling = int((out == 0).sum())
        chain = self.links.toarray() / np.where(out > 0, out, 1)[:, None]
        chain[out == 0] = uniform
        self.log_bound = log_bound((1 - eta) * chain + eta / self.n, self.distribution, 1)

    def walk(self, n_steps: int, seed: int) -> Walk:
        rng = np.random.default_rng([seed, 2])
        teleports, choice = rng.random(n_steps) < self.eta, rng.random(n_steps)
        indptr, indices, weight = self.links.indptr, self.links.indices, self.links.data
        path, linked = np.empty(n_steps + 1, dtype=np.int64), np.zeros(n_steps, dtype=bool)
        path[0] = rng.integers(self.n)
        for step in range(n_steps):
            low, high = indptr[path[step]], indptr[path[step] + 1]
            linked[step] = high > low and not teleports[step]
            if linked[step]:
                cumulative = np.cumsum(weight[low:high])
                place = np.searchsorted(cumulative, choice[step] * cumulative[-1], side="right")
                path[step + 1] = indices[low + place]
            else:
                path[step + 1] = int(choice[step] * self.n)
        return Walk(path, linked, self.distribution, self.log_bound)


def barabasi_albert_walk(n: int, n_steps: int, seed: int) -> Walk:
    matrix = random_walk_matrix(n, seed)
    distribution = lg.solve(matrix).stationary
    path = walk_matrix(matrix, n_steps, seed)
    return Walk(path, np.ones(n_steps, dtype=bool), distribution, log_bound(matrix, distribution, 1))


def estimates(one: Walk, n_steps: int, eta: float | None) -> dict[str, np.ndarray]:
    """Distribution by every method from the first steps of a walk."""
    n, path = one.distribution.size, one.path
    counts = lg.Counts.from_transitions(path[:n_steps], path[1 : n_steps + 1], n_states=n)
    start = np.zeros(n)
    start[path[0]] = 1.0
    plug_in = lg.solve(counts, initial=start).stationary
    visits = counts.cell_count + 0.5
    found = {
        # Nodes never visited would make KL infinite: all get half a visit, after the solve.
        "plug-in": (n_steps * plug_in + 0.5) / (n_steps + 0.5 * n),
        "smoothing=3": lg.solve(counts, smoothing=3.0).stationary,
        "add-one model": lg.solve(counts, smoothing=float(n)).stationary,
        "visits + 1/2": visits / visits.sum(),
    }
    if eta is not None:
        used = np.flatnonzero(one.linked[:n_steps])
        links = lg.Counts.from_transitions(path[used], path[used + 1], n_states=n)
        uniform = np.full(n, 1 / n)
        found["link steps, eta known"] = lg.solve(links, 1 - eta, initial=uniform, restart=uniform).stationary
    return found


def run_graph(name: str, given: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of one graph, a row a number of steps, and what is to be said of the graph."""
    citations = Citations(CITATIONS[name], given.direction, given.eta) if name in CITATIONS else None
    eta = None if citations is None else given.eta
    bounds: dict[int, list[float]] = {size: [] for size in STEPS}
    found: dict[int, dict[str, list[float]]] = {size: {} for size in STEPS}
    for seed in range(given.first, given.first + given.walks):
        if citations is None:
            one = barabasi_albert_walk(BARABASI_ALBERT[name], max(STEPS), seed)
        else:
            one = citations.walk(max(STEPS), seed)
        for size in STEPS:
            bounds[size].append(one.log_bound - np.log(size))
            for method, distribution in estimates(one, size, eta).items():
                found[size].setdefault(method, []).append(log_divergence(one.distribution, distribution))
    rows = []
    for size in STEPS:
        means = {
            method: {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}
            for method, values in found[size].items()
        }
        rows.append(
            {"graph": name, "steps": size, "log_bound": float(np.mean(bounds[size])), "log_kl": means}
        )
        shown = {method: round(one["mean"], 2) for method, one in means.items()}
        print(name, size, round(rows[-1]["log_bound"], 2), shown, flush=True)
    if citations is None:
        return rows, {"nodes": BARABASI_ALBERT[name], "teleport": 0.0}
    about = {"nodes": citations.n, "lines": int(citations.links.sum()), "dangling": citations.dangling}
    return rows, {**about, "teleport": given.eta, "direction": given.direction}


def draw(rows: list[dict[str, Any]], graphs: list[str], name: str) -> None:
    figure, axes = new_figure(len(graphs))
    for axis, graph in zip(axes, graphs, strict=True):
        mine = [row for row in rows if row["graph"] == graph]
        x = [row["steps"] for row in mine]
        for place, method in enumerate(METHODS):
            if method in mine[0]["log_kl"]:
                cells = [row["log_kl"][method] for row in mine]
                draw_line(axis, place, method, x, [c["mean"] for c in cells], [c["sd"] for c in cells])
        draw_bound(axis, x, [row["log_bound"] for row in mine])
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{size // 1000}k" for size in x])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("steps of the walk")
        axis.set_title(graph)
    axes[0].set_ylabel("log KL (mean ± sd over walks)")
    finish(figure, axes, name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5 walks a graph")
    parser.add_argument("--walks", type=int)
    parser.add_argument("--first", type=int, default=9_000)
    parser.add_argument(
        "--direction", default="cited_to_citing", choices=("cited_to_citing", "citing_to_cited")
    )
    parser.add_argument("--eta", type=float, default=0.15)
    given = parser.parse_args()
    given.walks = given.walks or (5 if given.quick else 20)
    warnings.simplefilter("ignore", lg.LeakWarning)
    mode, name = ("quick", "pagerank_quick") if given.quick else ("full", "pagerank")
    rows, about, missing, started = [], {}, {}, time.perf_counter()
    print(f"{name}: nothing kept, {len(BARABASI_ALBERT) + len(CITATIONS)} graphs to compute", flush=True)
    for graph in (*BARABASI_ALBERT, *CITATIONS):
        try:
            more, about[graph] = run_graph(graph, given)
        except (OSError, ValueError) as error:  # no file, no network, other bytes
            missing[graph] = str(error)
            print(f"{graph} left out: {error}", flush=True)
            continue
        rows += more
    draw(rows, list(about), name)
    lines = [
        [row["graph"], f"{row['steps']:,}", f"{row['log_bound']:.2f}"]
        + [
            f"{row['log_kl'][method]['mean']:.2f} ± {row['log_kl'][method]['sd']:.2f}"
            if method in row["log_kl"]
            else ""
            for method in METHODS
        ]
        for row in rows
    ]
    said = [
        f"- {graph}: {one['nodes']:,} papers, {one['lines']:,} citations, {one['dangling']:,} dangling; "
        f"walked {one['direction'].replace('_', ' ')}, teleport eta = {one['teleport']:g}, "
        "dangling to uniform."
        for graph, one in about.items()
        if "lines" in one
    ]
    said += [f"- {graph}: left out, its file was not to be had." for graph in missing]
    text = (
        f"# Offline PageRank ({mode} run)\n\nMean ± standard deviation of log KL(mu || mu^) over "
        f"{given.walks} walks (seeds from {given.first}). The bound is asymptotic: below it lie estimators "
        "that shrink, where the walk is short for the graph.\n\n" + "\n".join(said) + "\n\n"
    )
    result = {"mode": mode, "walks": given.walks, "first_seed": given.first, "graphs": about, "rows": rows}
    write(
        name,
        {**result, "left_out": list(missing), "seconds": time.perf_counter() - started},
        text + table(["graph", "steps", "bound", *METHODS], lines),
    )


if __name__ == "__main__":
    main()
