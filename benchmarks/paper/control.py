"""Cartpole, Reacher and HalfCheetah: every estimate of the default, and other methods, on the same logs.

    python benchmarks/paper/control.py [--logs 6] [--slow 0] [--minutes M] [--report]

Twelve settings: three environments, gamma 0.99 and 1, behaviors alpha 0 and 0.66, logs of 50 x 100 steps.
Seeds are fixed: reported logs have seeds from ``FIRST_SEED``; whatever was chosen was chosen on other ones
(``TUNING_SEEDS``). ``--slow`` is the number of logs on which the ratio networks (GenDICE, DualDICE) are
trained too. Every finished log is appended to ``results/control_runs.jsonl`` at once and never computed
again, so that a run may be stopped and started at will.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any, NamedTuple

import control_truth
import numpy as np
from reporting import RESULTS, table, write

import lingendice as lg
from lingendice import baselines
from lingendice.environments import control

ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
GAMMAS, ALPHAS = (0.99, 1.0), (0.0, 0.66)
TRAJECTORIES, STEPS = 50, 100
FIRST_SEED = 7_000_000
TUNING_SEEDS = range(900, 907)
FILE = RESULTS / "control_runs.jsonl"
FAST = ("default", "model", "FQE", "DR", "ratio", "cloned IS", "naive")
SLOW = ("GenDICE", "DualDICE")


class Case(NamedTuple):
    """One log under one discount."""

    environment: str
    gamma: float
    alpha: float
    seed: int

    @property
    def key(self) -> str:
        """As it is called in the file."""
        return f"{self.environment} {self.gamma:g} {self.alpha:g} {self.seed}"


def read() -> dict[str, dict[str, Any]]:
    """Finished cases by their key, parts of one merged."""
    found: dict[str, dict[str, Any]] = {}
    if FILE.exists():
        for line in FILE.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found.setdefault(entry["case"], {}).update(entry)
    return found


def make_log(case: Case) -> lg.Transitions:
    """A fresh log; nothing in it tells the behavior, or where it restarted."""
    behavior = control.policy(case.environment, case.alpha)
    log = control.collect(case.environment, behavior, TRAJECTORIES, STEPS, seed=case.seed)
    return lg.Transitions(**log._asdict())


def run_fast(case: Case, log: lg.Transitions, threads: int | None) -> dict[str, Any]:
    """The default with all its estimates, and importance sampling with a cloned behavior."""
    target = control.policy(case.environment)
    solution = lg.solve(log, case.gamma, policy=target, seed=case.seed % 1000, threads=threads)
    low, high = solution.interval(0.95)
    values = {one.name: one.value for one in solution.estimates}
    values["default"] = solution.value
    seconds = {one.name: round(one.seconds, 2) for one in solution.estimates}
    seconds["default"] = round(solution.seconds, 2)
    values["cloned IS"] = baselines.neural_importance_sampling(log, case.gamma, policy=target).value
    evidence = solution.evidence
    return {
        "case": case.key, "values": values, "seconds": seconds, "interval": [low, high],
        "errors": {one.name: one.standard_error for one in solution.estimates},
        "members": evidence.members.tolist(), "clusters": int(evidence.scores.size),
        "headline": evidence.headline, "status": solution.status.value,
        "failed": [check.name for check in solution.diagnose() if not check.ok],
    }  # fmt: skip


def run_slow(case: Case, log: lg.Transitions, threads: int | None) -> dict[str, Any]:
    """The ratio networks at their defaults, 10,000 steps."""
    target = control.policy(case.environment)
    found = {"case": case.key, "slow": {}}
    sol = lg.solve(log, case.gamma, policy=target, method="gendice", seed=case.seed % 1000, threads=threads)
    found["slow"]["GenDICE"] = [sol.value, sol.status.value, round(sol.seconds, 1)]
    if case.gamma < 1.0:
        sol = baselines.neural_dual_dice(
            log, case.gamma, policy=target, seed=case.seed % 1000, threads=threads
        )
        found["slow"]["DualDICE"] = [sol.value, sol.status.value, round(sol.seconds, 1)]
    return found


def run(logs: int, slow: int, deadline: float, part: str) -> None:
    """What is not there yet, log by log, so that every setting has some early."""
    done, count = read(), 0
    mine, parts = (int(number) for number in part.split("/"))
    threads = 1 if parts > 1 else None
    for number in range(max(logs, slow)):
        for environment in ENVIRONMENTS:
            for alpha in ALPHAS:
                for gamma in GAMMAS:
                    case = Case(environment, gamma, alpha, FIRST_SEED + number)
                    known = done.get(case.key, {})
                    wanted = [(run_fast, "values", logs), (run_slow, "slow", slow)]
                    for work, part, most in wanted:
                        if number >= most or part in known:
                            continue
                        count += 1
                        if count % parts != mine % parts:
                            continue
                        if time.time() > deadline:
                            return
                        entry = work(case, make_log(case), threads)
                        with FILE.open("a", encoding="utf-8") as stream:
                            stream.write(json.dumps(entry) + "\n")
                        print(case.key, entry.get("values") or entry.get("slow"), flush=True)


def cells(method: str, found: dict[str, dict[str, Any]]) -> dict[tuple[str, float, float], list[float]]:
    """Squared errors of a method by setting, in the order of the logs."""
    truth = control_truth.read()
    errors: dict[tuple[str, float, float], list[float]] = {}
    for key, entry in sorted(found.items()):
        environment, gamma, alpha, _ = key.split()
        values = entry.get("values", {}) | {name: one[0] for name, one in entry.get("slow", {}).items()}
        if method in values:
            off = values[method] - truth[environment][gamma]["value"]
            errors.setdefault((environment, float(gamma), float(alpha)), []).append(off * off)
    return errors


def log_mean(squares: list[float]) -> tuple[float, float]:
    """ln of the mean, and its standard error by the delta method."""
    values = np.array(squares)
    mean = float(values.mean())
    error = float(values.std(ddof=1) / math.sqrt(len(values)) / mean) if len(values) > 1 else math.nan
    return math.log(mean), error


def shown(score: tuple[float, float] | None, best: tuple[float, float]) -> str:
    """One cell of the table."""
    if score is None:
        return ""
    text = f"**{score[0]:.1f}**" if score == best else f"{score[0]:.1f}"
    return text if math.isnan(score[1]) else f"{text} ± {score[1]:.1f}"


def coverage(found: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many intervals hold the true value, in all and among those whose status is trained."""
    truth, counts = control_truth.read(), {"cases": 0, "covered": 0, "trained": 0, "covered and trained": 0}
    for key, entry in found.items():
        if "interval" in entry:
            environment, gamma, _, _ = key.split()
            low, high = entry["interval"]
            holds, trained = low <= truth[environment][gamma]["value"] <= high, entry["status"] == "trained"
            counts["cases"] += 1
            counts["covered"] += holds
            counts["trained"] += trained
            counts["covered and trained"] += holds and trained
    return counts


