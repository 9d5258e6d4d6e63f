"""Time of the default on Taxi against the quadratic program of Liu et al. (2018), in the same run.

    pip install quadprog; python benchmarks/taxi_quadprog.py

The rival: min over x >= 0, sum p x = 1 of x' G x with a small multiple of the identity, dense, as in the
published estimator (its regulariser 1e-3, G divided by 50); written anew here for the comparison alone.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
from reporting import table, write
from taxi_default import policies

import lingendice as lg
from lingendice.environments import taxi

ROUNDS, RIVAL_ROUNDS = 30, 3


def quadratic_program(log: taxi.TaxiLog, target: np.ndarray, behaviour: np.ndarray) -> float:
    """The value per step by a dense quadratic program in the state ratio, behaviour known, gamma = 1."""
    import quadprog

    n = taxi.N_STATES
    weight = (target / behaviour)[log.state, log.action]
    flow = np.zeros((n, n))
    np.add.at(flow, (log.state, log.next_state), weight)
    np.add.at(flow, (log.next_state, log.next_state), -1.0)
    visits = np.bincount(log.next_state, minlength=n).astype(float)
    scaled = flow / np.maximum(visits, 1.0)[None, :]
    G = scaled @ flow.T / 50.0 + 1e-3 * np.eye(n)
    share = np.bincount(log.state, minlength=n) / log.state.size
    constraints = np.column_stack([share, np.eye(n)])
    ratio = quadprog.solve_qp(G, np.zeros(n), constraints, np.concatenate([[1.0], np.zeros(n)]), meq=1)[0]
    weights = ratio[log.state] * weight
    return float(weights @ log.reward / weights.sum())


def main() -> None:
    warnings.simplefilter("ignore", lg.LeakWarning)
    target, base, source = policies()
    log = taxi.simulate(base, 200, 400, seed=3, threads=1)
    counts = log.counts()

    def ours() -> float:
        return float(lg.solve(counts, policy=target, threads=1).value)

    ours()
    mine, rival, values = [], [], {}
    for turn in range(RIVAL_ROUNDS):
        for _ in range(ROUNDS // RIVAL_ROUNDS):
            mine.append(timed(ours, values, "ours"))
        rival.append(timed(lambda: quadratic_program(log, target, base), values, "rival"))
        print(f"turn {turn}: ours {mine[-1]}, quadratic program {rival[-1]}", flush=True)
    (our_wall, our_cpu), (its_wall, its_cpu) = (
        [statistics.median(column) for column in zip(*times, strict=True)] for times in (mine, rival)
    )
    result = {
        "policies": source,
        "ours_median_seconds": our_wall,
        "ours_median_cpu_seconds": our_cpu,
        "ours_fastest_seconds": min(mine)[0],
        "quadratic_program_median_seconds": its_wall,
        "quadratic_program_median_cpu_seconds": its_cpu,
        "ratio": its_wall / our_wall,
        "cpu_ratio": its_cpu / our_cpu,
        "value": values["ours"],
        "quadratic_program_value": values["rival"],
        "exact_value": taxi.policy_value(target),
    }
    write(
        "taxi_quadprog",
        result,
        "# Taxi, 2,000 states, 200 x 400 steps: time of one estimate\n\n"
        "Default of solve (counts to value, one thread, after warm-up) and a dense quadratic program, in "
        "turns.\n\n"
        + table(
            ["", "median ms", "median CPU ms", "fastest ms"],
            [
                ["default", f"{our_wall * 1e3:.0f}", f"{our_cpu * 1e3:.0f}", f"{min(mine)[0] * 1e3:.0f}"],
                [
                    "quadratic program",
                    f"{its_wall * 1e3:.0f}",
                    f"{its_cpu * 1e3:.0f}",
                    f"{min(rival)[0] * 1e3:.0f}",
                ],
                [
                    "ratio",
                    f"{its_wall / our_wall:.0f}",
                    f"{its_cpu / our_cpu:.0f}",
                    f"{min(rival)[0] / min(mine)[0]:.0f}",
                ],
            ],
        ),
    )


def timed(estimate: Callable[[], float], values: dict[str, float], name: str) -> tuple[float, float]:
    """Wall and processor seconds of one estimate."""
    wall, cpu = time.perf_counter(), time.process_time()
    values[name] = estimate()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
