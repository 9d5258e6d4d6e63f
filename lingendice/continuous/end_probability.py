"""The probability that a step ends, or restarts, as a logistic function of where it leads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import Floats

RIDGES = (30.0, 3.0, 0.3, 0.03)
FEWEST_ENDS = 3.0
MOST_ROWS = 100_000
"""Of long logs so many are read, in equal strides."""
_FAR = 8.0
"""Standardized coordinates are cut off here: squares grow fast."""


@dataclass(frozen=True, eq=False)
class EndProbability:
    """1 / (1 + exp(-(constant + linear'z + z' quadratic z)))."""

    constant: float
    linear: Floats
    quadratic: Floats

    def __call__(self, states: Floats) -> Floats:
        """At standardized states."""
        z = np.clip(states, -_FAR, _FAR)
        logit = self.constant + z @ self.linear + ((z @ self.quadratic) * z).sum(axis=1)
        return 1.0 / (1.0 + np.exp(-np.clip(logit, -40.0, 40.0)))


def fit_end_probability(states: Floats, ended: Floats, fold: NDArray[np.int64]) -> EndProbability | None:
    """Logistic regression on coordinates and their products, its ridge by likelihood over three folds.

    The constant alone where nothing does better; None where nothing ends. A network is too smooth: where
    episodes end at a bound it was off by 35 times as much on Cartpole.
    """
    d = states.shape[1]
    if not ended.any() or ended.sum() < 1e-3:
        return None
    stride = -(-len(states) // MOST_ROWS)
    states, ended, fold = states[::stride], ended[::stride], fold[::stride]
    first, second = np.triu_indices(d)
    z = np.clip(states, -_FAR, _FAR)
    features = np.column_stack([z, z[:, first] * z[:, second]])
    center, spread = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    features = np.column_stack([np.ones(len(z)), (features - center) / spread])
    share = float(np.clip(ended.mean(), 1e-6, 1.0 - 1e-6))
    start = np.zeros(features.shape[1])
    start[0] = math.log(share / (1.0 - share))
    best_score, best_ridge = _constant_score(ended, fold), None
    if ended.sum() >= FEWEST_ENDS:
        for ridge in RIDGES:
            score = 0.0
            for k in range(3):
                out, rest = fold == k, fold != k
                found = _newton(features[rest], ended[rest], ridge, start, 12)
                score += _loss(features[out] @ found, ended[out])
            if score < best_score:
                best_score, best_ridge = score, ridge
            elif score > 1.3 * best_score + 2.0:
                break
    if best_ridge is None:
        return EndProbability(start[0], np.zeros(d), np.zeros((d, d)))
    theta = _newton(features, ended, best_ridge, start, 25)
    raw = theta[1:] / spread
    quadratic = np.zeros((d, d))
    quadratic[first, second] = raw[d:]
    return EndProbability(float(theta[0] - raw @ center), raw[:d], quadratic)


def _loss(logit: Floats, ended: Floats) -> float:
    return float(np.logaddexp(0.0, logit).sum() - ended @ logit)


def _constant_score(ended: Floats, fold: NDArray[np.int64]) -> float:
    score = 0.0
    for k in range(3):
        share = float(np.clip(ended[fold != k].mean(), 1e-6, 1.0 - 1e-6))
        out = ended[fold == k]
        score += _loss(np.full(out.size, math.log(share / (1.0 - share))), out)
    return score


def _newton(features: Floats, ended: Floats, ridge: float, start: Floats, steps: int) -> Floats:
    """Newton's method with halved steps for the penalized likelihood; the constant is hardly penalized."""
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
