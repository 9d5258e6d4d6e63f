"""``solve(..., device="cuda")`` from end to end, against the host's exact solvers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from problems import (
    COURTOIS,
    birth_death,
    birth_death_distribution,
    kandori_mailath_rob,
    rational_distribution,
)
from scipy import sparse

import lingendice as lg
from lingendice.gpu.device import DeviceMemoryError
from lingendice.results.status import Status


def assert_same_distribution(there, here):
    """Within twice the promise: L1 for gamma < 1, entry by entry at gamma = 1 (an estimate)."""
    if here.gamma < 1.0:
        assert np.abs(there.stationary - here.stationary).sum() <= 2e-10
    else:
        np.testing.assert_allclose(there.stationary, here.stationary, rtol=1e-9, atol=1e-14)


def random_counts(n=60, seed=0, density=0.1):
    rng = np.random.default_rng(seed)
    matrix = sparse.csr_array((rng.random((n, n)) < density).astype(float))
    matrix.data = rng.integers(1, 9, matrix.nnz).astype(np.int64)
    ring = sparse.csr_array((np.ones(n, np.int64), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    return sparse.csr_array(matrix.astype(np.int64) + ring)


def skewed_counts(n=3000):
    """Everyone goes to state 0 and to a neighbor: one row of the pull form has n entries."""
    at = np.arange(n)
    rows = np.concatenate([at, at])
    columns = np.concatenate([np.zeros(n, np.int64), (at + 1) % n])
    return sparse.csr_array((np.ones(2 * n), (rows, columns)), shape=(n, n))


def random_log(n=400, seed=1, n_states=12, n_actions=3):
    rng = np.random.default_rng(seed)
    state, action = rng.integers(n_states, size=n), rng.integers(n_actions, size=n)
    following = (state + action + rng.integers(2, size=n)) % n_states
    return {
        "state": state, "action": action, "next_state": following,
        "reward": rng.standard_normal(n), "episode": np.arange(n) // 20,
    }  # fmt: skip


def counted_log(**more):
    """Counts of a random log, whose rows do not follow each other; also where no mark of a test reaches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.RowOrderWarning)
        return lg.Counts.from_transitions(**random_log(), **more)


@pytest.mark.parametrize("gamma", [0.5, 0.95, 1.0])
def test_a_chain_has_the_distribution_of_the_host(device, gamma):
    counts = random_counts()
    there, here = lg.solve(counts, gamma, device="cuda"), lg.solve(counts, gamma)
    assert there.status is Status.SOLVED
    assert isinstance(there.stationary, np.ndarray)
    assert_same_distribution(there, here)
    np.testing.assert_allclose(there.tau, there.stationary / here.data_distribution)
    assert there.error <= 1e-10
    assert there.n_iter > 0
    assert len(there.history) >= 1


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_a_policy_is_composed_on_the_device(device, gamma):
    counts = lg.Counts.from_transitions(**random_log())
    policy = np.random.default_rng(3).dirichlet(np.ones(3), size=12)
    there = lg.solve(counts, gamma, policy=policy, ridge=0, clone=0, device="cuda")
    here = lg.solve(counts, gamma, policy=policy, ridge=0, clone=0)
    assert there.status is Status.SOLVED
    assert_same_distribution(there, here)
    assert there.value == pytest.approx(here.value, rel=1e-9)
    assert there.interval(0.9).estimate == pytest.approx(here.value, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("smoothing", [None, 2.0])
def test_leaks_and_priors_are_rank_one_terms(device, gamma, smoothing):
    matrix = random_counts(30).toarray()
    matrix[[3, 7]] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)
        there = lg.solve(matrix, gamma, smoothing=smoothing, device="cuda")
        here = lg.solve(matrix, gamma, smoothing=smoothing)
    assert_same_distribution(there, here)
    assert there.leak == pytest.approx(here.leak, rel=1e-9)


def test_absorbed_mass_leaves_the_distribution(device):
    matrix = random_counts(20).toarray()
    matrix[4] = 0
    there = lg.solve(matrix, 0.9, leak="absorb", device="cuda")
    here = lg.solve(matrix, 0.9, leak="absorb")
    assert here.stationary.sum() < 0.99
    assert_same_distribution(there, here)


def test_a_row_with_all_the_entries_is_cut_into_segments(device):
    there, here = (lg.solve(skewed_counts(), 0.8, device=where) for where in ("cuda", "cpu"))
    assert_same_distribution(there, here)


def test_one_state(device):
    assert lg.solve([[3]], device="cuda").stationary.tolist() == [1.0]
    assert lg.solve([[3]], 0.5, device="cuda").stationary.tolist() == pytest.approx([1.0])


