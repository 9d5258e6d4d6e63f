"""A run from beginning to end: tasks, processes, rows, tables."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import provenance

from trust import families, summary, tables, work

BLOCK = 5
"""Logs per task. All problems get their first logs before any gets more: a budget cuts evenly."""
QUICK_LOGS = 5
RESULTS = work.HERE / "results"


def tasks(
    split: str, logs: int, seed: int, only: list[str] | None, default_only: bool = False
) -> list[work.Task]:
    """Blocks of logs of every problem and size, in the order in which they are to be done."""
    chosen = [family for family in families.SPLITS[split] if only is None or family in only]
    return [
        work.Task(split, family, problem.name, size, first, min(first + BLOCK, logs), seed, default_only)
        for first in range(0, logs, BLOCK)
        for family in chosen
        for problem in families.problems(split, family)
        for size in range(len(problem.sizes))
    ]


def perform_all(waiting: list[work.Task], folder: Path, workers: int, budget: float) -> int:
    """Do what is not done yet within ``budget`` minutes; returns how many tasks were left undone."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [task for task in waiting if not (folder / task.file_name).exists()]
    deadline = time.time() + 60 * budget
    if workers == 1:
        return sum(not work.perform(task, folder, deadline) for task in waiting)
    started, left = time.time(), 0
    # Fresh interpreters: forks of a process that has run Numba's threads may hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        futures = [pool.submit(work.perform, task, folder, deadline) for task in waiting]
        for number, future in enumerate(as_completed(futures), 1):
            left += not future.result()
            if number % 50 == 0 or number == len(futures):
                print(
                    f"{number}/{len(futures)} tasks, {time.time() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return left


def plain(thing: Any) -> Any:
    """Strict JSON: numbers with errors become pairs, nan becomes null."""
    if isinstance(thing, dict):
        return {str(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(value) for value in thing]
    if isinstance(thing, float):
        return float(f"{thing:.6g}") if math.isfinite(thing) else None
    return thing


def write(name: str, found: dict[str, Any], text: str) -> None:
    """NAME.md and NAME.json.gz in the results folder."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    packed = gzip.compress(json.dumps(plain(found)).encode(), mtime=0)
    (RESULTS / f"{name}.json.gz").write_bytes(packed)
    known = "trust" if name == "report" else f"trust_{name}"
    if known in provenance.RESULTS:
        provenance.mark(known)


def read_arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Judge the default of solve on the suite and print the tables."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--development", dest="split", action="store_const", const="development")
    which.add_argument("--report", dest="split", action="store_const", const="report", help="the default")
    parser.add_argument("--logs", type=int, help=f"logs per problem and size (40; {QUICK_LOGS} with --quick)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--quick", action="store_true", help="a few logs, to see roughly where one stands")
    parser.add_argument(
        "--budget", type=float, default=30.0, help="minutes after which no task is begun (30)"
    )
    parser.add_argument("--families", nargs="+", help="only these")
    parser.add_argument("--name", help="keep the tables of chosen families under this name")
    parser.add_argument("--default-only", action="store_true", help="without baselines: checks, intervals")
    parser.add_argument("--seed", type=int, default=0, help="fresh logs of the same problems (0)")
    parser.add_argument("--list", action="store_true", help="list the problems and end")
    parser.set_defaults(split="report")
    read = parser.parse_args(given)
    read.logs = read.logs or (QUICK_LOGS if read.quick else 40)
    unknown = set(read.families or ()) - set(families.SPLITS[read.split])
    if unknown:
        parser.error(f"no such families: {sorted(unknown)}; there are {sorted(families.SPLITS[read.split])}")
    return read


def main(given: list[str] | None = None) -> None:
    read = read_arguments(given)
    if read.list:
        for problem in families.all_problems(read.split):
            print(f"{problem.family}: {problem.name} {problem.sizes}")
        return
    folder = work.RUNS / f"{read.split}-{work.fingerprint()}-{read.seed}"
    left = perform_all(
        tasks(read.split, read.logs, read.seed, read.families, read.default_only),
        folder, read.workers, read.budget,
    )  # fmt: skip
    rows = [
        row
        for row in work.load(folder)
        if row["log"] < read.logs and (read.families is None or row["family"] in read.families)
    ]
    found = summary.summarize(
        rows, {name: family.fits for name, family in families.SPLITS[read.split].items()}
    )
    found |= {"split": read.split, "seed": read.seed, "logs": read.logs, "tasks_left": left}
    title = f"The {read.split} families: {read.logs} logs of each problem and size, seed {read.seed}"
    text = tables.markdown(found, title)
    print(text)
    if left:
        print(
            f"{left} tasks were left undone after {read.budget:g} minutes; the same command goes on with them"
        )
    if read.name is not None:
        write(read.name, found, text)
    elif read.families is None:
        write(read.split + "_default" * read.default_only + "_quick" * read.quick, found, text)
