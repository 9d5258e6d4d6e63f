"""Hitting probabilities: coverage of intervals on logs, and chains of cells beside SciPy's solvers.

``python benchmarks/hitting.py`` writes ``results/hitting.md``. One thread for everybody, and seconds of that
core: other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import time
from pathlib import Path
from queue import Empty

import numpy as np
import provenance
from scipy import sparse
from scipy.sparse.linalg import gmres, spsolve
from scipy.spatial import cKDTree

import lingendice as lg

RECORD = Path(__file__).parent / "results" / "hitting.md"
LOGS, PATIENCE, ROOM = 500, 120.0, 5 * 2**30
"""Logs of each chain; seconds and bytes that a direct solver of SciPy is given."""


# -- coverage ------------------------------------------------------------------------------------------------


def funnel() -> tuple[np.ndarray, np.ndarray]:
    """Customers at home, searching, with a cart, who buy or leave."""
    ends = [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]
    rows = [0.1, 0.5, 0.2, 0.05, 0.15], [0.3, 0.2, 0.3, 0.1, 0.1], [0, 0.3, 0.3, 0.2, 0.2], *ends
    return np.array(rows), np.array([0.7, 0.3, 0, 0, 0])


def queue(n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """A queue of 5 that is worked off, or overflows."""
    p = np.diag(np.full(n + 1, 0.45), 1) + np.diag(np.full(n + 1, 0.55), -1)
    p[0], p[-1] = np.eye(n + 2)[0], np.eye(n + 2)[-1]
    return p, np.eye(n + 2)[5]


def simulated(p: np.ndarray, start: np.ndarray, ends: np.ndarray, n: int, seed: int) -> lg.Counts:
    """Counts of n episodes, each until one of the states in ``ends``."""
    rng, cumulated = np.random.default_rng(seed), p.cumsum(axis=1)
    state, episode = rng.choice(len(p), size=n, p=start), np.arange(n)
    rows = []
    while state.size:
        after = (rng.random(state.size)[:, None] > cumulated[state]).sum(axis=1)
        rows.append(np.stack([state, after, episode]))
        goes_on = ~np.isin(after, ends)
        state, episode = after[goes_on], episode[goes_on]
    log = np.hstack(rows)
    log = log[:, np.argsort(log[2], kind="stable")]
    return lg.Counts.from_transitions(log[0], log[1], episode=log[2], n_states=len(p))


def episodes_covered(p: np.ndarray, start: np.ndarray, n_episodes: int) -> dict[str, list[bool]]:
    """Whether the intervals of every log hold the truth; the last two states end the episodes, or first and
    last for the queue."""
    ends = np.flatnonzero(p.diagonal() == 1.0)
    sets = {"one": int(ends[0]), "other": int(ends[1])}
    truth = lg.hitting(p, sets, initial=start).from_initial
    assert truth is not None
    found: dict[str, list[bool]] = {"probability": [], "steps": [], "steps_if_reached": []}
    for seed in range(LOGS):
        hit = lg.hitting(simulated(p, start, ends, n_episodes, seed), sets)
        found["probability"].append(hit.interval().contains(truth.probability)[0])
        found["steps"].append(hit.interval(of="steps").contains(truth.mean_steps))
        given = hit.interval(of="steps_if_reached").contains(truth.mean_steps_if_reached)
        found["steps_if_reached"] += given.tolist()
    return found


def path_covered(n_steps: int = 3000) -> dict[str, list[bool]]:
    """The same for one long path of a chain that never ends."""
    p = np.random.default_rng(5).dirichlet(np.full(12, 0.5), size=12)
    cumulated, truth = p.cumsum(axis=1), lg.hitting(p, 0, initial=5)
    assert truth.from_initial is not None
    found: dict[str, list[bool]] = {"steps": [], "return": []}
    for seed in range(LOGS):
        draws = np.random.default_rng(seed).random(n_steps)
        path = np.zeros(n_steps + 1, dtype=int)
        for t in range(n_steps):
            path[t + 1] = min(np.searchsorted(cumulated[path[t]], draws[t]), 11)
        counts = lg.Counts.from_transitions(path[:-1], path[1:], episode=np.zeros(n_steps, int), n_states=12)
        hit = lg.hitting(counts, 0, initial=5)
        found["steps"].append(hit.interval(of="steps").contains(truth.from_initial.mean_steps))
        found["return"].append(hit.interval(of="return").contains(truth.mean_return[0]))
    return found


def coverage() -> list[str]:
    """A table of shares in percent."""
    measured = {
        "funnel, 150 episodes": episodes_covered(*funnel(), 150),
        "queue, 200 episodes": episodes_covered(*queue(), 200),
        "12 states, one path of 3,000 steps": path_covered(),
    }
    kinds = ("probability", "steps", "steps_if_reached", "return")
    rows = [f"| 95 % intervals, {LOGS} logs | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for name, found in measured.items():
        shares = [f"{np.mean(found[kind]):.1%}" if kind in found else "" for kind in kinds]
        rows.append(f"| {name} | " + " | ".join(shares) + " |")
    return rows


# -- chains of cells -----------------------------------------------------------------------------------------


def cells(n: int, dimensions: int, k: int = 30, seed: int = 0) -> tuple[sparse.csr_array, list[np.ndarray]]:
    """A chain on the k nearest neighbors of cells that develop along one of three branches; its three fates.

    Steps prefer neighbors further along, as those of RNA velocities do.
    """
    rng = np.random.default_rng(seed)
    age, branch = rng.random(n), rng.integers(0, 3, n)
    direction = np.linalg.qr(rng.normal(size=(max(dimensions, 3), 3)))[0][:dimensions].T
    points = 4.0 * age[:, None] * np.eye(dimensions)[0] + rng.normal(scale=0.25, size=(n, dimensions))
    late = age > 0.4
    points[late] += 6.0 * (age[late] - 0.4)[:, None] * direction[branch[late]]
    _, near = cKDTree(points).query(points, k=k + 1)
    near = near[:, 1:]
    weight = np.exp(8.0 * (age[near] - age[:, None])) * (0.5 + rng.random(near.shape))
    indptr = np.arange(0, near.size + 1, k)
    p = sparse.csr_array((weight.ravel(), near.ravel(), indptr), shape=(n, n))
    p = sparse.csr_array(sparse.diags_array(1.0 / p.sum(axis=1)) @ p)
    return p, [np.flatnonzero((branch == b) & (age > 0.985)) for b in range(3)]


def system(p: sparse.csr_array, fates: list[np.ndarray]):
    """I - T and the right-hand side of the first fate, over the states of no fate."""
    inside = np.ones(p.shape[0], dtype=bool)
    inside[np.concatenate(fates)] = False
    going = np.flatnonzero(inside)
    onward = p[going]
    right = onward[:, fates[0]].sum(axis=1)
    return sparse.eye_array(going.size, format="csr") - onward[:, going], right, going


def _direct(queue, p, fates):  # type: ignore[no-untyped-def]
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    matrix, right, _ = system(p, fates)
    begin = time.process_time()
    found = spsolve(matrix.tocsc(), right)
    queue.put((time.process_time() - begin, found))


def within_patience(p, fates):  # type: ignore[no-untyped-def]
    """Seconds and answer of spsolve, in a process of its own; None where it takes too long."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_direct, args=(queue, p, fates))
    process.start()
    ends = time.monotonic() + PATIENCE
    try:
        # A process that ran out of memory never answers.
        while time.monotonic() < ends and (process.is_alive() or not queue.empty()):
            with contextlib.suppress(Empty):
                return queue.get(timeout=1.0)
        return None
    finally:
        process.kill()
        process.join()


