"""Taxi, behavior unknown: the default of ``solve`` against fixed choices, over fresh seeds.

    python benchmarks/paper/taxi_default.py [--seeds 400] [--first 2000000] [--workers 1]

Uses the policies pi18 and pi19 of Liu et al. (2018) where present, else policies trained here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

# One process per core: threads of BLAS on top of that would only wait for each other. NumPy reads this once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from reporting import data_directory, errors, table, write

import lingendice as lg
from lingendice.environments import taxi

SETTINGS = [
    ("base", 50, 100, 1.0, -5.6),
    ("base", 50, 400, 1.0, -7.7),
    ("base", 200, 400, 1.0, -9.6),
    ("base", 50, 100, 0.99, -5.7),
    ("base", 50, 400, 0.99, -7.8),
    ("base", 200, 400, 0.99, -9.4),
    ("0.66 target + 0.34 base", 50, 400, 1.0, -7.3),
    ("half target, half uniform", 50, 400, 1.0, -6.6),
]
"""Behavior, episodes, steps, gamma, and the natural log-MSE asked for."""

METHODS = {
    "default": {},
    "clone=10, ridge=1e-5": {"ratio": "state", "clone": 10.0, "ridge": 1e-5},
    "IPS (state ratios)": {"ratio": "state", "clone": 0.0, "ridge": 0.0},
    "behavior known": {},
}


def policies() -> tuple[np.ndarray, np.ndarray, str]:
    folder = data_directory("taxi")
    if folder is None:
        target, base = taxi.train_policies()
        return target, base, "trained here (seed 0)"
    distributions = [np.load(folder / f"{name}.npy") for name in ("pi19", "pi18")]
    target, base = (distribution / distribution.sum(axis=1, keepdims=True) for distribution in distributions)
    return target, base, "pi19 and pi18 of Liu et al. 2018"


def efficiency_bound(target: np.ndarray, behavior: np.ndarray, gamma: float) -> float:
    """N times the least asymptotic variance of any regular estimator, for long episodes."""
    distribution = taxi.stationary_distribution(target, gamma)
    chain, reward = taxi.policy_chain(target)
    system = np.eye(taxi.N_STATES) - gamma * chain.toarray()
    if gamma == 1.0:
        system += distribution[None, :]
    values = np.linalg.solve(system, reward - (distribution @ reward if gamma == 1.0 else 0.0))
    matrix = taxi.transition_matrix()
    spread = gamma**2 * (matrix @ values**2 - (matrix @ values) ** 2).reshape(target.shape)
    logged = taxi.stationary_distribution(behavior)[:, None] * behavior
    return float(((distribution[:, None] * target) ** 2 / logged * spread).sum())


def estimates(
    target: np.ndarray, behavior: np.ndarray, episodes: int, steps: int, gamma: float, seed: int
) -> dict[str, float]:
    log = taxi.simulate(behavior, episodes, steps, seed=seed, threads=1)
    counts = log.counts(threads=1)
    weight = np.tile(gamma ** np.arange(steps), episodes)
    found = {"plain average": float(weight @ log.reward / weight.sum())}
    for name, options in METHODS.items():
        known = {"behavior": behavior} if name == "behavior known" else {}
        # Small samples may have several recurrent classes: the exact equation then needs a start.
        start = (
            {"initial": counts.initial_count / counts.initial_count.sum()}
            if name == "IPS (state ratios)"
            else {}
        )
        solution = lg.solve(counts, gamma, policy=target, threads=1, **options, **known, **start)
        found[name] = float(solution.value)
    return found


BLOCK = 25
"""Logs per task of a process."""


def over_seeds(
    target: np.ndarray, behaviors: dict[str, np.ndarray], seeds: range, workers: int
) -> Iterator[list[dict[str, float]]]:
    """Estimates from every log, setting by setting."""
    tasks = [
        (target, behaviors[name], episodes, steps, gamma, seeds[first : first + BLOCK])
        for name, episodes, steps, gamma, _ in SETTINGS
        for first in range(0, len(seeds), BLOCK)
    ]
    per_setting = len(tasks) // len(SETTINGS)
    if workers == 1:
        blocks = map(of_block, tasks)
        yield from ([one for _ in range(per_setting) for one in next(blocks)] for _ in SETTINGS)
        return
    # Fresh interpreters: forks of a process that has run Numba's threads may hang.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        blocks = pool.map(of_block, tasks)
        yield from ([one for _ in range(per_setting) for one in next(blocks)] for _ in SETTINGS)


def of_block(task: tuple[np.ndarray, np.ndarray, int, int, float, range]) -> list[dict[str, float]]:
    warnings.simplefilter("ignore", lg.LeakWarning)
    *setting, seeds = task
    return [estimates(*setting, seed) for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--first", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    given = parser.parse_args()
    warnings.simplefilter("ignore", lg.LeakWarning)
    target, base, source = policies()
    uniform = np.full(target.shape, 1 / taxi.N_ACTIONS)
    behaviors = {
        "base": base,
        "0.66 target + 0.34 base": taxi.mix_policies(target, base, 0.66),
        "half target, half uniform": taxi.mix_policies(target, uniform, 0.5),
    }
    rows, result = [], []
    print(f"taxi_default: nothing kept, {len(SETTINGS)} settings to compute", flush=True)
    started = time.perf_counter()
    seeds = range(given.first, given.first + given.seeds)
    judged = over_seeds(target, behaviors, seeds, given.workers)
    for (name, episodes, steps, gamma, bar), every in zip(SETTINGS, judged, strict=True):
        truth = taxi.policy_value(target, gamma)
        found = {key: errors(np.array([one[key] for one in every]), truth) for key in every[0]}
        bound = np.log(efficiency_bound(target, behaviors[name], gamma) / (episodes * steps))
        ours = found["default"]
        met = ours["ln_mse"] <= bar + 2 * ours["ln_mse_se"]
        result.append(
            {"behavior": name, "episodes": episodes, "steps": steps, "gamma": gamma, "asked": bar,
             "met": bool(met), "truth": truth, "ln_efficiency_bound": float(bound), "methods": found,
             "seconds": time.perf_counter() - started}
        )  # fmt: skip
        started = time.perf_counter()
        rows.append(
            [name, f"{episodes} x {steps}", f"{gamma:g}", f"{bar:.1f}"]
            + [f"{ours['ln_mse']:.2f} ± {ours['ln_mse_se']:.2f}", f"{ours['bias']:+.4f}", f"{ours['sd']:.4f}"]
            + [f"{found[key]['ln_mse']:.2f}" for key in found if key != "default"]
            + [f"{bound:.2f}", "yes" if met else "no"]
        )
        print(rows[-1], flush=True)
    header = ["behavior", "log", "gamma", "asked", "default", "bias", "sd"]
    header += [key for key in found if key != "default"] + ["efficiency bound", "met within 2 s.e."]
    text = (
        f"Taxi, behavior unknown (but to the column that says so); policies: {source}; {given.seeds} seeds "
        f"from {given.first}. Natural log of the mean squared error of the value per step; bias and standard "
        "deviation are of the default. The efficiency bound is the least asymptotic variance of any regular "
        "estimator.\n\n"
    )
    write(
        "taxi_default",
        {"policies": source, "first_seed": given.first, "seeds": given.seeds, "settings": result},
        "# Taxi: the default of solve\n\n" + text + table(header, rows),
    )


if __name__ == "__main__":
    main()
