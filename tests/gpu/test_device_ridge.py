"""The default with a policy on the device: the ridge problem, its choice from the data, cloned behaviors."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import device as emulated

import lingendice as lg
from gpu.test_device_solve import random_counts, random_log
from lingendice.gpu.device import DeviceMemoryError
from lingendice.gpu.device_ridge import DeviceRidge, ridge_bytes
from lingendice.model.compose import Choices, compose
from lingendice.results.status import Status
from lingendice.solvers.control import Controls
from lingendice.solvers.ridge import RidgeSystem

POLICY = np.random.default_rng(3).dirichlet(np.ones(3), size=12)


def logged(n=400, **more):
    return lg.Counts.from_transitions(**random_log(n), **more)


def dense_minimizer(system):
    """The ridge problem by a dense solve, entry after entry held at 0 until none is negative."""
    n = system.q.size
    columns = np.stack([system.scaled(unit) for unit in np.eye(n)], axis=1)
    weight = system.mass_weight
    hessian = columns.T @ columns + np.outer(weight, weight) + system.ridge * np.eye(n)
    right = columns.T @ system._target + system.mass_goal * weight + system.ridge * system.q
    free = np.ones(n, bool)
    while True:
        y = np.zeros(n)
        y[free] = np.linalg.solve(hessian[np.ix_(free, free)], right[free])
        if (y >= 0).all():
            return y
        free[y < 0] = False


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("ratio", ["state", "state_action"])
@pytest.mark.parametrize("strength", [1e-1, 1e-3])
def test_descents_reach_the_minimizer(device, gamma, ratio, strength):
    choices = Choices(gamma, policy=POLICY, ratio=ratio, clone=2.0 if ratio == "state" else None)
    operator = compose(logged(200), choices)
    fit = DeviceRidge(device, operator, strength).solve(Controls(tol=1e-12))
    assert fit.outcome.converged
    assert device.name in fit.outcome.reason
    np.testing.assert_allclose(fit.y, dense_minimizer(RidgeSystem(operator, strength)), atol=1e-9)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize(
    "choices",
    [
        {"ridge": 1e-3},
        {"ridge": 1e-5, "clone": 5.0, "ratio": "state"},
        {"ridge": 1e-4, "behavior": np.full((12, 3), 1.0 / 3.0), "ratio": "state"},
    ],
)
@pytest.mark.filterwarnings("ignore::lingendice.LeakWarning")
def test_a_ridge_with_a_policy_is_that_of_the_host(device, gamma, choices):
    counts = logged()
    there = lg.solve(counts, gamma, policy=POLICY, device="cuda", **choices)
    here = lg.solve(counts, gamma, policy=POLICY, **choices)
    assert there.status is Status.SOLVED
    assert there.ridge == here.ridge > 0.0
    assert there.method == here.method == "ridge"
    np.testing.assert_allclose(there.stationary, here.stationary, rtol=1e-7, atol=1e-10)
    assert there.value == pytest.approx(here.value, rel=1e-7)
    assert there.interval(0.9).standard_error == pytest.approx(here.interval(0.9).standard_error, rel=1e-5)


def test_a_chain_with_a_ridge(device):
    matrix = random_counts(30).toarray()
    matrix[[3, 7]] = 0
    with pytest.warns(lg.LeakWarning):
        there = lg.solve(matrix, ridge=1e-2, device="cuda")
    with pytest.warns(lg.LeakWarning):
        here = lg.solve(matrix, ridge=1e-2)
    np.testing.assert_allclose(there.stationary, here.stationary, rtol=1e-7, atol=1e-10)
    assert there.leak == pytest.approx(here.leak, rel=1e-7)


def test_vectors_of_a_descent_stay_on_the_device(emulator):
    operator = compose(logged(), Choices(1.0, policy=POLICY, ratio="state_action"))
    system = DeviceRidge(emulator, operator, 1e-4)
    descent = system.descent(np.ones(36, bool), np.zeros(36), system._right_side)
    down = emulator.downloaded
    squared, made = descent.advance(0.0, 6)
    assert (made, emulator.downloaded) == (6, down)
    y, residual = descent.point()
    np.testing.assert_allclose(residual, system._right_side - system.normal(y), atol=1e-12)
    assert squared == pytest.approx(residual @ (residual / system.diagonal), rel=1e-9)


def test_another_ridge_of_the_same_system(emulator):
    operator = compose(logged(), Choices(0.9, policy=POLICY, ratio="state_action"))
    system = DeviceRidge(emulator, operator, 1e-1).with_ridge(1e-3)
    fit = system.solve(Controls(tol=1e-12))
    np.testing.assert_allclose(fit.y, dense_minimizer(RidgeSystem(operator, 1e-3)), atol=1e-9)


def test_a_descent_that_has_arrived_stays(emulator):
    operator = compose(logged(), Choices(0.9, policy=POLICY, ratio="state_action"))
    system = DeviceRidge(emulator, operator, 1e-2)
    fit = system.solve(Controls(tol=1e-10))
    descent = system.descent(fit.y > 0, fit.y, system._right_side - system.normal(fit.y))
    assert descent.advance(1.0, 5)[1] == 0
    squared, made = descent.advance(0.5 * descent.squared, 500)
    assert made < 500
    before = descent.point()[0]
    assert descent.advance(squared, 3) == (squared, 0)
    assert (descent.point()[0] == before).all()


def test_limits_of_the_ridge(device):
    stopped = lg.solve(logged(), policy=POLICY, max_iter=1, device="cuda")
    assert stopped.status is Status.ITERATION_LIMIT
    assert lg.solve(logged(), policy=POLICY, time_limit=1e-9, device="cuda").status is Status.TIME_LIMIT


@pytest.mark.parametrize("storage", ["float32", "float64"])
def test_memory_of_the_ridge(emulator, storage):
    log = random_log(9000, n_states=1500)
    counts, policy = lg.Counts.from_transitions(**log), np.full((1500, 3), 1.0 / 3.0)
    operator = compose(counts, Choices(0.9, policy=policy, ratio="state_action"))
    emulator.block = 256
    before = emulated.MEMORY.watch()
    system = DeviceRidge(emulator, operator, 1e-3, storage)
    assert system.solve(Controls(tol=1e-4)).outcome.converged
    taken = emulated.MEMORY.peak - before
    sizes = (1500, system.q.size, system.rows.nnz, operator.rows.distribution.shape[0])
    assert taken <= ridge_bytes(*sizes, storage) <= 2 * taken
    emulator.free = 10_000
    with pytest.raises(DeviceMemoryError, match="GB of device memory"):
        lg.solve(counts, 0.9, policy=policy, ridge=1e-3, device="cuda")
