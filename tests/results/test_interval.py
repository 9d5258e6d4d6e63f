"""Intervals against finite differences, closed-form covariances, and fresh data."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from logs import A, S, count, exact, random_mdp, walk
from problems import logged_mdp

import lingendice as lg
from lingendice.results import bootstrap as resampling
from lingendice.results.interval import Influence
from lingendice.solvers import control

PLUG_IN = {"ratio": "state_action", "ridge": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")


@pytest.fixture(scope="module")
def mdp():
    return random_mdp()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, 0.0),
        ({}, 0.05),
        ({"ratio": "state", "clone": 0.0}, 0.0),
        ({"ratio": "state", "behavior": "true"}, 0.0),
        ({"ratio": "state", "clone": 4.0}, 0.05),
        ({"ratio": "state", "unseen": "mean"}, 0.0),
        ({"policy": None}, 0.0),
        ({"leak": "absorb"}, 0.0),
        ({"unseen": "leak"}, 0.0),
        ({"unseen": "mean"}, 0.2),
        ({"ridge": 0.3}, 0.0),
        ({"ridge": 0.01}, 0.2),
        ({"ridge": 0.3, "leak": "absorb"}, 0.0),
        ({"ridge": 0.1, "terminal": "restart"}, 0.2),
        ({"ridge": 0.1, "ratio": "state", "clone": 2.0}, 0.2),
    ],
)
def test_influence_is_the_derivative(mdp, gamma, options, ending):
    """psi / N is what one more (weighted) transition or first state does to the value."""
    if gamma == 1.0 and options.get("leak") == "absorb":
        pytest.skip("absorbing loses all mass at gamma = 1")
    options = dict(options)
    if options.get("behavior") == "true":
        options["behavior"] = mdp["behavior"]
    log = walk(mdp, 7, 8, seed=3, ending=ending)
    counts = count(log, keep=False)
    options = {"policy": mdp["policy"], "ridge": 0.0, "tol": 1e-13} | options
    options.setdefault("ratio", "auto" if options["policy"] is None else "state_action")

    def value(moved):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lg.LeakWarning)
            return lg.solve(moved, gamma, **options)

    solution = value(counts)
    influence = Influence(solution)
    piece = influence.value()
    mean = counts.reward_mean - counts.reward[influence.cell]
    psi = influence.tau[influence.cell] * (piece.noise[:, 0] + mean) + piece.shift[:, 0]
    psi *= piece.scale
    step = 1e-5
    for entry in range(0, counts.count.size, 5):
        sides = []
        for sign in (step, -step):
            moved = counts.count.astype(float)
            moved[entry] += sign
            sides.append(value(replace(counts, count=moved, reward_count=moved)).value)
        slope = (sides[0] - sides[1]) / (2 * step)
        assert slope * counts.total == pytest.approx(psi[entry], rel=2e-4, abs=1e-5)
    if piece.first is None:
        return
    for state in range(0, S, 2):
        sides = []
        for sign in (step, -step):
            moved = counts.initial_count.astype(float)
            moved[state] += sign + 1e-3
            base = replace(counts, initial_count=moved)
            sides.append(value(base).value)
        slope = (sides[0] - sides[1]) / (2 * step)
        expected = piece.scale * piece.first[state, 0] / counts.initial_count.sum()
        assert slope == pytest.approx(expected, rel=5e-3, abs=1e-5)


def by_episodes(log, weight, read, options):
    """Standard error of what ``read`` reads off a solution, by its slope in the weight of every episode."""

    def solved(factor):
        return lg.solve(count(log, weight=weight * factor[log["episode"]]), **options)

    n, step = log["episode"].max() + 1, 1e-3
    base = read(solved(np.ones(n)))
    slopes = [(read(solved(1.0 + step * (np.arange(n) == e))) - base) / step for e in range(n)]
    return np.sqrt(n / (n - 1.0) * np.square(slopes).sum(axis=0))


@pytest.mark.parametrize("options", [{}, PLUG_IN, {"ratio": "state", "ridge": 1e-3}, {"horizon": 4}])
def test_first_states_weigh_what_their_rows_weigh(mdp, options):
    log = walk(mdp, 80, 20, seed=4)
    weight = np.where(np.random.default_rng(1).random(80) < 0.2, 8.0, 1.0)[log["episode"]]
    options = {"gamma": 0.5, "policy": mdp["policy"]} | options
    expected = by_episodes(log, weight, lambda solution: solution.value, options)
    solution = lg.solve(count(log, weight=weight), **options)
    assert solution.interval().standard_error == pytest.approx(expected, rel=0.02)
    if "horizon" not in options:
        drawn = solution.interval(method="bootstrap", replicates=400).standard_error
        assert drawn == pytest.approx(expected, rel=0.25)


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize(
    ("gamma", "more"), [(0.9, {}), (0.9, {"terminal": "restart"}), (0.9, {"leak": "absorb"}), (1.0, {})]
)
def test_cells_without_data_have_a_standard_error_with_a_ridge(mdp, gamma, more, ratio):
    """Mass that the ridge's distribution brings to them moves with the counts, as all of it does."""
    log = walk(mdp, 80, 60, seed=9, ending=0.01)
    kept = (log["state"] != 0) | (log["action"] != 1)
    kept &= log["state"] != 3  # reached, and never left
    log = {name: column[kept] for name, column in log.items()}
    log["episode"] = np.unique(log["episode"], return_inverse=True)[1]
    options = {"gamma": gamma, "policy": mdp["policy"], "ridge": 1e-3, "ratio": ratio, **more}
    function = np.random.default_rng(2).standard_normal(S * A)

    def read(solution):
        return np.append(solution.stationary, solution.cell_distribution @ function)

    expected = by_episodes(log, np.ones(log["episode"].size), read, options)
    solution = lg.solve(count(log), **options)
    assert solution.stationary[3 * A + 1 if ratio == "state_action" else 3] > 0.005
    found = solution.interval(of="stationary").standard_error
    found = np.append(found, solution.interval(of=function).standard_error)
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=1e-4)


