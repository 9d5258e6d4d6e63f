"""Every method of the saddle point against the exact answer, and its own promises."""

from __future__ import annotations

import numpy as np
import pytest
from saddle_problems import SMOOTH, chain_counts, chain_flow, exact_ratio, some_features
from scipy.optimize import linprog, minimize, minimize_scalar, nnls

import lingendice as lg
from lingendice.data.counts import Counts
from lingendice.divergences import MMD, Wasserstein
from lingendice.model.compose import Choices, compose
from lingendice.model.features import MatrixFeatures
from lingendice.solvers.control import Controls, run
from lingendice.solvers.convex import solve_convex
from lingendice.solvers.extragradient import solve_extragradient
from lingendice.solvers.problem import RatioProblem
from lingendice.solvers.sgd import OPTIONS, _Runner, _State, bounded_for_sgd, solve_sgd, step_sizes

TIGHT = 1e-10


def solve(solver, **limits):
    return run(solver, Controls(tol=TIGHT, **limits))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("normalize", ["penalty", "self"])
@pytest.mark.parametrize("name", [*SMOOTH, "total_variation", "mmd"])
def test_extragradient_reaches_the_exact_ratio(name, normalize, gamma):
    problem = RatioProblem.build(chain_flow(12, gamma), divergence=name, normalize=normalize)
    outcome = solve(solve_extragradient(problem, TIGHT), max_iter=40_000)
    assert outcome.converged
    assert np.abs(outcome.w - exact_ratio(chain_counts(12), gamma)).max() < 1e-6


def test_linear_convergence():
    """log gap falls in proportion to the steps: the last four decades cost no more than thrice the share
    of those before."""
    problem = RatioProblem.build(chain_flow(20, 1.0, seed=2))
    trace = run(solve_extragradient(problem, 1e-12), Controls(tol=1e-12, max_iter=10**6)).trace
    steps = {level: next(n for n, gap in trace if gap <= level) for level in (1e-4, 1e-8, 1e-12)}
    assert steps[1e-12] - steps[1e-8] <= 3 * max(steps[1e-8] - steps[1e-4], steps[1e-4])


@pytest.mark.parametrize("name", SMOOTH)
def test_methods_agree_on_linear_features(name):
    flow = chain_flow(15, 0.95, seed=4)
    problem = RatioProblem.build(flow, some_features(15, 4), some_features(15, 5, seed=9), name)
    newton = solve(solve_convex(problem, TIGHT))
    first_order = run(solve_extragradient(problem, 1e-4), Controls(tol=1e-4, max_iter=3000))
    assert newton.converged
    assert newton.gap.primal - 1e-9 <= first_order.gap.primal
    assert first_order.gap.dual <= newton.gap.dual + 1e-9
    assert first_order.gap.value < 3e-3


def test_gradient_penalty_stands_in_for_the_metric():
    """The tabular optimum is the same; with features a weight of 1 relaxes the constraint, from above."""
    soft = Wasserstein(gradient_penalty=1.0)
    tabular = RatioProblem.build(chain_flow(12), divergence=soft)
    outcome = run(solve_extragradient(tabular, 1e-6), Controls(tol=1e-6, max_iter=3000))
    assert np.abs(outcome.w - exact_ratio(chain_counts(12), 1.0)).max() < 1e-5
    features = some_features(12, 3)
    hard = solve(solve_convex(RatioProblem.build(chain_flow(12), features, None, "wasserstein"), TIGHT))
    relaxed = RatioProblem.build(chain_flow(12), features, None, soft)
    outcome = run(solve_extragradient(relaxed, 1e-5), Controls(tol=1e-5, max_iter=3000))
    assert outcome.converged
    assert hard.gap.primal <= outcome.gap.primal <= 1.3 * hard.gap.primal


EXCESS = {
    "chi2": (lambda y: y * y / 4, lambda y: y / 2),
    "weighted_l2": (lambda y: y * y / 2, lambda y: y),
    "kl": (lambda y: np.expm1(y) - y, np.expm1),
    "hellinger": (lambda y: y * y / (1 - y), lambda y: 1 / (1 - y) ** 2 - 1),
}


