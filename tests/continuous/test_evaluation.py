"""The default over continuous states: every estimate, the interval, what fails loudly."""

from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import lingendice as lg
from lingendice.continuous import dynamics
from lingendice.continuous.dispatch import _headline
from lingendice.continuous.dynamics import fit_dynamics
from lingendice.continuous.evaluation import EFFORTS, EvaluationSettings
from lingendice.continuous.learner import NeuralOptions
from lingendice.continuous.outcome import RatioOutcome
from lingendice.continuous.samples import prepare
from lingendice.data.policies import GaussianPolicy
from lingendice.results.build import continuous_solution
from lingendice.solvers.control import Controls

QUICK = {"effort": "quick"}
TARGET = GaussianPolicy(lambda states: 0.5 * (1.0 - states), 0.3)
"""s' = .6 s + .2 + noise in ``pushed``: the stationary mean is .5."""


def pushed(seed=0, episodes=40, length=50):
    rng = np.random.default_rng(seed)
    state = np.empty((episodes, length + 1, 1))
    action = rng.normal(0.0, 0.5, size=(episodes, length, 1))
    state[:, 0] = rng.normal(0.0, 0.3, size=(episodes, 1))
    for t in range(length):
        state[:, t + 1] = 0.8 * state[:, t] + 0.4 * action[:, t] + rng.normal(0.0, 0.2, size=(episodes, 1))
    return lg.Transitions(
        state[:, :-1].reshape(-1, 1), action.reshape(-1, 1), state[:, :-1].ravel(),
        state[:, 1:].reshape(-1, 1), episode=np.repeat(np.arange(episodes), length),
    )  # fmt: skip


@pytest.fixture(scope="module")
def solution():
    return lg.solve(pushed(), 1.0, policy=TARGET, options=QUICK)


def test_every_estimate_is_in_the_table(solution):
    table = {one.name: one for one in solution.estimates}
    assert {"model", "ratio", "DR", "FQE", "naive"} <= set(table)
    assert solution.status is lg.Status.TRAINED
    assert solution.value == solution.evidence.value
    for name in ("model", "ratio", "DR", "FQE"):
        assert table[name].value == pytest.approx(0.5, abs=0.12), name
        assert table[name].seconds > 0.0
    assert table["naive"].value == pytest.approx(float(solution.transitions.reward.mean()))
    assert abs(solution.value - 0.5) < 0.25 * abs(table["naive"].value - 0.5)
    assert solution.tau.shape == (2000,)
    assert solution.mean_ratio == pytest.approx(1.0)
    assert "by DR" in str(solution)
    assert [one["name"] for one in solution.to_dict()["estimates"]] == list(table)
    assert pickle.loads(pickle.dumps(solution)).value == solution.value


def test_interval_adds_spread_to_noise_or_disagreement(solution):
    found = solution.interval(0.95)
    table = {one.name: one for one in solution.estimates}
    apart = max(table["DR"].standard_error, abs(table["DR"].value - table["model"].value))
    total = np.sqrt(np.var(solution.member_values, ddof=1) + apart**2)
    from scipy.stats import t

    assert found.high - found.estimate == pytest.approx(t.ppf(0.975, 39) * total)
    assert found.contains(0.5)
    assert found.standard_error == table["DR"].standard_error
    narrow = solution.interval(0.5)
    assert narrow.high - narrow.low < found.high - found.low
    with pytest.raises(ValueError, match="value only"):
        solution.interval(of="stationary")


@pytest.mark.parametrize(("method", "headline"), [("model", "model"), ("fqe", "FQE"), ("dr", "DR")])
def test_one_method_alone(method, headline):
    found = lg.solve(pushed(1), 0.9, policy=TARGET, method=method, options=QUICK)
    assert found.evidence.headline == headline
    assert found.method == method
    assert found.estimates[0].value == found.value
    assert np.isfinite(found.tau).all()
    if method == "model":
        with pytest.raises(ValueError, match='"auto"'):
            found.interval()


def test_same_seed_same_bits(solution):
    again = lg.solve(pushed(), 1.0, policy=TARGET, options=QUICK, threads=1)
    assert again.value == solution.value
    np.testing.assert_array_equal(again.tau, solution.tau)
    assert lg.solve(pushed(), 1.0, policy=TARGET, options=QUICK, seed=1).value != solution.value