def fates_of_cells(sizes: list[int]) -> list[str]:
    """Ours, GMRES as CellRank calls it, and SciPy's direct solver, for the probability of one fate."""
    rows = [
        "| cells, 30 neighbors | lingendice, two fates, steps | ... three fates, steps "
        "| method, relative error | GMRES, rtol 1e-6 | ... worst relative error, negative entries "
        "| spsolve | ... farthest from ours |",
        "|---" * 8 + "|",
    ]
    lg.hitting(*_warm_up())
    for n in sizes:
        for dimensions in (2, 10):
            p, fates = cells(n, dimensions)
            others = np.concatenate(fates[1:])
            begin = time.process_time()
            one = lg.hitting(p, {"first": fates[0], "other": others}, threads=1)
            first = time.process_time() - begin
            begin = time.process_time()
            three = lg.hitting(p, {f"fate {b}": fate for b, fate in enumerate(fates)}, threads=1)
            every = time.process_time() - begin
            matrix, right, going = system(p, fates)
            ours = one.probability[going, 0]
            begin = time.process_time()
            peer, _ = gmres(matrix, right, rtol=1e-6)
            iterated = time.process_time() - begin
            reached = ours > 0.0
            off = np.abs(peer[reached] / ours[reached] - 1.0).max()
            direct = within_patience(p, fates)
            text = f"not within {PATIENCE:.0f} s and {ROOM / 2**30:.0f} GB | "
            if direct is not None:
                apart = np.abs(direct[1][reached] / ours[reached] - 1.0).max()
                text = f"{direct[0]:.2f} s | {apart:.0e}"
            rows.append(
                f"| {n:,}, {dimensions} dimensions | {first:.2f} s | {every:.2f} s | {three.method}, "
                f"{max(one.error, three.error):.0e} | {iterated:.2f} s | {off:.0e}, {(peer < 0).sum():,} "
                f"| {text} |"
            )
            print(rows[-1], flush=True)
    return rows


def _warm_up():  # type: ignore[no-untyped-def]
    p, fates = cells(2000, 2)
    return p, fates[0]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--coverage", action="store_true", help="show the coverage alone")
    arguments = parser.parse_args()
    covered = coverage()
    print("\n".join(covered), flush=True)
    if arguments.coverage:
        return
    compared = fates_of_cells(arguments.sizes)
    RECORD.write_text(
        "\n".join(["# Hitting probabilities and times", "", *covered, "", *compared]) + "\n", encoding="utf-8"
    )
    provenance.mark("hitting")


if __name__ == "__main__":
    main()
