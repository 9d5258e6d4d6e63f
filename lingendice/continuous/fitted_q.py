"""Fitted Q evaluation: Q(x) = r + gamma E V(s'), V(s) = E_pi Q(s, .), by temporal differences.

Rewards are scaled by 1 - gamma, so that Q is a value per step; at gamma = 1 Q is differential,
r - rho + V(s'), and rho is the value. Fitted to the log, or to steps that a model of the dynamics draws, with
rewards in units of their own spread: steps of Adam have a size, and answers must not depend on the currency.

References
----------
H. Le, C. Voloshin, Y. Yue (2019). Batch policy learning under constraints. ICML.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.dynamics import Dynamics, folds
from lingendice.continuous.regression import Fitting, Perceptron, run_steps
from lingendice.continuous.samples import Arrivals, PolicySamples, Singles, expected_inputs, spread_of
from lingendice.data.checks import Floats
from lingendice.kernels import mlp
from lingendice.kernels.parallel import run_all

FITTING = Fitting(steps=2000, batch=256, rate=1e-3, weight_decay=0.0, hidden=(64, 64))
DRAWS = 6
"""Next actions that are drawn for each row where no exact expectation is possible."""
MOST_NUMBERS = 50_000_000
"""Of inputs at arrivals held in memory: beyond it fewer draws are taken."""
MOST_MODEL_ROWS = 50_000
"""Logged rows, in equal strides, at which a model's steps are drawn."""
_FOLLOW, _RHO = 0.15, 0.02
_LONGEST = 100.0
"""Steps over which a difference of rewards may last, at gamma = 1."""
FOLDS = 3


def share_begun(gamma: float, fitting: Fitting) -> float:
    """gamma to the number of sweeps: what they leave of a constant that Q begins at; 0 at gamma = 1."""
    return float(gamma ** (_FOLLOW * fitting.steps)) if gamma < 1.0 else 0.0


class Unit(NamedTuple):
    """Networks learn (value - center) / scale; differential values, at gamma = 1, are only scaled."""

    center: float
    scale: float
    gamma: float

    @classmethod
    def of(cls, samples: PolicySamples) -> Unit:
        """Mean and standard deviation of the logged rewards.

        Where episodes are absorbed the mean is what an end costs: a scale, where rewards hardly differ.
        """
        reward = samples.reward
        center, scale = float(reward.mean()), spread_of(reward)
        return cls(center, max(scale, abs(center)) if samples.absorbed.any() else scale, samples.gamma)

    def rewards(self, reward: Floats, ends: Any) -> Singles:
        """What a step adds to Q as it is learned; past an end, of probability ``ends``, the value is 0."""
        share = 1.0 - self.gamma if self.gamma < 1.0 else 1.0
        ended = self.gamma * ends * self.center if self.gamma < 1.0 else 0.0
        return ((share * (reward - self.center) - ended) / self.scale).astype(np.float32)

    def limits(self, reward: Floats) -> tuple[float, float]:
        """Of what is learned from: no value per step lies beyond the rewards (and 0 where episodes end)."""
        if self.gamma == 1.0:
            reach = _LONGEST * float(np.ptp(reward)) / self.scale
            return -reach, reach
        low, high = min(float(reward.min()), 0.0), max(float(reward.max()), 0.0)
        return (low - self.center) / self.scale, (high - self.center) / self.scale

    def values(self, learned: Any) -> Floats:
        """Values of what networks say."""
        shift = self.center if self.gamma < 1.0 else 0.0
        return shift + self.scale * np.asarray(learned, dtype=np.float64)


class QSteps(NamedTuple):
    """What temporal differences are taken over."""

    inputs: Singles
    """(n, d)."""
    reward: Singles
    """(n,), as ``Unit`` has them."""
    arrivals: Singles
    """(n, branches, d)."""
    weight: Singles
    """(n, branches): gamma times the probability of a branch; 0 past what ended."""
    exact: bool
    """Whether branches are all the actions there are; else they are draws."""
    limits: tuple[float, float]
    """Between which the values lie that are learned from."""


