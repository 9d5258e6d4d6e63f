"""Hitting probabilities and times against exact fractions, simulation and closed forms."""

from __future__ import annotations

import math
import signal
import time
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

import lingendice as lg
from lingendice.solvers import absorbing

KINDS = ("any", "sparse", "classes", "unreachable", "periodic", "nearly decomposable", "no way out")
N_CHAINS = 3000
SLICE = 150


def random_counts(seed):
    """Whole counts of a random chain, and one to three disjoint sets of targets."""
    rng = np.random.default_rng(seed)
    kind, n = KINDS[seed % len(KINDS)], int(rng.integers(3, 10))
    counts = rng.integers(1, 10, (n, n)).astype(np.int64)
    counts *= rng.random((n, n)) < (0.9 if kind == "any" else 0.4)
    half = n // 2
    if kind == "classes":
        counts[:half, half:] = 0
        counts[half:, :half] *= rng.random((n - half, half)) < 0.2
    elif kind == "unreachable":
        counts[:, -1] = 0
    elif kind == "periodic":
        place = np.arange(n)
        counts *= (place[None, :] - place[:, None]) % 3 == 1
    elif kind == "nearly decomposable":
        inside = np.add.outer(np.arange(n) < half, np.arange(n) < half) != 1
        counts = np.where(inside, counts * 10**12, counts)
    elif kind == "no way out":
        counts[rng.integers(n)] = 0
    if not counts.any():
        counts[0, 1] = 1
    n_sets = int(rng.integers(1, 4)) if n >= 5 else 1
    members = rng.permutation(n)[: n_sets + int(rng.integers(0, 2))]
    if kind == "unreachable" and n_sets == 1:
        members = np.array([n - 1])
    sets = {f"set {k}": [int(s) for s in members[k::n_sets]] for k in range(n_sets)}
    return counts, sets


def solve_exactly(matrix, right):
    """Gauss-Jordan over fractions; ``right`` has several columns."""
    n = len(matrix)
    rows = [list(matrix[i]) + list(right[i]) for i in range(n)]
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        lead = rows[k][k]
        rows[k] = [entry / lead for entry in rows[k]]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                factor = rows[i][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[n:] for row in rows]


def exact_hitting(counts, sets):
    """Probabilities by set, mean, variance and E[steps; reached], from fractions; inf where not certain."""
    n = len(counts)
    totals = [int(row.sum()) for row in counts]
    p = [
        [Fraction(int(c), t) if t else Fraction(0) for c in row]
        for row, t in zip(counts, totals, strict=True)
    ]
    which = {s: k for k, members in enumerate(sets.values()) for s in members}
    # By repeated squaring of reachability, not by the search that is under test.
    step = np.array([[p[i][j] > 0 and i not in which for j in range(n)] for i in range(n)])
    reach = np.linalg.matrix_power(np.eye(n, dtype=np.int64) + step, n) > 0
    targets = np.array([s in which for s in range(n)])
    can = reach[:, targets].any(axis=1)
    sure = ~reach[:, ~can].any(axis=1)
    going = [s for s in range(n) if can[s] and s not in which]
    system = [[Fraction(int(i == j)) - p[i][j] for j in going] for i in going]
    n_sets = len(sets)
    h = [[Fraction(int(which.get(s) == k)) for k in range(n_sets)] for s in range(n)]
    m, second = [Fraction(0)] * n, [Fraction(0)] * n
    u = [[Fraction(0)] * n_sets for _ in range(n)]
    right = [
        [sum(p[i][j] for j in which if which[j] == k) for k in range(n_sets)] + [Fraction(1)] for i in going
    ]
    for s, found in zip(going, solve_exactly(system, right), strict=True):
        h[s], m[s] = found[:n_sets], found[n_sets]
    right = [[1 + 2 * sum(p[i][j] * m[j] for j in range(n)), *h[i]] for i in going]
    for s, found in zip(going, solve_exactly(system, right), strict=True):
        second[s], u[s] = found[0], found[1:]
    mean = np.array([float(m[s]) if sure[s] else math.inf for s in range(n)])
    sd = np.array([math.sqrt(second[s] - m[s] ** 2) if sure[s] else math.inf for s in range(n)])
    given = [[float(u[s][k] / h[s][k]) if h[s][k] else math.nan for k in range(n_sets)] for s in range(n)]
    return np.array(h, dtype=float), mean, sd, np.array(given)