def bounds_by_scipy(counts, gamma, psi, phi, name, normalize, bound, penalty, point):
    """(max over |v| <= bound, min over 0 <= w <= bound) of the objective at a point (w, v, u)."""
    n = len(counts)
    w, v, u = point
    step, p = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1) / counts.sum()
    mass = p * (psi @ w)
    away = (1 - gamma) / n + gamma * step.T @ mass - mass
    weight = p if name == "weighted_l2" else mass
    excess, slope = EXCESS[name]

    def loss(v):
        f = phi @ v
        if name == "hellinger" and f.max() >= 1.0:
            return 1e10, 0.0 * v
        return weight @ excess(f) - away @ f, phi.T @ (weight * slope(f) - away)

    box = [(-bound, bound)] * v.size
    tight = {"ftol": 1e-16, "gtol": 1e-13}
    best = minimize(loss, 0.0 * v, jac=True, method="L-BFGS-B", bounds=box, options=tight)
    total, price = p @ psi, penalty if normalize == "penalty" else 0.0
    primal = -best.fun + price / 2 * (total @ w - 1) ** 2
    f = phi @ v
    fixed = (1 - gamma) * f.mean() - (p @ excess(f) if name == "weighted_l2" else 0.0)
    on_tau = gamma * step @ f - f - (0.0 if name == "weighted_l2" else excess(f)) + price * u
    imposed = {"A_eq": total[None, :], "b_eq": [1.0]} if normalize == "self" else {}
    least = linprog(psi.T @ (p * on_tau), bounds=(0, bound), **imposed)
    return primal, least.fun + fixed - price * (u + u**2 / 2)


@pytest.mark.parametrize("solver", [solve_convex, solve_extragradient])
@pytest.mark.parametrize("normalize", ["penalty", "self"])
@pytest.mark.parametrize("name", EXCESS)
def test_a_point_at_the_bounds_is_optimal_by_general_solvers(name, normalize, solver):
    """|v| <= C and w <= C both bind; SciPy maximizes over the box of v, and minimizes over that of w."""
    n, gamma, bound, penalty = 12, 0.9, 0.4, 0.5
    psi = np.random.default_rng(1).uniform(0.0, 1.5, (n, 4))
    phi = np.random.default_rng(2).normal(size=(n, 5)) * 0.3
    features = MatrixFeatures(psi), MatrixFeatures(phi)
    choices = {"normalize": normalize, "bound": bound, "penalty": penalty}
    outcome = solve(
        solver(RatioProblem.build(chain_flow(n, gamma, seed=7), *features, name, **choices), TIGHT),
        max_iter=40_000,
    )
    assert outcome.converged
    assert max(outcome.w.max(), np.abs(outcome.v).max()) <= bound * (1 + 1e-12)
    point = outcome.w, outcome.v, outcome.u
    primal, dual = bounds_by_scipy(
        chain_counts(n, 7), gamma, psi, phi, name, normalize, bound, penalty, point
    )
    assert abs(primal - dual) < 1e-8
    assert abs(outcome.gap.primal - primal) < 1e-9


CONJUGATES = {
    "kl": (lambda y: np.expm1(y) - y, np.expm1, np.inf),
    "reverse_kl": (lambda y: -np.log1p(-y) - y, lambda y: y / (1 - y), 1.0),
    "hellinger": (lambda y: y * y / (1 - y), lambda y: 1 / (1 - y) ** 2 - 1, 1.0),
    "jensen_shannon": (
        lambda y: -np.log(2 - np.exp(y)) - y, lambda y: np.exp(y) / (2 - np.exp(y)) - 1, np.log(2),
    ),
}  # fmt: skip


def objective_by_scipy(counts, gamma, psi, phi, name, w, bound=10.0):
    """max over |v| <= bound of the objective at w, by L-BFGS on the formulas of the divergence."""
    step, p = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1) / counts.sum()
    mass = p * (psi @ w)
    away = (1 - gamma) / len(counts) + gamma * step.T @ mass - mass
    excess, slope, limit = CONJUGATES[name]

    def loss(v):
        f = phi @ v
        if f.max() >= limit:
            return 1e10, 0.0 * v
        return mass @ excess(f) - away @ f, phi.T @ (mass * slope(f) - away)

    box, tight = [(-bound, bound)] * phi.shape[1], {"ftol": 1e-15, "gtol": 1e-11, "maxiter": 5000}
    best = minimize(loss, np.zeros(phi.shape[1]), jac=True, method="L-BFGS-B", bounds=box, options=tight)
    return -best.fun + 0.5 * (p @ psi @ w - 1) ** 2


