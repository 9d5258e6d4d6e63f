"""``solve`` against closed forms, rational arithmetic and brute force."""

from __future__ import annotations

import inspect
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    COURTOIS,
    birth_death,
    birth_death_distribution,
    dense_operator,
    kandori_mailath_rob,
    logged_mdp,
    rational_distribution,
)
from scipy import sparse

import lingendice as lg

FORMS = {
    "list": lambda m: m.tolist(),
    "array": lambda m: m,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_array,
    "csc matrix": sparse.csc_matrix,
    "counts": lg.Counts.from_matrix,
}


def entrywise(found, expected):
    return float(np.max(np.abs(found - expected) / expected))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("epsilon", [1e-2, 1e-6, 1e-10, 1e-14])
def test_kandori_mailath_rob_entry_by_entry(form, epsilon):
    matrix, distribution = kandori_mailath_rob(epsilon)
    assert entrywise(lg.solve(FORMS[form](matrix)).stationary, distribution) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_courtois_entry_by_entry(form):
    assert entrywise(lg.solve(FORMS[form](COURTOIS)).stationary, rational_distribution(COURTOIS)) < 1e-12


@pytest.mark.parametrize("decades", [20, 100, 200])
def test_birth_death_entries_of_extreme_range(decades):
    n = 40
    down = np.full(n, 0.5)
    up = 0.5 * np.full(n, 10.0 ** (-decades / n))
    found = lg.solve(birth_death(up, down)).stationary
    expected = birth_death_distribution(up, down)
    assert expected.min() < 10.0 ** (1 - decades)
    assert entrywise(found, expected) < 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.floats(0, 14))
def test_random_counts_match_rational_elimination(seed, n, decades):
    rng = np.random.default_rng(seed)
    counts = np.ceil(rng.random((n, n)) * 10.0 ** rng.uniform(0, decades, size=(n, n)))
    assert entrywise(lg.solve(counts).stationary, rational_distribution(counts)) < 1e-12
    assert entrywise(lg.solve(counts.tolist()).stationary, rational_distribution(counts)) < 1e-12


@pytest.mark.parametrize("gamma", [1e-3, 0.5, 0.85, 0.999, 0.999999])
@pytest.mark.parametrize("form", FORMS)
def test_discounted_distribution_is_the_rational_distribution_of_the_restarting_chain(gamma, form):
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 50, size=(7, 7))
    initial = rng.dirichlet(np.ones(7))
    P = counts / counts.sum(axis=1, keepdims=True)
    solution = lg.solve(FORMS[form](counts), gamma, initial=initial)
    expected = rational_distribution(gamma * P + (1 - gamma) * initial)
    assert entrywise(solution.stationary, expected) < 1e-11
    assert np.abs(solution.stationary - expected).sum() <= solution.error
    assert solution.error <= solution.tol
    # Rounding in the residual itself limits what a bound can prove as gamma nears 1.
    assert solution.error_kind == ("bound" if gamma < 0.99999 else "direct")
    uniform = lg.solve(FORMS[form](counts), gamma)
    assert entrywise(uniform.stationary, rational_distribution(gamma * P + (1 - gamma) / 7)) < 1e-11


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_periodic_chains(n):
    cycle = np.roll(np.eye(n), 1, axis=1)
    for form in FORMS.values():
        assert np.allclose(lg.solve(form(cycle)).stationary, 1 / n, rtol=1e-13)


def test_several_classes_give_every_distribution():
    matrix = np.array([[1, 1, 0, 0, 0], [3, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 2, 0, 1]])
    solution = lg.solve(matrix)
    assert solution.status is lg.Status.SEVERAL_DISTRIBUTIONS
    assert np.allclose(solution.distributions, [[0.6, 0.4, 0, 0, 0], [0, 0, 0.5, 0.5, 0]])
    with pytest.raises(
        lg.SeveralDistributions, match=r"2 stationary distributions.*sol.distributions.*initial="
    ):
        _ = solution.stationary
    with pytest.raises(lg.SeveralDistributions):
        _ = solution.tau
    assert "initial=" in str(solution)
    json.dumps(solution.to_dict(), allow_nan=False)


