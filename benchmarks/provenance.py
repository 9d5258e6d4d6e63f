"""Which code made each committed result: digests of the package's sources, and what is out of date.

    python benchmarks/provenance.py

lists results that other code made, with the command that makes each anew. ``RESULTS`` is the only place that
says what a result depends on. Scripts call :func:`mark` when they have written a result, and keep
:func:`made_by` with each part where a run goes on from what an earlier one left.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = ROOT / "lingendice"
MARKS = HERE / "made_by.json"
"""What made each file, with a digest of the file: a file that was written without a mark has none."""

TABULAR = (
    "kernels", "data", "model", "solvers", "estimators", "baselines", "results", "environments/taxi.py",
    "solve.py", "request.py",
)  # fmt: skip
NETWORKS = (*TABULAR, "continuous", "divergences")
ALL = ("",)
"""Rooms and files of the package; those that do not exist are left out."""

Parts = Callable[[Any], Iterable[dict[str, Any]]]


class Result(NamedTuple):
    """One committed result: a file, what it depends on, and the command that makes it."""

    file: str
    """Below benchmarks/."""
    sources: tuple[str, ...]
    command: str
    parts: Parts | None = None
    """The parts that are made by themselves, each with a mark of its own; None where a run makes all."""


def _entries(found: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return found.values()


def _settings(found: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return found["settings"]  # type: ignore[no-any-return]


def _runs(found: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return [run for entry in found.values() for run in entry["runs"]]


def last_lines(lines: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Of control_runs.jsonl.gz, whose later lines replace earlier ones of the same log and part."""
    kinds = ("values", "slow", "ablations")
    return {(one["case"], *(kind in one for kind in kinds)): one for one in lines}.values()


RESULTS = {
    "speed": Result("results/ratios.json", ALL, "make bench", _entries),
    "growth": Result("results/growth.json", ALL, "make bench PYTEST_ARGS='-k growth'"),
    "linear": Result("results/linear.md", ALL, "make bench PYTEST_ARGS='-k linear', and by hand"),
    "hitting": Result("results/hitting.md", (*TABULAR, "hitting.py"), "python benchmarks/hitting.py"),
    "lags": Result("results/lags.md", TABULAR, "python benchmarks/lags.py"),
    "roofline": Result("results/roofline.json", (*TABULAR, "gpu"), "python benchmarks/roofline.py"),
    "taxi": Result(
        "paper/results/taxi.json", TABULAR, "make taxi-grid", _settings
    ),
    "taxi_default": Result(
        "paper/results/taxi_default.json", TABULAR, "make taxi-grid"
    ),
    "pagerank": Result(
        "paper/results/pagerank.json", (*TABULAR, "divergences"), "python benchmarks/paper/pagerank.py"
    ),
    "pagerank_smoothing": Result(
        "paper/results/pagerank_smoothing.json", TABULAR, "python benchmarks/paper/pagerank_smoothing.py"
    ),
    "opr_ablations": Result(
        "paper/opr_ablations.json", (*TABULAR, "divergences"),
        "python benchmarks/paper/opr_ablations.py --write",
    ),
    "control": Result(
        "paper/results/control_runs.jsonl.gz", NETWORKS, "make paper-control FRESH=1", last_lines
    ),
    "control_other": Result(
        "paper/results/control_other.json", NETWORKS, "python benchmarks/paper/control_other.py --fresh",
        _runs,
    ),
    "trust": Result(
        "trust/results/report.json.gz", TABULAR, "python benchmarks/trust/run.py --report --budget 600"
    ),
    "trust_episodes": Result(
        "trust/results/episodes.json.gz", TABULAR,
        "python benchmarks/trust/run.py --report --families 'episodes, unseen' --name episodes",
    ),
    "trust_horizon": Result("trust/results/horizon.md", TABULAR, "python benchmarks/trust/horizon.py"),
    "trust_backtests": Result(
        "trust/results/backtests.md", (*TABULAR, "backtest.py"), "python benchmarks/trust/backtests.py"
    ),
    "trust_many": Result("trust/results/many.md", TABULAR, "python benchmarks/trust/many.py"),
    "trust_stationary": Result(
        "trust/results/stationary.md", TABULAR, "python benchmarks/trust/stationary.py"
    ),
}  # fmt: skip
NOT_MEASURED = {
    "paper/results/control_truth.json": "true values by simulation, without an estimate of the package",
    "paper/results/control_reduced.json": "an earlier protocol, whose script is gone; one sentence cites it",
}
"""Files of results/ that no digest is kept of, and why."""


# -- digests -----------------------------------------------------------------------------------------------


def digest(sources: tuple[str, ...], package: Path | None = None) -> str:
    """Twelve hexadecimal digits of what sources of the package do.

    Comments, docstrings, layout and imports do not count, nor which file holds a function: statements of
    all modules are digested one by one and sorted. Moving code within ``sources`` changes nothing.
    """
    statements = [one for file in _python_files(sources, package or PACKAGE) for one in _statements(file)]
    return hashlib.sha256("\n".join(sorted(statements)).encode()).hexdigest()[:12]


