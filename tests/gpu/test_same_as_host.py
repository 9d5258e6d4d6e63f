"""The same inputs, malformed or at an edge, on the host and on the device: the same errors and answers.

Data and arrays go to the device from the host, or lie there already.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lingendice as lg
from gpu.test_device_solve import random_counts, random_log
from lingendice.gpu import count_transitions
from lingendice.results.status import Status

pytestmark = pytest.mark.filterwarnings("ignore::lingendice.gpu.HostCopyWarning")
POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)
LEAKY = random_counts(20).toarray()
LEAKY[[3, 7]] = 0
ENDED = np.arange(400) % 20 == 19


def log_of(device=None, **changes):
    """Counts of one log on the host, or on a device."""
    log = random_log() | changes
    state, following, action, reward = (log[name] for name in ("state", "next_state", "action", "reward"))
    more = {name: log[name] for name in ("terminal", "weight") if name in log}
    if device is None:
        columns = {"episode": log["episode"], "keep_episodes": False, "n_states": 12, "n_actions": 3}
        return lg.Counts.from_transitions(state, following, action, reward, **columns, **more)
    up = device.upload
    return count_transitions(
        up(state), up(following), up(action), n_states=12, n_actions=3, reward=up(reward),
        first_state=up(state[::20]), **{name: up(column) for name, column in more.items()},
    )  # fmt: skip


def told(work):
    """What came of it: an error, or status, warnings and numbers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", lg.RowOrderWarning)
        try:
            solution = work()
        except (ValueError, TypeError) as error:
            return type(error), str(error)
    kinds = sorted({warning.category.__name__ for warning in caught} - {"HostCopyWarning"})
    return solution, kinds


def assert_same(here, there, number=1e-7):
    """Equal errors, word by word, or equal statuses, warnings, values and distributions."""
    if isinstance(here[0], type):
        assert there == here
        return
    (one, told_here), (other, told_there) = here, there
    assert not isinstance(other, type), other
    assert other.status is one.status
    assert told_there == told_here
    arrays = [] if one.state_distribution is None else ["stationary", "tau", "data_distribution", "supported"]
    for name in arrays:
        found, expected = getattr(other, name), getattr(one, name)
        np.testing.assert_allclose(found, expected, rtol=number, atol=1e-10, err_msg=name)
    for name in ("value", "leak", "terminal_mass", "expected_return", "expected_length") if arrays else ():
        expected = getattr(one, name)
        if expected is None:
            assert getattr(other, name) is None, name
        else:
            assert getattr(other, name) == pytest.approx(expected, rel=number, abs=1e-10, nan_ok=True), name


def nowhere(array, place, value):
    changed = np.array(array, dtype=float)
    changed[place] = value
    return changed