def test_limit_distribution_from_an_initial_distribution():
    matrix = np.array([[1, 1, 0, 0, 0], [3, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 2, 0, 1]])
    initial = np.array([0.1, 0.0, 0.2, 0.0, 0.7])
    P = matrix / matrix.sum(axis=1, keepdims=True)
    average, walker = np.zeros(5), initial.copy()
    for _ in range(4000):
        average += walker / 4000
        walker = walker @ P
    found = lg.solve(matrix, initial=initial)
    assert found.status is lg.Status.SOLVED
    assert np.allclose(found.stationary, average, atol=2e-3)
    share = 0.1 + 0.7 / 3
    assert np.allclose(found.stationary, [0.6 * share, 0.4 * share, (1 - share) / 2, (1 - share) / 2, 0])
    only = lg.solve(matrix, initial=[1, 0, 0, 0, 0]).stationary
    assert np.allclose(only, [0.6, 0.4, 0, 0, 0])


def test_transient_states_get_zero_and_arrays_keep_their_length():
    solution = lg.solve(np.array([[1, 1, 0], [1, 1, 0], [1, 0, 3]]))
    assert np.allclose(solution.stationary, [0.5, 0.5, 0])
    assert solution.tau.shape == (3,)


def test_zero_rows_restart_from_the_data_distribution():
    counts = np.array([[0, 3, 1], [2, 0, 0], [0, 0, 0]])
    P = np.array([[0, 0.75, 0.25], [1, 0, 0], [4 / 6, 2 / 6, 0]])
    with pytest.warns(lg.LeakWarning, match="state 2"):
        solution = lg.solve(counts)
    assert np.allclose(solution.stationary, rational_distribution(P))
    assert solution.leak == pytest.approx(solution.stationary[2])
    assert np.isnan(solution.tau[2])
    assert not solution.supported[2]
    assert solution.data_distribution[:2] @ solution.tau[:2] == pytest.approx(1 - solution.leak)


def test_pagerank_dangling_vector():
    nx = pytest.importorskip("networkx")
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (2, 4)])  # 4 dangles
    dangling = {0: 1.0, 2: 3.0}
    expected = nx.pagerank(graph, alpha=0.85, dangling=dangling, tol=1e-15, max_iter=1000)
    found = lg.solve(
        graph, 0.85, restart=[dangling.get(node, 0) / 4 for node in graph]
    )  # asked for: no warning
    assert np.allclose(found.stationary, [expected[node] for node in graph], atol=1e-12)


def test_leak_as_an_error_names_the_cell():
    counts = lg.Counts.from_transitions(["a", "b"], ["b", "c"])
    with pytest.raises(
        ValueError, match=r"state 'c' is reached but has no outgoing transitions.*leak=\"restart\""
    ):
        lg.solve(counts, leak="error")
    closed = lg.solve(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]), leak="error")  # state 2 is never reached
    assert closed.leak == 0


def test_smoothing_is_a_dirichlet_prior_on_every_row():
    counts = np.array([[0, 4, 0], [1, 0, 0], [0, 0, 0]])
    distribution = np.array([0.5, 0.25, 0.25])
    n = counts.sum(axis=1, keepdims=True)
    expected = rational_distribution((counts + 2.0 * distribution) / (n + 2.0))
    with pytest.warns(lg.LeakWarning, match="state 2"):
        found = lg.solve(lg.Counts.from_matrix(counts), smoothing=(2.0, distribution))
    assert np.allclose(found.stationary, expected, rtol=1e-12)


