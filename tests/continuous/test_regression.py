"""The compiled trainer of networks: its gradients, its losses, its bits, and Q where it has a closed form."""

from __future__ import annotations

import numpy as np
import pytest

import lingendice as lg
from lingendice.continuous.fitted_q import branches, fit_to_log
from lingendice.continuous.regression import Fitting, NetworkFit, Perceptron, run_steps, squared
from lingendice.continuous.samples import prepare
from lingendice.data.policies import GaussianPolicy


def outputs_by_hand(net, parameters, x):
    """A forward pass in double precision."""
    values = np.asarray(x, dtype=np.float64)
    for layer, (inner, width, weights_at, bias_at) in enumerate(net.network.layout):
        weights = parameters[weights_at:bias_at].reshape(inner, width)
        values = values @ weights + parameters[bias_at : bias_at + width]
        if layer < len(net.network.layout) - 1:
            values = values / (1.0 + np.exp(-values))
    return values


def loss_by_hand(name, out, target, shape):
    if name == "huber":
        factor, steep, limit = (row.astype(float) for row in shape)
        error = (out - target) * steep
        inside = np.abs(error) <= limit
        bounded = np.where(np.isinf(limit), 0.0, limit)
        return (factor / steep * np.where(inside, error**2 / 2, bounded * (np.abs(error) - bounded / 2))).sum(
            1
        )
    if name == "logistic":
        return (np.logaddexp(0.0, out) - target * out).sum(axis=1)
    if name == "softmax":
        return np.log(np.exp(out).sum(axis=1)) - (target * out).sum(axis=1)
    half = out.shape[1] // 2
    z = (target - out[:, :half]) * np.exp(-out[:, half:])
    return (z**2 / 2 + out[:, half:]).sum(axis=1)