PLAIN = {"policy": POLICY, "ridge": 0, "clone": 0}
LOG_CASES = {
    "the logged chain": (0.9, {}),
    "the logged chain at 1": (1.0, {}),
    "a policy": (0.9, PLAIN),
    "a policy at 1": (1.0, PLAIN),
    "a table of numbers in single precision": (0.9, PLAIN | {"policy": POLICY.astype(np.float32)}),
    "one action for each state": (0.9, PLAIN | {"policy": np.arange(12) % 3}),
    "an action there is not": (0.9, PLAIN | {"policy": np.full(12, 3)}),
    "a policy of another shape": (0.9, PLAIN | {"policy": np.full((12, 2), 0.5)}),
    "a policy that does not sum to 1": (0.9, PLAIN | {"policy": 2 * POLICY}),
    "a negative probability": (0.9, PLAIN | {"policy": nowhere(POLICY, (2, 1), -0.1)}),
    "a probability that is none": (0.9, PLAIN | {"policy": nowhere(POLICY, (2, 1), np.nan)}),
    "rewards of states": (0.9, PLAIN | {"reward": np.arange(12.0)}),
    "rewards of cells": (0.9, PLAIN | {"reward": np.arange(36.0).reshape(12, 3)}),
    "a reward that is unknown": (0.9, PLAIN | {"reward": nowhere(np.arange(12.0), 4, np.nan)}),
    "a reward without end": (0.9, PLAIN | {"reward": nowhere(np.arange(12.0), 4, np.inf)}),
    "too many rewards": (0.9, PLAIN | {"reward": np.arange(13.0)}),
    "where to begin": (0.9, PLAIN | {"initial": np.arange(12.0) / 66}),
    "beginning nowhere": (0.9, PLAIN | {"initial": np.zeros(12)}),
    "beginning at less than nothing": (0.9, PLAIN | {"initial": nowhere(np.ones(12), 3, -1.0)}),
    "beginning at nan": (0.9, PLAIN | {"initial": nowhere(np.ones(12), 3, np.nan)}),
    "too many beginnings": (0.9, PLAIN | {"initial": np.ones(13)}),
    "a restart of another length": (0.9, PLAIN | {"restart": np.ones(5)}),
    "a smoothed chain": (0.9, PLAIN | {"smoothing": 2.0}),
    "a negative prior": (0.9, PLAIN | {"smoothing": -1.0}),
    "a ratio of states": (0.9, PLAIN | {"ratio": "state"}),
    "a cloned behavior": (0.9, PLAIN | {"ratio": "state", "clone": 3.0}),
    "a clone for state-action ratios": (0.9, PLAIN | {"ratio": "state_action", "clone": 3.0}),
    "a known behavior": (0.9, PLAIN | {"ratio": "state", "behavior": np.full((12, 3), 1 / 3)}),
    "a behavior that forbids": (0.9, PLAIN | {"ratio": "state", "behavior": np.eye(3)[np.zeros(12, int)]}),
    "a word for ratio": (0.9, PLAIN | {"ratio": "both"}),
    "a word for unseen": (0.9, PLAIN | {"unseen": "guess"}),
    "a word for terminal": (0.9, PLAIN | {"terminal": "stay"}),
    "actions never logged": (0.9, PLAIN | {"unseen": "mean"}),
    "a ridge": (0.9, {"policy": POLICY, "ridge": 1e-3}),
    "a negative ridge": (0.9, {"policy": POLICY, "ridge": -1e-3}),
    "the default": (0.9, {"policy": POLICY}),
    "gamma above 1": (1.5, PLAIN),
    "gamma that is none": (np.nan, PLAIN),
    "no tolerance": (0.9, PLAIN | {"tol": 0.0}),
    "no steps": (0.9, PLAIN | {"max_iter": 0}),
    "no time": (0.9, PLAIN | {"time_limit": 0.0}),
    "a word for a seed": (0.9, PLAIN | {"seed": "a"}),
}  # fmt: skip


@pytest.fixture(params=["from the host", "on the device"])
def solve_there(request, device):
    """``solve`` on the device for data and arrays that lie on the host, or there."""
    if request.param == "from the host":
        return lambda data, gamma, **choices: lg.solve(data(None), gamma, device="cuda", **choices)

    def resident(data, gamma, **choices):
        put = {
            name: device.upload(value) if isinstance(value, np.ndarray) else value
            for name, value in choices.items()
        }
        return lg.solve(data(device), gamma, device="cuda", **put)

    return resident


@pytest.mark.parametrize("case", LOG_CASES)
def test_a_log(solve_there, device, case):
    gamma, choices = LOG_CASES[case]
    here = told(lambda: lg.solve(log_of(), gamma, **choices))
    assert_same(here, told(lambda: solve_there(log_of, gamma, **choices)))


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("terminal", ["auto", "absorb", "restart"])
def test_a_log_that_ends(solve_there, device, gamma, terminal):
    def ending(there):
        return log_of(there, terminal=ENDED)

    choices = PLAIN | {"terminal": terminal}
    here = told(lambda: lg.solve(ending(None), gamma, **choices))
    assert_same(here, told(lambda: solve_there(ending, gamma, **choices)))


def test_several_policies(solve_there, device):
    both = np.stack([POLICY, POLICY[::-1]])
    here = lg.solve(log_of(), 0.9, policy=both, ridge=0, clone=0)
    there = solve_there(log_of, 0.9, policy=both, ridge=0, clone=0)
    for one, other in zip(here.solutions, there.solutions, strict=True):
        assert other.value == pytest.approx(one.value, rel=1e-7)


def test_an_empty_log(device):
    nothing = device.upload(np.empty(0, np.int64))
    counts = count_transitions(nothing, nothing, n_states=3, first_state=nothing)
    assert counts.count.size == 0
    assert device.download(counts.initial_count).tolist() == [0, 0, 0]
    assert counts.to_host().n_states == 3
    with pytest.warns(lg.LeakWarning):
        assert lg.solve(counts, 0.9, device="cuda").stationary.tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(ValueError, match="there are no transitions to learn from"):
        lg.solve(counts, 1.0, device="cuda")


def chain_of(matrix):
    return lambda device: matrix if device is None else device.upload(matrix)


