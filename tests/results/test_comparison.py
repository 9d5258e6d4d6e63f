"""Several policies at once: the same answers, a ranking, and intervals that hold together."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import A, S, count, exact, random_mdp, walk

import lingendice as lg
from lingendice.report.build import verdict
from lingendice.results.interval import Influence

PLUG_IN = {"ratio": "state_action", "ridge": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


@pytest.fixture(scope="module")
def mdp():
    return random_mdp()


@pytest.fixture(scope="module")
def policies():
    return np.random.default_rng(2).dirichlet(np.ones(A), size=(4, S))


@pytest.mark.parametrize("threads", [1, 3])
def test_same_as_one_by_one(mdp, policies, threads):
    counts = count(walk(mdp, 60, 20, seed=0))
    together = lg.solve(counts, 0.9, policy=policies, threads=threads, **PLUG_IN)
    assert isinstance(together, lg.Comparison)
    for k, solution in enumerate(together):
        alone = lg.solve(counts, 0.9, policy=policies[k], **PLUG_IN)
        np.testing.assert_array_equal(solution.tau, alone.tau)
        assert solution.interval().standard_error == pytest.approx(together.interval().standard_error[k])
    assert together.ranking == tuple(np.argsort(-together.values))
    assert together.best == int(np.argmax(together.values))


def test_names_and_kinds_of_collections(mdp, policies):
    counts = count(walk(mdp, 60, 20, seed=0))
    named = lg.solve(counts, 0.9, policy={"old": policies[0], "new": policies[1]})
    assert named["new"].value == named.values[1]
    assert set(named.ranking) == {"old", "new"}
    assert "old" in str(named)
    assert named.to_dict()["names"] == ["old", "new"]
    with pytest.raises(KeyError, match="no policy is called"):
        named["older"]
    listed = lg.solve(counts, 0.9, policy=list(policies))
    np.testing.assert_array_equal(listed.values[:2], named.values)
    # One table, written as rows, is one policy.
    assert isinstance(lg.solve(counts, 0.9, policy=list(policies[0])), lg.Solution)
    with pytest.raises(ValueError, match="empty"):
        lg.solve(counts, 0.9, policy={})
    with pytest.raises(ValueError, match="no actions"):
        lg.solve([[0.5, 0.5], [0.5, 0.5]], policy=policies[:, :2, :2], ridge=0.0)


def test_covariance_is_that_of_the_clusters(mdp, policies):
    """The variance of a difference is that of the difference's own influence."""
    counts = count(walk(mdp, 80, 20, seed=1))
    together = lg.solve(counts, 1.0, policy=policies, **PLUG_IN)
    scores = [Influence(solution).value().scores()[:, 0] for solution in together]
    apart = ((scores[0] - scores[1]) ** 2).sum()
    cov = together.covariance
    assert cov[0, 0] + cov[1, 1] - 2 * cov[0, 1] == pytest.approx(apart)


def test_a_difference_has_degrees_of_freedom_of_its_own(mdp):
    """Policies that differ in one state: few episodes decide, though all do about each value.

    Over 1,000 logs with such a state in one step of a hundred, 95 % intervals of the difference held the
    truth in 92 % by the lower degrees of the two, and in 95 % by these.
    """
    counts = count(walk(mdp, 60, 6, seed=1))
    first = np.tile(np.full(A, 1.0 / A), (S, 1))
    second = first.copy()
    rare = int(counts.cell_count.reshape(S, A).sum(axis=1).argmin())
    second[rare] = [0.6, 0.3, 0.1]
    together = lg.solve(counts, 0.5, policy={"a": first, "b": second}, **PLUG_IN)
    scores = [Influence(solution).value().scores()[:, 0] for solution in together]
    own = scores[0] - scores[1]
    degrees = (own**2).sum() ** 2 / (own**4).sum()
    assert degrees < 0.8 * min(part.degrees for part in together._scores)
    found = together.difference("a", "b")
    from scipy.stats import t

    expected = t.ppf(0.975, degrees) * found.standard_error
    assert found.high - found.estimate == pytest.approx(expected, rel=1e-6)
    assert found.standard_error == pytest.approx(np.sqrt((own**2).sum()))


