"""Neural and linear estimates on problems whose answers are known, and what training promises."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from dataclasses import fields, replace

import numpy as np
import pytest
from neural_problems import SMALL, small_mdp

import lingendice as lg
from lingendice.baselines import (
    clone_log_density,
    model_based,
    neural_dual_dice,
    neural_importance_sampling,
)
from lingendice.continuous.learner import NeuralOptions
from lingendice.data.policies import GaussianPolicy
from lingendice.data.saving import read_archive


def gaussian_chain(n, rng):
    """s' = 0.8 s + 0.6 e has the distribution N(0, 1); the data lie at N(0.4, 1.2^2)."""
    state = rng.normal(0.4, 1.2, n)
    following = 0.8 * state + 0.6 * rng.normal(size=n)
    ratio = 1.2 * np.exp(-0.5 * state**2 + 0.5 * ((state - 0.4) / 1.2) ** 2)
    return lg.Transitions(state, None, state**2, following), ratio


def test_ratio_of_gaussian_distributions():
    transitions, ratio = gaussian_chain(8000, np.random.default_rng(0))
    solution = lg.solve(transitions, 1.0, method="gendice", max_iter=3000, options=SMALL)
    assert solution.status is lg.Status.TRAINED
    assert solution.value == pytest.approx(1.0, abs=0.1)
    assert solution.mean_ratio == pytest.approx(1.0, abs=0.05)
    assert np.mean(np.abs(solution.tau - ratio)) < 0.12
    at = solution.ratio(transitions.state[:50], None)
    np.testing.assert_allclose(at, solution.tau[:50], rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_tabular_answer_from_one_hot_states(gamma):
    transitions, counts, policy = small_mdp(np.random.default_rng(1))
    exact = lg.solve(counts, gamma, policy=policy, ratio="state_action", ridge=0.0)
    options = {**SMALL, "base": "none"}
    solution = lg.solve(transitions, gamma, policy=policy, method="gendice", max_iter=2000, options=options)
    assert solution.value == pytest.approx(exact.value, abs=0.03)
    cells = transitions.state * 2 + transitions.action
    assert np.mean(np.abs(solution.tau - exact.tau[cells])) < 0.05


def test_linear_features_find_the_same_answers():
    transitions, ratio = gaussian_chain(3000, np.random.default_rng(2))
    solution = lg.solve(transitions, 1.0, method="linear")
    assert solution.value == pytest.approx(1.0, abs=0.1)
    assert np.mean(np.abs(solution.tau - ratio)) < 0.12
    transitions, counts, policy = small_mdp(np.random.default_rng(1), n=3000)
    exact = lg.solve(counts, 0.9, policy=policy, ratio="state_action", ridge=0.0)
    one_hot = lambda x: (x[:, :3, None] * x[:, None, 3:]).reshape(len(x), 6).astype(float)  # noqa: E731
    solution = lg.solve(transitions, 0.9, policy=policy, method="linear", features=one_hot)
    assert solution.value == pytest.approx(exact.value, abs=1e-6)
    np.testing.assert_allclose(solution.tau, exact.tau[transitions.state * 2 + transitions.action], atol=1e-5)


@pytest.mark.parametrize(
    ("objective", "status"),
    [({"bound": 1e-6}, lg.Status.BOUND_TOO_SMALL), ({"penalty": 0.0}, lg.Status.UNBOUNDED)],
)
def test_linear_ratios_that_cannot_be_found_are_not_called_solved(objective, status):
    transitions, _ = gaussian_chain(200, np.random.default_rng(2))
    assert lg.solve(transitions, 1.0, method="linear", **objective).status is status


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": lambda x: x}, r"features\[\d+, 0\] is -\S+, which is negative; tau = features @ w"),
        ({"features": lambda x: np.full((len(x), 2), np.nan)}, r"features\[0, 0\] is nan"),
        ({"features": lambda x: np.ones((3, 2))}, r"features must have one row per cell, shape \(60, d\)"),
        ({"features": np.ones((60, 2))}, "features must be the name of a builder"),
        ({"dual_features": lambda x: np.full(len(x), np.inf)}, r"dual_features\[0, 0\] is inf"),
        ({"options": {"standardize": "no"}}, r"options\['standardize'\] must be True or False"),
    ],
)
def test_features_are_checked(given, message):
    """Negative ones made a ratio of the objective's other side, with overflows on the way."""
    state = np.random.default_rng(10).normal(size=(60, 1))
    log = lg.Transitions(state, next_state=0.5 * state)
    with pytest.raises(ValueError, match=message):
        lg.solve(log, method="linear", **given)