@pytest.mark.parametrize("method", ["convex", "extragradient", "sgd"])
@pytest.mark.parametrize("name", CONJUGATES)
def test_the_default_bound_is_certified_in_the_basis_that_was_given(name, method):
    """|w_f| <= 10 binds: in an orthonormal basis the gap was that of another problem (w_f up to 40)."""
    counts = chain_counts(10, seed=1)
    rng = np.random.default_rng(1)
    psi, phi = rng.uniform(0.0, 1.0, (10, 3)), rng.normal(size=(10, 4)) * [0.001, 0.003, 0.03, 0.1]
    problem = {"features": psi, "dual_features": phi, "divergence": name, "initial": np.full(10, 0.1)}
    limit = {"max_iter": 2_000} if method != "convex" else {}
    solution = lg.solve(counts, 0.9, method=method, tol=1e-8, **problem, **limit)
    assert np.abs(solution.w_f).max() <= 10 * (1 + 1e-12)
    ours = objective_by_scipy(counts, 0.9, psi, phi, name, solution.w_tau)
    assert solution.objective == pytest.approx(ours, abs=1e-7)
    exact = solution if method == "convex" else lg.solve(counts, 0.9, method="convex", tol=1e-8, **problem)

    def attained(w):
        return objective_by_scipy(counts, 0.9, psi, phi, name, np.abs(w))

    options = {"maxiter": 400, "xatol": 1e-7, "fatol": 1e-10}
    best = minimize(attained, exact.w_tau, method="Nelder-Mead", options=options).fun
    assert solution.lower_bound - 1e-7 <= best <= solution.objective + 1e-7
    if method == "convex":
        assert solution.converged
        assert np.abs(solution.w_f).max() > 9.99


def test_units_of_dual_features_change_nothing_where_no_bound_is_asked_for():
    """A feature in small units was taken for a rounding error of the others, and left out of the maximum."""
    counts = chain_counts(10, seed=1)
    rng = np.random.default_rng(1)
    psi, phi = rng.uniform(0.0, 1.0, (10, 3)), rng.normal(size=(10, 4))
    plain = lg.solve(counts, 0.9, features=psi, dual_features=phi, initial=np.full(10, 0.1))
    small = lg.solve(counts, 0.9, features=psi, dual_features=phi * [1e-7, 1, 1, 1], initial=np.full(10, 0.1))
    assert small.objective == pytest.approx(plain.objective, rel=1e-6)
    assert np.allclose(small.w_f * [1e-7, 1, 1, 1], plain.w_f, rtol=1e-5)


def least_total_variation(step, p, gamma, psi, phi, total):
    """min over w >= 0 of mass ``total`` of the max over |Phi v| <= 1/2, by the linear program in (w, y)."""
    n, width = psi.shape
    away = phi.T @ (gamma * step.T - np.eye(n)) @ (p[:, None] * psi)
    equal = np.vstack(
        [np.hstack([-away, phi.T, -phi.T]), np.concatenate([p @ psi, np.zeros(2 * n)])[None, :]]
    )
    right = np.append(phi.sum(axis=0) * (1 - gamma) / n, total)
    return linprog(np.concatenate([np.zeros(width), np.full(2 * n, 0.5)]), A_eq=equal, b_eq=right).fun


