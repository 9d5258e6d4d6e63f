"""The suite of benchmarks/trust: truths by other means, logs, statistics on made-up rows, and a small run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lingendice as lg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

pytest.importorskip("gymnasium")

from trust import (
    backtests,
    blind,
    careless,
    derived,
    families,
    garnets,
    grids,
    methods,
    operations,
    partial,
    people,
    services,
    stress,
    suite,
    summary,
    taxi_pairs,
    toy_text,
    unseen,
    work,
    works,
)
from trust.model import from_outcomes, policy_value
from trust.problem import Problem

EXAMPLES: dict[str, Callable[[], Problem]] = {
    "random": lambda: garnets.continuing()[0],
    "random, episodic": lambda: garnets.episodic()[2],
    "slippery grid": lambda: grids.slippery()[0],
    "endless grid": lambda: grids.plain()[3],
    "FrozenLake": lambda: toy_text.problems()[0],
    "inventory": lambda: operations.inventory()[0],
    "replacement": lambda: operations.replacement()[0],
    "cycle": lambda: stress.cycles()[1],
    "recommender": lambda: people.recommender()[0],
    "tiger": careless.tiger,
    "two lines": lambda: services.networks()[0],
    "prices": lambda: services.catalogs()[0],
    "claims": lambda: services.ruin()[0],
    "aliased maze": partial.aliased_maze,
    "delayed drug": partial.delayed_drug,
    "lazy": lambda: derived.slow()[0],
    "rare loss": lambda: derived.disasters()[3],
    "call center": lambda: works.desks()[2],
    "buses": lambda: works.upkeep()[5],
    "gambler": lambda: works.lakes()[7],
    "cards": lambda: works.lakes()[8],
}


def lifted(problem: Problem) -> np.ndarray:
    """The target over the model's own states."""
    return problem.target if problem.observe is None else problem.target[problem.observe]


def by_recursion(problem: Problem, gamma: float) -> float:
    """The value by following the distribution step by step, from the table of outcomes alone."""
    model, policy = problem.model, lifted(problem)
    cell = np.repeat(np.arange(model.pointer.size - 1), np.diff(model.pointer))
    chance = model.probability * policy.ravel()[cell]
    state = cell // model.n_actions
    mass, total, weight = model.initial.copy(), 0.0, 0.0
    steps = 6000 if gamma == 1 else math.ceil(math.log(1e-9) / math.log(gamma))
    for step in range(steps):
        flow = mass[state] * chance
        share = 1.0 if gamma == 1 else gamma**step
        if gamma < 1 or step >= steps // 2:
            total, weight = total + share * float(flow @ model.reward), weight + share
        mass = np.bincount(model.next_state, weights=flow * ~model.terminal, minlength=mass.size)
        if gamma == 1:
            mass += flow[model.terminal].sum() * model.initial
    return total / weight if gamma == 1 else (1 - gamma) * total


@pytest.mark.parametrize("name", EXAMPLES)
def test_truths_are_those_of_a_step_by_step_recursion(name: str) -> None:
    problem = EXAMPLES[name]()
    for gamma in problem.gammas:
        # At gamma = 1 the average over the last 3,000 steps of a periodic chain is off by part of a period.
        close = {"rel": 1e-7, "abs": 1e-9} if gamma < 1 else {"rel": 2e-3, "abs": 1e-4}
        assert by_recursion(problem, gamma) == pytest.approx(problem.truth(gamma), **close)


@pytest.mark.parametrize("name", ["random, episodic", "FrozenLake", "tiger", "prices", "aliased maze"])
def test_truths_are_what_the_simulator_earns(name: str) -> None:
    """Logs of the target itself: simulator and truth share only the table of outcomes."""
    problem = EXAMPLES[name]()
    own = replace(problem, behaviors=(problem.target,), sizes=((4000, 150), (300, 1500)))
    log = own.log(0, 0)
    step = np.arange(log.state.size) - np.searchsorted(log.episode, log.episode)
    earned = 0.1 * np.bincount(log.episode, weights=0.9**step * log.reward, minlength=4000)
    assert abs(earned.mean() - own.truth(0.9)) < 4.5 * earned.std() / math.sqrt(4000)
    log = own.log(1, 0)
    episodes = int(log.episode[-1]) + 1
    length, reward = np.bincount(log.episode), np.bincount(log.episode, weights=log.reward)
    average = reward.sum() / length.sum()
    spread = math.sqrt(float(((reward - average * length) ** 2).sum())) / length.sum()
    assert episodes == 300
    assert abs(average - own.truth(1.0)) < 4.5 * spread


