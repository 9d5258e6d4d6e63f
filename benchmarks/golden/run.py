"""Compare what the library answers with what is recorded beside this file, or record it.

    python benchmarks/golden/run.py [solves] [--write] [--lines 40]

``solves``: some 800 small solves over all options, compared to 1e-10. Ends with 1 where anything moved, after
a table of what did. ``--write`` records instead: the commit that rewrites a record says what was meant.
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
from golden import answers, solves

HERE = Path(__file__).resolve().parent
SOLVES = HERE / "solves.json"
ABOUT_SOLVES = {
    "about": "what small solves answer; made by make golden-write, compared by make golden",
    "tolerance": f"|a - b| <= {answers.RELATIVE} max(|a|, |b|) + {answers.ABSOLUTE}; nan equals nan; "
    f"residuals, errors and gaps {answers.CERTIFICATE}; cases of two threads {answers.PARALLEL}",
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
    if write:
        SOLVES.write_text(text)
        print(f"recorded in {SOLVES.name}; the commit says which of these changes were meant")
    return write or not changes


def show(changes: list[tuple[str, str, Any, Any]], lines: int) -> None:
    """A table of what moved, case by case."""
    if not changes:
        return
    rows = [(case, field, _short(before), _short(now)) for case, field, before, now in changes[:lines]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print(
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()
        )
    if len(changes) > lines:
        print(f"  and {len(changes) - lines} more; --lines {len(changes)} shows all")


def _short(entry: Any) -> str:
    text = json.dumps(entry)
    return text if len(text) <= 34 else text[:31] + "..."


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="record what is answered now")
    parser.add_argument("--lines", type=int, default=40, help="how many moved fields are shown (40)")
    read = parser.parse_args(given)
    print(f"lingendice of {Path(lg.__file__).parent}")
    return 0 if check_solves(read.write, read.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