@pytest.mark.parametrize("normalize", ["penalty", "self"])
def test_linear_programs_over_features_reach_the_least_total_variation(normalize):
    """Their duals end at |f| = 1/2, the end of the domain of phi*, or beyond it by rounding."""
    n, gamma, penalty = 10, 0.9, 0.5
    for seed in range(12):
        rng = np.random.default_rng(seed)
        psi, phi = np.abs(rng.normal(size=(n, 3))), rng.normal(size=(n, 3))
        features = MatrixFeatures(psi), MatrixFeatures(phi)
        choices = {"normalize": normalize, "penalty": penalty}
        flow = chain_flow(n, gamma, seed)
        outcome = solve(
            solve_convex(RatioProblem.build(flow, *features, "total_variation", **choices), TIGHT)
        )
        assert outcome.converged
        counts = chain_counts(n, seed)
        step, p = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1) / counts.sum()
        given = step, p, gamma, psi, phi
        if normalize == "self":
            least = least_total_variation(*given, 1.0)
        else:
            least = minimize_scalar(
                lambda mass, given=given: least_total_variation(*given, mass) + penalty / 2 * (mass - 1) ** 2,
                bounds=(0.01, 2.0),
                options={"xatol": 1e-9},
            ).fun
        assert abs(outcome.gap.primal - least) < 1e-8


def test_mmd_over_features_is_a_nonnegative_least_squares_problem():
    n, gamma, penalty = 10, 0.9, 0.3
    rng = np.random.default_rng(0)
    psi, points, counts = rng.uniform(size=(n, 3)), rng.normal(size=(n, 2)), chain_counts(n)
    metric = MMD(points, bandwidth=1.0)
    solution = lg.solve(counts, gamma, features=psi, divergence=metric, penalty=penalty)
    step, p = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=1) / counts.sum()
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(axis=2) / 2)
    root = np.linalg.cholesky(kernel).T
    left = np.vstack([root @ (np.eye(n) - gamma * step.T) @ (p[:, None] * psi), np.sqrt(penalty) * (p @ psi)])
    right = np.append(root @ np.full(n, (1 - gamma) / n), np.sqrt(penalty))
    expected, _ = nnls(left, right)
    assert solution.converged
    np.testing.assert_allclose(solution.w_tau, expected, atol=1e-4)
    assert np.linalg.norm(left @ solution.w_tau - right) <= np.linalg.norm(left @ expected - right) + 1e-8


# -- stochastic gradient ---------------------------------------------------------------------------------


def sgd(problem, seed=0, max_iter=20_000, **options):
    problem = bounded_for_sgd(problem)
    return problem, run(
        solve_sgd(problem, TIGHT, seed, {**OPTIONS, **options}, max_iter),
        Controls(tol=TIGHT, max_iter=max_iter),
    )


def some_problem(kind, normalize="penalty", gamma=0.9):
    flow = chain_flow(12, gamma)
    if kind == "tabular":
        return RatioProblem.build(flow, normalize=normalize, bound=4.0, dual_bound=2.0)
    features, dual = some_features(12, 3), some_features(12, 4, seed=5)
    if kind == "sparse":
        from scipy.sparse import csr_array

        features, dual = MatrixFeatures(csr_array(features.matrix)), MatrixFeatures(csr_array(dual.matrix))
    return RatioProblem.build(flow, features, dual, normalize=normalize, bound=4.0, dual_bound=2.0)


def leaky_problem(normalize="self"):
    """A table with a cell that is entered, and started in, but never left."""
    counts = chain_counts(6, seed=2)
    counts[:3, 4] += 8
    counts[4] = 0
    initial = np.array([0.1, 0.1, 0.1, 0.1, 0.5, 0.1])
    operator = compose(Counts.from_matrix(counts), Choices(gamma=0.5, initial=initial))
    flow = operator.flow(closed=True)
    return RatioProblem.build(flow, normalize=normalize, bound=4.0, dual_bound=2.0)


@pytest.mark.parametrize("kind", ["tabular", "dense", "sparse"])
def test_sgd_is_reproducible_and_ends_at_max_iter(kind):
    first, again, other = (sgd(some_problem(kind), seed)[1] for seed in (3, 3, 4))
    assert first.n_iter == 20_000
    assert np.array_equal(first.w, again.w)
    assert np.array_equal(first.v, again.v)
    assert not np.array_equal(first.w, other.w)


@pytest.mark.parametrize("batch", [1, 7])
def test_sparse_and_dense_features_take_the_same_steps(batch):
    """At gamma = 1, where nothing starts: dense features take mu0's term exactly, sparse ones draw it."""
    dense, sparse = (
        sgd(some_problem(kind, gamma=1.0), average=False, batch=batch)[1] for kind in ("dense", "sparse")
    )
    assert np.allclose(dense.w, sparse.w, rtol=1e-9)
    assert np.allclose(dense.v, sparse.v, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 7])