@pytest.mark.parametrize("ratio", ["state", "state_action"])
def test_a_ridge_that_loses_mass_moves_with_the_data_beyond_its_adjoint(mdp, ratio):
    """Far from stationary the weights p of the misfit matter, too: a fifth of the error of entries."""
    log = walk(mdp, 60, 20, seed=3, ending=0.1)
    options = {"gamma": 0.99, "policy": mdp["policy"], "ridge": 1e-2, "ratio": ratio}
    function = np.random.default_rng(1).standard_normal(S)

    def read(solution):
        return np.append(solution.stationary[1], solution.cell_distribution @ np.repeat(function, A))

    expected = by_episodes(log, np.ones(log["episode"].size), read, options)
    solution = lg.solve(count(log), **options)
    found = solution.interval(of="stationary", entries=[1]).standard_error
    found = np.append(found, solution.interval(of=function).standard_error)
    np.testing.assert_allclose(found, expected, rtol=0.07)


def test_distribution_has_the_covariance_of_a_walk():
    """On expected counts the standard error is the asymptotic one of a Markov chain, entry by entry."""
    rng = np.random.default_rng(1)
    chain = rng.dirichlet(np.full(7, 0.6), size=7)
    distribution = np.linalg.solve(np.vstack([(np.eye(7) - chain).T[1:], np.ones(7)]), np.eye(7)[-1])
    n = 10**9
    solution = lg.solve(lg.Counts.from_matrix(np.round(n * distribution[:, None] * chain).astype(np.int64)))
    found = solution.interval(of="stationary")
    z = np.linalg.inv(np.eye(7) - chain + distribution[None, :])
    spread = np.diag(distribution) @ z
    covariance = spread + spread.T - np.diag(distribution) - np.outer(distribution, distribution)
    np.testing.assert_allclose(found.standard_error, np.sqrt(np.diag(covariance) / n), rtol=1e-5)
    some = solution.interval(of="stationary", entries=[4, 2])
    np.testing.assert_array_equal(some.standard_error, found.standard_error[[4, 2]])
    one = solution.interval(of=np.eye(7)[4])
    assert one.standard_error == pytest.approx(found.standard_error[4], rel=1e-10)


