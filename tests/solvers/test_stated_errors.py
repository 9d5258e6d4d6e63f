"""The status follows the error that is stated, and the error is at most what is stated."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import logged_mdp

import lingendice as lg
from lingendice.model.compose import Choices, compose
from lingendice.results.status import settled_status
from lingendice.solvers import stationary as exact
from lingendice.solvers.control import Controls, Outcome, combined, stated_error
from lingendice.solvers.ridge import RidgeSystem
from lingendice.solvers.stationary import stationary_distributions

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
GAMMAS = (0.5, 0.9, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12, 1.0)


def exact_distribution(kernel, start, gamma):
    """mu = (1 - gamma) start + gamma P' mu over the rationals; rows of P may fall short of 1 at gamma < 1."""
    n, gamma = len(kernel), Fraction(float(gamma))
    rows = [
        [Fraction(int(i == j)) - gamma * kernel[j][i] for j in range(n)] + [(1 - gamma) * start[i]]
        for i in range(n)
    ]
    if gamma == 1:
        rows[-1] = [Fraction(1)] * (n + 1)
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [rows[k][n] / rows[k][k] for k in range(n)]


def true_error(distribution, expected, kind):
    """In the norm that the kind of error means."""
    differences = [abs(Fraction(float(x)) - y) for x, y in zip(distribution, expected, strict=True)]
    if kind == "bound":
        return float(sum(differences))
    return max(
        float(d / y) if y else (0.0 if d == 0 else np.inf) for d, y in zip(differences, expected, strict=True)
    )


def normalized(row):
    total = sum(Fraction(int(entry)) for entry in row)
    return [Fraction(int(entry)) / total for entry in row]


def require_honest(solution, expected):
    assert solution.status is not lg.Status.SOLVED or solution.error <= solution.tol
    assert solution.converged == (solution.status is lg.Status.SOLVED)
    assert true_error(solution.stationary, expected, solution.error_kind) <= solution.error


@st.composite
def chains(draw):
    """Counts of an irreducible chain, some of them nearly decomposable, and first states."""
    n = draw(st.integers(2, 5))
    weight = st.sampled_from([0, 0, 1, 2, 3, 7, 50, 10**4, 10**9])
    counts = np.array(draw(st.lists(st.lists(weight, min_size=n, max_size=n), min_size=n, max_size=n)))
    counts[np.arange(n), (np.arange(n) + 1) % n] += 1
    start = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    start[draw(st.integers(0, n - 1))] += 1
    return counts, start


@given(
    chain=chains(),
    gamma=st.sampled_from(GAMMAS),
    method=st.sampled_from(["auto", "gth", "elimination", "gauss-seidel", "aggregation"]),
    tol=st.sampled_from([1e-6, 1e-10, 1e-13]),
)
@settings(max_examples=100, deadline=None)
def test_solved_means_the_stated_error_and_that_is_true(chain, gamma, method, tol):
    counts, start = chain
    kernel = [normalized(row) for row in counts]
    distribution = start / start.sum()
    # The distribution of first states as the solver gets it: its own rounding is no error of the solver.
    given_start = [Fraction(float(x)) / sum(map(Fraction, distribution.tolist())) for x in distribution]
    expected = exact_distribution(kernel, given_start, gamma)
    limit = 2000 if method == "gauss-seidel" else None
    solution = lg.solve(counts, gamma, initial=distribution, method=method, tol=tol, max_iter=limit)
    require_honest(solution, expected)
    if method in ("gth", "elimination") and tol >= 1e-10:
        assert solution.status is lg.Status.SOLVED


