"""The front door to the saddle point: ``solve`` with features, divergences, bounds and methods."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from saddle_problems import chain_counts, exact_ratio

import lingendice as lg
from lingendice.model.features import nystroem, random_fourier, rbf, tile_coding

COUNTS = chain_counts(30, seed=6)
POINTS = np.random.default_rng(2).uniform(size=(30, 2))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("method", ["convex", "extragradient"])
def test_tabular_methods_find_the_exact_ratio(method, gamma):
    solution = lg.solve(COUNTS, gamma, method=method)
    assert solution.converged
    assert solution.gap <= 1e-10
    assert np.abs(solution.tau - exact_ratio(COUNTS, gamma)).max() < 1e-6


@pytest.mark.parametrize(
    ("features", "dual"),
    [
        (rbf(POINTS, 8), random_fourier(POINTS, 10)),
        (tile_coding(POINTS, 3, 2), rbf(POINTS, 6)),
        (nystroem(POINTS, 8, whiten=False), nystroem(POINTS, 8)),
        (rbf(POINTS, 8), None),
    ],
)
def test_builders_work_with_solve(features, dual):
    solution = lg.solve(COUNTS, 0.9, features=features, dual_features=dual)
    assert solution.converged
    assert solution.method == "convex"
    assert "coefficients" in solution.reason
    assert solution.gap_trace[-1] == (solution.n_iter, solution.gap)
    matrix = features.matrix
    assert np.allclose(solution.tau, matrix @ solution.w_tau)
    assert (solution.w_tau >= 0).all()


def test_identity_features_give_the_tabular_answer():
    solution = lg.solve(COUNTS, 0.9, features=np.eye(30))
    assert np.abs(solution.tau - exact_ratio(COUNTS, 0.9)).max() < 1e-6


@pytest.mark.parametrize(
    ("max_iter", "choices"),
    [
        (50_000, {}),
        # Five parts of 116 samples: steps that threads share.
        (2000, {"features": rbf(POINTS, 29), "dual_features": rbf(POINTS, 29), "options": {"batch": 560}}),
    ],
)
def test_sgd_is_the_same_for_any_number_of_threads(max_iter, choices):
    runs = [
        lg.solve(COUNTS, 0.9, method="sgd", max_iter=max_iter, bound=5.0, seed=1, threads=threads, **choices)
        for threads in (1, 2, 3)
    ]
    assert all(np.array_equal(run.w_tau, runs[0].w_tau) for run in runs)
    assert runs[0].status is lg.Status.ITERATION_LIMIT
    assert runs[0].gap_trace[-1][0] == max_iter


@pytest.mark.parametrize("method", ["convex", "extragradient", "sgd"])
@pytest.mark.parametrize("leak", ["restart", "absorb"])
def test_no_value_is_identified_where_no_mass_reaches_the_data(leak, method):
    counts = lg.Counts.from_transitions([0, 1, 1], [1, 0, 1], reward=[1.0, 2.0, 3.0], n_states=4)
    for gamma in (0.4, 0.671, 0.732, 0.9):  # for some of them rounding leaves the data a mass of 1e-16
        with pytest.warns(lg.LeakWarning) if leak == "restart" else nullcontext():
            found = lg.solve(counts, gamma, initial=[0, 0, 0.3, 0.7], leak=leak, method=method, max_iter=1000)
        assert found.status is lg.Status.NOT_IDENTIFIED
        assert np.isnan(found.value)


def test_unseen_cells_are_closed_as_in_the_exact_answer():
    rng = np.random.default_rng(0)
    state, action = rng.integers(0, 6, 200), rng.integers(0, 2, 200)
    following = np.minimum(rng.integers(0, 7, 200), 6)
    counts = lg.Counts.from_transitions(state, following, action, n_states=7, n_actions=2)
    policy = np.full((7, 2), 0.5)
    initial = np.full(7, 1 / 7)
    for gamma in (1.0, 0.9):
        with pytest.warns(lg.LeakWarning):
            solution = lg.solve(
                counts, gamma, policy=policy, initial=initial, method="convex", reward=np.arange(7.0)
            )
        operator = solution.operator
        dense = np.stack([operator.spread(operator.next_state_distribution(row)) for row in np.eye(14)])
        start = (1 - gamma) * operator.cell_initial
        system = np.vstack([np.eye(14) - gamma * dense.T, np.ones(14)])
        mu = np.linalg.lstsq(system, np.append(start, 1.0), rcond=None)[0]
        assert np.abs(solution.stationary - mu).max() < 1e-7
        assert solution.leak == pytest.approx(mu[~operator.seen].sum(), abs=1e-7)


def test_state_ratio():
    rng = np.random.default_rng(1)
    counts = lg.Counts.from_transitions(
        rng.integers(0, 5, 400), rng.integers(0, 5, 400), rng.integers(0, 2, 400)
    )
    policy = rng.dirichlet(np.ones(2), 5)
    solution = lg.solve(counts, policy=policy, ratio="state", method="convex")
    chain = solution.operator.chain
    assert np.abs(chain.apply_transpose(solution.stationary) - solution.stationary).max() < 1e-8
    assert solution.tau.shape == (5,)


def test_a_bound_that_cannot_hold_is_named():
    solution = lg.solve(COUNTS, method="convex", bound=0.5)
    assert solution.status is lg.Status.BOUND_TOO_SMALL
    assert "raise bound" in solution.status.advice
    assert not solution.converged


def test_mass_outside_the_features_is_named():
    features = np.zeros((30, 1))
    features[:10] = 1.0
    solution = lg.solve(COUNTS, features=features, dual_features=np.eye(30))
    assert solution.status is lg.Status.UNBOUNDED
    assert "features" in solution.status.advice


def test_steps_too_long_do_not_pass_for_a_solution():
    solution = lg.solve(COUNTS, method="sgd", max_iter=20_000, bound=5.0, options={"step_scale": 1e6})
    assert not solution.converged
    assert solution.status in (lg.Status.ITERATION_LIMIT, lg.Status.NOT_FINITE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sgd", "options": {"batches": 2}}, "no entry 'batches'"),
        ({"method": "convex", "options": {"batch": 2}}, "no entry 'batch' for method='convex'"),
        ({"method": "sgd", "options": {"step_scale": -1}}, "step_scale"),
        ({"method": "sgd", "options": {"average": "no"}}, r"options\['average'\] must be True or False"),
        ({"features": np.zeros((30, 2))}, "^features are 0 in every cell with data"),
        ({"features": np.eye(30), "dual_features": np.zeros((30, 2))}, "^dual_features are 0 in every cell"),
        ({"method": "convex", "normalize": "none"}, "normalize"),
        ({"method": "convex", "bound": 0.0}, "bound must be positive"),
        ({"method": "convex", "divergence": "tv"}, "one of .chi2."),
        ({"features": -np.eye(30)}, r"features\[0, 0\]"),
        ({"features": np.eye(29)}, "one row per cell"),
        ({"dual_features": -1e160 * np.eye(30)}, r"dual_features holds 1e\+160.* divide"),
        ({"method": "svrg"}, "method must be one of"),
        ({"method": "convex", "ridge": "auto"}, "ridge"),
        ({"divergence": "tv"}, "divergence"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        lg.solve(COUNTS, **arguments)


def test_solution_prints_and_pickles():
    solution = lg.solve(COUNTS, 0.9, features=rbf(POINTS, 5), reward=np.arange(30.0))
    assert "gap (exact)" in str(solution)
    again = pickle.loads(pickle.dumps(solution))
    assert again.gap == solution.gap
    assert again.to_dict()["w_tau"] == solution.w_tau.tolist()
    assert solution.value == pytest.approx(float(solution.stationary @ np.arange(30.0)))


def test_ridge_moves_the_ratio_toward_one():
    plain, ridged = (lg.solve(COUNTS, method="convex", ridge=ridge) for ridge in (0.0, 10.0))
    assert np.abs(ridged.tau - 1).max() < 0.2 * np.abs(plain.tau - 1).max()


def test_weighted_l2_with_ridge_is_a_nonnegative_least_squares():
    from scipy.optimize import lsq_linear

    gamma, ridge, penalty = 0.9, 0.1, 2.0
    solution = lg.solve(
        COUNTS, gamma, method="convex", divergence="weighted_l2", ridge=ridge, penalty=penalty
    )
    p = COUNTS.sum(1) / COUNTS.sum()
    step = COUNTS / COUNTS.sum(1, keepdims=True)
    a = (np.diag(p) - gamma * (step * p[:, None]).T) / np.sqrt(p)[:, None]
    b = (1 - gamma) / 30 / np.sqrt(p)
    rows = np.vstack([a, np.sqrt(penalty) * p, np.sqrt(ridge * p)[:, None] * np.eye(30)])
    right = np.concatenate([b, [np.sqrt(penalty)], np.sqrt(ridge * p)])
    assert np.allclose(solution.tau, lsq_linear(rows, right, (0, np.inf), tol=1e-14).x, atol=1e-6)


def test_warm_start_is_used():
    cold = lg.solve(COUNTS, 0.9, method="extragradient", tol=1e-6)
    warm = lg.solve(COUNTS, 0.9, method="extragradient", warm_start=cold)
    assert warm.n_iter <= lg.solve(COUNTS, 0.9, method="extragradient").n_iter


@pytest.mark.parametrize("method", ["extragradient", "sgd"])
@pytest.mark.parametrize(
    "changed", [{"w_tau": np.full(30, np.nan)}, {"u": np.inf}, {"w_tau": np.ones((30, 1))}]
)
def test_a_warm_start_that_is_no_point_is_refused(method, changed):
    cold = lg.solve(COUNTS, 0.9, method="extragradient", tol=1e-3)
    with pytest.raises(ValueError, match="warm_start"):
        lg.solve(COUNTS, 0.9, method=method, max_iter=1000, warm_start=replace(cold, **changed))
