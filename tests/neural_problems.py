"""GenDICE's objective on one batch in plain double precision, and small problems to evaluate it on."""

from __future__ import annotations

import numpy as np

import lingendice as lg
from lingendice.continuous.learner import Batches, Learner, NeuralOptions, gendice
from lingendice.continuous.network import Network
from lingendice.continuous.samples import PolicySamples, expected_inputs, prepare
from lingendice.data.policies import GaussianPolicy
from lingendice.divergences import DIVERGENCES
from lingendice.kernels import ratio_step


def net(layers, x, activation):
    for weights, biases in layers[:-1]:
        x = x @ weights + biases
        x = {"tanh": np.tanh(x), "relu": np.maximum(x, 0.0), "silu": x / (1.0 + np.exp(-x))}[activation]
    return (x @ layers[-1][0] + layers[-1][1])[..., 0]


def dual(y, loss: ratio_step.Loss):
    if np.isfinite(loss.limit):
        return loss.limit - np.logaddexp(0.0, np.log(np.expm1(loss.limit)) - y)
    return loss.bound * np.tanh(y / loss.bound) if np.isfinite(loss.bound) else y


def ratio(z, output):
    return {"square": z * z, "softplus": np.logaddexp(0, z), "exp": np.exp(z), "identity": z}[output]


def drawn(learner: Learner):
    """The rows of the learner's next batch, as the kernels draw them."""
    held, batch = learner.batches.rows, learner.options.batch
    rows, firsts, restarts = np.empty((3, batch), dtype=np.int64)
    ratio_step.draw_rows(
        learner.seed, learner.step, batch, held.shape.n_rows, held.shape.n_firsts, held.flags, rows, firsts,
        restarts,
    )  # fmt: skip
    return rows, firsts, restarts


def batch_objective(learner: Learner, tau_layers, f_layers, u) -> float:
    """J on the learner's next batch; policies must act without noise."""
    samples, objective = learner.batches.samples, learner.objective
    activation, loss = learner.network.activation, objective.loss
    rows, firsts, restarts = drawn(learner)
    rng = np.random.default_rng(0)
    x = samples.logged[rows].astype(float)
    arrivals, weights = expected_inputs(samples, samples.following, rows, rng)
    again = np.flatnonzero(restarts >= 0)
    if again.size:
        arrivals[again], weights[again] = expected_inputs(samples, samples.starting, restarts[again], rng)
    tau = ratio(net(tau_layers, x, activation), objective.output)
    f = dual(net(f_layers, x, activation), loss)
    following = (dual(net(f_layers, arrivals.astype(float), activation), loss) * weights).sum(axis=1)
    following = np.where(samples.absorbed[rows], 0.0, following)
    excess = 0.0 * f
    if objective.divergence in DIVERGENCES:
        excess = DIVERGENCES[objective.divergence]().excess(f)
    nu = samples.mass_weight[rows]
    value = loss.gamma * np.mean(tau * following) - np.mean(tau * f)
    value -= np.mean(tau * excess if loss.by_ratio else excess)
    value += loss.penalty * (u * (np.mean(nu * tau) - 1.0) - u * u / 2.0)
    value += loss.ridge / 2.0 * np.mean((tau - loss.center) ** 2)
    if loss.gamma < 1.0:
        start, start_weights = expected_inputs(samples, samples.starting, firsts, rng)
        first = (dual(net(f_layers, start.astype(float), activation), loss) * start_weights).sum(axis=1)
        value += (1.0 - loss.gamma) * np.mean(first)
    return float(value)


def gradients(learner: Learner):
    """Gradients of the learner's next batch by the engine, as lists of (weights, biases)."""
    found = learner.add_gradients()
    return [learner.network.layers(part.astype(np.float64).sum(axis=0)) for part in (found.tau, found.f)]


def random_transitions(
    kind: str, rng: np.random.Generator, n: int = 300, n_states: int = 3
) -> lg.Transitions:
    state, following = rng.normal(size=(2, n, n_states))
    action = {"none": None, "discrete": rng.integers(0, 3, n), "gaussian": rng.normal(size=(n, 2))}[kind]
    return lg.Transitions(
        state, action, rng.normal(size=n), following,
        initial_state=rng.normal(size=(20, n_states)), terminal=rng.random(n) < 0.1,
        n_actions=3 if kind == "discrete" else None,
    )  # fmt: skip


def policy_of(kind: str):
    if kind == "none":
        return None
    if kind == "discrete":
        return lambda states: np.exp(states) / np.exp(states).sum(axis=1, keepdims=True)
    return GaussianPolicy(lambda states: 0.3 * states[:, :2], std=0.0)


def make_learner(
    kind="discrete", gamma=0.9, divergence="chi2", hidden=(20, 12), activation="tanh", output="square",
    batch=700, ridge=0.1, seed=1, **further,
) -> Learner:  # fmt: skip
    samples: PolicySamples = prepare(
        random_transitions(kind, np.random.default_rng(seed)), policy_of(kind), gamma
    )
    options = NeuralOptions(
        hidden=hidden, activation=activation, output=output, batch=batch, learning_rate=3e-3,
        **further,
    )  # fmt: skip
    network = Network(samples.n_inputs, hidden, activation)
    objective = gendice(gamma, divergence, output, 1.5, ridge, None)
    learner = Learner(Batches(samples), network, objective, options, 100, seed)
    learner.state[0] = 0.2
    return learner


SMALL = {"batch": 256, "hidden": (32, 32), "holdout": 0.0}


def small_mdp(rng, n=6000):
    """Three states, two actions, logged uniformly in long episodes; with the exact answer of the same log."""
    kernel = rng.dirichlet(np.ones(3), size=(3, 2))
    states, actions = np.empty(n + 1, int), rng.integers(0, 2, n)
    states[0] = 0
    for t in range(n):
        if t % 20 == 0:
            states[t] = 0
        states[t + 1] = rng.choice(3, p=kernel[states[t], actions[t]])
    following = states[1:].copy()
    episode = np.arange(n) // 20
    reward = np.array([0.0, 1.0, 3.0])[states[:-1]] + actions
    policy = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
    counts = lg.Counts.from_transitions(states[:-1], following, actions, reward, episode)
    transitions = lg.Transitions(states[:-1], actions, reward, following, episode=episode)
    return transitions, counts, policy