class QLearner:
    """One Q in training: its network, the slow copy it learns from, and rho."""

    def __init__(
        self, steps: QSteps, rows: NDArray[np.int64], gamma: float, fitting: Fitting, seed: int
    ) -> None:
        self.net = Perceptron(steps.inputs.shape[1], 1, fitting, seed)
        self.steps, self.rows, self.gamma = steps, rows, gamma
        self._buffers = self.net.buffers(steps.arrivals.shape[1] if steps.exact else 1)
        # It begins near 0, the mean of the log: the first 1 / (1 - gamma) sweeps need not go into a constant.
        self.slow = self.net.parameters.copy()
        # rho, the average reward as it is learnt, and the mean absolute error.
        self.state = np.array([float(steps.reward[rows].mean()) if gamma == 1.0 else 0.0, 0.0])

    def advance(self, steps: int) -> None:
        """Take some steps; safe to call from several threads, one after another."""
        net, data = self.net, self.steps
        with net.lock:
            mlp.fitted_q_steps(
                net.net, self.slow, net.moments, self.rows, data[:4],
                (not data.exact, _FOLLOW, _RHO if self.gamma == 1.0 else 0.0, *data.limits), net.rates,
                net.fitting.batch,
                (net.seed, net.done), steps, self._buffers, self.state,
            )  # fmt: skip
            net.done += steps


@dataclass(frozen=True, eq=False)
class FittedQ:
    """Q and V at the log, each row by a network that its episode did not train."""

    value: float
    members: Floats
    """Value by each network."""
    q: Floats
    """(N,) at the logged rows."""
    following: Floats
    """(N,): V at the logged s', also past what ended."""
    first: Floats
    """(n,): V at the initial states, the mean over the networks; empty where they are unknown."""
    stays: Floats
    """(N,): V where a model expects the step to lead; ``following`` without a model."""
    ends: Floats
    """(N,): probability that a model gives to an end of the step; zeros without a model."""
    largest: float
    """Largest |Q| at the log, in units of the largest that rewards allow."""


def fit_to_log(samples: PolicySamples, seed: int, threads: int, fitting: Fitting = FITTING) -> FittedQ:
    """Q from the logged steps, three networks that each leave out a third of the episodes."""
    rng = np.random.default_rng([seed, 40])
    n = len(samples.logged)
    arrivals, weight = branches(samples, samples.following, np.arange(n), rng)
    if samples.restarted.any():
        assert samples.starting is not None
        again = np.flatnonzero(samples.restarted)
        firsts = rng.integers(0, len(samples.starting.states), again.size)
        arrivals[again], weight[again] = branches(samples, samples.starting, firsts, rng)
    weight = weight * np.float32(samples.gamma)
    weight[samples.absorbed] = 0.0
    unit = Unit.of(samples)
    steps = QSteps(
        samples.logged, unit.rewards(samples.reward, samples.absorbed), arrivals, weight,
        samples.kind not in ("sampled", "gaussian"), unit.limits(samples.reward),
    )  # fmt: skip
    fold = folds(samples, FOLDS, seed)
    learners = [
        QLearner(steps, np.flatnonzero(fold != k), samples.gamma, fitting, seed * FOLDS + k)
        for k in range(FOLDS)
    ]
    run_steps(learners, fitting.steps, threads)
    return _read(learners, samples, fold, None, rng, threads)