def test_simultaneous_quantile(mdp, policies):
    """Between the pointwise quantile and Bonferroni's; the same policy twice costs nothing."""
    counts = count(walk(mdp, 80, 20, seed=1))
    together = lg.solve(counts, 1.0, policy=policies, **PLUG_IN)
    width = together.interval().high - together.interval().estimate
    ratio = width / together.interval().standard_error
    from scipy.stats import t

    assert t.ppf(0.975, 79) < ratio.min() <= ratio.max() < t.ppf(1 - 0.025 / 4, 79) + 0.05
    twice = lg.solve(counts, 1.0, policy=[policies[0]] * 2, **PLUG_IN)
    alone = lg.solve(counts, 1.0, policy=policies[0], **PLUG_IN).interval()
    assert twice.interval().high[0] == pytest.approx(alone.high, rel=0.02)
    assert twice.contenders() == (0, 1)


def test_joint_coverage(mdp, policies):
    truth = np.array([exact(mdp | {"policy": policy}, 0.9)[0] for policy in policies])
    held, best_kept = [], []
    for seed in range(60):
        together = lg.solve(count(walk(mdp, 40, 10, seed)), 0.9, policy=policies, **PLUG_IN)
        held.append(together.interval().contains(truth).all())
        best_kept.append(int(np.argmax(truth)) in together.contenders())
    assert np.mean(held) >= 0.86
    assert np.mean(best_kept) >= 0.9


def test_a_policy_that_cannot_be_judged_leaves_the_others_alone(mdp, policies):
    """A value that is not identified, or an infinite allowance, has no part in what does not ask for it."""
    counts = lg.Counts.from_transitions(**walk(mdp, 60, 20, seed=0), n_states=S, n_actions=A + 1)
    first, second = (np.pad(policy, ((0, 0), (0, 1))) for policy in policies[:2])
    never = np.eye(A + 1)[np.full(S, A)]
    pair = lg.solve(counts, 0.9, policy={"a": first, "b": second})
    with_third = lg.solve(counts, 0.9, policy={"a": first, "b": second, "never": never})
    assert np.isnan(with_third.values[2])
    assert tuple(with_third.difference("a", "b")) == tuple(pair.difference("a", "b"))
    scores = list(pair._scores)
    pair.__dict__["_scores"] = (scores[0]._replace(bias_allowance=np.inf), scores[1])
    found = pair.interval()
    assert list(np.isfinite(found.high)) == [False, True]
    assert np.isinf(pair.difference("a", "b").high)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_without_rewards_there_is_nothing_to_compare(mdp, policies, gamma):
    log = walk(mdp, 60, 20, seed=0)
    del log["reward"]
    together = lg.solve(lg.Counts.from_transitions(**log), gamma, policy=policies[:2])
    for ask in (together.interval, together.contenders, lambda: together.difference(0, 1)):
        with pytest.raises(ValueError, match="no rewards"):
            ask()
    assert "2 policies" in str(together)
    told = together.to_dict()
    assert (told["values"], told["ranking"]) == ([None, None], None)


def test_the_margin_of_many_contrasts_is_that_of_few(mdp):
    """All pairs are drawn by way of the values; drawn from their own covariance, the quantile agrees."""
    policies = np.random.default_rng(4).dirichlet(np.ones(A), size=(6, S))
    together = lg.solve(count(walk(mdp, 60, 20, seed=3)), 0.9, policy=policies, **PLUG_IN)
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    contrast = together._contrast(pairs)
    _, error, _, _ = together._asked(contrast)
    spread = contrast @ together._covariance @ contrast.T
    np.testing.assert_allclose(error**2, np.diagonal(spread), rtol=1e-10)
    largest = (together._noise(spread, np.random.default_rng(9)) / error).max(axis=1)
    found = together._quantile(contrast, error, 0.95, two_sided=False)
    assert found == pytest.approx(np.quantile(largest, 0.95), abs=0.05)


