"""The oracle itself: closed forms, and the defining equation checked literally over cells."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from . import dense
from .cases import GAMMAS, LOG, METHODS, READERS, SPARSE, make_case
from .oracle import (
    Answer,
    Log,
    Question,
    Refused,
    _Numbers,
    answer,
    count,
    count_matrix,
    followed_policy,
    recurrent_classes,
)

CHAIN = [(0, 0, 90), (0, 1, 10), (1, 0, 30), (1, 1, 70)]


def test_two_states_by_hand():
    found = answer(count_matrix(CHAIN, 2), Question())
    assert found.stationary.tolist() == [Fraction(3, 4), Fraction(1, 4)]
    assert found.p.tolist() == [Fraction(1, 2), Fraction(1, 2)]
    half = answer(count_matrix(CHAIN, 2), Question(gamma=0.5, initial=[1.0, 0.0]))
    # mu_0 = 1/2 + 1/2 (9/10 mu_0 + 3/10 mu_1), mu_1 = 1 - mu_0
    assert half.stationary.tolist() == [Fraction(13, 14), Fraction(1, 14)]


def test_several_classes_by_hand():
    entries = [(0, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 3)]
    found = answer(count_matrix(entries, 3), Question())
    assert found.stationary is None
    assert [mu.tolist() for mu in found.distributions] == [[1, 0, 0], [0, 1, 0]]
    limit = answer(count_matrix(entries, 3), Question(initial=[0.0, 0.5, 0.5]))
    assert limit.stationary.tolist() == [Fraction(1, 8), Fraction(7, 8), 0]
    assert recurrent_classes(np.array([[0, 1, 0], [1, 0, 0], [0.5, 0, 0.5]])) == [[0, 1]]


def test_counting_by_hand():
    log = Log(
        [0, 1, 0, 1, 0], [1, 0, 1, 0, 1], reward=[1.0, 2.0, 3.0, 4.0, 5.0], weight=[1, 2, 3, 0, 1],
        terminal=[False, True, False, False, False], truncated=[False, False, True, False, False],
        episode=[7, 7, 8, 7, 8], n_states=2,
    )  # fmt: skip
    table = count(log)
    assert table.count == [[0, 5], [0, 0]]  # the end, and the row of weight 0, are not in it
    assert table.ends == [0, 2]
    assert table.first == [5, 0]  # 7 at row 0, 8 at row 2, 7 again at row 3 (weight 0), 8 again at row 4
    assert table.reward == [1 + 9 + 5, 4]


def test_leaks_and_ends_by_hand():
    # 0 -> 1 once, 0 -> end once; 1 was never left.
    log = Log([0, 0], [1, 1], reward=[2.0, 4.0], terminal=[False, True], n_states=2)
    absorbed = answer(count(log), Question(gamma=0.5, leak="absorb", reward_range=(0.0, 10.0)))
    assert absorbed.stationary.tolist() == [Fraction(1, 2), Fraction(1, 8)]
    assert (absorbed.leak, absorbed.terminal_mass) == (Fraction(1, 4), Fraction(1, 4))
    assert absorbed.value == 2  # 3 * (1/2) / (3/4)
    assert absorbed.bounds == (Fraction(3, 2), Fraction(3, 2) + Fraction(10, 4))
    average = answer(count(log), Question())  # 0 -> 0 (restarted) or 1, 1 -> p = (1, 0)
    assert average.stationary.tolist() == [Fraction(2, 3), Fraction(1, 3)]
    assert (average.leak, average.value, average.warns) == (Fraction(1, 3), 3, True)
    for question in (Question(leak="error"), Question(leak="absorb"), Question(terminal="absorb")):
        with pytest.raises(Refused):
            answer(count(log), question)


def test_what_is_filled_in_identifies_no_value_by_hand():
    # Action 0 alone was logged, and the target takes action 1 alone: the mean has all mass, and no value.
    log = Log([0, 0], [0, 0], action=[0, 0], reward=[1.0, 3.0], episode=[0, 1], n_states=1, n_actions=2)
    for policy, value in (([[0.0, 1.0]], None), ([[0.5, 0.5]], 2)):
        question = Question(0.5, policy=policy, unseen="mean")
        found, steps = answer(count(log), question), dense.first_steps(count(log), question, 3)
        assert found.stationary.tolist() == [1, 0]
        for shown in (found.value, found.expected_return / 2, steps["value"]):
            assert math.isnan(shown) if value is None else shown == value


def test_policies_by_hand():
    log = Log([0, 0, 0, 1], [0, 0, 1, 0], action=[0, 0, 1, 0], n_states=2, n_actions=3)
    table = count(log)
    make = _Numbers(2)
    n = make.array([sum(row) for row in table.count])
    policy = [[0.25, 0.25, 0.5], [0.0, 0.5, 0.5]]
    kept, over_states = followed_policy(table, Question(policy=policy), n, make)
    assert (kept == np.array(policy)).all()
    assert not over_states
    third, half = Fraction(1, 3), Fraction(1, 2)
    for question, first in (
        (Question(policy=policy, ratio="state"), [half, half, 0]),
        (Question(policy=policy, unseen="mean"), [Fraction(1, 4) + third, Fraction(1, 4) + half * third, 0]),
        (Question(policy=policy, ratio="state", behavior=[[0.5, 0.25, 0.25]] * 2), [half, half, 0]),
    ):
        follow, _ = followed_policy(table, question, n, make)
        assert follow[0].tolist() == first
    follow, _ = followed_policy(table, Question(policy=policy, ratio="state"), n, make)
    assert follow[1].tolist() == policy[1]  # none of its actions was logged


def test_answers_solve_the_equation_over_cells_and_lose_no_mass():
    checked = 0
    for number in range(300):
        case = make_case(number)
        expected, table, question = case.expected, case.table, case.question
        if not isinstance(expected, Answer) or expected.stationary is None or table.n_states > 12:
            continue
        make = _Numbers(table.n_states)
        n = make.array([sum(row) + end for row, end in zip(table.count, table.ends, strict=True)])
        follow, _ = followed_policy(table, question, n, make)
        cells = expected.stationary
        if expected.over_states and follow is not None:
            cells = (expected.stationary[:, None] * follow).ravel()
        _check_literally(cells, follow, n, table, question)
        visits = cells[n == 0].sum()
        outside = expected.leak - visits if question.leak == "absorb" else 0
        assert cells.sum() + outside + expected.terminal_mass == 1, number
        checked += 1
    assert checked > 150


def _check_literally(mu, follow, n, table, question):
    """mu(x') = (1 - gamma) mu0(x') + gamma sum_x mu(x) T(x'|x), summed entry by entry, exactly."""
    gamma, n_actions = Fraction(question.gamma), table.n_actions or 1
    states = range(table.n_states)

    def over(weights):
        total = sum(Fraction(weight) for weight in weights)
        return [Fraction(weight) / total for weight in weights]

    start = [Fraction(0)] * table.n_states
    if question.initial is not None:
        start = over(question.initial)
    elif table.first is not None and sum(table.first) > 0:
        start = over(table.first)
    elif table.n_actions is None:
        start = over([1] * table.n_states)
    visited = [sum(n[s * n_actions : (s + 1) * n_actions]) for s in states]
    restart = over(question.restart) if question.restart is not None else start
    if question.restart is None and gamma == 1:
        restart = over(visited)
    back = question.terminal == "restart" or (question.terminal == "auto" and gamma == 1)
    arriving = [(1 - gamma) * share for share in start]
    for cell, mass in enumerate(mu):
        for s in states:
            if n[cell] == 0:
                step = 0 if question.leak == "absorb" else restart[s]
            else:
                step = Fraction(table.count[cell][s]) / n[cell]
                step += Fraction(table.ends[cell]) / n[cell] * start[s] if back else 0
            arriving[s] += gamma * mass * step
    for cell, mass in enumerate(mu):
        action = 1 if follow is None else follow[cell // n_actions][cell % n_actions]
        assert mass == arriving[cell // n_actions] * action


def test_long_doubles_agree_with_fractions(monkeypatch):
    table, question = count_matrix([(i, (3 * i + 1) % 7, i + 1) for i in range(7)] + CHAIN, 7), Question(0.99)
    exact = answer(table, question).stationary.astype(float)
    monkeypatch.setattr("fuzz.oracle.EXACT_STATES", 0)
    np.testing.assert_allclose(answer(table, question).stationary.astype(float), exact, rtol=1e-14)


def test_cases_reach_everything():
    """A case is the same whenever it is made, and the cases vary what they are meant to vary."""
    assert repr(make_case(17)) == repr(make_case(17))
    made = [make_case(number) for number in range(800)]
    forms = [case.form for case in made]
    assert {case.method for case in made} == set(METHODS)
    assert {case.question.gamma for case in made} == set(GAMMAS)
    assert {form.reader for form in forms} >= {"transitions", "dense", "list", "graph", *READERS, *SPARSE}
    assert {case.question.leak for case in made} == {"restart", "absorb", "error"}
    assert {case.question.terminal for case in made} == {"auto", "restart", "absorb"}
    assert {case.question.unseen for case in made} == {"auto", "leak", "renormalize", "mean"}
    assert {form.labels for form in forms} == {None, "str", "tuple", "category"}
    assert {form.then for form in forms} == {"nothing", "npz", "parquet", "pickle"}
    refused = sum(isinstance(case.expected, Refused) for case in made)
    several = sum(isinstance(case.expected, Answer) and case.expected.stationary is None for case in made)
    assert 30 < refused < 160
    assert several > 15
    assert sum(form.last_rows_end for form in forms) > 4
    for name in ("merged", "derived", "keep_episodes", "direct", "masked", "deterministic", "say_sizes"):
        assert sum(bool(getattr(form, name)) for form in forms) > 8, name
    logs = [case.log for case in made if case.kind == LOG]
    for name in ("action", "reward", "weight", "terminal", "truncated", "episode"):
        assert 50 < sum(getattr(log, name) is not None for log in logs) < len(logs), name