def test_a_time_limit_ends_between_entries(mdp, monkeypatch):
    """Entries that were reached have the same intervals, others none."""
    counts, pi = count(walk(mdp, 20, 30, 0)), mdp["policy"]
    solution = lg.solve(counts, 0.9, policy=pi, ridge=0, ratio="state_action")
    size, looks = solution.stationary.size, iter([False, False, True])
    monkeypatch.setattr(control.Controls, "out_of_time", lambda self: next(looks))
    found = solution.interval(of="stationary", time_limit=60.0)
    monkeypatch.undo()
    whole = solution.interval(of="stationary", time_limit=60.0)
    for ends, all_ends in [(found.low, whole.low), (found.high, whole.high)]:
        np.testing.assert_array_equal(ends[:2], all_ends[:2])
        assert np.isnan(ends[2:]).all()
    np.testing.assert_array_equal(found.estimate, whole.estimate)
    assert f"{size - 2} of {size} entries were not reached within time_limit=60" in found.note
    assert "not reached" not in whole.note
    np.testing.assert_allclose(whole.low, solution.interval(of="stationary").low, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"time_limit": 1.0}, "between entries"),
        ({"of": "stationary", "time_limit": 0}, "time_limit"),
        ({"of": "stationary", "time_limit": 1.0, "method": "bootstrap"}, "fewer replicates"),
    ],
)
def test_a_time_limit_that_has_no_use_is_refused(mdp, options, hint):
    counts, pi = count(walk(mdp, 20, 30, 0)), mdp["policy"]
    with pytest.raises(ValueError, match=hint):
        lg.solve(counts, 0.9, policy=pi, ridge=0, ratio="state_action").interval(**options)


def test_entries_do_not_depend_on_the_way_they_are_solved(mdp, monkeypatch):
    """One dense factorization and one adjoint solve per column agree."""
    solution = lg.solve(count(walk(mdp, 20, 20, seed=2)), 1.0, policy=mdp["policy"], **PLUG_IN)
    dense = solution.interval(of="stationary")
    monkeypatch.setattr("lingendice.solvers.adjoint.DENSE_STATES", 0)
    single = solution.interval(of="stationary")
    np.testing.assert_allclose(dense.standard_error, single.standard_error, rtol=1e-8)
    assert dense.low.shape == (S * A,)
    assert (dense.low >= 0).all()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_coverage_on_fresh_logs(mdp, gamma):
    """At 95 % about 95 of 100 intervals hold the truth; the standard error is that of the estimates."""
    truth, distribution = exact(mdp, gamma)
    held = []
    for seed in range(120):
        solution = lg.solve(count(walk(mdp, 40, 10, seed)), gamma, policy=mdp["policy"], **PLUG_IN)
        value, mean = solution.interval(), solution.interval(of=np.arange(S))
        held.append(
            (
                value.contains(truth),
                mean.contains(distribution @ np.arange(S)),
                value.standard_error,
                value.estimate,
            )
        )
    held = np.array(held, dtype=float)
    assert 0.89 <= held[:, 0].mean() <= 0.992
    assert 0.88 <= held[:, 1].mean() <= 0.992
    assert held[:, 2].mean() == pytest.approx(held[:, 3].std(), rel=0.2)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_bootstrap_agrees_with_the_closed_form(mdp, gamma):
    counts = count(walk(mdp, 150, 30, seed=8))
    solution = lg.solve(counts, gamma, policy=mdp["policy"], ratio="state", clone=3.0)
    closed = solution.interval()
    drawn = solution.interval(method="bootstrap", replicates=400, kind="percentile")
    assert drawn.standard_error == pytest.approx(closed.standard_error, rel=0.12)
    assert drawn.low == pytest.approx(closed.low, abs=0.5 * closed.standard_error)
    bare = lg.solve(count(walk(mdp, 150, 30, seed=8), keep=False), gamma, policy=mdp["policy"], **PLUG_IN)
    rows = bare.interval(method="bootstrap", replicates=400)
    assert rows.standard_error == pytest.approx(bare.interval().standard_error, rel=0.12)
    assert "not clustered" in rows.note


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("keep", [True, False])
def test_bootstrap_of_cells_seen_a_few_times_is_as_wide(mdp, gamma, keep):
    """Over 200 such logs the closed form is within a tenth of the spread; weights show 6 tenths of it."""
    solution = lg.solve(count(walk(mdp, 10, 8, seed=4), keep=keep), gamma, policy=mdp["policy"], **PLUG_IN)
    for of in ("value", np.arange(S)):
        closed = solution.interval(of=of)
        drawn = {
            kind: solution.interval(of=of, method="bootstrap", replicates=400, kind=kind)
            for kind in ("t", "percentile", "basic")
        }
        for found in drawn.values():
            assert found.standard_error == pytest.approx(closed.standard_error, rel=0.2)
        assert drawn["t"].high - drawn["t"].low == pytest.approx(closed.high - closed.low, rel=0.2)
        widths = [drawn[kind].high - drawn[kind].low for kind in ("percentile", "basic")]
        assert widths[0] == pytest.approx(4.0 * closed.standard_error, rel=0.25)
        assert widths[1] == pytest.approx(widths[0])
    some = {"of": "stationary", "entries": np.arange(0, S * A, 4)}
    drawn = solution.interval(**some, method="bootstrap", replicates=400)
    closed = solution.interval(**some)
    np.testing.assert_allclose(drawn.standard_error, closed.standard_error, rtol=0.3)


