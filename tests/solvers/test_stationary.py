"""Every method on every kind of chain, against elimination in extended precision."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc

import numpy as np
import pytest
from problems import long_double_distribution
from scipy import sparse

import lingendice as lg
from lingendice.solvers import stationary as exact
from lingendice.solvers.elimination import Elimination


def random_walk(n, pairs, weights):
    rows, columns = np.array(pairs).T
    matrix = sparse.csr_array((weights, (rows, columns)), shape=(n, n))
    matrix.sum_duplicates()
    return matrix


def grid(side, seed=0):
    number = np.arange(side * side).reshape(side, side)
    right = list(zip(number[:, :-1].ravel(), number[:, 1:].ravel(), strict=True))
    down = list(zip(number[:-1].ravel(), number[1:].ravel(), strict=True))
    pairs = right + down + [(j, i) for i, j in right + down]
    return random_walk(side * side, pairs, np.random.default_rng(seed).uniform(0.2, 1.0, len(pairs)))


def digraph(n, out, seed=0):
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(n) for j in rng.choice(n, out, replace=False)] + [
        (i, (i + 1) % n) for i in range(n)
    ]
    return random_walk(n, pairs, rng.uniform(0.1, 1.0, len(pairs)))


def blocks(n, size, coupling, seed=0):
    rng = np.random.default_rng(seed)
    inside = [(i, i - i % size + j) for i in range(n) for j in rng.choice(size, 5, replace=False)]
    around = [(i, (i + 1) % n) for i in range(n)]
    weights = np.concatenate(
        [rng.uniform(0.1, 1.0, len(inside)), np.where((np.arange(n) + 1) % size, 0.3, coupling)]
    )
    return random_walk(n, inside + around, weights)


def with_dangling(matrix):
    matrix = matrix.tolil()
    matrix[[3, 50, 200]] = 0
    return sparse.csr_array(matrix)


CHAINS = {
    "grid": grid(19),
    "digraph": digraph(400, 4),
    "blocks": blocks(400, 40, 1e-7),
    "dangling": with_dangling(digraph(380, 3, 1)),
}
METHODS = ("auto", "gth", "elimination", "gauss-seidel", "aggregation")


def reference(matrix, gamma):
    """Distribution of the dense chain, restarts written out, in extended precision."""
    dense = matrix.toarray().astype(np.longdouble)
    n = dense.shape[0]
    totals = dense.sum(axis=1)
    seen = totals / totals.sum()
    empty = totals == 0
    restart = np.full(n, 1 / np.longdouble(n)) if gamma < 1 else seen
    P = np.where(empty[:, None], restart, dense / np.where(empty, 1, totals)[:, None])
    gamma = np.longdouble(gamma)
    return long_double_distribution(gamma * P + (1 - gamma) / n).astype(float)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.9999])
@pytest.mark.parametrize("name", CHAINS)
def test_every_method_reaches_the_distribution(name, gamma):
    expected = reference(CHAINS[name], gamma)
    for method in METHODS:
        solution = lg.solve(CHAINS[name], gamma, method=method)
        assert solution.converged, (method, solution)
        found = solution.stationary
        assert np.abs(found - expected).sum() < 1e-10, method
        if gamma == 1.0:
            assert np.max(np.abs(found / expected - 1)) < 1e-10, method
            assert solution.error is None or np.max(np.abs(found / expected - 1)) <= max(
                solution.error, 1e-13
            )
        else:
            assert np.abs(found - expected).sum() <= solution.error


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("gamma", [1.0, 0.95])
@pytest.mark.parametrize("name", CHAINS)
def test_adjoint_of_larger_chains_certifies_the_value(name, gamma):
    matrix = CHAINS[name]
    reward = np.random.default_rng(1).normal(size=matrix.shape[0])
    solution = lg.solve(matrix, gamma, reward=reward)
    assert abs(solution.gap) < 1e-8 * max(1.0, np.abs(solution.state_values).max())
    v = solution.state_values
    stepped = solution.gamma * solution.operator.chain.apply(v) + solution._mean_reward
    gain = solution.value if gamma == 1.0 else 0.0
    assert np.allclose(v, stepped - gain, atol=1e-8 * max(1.0, np.abs(v).max()))


def test_adjoint_with_transient_states():
    matrix = sparse.lil_array((450, 450))
    matrix[:400, :400] = CHAINS["digraph"]
    for i in range(400, 450):
        matrix[i, i - 30] = 1.0
        matrix[i, (i + 7) % 450] = 1.0
    solution = lg.solve(matrix, reward=np.arange(450.0))
    assert np.all(solution.stationary[400:] == 0)
    v = solution.state_values
    assert np.allclose(v, np.arange(450.0) - solution.value + solution.operator.chain.apply(v), atol=1e-7)


def test_absorbed_mass_on_larger_chains():
    rng = np.random.default_rng(0)
    state, following = rng.integers(500, size=(2, 3000))
    counts = lg.Counts.from_transitions(state, following, reward=rng.random(3000), n_states=500)
    fast = lg.solve(counts, 0.9, leak="absorb", method="gauss-seidel")
    exact = lg.solve(counts, 0.9, leak="absorb", method="gth")
    assert exact.leak > 0
    assert np.allclose(fast.stationary, exact.stationary, atol=1e-11)
    assert fast.value == pytest.approx(exact.value, rel=1e-9)
    assert abs(fast.gap) < 1e-9


def test_the_reason_is_given():
    large = grid(60)
    assert lg.solve(large).method == "elimination"
    assert lg.solve(digraph(5000, 6)).method == "gauss-seidel"
    assert "blocks" in lg.solve(blocks(6000, 60, 1e-8)).reason


@pytest.mark.parametrize(
    ("chain", "method", "found", "reason"),
    [
        (digraph(5000, 6), "gauss-seidel", "gauss-seidel", "as asked"),
        (digraph(5000, 6), "aggregation", "gauss-seidel", "method='aggregation' begins with sweeps"),
        (grid(60), "gauss-seidel", "aggregation", "method='gauss-seidel' foresaw too many sweeps"),
        (grid(60), "aggregation", "aggregation", "as asked"),
        (blocks(6000, 60, 1e-8), "gauss-seidel", "aggregation", "falls apart into nearly separate blocks"),
        (np.ones((5, 5)), "gauss-seidel", "gth", "method='gauss-seidel' eliminates chains of so few states"),
        (np.ones((5, 5)), "aggregation", "gth", "method='aggregation' eliminates"),
    ],
)
def test_another_method_than_was_asked_for_is_named_with_the_reason(chain, method, found, reason):
    solution = lg.solve(chain, method=method)
    assert (solution.status, solution.method) == (lg.Status.SOLVED, found)
    assert reason in solution.reason


def test_an_elimination_that_finds_no_memory(monkeypatch):
    """Left to itself another method takes over; where it was asked for, the error says what it needs."""
    chain = grid(60)
    expected = lg.solve(chain)
    assert expected.method == "elimination"

    def fails(*_, **__):
        raise MemoryError("Unable to allocate 25.0 GiB")

    monkeypatch.setattr(Elimination, "factorize", fails)
    found = lg.solve(chain)
    assert (found.status, found.method) == (lg.Status.SOLVED, "aggregation")
    np.testing.assert_allclose(found.stationary, expected.stationary, rtol=1e-8)
    with pytest.raises(ValueError, match=r'25.0 GiB.* factor alone takes .* GB; use method="auto"'):
        lg.solve(chain, method="elimination")


def test_time_limit_returns_the_best_so_far():
    solution = lg.solve(grid(80), 0.99999, method="gauss-seidel", time_limit=1e-3)
    assert solution.status is lg.Status.TIME_LIMIT
    assert not solution.converged
    assert solution.stationary.sum() == pytest.approx(1.0)
    assert "time_limit" in str(solution)


def test_iteration_limit():
    for gamma in (0.999, 1.0):
        solution = lg.solve(grid(40), gamma, method="gauss-seidel", max_iter=3)
        assert solution.status is lg.Status.ITERATION_LIMIT
        assert solution.residual > 0


@pytest.mark.parametrize("sweeps", [1, 5])
def test_what_was_reached_is_returned_while_the_method_is_chosen(sweeps):
    chain = digraph(5000, 5)
    found = lg.solve(chain, max_iter=sweeps)
    asked = lg.solve(chain, max_iter=sweeps, method="gauss-seidel")
    assert (found.n_iter, found.status) == (sweeps, lg.Status.ITERATION_LIMIT)
    np.testing.assert_array_equal(found.stationary, asked.stationary)


@pytest.mark.parametrize("gap", [1e-6, 1e-8, 1e-12])
def test_a_chain_that_mixes_is_swept_however_close_gamma_is_to_1(gap):
    """Rounding forbids sweeps of the chain itself, and its elimination fills up: 42 s for 20,000 states."""
    rng, n = np.random.default_rng(3), 20_000
    chain = sparse.csr_array((np.ones(5 * n), rng.integers(0, n, 5 * n), 5 * np.arange(n + 1)), shape=(n, n))
    solution = lg.solve(chain, 1.0 - gap, initial=np.full(n, 1.0 / n))
    assert (solution.status, solution.method) == (lg.Status.SOLVED, "gauss-seidel")
    assert "mixes well" in solution.reason
    stepped = np.full(n, 1.0 / n)
    for _ in range(200):
        stepped = gap / n + (1.0 - gap) * (chain.T @ stepped) / 5.0
    assert np.abs(solution.stationary - stepped).sum() < 1e-10
    line = sparse.csr_array(2.0 * np.eye(4000, k=1) + np.eye(4000, k=-1) + np.eye(4000))
    assert lg.solve(line, 1.0 - gap).method == "elimination"


@pytest.mark.parametrize("initial", [None, np.full(5020, 1 / 5020)])
def test_an_error_is_unknown_where_that_of_one_class_is(initial):
    """A small class solved exactly beside one whose solve was ended has no part in the error to state."""
    both = sparse.csr_array(sparse.block_diag([digraph(20, 3), digraph(5000, 5)]))
    solution = lg.solve(both, time_limit=1e-9, initial=initial)
    assert solution.status is lg.Status.TIME_LIMIT
    assert solution.error is None


def test_refuses_dense_elimination_that_cannot_fit():
    with pytest.raises(ValueError, match='method="gth" would need'):
        lg.solve(
            sparse.csr_array(sparse.eye_array(200_000, k=1) + sparse.eye_array(200_000, k=-199_999)),
            method="gth",
        )


INTERRUPTED = """
import sys, threading, time, numpy as np, lingendice as lg
from scipy import sparse
n = 300
number = np.arange(n * n).reshape(n, n)
i = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
j = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
P = sparse.csr_array((np.random.default_rng(0).random(2 * i.size) + 0.1, (np.append(i, j), np.append(j, i))))
lg.solve(P, 0.5, method="gauss-seidel")
print("ready", flush=True)
try:
    lg.solve(P, 0.9999999, method="gauss-seidel", options={options})