CHAIN_CASES = {
    "leaks restart": (LEAKY, 0.9, {}),
    "leaks restart at 1": (LEAKY, 1.0, {}),
    "leaks restart somewhere": (LEAKY, 1.0, {"restart": np.arange(20.0)}),
    "leaks absorb": (LEAKY, 0.9, {"leak": "absorb"}),
    "leaks absorb at 1": (LEAKY, 1.0, {"leak": "absorb"}),
    "leaks are errors": (LEAKY, 0.9, {"leak": "error"}),
    "a word for a leak": (LEAKY, 0.9, {"leak": "sink"}),
    "no leak is no error": (random_counts(20).toarray(), 1.0, {"leak": "error"}),
    "two classes": (np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]]), 1.0, {}),
    "two classes, one limit": (
        np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]]), 1.0, {"initial": np.array([0.25, 0.0, 0.75, 0.0])}
    ),
    "a leak in one class of two": (
        np.array([[1.0, 0, 0], [0, 0, 1.0], [0, 0, 0]]), 1.0,
        {"leak": "error", "restart": np.array([0.0, 1.0, 0.0])},
    ),
    "a class that no data lead to": (
        np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]), 1.0,
        {"leak": "error", "restart": np.array([0.0, 1.0, 0.0])},
    ),
    "a policy for a chain": (LEAKY, 0.9, {"policy": np.full((20, 1), 1.0)}),
    "probabilities": (LEAKY / np.maximum(LEAKY.sum(axis=1, keepdims=True), 1.0), 0.9, {}),
    "probabilities but for rounding": (np.array([[0.999, 0.0], [0.5, 0.5]]), 0.9, {}),
    "a negative count": (nowhere(random_counts(6).toarray(), (2, 3), -1.0), 0.9, {}),
    "a count that is none": (nowhere(random_counts(6).toarray(), (2, 3), np.nan), 0.9, {}),
    "a count without end": (nowhere(random_counts(6).toarray(), (2, 3), np.inf), 0.9, {}),
    "not square": (np.ones((2, 3)), 0.9, {}),
    "no dimension": (np.ones(4), 0.9, {}),
    "tiny counts": (nowhere(np.ones((3, 3)) * 1e300, (slice(0, 1), slice(None)), 1e-300), 0.9, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CHAIN_CASES)
def test_a_chain(solve_there, device, case):
    matrix, gamma, choices = CHAIN_CASES[case]
    here = told(lambda: lg.solve(matrix, gamma, **choices))
    assert_same(here, told(lambda: solve_there(chain_of(matrix), gamma, **choices)))


@pytest.mark.parametrize("seed", range(6))
def test_the_limit_over_several_classes(solve_there, device, seed):
    """Weights by the chance of ending in each class, which is a linear system over the other states."""
    rng = np.random.default_rng(seed)
    n, ends = 8, 2 + seed % 2
    matrix = rng.random((n, n)) * (rng.random((n, n)) < 0.4) + np.roll(np.eye(n), -1, axis=1)
    matrix[:ends] = np.eye(n)[:ends]
    initial = rng.random(n)
    kernel, start = matrix / matrix.sum(axis=1, keepdims=True), initial / initial.sum()
    inner, to_ends = kernel[ends:, ends:], kernel[ends:, :ends]
    expected = start[:ends] + start[ends:] @ np.linalg.solve(np.eye(n - ends) - inner, to_ends)
    there = solve_there(chain_of(matrix), 1.0, initial=start)
    assert there.status is Status.SOLVED
    stationary = there.stationary
    np.testing.assert_allclose(stationary[:ends], expected, rtol=max(there.error, 1e-12))
    np.testing.assert_array_equal(stationary[ends:], 0.0)


def test_the_limit_over_several_classes_with_hubs(device):
    """Classes that fall back to a distribution."""
    matrix = np.zeros((7, 7))
    matrix[[0, 1, 2, 2, 3, 4, 4, 5], [1, 0, 0, 3, 4, 2, 5, 5]] = 1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 1.0, 1.0
    choices = {
        "restart": np.array([1.0, 3, 0, 0, 0, 0, 0]) / 4,
        "initial": np.array([0, 0, 1, 2, 3, 0, 4]) / 10,
    }
    here = told(lambda: lg.solve(matrix, 1.0, **choices))
    there = told(lambda: lg.solve(matrix, 1.0, device="cuda", **choices))
    assert_same(here, there, 1e-9)
    assert "solved on the host" in there[0].reason
    with pytest.raises(ValueError, match="solved on the host"):
        lg.solve(matrix, 1.0, device="cuda", options={"chunk_rows": 3}, **choices)


