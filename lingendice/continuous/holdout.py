"""How far a ratio is from stationary on transitions that did not train it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.learner import Learner
from lingendice.continuous.samples import Arrivals, Samples, Singles
from lingendice.data.checks import Floats

MOST_ROWS = 4096


def split_rows(samples: Samples, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows): whole episodes where there are at least ten, else single rows."""
    n = len(samples.logged)
    if share == 0.0:
        return np.arange(n), np.arange(n)
    rng = np.random.default_rng([seed, 3])
    episode = samples.transitions.episode
    if episode is not None and int(episode.max()) >= 9:
        names = np.unique(episode)
        chosen = rng.permutation(names)[: max(1, round(share * names.size))]
        held = np.isin(episode, chosen)
    else:
        held = np.zeros(n, dtype=bool)
        held[rng.permutation(n)[: max(1, round(share * n))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


class HeldOut:
    """Inputs at held-out transitions, with actions drawn once."""

    def __init__(
        self, samples: Samples, rows: NDArray[np.int64], seed: int, most_rows: int = MOST_ROWS
    ) -> None:
        rng = np.random.default_rng([seed, 4])
        if rows.size > most_rows:
            rows = rng.permutation(rows)[:most_rows]
        self.gamma = samples.gamma
        self.logged, self.base = samples.logged[rows], samples.base[rows]
        inputs, weights = expected_inputs(samples, samples.following, rows, rng)
        restarted = np.flatnonzero(samples.restarted[rows])
        self.starting: tuple[Singles, Singles] | None = None
        if samples.starting is not None:
            firsts = rng.integers(0, len(samples.starting.states), max(1, rows.size))
            self.starting = expected_inputs(samples, samples.starting, firsts, rng)
            again = firsts[restarted]
            fresh, fresh_weights = expected_inputs(samples, samples.starting, again, rng)
            inputs[restarted], weights[restarted] = fresh, fresh_weights
        weights[samples.absorbed[rows]] = 0.0
        self.following = inputs, weights

    def residual(self, learner: Learner) -> float:
        """sqrt(max over v of J) for f = v' phi, phi the last hidden layer of f and a constant: g' H^-1 g.

        With g = (1 - gamma) E phi(x0) + gamma E tau phi(x') - E tau phi(x) and H = E tau phi phi'. Noise of
        n held-out rows alone makes it about sqrt(dim phi / n).
        """
        tau = self.base * np.maximum(learner.tau(self.logged), 0.0)
        phi = self._features(learner, self.logged)
        arrived = mean_features(lambda x: self._features(learner, x), *self.following)
        g = (tau[:, None] * (self.gamma * arrived - phi)).mean(axis=0)
        if self.gamma < 1.0 and self.starting is not None:
            first = mean_features(lambda x: self._features(learner, x), *self.starting)
            g += (1.0 - self.gamma) * first.mean(axis=0)
        gram = (phi * tau[:, None]).T @ phi / len(phi)
        scale = float(np.trace(gram)) / len(gram)
        if not (math.isfinite(scale) and np.isfinite(g).all()):
            return math.nan
        gram += 1e-4 * max(scale, 1e-12) * np.eye(len(gram))
        return math.sqrt(max(0.0, float(g @ np.linalg.solve(gram, g))))

    def _features(self, learner: Learner, inputs: Singles) -> Floats:
        layers = learner.network.layers(learner.f_parameters)
        values = inputs.astype(np.float64)
        for weights, biases in layers[:-1]:
            values = values @ weights + biases
            values = np.tanh(values) if learner.network.activation == "tanh" else np.maximum(values, 0.0)
        return np.hstack([values, np.ones((len(values), 1))])


def expected_inputs(
    samples: Samples, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Singles, Singles]:
    """(rows, branches, d) inputs at arrivals and (rows, branches) weights: all actions, or one sample."""
    states = arrivals.states[rows]
    if samples.kind == "discrete":
        a = samples.n_actions_in
        actions = np.broadcast_to(np.eye(a, dtype=np.float32), (len(rows), a, a))
        weights = arrivals.action[rows].copy()
    elif samples.kind == "none":
        actions = np.empty((len(rows), 1, 0), dtype=np.float32)
        weights = np.ones((len(rows), 1), dtype=np.float32)
    else:
        if samples.kind == "gaussian":
            std, low, high = samples.noise
            means = arrivals.action[rows]
            noise = rng.standard_normal(means.shape, dtype=np.float32)
            drawn = np.clip(means + std * noise, low, high)
        else:
            drawn = samples.draw(arrivals, rows, rng)
        actions, weights = drawn[:, None, :], np.ones((len(rows), 1), dtype=np.float32)
    repeated = np.repeat(states[:, None, :], actions.shape[1], axis=1)
    return np.concatenate([repeated, actions], axis=2), weights


def sampled_inputs(
    samples: Samples, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator
) -> Floats:
    """Inputs at some arrivals with one action of the policy each."""
    inputs, weights = expected_inputs(samples, arrivals, rows, rng)
    taken = (rng.random((len(rows), 1)) > np.cumsum(weights, axis=1)[:, :-1]).sum(axis=1)
    return inputs[np.arange(len(rows)), taken].astype(np.float64)


def mean_features(features, inputs: Singles, weights: Singles) -> Floats:  # type: ignore[no-untyped-def]
    n, branches, d = inputs.shape
    values = features(inputs.reshape(n * branches, d)).reshape(n, branches, -1)
    return (values * weights[:, :, None]).sum(axis=1)
