"""method="auto" on transitions: linear features where rows held out agree with them, else networks."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.data.policies import GaussianPolicy

QUICK = {"batch": 64, "hidden": (8,)}


def steered(rng, n=2500):
    """s' = .9 s + .3 a + .3 e under broad actions; the target below acts sharply, with E s = .6."""
    state, action, following = np.empty((3, n, 1))
    at = np.zeros(1)
    for t in range(n):
        state[t] = at
        action[t] = 0.2 - 0.5 * at + 0.4 * rng.normal()
        at = following[t] = 0.9 * at + 0.3 * action[t] + 0.3 * rng.normal()
    return lg.Transitions(state, action, state[:, 0], following)


TARGET = GaussianPolicy(lambda states: 0.5 - 0.5 * states, 0.1)


def test_linear_features_follow_a_sharp_policy():
    transitions = steered(np.random.default_rng(21))
    solution = lg.solve(transitions, 1.0, policy=TARGET)
    assert solution.method == "linear"
    assert "features hold" in solution.reason
    assert transitions.reward.mean() < 0.35
    assert solution.value == pytest.approx(0.6, abs=0.12)
    assert solution.mean_ratio == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (TARGET, {"n_features": 12}),  # too coarse for the ratio
        (GaussianPolicy(lambda states: 3.0 + 0.0 * states, 0.1), {}),  # acts where there are no data
    ],
    ids=["coarse", "off the data"],
)
def test_features_that_do_not_hold_are_refused(policy, options):
    transitions = steered(np.random.default_rng(22), 1500)
    solution = lg.solve(transitions, 1.0, policy=policy, max_iter=2, options={**QUICK, **options})
    assert solution.method == "neural"
    assert "do not hold" in solution.reason


def test_what_cannot_be_judged_goes_to_networks():
    transitions = steered(np.random.default_rng(23), 100)
    solution = lg.solve(transitions, 1.0, policy=TARGET, max_iter=2, options=QUICK)
    assert (solution.method, "too few" in solution.reason) == ("neural", True)
    with pytest.raises(ValueError, match="n_bumps"):
        lg.solve(steered(np.random.default_rng(24), 600), 1.0, policy=TARGET, options={"n_bumps": 3})


def test_time_limit_within_the_trial_keeps_all_rows():
    transitions = steered(np.random.default_rng(25), 600)
    solution = lg.solve(transitions, 1.0, policy=TARGET, time_limit=1e-9)
    assert solution.tau.shape == (600,)
    assert solution.status is lg.Status.TIME_LIMIT
    assert np.isfinite(solution.value)