def test_more_entries_than_replicates_are_not_worth_a_closed_form(mdp):
    solution = lg.solve(count(walk(mdp, 10, 8, seed=4)), 0.9, policy=mdp["policy"])
    told = [
        solution.interval(of="stationary", entries=[0] * n, method="bootstrap", replicates=20).note
        for n in (20, 21)
    ]
    assert ["understate" in note for note in told] == [False, True]


def test_bootstrap_has_the_degrees_of_freedom_of_the_closed_form(mdp):
    """Where a few episodes make up the noise, as many count."""
    weight = np.where(np.arange(40) < 2, 100.0, 1.0)
    log = walk(mdp, 40, 20, seed=4)
    counts = count(log, weight=weight[log["episode"]])
    for options in (PLUG_IN, {"ratio": "state", "ridge": 1e-3}):
        solution = lg.solve(counts, 0.9, policy=mdp["policy"], **options)
        closed, drawn = solution.interval(), solution.interval(method="bootstrap", replicates=20)
        quantile = (closed.high - closed.estimate) / closed.standard_error
        assert quantile > 2.5
        assert drawn.high - drawn.estimate == pytest.approx(quantile * drawn.standard_error)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize(
    "options", [{"ratio": "state", "ridge": 1e-4, "clone": 1.0}, {"ratio": "state_action", "ridge": 1e-3}]
)
def test_regularized_answers_have_intervals_too(mdp, gamma, options):
    """With the ridge's own adjoint: close to the bootstrap, and to the spread over fresh logs."""
    estimates = []
    for seed in range(40):
        solution = lg.solve(count(walk(mdp, 60, 20, seed)), gamma, policy=mdp["policy"], **options)
        estimates.append((solution.value, solution.interval().standard_error))
    assert solution.ridge > 0
    value, error = np.array(estimates).T
    assert error.mean() == pytest.approx(value.std(ddof=1), rel=0.3)
    drawn = solution.interval(method="bootstrap", replicates=200)
    assert drawn.standard_error == pytest.approx(error[-1], rel=0.2)
    distribution = solution.interval(of="stationary", entries=[1])
    some = solution.interval(of="stationary", entries=[1], method="bootstrap", replicates=200)
    assert some.standard_error[0] == pytest.approx(distribution.standard_error[0], rel=0.25)


def test_bootstrap_of_one_path_draws_its_first_state():
    """One first state shows no spread: taken for certain, the error is a fifth of the closed form's."""
    rng = np.random.default_rng(3)
    matrix, reward = rng.dirichlet(np.full(12, 0.3), size=12), rng.normal(size=12)
    path = np.zeros(1501, int)
    for step in range(1500):
        path[step + 1] = rng.choice(12, p=matrix[path[step]])
    log = {"reward": reward[path[:-1]], "episode": np.zeros(1500, int)}
    counts = lg.Counts.from_transitions(path[:-1], path[1:], **log, n_states=12)
    solution = lg.solve(counts, 0.9)
    drawn = solution.interval(method="bootstrap", replicates=400)
    assert drawn.standard_error == pytest.approx(solution.interval().standard_error, rel=0.15)
    assert "one first state" in drawn.note
    known = lg.solve(counts, 0.9, initial=np.full(12, 1 / 12))
    drawn = known.interval(method="bootstrap", replicates=400)
    assert drawn.standard_error == pytest.approx(known.interval().standard_error, rel=0.2)
    assert "one first state" not in drawn.note


