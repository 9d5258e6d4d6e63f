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
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
from reporting import write
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
    counts = lg.Counts.from_transitions(
        log.state, log.next_state, log.action, log.reward, log.episode,
        n_states=taxi.N_STATES, n_actions=taxi.N_ACTIONS,
    )  # fmt: skip

    def ours() -> float:
        return float(lg.solve(counts, policy=target, threads=1).value)

    value, mine, rival, rival_value = ours(), [], [], 0.0
    for turn in range(RIVAL_ROUNDS):
        for _ in range(ROUNDS // RIVAL_ROUNDS):
            started = time.perf_counter()
            value = ours()
            mine.append(time.perf_counter() - started)
        started = time.perf_counter()
        rival_value = quadratic_program(log, target, base)
        rival.append(time.perf_counter() - started)
        print(
            f"turn {turn}: ours {statistics.median(mine):.4f} s, quadratic program {rival[-1]:.2f} s",
            flush=True,
        )
    ratio = statistics.median(rival) / statistics.median(mine)
    result = {
        "policies": source,
        "ours_median_seconds": statistics.median(mine),
        "ours_fastest_seconds": min(mine),
        "quadratic_program_median_seconds": statistics.median(rival),
        "ratio": ratio,
        "value": value,
        "quadratic_program_value": rival_value,
        "exact_value": taxi.policy_value(target),
    }
    write(
        "taxi_quadprog",
        result,
        "# Taxi, 2,000 states, 200 x 400 steps: time of one estimate\n\nDefault of solve (counts to value, "
        f"one core, after warm-up): median {statistics.median(mine) * 1e3:.0f} ms, fastest "
        f"{min(mine) * 1e3:.0f} ms; dense quadratic program: {statistics.median(rival):.1f} s; "
        f"ratio {ratio:.0f}.",
    )


if __name__ == "__main__":
    main()