def test_a_periodic_chain_and_a_closed_form(device):
    assert lg.solve([[0, 1], [1, 0]], device="cuda").stationary == pytest.approx([0.5, 0.5], rel=1e-10)
    up, down = np.full(9, 0.3), np.full(9, 0.5)
    solution = lg.solve(birth_death(up, down), device="cuda")
    np.testing.assert_allclose(solution.stationary, birth_death_distribution(up, down), rtol=1e-8)
    assert solution.error_kind == "estimate"
    assert solution.condition >= 1.0


def test_several_recurrent_classes_give_every_distribution(device):
    matrix = np.zeros((6, 6))
    matrix[:2, :2] = [[1, 1], [2, 0]]
    matrix[2:4, 2:4] = [[0, 1], [1, 3]]
    matrix[4] = [1, 0, 0, 0, 1, 1]
    matrix[5] = [0, 0, 2, 0, 1, 0]
    there, here = lg.solve(matrix, device="cuda"), lg.solve(matrix)
    assert there.status is Status.SEVERAL_DISTRIBUTIONS
    for one, other in zip(there.distributions, here.distributions, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    with pytest.raises(lg.SeveralDistributions):
        _ = there.stationary
    start = [0, 0, 0, 0, 0.5, 0.5]
    mixed, expected = lg.solve(matrix, initial=start, device="cuda"), lg.solve(matrix, initial=start)
    np.testing.assert_allclose(mixed.stationary, expected.stationary, rtol=1e-7, atol=1e-10)


def test_transient_states_have_no_mass(device):
    matrix = [[1, 1, 0], [0, 1, 2], [0, 2, 1]]
    there = lg.solve(matrix, device="cuda")
    assert there.status is Status.SOLVED
    np.testing.assert_allclose(there.stationary, [0, 0.5, 0.5], atol=1e-12)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_chunks_of_rows_give_the_same_distribution(device, gamma):
    counts = random_counts(50, seed=4)
    whole = lg.solve(counts, gamma, device="cuda")
    chunked = lg.solve(counts, gamma, device="cuda", options={"chunk_rows": 7})
    assert_same_distribution(chunked, whole)


def test_single_precision_is_honest(device):
    counts = random_counts()
    there = lg.solve(counts, 0.9, tol=1e-5, device="cuda", options={"storage": "float32"})
    exact = lg.solve(counts, 0.9).stationary
    assert there.status is Status.SOLVED
    assert np.abs(there.stationary - exact).sum() <= there.error <= 1e-5
    too_fine = lg.solve(counts, 0.9, tol=1e-12, device="cuda", options={"storage": "float32"})
    assert too_fine.status is Status.STALLED
    assert np.abs(too_fine.stationary - exact).sum() <= too_fine.error


def nearly_separate(leak, n=6, seed=0):
    """Two parts between which mass leaks, twice as fast one way as the other."""
    parts = np.random.default_rng(seed).dirichlet(np.ones(n), size=(2, n)) * (1.0 - leak)
    across = np.full((n, n), leak / n)
    matrix = np.block([[parts[0], across], [2 * across, parts[1]]])
    return matrix / matrix.sum(axis=1, keepdims=True)


def relative_error(solution, distribution):
    return (np.abs(solution.stationary - distribution) / distribution).max()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "leak", [1e-1, 1e-2, 1e-3, *(pytest.param(leak, marks=pytest.mark.slow) for leak in (1e-4, 1e-5, 1e-6))]
)
def test_the_stated_error_covers_the_true_one(device, leak, seed):
    """Entry by entry against elimination, which is right to rounding; what is left is the slowest part."""
    matrix = nearly_separate(leak, seed=seed)
    there, here = lg.solve(matrix, device="cuda"), lg.solve(matrix, method="gth")
    wrong = relative_error(there, here.stationary)
    assert wrong <= there.error
    assert there.error <= 1e3 * wrong  # and says something
    assert there.status is (Status.SOLVED if there.error <= 1e-10 else Status.STALLED)
    assert there.error_kind == "estimate"
    if leak >= 1e-3:
        assert there.status is Status.SOLVED


@pytest.mark.parametrize("start", [0, 5, 29])
def test_a_small_trap_is_seen_by_the_trial(device, start):
    """One state that is hardly ever entered or left holds little mass: sums over the distribution do not show
    it."""
    n, leak = 30, 1e-3
    matrix = np.full((n, n), 1.0 / n)
    matrix[start] = leak / n
    matrix[:, start] *= 1e-5
    matrix[start, start] = 1.0 - leak
    there, here = lg.solve(matrix, device="cuda"), lg.solve(matrix, method="gth")
    assert relative_error(there, here.stationary) <= there.error
    assert there.condition > 500


@pytest.mark.parametrize("leak", [pytest.param(1e-9, marks=pytest.mark.slow), 1e-12, 1e-15])
def test_parts_that_hardly_meet_are_not_called_solved(device, leak):
    """Steps fall below rounding long before the masses of the parts are right."""
    there, here = lg.solve(nearly_separate(leak), device="cuda"), lg.solve(nearly_separate(leak))
    wrong = np.abs(there.stationary - here.stationary).sum()
    assert wrong > 0.1
    assert there.status is Status.STALLED
    assert there.error > 1e-3
    assert there.condition > 1e8
    assert 'device="cpu"' in there.status.advice