def brute_force(operator):
    """Stationary distribution over cells by a dense linear solve of the composed operator."""
    T = dense_operator(operator)
    n = operator.n_cells
    if operator.gamma < 1:
        return np.linalg.solve(np.eye(n) - operator.gamma * T.T, (1 - operator.gamma) * operator.cell_initial)
    system = np.vstack([np.eye(n) - T.T, np.ones(n)])
    return np.linalg.lstsq(system, np.append(np.zeros(n), 1.0), rcond=None)[0]


def test_a_prior_beside_billions_of_transitions_keeps_its_digits():
    """Two states that only the prior joins: mu0 / mu1 = q0 (a + w) / (q1 (b + w)), in closed form."""
    a, b, prior, weight = 1738862578.0, 2900131658.0, [0.25, 0.75], 1.0
    found = lg.solve(lg.Counts.from_matrix(np.diag([a, b])), smoothing=(weight, prior))
    exact = prior[0] * (a + weight) / (prior[1] * (b + weight))
    assert found.stationary[0] / found.stationary[1] == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("ratio", ["state_action", "state"])
@pytest.mark.parametrize("smoothing", [None, 1.5])
def test_policies_match_brute_force_over_cells(gamma, ratio, smoothing):
    mdp = logged_mdp(4)
    solution = lg.solve(
        mdp.counts, gamma, policy=mdp.policy, ratio=ratio, smoothing=smoothing, ridge=0, clone=0
    )
    expected = brute_force(solution.operator)
    assert np.allclose(solution.cell_distribution, expected, atol=1e-12)
    p = mdp.counts.data_distribution
    if ratio == "state_action":
        assert np.allclose(solution.tau, expected / p)
    else:
        assert np.allclose(solution.tau, expected.reshape(6, 2).sum(axis=1) / p.reshape(6, 2).sum(axis=1))
    assert solution.value == pytest.approx(expected @ mdp.counts.reward)
    assert solution.residual < 1e-13


@pytest.mark.parametrize("gamma", [0.6, 0.95])
def test_absorbed_leak_bounds_hold_whatever_follows(gamma):
    mdp = logged_mdp(11, n_episodes=3, length=6)
    solution = lg.solve(mdp.counts, gamma, policy=mdp.policy, leak="absorb", reward_range=(-3, 4))
    assert solution.leak > 0.01
    mu = brute_force(solution.operator)
    assert np.allclose(solution.cell_distribution, mu, atol=1e-13)
    seen = solution.operator.seen
    assert solution.leak == pytest.approx(1 - mu[seen].sum())
    low, high = solution.value_bounds
    rng = np.random.default_rng(0)
    for _ in range(50):  # any continuation of the unseen cells lands inside
        T, r = (
            dense_operator(solution.operator),
            np.where(seen, mdp.counts.reward, rng.uniform(-3, 4, seen.size)),
        )
        for cell in np.flatnonzero(~seen):
            T[cell] = (rng.dirichlet(np.full(6, 0.3))[:, None] * mdp.policy).ravel()
        any_distribution = np.linalg.solve(
            np.eye(12) - gamma * T.T, (1 - gamma) * solution.operator.cell_initial
        )
        assert low - 1e-12 <= any_distribution @ r <= high + 1e-12


def test_terminals_absorb_at_zero_reward_when_discounted():
    # 0 -> 1 -> end with reward 1 on each step
    log = lg.Counts.from_transitions([0, 1], [1, 1], reward=[1.0, 1.0], terminal=[0, 1], episode=[0, 0])
    gamma = 0.9
    solution = lg.solve(log, gamma)
    assert solution.value == pytest.approx((1 - gamma) * (1 + gamma))
    assert solution.terminal_mass == pytest.approx(gamma**2)
    assert solution.leak == 0
    assert solution.gap == pytest.approx(0, abs=1e-14)
    average = lg.solve(log)
    assert average.value == pytest.approx(1.0)
    assert np.allclose(average.stationary, 0.5)


