"""No number, interval or status says more than the data: where nothing is identified, all say so."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import lingendice as lg
from lingendice import baselines
from lingendice.cli import app

pytestmark = [
    pytest.mark.filterwarnings("ignore::lingendice.LeakWarning"),
    pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning"),
]
PLUG_IN = {"ratio": "state_action", "ridge": 0, "clone": 0}


# -- nothing is identified ---------------------------------------------------------------------------


def log_of_one_action(seed=6, n_states=3, n=12, **more):
    """Only action 0 is logged; the target takes the other three. Some such distributions sum to 1 - 1e-16."""
    rng = np.random.default_rng(seed)
    state, following = rng.integers(0, n_states, n), rng.integers(0, n_states, n)
    counts = lg.Counts.from_transitions(
        state, following, np.zeros(n, int), np.ones(n), np.arange(n) // 3,
        n_states=n_states, n_actions=4, **more,
    )  # fmt: skip
    policy = np.zeros((n_states, 4))
    policy[:, 1:] = rng.dirichlet(np.ones(3), size=n_states)
    return counts, policy


@given(seed=st.integers(0, 10**6), n_states=st.integers(1, 5), gamma=st.sampled_from([0.5, 0.9, 1.0]))
@settings(max_examples=25, deadline=None)
def test_no_value_where_nothing_is_identified(seed, n_states, gamma):
    counts, policy = log_of_one_action(seed, n_states)
    for options in ({}, PLUG_IN, PLUG_IN | {"leak": "absorb"}, {"ratio": "state", "ridge": 1e-3}):
        if gamma == 1.0 and options.get("leak") == "absorb":
            continue
        solution = lg.solve(counts, gamma, policy=policy, **options)
        assert math.isnan(solution.value)
        assert solution.status is lg.Status.NOT_IDENTIFIED
        assert not solution.converged
        if options:  # the default follows logged actions alone, which leak nothing
            assert solution.leak == pytest.approx(1.0)
            assert solution.effective_sample_size == 0.0
        assert solution.gap is None
        assert np.isnan(solution.state_values).all()
        found = solution.interval()
        assert np.isnan([found.low, found.high, found.estimate, found.standard_error]).all()
        assert "not identified" in found.note


def test_every_view_of_an_unidentified_value(tmp_path):
    counts, policy = log_of_one_action(keep_episodes=True)
    solution = lg.solve(counts, 0.9, policy=policy, **PLUG_IN)
    assert "not identified" in solution.interval(method="bootstrap", replicates=20).note
    told = json.loads(json.dumps(solution.to_dict(), allow_nan=False))
    assert told["value"] is None
    assert told["status"] == "not_identified"
    assert "say nothing about the value" in told["advice"]
    assert json.loads(json.dumps(solution.interval().to_dict(), allow_nan=False))["low"] is None
    assert "value not identified" in str(solution)
    leak = next(check for check in lg.diagnose(solution) if check.name == "leak")
    assert not leak.ok
    assert leak.sentence.endswith("the value lies in [1, 1] if rewards stay within those seen")
    known = lg.solve(counts, 0.9, policy=policy, reward_range=(0, 2), **PLUG_IN)
    assert "the value lies in [0, 2] whatever happens there" in lg.diagnose(known)[0].sentence
    page = lg.report(solution)
    assert "value not identified" in page
    assert "not identified: no stationary mass" in page
    solution.plot().savefig(tmp_path / "solution.png")


def test_rewards_never_observed_give_no_bounds():
    counts, policy = log_of_one_action()
    silent = replace(counts, reward_count=np.zeros_like(counts.count))
    solution = lg.solve(silent, 0.9, policy=policy, **PLUG_IN)
    assert math.isnan(solution.value)
    assert solution.value_bounds is None
    bounds = lg.solve(silent, 0.9, policy=policy, reward_range=(0, 1), **PLUG_IN).value_bounds
    assert bounds == pytest.approx((0.0, 1.0))
    assert solution.operator.logged_average is None
    assert "value not identified" in str(solution)
    with pytest.raises(ValueError, match="not identified"):
        lg.ridge_path(solution)
    logged = np.tile([1.0, 0, 0, 0], (3, 1))
    found = lg.solve(silent, 0.9, policy={"logged": logged, "elsewhere": policy}, **PLUG_IN)
    found.plot()
    assert np.isnan(found.interval().low).all()
    assert "not identified" in lg.report(found, plots=False)


def test_a_comparison_keeps_the_policies_it_can_judge(tmp_path):
    counts, elsewhere = log_of_one_action(n=60, keep_episodes=True)
    logged = np.tile([1.0, 0, 0, 0], (3, 1))
    found = lg.solve(counts, 0.9, policy={"elsewhere": elsewhere, "logged": logged}, reward=[1.0, 2.0, 3.0],
                     **PLUG_IN)  # fmt: skip
    assert found.best == "logged"
    assert found.ranking == ("logged", "elsewhere")
    both = found.interval()
    alone = lg.solve(counts, 0.9, policy=logged, reward=[1.0, 2.0, 3.0], **PLUG_IN).interval()
    assert both.standard_error[1] == pytest.approx(alone.standard_error)
    assert np.isnan([both.low[0], both.high[0]]).all()
    assert "elsewhere" in both.note
    # Nothing is known of it, so nothing rules it out.
    assert set(found.contenders()) == {"elsewhere", "logged"}
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["values"][0] is None
    assert "nan" in str(found)
    found.plot().savefig(tmp_path / "comparison.png")
    assert "logged" in lg.report(found)
    with pytest.raises(ValueError, match="no policy can be called the best"):
        _ = lg.solve(counts, 0.9, policy={"a": elsewhere, "b": elsewhere}, **PLUG_IN).best


def test_the_command_line_says_so(tmp_path):
    data, policy, logged = tmp_path / "log.csv", tmp_path / "policy.csv", tmp_path / "logged.csv"
    rows = ["state,action,next_state,reward,episode", "0,0,1,1,0", "1,0,0,1,0", "0,0,1,1,1", "1,0,0,1,1"]
    data.write_text("\n".join(rows))
    policy.write_text("0,1\n0,1\n")
    logged.write_text("1,0\n1,0\n")
    run, common = CliRunner().invoke, ["--gamma", "0.9", "--json"]
    ended = run(app, ["solve", str(data), "--policy", str(policy), "--level", "0.9", *common])
    assert ended.exit_code != 0
    told = json.loads(ended.stdout)
    assert told["value"] is None
    assert told["interval"]["low"] is None
    assert "value not identified" in ended.stderr
    ended = run(app, ["compare", str(data), str(policy), str(logged), *common])
    table = json.loads(ended.stdout)["table"]
    assert [row["value"] for row in table] == [pytest.approx(1.0), None]


def test_baselines_without_weight_claim_nothing():
    counts, policy = log_of_one_action(keep_episodes=True)
    behavior = np.full((3, 4), 0.25)
    for method in (baselines.step_wise, baselines.trajectory_wise):
        found = method(counts, 0.9, policy=policy, behavior=behavior)
        assert math.isnan(found.value)
        assert found.status is lg.Status.NOT_IDENTIFIED
    # A single episode shows no spread: no standard error, rather than 0.
    one = lg.Counts.from_transitions(
        [0, 1], [1, 0], [0, 0], [1.0, 2.0], [0, 0], n_actions=4, keep_episodes=True
    )
    for found in (
        baselines.naive_average(one, 0.9),
        baselines.step_wise(one, 0.9, policy=[[1.0, 0, 0, 0]] * 2, behavior=behavior[:2]),
        baselines.trajectory_wise(one, 0.9, policy=[[1.0, 0, 0, 0]] * 2, behavior=behavior[:2]),
    ):
        assert found.standard_error is None


def test_averages_of_the_log_leave_unknown_rewards_out():
    counts = lg.Counts.from_transitions([0, 1, 0, 1], [1, 0, 1, 0], reward=[3.0, 0.0, 3.0, 0.0])
    counts = replace(counts, reward_count=np.array([2, 0]))
    assert np.isnan(counts.reward[1])
    assert baselines.naive_average(counts).value == pytest.approx(3.0)
    assert lg.solve(counts).operator.logged_average == pytest.approx(3.0)


# -- a standard error of 0 is no certainty -----------------------------------------------------------


def failed(solution):
    return {check.name for check in lg.diagnose(solution) if not check.ok}


def test_a_standard_error_of_zero_fails_a_check():
    rng = np.random.default_rng(0)
    state, following, action = rng.integers(0, 3, 600), rng.integers(0, 3, 600), rng.integers(0, 2, 600)
    policy = np.full((3, 2), 0.5)

    def solved(state, following, action, logged, **more):
        counts = lg.Counts.from_transitions(state, following, action, logged, np.arange(state.size) // 20)
        return lg.solve(counts, 0.9, policy=policy, **PLUG_IN, **more)

    constant = solved(state, following, action, np.full(600, 0.1))
    assert constant.interval().standard_error == pytest.approx(0.0, abs=1e-12)
    assert "variation" in failed(constant)
    assert "every logged reward is 0.1" in str(constant)
    # Next states and rewards follow from state and action: no cell shows two outcomes.
    settled = solved(state, (state + 1) % 3, action, 1.0 * state, initial=np.eye(3)[0])
    assert settled.interval().standard_error == pytest.approx(0.0, abs=1e-12)
    assert "variation" in failed(settled)
    for noisy in (
        solved(state, following, action, 1.0 * state),
        solved(state, (state + 1) % 3, action, rng.normal(size=600)),
        solved(state, following, action, np.full(600, 0.1), reward=[0.0, 1.0, 2.0]),
    ):
        assert noisy.interval().standard_error > 1e-4
        assert "variation" not in failed(noisy)


def test_a_ridge_given_where_episodes_end_fails_a_check():
    state = np.tile(np.arange(10), 30)
    counts = lg.Counts.from_transitions(
        state, np.minimum(state + 1, 9), np.zeros_like(state), -np.ones(300), np.repeat(np.arange(30), 10),
        terminal=state == 9,
    )  # fmt: skip
    # Ten steps to the end: a ridge of 1e-3 makes 92 of them at gamma = .9999, and 9.6 of 9.6 at .9.
    cases = ((0.9999, 1e-3, True), (0.99, 0.02, True), (0.9, 1e-4, False), (0.9999, None, False))
    for gamma, ridge, off in cases:
        solution = lg.solve(counts, gamma, policy=np.ones((10, 1)), ridge=ridge)
        assert ("ridge at ends" in failed(solution)) == off


@pytest.mark.parametrize(
    "options", [{}, {"leak": "absorb"}, {"policy": [[1.0], [1.0]], "ridge": 0}, {"policy": [[1.0], [1.0]]}]
)
def test_bounds_count_cells_without_a_reward(options):
    """Two states in turn, and rewards of the first alone: the other may earn anything in the range.

    The bounds were 0.79 to 0.79, or none, as if the other earned nothing; no check of a value without a
    policy said that it rests on half of the mass.
    """
    ten, zeros, ones = np.arange(10), np.zeros(10, dtype=int), np.ones(10, dtype=int)
    sizes = {"n_states": 2, "n_actions": 1}
    rewarded = lg.Counts.from_transitions(zeros, ones, zeros, np.tile([1.0, 2.0], 5), ten, **sizes)
    silent = lg.Counts.from_transitions(ones, zeros, zeros, None, ten, **sizes)
    counts = rewarded.merge(silent)
    solution = lg.solve(counts, 0.9, initial=[1, 0], reward_range=(0, 10), **options)
    first = 1.0 / 1.9  # mass of the first state: (1 - gamma) / (1 - gamma^2)
    assert solution.value_bounds == pytest.approx((1.5 * first, 1.5 * first + 10 * (1 - first)))
    assert solution.value == pytest.approx(1.5)
    (check,) = (check for check in solution.diagnose() if check.name == "rewards")
    assert not check.ok
    assert check.number == pytest.approx(first)
    assert "missing in cells with 47.4% of" in check.sentence


def test_checks_of_an_unidentified_value_are_about_the_target():
    """They found all of its actions in the log, those of the effective policy, and all of the shift."""
    counts, policy = log_of_one_action(keep_episodes=True)
    solution = lg.solve(counts, 0.9, policy=policy)
    assert math.isnan(solution.value)
    checks = {check.name: check for check in solution.diagnose()}
    assert checks["coverage"].number == 0.0
    assert checks["shift from behavior"].number == 0.0
    assert "0.00% of the target's actions" in checks["coverage"].sentence


# -- other methods -------------------------------------------------------------------------------------

BASELINES = {
    "trajectory": baselines.trajectory_wise,
    "trajectory, unweighted": lambda *log, **at: baselines.trajectory_wise(*log, weighted=False, **at),
    "step": baselines.step_wise,
    "step, unweighted": lambda *log, **at: baselines.step_wise(*log, weighted=False, **at),
    "per decision": baselines.per_decision,
    "DualDICE": baselines.dual_dice,
    "GradientDICE": baselines.gradient_dice,
    "BestDICE": baselines.best_dice,
    "doubly robust": baselines.doubly_robust,
    "IPS": baselines.ips,
    "model": baselines.model_based,
    "first steps": lambda *log, **at: lg.solve(*log, horizon=4, **at),
    "features": lambda *log, **at: lg.solve(*log, features=np.eye(12), dual_features=np.eye(12), **at),
}


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_no_method_has_a_value_where_nothing_is_identified(method, gamma):
    """Importance sampling said 0 +- 0, solved and trusted; others gave weight to actions never wanted."""
    if gamma == 1.0 and method in ("DualDICE", "doubly robust"):
        return
    counts, policy = log_of_one_action(n=600)
    found = BASELINES[method](counts, gamma, policy=policy)
    assert math.isnan(found.value)
    assert found.status is lg.Status.NOT_IDENTIFIED
    assert not found.converged
    assert not found.trusted
    if getattr(found, "standard_error", None) is not None:
        assert math.isnan(found.standard_error)
        assert np.isnan(list(found.interval())).all()


def log_of_one_state_in_three(n=6000):
    """The target takes action 1, which is logged in state 0 alone."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, 3, n)
    action = np.where(state == 0, rng.integers(0, 2, n), 0)
    return lg.Counts.from_transitions(
        state, np.append(state[1:], 0), action, 1.0 + rng.normal(size=n), np.arange(n) // 6,
        n_states=3, n_actions=2,
    )  # fmt: skip


