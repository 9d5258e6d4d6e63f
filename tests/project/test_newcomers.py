"""Every short program for newcomers runs, without a warning, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "examples" / "newcomers").glob("*.py"))
PRINTED = {
    "small_mdp_csv": ("value per day 0.8", "exact 0.850"),
    "several_policies": ("text the lapsing", "more a week than email alone"),
    "graph": ("'shop': 0.368", "[0.16666667 0.33333333 0.33333333 0.16666667]"),
    "inside_a_simulator": ("30000 [", "exact [0.6 0.3 0.1]"),
    "continuous_states": ("heating earlier -1.",),
    "returns_and_horizons": ("per episode -6.2", "the first three steps -3.000"),
}


def test_every_program_is_known():
    assert [program.stem for program in PROGRAMS] == sorted(PRINTED)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_runs(program):
    pytest.importorskip({"graph": "networkx", "small_mdp_csv": "pandas"}.get(program.stem, "numpy"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error::UserWarning", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for text in PRINTED[program.stem]:
        assert text in done.stdout
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 70