def test_kandori_mailath_rob_is_not_called_solved(device):
    """Distribution and start differ by 20 orders of magnitude, and the residual is at rounding."""
    matrix, distribution = kandori_mailath_rob(0.01)
    there = lg.solve(matrix, device="cuda")
    assert there.status is Status.STALLED
    assert there.error > np.abs(there.stationary - distribution).sum()


HARD = {
    "Courtois": (COURTOIS, rational_distribution(COURTOIS)),
    "mutations at 0.3": kandori_mailath_rob(0.3),
    "drift over 50 states": (
        birth_death(np.full(49, 0.49), np.full(49, 0.47)),
        birth_death_distribution(np.full(49, 0.49), np.full(49, 0.47)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("gamma", [0.9999, 1.0])
def test_hard_chains_are_right_or_said_not_to_be(device, name, gamma):
    matrix, distribution = HARD[name]
    if gamma < 1.0:
        kernel, n = matrix / matrix.sum(axis=1, keepdims=True), len(matrix)
        distribution = np.linalg.solve(np.eye(n) - gamma * kernel.T, np.full(n, (1 - gamma) / n))
    there = lg.solve(matrix, gamma, device="cuda")
    apart = np.abs(there.stationary - distribution)
    wrong = apart.sum() if gamma < 1.0 else relative_error(there, distribution)
    assert there.status in (Status.SOLVED, Status.STALLED)
    assert there.converged == (there.error <= 1e-10)
    assert wrong <= there.error + 1e-13 or there.status is Status.STALLED


@pytest.mark.parametrize("gamma", [pytest.param(0.9999, marks=pytest.mark.slow), 1.0])
def test_mass_that_has_far_to_travel_arrives(device, gamma):
    """Drift over many states: extrapolation alone stagnates, plain steps between the mixes do not."""
    up, down = np.full(39, 0.3), np.full(39, 0.5)
    matrix = birth_death(up, down)
    there = lg.solve(matrix, gamma, device="cuda")
    assert there.status is Status.SOLVED
    assert there.error <= 1e-10
    if gamma == 1.0:
        np.testing.assert_allclose(there.stationary, birth_death_distribution(up, down), rtol=1e-9)
    assert np.abs(there.stationary - lg.solve(matrix, gamma).stationary).sum() <= 2e-10


def test_limits_give_their_statuses(device):
    slow = birth_death(np.full(199, 0.49), np.full(199, 0.47))
    assert lg.solve(slow, 0.9999, max_iter=12, device="cuda").status is Status.ITERATION_LIMIT
    assert lg.solve(slow, 0.9999, time_limit=1e-9, device="cuda").status is Status.TIME_LIMIT


def test_the_distribution_does_not_depend_on_the_schedule(libraries):
    from emulator.device import EmulatedDevice

    from lingendice.gpu.device import using

    distributions = []
    for seed, order in ((0, 0), (0, 1), (1, 2), (2, 2)):
        with using(EmulatedDevice(libraries(), seed, order)):
            distributions.append(lg.solve(skewed_counts(2200), 0.8, device="cuda").stationary)
    assert all((distribution == distributions[0]).all() for distribution in distributions)


def test_flags_are_read_seldom_and_little_else(emulator):
    """Between polls nothing comes down; a poll reads two small arrays."""
    counts = random_counts()
    solution = lg.solve(counts, 0.9, device="cuda", options={"poll_every": 100})
    assert solution.converged
    distributions, polls = 8 * 60, 2 * (15 * 8 + 4) + 8 * 512
    setup = 5 * 8 + 64
    assert emulator.downloaded <= distributions + polls + setup


def test_memory_is_estimated_before_it_is_taken(emulator):
    counts = random_counts(400)
    emulator.free = 60_000
    with pytest.raises(DeviceMemoryError, match=r"GB of device memory are needed .*chunk_rows"):
        lg.solve(counts, 0.9, device="cuda")
    emulator.free = 1 << 30
    emulator.uploaded = 0
    assert lg.solve(counts, 0.9, device="cuda").converged
    assert emulator.uploaded > 0


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"ridge": 0.1, "method": "power-extrapolated"}, "solves the exact equation"),
        ({"method": "newton"}, "method must be one of"),
        ({"options": {"depth": 3}}, "no entry 'depth' for this method"),
        ({"options": {"storage": "float16"}}, "storage"),
        ({"options": {"chunk_rows": 0}}, "chunk_rows"),
        ({"device": "tpu"}, "device must be one of"),
    ],
)
def test_wrong_choices_are_named(emulator, choices, message):
    with pytest.raises(ValueError, match=message):
        lg.solve([[1, 2], [2, 1]], **{"device": "cuda"} | choices)
