"""Networks with several outputs, trained by compiled steps; members of an ensemble run side by side.

The probability that a step ends is a logistic function of where it leads: a network is too smooth for it.

References
----------
D. P. Kingma, J. Ba (2015). Adam: A method for stochastic optimization. ICLR.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.network import Network
from lingendice.continuous.samples import Singles
from lingendice.data.checks import Floats
from lingendice.data.interrupts import check
from lingendice.kernels import mlp
from lingendice.kernels.parallel import run_all
from lingendice.kernels.simulators import FAR

KERNEL_SECONDS = 0.05
"""How long one call into compiled code lasts, so that Ctrl-C is heard."""
LOSSES = ("huber", "logistic", "softmax", "gaussian")
"""By their numbers in ``kernels/mlp.py``."""


@dataclass(frozen=True)
class Fitting:
    """How a network is trained: ``steps`` steps of Adam on batches, the rate falling along a half cosine."""

    steps: int = 1000
    batch: int = 256
    rate: float = 3e-3
    weight_decay: float = 1e-5
    hidden: tuple[int, ...] = (64, 64)


class Perceptron:
    """A network that is fitted: parameters, moments of Adam, and how many steps it took."""

    def __init__(self, n_inputs: int, n_outputs: int, fitting: Fitting, seed: int) -> None:
        self.fitting, self.seed, self.done = fitting, seed, 0
        self.network = Network(n_inputs, fitting.hidden, "silu", n_outputs)
        self.parameters = np.zeros(self.network.size, dtype=np.float32)
        rng = np.random.default_rng([seed, 7])
        layers = self.network.layers(self.parameters)
        for layer, (weights, _) in enumerate(layers):
            # Variance 2 / inputs keeps the size of the signal; the last layer begins near 0.
            inner = len(weights)
            scale = math.sqrt(2.0 / inner) if layer < len(layers) - 1 else 0.1 / math.sqrt(inner)
            weights[:] = scale * rng.standard_normal(weights.shape)
        self.moments = np.zeros((2, self.network.size), dtype=np.float32)
        self.lock = threading.Lock()

    @property
    def net(self) -> mlp.Net:
        """What the kernels take."""
        return self.network.net(self.parameters)

    def __call__(self, inputs: NDArray[Any]) -> Singles:
        """Outputs, (rows, outputs); safe to call from several threads."""
        return self.network.outputs(self.parameters, inputs)

    def buffers(self, branches: int = 1) -> tuple[Singles, ...]:
        """(inputs, hidden, slopes, outputs, deltas, spare, gradient) of a batch."""
        batch, network = self.fitting.batch, self.network
        rows = batch * branches
        hidden, widest = rows * network.hidden_width, batch * network.widest
        inputs, outputs = rows * network.n_inputs, rows * network.n_outputs
        sizes = (inputs, hidden, hidden, outputs, widest, widest, network.size)
        return tuple(np.zeros(max(size, 1), dtype=np.float32) for size in sizes)

    @property
    def rates(self) -> tuple[float, float, float]:
        """(rate, weight decay, planned steps)."""
        return self.fitting.rate, self.fitting.weight_decay, float(self.fitting.steps)


@dataclass
class NetworkFit:
    """A network on its way to fit targets at some of the rows.

    ``loss`` is "huber" (with ``shape``), "logistic" (targets in [0, 1]), "softmax" (one-hot targets) or
    "gaussian" (outputs are means, then logarithms of standard deviations).
    """

    net: Perceptron
    inputs: Singles
    targets: Singles
    weights: Singles
    loss: str = "huber"
    shape: Singles | None = None
    rows: NDArray[np.int64] | None = None

    @cached_property
    def _fixed(self) -> tuple[Any, ...]:
        rows = np.arange(len(self.inputs)) if self.rows is None else self.rows
        shape = squared(self.net.network.n_outputs) if self.shape is None else self.shape
        return rows, shape, LOSSES.index(self.loss), self.net.buffers()

    def advance(self, steps: int) -> None:
        """Take some steps; safe to call from several threads, one after another."""
        net = self.net
        with net.lock:
            rows, shape, loss, buffers = self._fixed
            mlp.train_steps(
                net.net, net.moments, rows, (self.inputs, self.targets, self.weights), loss, shape,
                net.rates, net.fitting.batch, (net.seed, net.done), steps, buffers,
            )  # fmt: skip
            net.done += steps


def squared(n_outputs: int, n_huber: int = 0, width: float = 0.5, factor: float = 1.0) -> Singles:
    """(factor, steepness, limit) of each output: Huber's loss for the first ones, squares for the rest."""
    shape = np.ones((3, n_outputs), dtype=np.float32)
    shape[1], shape[2] = 2.0, np.inf
    shape[0, :n_huber], shape[1, :n_huber], shape[2, :n_huber] = factor, 1.0 / width, 1.0
    return shape


