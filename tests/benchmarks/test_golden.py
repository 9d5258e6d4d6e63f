"""The golden gate: what counts as moved, both ways, and that single answers are recorded whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from golden import answers, run, solves


def test_numbers_move_beyond_the_tolerance_alone():
    assert answers.agree(2.0, 2.0 * (1 + 0.9e-10))
    assert not answers.agree(2.0, 2.0 * (1 + 1.2e-10))
    assert answers.agree(0.0, 0.9e-12)
    assert not answers.agree(0.0, 1.2e-12)
    assert answers.agree("nan", "nan")
    assert not answers.agree("nan", 0.0)
    assert not answers.agree(1, True)
    assert not answers.agree("SOLVED", "STALLED")


def test_certificates_and_parallel_cases_have_tolerances_of_their_own():
    def differ(case, field, by):
        return bool(list(answers.moved({case: {field: 0.5}}, {case: {field: 0.5 + by}})))

    assert differ("chain", "value", 1e-9)
    assert not differ("chain", "residual", 1e-9)
    assert differ("chain", "residual", 1e-7)
    assert not differ("chain, threads=2", "value", 1e-8)
    assert differ("chain, threads=2", "value", 1e-6)


def test_a_moved_field_is_named_with_its_case():
    before = {"a": {"value": 1.0, "interval": {"low": 0.0, "high": 2.0}, "tau": [1.0, 2.0]}, "b": {}}
    now = {"a": {"value": 1.0, "interval": {"low": 0.1, "high": 2.0}, "tau": [1.0, 2.5]}, "c": {}}
    assert list(answers.moved(before, now)) == [
        ("a", "interval / low", 0.0, 0.1),
        ("a", "tau[1]", 2.0, 2.5),
        ("b", "(case)", "present", "absent"),
        ("c", "(case)", "absent", "present"),
    ]
    assert not list(answers.moved(before, before))
    assert [one[1] for one in answers.moved({"a": {"value": 1.0}}, {"a": {}})] == ["value"]


def test_long_arrays_are_recorded_by_sums_that_every_entry_moves():
    entries = np.arange(9.0)
    for place in range(9):
        other = entries.copy()
        other[place] += 1e-6
        assert list(answers.moved({"a": answers.plain(entries)}, {"a": answers.plain(other)}))
    assert list(answers.moved({"a": answers.plain(entries)}, {"a": answers.plain(entries[::-1])}))
    entries[2] = np.nan
    assert answers.plain(entries)["not finite"] == 3.0


def test_an_answer_is_recorded_whole_and_an_error_is_an_answer():
    found = answers.ask(lambda: lg.solve([[90, 10], [30, 70]]))
    assert found["status"] == "SOLVED"
    assert found["stationary"] == [0.75, 0.25]
    assert found["checks"]["leak"] == [True, 0.0]
    assert found["interval of stationary"]["low"][0] < 0.75 < found["interval of stationary"]["high"][0]
    assert answers.ask(lambda: lg.solve([[1, 2, 3]])) == {"raises": "ValueError"}
    text = answers.dump({"b": found, "a": {}}, {"about": "x"})
    assert list(json.loads(text)["cases"]) == ["a", "b"]


def test_names_of_solves_are_unique_and_recorded():
    named = set(solves.cases())
    assert len(named) > 500
    assert named == set(json.loads(run.SOLVES.read_text())["cases"])


def test_the_gate_fails_where_an_answer_moved_and_records_when_told(tmp_path, monkeypatch, capsys):
    weight = [1.0]
    monkeypatch.setattr(
        run.solves, "cases", lambda: {"chain": lambda: lg.solve([[weight[0], 1.0], [1.0, 0.0]])}
    )
    monkeypatch.setattr(run, "SOLVES", tmp_path / "solves.json")
    assert run.main(["solves", "--write"]) == 0
    assert run.main(["solves"]) == 0
    weight[0] = 1.0 + 1e-7
    capsys.readouterr()
    assert run.main(["solves"]) == 1
    assert "stationary[0]" in capsys.readouterr().out
    assert run.main(["solves", "--write"]) == 0
    assert run.main(["solves"]) == 0


@pytest.mark.parametrize("case", ["actions and leaks, gamma=0.999, defaults", "pagerank of pairs"])
def test_single_solves_answer_as_recorded(case):
    recorded = json.loads(run.SOLVES.read_text())["cases"][case]
    now = json.loads(json.dumps(answers.ask(solves.cases()[case])))
    assert not list(answers.moved({case: recorded}, {case: now}))
