"""Cartpole, Reacher and HalfCheetah: every estimate of the default, and other methods, on the same logs.

    python benchmarks/paper/control.py [--logs 20] [--sweeps 6] [--ablations 6]
                                       [--neural 20] [--part k/n] [--minutes M] [--fresh] [--report]

Twelve central settings: three environments, gamma 0.99 and 1, behaviors alpha 0 and 0.66, logs of 50 x 100
steps. Sweeps change one of number and length of trajectories, behavior (M1 and M2 pool several, as the paper
does) and gamma. ``--neural`` is the number of logs on which GenDICE's networks are trained too, by their
default and by the paper's configuration, and DualDICE's; ``--ablations`` that of the default without restarts
and with ``effort="quick"``.

Seeds are fixed: reported logs have seeds from ``FIRST_SEED``; whatever was chosen was chosen on other ones
(``TUNING_SEEDS``). Every finished log is appended to ``results/control_runs.jsonl.gz`` at once and not
computed again, so that a run may be stopped and started at will; ``--fresh`` computes anew what other code
made.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# `control` is the package beside this folder, not this file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import control_truth
import figures
import numpy as np
from control import environments as control
from reporting import RESULTS, provenance, table, write

import lingendice as lg
from lingendice import baselines

ENVIRONMENTS = ("cartpole", "reacher", "halfcheetah")
GAMMAS, OTHER_GAMMAS = (0.99, 1.0), (0.95, 0.995, 0.999)
BEHAVIORS = {"0": (0.0,), "0.33": (0.33,), "0.66": (0.66,), "M1": (0.0, 0.33), "M2": (0.0, 0.33, 0.66)}
TRAJECTORIES, STEPS = 50, 100
SIZES = ((200, 100), (50, 400), (25, 100), (100, 100), (50, 50), (50, 200))
FIRST_SEED = 7_000_000
TUNING_SEEDS = range(900, 907)
FILE = RESULTS / "control_runs.jsonl.gz"
FAST = ("default", "model", "FQE", "DR", "ratio", "cloned IS", "naive")
NEURAL = ("GenDICE", "its base alone", "GenDICE, paper's settings", "DualDICE")
ABLATIONS = ("no restarts", "quick")
Rows = dict[str, dict[str, Any]]


class Setting(NamedTuple):
    """A kind of log, and a discount."""

    environment: str
    gamma: float
    behavior: str
    trajectories: int = TRAJECTORIES
    steps: int = STEPS

    @property
    def key(self) -> str:
        """As it is called in the file."""
        size = f" {self.trajectories}x{self.steps}"
        return f"{self.environment} {self.gamma:g} {self.behavior}{size * (size != ' 50x100')}"

    @property
    def kind(self) -> str:
        """What of it differs from the central settings."""
        if (self.trajectories, self.steps) != (TRAJECTORIES, STEPS):
            return f"{self.trajectories} x {self.steps}"
        if self.gamma in OTHER_GAMMAS:
            return f"gamma {self.gamma:g}"
        return self.behavior if self.behavior.startswith("M") else f"alpha {self.behavior}"

    @property
    def truth(self) -> float:
        """The target's value."""
        return control_truth.read()[self.environment][f"{self.gamma:g}"]["value"]


CENTRAL = [Setting(e, g, b) for e in ENVIRONMENTS for b in ("0", "0.66") for g in GAMMAS]
SWEEPS = [
    *(Setting(e, g, "0", *size) for size in SIZES for g in GAMMAS for e in ENVIRONMENTS),
    *(Setting(e, g, b) for b in ("0.33", "M1", "M2") for g in GAMMAS for e in ENVIRONMENTS),
    *(Setting(e, g, "0") for g in OTHER_GAMMAS for e in ENVIRONMENTS),
]


def read() -> Rows:
    """Finished logs by setting and seed, parts of one merged."""
    found: Rows = {}
    for entry in read_lines():
        found.setdefault(entry["case"], {}).update(entry)
    return found