def test_lazy_averages_equal_plain_ones(batch):
    """The sparse kernel sums lazily, the dense one each step: the averages must agree."""
    dense, sparse = (
        sgd(some_problem(kind, gamma=1.0), max_iter=3000, batch=batch)[1] for kind in ("dense", "sparse")
    )
    assert np.allclose(dense.w, sparse.w, rtol=1e-9)
    assert np.allclose(dense.v, sparse.v, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("normalize", ["penalty", "self"])
def test_tabular_steps_equal_sparse_steps_over_the_identity(normalize):
    from scipy.sparse import eye_array

    flow = chain_flow(12, 0.9)
    one_hot = MatrixFeatures(eye_array(12, format="csr"))
    choices = {"bound": 4.0, "dual_bound": 2.0, "normalize": normalize}
    tabular = RatioProblem.build(flow, **choices)
    sparse = RatioProblem.build(flow, one_hot, one_hot, **choices)
    first, second = (sgd(problem, max_iter=5000)[1] for problem in (tabular, sparse))
    assert np.allclose(first.w, second.w, rtol=1e-9)
    assert np.allclose(first.v, second.v, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        *(("dense", batch) for batch in (1, 2, 5, 8)),
        *((k, b) for k in ("sparse", "tabular", "leaky") for b in (1, 6)),
    ],
)
def test_batches_step_along_the_mean_gradient(kind, batch):
    """One step of a batch is the full gradient in expectation: averaged over seeds, within four errors."""
    problem = bounded_for_sgd(leaky_problem("penalty") if kind == "leaky" else some_problem(kind))
    steps = step_sizes(problem)
    runner = _Runner(problem, steps, batch, 1.0)
    dual = np.full(problem.dual_features.n_features, 0.1)
    before = _State(problem, 0, (problem.start(), dual, 0.2))
    on_w, on_v, on_u = problem.gradients(before.w, before.v, before.u)
    moved = []
    for seed in range(2000):
        state = _State(problem, seed, (before.w, before.v, before.u))
        runner.run(state, 0, 1, 1_000_000)
        moved.append(np.concatenate([state.w - before.w, state.v - before.v, [state.u - before.u]]))
    expected = np.concatenate([-steps.w * on_w, steps.v * on_v, [steps.u * on_u]]) / 1000.0
    error = np.std(moved, axis=0) / np.sqrt(len(moved))
    assert (np.abs(np.mean(moved, axis=0) - expected) < 4.0 * error + 1e-15).all()


@pytest.mark.parametrize(("kind", "batch"), [("dense", 1), ("dense", 6), ("sparse", 6), ("tabular", 1)])
def test_where_a_run_of_steps_is_cut_changes_nothing(kind, batch):
    """No sample may be lost or drawn twice where one call ends."""
    problem = bounded_for_sgd(some_problem(kind))
    runner = _Runner(problem, step_sizes(problem), batch, 1.0)
    whole, cut = _State(problem, 3, None), _State(problem, 3, None)
    runner.run(whole, 0, 50, 50)
    for first, last in ((0, 1), (1, 20), (20, 50)):
        runner.run(cut, first, last, 50)
    assert whole.counter == cut.counter
    assert np.array_equal(whole.w, cut.w)
    assert np.array_equal(whole.v_sum, cut.v_sum)


@pytest.mark.parametrize("kind", ["tabular", "dense"])
def test_mean_gap_stays_below_the_bound(kind):
    gaps = []
    for seed in range(8):
        problem, outcome = sgd(some_problem(kind), seed, max_iter=30_000)
        gaps.append([gap for _, gap in outcome.trace])
    steps = step_sizes(problem)
    lengths = np.diff([0, *(n for n, _ in outcome.trace)])
    assert (np.mean(gaps, axis=0) <= [steps.bound(int(n)) for n in lengths]).all()


