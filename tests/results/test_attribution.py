"""Removal effects against exact fractions, the channels' own definition, and repeated logs."""

from __future__ import annotations

import pickle
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import lingendice as lg
from lingendice.results import attribution


def earned_by_fractions(journeys, worth, order, without=None):
    """What a journey earns in the chain of the last ``order`` channels, by elimination with fractions."""
    steps, ends = defaultdict(lambda: defaultdict(Fraction)), defaultdict(Fraction)
    for journey, value in zip(journeys, worth, strict=True):
        nodes = [tuple(journey[max(0, k - order) : k]) for k in range(len(journey) + 1)]
        nodes[0] = ("start",)
        for here, there in pairwise(nodes):
            steps[here][there] += 1
        steps[nodes[-1]]["end"] += 1
        ends[nodes[-1]] += Fraction(value)
    names = list(steps)
    place = {name: k for k, name in enumerate(names)}
    n = len(names)
    rows = [[Fraction(int(i == j)) for j in range(n)] + [Fraction(0)] for i in range(n)]
    for name in names:
        row = rows[place[name]]
        if without is not None and name != ("start",) and without in name:
            continue  # arrived there, nothing is earned
        total = sum(steps[name].values())
        row[n] = ends[name] / total
        for there, count in steps[name].items():
            if there != "end":
                row[place[there]] -= count / total
    for k in range(n):
        pivot = next(r for r in range(k, n) if rows[r][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [entry / rows[k][k] for entry in rows[k]]
        for r in range(n):
            if r != k and rows[r][k]:
                rows[r] = [a - rows[r][k] * b for a, b in zip(rows[r], rows[k], strict=True)]
    return rows[place[("start",)]][n]


def random_journeys(n, seed, n_channels=4):
    rng = np.random.default_rng(seed)
    names = np.array(list("abcdefgh")[:n_channels])
    journeys = [names[rng.integers(0, n_channels, size)].tolist() for size in rng.geometric(0.35, n)]
    chance = [0.1 + 0.5 * ("a" in journey) for journey in journeys]
    return journeys, (rng.random(n) < chance).astype(int)


def test_a_published_example():
    # Three journeys C1 > C2 > C3 > purchase, C1, C2 > C3: removal effects 1/2, 1 and 1.
    found = lg.removal_effects(["C1 > C2 > C3 > purchase", "C1", "C2 > C3"], "purchase")
    assert found.channels == ("C1", "C2", "C3")
    np.testing.assert_allclose(found.removal_effect, [0.5, 1.0, 1.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.share, [0.2, 0.4, 0.4], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.value, [0.2, 0.4, 0.4], rtol=0, atol=1e-12)
    assert found.total == found.conversions == 1.0


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factored", [True, False])
def test_effects_are_those_of_exact_fractions(order, seed, factored, monkeypatch):
    monkeypatch.setattr(attribution, "FACTORED_NODES", 2000 if factored else 0)
    journeys, flags = random_journeys(60, seed)
    worth = [int(flag) * (1 + len(journey)) for flag, journey in zip(flags, journeys, strict=True)]
    for value, worths in ((None, flags.tolist()), (np.array(worth, float), worth)):
        found = lg.removal_effects(journeys, flags, value=value, order=order)
        whole = earned_by_fractions(journeys, worths, order)
        effects = [1 - earned_by_fractions(journeys, worths, order, channel) / whole for channel in "abcd"]
        np.testing.assert_allclose(found.removal_effect, np.array(effects, float), rtol=1e-12, atol=0)
        shares = [effect / sum(effects) for effect in effects]
        np.testing.assert_allclose(found.share, np.array(shares, float), rtol=1e-12, atol=0)
        assert found.total == sum(worths)


def test_channels_without_a_conversion_have_exactly_nothing():
    found = lg.removal_effects(["a > b > buy"] * 7 + ["a > c > exit", "c > d"] * 5, ["buy"])
    by_name = dict(zip(found.channels, found.removal_effect, strict=True))
    assert by_name == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0, "exit": 0.0}
    assert (np.asarray(found.interval().low) >= 0.0).all()


def test_all_ways_to_say_the_same_agree():
    journeys, flags = random_journeys(200, 5)
    expected = lg.removal_effects(journeys, flags, order=2)
    named = [
        [*journey, "buy", "after"] if flag else journey for journey, flag in zip(journeys, flags, strict=True)
    ]
    strings = [" > ".join(journey) for journey in journeys]
    frame = pd.DataFrame({"path": strings, "sold": flags, "count": 1})
    grouped = frame.groupby("path", sort=False).sum().reset_index()
    for found in (
        lg.removal_effects(named, "buy", order=2),
        lg.removal_effects(strings, flags.astype(bool), order=2),
        lg.removal_effects(frame, "sold", order=2),
        lg.removal_effects(grouped, "sold", order=2),
        lg.removal_effects(grouped, "sold", value="sold", order=2),
    ):
        np.testing.assert_allclose(found.share, expected.share, rtol=1e-12, atol=0)
        for of in attribution.OF:
            mine, theirs = found.interval(0.9, of), expected.interval(0.9, of)
            np.testing.assert_allclose(mine.standard_error, theirs.standard_error, rtol=1e-9, atol=1e-14)
        assert (found.n_journeys, found.conversions) == (200.0, flags.sum())


def test_every_run_gives_the_same_bits_and_results_pickle():
    journeys, flags = random_journeys(500, 6)
    first, second = (lg.removal_effects(journeys, flags, order=3) for _ in range(2))
    assert first.share.tobytes() == second.share.tobytes()
    assert first.interval().low.tobytes() == second.interval().low.tobytes()
    assert pickle.loads(pickle.dumps(first)).to_dict() == first.to_dict()


@pytest.mark.parametrize("order", [1, 2])
def test_standard_errors_are_those_of_leaving_journeys_out(order):
    journeys, flags = random_journeys(400, 7)
    found = lg.removal_effects(journeys, flags, order=order)
    left_out = []
    for k in range(400):
        kept = np.arange(400) != k
        one = lg.removal_effects([journeys[j] for j in np.flatnonzero(kept)], flags[kept], order=order)
        left_out.append(one.share)
    jackknife = np.sqrt(399 / 400 * ((left_out - np.mean(left_out, axis=0)) ** 2).sum(axis=0))
    np.testing.assert_allclose(found.interval().standard_error, jackknife, rtol=0.03)


@pytest.mark.parametrize("of", attribution.OF)
def test_intervals_cover(of):
    journeys, flags = random_journeys(20_000, 8)
    worth = np.where(flags > 0, 1.0 + (np.arange(20_000) % 3), 0.0)
    truth = lg.removal_effects(journeys, flags, value=worth)
    expected = truth.removal_effect if of == "removal_effect" else truth.share
    rng, covered = np.random.default_rng(1), np.zeros(4)
    for _ in range(300):
        drawn = rng.integers(0, 20_000, 500)
        found = lg.removal_effects([journeys[j] for j in drawn], flags[drawn], value=worth[drawn])
        covered += found.interval(0.95, of).contains(expected * (found.total if of == "value" else 1.0))
    assert ((covered / 300 >= 0.91) & (covered / 300 <= 0.99)).all()


def test_a_plot_and_a_frame_show_shares_with_intervals():
    found = lg.removal_effects(*random_journeys(100, 9))
    frame = found.to_frame(0.9, library="pandas")
    assert list(frame.columns) == [
        "channel",
        "removal_effect",
        "share",
        "share_low",
        "share_high",
        "value",
        "value_low",
        "value_high",
    ]
    assert ((frame.share_low <= frame.share) & (frame.share <= frame.share_high)).all()
    (axes,) = found.plot().axes
    assert {text.get_text() for text in axes.get_yticklabels()} == set("abcd")
    assert "40 channels" not in str(found)
    assert "order 1" in str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a > b"], "buy"), "conversion='buy' is no state of the paths"),
        ((["a > buy"], [0.0, 1.0]), r"is no state of the paths|shape"),
        ((["a > b", "b > c"], [2, 0]), "path 0 converted 2 times, but it is not said how often"),
        ((["a > b", "b > c"], [0, 0]), "no journey earns anything"),
        ((["buy > a", "b > c"], "buy"), "every conversion comes without a channel"),
        ((["a > b", "b > c"], np.array([1, -1])), "conversion"),
    ],
)
def test_errors_name_the_entry_and_the_next_step(arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.removal_effects(*arguments)


def test_more_errors_of_weights_and_values():
    with pytest.raises(ValueError, match="path 1 converted 3 times but was seen 2 times"):
        lg.removal_effects(["a > b", "b > c"], [1, 3], weight=[1, 2])
    with pytest.raises(ValueError, match=r"value\[1\] is 2 but path 1 did not convert"):
        lg.removal_effects(["a > b", "b > c"], [1, 0], value=[1.0, 2.0])
    with pytest.raises(ValueError, match="of must be"):
        lg.removal_effects(["a > b", "b > c"], [1, 0]).interval(of="shares")
