"""Taxi: every method across lengths, numbers of trajectories, discounts and behaviors.

    python benchmarks/paper/taxi.py [--quick] [--seeds 20] [--policies DIR] [--minutes M] [--fresh]
                                    [--workers 1] [--again METHOD]

The full grid has 144 settings; ``--quick`` walks each axis alone, from 100 x 200 steps and alpha 0.
Behavior = alpha target + (1 - alpha) base. Policies are trained here unless DIR holds ``pi19.npy`` (target)
and ``pi18.npy`` (base). ``--minutes`` starts no further setting after that time; the result says how many
of the grid were done, and the next run with the same seeds and policies goes on from there. ``--fresh``
computes anew what other code made. ``--again`` runs one method anew on the same logs, where it alone has
changed. Writes ``taxi.json``, ``.md``, and ``.png`` (``taxi_quick`` with ``--quick``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# One process per core: threads of BLAS on top of that would only wait for each other. NumPy reads this once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figures import draw_bound, draw_line, finish, new_figure
from reporting import RESULTS, errors, provenance, table, write
from scipy.sparse.linalg import MatrixRankWarning
from taxi_default import efficiency_bound

import lingendice as lg
from lingendice import baselines
from lingendice.environments import taxi

LENGTHS = (50, 100, 200, 400)
TRAJECTORIES = (50, 100, 200)
GAMMAS = (0.9, 0.99, 0.999, 1.0)
ALPHAS = (0.0, 0.33, 0.66)
CENTER = (200, 100, 1.0, 0.0)
GRADIENT_DICE_STEPS = 2_500
"""GradientDICE's tabular optimum by sparse LU: 0.03 s for 2,500 steps, 10 s for 20,000, 80 s for 80,000."""
METHODS = (
    "default",
    "plug-in",
    "add-one model",
    "naive",
    "step-wise WIS, cloned",
    "trajectory WIS, cloned",
    "IPS, behavior known",
    "IPS, cloned",
    "IPS, known, ridge 1e-3",
    "IPS, cloned, ridge 1e-3",
    "DualDICE",
    "GradientDICE",
)
DRAWN = [method for method in METHODS if method not in {"IPS, behavior known", "IPS, cloned", "GradientDICE"}]
"""IPS without a ridge falls into spurious traps at gamma = 1; GradientDICE runs on the smallest logs only."""
Setting = tuple[int, int, float, float]


def settings(quick: bool) -> list[Setting]:
    """(steps, trajectories, gamma, alpha), in the order they are run."""
    grid = list(itertools.product(LENGTHS, TRAJECTORIES, GAMMAS, ALPHAS))
    if not quick:
        return grid
    steps, trajectories, gamma, alpha = CENTER
    near = {(length, trajectories, g, alpha) for length in LENGTHS for g in (0.99, 1.0)}
    near |= {(steps, n, gamma, alpha) for n in TRAJECTORIES} | {(50, 50, g, alpha) for g in (0.99, 1.0)}
    near |= {(steps, trajectories, g, alpha) for g in GAMMAS}
    near |= {(steps, trajectories, gamma, a) for a in ALPHAS}
    return [one for one in grid if one in near]


