"""The ridge problem against dense nonnegative least squares (SciPy), on operators written out in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import logged_mdp
from scipy.optimize import nnls

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.results.interval import Influence
from lingendice.solvers import ridge as ridge_module
from lingendice.solvers.control import Controls, Stop
from lingendice.solvers.ridge import RidgeSystem

EXACT = Controls(tol=1e-13)
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")


def small_operator(seed, gamma, ratio, length=40, n_episodes=6, **choices):
    mdp = logged_mdp(seed, n_episodes=n_episodes, length=length)
    return compose(mdp.counts, Choices(gamma=gamma, policy=mdp.policy, ratio=ratio, **choices))


def dense_rows(operator):
    """T and mu0 over the rows of the ridge problem (states or cells), with p, by brute force."""
    n_states, n_actions = operator.policy.shape
    K = np.array([operator.expected_next(e) for e in np.eye(n_states)]).T
    visits = operator.counts.cell_count.astype(float)
    if operator.ratio == "state":
        T = np.einsum("sa,sat->st", operator.policy, K.reshape(n_states, n_actions, n_states))
        start, visits = operator.initial, visits.reshape(n_states, n_actions).sum(axis=1)
    else:
        T = (K[:, :, None] * operator.policy[None]).reshape(K.shape[0], -1)
        start = operator.cell_initial
    start = np.zeros(T.shape[0]) if start is None else start
    return T, (1 - operator.gamma) * start, visits / visits.sum()


def reference(operator, eps):
    """tau over seen rows by nonnegative least squares; unseen rows are censored by a dense inverse."""
    T, b, p = dense_rows(operator)
    gamma = operator.gamma
    seen, unseen = np.flatnonzero(p > 0), np.flatnonzero(p == 0)
    visits = np.linalg.inv(np.eye(unseen.size) - gamma * T[np.ix_(unseen, unseen)])
    into, back = T[np.ix_(seen, unseen)] @ visits, gamma * T[np.ix_(unseen, seen)]
    T_seen = T[np.ix_(seen, seen)] + into @ back
    b_seen = b[seen] + b[unseen] @ visits @ back
    # A visit is one step; what a row lets go for good stays for all the steps that would have followed.
    worth = np.ones(p.size)
    if gamma < 1.0:
        worth += gamma / (1.0 - gamma) * (1.0 - T.sum(axis=1))
    nu = worth[seen] + gamma * into @ worth[unseen]
    offset = b[unseen] @ visits @ worth[unseen]
    root = np.sqrt(p[seen])
    A = np.diag(p[seen]) - gamma * T_seen.T * p[seen]
    stacked = np.vstack([A / root[:, None], nu * p[seen], np.sqrt(eps) * np.diag(root)])
    right = np.concatenate([b_seen / root, [1.0 - offset], np.sqrt(eps) * root])
    return nnls(stacked, right, maxiter=10_000)[0], stacked, right, root


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("length", [4, 40])
def test_matches_nonnegative_least_squares(gamma, ratio, eps, length):
    for seed in range(4):
        operator = small_operator(seed, gamma, ratio, length=length)
        fit = RidgeSystem(operator, eps).solve(EXACT)
        expected, *_ = reference(operator, eps)
        tau = fit.tau
        assert fit.outcome.converged
        assert np.allclose(tau[np.isfinite(tau)], expected, atol=1e-7)


def log_with_leaks_and_ends(seed, ends):
    """60 steps of 12 episodes; nothing leaves states 4 and 5, nor perhaps some cells of the others."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, 60) * (rng.random(60) < 0.7)
    last = np.arange(60) % 5 == 4
    return lg.Counts.from_transitions(
        rng.integers(0, 4, 60), rng.integers(0, 6, 60), action=action, reward=rng.normal(size=60),
        episode=np.arange(60) // 5, terminal=last & (rng.random(60) < 0.8) if ends else None,
        n_states=6, n_actions=2, keep_episodes=False,
    )  # fmt: skip


