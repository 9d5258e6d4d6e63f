"""The value along the ridge: its biases and standard errors against direct computation."""

from __future__ import annotations

import numpy as np
import pytest
from logs import count, random_mdp, walk
from problems import logged_mdp

import lingendice as lg


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
def test_the_visible_bias_is_the_bias(gamma, ratio):
    mdp = logged_mdp(6, length=100)
    options = {"policy": mdp.policy, "ratio": ratio, "clone": 0}
    exact = lg.solve(mdp.counts, gamma, ridge=0, **options)
    path = lg.ridge_path(exact, [1e-5, 1e-4])
    for ridge, bias in zip(path.ridges, path.biases, strict=True):
        moved = lg.solve(mdp.counts, gamma, ridge=ridge, **options).value
        assert bias == pytest.approx(moved - exact.value, rel=1e-3, abs=1e-10)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_the_visible_bias_where_data_leak(gamma):
    """A tenth to a fourth of the mass lies in leaks: at gamma = 1 the fit is scaled by the rest."""
    for seed in (3, 4, 5):
        mdp = random_mdp()
        counts = count(walk(mdp, 7, 8, seed=seed, ending=0.1))
        options = {"policy": mdp["policy"], "ratio": "state_action"}
        exact = lg.solve(counts, gamma, ridge=0, **options)
        assert exact.leak > 0.05
        moved = lg.solve(counts, gamma, ridge=1e-4, tol=1e-13, **options).value
        assert lg.ridge_path(exact, [1e-4]).biases[0] == pytest.approx(moved - exact.value, rel=0.02)


def log_again(mdp, seed, n_steps=2000):
    """Another log of the same MDP, one long path."""
    rng = np.random.default_rng(seed)
    action = rng.integers(2, size=n_steps)
    chance = rng.random(n_steps)
    cumulative = np.cumsum(mdp.kernel, axis=2)
    path = [0]
    for a, u in zip(action, chance, strict=True):
        path.append(min(int(np.searchsorted(cumulative[path[-1], a], u)), 5))
    state, following = np.array(path[:-1]), np.array(path[1:])
    reward = mdp.reward[state, action] + rng.normal(size=n_steps)
    return lg.Counts.from_transitions(state, following, action, reward, n_states=6, n_actions=2)


def test_the_standard_error_is_that_of_repeated_logs():
    mdp = logged_mdp(6)
    values, errors = [], []
    for seed in range(120):
        solution = lg.solve(log_again(mdp, seed), policy=mdp.policy, ratio="state_action", ridge=1e-6)
        errors.append(lg.ridge_path(solution, [1e-6]).standard_errors[0])
        values.append(solution.value)
    assert np.median(errors) == pytest.approx(np.std(values), rel=0.2)


def test_the_path_of_the_default_begins_at_its_extrapolated_value():
    """Its values had the correction of the chosen ridge in them, whatever their own ridge was."""
    mdp = logged_mdp(6, n_episodes=30, length=20)
    solution = lg.solve(mdp.counts, policy=mdp.policy)
    path = lg.ridge_path(solution, [1e-8])
    begins, chosen = path.values - path.chosen_value
    assert begins == pytest.approx(0.0, abs=0.1 * abs(solution.correction))
    assert chosen == pytest.approx(-solution.correction, rel=1e-4)


def test_answers_of_other_problems_have_no_path():
    """A baseline's was flat at the method's own value, a horizon's that of all steps."""
    mdp = logged_mdp(6, n_episodes=10, length=10)
    for other in (
        lg.baselines.step_wise(mdp.counts, 0.9, policy=mdp.policy),
        lg.solve(mdp.counts, policy=mdp.policy, horizon=5),
        lg.solve(mdp.counts, policy=[mdp.policy, mdp.policy]),
    ):
        with pytest.raises(ValueError, match=f"not of a {type(other).__name__}"):
            lg.ridge_path(other)
