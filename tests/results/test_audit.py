"""The audit names what the data can and cannot identify."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
from problems import logged_mdp

import lingendice as lg


def test_two_classes_and_a_transient_state():
    report = lg.audit([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    assert [nodes.tolist() for nodes in report.recurrent_classes] == [[0], [1]]
    assert report.transient_states.tolist() == [2]
    assert any("several recurrent classes" in note for note in report.remedies())


def test_periods():
    cycle = np.roll(np.eye(5, dtype=int), 1, axis=1)
    assert lg.audit(cycle).periods == (5,)
    assert "5" in str(lg.audit(cycle))


def test_dangling_states_and_leak():
    counts = lg.Counts.from_transitions([0, 0, 0, 1], [1, 0, 2, 0], n_states=3)
    report = lg.audit(counts)
    assert report.dangling.tolist() == [2]
    assert report.leak.tolist() == pytest.approx([1 / 3, 0, 0.75 / 3 * 0])
    assert report.total_leak == pytest.approx(0.75 / 3)


def test_coverage_of_the_policy():
    counts = lg.Counts.from_transitions([0, 0, 1], [1, 1, 0], action=[0, 0, 1], n_actions=2)
    report = lg.audit(counts, policy=[[0.5, 0.5], [0.25, 0.75]])
    assert report.coverage == pytest.approx((2 * 0.5 + 0.75) / 3)
    assert report.least_covered == (0, 0.5)
    assert "policy coverage" in str(report)


def test_audit_of_a_solution_adds_the_effective_sample_size():
    mdp = logged_mdp(2)
    solution = lg.solve(mdp.counts, 0.9, policy=mdp.policy)
    report = lg.audit(solution)
    # The ratio is one of states: the weight of a transition is also that of its action.
    weight = (solution.cell_distribution / mdp.counts.data_distribution)[2 * mdp.state + mdp.action]
    expected = weight.sum() ** 2 / (weight**2).sum()
    assert report.effective_sample_size == pytest.approx(expected)
    assert lg.audit(solution, 0.9, leak="restart").gamma == 0.9
    for other in ({"gamma": 0.5}, {"policy": 1.0 - mdp.policy}, {"leak": "absorb"}):  # had no say
        with pytest.raises(ValueError, match=f"{next(iter(other))}= was settled"):
            lg.audit(solution, **other)
    json.dumps(report.to_dict(), allow_nan=False)


def test_absorbing_leak_is_audited():
    mdp = logged_mdp(1, n_episodes=2, length=5)
    assert lg.audit(mdp.counts, 0.9, policy=mdp.policy, leak="absorb").total_leak > 0


@pytest.mark.parametrize("options", [{}, {"ridge": 0}, {"ridge": 0, "ratio": "state"}, {"horizon": 3}])
def test_coverage_is_that_of_the_policy_asked_for(options):
    """The default and state ratios follow logged actions alone, which the log contains by definition."""
    counts = lg.Counts.from_transitions([0, 0, 1], [1, 1, 0], [0, 0, 1], [1.0, 2.0, 3.0], [0, 1, 1])
    policy = np.array([[0.5, 0.5], [0.25, 0.75]])
    with pytest.warns(lg.LeakWarning) if options == {"ridge": 0} else nullcontext():
        solution = lg.solve(counts, 0.9, policy=policy, **options)
    report = lg.audit(solution)
    assert report.coverage == pytest.approx((2 * 0.5 + 0.75) / 3)
    assert report.least_covered == (0, 0.5)
    assert any("misses actions of the policy" in note for note in report.remedies())


def test_restarts_take_no_time_in_a_period():
    """Two steps and an end, over and over: period 2; a restart after each step: 1; an end after 1 or 3: 1."""
    cases = [
        ([0, 1], [1, 2], [False, True], (2,)),
        ([0], [0], [True], (1,)),
        ([0, 0, 1, 2], [3, 1, 2, 3], [True, False, False, True], (1,)),
        ([0, 1, 2, 3], [1, 2, 3, 0], [False, True, False, True], (2,)),
    ]
    for state, following, terminal, periods in cases:
        episode = np.cumsum([0, *terminal[:-1]])
        counts = lg.Counts.from_transitions(state, following, terminal=terminal, episode=episode)
        assert lg.audit(counts).periods == periods


def test_what_no_audit_is_of_is_named():
    """They were taken for matrices: "counts[0] is PolicySolution(...), which is not a number"."""
    mdp = logged_mdp(1, n_episodes=2, length=5)
    comparison = lg.solve(mdp.counts, 0.9, policy=[mdp.policy, mdp.policy])
    for other in (comparison, lg.Transitions(np.eye(3), None, np.zeros(3), np.eye(3))):
        with pytest.raises(ValueError, match=f"not of a {type(other).__name__}; audit one solution"):
            lg.audit(other, 0.9)
    assert lg.audit(comparison[0]).gamma == 0.9
