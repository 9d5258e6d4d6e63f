"""What reward_range says of returns, and intervals whose ends keep to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from toy_text import Rules, corridor

import lingendice as lg
from lingendice.results.ranges import degrees_within, ends_within
from lingendice.results.targets import ValueScores

PLUG_IN = {"ridge": 0, "clone": 0, "ratio": "state_action"}
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def shop(clicks=0.02, pages=3, each_step=False):
    """Pages until a click or the last one; a click earns 1 and ends the visit, or goes on (``each_step``)."""
    rows = []
    for page in range(pages):
        last = page == pages - 1
        for layout in range(3):
            chance = clicks * (1 + layout) / 2
            rows.append((page, layout, chance, min(page + 1, pages - 1), 1.0, last or not each_step))
            rows.append((page, layout, 1.0 - chance, min(page + 1, pages - 1), 0.0, last))
    return Rules.of(rows, pages, 3, np.eye(pages)[0], np.tile([0.1, 0.2, 0.7], (pages, 1)))


@pytest.mark.parametrize(("successes", "trials"), [(1, 20), (3, 50), (19, 20), (10, 40)])
def test_shares_of_independent_trials_have_wilsons_interval(successes, trials):
    share, q = successes / trials, norm.ppf(0.975)
    error = math.sqrt(share * (1 - share) / trials)
    low, high = ends_within(share, q * error, error, 0.0, (0.0, 1.0))
    middle = (share + q**2 / (2 * trials)) / (1 + q**2 / trials)
    half = q / (1 + q**2 / trials) * math.sqrt(share * (1 - share) / trials + q**2 / (4 * trials**2))
    assert (low, high) == pytest.approx((middle - half, middle + half), rel=1e-12)
    # The same in other units, and with the limits the other way round.
    moved = ends_within(5 - 3 * share, 3 * q * error, 3 * error, 0.0, (2.0, 5.0))
    assert moved == pytest.approx((5 - 3 * high, 5 - 3 * low), rel=1e-12)


@pytest.mark.parametrize("limits", [(0.0, 1.0), (0.0, math.inf), (-math.inf, 1.0), (-2.0, 3.0)])
@pytest.mark.parametrize(("estimate", "error"), [(0.3, 0.1), (0.9, 0.02), (0.05, 0.04)])
def test_ends_are_where_the_noise_there_reaches_the_estimate(limits, estimate, error):
    least, most = limits

    def variance(theta):
        return (theta - least if least > -9 else 1.0) * (most - theta if most < 9 else 1.0)

    def beyond(theta):
        return (theta - estimate) ** 2 * variance(estimate) - (2 * error) ** 2 * variance(theta)

    low, high = ends_within(estimate, 2 * error, error, 0.0, limits)
    assert low == pytest.approx(brentq(beyond, max(least, -9.0), estimate), abs=1e-9)
    assert high == pytest.approx(brentq(beyond, estimate, min(most, 9.0)), abs=1e-9)
    wider = ends_within(estimate, 2 * error, error, 0.01, limits)
    assert wider == pytest.approx((max(low - 0.01, least), min(high + 0.01, most)), abs=1e-12)


def test_far_from_its_limits_an_interval_is_symmetric():
    low, high = ends_within(0.5, 0.02, 0.01, 0.0, (-1000.0, 1000.0))
    assert (low, high) == pytest.approx((0.48, 0.52), abs=1e-6)
    assert ends_within(0.5, 0.02, 0.01, math.inf, (0.0, 1.0)) == (0.0, 1.0)
    assert ends_within(1.0, 0.02, 0.01, 0.0, (1.0, 1.0)) == (1.0, 1.0)


def test_degrees_are_not_counted_down_for_few_positives():
    """One click of many visits: one episode is all the noise, and t would take 12.7 standard errors."""
    rows = np.full((200, 1), -0.01 / 200)
    rows[0] = 0.99 / 200
    scores = ValueScores(rows, 1.05, "", most=199.0)
    error = scores.standard_error
    assert degrees_within(scores, error, (0.0, 1.0)) == 199.0
    # Few episodes behind an estimate that is far from its limits are as few as they were.
    assert degrees_within(scores, 0.5, (0.0, 1.0)) == pytest.approx(1.05, rel=0.01)
    assert degrees_within(scores, 0.5, (-math.inf, math.inf)) == 1.05


@pytest.mark.parametrize("options", [{}, PLUG_IN, {"gamma": 0.9}, {"gamma": 0.9, **PLUG_IN}, {"horizon": 9}])
def test_a_probability_stays_a_probability(options):
    """Rewards at ends alone, in [0, 1]: returns are probabilities, their intervals, too."""
    rules, untold = shop(), 0
    for seed in range(6):
        counts = rules.sample(40, seed)
        solution = lg.solve(counts, policy=rules.policy, reward_range=(0, 1), **options)
        assert solution.range_of("return") == (0.0, 1.0)
        for of in ("return", "value"):
            found = solution.interval(of=of)
            assert 0.0 <= found.low <= found.estimate <= found.high <= 1.0
            assert found.low < found.high
            assert found.estimate == solution.estimate_of(of)
        alone = lg.solve(counts, policy=rules.policy, **options).interval(of="return")
        untold += alone.low < 0.0 or alone.high > 1.0
    assert untold > 0


def test_no_click_among_the_visits_is_not_certain_to_stay_so():
    rules = shop(1e-9)
    counts = rules.sample(50, 0)
    assert not counts.episodes.reward.any()
    target = np.full((3, 3), 1 / 3)
    solution = lg.solve(counts, policy=target, reward_range=(0, 1), **PLUG_IN)
    found = solution.interval(of="return")
    trials = solution.effective_sample_size / solution.expected_length
    q = norm.ppf(0.975)
    assert found.low == found.estimate == 0.0
    assert found.high == pytest.approx(q**2 / (trials + q**2), rel=0.1)
    assert lg.solve(counts, policy=target, **PLUG_IN).interval(of="return").high == 0.0


def test_what_a_range_says_of_a_return():
    """Of nonnegative rewards that it is not negative, of rewards of either sign nothing."""
    rules = shop(0.2, each_step=True)
    counts = rules.sample(60, 0)
    ranges = {
        (0, 1): (0.0, math.inf), (0, 5): (0.0, math.inf), (-1, 1): (-math.inf, math.inf),
    }  # fmt: skip
    for given, expected in ranges.items():
        solution = lg.solve(counts, policy=rules.policy, reward_range=given)
        assert solution.range_of("return") == expected
        assert solution.range_of("value") == given
        found = solution.interval(of="return")
        assert expected[0] <= found.low < found.high <= expected[1]
    costs = lg.solve(corridor().sample(60, 0), policy=corridor().policy, reward_range=(-2, -1))
    assert costs.range_of("return") == (-math.inf, -1.0)
    shorter = lg.solve(counts, 0.5, policy=rules.policy, reward_range=(-1, 1))
    assert shorter.range_of("return") == (-2.0, 2.0)
    first = lg.solve(counts, policy=rules.policy, reward_range=(-1, 1), horizon=3)
    assert first.range_of("return") == (-3.0, 3.0)
    assert lg.solve(counts, policy=rules.policy).range_of("return") == (-math.inf, math.inf)


def test_a_known_cost_of_a_step_leaves_the_number_of_steps_uncertain():
    """The interval of the return was cut to a single number: the cost times the estimated length."""
    rules = corridor()
    counts = rules.sample(60, 0)
    for options in ({}, PLUG_IN):
        each = lg.solve(counts, policy=rules.policy, reward=[-1.0] * 6, reward_range=(-1, -1), **options)
        found, length = each.interval(of="return"), each.interval(of="length")
        assert found.estimate == pytest.approx(-length.estimate, rel=1e-9)
        assert found.high - found.low > 0.5 * (length.high - length.low) > 0.0


def test_comparisons_keep_to_the_range():
    rules = shop()
    policies = {"bold": np.tile([0.0, 0.0, 1.0], (3, 1)), "plain": np.tile([1.0, 0.0, 0.0], (3, 1))}
    for seed in range(5):
        counts = rules.sample(40, seed)
        for options in ({}, PLUG_IN):
            found = lg.solve(counts, policy=policies, reward_range=(0, 1), **options)
            every = found.interval()
            assert (every.low >= 0.0).all()
            assert (every.high <= 1.0).all()
            gap = found.difference("bold", "plain")
            assert -1.0 <= gap.low <= gap.high <= 1.0
            for place, one in enumerate(found):
                alone = one.interval(of="return")
                assert every.high[place] - every.low[place] >= (alone.high - alone.low) * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, PLUG_IN])
@pytest.mark.parametrize("of", ["return", "value"])
def test_intervals_of_rare_clicks_cover(options, of):
    """Three clicks in 60 visits: 99 % at three quarters of the width of intervals that end below 0."""
    rules = shop()
    truth = rules.dynamic_programming(1.0)
    if of == "value":
        truth /= rules.dynamic_programming(1.0, reward=np.ones(rules.reward.size))
    held, widths = [], []
    for seed in range(200):
        counts = rules.sample(60, seed)
        told = lg.solve(counts, policy=rules.policy, reward_range=(0, 1), **options).interval(of=of)
        untold = lg.solve(counts, policy=rules.policy, **options).interval(of=of)
        held.append(told.contains(truth))
        widths.append((told.high - told.low, untold.high - untold.low))
    assert np.mean(held) >= 0.93
    told, untold = np.median(widths, axis=0)
    assert told < 0.85 * untold
