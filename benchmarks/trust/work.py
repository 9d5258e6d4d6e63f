"""One task of a run: a few logs of one problem at one size, judged by every method at every gamma."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trust import families, methods
from trust.problem import Problem

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs"
NOT_JUDGED = {"run.py", "suite.py", "summary.py", "tables.py", "many.py", "horizon.py", "stationary.py"}
"""Files that do not change the rows."""


class Task(NamedTuple):
    """Logs ``first`` to ``last - 1`` of a problem at a size."""

    split: str
    family: str
    problem: str
    size: int
    first: int
    last: int
    seed: int
    default_only: bool = False

    @property
    def file_name(self) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", f"{self.family} {self.problem}".lower()).strip("-")
        only = ".default" * self.default_only
        return f"{plain}.{self.size}.{self.first}-{self.last}{only}.json.gz"


def fingerprint() -> str:
    """What the rows depend on: the sources of the library and of the suite, as eight hexadecimal digits."""
    library = Path(methods.lg.__file__).resolve().parent
    files = sorted(library.rglob("*.py")) + sorted(f for f in HERE.glob("*.py") if f.name not in NOT_JUDGED)
    mark = hashlib.sha256()
    for file in files:
        mark.update(file.name.encode() + b"\0" + file.read_bytes())
    return mark.hexdigest()[:8]


def find(split: str, family: str, name: str) -> Problem:
    """A problem by its names."""
    return next(problem for problem in families.problems(split, family) if problem.name == name)


_truths: dict[tuple[str, str, str], dict[float, float]] = {}


def _truth(task: Task, problem: Problem) -> dict[float, float]:
    key = (task.split, task.family, task.problem)
    if key not in _truths:
        _truths[key] = {gamma: problem.headline(gamma) for gamma in problem.gammas}
    return _truths[key]


def rows_of(task: Task) -> list[dict[str, Any]]:
    """Simulate and judge."""
    problem = find(task.split, task.family, task.problem)
    truth = _truth(task, problem)
    rows = []
    for number in range(task.first, task.last):
        log = problem.log(task.size, number, task.seed)
        counts = None
        worst = bool(log.reward.min() <= problem.model.reward.min() + 1e-9 * problem.model.reward_span)
        for gamma in problem.gammas:
            case = methods.read(problem, log, gamma, counts)
            counts = case.counts
            for method in methods.METHODS:
                if task.default_only and method != methods.DEFAULT:
                    continue
                if not methods.applies(method, case, number):
                    continue
                found = methods.judge(method, case)
                rows.append({
                    "family": task.family, "problem": task.problem, "size": task.size,
                    "steps": int(log.state.size), "worst_shown": worst, "gamma": gamma, "log": number,
                    "method": method,
                    "truth": truth[gamma], "span": problem.model.reward_span, "value": _json(found.value),
                    "low": _json(found.low), "high": _json(found.high), "failed": list(found.failed),
                    "seconds": round(found.seconds, 5),
                })  # fmt: skip
    return rows


def _json(number: float) -> float | None:
    return number if math.isfinite(number) else None


def perform(task: Task, folder: Path, deadline: float) -> bool:
    """Make the rows of a task and keep them, unless time is up; whole files appear at once or not at all."""
    if time.time() > deadline:
        return False
    np.seterr(all="ignore")
    text = json.dumps(rows_of(task))
    whole = folder / task.file_name
    part = whole.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(gzip.compress(text.encode(), mtime=0))
    part.replace(whole)
    return True


def load(folder: Path) -> list[dict[str, Any]]:
    """All rows kept so far, each once: runs of different lengths cut the logs into different tasks."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json.gz")):
        for row in json.loads(gzip.decompress(file.read_bytes())):
            rows[tuple(row[name] for name in ("family", "problem", "size", "gamma", "log", "method"))] = row
    return list(rows.values())
