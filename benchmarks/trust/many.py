"""Eight targets on one log: do simultaneous intervals hold together, and intervals of differences?

    python benchmarks/trust/many.py [--logs 40] [--seed 0] [--split report] [--families NAME ...]

From each problem's target t and behavior b (the mean of them where there are several): t, b, t with 5 % and
20 % uniform, t sharpened, b sharpened, and two mixtures of t and b. Counted are logs in which all eight
intervals cover, and pairs of targets whose difference is covered. Writes results/many.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from itertools import combinations
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import provenance

import lingendice as lg
from trust import families, methods
from trust.model import Floats, explore, mix, policy_value, sharpen
from trust.problem import Problem
from trust.tables import share, table

RESULTS = Path(__file__).resolve().parent / "results"
FAMILIES = ("Taxi", "inventory", "replacement", "clinical")
GAMMAS = (0.99, 1.0)
PROBLEMS = 3
"""Of each family, with their largest log (Taxi: the second size)."""


def eight(problem: Problem) -> dict[str, Floats]:
    """The targets."""
    target, behavior = problem.target, np.mean(problem.behaviors, axis=0)
    return {
        "target": target,
        "behavior": behavior,
        "target + 5 %": explore(target, 0.05),
        "target + 20 %": explore(target, 0.2),
        "target, sharpened": sharpen(target, 2.0),
        "behavior, sharpened": sharpen(behavior, 2.0),
        "two thirds target": mix(target, behavior, 1 / 3),
        "a third target": mix(target, behavior, 2 / 3),
    }


def judge(problem: Problem, gamma: float, logs: int, seed: int) -> tuple[list[bool], list[float], list[bool]]:
    """Per log: whether all hold, the share of pairs that do, and whether some check of some target fails."""
    targets = eight(problem)
    truth = np.array([policy_value(problem.model, one, gamma) for one in targets.values()])
    names, size = list(targets), 1
    together, pairs, flagged = [], [], []
    for number in range(logs):
        case = methods.read(problem, problem.log(size, number, seed), gamma)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = lg.solve(case.counts, gamma, policy=targets, threads=1)
            interval = found.interval(methods.LEVEL, of="value")
            held = [
                found.difference(names[i], names[j], methods.LEVEL, of="value").contains(truth[i] - truth[j])
                for i, j in combinations(range(8), 2)
            ]
            flagged.append(not all(solution.trusted for solution in found))
        together.append(bool(interval.contains(truth).all()))
        pairs.append(float(np.mean(held)))
    return together, pairs, flagged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=list(families.SPLITS), default="report")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    given = parser.parse_args()
    rows = []
    for family in given.families:
        for gamma in GAMMAS:
            together, pairs, flagged = [], [], []
            for problem in families.problems(given.split, family)[:PROBLEMS]:
                for all_of, part in zip(
                    (together, pairs, flagged), judge(problem, gamma, given.logs, given.seed), strict=True
                ):
                    all_of.extend(part)
            shares = (together, [float(x) for x in pairs], flagged)
            rows.append([family, f"{gamma:g}", f"{len(together)}", *map(share, shares)])
            print(rows[-1], flush=True)
    header = ["family", "gamma", "logs", "all eight covered", "differences covered", "some target flagged"]
    text = (
        "# Eight targets on one log\n\n"
        f"95 % intervals, {given.split} families, {PROBLEMS} problems of each, seed {given.seed}: share of "
        "the logs in which the simultaneous intervals of all eight targets cover, of the 28 paired "
        "differences that their own intervals cover, and of logs in which a check of some target fails; in "
        "%, with one standard error over logs.\n\n" + table(header, rows) + "\n"
    )
    if given.split == "report":
        (RESULTS / "many.md").write_text(text)
        provenance.mark("trust_many")


if __name__ == "__main__":
    main()