@given(chain=chains(), gamma=st.sampled_from(GAMMAS), ends=st.integers(1, 10**6))
@settings(max_examples=80, deadline=None)
def test_small_chains_and_ended_episodes(chain, gamma, ends):
    """The short way for dense chains; and rows that end, however rarely."""
    counts, _ = chain
    n = len(counts)
    kernel = [normalized(row) for row in counts]
    solution = lg.solve(counts, gamma)
    require_honest(solution, exact_distribution(kernel, [Fraction(1, n)] * n, gamma))
    if gamma == 1.0:
        return
    state, following = np.nonzero(counts)
    log = lg.Counts.from_transitions(
        np.append(state, 0), np.append(following, 0), terminal=np.append(np.zeros(state.size, bool), True),
        weight=np.append(counts[state, following], ends), n_states=n,
    )  # fmt: skip
    shrunk = [list(row) for row in kernel]
    total = int(counts[0].sum())
    shrunk[0] = [entry * Fraction(total, total + ends) for entry in kernel[0]]
    solution = lg.solve(log, gamma, initial=np.eye(n)[0])
    require_honest(solution, exact_distribution(shrunk, [Fraction(int(i == 0)) for i in range(n)], gamma))


@given(seed=st.integers(0, 1000), gamma=st.sampled_from(GAMMAS), n=st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_a_stream_states_its_error(seed, gamma, n):
    rng = np.random.default_rng(seed)
    online = lg.OnlineRatio(n, gamma=gamma)
    counts = np.zeros((n, n), int)
    path = np.append(np.arange(n), rng.integers(0, n, 40))
    path = np.append(path, 0)
    for state, following in pairwise(path):
        online.update(int(state), int(following))
        counts[state, following] += 1
    first = online.solution()
    online.update(0, 1)
    counts[0, 1] += 1
    for solution in (first, online.solution()):
        assert (solution.status is lg.Status.SOLVED) == (solution.error <= solution.tol)
    kernel = [normalized(row) for row in counts]
    require_honest(online.solution(), exact_distribution(kernel, [Fraction(1, n)] * n, gamma))


@pytest.mark.parametrize("gamma", [1 - 1e-6, 1 - 1e-9, 1 - 1e-12])
def test_large_chains_near_one(gamma):
    """Sweeps can prove nothing there: elimination is taken at once, and states its own error."""
    rng = np.random.default_rng(0)
    n = 400
    P = np.zeros((n, n))
    P[np.arange(n), (np.arange(n) + 1) % n] = rng.random(n)
    P[np.arange(n), np.arange(n) - 1] = rng.random(n)
    solution = lg.solve(lg.Counts.from_matrix(P / P.sum(axis=1, keepdims=True)), gamma)
    assert solution.method == "elimination"
    assert solution.status is lg.Status.SOLVED
    assert solution.error_kind == "direct"
    swept = lg.solve(lg.Counts.from_matrix(P / P.sum(axis=1, keepdims=True)), gamma, method="gauss-seidel",
                     max_iter=200)  # fmt: skip
    assert not swept.converged


def test_a_mixture_of_classes_is_as_good_as_its_worst_part():
    poor = Outcome(np.ones(2), "gth", "", converged=True, n_iter=0, error=1e-3, error_kind="estimate")
    fine = Outcome(np.ones(9), "gauss-seidel", "", converged=True, n_iter=70, error=1e-12)
    assert combined([poor, fine]).error == 1e-3
    assert combined([poor, fine]).error_kind == "estimate"
    failed = Outcome(np.ones(2), "gth", "", converged=False)
    assert not combined([fine, failed]).converged


def test_the_chances_of_ending_in_each_class_count_too(monkeypatch):
    """A mixture is not solved where the chances it weighs the classes by are not."""
    counts = np.array([[0, 1, 1, 0, 0], [0, 3, 1, 0, 0], [0, 2, 2, 0, 0], [1, 0, 0, 0, 2], [0, 0, 0, 0, 5]])
    start = [0.0, 0, 0, 1, 0]
    good = lg.solve(counts, initial=start)
    assert good.status is lg.Status.SOLVED
    assert good.error > lg.solve(counts[1:3, 1:3]).error
    real = exact.solve_irreducible

    def poor(rates, n_hubs, method, controls, **more):
        outcome = real(rates, n_hubs, method, controls, **more)
        if rates.shape[0] > 2:
            outcome.error = 1e-3
        return outcome

    monkeypatch.setattr(exact, "solve_irreducible", poor)
    assert lg.solve(counts, initial=start).status is lg.Status.ERROR_ABOVE_TOL


@given(
    seed=st.integers(0, 30),
    gamma=st.sampled_from([0.9, 0.999, 1.0]),
    ridge=st.sampled_from([1e-2, 1e-5, 1e-8, 1e-11]),
    ratio=st.sampled_from(["state", "state_action"]),
    tol=st.sampled_from([1e-4, 1e-8, 1e-10]),
)
@settings(max_examples=60, deadline=None)
def test_a_ridge_states_its_error(seed, gamma, ridge, ratio, tol):
    """Against a dense solve of the same problem, traps of few data included."""
    mdp = logged_mdp(seed, n_episodes=4, length=6)
    solution = lg.solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=ridge, tol=tol)
    assert (solution.status is lg.Status.SOLVED) == (solution.error <= tol)
    system = RidgeSystem(solution.operator, solution.ridge)
    normal = np.array([system.normal(unit) for unit in np.eye(system.q.size)])
    free = np.flatnonzero(solution.tau[system.seen] > 0)
    y = np.zeros(system.q.size)
    y[free] = np.linalg.solve(normal[np.ix_(free, free)], system._right_side[free])
    if (y >= -1e-12).all():  # the active set is that of the minimum
        distribution = np.zeros(system.flow.n_cells)
        distribution[system.seen] = np.maximum(y, 0.0) * system.q
        seen = distribution > 0
        found = solution.cell_distribution if system.over_cells else solution.state_distribution
        scale = found[seen].sum() / distribution[seen].sum()
        slack = 1e-14 * np.linalg.cond(normal[np.ix_(free, free)])
        assert np.abs(scale * distribution[seen] - found[seen]).sum() <= solution.error + slack


