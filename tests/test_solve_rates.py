"""Chains in continuous time: queues in closed form, fractions, and dense solves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import expm

import lingendice as lg


def queue(arrivals, services, n):
    """M/M/1 with room for n - 1 customers."""
    q = np.diag(np.full(n - 1, arrivals), 1) + np.diag(np.full(n - 1, services), -1)
    return q - np.diag(q.sum(axis=1))


def random_generator(n, seed, spread=3.0):
    rng = np.random.default_rng(seed)
    q = np.exp(spread * rng.normal(size=(n, n))) * (rng.random((n, n)) < 0.4)
    q += np.eye(n, k=1) + np.eye(n, k=1 - n)  # irreducible
    np.fill_diagonal(q, 0.0)
    return q - np.diag(q.sum(axis=1))


def relative(found, exact):
    return max(abs(float((Fraction(float(x)) - e) / e)) for x, e in zip(found, exact, strict=True))


@pytest.mark.parametrize(("arrivals", "services"), [(0.5, 1.0), (2.0, 0.25), (1.0, 1.0), (0.1, 3.0)])
@pytest.mark.parametrize("n", [2, 30, 300, 1500])
def test_a_queue_entry_by_entry(arrivals, services, n):
    n = n if arrivals == services else min(n, 150)  # beyond, rho^n is no number any more
    rho = Fraction(arrivals) / Fraction(services)
    shares = [rho**k for k in range(n)]
    exact = [share / sum(shares) for share in shares]
    for q in (queue(arrivals, services, n), sparse.csr_array(queue(arrivals, services, n))):
        found = lg.solve_rates(q, reward=np.arange(n))
        assert found.status is lg.Status.SOLVED
        assert relative(found.stationary, exact) < 1e-14
        length = float(sum(k * share for k, share in enumerate(exact)))
        assert found.value == pytest.approx(length, rel=1e-13)
    busy = float(1 - exact[0])
    assert found.jump_rate == pytest.approx(float(1 - exact[-1]) * arrivals + busy * services, rel=1e-13)
    assert found.residual < 1e-14


def exact_times(q, targets):
    """h with Q h = -1 off the targets, by elimination of fractions."""
    others = [k for k in range(len(q)) if k not in targets]
    rows = [[-Fraction(q[i, j]) for j in others] for i in others]
    for row, i in zip(rows, others, strict=True):  # the diagonal as the sum of the others, exactly
        row[others.index(i)] = sum((Fraction(q[i, j]) for j in range(len(q)) if j != i), Fraction(0))
    right = [Fraction(1)] * len(others)
    for k in range(len(others)):
        for i in range(k + 1, len(others)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
            right[i] -= factor * right[k]
    times = [Fraction(0)] * len(others)
    for k in reversed(range(len(others))):
        known = sum(rows[k][j] * times[j] for j in range(k + 1, len(others)))
        times[k] = (right[k] - known) / rows[k][k]
    return dict(zip(others, times, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_times_to_targets_entry_by_entry(seed):
    """Over rates that differ by factors of a million."""
    q = random_generator(9, seed, spread=5.0)
    targets = [0, 4] if seed % 2 else [3]
    found = lg.solve_rates(q).mean_time_to(targets)
    exact = exact_times(q, targets)
    assert (found[targets] == 0).all()
    assert relative(found[list(exact)], list(exact.values())) < 1e-13


def test_the_first_passage_of_a_queue():
    n, arrivals, services = 40, 0.5, 1.0
    down = lg.solve_rates(queue(arrivals, services, n)).mean_time_to(0)
    # From k to k - 1 in a queue that holds m = n - 1: (1 + rho + ... + rho^(m - k)) / services.
    steps = [sum(0.5**j for j in range(n - k)) / services for k in range(1, n)]
    np.testing.assert_allclose(down[1:], np.cumsum(steps), rtol=1e-13)


def test_targets_that_may_be_missed():
    q = np.zeros((5, 5))
    q[0, 1], q[1, 2], q[1, 3], q[4, 3] = 1.0, 2.0, 2.0, 4.0
    found = lg.solve_rates(q, initial=[1, 0, 0, 0, 0])
    np.testing.assert_allclose(found.stationary, [0, 0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(found.mean_time_to(3), [np.inf, np.inf, np.inf, 0, 0.25])
    np.testing.assert_allclose(found.mean_time_to([2, 3]), [1.25, 0.25, 0, 0, 0.25])
    assert found.dwell_time[2] == np.inf
    several = lg.solve_rates(q)
    assert several.status is lg.Status.SEVERAL_DISTRIBUTIONS
    assert len(several.distributions) == 2
    with pytest.raises(lg.SeveralDistributions, match="pass initial="):
        _ = several.stationary


@pytest.mark.parametrize("seed", range(5))
def test_the_limit_from_a_start_is_that_of_the_semigroup(seed):
    rng = np.random.default_rng(seed)
    q = np.zeros((8, 8))
    q[:3, :3], q[3:5, 3:5] = rng.random((3, 3)), rng.random((2, 2))
    q[5:] = rng.random((3, 8)) * 5
    np.fill_diagonal(q, 0)
    initial = rng.dirichlet(np.ones(8))
    q -= np.diag(q.sum(axis=1))
    found = lg.solve_rates(q, initial=initial)
    np.testing.assert_allclose(found.stationary, initial @ expm(1e4 * q), atol=1e-9)


def test_large_chains_and_the_chain_watched_at_its_jumps():
    q = random_generator(700, 3)
    found = lg.solve_rates(q)
    jumps = q - np.diag(np.diag(q))
    np.testing.assert_allclose(
        found.jump_distribution, lg.solve(jumps / jumps.sum(axis=1, keepdims=True)).stationary, rtol=1e-9
    )
    np.testing.assert_allclose(found.exit_rate, -np.diag(q), rtol=1e-12)
    scaled = lg.solve_rates(q * 1e-30)
    np.testing.assert_allclose(scaled.stationary, found.stationary, rtol=1e-11)


def test_rates_from_jumps_and_time():
    pd = pytest.importorskip("pandas")
    counts = lg.Counts.from_transitions(["up", "down", "up", "up"], ["down", "up", "down", "up"])
    found = lg.solve_rates(counts, time=[2.0, 6.0])  # down, up
    np.testing.assert_allclose(found.exit_rate, [1 / 2, 2 / 6])
    assert found.stationary == pytest.approx([0.4, 0.6])
    assert found.state_labels == ("down", "up")
    assert found.mean_time_to("up") == pytest.approx([2.0, 0.0])
    frame = pd.DataFrame([[-1.0, 1.0], [3.0, -3.0]], index=["a", "b"], columns=["a", "b"])
    swapped = lg.solve_rates(frame[["b", "a"]], reward={"a": 1.0, "b": 5.0})
    assert swapped.value == pytest.approx(2.0)
    assert "value per unit of time" in str(swapped)
    assert swapped.to_dict()["status"] == "solved"


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ([[-1, 2], [1, -1]], {}, r"rates\[0, 0\] is -1, but the other rates of its row sum to 2"),
        ([[0.5, 0.5], [0.2, 0.8]], {}, r"a matrix of probabilities goes to solve\(P\)"),
        ([[1, -1], [1, -1]], {}, r"rates\[0, 1\] is -1, which is negative"),
        ([[0, np.nan], [1, 0]], {}, "rates"),
        ([[0, 1]], {}, "square"),
        ([[0, 1], [1, 0]], {"time": [1, 0]}, r"time\[1\] is 0, but state 1 was left"),
        ([[0, 1], [1, 0]], {"time": [1]}, "time must have one entry per state"),
        ([[0, 1], [1, 0]], {"reward": [1]}, "reward"),
        ([[0, 1], [1, 0]], {"initial": [1, 1]}, "initial sums to 2"),
    ],
)
def test_bad_rates(given, options, says):
    with pytest.raises(ValueError, match=says):
        lg.solve_rates(given, **options)


def test_solve_names_the_door():
    with pytest.raises(ValueError, match=r"counts\[0, 0\] is -1.0.*solve_rates\(Q\)"):
        lg.solve([[-1.0, 1.0], [1.0, -1.0]])


def test_bad_targets():
    found = lg.solve_rates([[-1, 1], [1, -1]])
    with pytest.raises(ValueError, match="targets names the state 7"):
        found.mean_time_to(7)
    with pytest.raises(ValueError, match="targets holds no state"):
        found.mean_time_to([])