def check_against_fractions(seed):
    counts, sets = random_counts(seed)
    hit = lg.hitting(counts, sets)
    probability, mean, sd, given = exact_hitting(counts, sets)
    by_set = hit.probability.reshape(probability.shape)
    assert (by_set >= 0).all()
    assert (by_set.sum(axis=1) <= 1.0 + 1e-15).all()
    np.testing.assert_allclose(by_set, probability, rtol=1e-10, atol=0)
    np.testing.assert_array_equal(np.isinf(hit.mean_steps), np.isinf(mean))
    np.testing.assert_allclose(hit.mean_steps, mean, rtol=1e-10, atol=0)
    np.testing.assert_allclose(hit.sd_steps, sd, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(hit.mean_steps_if_reached.reshape(given.shape), given, rtol=1e-10, atol=0)
    np.testing.assert_array_equal(hit.cannot_reach, probability.sum(axis=1) == 0)
    np.testing.assert_array_equal(hit.may_miss, np.isinf(mean))


@pytest.mark.parametrize("part", range(5))
def test_random_chains_agree_with_exact_fractions(part):
    for seed in range(part, SLICE, 5):
        check_against_fractions(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_3000_random_chains_agree_with_exact_fractions(part):
    for seed in range(part, N_CHAINS, 10):
        check_against_fractions(seed)


def walk(n, up=0.5):
    """A random walk on 0..n that stays at both ends."""
    p = np.diag(np.full(n, up), 1) + np.diag(np.full(n, 1 - up), -1)
    p[0], p[-1] = np.eye(n + 1)[0], np.eye(n + 1)[-1]
    return p


def test_gamblers_ruin_has_its_closed_form_down_to_1e_minus_200():
    """Tiny probabilities keep all their digits: (1 - r^k) / (1 - r^n) with r = 9."""
    n = 220
    hit = lg.hitting(walk(n, 0.1), {"rich": n, "ruined": 0})
    k = np.arange(n + 1)
    exact = [float(Fraction(9**i - 1, 9**n - 1)) for i in k.tolist()]
    np.testing.assert_allclose(hit.probability[:, 0], exact, rtol=1e-12, atol=0)
    assert 0 < hit.probability[1, 0] < 1e-200
    np.testing.assert_allclose(hit.probability.sum(axis=1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("n", [60, 900])
def test_fair_walk_takes_k_times_n_minus_k_steps(n):
    """By dense and by sparse elimination."""
    hit = lg.hitting(walk(n), [0, n])
    k = np.arange(n + 1)
    assert hit.method == ("gth" if n == 60 else "elimination")
    np.testing.assert_allclose(hit.mean_steps, k * (n - k), rtol=1e-11)
    # Var = k (n - k) (k^2 + (n - k)^2 - 2) / 3 for the fair walk.
    np.testing.assert_allclose(hit.sd_steps**2, k * (n - k) * (k**2 + (n - k) ** 2 - 2) / 3, rtol=1e-10)
    assert (hit.probability == 1.0).all()


def test_sweeps_agree_with_elimination_where_the_fill_is_too_large(monkeypatch):
    rng = np.random.default_rng(3)
    counts = sparse.random_array((1500, 1500), density=0.006, rng=rng, format="csr")
    counts = counts + sparse.diags_array(np.ones(1500)).tocsr()
    sets = {"a": [3, 4], "b": np.arange(10, 30)}
    direct = lg.hitting(counts, sets)
    assert direct.method == "elimination"
    monkeypatch.setattr(absorbing, "SOON_FLOPS", 0.0)
    swept = lg.hitting(counts, sets)
    assert swept.method == "gauss-seidel"
    for name in ("probability", "mean_steps", "sd_steps", "mean_steps_if_reached"):
        np.testing.assert_allclose(getattr(swept, name), getattr(direct, name), rtol=1e-10, atol=0)
    assert swept.error <= 1e-10
    assert swept.converged


def test_sweeps_that_are_too_slow_give_way_to_elimination(monkeypatch):
    monkeypatch.setattr(absorbing, "SOON_FLOPS", 0.0)
    n = 900
    hit = lg.hitting(walk(n), [0, n])
    k = np.arange(n + 1)
    np.testing.assert_allclose(hit.mean_steps, k * (n - k), rtol=1e-11)
    assert hit.method == "elimination"
    assert hit.reason == "sweeps were too slow"


def test_stated_error_of_sweeps_bounds_the_true_one(monkeypatch):
    rng = np.random.default_rng(8)
    monkeypatch.setattr(absorbing, "SOON_FLOPS", 0.0)
    for tol in (1e-2, 1e-5, 1e-9):
        counts = sparse.random_array((400, 400), density=0.02, rng=rng, format="csr")
        counts = counts + sparse.diags_array([np.ones(400), np.ones(399)], offsets=[0, -1]).tocsr()
        hit = lg.hitting(counts, 0, tol=tol)
        dense = counts.toarray() / counts.toarray().sum(axis=1, keepdims=True)
        steps = np.linalg.solve(np.eye(399) - dense[1:, 1:], np.ones(399))
        assert hit.method == "gauss-seidel"
        assert np.abs(hit.mean_steps[1:] / steps - 1.0).max() <= hit.error + 1e-12
        assert hit.error <= tol


# -- logs ----------------------------------------------------------------------------------------------------

JOURNEY = np.array(
    [[0.1, 0.5, 0.2, 0.1, 0.1], [0.3, 0.2, 0.3, 0.1, 0.1], [0, 0.3, 0.3, 0.2, 0.2], [0] * 5, [0] * 5]
)
NAMES = np.array(["home", "search", "cart", "bought", "left"])


def journeys(n, seed=0):
    """A log of customers who begin at home or search, and end bought or left."""
    rng = np.random.default_rng(seed)
    start, end, episode = [], [], []
    for k in range(n):
        state = int(rng.random() < 0.3)
        while state < 3:
            after = int(rng.choice(5, p=JOURNEY[state]))
            start.append(state), end.append(after), episode.append(k)
            state = after
    return lg.Counts.from_transitions(NAMES[start], NAMES[end], episode=episode)


def test_labels_sets_and_masks_name_the_same_targets():
    counts = journeys(50)
    by_label = lg.hitting(counts, "bought")
    place = counts.state_labels.index("bought")
    for targets in (["bought"], np.arange(5) == place, {"done": "bought"}, {"done": ["bought"]}):
        np.testing.assert_array_equal(lg.hitting(counts, targets).probability, by_label.probability)
    assert lg.hitting(counts, {"a": "bought", "b": "left"}).probability.shape == (5, 2)


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ("buoght", "names the state 'buoght'"),
        ({"a": "bought", "b": ["left", "bought"]}, "both hold the state 'bought'"),
        ([], "holds no state"),
        ({}, "names no set"),
        ([True, False], "mask of 2 entries"),
    ],
)
def test_targets_that_are_wrong_are_named(targets, says):
    with pytest.raises(ValueError, match=says):
        lg.hitting(journeys(20), targets)


def test_from_initial_agrees_with_simulation():
    exact = JOURNEY.copy()
    exact[3, 3] = exact[4, 4] = 1.0
    hit = lg.hitting(exact, {"bought": 3, "left": 4}, initial=[0.7, 0.3, 0, 0, 0])
    rng = np.random.default_rng(1)
    runs = 40_000
    state, steps = (rng.random(runs) < 0.3).astype(int), np.zeros(runs)
    cumulated = exact.cumsum(axis=1)
    while (state < 3).any():
        going = state < 3
        steps += going
        state = np.where(going, (rng.random(runs)[:, None] > cumulated[state]).sum(axis=1), state)
    start = hit.from_initial
    assert abs(start.probability[0] - (state == 3).mean()) < 4 * 0.5 / runs**0.5
    assert abs(start.mean_steps - steps.mean()) < 4 * start.sd_steps / runs**0.5
    assert abs(start.sd_steps / steps.std() - 1) < 0.03
    assert abs(start.mean_steps_if_reached[0] - steps[state == 3].mean()) < 0.06


def test_ends_of_episodes_and_unlogged_actions_are_no_targets():
    """Terminals end a path for good; an action that was never logged does so for want of data."""
    counts = lg.Counts.from_transitions(
        [0, 0, 0, 1, 1], [1, 1, 2, 2, 0], action=[0, 0, 1, 0, 0], terminal=[0, 0, 1, 0, 0], n_states=3,
        n_actions=2, episode=np.arange(5),
    )  # fmt: skip
    go = lg.hitting(counts, 2, policy=[[1, 0]] * 3, initial=0)
    # From 0 to 1; from 1 half to 2 and half back.
    np.testing.assert_allclose(go.probability, [1, 1, 1])
    np.testing.assert_allclose(go.mean_steps, [4, 3, 0])
    half = lg.hitting(counts, 2, policy=[[0.5, 0.5]] * 3, initial=0)
    # Action 1 ends in 0 (a terminal), and is unlogged in 1: h0 = h1 / 2, h1 = (1 + h0) / 4.
    np.testing.assert_allclose(half.probability, [1 / 7, 2 / 7, 1])
    np.testing.assert_allclose(half.without_data, [2 / 7, 4 / 7, 0])
    assert np.isinf(half.mean_steps[:2]).all()


def test_several_policies_are_refused():
    counts = lg.Counts.from_transitions([0, 1, 0, 1], [1, 0, 1, 1], action=[0, 1, 1, 0])
    one, other = np.eye(2), 1 - np.eye(2)
    for policies in ({"a": one, "b": other}, [one, other]):
        with pytest.raises(ValueError, match="one policy"):
            lg.hitting(counts, 1, policy=policies)


def test_mean_return_is_one_over_the_stationary_distribution():
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 9, (30, 30))
    hit = lg.hitting(counts, 7)
    np.testing.assert_allclose(hit.mean_return[7], 1.0 / lg.solve(counts).stationary[7], rtol=1e-12)
    assert np.isnan(np.delete(hit.mean_return, 7)).all()


def test_time_limit_leaves_nan_and_says_so():
    rng = np.random.default_rng(0)
    n = 30_000
    counts = sparse.random_array((n, n), density=3e-4, rng=rng, format="csr")
    counts = counts + sparse.diags_array(np.ones(n)).tocsr()
    hit = lg.hitting(counts, {"a": 0, "b": 1}, time_limit=1e-9)
    assert hit.status is lg.Status.TIME_LIMIT
    assert not hit.converged
    assert np.isnan(hit.probability[2:]).any()
    assert "time_limit" in str(hit)


def test_ctrl_c_ends_the_sweeps_at_the_next_look(monkeypatch):
    monkeypatch.setattr(absorbing, "SOON_FLOPS", -1.0)
    whole, passes = absorbing._Sweeps._pass, []

    def interrupted(self, source, x):
        passes.append(1)
        signal.raise_signal(signal.SIGINT)
        return whole(self, source, x)

    monkeypatch.setattr(absorbing._Sweeps, "_pass", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lg.hitting(walk(400), {"a": 0, "b": 400})
    assert len(passes) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_asked_for_later_has_a_time_limit_of_its_own():
    hit = lg.hitting(walk(40), {"a": 0, "b": 40}, time_limit=1.0)
    time.sleep(1.1)
    assert hit.converged
    assert np.isfinite(hit.sd_steps).all()
    assert np.isfinite(hit.mean_steps_if_reached[1:-1]).all()


# -- intervals -----------------------------------------------------------------------------------------------


def perturbed(counts, cell, after, by):
    """Counts with one entry moved."""
    moved = counts.astype(float)
    moved[cell, after] += by
    return moved


@pytest.mark.parametrize("of", ["probability", "steps", "steps_if_reached", "return"])
def test_standard_error_is_that_of_the_delta_method(of):
    """Of independent multinomial rows, by finite differences over every entry of the counts."""
    rng = np.random.default_rng(2)
    counts = rng.integers(20, 90, (6, 6))
    counts[0, 0] = 0
    if of in ("probability", "steps_if_reached"):
        counts[5] = [0, 0, 0, 0, 0, 50]
    start = None if of == "return" else [0.5, 0.5, 0, 0, 0, 0]

    def functional(table):
        hit = lg.hitting(table, 4, initial=start)
        if of == "return":
            return hit.mean_return[4]
        found = hit.from_initial
        return {"probability": found.probability, "steps": found.mean_steps}.get(
            of, found.mean_steps_if_reached
        )

    variance = 0.0
    for s in range(6):
        n = counts[s].sum()
        p, slope = counts[s] / n, np.zeros(6)
        for j in np.flatnonzero(counts[s]):
            up, down = (functional(perturbed(counts, s, j, by)) for by in (1e-3, -1e-3))
            slope[j] = (up - down) / 2e-3 * n
        variance += (p @ slope**2 - (p @ slope) ** 2) / (n - 1)
    found = lg.hitting(counts, 4, initial=start).interval(of=of)
    assert found.standard_error == pytest.approx(variance**0.5, rel=1e-5)
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(functional(counts), rel=1e-12)


def test_intervals_by_set_are_those_of_the_bootstrap_over_episodes():
    counts = journeys(400)
    rows, rng = counts.episodes, np.random.default_rng(0)
    hit = lg.hitting(counts, {"bought": "bought", "left": "left"})
    drawn = []
    cell = np.repeat(np.arange(counts.n_states), np.diff(counts.indptr))
    for _ in range(400):
        times = np.bincount(rng.integers(0, 400, 400), minlength=400)[rows.episode]
        n = np.bincount(rows.entry, weights=times, minlength=counts.count.size)
        table = np.zeros((5, 5))
        table[cell, counts.indices] = n
        first = np.bincount(rows.first_state, minlength=5) / 400
        again = lg.hitting(table, {"bought": 0, "left": 3}, initial=first).from_initial
        drawn.append([*again.probability, again.mean_steps, *again.mean_steps_if_reached])
    assert counts.state_labels[0] == "bought"
    assert counts.state_labels[3] == "left"
    spread = np.std(drawn, axis=0)
    found = [hit.interval(of=of).standard_error for of in ("probability", "steps", "steps_if_reached")]
    np.testing.assert_allclose(np.hstack(found), spread, rtol=0.15)


def test_intervals_stay_in_their_range():
    counts = journeys(12)
    hit = lg.hitting(counts, "bought")
    low, high = hit.interval(0.999)
    assert 0.0 < low < high < 1.0
    everyone = lg.hitting(counts, ["bought", "left"]).interval()
    assert everyone.high == 1.0
    assert everyone.low == pytest.approx(0.025 ** (1 / 12))
    endless = hit.interval(of="steps")
    assert np.isinf(endless.estimate)
    assert "steps_if_reached" in endless.note


def test_what_cannot_have_an_interval_says_why():
    with pytest.raises(ValueError, match="no sample size"):
        lg.hitting(walk(4), 4, initial=1).interval()
    with pytest.raises(ValueError, match="pass initial="):
        lg.hitting(np.ones((3, 3), dtype=int), 2).interval()
    with pytest.raises(ValueError, match="a target of one state"):
        lg.hitting(np.ones((3, 3), dtype=int), [1, 2]).interval(of="return")


# -- shown ---------------------------------------------------------------------------------------------------


def test_print_frame_dict_and_plot_show_what_was_found():
    hit = lg.hitting(journeys(200), {"sale": "bought", "lost": "left"})
    hit.interval()
    text = str(hit)
    for words in ("probability of 'sale'", "at 95%", "mean steps", "solved"):
        assert words in text
    frame = hit.to_frame("pandas")
    assert list(frame.columns) == [
        "state", "probability_sale", "probability_lost", "mean_steps", "sd_steps",
        "mean_steps_if_reached_sale", "mean_steps_if_reached_lost",
    ]  # fmt: skip
    assert hit.to_dict()["status"] == "solved"
    pytest.importorskip("matplotlib")
    assert len(hit.plot().axes) == 2
    with pytest.raises(ValueError, match="no state is certain"):
        lg.hitting(journeys(200), "bought").plot("steps")


def test_states_that_cannot_reach_a_target_are_named():
    hit = lg.hitting([[1, 1, 0], [0, 1, 0], [1, 0, 1]], 0, initial=2)
    assert hit.cannot_reach.tolist() == [False, True, False]
    assert "cannot reach a target" in str(hit)
    assert hit.probability.tolist() == [1, 0, 1]


# -- ends of episodes ----------------------------------------------------------------------------------------


def log_with_ends(n=300, seed=0):
    """Episodes on five states that end with a terminal transition, or at the edge of the log."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(n):
        state = int(rng.integers(2))
        while True:
            after, ends = int(rng.choice(4, p=np.roll([0.2, 0.4, 0.3, 0.1], state))), rng.random() < 0.2
            rows.append((state, after, ends, episode))
            if ends:
                break
            state = after
    state, after, ends, episode = np.array(rows).T
    return lg.Counts.from_transitions(state, after, terminal=ends.astype(bool), episode=episode, n_states=4)


def test_without_targets_the_question_is_when_episodes_end():
    counts = log_with_ends()
    hit = lg.hitting(counts)
    length = counts.total / counts.initial_count.sum()
    # From the log's own first states the plug-in chain has the log's own mean length.
    assert hit.from_initial.mean_steps == pytest.approx(length, rel=1e-12)
    assert (hit.probability == 1.0).all()
    lengths = np.bincount(counts.episodes.episode)
    spread = lengths.std(ddof=1) / lengths.size**0.5
    assert hit.interval(of="steps").standard_error == pytest.approx(spread, rel=0.1)
    assert "end of the episode" in str(hit)
    with pytest.raises(ValueError, match="no terminal transitions"):
        lg.hitting(np.ones((2, 2)))


def test_targets_that_only_terminal_transitions_enter_are_refused():
    counts = lg.Counts.from_transitions([0, 0], [0, 1], terminal=[False, True], episode=[0, 0])
    with pytest.raises(ValueError, match=r"no transition leads to 1 .* without terminal="):
        lg.hitting(counts, 1)
    with pytest.raises(ValueError, match=r"targets\['done'\]: no transition"):
        lg.hitting(counts, {"home": 0, "done": 1})


def test_ends_that_may_be_missed_for_want_of_data():
    """State 1 was never seen leaving; from 0 half of the steps end, half go there."""
    counts = lg.Counts.from_transitions(
        np.zeros(80, int),
        np.arange(80) % 2,
        terminal=np.arange(80) % 2 == 0,
        episode=np.arange(80),
        n_states=2,
    )
    hit = lg.hitting(counts)
    np.testing.assert_allclose(hit.probability, [0.5, 0.0])
    np.testing.assert_allclose(hit.without_data, [0.5, 1.0])
    np.testing.assert_allclose(hit.mean_steps_if_reached, [1.0, np.nan])
    assert np.isinf(hit.mean_steps).all()
    found = hit.interval(of="probability")
    assert found.standard_error == pytest.approx((0.25 / 80) ** 0.5, rel=0.02)
