"""Cartpole, Reacher and HalfCheetah: every method across behaviors, numbers and lengths of trajectories.

    python benchmarks/paper/control.py [--quick | --reduced] [--jobs 2] [--minutes M] [--only NAME]
                                       [--methods NAME] [--report]

What is run is fixed in ``control_plan.py``: settings, seeds, four candidates for whatever a method has to
choose, and the logs they are compared on. True values come from ``control_truth.py`` (computed first where
missing). Every finished estimate is appended to ``results/control_runs_<mode>.jsonl.gz`` at once and never
computed again, so that a run may be stopped and started at will; ``--minutes`` begins nothing new after
that time, and ``--report`` only writes the figures and the page from what is there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import control_plan as plan
import control_truth
from control_methods import Work, grouped, run_methods
from control_report import report
from reporting import RESULTS

Runs = dict[tuple[str, int, str], dict[str, Any]]


class Store:
    """Estimates by (setting, seed, method), one line of a file each."""

    def __init__(self, mode: plan.Mode) -> None:
        self.path = RESULTS / f"control_runs_{mode.name}.jsonl.gz"
        self.runs: Runs = {}
        if self.path.exists():
            with gzip.open(self.path, "rt", encoding="utf-8") as stream:
                for entry in map(json.loads, stream):
                    self.runs[entry["setting"], entry["seed"], entry["method"]] = entry

    def add(self, entries: list[dict[str, Any]]) -> None:
        """Keep finished estimates, on disk too."""
        # Each call appends a member of its own: a run that is killed loses nothing that was finished.
        with gzip.open(self.path, "at", encoding="utf-8") as stream:
            for entry in entries:
                self.runs[entry["setting"], entry["seed"], entry["method"]] = entry
                stream.write(json.dumps(entry) + "\n")


def tuning_name(method: str, choice: float) -> str:
    """How a candidate is called among the runs."""
    return f"{method} [{choice:g}]"


def tuning_units(mode: plan.Mode, store: Store, ridge: bool) -> Iterator[list[Work]]:
    """Candidates on the tuning logs; ridges are compared at the learning rate that was chosen before."""
    for environment in plan.ENVIRONMENTS:
        for gamma in plan.GAMMAS:
            setting = plan.center(environment, gamma, mode)
            methods = plan.applicable(tuple(plan.CANDIDATES), setting)
            for log in range(mode.tuning_logs):
                seed = plan.FIRST_TUNING_SEED + log
                yield [
                    Work(
                        setting, seed, method, choice, rate_of(store, mode, setting, method),
                        mode, tuning_name(method, choice),
                    )
                    for method in methods
                    if (plan.CANDIDATES[method] is not plan.RATES) == ridge
                    for choice in plan.CANDIDATES[method]
                ]  # fmt: skip


def chosen(store: Store, mode: plan.Mode, setting: plan.Setting, method: str) -> float | None:
    """The candidate with the least mean squared error on the tuning logs of that environment and gamma.

    A gamma that was not tuned for takes the choice of 0.99 (below 1) or 1.
    """
    if method not in plan.CANDIDATES:
        return None
    if mode.tuning_logs == 0:
        return plan.UNTUNED[plan.CANDIDATES[method]]
    gamma = 1.0 if setting.gamma == 1 else plan.GAMMAS[0]
    place = plan.center(setting.environment, gamma, mode)
    truth = control_truth.read()[setting.environment][f"{gamma:g}"]["value"]
    errors = {}
    for choice in plan.CANDIDATES[method]:
        runs = [
            store.runs.get((place.key, plan.FIRST_TUNING_SEED + log, tuning_name(method, choice)))
            for log in range(mode.tuning_logs)
        ]
        if all(run is not None for run in runs):
            squares = [(run["value"] - truth) ** 2 for run in runs]
            errors[choice] = sum(squares) if math.isfinite(sum(squares)) else math.inf
    return min(errors, key=errors.__getitem__) if errors else None


def rate_of(store: Store, mode: plan.Mode, setting: plan.Setting, method: str) -> float:
    """The learning rate of a variant: that of the method it varies."""
    base = "ours" if method in plan.OURS_FAMILY else "GenDICE"
    return chosen(store, mode, setting, base) or plan.UNTUNED_RATE


def units(mode: plan.Mode, store: Store) -> Iterator[list[Work]]:
    """Reported runs: one list per log, seed by seed, so that every setting has some early."""
    everything = plan.jobs(mode)
    for number in range(max(job.seeds for job in everything)):
        for job in everything:
            if number < job.seeds:
                yield [
                    Work(
                        job.setting, plan.FIRST_SEED + number, method,
                        chosen(store, mode, job.setting, method),
                        rate_of(store, mode, job.setting, method), mode, method,
                    )
                    for method in job.methods
                ]  # fmt: skip


def execute(work: Iterator[list[Work]], store: Store, given: argparse.Namespace, deadline: float) -> bool:
    """Run what is not there yet; False where time ran out."""
    waiting: set[Future[list[dict[str, Any]]]] = set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        for unit in work:
            missing = [
                one
                for one in unit
                if (one.setting.key, one.seed, one.name) not in store.runs
                and (not given.only or one.setting.environment in given.only)
                and (not given.methods or one.method in given.methods)
            ]
            for task in grouped(missing):
                if time.time() > deadline:
                    break
                waiting.add(pool.submit(run_methods, task))
                if len(waiting) > given.jobs:
                    waiting = gather(waiting, store)
        while waiting:
            waiting = gather(waiting, store)
    return time.time() <= deadline


def gather(waiting: set[Future[list[dict[str, Any]]]], store: Store) -> set[Future[list[dict[str, Any]]]]:
    """Store what has finished."""
    done, rest = wait(waiting, return_when=FIRST_COMPLETED)
    for one in done:
        entries = one.result()
        store.add(entries)
        for entry in entries:
            print(*(entry[key] for key in ("setting", "seed", "method", "value", "seconds")), flush=True)
    return rest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true")
    size.add_argument("--reduced", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only", nargs="*", choices=plan.ENVIRONMENTS)
    parser.add_argument("--methods", nargs="*", choices=(*plan.HEADLINE, *plan.CANDIDATES))
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    mode = plan.QUICK if given.quick else plan.REDUCED if given.reduced else plan.FULL
    store, deadline = Store(mode), time.time() + 60 * given.minutes
    if not given.report:
        control_truth.complete(given.only or plan.ENVIRONMENTS, mode.gammas)
        # The order matters: ridges are compared at the learning rate chosen before, the rest with what was
        # chosen.
        for stage in (
            lambda: tuning_units(mode, store, ridge=False),
            lambda: tuning_units(mode, store, ridge=True),
            lambda: units(mode, store),
        ):
            if not execute(stage(), store, given, deadline):
                break
    choices = {
        plan.center(environment, gamma, mode).key: {
            method: chosen(store, mode, plan.center(environment, gamma, mode), method)
            for method in plan.applicable(tuple(plan.CANDIDATES), plan.center(environment, gamma, mode))
        }
        for environment in plan.ENVIRONMENTS
        for gamma in plan.GAMMAS
        if environment in control_truth.read()
    }
    report(mode, store.runs, choices, control_truth.read())


if __name__ == "__main__":
    main()
