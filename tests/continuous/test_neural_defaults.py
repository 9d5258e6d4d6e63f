"""GenDICE's networks as they come: what the options that are left out are, and what counts as trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from neural_problems import small_mdp

import lingendice as lg
from lingendice.continuous.learner import (
    NeuralOptions,
    gendice,
    gendice_terms,
    read_neural_options,
)
from lingendice.continuous.outcome import Gain
from lingendice.continuous.samples import prepare
from lingendice.continuous.train import Training, WatchedRows, split_rows
from lingendice.data.policies import GaussianPolicy
from lingendice.solvers.control import Controls


def drifting_log(seed: int, episodes: int = 60, length: int = 50) -> lg.Transitions:
    """s' = .9 s + .3 a + noise, reward s, from s = 0; actions around 0, of spread .7."""
    rng = np.random.default_rng(seed)
    state, rows = np.zeros(episodes), []
    for _ in range(length):
        action = 0.7 * rng.normal(size=episodes)
        following = 0.9 * state + 0.3 * action + 0.1 * rng.normal(size=episodes)
        rows.append((state, action, following))
        state = following
    s, a, after = (np.stack(part, axis=1).ravel()[:, None] for part in zip(*rows, strict=True))
    return lg.Transitions(s, a, s[:, 0], after, episode=np.repeat(np.arange(episodes), length))


TARGET = GaussianPolicy(lambda states: 0.0 * states[:, :1] + 0.25, 0.6)
"""Its states have the mean 0.75; those of the behavior 0."""


def training_of(log: lg.Transitions, gamma: float, steps: int, base: np.ndarray, **options) -> Training:
    samples = replace(prepare(log, TARGET, gamma), base=base)
    chosen = NeuralOptions(base="cloned", **options)
    objective = gendice(gamma, "chi2", "square", *gendice_terms(chosen, None, None, None))
    training = Training(samples, objective, chosen, Controls(max_iter=steps), 0)
    training.run()
    return training


@pytest.fixture(scope="module")
def solved() -> dict[str, lg.ContinuousSolution]:
    """One log, with networks trained as they come, and hardly at all."""
    log, common = drifting_log(0), {"policy": TARGET, "method": "gendice", "threads": 1}
    idle = {"learning_rate": 1e-12, "dual_learning_rate": 1e-3}
    return {
        "default": lg.solve(log, 1.0, **common),
        "idle": lg.solve(log, 1.0, options=idle, **common),
        "short": lg.solve(log, 1.0, max_iter=1, **common),
    }


def gain_check(solution: lg.ContinuousSolution):
    return next(check for check in solution.diagnose() if check.name == "gain over the base")


def test_the_default_trains(solved):
    found = solved["default"]
    assert found.status is lg.Status.TRAINED
    assert 0.9 < found.mean_ratio < 1.1
    assert found.n_iter == round(230 * 2700 / 512)  # six of sixty episodes are held out
    assert gain_check(found).ok
    base, reward = found.details["base"], found.transitions.reward
    # The base stops short of the true value: products over longer windows rest on too few rows.
    assert abs(found.value - 0.75) < 0.9 * abs(np.average(reward, weights=base) - 0.75)


@pytest.mark.parametrize("name", ["idle", "short"])
def test_a_base_that_was_left_as_it_is_does_not_count_as_trained(solved, name):
    found = solved[name]
    assert 0.9 < found.mean_ratio < 1.1  # by its mass alone it would pass
    check = gain_check(found)
    assert not check.ok
    assert found.status is lg.Status.NOT_RELIABLE


def test_the_gain_is_the_share_of_a_known_imbalance():
    """Ratios between the base and the right one, of which f sees as much as lies between them."""
    log = drifting_log(1)
    training = training_of(log, 1.0, 5, np.ones(len(log)) + 0.1 * (np.arange(len(log)) % 2))
    learner = training.learners[0]
    whole = WatchedRows(training.samples, np.arange(len(log)), 0)
    before, gram = whole.imbalance(learner, whole.base)
    # The same sums, row by row in plain numbers.
    phi = whole._features(learner, whole.logged)
    arrived = whole._features(learner, whole.following[0][:, 0])
    expected = np.mean([b * (y - x) for b, x, y in zip(whole.base, phi, arrived, strict=True)], axis=0)
    np.testing.assert_allclose(before.mean(axis=0), expected, atol=1e-12)
    along = np.linalg.solve(gram, before.mean(axis=0))
    for share in (0.0, 0.3, 1.0):
        after = whole.imbalance(learner, (1.0 - share) * whole.base)[0] @ along
        assert 1.0 - after.mean() / (before @ along).mean() == pytest.approx(share, abs=1e-9)