def with_evidence(solution, **changes):
    evidence = dataclasses.replace(solution.evidence, **changes)
    fields = {entry.name for entry in dataclasses.fields(RatioOutcome)}
    known = {name: getattr(solution, name) for name in fields if hasattr(solution, name)}
    outcome = RatioOutcome(**{**known, "converged": True, "stopped": None, "evidence": evidence})
    return continuous_solution(outcome, Controls())


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"clipped": 0.06, "headline": "model"}, "within the log"),
        ({"clipped": 0.06, "headline": "FQE"}, "within the log"),
        ({"members": np.array([0.0, 1.0, 2.0]), "headline": "model"}, "agreement"),
        ({"headline": "FQE", "largest_q": 1.2}, "size of Q"),
        ({"headline": "FQE", "begun": 0.3}, "sweeps"),
        ({"headline": "DR", "ratio_mass": 0.4}, "mean ratio"),
    ],
)
def test_failures_are_loud(solution, changes, check):
    fine = with_evidence(solution, headline="model")
    assert fine.status is lg.Status.TRAINED
    failed = with_evidence(solution, **changes)
    assert failed.status is lg.Status.NOT_RELIABLE
    assert not failed.converged
    assert [one.name for one in failed.diagnose() if not one.ok] == [check]
    assert f"{failed.value:.6g}" not in failed.headline
    page = lg.report(failed, plots=False)
    assert "none to rely on" in page
    assert f"<strong>{failed.value:.6g}" not in page
    assert f"<strong>{fine.value:.6g}" in lg.report(fine, plots=False)


def test_a_value_that_nothing_audits_has_no_finite_interval(solution):
    lost = [one._replace(value=np.nan) if one.name == "DR" else one for one in solution.evidence.estimates]
    found = with_evidence(solution, estimates=tuple(lost)).interval()
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_every_interval_of_a_solve_that_ended_short_says_so(solution):
    short = dataclasses.replace(solution, gamma=0.9, status=lg.Status.TIME_LIMIT)
    for of in ("value", "return"):  # that of the return did not
        assert short.interval(of=of).note.endswith("(time limit), which is not allowed for")


def test_one_episode_has_no_interval():
    rng = np.random.default_rng(3)
    state = rng.normal(size=(60, 1))
    action = rng.normal(size=(60, 1))
    log = lg.Transitions(state, action, state[:, 0], 0.5 * state + action, episode=np.zeros(60))
    found = lg.solve(log, 0.5, policy=TARGET, options=QUICK)
    with pytest.raises(ValueError, match="the log is one episode"):
        found.interval()


def test_a_collapsed_ratio_is_not_headlined():
    # Two steps from a far start, with the ratio still near its beginning but the penalty ignored.
    options = {
        "batch": 64,
        "hidden": (8,),
        "learning_rate": 0.3,
        "holdout": 0.2,
        "report_every": 1,
        "base": "none",
    }
    found = lg.solve(
        pushed(2), 1.0, policy=TARGET, method="gendice", penalty=1e-9, max_iter=60, options=options
    )
    failed = [check.name for check in found.diagnose() if not check.ok]
    assert ("mean ratio" in failed) == (not 0.5 <= found.mean_ratio <= 2.0)
    decisive = {"mean ratio", "effective sample size", "held-out residual", "agreement"} & set(failed)
    assert (found.status is lg.Status.TRAINED) == (not decisive)
    assert decisive
    assert NeuralOptions().learning_rate == 1e-3


def test_episodes_that_end_before_a_state_is_drawn():
    """Near gamma = 1 all mass is past the ends: there is no simulated ratio, and the cloned one is shown."""
    rng = np.random.default_rng(4)
    state, action = rng.normal(size=(2, 90, 1))
    log = lg.Transitions(state, action, state[:, 0], state, episode=np.arange(90), terminal=np.ones(90, bool))
    found = lg.solve(log, 0.999999, policy=TARGET, method="model", options=QUICK)
    assert found.value == pytest.approx(1e-6 * state.mean(), abs=1e-7)
    assert np.isnan(found.evidence["ratio"].value)
    assert np.isfinite(found.tau).all()


def test_integers_and_missing_rewards_go_to_the_ratio():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 3, 201)
    found = lg.solve(lg.Transitions(ids[:-1], None, None, ids[1:]), 1.0, max_iter=5, options={"batch": 32})
    assert found.method == "gendice"
    with pytest.raises(ValueError, match="vectors"):
        lg.solve(lg.Transitions(ids[:-1], None, np.ones(200), ids[1:]), 1.0, method="model")
    points = rng.normal(size=(20, 1))
    with pytest.raises(ValueError, match="rewards"):
        lg.solve(lg.Transitions(points, None, None, points), 1.0, method="fqe")
    with pytest.raises(ValueError, match="'efort'"):
        lg.solve(pushed(), 1.0, policy=TARGET, options={"efort": "quick"})
    with pytest.raises(ValueError, match="effort"):
        lg.solve(pushed(), 1.0, policy=TARGET, options={"effort": "lazy"})


@pytest.mark.parametrize(
    "given", [{"divergence": "kl"}, {"penalty": 3.0}, {"ridge": 0.1}, {"bound": 2.0}, {"max_iter": 5}]
)
@pytest.mark.parametrize("method", ["auto", "model", "fqe", "dr"])
def test_what_a_value_does_not_depend_on_is_refused(method, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} does not apply"):
        lg.solve(pushed(), 1.0, policy=TARGET, method=method, options=QUICK, **given)