@pytest.mark.parametrize("method", [name for name in BASELINES if name != "features"])
def test_no_method_is_trusted_where_one_state_in_three_is_covered(method):
    found = BASELINES[method](log_of_one_state_in_three(), 0.9, policy=np.tile([0.0, 1.0], (3, 1)))
    assert not found.trusted, found.value
    if method == "DualDICE":  # 5 % of the mass, the rest of which it called no leak
        (check,) = (check for check in found.diagnose() if not check.ok)
        assert check.name == "mean ratio"
        assert "0.0" in check.sentence


def test_the_mean_of_weights_is_1_where_the_log_shows_the_target():
    """And what ends counts in: every episode ends after one to some steps."""
    rng = np.random.default_rng(1)
    n = 6000
    counts = lg.Counts.from_transitions(
        rng.integers(0, 3, n), rng.integers(0, 3, n), rng.integers(0, 2, n), rng.normal(size=n),
        np.arange(n) // 5, terminal=np.arange(n) % 5 == 4, n_states=3, n_actions=2,
    )  # fmt: skip
    for method in ("trajectory, unweighted", "step, unweighted", "per decision"):
        for horizon in (None, 3, 8):
            found = BASELINES[method](counts, 0.9, policy=np.tile([0.4, 0.6], (3, 1)), horizon=horizon)
            assert found.found.mean_ratio == pytest.approx(1.0, abs=0.03)
    for method in ("DualDICE", "GradientDICE", "BestDICE"):
        found = BASELINES[method](counts, 0.9, policy=np.tile([0.4, 0.6], (3, 1)))
        assert found.found.mean_ratio == pytest.approx(1.0, abs=1e-4)
        assert "mean ratio" not in failed(found)
