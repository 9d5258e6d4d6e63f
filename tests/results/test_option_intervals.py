"""Every combination of options has an interval or a clear refusal; mass that ends is counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import A, S, count, random_mdp, walk

import lingendice as lg

pytestmark = [
    pytest.mark.filterwarnings("ignore::lingendice.LeakWarning"),
    pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning"),
]
PLUG_IN = {"ratio": "state_action", "ridge": 0, "clone": 0}


# -- an interval, or a clear refusal -----------------------------------------------------------------


def small_log(terminal, unseen, keep):
    rng = np.random.default_rng(4 * terminal + 2 * unseen + keep)
    n = 120
    action, following = rng.integers(0, 2, n), rng.integers(0, 4, n)
    state = np.where(np.arange(n) % 8 == 0, rng.integers(0, 4, n), np.roll(following, 1))
    if unseen:
        action[state == 1] = 0
    episode = np.arange(n) // 8
    ends = (np.arange(n) % 8 == 7) & (episode % 2 == 0) if terminal else None
    return lg.Counts.from_transitions(
        state, following, action, rng.random(n), episode, terminal=ends, keep_episodes=keep
    )


LOGS = {key: small_log(*key) for key in itertools.product((False, True), repeat=3)}
TARGET = np.array([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0], [0.8, 0.2]])
RIDGES, CLONES = (None, 0, 1e-3), (None, 0, 3.0)
RATIOS, LEAKS = ("state", "state_action", "auto"), ("restart", "absorb", "error")
METHODS = (
    "auto", "gth", "elimination", "gauss-seidel", "aggregation", "convex", "extragradient", "sgd",
)  # fmt: skip


def require_interval_or_refusal(counts, gamma, options, **asked):
    """A finite interval that holds the value, or a ValueError; nothing else may be raised."""
    try:
        solution = lg.solve(counts, gamma, policy=TARGET, **options)
        found = solution.interval(**asked)
    except ValueError:
        return False
    assert found.low <= solution.value <= found.high
    assert 0.0 < found.standard_error < 1.0
    return True


def test_every_default_has_an_interval():
    """Every ridge, clone, ratio, discount and leak with every kind of log, by the default method."""
    given_an_interval = 0
    for ridge, clone, ratio, gamma, leak, key in itertools.product(
        RIDGES, CLONES, RATIOS, (0.9, 1.0), LEAKS, list(LOGS)[1::2]
    ):
        options = {"ridge": ridge, "clone": clone, "ratio": ratio, "leak": leak}
        given_an_interval += require_interval_or_refusal(LOGS[key], gamma, options)
    assert given_an_interval > 350


@given(
    options=st.fixed_dictionaries(
        {
            "ridge": st.sampled_from(RIDGES),
            "clone": st.sampled_from(CLONES),
            "ratio": st.sampled_from(RATIOS),
            "leak": st.sampled_from(LEAKS),
            "method": st.sampled_from(METHODS),
            "terminal": st.sampled_from(["auto", "restart", "absorb"]),
            "unseen": st.sampled_from(["auto", "leak", "renormalize", "mean"]),
        }
    ),
    key=st.sampled_from(sorted(LOGS)),
    gamma=st.sampled_from([0.9, 1.0]),
    bootstrap=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_an_interval_or_a_refusal(options, key, gamma, bootstrap):
    options = options | {"max_iter": 300}
    asked = {"method": "bootstrap", "replicates": 20} if bootstrap else {}
    require_interval_or_refusal(LOGS[key], gamma, options, **asked)


def test_a_comparison_without_a_ridge_has_intervals():
    found = lg.solve(LOGS[False, False, True], 0.9, policy={"a": TARGET, "b": TARGET[::-1]}, ridge=0)
    assert (found.interval().standard_error > 0).all()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_standard_error_by_dense_influence(gamma):
    """psi = tau (r + gamma V(s') - Q [- value]), one step at a time, with a NumPy inverse for Q."""
    rng = np.random.default_rng(1)
    n, n_states = 40_000, 4
    kernel = rng.dirichlet(np.ones(n_states), size=(n_states, 2))
    state, action = rng.integers(0, n_states, n), rng.integers(0, 2, n)
    following = np.array([rng.choice(n_states, p=kernel[s, a]) for s, a in zip(state, action, strict=True)])
    reward = rng.normal(size=n) + state
    start = np.array([0.4, 0.3, 0.2, 0.1])
    counts = lg.Counts.from_transitions(state, following, action, reward)
    solution = lg.solve(counts, gamma, policy=TARGET, initial=start, **PLUG_IN)
    table = np.zeros((n_states * 2, n_states))
    cell = 2 * state + action
    np.add.at(table, (cell, following), 1.0)
    visits = table.sum(axis=1)
    r = np.bincount(cell, reward) / visits
    P = (table / visits[:, None])[:, :, None] * TARGET[None]
    P = P.reshape(n_states * 2, -1)
    if gamma < 1.0:
        mu = np.linalg.solve(np.eye(8) - gamma * P.T, (1 - gamma) * (start[:, None] * TARGET).ravel())
        q, off = np.linalg.solve(np.eye(8) - gamma * P, r), 0.0
    else:
        values, vectors = np.linalg.eig(P.T)
        mu = np.real(vectors[:, np.argmax(np.real(values))])
        mu /= mu.sum()
        off = mu @ r
        q = np.linalg.solve(np.eye(8) - P + mu[None, :], r - off)
    v = (TARGET * q.reshape(n_states, 2)).sum(axis=1)
    psi = (mu * n / visits)[cell] * (reward + gamma * v[following] - q[cell] - off)
    assert solution.value == pytest.approx(mu @ r)
    assert solution.interval().standard_error == pytest.approx(math.sqrt((psi**2).sum()) / n, rel=2e-3)
    default = lg.solve(counts, gamma, policy=TARGET, initial=start)
    assert default.method == "shrinkage"
    assert default.interval().standard_error == pytest.approx(math.sqrt((psi**2).sum()) / n, rel=2e-2)


# -- terminal states at gamma < 1 --------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.5, 0.9, 0.99, 0.9999, 1 - 1e-7]),
    n_states=st.integers(1, 6),
    ending=st.floats(0.05, 0.9),
)
@settings(max_examples=60, deadline=None)
def test_mass_that_ends_is_counted(seed, gamma, n_states, ending):
    """stationary + terminal mass = 1, whatever is logged: the distribution under the default arguments."""
    rng = np.random.default_rng(seed)
    n = 200
    state, action, following = (rng.integers(0, size, n) for size in (n_states, 2, n_states))
    counts = lg.Counts.from_transitions(
        state, following, action, rng.normal(size=n), np.arange(n) // 5, terminal=rng.random(n) < ending,
        n_states=n_states, n_actions=2,
    )  # fmt: skip
    policy = rng.dirichlet(np.ones(2), size=n_states)
    for ridge in (None, 0):
        solution = lg.solve(counts, gamma, policy=policy, ridge=ridge)
        assert solution.stationary.sum() + solution.terminal_mass == pytest.approx(1.0, abs=1e-8)
        assert solution.ridge == 0.0


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.9999, 1 - 1e-8])
def test_the_return_of_a_corridor(gamma):
    """Ten steps at reward -1, thirty times: the return is -(1 - gamma^10) / (1 - gamma), about -10."""
    state = np.tile(np.arange(10), 30)
    counts = lg.Counts.from_transitions(
        state, np.minimum(state + 1, 9), np.zeros_like(state), -np.ones(300), np.repeat(np.arange(30), 10),
        terminal=state == 9, keep_episodes=True,
    )  # fmt: skip
    solution = lg.solve(counts, gamma, policy=np.ones((10, 1)))
    expected = math.expm1(10 * math.log(gamma)) / (1.0 - gamma)
    assert solution.value / (1.0 - gamma) == pytest.approx(expected, rel=1e-9)
    assert solution.state_values[0] == pytest.approx(expected, rel=1e-9)


