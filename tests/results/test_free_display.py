"""Looking is free: what a result shows was known already, and what is asked for is shown from then on."""

from __future__ import annotations

import numpy as np
import pytest
from free_display import Computed, looked_at, nothing_is_computed
from logs import logged_mdp as kept_log
from problems import logged_mdp

import lingendice as lg
from lingendice import baselines

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
TARGET = [[0.5, 0.5]] * 6


def walk():
    rng = np.random.default_rng(0)
    state = rng.normal(size=(400, 2))
    following = 0.8 * state + rng.normal(size=(400, 2)) * 0.3
    return lg.Transitions(state, None, state[:, 0], following, episode=np.arange(400) // 20)


def results():
    counts, (mdp, kept) = logged_mdp(0).counts, kept_log()
    yield "matrix", lambda: lg.solve(np.array([[1.0, 2.0], [3.0, 4.0]]))
    yield "leak", lambda: lg.solve([[0, 2, 0], [1, 0, 3], [0, 0, 0]], 0.5, reward=[1, 2, 3])
    yield "several", lambda: lg.solve([[1, 0], [0, 1]], reward=[1, 2])
    yield "default", lambda: lg.solve(counts, 0.9, policy=TARGET)
    yield "average", lambda: lg.solve(counts, policy=TARGET)
    yield "ridge", lambda: lg.solve(counts, 0.9, policy=TARGET, ridge=1e-3)
    yield "plug-in", lambda: lg.solve(counts, 0.9, policy=TARGET, ridge=0, clone=0)
    yield "horizon", lambda: lg.solve(counts, 0.9, policy=TARGET, horizon=5)
    yield "saddle", lambda: lg.solve(counts, 0.9, policy=TARGET, method="convex")
    yield "continuous", lambda: lg.solve(walk(), 0.9, method="linear")
    yield "comparison", lambda: lg.solve(counts, 0.9, policy={"a": TARGET, "b": TARGET})
    yield "importance", lambda: baselines.step_wise(kept, 0.9, policy=mdp["policy"])
    yield "dual", lambda: baselines.dual_dice(counts, 0.9, policy=TARGET)
    yield "estimate", lambda: baselines.Estimate(1.0, 0.9, "by hand", "no note", standard_error=0.1)
    yield "audit", lambda: lg.audit(counts, policy=TARGET)


CASES = dict(results())
CHECKED = [name for name in CASES if name not in ("estimate", "audit", "several", "comparison")]


@pytest.mark.parametrize("name", CASES)
def test_looking_computes_nothing(name, monkeypatch):
    result = CASES[name]()
    with nothing_is_computed(monkeypatch):
        assert looked_at(result)


@pytest.mark.parametrize("name", CHECKED)
def test_the_guard_notices_what_computes(name, monkeypatch):
    """What must not happen while looking does happen here, and is noticed."""
    result = CASES[name]()
    with nothing_is_computed(monkeypatch), pytest.raises(Computed):
        result.diagnose()


def test_the_guard_notices_kernels(monkeypatch):
    from lingendice.kernels import resampled_chains

    with nothing_is_computed(monkeypatch), pytest.raises(Computed, match="kernel"):
        resampled_chains.reweigh()


@pytest.mark.parametrize("name", CHECKED)
def test_checks_are_shown_once_they_were_run(name, monkeypatch):
    result = CASES[name]()
    assert "not run: sol.diagnose()" in str(result)
    assert result.to_dict()["checks"] is None
    checks = result.diagnose()
    assert checks
    with nothing_is_computed(monkeypatch):
        assert result.diagnose() is checks
        assert checks[0].sentence in str(result)
        assert "not run" not in looked_at(result)
        assert [found["name"] for found in result.to_dict()["checks"]] == [check.name for check in checks]


@pytest.mark.parametrize("name", ["default", "average", "ridge", "plug-in", "importance"])
def test_intervals_are_shown_once_they_were_computed(name, monkeypatch):
    result = CASES[name]()
    assert "not computed: sol.interval()" in str(result)
    assert result.to_dict()["interval"] is None
    found = result.interval(0.9)
    with nothing_is_computed(monkeypatch):
        assert str(found) in str(result)
        assert result.to_dict()["interval"]["low"] == found.low
    assert result.interval(0.99).high > found.high
    assert "99%" in str(result)


def test_bounds_and_gap_are_shown_once_they_were_computed():
    solution = CASES["leak"]()
    assert solution.to_dict()["value_bounds"] is None
    assert solution.to_dict()["gap"] is None
    low, high = solution.value_bounds
    assert solution.to_dict()["value_bounds"] == [low, high]
    assert solution.gap == pytest.approx(0.0, abs=1e-9)
    assert solution.to_dict()["gap"] == solution.gap


def test_a_comparison_shows_its_table_once_it_was_computed(monkeypatch):
    result = CASES["comparison"]()
    assert "call table()" in str(result)
    place = result.names.index(result.table(0.9)[0]["policy"])
    _, low, high = result.interval(0.9).entry(place).rounded()
    with nothing_is_computed(monkeypatch):
        assert f"[{low}, {high}]" in str(result)
        assert "90%, simultaneous" in result._repr_html_()


def test_trust_runs_the_checks():
    solution = CASES["default"]()
    assert solution.trusted == (not solution.why_not)
    assert solution.is_checked


def test_intervals_of_episodes_are_shown_once_they_were_computed(monkeypatch):
    """print(sol) said "interval not computed" after interval(of="return")."""
    log = {"state": [0, 1, 0, 1, 0, 1], "next_state": [1, 0, 1, 1, 1, 0], "terminal": [0, 1] * 3}
    counts = lg.Counts.from_transitions(**log, reward=[1.0, 0, 2, 1, 1, 3], episode=[0, 0, 1, 1, 2, 2])
    for gamma in (0.9, 1.0):
        result = lg.solve(counts, gamma)
        assert "not computed: sol.interval(of='return')" in str(result)
        found = result.interval(0.9, of="return")
        longest = result.interval(0.9, of="length")
        with nothing_is_computed(monkeypatch):
            assert "not computed: sol.interval(" not in str(result)
            assert str(found) in str(result)
            assert str(longest) in str(result)
        of_value = result.interval(0.9)
        assert str(of_value) in str(result)