def read_lines() -> list[dict[str, Any]]:
    """Every part of every log, the latest run of each."""
    if not FILE.exists():
        return []
    with gzip.open(FILE, "rt", encoding="utf-8") as stream:
        return list(provenance.last_lines([json.loads(line) for line in stream]))


def stamp_lines() -> None:
    """Marks for lines that have none: what is appended next would be taken for what made them."""
    lines = read_lines()
    if all("made_by" in line for line in lines):
        return
    provenance.stamp("control", lines)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


def make_log(setting: Setting, seed: int) -> lg.Transitions:
    """A fresh log; nothing in it tells the behavior, or where it restarted."""
    behaviors = [control.policy(setting.environment, alpha) for alpha in BEHAVIORS[setting.behavior]]
    log = control.collect(setting.environment, behaviors, setting.trajectories, setting.steps, seed=seed)
    return lg.Transitions(**log._asdict())


def run_fast(log: lg.Transitions, gamma: float, target: Any, common: dict[str, Any]) -> dict[str, Any]:
    """The default with all its estimates, and importance sampling with a cloned behavior."""
    solution = lg.solve(log, gamma, policy=target, **common)
    low, high = solution.interval(0.95)
    values = {one.name: one.value for one in solution.estimates}
    values["default"] = solution.value
    seconds = {one.name: round(one.seconds, 2) for one in solution.estimates}
    seconds["default"] = round(solution.seconds, 2)
    values["cloned IS"] = baselines.neural_importance_sampling(log, gamma, policy=target).value
    evidence = solution.evidence
    return {
        "values": values, "seconds": seconds, "interval": [low, high],
        "errors": {one.name: one.standard_error for one in solution.estimates},
        "members": evidence.members.tolist(), "clusters": int(evidence.scores.size),
        "headline": evidence.headline, "status": solution.status.value,
        "failed": [check.name for check in solution.diagnose() if not check.ok],
    }  # fmt: skip


def run_gendice(log: lg.Transitions, gamma: float, target: Any, common: dict[str, Any]) -> dict[str, Any]:
    """GenDICE's networks by default, and the base that they begin with."""
    found = lg.solve(log, gamma, policy=target, method="gendice", **common)
    base = found.details["base"]
    alone = float(np.sum(base * log.reward) / np.sum(base * found.mass_weight))
    return {"gendice": _neural({"GenDICE": found}, {"its base alone": alone})}


def run_paper(log: lg.Transitions, gamma: float, target: Any, common: dict[str, Any]) -> dict[str, Any]:
    """The paper's configuration, and DualDICE: 10,000 steps of 2048 rows."""
    preset = {"preset": "paper"}
    found = {NEURAL[2]: lg.solve(log, gamma, policy=target, method="gendice", options=preset, **common)}
    if gamma < 1.0:
        found["DualDICE"] = baselines.neural_dual_dice(log, gamma, policy=target, **common)
    return {"paper": _neural(found, {})}


def _neural(found: dict[str, lg.ContinuousSolution], further: dict[str, float]) -> dict[str, Any]:
    return {
        "values": {name: one.value for name, one in found.items()} | further,
        "status": {name: one.status.value for name, one in found.items()},
        "mean_ratio": {name: one.mean_ratio for name, one in found.items()},
        "seconds": {name: round(one.seconds, 1) for name, one in found.items()},
        "failed": {
            name: [check.name for check in one.diagnose() if not check.ok] for name, one in found.items()
        },
    }


def run_ablations(log: lg.Transitions, gamma: float, target: Any, common: dict[str, Any]) -> dict[str, Any]:
    """A model that does not look for restarts, and the default at a quarter of the time."""
    found = {
        "no restarts": {"method": "model", "options": {"restarts": "none"}},
        "quick": {"options": {"effort": "quick"}},
    }
    return {
        "ablations": {
            name: lg.solve(log, gamma, policy=target, **options, **common).value
            for name, options in found.items()
        }
    }


