"""Columns of the accuracy tables are the methods that their headings name."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg
from lingendice import baselines

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
pytest.importorskip("gymnasium")

from toy_text import corridor  # noqa: E402
from trust import methods  # noqa: E402

FIELDS = {"rewards": (-2.0, -1.0), "behavior": None}


def judged(gamma):
    rules = corridor()
    counts = rules.sample(6, seed=0, behavior=np.tile([0.9, 0.1], (6, 1)))
    known = FIELDS | {"counts": counts, "gamma": gamma, "target": rules.policy, "ends": True}
    known["initial"] = counts.initial_count / counts.initial_count.sum()
    return methods.Case(**{name: known.get(name) for name in methods.Case._fields})


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_plug_in_is_the_one_that_the_readme_names(gamma):
    case = judged(gamma)
    options = {"policy": case.target, "initial": case.initial}
    named = lg.solve(case.counts, gamma, ridge=0, clone=0, **options)
    assert methods.METHODS["plug-in"](case).value == named.value
    assert baselines.model_based(case.counts, gamma, **options).value == named.value
    restricted = lg.solve(case.counts, gamma, ridge=0, clone=0, ratio="state", **options)
    assert restricted.value == methods.METHODS["IPS"](case).value
    assert restricted.value != named.value  # the log misses actions: these are two methods
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`ridge=0, clone=0` is the plain plug-in" in text
    assert re.search(r"^\|.*default \| plug-in \| IPS \|", text, flags=re.MULTILINE)


def test_rows_of_state_ratios_are_not_called_plug_in():
    """The committed Taxi rows were made with ratio="state"; the table that shows them says so."""
    source = ast.parse((ROOT / "benchmarks" / "paper" / "taxi_default.py").read_text(encoding="utf-8"))
    (held,) = [
        node.value for node in source.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "METHODS"
    ]  # fmt: skip
    methods = ast.literal_eval(held)
    assert methods["IPS (state ratios)"] == {"ratio": "state", "clone": 0.0, "ridge": 0.0}
    assert "plug-in" not in methods
    sys.path.insert(0, str(ROOT / "docs"))
    import hooks

    headings = hooks.accuracy().splitlines()[0]
    assert "IPS (state ratios)" in headings
    assert "plug-in" not in headings
