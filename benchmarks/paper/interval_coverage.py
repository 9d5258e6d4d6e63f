"""How often 95 % intervals hold the truth, over fresh logs.

    python benchmarks/paper/interval_coverage.py [--logs 400] [--only taxi,pagerank,garnet]

writes ``interval_coverage.json`` and ``interval_coverage.md`` into ``results``. Taxi runs with the policies
that our own Q-learning trains and, where present, with ``pi19`` and ``pi18`` of the published protocol. Logs
without an interval (several recurrent classes in the log at gamma = 1) are counted, not dropped in silence.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from reporting import RESULTS, data_directory

import lingendice as lg
from lingendice.environments import taxi

LEVEL = 0.95
PLUG_IN = {"ratio": "state_action", "ridge": 0.0}


class Tally:
    """Coverage, bias and calibration of one kind of interval."""

    def __init__(self) -> None:
        self.held: list[float] = []
        self.estimate: list[Any] = []
        self.error: list[float] = []
        self.truth: list[Any] = []
        self.refused = 0

    def add(self, truth: Any, interval: Callable[[], lg.Interval]) -> None:
        try:
            found = interval()
        except ValueError:
            self.refused += 1
            return
        self.held.append(float(np.mean(found.contains(truth))))
        self.estimate.append(found.estimate)
        self.error.append(float(np.mean(found.standard_error)))
        self.truth.append(truth)

    def row(self) -> dict[str, float | int | None]:
        wrong = np.asarray(self.estimate) - np.asarray(self.truth)
        number = len(self.held)
        coverage = float(np.mean(self.held)) if number else math.nan
        return {
            "logs": number,
            "no_interval": self.refused,
            "coverage": round(coverage, 4),
            "coverage_standard_error": round(float(np.std(self.held) / math.sqrt(max(number, 1))), 4),
            "bias": float(wrong.mean()),
            "standard_deviation": float(wrong.std(axis=0).mean()),
            "mean_standard_error": float(np.mean(self.error)),
        }


def taxi_settings(logs: int) -> Iterator[tuple[dict[str, Any], Tally]]:
    """Taxi with policies trained here and, where present, with those of the published protocol."""
    trained = taxi.train_policies()
    yield from taxi_logs(logs, "trained here", trained.target, trained.base)
    folder = data_directory("taxi")
    if folder is not None:
        target, base = (np.load(folder / name) for name in ("pi19.npy", "pi18.npy"))
        yield from taxi_logs(logs, "pi19 and pi18", target, base)


def taxi_logs(
    logs: int, policies: str, target: np.ndarray, behavior: np.ndarray
) -> Iterator[tuple[dict[str, Any], Tally]]:
    """Logs of the behavior, intervals of the target's value."""
    kinds = {
        "default": {},
        "state ratio, clone shrunk by 10": {"ratio": "state", "clone": 10.0},
        "state ratio, behavior given": {"ratio": "state", "behavior": behavior},
        "state-action plug-in": PLUG_IN,
    }
    for episodes, steps in ((200, 400), (50, 100)):
        tallies = {
            (gamma, kind, method): Tally()
            for gamma in (0.99, 1.0)
            for kind in kinds
            for method in ("influence", "bootstrap")
        }
        truth = {gamma: taxi.policy_value(target, gamma) for gamma in (0.99, 1.0)}
        for seed in range(logs):
            log = taxi.simulate(behavior, episodes, steps, seed=10_000 + seed, threads=1)
            counts = log.counts(keep_episodes=True, threads=1)
            for (gamma, kind, method), tally in tallies.items():
                if method == "bootstrap" and (seed >= logs // 8 or kind != "default"):
                    continue
                solution = lg.solve(counts, gamma, policy=target, threads=1, **kinds[kind])
                options = {"replicates": 200, "threads": 1} if method == "bootstrap" else {}
                tally.add(
                    truth[gamma], lambda s=solution, m=method, o=options: s.interval(LEVEL, method=m, **o)
                )
        for (gamma, kind, method), tally in tallies.items():
            if tally.held:
                problem = f"Taxi {episodes} x {steps}, {policies}"
                name = {"problem": problem, "gamma": gamma, "of": "value"}
                yield name | {"estimator": kind, "method": method}, tally


def pagerank_settings(logs: int) -> Iterator[tuple[dict[str, Any], Tally]]:
    """Entries of the distribution of a weighted preferential-attachment graph from one walk."""
    chain = attachment_chain(100, 4, np.random.default_rng(0))
    n = chain.shape[0]
    for gamma in (1.0, 0.85):
        truth = lg.solve(chain, gamma).stationary
        for steps in (10_000, 1_000):
            influence, bootstrap = Tally(), Tally()
            for seed in range(logs):
                path = walk(chain, steps, np.random.default_rng([seed, steps]))
                counts = lg.Counts.from_transitions(path[:-1], path[1:], n_states=n)
                solution = lg.solve(counts, gamma)
                influence.add(truth, lambda s=solution: s.interval(LEVEL, of="stationary"))
                if seed < logs // 4:
                    options = {"method": "bootstrap", "replicates": 400, "kind": "percentile"}
                    bootstrap.add(
                        truth,
                        lambda s=solution, o=options: s.interval(LEVEL, of="stationary", threads=1, **o),
                    )
            name = {"problem": f"BA graph, {n} nodes, walk of {steps:,}", "gamma": gamma, "of": "entries"}
            yield name | {"estimator": "plug-in", "method": "influence"}, influence
            yield name | {"estimator": "plug-in", "method": "bootstrap, percentile"}, bootstrap


def garnet_settings(logs: int) -> Iterator[tuple[dict[str, Any], Tally]]:
    """Small random MDPs, ten of them, each with its own target and behavior."""
    n_states, n_actions, n_mdps = 12, 3, 10
    for episodes, steps in ((100, 50), (20, 20)):
        tallies = {
            (gamma, kind, method): Tally()
            for gamma in (0.9, 1.0)
            for kind in ("default", "state-action plug-in")
            for method in ("influence", "bootstrap")
        }
        for number in range(n_mdps):
            rng = np.random.default_rng([7, number])
            kernel = rng.dirichlet(np.full(n_states, 0.3), size=(n_states, n_actions))
            reward = rng.normal(size=(n_states, n_actions))
            target, behavior = rng.dirichlet(np.full(n_actions, 2.0), size=(2, n_states))
            initial = rng.dirichlet(np.ones(n_states))
            chain = np.einsum("sa,sat->st", target, kernel)
            earned = (target * reward).sum(axis=1)
            truth = {
                gamma: float(
                    lg.solve(chain, gamma, initial=initial if gamma < 1 else None).stationary @ earned
                )
                for gamma in (0.9, 1.0)
            }
            for seed in range(logs // n_mdps):
                counts = garnet_log(kernel, reward, behavior, initial, episodes, steps, [number, seed])
                for (gamma, kind, method), tally in tallies.items():
                    if method == "bootstrap" and 4 * seed >= logs // n_mdps:
                        continue
                    chosen = {} if kind == "default" else PLUG_IN
                    solution = lg.solve(counts, gamma, policy=target, **chosen)
                    options = {"replicates": 200, "threads": 1} if method == "bootstrap" else {}
                    tally.add(
                        truth[gamma], lambda s=solution, m=method, o=options: s.interval(LEVEL, method=m, **o)
                    )
        for (gamma, kind, method), tally in tallies.items():
            name = {"problem": f"random MDPs, {episodes} x {steps}", "gamma": gamma, "of": "value"}
            yield name | {"estimator": kind, "method": method}, tally


def garnet_log(kernel, reward, behavior, initial, episodes, steps, seed) -> lg.Counts:
    """Episodes side by side, with Gaussian noise on the rewards."""
    rng = np.random.default_rng(seed)
    n_states, n_actions = reward.shape

    def draw(distributions):
        return np.minimum(
            (rng.random(len(distributions))[:, None] > np.cumsum(distributions, axis=1)).sum(axis=1),
            distributions.shape[1] - 1,
        )

    state = draw(np.tile(initial, (episodes, 1)))
    columns = []
    for _ in range(steps):
        action = draw(behavior[state])
        following = draw(kernel[state, action])
        columns.append((state, following, action, reward[state, action] + rng.normal(size=episodes)))
        state = following
    s, s2, a, r = (np.stack(column, axis=1).ravel() for column in zip(*columns, strict=True))
    episode = np.repeat(np.arange(episodes), steps)
    return lg.Counts.from_transitions(
        s, s2, a, r, episode, n_states=n_states, n_actions=n_actions, keep_episodes=True
    )


def attachment_chain(n: int, edges: int, rng: np.random.Generator) -> np.ndarray:
    """Preferential attachment with |N(0, 1)| weights for each direction, normalized by row."""
    adjacent = np.zeros((n, n), dtype=bool)
    ends = list(range(edges))
    for node in range(edges, n):
        chosen: set[int] = set()
        while len(chosen) < edges:
            chosen.add(int(ends[rng.integers(len(ends))]))
        for other in chosen:
            adjacent[node, other] = adjacent[other, node] = True
            ends += [node, other]
    weights = np.abs(rng.normal(size=(n, n))) * adjacent
    return weights / weights.sum(axis=1, keepdims=True)


def walk(chain: np.ndarray, steps: int, rng: np.random.Generator) -> np.ndarray:
    """One walk from a random node."""
    cumulative = np.cumsum(chain, axis=1)
    path = np.empty(steps + 1, dtype=np.int64)
    path[0] = rng.integers(chain.shape[0])
    for t, u in enumerate(rng.random(steps)):
        path[t + 1] = min(np.searchsorted(cumulative[path[t]], u), chain.shape[0] - 1)
    return path


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table that is committed."""
    head = [
        "problem",
        "gamma",
        "of",
        "estimator",
        "method",
        "coverage",
        "bias",
        "sd",
        "mean se",
        "logs",
        "none",
    ]
    lines = [
        "# Coverage of 95 % intervals over fresh logs",
        "",
        "Written by `interval_coverage.py`. Bias and sd are those of the estimates against the exact answer",
        "(for the entries of a distribution: averaged over entries). An interval covers the noise of the "
        "data, not",
        "the bias of an estimator: where the bias is not small beside the sd, coverage falls, and that is",
        "shown. `none` counts logs for which no interval is given (several recurrent classes in the log at",
        "gamma = 1).",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in rows:
        lines.append(
            f"| {row['problem']} | {row['gamma']:g} | {row['of']} | {row['estimator']} | {row['method']} "
            f"| {row['coverage']:.1%} ± {row['coverage_standard_error']:.1%} | {row['bias']:+.5f} "
            f"| {row['standard_deviation']:.5f} | {row['mean_standard_error']:.5f} | {row['logs']} "
            f"| {row['no_interval']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--only", default="garnet,pagerank,taxi")
    chosen = parser.parse_args()
    settings = {
        "garnet": lambda: garnet_settings(chosen.logs),
        "pagerank": lambda: pagerank_settings(chosen.logs),
        "taxi": lambda: taxi_settings(chosen.logs),
    }
    path = RESULTS / "interval_coverage.json"
    wanted = chosen.only.split(",")
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = [row for row in json.loads(path.read_text())["rows"] if row["family"] not in wanted]
    warnings.simplefilter("ignore", lg.LeakWarning)
    for family in wanted:
        started = time.perf_counter()
        for name, tally in settings[family]():
            rows.append({"family": family} | name | tally.row())
            print(rows[-1], flush=True)
        print(f"{family}: {time.perf_counter() - started:.0f} s", flush=True)
        order = list(settings)
        rows.sort(key=lambda row: order.index(row["family"]))
        path.write_text(json.dumps({"level": LEVEL, "logs": chosen.logs, "rows": rows}, indent=1) + "\n")
        (RESULTS / "interval_coverage.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