def test_many_policies_are_compared_in_little_memory(mdp):
    """A covariance of all pairs of 80 policies would take 320 MB, and its root minutes."""
    policies = np.random.default_rng(5).dirichlet(np.ones(A), size=(80, S))
    together = lg.solve(count(walk(mdp, 40, 10, seed=3)), 0.9, policy=policies, **PLUG_IN)
    tracemalloc.start()
    kept = together.contenders()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 250e6
    assert together.best in kept


def line_of_states(n):
    """Action 0 drifts to the left and 1 to the right, where rewards are."""
    state, action, up = (part.ravel() for part in np.indices((n, 2, 10)))
    to = np.clip(state + np.where(up < np.where(action == 1, 6, 4), 1, -1), 0, n - 1)
    reward = np.where(state > n - 20, 1.0, 0.0) - 0.01 * action + 0.1 * (up % 2)
    counts = lg.Counts.from_transitions(state, to, action=action, reward=reward)
    return counts, {"left": np.tile([1.0, 0.0], (n, 1)), "right": np.tile([0.0, 1.0], (n, 1))}


def test_solves_that_ended_short_of_their_goals_are_marked_wherever_they_are_ranked():
    """After one sweep the values are the wrong way around, and their noise says nothing of that."""
    counts, policies = line_of_states(400)
    early, exact_ones = (
        lg.solve(counts, policy=policies, ridge=0, **terms)
        for terms in ({"method": "aggregation", "max_iter": 1}, {"method": "elimination"})
    )
    assert (early.best, exact_ones.best) == ("left", "right")
    told = "left (iteration limit), right (iteration limit)"
    assert told in str(early)
    assert told in early.interval().note
    assert told in early.difference("left", "right").note
    assert "iteration limit" in early["left"].interval().note
    assert [row["failed_checks"][0] for row in early.table()] == ["iteration limit"] * 2
    assert told in str(early)
    assert told in verdict(early, 0.95)
    assert not exact_ones.unfinished
    assert "ended short" not in exact_ones.interval().note + exact_ones["left"].interval().note


