"""Run cases and show what differs, from the root of the repository.

    python -m tests.fuzz.run                       all 20,000 cases on two processes, with progress
    python -m tests.fuzz.run --seed 7 --to 5000    5,000 other cases
    python -m tests.fuzz.run --case 1234           one case, as code to paste

A case that differs is shown by its number and as code; of several, the shortest one is printed at the end.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from . import further, library
from .cases import Case, make_case
from .compare import differences
from .oracle import Answer, Refused

CASES = 20_000
CHUNK = 100
OTHER_CASES = 1_000_000
"""Cases of one seed."""


def check(number: int, folder: Path) -> tuple[Case, library.Found, list[str]]:
    """Run one case in a folder for its files, and ask one more question about its data."""
    case = make_case(number)
    found = library.run(case, folder)
    said = differences(case, found)
    asked, more = further.ask(case)
    if more:
        found.calls += ["# and one more question:", *asked.calls]
    return case, found, said + more


def report(case: Case, found: library.Found, said: list[str]) -> str:
    """All that is needed to see a failing case again."""
    lines = [f"case {case.number}: python -m tests.fuzz.run --case {case.number}"]
    lines += [f"  differs in {text[:600]}" for text in said]
    lines += ["import numpy as np, lingendice as lg", "from scipy import sparse", *found.calls]
    lines += [f"# {case.form}", f"# expected {_plain(case.expected)}"]
    return "\n".join(lines)


def _plain(expected: Answer | Refused) -> str:
    """The oracle's answer as floats."""
    if isinstance(expected, Refused):
        return f"a ValueError: {expected}"
    shown = {}
    for name, value in vars(expected).items():
        if name == "distributions":
            value = [np.array(one, dtype=object).astype(float).tolist() for one in value]
        elif isinstance(value, np.ndarray):
            value = value.astype(float).tolist()
        elif isinstance(value, (Fraction, np.longdouble)):
            value = float(value)
        elif isinstance(value, tuple):
            value = tuple(float(bound) for bound in value)
        shown[name] = value
    return str(shown)


def check_all(numbers: range) -> list[tuple[int, list[str], str]]:
    """Number, differences and report of the cases that differ."""
    with tempfile.TemporaryDirectory() as folder:
        checked = ((number, *check(number, Path(folder))) for number in numbers)
        return [(number, said, report(case, found, said)) for number, case, found, said in checked if said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", type=int, help="show one case")
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--to", dest="stop", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0, help="other cases: numbers from seed * 1,000,000 on")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    given = parser.parse_args()
    if given.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(report(*check(given.case, Path(folder))))
        return
    first, last = (given.seed * OTHER_CASES + place for place in (given.start, given.stop))
    kinds: collections.Counter[str] = collections.Counter()
    examples: dict[str, list[int]] = {}
    started, shortest = time.perf_counter(), ""
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for done, differing in enumerate(pool.map(check_all, chunks), 1):
            for number, said, text in differing:
                for kind in {_kind(one) for one in said}:
                    kinds[kind] += 1
                    examples.setdefault(kind, []).append(number)
                if not shortest or len(text) < len(shortest):
                    shortest = text
            seconds = time.perf_counter() - started
            checked = min(done * CHUNK, last - first)
            print(
                f"{checked:,} of {last - first:,} cases, {kinds.total()} differ, {seconds:.0f} s", flush=True
            )
    for kind, numbers in examples.items():
        print(f"  {kind}: cases {numbers[:12]}")
    if shortest:
        print(f"the shortest of them:\n{shortest}")
        sys.exit(1)


def _kind(text: str) -> str:
    """ "ridge: tau" of "ridge: tau: [...]", "counts" of "counts: [...]"."""
    names = text.split(":")
    return ":".join(names[: 2 if names[0] in further.KINDS else 1])


if __name__ == "__main__":
    main()