def test_intervals_of_ended_episodes_are_as_wide_as_the_noise():
    """The default with terminals, over fresh logs; and the bootstrap of one of them."""
    mdp = random_mdp()
    found = []
    for seed in range(40):
        counts = count(walk(mdp, 60, 20, seed, ending=0.15))
        solution = lg.solve(counts, 0.95, policy=mdp["policy"])
        found.append((solution.value, solution.interval().standard_error))
    value, error = np.array(found).T
    assert error.mean() == pytest.approx(value.std(ddof=1), rel=0.3)
    drawn = solution.interval(method="bootstrap", replicates=200)
    assert "effective policy kept" in drawn.note
    assert drawn.standard_error == pytest.approx(error[-1], rel=0.25)
    for kind in ("percentile", "basic"):  # gave the interval of "t" by that name
        with pytest.raises(ValueError, match="kind= has no say"):
            solution.interval(method="bootstrap", replicates=20, kind=kind)


@pytest.mark.parametrize("ratio", ["state", "state_action"])
def test_a_vanishing_ridge_with_terminals_is_the_exact_equation(ratio):
    mdp = random_mdp()
    counts = count(walk(mdp, 200, 20, 3, ending=0.15))
    options = {"policy": mdp["policy"], "ratio": ratio, "clone": 0}
    exact = lg.solve(counts, 0.9, ridge=0, **options)
    near = lg.solve(counts, 0.9, ridge=1e-10, **options)
    assert near.value == pytest.approx(exact.value, rel=1e-5)
    np.testing.assert_allclose(near.state_values, exact.state_values, rtol=1e-4)
    assert near.interval().standard_error == pytest.approx(exact.interval().standard_error, rel=1e-4)
    function = np.arange(S * A, dtype=float)
    wanted = exact.interval(of=function)
    found = near.interval(of=function)
    assert found.standard_error == pytest.approx(wanted.standard_error, rel=1e-4)