EVERY_LEAK = pytest.mark.parametrize(
    ("gamma", "options"),
    [
        *((gamma, {}) for gamma in (0.9, 0.99, 0.999, 1.0)),
        (0.99, {"leak": "absorb"}),
        (0.99, {"terminal": "restart"}),
        (0.99, {"unseen": "leak", "restart": [0.1, 0.2, 0.1, 0.0, 0.3, 0.3]}),
        (1.0, {"unseen": "leak"}),
    ],
)
TOWARD = np.random.default_rng(9).dirichlet(np.ones(2), size=6)


@EVERY_LEAK
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("ends", [False, True])
def test_matches_nonnegative_least_squares_with_leaks_and_ends(gamma, options, ratio, ends):
    """The total mass that is asked to be 1 has what is elsewhere counted in."""
    for seed, eps in ((0, 1e-5), (1, 1e-2)):
        choices = Choices(gamma=gamma, policy=TOWARD, ratio=ratio)._replace(**options)
        operator = compose(log_with_leaks_and_ends(seed, ends), choices)
        fit = RidgeSystem(operator, eps).solve(EXACT)
        expected, *_ = reference(operator, eps)
        np.testing.assert_allclose(fit.tau[np.isfinite(fit.tau)], expected, rtol=1e-6, atol=1e-8)


def value_by_hand(operator, eps, free):
    """sum m r over the mass whose rewards are known, ended mass included, by dense least squares."""
    _, stacked, right, _ = reference(operator, eps)
    _, _, p = dense_rows(operator)
    mass = np.zeros(p.size)
    mass[np.flatnonzero(p > 0)[free]] = np.linalg.lstsq(stacked[:, free], right, rcond=None)[0]
    mass *= p
    cells = operator.spread(mass) if operator.ratio == "state" else mass
    seen = operator.seen
    weight = 1.0 + (operator.gamma / (1.0 - operator.gamma) * operator.ended if operator.ended.any() else 0.0)
    return float(cells[seen] @ operator.reward[seen]) / float((cells * weight)[seen].sum())


def slope(function, step):
    """Central differences, extrapolated (Richardson)."""
    wide, narrow = ((function(h) - function(-h)) / (2.0 * h) for h in (step, step / 2.0))
    return (4.0 * narrow - wide) / 3.0


@EVERY_LEAK
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_influence_is_the_derivative_with_leaks_and_ends(gamma, options, ratio, ends):
    """Also of the weights of the total mass, which move as the operator does."""
    eps, counts = 3e-3, log_with_leaks_and_ends(5, ends)
    extra = {"clone": 0.0} if ratio == "state" else {}
    solution = lg.solve(counts, gamma, policy=TOWARD, ratio=ratio, ridge=eps, tol=1e-13, **extra, **options)
    operator, influence = solution.operator, Influence(solution)
    free = solution.tau[solution.supported] > 0
    piece = influence.value()
    assert solution.value == pytest.approx(value_by_hand(operator, eps, free), rel=1e-8)
    reward = counts.reward_mean - counts.reward[influence.cell]
    psi = influence.tau[influence.cell] * (piece.noise[:, 0] + reward) + piece.shift[:, 0]
    scale = max(float(np.abs(psi).max()), 1e-3)

    def with_weights(entry_step, entry, start_step=0.0, start=0):
        weights, starts = counts.count.astype(float), counts.initial_count.astype(float)
        weights[entry] += entry_step
        starts[start] += start_step
        moved = replace(counts, count=weights, reward_count=weights, initial_count=starts)
        return value_by_hand(compose(moved, operator.choices), eps, free)

    for entry in range(0, counts.count.size, 7):
        found = slope(lambda h, entry=entry: with_weights(h, entry), 1e-3) * counts.total / piece.scale
        assert found == pytest.approx(psi[entry], rel=1e-6, abs=1e-6 * scale)
    if piece.first is None:
        return
    total = float(counts.initial_count.sum())
    for state in np.flatnonzero(counts.initial_count):
        found = slope(lambda h, state=state: with_weights(0.0, 0, h, state), 1e-3) * total / piece.scale
        assert found == pytest.approx(piece.first[state, 0], rel=1e-6, abs=1e-6 * scale)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_some_entries_are_held_at_zero(eps):
    held = 0
    for seed in range(120):
        operator = small_operator(seed, 1.0, "state", length=3, n_episodes=4)
        expected, *_ = reference(operator, eps)
        tau = RidgeSystem(operator, eps).solve(EXACT).tau
        assert np.allclose(tau[np.isfinite(tau)], expected, atol=1e-9)
        held += int((expected == 0).sum())
    assert held > 3


