"""The program that parts run together, here in threads of one process: against lg.solve."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lingendice as lg
from lingendice.distributed.blocks import cut_rows, work_edges
from lingendice.distributed.mesh import Mesh, PartLost, PhaseInbox
from lingendice.distributed.part import Part
from lingendice.distributed.rounds import RoundTerms, stationary
from lingendice.solvers.gauss_seidel import Extrapolation


def together(n_parts, program):
    """What every part's program returns, all run side by side."""
    run, found, errors = PhaseInbox(), [None] * n_parts, []

    def go(index):
        try:
            found[index] = program(index, Mesh(index, n_parts, run, lambda _, *message: run.put(*message)))
        except BaseException as error:
            errors.append(error)
            run.end(str(error))

    threads = [threading.Thread(target=go, args=(index,)) for index in range(n_parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def parts_of(counts, n_parts):
    edges = work_edges(np.diff(counts.indptr), n_parts)
    return edges, [Part(block, index, edges) for index, block in enumerate(cut_rows(counts, edges))]


def solved(counts, gamma, n_parts, max_rounds=None):
    """The distribution by rounds of parts, from the uniform one over the recurrent class."""
    edges, parts = parts_of(counts, n_parts)
    start = np.full(counts.n_states, 1.0 / counts.n_states)
    if gamma == 1.0:
        (members,) = lg.audit(counts).recurrent_classes
        start = np.bincount(members, minlength=counts.n_states) / members.size

    def program(index, mesh):
        part = parts[index]
        part.prepare(mesh, 0, None)
        terms = RoundTerms(
            gamma, 1e-10, max_rounds, 1.0, (1.0 - gamma) / counts.n_states, 1.0 - gamma,
            np.zeros((part.size, 0)), np.zeros((part.size, 0)), start[edges[index] : edges[index + 1]],
        )  # fmt: skip
        return stationary(part, mesh, terms)[0]

    found = together(len(edges) - 1, program)
    x = np.concatenate([part.distribution for part in found])
    return x / x.sum() if gamma == 1.0 else x, found[0]


def random_graph(n, degree, seed):
    rng = np.random.default_rng(seed)
    ring = np.arange(n)
    state = np.concatenate([np.repeat(ring, degree), ring])
    return lg.Counts.from_transitions(state, np.concatenate([rng.integers(0, n, n * degree), (ring + 1) % n]))


def ring_of(n, seed=4):
    rng = np.random.default_rng(seed)
    state = np.repeat(np.arange(n), 5)
    return lg.Counts.from_transitions(state, (state + rng.integers(-9, 10, state.size)) % n)


def nearly_apart(n, groups, coupling, seed=0):
    """Groups of states, shuffled, that are left about once in 1 / coupling steps."""
    from scipy import sparse

    rng = np.random.default_rng(seed)
    size = n // groups
    state = np.repeat(np.arange(n), 7)
    near = (state // size) * size + rng.integers(0, size, state.size)
    near[::7] = (near[::7] // size) * size + (state[::7] + 1) % size
    far = rng.integers(0, n, n)
    weight = np.concatenate([rng.uniform(0.1, 1.0, state.size), np.full(n, coupling)])
    moved = rng.permutation(n)
    places = moved[np.concatenate([state, np.arange(n)])], moved[np.concatenate([near, far])]
    return lg.Counts.from_matrix(sparse.coo_array((weight, places), shape=(n, n)))


@pytest.mark.parametrize("gamma", [0.85, 0.99, 1.0])
def test_the_number_of_rounds_does_not_depend_on_the_number_of_parts(gamma):
    counts = random_graph(600, 5, seed=1)
    expected = lg.solve(counts, gamma).stationary
    rounds = []
    for n_parts in (1, 2, 5):
        x, found = solved(counts, gamma, n_parts)
        assert found.converged
        assert found.method == "power"
        assert found.error <= 1e-10
        assert np.abs(x - expected).sum() <= 1e-10
        rounds.append(found.n_iter)
    assert max(rounds) - min(rounds) <= 1


@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize(
    ("counts", "gamma"),
    [(ring_of(3000), 1.0), (ring_of(2000), 0.9999), (nearly_apart(2000, 20, 1e-7), 1.0)],
    ids=["ring", "discounted ring", "nearly apart"],
)
def test_slow_chains_entry_by_entry(counts, gamma, n_parts):
    x, found = solved(counts, gamma, n_parts)
    expected = lg.solve(counts, gamma).stationary
    assert found.converged
    assert found.method == "aggregation"
    assert (np.abs(x - expected) <= 1e-8 * expected).all()


def test_what_is_slow_is_not_called_solved_after_a_few_rounds():
    x, found = solved(nearly_apart(2000, 20, 1e-7), 1.0, 2, max_rounds=10)
    assert not found.converged
    assert found.n_iter == 10
    assert np.isclose(x.sum(), 1.0)


def test_a_periodic_chain():
    n = 400
    rng = np.random.default_rng(0)
    state = np.repeat(np.arange(n), 4)
    following = (1 - state % 2) + 2 * rng.integers(0, n // 2, state.size)
    ring = np.arange(n)
    counts = lg.Counts.from_transitions(np.append(state, ring), np.append(following, (ring + 1) % n))
    for n_parts in (1, 3):
        x, found = solved(counts, 1.0, n_parts)
        assert found.converged
        np.testing.assert_allclose(x, lg.solve(counts).stationary, rtol=1e-9)


def test_sums_over_rows_meet_sums_over_targets():
    """<A y, v> = <y, A' v> for sums that cross parts."""
    counts = random_graph(300, 4, seed=2)
    edges, parts = parts_of(counts, 4)
    rng = np.random.default_rng(3)
    y, v = rng.random(300), rng.random(300)

    def program(index, mesh):
        part, own = parts[index], slice(edges[index], edges[index + 1])
        part.prepare(mesh, 0, None)
        drawn, everybody = part.pushed(mesh, y[own].copy(), np.array([1.0]))
        assert sum(float(numbers[0]) for numbers in everybody) == 4.0
        return (
            drawn.copy(),
            part.pulled_back(part.fetched(mesh, v[own].copy())),
            part.expected_next(mesh, v[own].copy()),
        )

    pushed, pulled, by_cell = map(np.concatenate, zip(*together(4, program), strict=True))
    matrix = counts.matrix.toarray()
    np.testing.assert_allclose(pushed, y @ matrix, rtol=1e-12)
    np.testing.assert_allclose(pulled, matrix @ v, rtol=1e-12)
    np.testing.assert_allclose(by_cell, matrix @ v, rtol=1e-12)


def test_a_wait_has_a_deadline_and_ends_when_the_run_has_ended():
    run = PhaseInbox()
    with pytest.raises(PartLost, match="part 3 sent nothing for 0 s"):
        run.take((0, 1, 3), 0.05)
    threading.Timer(0.1, run.end, ("worker gone",)).start()
    with pytest.raises(PartLost, match="worker gone"):
        run.take((0, 1, 3), 30.0)


def test_parts_extrapolate_as_one_vector_does():
    """Refusals included, which a part by itself would make at other passes."""
    rng = np.random.default_rng(3)
    rate, goal = rng.uniform(0.3, 0.999, 40), np.exp(rng.uniform(-12, 0, 40))

    def passes(own, total=None):
        x, replaced = np.ones(goal[own].size), []
        mixer = Extrapolation(x, depth=4, period=1, power=1.0, total=total)
        for _ in range(25):
            x = goal[own] + rate[own] * (x - goal[own])
            replaced.append(mixer.observe(x))
        return x, replaced

    halves = (slice(0, 20), slice(20, 40))
    x, replaced = passes(slice(None))
    found = together(2, lambda index, mesh: passes(halves[index], mesh.total))
    assert found[0][1] == found[1][1] == replaced
    assert any(replaced)
    assert not all(replaced[1:])
    assert passes(halves[0])[1] != passes(halves[1])[1]
    np.testing.assert_allclose(np.concatenate([half for half, _ in found]), x, rtol=1e-12)
