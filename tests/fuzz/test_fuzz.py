"""The library against the oracle, case by case; a failing case is shown again by its number.

``python -m tests.fuzz.run`` runs all cases on two processes, ``--case N`` shows one of them; so does
``pytest -m slow tests/fuzz``.
"""

from __future__ import annotations

import pytest

from .run import CASES, check, report

QUICK = range(300)
CHUNK = 500
SHOWN = 5


def run_cases(numbers, folder):
    failed = []
    for number in numbers:
        case, found, said = check(number, folder)
        if said:
            failed.append((number, report(case, found, said)))
    shown = "\n\n".join(text for _, text in failed[:SHOWN])
    assert not failed, f"{len(failed)} of {len(numbers)} cases differ: {[n for n, _ in failed]}\n\n{shown}"


def test_the_first_cases_agree_with_the_oracle(tmp_path):
    run_cases(QUICK, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, CASES, CHUNK))
def test_all_cases_agree_with_the_oracle(start, tmp_path):
    run_cases(range(start, start + CHUNK), tmp_path)