def read_policies(folder: Path | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Target, base, and where they come from."""
    if folder is None:
        target, base = taxi.train_policies()
        return target, base, "trained here by Q-learning (1000 and 950 iterations, seed 0)"
    distributions = [np.load(folder / f"{name}.npy") for name in ("pi19", "pi18")]
    target, base = (distribution / distribution.sum(axis=1, keepdims=True) for distribution in distributions)
    return target, base, "pi19 and pi18 of Liu et al. 2018"


def calls(
    counts: lg.Counts, target: np.ndarray, behavior: np.ndarray, gamma: float
) -> dict[str, Callable[[], Any]]:
    """Every method that exists for this log and gamma."""
    # Small logs may have several recurrent classes at gamma = 1: the exact equation then needs a start.
    exact = {"initial": counts.initial_count / counts.initial_count.sum(), "threads": 1}
    found: dict[str, Callable[[], Any]] = {
        "default": lambda: lg.solve(counts, gamma, policy=target, threads=1),
        "plug-in": lambda: baselines.model_based(counts, gamma, policy=target, **exact),
        "add-one model": lambda: baselines.model_based(
            counts, gamma, policy=target, smoothing="add-one", **exact
        ),
        "naive": lambda: baselines.naive_average(counts, gamma),
        "step-wise WIS, cloned": lambda: baselines.step_wise(counts, gamma, policy=target),
        "trajectory WIS, cloned": lambda: baselines.trajectory_wise(counts, gamma, policy=target),
        "IPS, behavior known": lambda: baselines.ips(
            counts, gamma, policy=target, behavior=behavior, **exact
        ),
        "IPS, cloned": lambda: baselines.ips(counts, gamma, policy=target, **exact),
    }
    # The published code of IPS solves its equation with a ridge of 1e-3.
    ridged = {"policy": target, "ratio": "state", "clone": 0.0, "ridge": 1e-3, "smoothing": 0.0, "threads": 1}
    found["IPS, known, ridge 1e-3"] = lambda: lg.solve(counts, gamma, behavior=behavior, **ridged)
    found["IPS, cloned, ridge 1e-3"] = lambda: lg.solve(counts, gamma, **ridged)
    if gamma < 1:
        found["DualDICE"] = lambda: baselines.dual_dice(counts, gamma, policy=target)
    if counts.total <= GRADIENT_DICE_STEPS:
        found["GradientDICE"] = lambda: baselines.gradient_dice(counts, gamma, policy=target)
    return found


def estimates(
    target: np.ndarray, behavior: np.ndarray, setting: Setting, seed: int, only: str | None = None
) -> dict[str, float]:
    """Value by every method, or one, from one fresh log; nan where a method refuses the log."""
    steps, trajectories, gamma, _ = setting
    log = taxi.simulate(behavior, trajectories, steps, seed=seed, threads=1)
    counts = log.counts(keep_episodes=True, threads=1)
    found = {}
    for name, call in calls(counts, target, behavior, gamma).items():
        if only not in (None, name):
            continue
        try:
            found[name] = float(call().value)
        except ValueError:
            found[name] = math.nan
    return found


def summary(values: np.ndarray, truth: float) -> dict[str, float | int]:
    """Errors over the seeds that gave a value, with mean and sd of the log squared error of one seed."""
    given = values[np.isfinite(values)]
    refused = {"refused": int(values.size - given.size)}
    if given.size < 2:
        return refused
    each = np.log(np.maximum((given - truth) ** 2, 1e-300))
    return {
        **errors(given, truth),
        "mean_ln_se": float(each.mean()),
        "sd_ln_se": float(each.std(ddof=1)),
        **refused,
    }


def resume(name: str, mark: dict[str, Any]) -> list[dict[str, Any]]:
    """Settings that an earlier run with the same seeds and policies has done."""
    path = RESULTS / f"{name}.json"
    held = json.loads(path.read_text()) if path.exists() else {}
    done = held["settings"] if all(held.get(key) == value for key, value in mark.items()) else []
    if name == "taxi":
        provenance.stamp(name, done)
    return list(done)


def setting_of(row: dict[str, Any]) -> Setting:
    return row["steps"], row["trajectories"], row["gamma"], row["alpha"]


def judge(target: np.ndarray, base: np.ndarray, setting: Setting, seeds: range) -> dict[str, Any]:
    """Every method in one setting, over all seeds."""
    begun = time.perf_counter()
    ignore_warnings()
    steps, trajectories, gamma, alpha = setting
    behavior = taxi.mix_policies(target, base, alpha)
    truth = taxi.policy_value(target, gamma)
    every = [estimates(target, behavior, setting, seed) for seed in seeds]
    found = {name: summary(np.array([one[name] for one in every]), truth) for name in every[0]}
    bound = math.log(efficiency_bound(target, behavior, gamma) / (trajectories * steps))
    return {
        "steps": steps, "trajectories": trajectories, "gamma": gamma, "alpha": alpha, "truth": truth,
        "ln_efficiency_bound": bound, "methods": found, "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def judged(
    target: np.ndarray, base: np.ndarray, waiting: list[Setting], given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Rows as they are made; none is begun once ``--minutes`` are over."""
    seeds = range(given.first, given.first + given.seeds)
    end = math.inf if given.minutes is None else time.perf_counter() + 60 * given.minutes
    if given.workers == 1:
        for setting in waiting:
            if time.perf_counter() > end:
                return
            yield judge(target, base, setting, seeds)
        return
    # Long ones first, so that all processes end together; fresh interpreters, since forks may hang.
    waiting = sorted(waiting, key=lambda setting: -setting[0] * setting[1])
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(judge, target, base, setting, seeds) for setting in waiting]
        for future in as_completed(futures):
            if not future.cancelled():
                yield future.result()
            if time.perf_counter() > end:
                for other in futures:
                    other.cancel()


def run(chosen: list[Setting], given: argparse.Namespace, name: str) -> None:
    target, base, source = read_policies(given.policies)
    mark = {"policies": source, "first_seed": given.first, "seeds": given.seeds}
    done = {setting_of(row): row for row in resume(name, mark)}
    kept = [row for row in done.values() if not given.fresh or provenance.is_ours(row, "taxi")]
    held = {setting_of(row) for row in kept}
    waiting = [setting for setting in chosen if setting not in held]
    print(provenance.plan("taxi", kept, len(waiting), "settings"), flush=True)
    made = provenance.made_by("taxi")
    for row in judged(target, base, waiting, given):
        done[setting_of(row)] = row | {"made_by": made}
        # In the order of the grid, whatever the order in which they end.
        every = [done[setting] for setting in sorted(done)]
        found = {who: round(one.get("ln_mse", math.nan), 2) for who, one in row["methods"].items()}
        print(setting_of(row), found, flush=True)
        report(name, mark, every, len(chosen))
    every = [done[setting] for setting in sorted(done)]
    report(name, mark, every, len(chosen))
    draw(every, name)