def test_the_noise_of_an_imbalance_counts_episodes():
    log = drifting_log(2, episodes=10, length=20)
    rows = WatchedRows(prepare(log, TARGET, 1.0), np.arange(200), 0)
    values = np.repeat(np.arange(10.0), 20)
    assert rows.standard_error(values) == pytest.approx(np.arange(10.0).std(ddof=1) / math.sqrt(10))


def test_held_out_episodes_are_not_trained_on():
    training = training_of(drifting_log(3, episodes=40), 0.9, 1, 1.0 + 0.1 * (np.arange(2000) % 2))
    trained, held = split_rows(training.samples, 0.1, 0)
    episode = training.samples.transitions.episode
    assert not set(episode[trained]) & set(episode[held])
    np.testing.assert_array_equal(np.unique(training.held_out.unit), np.unique(episode[held]))


@pytest.mark.parametrize(
    ("gain", "ok"),
    [
        (Gain(0.6, True, 0.6, 0.3, 200.0), True),
        (Gain(0.05, True, 0.6, 0.3, 200.0), False),
        (Gain(-2.0, False, 0.4, 0.3, 200.0), True),
        (Gain(0.9, False, 0.1, 0.3, 200.0), False),
        (Gain(-2.0, True, 0.0, 0.001, 200.0), True),
        (Gain(0.9, True, 0.9, 0.001, 0.1), False),
    ],
)
def test_what_the_check_rests_on(solved, gain, ok):
    assert gain_check(replace(solved["default"], gains=(gain,))).ok is ok


def test_terms_follow_the_bound():
    cloned, plain = NeuralOptions(base="cloned"), NeuralOptions(base="none")
    assert gendice_terms(cloned, None, None, None) == pytest.approx((3.0, 0.03, 0.3))
    assert gendice_terms(plain, None, None, None) == (10.0, 0.0, 1.0)
    assert gendice_terms(cloned, None, None, 2.0) == pytest.approx((20.0, 0.2, 2.0))
    assert gendice_terms(cloned, 1.0, 0.0, None) == (1.0, 0.0, 0.3)
    paper = read_neural_options({"preset": "paper"})
    assert gendice_terms(paper, None, None, None) == (1.0, 0.0, None)
    assert gendice_terms(paper, 2.0, 0.5, 4.0) == (2.0, 0.5, 4.0)


def test_the_preset_of_the_paper():
    paper = read_neural_options({"preset": "paper", "batch": 64})
    assert (paper.learning_rate, paper.dual_learning_rate, paper.momentum) == (3e-3, 3e-3, 0.9)
    assert (paper.base, paper.batch, paper.planned_steps(5000)) == ("none", 64, 10_000)
    transitions, _, policy = small_mdp(np.random.default_rng(1), n=400)
    options = {"preset": "paper", "hidden": (4,), "batch": 32}
    found = lg.solve(transitions, 1.0, policy=policy, method="gendice", max_iter=3, options=options)
    assert found.details["penalty"] == 1.0
    assert np.ptp(found.details["base"]) == 0.0
    assert found.gains == ()
    with pytest.raises(ValueError, match="preset"):
        read_neural_options({"preset": "published"})


def test_a_penalty_of_one_is_not_the_default():
    transitions, _, policy = small_mdp(np.random.default_rng(1), n=400)
    common = {"policy": policy, "method": "gendice", "max_iter": 2, "options": {"hidden": (4,), "batch": 32}}
    assert lg.solve(transitions, 1.0, penalty=1.0, **common).details["penalty"] == 1.0
    assert lg.solve(transitions, 1.0, **common).details["penalty"] == pytest.approx(3.0)


def test_without_a_density_there_is_no_base():
    log = drifting_log(4, episodes=12, length=10)
    options = {"hidden": (4,), "batch": 16}
    sampled = lg.solve(log, policy=lambda s, rng: s, method="gendice", max_iter=2, options=options)
    assert np.ptp(sampled.details["base"]) == 0.0
    assert sampled.ratio(log.state[:2], log.action[:2]).shape == (2,)
    assert (
        np.ptp(lg.solve(log, policy=TARGET, method="gendice", max_iter=2, options=options).details["base"])
        > 0
    )


@pytest.mark.parametrize(("rows", "steps"), [(100, 500), (4500, 2021), (10**8, 50_000)])
def test_steps_follow_the_log(rows, steps):
    assert NeuralOptions().planned_steps(rows) == steps
