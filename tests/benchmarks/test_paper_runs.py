"""Runs of the paper's experiments that go on from earlier ones: what they keep, say and compute."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
for folder in (BENCHMARKS / "paper", BENCHMARKS):
    sys.path.insert(0, str(folder))

import provenance  # noqa: E402
import reporting  # noqa: E402
import taxi  # noqa: E402
import taxi_default  # noqa: E402

# The folder benchmarks/control has the script's name.
spec = importlib.util.spec_from_file_location("paper_control", BENCHMARKS / "paper" / "control.py")
control = importlib.util.module_from_spec(spec)
spec.loader.exec_module(control)

GRID = [(50, 50, 0.9, 0.0), (50, 50, 0.9, 0.33), (50, 100, 0.9, 0.0)]


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Three settings with answers that say how often a setting was computed."""
    computed = []

    def judge(target, base, setting, seeds):
        computed.append(setting)
        steps, trajectories, gamma, alpha = setting
        cell = {
            "ln_mse": -float(len(computed)),
            "ln_mse_se": 0.1,
            "mean_ln_se": 0.0,
            "sd_ln_se": 0.0,
            "refused": 0,
        }
        return {
            "steps": steps, "trajectories": trajectories, "gamma": gamma, "alpha": alpha, "truth": 1.0,
            "ln_efficiency_bound": -9.0, "methods": {"default": cell}, "seconds": 0.0,
        }  # fmt: skip

    monkeypatch.setattr(reporting, "RESULTS", tmp_path)
    monkeypatch.setattr(taxi, "RESULTS", tmp_path)
    monkeypatch.setattr(taxi, "judge", judge)
    monkeypatch.setattr(taxi, "draw", lambda done, name: None)
    policies = np.full((2, 2), 0.5), np.full((2, 2), 0.5), "here"
    monkeypatch.setattr(taxi, "read_policies", lambda folder: policies)
    monkeypatch.setattr(taxi, "settings", lambda quick: GRID)

    def run(*given):
        computed.clear()
        monkeypatch.setattr(sys, "argv", ["taxi.py", *given])
        taxi.main()
        return list(computed), json.loads((tmp_path / "taxi.json").read_text())["settings"]

    return tmp_path, run


@pytest.mark.filterwarnings("default")
def test_a_grid_keeps_what_is_there_and_says_what_other_code_made(grid, capsys):
    folder, run = grid
    computed, rows = run()
    assert computed == GRID == [taxi.setting_of(row) for row in rows]
    assert all(provenance.is_ours(row, "taxi") for row in rows)
    assert "taxi: 0 settings kept, 3 to compute\n" in capsys.readouterr().out
    assert run()[0] == []
    assert "taxi: 3 settings kept, 0 to compute\n" in capsys.readouterr().out
    assert run("--fresh")[0] == []  # this very code has made them

    found = json.loads((folder / "taxi.json").read_text())
    found["settings"][1]["made_by"]["code"] = "other"
    del found["settings"][2]["made_by"]
    (folder / "taxi.json").write_text(json.dumps(found))
    capsys.readouterr()
    computed, rows = run()
    assert computed == []
    said = (
        "taxi: 3 settings kept, 0 to compute; 2 of those kept were made by other code: FRESH=1 computes them"
    )
    assert said in capsys.readouterr().out
    assert rows[2]["made_by"]["code"] is None  # the mark of what had none, before its file is written again
    computed, rows = run("--fresh")
    assert "taxi: 1 settings kept, 2 to compute\n" in capsys.readouterr().out
    assert computed == GRID[1:]
    assert [taxi.setting_of(row) for row in rows] == GRID
    assert all(provenance.is_ours(row, "taxi") for row in rows)


@pytest.mark.filterwarnings("default")
def test_a_run_that_is_over_time_keeps_old_rows(grid):
    folder, run = grid
    run()
    found = json.loads((folder / "taxi.json").read_text())
    for row in found["settings"]:
        row["made_by"]["code"] = "other"
    (folder / "taxi.json").write_text(json.dumps(found))
    computed, rows = run("--fresh", "--minutes", "-1")
    assert computed == []
    assert len(rows) == 3


def test_blocks_of_seeds_are_put_together_in_order(monkeypatch):
    target, base, _ = taxi_default.policies()
    behaviors = dict.fromkeys({setting[0] for setting in taxi_default.SETTINGS}, base)

    monkeypatch.setattr(taxi_default, "SETTINGS", taxi_default.SETTINGS[:1])
    monkeypatch.setattr(taxi_default, "BLOCK", 2)
    one = list(taxi_default.over_seeds(target, behaviors, range(3), workers=1))
    name, episodes, steps, gamma, _ = taxi_default.SETTINGS[0]
    assert len(one) == 1
    assert one[0] == [
        taxi_default.estimates(target, behaviors[name], episodes, steps, gamma, seed) for seed in range(3)
    ]


@pytest.fixture
def lines(tmp_path, monkeypatch):
    path = tmp_path / "control_runs.jsonl.gz"
    monkeypatch.setattr(control, "FILE", path)
    cases = [f"{setting.key} {control.FIRST_SEED}" for setting in control.CENTRAL]

    def write(entries):
        path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in entries).encode()))

    write([{"case": cases[0], "values": {"default": 1.0}}, {"case": cases[1], "values": {"default": 2.0}}])
    done = []
    monkeypatch.setattr(control, "run", lambda work, deadline, threads: done.extend(work))
    monkeypatch.setattr(control, "report", lambda: None)
    monkeypatch.setattr(control.control_truth, "complete", lambda *given: None)

    def start(*given):
        done.clear()
        monkeypatch.setattr(sys, "argv", ["control.py", "--logs", "1", *given])
        control.main()
        return list(done)

    return path, cases, write, start


def test_control_logs_are_kept_stamped_and_computed_anew_where_asked(lines, capsys):
    path, cases, write, start = lines
    missing = len(control.CENTRAL) - 2
    assert len(start()) == missing
    out = capsys.readouterr().out
    assert f"control: 2 parts of logs kept, {missing} to compute; 2 of those kept were made by other" in out
    stamped = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [one["made_by"]["code"] for one in stamped] == [None, None]
    assert len(start("--fresh")) == len(control.CENTRAL)
    assert "control: 0 parts of logs kept" in capsys.readouterr().out
    anew = {"case": cases[0], "values": {"default": 3.0}, "made_by": provenance.made_by("control")}
    write([*stamped, anew])
    assert control.read()[cases[0]]["values"] == {"default": 3.0}
    assert len(start("--fresh")) == len(control.CENTRAL) - 1
    assert len(start()) == missing
    assert "2 parts of logs kept" in capsys.readouterr().out