def test_truths_of_taxi_are_the_environments_own() -> None:
    policy = np.random.default_rng(1).dirichlet(np.ones(6), 2000)
    for gamma in (0.9, 1.0):
        assert policy_value(taxi_pairs.taxi_model(), policy, gamma) == pytest.approx(
            methods.taxi_value(policy, gamma), rel=1e-8
        )


def test_the_hidden_game_has_the_value_worked_out_by_hand() -> None:
    # The target repeats its action with probability .9 x .1 + .1 x .9 = .18, in the second of two steps.
    game = careless.repeat_game()
    assert game.truth(1.0) == pytest.approx((2 * 0.18 - 1) / 2)
    assert game.truth(0.9) == pytest.approx(0.1 * 0.9 * (2 * 0.18 - 1))


def test_an_average_that_depends_on_the_start_has_no_truth() -> None:
    apart = from_outcomes(2, 1, lambda state, action: [(1.0, state, float(state), False)], np.ones(2))
    with pytest.raises(ValueError, match="2 recurrent classes"):
        policy_value(apart, np.ones((2, 1)), 1.0)
    one = from_outcomes(2, 1, lambda state, action: [(1.0, state, float(state), False)], np.array([0.0, 1.0]))
    assert policy_value(one, np.ones((2, 1)), 1.0) == pytest.approx(1.0)


def test_the_split_is_wide_enough_and_shares_nothing() -> None:
    shared = set(families.DEVELOPMENT) & set(families.REPORT)
    assert shared == {"Taxi"}
    pairs = [*taxi_pairs.DEVELOPMENT_PAIRS, *taxi_pairs.REPORT_PAIRS]
    assert len(set(pairs)) == len(pairs) >= 12
    assert taxi_pairs.DEVELOPMENT_SEED != taxi_pairs.REPORT_SEED
    counted = 0
    for family in families.REPORT:
        if family == "Taxi":
            counted += len(taxi_pairs.REPORT_PAIRS)
            continue
        problems = families.problems("report", family)
        counted += len(problems)
        gammas = (0.999,) if family == "long horizons" else (0.9, 0.99, 1.0)
        assert all(len(problem.sizes) >= 2 and problem.gammas == gammas for problem in problems)
    assert counted >= 60


def test_what_is_hidden_biases_a_markov_model() -> None:
    """With endless data: the chain over observations, weighed as the behavior visits what they hide."""
    for problem in (*partial.problems(), *blind.problems(), *unseen.problems()):
        model, observe = problem.model, problem.observe
        assert observe is not None
        own = replace(problem, sizes=((3000, 100), (1, 1)), behaviors=problem.behaviors)
        case = methods.read(own, own.log(0, 0), 0.9)
        plug_in = methods.METHODS["plug-in"](case).value
        assert abs(plug_in / problem.truth(0.9) - 1.0) > 0.002, problem.name
        assert model.n_states > problem.n_logged


def test_a_log_is_a_path_of_the_model_and_depends_on_its_number_alone() -> None:
    problem = people.clinical()[0]
    log, again, other = problem.log(0, 3), problem.log(0, 3), problem.log(0, 4)
    assert all(np.array_equal(first, second) for first, second in zip(log, again, strict=True))
    assert not np.array_equal(log.reward[:50], other.reward[:50])
    goes_on = (log.episode[1:] == log.episode[:-1]) & ~log.terminal[:-1]
    assert np.array_equal(log.state[1:][goes_on], log.next_state[:-1][goes_on])
    assert not (log.terminal[:-1] & (log.episode[1:] == log.episode[:-1])).any()
    assert np.bincount(log.episode).max() <= 60