def test_bootstrap_has_the_same_bits_for_any_number_of_threads(mdp):
    solution = lg.solve(count(walk(mdp, 30, 15, seed=4)), 0.95, policy=mdp["policy"], **PLUG_IN)
    one, two = (
        resampling.bootstrap(solution, lambda s: s.stationary, 50, seed=9, threads=threads)
        for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, two)
    other = resampling.bootstrap(solution, lambda s: s.stationary, 50, seed=10, threads=1)
    assert (one != other).any()


@pytest.mark.parametrize("gamma", [0.99, 1.0])
@pytest.mark.parametrize("ending", [0.0, 0.1])
def test_replicates_are_solved_exactly(mdp, gamma, ending):
    """The warm sweeps end at the distribution that ``solve`` finds from scratch."""
    counts = count(walk(mdp, 6, 12, seed=1, ending=ending))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)
        solution = lg.solve(counts, gamma, policy=mdp["policy"], **PLUG_IN)
        again, draws = resampling._Again(solution), resampling._Draws(counts)
        rng = np.random.default_rng(0)
        for _ in range(5):
            drawn = draws.counts(rng)
            scratch = lg.solve(drawn, gamma, policy=mdp["policy"], **PLUG_IN)
            np.testing.assert_allclose(
                again.solve(drawn).state_distribution, scratch.state_distribution, atol=1e-6
            )
            assert drawn.count.sum() == pytest.approx(drawn.reward_count.sum())


def test_sweeps_that_do_not_settle_fall_back(mdp, monkeypatch):
    solution = lg.solve(count(walk(mdp, 20, 20, seed=1)), 1.0, policy=mdp["policy"], **PLUG_IN)
    usual = solution.interval(method="bootstrap", replicates=20)
    monkeypatch.setattr(resampling, "MOST_SWEEPS", 1)
    monkeypatch.setattr(resampling, "WARM_TOL", -1.0)
    forced = solution.interval(method="bootstrap", replicates=20)
    assert forced.standard_error == pytest.approx(usual.standard_error, rel=1e-5)


def test_a_single_path_is_cut_into_blocks(mdp):
    log = walk(mdp, 1, 4000, seed=6)
    solution = lg.solve(count(log), 1.0, policy=mdp["policy"], **PLUG_IN)
    blocks = solution.interval()
    assert "blocks" in blocks.note
    bare = lg.solve(count(log, keep=False), 1.0, policy=mdp["policy"], **PLUG_IN).interval()
    assert blocks.standard_error == pytest.approx(bare.standard_error, rel=0.35)
    drawn = solution.interval(method="bootstrap", replicates=200)
    assert drawn.standard_error == pytest.approx(bare.standard_error, rel=0.4)


def test_entries_of_the_distribution_stay_positive_and_unseen_ones_are_bounded():
    """Log-scale ends; an entry never visited in N transitions gets the rule of three."""
    counts = np.array([[50, 1, 0], [1, 0, 0], [0, 0, 0]])
    found = lg.solve(counts, 1.0, restart=[1.0, 0.0, 0.0]).interval(of="stationary")
    assert (found.low[:2] > 0).all()
    assert found.high[0] <= 1
    assert found.low[1] * found.high[1] == pytest.approx(found.estimate[1] ** 2)
    assert found.low[2] == found.estimate[2] == 0
    assert found.high[2] == pytest.approx(-np.log(0.05) / 52)


def test_cells_seen_once_are_not_taken_for_certain():
    """Ten cells seen once each still owe their share of the spread seen elsewhere."""
    state = np.concatenate([np.zeros(40, int), np.arange(1, 11)])
    following = np.concatenate([np.arange(40) % 10 + 1, np.zeros(10, int)])
    reward = np.concatenate([np.random.default_rng(0).normal(size=40), np.zeros(10)])
    counts = lg.Counts.from_transitions(state, following, reward=reward)
    solution = lg.solve(counts, 1.0)
    spread = reward[:40].var(ddof=1)
    # The chain visits state 0 half of the time: 40 rewards there, 10 single ones elsewhere.
    known = 0.25 * spread / 40
    owed = 0.25 * spread / 10
    found = solution.interval().standard_error ** 2
    assert found > 0.8 * (known + owed)


