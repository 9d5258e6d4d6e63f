"""Checks, plots and report of results over continuous states."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import lingendice as lg
from lingendice.continuous.outcome import Evidence, Progress, ValueEstimate

pytest.importorskip("matplotlib")


def walk(n=400, seed=0):
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(n, 2))
    following = 0.8 * state + rng.normal(size=(n, 2)) * 0.3
    return lg.Transitions(state, None, state[:, 0], following, episode=np.arange(n) // 20)


@pytest.fixture(scope="module")
def linear():
    return lg.solve(walk(), 0.9, method="linear")


@pytest.fixture(scope="module")
def trained(linear):
    """Two members with known ratios and a history, as training leaves them."""
    members = np.stack([np.full(400, 1.0), 1.0 + np.tanh(linear.transitions.reward)])
    history = tuple(
        tuple(Progress(step, 0.1 * step, 1.0, 1.0 / step) for step in (10, 20, 40)) for _ in range(2)
    )
    return dataclasses.replace(
        linear, method="gendice", members=members, tau=members.mean(axis=0), history=history
    )


def with_ratio(solution, tau):
    return dataclasses.replace(solution, tau=tau, members=tau[None])


def verdicts(solution):
    return {check.name: check for check in lg.diagnose(solution)}


def test_every_check_can_fail_and_names_its_remedy(linear, trained):
    assert verdicts(with_ratio(linear, np.full(400, 1.9)))["mean ratio"].ok
    for mass in (0.4, 2.5, 0.0):
        off = verdicts(with_ratio(linear, np.full(400, mass)))["mean ratio"]
        assert not off.ok
        assert off.number == (max(mass, 1 / mass) if mass else np.inf)
        assert "auto" in off.remedy
    one_row = np.zeros(400)
    one_row[7] = 400.0
    alone = verdicts(with_ratio(linear, one_row))
    assert alone["effective sample size"].number == pytest.approx(1 / 400)
    assert not alone["effective sample size"].ok
    assert not alone["concentration"].ok
    assert alone["shift from behavior"].number == pytest.approx(399 / 400)
    stuck = verdicts(with_ratio(linear, np.ones(400)))["shift from behavior"]
    assert not stuck.ok
    assert f"{linear.transitions.reward.mean():.4g}" in stuck.sentence
    torn = verdicts(trained)["agreement"]
    assert torn.number == pytest.approx(trained.spread / linear.transitions.reward.std())
    assert not torn.ok
    rising = tuple(tuple(Progress(step, 0.0, 1.0, 0.2 * step) for step in (1, 10, 50)) for _ in range(2))
    worse = verdicts(dataclasses.replace(trained, history=rising))["held-out residual"]
    assert worse.number == pytest.approx(50.0)
    assert not worse.ok
    assert verdicts(trained)["held-out residual"].ok


def test_printing_shows_the_checks(linear):
    off = with_ratio(linear, np.full(400, 2.3))
    off.diagnose()
    text = str(off)
    assert "!!  the ratio's mean over the data is 2.3000" in text
    assert 'take method="auto"' in text
    assert "<table>" in linear._repr_html_()


def test_pictures_show_the_numbers(trained):
    (ratio,) = trained.plot("ratio").axes
    assert sum(bar.get_height() for bar in ratio.patches) == 400
    (weight,) = trained.plot("weight").axes
    share = weight.lines[0]
    heaviest = np.sort(trained.tau)[::-1]
    place = np.searchsorted(share.get_xdata(), 0.5)
    rows = round(share.get_xdata()[place] * 400)
    assert share.get_ydata()[place] == pytest.approx(heaviest[:rows].sum() / heaviest.sum())
    (value,) = trained.plot("value").axes
    np.testing.assert_allclose(value.lines[0].get_ydata(), [1.0, 2.0, 4.0])
    (residual,) = trained.plot("residual").axes
    np.testing.assert_allclose(residual.lines[1].get_ydata(), [0.1, 0.05, 0.025])
    whole = trained.plot()
    whole.canvas.draw()
    assert len(whole.axes) == 2  # histories are drawn on request


def test_what_cannot_be_drawn_is_named(linear):
    assert len(linear.plot().axes) == 2
    with pytest.raises(ValueError, match="choose from 'ratio', 'weight'"):
        linear.plot("value")
    with pytest.raises(ValueError, match="kind"):
        linear.plot("cells")


def test_the_report_says_what_the_solution_says(trained, linear, tmp_path):
    path = lg.report(trained, tmp_path / "page.html", source="<log>", call="made by hand")
    assert path == tmp_path / "page.html"
    page = path.read_text(encoding="utf-8")
    assert f"{trained.value:.6g}" in page
    assert "No interval is given" in page
    assert "&lt;log&gt;" in page
    assert "made by hand" in page
    assert page.count("<svg") == 4
    for check in lg.diagnose(trained):
        assert check.name in page
    assert "method=&#x27;linear&#x27;" in lg.report(linear, plots=False)
    assert "<svg" not in lg.report(linear, plots=False)


# -- opinions -----------------------------------------------------------------------------------------------


def with_opinions(solution, **values):
    """The value by several methods, five episodes and a standard error of .1."""
    scores = 0.1 * np.array([-1.0, 1.0, -1.0, 1.0, 0.0]) * np.sqrt(5.0)
    estimates = tuple(ValueEstimate(name, value, 0.1, 0.0) for name, value in values.items())
    headline = next(iter(values))
    evidence = Evidence(estimates, headline, np.full(3, values[headline]), scores, scores)
    return dataclasses.replace(solution, evidence=evidence)


def test_an_interval_names_the_opinions_outside_of_it(linear):
    # Without a spread of members and with DR at the model the half-width is t(4) * .1 = .28.
    agreed = with_opinions(linear, model=1.0, DR=1.0, FQE=1.27, naive=9.0).interval()
    assert (agreed.low, agreed.high) == pytest.approx((0.722, 1.278), abs=1e-3)
    assert "outside" not in agreed.note
    apart = with_opinions(linear, model=1.0, DR=1.0, FQE=-0.42, naive=9.0).interval()
    assert apart.note.endswith("; outside of it: FQE says -0.42")
    assert (apart.low, apart.high) == (agreed.low, agreed.high)
    replaced = with_opinions(linear, FQE=1.0, DR=1.0, model=2.0)
    assert replaced.interval().note.endswith("; outside of it: model says 2")
    assert "outside" not in replaced.interval(0.99999).note