PARTS = {"values": run_fast, "gendice": run_gendice, "paper": run_paper, "ablations": run_ablations}


def wanted(logs: int, neural: int, sweeps: int, ablations: int) -> Iterator[tuple[Setting, int, str]]:
    """(setting, seed, part), log by log, so that every setting has some early."""
    for part, settings, count in (
        ("values", CENTRAL, logs), ("values", SWEEPS, sweeps), ("ablations", CENTRAL, ablations),
        ("gendice", CENTRAL, neural), ("paper", CENTRAL, neural),
    ):  # fmt: skip
        for number in range(count):
            for setting in settings:
                yield setting, FIRST_SEED + number, part


def run(work: list[tuple[Setting, int, str]], deadline: float, threads: int | None) -> None:
    """One after another, what is not there yet."""
    for setting, seed, part in work:
        if time.time() > deadline:
            return
        common = {"seed": seed % 1000, "threads": threads}
        target = control.policy(setting.environment)
        entry = PARTS[part](make_log(setting, seed), setting.gamma, target, common)
        with gzip.open(FILE, "at", encoding="utf-8") as stream:
            made = {"made_by": provenance.made_by("control")}
            stream.write(json.dumps({"case": f"{setting.key} {seed}", **entry, **made}) + "\n")
        print(setting.key, seed, entry[part], flush=True)


def log_mean(squares: list[float]) -> tuple[float, float]:
    """ln of the mean, and its standard error by the delta method."""
    values = np.array(squares)
    mean = float(values.mean())
    error = float(values.std(ddof=1) / math.sqrt(len(values)) / mean) if len(values) > 1 else math.nan
    return math.log(mean), error


class Comparison(NamedTuple):
    """ln of the mean squared error and its standard error: by setting, then by method."""

    scores: dict[Setting, dict[str, tuple[float, float]]]
    logs: dict[Setting, int]
    squares: list[dict[str, Any]]

    @classmethod
    def of(cls, found: Rows, settings: list[Setting], part: str, methods: tuple[str, ...]) -> Comparison:
        """All methods on the logs that have this part."""
        scores, logs, kept = {}, {}, []
        for setting in settings:
            rows = [
                _values(entry)
                for key, entry in sorted(found.items())
                if key.rpartition(" ")[0] == setting.key and part in entry and "values" in entry
            ]
            squares = {m: [(row[m] - setting.truth) ** 2 for row in rows if m in row] for m in methods}
            if rows:
                scores[setting] = {m: log_mean(found) for m, found in squares.items() if found}
                logs[setting] = len(rows)
                kept.append({"setting": setting.key, **squares})
        return cls(scores, logs, kept)

    def means(self) -> dict[str, float]:
        """Over settings, of methods that are in all of them."""
        every = list(self.scores.values())
        names = [name for name in every[0] if all(name in one for one in every)]
        return {name: float(np.mean([one[name][0] for one in every])) for name in names}

    def table(self, methods: tuple[str, ...]) -> str:
        """One row per setting, the least in bold."""
        rows = []
        for setting, scores in self.scores.items():
            least = min(score for score, _ in scores.values())
            cells = [_shown(scores.get(m), least) for m in methods]
            rows.append([setting.key, str(self.logs[setting]), *cells])
        means = self.means()
        rows.append(["mean", "", *(f"{means[m]:.2f}" if m in means else "" for m in methods)])
        return table(["environment, gamma, alpha", "logs", *methods], rows)

    def kinds(self, methods: tuple[str, ...]) -> str:
        """Means over environments (and gammas), one row per kind of log."""
        rows = []
        for kind in dict.fromkeys(setting.kind for setting in self.scores):
            here = [scores for setting, scores in self.scores.items() if setting.kind == kind]
            means = {m: float(np.mean([scores[m][0] for scores in here])) for m in methods}
            cells = [_shown((mean, math.nan), min(means.values())) for mean in means.values()]
            rows.append([kind, str(len(here)), *cells])
        return table(["kind of log", "settings", *methods], rows)

    def draw(self, methods: tuple[str, ...]) -> None:
        """One panel per environment; settings from left to right, one line per method."""
        figure, panels = figures.new_figure(len(ENVIRONMENTS), width=5.0)
        for axes, environment in zip(panels, ENVIRONMENTS, strict=True):
            here = {s: scores for s, scores in self.scores.items() if s.environment == environment}
            for place, method in enumerate(methods):
                found = np.array([scores[method] for scores in here.values()]).T
                figures.draw_line(axes, place, method, np.arange(len(here)), found[0], found[1])
            axes.set_title(environment)
            axes.set_xticks(range(len(here)), [f"{s.gamma:g}\nalpha {s.behavior}" for s in here])
            axes.set_xlabel("gamma and behavior")
        panels[0].set_ylabel("ln of the mean squared error")
        figures.finish(figure, panels, "control")

    def verdict(self, others: tuple[str, ...] = FAST[2:]) -> dict[str, Any]:
        """Where the default is first or within a standard error, how far behind, and what it beats."""
        first, behind, beats = 0, 0.0, dict.fromkeys(("naive", "cloned IS"), 0)
        for scores in self.scores.values():
            best, error = min(scores.values())
            own = scores["default"][0]
            first += own <= best + (0.0 if math.isnan(error) else error)
            behind = max(behind, own - min(scores[m][0] for m in others))
            for name in beats:
                beats[name] += own < scores[name][0]
        return {"settings": len(self.scores), "first": first, "behind": behind, "beats": beats}


