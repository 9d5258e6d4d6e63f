"""Policies whose episodes differ in length: the return of an episode ranks them, and is shown first."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from toy_text import Rules, corridor

import lingendice as lg
from lingendice.report.build import verdict

PLUG_IN = {"ridge": 0, "clone": 0, "ratio": "state_action"}
QUICK, CAREFUL = np.tile([0.9, 0.1], (4, 1)), np.tile([0.1, 0.9], (4, 1))
POLICIES = {"quick": QUICK, "careful": CAREFUL, "between": np.full((4, 2), 0.5)}
QUANTITIES = ("return", "value", "length")
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def ward():
    """Quick discharge of the ill kills, and care takes long: .76 in 2.5 steps, .90 in 6.1."""
    rows = []
    for s in range(4):
        survives = 0.95 - 0.1 * s
        rows += [(s, 0, 0.45 * survives, s, 1.0, True), (s, 0, 0.45 * (1.0 - survives), s, 0.0, True)]
        rows.append((s, 0, 0.55, s, 0.0, False))
        better = (s, 1, 0.5, s, 1.0, True) if s == 0 else (s, 1, 0.5, s - 1, 0.0, False)
        rows += [better, (s, 1, 0.1, min(s + 1, 3), 0.0, False)]
        rows += [(s, 1, 0.01, s, 0.0, True), (s, 1, 0.39, s, 0.0, False)]
    return Rules.of(rows, 4, 2, np.array([0.0, 0.0, 1.0, 0.0]), QUICK)


@cache
def short_log(seed, n_episodes=150):
    return ward().sample(n_episodes, seed)


@cache
def truth(of, gamma=1.0):
    """By dynamic programming; of the uniform behavior, too."""
    rules = ward()
    reward = np.ones(rules.reward.size) if of == "length" else None
    found = {}
    for name, policy in {**POLICIES, "behavior": np.full((4, 2), 0.5)}.items():
        own = rules._replace(policy=policy)
        found[name] = own.dynamic_programming(gamma, reward=reward)
        if of == "value":
            steps = own.dynamic_programming(1.0, reward=np.ones(rules.reward.size))
            found[name] = found[name] / steps if gamma == 1.0 else found[name] * (1.0 - gamma)
    return found


def compared(seed=0, gamma=1.0, n_episodes=150, **options):
    return lg.solve(short_log(seed, n_episodes), gamma, policy=POLICIES, **options)


@pytest.mark.parametrize("options", [{}, PLUG_IN])
def test_the_best_policy_is_that_of_the_largest_return(options):
    """Per step the quick policy earns more than twice as much, and it was called the best."""
    found = compared(n_episodes=1000, **options)
    assert found.of == "return"
    assert found.best == "careful"
    assert found.ranking == ("careful", "between", "quick")
    assert found.probability_best["careful"] > 0.95
    assert found.contenders() == ("careful",)
    assert found.by("value").ranking == ("quick", "between", "careful")
    assert found.contenders(of="value") == ("quick",)
    assert found.by("length").best == "careful"
    assert found.difference("careful", "quick").low > 0.0
    assert found.difference("careful", "quick", of="value").high < 0.0
    assert "by return" in str(found)
    assert str(found).splitlines()[1].split()[:2] == ["policy", "return"]
    assert "careful earns more than the logged behavior by" in verdict(found, 0.95)
    assert "per episode" in verdict(found, 0.95)


def test_an_episode_of_three_is_worth_more_than_one_of_two():
    """Best policy: short, it said, for 2 per episode in one step beside 3 in three."""
    rows = []
    for episode in range(200):
        short = episode % 2
        steps = [(0, 1, 2.0)] if short else [(0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0)]
        rows += [
            (state, action, reward, episode, place == len(steps) - 1)
            for place, (state, action, reward) in enumerate(steps)
        ]
    state, action, reward, episode, end = map(np.array, zip(*rows, strict=True))
    counts = lg.Counts.from_transitions(
        state, np.minimum(state + 1, 2), action=action, reward=reward, episode=episode, terminal=end
    )
    short, long = np.eye(2)[[1, 0, 0]], np.eye(2)[[0, 0, 0]]
    found = lg.solve(counts, policy={"short": short, "long": long}, **PLUG_IN)
    assert (found.best, found.by("value").best) == ("long", "short")
    np.testing.assert_allclose(found.returns, [2.0, 3.0], rtol=1e-12)
    np.testing.assert_allclose(found.values, [2.0, 1.0], rtol=1e-12)
    np.testing.assert_allclose(found.lengths, [1.0, 3.0], rtol=1e-12)
    assert "short" not in verdict(found, 0.95).split(";")[0]


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_estimates_are_those_of_dynamic_programming(gamma):
    rules = ward()
    found = lg.solve(rules.counts, gamma, policy=POLICIES, initial=rules.initial, **PLUG_IN)
    assert found.of == "return"
    for of in QUANTITIES:
        expected = truth(of, gamma)
        np.testing.assert_allclose(found.by(of).estimates, [expected[name] for name in POLICIES], rtol=1e-9)
        if of != "value" or gamma < 1.0:  # that of a log is its mean: here every cell is logged once
            assert found.by(of).behavior_estimate == pytest.approx(expected["behavior"], rel=1e-9)
    np.testing.assert_array_equal(found.estimates, found.returns)


def test_every_answer_takes_the_quantity_and_says_which():
    found = compared(n_episodes=400)
    for of in QUANTITIES:
        own = found.by(of)
        assert own.of == of
        assert found.by(of) is own
        assert own.by(of) is own
        one, same = found.interval(0.9, of=of), own.interval(0.9)
        np.testing.assert_array_equal(one.low, same.low)
        assert one.note.startswith({"value": "simultaneous"}.get(of, of))
        gap = found.difference("careful", "quick", of=of)
        expected = own.estimates[1] - own.estimates[0]
        assert gap.estimate == pytest.approx(expected, rel=1e-12)
        (row,) = [row for row in found.differences(of=of) if row["policy"] == "quick"]
        behind = own.difference("quick", own.best)
        assert row["to_best"] is None or row["to_best"].estimate == pytest.approx(behind.estimate, rel=1e-12)
        table = {row["policy"]: row for row in found.table(of=of)}
        assert table["quick"][of] == own.estimates[0]
        assert {other for other in QUANTITIES if other in table["quick"]} == set(QUANTITIES)
        assert list(found.to_frame("pandas", of=of).columns[:4]) == ["policy", of, "low", "high"]
    assert found.to_dict()["of"] == "return"
    assert found.to_dict()["returns"] == found.returns.tolist()
    with pytest.raises(ValueError, match="of"):
        found.interval(of="stationary")


def test_without_ends_policies_are_compared_per_step():
    rng = np.random.default_rng(0)
    state, action = rng.integers(4, size=2000), rng.integers(2, size=2000)
    counts = lg.Counts.from_transitions(state[:-1], state[1:], action=action[:-1], reward=state[1:] * 1.0)
    found = lg.solve(counts, policy=POLICIES)
    assert found.of == "value"
    assert [name for name in QUANTITIES if name in found.table()[0]] == ["value"]
    assert found.interval().note.startswith("simultaneous")
    with pytest.raises(ValueError, match="no policy has a return"):
        found.interval(of="return")
    solution = found["quick"]
    assert solution.headline_of == "value"
    assert "return" not in str(solution).replace("returns", "")


@pytest.mark.parametrize("of", ["return", "length"])
def test_the_behavior_is_the_mean_over_its_episodes(of):
    counts = short_log(5)
    solution = lg.solve(counts, policy=QUICK)
    episodes = counts.episodes
    earned = np.bincount(episodes.episode, weights=episodes.reward if of == "return" else None)
    assert solution.behavior_estimate(of) == pytest.approx(earned.mean(), rel=1e-12)
    error = earned.std(ddof=1) / np.sqrt(earned.size)
    assert solution.behavior_scores(of).standard_error == pytest.approx(error, rel=1e-9)
    assert solution.behavior_note(of) == "mean over the logged episodes"
    # Where ends are all logged the logged chain's return is the same.
    assert solution._behavior.estimate_of(of) == pytest.approx(earned.mean(), rel=1e-9)


def test_the_behavior_of_episodes_that_were_cut_off_is_the_logged_chain():
    """The mean of what was earned before the cut would be two thirds of the return."""
    rules, found = ward(), []
    for seed in range(40):
        counts = rules.sample(200, seed, longest=4)
        solution = lg.solve(counts, policy=QUICK, **PLUG_IN)
        assert solution.behavior_note("return").startswith("of the logged chain")
        found.append(solution.behavior_return)
        error = solution.behavior_scores("return").standard_error
    assert np.mean(found) == pytest.approx(truth("return")["behavior"], rel=0.05)
    assert error == pytest.approx(np.std(found, ddof=1), rel=0.5)


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("options", [{}, PLUG_IN])
def test_standard_errors_of_differences_are_those_of_new_logs(options, of):
    found = [compared(seed, **options) for seed in range(100)]
    for pair in (("careful", "quick"), ("quick", "behavior")):
        told = [one.difference(*pair, of=of) for one in found]
        spread = np.std([one.estimate for one in told], ddof=1)
        closed = np.sqrt(np.mean([one.standard_error**2 for one in told]))
        assert closed == pytest.approx(spread, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("options", [{}, PLUG_IN])
def test_paired_and_simultaneous_intervals_cover(options, of):
    """Of the plug-in at the nominal level; the default allows for bias, and covers more."""
    expected, logs = truth(of), 300
    single, pair, over = [], [], []
    for seed in range(logs):
        found = compared(seed, n_episodes=300 if options else 60, **options)
        every = found.interval(of=of)
        single.append(every.contains(np.array([expected[name] for name in POLICIES])).all())
        gap = expected["careful"] - expected["quick"]
        pair.append(found.difference("careful", "quick", of=of).contains(gap))
        over.append(
            all(
                row["over_behavior"].contains(expected[row["policy"]] - expected["behavior"])
                for row in found.differences(of=of)
            )
        )
    for held in (single, pair, over):
        assert np.mean(held) >= 0.91
    if options:
        assert np.mean(pair) <= 0.99


def test_print_shows_the_headline_first_and_its_interval():
    counts = corridor().sample(80, 0)
    for gamma in (0.9, 1.0):
        solution = lg.solve(counts, gamma, policy=corridor().policy)
        assert solution.headline_of == "return"
        shown = str(solution)
        assert shown.index("\nreturn ") < shown.index("\nvalue per step")
        assert ("\nlength " in shown) == (gamma == 1.0)
        per_step, found = solution.interval(), solution.interval(of="return")
        shown = str(solution)
        assert f"\ninterval               {found}" in shown
        assert f"\nvalue's interval       {per_step}" in shown
        told = solution.to_dict()
        assert told["headline"] == "return"
        assert told["return_interval"]["low"] == found.low
        assert told["interval"]["low"] == per_step.low
