"""Every baseline against a version written out in loops or dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
from logs import A, S, count, random_mdp, walk
from scipy.optimize import minimize
from toy_text import corridor

import lingendice as lg
from lingendice import baselines
from lingendice.baselines.dice import stationarity

PLUG_IN = {"ratio": "state_action", "ridge": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
GAMMA = 0.9


@pytest.fixture(scope="module")
def mdp():
    return random_mdp()


@pytest.fixture(scope="module")
def full(mdp):
    """Every cell seen: all exact tabular methods have one optimum."""
    return count(walk(mdp, 80, 25, seed=0))


@pytest.fixture(scope="module")
def short(mdp):
    """Few data: cells are missing and mass leaks."""
    return count(walk(mdp, 6, 6, seed=4))


def episodes_of(log):
    for e in np.unique(log["episode"]):
        rows = np.flatnonzero(log["episode"] == e)
        yield [
            (log["state"][i], log["action"][i], log["reward"][i], log["next_state"][i], log["terminal"][i])
            for i in rows
        ]


def dense(counts, policy, gamma):
    """(M, b, p, r) over seen cells by loops: p tau = (1 - gamma) mu0 + gamma T' (p tau)."""
    table = np.zeros((S * A, S))
    for x in range(S * A):
        for k in range(counts.indptr[x], counts.indptr[x + 1]):
            table[x, counts.indices[k]] = counts.count[k]
    n = table.sum(axis=1)
    seen = np.flatnonzero(n)
    moves = np.zeros((seen.size, seen.size))
    for i, x in enumerate(seen):
        for j, y in enumerate(seen):
            moves[i, j] = table[x, y // A] / n[x] * policy[y // A, y % A]
    p = n[seen] / n.sum()
    start = counts.initial_count / counts.initial_count.sum()
    right = (1 - gamma) * np.array([start[y // A] * policy[y // A, y % A] for y in seen])
    return np.diag(p) - gamma * moves.T @ np.diag(p), right, p, counts.reward[seen], seen


# -- episode-wise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("gamma", "ending"), [(0.9, 0.0), (0.9, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize("known", [True, False])
def test_trajectory_wise(mdp, weighted, gamma, ending, known):
    log = walk(mdp, 12, 5, seed=2, ending=ending)
    counts = count(log)
    behavior = mdp["behavior"] if known else baselines.clone_behavior(counts)
    above = below = 0.0
    for episode in episodes_of(log):
        weight, earned, span = 1.0, 0.0, 0.0
        for t, (s, a, r, _, end) in enumerate(episode):
            weight *= mdp["policy"][s, a] / behavior[s, a]
            earned += gamma**t * r
            span += gamma**t
            if end:
                span += gamma ** (t + 1) / (1 - gamma)
        above += weight * earned
        below += (weight if weighted else 1.0) * span
    found = baselines.trajectory_wise(
        counts, gamma, policy=mdp["policy"], behavior=mdp["behavior"] if known else None, weighted=weighted
    )
    assert found.value == pytest.approx(above / below, rel=1e-12)
    assert found.standard_error > 0


def step_wise_by_hand(mdp, episodes, gamma, weighted, horizon, times=None):
    """Sums over steps and episodes; what has ended at the last logged step stays so."""
    logged = min(max(map(len, episodes)), horizon or 10**9)
    value = scale = 0.0
    for t in range(logged):
        above = below = ended = 0.0
        for episode, often in zip(episodes, times or [1.0] * len(episodes), strict=True):
            if t >= len(episode) and not episode[-1][-1]:
                continue
            upto = episode[: t + 1]
            weight = often * np.prod([mdp["policy"][s, a] / mdp["behavior"][s, a] for s, a, *_ in upto])
            above += weight * (episode[t][2] if t < len(episode) else 0.0)
            below += weight if weighted else often
            ended += (weight if weighted else often) * (len(episode) <= t + 1 and episode[-1][-1])
        value += gamma**t * above / below
        scale += gamma**t
    beyond = sum(gamma**t for t in range(logged, 2000 if horizon is None else horizon))
    return value / (scale + (beyond * ended / below if gamma < 1 or horizon else 0.0))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    ("gamma", "ending", "horizon"),
    [
        (0.9, 0.0, None), (0.9, 0.1, None), (0.9, 1.0, None), (1.0, 0.0, None), (0.9, 0.1, 3), (0.9, 0.1, 9),
        (1.0, 0.3, 4), (1.0, 0.3, 9),
    ],
)  # fmt: skip
def test_step_wise(mdp, weighted, gamma, ending, horizon):
    log = walk(mdp, 12, 5, seed=2, ending=ending)
    episodes = list(episodes_of(log))
    options = {"policy": mdp["policy"], "behavior": mdp["behavior"], "horizon": horizon}
    found = baselines.step_wise(count(log), gamma, weighted=weighted, **options)
    expected = step_wise_by_hand(mdp, episodes, gamma, weighted, horizon)
    assert found.value == pytest.approx(expected, rel=1e-12)
    if not weighted:
        assert baselines.per_decision(count(log), gamma, **options).value == found.value
    if horizon is not None or gamma < 1:
        steps = 1 / (1 - gamma) if horizon is None else sum(gamma**t for t in range(horizon))
        assert found.expected_return == pytest.approx(found.value * steps, rel=1e-12)
        assert found.interval(of="return").standard_error == pytest.approx(steps * found.standard_error)
    # The influence of an episode is the slope in how often it counts.
    n, step = len(episodes), 1e-5
    slopes = []
    for k in range(n):
        sides = [
            step_wise_by_hand(
                mdp, episodes, gamma, weighted, horizon, [1.0 + sign * step * (e == k) for e in range(n)]
            )
            for sign in (1, -1)
        ]
        slopes.append((sides[0] - sides[1]) / (2 * step))
    assert found.standard_error == pytest.approx(np.sqrt(n / (n - 1) * np.sum(np.square(slopes))), rel=1e-6)


@pytest.mark.parametrize("method", ["step_wise", "per_decision", "trajectory_wise"])
def test_episodes_of_one_step_earn_once(method):
    """A reward of 1, then the end: a return of 1, and (1 - gamma) of it per step."""
    n = 10
    counts = lg.Counts.from_transitions(
        np.zeros(n, int), np.ones(n, int), np.arange(n) % 2, np.ones(n), np.arange(n),
        terminal=np.ones(n, bool), n_states=2, n_actions=2, keep_episodes=True,
    )  # fmt: skip
    policy = np.full((2, 2), 0.5)
    found = getattr(baselines, method)(counts, 0.9, policy=policy)
    assert found.expected_return == pytest.approx(1.0, rel=1e-12)
    assert found.value == pytest.approx(0.1, rel=1e-12)
    assert found.value == pytest.approx(baselines.model_based(counts, 0.9, policy=policy).value, rel=1e-12)
    assert getattr(baselines, method)(counts, 0.9, policy=policy, horizon=1).value == pytest.approx(1.0)
    assert getattr(baselines, method)(counts, 1.0, policy=policy, horizon=4).expected_return == pytest.approx(
        1.0
    )


@pytest.mark.parametrize("method", ["per_decision", "step_wise", "trajectory_wise"])
def test_importance_sampling_over_a_horizon_finds_the_return(method):
    rules = corridor(4)
    behavior = np.full((4, 2), 0.5)
    truth = rules.dynamic_programming(1.0, horizon=5)
    found = [
        getattr(baselines, method)(
            rules.sample(60, seed, behavior), policy=rules.policy, behavior=behavior, horizon=5
        )
        for seed in range(200)
    ]
    returns = np.array([one.expected_return for one in found])
    spread = returns.std(ddof=1)
    # The weighted ones are biased, by less than a fifth of their spread here.
    slack = 4 * spread / np.sqrt(200) + (0.0 if method == "per_decision" else 0.2 * spread)
    assert abs(returns.mean() - truth) < slack
    errors = [one.interval(of="return").standard_error for one in found]
    assert np.mean(errors) == pytest.approx(spread, rel=0.2)


def test_a_horizon_of_no_steps_is_refused(mdp, full):
    with pytest.raises(ValueError, match="at least 1 step"):
        baselines.step_wise(full, GAMMA, policy=mdp["policy"], horizon=0)


def test_weights_of_long_episodes_may_be_tiny():
    """Two episodes of 400 steps, weights near 1e-280: a quarter and three quarters, whatever their size."""
    state, action = np.zeros(800, int), np.zeros(800, int)
    reward = np.repeat([1.0, 3.0], 400)
    state[400] = 1
    counts = lg.Counts.from_transitions(
        state, state * 0, action, reward, np.repeat([0, 1], 400), n_states=2, n_actions=2, keep_episodes=True
    )
    behavior = np.full((2, 2), 0.5)
    policy = np.array([[0.1, 0.9], [0.3, 0.7]])
    found = baselines.trajectory_wise(counts, policy=policy, behavior=behavior)
    assert found.value == pytest.approx(0.25 * 1.0 + 0.75 * 3.0, rel=1e-12)
    assert found.effective_sample_size == pytest.approx(16 / 10, rel=1e-12)
    # Influences 0.25 (1 - 2.5) and 0.75 (3 - 2.5), times two over one for the degree of freedom.
    expected = np.sqrt(2 * ((0.25 * -1.5) ** 2 + (0.75 * 0.5) ** 2))
    assert found.standard_error == pytest.approx(expected, rel=1e-12)
    policy[:, 0], policy[:, 1] = 0.0, 1.0
    assert np.isnan(baselines.trajectory_wise(counts, policy=policy, behavior=behavior).value)


@pytest.mark.parametrize("method", ["trajectory_wise", "step_wise", "per_decision"])
def test_standard_errors_are_those_of_the_jackknife(mdp, method):
    """Deleting one episode at a time gives nearly the same spread: an independent check of the formula."""
    log = walk(mdp, 300, 3, seed=3, ending=0.05)
    estimate = getattr(baselines, method)
    found = estimate(count(log), 0.9, policy=mdp["policy"], behavior=mdp["behavior"])
    left = []
    for e in range(300):
        keep = log["episode"] != e
        part = {name: column[keep] for name, column in log.items()}
        left.append(estimate(count(part), 0.9, policy=mdp["policy"], behavior=mdp["behavior"]).value)
    spread = np.sqrt(299 / 300 * ((np.array(left) - np.mean(left)) ** 2).sum())
    assert found.standard_error == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("ending", [0.0, 0.1])
def test_doubly_robust(mdp, weighted, folds, ending):
    log = walk(mdp, 30, 6, seed=5, ending=ending)
    episodes = list(episodes_of(log))
    policy, behavior = mdp["policy"], mdp["behavior"]
    steps = [[policy[s, a] / behavior[s, a] for s, a, *_ in episode] for episode in episodes]
    products = [np.cumprod(ratios) for ratios in steps]
    if weighted:
        longest = max(map(len, products))
        means = [np.mean([w[t] for w in products if t < len(w)]) for t in range(longest)]
        products = [w / means[: len(w)] for w in products]
    total = 0.0
    for e, episode in enumerate(episodes):
        fold = e * folds // 30
        keep = np.ones(len(log["state"]), bool)
        if folds > 1:
            keep = log["episode"] * folds // 30 != fold
        model = lg.solve(count({k: v[keep] for k, v in log.items()}), GAMMA, policy=policy, **PLUG_IN)
        q, v = model.q_values.reshape(S, A), model.state_values
        total += v[episode[0][0]]
        for t, (s, a, r, s2, end) in enumerate(episode):
            total += GAMMA**t * products[e][t] * (r + GAMMA * (0.0 if end else v[s2]) - q[s, a])
    found = baselines.doubly_robust(
        count(log), GAMMA, policy=policy, behavior=behavior, weighted=weighted, folds=folds
    )
    assert found.value == pytest.approx((1 - GAMMA) * total / 30, rel=1e-9)


def test_naive_average(mdp):
    log = walk(mdp, 9, 7, seed=1, ending=0.1)
    assert baselines.naive_average(count(log, keep=False)).value == pytest.approx(log["reward"].mean())
    above = below = 0.0
    for episode in episodes_of(log):
        above += sum(GAMMA**t * step[2] for t, step in enumerate(episode))
        below += (1.0 if episode[-1][-1] else 1 - GAMMA ** len(episode)) / (1 - GAMMA)
    assert baselines.naive_average(count(log), GAMMA).value == pytest.approx(above / below, rel=1e-12)


# -- ratios and models ---------------------------------------------------------------------------------------


def test_clone_behavior(full):
    clone = baselines.clone_behavior(full)
    seen = full.cell_count.reshape(S, A)
    np.testing.assert_allclose(clone, seen / seen.sum(axis=1, keepdims=True))
    shrunk = baselines.clone_behavior(full, 5.0, np.tile([1.0, 0.0, 0.0], (S, 1)))
    np.testing.assert_allclose(shrunk[:, 0], (seen[:, 0] + 5) / (seen.sum(axis=1) + 5))
    empty = lg.Counts.empty(2, 4)
    np.testing.assert_allclose(baselines.clone_behavior(empty), 0.25)


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
def test_add_one_model(mdp, short, gamma):
    table = short.matrix.toarray().reshape(S, A, S) + 1.0
    chain = np.einsum("sa,sat->st", mdp["policy"], table / table.sum(axis=2, keepdims=True))
    start = short.initial_count / short.initial_count.sum()
    if gamma < 1:
        distribution = np.linalg.solve(np.eye(S) - gamma * chain.T, (1 - gamma) * start)
    else:
        distribution = np.linalg.solve(np.vstack([(np.eye(S) - chain).T[1:], np.ones(S)]), np.eye(S)[-1])
    found = baselines.model_based(short, gamma, policy=mdp["policy"], smoothing="add-one")
    np.testing.assert_allclose(found.state_distribution, distribution, rtol=1e-9)


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
@pytest.mark.parametrize("known", [True, False])
def test_ips_solves_its_equation(mdp, full, gamma, known):
    behavior = mdp["behavior"] if known else baselines.clone_behavior(full)
    rho = mdp["policy"] / behavior
    flow = np.einsum("sa,sat->st", rho, full.matrix.toarray().reshape(S, A, S))
    visits = full.cell_count.reshape(S, A).sum(axis=1)
    flow *= (visits / flow.sum(axis=1))[:, None]
    start = full.initial_count / full.initial_count.sum()
    found = baselines.ips(full, gamma, policy=mdp["policy"], behavior=mdp["behavior"] if known else None)
    share = found.tau * visits / visits.sum()
    np.testing.assert_allclose(
        share, (1 - gamma) * start + gamma * (found.tau @ flow) / visits.sum(), atol=1e-10
    )
    weights = rho * full.cell_count.reshape(S, A)
    weights *= (visits / weights.sum(axis=1))[:, None]
    value = (found.tau[:, None] * weights * full.reward.reshape(S, A)).sum() / visits.sum()
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("data", ["full", "short"])
def test_dual_dice_minimizes_its_objective(mdp, data, request):
    counts = request.getfixturevalue(data)
    matrix, right, p, reward, seen = dense(counts, mdp["policy"], GAMMA)
    # nu - gamma T nu = M' nu / p; the quadratic's normal equations, by least squares.
    backward = matrix.T / p[:, None]
    nu = np.linalg.lstsq(backward.T @ np.diag(p) @ backward, right, rcond=None)[0]
    tau = backward @ nu
    found = baselines.dual_dice(counts, GAMMA, policy=mdp["policy"])
    np.testing.assert_allclose(found.tau[seen], tau, rtol=1e-6, atol=1e-9)
    assert found.value == pytest.approx(p @ (tau * reward), rel=1e-6)
    assert np.isnan(np.delete(found.tau, seen)).all()
    absorbed = lg.solve(counts, GAMMA, policy=mdp["policy"], leak="absorb")
    np.testing.assert_allclose(found.tau[seen], absorbed.tau[seen], rtol=1e-8)


@pytest.mark.parametrize("data", ["full", "short"])
@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_gradient_dice_minimizes_its_objective(mdp, data, gamma, penalty, request):
    counts = request.getfixturevalue(data)
    matrix, right, p, _, seen = dense(counts, mdp["policy"], gamma)
    stacked = np.vstack([matrix / np.sqrt(p)[:, None], np.sqrt(penalty) * p])
    tau = np.linalg.lstsq(stacked, np.append(right / np.sqrt(p), np.sqrt(penalty)), rcond=None)[0]
    found = baselines.gradient_dice(counts, gamma, policy=mdp["policy"], penalty=penalty)
    np.testing.assert_allclose(found.tau[seen], tau, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("data", ["full", "short"])
@pytest.mark.parametrize(("gamma", "options"), [
    (GAMMA, {}), (1.0, {}), (GAMMA, {"alpha_reward": 0.0}), (1.0, {"nonnegative": False}),
])  # fmt: skip
def test_best_dice_maximizes_its_objective(mdp, data, gamma, options, request):
    counts = request.getfixturevalue(data)
    matrix, right, p, reward, seen = dense(counts, mdp["policy"], gamma)
    reward = options.get("alpha_reward", 1.0) * reward
    nonnegative = options.get("nonnegative", True)
    alpha_nu, alpha_zeta = 0.05, 0.7

    def loss(zeta):
        miss = right - matrix @ zeta
        kept = p @ (reward * zeta) - alpha_zeta / 2 * p @ zeta**2 - (miss**2 / p).sum() / (2 * alpha_nu)
        slope = p * reward - alpha_zeta * p * zeta + matrix.T @ (miss / p) / alpha_nu
        return -kept, -slope

    best = minimize(
        loss,
        np.ones(p.size),
        jac=True,
        method="SLSQP",
        bounds=[(0.0 if nonnegative else None, None)] * p.size,
        constraints={"type": "eq", "fun": lambda z: p @ z - 1, "jac": lambda z: p},
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    alphas = {"alpha_nu": alpha_nu, "alpha_zeta": alpha_zeta}
    found = baselines.best_dice(counts, gamma, policy=mdp["policy"], **alphas, **options)
    assert found.converged
    zeta = found.tau[seen]
    assert (zeta >= 0).all() or not nonnegative
    assert p @ zeta == pytest.approx(1.0)
    assert loss(zeta)[0] <= best.fun + 1e-8
    np.testing.assert_allclose(zeta, best.x, atol=2e-3)


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
def test_exact_methods_coincide_where_all_is_seen(mdp, full, gamma):
    """One common optimum: plug-in, GradientDICE with any penalty, DualDICE, BestDICE as alpha_nu vanishes."""
    plug_in = lg.solve(full, gamma, policy=mdp["policy"], **PLUG_IN)
    for penalty in (0.01, 100.0):
        found = baselines.gradient_dice(full, gamma, policy=mdp["policy"], penalty=penalty)
        np.testing.assert_allclose(found.tau, plug_in.tau, rtol=1e-7)
        assert found.value == pytest.approx(plug_in.value, rel=1e-8)
    best = baselines.best_dice(full, gamma, policy=mdp["policy"], alpha_nu=1e-9)
    np.testing.assert_allclose(best.tau, plug_in.tau, rtol=1e-4, atol=1e-5)
    assert baselines.model_based(full, gamma, policy=mdp["policy"]).value == plug_in.value
    if gamma < 1:
        np.testing.assert_allclose(
            baselines.dual_dice(full, gamma, policy=mdp["policy"]).tau, plug_in.tau, rtol=1e-8
        )


def test_terminal_restarts_enter_the_equation(mdp):
    counts = count(walk(mdp, 80, 25, seed=0, ending=0.1))
    for gamma in (GAMMA, 1.0):
        system = stationarity(counts, mdp["policy"], gamma, None)
        tau = lg.solve(counts, gamma, policy=mdp["policy"], **PLUG_IN).tau[system.seen]
        np.testing.assert_allclose(system.matrix @ tau, system.right, atol=1e-12)


def test_mass_in_terminal_states_counts_in_normalizations(mdp):
    counts = count(walk(mdp, 80, 25, seed=0, ending=0.1))
    plug_in = lg.solve(counts, GAMMA, policy=mdp["policy"], **PLUG_IN)
    assert plug_in.leak == 0
    assert plug_in.terminal_mass > 0.2
    for penalty in (0.01, 100.0):
        found = baselines.gradient_dice(counts, GAMMA, policy=mdp["policy"], penalty=penalty)
        assert found.value == pytest.approx(plug_in.value, rel=1e-8)
        np.testing.assert_allclose(found.tau, plug_in.tau, rtol=1e-7)
    for nonnegative in (True, False):
        best = baselines.best_dice(
            counts, GAMMA, policy=mdp["policy"], alpha_nu=1e-9, nonnegative=nonnegative
        )
        np.testing.assert_allclose(best.tau, plug_in.tau, rtol=1e-4, atol=1e-5)


def test_refusals(mdp, full):
    bare = count(walk(mdp, 6, 6, seed=4), keep=False)
    ended = count(walk(mdp, 12, 6, seed=4, ending=0.2))
    with pytest.raises(ValueError, match="keep_episodes"):
        baselines.step_wise(bare, policy=mdp["policy"])
    with pytest.raises(ValueError, match="gamma=1"):
        baselines.trajectory_wise(ended, policy=mdp["policy"])
    with pytest.raises(ValueError, match="gamma < 1"):
        baselines.dual_dice(full, 1.0, policy=mdp["policy"])
    with pytest.raises(ValueError, match="gamma < 1"):
        baselines.doubly_robust(full, 1.0, policy=mdp["policy"])
    with pytest.raises(ValueError, match="penalty"):
        baselines.gradient_dice(full, 1.0, policy=mdp["policy"], penalty=0.0)
    with pytest.raises(ValueError, match="alpha_nu"):
        baselines.best_dice(full, 1.0, policy=mdp["policy"], alpha_nu=0.0)
    with pytest.raises(ValueError, match="add-one"):
        baselines.model_based(full, policy=mdp["policy"], smoothing="some")
    with pytest.raises(ValueError, match="no standard error"):
        baselines.dual_dice(full, 0.9, policy=mdp["policy"]).interval()
    with pytest.raises(ValueError, match="was logged"):
        baselines.step_wise(full, policy=mdp["policy"], behavior=np.tile([1.0, 0.0, 0.0], (S, 1)))


# -- as solutions ------------------------------------------------------------------------------------------


def test_distributions_of_importance_sampling_are_its_weights(mdp):
    """Rewards that are 1 in one cell and 0 elsewhere make the value that cell's share of the distribution."""
    log = walk(mdp, 12, 5, seed=2)
    for estimate in (baselines.trajectory_wise, baselines.step_wise, baselines.per_decision):
        distribution = estimate(count(log), GAMMA, policy=mdp["policy"], behavior=mdp["behavior"]).stationary
        assert distribution.shape == (S * A,)
        for cell in range(S * A):
            only = {**log, "reward": (log["state"] * A + log["action"] == cell).astype(float)}
            found = estimate(count(only), GAMMA, policy=mdp["policy"], behavior=mdp["behavior"])
            assert found.value == pytest.approx(distribution[cell], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
def test_the_naive_distribution_is_that_of_the_log(mdp, gamma):
    log = walk(mdp, 9, 7, seed=1)
    found = baselines.naive_average(count(log), gamma)
    expected = np.zeros(S * A)
    for episode in episodes_of(log):
        for t, (s, a, *_) in enumerate(episode):
            expected[s * A + a] += gamma**t
    np.testing.assert_allclose(found.stationary, expected / expected.sum(), rtol=1e-12)
    if gamma == 1.0:
        np.testing.assert_allclose(found.tau[found.supported], 1.0)


def test_every_baseline_returns_a_solution(mdp, full):
    """Residuals tell which distributions are stationary: the plug-in's and exact ratios', not reweighted
    paths'."""
    policy = mdp["policy"]
    answers = {
        name: getattr(baselines, name)(full, GAMMA, policy=policy)
        for name in (
            "model_based", "trajectory_wise", "step_wise", "per_decision", "doubly_robust", "ips",
            "dual_dice", "gradient_dice", "best_dice",
        )
    }  # fmt: skip
    answers["naive_average"] = baselines.naive_average(full, GAMMA)
    for name, found in answers.items():
        assert isinstance(found, lg.Solution), name
        assert np.isfinite(found.value), name
        assert found.converged, name
        assert found.to_dict()["tau"] is not None
        assert "value per step" in str(found)
        assert lg.diagnose(found)
        assert found.plot("ratio") is not None
    for name in ("model_based", "doubly_robust", "dual_dice", "gradient_dice"):
        assert answers[name].residual < 1e-9, name
    for name in ("trajectory_wise", "step_wise", "naive_average"):
        assert answers[name].residual > 1e-3, name


def test_solutions_of_baselines_read_well(mdp, full):
    found = baselines.step_wise(full, GAMMA, policy=mdp["policy"])
    assert found.interval().low < found.value < found.interval().high
    assert found.to_dict()["method"] == "step-wise weighted importance sampling"
    assert found.to_dict()["standard_error"] == found.standard_error
    assert f"standard error         {found.standard_error:.2g}" in str(found)
    found.diagnose()
    assert "of 80 episodes count" in str(found)
    assert "\n" not in repr(found)
    assert "<table>" in found._repr_html_()
    assert found.gap is None
    assert found.value_bounds is None
    with pytest.raises(ValueError, match="value only"):
        found.interval(of="stationary")
    for level in (95, 0.0, float("nan")):  # ends were nan without a word
        with pytest.raises(ValueError, match="level"):
            found.interval(level)
    for name in ("q_values", "state_values"):
        with pytest.raises(ValueError, match="no value function"):
            getattr(found, name)


@pytest.mark.parametrize("steps", [104, 107, 120])
def test_products_near_the_least_number_do_not_overflow(steps):
    """The target takes the logged action once in a thousand times: products end near 1e-312, or at 0."""
    state, first = np.arange(2 * steps) % 2, np.repeat([0, 1], steps)
    reward = np.where(np.arange(2 * steps) % steps < 50, 1.0, 0.0)
    counts = lg.Counts.from_transitions(
        state, 1 - state, np.zeros(2 * steps, int), reward, first, n_states=2, n_actions=2, keep_episodes=True
    )
    policy, behavior = [[0.001, 0.999]] * 2, [[1.0, 0.0]] * 2
    found = baselines.step_wise(counts, 0.9, policy=policy, behavior=behavior)
    # Both episodes weigh the same: the weighted mean of each step is its reward, until no weight is left.
    assert found.value == pytest.approx((1 - 0.9**50) / (1 - 0.9**steps), rel=1e-12)
    assert np.isfinite(found.residual)
    assert np.isfinite(found.standard_error)


def test_an_estimate_without_weights_still_prints(mdp):
    """The target never takes the logged actions: no weight is positive, and the value is nan."""
    counts = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1],
        n_states=2, n_actions=2, keep_episodes=True,
    )  # fmt: skip
    found = baselines.trajectory_wise(counts, 0.9, policy=[[0.0, 1.0], [0.0, 1.0]])
    assert np.isnan(found.value)
    assert found.to_dict()["value"] is None
    assert "value per step         nan" in str(found)


def test_dual_dice_where_all_mass_leaves_the_data():
    """The target's first action was never logged: tau is 0 where there are data, and so is its sample."""
    counts = lg.Counts.from_transitions(
        [0, 0], [0, 0], action=[1, 1], reward=[1.0, 2.0], episode=[0, 1], n_states=1, n_actions=2
    )
    found = baselines.dual_dice(counts, 0.9, policy=[[1.0, 0.0]])
    assert np.isnan(found.value)
    assert found.status is lg.Status.NOT_IDENTIFIED
    assert found.effective_sample_size == 0.0
    assert "E_p tau = 0.0000" in found.note


def test_cross_fitting_reads_labels(mdp):
    log = walk(mdp, 12, 6, seed=5)
    states, actions = np.array([f"s{k}" for k in range(S)]), np.array([f"a{k}" for k in range(A)])
    named = lg.Counts.from_transitions(
        states[log["state"]], states[log["next_state"]], actions[log["action"]], log["reward"],
        log["episode"], keep_episodes=True,
    )  # fmt: skip
    policy = {s: dict(zip(actions, row, strict=True)) for s, row in zip(states, mdp["policy"], strict=True)}
    table = [[policy[s][a] for a in named.action_labels] for s in named.state_labels]
    found = baselines.doubly_robust(named, GAMMA, policy=policy, folds=3)
    assert found.value == baselines.doubly_robust(named, GAMMA, policy=table, folds=3).value
    for folds in (0, 2.5, 13, "two"):
        with pytest.raises(ValueError, match="folds must be a whole number from 1 to 12"):
            baselines.doubly_robust(named, GAMMA, policy=policy, folds=folds)


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("model_based", {"smoothing": "add-one"}, "smoothing belongs to Counts"),
        ("doubly_robust", {"behavior": [0.5, 0.5]}, "behavior belongs to Counts"),
        ("doubly_robust", {"weighted": True}, "weighted belongs to Counts"),
        ("doubly_robust", {"folds": 3}, "folds belongs to Counts"),
        ("doubly_robust", {"tau": [1.0, np.nan, 1.0, 1.0]}, r"tau\[1\] is nan"),
        ("fitted_q", {"seed": 1.5}, "seed must be a whole"),
        ("fitted_q", {"restarts": "none"}, "leave it out of fitted_q"),
        ("neural_dual_dice", {"seed": -1}, "seed must be a whole"),
        ("neural_dual_dice", {"options": {"output": "square"}}, r"options\['output'\] is for solve"),
        ("neural_dual_dice", {"options": {"base": "cloned"}}, r"options\['base'\] is for solve"),
        (
            "neural_importance_sampling",
            {"behavior_log_density": np.zeros(4), "clone_options": {"steps": 9}},
            "leave clone_options out",
        ),
    ],
)
def test_what_continuous_states_have_no_use_for_is_refused(method, given, message):
    log = lg.Transitions(np.eye(4), [0, 1, 0, 1], np.ones(4), np.eye(4), episode=[0, 0, 1, 1])
    with pytest.raises(ValueError, match=message):
        getattr(baselines, method)(log, 0.9, policy=np.array([0.5, 0.5]), **given)


def test_a_weight_of_rewards_that_is_no_number_is_refused(mdp, full):
    with pytest.raises(ValueError, match="alpha_reward must be"):
        baselines.best_dice(full, GAMMA, policy=mdp["policy"], alpha_reward=np.nan)


@pytest.mark.parametrize("initial", [None, [0, 0, 0, 0, 1.0]])
@pytest.mark.parametrize("method", [baselines.gradient_dice, baselines.best_dice])
def test_several_classes_are_refused_at_gamma_1(method, initial):
    """BestDICE called the mixture solved that earns most, and GradientDICE's system is singular."""
    table = np.array([[1, 2, 0, 0, 0], [2, 1, 0, 0, 0], [0, 0, 1, 3, 0], [0, 0, 2, 1, 0], [1, 0, 1, 0, 1]])
    state, following = np.repeat(np.indices((5, 5)).reshape(2, 25), table.ravel(), axis=1)
    counts = lg.Counts.from_transitions(state, following, np.zeros_like(state), 1.0 * state)
    policy = np.ones((5, 1))
    with pytest.raises(ValueError, match="2 recurrent classes, and every mixture"):
        method(counts, 1.0, policy=policy, initial=initial)
    exact = baselines.model_based(counts, 1.0, policy=policy, initial=[0, 0, 0, 0, 1.0])
    assert exact.value == pytest.approx((0.5 + (2 * 8 + 3 * 9) / 17) / 2)  # half of the walks end in each
    assert method(counts, 0.9, policy=policy, initial=[0, 0, 0, 0, 1.0]).converged