@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_one_class_with_hubs_and_transient_states(device, chunk_rows):
    """The class falls back to a distribution of its own; the states before it keep a mass of exactly 0."""
    matrix = np.zeros((7, 7))
    matrix[[0, 1, 2, 2, 3, 4, 4], [1, 0, 0, 3, 4, 2, 5]] = 1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 1.0
    matrix[1, 6] = 1.0
    restart = np.array([1.0, 3, 0, 0, 0, 0, 0]) / 4.0
    options = {} if chunk_rows is None else {"chunk_rows": chunk_rows}
    here = lg.solve(matrix, 1.0, restart=restart)
    there = lg.solve(matrix, 1.0, restart=restart, device="cuda", options=options)
    assert f"on {device.name}" in there.reason
    np.testing.assert_allclose(there.stationary, here.stationary, rtol=1e-9)
    np.testing.assert_array_equal(there.stationary[2:6], 0.0)


STEP = {"state": np.array([0, 1, 2]), "next_state": np.array([1, 0, 1])}
COUNTING_CASES = {
    "a state out of range": {"state": np.array([0, 7, 2])},
    "a negative state": {"state": np.array([0, -1, 2])},
    "a next state out of range": {"next_state": np.array([1, 0, 9])},
    "an action out of range": {"action": np.array([0, 5, 0]), "n_actions": 2},
    "states that are no ids": {"state": np.array([0.0, 1.0, 2.0])},
    "a reward that is none": {"reward": np.array([1.0, np.nan, 2.0])},
    "a reward without end": {"reward": np.array([1.0, 2.0, -np.inf])},
    "too few rewards": {"reward": np.array([1.0, 2.0])},
    "a negative weight": {"weight": np.array([1.0, -1.0, 2.0])},
    "a weight that is none": {"weight": np.array([1.0, np.nan, 2.0])},
    "too few weights": {"weight": np.array([1.0, 2.0])},
    "complex rewards": {"reward": np.array([1.0, 2.0, 1j])},
    "complex weights": {"weight": np.array([1.0, 2.0, 1j])},
    "a flag that is none": {"terminal": np.array([0, 0, 2])},
    "too few flags": {"terminal": np.array([0, 0])},
    "too few next states": {"next_state": np.array([0, 0])},
    "half a state": {"n_states": 2.5},
    "weights": {"weight": np.array([1.0, 0.5, 2.0])},
    "whole weights": {"weight": np.array([1, 5, 2])},
    "a weight of nothing": {"weight": np.array([1.0, 0.0, 2.0])},
    "an end": {"terminal": np.array([0, 1, 0])},
}


@pytest.mark.parametrize("case", COUNTING_CASES)
def test_counting(device, case):
    columns = {"n_states": 5} | STEP | COUNTING_CASES[case]
    here = told(lambda: lg.Counts.from_transitions(**columns))
    put = {
        name: device.upload(part) if isinstance(part, np.ndarray) else part for name, part in columns.items()
    }
    there = told(lambda: count_transitions(**put))
    if isinstance(here[0], type):
        assert there == here
        return
    found = there[0].to_host()
    for name in ("indptr", "indices", "count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(here[0], name))
    assert found.count.dtype == here[0].count.dtype


SLOW = np.eye(600, k=1) * 0.49 + np.eye(600, k=-1) * 0.47
LIMITS = {
    "steps": ({"max_iter": 2}, Status.ITERATION_LIMIT),
    "time": ({"time_limit": 1e-9}, Status.TIME_LIMIT),
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("gamma", [0.99999, 1.0])
def test_limits(solve_there, device, gamma, limit):
    """An iteration that is cut short says so, wherever it ran, and keeps a distribution."""
    choices, status = LIMITS[limit]
    here = lg.solve(SLOW, gamma, method="gauss-seidel" if gamma < 1.0 else "aggregation", **choices)
    there = solve_there(chain_of(SLOW), gamma, **choices)
    assert there.status is here.status is status
    assert not there.converged
    assert there.stationary.sum() == pytest.approx(1.0)


def test_an_interrupted_solve(solve_there, device, monkeypatch):
    """Ctrl-C at the first look: the best so far comes with the exception, or is returned."""
    import os
    import signal

    from lingendice.gpu import power_steps

    def interrupted(self, *given):
        os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *given)

    plain = power_steps._Watch.read
    monkeypatch.setattr(power_steps._Watch, "read", interrupted)
    with pytest.raises(lg.Interrupted) as caught:
        solve_there(chain_of(SLOW), 0.99999)
    assert caught.value.solution.status is Status.INTERRUPTED
    returned = solve_there(chain_of(SLOW), 0.99999, options={"on_interrupt": "return"})
    assert returned.status is Status.INTERRUPTED