def test_refusals(mdp):
    with pytest.raises(ValueError, match="no sample size"):
        lg.solve([[0.5, 0.5], [0.2, 0.8]]).interval(of="stationary")
    solution = lg.solve([[3, 4], [5, 6]])
    with pytest.raises(ValueError, match="no rewards"):
        solution.interval()
    with pytest.raises(ValueError, match="level"):
        solution.interval(95, of="stationary")
    with pytest.raises(ValueError, match="entries"):
        solution.interval(of="stationary", entries=[7])
    with pytest.raises(ValueError, match="shape"):
        solution.interval(of=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="method"):
        solution.interval(of="stationary", method="magic")
    with pytest.raises(ValueError, match="replicates"):
        solution.interval(of="stationary", method="bootstrap", replicates=3)
    mixed = lg.solve([[3, 0], [0, 6]], initial=[0.5, 0.5])
    with pytest.raises(ValueError, match="bootstrap"):
        mixed.interval(of="stationary")


def test_interval_reads_well(mdp):
    found = lg.solve(count(walk(mdp, 5, 20, seed=1)), 0.9, policy=mdp["policy"], **PLUG_IN).interval()
    assert "at 95%" in str(found)
    assert "rough" in found.note
    assert set(found.to_dict()) == {
        "low", "high", "estimate", "standard_error", "bias_allowance", "level", "method", "note"
    }  # fmt: skip
    low, high = found
    assert (low, high) == (found.low, found.high)
    two = lg.solve([[3, 4], [5, 6]])
    many = two.interval(of="stationary")
    assert "2 intervals" in str(many)
    assert len(many.to_dict()["low"]) == 2
    assert "0 intervals" in str(two.interval(of="stationary", entries=np.array([], dtype=int)))


def test_a_function_on_cells_has_a_row_per_state(mdp):
    """Of an array with a row per action, numbers were taken for those of other cells."""
    solution = lg.solve(count(walk(mdp, 5, 20, seed=1)), 0.9, policy=mdp["policy"], **PLUG_IN)
    function = np.arange(S * A, dtype=float)
    expected = solution.interval(of=function).estimate
    assert solution.interval(of=function.reshape(S, A)).estimate == expected
    with pytest.raises(ValueError, match="of has shape"):
        solution.interval(of=function.reshape(S, A).T)


def test_states_never_visited_by_a_slow_chain():
    """A lazy walk drawn to 0: places never reached are covered by stretches, not by steps."""
    n, steps = 30, 3000
    chance = np.zeros((n, n))
    for place in range(n):
        chance[place, max(place - 1, 0)] += 0.06
        chance[place, min(place + 1, n - 1)] += 0.04
        chance[place, place] += 0.9
    truth = (2 / 3) ** np.arange(n)
    truth /= truth.sum()
    by_steps = by_stretches = entries = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        moves = rng.random(steps)
        path = [int(rng.choice(n, p=truth))]
        for u in moves:
            path.append(min(max(path[-1] + (u > 0.96) - (u < 0.06), 0), n - 1))
        counts = lg.Counts.from_transitions(path[:-1], path[1:], n_states=n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lg.LeakWarning)
            found = lg.solve(counts, initial=np.eye(n)[path[0]]).interval(of="stationary")
        first = int(np.flatnonzero(found.estimate == 0)[0])  # the likeliest of them
        entries += 1
        by_stretches += bool(found.contains(truth)[first])
        by_steps += bool(truth[first] <= -np.log(0.05) / steps)
    assert by_stretches >= 0.95 * entries
    assert by_steps < 0.5 * entries


def test_a_state_never_visited_by_a_chain_that_never_forgets():
    """Of two classes a ridge makes one distribution; the third state's entry was a division by zero."""
    counts = lg.Counts.from_transitions([0, 1], [0, 1], n_states=3)
    found = lg.solve(counts, ridge=1e-3).interval(of="stationary")
    assert found.estimate[2] == 0.0
    assert found.high[2] == 1.0


def test_a_prior_on_rows_has_no_interval():
    counts = lg.Counts.from_matrix([[3, 4], [5, 6]])
    for smoothing in (2.0, (2.0, [0.5, 0.5])):
        with pytest.raises(ValueError, match=r"smoothing=2 biases the answer.*leave smoothing out"):
            lg.solve(counts, smoothing=smoothing).interval(of="stationary")
    assert (lg.solve(counts, smoothing=0.0).interval(of="stationary").standard_error > 0).all()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("options", [{}, PLUG_IN, {"horizon": 5}])