def run_again(method: str, given: argparse.Namespace, name: str) -> None:
    """One method anew in every setting that has been done, on the same logs."""
    target, base, source = read_policies(given.policies)
    mark = {"policies": source, "first_seed": given.first, "seeds": given.seeds}
    done = resume(name, mark)
    for row in done:
        setting = setting_of(row)
        if method not in row["methods"]:
            continue
        behavior = taxi.mix_policies(target, base, row["alpha"])
        every = [
            estimates(target, behavior, setting, given.first + seed, method)[method]
            for seed in range(given.seeds)
        ]
        row["methods"][method] = summary(np.array(every), row["truth"])
        print(setting, method, round(row["methods"][method].get("ln_mse", math.nan), 2), flush=True)
    report(name, mark, done, len(done))
    draw(done, name)


def ignore_warnings() -> None:
    for category in (lg.LeakWarning, MatrixRankWarning, RuntimeWarning):
        warnings.simplefilter("ignore", category)


def draw(done: list[dict[str, Any]], name: str) -> None:
    """One panel per axis of the grid, the others at the center."""
    steps, trajectories, gamma, alpha = CENTER
    center = {"steps": steps, "trajectories": trajectories, "gamma": gamma, "alpha": alpha}
    panels = [
        ("steps", {}, "truncation length"),
        ("steps", {"gamma": 0.99}, "truncation length"),
        ("trajectories", {}, "trajectories"),
        ("gamma", {}, "gamma"),
        ("alpha", {}, "alpha (larger: closer to the target)"),
    ]
    figure, axes = new_figure(len(panels), width=3.4, height=4.2)
    for one, (axis, other, label) in zip(axes, panels, strict=True):
        fixed = {key: value for key, value in {**center, **other}.items() if key != axis}
        rows = [row for row in done if all(row[key] == value for key, value in fixed.items())]
        places = {value: place for place, value in enumerate(sorted({row[axis] for row in rows}))}
        for place, method in enumerate(DRAWN):
            seen = [row for row in rows if "ln_mse" in row["methods"].get(method, {})]
            if seen:
                x = [places[row[axis]] for row in seen]
                cells = [row["methods"][method] for row in seen]
                y, spread = [cell["ln_mse"] for cell in cells], [cell["ln_mse_se"] for cell in cells]
                draw_line(one, place, method, x, y, spread)
        draw_bound(one, [places[row[axis]] for row in rows], [row["ln_efficiency_bound"] for row in rows])
        one.set_xticks(list(places.values()), [f"{value:g}" for value in places])
        one.set_xlabel(label)
        one.set_title(", ".join(f"{key} {value:g}" for key, value in fixed.items()), fontsize=9)
    axes[0].set_ylabel("natural log of the MSE (± s.e.)")
    finish(figure, axes, name)


def cell(found: dict[str, Any], method: str) -> str:
    if method not in found:
        return ""
    one = found[method]
    if "ln_mse" not in one:
        return "refused"
    note = f" ({one['refused']} refused)" if one["refused"] else ""
    return f"{one['ln_mse']:.2f}; {one['mean_ln_se']:.1f} ± {one['sd_ln_se']:.1f}{note}"


def report(name: str, mark: dict[str, Any], done: list[dict[str, Any]], planned: int) -> None:
    """Write what has been done so far, so that an interrupted run loses one setting at most."""
    mode = "quick" if name.endswith("quick") else "full"
    rows = [
        [f"{row['trajectories']} x {row['steps']}", f"{row['gamma']:g}", f"{row['alpha']:g}"]
        + [cell(row["methods"], method) for method in METHODS]
        + [f"{row['ln_efficiency_bound']:.2f}"]
        for row in done
    ]
    text = (
        f"# Taxi across settings ({mode} run)\n\n"
        f"{len(done)} of the {planned} settings of the {mode} run, {mark['seeds']} seeds each from "
        f"{mark['first_seed']}; policies: {mark['policies']}; behavior = alpha target + "
        "(1 - alpha) base, unknown to every method but those that say so. In each cell: natural log of "
        "the mean squared error over the seeds; then mean ± standard deviation over seeds of the natural "
        "log of one seed's squared error. DualDICE exists for gamma < 1 only; GradientDICE is run on "
        f"logs of up to {GRADIENT_DICE_STEPS:,} steps (its factorization grows too fast). The last "
        "column is ln of the least asymptotic variance of any regular estimator.\n\n"
        "Where every cell reached also has outgoing transitions, plug-in, DualDICE and GradientDICE have one "
        "common optimum: their columns differ only by what each does with mass that leaves the data.\n\n"
    )
    result = {"mode": mode, **mark, "settings_done": len(done), "settings_of_mode": planned, "settings": done}
    write(name, result, text + table(["log", "gamma", "alpha", *METHODS, "bound"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=7_000_000)
    parser.add_argument("--policies", type=Path)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--fresh", action="store_true", help="compute anew what other code made")
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    parser.add_argument("--again", choices=METHODS)
    given = parser.parse_args()
    ignore_warnings()
    name = "taxi_quick" if given.quick else "taxi"
    if given.again:
        run_again(given.again, given, name)
    else:
        run(settings(given.quick), given, name)


if __name__ == "__main__":
    main()
