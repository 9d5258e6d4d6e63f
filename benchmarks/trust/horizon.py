"""The first H steps, and whole episodes at gamma = 1: do their intervals cover?

    python benchmarks/trust/horizon.py [--logs 40] [--seed 0] [--split report] [--families NAME ...]

`solve(..., horizon=H)` at H = 20, gamma 1 and H = 100, gamma .99, and, where episodes end, the return and the
length of an episode by the default at gamma = 1. Truths are those of dynamic programming over the model's
table. The larger logs of the first problems of each family, and of one whose target takes actions that the
behavior never takes. Failures are those of the suite: errors above 3 half-widths / 1.96 + 5 % of the truth.
Writes results/horizon.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import provenance
from scipy import sparse
from scipy.sparse.linalg import spsolve

import lingendice as lg
from trust import families, methods
from trust.problem import Problem
from trust.tables import share, table

RESULTS = Path(__file__).resolve().parent / "results"
FAMILIES = {
    "report": ("cliffs", "sparse rewards", "Gymnasium toy text", "inventory", "replacement", "clinical",
               "catalogs", "on-policy"),
    "development": ("random MDPs", "random MDPs, episodic", "grids", "grids, slippery", "tiny logs",
                    "one paying cell", "formerly in the report"),
}  # fmt: skip
UNIDENTIFIED = {"report": "actions never taken", "development": "actions left out"}
"""Where a flag is the right answer; not among "all"."""
HORIZONS = ((20, 1.0), (100, 0.99))
PROBLEMS = 3
"""Of each family."""


def first_steps(problem: Problem, horizon: int, gamma: float) -> float:
    """The exact return of the first steps."""
    chain, _, reward = problem.model.chain(problem.target)
    values = np.zeros(problem.model.n_states)
    for _ in range(horizon):
        values = reward + gamma * (chain @ values)
    return float(problem.model.initial @ values)


def episode(problem: Problem, of: str) -> float:
    """The exact return or length of an episode."""
    chain, _, reward = problem.model.chain(problem.target)
    earned = reward if of == "return" else np.ones_like(reward)
    values = spsolve(sparse.csc_matrix(sparse.identity(earned.size) - chain), earned)
    return float(problem.model.initial @ values)


class Run(NamedTuple):
    """One answer; width and error are relative to the truth."""

    covered: bool
    width: float
    error: float
    failed: tuple[str, ...]
    """Names of failed checks."""

    @property
    def good(self) -> bool:
        return self.error <= 1.5 * self.width / 1.96 + 0.05


def judge(problem: Problem, logs: int, seed: int) -> dict[str, list[Run]]:
    """The answers, by what was asked."""
    found: dict[str, list[Run]] = {}
    for number in range(logs):
        case = methods.read(problem, problem.log(len(problem.sizes) - 1, number, seed), 1.0)
        asked: dict[str, tuple[Any, str, float]] = {}
        for steps, gamma in HORIZONS:
            solution = lg.solve(case.counts, gamma, policy=case.target, horizon=steps, threads=1)
            name = f"first {steps} steps, gamma {gamma:g}"
            asked[name] = solution, "return", first_steps(problem, steps, gamma)
        if problem.model.episodic:
            whole = lg.solve(case.counts, 1.0, policy=case.target, threads=1)
            for of in ("return", "length"):
                asked[f"{of} of an episode"] = whole, of, episode(problem, of)
        for name, (solution, of, truth) in asked.items():
            interval = solution.interval(methods.LEVEL, of=of)
            scale = max(abs(truth), 1e-9)
            found.setdefault(name, []).append(Run(
                interval.low <= truth <= interval.high, (interval.high - interval.low) / scale,
                abs(interval.estimate - truth) / scale,
                tuple(check.name for check in solution.diagnose() if not check.ok),
            ))  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=list(families.SPLITS), default="report")
    parser.add_argument("--families", nargs="+")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, every = [], {}
    unidentified = UNIDENTIFIED[given.split]
    for family in given.families or (*FAMILIES[given.split], unidentified):
        together: dict[str, list[Run]] = {}
        for problem in families.problems(given.split, family)[:PROBLEMS]:
            for name, found in judge(problem, given.logs, given.seed).items():
                together.setdefault(name, []).extend(found)
                if family != unidentified:
                    every.setdefault(name, []).extend(found)
        rows += [[family, *_row(name, found)] for name, found in together.items()]
        print(*rows[-len(together) :], sep="\n", flush=True)
    rows += [["all but the last", *_row(name, found)] for name, found in every.items()]
    header = ["family", "of", "logs", "covered", "median width, % of the truth", "root mean squared error, % "
              "of the truth", "failures", "failures flagged", "good runs alarmed"]  # fmt: skip
    steps = [run for name, found in every.items() if name.startswith("first") for run in found]
    text = (
        "# The first steps, and whole episodes\n\n"
        f"95 % intervals, {given.split} families, {PROBLEMS} problems of each with their larger logs, seed "
        f"{given.seed}; in %, with one standard error over logs.\n\n" + table(header, rows) + "\n\n"
        "Each check of `horizon=`: how often it fires, in % of failures and of good runs of all but the "
        "last.\n\n" + table(["check", "failures", "good runs"], _checks(steps)) + "\n"
    )
    print(text)
    if given.split == "report" and given.families is None:
        (RESULTS / "horizon.md").write_text(text)
        provenance.mark("trust_horizon")


def _row(name: str, found: list[Run]) -> list[str]:
    good, bad = [run for run in found if run.good], [run for run in found if not run.good]
    error = np.sqrt(np.mean([run.error**2 for run in found]))
    return [
        name, str(len(found)), share([run.covered for run in found]),
        f"{100 * np.median([run.width for run in found]):.0f}", f"{100 * error:.1f}",
        share([not run.good for run in found]), _share([bool(run.failed) for run in bad]),
        _share([bool(run.failed) for run in good]),
    ]  # fmt: skip


def _checks(found: list[Run]) -> list[list[str]]:
    names = sorted({name for run in found for name in run.failed})
    return [
        [name, *(_share([name in run.failed for run in found if run.good == good]) for good in (False, True))]
        for name in names
    ]


def _share(hits: list[bool]) -> str:
    return share(hits) if hits else "-"


if __name__ == "__main__":
    main()
