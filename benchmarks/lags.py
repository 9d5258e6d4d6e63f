"""How often 95 % intervals hold where pairs of one path overlap; writes results/lags.md.

Five chains, one path of 10,000 steps each, lags 1, 10 and 50; the target is the stationary mean of a
reward drawn once for each chain. Beside ours: pairs taken for independent ones (the recipe of two arrays) and
deeptime's BayesianMSM with effective counts, where it is installed.
"""

from __future__ import annotations

import sys
import time
import warnings
from bisect import bisect_right
from pathlib import Path

import numpy as np

import lingendice as lg

LAGS, STEPS, LOGS, PEER_LOGS, SAMPLES = (1, 10, 50), 10_000, 500, 100, 100
OURS, PAIRS, PEER = "from_paths", "pairs as independent", "deeptime BayesianMSM"


def two_wells(leave: float) -> np.ndarray:
    """Four states each that mix at once; the second half is left twice as fast."""
    rng = np.random.default_rng(3)
    matrix = np.zeros((8, 8))
    matrix[:4, :4] = (1.0 - leave) * rng.dirichlet(np.full(4, 2.0), 4)
    matrix[4:, 4:] = (1.0 - 2.0 * leave) * rng.dirichlet(np.full(4, 2.0), 4)
    matrix[:4, 4], matrix[4:, 0] = leave, 2.0 * leave
    return matrix


def relaxation_time(matrix: np.ndarray) -> float:
    """Steps in which the slowest deviation falls to 1 / e."""
    return float(-1.0 / np.log(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2]))


def chains() -> dict[str, np.ndarray]:
    """Transition matrices by name."""
    rng = np.random.default_rng(7)
    queue = np.diag(np.full(10, 0.45)) + np.diag(np.full(9, 0.25), 1) + np.diag(np.full(9, 0.3), -1)
    queue[0, 0], queue[-1, -1] = 0.75, 0.7
    low, high = 0.0, 0.2
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if relaxation_time(two_wells(middle)) > 100.0 else (low, middle)
    ring = 0.05 * np.eye(12) + 0.65 * np.roll(np.eye(12), 1, axis=1) + 0.3 * np.roll(np.eye(12), -1, axis=1)
    return {
        "8 states, all mix": rng.dirichlet(np.ones(8), 8),
        "queue of 10": queue,
        "two wells": two_wells(low),
        "6 states that last": 0.9 * np.eye(6) + 0.1 * rng.dirichlet(np.ones(6), 6),
        "ring of 12": ring,
    }


def walk(matrix: np.ndarray, mu: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One path from the stationary distribution."""
    bounds, last = [list(row) for row in np.cumsum(matrix, axis=1)], len(matrix) - 1
    state, path = int(rng.choice(len(mu), p=mu)), np.empty(STEPS, np.int64)
    for step, draw in enumerate(rng.random(STEPS)):
        path[step] = state
        state = min(bisect_right(bounds[state], draw), last)
    return path


def ours(path: np.ndarray, lag: int, reward: np.ndarray) -> tuple[float, float]:
    """Our interval, blocks of the path."""
    counts = lg.Counts.from_paths(path, lag, n_states=reward.size)
    low, high = lg.solve(counts, reward=reward).interval()
    return low, high


def pairs(path: np.ndarray, lag: int, reward: np.ndarray) -> tuple[float, float]:
    """The same counts without their path."""
    counts = lg.Counts.from_transitions(path[:-lag], path[lag:], n_states=reward.size)
    low, high = lg.solve(counts, reward=reward).interval()
    return low, high


def peer(path: np.ndarray, lag: int, reward: np.ndarray) -> tuple[float, float]:
    """Posterior of deeptime, as its documentation recommends: not reversible, effective counts."""
    from deeptime.markov import TransitionCountEstimator
    from deeptime.markov.msm import BayesianMSM

    counted = TransitionCountEstimator(lag, "effective").fit_fetch(path)
    posterior = BayesianMSM(n_samples=SAMPLES, reversible=False).fit_fetch(counted)
    states = counted.state_symbols
    drawn = [float(model.stationary_distribution @ reward[states]) for model in posterior.samples]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def measure() -> list[str]:
    """A row of the table for every chain and lag."""
    methods = {OURS: (ours, LOGS), PAIRS: (pairs, LOGS), PEER: (peer, PEER_LOGS)}
    try:
        import deeptime  # noqa: F401
    except ImportError:
        del methods[PEER]
    heading = "| chain | relaxation | lag | " + " | ".join(f"{name} | ms" for name in methods) + " |"
    lines = [heading, "|---|--:|--:|" + "--:|--:|" * len(methods)]
    rewards = np.random.default_rng(5)
    for name, matrix in chains().items():
        system = np.vstack([matrix.T - np.eye(len(matrix)), np.ones(len(matrix))])
        mu = np.linalg.lstsq(system, np.append(np.zeros(len(matrix)), 1.0), rcond=None)[0]
        reward = rewards.normal(size=len(matrix))
        paths = [walk(matrix, mu, np.random.default_rng(seed)) for seed in range(LOGS)]
        for lag in LAGS:
            cells = []
            for method, n_logs in methods.values():
                begun = time.perf_counter()
                found = [method(path, lag, reward) for path in paths[:n_logs]]
                spent = (time.perf_counter() - begun) / n_logs
                held = np.mean([low <= mu @ reward <= high for low, high in found])
                cells.append(f"{100 * held:.1f} % | {1e3 * spent:.0f}")
            lines.append(f"| {name} | {relaxation_time(matrix):.0f} | {lag} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure and write the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = measure()
    text = [
        "# Intervals where pairs overlap",
        "",
        f"Share of 95 % intervals of the stationary mean that hold, one path of {STEPS:,} steps, {LOGS} logs "
        f"({PEER_LOGS} for deeptime, with {SAMPLES} samples of its posterior); milliseconds for each log, "
        "counting included. Chance moves a share by 1 point (2 points for deeptime). Written by "
        "`python benchmarks/lags.py`.",
        "",
        *lines,
        "",
    ]
    target = Path(__file__).parent / "results" / "lags.md"
    target.write_text("\n".join(text))
    print(f"written to {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