@pytest.mark.slow
def test_slope_over_four_decades():
    problem, _ = sgd(some_problem("tabular"), max_iter=1000)
    lengths = 10 ** np.arange(3, 8)
    mean = []
    for length in lengths:
        gaps = [
            sgd(some_problem("tabular"), seed, int(length), first_epoch=int(length))[1].gap.value
            for seed in range(5)
        ]
        mean.append(np.mean(gaps))
        assert mean[-1] <= step_sizes(problem).bound(int(length))
    assert np.polyfit(np.log10(lengths), np.log10(mean), 1)[0] <= -0.4


@pytest.mark.parametrize("kind", ["dense", "sparse", "tabular"])
def test_minibatches_lower_the_noise(kind):
    spread = {}
    for batch in (1, 64):
        last = [sgd(some_problem(kind), seed, 2000, batch=batch, average=False)[1].w for seed in range(6)]
        spread[batch] = np.std(last, axis=0).mean()
    assert spread[64] < 0.5 * spread[1]


def test_the_gap_of_sgd_is_that_of_the_bound_asked_for():
    """Its steps keep f well inside the domain of phi*; what is better beyond must not count as solved."""
    n, gamma, bound, tol = 6, 1.0, 2.0, 1e-2
    counts = chain_counts(n, 3)
    psi = np.abs(np.random.default_rng(3).normal(size=(n, 2)))
    phi = np.random.default_rng(53).normal(size=(n, 2))
    choices = {"features": psi, "dual_features": phi, "divergence": "hellinger", "bound": bound}
    solution = lg.solve(counts, gamma, method="sgd", tol=tol, max_iter=100_000, **choices)
    point = solution.w_tau, solution.w_f, solution.u
    primal, dual = bounds_by_scipy(counts, gamma, psi, phi, "hellinger", "penalty", bound, 1.0, point)
    assert primal - dual > 2 * tol
    assert solution.gap == pytest.approx(primal - dual, rel=1e-6)
    assert solution.status.value == "gap above tol"
    assert "|w_f| <= 0.193" in solution.reason


def test_the_gap_of_sgd_without_a_bound_is_that_of_the_free_problem():
    """SGD keeps |f| <= 2. The ratio is too stiff to fit a start that is rarely logged: its f is beyond."""
    counts = np.array([[0, 1, 0, 1, 0], [0, 200, 100, 50, 50], [0, 90, 30, 200, 80], [0, 9, 90, 9, 300],
                       [0, 200, 20, 100, 80]])  # fmt: skip
    features, start, gamma, tol = np.column_stack([np.ones(5), np.arange(5) / 4]), np.eye(5)[0], 0.9, 0.05
    choices = {"features": features, "dual_features": np.eye(5), "initial": start, "max_iter": 3_000_000}
    solution = lg.solve(counts, gamma, method="sgd", tol=tol, **choices)
    p = counts.sum(axis=1) / counts.sum()
    mass = p * (features @ solution.w_tau)
    inflow = (1 - gamma) * start + gamma * mass @ (counts / counts.sum(axis=1, keepdims=True))
    free = ((inflow - mass) ** 2 / mass).sum() + (mass.sum() - 1) ** 2 / 2
    assert solution.objective == pytest.approx(free, rel=1e-9)
    exact = lg.solve(counts, gamma, method="convex", tol=1e-7, **choices)
    assert np.abs(exact.w_f).max() > 10.0
    assert solution.gap >= free - exact.objective > 3 * tol
    assert solution.status.value == "gap above tol"
    assert "|w_f| <= 2" in solution.reason
    assert "bound=" in solution.status.advice