def test_q_and_gap_certify_the_value():
    mdp = logged_mdp(6)
    for gamma in (0.9, 1.0):
        solution = lg.solve(mdp.counts, gamma, policy=mdp.policy, ridge=0, clone=0)
        T = dense_operator(solution.operator)
        r = mdp.counts.reward
        target = r - (solution.value if gamma == 1.0 else 0.0)
        assert np.allclose(solution.q_values, target + gamma * T @ solution.q_values, atol=1e-10)
        assert abs(solution.gap) < 1e-12
        if gamma < 1:
            dual = (1 - gamma) * solution.operator.cell_initial @ solution.q_values
            assert dual == pytest.approx(solution.value, rel=1e-12)


def test_gap_sees_a_wrong_distribution():
    from dataclasses import replace

    mdp = logged_mdp(6)
    right = lg.solve(mdp.counts, 0.9, policy=mdp.policy, ridge=0, clone=0)
    wrong = replace(right, state_distribution=np.roll(right.state_distribution, 1))
    assert abs(wrong.gap) > 1e-3


def test_value_is_a_weighted_average_of_the_log():
    mdp = logged_mdp(8)
    solution = lg.solve(mdp.counts, 0.95, policy=mdp.policy, ridge=0, clone=0)
    weights = solution.tau[mdp.state * 2 + mdp.action]
    assert np.mean(weights * mdp.rewards) == pytest.approx(solution.value, rel=1e-10)


def test_solutions_pickle_and_serialize():
    mdp = logged_mdp(9)
    for solution in (
        lg.solve(mdp.counts, 0.9, policy=mdp.policy),
        lg.solve(np.array([[1.0, 2.0], [3.0, 4.0]])),
    ):
        again = pickle.loads(pickle.dumps(solution))
        assert np.array_equal(again.tau, solution.tau)
        assert again.value == solution.value
        text = json.dumps(solution.to_dict(), allow_nan=False)
        assert json.loads(text)["status"] == "solved"
        assert "gamma" in str(solution)


def test_inputs_are_never_changed():
    rng = np.random.default_rng(0)
    dense = rng.random((6, 6))
    made = sparse.csr_array(dense)
    policy, initial = logged_mdp(0).policy, rng.dirichlet(np.ones(6))
    held = [dense.copy(), made.data.copy(), policy.copy(), initial.copy()]
    lg.solve(dense, 0.9)
    lg.solve(made, 0.9, initial=initial, restart=initial)
    lg.solve(logged_mdp(0).counts, 0.9, policy=policy, initial=initial)
    for now, before in zip((dense, made.data, policy, initial), held, strict=True):
        assert np.array_equal(now, before)


def test_nothing_is_printed_unless_asked(capfd):
    lg.solve([[1, 2], [3, 4]])
    lg.solve(logged_mdp(0).counts, 0.9, policy=logged_mdp(0).policy)
    assert capfd.readouterr() == ("", "")


def test_one_state_and_empty_counts():
    assert lg.solve([[3]]).stationary.tolist() == [1.0]
    assert lg.solve([[3]], 0.5).stationary.tolist() == [1.0]
    for empty in ([[0]], np.zeros((3, 3)), lg.Counts.empty(), lg.Counts.empty(4)):
        with pytest.raises(ValueError, match="empty"):
            lg.solve(empty)


def test_the_types_of_arguments_are_those_of_solve():
    """The overloads take their keywords from one list, which must not fall behind."""
    from lingendice.solvers.request import Arguments

    assert ["data", "gamma", "policy", *Arguments.__annotations__] == list(
        inspect.signature(lg.solve).parameters
    )


# -- one request, whatever the data ------------------------------------------------------------------------


