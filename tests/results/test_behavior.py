"""The behavior's own value on the target's scale, and what policies gain over it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import norm
from toy_text import corridor, gymnasium_rules

import lingendice as lg

UNIFORM = np.full((6, 2), 0.5)
PLUG_IN = {"ridge": 0, "clone": 0, "ratio": "state_action"}


@cache
def short_log(seed):
    return corridor().sample(60, seed)


@pytest.mark.parametrize(
    "options", [{"gamma": 0.9}, {"gamma": 0.5}, {"gamma": 1.0, "horizon": 4}, {"gamma": 0.9, "horizon": 30}]
)
@pytest.mark.parametrize("plug_in", [{}, PLUG_IN])
def test_it_is_that_of_dynamic_programming(options, plug_in):
    """Counts that log each action equally often are those of the uniform behavior."""
    rules = corridor()
    if "horizon" in options:
        plug_in = {}
    solution = lg.solve(rules.counts, policy=rules.policy, initial=rules.initial, **options, **plug_in)
    truth = rules._replace(policy=UNIFORM).dynamic_programming(options["gamma"], options.get("horizon"))
    assert solution.behavior_value * solution.episode_steps == pytest.approx(truth, rel=1e-9)


def test_it_is_the_mean_reward_at_gamma_1():
    counts = short_log(0)
    solution = lg.solve(counts, policy=corridor().policy)
    assert solution.behavior_value == pytest.approx(counts.episodes.reward.mean(), rel=1e-12)
    assert f"behavior's return      {solution.behavior_return:.6g}" in str(solution)


def test_it_is_shown_once_it_was_asked_for():
    solution = lg.solve(short_log(0), 0.9, policy=corridor().policy)
    assert "not computed: sol.behavior_return" in str(solution)
    assert solution.to_dict()["behavior_value"] is None
    assert solution.to_dict()["behavior_return"] is None
    value, of_episode = solution.behavior_value, solution.behavior_return
    assert of_episode == pytest.approx(10.0 * value, rel=1e-12)
    assert f"behavior's return      {of_episode:.6g}" in str(solution)
    assert solution.to_dict()["behavior_value"] == value
    assert solution.to_dict()["behavior_return"] == of_episode
    assert "behavior" not in str(lg.solve(short_log(0), 0.9))  # without a target there is nothing to compare


def test_a_target_that_is_the_behavior_earns_what_it_earns():
    """Like with like: the plain mean of the rewards is another thing altogether."""
    rules = gymnasium_rules("FrozenLake-v1")
    counts = rules.sample(300, 1)
    seen = counts.cell_count.reshape(16, 4)
    clone = np.where(seen.sum(axis=1, keepdims=True) > 0, seen, 1.0)
    clone = clone / clone.sum(axis=1, keepdims=True)
    solution = lg.solve(counts, 0.95, policy=clone, **PLUG_IN)
    assert solution.value == pytest.approx(solution.behavior_value, rel=1e-9)
    assert solution.operator.logged_average > 2 * solution.behavior_value


@pytest.mark.parametrize("options", [{"gamma": 0.9}, {"gamma": 1.0}, {"gamma": 1.0, "horizon": 8}])
def test_standard_errors_of_gains_are_those_of_new_logs(options):
    rules = corridor()
    plug_in = {} if "horizon" in options else PLUG_IN
    found = [
        lg.solve(short_log(seed), policy={"target": rules.policy}, **options, **plug_in)
        for seed in range(200)
    ]
    gains = np.array([one["target"].value - one.behavior_value for one in found])
    told = [one.difference("target", "behavior", of="value") for one in found]
    np.testing.assert_allclose([one.estimate for one in told], gains, rtol=1e-12)
    closed = np.sqrt(np.mean([one.standard_error**2 for one in told]))
    assert closed == pytest.approx(gains.std(ddof=1), rel=0.15)
    alone = np.sqrt(np.mean([(one["target"].behavior_scores().rows ** 2).sum() for one in found]))
    assert alone == pytest.approx(np.std([one.behavior_value for one in found], ddof=1), rel=0.15)


def test_gains_without_episodes_kept():
    """From counts alone every transition stands for itself: rows of both values match."""
    rules = corridor()
    found = []
    for seed in range(200):
        log = short_log(seed)
        counts = lg.Counts(
            **{name: getattr(log, name) for name in ("n_states", "n_actions", "indptr", "indices", "count",
               "reward_count", "reward_mean", "reward_m2", "initial_count")}
        )  # fmt: skip
        found.append(lg.solve(counts, 0.9, policy={"target": rules.policy}, **PLUG_IN))
    gains = np.array([one["target"].value - one.behavior_value for one in found])
    closed = np.sqrt(
        np.mean([one.difference("target", "behavior", of="value").standard_error ** 2 for one in found])
    )
    assert closed == pytest.approx(gains.std(ddof=1), rel=0.15)


def compared(seed=0, **options):
    rules = corridor()
    policies = {"slips": rules.policy, "walks": np.tile([0.95, 0.05], (6, 1)), "as logged": UNIFORM}
    return lg.solve(short_log(seed), 0.9, policy=policies, **options)


def test_differences_are_paired_and_simultaneous():
    found = compared()
    rows = found.differences(0.9)
    assert [row["policy"] for row in rows] == list(found.ranking)
    assert rows[0]["to_best"] is None
    for row in rows:
        alone = found.difference(row["policy"], "behavior", 0.9)
        over = row["over_behavior"]
        assert over.estimate == pytest.approx(alone.estimate, rel=1e-12)
        assert over.standard_error == pytest.approx(alone.standard_error, rel=1e-12)
        assert over.low < alone.low
        assert over.high > alone.high
        if row["to_best"] is not None:
            gap = found.difference(row["policy"], found.best, 0.9)
            assert row["to_best"].estimate == pytest.approx(gap.estimate, rel=1e-12)
            assert row["to_best"].estimate < 0


def test_differences_cover_together():
    rules = corridor()
    truth = {
        name: rules._replace(policy=policy).dynamic_programming(0.9)
        for name, policy in {
            "slips": rules.policy, "walks": np.tile([0.95, 0.05], (6, 1)), "as logged": UNIFORM
        }.items()
    }  # fmt: skip
    behavior = truth["as logged"]
    held = []
    for seed in range(200):
        rows = compared(seed, **PLUG_IN).differences()
        held.append(all(row["over_behavior"].contains(truth[row["policy"]] - behavior) for row in rows))
    assert 0.91 <= np.mean(held) <= 0.99


def test_the_probability_of_being_best_is_that_of_the_normal_distribution():
    rules = corridor()
    counts = short_log(3)
    policies = {"a": np.tile([0.7, 0.3], (6, 1)), "b": np.tile([0.69, 0.31], (6, 1))}
    found = lg.solve(counts, 0.9, policy=policies, **PLUG_IN)
    assert rules.n_states == 6
    gap = found.difference("a", "b")
    shares = found.probability_best
    assert sum(shares.values()) == pytest.approx(1.0)
    # 59 degrees of freedom are nearly normal.
    assert shares["a"] == pytest.approx(norm.cdf(gap.estimate / gap.standard_error), abs=0.02)


def test_a_bias_that_may_be_anything_leaves_every_policy_as_likely():
    counts = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 0, 1, 1], action=[0, 1, 1, 0], reward=[1, 1, 1, 1], episode=[0, 0, 1, 1],
        keep_episodes=True,
    )  # fmt: skip
    found = lg.solve(counts, 0.9, policy={"a": [0, 1], "b": [1, 0]})
    assert np.isinf(found.bias_allowance).any()
    assert found.probability_best == {"a": 0.5, "b": 0.5}


def test_the_table_names_failed_checks_and_the_behavior():
    found = compared()
    rows = found.table()
    failed = {row["policy"]: row["failed_checks"] for row in rows}
    assert failed == {
        name: [check.name for check in found[name].diagnose() if not check.ok] for name in found.names
    }
    shown = str(found)
    assert "failed checks" in shown
    assert f"behavior's return {found.behavior_estimate:.4g}" in shown
    for row in rows:
        assert 0.0 <= row["probability_best"] <= 1.0