@pytest.mark.parametrize("method", ["gendice", "linear"])
def test_ratios_are_asked_for_as_they_were_logged(method):
    """One coordinate stood for all three, and a chain took actions without a word."""
    rng = np.random.default_rng(9)
    state, action = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    log = lg.Transitions(state, action, None, 0.5 * state, initial_state=state[:5])
    options = (
        {"batch": 8, "hidden": 4, "base": "none"}
        if method == "gendice"
        else {"n_features": 5, "n_dual_features": 3}
    )
    given = {"method": method, "max_iter": 2, "options": options}
    found = lg.solve(log, 0.9, policy=GaussianPolicy(lambda s: s[:, :2], 0.5), **given)
    np.testing.assert_allclose(found.ratio(state, action), found.tau, rtol=1e-5)
    with pytest.raises(ValueError, match=r"state has shape \(2, 1\); give one row of 3 coordinates"):
        found.ratio(state[:2, :1], action[:2])
    with pytest.raises(ValueError, match=r"state has shape \(3,\)"):
        found.ratio(state[0], action[0])
    with pytest.raises(ValueError, match=r"action has shape \(2,\); give one row of 2 coordinates"):
        found.ratio(state[:2], action[:2, 0])
    with pytest.raises(ValueError, match="action has 3 rows but state has 2"):
        found.ratio(state[:2], action[:3])
    chain = lg.solve(lg.Transitions(state, next_state=state, initial_state=state[:5]), 0.9, **given)
    with pytest.raises(ValueError, match="action is given, but the transitions have none"):
        chain.ratio(state[:2], action[:2])


def test_terminal_states_are_absorbed_or_restarted():
    rng = np.random.default_rng(3)
    # From 0 the chain stays or ends with probability 1/2 each, at reward 1 per step: V = 1 / (1 - gamma / 2).
    n = 4000
    ends = rng.random(n) < 0.5
    transitions = lg.Transitions(
        np.zeros(n, int), None, np.ones(n), np.zeros(n, int), initial_state=[0], terminal=ends
    )
    truth = (1 - 0.9) / (1 - 0.9 * np.mean(~ends))
    one = lambda x: np.ones((len(x), 1))  # noqa: E731
    linear = lg.solve(transitions, 0.9, method="linear", features=one)
    assert linear.value == pytest.approx(truth, abs=1e-6)
    neural = lg.solve(transitions, 0.9, method="gendice", max_iter=600, options=SMALL)
    assert neural.value == pytest.approx(truth, abs=0.02)
    assert lg.solve(transitions, 1.0, method="linear", features=one).value == pytest.approx(1.0)
    with pytest.raises(ValueError, match="restart"):
        lg.solve(transitions, 1.0, method="linear", terminal="absorb")


def test_sampled_and_gaussian_policies_agree():
    rng = np.random.default_rng(4)
    state, action = rng.normal(size=(4000, 1)), rng.normal(size=(4000, 1))
    following = 0.5 * state + 0.3 * action + 0.5 * rng.normal(size=(4000, 1))
    transitions = lg.Transitions(state, action, action[:, 0], following)
    gaussian = GaussianPolicy(lambda s: 0.5 + 0.0 * s, 0.5)
    values = [
        lg.solve(transitions, 1.0, policy=policy, method="gendice", max_iter=1500, options=SMALL).value
        for policy in (gaussian, lambda s, generator: 0.5 + 0.5 * generator.normal(size=s.shape))
    ]
    assert values[0] == pytest.approx(0.5, abs=0.08)
    assert values[0] == pytest.approx(values[1], abs=0.08)


