"""Compare what the library answers with what is recorded beside this file, or record it.

    python benchmarks/golden/run.py [solves] [accuracy] [--write] [--lines 40] [--workers 2]

``solves``: some 800 small solves over all options, compared to 1e-10. ``accuracy``: ln MSE, coverage and
flags of the default and of other methods over fixed seeds (``accuracy.py``). Both where neither is named.
Ends with 1 where anything moved, after a table of what did. ``--write`` records instead: the commit that
rewrites a record says what was meant.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before NumPy is loaded: one thread of BLAS, whose sums then have the same order everywhere.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lingendice as lg
from golden import accuracy, answers, solves

HERE = Path(__file__).resolve().parent
SOLVES, ACCURACY = HERE / "solves.json", HERE / "accuracy.json"
ABOUT_SOLVES = {
    "about": "what small solves answer; made by make golden-write, compared by make golden",
    "tolerance": f"|a - b| <= {answers.RELATIVE} max(|a|, |b|) + {answers.ABSOLUTE}; nan equals nan; "
    f"residuals, errors and gaps {answers.CERTIFICATE}; cases of two threads {answers.PARALLEL}",
}
ABOUT_ACCURACY = {
    "about": "how good answers are over fixed seeds; made by make golden-write, compared by make golden",
    "tolerance": f"ln MSE and ln width {accuracy.LN_TOLERANCE:g}, shares {accuracy.SHARE_TOLERANCE:g}",
}


def check_solves(write: bool, lines: int) -> bool:
    """Whether every small solve answers as recorded; with ``write`` record instead."""
    started = time.perf_counter()
    now = {name: answers.ask(call) for name, call in solves.cases().items()}
    text = answers.dump(now, ABOUT_SOLVES)
    before = json.loads(SOLVES.read_text())["cases"] if SOLVES.exists() else {}
    # What is compared is what a record would hold, rounded as there.
    changes = list(answers.moved(before, json.loads(text)["cases"]))
    seconds = time.perf_counter() - started
    moved_cases = len({change[0] for change in changes})
    print(f"{len(now)} small solves in {seconds:.0f} s: {moved_cases} moved, in {len(changes)} fields")
    show(changes, lines)
    return _settle(SOLVES, text, write, bool(changes))


def check_accuracy(write: bool, lines: int, workers: int) -> bool:
    """Whether errors, widths, coverage and flags are as recorded; with ``write`` record instead."""
    started = time.perf_counter()
    now = accuracy.measure(workers)
    before = json.loads(ACCURACY.read_text())["cases"] if ACCURACY.exists() else {}
    changes = list(accuracy.drifted(before, now))
    seconds = time.perf_counter() - started
    cases = len({change[0] for change in changes})
    print(
        f"accuracy of {len(now)} settings and families in {seconds:.0f} s: "
        f"{cases} moved, in {len(changes)} figures"
    )
    show(changes, lines)
    return _settle(ACCURACY, answers.dump(now, ABOUT_ACCURACY), write, bool(changes))


def _settle(record: Path, text: str, write: bool, moved: bool) -> bool:
    if write:
        record.write_text(text)
        print(f"recorded in {record.name}; the commit says which of these changes were meant")
    return write or not moved


def show(changes: list[tuple[str, str, Any, Any]], lines: int) -> None:
    """A table of what moved, case by case: was, is, and the difference of numbers."""
    if not changes:
        return
    rows = [("case", "what", "recorded", "now", "moved by")]
    rows += [
        (case, field, _short(before), _short(now), _difference(before, now))
        for case, field, before, now in changes[:lines]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print(
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()
        )
    if len(changes) > lines:
        print(f"  and {len(changes) - lines} more; --lines {len(changes)} shows all")


def _difference(before: Any, now: Any) -> str:
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (before, now))
    return f"{now - before:+.3g}" if numbers else ""


def _short(entry: Any) -> str:
    text = json.dumps(entry)
    return text if len(text) <= 34 else text[:31] + "..."


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("solves", "accuracy")
    parser.add_argument("kinds", nargs="*", metavar="solves|accuracy", help="what is compared (both)")
    parser.add_argument("--write", action="store_true", help="record what is answered now")
    parser.add_argument("--lines", type=int, default=40, help="how many moved fields are shown (40)")
    parser.add_argument("--workers", type=int, default=2, help="processes that measure accuracy (2)")
    read = parser.parse_args(given)
    if unknown := set(read.kinds) - set(kinds):
        parser.error(f"there are {' and '.join(kinds)}, not {', '.join(sorted(unknown))}")
    chosen = read.kinds or kinds
    print(f"lingendice of {Path(lg.__file__).parent}", flush=True)
    same = True
    if "solves" in chosen:
        same &= check_solves(read.write, read.lines)
    if "accuracy" in chosen:
        same &= check_accuracy(read.write, read.lines, read.workers)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