def _values(entry: dict[str, Any]) -> dict[str, float]:
    """Of all methods on one log."""
    neural = [entry[part]["values"] for part in ("gendice", "paper") if part in entry]
    return (
        entry.get("values", {})
        | entry.get("ablations", {})
        | {k: v for one in neural for k, v in one.items()}
    )


def _shown(score: tuple[float, float] | None, least: float) -> str:
    if score is None:
        return ""
    text = f"**{score[0]:.1f}**" if score[0] == least else f"{score[0]:.1f}"
    return text if math.isnan(score[1]) else f"{text} ± {score[1]:.1f}"


def coverage(found: Rows, settings: list[Setting]) -> dict[str, int]:
    """How many intervals hold the true value, in all and among those whose status is trained."""
    counts = {"cases": 0, "covered": 0, "trained": 0, "covered and trained": 0}
    for setting in settings:
        truth = setting.truth
        for key, entry in found.items():
            if key.rpartition(" ")[0] == setting.key and "interval" in entry:
                low, high = entry["interval"]
                holds, trained = low <= truth <= high, entry["status"] == "trained"
                counts["cases"] += 1
                counts["covered"] += holds
                counts["trained"] += trained
                counts["covered and trained"] += holds and trained
    return counts


def training(found: Rows) -> dict[str, dict[str, float]]:
    """Of the networks: how many runs are trained, the range of E tau, and median seconds."""
    runs: dict[str, list[tuple[str, float, float]]] = {}
    for entry in found.values():
        for part in ("gendice", "paper"):
            for name, status in entry.get(part, {}).get("status", {}).items():
                numbers = entry[part]["mean_ratio"][name], entry[part]["seconds"][name]
                runs.setdefault(name, []).append((status, *numbers))
    kept = {}
    for name, rows in runs.items():
        mass, seconds = np.array([row[1] for row in rows]), [row[2] for row in rows]
        kept[name] = {
            "runs": len(rows), "trained": sum(row[0] == "trained" for row in rows),
            "mass within .9 and 1.1": int(((mass >= 0.9) & (mass <= 1.1)).sum()),
            "least mass": float(mass.min()), "largest mass": float(mass.max()),
            "seconds": float(np.median(seconds)),
        }  # fmt: skip
    return kept