def test_rewards_of_a_part_of_the_log_have_no_interval(mdp, options, keep):
    """Half the rewards have twice the variance, and that of the merged counts was none at all."""
    log = walk(mdp, 60, 20, seed=5)
    known = log["episode"] < 30
    part, rest = ({name: column[rows] for name, column in log.items()} for rows in (known, ~known))
    counts = count(part, keep=keep).merge(count(rest, keep=keep, reward=None))
    solution = lg.solve(counts, 0.9, policy=mdp["policy"], **options)
    assert np.isfinite(solution.value)
    for asked in ({}, {"of": "return"}):
        with pytest.raises(ValueError, match="no logged reward"):
            solution.interval(**asked)
    with pytest.raises(ValueError, match="no logged reward"):
        lg.solve(counts, 0.9, policy=[mdp["policy"]] * 2, **options).difference(0, 1)
    given = lg.solve(counts, 0.9, policy=mdp["policy"], reward=mdp["reward"], **options)
    assert given.interval().standard_error > 0
    if "horizon" not in options:
        assert (solution.interval(of="stationary").standard_error > 0).all()


@pytest.mark.parametrize("options", [{}, PLUG_IN, {"ratio": "state", "ridge": 1e-3}, {"horizon": 4}])
@pytest.mark.parametrize(("gamma", "given"), [(0.5, "initial"), (0.7, "restart"), (1.0, "restart")])
def test_what_is_given_is_known_even_where_it_equals_the_log(mdp, gamma, given, options):
    """The logged shares, given, have no noise, no more than shares next to them."""
    log = walk(mdp, 60, 4 if given == "initial" else 1, seed=3)
    if given == "restart":
        log = {name: column[log["state"] != 3] for name, column in log.items()}
        log["episode"] = np.arange(log["state"].size)
    counts = count(log)
    shares = counts.initial_count / counts.initial_count.sum()
    near = shares * (1.0 + 1e-9 * np.arange(S))

    def error(**more):
        return lg.solve(counts, gamma, policy=mdp["policy"], **options, **more).interval().standard_error

    expected = error(**{given: near / near.sum()})
    assert error(**{given: shares}) == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore::lingendice.RowOrderWarning")
def test_what_falls_back_to_the_data_moves_with_it_once(mdp):
    """Episodes of one step begin where the data are, and make no noise beyond that of the data."""
    log = walk(mdp, 200, 1, seed=5)
    kept = log["state"] != 3
    log = {name: column[kept] for name, column in log.items()} | {"episode": np.arange(kept.sum())}
    clustered = lg.solve(count(log), policy=mdp["policy"], **PLUG_IN)
    bare = lg.solve(count(log, keep=False, episode=None), policy=mdp["policy"], **PLUG_IN)
    assert clustered.leak > 0.05
    assert clustered.interval().standard_error == pytest.approx(bare.interval().standard_error, rel=0.01)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replicates": 50}, 'replicates= is for method="bootstrap"'),
        ({"kind": "basic"}, "kind= is for"),
        ({"seed": 0}, "seed= is for"),
        ({"of": "return", "threads": 1}, "threads= is for"),
        ({"entries": [0]}, "entries= picks from"),
        ({"of": [1.0, 0, 0, 0, 0, 0], "entries": [0]}, "entries= picks from"),
        ({"method": "bootstrap", "entries": [0]}, "entries= picks from"),
        ({"method": "bootstrap", "replicates": 20.5}, "replicates must be a whole number"),
    ],
)
@pytest.mark.parametrize("ridge", [None, 0])
def test_what_has_no_use_for_an_interval_is_refused(options, says, ridge):
    """It was ignored: an interval in closed form was given for replicates, one of the value for entries."""
    mdp = logged_mdp(0, n_episodes=10, length=10)
    solution = lg.solve(mdp.counts, 0.9, policy=mdp.policy, ridge=ridge)
    with pytest.raises(ValueError, match=says):
        solution.interval(**options)


@pytest.mark.parametrize(
    "options",
    [{"replicates": 20.5}, {"replicates": "x"}, {"seed": 1.5}, {"seed": "a"}, {"seed": -1}, {"seed": [1, 2]}],
)
def test_numbers_of_replicates_and_seeds_are_whole(options):
    """20.5 replicates were 20; seeds raised errors of NumPy's."""
    solution = lg.solve(lg.Counts.from_transitions([0, 1, 0, 1], [1, 0, 0, 1], reward=[1, 2, 3, 4]))
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be a whole number"):
        solution.interval(method="bootstrap", **options)