def test_checkpoint_resumes_to_the_bit(tmp_path):
    transitions, _ = gaussian_chain(500, np.random.default_rng(5))
    path = tmp_path / "training.npz"
    options = {**SMALL, "report_every": 20, "ensemble": 2}
    whole = lg.solve(transitions, 1.0, method="gendice", max_iter=60, options=options)
    partial = {**options, "checkpoint": path, "on_interrupt": "return"}
    with np.errstate(all="ignore"):
        lg.solve(transitions, 1.0, method="gendice", max_iter=60, time_limit=1e-9, options=partial)
    assert not path.exists()
    lg.solve(transitions, 1.0, method="gendice", max_iter=60, options=partial)
    rest = _cut_back(path, transitions, options, steps=40)
    np.testing.assert_array_equal(rest.tau, whole.tau)
    assert [len(history) for history in rest.history] == [3, 3]
    with pytest.raises(ValueError, match="seed"):
        lg.solve(transitions, 1.0, method="gendice", max_iter=60, seed=1, options={**partial, "resume": True})
    # One number in the middle of the data differs.
    reward = transitions.reward.copy()
    reward[300] += 1e-9
    other = lg.Transitions(transitions.state, None, reward, transitions.next_state)
    with pytest.raises(ValueError, match="data"):
        lg.solve(other, 1.0, method="gendice", max_iter=60, options={**partial, "resume": True})
    assert read_archive(path, "training")[1]["seed"] == 0
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        lg.solve(transitions, 1.0, method="gendice", max_iter=60, options={**partial, "resume": True})


OTHER_TRAINING = {
    "hidden": (4,), "activation": "relu", "output": "exp", "batch": 32, "learning_rate": 2e-3,
    "dual_learning_rate": 2e-3, "momentum": 0.5, "decay": False, "clip": 0.5, "average": 0.25, "holdout": 0.2,
    "ensemble": 2, "standardize": False, "base": "cloned", "preset": "paper",
}  # fmt: skip
SAME_TRAINING = {"checkpoint", "resume", "report_every", "on_interrupt"}


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory):
    """Transitions with actions, their policy, and a checkpoint of some steps."""
    rng = np.random.default_rng(8)
    state, action = rng.normal(size=(300, 1)), rng.normal(size=(300, 1))
    following = 0.5 * state + 0.3 * action + 0.5 * rng.normal(size=(300, 1))
    transitions = lg.Transitions(state, action, action[:, 0], following, episode=np.repeat(np.arange(15), 20))
    policy, path = GaussianPolicy(lambda s: 0.5 + 0.0 * s, 0.5), tmp_path_factory.mktemp("kept") / "half.npz"
    options = {**SMALL, "checkpoint": path, "base": "none"}
    lg.solve(transitions, 0.9, policy=policy, method="gendice", max_iter=4, options=options)
    return transitions, policy, {**options, "resume": True}


def test_every_option_of_training_is_tried_below():
    known = {entry.name for entry in fields(NeuralOptions)}
    assert known == SAME_TRAINING | set(OTHER_TRAINING)


@pytest.mark.parametrize("name", OTHER_TRAINING)
def test_a_checkpoint_refuses_other_options(half_trained, name):
    transitions, policy, options = half_trained
    with pytest.raises(ValueError, match=r"half\.npz was written with"):
        lg.solve(transitions, 0.9, policy=policy, method="gendice", max_iter=4,
                 options={**options, name: OTHER_TRAINING[name]})  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("bound", {"bound": 0.5, "penalty": 10.0}),
        ("penalty", {"penalty": 2.0}),
        ("ridge", {"ridge": 0.1}),
        ("divergence", {"divergence": "kl"}),
        ("gamma", {"gamma": 0.95}),
        ("steps", {"max_iter": 5}),
        ("seed", {"seed": 1}),
    ],
)
def test_a_checkpoint_names_what_differs(half_trained, name, changed):
    transitions, policy, options = half_trained
    given = {"gamma": 0.9, "policy": policy, "method": "gendice", "max_iter": 4} | changed
    given["options"] = options | changed.get("options", {})
    with pytest.raises(ValueError, match=f"written with {name} = "):
        lg.solve(transitions, **given)


