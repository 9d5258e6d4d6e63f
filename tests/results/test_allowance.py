"""Intervals with a bias allowance: against loops over raw transitions, closed forms, and degenerate logs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logs import A, S, count, exact, random_mdp, walk
from scipy.stats import foldnorm, norm
from scipy.stats import t as student
from shrinkage_by_hand import FEW, ByHand, deterministic_log, few_actions, small_log

import lingendice as lg
from lingendice.model.compose import Choices
from lingendice.results.allowance import (
    allowed_interval,
    half_width,
    never_seen,
    value_scores,
)
from lingendice.results.trust_checks import trust_checks, trust_notes
from lingendice.solvers.shrinkage import shrink

# Rows out of order are among what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")


def checks_of(found):
    return {check.name: check for check in trust_checks(found)}


@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("ending", [0.0, 0.15])
def test_it_is_what_loops_over_transitions_give(gamma, ending):
    mdp = few_actions(random_mdp())
    log = walk(mdp, **FEW, seed=1, ending=ending)
    expected = ByHand(log, mdp["policy"], gamma)
    found = allowed_interval(shrink(count(log), Choices(gamma=gamma, policy=mdp["policy"])))
    assert found.interval.standard_error == pytest.approx(expected.se, rel=1e-4)
    assert found.allowance.fill == pytest.approx(expected.fill, rel=1e-4)
    assert found.allowance.fill > 0
    assert found.allowance.outcomes == pytest.approx(expected.outcomes, rel=1e-4)
    assert found.half_width == pytest.approx(expected.half, rel=1e-4)
    assert found.interval.high - found.interval.estimate == pytest.approx(found.half_width)


def test_outcomes_seen_once_stand_for_those_never_seen():
    """A wheel of 30 rare prizes and a frequent blank: what missing prizes are worth, on average over logs."""
    chance = np.append(np.full(30, 0.01), 0.7)
    prize = np.append(np.linspace(1.0, 5.0, 30), 0.0)
    places, gamma, n = chance.size + 1, 0.5, 60
    rng = np.random.default_rng(0)
    missing, allowed = [], []
    for _ in range(300):
        turn = rng.choice(chance.size, size=n, p=chance)
        state, after = np.zeros(2 * n, dtype=int), np.zeros(2 * n, dtype=int)
        state[1::2], after[::2] = turn + 1, turn + 1
        reward = np.zeros(2 * n)
        reward[::2] = prize[turn]
        counts = lg.Counts.from_transitions(
            state, after, action=np.zeros(2 * n, int), reward=reward, n_states=places, n_actions=1
        )
        start = Choices(gamma=gamma, policy=np.ones((places, 1)), initial=np.eye(places)[0])
        found = shrink(counts, start)
        allowance = allowed_interval(found).allowance
        rule_of_three = 3.0 * allowance.span / allowance.effective_sample
        allowed.append(allowance.outcomes - rule_of_three)
        gone = np.bincount(turn, minlength=chance.size) == 0
        # Every prize is followed by the same return to the wheel: only the reward differs.
        missing.append(found.state_distribution[0] * chance[gone] @ (prize[gone] - chance @ prize))
    assert np.mean(missing) > 0.1
    assert np.mean(allowed) == pytest.approx(np.mean(missing), rel=0.05)


def test_of_many_outcomes_seen_once_three_standard_deviations_are_allowed_for():
    assert never_seen(np.array([])) == 0.0
    assert never_seen(np.array([0.2, -0.5])) == pytest.approx(0.3)
    assert never_seen(np.full(9, 0.1)) == pytest.approx(0.9)
    assert never_seen(np.full(100, -0.1)) == pytest.approx(3.0)


@given(st.floats(0, 30), st.floats(0.5, 0.999), st.floats(0.1, 10))
def test_half_widths_of_gaussian_noise_are_scipys(shift, level, error):
    expected = shift + norm.ppf(level) if shift > 8 else foldnorm.ppf(level, shift)
    assert half_width(error, shift * error, level, math.inf) == pytest.approx(error * expected, rel=1e-6)


@given(st.floats(0, 30), st.floats(0.05, 0.999), st.floats(1, 60))
def test_half_widths_hold_students_noise_beside_the_bias(shift, level, degrees):
    """P(|bias + error T| <= half) = level: the bias is not multiplied by the quantile of few episodes."""
    half = half_width(2.0, 2.0 * shift, level, degrees) / 2.0
    assert student.cdf(half - shift, degrees) - student.cdf(-half - shift, degrees) == pytest.approx(level)
    assert half <= shift + student.ppf(0.5 + level / 2.0, degrees) * (1 + 1e-9)


def test_half_widths_between_noise_and_bias():
    assert half_width(0.0, 0.3, 0.95, math.inf) == 0.3
    assert half_width(1.0, 0.0, 0.95, math.inf) == pytest.approx(1.959964, rel=1e-6)
    assert half_width(1.0, 0.0, 0.95, 4) == pytest.approx(2.776445, rel=1e-6)
    widths = [half_width(1.0, bias, 0.95, math.inf) for bias in (0, 0.1, 1, 3, 10, 100)]
    assert widths == sorted(widths)
    assert widths[-1] == pytest.approx(100 + 1.644854, rel=1e-6)
    assert half_width(1e-300, 5.0, 0.95, 1) == pytest.approx(5.0)
    assert half_width(1.0, 1e12, 0.95, 3) - 1e12 == pytest.approx(2.353363, abs=1e-3)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_without_kept_episodes_transitions_stand_alone(gamma):
    """Averaged over logs the clustered and the unclustered standard error agree: a chain forgets."""
    mdp = random_mdp()
    ratios = []
    for seed in range(8):
        log = walk(mdp, 40, 25, seed=seed)
        kept, lost = (
            shrink(count(log, keep=keep), Choices(gamma=gamma, policy=mdp["policy"])) for keep in (1, 0)
        )
        assert kept.value == lost.value
        errors = [allowed_interval(found).interval.standard_error for found in (kept, lost)]
        ratios.append(errors[0] / errors[1])
        assert math.isinf(value_scores(lost).degrees)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_it_covers_and_the_standard_error_is_the_spread(gamma):
    mdp = random_mdp()
    truth, values, errors, covered = exact(mdp, gamma)[0], [], [], []
    for seed in range(60):
        found = allowed_interval(
            shrink(count(walk(mdp, 30, 25, seed=seed)), Choices(gamma=gamma, policy=mdp["policy"]))
        ).interval
        values.append(found.estimate)
        errors.append(found.standard_error)
        covered.append(found.low <= truth <= found.high)
    assert np.mean(covered) >= 0.9
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_one_path_is_cut_into_blocks():
    mdp = random_mdp()
    fit = shrink(count(walk(mdp, 1, 400, seed=1)), Choices(gamma=1.0, policy=mdp["policy"]))
    found = allowed_interval(fit).interval
    assert "20 blocks" in found.note
    assert 5 < value_scores(fit).degrees < 19
    assert found.standard_error > 0


def test_one_first_state_is_not_taken_for_certain():
    """A single path at gamma < 1 rests on one draw of the first state."""
    mdp = random_mdp() | {"initial": np.full(S, 1 / S)}
    truth, covered = exact(mdp, 0.5)[0], []
    for seed in range(30):
        found = shrink(count(walk(mdp, 1, 1500, seed=seed)), Choices(gamma=0.5, policy=mdp["policy"]))
        interval = allowed_interval(found).interval
        covered.append(interval.low <= truth <= interval.high)
    assert np.mean(covered) >= 0.85
    known = shrink(counts_of_one_path(mdp), Choices(gamma=0.5, policy=mdp["policy"], initial=mdp["initial"]))
    guessed = shrink(counts_of_one_path(mdp), Choices(gamma=0.5, policy=mdp["policy"]))
    known, guessed = (allowed_interval(found).interval for found in (known, guessed))
    assert "first state" not in known.note
    assert "one first state" in guessed.note
    assert known.standard_error < guessed.standard_error / 2


def counts_of_one_path(mdp):
    return count(walk(mdp, 1, 1500, seed=1))


def test_a_log_without_noise_keeps_a_width():
    target = np.tile([0.2, 0.8], (5, 1))
    for gamma in (0.9, 1.0):
        found = shrink(deterministic_log(10, 40, 1), Choices(gamma=gamma, policy=target))
        interval, allowance, _ = allowed_interval(found)
        assert found.kappa == 0.0
        assert interval.high > interval.estimate > interval.low
        assert allowance.outcomes > 0


def test_rewards_that_never_vary_have_no_finite_interval_unless_their_range_is_given():
    mdp = random_mdp()
    log = walk(mdp, 5, 10, seed=1) | {"reward": np.full(50, 0.1)}
    found = shrink(count(log), Choices(gamma=0.9, policy=mdp["policy"]))
    blind = allowed_interval(found).interval
    assert (blind.low, blind.high) == (-math.inf, math.inf)
    assert not checks_of(found)["rewards"].ok
    known = allowed_interval(found, reward_range=(0.0, 1.0)).interval
    assert 0.0 <= known.low < 0.1 < known.high <= 1.0


@pytest.mark.parametrize(
    ("scale", "offset"), [(2.0**-60, 0.0), (2.0**-30, 0.0), (1.0, 2.0**30), (2.0**60, 0.0)]
)
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_unit_and_the_origin_of_rewards_do_not_matter(gamma, scale, offset):
    mdp = random_mdp()
    log = walk(mdp, 40, 20, seed=2)
    log["reward"] = np.round(log["reward"] * 2**12) / 2**12  # nothing is lost to the offset
    expected = lg.solve(count(log), gamma, policy=mdp["policy"]).interval()
    log["reward"] = scale * log["reward"] + offset
    found = lg.solve(count(log), gamma, policy=mdp["policy"]).interval()
    assert expected.standard_error > 0.01
    assert found.standard_error == pytest.approx(scale * expected.standard_error, rel=1e-4)
    assert found.bias_allowance == pytest.approx(scale * expected.bias_allowance, rel=1e-4)
    assert found.high - found.low == pytest.approx(scale * (expected.high - expected.low), rel=1e-4)


def test_next_to_no_discount_is_none():
    mdp = random_mdp()
    counts = count(walk(mdp, 40, 20, seed=2))
    average, discounted = (lg.solve(counts, g, policy=mdp["policy"]).interval() for g in (1.0, 1.0 - 1e-11))
    assert discounted.standard_error == pytest.approx(average.standard_error, rel=1e-3)
    assert discounted.high == pytest.approx(average.high, rel=1e-3)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("reward", [1e-12, 1.0, 1e9])
def test_a_reward_that_never_varies_has_no_noise(gamma, reward):
    mdp = random_mdp()
    log = walk(mdp, 40, 20, seed=2)
    log["reward"] = np.full(log["state"].size, reward)
    found = lg.solve(count(log), gamma, policy=mdp["policy"]).interval()
    assert found.standard_error == 0.0
    assert math.isinf(found.bias_allowance)


def test_a_reward_range_widens_through_the_values_and_cuts_the_ends():
    mdp = random_mdp()
    found = shrink(count(walk(mdp, 10, 20, seed=1)), Choices(gamma=0.9, policy=mdp["policy"]))
    narrow, wide = allowed_interval(found), allowed_interval(found, reward_range=(-50.0, 10.0))
    assert wide.allowance.outcomes > narrow.allowance.outcomes
    assert wide.allowance.span == pytest.approx(60.0 + 0.9 * np.ptp(found.values))
    near = found.reward_bounds
    assert allowed_interval(found, 0.999999, near).interval.high <= near[1]
    with pytest.raises(ValueError, match="level"):
        allowed_interval(found, 1.5)


def test_a_known_behavior_says_what_it_leaves_unlogged():
    mdp = few_actions(random_mdp())
    counts = count(walk(mdp, **FEW, seed=1))
    found = shrink(counts, Choices(gamma=0.9, policy=mdp["policy"], behavior=mdp["behavior"]))
    never = counts.cell_count.reshape(S, A) == 0
    expected = found.state_distribution @ np.where(never, mdp["behavior"], 0).sum(axis=1)
    assert allowed_interval(found).allowance.expected_mass == pytest.approx(expected)


# -- checks ----------------------------------------------------------------------------------------------


def test_a_plain_log_passes_every_check():
    mdp = random_mdp()
    for gamma in (0.9, 1.0):
        found = shrink(count(walk(mdp, 60, 40, seed=1)), Choices(gamma=gamma, policy=mdp["policy"]))
        checks = checks_of(found)
        assert [name for name, check in checks.items() if not check.ok] == []
        assert {"effective sample", "leak", "never logged", "rewards", "order of rows",
                "Markov property", "forgotten ends"} <= set(checks)  # fmt: skip
        assert ("ridge" in checks) == (gamma == 1.0)
        assert all(check.sentence and not check.remedy for check in checks.values())


def test_actions_that_the_behavior_never_takes_are_named():
    mdp = random_mdp()
    mdp["behavior"] = np.where(np.arange(A) == 0, 0.0, 0.5) * np.ones((S, 1))
    found = shrink(count(walk(mdp, 60, 40, seed=1)), Choices(gamma=0.9, policy=mdp["policy"]))
    check = checks_of(found)["never logged"]
    assert not check.ok
    assert check.number == pytest.approx(found.state_distribution @ mdp["policy"][:, 0], rel=1e-6)
    assert "log these actions" in check.remedy
    unlogged, unseen = trust_notes(found)
    assert "were never logged" in unlogged
    assert "cannot exclude" in unseen
    assert len(trust_notes(found, (-10.0, 10.0))) == 1


def test_shuffled_rows_and_forgotten_flags_are_seen():
    mdp = random_mdp()
    log = walk(mdp, 80, 40, seed=1, ending=0.2)
    order = np.random.default_rng(0).permutation(log["state"].size)
    shuffled = {name: column[order] for name, column in log.items()} | {
        "terminal": np.zeros(order.size, bool)
    }
    found = shrink(count(shuffled), Choices(gamma=0.9, policy=mdp["policy"]))
    checks = checks_of(found)
    assert not checks["order of rows"].ok
    assert "Markov property" not in checks
    # Every end leads to a state of its own; with flags it is never entered.
    after = np.where(log["terminal"], S, log["next_state"])
    policy = np.vstack([mdp["policy"], np.full(A, 1 / A)])
    for flags, ok in ((log["terminal"], True), (None, False)):
        counts = lg.Counts.from_transitions(
            **(log | {"next_state": after, "terminal": flags}),
            n_states=S + 1,
            n_actions=A,
            keep_episodes=True,
        )
        checks = checks_of(shrink(counts, Choices(gamma=0.9, policy=policy)))
        assert checks["forgotten ends"].ok == ok
        assert checks["leak"].ok == ok


def test_few_rewards_among_the_rows_are_a_failed_check():
    mdp = random_mdp()
    log = walk(mdp, 20, 20, seed=1)
    half = log["state"] < 3
    parts = [{name: column[mine] for name, column in log.items()} for mine in (half, ~half)]
    counts = count(parts[0], keep=False) + count(parts[1] | {"reward": None}, keep=False)
    check = checks_of(shrink(counts, Choices(gamma=0.9, policy=mdp["policy"])))["rewards"]
    assert 0 < check.number < 0.9
    assert not check.ok


def test_a_slow_chain_fails_the_ridge_check():
    rng = np.random.default_rng(1)
    place, rows = 12, []
    for step in range(1000):
        action = int(rng.integers(0, 2))
        after = int(np.clip(place + (1 if rng.random() < 0.42 + 0.16 * action else -1), 0, 24))
        rows.append((place, action, after, step // 100))
        place = after if step % 100 < 99 else 12
    s, a, s2, e = map(np.array, zip(*rows, strict=True))
    counts = lg.Counts.from_transitions(
        s, s2, action=a, reward=s / 24, episode=e, n_states=25, n_actions=2, keep_episodes=True
    )
    found = shrink(counts, Choices(gamma=1.0, policy=np.tile([0.05, 0.95], (25, 1))))
    assert not checks_of(found)["ridge"].ok


def test_an_estimate_that_rests_on_a_few_transitions_says_so():
    """One transition in 200 is of the action that the target takes in the one state."""
    n = 4000
    action = (np.arange(n) % 200 == 0).astype(int)
    reward = np.random.default_rng(0).normal(size=n)
    counts = lg.Counts.from_transitions(np.zeros(n, int), np.zeros(n, int), action=action, reward=reward)
    found = shrink(counts, Choices(policy=np.array([[0.0, 1.0]])))
    check = checks_of(found)["effective sample"]
    assert check.number == pytest.approx(0.005, rel=0.2)
    assert not check.ok


def test_states_that_only_the_target_takes_often_are_noted():
    """State 1 has 10 of 2,000 visits; a target that goes there whenever it can is there half of the time."""
    state = (np.arange(2000) % 200 == 199).astype(int)
    log = {"state": state, "next_state": np.append(state[1:], 0), "action": np.roll(state, -1)}
    log["reward"] = np.random.default_rng(0).normal(size=2000)
    counts = lg.Counts.from_transitions(**log, n_states=2, n_actions=2)
    often, as_logged = ([[0.0, 1.0], [1.0, 0.0]], [[0.995, 0.005], [1.0, 0.0]])
    noted, _ = trust_notes(shrink(counts, Choices(policy=np.array(often))))
    assert 0.44 < float(noted.split("%")[0]) / 100 < 0.5
    assert "states 10 times as rare in the log" in noted
    assert len(trust_notes(shrink(counts, Choices(policy=np.array(as_logged))))) == 1


def test_what_the_behavior_left_out_by_chance_is_left_to_the_interval():
    """Fifty actions, forty visits to each state: some are missed, as others logged once tell."""
    rng = np.random.default_rng(0)
    n, k = 400, 50
    state, action = np.arange(n) % 10, rng.integers(0, k, n)
    log = {"state": state, "next_state": (state + 1) % 10, "action": action, "reward": rng.normal(size=n)}
    counts = lg.Counts.from_transitions(**log, n_states=10, n_actions=k, episode=np.arange(n) // 10)
    found = shrink(counts, Choices(gamma=0.9, policy=np.full((10, k), 1 / k)))
    assert allowed_interval(found).allowance.unlogged_mass > 0.3
    assert checks_of(found)["never logged"].number == 0.0
    behavior = np.where(np.arange(k) < 25, 1 / 25, 0.0) * np.ones((10, 1))
    counts = lg.Counts.from_transitions(
        **{**log, "action": action // 2}, n_states=10, n_actions=k, episode=np.arange(n) // 10
    )
    known = shrink(counts, Choices(gamma=0.9, policy=np.full((10, k), 1 / k), behavior=behavior))
    assert checks_of(known)["never logged"].number == pytest.approx(0.5)


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.999])
def test_a_loop_logged_once_counts_with_the_mass_that_arrives(gamma):
    """State S is entered once and stays once: without that loop it would hold 1 - gamma of its mass."""
    mdp = random_mdp()
    log = walk(mdp, 40, 100, seed=3)
    log["next_state"][99], log["terminal"] = S, None  # of the first episode, which now ends in S
    looped = {"state": S, "action": 1, "reward": -1.0, "next_state": S, "episode": 0}
    longer = {name: np.insert(column, 100, looped[name]) for name, column in log.items() if name in looped}
    policy = np.vstack([mdp["policy"], [0.0, 1.0, 0.0]])
    without, found = (
        shrink(
            lg.Counts.from_transitions(**one, n_states=S + 1, n_actions=A, keep_episodes=True),
            Choices(gamma=gamma, policy=policy),
        )
        for one in (log, longer)
    )
    if found.ridge == 0.0:
        chain = np.array([found.operator.chain.apply_transpose(row) for row in np.eye(S + 1)])
        chain[S] = 0.0
        expected = np.linalg.solve(np.eye(S + 1) - gamma * chain.T, (1 - gamma) * found.operator.initial)
        assert found.mass_without_loops[S] == pytest.approx(expected[S], rel=1e-6)
    assert found.state_distribution[S] > found.mass_without_loops[S]
    np.testing.assert_array_equal(found.mass_without_loops[:S], found.state_distribution[:S])
    # The way there and the loop each move the value by about what it changes where the loop is cut.
    changed = abs(found.value - without.value)
    noise = allowed_interval(without).interval.standard_error
    assert allowed_interval(found).interval.standard_error < noise + 2.0 * changed + 0.01 * noise


@pytest.mark.parametrize("options", [{"horizon": 5}, {"ridge": 0, "clone": 0}])
def test_other_estimates_do_not_take_one_first_state_for_certain_either(options):
    mdp = random_mdp() | {"initial": np.full(S, 1 / S)}
    horizon = options.get("horizon", 60)  # 0.5^60 is nothing
    truth, covered = first_steps(mdp, 0.5, horizon), []
    for seed in range(30):
        sol = lg.solve(count(walk(mdp, 1, 1500, seed=seed)), 0.5, policy=mdp["policy"], **options)
        covered.append(sol.interval(0.95).contains(truth))
    assert np.mean(covered) >= 0.85
    known = lg.solve(
        counts_of_one_path(mdp), 0.5, policy=mdp["policy"], initial=mdp["initial"], **options
    ).interval(0.95)
    assert "first state" not in known.note
    assert "one first state" in sol.interval(0.95).note
    assert known.standard_error < sol.interval(0.95).standard_error / 2


def first_steps(mdp, gamma, horizon):
    """Mean reward of the first steps, step t weighted by gamma^t, one step at a time."""
    state, total, weight = mdp["initial"], 0.0, 0.0
    for step in range(horizon):
        cells = state[:, None] * mdp["policy"]
        total += gamma**step * float((cells * mdp["reward"]).sum())
        weight += gamma**step
        state = np.einsum("sa,sat->t", cells, mdp["kernel"])
    return total / weight


def numbers_of(log, policy, gamma):
    """The value, its interval and what that is made of."""
    n_states, n_actions = policy.shape
    counts = lg.Counts.from_transitions(**log, n_states=n_states, n_actions=n_actions, keep_episodes=True)
    found = lg.solve(counts, gamma, policy=policy).interval()
    return np.array([found.estimate, found.low, found.high, found.standard_error, found.bias_allowance])


@pytest.mark.parametrize("kind", ["equal", "thirds", "noisy"])
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.5, 0.9, 0.99, 1.0]))
@example(seed=8, gamma=0.99)
@example(seed=17, gamma=0.9)
@example(seed=29, gamma=0.9)
@settings(max_examples=25, deadline=None)
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_neither_names_nor_units_nor_the_order_of_episodes_matter(kind, seed, gamma):
    log, policy = small_log(seed, kind)
    expected, rng = numbers_of(log, policy, gamma), np.random.default_rng(seed)
    n_states, n_actions = policy.shape
    state, action = rng.permutation(n_states), rng.permutation(n_actions)
    renamed = np.empty_like(policy)
    renamed[np.ix_(state, action)] = policy
    names = {"state": state[log["state"]], "next_state": state[log["next_state"]]}
    names |= {"action": action[log["action"]], "episode": 100 - log["episode"]}
    moved = np.argsort(rng.permutation(100)[log["episode"]], kind="stable")
    unit = np.abs(log["reward"]).max()
    found = {
        "names": numbers_of(log | names, renamed, gamma),
        "order": numbers_of({name: column[moved] for name, column in log.items()}, policy, gamma),
        "larger unit": numbers_of(log | {"reward": log["reward"] / 1000}, policy, gamma) * 1000,
        "smaller unit": numbers_of(log | {"reward": log["reward"] * 1000}, policy, gamma) / 1000,
    }
    for law, numbers in found.items():
        np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-6 * unit, err_msg=law)


def test_what_has_ended_is_not_known_to_the_range_of_rewards():
    """Every step earns 1 and may be the last: with rewards in [1, 1] the interval had no width."""
    rng, truth, held = np.random.default_rng(0), 0.1 / (1 - 0.9 * 0.7), 0
    for _ in range(40):
        length = rng.geometric(0.3, size=60)
        episode, n = np.repeat(np.arange(60), length), length.sum()
        counts = lg.Counts.from_transitions(
            np.zeros(n, int), np.zeros(n, int), np.zeros(n, int), np.ones(n), episode,
            terminal=np.append(episode[1:] != episode[:-1], True), n_states=1, n_actions=1,
        )  # fmt: skip
        low, high = lg.solve(counts, 0.9, policy=[[1.0]], reward_range=(1, 1)).interval()
        assert 0.0 <= low < high <= 1.0
        held += low <= truth <= high
    assert held >= 36