def test_noise_that_is_not_known_makes_no_policy_the_best(mdp, policies):
    comparison = lg.solve(count(walk(mdp, 60, 20, seed=0)), 0.9, policy=policies, **PLUG_IN)
    covariance = comparison._covariance
    covariance = covariance.copy()
    covariance[0] = covariance[:, 0] = np.nan
    comparison.__dict__["_covariance"] = covariance
    assert set(comparison.probability_best.values()) == {1 / len(policies)}


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_differences_scale_with_rewards_where_influences_cancel(ridge):
    """Five rows of one path, whose two blocks cancel up to rounding for the target.

    The variance owed for pairs seen once went to the row that rounding left, with its sign: the standard
    error of the difference was 0.17 or 0.30, by the unit of the rewards.
    """
    state, action = [0, 1, 1, 1, 0], [1, 0, 0, 1, 0]
    reward = np.array([1.324684498076496, 0.37191432665269253, -0.09210198941126466, -0.4871743592538641,
                       0.637965430655451])  # fmt: skip
    target = np.array([[0.09618758059933334, 0.9038124194006665], [0.7212208288769738, 0.27877917112302636]])
    errors = []
    for unit in (1.0, 1e4, 1e-9):
        counts = lg.Counts.from_transitions(state, [1, 1, 1, 0, 1], action, reward * unit, [0] * 5)
        together = lg.solve(counts, 1.0, policy=[target], ridge=ridge)
        errors.append(together.difference(0, "behavior").standard_error / unit)
    np.testing.assert_allclose(errors, errors[0], rtol=1e-6)
    if ridge == 0.0:
        # Nothing tells how the two are correlated: independent pieces add up.
        own, behavior = together[0].interval(), together[0].behavior_scores()
        apart = np.hypot(own.standard_error, behavior.standard_error) / unit
        np.testing.assert_allclose(errors, apart, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
def test_a_policy_beside_itself_differs_by_nothing():
    """With one action every policy is the behavior: what they have in common cancels but for rounding.

    Beside an allowance for bias that rounding brought Student's quantile of few degrees of freedom, and a
    half-width 1.4 times the allowance, in one unit of the rewards and not in another.
    """
    rng = np.random.default_rng(7)
    (state, following), reward = rng.integers(3, size=(2, 60)), rng.normal(size=60)
    episode, terminal, action = np.arange(60) // 4, np.arange(60) % 4 == 3, np.zeros(60, dtype=int)
    for unit in (1.0, 1e4):
        log = lg.Counts.from_transitions(state, following, action, unit * reward, episode, terminal=terminal)
        found = lg.solve(log, 0.9, policy=[np.ones((3, 1))], horizon=7).difference(0, "behavior")
        assert found.standard_error == 0.0
        assert found.high - found.estimate == pytest.approx(found.bias_allowance, rel=1e-9)


@given(
    seed=st.integers(0, 50),
    episodes=st.integers(2, 12),
    n_policies=st.integers(1, 3),
    gamma=st.sampled_from([0.9, 1.0]),
    options=st.sampled_from([{}, PLUG_IN, {"ratio": "state", "ridge": 1e-3}, {"horizon": 5}]),
    level=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
@settings(max_examples=60, deadline=None)
def test_simultaneous_intervals_are_no_narrower_than_single_ones(
    seed, episodes, n_policies, gamma, options, level
):
    """With few episodes the allowance for bias grew by t / z in single ones alone: 2.66 beside 1.87."""
    policies = np.random.default_rng(seed).dirichlet(np.ones(A), size=(n_policies, S))
    counts = count(walk(random_mdp(), episodes, 6, seed=seed, ending=0.1))
    together = lg.solve(counts, gamma, policy=list(policies), **options)
    every = together.interval(level)
    for name, row in enumerate(together.differences(level)):
        alone = together[name].interval(level, of=together.of)
        width = every.entry(name).high - every.entry(name).low
        assert width >= (alone.high - alone.low) * (1 - 1e-9)
        paired = together.difference(together.ranking[name], "behavior", level)
        # nan, both, where too few episodes ended for the behavior to have a return.
        assert np.isnan(row["over_behavior"].high) == np.isnan(paired.high)
        assert not row["over_behavior"].high < paired.high - 1e-9 * abs(paired.high)


def test_several_distributions_are_not_called_a_want_of_rewards():
    state = np.repeat([0, 1], 50)
    counts = lg.Counts.from_transitions(state, state, np.arange(100) % 2, np.arange(100.0))
    together = lg.solve(counts, 1.0, policy={"a": np.full((2, 2), 0.5), "b": np.eye(2)}, ridge=0)
    with pytest.raises(
        ValueError, match="'a' has no single value to compare: gamma=1 and the chain has more"
    ):
        together.interval()
    assert together.to_dict()["values"] == [None, None]
    assert not together["a"].trusted
    assert together["a"].why_not == (together["a"].status.advice,)


def test_a_policy_called_behavior_is_not_the_logged_one(mdp, policies):
    """What policies gain over the logged behavior does not depend on what they are called."""
    counts = count(walk(mdp, 60, 20, seed=0))
    pair = {"first": policies[0], "second": policies[1]}
    plain = lg.solve(counts, 0.9, policy=pair).differences()
    called = lg.solve(counts, 0.9, policy=dict(zip(("behavior", "second"), policies[:2], strict=True)))
    for one, other in zip(plain, called.differences(), strict=True):
        assert tuple(one["over_behavior"]) == tuple(other["over_behavior"])
    assert tuple(called.difference("behavior", "behavior")) == (0.0, 0.0)
