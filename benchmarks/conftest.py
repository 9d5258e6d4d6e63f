"""Comparisons with peers: alternating runs, medians, and the table in RESULTS.md.

A comparison never fails for being slow; its row says whether the goal was met. Rows of one run replace
those of the same name from earlier runs, so that parts of the suite can be run again by themselves.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import provenance
import pytest

HERE = Path(__file__).parent
ROWS = HERE / "results" / "ratios.json"
TABLE = HERE / "RESULTS.md"

Action = Callable[[], object]


def alternate(actions: dict[str, Action], repeats: int) -> dict[str, float]:
    """Median seconds of each action over ``repeats`` rounds; a first round to warm up is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for round_number in range(repeats + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


class Record:
    """Rows of the table, collected over a run."""

    def __init__(self) -> None:
        self.rows: dict[str, dict] = {}

    def ratio(
        self,
        name: str,
        ours: Action,
        peers: dict[str, Action],
        goal: float,
        repeats: int = 5,
        note: str = "",
        steps: dict[str, int] | None = None,
    ) -> float:
        """Record how many times faster ``ours`` is than the fastest peer.

        ``steps`` says how many steps each action takes where they differ; times are then those of one step.
        """
        medians = alternate({"lingendice": ours, **peers}, repeats)
        if steps is not None:
            medians = {who: seconds / steps[who] for who, seconds in medians.items()}
        mine = medians.pop("lingendice")
        fastest = min(medians, key=lambda peer: medians[peer])
        ratio = medians[fastest] / mine
        self.rows[name] = {
            "goal": f">= {goal:g} x {fastest}",
            "measured": f"{ratio:.2f} x",
            "met": bool(ratio >= goal),
            "seconds": {"lingendice": mine, **medians},
            "note": note,
        }
        return ratio

    def fact(self, name: str, ours: Action, note: str, repeats: int = 9) -> None:
        """Record a time that no peer can be held against."""
        seconds = alternate({"lingendice": ours}, repeats)
        self.rows[name] = {
            "goal": "no peer gets there",
            "measured": "-",
            "met": True,
            "seconds": seconds,
            "note": note,
        }

    def limit(self, name: str, value: float, at_most: float, unit: str, note: str = "") -> None:
        """Record a figure that has an upper limit."""
        self._figure(name, f"<= {at_most:g} {unit}", f"{value:.3g} {unit}", value <= at_most, note)

    def least(self, name: str, value: float, at_least: float, unit: str, note: str = "") -> None:
        """Record a figure that has a lower limit."""
        self._figure(name, f">= {at_least:g} {unit}", f"{value:.3g} {unit}", value >= at_least, note)

    def _figure(self, name: str, goal: str, measured: str, met: bool, note: str) -> None:
        self.rows[name] = {"goal": goal, "measured": measured, "met": bool(met), "seconds": {}, "note": note}


_record = Record()


@pytest.fixture
def record() -> Record:
    return _record


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _record.rows:
        return
    held = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    provenance.stamp("speed", held.values())
    for row in _record.rows.values():
        row |= {"machine": machine, "made_by": provenance.made_by("speed")}
    held.update(_record.rows)
    ROWS.parent.mkdir(exist_ok=True)
    ROWS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
    TABLE.write_text(_table(held))


def _table(rows: dict[str, dict]) -> str:
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench`. Every ratio is of medians of alternating runs in one process, everything",
        "warm unless said otherwise. Peers are given their fastest correct form.",
        "",
        "| what | goal | measured | met | seconds (medians) | note |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items()):
        times = ", ".join(f"{who} {_time(seconds)}" for who, seconds in sorted(row["seconds"].items()))
        met = "yes" if row["met"] else "**no**"
        lines.append(f"| {name} | {row['goal']} | {row['measured']} | {met} | {times} | {row['note']} |")
    machines = sorted({row["machine"] for row in rows.values()})
    return "\n".join([*lines, "", "Machine: " + "; ".join(machines) + ".", ""])


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