except KeyboardInterrupt as stop:
    print("raised", stop.solution.status.name, stop.solution.stationary.sum(), flush=True)
else:
    print("returned", flush=True)
"""


@pytest.mark.parametrize(
    ("options", "word"), [("None", "raised INTERRUPTED 1.0"), ("{'on_interrupt': 'return'}", "returned")]
)
def test_ctrl_c_is_heard_and_loses_nothing(options, word):
    code = textwrap.dedent(INTERRUPTED).replace("{options}", options)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "ready"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out.startswith(word[:19])
    assert process.returncode == 0


def test_dense_limit_is_where_the_methods_meet():
    n = exact.DENSE_NODES
    assert lg.solve(digraph(n - 1, 3)).method == "gth"
    assert lg.solve(digraph(n + 50, 3)).method != "gth"


def test_the_way_into_many_classes_takes_no_more_room_than_their_distributions():
    n = 800
    initial = np.random.default_rng(0).dirichlet(np.ones(n))
    lg.solve(sparse.eye_array(400, format="csr"), initial=np.full(400, 1 / 400))  # compiled code is loaded
    tracemalloc.start()
    solution = lg.solve(sparse.eye_array(n, format="csr"), initial=initial)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(solution.stationary, initial, rtol=1e-13)
    assert len(solution.distributions) == n
    assert most < 2 * 8 * n * n