def test_a_leak_is_refused_in_every_one_of_several_distributions():
    """State 2 is reached from 1 and never left; with state 0 apart there are two recurrent classes."""
    chain, restart = [[1, 0, 0], [0, 0, 1], [0, 0, 0]], [0, 1, 0]
    assert lg.solve(chain, restart=restart).status is lg.Status.SEVERAL_DISTRIBUTIONS
    with pytest.raises(ValueError, match="state 2 is reached but has no outgoing transitions"):
        lg.solve(chain, restart=restart, leak="error")
    closed = [[1, 0, 0], [0, 1, 0], [1, 1, 0]]
    assert len(lg.solve(closed, leak="error").distributions) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(0, 2**32 - 1), st.sampled_from([0.9, 1.0]))
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_leak_is_refused_exactly_where_there_is_one(n, seed, gamma):
    """leak="error" raises where the one distribution, or one that data lead to, visits unseen states."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (n, n)) * (rng.random((n, n)) < 0.4)
    counts[0, 0] += 1
    weights = rng.integers(0, 2, n) + np.eye(n)[rng.integers(n)]
    choices = {"restart": weights / weights.sum()}
    unseen = counts.sum(axis=1) == 0
    found = lg.solve(counts.tolist(), gamma, **choices).distributions
    led_to = [len(found) == 1 or counts[~unseen][:, one > 0].any() for one in found]
    leaks = any(one[unseen].any() and reached for one, reached in zip(found, led_to, strict=True))
    if leaks:
        with pytest.raises(ValueError, match="no outgoing transitions"):
            lg.solve(counts.tolist(), gamma, leak="error", **choices)
    else:
        lg.solve(counts.tolist(), gamma, leak="error", **choices)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("restart", [[1.0, -1.0], [1.0, 2.0, 3.0], [0.0, 0.0], "here"])
def test_a_bad_restart_is_refused_where_nothing_leaks(gamma, restart):
    for choices in ({}, {"leak": "absorb"} if gamma < 1.0 else {"leak": "error"}):
        with pytest.raises(ValueError, match="restart"):
            lg.solve([[1, 2], [3, 4]], gamma, restart=restart, **choices)


@pytest.mark.parametrize(
    "wrong",
    [
        {"penalty": -5}, {"penalty": "much"}, {"penalty": 0}, {"seed": "a"}, {"seed": 1.5}, {"threads": -1},
        {"threads": 0}, {"tol": 0.0}, {"max_iter": 0}, {"time_limit": -1.0}, {"progress": "yes"},
        {"device": "tpu"}, {"method": "fast"}, {"divergence": "square"}, {"normalize": "no"},
        {"leak": "drip"}, {"ratio": "odds"}, {"unseen": "guess"}, {"terminal": "stop"}, {"ridge": -1.0},
        {"reward_range": (1.0, 0.0)}, {"reward_range": 3}, {"options": {"color": 1}}, {"options": 3},
        {"options": {"on_interrupt": "sing"}}, {"smoothing": -1.0}, {"bound": -1.0}, {"warm_start": 3},
        {"gamma": 0.0}, {"gamma": "1"},
    ],
)  # fmt: skip
def test_small_arrays_are_checked_like_all_others(wrong):
    """The short way for a small dense array comes after the checks: it accepts nothing that others refuse."""
    matrix = np.array([[3, 1, 2], [1, 2, 1], [2, 2, 5]])
    for data in (matrix, matrix.tolist(), lg.Counts.from_matrix(matrix)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            lg.solve(data, **wrong)


def test_a_request_is_frozen_and_keeps_its_defaults():
    from lingendice.solvers.request import Request

    signature = inspect.signature(lg.solve).parameters
    given = {name: entry.default for name, entry in signature.items() if name != "data"}
    full, bare = Request.read(**given), Request.read()
    assert full._replace(limits=bare.limits) == bare
    assert full.is_plain
    assert not full.wants_saddle
    with pytest.raises(AttributeError):
        full.problem = None


def test_a_leak_warning_points_to_the_caller():
    counts = lg.Counts.from_transitions([0, 1, 0], [1, 2, 1])
    for call in (lambda: lg.solve(counts, 0.9), lambda: lg.solve(counts)):
        with pytest.warns(lg.LeakWarning) as caught:
            call()
        assert [entry.filename for entry in caught] == [__file__]
