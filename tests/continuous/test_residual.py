"""The held-out saddle residual against the objective written out row by row and maximized by itself."""

from __future__ import annotations

import numpy as np
import pytest
from neural_problems import net, policy_of, ratio
from scipy.optimize import minimize

import lingendice as lg
from lingendice.continuous.learner import Batches, Learner, NeuralOptions, gendice
from lingendice.continuous.network import Network
from lingendice.continuous.samples import prepare
from lingendice.continuous.train import WatchedRows, split_rows

RIDGE = 1e-4
"""On v, as a share of the mean square of a feature."""


def trained(kind: str, gamma: float, activation: str) -> Learner:
    """On a log with one initial state, so that nothing about restarts and beginnings is left to chance."""
    rng = np.random.default_rng(4)
    state, following = rng.normal(size=(2, 90, 3))
    transitions = lg.Transitions(
        state, rng.integers(0, 3, 90) if kind == "discrete" else None, None, following,
        initial_state=rng.normal(size=(1, 3)), terminal=rng.random(90) < 0.2,
        n_actions=3 if kind == "discrete" else None,
    )  # fmt: skip
    samples = prepare(transitions, policy_of(kind), gamma)
    network = Network(samples.n_inputs, (9, 4), activation)
    options = NeuralOptions(hidden=(9, 4), activation=activation, batch=64, learning_rate=1e-2, average=0.0)
    objective = gendice(gamma, "chi2", "square", 1.0, 0.0, None)
    learner = Learner(Batches(samples), network, objective, options, 60, 0)
    learner.advance(60)
    return learner


def arrivals(learner: Learner, row: int):
    """(probability, inputs) of what follows a row: nothing, the initial state, or the next state."""
    samples = learner.batches.samples
    if samples.absorbed[row]:
        return []
    place = samples.starting if samples.restarted[row] else samples.following
    return acts(learner, place, 0 if samples.restarted[row] else row)


def acts(learner: Learner, place, row: int):
    state = list(place.states[row])
    if learner.batches.samples.kind == "none":
        return [(1.0, state)]
    shares = policy_of("discrete")(place.raw[row : row + 1])[0]
    return [(shares[a], state + [float(b == a) for b in range(3)]) for a in range(3)]


@pytest.mark.parametrize(
    ("kind", "gamma", "activation"),
    [("discrete", 0.9, "tanh"), ("discrete", 1.0, "tanh"), ("none", 0.7, "relu")],
)
def test_residual_is_the_root_of_the_largest_objective(kind, gamma, activation):
    learner = trained(kind, gamma, activation)
    samples, network = learner.batches.samples, learner.network
    rows = np.random.default_rng(1).permutation(90)[:50]
    held = samples.absorbed[rows] if gamma < 1.0 else samples.restarted[rows]
    assert held.any()
    assert not held.all()
    layers = [(w.astype(float), b.astype(float)) for w, b in network.layers(learner.f_parameters)]
    tau_layers = [(w.astype(float), b.astype(float)) for w, b in network.layers(learner.tau_parameters)]

    def phi(inputs):
        """Units of the last hidden layer one by one, and a constant."""
        eye, zero = np.eye(4), np.zeros(1)
        x = np.array([inputs], dtype=float)
        units = [net([*layers[:-1], (eye[:, k : k + 1], zero)], x, activation)[0] for k in range(4)]
        return np.array([*units, 1.0])

    terms = []
    for row in rows:
        tau = ratio(net(tau_layers, samples.logged[row : row + 1].astype(float), activation), "square")[0]
        following = sum((p * phi(x) for p, x in arrivals(learner, row)), np.zeros(5))
        terms.append((tau, phi(samples.logged[row]), following))
    first = sum(p * phi(x) for p, x in acts(learner, samples.starting, 0))
    squares = sum(tau * (here**2).sum() for tau, here, _ in terms) / (len(terms) * 5)

    def objective(v):
        total = sum(
            gamma * tau * (v @ following) - tau * (v @ here + (v @ here) ** 2 / 4.0)
            for tau, here, following in terms
        )
        return total / len(terms) + (1.0 - gamma) * (v @ first) - RIDGE * squares * (v @ v) / 4.0

    best = minimize(lambda v: -objective(v), np.zeros(5), method="BFGS", options={"gtol": 1e-9})
    expected = np.sqrt(-best.fun)
    assert expected > 0.01
    assert WatchedRows(samples, rows, seed=0).residual(learner) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("episode", [None, np.repeat(np.arange(10), 3)])
def test_some_rows_are_always_trained_on(episode):
    """A share of .98 of ten parts is all of them, and networks were trained on what lay in memory."""
    log = lg.Transitions(np.arange(30.0), next_state=np.arange(30.0), initial_state=[0.0], episode=episode)
    trained, held = split_rows(prepare(log, None, 0.9), 0.99, 0)
    assert len(trained) == (1 if episode is None else 3)
    np.testing.assert_array_equal(np.sort(np.concatenate([trained, held])), np.arange(30))


def test_a_single_row_is_trained_on():
    samples = prepare(lg.Transitions([0.5], next_state=[0.7], episode=[0]), None, 0.9)
    assert [rows.tolist() for rows in split_rows(samples, 0.1, 0)] == [[0], [0]]
