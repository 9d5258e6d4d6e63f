"""Two other kinds of interval beside the default one: do they hold the truth more often, or more tightly?

    python benchmarks/paper/interval_baselines.py [--logs 400]

writes ``interval_baselines.json`` and ``interval_baselines.md`` into ``results``. All three start from what
each episode contributes to the value (the influence function, summed by episode):

* Student: the library's default;
* likelihood: the values beyond which no reweighting of the episodes within the chi-square quantile of the
  empirical likelihood pushes the estimate, as in CoinDICE (Dai et al. 2020), to first order;
* likelihood, solved again: the estimates solved again under the weights found for the two ends, so that
  the curvature of the value counts too. The ridge and the cloned behavior stay those of the log;
* Bernstein: the empirical bound of Maurer and Pontil (2009), with the range seen in the log in place of the
  unknown one, which flatters it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri

import lingendice as lg
from lingendice.environments import taxi
from lingendice.results.bootstrap import _Again, _Draws
from lingendice.results.interval import Influence

sys.path.insert(0, str(Path(__file__).parent))
from interval_coverage import LEVEL, RESULTS, garnet_log

KINDS = ("Student", "likelihood", "likelihood, solved again", "Bernstein")


def contributions(solution: lg.Solution) -> np.ndarray:
    """What each episode adds to the value, in units in which the mean over episodes is the error."""
    rows = Influence(solution).value().scores()[:-1, 0]
    return rows * rows.size


def likelihood_weights(x: np.ndarray, mean: float) -> np.ndarray:
    """Weights of largest empirical likelihood, summing to n, under which x has the given mean."""
    z = x - mean
    low, high = -1.0 / z.max(), -1.0 / z.min()
    inside = 1e-10 * (high - low)
    tilt = brentq(lambda t: float(np.sum(z / (1.0 + t * z))), low + inside, high - inside)
    return 1.0 / (1.0 + tilt * z)


def likelihood_end(x: np.ndarray, upwards: bool) -> np.ndarray:
    """Weights at one end of the region: there the likelihood ratio is at its quantile."""
    quantile = float(chdtri(1, 1.0 - LEVEL))
    reach = x.max() if upwards else x.min()

    def beyond(share: float) -> float:
        mean = x.mean() + share * (reach - x.mean())
        return -2.0 * float(np.sum(np.log(likelihood_weights(x, mean)))) - quantile

    share = brentq(beyond, 1e-9, 1.0 - 1e-7) if beyond(1.0 - 1e-7) > 0.0 else 1.0 - 1e-7
    return likelihood_weights(x, x.mean() + share * (reach - x.mean()))


def intervals(solution: lg.Solution) -> dict[str, tuple[float, float]]:
    default = solution.interval(LEVEL)
    x = contributions(solution)
    n, value = x.size, float(solution.value)
    again, draws = _Again(solution), _Draws(solution.operator.counts)
    weights = [likelihood_end(x, upwards) for upwards in (False, True)]
    linear = [value + float(np.mean(weight * x) - x.mean()) for weight in weights]
    solved = sorted(float(again.solve(draws.weighted(weight)).value) for weight in weights)
    log = math.log(4.0 / (1.0 - LEVEL))
    width = math.sqrt(2.0 * float(np.var(x, ddof=1)) * log / n) + 7.0 * float(np.ptp(x)) * log / (
        3.0 * (n - 1)
    )
    return {
        "Student": (default.low, default.high),
        "likelihood": (linear[0], linear[1]),
        "likelihood, solved again": (solved[0], solved[1]),
        "Bernstein": (value - width, value + width),
    }


class Tally:
    """Coverage, misses by side, and width of each kind of interval on one setting."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}

    def add(self, truth: float, solution: lg.Solution) -> None:
        for kind, (low, high) in intervals(solution).items():
            self.found[kind].append((truth, low, high))

    def rows(self, problem: str, gamma: float) -> list[dict[str, Any]]:
        rows = []
        for kind, found in self.found.items():
            truth, low, high = np.array(found).T
            held = (low <= truth) & (truth <= high)
            rows.append(
                {
                    "problem": problem,
                    "gamma": gamma,
                    "interval": kind,
                    "logs": len(found),
                    "coverage": float(held.mean()),
                    "coverage_standard_error": float(held.std() / math.sqrt(held.size)),
                    "truth_below": float((truth < low).mean()),
                    "truth_above": float((truth > high).mean()),
                    "mean_width": float((high - low).mean()),
                }
            )
            print(rows[-1], flush=True)
        return rows


def garnets(logs: int, episodes: int, steps: int, noise_seed: int = 11) -> list[dict[str, Any]]:
    """Random MDPs of twelve states, ten of them, other ones than those of ``interval_coverage.py``."""
    n_states, n_actions, n_mdps = 12, 3, 10
    tallies = {gamma: Tally() for gamma in (0.9, 1.0)}
    for number in range(n_mdps):
        rng = np.random.default_rng([noise_seed, number])
        kernel = rng.dirichlet(np.full(n_states, 0.3), size=(n_states, n_actions))
        reward = rng.normal(size=(n_states, n_actions))
        target, behavior = rng.dirichlet(np.full(n_actions, 2.0), size=(2, n_states))
        initial = rng.dirichlet(np.ones(n_states))
        chain, earned = np.einsum("sa,sat->st", target, kernel), (target * reward).sum(axis=1)
        for gamma, tally in tallies.items():
            distribution = lg.solve(chain, gamma, initial=initial if gamma < 1 else None).stationary
            for seed in range(logs // n_mdps):
                log = garnet_log(
                    kernel, reward, behavior, initial, episodes, steps, [noise_seed, number, seed]
                )
                tally.add(float(distribution @ earned), lg.solve(log, gamma, policy=target))
    return [
        row
        for gamma, tally in tallies.items()
        for row in tally.rows(f"random MDPs, {episodes} x {steps}", gamma)
    ]


def taxis(logs: int, episodes: int, steps: int) -> list[dict[str, Any]]:
    trained = taxi.train_policies()
    rows = []
    for gamma in (0.99, 1.0):
        truth, tally = taxi.policy_value(trained.target, gamma), Tally()
        for seed in range(logs):
            log = taxi.simulate(trained.base, episodes, steps, seed=70_000 + seed, threads=1)
            tally.add(truth, lg.solve(log.counts(keep_episodes=True), gamma, policy=trained.target))
        rows += tally.rows(f"Taxi {episodes} x {steps}", gamma)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Other intervals than the default one",
        "",
        "Written by `interval_baselines.py`, which says what they are; 95 % intervals of the value by the",
        "default estimator, on logs that no choice was made on. `below` and `above`: how often the truth",
        "lay there.",
        "",
        "| problem | gamma | interval | coverage | below | above | mean width | logs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['problem']} | {row['gamma']:g} | {row['interval']} | {row['coverage']:.1%} ± "
        f"{row['coverage_standard_error']:.1%} | {row['truth_below']:.1%} | {row['truth_above']:.1%} | "
        f"{row['mean_width']:.4f} | {row['logs']} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=400)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", lg.LeakWarning)
    rows = []
    for episodes, steps in ((100, 50), (20, 20), (10, 10)):
        rows += garnets(chosen.logs, episodes, steps)
    for episodes, steps in ((50, 100), (20, 50)):
        rows += taxis(chosen.logs // 2, episodes, steps)
    text = json.dumps({"level": LEVEL, "rows": rows}, indent=1)
    (RESULTS / "interval_baselines.json").write_text(text + "\n")
    (RESULTS / "interval_baselines.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