def test_time_limit_keeps_the_model():
    found = lg.solve(pushed(), 1.0, policy=TARGET, options=QUICK, time_limit=1e-6)
    assert found.status is lg.Status.TIME_LIMIT
    assert [one.name for one in found.estimates] == ["model"]
    assert np.isfinite(found.value)


def test_several_policies_share_the_model(solution, monkeypatch):
    fits = []
    monkeypatch.setattr(dynamics, "fit_dynamics", lambda *given: fits.append(1) or fit_dynamics(*given))
    policies = {"target": TARGET, "still": GaussianPolicy(lambda states: 0.0 * states, 0.5)}
    both = lg.solve(pushed(), 1.0, policy=policies, options=QUICK)
    assert both["target"].value == solution.value
    assert both.ranking == ("target", "still")
    assert both["still"].value == pytest.approx(0.0, abs=0.1)
    assert len(fits) == 1
    found = both.interval(0.95)
    assert found.contains(np.array([0.5, 0.0])).all()
    assert np.all(found.high - found.low >= [np.diff([*one.interval(0.9)])[0] for one in both])
    gain = both.difference("target", "still")
    assert gain.low < 0.5 < gain.high
    over = both.difference("target", "behavior")
    assert over.estimate == pytest.approx(solution.value - solution.behavior_value)
    rows = both.table()
    assert [row["policy"] for row in rows] == ["target", "still"]
    assert "target" in str(both)
    with pytest.raises(ValueError, match="empty"):
        lg.solve(pushed(), 1.0, policy={})
    listed = lg.solve(pushed(), 1.0, policy=list(policies.values()), method="model", options=QUICK)
    assert listed.names == (0, 1)
    np.testing.assert_array_equal(listed.values, [both[name].evidence["model"].value for name in policies])


@pytest.mark.parametrize(("gamma", "reliable"), [(0.95, True), (0.999, False), (1.0, True)])
def test_too_few_sweeps_for_the_horizon_are_told(gamma, reliable):
    found = lg.solve(pushed(2), gamma, policy=TARGET, method="fqe", options=QUICK)
    (check,) = [one for one in found.diagnose() if one.name == "sweeps"]
    assert check.ok == reliable
    assert found.converged == reliable
    # What is left of the first value after 500 sweeps that each move 0.15 of the way.
    left = 0.0 if gamma == 1.0 else gamma ** (0.15 * 500)
    assert found.evidence.begun == pytest.approx(left)


@pytest.mark.parametrize(("gamma", "headline"), [(0.95, "FQE"), (0.999, "model"), (1.0, "FQE")])
def test_a_doubted_model_is_not_replaced_by_an_unfinished_q(gamma, headline):
    evaluation = SimpleNamespace(
        samples=prepare(pushed(3), TARGET, gamma),
        settings=EvaluationSettings("auto", EFFORTS["quick"]),
        rollout=SimpleNamespace(value=0.5, members=np.array([0.5, 0.5]), clipped=0.2),
        q_of_log=SimpleNamespace(value=0.4, members=np.array([0.4, 0.4]), largest=0.5),
    )
    assert _headline(evaluation, ["model", "DR", "FQE"])[0] == headline


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ends", [False, True])
def test_what_the_behavior_earned_is_one_number(gamma, ends):
    """Of one log ``naive`` was the plain mean reward by one method, discounted by another."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 9, 40)
    n, episode = int(lengths.sum()), np.repeat(np.arange(40), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    state, following, action = rng.integers(0, 3, n), rng.integers(0, 3, n), rng.integers(0, 2, n)
    is_last = np.append(np.diff(episode) > 0, True)
    following[:-1] = np.where(is_last[:-1], following[:-1], state[1:])
    flags = {"terminal": is_last & (rng.random(40)[episode] < 0.5)} if ends else {}
    log = {"state": state, "next_state": following, "action": action, "reward": 1.0 * (state + step + action)}
    vectors = {"state": state[:, None] / 2, "next_state": following[:, None] / 2}
    points = lg.Transitions(**(log | vectors), **flags, episode=episode)
    # By hand: an episode that ended earns nothing for good, one that was cut off is not followed.
    earned = np.bincount(episode, gamma**step * points.reward).sum()
    spans = []
    for k, length in enumerate(lengths):
        ended = ends and flags["terminal"][episode == k].any()
        forever = ended and gamma < 1.0
        spans.append(1 / (1 - gamma) if forever else sum(gamma**t for t in range(length)))
    options = {"gendice": {"max_iter": 5}, "fqe": {"options": QUICK}}
    found = {
        method: lg.solve(points, gamma, policy=[0.5, 0.5], method=method, **options.get(method, {}))
        for method in ("gendice", "fqe")
    }
    for method, solution in found.items():
        (naive,) = [one.value for one in solution.estimates if one.name == "naive"]
        assert naive == pytest.approx(earned / sum(spans), rel=1e-6), method
        assert solution.behavior_value == naive
    counts = lg.Counts.from_transitions(**log, **flags, episode=episode)
    assert lg.baselines.naive_average(counts, gamma).value == pytest.approx(earned / sum(spans))
