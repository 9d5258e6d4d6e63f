"""A few problems beside the plain NumPy or SciPy way to solve them: how fast is it on this machine?

Only what the core install has is compared with; benchmarks/ in the source holds the comparisons with
the specialized libraries.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import lingendice as lg

Action = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One problem; ``make`` gives our way, the plain way, and how to compare their answers."""

    name: str
    peer: str
    make: Callable[[], tuple[Action, Action]]


def run_case(case: Case, repeats: int = 5) -> dict[str, Any]:
    """Medians of alternating runs after a warm-up, and how far the two answers differ."""
    actions = case.make()
    answers = [action() for action in actions]
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for action, times in zip(actions, seconds, strict=True):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
    ours, theirs = (statistics.median(times) for times in seconds)
    return {
        "name": case.name,
        "peer": case.peer,
        "seconds": ours,
        "peer_seconds": theirs,
        "ratio": theirs / ours,
        "difference": float(np.abs(np.subtract(*answers)).sum()),
    }


def _dense(n: int = 500) -> tuple[Action, Action]:
    matrix = np.random.default_rng(0).random((n, n))
    matrix /= matrix.sum(axis=1, keepdims=True)

    def plain() -> Any:
        system = np.eye(n) - matrix.T
        system[-1] = 1.0
        return np.linalg.solve(system, np.eye(n)[-1])

    return lambda: lg.solve(matrix).stationary, plain


def _pagerank(n: int = 100_000, degree: int = 10) -> tuple[Action, Action]:
    from scipy.sparse import csr_array

    rng = np.random.default_rng(1)
    target = (n * rng.random(n * degree) ** 3).astype(np.int64)  # a few nodes are cited by many
    source = np.repeat(np.arange(n), degree)
    graph = csr_array((np.ones(source.size), (source, target)), shape=(n, n))
    graph.sum_duplicates()

    def plain() -> Any:
        back = csr_array(graph.multiply(1.0 / graph.sum(axis=1)[:, None])).T.tocsr()
        distribution = np.full(n, 1.0 / n)
        change = 1.0
        while change > 1e-10 * (1.0 - 0.85):
            following = 0.85 * (back @ distribution) + 0.15 / n
            change = np.abs(following - distribution).sum()
            distribution = following
        return distribution

    return lambda: lg.solve(graph, gamma=0.85).stationary, plain


def _grid(side: int = 100) -> tuple[Action, Action]:
    from scipy.sparse import csr_array, diags_array, eye_array, kron
    from scipy.sparse.linalg import spsolve

    path = diags_array([np.ones(side - 1), 2.0 * np.ones(side - 1)], offsets=[-1, 1])
    graph = csr_array(kron(path, eye_array(side)) + kron(eye_array(side), path))
    n = side * side

    def plain() -> Any:
        chances = graph.multiply(1.0 / graph.sum(axis=1)[:, None])
        system = (eye_array(n) - chances.T).tocsc()
        # The last state's mass is set to 1 and its equation left out.
        rest = spsolve(system[:-1, :-1], -system[:-1, [n - 1]].toarray().ravel())
        distribution = np.append(rest, 1.0)
        return distribution / distribution.sum()

    return lambda: lg.solve(graph).stationary, plain


def _counting(n: int = 2_000_000, cells: int = 12_000, states: int = 2_000) -> tuple[Action, Action]:
    from scipy.sparse import coo_array

    rng = np.random.default_rng(2)
    cell, after = rng.integers(cells, size=n), rng.integers(states, size=n)
    state, action = np.divmod(cell, cells // states)

    def plain() -> Any:
        counted = coo_array((np.ones(n), (state * (cells // states) + action, after)), shape=(cells, states))
        return counted.tocsr().sum(axis=1)

    sizes: dict[str, Any] = {"n_states": states, "n_actions": cells // states}
    return lambda: lg.Counts.from_transitions(state, after, action=action, **sizes).cell_count, plain


CASES = (
    Case("stationary distribution, dense, 500 states", "numpy.linalg.solve", _dense),
    Case("PageRank 0.85, 100,000 nodes, 1M edges", "power iteration, scipy.sparse", _pagerank),
    Case("stationary distribution, drifting grid, 10,000 states", "scipy spsolve", _grid),
    Case("counting 2M transitions, 12,000 cells", "scipy coo to csr", _counting),
)
