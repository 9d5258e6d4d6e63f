"""The ratio of a model's simulated distribution to the log, and doubly robust values with their errors.

With tau normalized to E_p[nu tau] = 1 (nu counts what terminal states hold) and Q, V per step,

    value = mean V(s0) + E_p[tau (r + gamma V(s') - Q)]   for gamma < 1,
    value = E_p[tau (r + V(s') - Q)]                       for gamma = 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lingendice.continuous.dynamics import Dynamics, folds
from lingendice.continuous.fitted_q import FittedQ
from lingendice.continuous.regression import Fitting, Perceptron, Regression, run_steps
from lingendice.continuous.samples import Samples, Singles
from lingendice.data.checks import Floats

ODDS = Fitting(steps=600, batch=1024, rate=2e-3, weight_decay=1e-4, hidden=(64, 64))
_LOG_ODDS = (-10.0, 6.0)
_FOLDS = 3


def ratio_of_model(
    samples: Samples, visited: Singles, log_ratio: Floats | None, seed: int, threads: int,
    fitting: Fitting = ODDS,
) -> Floats:  # fmt: skip
    """tau = (target / cloned behavior) x odds of a simulated state against a logged one.

    The odds are those of a logistic network, each row by one that its episode did not train. Without
    densities of the policies (``log_ratio`` None) the network sees states and actions together.
    """
    d = samples.n_inputs if log_ratio is None else samples.n_states_in
    n, m = len(samples.logged), len(visited)
    inputs = np.ascontiguousarray(np.concatenate([samples.logged[:, :d], visited[:, :d]]))
    simulated = np.concatenate([np.zeros(n), np.ones(m)]).astype(np.float32)
    weight = np.where(simulated > 0, (n + m) / (2.0 * m), (n + m) / (2.0 * n)).astype(np.float32)
    fold = np.concatenate(
        [folds(samples, _FOLDS, seed), np.random.default_rng([seed, 50]).integers(0, _FOLDS, m)]
    )
    learners = [
        Regression(
            Perceptron(d, 1, fitting, seed * _FOLDS + k), inputs, simulated[:, None], weight, "logistic",
            rows=np.flatnonzero(fold != k),
        )
        for k in range(_FOLDS)
    ]  # fmt: skip
    run_steps(learners, fitting.steps, threads)
    logit = np.empty(n + m)
    for k, learner in enumerate(learners):
        logit[fold == k] = learner.net(inputs[fold == k])[:, 0]
    odds = np.exp(np.clip(_calibration(logit, simulated, weight) * logit[:n], *_LOG_ODDS))
    return odds if log_ratio is None else odds * np.exp(np.clip(log_ratio, -30.0, 30.0))


def _calibration(logit: Floats, label: Singles, weight: Singles) -> float:
    """The factor of the logits, at most 1, that rows left out are likeliest under: networks are too sure."""
    factors = np.linspace(0.0, 1.0, 21)
    losses = [weight @ (np.logaddexp(0.0, c * logit) - label * c * logit) for c in factors]
    return float(factors[int(np.argmin(losses))])


def normalized(samples: Samples, tau: Floats) -> Floats:
    """tau with E_p[nu tau] = 1."""
    mass = float(np.mean(samples.mass_weight * tau))
    return tau / mass if mass > 0.0 else tau


class Weighted(NamedTuple):
    """A value with its standard error, clustered by episode."""

    value: float
    standard_error: float
    scores: Floats
    """Influence of each cluster: their squares, over n (n - 1), add up to the squared error."""


def weighted_value(samples: Samples, tau: Floats) -> Weighted:
    """E_p[tau r], self-normalized."""
    reward = samples.transitions.reward
    assert reward is not None
    tau = normalized(samples, tau)
    value = float(np.mean(tau * reward))
    return _clustered(samples, value, tau * (reward - value * samples.mass_weight), None)


def doubly_robust(samples: Samples, tau: Floats, q: FittedQ, model: Dynamics | None = None) -> Weighted:
    """The doubly robust value; where restarts were inferred each is replaced by its probability."""
    gamma, reward = samples.gamma, samples.transitions.reward
    assert reward is not None
    tau = normalized(samples, tau)
    scale = 1.0 - gamma if gamma < 1.0 else 1.0
    again = float(q.first.mean()) if q.first.size else 0.0
    following = np.where(samples.absorbed, 0.0, q.following)
    following = np.where(samples.restarted, again, following)
    if model is not None and model.inferred and model.ends is not None:
        ends = np.empty(len(reward))
        fold = folds(samples, len(model.members), model.seed)
        for k in range(len(model.members)):
            rows = np.flatnonzero(fold == k)
            ends[rows] = model.predict(k, samples.logged[rows]).ends
        stays = np.where(model.ended < 0.5, following, q.stays)
        following = (1.0 - ends) * stays + ends * again
    surprise = (scale * reward + gamma * following - q.q) / scale
    if gamma < 1.0:
        correction = float(np.mean(tau * surprise))
        value = again + correction
        return _clustered(samples, value, tau * (surprise - correction * samples.mass_weight), q.first)
    value = float(np.mean(tau * surprise))
    return _clustered(samples, value, tau * (surprise - value * samples.mass_weight), None)


def _clustered(samples: Samples, value: float, influence: Floats, first: Floats | None) -> Weighted:
    """Errors over episodes, or over runs of rows where there are none; ``first`` adds the initial states."""
    n = len(influence)
    episode = samples.transitions.episode
    if episode is None:
        episode = np.arange(n) * min(n, 50) // n
    clusters = int(episode.max()) + 1
    scores = np.bincount(episode, influence, clusters) * clusters / n
    extra = 0.0
    if first is not None and first.size > 1:
        if _first_by_episode(samples, clusters):
            scores = scores + first - first.mean()
        else:
            extra = float(first.var(ddof=1)) / first.size
    if clusters < 2:
        return Weighted(value, math.nan, scores)
    error = math.sqrt(float(scores.var(ddof=1)) / clusters + extra)
    return Weighted(value, error, scores)


def _first_by_episode(samples: Samples, clusters: int) -> bool:
    """Whether the initial states are the first ones of the episodes, in order."""
    given, episode = samples.transitions.initial_state, samples.transitions.episode
    if episode is None:
        return False
    if given is None:
        return True
    own = samples.transitions.state[np.unique(episode, return_index=True)[1]]
    return len(given) == clusters and np.array_equal(given, own)
