"""The objective, its gradients and its gap, against finite differences and convex programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saddle_problems import EVERY_DIVERGENCE, chain_counts, chain_flow, exact_ratio, some_features

from lingendice.divergences import Wasserstein
from lingendice.solvers.control import Controls, run
from lingendice.solvers.convex import solve_convex
from lingendice.solvers.problem import RatioProblem


def random_problem(name, seed, gamma=0.9, **choices):
    rng = np.random.default_rng(seed)
    flow = chain_flow(8, gamma, seed=3)
    features, dual = some_features(8, 4, seed=1), some_features(8, 5, seed=2)
    if name == "mmd":
        dual = None
    problem = RatioProblem.build(flow, features, dual, name, ridge=0.3, penalty=0.7, **choices)
    w = rng.uniform(0.1, 1.0, 4)
    v = 0.1 * rng.uniform(-1.0, 1.0, problem.dual_features.n_features)
    return problem, w, v, rng.uniform(-1, 1)


@pytest.mark.parametrize(
    "name", ["chi2", "kl", "reverse_kl", "jensen_shannon", "hellinger", "weighted_l2", "mmd"]
)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_gradients_match_finite_differences(name, seed):
    problem, w, v, u = random_problem(name, seed)
    on_w, on_v, on_u = problem.gradients(w, v, u)
    rng = np.random.default_rng(seed + 1)
    a, b, h = rng.standard_normal(w.size), rng.standard_normal(v.size), 1e-6
    slope = (
        problem.objective(w + h * a, v + h * b, u + h) - problem.objective(w - h * a, v - h * b, u - h)
    ) / (2 * h)
    assert on_w @ a + on_v @ b + on_u == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_gradient_penalty_enters_the_gradient():
    problem, w, v, u = random_problem(Wasserstein(gradient_penalty=5.0), 0)
    v = 30 * v
    _, on_v, _ = problem.gradients(w, v, u)
    b, h = np.linspace(-1, 1, v.size), 1e-6
    slope = (problem.objective(w, v + h * b, u) - problem.objective(w, v - h * b, u)) / (2 * h)
    assert on_v @ b == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("name", EVERY_DIVERGENCE)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_gap_brackets_the_objective(name, seed):
    """primal >= J(w, v, u) >= dual whenever w is feasible, for any dual point in its set."""
    problem, w, v, u = random_problem(name, seed)
    w = w / problem.total(w)
    if name in ("wasserstein", "dudley"):
        v = v / 10
    here = problem.objective(w, v, u)
    assert problem.primal(w) >= here - 1e-9
    assert here >= problem.dual(w, v, u) - 1e-9


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("name", EVERY_DIVERGENCE)
@pytest.mark.parametrize("penalty", [0.1, 5.0])
def test_tabular_optimum_is_the_same_for_all(gamma, name, penalty):
    counts = chain_counts(12)
    problem = RatioProblem.build(chain_flow(12, gamma), divergence=name, penalty=penalty)
    outcome = run(solve_convex(problem, 1e-11), Controls(tol=1e-11))
    assert outcome.converged
    assert np.abs(outcome.w - exact_ratio(counts, gamma)).max() < 1e-7


@pytest.mark.parametrize("name", EVERY_DIVERGENCE)
@given(scale=st.floats(0.01, 100.0))
@settings(max_examples=5, deadline=None)
def test_without_penalty_every_multiple_is_a_solution_at_gamma_one(name, scale):
    tau = exact_ratio(chain_counts(8, seed=3), 1.0)
    problem = RatioProblem.build(chain_flow(8, 1.0, seed=3), divergence=name, penalty=0.0, bound=1e6)
    assert problem.primal(scale * tau) == pytest.approx(0.0, abs=1e-9 * max(1.0, scale))


def test_penalty_is_what_tells_the_multiples_apart():
    tau = exact_ratio(chain_counts(8, seed=3), 1.0)
    problem = RatioProblem.build(chain_flow(8, 1.0, seed=3), penalty=2.0)
    assert problem.primal(3.0 * tau) == pytest.approx(0.5 * 2.0 * 4.0)


def test_mass_outside_the_features_is_infinite():
    flow = chain_flow(8, 0.9)
    psi = np.zeros((8, 1))
    psi[:4] = 1.0
    from lingendice.model.features import MatrixFeatures

    problem = RatioProblem.build(flow, MatrixFeatures(psi), MatrixFeatures(np.eye(8)))
    assert problem.primal(np.ones(1)) == np.inf


# -- against a convex-programming package ----------------------------------------------------------------


def parts(problem):
    """Mass and inflow as matrices: m = M w, q = b + Q w."""
    mass = problem.features.scaled(problem.flow.p)
    return mass, problem.flow.apply_transpose(mass), problem.flow.start


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize(
    "name",
    [
        "chi2",
        "kl",
        "reverse_kl",
        "jensen_shannon",
        "hellinger",
        "total_variation",
        "weighted_l2",
        "wasserstein",
        "mmd",
    ],
)
def test_optimum_with_features_matches_cvxpy(name, gamma):
    cp = pytest.importorskip("cvxpy")
    flow = chain_flow(10, gamma, seed=5)
    problem = RatioProblem.build(flow, some_features(10, 3, seed=4), None, name, penalty=0.5, ridge=0.01)
    if name in ("total_variation", "wasserstein"):
        problem = RatioProblem.build(flow, some_features(10, 3, seed=4), None, name, penalty=0.5)
    matrix, pushed, start = parts(problem)
    w = cp.Variable(3, nonneg=True)
    m, q = matrix @ w, start + pushed @ w
    half = (q + m) / 2
    divergence = {
        "chi2": lambda: sum(cp.quad_over_lin(q[i] - m[i], m[i]) for i in range(10)),
        "kl": lambda: cp.sum(cp.kl_div(q, m)),
        "reverse_kl": lambda: cp.sum(cp.kl_div(m, q)),
        "jensen_shannon": lambda: cp.sum(cp.kl_div(q, half) + cp.kl_div(m, half)),
        "hellinger": lambda: cp.sum(q + m) - 2 * sum(cp.geo_mean(cp.hstack([q[i], m[i]])) for i in range(10)),
        "total_variation": lambda: cp.norm1(q - m) / 2,
        "weighted_l2": lambda: cp.sum_squares(cp.multiply(q - m, 1 / np.sqrt(flow.p))) / 2,
        "mmd": lambda: cp.quad_form(q - m, cp.psd_wrap(problem.divergence.kernel)) / 2,
        "wasserstein": lambda: _cheapest_flow(cp, problem, q - m),
    }[name]()
    constraints = []
    if isinstance(divergence, tuple):
        divergence, constraints = divergence
    ridge = problem.ridge / 2 * cp.sum(cp.multiply(flow.p, cp.square(problem.features.matrix @ w - 1)))
    goal = divergence + 0.25 * cp.square(problem.mass_row @ w - 1) + ridge
    program = cp.Problem(cp.Minimize(goal), constraints)
    program.solve(solver=cp.CLARABEL)
    outcome = run(solve_convex(problem, 1e-9), Controls(tol=1e-9))
    assert outcome.converged
    assert outcome.gap.primal == pytest.approx(program.value, abs=2e-7)


def _cheapest_flow(cp, problem, residual):
    """W1 with a price of the bound on what is left over: a flow on the edges plus slack."""
    from lingendice.divergences.wasserstein import differences

    metric = problem.divergence
    across = differences(metric.first, metric.second, 10)
    z, left = cp.Variable(metric.length.size), cp.Variable(10)
    return metric.length @ cp.abs(z) + metric.default_bound * cp.norm1(left), [
        across.T @ z + left == residual
    ]


@pytest.mark.parametrize("bound", [None, 1.5])
def test_linear_dual_matches_cvxpy(bound):
    cp = pytest.importorskip("cvxpy")
    flow = chain_flow(10, 0.9, seed=5)
    psi, phi = some_features(10, 4, seed=4), some_features(10, 5, seed=6)
    problem = RatioProblem.build(flow, psi, phi, "chi2", penalty=0.5, bound=bound, dual_bound=1e6)
    matrix, pushed, start = parts(problem)
    w = cp.Variable(4, nonneg=True)
    m = matrix @ w
    g = phi.matrix.T @ (start + pushed @ w - m)
    h = sum(m[i] * np.outer(phi.matrix[i], phi.matrix[i]) for i in range(10))
    limits = [] if bound is None else [w <= bound]
    program = cp.Problem(
        cp.Minimize(cp.matrix_frac(g, h) + 0.25 * cp.square(problem.mass_row @ w - 1)), limits
    )
    program.solve(solver=cp.CLARABEL)
    outcome = run(solve_convex(problem, 1e-10), Controls(tol=1e-10))
    assert outcome.converged
    assert outcome.gap.kind == "exact"
    assert outcome.gap.primal == pytest.approx(program.value, abs=1e-6)
