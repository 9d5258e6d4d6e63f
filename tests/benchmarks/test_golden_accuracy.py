"""The statistical gate: what counts as moved, how logs are summed up, and that it sees lost mass."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from golden import accuracy, run
from trust import methods

from lingendice.solvers.ridge import RidgeSystem

NAN = math.nan


def seen(setting, method, error, covered=1.0, width=0.5, failed=(), family="grids"):
    return accuracy.Seen(family, setting, method, error, covered, width, failed)


def test_errors_are_of_settings_and_shares_of_families():
    rows = [
        seen("a", "default", 0.01, failed=("leak",)), seen("a", "default", 0.03, covered=0.0, width=1.5),
        seen("b", "default", 0.01), seen("b", "default", 0.01), seen("a", "IPS", NAN, NAN, NAN, ("refused",)),
        seen("a", "IPS", 0.04, NAN, NAN), seen("a", "IPS", 0.08), seen("c", "default", 1.0, family="Taxi"),
        seen("c", "default", 3.0, family="Taxi"),
    ]  # fmt: skip
    found = accuracy.summarize(rows)
    assert found["grids: a"]["ln MSE"] == {
        "default": round(math.log(0.02), 4), "IPS": round(math.log(0.06), 4),
    }  # fmt: skip
    assert found["grids: a"]["ln median width"] == {"default": 0.0}
    shares = found["grids, share of logs"]
    assert shares["default"] == {
        "refused": 0.0, "no interval": 0.0, "flagged": 0.25, "covered": 0.75, "check: leak": 0.25,
    }  # fmt: skip
    assert shares["IPS"]["refused"] == shares["IPS"]["flagged"] == round(1 / 3, 4)
    assert shares["IPS"]["no interval"] == round(2 / 3, 4)
    assert shares["IPS"]["covered"] == 1.0
    assert found["all families, share of logs"]["default"]["flagged"] == round(1 / 6, 4)


def test_what_moves_by_more_than_is_allowed_is_named():
    before = {
        "a": {"ln MSE": {"default": -5.0, "IPS": -3.0}},
        "grids, share of logs": {"default": {"covered": 0.95, "flagged": 0.1, "check: leak": 0.04}},
    }

    def moved(case, group, **changes):
        now = json.loads(json.dumps(before))
        now[case][group] |= {name.replace("_", " "): value for name, value in changes.items()}
        return list(accuracy.drifted(before, now))

    assert not moved("a", "ln MSE", default=-5.15, IPS=-2.85)
    assert moved("a", "ln MSE", default=-4.84) == [("a", "ln MSE, default", -5.0, -4.84)]
    assert moved("a", "ln MSE", default=-5.16)  # better is to be recorded, too
    shares = "grids, share of logs"
    assert not moved(shares, "default", covered=0.9, flagged=0.15)
    assert moved(shares, "default", covered=0.89) == [(shares, "default, covered", 0.95, 0.89)]
    assert moved(shares, "default", flagged=0.04)


def test_a_check_that_is_new_or_gone_counts_as_one_that_never_failed():
    def shares(**given):
        checks = {f"check: {name}": share for name, share in given.items()}
        return {"x, share of logs": {"default": {"flagged": 0.5, **checks}}}

    assert not list(accuracy.drifted(shares(leak=0.05), shares(other=0.05)))
    assert len(list(accuracy.drifted(shares(leak=0.06), shares(other=0.05)))) == 1


def test_settings_and_methods_that_are_new_or_gone_are_named():
    one, two = {"a": {"ln MSE": {"default": -1.0}}}, {"b": {"ln MSE": {"default": -1.0}}}
    assert [change[0] for change in accuracy.drifted(one, two)] == ["a", "b"]
    without = {"a": {"ln MSE": {}}}
    assert list(accuracy.drifted(one, without)) == [("a", "ln MSE, default", -1.0, None)]


def test_every_setting_is_recorded_and_taxi_has_the_one_that_lost_mass():
    recorded = json.loads(run.ACCURACY.read_text())["cases"]
    families = {task.family for task in accuracy.tasks()} | {"all families"}
    assert {case for case in recorded if case.endswith(accuracy.SHARES)} == {
        f"{family}, {accuracy.SHARES}" for family in families
    }
    for task in accuracy.tasks():
        cases = [case for case in recorded if case.startswith(f"{task.family}: {task.name}")]
        assert cases, task
        assert all(methods.DEFAULT in recorded[case][accuracy.ERRORS] for case in cases)
    assert "Taxi: base -> trained, 200 x 50, gamma 0.999" in recorded


def test_a_setting_is_measured_as_recorded():
    """Tiny logs by themselves: their errors in a record of all of them."""
    found = accuracy.measure(workers=1, chosen=[accuracy.Task("tiny logs", "12 states, episodic")])
    recorded = json.loads(run.ACCURACY.read_text())["cases"]
    of_settings = {case: entry for case, entry in found.items() if not case.endswith(accuracy.SHARES)}
    assert len(of_settings) == 3
    assert not list(accuracy.drifted({case: recorded[case] for case in of_settings}, of_settings))


@pytest.mark.slow
def test_the_gate_is_red_where_the_ridge_lets_the_total_mass_go(monkeypatch):
    """Without a penalty on the total mass beside leaks, ln MSE on Taxi at gamma .999 rose by more than 1."""
    made = RidgeSystem.__init__

    def without_penalty(self, *given, **options):
        made(self, *given, **options)
        flow = self.flow
        if self.gamma < 1.0 and (flow.mass_offset > 0.0 or (flow.mass_weight[self.seen] > 1.0).any()):
            self.mass_weight = np.zeros_like(self.mass_weight)

    taxi = accuracy.TAXI[0]._replace(gammas=(0.999,))
    task = accuracy.Task("Taxi", f"{taxi.pair}, {taxi.trajectories} x {taxi.steps}", taxi)
    recorded = json.loads(run.ACCURACY.read_text())["cases"]
    setting = "Taxi: base -> trained, 200 x 50, gamma 0.999"
    before = {setting: recorded[setting]}

    def changes():
        return list(accuracy.drifted(before, {setting: accuracy.measure(1, [task])[setting]}))

    assert not changes()
    monkeypatch.setattr(RidgeSystem, "__init__", without_penalty)
    errors = {what: now - then for _, what, then, now in changes()}
    assert errors[f"ln MSE, {methods.DEFAULT}"] > 1.0


def test_the_command_compares_and_records_accuracy(tmp_path, monkeypatch, capsys):
    found = {"a": {"ln MSE": {"default": -5.0}}}
    monkeypatch.setattr(run.accuracy, "measure", lambda workers: found)
    monkeypatch.setattr(run, "ACCURACY", tmp_path / "accuracy.json")
    assert run.main(["accuracy", "--write"]) == 0
    assert run.main(["accuracy"]) == 0
    found["a"] = {"ln MSE": {"default": -3.6}}
    capsys.readouterr()
    assert run.main(["accuracy"]) == 1
    shown = capsys.readouterr().out.splitlines()[-1].split()
    assert shown == ["a", "ln", "MSE,", "default", "-5.0", "-3.6", "+1.4"]
    with pytest.raises(SystemExit):
        run.main(["speed"])