def test_a_first_goal_overshot_does_not_end_above_tol():
    """Where the gradient falls far below the goal at once, the way on begins from what was reached."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        state, action, more = (rng.integers(k, size=2000) for k in (20, 3, 3))
        counts = lg.Counts.from_transitions(
            state, (7 * state + 11 * action + more) % 20, action=action, n_states=20, n_actions=3
        )
        policy = rng.dirichlet(np.ones(3), 20)
        operator = compose(counts, Choices(gamma=1.0, policy=policy, ratio="state"))
        outcome = RidgeSystem(operator, 1e-3).solve(Controls(tol=1e-10)).outcome
        assert outcome.converged
        assert outcome.error <= 1e-10


def test_products_are_transposes_of_each_other():
    rng = np.random.default_rng(0)
    for ratio in ("state", "state_action"):
        system = RidgeSystem(small_operator(2, 1.0, ratio, length=5), 1e-3)
        y, z = rng.standard_normal((2, system.q.size))
        assert system.scaled(y) @ z == pytest.approx(y @ system.scaled_transpose(z))
        assert system.normal(y) @ z == pytest.approx(y @ system.normal(z))


@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_adjoint_gives_the_derivative_by_the_operator(gamma, ratio):
    """d(s' mu) along dT is gamma mu' dT V, plus the term of the residual, by central differences."""
    operator = small_operator(3, gamma, ratio, length=200)
    eps = 1e-3
    system = RidgeSystem(operator, eps)
    fit = system.solve(EXACT)
    assert fit.free.all()
    T, b, p = dense_rows(operator)
    assert (p > 0).all()
    s = np.random.default_rng(1).standard_normal(p.size)
    adjoint = system.adjoint(s, fit.free, 1e-13)

    def functional(T):
        root = np.sqrt(p)
        A = np.diag(p) - gamma * T.T * p
        stacked = np.vstack([A / root[:, None], p, np.sqrt(eps) * np.diag(root)])
        right = np.concatenate([b / root, [1.0], np.sqrt(eps) * root])
        return s @ (p * np.linalg.lstsq(stacked, right, rcond=None)[0])

    other = np.random.default_rng(2).dirichlet(np.ones(p.size), size=p.size)
    step = 1e-5
    slope = (functional(T + step * (other - T)) - functional(T - step * (other - T))) / (2 * step)
    rows = adjoint.scaled / system.q
    mu = p * fit.tau
    u = np.linalg.solve(np.array([system.normal(e) for e in np.eye(p.size)]), system.q * s)
    misfit = fit.misfit / system.q
    by_residual = (u / system.q * p) @ (other - T) @ misfit
    assert gamma * (mu @ (other - T) @ rows + by_residual) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_a_spurious_trap_loses_its_mass():
    # Two well-mixed states and a third that was left only once, to itself.
    counts = np.array([[500, 480, 1], [490, 500, 1], [0, 0, 1]])
    plain = lg.solve(counts)
    assert plain.stationary[2] == pytest.approx(1.0)
    gentle = lg.solve(counts, ridge=1e-4)
    assert gentle.method == "ridge"
    assert gentle.stationary[2] < 0.05
    assert gentle.stationary.sum() == pytest.approx(1.0)


def test_a_vanishing_ridge_is_the_exact_equation():
    mdp = logged_mdp(4)
    for gamma in (0.9, 1.0):
        for ratio in ("state", "state_action"):
            exact = lg.solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=0, clone=0)
            near = lg.solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=1e-10, clone=0)
            assert np.allclose(near.cell_distribution, exact.cell_distribution, atol=1e-6)
            assert near.value == pytest.approx(exact.value, abs=1e-6)
            shift = near.state_values - exact.state_values
            assert np.ptp(shift) < 1e-4
            assert near.gap is None


@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 1.0])
def test_a_vanishing_ridge_is_the_exact_equation_where_mass_visits_leaks(gamma, ratio):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        state, following = rng.integers(0, 4, 60), rng.integers(0, 6, 60)
        log = lg.Counts.from_transitions(
            state, following, action=rng.integers(0, 2, 60), reward=rng.random(60), n_states=6, n_actions=2
        )
        asked = {"policy": rng.dirichlet(np.ones(2), 6), "initial": rng.dirichlet(np.ones(6)), "ratio": ratio}
        with pytest.warns(lg.LeakWarning):
            exact, near = (lg.solve(log, gamma, ridge=ridge, clone=0, **asked) for ridge in (0, 1e-9))
        assert exact.leak > 0.1
        assert np.abs(near.cell_distribution - exact.cell_distribution).sum() < 1e-6
        assert near.value == pytest.approx(exact.value, abs=1e-7)


@pytest.mark.parametrize("options", [{"ridge": 1e-9}, {"ridge": 0, "method": "convex"}])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_mass_absorbed_behind_states_with_data_counts(gamma, options):
    """The target leaves state 1 by an action that was logged in state 0 alone: all its mass is absorbed.

    mu(0) = 1 - gamma, mu(1) = gamma (1 - gamma), and gamma^2 of the mass is absorbed.
    """
    log = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 0, 1, 1], action=[0, 1, 0, 1], reward=[1.0, 2.0, 1.0, 2.0], n_states=2, n_actions=2
    )
    found = lg.solve(
        log,
        gamma,
        policy=[[1.0, 0.0], [1.0, 0.0]],
        initial=[1.0, 0.0],
        ratio="state",
        leak="absorb",
        **options,
    )
    np.testing.assert_allclose(found.stationary, [1 - gamma, gamma * (1 - gamma)], rtol=1e-5)
    assert found.leak == pytest.approx(gamma, rel=1e-5)


def test_absorbed_mass_stays_absorbed():
    log = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 1, 1, 1], reward=[1.0] * 4, terminal=[0, 1, 0, 1], episode=[0, 0, 1, 1]
    )
    solution = lg.solve(log, 0.9, ridge=1e-9)
    assert solution.value == pytest.approx(0.1 * 1.9, rel=1e-5)
    assert solution.stationary.sum() == pytest.approx(0.19, rel=1e-5)


def test_nothing_jumps_where_the_target_never_takes_an_action_that_ends():
    """The ridge puts mass on ends that the target does not reach; they count as those it hardly reaches."""
    rng = np.random.default_rng(3)
    state, action, following = rng.integers(0, 3, (3, 400))
    ended = (action == 2) & (rng.random(400) < 0.7)
    log = lg.Counts.from_transitions(
        state, following, action, state + action + rng.normal(size=400), np.cumsum(ended) - ended,
        terminal=ended,
    )  # fmt: skip
    never, hardly = (
        lg.solve(log, 0.5, policy=np.tile([0.5, 0.5 - rare, rare], (3, 1)), ridge=0.1) for rare in (0.0, 1e-9)
    )
    np.testing.assert_allclose(never.tau, hardly.tau, rtol=1e-7)
    np.testing.assert_allclose(list(never.interval()), list(hardly.interval()), rtol=1e-7)


def test_chunks_and_limits(monkeypatch):
    operator = small_operator(5, 1.0, "state")
    whole = RidgeSystem(operator, 1e-5).solve(EXACT)
    monkeypatch.setattr(ridge_module, "ENTRIES_A_CALL", 1)
    pieces = RidgeSystem(operator, 1e-5).solve(EXACT)
    assert np.allclose(pieces.y, whole.y, atol=1e-9)
    mdp = logged_mdp(5)
    stopped = lg.solve(mdp.counts, policy=mdp.policy, max_iter=1)
    assert stopped.status is lg.Status.ITERATION_LIMIT
    assert stopped.stationary.sum() == pytest.approx(1.0)


def test_a_warm_start_shortens_the_way():
    operator = small_operator(6, 1.0, "state")
    system = RidgeSystem(operator, 1e-5)
    cold = system.solve(EXACT)
    warm = system.solve(EXACT, cold.y)
    assert warm.outcome.n_iter < cold.outcome.n_iter
    assert np.allclose(warm.y, cold.y, atol=1e-10)


def test_work_ends_when_told_to_wherever_it_is(monkeypatch):
    """Also while the error is estimated by one more solve, which began once the goal had been met."""
    monkeypatch.setattr(ridge_module, "FIRST_PORTION", 32)
    n = 400
    ring = 5 * np.roll(np.eye(n, dtype=int), 1, axis=1) + 4 * np.roll(np.eye(n, dtype=int), -1, axis=1)
    start = np.random.default_rng(0).dirichlet(np.ones(n))
    system = RidgeSystem(compose(lg.Counts.from_matrix(ring), Choices(gamma=0.999, initial=start)), 1e-5)

    def ended_after(steps):
        solver = system._descend(Controls(tol=1e-10), None, False)
        try:
            next(solver)
            for _ in range(steps):
                solver.send(None)
            solver.send(Stop.TIME)
        except StopIteration as end:
            return end.value
        raise AssertionError(f"went on after it was told to end at step {steps}")

    outcomes = [ended_after(steps) for steps in range(15)]
    assert all(outcome.error > 1e-10 for outcome in outcomes)
    assert not any(outcome.converged for outcome in outcomes)
    assert ended_after(16).converged


def leaking_log(ends):
    """State 1 is where episodes begin; the target's favorite action was never logged there."""
    log = {"state": [1, 0, 1, 0, 1, 0], "next_state": [0, 1, 0, 1, 0, 1], "action": [0, 0, 0, 1, 0, 1]}
    return lg.Counts.from_transitions(
        **log, reward=np.arange(6.0), episode=[0, 0, 1, 1, 2, 2],
        terminal=[False, ends, False, False, False, ends], n_states=2, n_actions=2,
    )  # fmt: skip


@pytest.mark.parametrize("ends", [True, False])
def test_the_bound_holds_where_leaks_restart_into_leaks(ends):
    """Ten visits to a leak for each unit that enters one: the error there is ten times that of the data."""
    policy = np.array([[0.5, 0.5], [0.1, 0.9]])
    choices = Choices(gamma=0.99, policy=policy, ratio="state_action", restart=[0.0, 1.0])
    system = RidgeSystem(compose(leaking_log(ends), choices), 1e-3)
    fit = system.solve(EXACT)
    for cell in range(system.seen.size):
        for step in (1e-4, -1e-4):
            moved = fit.y.copy()
            moved[cell] += step
            other = fit._replace(y=moved).row_distribution
            error = np.abs(other - fit.row_distribution).sum()
            assert error <= system.distribution_error(fit.y, 1e-4) * (1 + 1e-3)
    assert system.loses_mass == ends


@pytest.mark.parametrize("options", [{"ridge": 1e-3}, {"method": "convex"}])
def test_mass_that_never_comes_back_to_the_data_is_refused(options):
    """The target takes logged actions nowhere; by rounding some logs had a value, called solved."""
    for states in (1, 3, 5, 10):
        rng = np.random.default_rng(states)
        state = np.append(np.arange(states), rng.integers(0, states, 7))
        counts = lg.Counts.from_transitions(
            state, rng.permutation(state), action=0 * state, reward=rng.normal(size=state.size),
            n_states=states, n_actions=3,
        )  # fmt: skip
        policy = np.hstack([np.zeros((states, 1)), rng.dirichlet(np.ones(2), states)])
        with pytest.raises(ValueError, match="never comes back"):
            lg.solve(counts, policy=policy, ratio="state_action", **options)


def test_a_chain_without_transitions_is_refused():
    """Its exact distribution is that of its restarts; a ridge has nothing to weigh."""
    with pytest.raises(ValueError, match="the counts are empty"):
        lg.solve([[0]], 0.9, ridge=2.0)
