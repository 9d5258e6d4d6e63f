"""Run cases and show what differs: ``python -m tests.fuzz.run --case 1234``, or ``--from 0 --to 1000``."""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from . import library
from .cases import Case, make_case
from .compare import differences
from .oracle import Answer, Refused


def check(number: int, folder: Path) -> tuple[Case, library.Found, list[str]]:
    """Run one case in a folder for its files."""
    case = make_case(number)
    found = library.run(case, folder)
    return case, found, differences(case, found)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, help="show one case")
    parser.add_argument("--from", dest="start", type=int, default=0)
    parser.add_argument("--to", dest="stop", type=int, default=1000)
    given = parser.parse_args()
    first, last = (given.case, given.case + 1) if given.case is not None else (given.start, given.stop)
    kinds: collections.Counter[str] = collections.Counter()
    examples: dict[str, list[int]] = {}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, last):
            case, found, said = check(number, Path(folder))
            if given.case is not None:
                print(report(case, found, said))
            for text in {text.partition(":")[0] for text in said}:
                kinds[text] += 1
                examples.setdefault(text, []).append(number)
    print(
        f"{last - first} cases in {time.perf_counter() - started:.1f} s; differing: {dict(kinds) or 'none'}"
    )
    for kind, numbers in examples.items():
        print(f"  {kind}: cases {numbers[:12]}")


if __name__ == "__main__":
    main()
