"""One body for every device: known answers, statuses and errors through the front door."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from emulator.device import EmulatedDevice
from problems import birth_death, birth_death_distribution, dense_operator, logged_mdp
from scipy import sparse

import lingendice as lg
from gpu.conftest import real_device
from lingendice.gpu.device import using
from lingendice.results.status import Status

TWO = np.array([[90, 10], [30, 70]])
CLASSES = np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]])


@pytest.fixture(params=["cpu", "emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def solve(request, libraries):
    """``lg.solve`` on the host, on the emulator and, where there is one, on a GPU."""
    if request.param == "cpu":
        yield lg.solve
        return
    chosen = EmulatedDevice(libraries()) if request.param == "emulator" else real_device()
    with using(chosen):
        yield lambda *given, **more: lg.solve(*given, device="cuda", **more)


@pytest.mark.parametrize("form", [np.ndarray.tolist, np.asarray, sparse.csr_array, lg.Counts.from_matrix])
def test_a_chain_in_any_form(solve, form):
    solution = solve(form(TWO))
    assert solution.status is Status.SOLVED
    np.testing.assert_allclose(solution.stationary, [0.75, 0.25], rtol=1e-9)
    np.testing.assert_allclose(solution.tau, [1.5, 0.5], rtol=1e-9)


def test_a_discounted_chain(solve):
    gamma, start = 0.85, np.array([0.2, 0.8])
    kernel = TWO / TWO.sum(axis=1, keepdims=True)
    expected = np.linalg.solve(np.eye(2) - gamma * kernel.T, (1 - gamma) * start)
    solution = solve(TWO, gamma, initial=start)
    assert np.abs(solution.stationary - expected).sum() <= solution.error + 1e-12 <= 1e-10
    assert solution.error_kind == "bound"


def test_detailed_balance(solve):
    up, down = np.linspace(0.2, 0.4, 12), np.linspace(0.5, 0.3, 12)
    np.testing.assert_allclose(
        solve(birth_death(up, down)).stationary, birth_death_distribution(up, down), rtol=1e-9
    )


def test_several_distributions(solve):
    solution = solve(CLASSES)
    assert solution.status is Status.SEVERAL_DISTRIBUTIONS
    assert [distribution.tolist() for distribution in solution.distributions] == [
        pytest.approx([0.5, 0.5, 0, 0]), pytest.approx([0, 0, 0.5, 0.5])
    ]  # fmt: skip
    with pytest.raises(lg.SeveralDistributions):
        _ = solution.tau
    limit = solve(CLASSES, initial=[0.25, 0.0, 0.75, 0.0])
    np.testing.assert_allclose(limit.stationary, [0.125, 0.125, 0.375, 0.375], rtol=1e-9)


def test_several_distributions_are_in_the_order_of_their_first_states(solve):
    """State 0 leads to the class that comes last."""
    matrix = np.array([[0, 0, 0, 1.0], [0, 1.0, 0, 0], [0, 1.0, 1.0, 0], [0, 0, 0, 2.0]])
    found = [distribution.tolist() for distribution in solve(matrix).distributions]
    assert found == [pytest.approx([0, 1, 0, 0]), pytest.approx([0, 0, 0, 1])]


def test_what_was_never_seen_leaving(solve):
    matrix, gamma = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), 0.9
    kernel = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1.0)
    start = np.full(3, 1 / 3)
    absorbed = np.linalg.solve(np.eye(3) - gamma * kernel.T, (1 - gamma) * start)
    np.testing.assert_allclose(solve(matrix, gamma, leak="absorb").stationary, absorbed, rtol=1e-8)
    kernel[2] = start
    restarted = np.linalg.solve(np.eye(3) - gamma * kernel.T, (1 - gamma) * start)
    with pytest.warns(lg.LeakWarning):
        solution = solve(matrix, gamma)
    np.testing.assert_allclose(solution.stationary, restarted, rtol=1e-8)
    assert solution.leak == pytest.approx(restarted[2], rel=1e-8)
    with pytest.raises(ValueError, match="no outgoing transitions"):
        solve(matrix, gamma, leak="error")
    with pytest.raises(ValueError, match="loses all mass"):
        solve(matrix, leak="absorb")


def test_episodes_that_end(solve):
    """Two steps of reward 1, then the end: (1 - gamma)(1 + gamma)."""
    log = lg.Counts.from_transitions(
        [0, 1, 0, 1], [1, 1, 1, 1], reward=[1.0] * 4, terminal=[0, 1, 0, 1], episode=[0, 0, 1, 1]
    )
    assert solve(log, 0.9).value == pytest.approx(0.19, rel=1e-9)
    assert solve(log, 0.9, ridge=1e-9).value == pytest.approx(0.19, rel=1e-5)
    assert solve(log, 1.0).value == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ratio", ["state_action", "state"])
def test_a_policy_against_a_dense_operator(solve, gamma, ratio):
    mdp = logged_mdp(3)
    solution = solve(mdp.counts, gamma, policy=mdp.policy, ratio=ratio, ridge=0, clone=0, initial=mdp.initial)
    operator = solution.operator
    cells = operator.n_cells
    table = dense_operator(operator)
    start = operator.spread(mdp.initial)
    if gamma < 1.0:
        expected = np.linalg.solve(np.eye(cells) - gamma * table.T, (1 - gamma) * start)
    else:
        values, vectors = np.linalg.eig(table.T)
        expected = np.real(vectors[:, np.argmax(np.real(values))])
        expected = expected / expected.sum()
    np.testing.assert_allclose(solution.cell_distribution, expected, rtol=1e-7, atol=1e-11)
    assert solution.value == pytest.approx(float(expected @ operator.reward), rel=1e-7)


def test_the_default_with_a_policy(solve):
    """Shrunk advantages, fitted on the host wherever the data lie; the truth lies within the interval."""
    mdp = logged_mdp(3, n_episodes=60)
    solution = solve(mdp.counts, 0.9, policy=mdp.policy)
    assert solution.status is Status.SOLVED
    assert solution.method == "shrinkage"
    ridge = solve(mdp.counts, 0.9, policy=mdp.policy, ridge=1e-4)
    assert ridge.status is Status.SOLVED
    kernel = np.einsum("sa,sat->st", mdp.policy, mdp.kernel)
    distribution = np.linalg.solve(np.eye(6) - 0.9 * kernel.T, 0.1 * mdp.initial)
    truth = float(distribution @ (mdp.policy * mdp.reward).sum(axis=1))
    assert solution.interval().contains(truth)
    assert abs(ridge.value - truth) <= 5 * ridge.interval().standard_error


def test_several_policies_at_once(solve):
    mdp = logged_mdp(3)
    other = np.full_like(mdp.policy, 0.5)
    compared = solve(mdp.counts, 0.9, policy={"one": mdp.policy, "other": other}, threads=2)
    for name, policy in (("one", mdp.policy), ("other", other)):
        single = solve(mdp.counts, 0.9, policy=policy)
        assert compared[name].value == pytest.approx(single.value, rel=1e-9)


def test_solutions_are_kept_and_told(solve):
    solution = solve(TWO, 0.9)
    again = pickle.loads(pickle.dumps(solution))
    assert (again.stationary == solution.stationary).all()
    assert json.loads(json.dumps(solution.to_dict(), allow_nan=False))["status"] == "solved"
    assert "solved" in str(solution)
    assert solution.interval(of="stationary").standard_error.shape == (2,)


def test_limits_have_their_statuses(solve):
    counts = logged_mdp(3).counts
    policy = logged_mdp(3).policy
    cut = solve(counts, 0.9, policy=policy, method="extragradient", tol=1e-12, max_iter=3)
    assert cut.status is Status.ITERATION_LIMIT
    assert cut.n_iter == 3
    late = solve(counts, 0.9, policy=policy, method="extragradient", tol=1e-12, time_limit=1e-9)
    assert late.status is Status.TIME_LIMIT
    small = solve(counts, 0.9, policy=policy, method="extragradient", bound=1e-3)
    assert small.status is Status.BOUND_TOO_SMALL


@pytest.mark.parametrize(
    ("data", "choices", "message"),
    [
        ([[1, -2], [1, 1]], {}, "-2"),
        ([[1, np.nan], [1, 1]], {}, "nan"),
        (TWO, {"gamma": 1.5}, "gamma"),
        (TWO, {"gamma": 0.9, "initial": [1.0, -1.0]}, "initial"),
        (TWO, {"policy": [[1.0], [1.0]]}, "action"),
        (TWO, {"tol": 0.0}, "tol"),
        (TWO, {"ridge": -1.0}, "ridge"),
        (TWO, {"leak": "sink"}, "leak"),
        (TWO, {"divergence": "square"}, "divergence"),
        (TWO, {"options": {"color": 1}}, "color"),
        (np.ones((2, 3)), {}, "square"),
    ],
)
def test_bad_input_is_named(solve, data, choices, message):
    with pytest.raises(ValueError, match=message):
        solve(data, **choices)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_value_that_nothing_identifies_is_nan(solve, gamma):
    """Only action 0 is logged, the target takes action 1; the distribution's total is 1 only up to
    rounding."""
    rng = np.random.default_rng(0)
    state, following = rng.integers(0, 5, 40), rng.integers(0, 5, 40)
    counts = lg.Counts.from_transitions(
        state, following, np.zeros(40, int), np.ones(40), np.arange(40) // 4, n_states=5, n_actions=3
    )
    policy = np.tile([0.0, 0.3, 0.7], (5, 1))
    solution = solve(counts, gamma, policy=policy, ratio="state_action", ridge=0, clone=0)
    assert np.isnan(solution.value)
    assert solution.status is Status.NOT_IDENTIFIED


@pytest.mark.parametrize("gamma", [1 - 1e-6, 1 - 1e-9, 1 - 1e-12])
def test_near_one_the_status_follows_the_stated_error(solve, gamma):
    """A residual of exactly 0 proves nothing beyond rounding / (1 - gamma); elimination knows better."""
    solution = solve([[1, 1, 2], [1, 2, 1], [2, 1, 1]], gamma, max_iter=600)
    assert solution.converged == (solution.error <= solution.tol)
    np.testing.assert_allclose(solution.stationary, np.full(3, 1 / 3), rtol=max(solution.error, 1e-15))
    assert solution.converged == (solution.error_kind == "direct")


def test_the_default_with_a_policy_says_that_it_is_fitted_on_the_host(solve):
    """Where the device was asked for, and nowhere else."""
    mdp = logged_mdp(3)
    found = solve(mdp.counts, policy=mdp.policy)
    assert ("on the host" in found.reason) == (solve is not lg.solve)