def _python_files(sources: tuple[str, ...], package: Path) -> list[Path]:
    found: set[Path] = set()
    for name in sources:
        place = package / name
        found.update(place.rglob("*.py") if place.is_dir() else [place] * place.is_file())
    return sorted(found)


@cache
def _statements(file: Path) -> tuple[str, ...]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return tuple(
        hashlib.sha256(_spelled(one).encode()).hexdigest() for one in tree.body if not _is_left_out(one)
    )


def _is_left_out(node: Any) -> bool:
    """Imports, those for types alone included, and strings by themselves, which are docstrings."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


def _spelled(node: Any) -> str:
    """A syntax tree as text that is the same in every version of Python."""
    if isinstance(node, list):
        return "[" + ",".join(_spelled(one) for one in node if not _is_left_out(one)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    # Fields that are empty are left out: later versions add some.
    fields = [(name, getattr(node, name, None)) for name in node._fields if name not in ("ctx", "kind")]
    inside = ",".join(f"{name}={_spelled(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inside})"


# -- marks -------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What made a result, or a part of it."""

    version: str
    """Of the package, with the commit; for results without a mark, the commit that last wrote them."""
    code: str | None
    """Digest of the sources; None for results without a mark."""


def made_by(name: str) -> dict[str, str | None]:
    """The mark of a result, or of a part, that is made now."""
    return _now(name)._asdict()


@cache
def _now(name: str) -> Made:
    found = re.search(r'__version__ = "(.*)"', (PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    version, commit = found[1] if found else "", _git("rev-parse", "--short=7", "HEAD")
    return Made(f"{version} ({commit})" if commit else version, digest(RESULTS[name].sources))


def is_ours(part: dict[str, Any], name: str) -> bool:
    """Whether a part was made by the code that is here."""
    return (part.get("made_by") or {}).get("code") == _now(name).code


def mark(name: str) -> None:
    """Remember what made a result, whose file has just been written; parts carry their own marks."""
    if RESULTS[name].parts is None:
        remember(name, _now(name))


def remember(name: str, by: Made) -> None:
    """Keep a mark with a digest of the result's file."""
    file = RESULTS[name].file
    marks = _marks() | {file: {**by._asdict(), "file": _of_file(HERE / file)}}
    MARKS.write_text(json.dumps(marks, indent=1, sort_keys=True) + "\n")


def stamp(name: str, parts: Iterable[dict[str, Any]]) -> None:
    """Give parts without a mark one that says what last wrote them, before their file is written again."""
    for part in parts:
        part.setdefault("made_by", _of_unmarked(name)._asdict())


def made(name: str) -> list[Made]:
    """What made a result, part by part."""
    result = RESULTS[name]
    if result.parts is None:
        return [_of_unmarked(name)]
    marks = [part.get("made_by") for part in result.parts(_read(HERE / result.file))]
    return [Made(**one) if one else _of_unmarked(name) for one in marks]


def _of_unmarked(name: str) -> Made:
    """What the marks say of a file, or else the commit that last wrote it."""
    file = RESULTS[name].file
    kept = _marks().get(file)
    if kept is not None and kept["file"] == _of_file(HERE / file):
        return Made(kept["version"], kept["code"])
    return Made(_last_written(file), None)


def is_stale(name: str) -> bool:
    """Whether other code than the package's made some of a result."""
    return any(one.code != _now(name).code for one in made(name))


def measured_at(name: str) -> str:
    """The versions that measured a result, the most frequent first."""
    versions = [one.version for one in made(name)]
    each = sorted(set(versions), key=lambda version: (-versions.count(version), version))
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"


def _marks() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(MARKS.read_text()) if MARKS.exists() else {}
    return found


def _of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _read(path: Path) -> Any:
    if path.name.endswith(".jsonl.gz"):
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def _last_written(file: str) -> str:
    return (
        _git("log", "-1", "--format=%h (%cs)", "--abbrev=7", "--", str(HERE / file)) or "an unknown version"
    )


def _git(*command: str) -> str:
    """What git says of this repository; empty without git or outside of a repository."""
    try:
        ended = subprocess.run(("git", *command), cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def plan(name: str, kept: Sequence[dict[str, Any]], to_compute: int, what: str) -> str:
    """What a run that goes on from an earlier one keeps and computes, for its first line."""
    text = f"{name}: {len(kept)} {what} kept, {to_compute} to compute"
    others = sum(not is_ours(part, name) for part in kept)
    return text + (f"; {others} of those kept were made by other code: FRESH=1 computes them" * bool(others))


# -- the list ----------------------------------------------------------------------------------------------


def listing() -> str:
    """Results that other code made, and how to make them."""
    rows = []
    for name, result in RESULTS.items():
        every = made(name)
        others = sum(one.code != _now(name).code for one in every)
        if others:
            share = f"{others} of {len(every)} parts" if result.parts is not None else "all"
            rows.append((result.file, share, measured_at(name), result.command))
    if not rows:
        return f"all {len(RESULTS)} results were made by this code"
    head = ("result", "stale", "measured at", "made anew by")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return f"{len(rows)} of {len(RESULTS)} results were made by other code:\n" + "\n".join(lines)


if __name__ == "__main__":
    print(listing())