def test_what_is_not_a_number_is_not_solved():
    assert settled_status(False, float("nan"), 1e-10) is lg.Status.NOT_FINITE
    assert settled_status(False, 2e-10, 1e-10) is lg.Status.ERROR_ABOVE_TOL
    assert settled_status(True, 1e-11, 1e-10) is lg.Status.SEVERAL_DISTRIBUTIONS
    assert stated_error(1e-15, "direct", 1e-16, 0.9, 1e-10)[1] == "bound"
    assert stated_error(1e-15, "direct", 1e-16, 1 - 1e-12, 1e-10) == (1e-15, "direct")
    assert stated_error(None, "direct", 1e-16, 1 - 1e-12, 1e-10)[1] == "bound"


def test_restarts_keep_their_digits_near_one():
    """1 - gamma is what all hangs on: rows of smoothed counts add up to 1 only up to rounding."""
    counts, gamma = np.array([[5, 1], [2, 11]]), 1 - 1e-12
    start = np.array([0.25, 0.75])
    chain = compose(lg.Counts.from_matrix(counts), Choices(gamma=gamma, initial=start, smoothing=0.3)).chain
    distributions = stationary_distributions(chain, gamma, start, False, "gth", Controls())
    prior = Fraction(0.3)
    kernel = [[(Fraction(int(c)) + prior / 2) / (sum(map(int, row)) + prior) for c in row] for row in counts]
    expected = exact_distribution(kernel, [Fraction(1, 4), Fraction(3, 4)], gamma)
    assert true_error(distributions.single, expected, "direct") <= distributions.outcome.error < 1e-13


@pytest.mark.parametrize("method", ["convex", "extragradient", "sgd"])
@pytest.mark.parametrize("tol", [1e-2, 1e-6, 1e-18])
def test_a_saddle_point_is_solved_within_its_gap(method, tol):
    mdp = logged_mdp(2, n_episodes=10, length=20)
    solution = lg.solve(mdp.counts, 0.9, policy=mdp.policy, method=method, tol=tol, max_iter=500)
    assert solution.error == solution.gap
    assert solution.converged == (solution.gap <= tol)
