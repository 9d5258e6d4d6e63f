"""Rows and verdicts of a backtest, from numbers written by hand."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from scipy.stats import binom, t

from lingendice.results.backtest import Backtest, Split
from lingendice.results.targets import Interval


def split(difference=0.0, kind="random", number=1, error=1.0):
    return Split(kind, number, 10, 10, difference, 0.0, error, math.inf, 0.95)


def of(random=(), time=(), **changes):
    rows = [split(x, "random", k) for k, x in enumerate(random, 1)]
    rows += [split(x, "time", k) for k, x in enumerate(time, 1)]
    return Backtest(
        **{"rows": tuple(rows), "gamma": 1.0, "level": 0.95, "of": "value", "pieces": "episodes"} | changes
    )


def interval(estimate, error, allowance=0.0):
    return Interval(
        estimate - 9, estimate + 9, estimate, error, 0.95, "influence", "", bias_allowance=allowance
    )


def test_variances_add_and_degrees_are_satterthwaites():
    found = Split.of(interval(5.0, 0.3), interval(4.0, 0.4), (10.0, 20.0), split="time", number=1,
                     n_fitted=11, n_held_out=21, level=0.9)  # fmt: skip
    degrees = 0.25**2 / (0.09**2 / 10 + 0.16**2 / 20)
    assert found.degrees == pytest.approx(degrees)
    half = 0.5 * t.ppf(0.95, degrees)
    assert (found.low, found.high) == pytest.approx((1.0 - half, 1.0 + half))
    assert not found.inside


def test_an_allowance_is_three_standard_deviations_without_noise_of_its_own():
    found = Split.of(interval(5.0, 0.0, 0.6), interval(4.9, 0.0), (3.0, 3.0), split="time", number=1,
                     n_fitted=4, n_held_out=4, level=0.95)  # fmt: skip
    assert found.standard_error == pytest.approx(0.2)
    assert math.isinf(found.degrees)
    assert found.inside


def test_equal_numbers_without_noise_are_inside():
    assert split(0.0, error=0.0).inside
    assert not split(1e-3, error=0.0).inside


@pytest.mark.parametrize("n", [1, 2, 5, 20, 60])
def test_splits_disagree_where_more_are_outside_than_by_chance(n):
    most = int(binom.ppf(0.95, n, 0.05))
    slightly = 1.97  # outside of 95 % alone
    for outside in range(n + 1):
        found = of([slightly] * outside + [0.0] * (n - outside))
        far = n == 1 and outside == 1  # the interval of a single split is the joint one
        assert found.agrees("random") is (outside <= most and not far), outside


def test_one_far_outside_is_enough():
    assert of([0.0] * 4 + [2.5]).agrees("random")
    assert not of([0.0] * 4 + [2.6]).agrees("random")  # 2.576 at 99 %


@pytest.mark.parametrize(
    ("random", "time", "drift", "says"),
    [
        ([0.0] * 5, [1.0] * 5, False, "No sign against the log"),
        ([0.0] * 5, [3.0] * 5, True, "Drift: earlier rows do not predict later ones"),
        ([3.0] * 5, [3.0] * 5, False, "intervals are too narrow for this log"),
        ([3.0] * 5, [0.0] * 5, False, "intervals are too narrow for this log"),
        ([], [3.0] * 5, False, 'split="random" tells which'),
        ([math.nan], [math.nan], False, "Nothing can be said of this log. 2 of 2 splits give no answer"),
    ],
)
def test_the_verdict_names_what_was_found(random, time, drift, says):
    found = of(random, time)
    assert found.drift is drift
    assert says in found.verdict


def test_the_verdict_counts():
    found = of([0.0] * 4 + [2.0], [0.0] * 3)
    assert found.verdict.startswith(
        "4 of 5 random halves and 3 of 3 later parts inside their 95 % intervals."
    )
    assert found.inside() == (7, 8)
    assert found.inside("time") == (3, 3)
    assert "Differences below 2 would mostly not be seen" in found.verdict


def test_a_split_without_an_answer_is_counted_apart():
    silent = Split.unanswered("none of its episodes ends", split="time", number=1, n_fitted=3, n_held_out=3,
                              level=0.95)  # fmt: skip
    found = of(rows=(split(), silent))
    assert found.inside() == (1, 1)
    assert silent.inside is None
    assert found.agrees("time") is None
    assert found.verdict.endswith("1 of 2 splits give no answer: none of its episodes ends.")


def test_it_is_shown_as_text_html_json_and_frames():
    found = of([0.0, 3.0], of="return")
    text = str(found)
    assert text.startswith("Backtest of the return of an episode at gamma = 1, split by episodes\n")
    assert text.count("OUTSIDE") == 1
    assert text.endswith(found.verdict)
    assert "<table" in found._repr_html_()
    assert repr(found) == "Backtest(1 of 2 splits inside)"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["rows"][1]["inside"] is False
    assert list(found.to_frame("pandas")["inside"]) == [True, False]
    assert pickle.loads(pickle.dumps(found)).verdict == found.verdict