def report() -> None:
    """Table of ln MSE, coverage of the intervals, and costs."""
    found = read()
    by_method = {method: cells(method, found) for method in (*FAST, *SLOW)}
    by_method = {method: one for method, one in by_method.items() if one}
    settings = [(e, g, a) for e in ENVIRONMENTS for g in GAMMAS for a in ALPHAS]
    settings = [one for one in settings if one in by_method["default"]]
    rows, summary = [], []
    means: dict[str, list[float]] = {method: [] for method in by_method}
    for setting in settings:
        scores = {m: log_mean(one[setting]) for m, one in by_method.items() if setting in one}
        best = min((score for m, score in scores.items() if m in FAST), key=lambda one: one[0])
        others = min(scores[m][0] for m in FAST if m not in ("default", "model"))
        own, logs = scores["default"][0], len(by_method["default"][setting])
        first = own <= best[0] + (0.0 if math.isnan(best[1]) else best[1])
        entry = {"setting": list(setting), "logs": logs, "first": first, "behind": max(0.0, own - others)}
        beats = {f"beats {name}": own < scores[name][0] for name in ("naive", "cloned IS")}
        summary.append(entry | beats)
        for method, (score, _) in scores.items():
            means[method].append(score)
        name = f"{setting[0]} {setting[1]:g}, {setting[2]:g}"
        rows.append([name, str(logs), *(shown(scores.get(m), best) for m in by_method)])
    whole = [f"{np.mean(one):.2f}" if len(one) == len(settings) else "" for one in means.values()]
    rows.append(["mean", "", *whole])
    covered = coverage(found)
    seconds = [entry["seconds"]["default"] for entry in found.values() if "seconds" in entry]
    count = {name: sum(one[name] for one in summary) for name in ("first", "beats naive", "beats cloned IS")}
    behind = max(one["behind"] for one in summary)
    text = (
        "# Control experiments\n\n"
        f"ln of the mean squared error ± its standard error; {TRAJECTORIES} x {STEPS} steps per log, seeds "
        f"from {FIRST_SEED:,}. The least of a row in bold; GenDICE and DualDICE, where shown, have fewer "
        "logs.\n\n"
        + table(["setting (gamma, alpha)", "logs", *by_method], rows)
        + "\n\nThe default is first, or within one standard error of the first, in "
        f"{count['first']} of {len(summary)} settings, at most {behind:.1f} behind the best other method; it "
        f"beats the naive average in {count['beats naive']} and cloned importance sampling in "
        f"{count['beats cloned IS']}. Intervals at 95 %: {covered['covered']} of {covered['cases']} hold the "
        f"true value ({covered['covered and trained']} of the {covered['trained']} whose status is trained). "
        f"Median {np.median(seconds):.1f} s per solve, on a shared machine with two cores.\n"
    )
    kept = [{"setting": list(s), **{m: one.get(s) for m, one in by_method.items()}} for s in settings]
    write("control", {"squared_errors": kept, "coverage": covered, "summary": summary}, text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="k/n: every n-th of what is missing, on one core each")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if not given.report:
        control_truth.complete(ENVIRONMENTS, GAMMAS)
        run(given.logs, given.slow, time.time() + 60 * given.minutes, given.part)
    report()


if __name__ == "__main__":
    main()
