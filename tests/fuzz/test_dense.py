"""The dense oracle itself, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from . import dense
from .cases import make_case
from .further import KINDS, ask
from .oracle import Log, Question, answer, count, count_matrix

CHAIN = count_matrix([(0, 0, 90), (0, 1, 10), (1, 0, 30), (1, 1, 70)], 2)


def test_two_steps_by_hand():
    found = dense.first_steps(CHAIN, Question(0.5, initial=[1.0, 0.0], reward=[0.0, 3.0]), 2)
    # d_0 = (1, 0), d_1 = (.9, .1), weights 1 and 1/2
    np.testing.assert_allclose(found["states"], [1.45 / 1.5, 0.05 / 1.5])
    assert found["expected_return"] == pytest.approx(0.5 * 0.1 * 3)


def test_the_ridge_is_the_equation_at_0_and_the_data_at_infinity():
    question = Question(0.9, initial=[0.0, 1.0])
    problem = dense.closed(dense.model(CHAIN, question), 0.9)
    exact = answer(CHAIN, question).stationary.astype(float) / problem.p
    np.testing.assert_allclose(dense.ridge(problem, 0.0)[0], exact)
    np.testing.assert_allclose(dense.ridge(problem, 1e9)[0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(dense.least_squares(problem, 1.0)[0], exact)


def test_folded_leaks_leave_the_same_equation():
    table = count_matrix([(0, 0, 1), (0, 1, 2), (0, 2, 1), (1, 0, 3), (1, 2, 1)], 3)  # 2 was never left
    for gamma, leak in ((0.9, "restart"), (0.9, "absorb"), (1.0, "restart")):
        question = Question(gamma, leak=leak)
        problem = dense.closed(dense.model(table, question), gamma)
        expected = answer(table, question)
        mass = expected.stationary.astype(float)[:2]
        np.testing.assert_allclose(problem.residual @ mass, problem.goal, atol=1e-14)
        assert problem.mass @ mass + problem.offset == pytest.approx(1.0)
        assert problem.unseen @ mass + problem.unseen_offset == pytest.approx(float(expected.leak))


def test_weights_of_episodes_by_hand():
    log = Log(
        [0, 0, 0], [0, 0, 0], action=[0, 1, 1], reward=[1.0, 2.0, 4.0], episode=[0, 0, 1],
        terminal=[False, True, False], n_states=1, n_actions=2,
    )  # fmt: skip
    ratios = dense.action_ratios(log, count(log), Question(policy=[[0.5, 0.5]], behavior=[[0.25, 0.75]]))
    assert ratios == [2.0, 0.5 / 0.75, 0.5 / 0.75]
    weights, earned = [2.0 * 0.5 / 0.75, 0.5 / 0.75], [1 + 0.5 * 2, 4.0]
    value = np.dot(weights, earned) / np.dot(weights, [2.0, 1.0])  # the first ended: 1 / (1 - gamma)
    assert dense.trajectory_wise(log, ratios, 0.5, True, None) == pytest.approx(value)
    by_step = [(2 * 1 + ratios[2] * 4) / (2 + ratios[2]), 2.0]  # the second episode was cut after a step
    value = (by_step[0] + 0.5 * by_step[1]) / (1 + 0.5 + 0.5)  # all that is left has ended
    assert dense.step_wise(log, ratios, 0.5, True, None) == pytest.approx(value)
    assert math.isnan(dense.step_wise(log, [0.0, 1.0, 0.0], 0.5, False, 3))
    assert math.isnan(dense.trajectory_wise(log, [1.0, 0.0, 0.0], 0.5, False, 3))


def test_cases_reach_every_kind_of_question():
    kinds = [asked.kind for asked, _ in map(ask, map(make_case, range(150)))]
    assert set(kinds) == set(KINDS)