def _training_table(kept: dict[str, dict[str, float]]) -> str:
    rows = [
        [name, f"{one['runs']}", f"{one['trained']}", f"{one['mass within .9 and 1.1']}",
         f"{one['least mass']:.2g} - {one['largest mass']:.2g}", f"{one['seconds']:.1f}"]
        for name, one in kept.items()
    ]  # fmt: skip
    return table(["networks", "runs", "trained", "E tau in [.9, 1.1]", "E tau", "median seconds"], rows)


def _sentence(compared: Comparison, covered: dict[str, int]) -> str:
    said = compared.verdict()
    return (
        "The default is first, or within one standard error of the first, in "
        f"{said['first']} of {said['settings']} settings, at most {max(0.0, said['behind']):.1f} behind the "
        "best of FQE, DR, ratio, cloned IS and naive; it beats the naive average in "
        f"{said['beats']['naive']} and cloned importance sampling in {said['beats']['cloned IS']}. "
        f"Intervals at 95 %: {covered['covered']} of {covered['cases']} hold the true value "
        f"({covered['covered and trained']} of the {covered['trained']} whose status is trained)."
    )


def report() -> None:
    """Tables of ln MSE, coverage of the intervals, and costs, from what is there."""
    found = read()
    plans = {
        "Central settings": (CENTRAL, "values", FAST),
        "Sweeps": (SWEEPS, "values", FAST),
        "Ablations": (CENTRAL, "ablations", ("default", "model", *ABLATIONS)),
        "GenDICE and DualDICE": (CENTRAL, "paper", ("cloned IS", "naive", *NEURAL)),
    }
    text = (
        "# Control experiments\n\nln of the mean squared error ± its standard error; logs of 50 x 100 steps "
        f"where nothing else is said, seeds from {FIRST_SEED:,}, all methods of a row on the same logs. The "
        "least of a row in bold.\n"
    )
    kept: dict[str, Any] = {}
    for title, (settings, part, methods) in plans.items():
        compared = Comparison.of(found, settings, part, methods)
        if not compared.scores:
            continue
        text += f"\n## {title}\n\n{compared.table(methods)}\n"
        kept[title] = {"squared_errors": compared.squares, "means": compared.means()}
        if settings is SWEEPS:
            text += f"\nMeans by kind of log:\n\n{compared.kinds(methods)}\n"
        if part == "values":
            kept[title] |= {"coverage": coverage(found, settings), "verdict": compared.verdict()}
            text += f"\n{_sentence(compared, kept[title]['coverage'])}\n"
        if part == "paper":
            kept[title]["training"] = training(found)
            text += f"\n{_training_table(kept[title]['training'])}\n"
        if settings is CENTRAL and part == "values":
            compared.draw((FAST[0], *FAST[2:]))
    seconds = [entry["seconds"]["default"] for entry in found.values() if "seconds" in entry]
    text += f"\nMedian {np.median(seconds):.1f} s per solve, beside other work on two cores.\n"
    write("control", kept, text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, count in (("logs", 20), ("neural", 0), ("sweeps", 0), ("ablations", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--part", default="1/1", help="k/n: every n-th of what is missing, on one core each")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--fresh", action="store_true", help="compute anew what other code made")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if not given.report:
        control_truth.complete(ENVIRONMENTS, (*GAMMAS, *OTHER_GAMMAS))
        stamp_lines()
        lines = read_lines()
        if given.fresh:
            lines = [line for line in lines if provenance.is_ours(line, "control")]
        done = {(line["case"], part) for line in lines for part in PARTS if part in line}
        missing = [
            one
            for one in wanted(given.logs, given.neural, given.sweeps, given.ablations)
            if (f"{one[0].key} {one[1]}", one[2]) not in done
        ]
        print(provenance.plan("control", lines, len(missing), "parts of logs"), flush=True)
        mine, parts = (int(number) for number in given.part.split("/"))
        run(missing[mine - 1 :: parts], time.time() + 60 * given.minutes, 1 if parts > 1 else None)
    report()


if __name__ == "__main__":
    main()