def test_a_checkpoint_knows_episodes_and_sampled_policies(half_trained, tmp_path):
    transitions, policy, options = half_trained
    other = replace(transitions, episode=np.repeat(np.arange(20), 15))
    with pytest.raises(ValueError, match="written with data"):
        lg.solve(other, 0.9, policy=policy, method="gendice", max_iter=4, options=options)
    options = options | {"checkpoint": tmp_path / "sampled.npz"}

    def target(mean):
        return lambda s, generator: mean + 0.5 * generator.normal(size=s.shape)

    lg.solve(transitions, 0.9, policy=target(0.5), method="gendice", max_iter=4, options=options)
    lg.solve(transitions, 0.9, policy=target(0.5), method="gendice", max_iter=4, options=options)
    with pytest.raises(ValueError, match="written with policy actions"):
        lg.solve(transitions, 0.9, policy=target(0.6), method="gendice", max_iter=4, options=options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 32.5}, r"options\['batch'\] must be a whole number"),
        ({"average": "half"}, r"options\['average'\] must be a number"),
        ({"holdout": None}, r"options\['holdout'\] must be a number"),
        ({"momentum": 1.0}, r"options\['momentum'\] must lie in \[0, 1\)"),
        ({"decay": "no"}, r"options\['decay'\] must be True or False"),
        ({"standardize": 0.5}, r"options\['standardize'\] must be True or False"),
        ({"hidden": None}, r"options\['hidden'\] must be a whole number"),
        ({"hidden": []}, "at least one layer"),
    ],
)
def test_options_of_training_are_named(given, message):
    log = lg.Transitions([0.0, 1.0], next_state=[1.0, 0.0])
    with pytest.raises(ValueError, match=message):
        lg.solve(log, method="gendice", max_iter=1, options=given)


def test_whole_numbers_may_be_floats():
    log = lg.Transitions(np.arange(20) % 7 / 3.0, next_state=np.arange(20) % 5 / 2.0)
    options = {"batch": 16, "ensemble": 2, "report_every": 1, "hidden": (4,)}
    plain = lg.solve(log, method="gendice", max_iter=2, options=options)
    floats = {"batch": 16.0, "ensemble": 2.0, "report_every": None, "hidden": np.array([4.0])}
    assert lg.solve(log, method="gendice", max_iter=2, options=floats).tau.tolist() == plain.tau.tolist()