@pytest.mark.parametrize(
    ("loss", "n_outputs", "n_targets"),
    [("huber", 3, 3), ("logistic", 1, 1), ("softmax", 3, 3), ("gaussian", 4, 2)],
)
@pytest.mark.parametrize("hidden", [(7,), (6, 5), (130, 33)])
def test_gradients_are_slopes_of_the_loss(loss, n_outputs, n_targets, hidden):
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(1, 4)).astype(np.float32)
    targets = rng.normal(size=(1, n_targets)).astype(np.float32)
    if loss in ("logistic", "softmax"):
        targets = np.eye(n_targets, dtype=np.float32)[:1]
    net = Perceptron(4, n_outputs, Fitting(batch=40, weight_decay=0.0, hidden=hidden), 3)
    net.parameters[:] = 0.3 * rng.normal(size=net.parameters.size)
    before = net.parameters.astype(np.float64)
    weight = np.array([0.7], dtype=np.float32)
    shape = squared(n_outputs, 2, 0.5, 0.9)
    learner = NetworkFit(net, inputs, targets, weight, loss, shape)
    learner.advance(1)
    gradient = learner._fixed[3][-1].astype(np.float64)

    def objective(parameters):
        return 0.7 * float(loss_by_hand(loss, outputs_by_hand(net, parameters, inputs), targets, shape)[0])

    for place in rng.choice(before.size, 40, replace=False):
        step = np.zeros(before.size)
        step[place] = 1e-5
        slope = (objective(before + step) - objective(before - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=2e-3, abs=2e-5)
    # The first step of Adam has the length of the rate, against the gradient.
    moved = net.parameters - before
    large = np.abs(gradient) > 1e-3
    np.testing.assert_allclose(moved[large], -3e-3 * np.sign(gradient[large]), rtol=1e-3, atol=1e-7)


def test_outputs_are_those_of_the_formula():
    rng = np.random.default_rng(6)
    net = Perceptron(5, 2, Fitting(hidden=(64, 31)), 1)
    x = 4.0 * rng.normal(size=(5000, 5)).astype(np.float32)
    np.testing.assert_allclose(net(x), outputs_by_hand(net, net.parameters.astype(float), x), atol=3e-5)


def test_bits_do_not_depend_on_threads_or_pieces():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = np.sin(x[:, :2])

    def trained(threads, pieces):
        fitting = Fitting(steps=60, batch=64, hidden=(16, 16))
        learners = [
            NetworkFit(Perceptron(3, 2, fitting, seed), x, y, np.ones(300, dtype=np.float32))
            for seed in range(3)
        ]
        for n in pieces:
            run_steps(learners, n, threads)
        return np.concatenate([one.net.parameters for one in learners])

    whole = trained(1, [60])
    np.testing.assert_array_equal(whole, trained(3, [60]))
    np.testing.assert_array_equal(whole, trained(2, [1, 7, 52]))
    assert not np.array_equal(whole[:50], whole[-50:])


def test_regression_learns_a_function():
    rng = np.random.default_rng(8)
    x = rng.uniform(-2, 2, size=(2000, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, :1]) * x[:, 1:]).astype(np.float32)
    learner = NetworkFit(Perceptron(2, 1, Fitting(steps=1500), 0), x, y, np.ones(2000, dtype=np.float32))
    run_steps([learner], 1500, 2)
    assert np.mean((learner.net(x) - y) ** 2) < 0.002 * y.var()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_fitted_q_of_a_linear_system(gamma):
    # s' = .7 s + .3 a + noise, reward s; under a = .5: E s' = .7 s + .15, so the value is that of a line.
    rng = np.random.default_rng(9)
    state = rng.normal(0.3, 0.8, size=(20_000, 1))
    action = 0.6 * rng.normal(size=(20_000, 1))
    following = 0.7 * state + 0.3 * action + 0.2 * rng.normal(size=(20_000, 1))
    first = np.full((40, 1), -0.2)
    log = lg.Transitions(state, action, state[:, 0], following, initial_state=first)
    target = GaussianPolicy(lambda states: np.full((len(states), 1), 0.5), 0.1)
    found = fit_to_log(prepare(log, target, gamma), 0, 2)
    # V(s) = c + s / (1 - .7 gamma), so that Q(s, a) has the slopes of s + gamma V(.7 s + .3 a).
    slope = 1.0 / (1.0 - 0.7 * gamma)
    scale = 1.0 - gamma if gamma < 1.0 else 1.0
    at_first = scale * (-0.2 * slope + gamma * 0.15 * slope / (1.0 - gamma)) if gamma < 1.0 else 0.5
    assert found.value == pytest.approx(at_first, abs=0.03)
    design = np.column_stack([np.ones(20_000), state, action])
    _, by_state, by_action = np.linalg.lstsq(design, found.q, rcond=None)[0]
    assert by_state == pytest.approx(scale * slope, rel=0.1)
    assert by_action == pytest.approx(scale * gamma * 0.3 * slope, rel=0.25)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_fitted_q_sums_over_discrete_actions(gamma):
    # s' = .7 s + .5 (a - 1) + noise with a = 0, 1, 2; the target's mean of .5 (a - 1) is .15.
    rng = np.random.default_rng(10)
    state, action = rng.normal(0.0, 0.8, size=(20_000, 1)), rng.integers(0, 3, 20_000)
    following = 0.7 * state + 0.5 * (action[:, None] - 1) + 0.2 * rng.normal(size=(20_000, 1))
    log = lg.Transitions(state, action, state[:, 0], following, initial_state=np.full((40, 1), -0.2))
    samples = prepare(log, [0.2, 0.3, 0.5], gamma)
    rows = np.arange(5)
    inputs, weights = branches(samples, samples.following, rows, rng)
    np.testing.assert_array_equal(inputs[:, :, 1:], np.broadcast_to(np.eye(3), (5, 3, 3)))
    np.testing.assert_allclose(weights, np.broadcast_to([0.2, 0.3, 0.5], (5, 3)), rtol=1e-6)
    slope = 1.0 / (1.0 - 0.7 * gamma)
    wanted = (1.0 - gamma) * -0.2 * slope + gamma * 0.15 * slope if gamma < 1.0 else 0.5
    assert fit_to_log(samples, 0, 2).value == pytest.approx(wanted, abs=0.03)