def test_structural_zeros_are_never_logged() -> None:
    for problem in stress.zeros():
        log = problem.log(1, 0)
        assert (problem.behaviors[0][log.state, log.action] > 0).all()
        assert (problem.target[problem.behaviors[0] == 0] == 0).all()
    assert all(
        (problem.target[np.maximum.reduce(problem.behaviors) == 0] > 0).any()
        for problem in stress.unidentified()
    )


def test_careless_logs_lose_what_they_say() -> None:
    kinds = {problem.name: problem for problem in careless.corrupted()}
    for problem in kinds.values():
        whole, broken = replace(problem, corruption="").log(0, 0), problem.log(0, 0)
        if problem.corruption == "shuffled":
            assert sorted(
                zip(whole.state, whole.action, whole.next_state, whole.episode, strict=True)
            ) == sorted(zip(broken.state, broken.action, broken.next_state, broken.episode, strict=True))
            assert not np.array_equal(whole.state, broken.state)
        else:
            assert whole.terminal is not None
            assert whole.terminal.any()
            assert broken.terminal is None
    reset = kinds["FrozenLake, no flags, next episode's state"].log(0, 0)
    last = np.flatnonzero(reset.episode[1:] != reset.episode[:-1])
    assert np.mean(reset.next_state[last] == reset.state[last + 1]) > 0.9


def row(log: int, method: str, value: float | None, half: float | None, failed: tuple[str, ...] = (), **more):
    known = value is not None and half is not None
    return {
        "family": "one", "problem": "p", "size": 0, "gamma": 1.0, "log": log, "method": method, "truth": 2.0,
        "span": 10.0, "value": value, "low": value - half if known else None,
        "high": value + half if known else None, "failed": failed, "seconds": 0.01,
    } | more  # fmt: skip


def test_statistics_count_what_they_say() -> None:
    rows = [
        row(0, "default", 2.05, 0.1),  # good, covered
        row(1, "default", 2.3, 0.1, ("leak",)),  # error .3 > .153 + .1: a failure, flagged
        row(2, "default", 2.3, 0.1),  # a failure, silent
        row(3, "default", 2.15, 0.1, ("a Markov test",)),  # not covered, but no failure: a false alarm
        row(4, "default", 2.5, 0.0),  # no width, wrong, silent failure
        row(5, "default", None, None, ("refused: ValueError",)),  # takes the average's 3.0
    ]
    rows += [row(log, "average", 3.0, None) for log in range(6)]
    rows += [row(log, "plug-in", 2.1, 0.2) for log in range(6)]
    found = summary.summarize(rows, {"one": True})["groups"]["one"]
    assert found["runs"] == 6
    shares = {
        "coverage": 1 / 6, "coverage_unflagged": 1 / 3, "failures": 4 / 6, "failures_flagged": 2 / 4,
        "good_alarmed": 1 / 2, "silent_failures": 2 / 6, "zero_width_wrong": 1 / 6, "markov_alarms": 1 / 6,
        "unanswered": 1 / 6,
    }  # fmt: skip
    for name, share in shares.items():
        assert found[name].value == pytest.approx(share), name
        assert found[name].error > 0
    squared = (0.05**2 + 2 * 0.3**2 + 0.15**2 + 0.5**2 + 1.0) / 6
    assert found["ln_mse"]["default"].value == pytest.approx(math.log(squared))
    assert found["regret"]["default"].value == pytest.approx(math.log(squared) - math.log(0.01))
    assert found["excess"]["average"].value == pytest.approx(-math.log(squared))
    assert found["checks"]["leak"]["failures"].value == pytest.approx(1 / 4)
    assert math.isnan(found["coverage_of"]["average"].value)
    assert found["coverage_of"]["plug-in"].value == 1.0


def test_a_truth_of_zero_is_judged_by_the_span_of_rewards() -> None:
    rows = [row(log, "default", value, 0.0, truth=0.0) for log, value in enumerate([0.4, 0.6])]
    assert summary.Runs(rows).failure.tolist() == [False, True]