def _cut_back(path, transitions, options, steps):
    """Write a checkpoint of the first steps of the same plan, and go on from it."""
    from lingendice.continuous.learner import gendice, read_neural_options
    from lingendice.continuous.samples import prepare
    from lingendice.continuous.train import Training
    from lingendice.solvers.control import Controls

    chosen = read_neural_options({**options, "checkpoint": path, "base": "none"})
    samples = prepare(transitions, None, 1.0)
    objective = gendice(1.0, "chi2", "square", 1.0, 0.0, None)
    training = Training(samples, objective, chosen, Controls(max_iter=60), 0)
    for _ in range(steps // 20):
        training._advance(20)
        training._report()
    return lg.solve(
        transitions,
        1.0,
        method="gendice",
        max_iter=60,
        options={**options, "checkpoint": path, "resume": True},
    )


def test_interrupt_keeps_the_best():
    transitions, _ = gaussian_chain(2000, np.random.default_rng(6))

    def later():
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    lg.solve(transitions, 1.0, method="gendice", max_iter=2, options=SMALL)
    threading.Thread(target=later).start()
    with pytest.raises(lg.Interrupted) as caught:
        lg.solve(transitions, 1.0, method="gendice", max_iter=10**7, options={**SMALL, "report_every": 50})
    assert caught.value.solution.status is lg.Status.INTERRUPTED
    assert np.isfinite(caught.value.solution.value)


def test_ensembles_spread_and_solutions_travel(capsys):
    transitions, _ = gaussian_chain(600, np.random.default_rng(7))
    arguments = {
        "gamma": 1.0,
        "method": "gendice",
        "max_iter": 40,
        "options": {**SMALL, "ensemble": 3, "holdout": 0.2},
    }
    solution = lg.solve(transitions, threads=1, **arguments)
    again = lg.solve(transitions, threads=3, **arguments)
    np.testing.assert_array_equal(solution.members, again.members)
    assert solution.spread == pytest.approx(np.std(solution.member_values, ddof=1))
    assert json.loads(json.dumps(solution.to_dict(), allow_nan=False))["n_iter"] == 40
    assert "spread" in str(solution)
    copy = pickle.loads(pickle.dumps(solution))
    np.testing.assert_array_equal(copy.ratio(transitions.state[:3]), solution.ratio(transitions.state[:3]))
    assert capsys.readouterr() == ("", "")


def test_dual_dice_finds_the_discounted_ratio():
    transitions, counts, policy = small_mdp(np.random.default_rng(8))
    exact = lg.solve(counts, 0.9, policy=policy, ratio="state_action", ridge=0.0)
    solution = neural_dual_dice(transitions, 0.9, policy=policy, max_iter=2000, options=SMALL)
    assert solution.value == pytest.approx(exact.value, abs=0.05)
    with pytest.raises(ValueError, match="gamma < 1"):
        neural_dual_dice(transitions, 1.0, policy=policy)


def test_importance_sampling_clones_the_behavior():
    rng = np.random.default_rng(9)
    n, length = 400, 5
    state = rng.normal(size=(n * length, 1))
    chance = 1.0 / (1.0 + np.exp(-state[:, 0]))
    action = (rng.random(n * length) < chance).astype(int)
    transitions = lg.Transitions(
        state, action, action.astype(float), state, episode=np.repeat(np.arange(n), length)
    )
    log_density = clone_log_density(transitions, steps=500, batch=512)
    truth = np.log(np.where(action == 1, chance, 1.0 - chance))
    assert np.mean(np.abs(log_density - truth)) < 0.08
    estimate = neural_importance_sampling(
        transitions, 1.0, policy=np.array([0.3, 0.7]), clone_options={"steps": 500, "batch": 512}
    )
    assert estimate.value == pytest.approx(0.7, abs=0.1)
    given = neural_importance_sampling(
        transitions, 0.9, policy=np.array([0.3, 0.7]), behavior_log_density=truth
    )
    assert given.value == pytest.approx(0.7, abs=0.1)


def test_gaussian_clone_and_model():
    rng = np.random.default_rng(10)
    n = 3000
    state = rng.normal(size=(n, 1))
    action = 0.5 * state + 0.4 * rng.normal(size=(n, 1))
    following = 0.5 * state + 0.5 * action + 0.3 * rng.normal(size=(n, 1))
    transitions = lg.Transitions(
        state, action, state[:, 0] + action[:, 0], following, initial_state=np.zeros((10, 1))
    )
    log_density = clone_log_density(transitions, steps=500, batch=512)
    truth = GaussianPolicy(lambda s: 0.5 * s, 0.4).log_density(state, action)
    assert np.mean(np.abs(log_density - truth)) < 0.08
    # Under a = 0.2: s has the stationary mean 0.2, so that the reward's mean is 0.4.
    policy = GaussianPolicy(lambda s: 0.2 + 0.0 * s, 0.1)
    estimate = model_based(transitions, 1.0, policy=policy, effort="quick")
    assert estimate.value == pytest.approx(0.4, abs=0.05)


def test_progress_shows_value_residual_and_time_left(capsys, monkeypatch):
    transitions, _ = gaussian_chain(500, np.random.default_rng(11))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    options = {**SMALL, "report_every": 20, "holdout": 0.2}
    solution = lg.solve(transitions, 1.0, method="gendice", max_iter=3000, progress=True, options=options)
    shown = [line for line in capsys.readouterr().err.split("\r") if "value" in line]
    found = re.search(r"step ([\d,]+), of 3,000, value (\S+), residual (\S+), (\d+) s left", shown[-1])
    step = int(found[1].replace(",", ""))
    # The line shows the report before it, or that of its own step.
    reports = [entry for entry in solution.history[0] if entry.step <= step]
    assert float(found[2]) == pytest.approx(reports[-1].value, rel=1e-3)
    assert float(found[3]) == pytest.approx(reports[-1].residual, rel=1e-2)