def fit_to_model(
    model: Dynamics, visited: Singles, seed: int, threads: int, fitting: Fitting = FITTING
) -> FittedQ:
    """Q of the model: one network per member, from its steps at logged and at simulated inputs.

    Row i of the log gets the Q of the member whose training left out its episode.
    """
    samples = model.samples
    stride = -(-len(samples.logged) // MOST_MODEL_ROWS)
    inputs = np.concatenate([samples.logged[::stride], visited])
    fold = folds(samples, len(model.members), seed)

    def learner(member: int) -> QLearner:
        steps = _simulated(model, member, inputs, np.random.default_rng([seed, 41, member]))
        rows = np.arange(len(inputs))
        return QLearner(steps, rows, samples.gamma, fitting, seed * FOLDS + member + 1_000_003)

    learners = run_all([partial(learner, k) for k in range(len(model.members))], threads)
    run_steps(learners, fitting.steps, threads)
    return _read(learners, samples, fold, model, np.random.default_rng([seed, 42]), threads)


def _simulated(model: Dynamics, member: int, inputs: Singles, rng: np.random.Generator) -> QSteps:
    moved, gamma = model.predict(member, inputs), model.samples.gamma
    arrivals = np.empty((len(inputs), DRAWS, inputs.shape[1]), dtype=np.float32)
    for draw in range(DRAWS):
        states = model.shake(moved.states, rng)
        if model.ends is not None and not model.absorbing:
            again = rng.random(len(states)) < moved.ends
            states[again] = model.fresh(int(again.sum()), rng)
        arrivals[:, draw] = model.act(states, rng)
    weight = gamma * (1.0 - moved.ends) if model.absorbing else np.full(len(inputs), gamma)
    weights = np.repeat(weight[:, None], DRAWS, axis=1).astype(np.float32)
    unit = Unit.of(model.samples)
    reward = unit.rewards(moved.reward, moved.ends if model.absorbing else 0.0)
    return QSteps(inputs, reward, arrivals, weights, False, unit.limits(moved.reward))


def branches(
    samples: PolicySamples, arrivals: Arrivals, rows: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Singles, Singles]:
    """Inputs at arrivals and weights of the branches: all discrete actions, or some draws."""
    if samples.kind in ("none", "discrete"):
        return expected_inputs(samples, arrivals, rows, rng)
    draws = max(1, min(DRAWS, MOST_NUMBERS // (len(rows) * samples.n_inputs)))
    parts = [expected_inputs(samples, arrivals, rows, rng)[0] for _ in range(draws)]
    return np.concatenate(parts, axis=1), np.ones((len(rows), draws), dtype=np.float32)


def _read(
    learners: list[QLearner], samples: PolicySamples, fold: NDArray[np.int64], model: Dynamics | None,
    rng: np.random.Generator, threads: int,
) -> FittedQ:  # fmt: skip
    """What the networks say of the log."""
    q, following, stays, ends = np.zeros((4, len(samples.logged)))
    points, weight = _mean_inputs(samples, samples.following, rng)
    firsts = None if samples.starting is None else _mean_inputs(samples, samples.starting, rng)
    unit = Unit.of(samples)

    def read(k: int) -> Floats:
        net, rows = learners[k].net, np.flatnonzero(fold == k)
        q[rows] = unit.values(net(samples.logged[rows])[:, 0])
        following[rows] = unit.values(_expect(net, points[rows], weight[rows]))
        stays[rows] = following[rows]
        if model is not None:
            states, _, ends[rows] = model.predict(k, samples.logged[rows])
            inside = np.clip(states, model.low, model.high)
            stays[rows] = unit.values(net(model.act(inside, np.random.default_rng([k, 43])))[:, 0])
        return np.zeros(0) if firsts is None else unit.values(_expect(net, *firsts))

    begun = run_all([partial(read, k) for k in range(len(learners))], threads)
    members = np.array([unit.center + unit.scale * float(one.state[0]) if samples.gamma == 1.0 else v.mean()
                        for one, v in zip(learners, begun, strict=True)])  # fmt: skip
    largest = float(np.abs(q).max() / (float(np.abs(samples.reward).max()) or 1.0))
    return FittedQ(float(members.mean()), members, q, following, np.mean(begun, axis=0), stays, ends, largest)


def _mean_inputs(
    samples: PolicySamples, arrivals: Arrivals, rng: np.random.Generator
) -> tuple[Singles, Singles]:
    inputs, weight = branches(samples, arrivals, np.arange(len(arrivals.states)), rng)
    return inputs, weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)


def _expect(net: Perceptron, points: Singles, weight: Singles) -> Floats:
    values = net(points.reshape(-1, points.shape[2])).reshape(weight.shape)
    return (values * weight).sum(axis=1).astype(np.float64)
