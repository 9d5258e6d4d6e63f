"""Each check fires where it should, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.results.diagnostics import mixing_time

PLUG_IN = {"ratio": "state_action", "ridge": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


def log(n=4000, seed=0, actions=2):
    rng = np.random.default_rng(seed)
    action = rng.integers(actions, size=n)
    state = np.empty(n + 1, dtype=np.int64)
    state[0] = 0
    noise = rng.random(n)
    for t in range(n):
        state[t + 1] = (state[t] + 1 + action[t] * (noise[t] < 0.7)) % 5
    reward = (state[:-1] == 3).astype(float)
    return lg.Counts.from_transitions(state[:-1], state[1:], action, reward, n_states=5, n_actions=actions)


def by_name(solution):
    return {check.name: check for check in lg.diagnose(solution)}


def test_a_good_log_passes_every_check():
    checks = by_name(lg.solve(log(), policy=np.full((5, 2), 0.5), ratio="state", clone=0))
    assert set(checks) == {
        "leak", "coverage", "effective sample size", "shift from behavior", "concentration", "mixing"
    }  # fmt: skip
    assert all(check.ok for check in checks.values())
    assert not any(check.remedy for check in checks.values())


def test_leak_and_coverage_name_unseen_actions():
    counts = log().with_states(5, 3)
    policy = np.tile([0.4, 0.4, 0.2], (5, 1))
    checks = by_name(lg.solve(counts, 0.9, policy=policy, initial=np.full(5, 0.2), **PLUG_IN))
    assert not checks["leak"].ok
    assert checks["coverage"].number == pytest.approx(0.8)
    assert not checks["coverage"].ok
    assert "if rewards stay within those seen" in checks["leak"].sentence
    assert checks["leak"].remedy


def test_an_estimate_stuck_at_the_behavior_is_found():
    counts = log(400)
    policy = np.tile([1.0, 0.0], (5, 1))
    free = by_name(lg.solve(counts, policy=policy, ratio="state", clone=0))["shift from behavior"]
    held = by_name(lg.solve(counts, policy=policy, ratio="state", clone=0.5))["shift from behavior"]
    assert free.number == pytest.approx(1.0)
    assert free.ok
    # Shrinking toward a target that excludes an action cannot bring that action back: still all the way.
    assert held.number == pytest.approx(1.0)
    policy = np.tile([0.9, 0.1], (5, 1))
    held = by_name(lg.solve(counts, policy=policy, ratio="state", clone=1e5))["shift from behavior"]
    assert held.number < 0.1
    assert not held.ok
    assert "stuck" in held.remedy


def test_few_transitions_are_few():
    checks = by_name(lg.solve(log(60), policy=np.full((5, 2), 0.5), ratio="state", clone=0))
    assert not checks["effective sample size"].ok
    assert checks["effective sample size"].number <= 60


def test_concentration_on_few_cells():
    n = 400
    chain = np.ones((n, n), dtype=np.int64)
    reward = np.full(n, 0.01)
    reward[7] = 100.0
    found = by_name(lg.solve(chain, reward=reward))["concentration"]
    assert found.number == pytest.approx((100 + 3 * 0.01) / (100 + 399 * 0.01), rel=1e-9)
    assert not found.ok


@pytest.mark.parametrize("stay", [0.2, 0.9, 0.995])
def test_mixing_time_of_two_states(stay):
    """A symmetric chain of two states has second eigenvalue 2 stay - 1."""
    counts = np.round(10**6 * np.array([[stay, 1 - stay], [1 - stay, stay]])).astype(int)
    counts[0, 0] += 1000
    found = mixing_time(lg.solve(counts))
    assert found == pytest.approx(1 / (2 - 2 * stay), rel=0.02)


def test_periodic_chains_forget_by_lazy_steps():
    """The eigenvalues are roots of unity w of order 3: |1 + w| / 2 = 1 / 2."""
    solution = lg.solve(np.array([[0, 500, 0], [0, 0, 700], [900, 0, 0]]))
    assert mixing_time(solution) == pytest.approx(1.0, rel=1e-6)
    assert by_name(solution)["mixing"].ok


def test_printed_table_shows_checks_and_remedies():
    counts = log().with_states(5, 3)
    policy, initial = np.full((5, 3), 1 / 3), np.full(5, 0.2)
    solution = lg.solve(counts, 0.9, policy=policy, initial=initial, **PLUG_IN)
    solution.diagnose()
    text = str(solution)
    assert "!!" in text
    assert "ok" in text
    assert "collect data there" in text
    assert "leak" in str(lg.solve([[0.5, 0.5], [0.2, 0.8]]))


def test_bounds_hold_under_restart_too():
    """The lazily absorbed bounds are those of an absorbing solve, and contain what any filling gives."""
    counts = log().with_states(5, 3)
    options = {"policy": np.full((5, 3), 1 / 3), "initial": np.full(5, 0.2)}
    restarting = lg.solve(counts, 0.9, **options, **PLUG_IN)
    absorbing = lg.solve(counts, 0.9, leak="absorb", **options, **PLUG_IN)
    assert restarting.value_bounds == pytest.approx(absorbing.value_bounds, rel=1e-12)
    low, high = restarting.value_bounds
    # Fill the missing action by any chain and reward within range: the value stays inside.
    rng = np.random.default_rng(0)
    known = counts.matrix.toarray().reshape(5, 3, 5)
    for _ in range(20):
        kernel = known / np.maximum(known.sum(axis=2, keepdims=True), 1)
        kernel[:, 2] = rng.dirichlet(np.full(5, 0.3), size=5)
        reward = np.nan_to_num(counts.reward.reshape(5, 3))
        reward[:, 2] = rng.integers(2, size=5)
        chain, earned = kernel.mean(axis=1), reward.mean(axis=1)
        distribution = np.linalg.solve(np.eye(5) - 0.9 * chain.T, 0.1 * np.full(5, 0.2))
        assert low - 1e-9 <= distribution @ earned <= high + 1e-9
    whole = lg.solve(log(), 0.9, policy=np.full((5, 2), 0.5), initial=np.full(5, 0.2))
    assert whole.value_bounds is None
    assert lg.solve(counts, 1.0, policy=np.full((5, 3), 1 / 3), **PLUG_IN).value_bounds is None
    assert restarting.to_dict()["value_bounds"] == list(restarting.value_bounds)


def chain_with_ends(rng):
    """A log with terminal flags over states that were never left, or not by every action."""
    n, n_actions = int(rng.integers(3, 8)), int(rng.integers(1, 3))
    size = int(rng.integers(10, 60))
    state, following = rng.integers(0, n, (2, size))
    action, reward = (
        rng.integers(0, n_actions, size),
        rng.uniform(*rng.choice([(1, 2), (-2, -1), (-1, 1)]), size),
    )
    drop = (state == 0) | ((state == 1) & (action == 0))  # leaks
    drop[:2] = False
    state[:2], action[:2], following[:2] = 2, 0, [0, 1]
    kept = ~drop
    terminal = rng.random(size) < rng.uniform(0.0, 0.4)
    terminal[:2] = False
    columns = [column[kept] for column in (state, following, action, reward)]
    sizes = {"n_states": n, "n_actions": n_actions}
    episode = np.arange(int(kept.sum()))
    return lg.Counts.from_transitions(*columns, episode, terminal=terminal[kept], **sizes)


def completed_value(counts, policy, initial, gamma, rng, ends):
    """The value where cells without data have rows, ends and rewards of some kind, by a dense solve."""
    n, n_actions = policy.shape
    visits = counts.cell_count.astype(float)
    step = counts.matrix.toarray()[:, :n] / np.maximum(visits, 1)[:, None]
    unseen = visits == 0
    missing = int(unseen.sum())
    step[unseen] = rng.dirichlet(np.full(n, 0.3), size=missing) * (1 - ends)
    seen_rewards = counts.reward[~unseen]
    reward = counts.reward.copy()
    reward[unseen] = rng.choice([seen_rewards.min(), seen_rewards.max()], size=missing)
    chain = np.einsum("sa,sat->st", policy, step.reshape(n, n_actions, n))
    earned = np.einsum("sa,sa->s", policy, reward.reshape(n, n_actions))
    return float((1 - gamma) * initial @ np.linalg.solve(np.eye(n) - gamma * chain, earned))


@pytest.mark.parametrize("default", [False, True])
def test_bounds_hold_where_episodes_can_end_past_the_data(default):
    """Mass that leaves the data may end there and earn 0: the truth lay outside in 148 of 400 such chains."""
    rng = np.random.default_rng(3)
    bounded = 0
    for _ in range(400 if not default else 60):
        counts = chain_with_ends(rng)
        n, n_actions = counts.n_states, counts.n_actions
        policy, initial = rng.dirichlet(np.ones(n_actions), size=n), rng.dirichlet(np.ones(n))
        gamma = float(rng.choice([0.5, 0.9, 0.99]))
        options = {} if default else PLUG_IN
        bounds = lg.solve(counts, gamma, policy=policy, initial=initial, **options).value_bounds
        if bounds is None:
            continue
        bounded += 1
        for ends in (0.0, 0.5, 1.0):
            # Where the log has no ends there are none elsewhere either: that is what the bounds assume.
            share = ends if counts.has_terminals else 0.0
            truth = completed_value(counts, policy, initial, gamma, rng, share)
            assert bounds[0] - 1e-9 <= truth <= bounds[1] + 1e-9
    assert bounded > (300 if not default else 40)


def test_bounds_use_rewards_given_for_cells_without_data():
    counts = lg.Counts.from_transitions([0, 0], [1, 0], n_states=2)
    solution = lg.solve(counts, 0.9, initial=[1, 0], reward=[1.0, 50.0])
    # Half of each step leads to state 1, which earns 50 and may stay there.
    reached = np.linalg.solve(np.eye(2) - 0.9 * np.array([[0.5, 0.5], [0.0, 1.0]]), [1.0, 50.0])
    assert solution.value_bounds[1] == pytest.approx(0.1 * reached[0])


@pytest.mark.parametrize("options", [{"ridge": 0.3}, {"features": np.ones((4, 1)), "method": "convex"}])
def test_bounds_of_other_problems_are_those_of_the_exact_equation(options):
    """With leak="absorb" they were made of the distribution that a ridge or features had moved."""
    counts = lg.Counts.from_transitions(
        [0, 1, 2, 1, 0, 0], [1, 2, 3, 0, 1, 1], None, [1, 0, 4, 2, 1, 0], n_states=4
    )
    exact = lg.solve(counts, 0.9, initial=[1, 0, 0, 0], leak="absorb")
    other = lg.solve(counts, 0.9, initial=[1, 0, 0, 0], leak="absorb", **options)
    assert other.value_bounds == pytest.approx(exact.value_bounds, rel=1e-9)


def test_the_gap_closes_where_leaks_absorb():
    counts = log().with_states(5, 3)
    solution = lg.solve(counts, 0.9, policy=np.full((5, 3), 1 / 3), initial=np.full(5, 0.2), leak="absorb")
    assert solution.gap == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("options", [{}, {"ridge": 0, "clone": 0}])
def test_no_value_of_rewards_logged_in_part_is_trusted(options):
    rng = np.random.default_rng(0)
    counts = []
    for reward in (rng.random(300), None):
        state, following = rng.integers(0, 4, (2, 300))
        action = rng.integers(0, 2, 300)
        counts.append(
            lg.Counts.from_transitions(
                state, following, action=action, reward=reward, n_states=4, n_actions=2
            )
        )
    policy, initial = np.full((4, 2), 0.5), np.full(4, 0.25)
    whole = lg.solve(counts[0], 0.9, policy=policy, initial=initial, **options)
    assert whole.trusted
    merged = counts[0] + counts[1]
    solution = lg.solve(merged, 0.9, policy=policy, initial=initial, **options)
    assert not solution.trusted
    assert any("some rewards are missing" in reason for reason in solution.why_not)
    told = lg.solve(merged, 0.9, policy=policy, initial=initial, reward=np.ones((4, 2)), **options)
    assert not any("missing" in reason for reason in told.why_not)


def test_what_has_no_checks_is_named():
    counts = log()
    policies = {"even": np.full((counts.n_states, counts.n_actions), 1 / counts.n_actions)}
    comparison = lg.solve(counts, 0.9, policy=policies, initial=np.full(counts.n_states, 1 / counts.n_states))
    with pytest.raises(ValueError, match=r"no checks of a Comparison; .*comparison\[name\]"):
        lg.diagnose(comparison)
    assert lg.diagnose(comparison["even"])


def test_values_over_features_allow_for_what_these_cannot_express():
    """Intervals were as long as the exact equation's: two features of their own gave 32 % for 95 %."""
    counts, policy = log(), np.array([[0.9, 0.1]] * 5)
    terms = {"policy": policy, "initial": np.full(5, 0.2)}
    exact = lg.solve(counts, 0.9, ridge=0, clone=0, ratio="state_action", **terms)
    features = np.abs(np.random.default_rng(0).normal(size=(10, 2)))
    coarse = lg.solve(counts, 0.9, features=features, dual_features=features, **terms)
    assert coarse.misfit == pytest.approx(abs(coarse.value - exact.value), rel=1e-6)
    found = coarse.interval(0.95)
    assert found.bias_allowance == coarse.misfit > exact.interval(0.95).standard_error
    assert found.low < exact.value < found.high
    assert not by_name(coarse)["features"].ok
    assert any("give more features" in reason for reason in coarse.why_not)
    with pytest.raises(ValueError, match="kind= has no say"):
        coarse.interval(method="bootstrap", kind="percentile", replicates=20)
    whole = lg.solve(counts, 0.9, method="convex", **terms)
    assert whole.misfit < 1e-8
    assert by_name(whole)["features"].ok
    np.testing.assert_allclose(whole.interval().low, exact.interval().low, rtol=1e-5)


def test_values_over_features_without_a_single_exact_value_are_not_bounded():
    """At gamma = 1 features mix two recurrent classes, of which the equation says nothing."""
    counts = lg.Counts.from_matrix(np.kron(np.eye(2), [[40, 10], [20, 30]]))
    features = np.abs(np.random.default_rng(1).normal(size=(4, 2)))
    solution = lg.solve(counts, features=features, dual_features=features, reward=[0.0, 1.0, 2.0, 3.0])
    found = solution.interval()
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert not solution.trusted