def run_steps(learners: Sequence[Any], steps: int, threads: int) -> None:
    """Let every learner ``advance`` by ``steps`` steps, on all threads and in pieces that Ctrl-C can part.

    Learners hold their state: which thread takes a piece, and how long the pieces are, changes no bit.
    """
    done, piece = 0, 2
    while done < steps:
        check()
        n = min(4 * piece, steps - done)
        cuts = [min(piece, n - first) for first in range(0, n, piece)]
        begun = time.perf_counter()
        run_all([partial(learner.advance, cut) for cut in cuts for learner in learners], threads)
        pace = (time.perf_counter() - begun) * min(threads, len(learners)) / (n * len(learners))
        done, piece = done + n, max(1, int(KERNEL_SECONDS / max(pace, 1e-7)))


def fit(
    inputs: NDArray[Any], targets: NDArray[Any], fitting: Fitting, seed: int, loss: str, n_outputs: int
) -> Perceptron:
    """One network fitted to all rows."""
    net = Perceptron(inputs.shape[1], n_outputs, fitting, seed)
    x, y = (np.ascontiguousarray(part, np.float32) for part in (inputs, targets))
    run_steps([NetworkFit(net, x, y, np.ones(len(x), np.float32), loss)], fitting.steps, 1)
    return net


# -- ends of episodes ---------------------------------------------------------------------------------------

RIDGES = (30.0, 3.0, 0.3, 0.03)
FEWEST_ENDS = 3.0
MOST_ROWS = 100_000
"""Of longer logs this many are read, in equal strides."""


@dataclass(frozen=True, eq=False)
class EndProbability:
    """1 / (1 + exp(-(constant + linear'z + z' quadratic z)))."""

    constant: float
    linear: Floats
    quadratic: Floats
    """Upper triangular."""

    def __call__(self, states: Floats) -> Floats:
        """At standardized states."""
        z = np.clip(states, -FAR, FAR)
        logit = self.constant + z @ self.linear + ((z @ self.quadratic) * z).sum(axis=1)
        return 1.0 / (1.0 + np.exp(-np.clip(logit, -40.0, 40.0)))


def fit_end_probability(states: Floats, ended: Floats, fold: NDArray[np.int64]) -> EndProbability | None:
    """Logistic regression on coordinates and their products, its ridge by likelihood over three folds.

    The constant alone where nothing does better; None where nothing ends. A network is too smooth: where
    episodes end at a bound it was off by 35 times as much on Cartpole.
    """
    d = states.shape[1]
    if ended.sum() < 1e-3:
        return None
    stride = -(-len(states) // MOST_ROWS)
    states, ended, fold = states[::stride], ended[::stride], fold[::stride]
    first, second = np.triu_indices(d)
    z = np.clip(states, -FAR, FAR)
    features = np.column_stack([z, z[:, first] * z[:, second]])
    center, spread = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    features = np.column_stack([np.ones(len(z)), (features - center) / spread])

    def constant(rows: Any) -> Floats:
        share = float(np.clip(ended[rows].mean(), 1e-6, 1.0 - 1e-6))
        return np.append(math.log(share / (1.0 - share)), np.zeros(features.shape[1] - 1))

    def held_out(fitted: Callable[[Any], Floats]) -> float:
        rows = [(fold == k, fold != k) for k in range(3)]
        return sum(_loss(features[out] @ fitted(rest), ended[out]) for out, rest in rows)

    start = constant(slice(None))
    best_score, best_ridge = held_out(constant), None
    if ended.sum() >= FEWEST_ENDS:
        for ridge in RIDGES:
            score = held_out(partial(_newton, features, ended, ridge, start, 12))
            if score < best_score:
                best_score, best_ridge = score, ridge
            elif score > 1.3 * best_score + 2.0:
                break
    if best_ridge is None:
        return EndProbability(start[0], np.zeros(d), np.zeros((d, d)))
    theta = _newton(features, ended, best_ridge, start, 25, slice(None))
    raw = theta[1:] / spread
    quadratic = np.zeros((d, d))
    quadratic[first, second] = raw[d:]
    return EndProbability(float(theta[0] - raw @ center), raw[:d], quadratic)


def _loss(logit: Floats, ended: Floats) -> float:
    return float(np.logaddexp(0.0, logit).sum() - ended @ logit)


def _newton(features: Floats, ended: Floats, ridge: float, start: Floats, steps: int, rows: Any) -> Floats:
    """Newton's method with halved steps for the penalized likelihood of some rows.

    The constant is hardly penalized.
    """
    features, ended = features[rows], ended[rows]
    penalty = np.full(len(start), ridge)
    penalty[0] = 1e-8
    theta = start.copy()

    def objective(theta: Floats) -> float:
        return _loss(features @ theta, ended) + 0.5 * float(penalty @ theta**2)

    known = objective(theta)
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-np.clip(features @ theta, -40.0, 40.0)))
        gradient = features.T @ (p - ended) + penalty * theta
        hessian = (features * (p * (1.0 - p) + 1e-9)[:, None]).T @ features + np.diag(penalty)
        direction = np.linalg.solve(hessian, gradient)
        length = 1.0
        while length > 1e-3 and objective(theta - length * direction) > known:
            length *= 0.5
        theta = theta - length * direction
        found = objective(theta)
        if known - found < 1e-4 * (1.0 + abs(found)):
            break
        known = found
    return theta
