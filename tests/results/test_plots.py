"""Plots: they draw what the numbers say, on the axes given, and leave no trace in matplotlib."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from logs import logged_mdp

import lingendice as lg

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.figure import Figure  # noqa: E402

MDP, COUNTS = logged_mdp()


@pytest.fixture(scope="module")
def solution():
    return lg.solve(COUNTS, 0.9, policy=MDP["policy"])


@pytest.fixture(scope="module")
def comparison():
    policies = {"wanted": MDP["policy"], "as logged": MDP["behavior"], "first": [[1, 0, 0]] * 6}
    return lg.solve(COUNTS, 0.9, policy=policies)


def drawn(figure):
    """Rendering is where many mistakes of a plot show."""
    figure.canvas.draw()
    return figure


def texts(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def test_the_ratio_is_drawn_against_the_data_distribution(solution):
    (ax,) = drawn(solution.plot("ratio")).axes
    (points,) = [line for line in ax.lines if line.get_marker() == "o"]
    shown = solution.supported & (solution.tau > 0)
    np.testing.assert_allclose(points.get_xdata(), solution.data_distribution[shown])
    np.testing.assert_allclose(points.get_ydata(), solution.tau[shown])


def test_the_value_comes_first_beside_the_behavior(solution):
    titles = [ax.get_title(loc="left") for ax in drawn(solution.plot()).axes]
    assert [title.split()[0] for title in titles] == ["Value", "Ratio:", "Cells"]
    (ax,) = drawn(solution.plot("value")).axes
    assert texts(ax) == ["target", "behavior"]
    target, behavior = (container for container in ax.containers if hasattr(container, "has_xerr"))
    assert target.lines[0].get_xdata()[0] == solution.value
    low, high = solution.interval()
    ends = sorted(float(cap.get_xdata()[0]) for cap in target.lines[1])
    np.testing.assert_allclose(ends, [low, high], rtol=1e-12)
    assert behavior.lines[0].get_xdata()[0] == solution.behavior_value
    error = np.sqrt((solution.behavior_scores().rows ** 2).sum())
    ends = sorted(float(cap.get_xdata()[0]) for cap in behavior.lines[1])
    np.testing.assert_allclose(np.diff(ends), 4 * error, rtol=1e-9)


def test_the_history_is_drawn_on_request_alone():
    fitted = lg.solve(COUNTS, 0.9, policy=MDP["policy"], method="extragradient", tol=1e-6)
    assert len(fitted.history) > 1
    assert len(fitted.plot().axes) == 3
    assert len(fitted.plot("history").axes) == 1


def test_a_matrix_has_a_value_without_an_interval():
    solution = lg.solve([[0.5, 0.5], [0.2, 0.8]], reward=[1.0, 2.0])
    (ax,) = drawn(solution.plot("value")).axes
    assert texts(ax) == ["value"]
    assert ax.get_xlabel() == "no interval"
    with pytest.raises(ValueError, match="without rewards have no value"):
        lg.solve([[3, 1], [1, 1]]).plot("value")


@pytest.mark.parametrize("span", [1.0, 5.0, 40.0, 1e3, 1e9])
def test_log_ticks_can_be_read(span):
    """At least two numbers on the axis, as one writes them."""
    base = lg.solve(COUNTS, 0.9, policy=MDP["policy"])
    figure = base.plot("ratio")
    ax = figure.axes[0]
    from lingendice.results.plots import readable_log_ticks

    ax.set_ylim(0.013, 0.013 * span * 12)
    readable_log_ticks(ax.yaxis, span * 12)
    drawn(figure)
    low, high = ax.get_ylim()
    shown = [label.get_text() for label in ax.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert 2 <= len(shown) <= 8
    assert all(float(text) > 0 and "$" not in text for text in shown)


def test_cells_are_those_that_earn_most(solution):
    (ax,) = drawn(solution.plot("cells")).axes
    widths = sorted((bar.get_width() for bar in ax.patches), key=abs, reverse=True)
    earned = solution.cell_distribution * np.nan_to_num(solution.operator.reward)
    np.testing.assert_allclose(widths, sorted(earned, key=abs, reverse=True)[: len(widths)])
    assert len(widths) == 10


@pytest.mark.parametrize("way", [{"method": "gauss-seidel"}, {"ridge": 1e-6}])
def test_history_shows_a_falling_residual(way):
    rng = np.random.default_rng(2)
    matrix = (
        rng.random((400, 400)) ** 8 * (rng.random((400, 400)) < 0.05) + np.eye(400, k=1) + np.eye(400, k=-399)
    )
    solution = lg.solve(matrix, gamma=0.95, **way)
    assert len(solution.history) > 3
    assert solution.history[-1] < 1e-4 * solution.history[0]
    (ax,) = drawn(solution.plot("history")).axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), solution.history)


def test_history_of_a_saddle_point_is_its_gap():
    fitted = lg.solve(COUNTS, 0.9, policy=MDP["policy"], method="extragradient", tol=1e-6)
    (ax,) = drawn(fitted.plot("history")).axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [gap for _, gap in fitted.gap_trace if gap > 0])
    assert "gap" in ax.get_title(loc="left")


def test_a_direct_method_has_no_history_and_says_so():
    solution = lg.solve([[3, 1], [1, 1]])
    with pytest.raises(ValueError, match="direct method keeps no history"):
        solution.plot("history")
    with pytest.raises(ValueError, match="kind"):
        solution.plot("histogram")
    assert len(drawn(solution.plot()).axes) == 2


def test_several_distributions_are_drawn_too():
    (ax,) = drawn(lg.solve([[1, 0, 0], [0, 1, 1], [0, 1, 1]]).plot()).axes
    assert sorted(bar.get_width() for bar in ax.patches) == [1, 2]


def test_given_axes_are_used_and_counted(solution, comparison):
    figure = Figure()
    axes = figure.subplots(1, 4)
    assert solution.plot("ratio", ax=axes[0]) is figure
    assert comparison.plot(ax=axes[1]) is figure
    assert lg.audit(solution).plot(ax=axes[2:]) is figure
    assert all(ax.get_title(loc="left") for ax in axes)
    with pytest.raises(ValueError, match="2 panels to draw and 1 axes"):
        lg.audit(solution).plot(ax=axes[0])


def test_audit_bars_count_the_states():
    examined = lg.audit([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], gamma=0.9)
    (ax,) = drawn(examined.plot("states")).axes
    by_name = dict(zip(texts(ax), [bar.get_width() for bar in ax.patches], strict=True))
    assert by_name["no transitions out"] == examined.dangling.size == 1
    assert sum(by_name.values()) == examined.n_states
    for gamma in (0.9, 1.0):
        # 2 was never left: by way of restarts it is transient, or in the one class.
        log = {
            "state": [0, 1, 0, 1],
            "next_state": [1, 0, 2, 3],
            "terminal": [0, 0, 0, 1],
            "episode": [0] * 3 + [1],
        }
        ended = lg.audit(lg.Counts.from_transitions(**log), gamma)
        (ax,) = drawn(ended.plot("states")).axes
        by_name = dict(zip(texts(ax), [bar.get_width() for bar in ax.patches], strict=True))
        assert by_name["no transitions out"] == ended.dangling.size == 2
        assert sum(by_name.values()) == ended.n_states
    (ax,) = drawn(examined.plot("leak")).axes
    assert max(bar.get_width() for bar in ax.patches) == pytest.approx(examined.leak.max())


def test_intervals_of_policies_are_those_of_the_comparison(comparison):
    (ax,) = drawn(comparison.plot(0.9)).axes
    assert texts(ax) == [str(name) for name in comparison.ranking]
    found = comparison.interval(0.9)
    ends = sorted(x for lines in ax.collections for segment in lines.get_segments() for x in segment[:, 0])
    np.testing.assert_allclose(ends, sorted([*found.low, *found.high]))


def test_the_ridge_path_ends_at_the_average_of_the_log():
    solution = lg.solve(COUNTS, 0.9, policy=MDP["policy"], ridge=1e-4)
    path = lg.ridge_path(solution)
    assert path.chosen == solution.ridge > 0
    at = int(np.flatnonzero(path.ridges == path.chosen)[0])
    assert path.values[at] == pytest.approx(solution.value, abs=1e-6)
    exact = lg.solve(COUNTS, 0.9, policy=MDP["policy"], ridge=1e-12)
    assert path.values[0] == pytest.approx(exact.value, abs=1e-3)
    far = lg.ridge_path(solution, [1e9])
    assert far.values[-1] == pytest.approx(far.logged_average, abs=0.2)
    json.dumps(path.to_dict(), allow_nan=False)
    (ax,) = drawn(path.plot()).axes
    assert [line.get_label() for line in ax.lines] == ["value", "average of the log", "chosen"]


def test_the_ridge_path_refuses_what_it_cannot_do(solution):
    with pytest.raises(ValueError, match="positive"):
        lg.ridge_path(solution, [0.0])
    with pytest.raises(ValueError, match="reward="):
        lg.ridge_path(lg.solve([[3, 1], [1, 1]]))


def test_labels_are_no_formulas():
    states = ["$x", "a_{b}", "<b>bold</b>", "x" * 80]
    solution = lg.solve(lg.Counts.from_transitions(states, [*states[1:], states[0]]))
    (ax,) = drawn(solution.plot("cells")).axes
    assert {"$x", "a_{b}", "<b>bold</b>", "x" * 19 + "..."} == set(texts(ax))


def test_global_state_of_matplotlib_is_left_alone():
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy(); import lingendice as lg;"
        "lg.solve([[3, 1], [1, 1]]).plot(); lg.audit([[3, 1], [1, 1]]).plot();"
        "print('matplotlib.pyplot' in sys.modules, before == matplotlib.rcParams.copy())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"lingendice\[plots\]"):
        lg.solve([[3, 1], [1, 1]]).plot()


def test_notebooks_show_tables_and_pictures(solution, comparison):
    for shown in (solution, comparison, COUNTS, lg.audit(solution)):
        page = shown._repr_html_()
        assert page.startswith("<table>")
        assert page.count("<tr>") == page.count("</tr>") >= 4
    assert solution.plot("ratio")._repr_png_().startswith(b"\x89PNG")
    assert f"{solution.value:.6g}" in solution._repr_html_()


def test_tables_escape_what_comes_from_data():
    evil = "<script>alert(1)</script>"
    log = {"state": [evil, "b"], "next_state": ["b", evil], "action": [0, 1], "reward": [1, 0]}
    counts = lg.Counts.from_transitions(**log, episode=[0, 1])
    solutions = lg.solve(counts, 0.5, policy={evil: [[1, 0], [0, 1]], "other": [[0.5, 0.5]] * 2})
    for shown in (counts, solutions, solutions[evil], lg.audit(solutions[evil])):
        assert "<script" not in shown._repr_html_()


def test_intervals_without_ends_are_named():
    """Bars of infinite length are not drawn: what was left looked like a value without any error."""
    state, action = np.arange(40) % 2, np.arange(40) % 3 % 2
    counts = lg.Counts.from_transitions(state, 1 - state, action, np.ones(40), np.arange(40) // 10)
    found = lg.solve(counts, 0.9, policy={"a": [0, 1], "b": [1, 0]})
    assert np.isinf(found.interval().high).all()
    (ax,) = drawn(found["a"].plot("value")).axes
    assert "95% interval, unbounded" in ax.get_xlabel()
    (ax,) = drawn(found.plot()).axes
    assert sorted(texts(ax)) == ["unbounded: a", "unbounded: b"]