def test_errors_below_a_thousandth_of_the_truth_count_as_equal() -> None:
    rows = [row(0, "default", 2.0015, 0.1), row(0, "plug-in", 2.0, 0.1)]
    assert summary.summarize(rows, {"one": True})["groups"]["one"]["regret"]["default"].value == 0.0


def test_standard_errors_are_those_of_repeated_runs() -> None:
    """Two problems of different coverage, three gammas that agree within a log."""
    rng = np.random.default_rng(5)
    coverages, claimed = [], []
    for _ in range(150):
        rows = []
        for problem, chance in (("p", 0.95), ("q", 0.5)):
            for log in range(40):
                value = 2.0 if rng.random() < chance else 3.0
                rows += [row(log, "default", value, 0.5, problem=problem, gamma=g) for g in (0.9, 0.99, 1.0)]
        runs = summary.Runs(rows)
        share = runs.share(runs.covered, np.ones(len(rows), dtype=bool))
        coverages.append(share.value)
        claimed.append(share.error)
    assert np.mean(claimed) == pytest.approx(np.std(coverages), rel=0.2)


def test_a_small_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(work, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(suite, "RESULTS", tmp_path / "results")
    few = ["--families", "cycles", "--logs", "1", "--workers", "1"]
    monkeypatch.setitem(families.REPORT, "cycles", families.Family(lambda: stress.cycles()[:2]))
    families.problems.cache_clear()
    suite.main([*few, "--budget", "0"])
    assert "4 tasks were left undone" in capsys.readouterr().out
    suite.main(few)
    text = capsys.readouterr().out
    assert "left undone" not in text
    assert "| cycles | 2 | 1 |" in text
    (folder,) = (tmp_path / "runs").iterdir()
    rows = work.load(folder)
    assert {row["method"] for row in rows} == set(methods.METHODS)
    assert all(row["value"] is not None for row in rows if row["method"] == "default")
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    suite.main(few)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    families.problems.cache_clear()


def test_an_unknown_family_is_named(capsys) -> None:
    with pytest.raises(SystemExit):
        suite.main(["--families", "cyclists"])
    assert "cyclists" in capsys.readouterr().err


# -- backtests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["grids", "episodes"])
def test_worn_controls_are_a_mixture_with_random_actions(family):
    for problem in families.problems("development", family)[:3]:
        behavior, after = problem.behaviors[0], backtests.worn(problem.model, 0.3)
        mixed = 0.7 * behavior + 0.3 / behavior.shape[1]
        expected = policy_value(problem.model, mixed, 0.95)
        assert policy_value(after, behavior, 0.95) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("family", ["grids", "episodes"])
def test_a_log_that_drifts_is_two_halves(family):
    problem = families.problems("development", family)[0]
    first, second = problem.log(0, 0), problem.log(0, 1)
    both, half = backtests.joined(first, second), problem.sizes[0][0] // 2
    early = both.episode < half
    for name, column in zip(both._fields, both, strict=True):
        parts = getattr(first, name)[first.episode < half], getattr(second, name)[second.episode >= half]
        np.testing.assert_array_equal(column[early], parts[0])
        np.testing.assert_array_equal(column[~early], parts[1])


def test_what_backtests_say_is_counted_by_log():
    problem = families.problems("development", "grids")[0]
    found = lg.backtest(methods.read(problem, problem.log(0, 0), 0.99).counts, 0.99, n_splits=2)
    answers = backtests.count_answers([found, None])
    assert {name: len(each) for name, each in answers.items()} == {
        "random": 2, "time": 2, "silent": 5, "drift": 1, "narrow": 1,
    }  # fmt: skip
    assert answers["silent"] == [False] * 4 + [True]


def test_sizes_of_drift_have_a_row_each():
    rows = backtests.drift_rows(
        [(0.1, False, False), (0.2, False, True), (3.0, True, True), (9.0, True, True)]
    )
    assert [row[:2] for row in rows] == [["0 - 0.5", "2"], ["over 2", "2"]]
    assert rows[0][2:] == ["0.0 ± 50.0", "50.0 ± 50.0"]