@pytest.mark.parametrize("batch", [1, 4])
def test_self_normalized_sgd_nears_the_ratio(batch):
    _, outcome = sgd(some_problem("tabular", "self"), max_iter=400_000, batch=batch)
    assert np.abs(outcome.w - exact_ratio(chain_counts(12), 0.9)).max() < 0.15
    assert outcome.gap.value < 0.1


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_self_normalized_sgd_with_features_nears_the_optimum(kind):
    problem, outcome = sgd(some_problem(kind, "self"), max_iter=400_000)
    best = solve(solve_convex(problem, 1e-8))
    assert outcome.gap.value < 0.02
    assert best.gap.dual - 1e-8 <= outcome.gap.primal <= best.gap.primal + outcome.gap.value
    assert problem.total(outcome.w) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "batch"),
    [("dense", 4), ("sparse", 1), ("sparse", 3), ("tabular", 1), ("tabular", 3), ("leaky", 1), ("leaky", 3)],
)
def test_self_normalized_steps_follow_the_gradient_of_the_normalized_objective(kind, batch):
    """The mean step over seeds against finite differences of J(w / a'w, v), at a w of another scale."""
    problem = bounded_for_sgd(leaky_problem() if kind == "leaky" else some_problem(kind, "self"))
    steps = step_sizes(problem)
    runner = _Runner(problem, steps, batch, 1.0)
    w = 1.3 * problem.start() * np.linspace(0.5, 1.4, problem.features.n_features)
    v = np.linspace(0.8, 1.6, problem.dual_features.n_features)
    moved = []
    for seed in range(6000):
        state = _State(problem, seed, (w, v, 0.0))
        runner.mass = float(problem.mass_row @ w)
        runner.run(state, 0, 1, 1_000_000)
        assert kind == "dense" or runner.mass == pytest.approx(problem.mass_row @ state.w, rel=1e-12)
        moved.append(state.w - w)

    def objective(at):
        return problem.objective(problem.rescaled(at), v, 0.0)

    slope = [(objective(w + h) - objective(w - h)) / 2e-6 for h in 1e-6 * np.eye(w.size)]
    error = np.std(moved, axis=0) / np.sqrt(len(moved))
    assert (np.abs(np.mean(moved, axis=0) + steps.w * slope / 1000.0) < 4.0 * error + 1e-13).all()


def test_methods_refuse_what_they_do_not_serve():
    flow = chain_flow(6)
    with pytest.raises(ValueError, match="constrained dual"):
        next(solve_extragradient(RatioProblem.build(flow, divergence="dudley"), TIGHT))
    with pytest.raises(ValueError, match="f-divergences"):
        bounded_for_sgd(RatioProblem.build(flow, divergence="mmd"))


# -- several recurrent classes ------------------------------------------------------------------------


CLASSES = np.array([[1, 2, 0, 0, 0], [2, 1, 0, 0, 0], [0, 0, 1, 3, 0], [0, 0, 2, 1, 0], [1, 0, 1, 0, 1]])
"""States 0 and 1, 2 and 3, and a transient one."""


@pytest.mark.parametrize("initial", [None, [0, 0, 0, 0, 1.0]])
@pytest.mark.parametrize(
    "options",
    [
        *(
            {"method": method, "divergence": name}
            for method in ("convex", "extragradient", "sgd")
            for name in SMOOTH
        ),
        {"method": "convex", "divergence": "total_variation"},
        {"method": "convex", "divergence": "mmd"},
        {"method": "convex", "normalize": "self"},
        {"bound": 5.0},
        {"features": np.eye(5)},
        {"features": np.array([[1, 0], [1, 0], [0, 2], [0, 3], [0, 0]])},  # the two ratios
    ],
)
def test_several_classes_are_refused_at_gamma_1(options, initial):
    """Every method said SOLVED and returned a mixture of its own."""
    with pytest.raises(ValueError, match="2 recurrent classes, and every mixture"):
        lg.solve(CLASSES, initial=initial, **options)


@pytest.mark.parametrize("options", [{"ridge": 0.1}, {"features": np.ones((5, 1))}])
def test_several_classes_are_solved_where_the_optimum_is_unique(options):
    """A ridge, or features that can express no stationary distribution, leave a single optimum."""
    found = [lg.solve(CLASSES, method=method, tol=1e-9, **options) for method in ("convex", "extragradient")]
    assert all(solution.converged for solution in found)
    np.testing.assert_allclose(found[0].stationary, found[1].stationary, atol=1e-3)


def test_one_class_beside_transient_states_is_solved():
    chain = CLASSES.copy()
    chain[2, 0] = 1
    exact = lg.solve(chain)
    for method in ("convex", "extragradient"):
        np.testing.assert_allclose(lg.solve(chain, method=method).stationary, exact.stationary, atol=1e-6)
