"""A base for the ratio: tau = base * g, so that networks learn only what cloned policy ratios leave open.

Under the distribution p * base the ratio to be learnt is g = mu / (p * base): the same saddle point with rows
drawn in
proportion to the base. It is exact for any weights that depend on nothing later than the row's action, since
s' is then distributed as ever.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.samples import Samples
from lingendice.data.checks import Floats
from lingendice.data.transitions import Transitions

DEFENSIVE = 0.1
"""Share of the plain log in the base: no row is lost, and g is at most ten times tau."""
LEAST_EFFECTIVE = 0.3
"""Share of the log that the effective sample size must keep for a window to be lengthened."""
COPIES = 8
MOST_ROWS = 4_000_000
_LARGEST_LOG = 30.0


class Base(NamedTuple):
    """Weights of mean 1, and how many ratios were multiplied for each at most."""

    weight: Floats
    window: int


def base_of(transitions: Transitions, log_ratio: Floats, gamma: float) -> Base:
    """Products of the ratios at a row and at the steps before it, times a distribution over steps.

    One ratio is a factor of tau itself. A product over the last h steps makes the state's distribution that
    of h steps
    under the target; h doubles while the weights keep an effective sample size of ``LEAST_EFFECTIVE``.
    Without episodes h is 1 and all steps count alike.
    """
    log_ratio = np.clip(log_ratio, -_LARGEST_LOG, _LARGEST_LOG)
    n = len(log_ratio)
    episode = np.arange(n) if transitions.episode is None else transitions.episode
    order = np.argsort(episode, kind="stable")
    first = np.flatnonzero(np.diff(episode[order], prepend=-1))
    start = np.repeat(first, np.diff(first, append=n))
    step = np.arange(n) - start
    sums = np.concatenate([[0.0], np.cumsum(log_ratio[order])])
    longest = int(step.max()) + 1
    window, weight = 1, _product(sums, start, step, 1)
    while window < longest:
        longer = min(2 * window, longest)
        tried = _product(sums, start, step, longer)
        if tried.sum() ** 2 < LEAST_EFFECTIVE * n * (tried @ tried):
            break
        window, weight = longer, tried
    if transitions.episode is not None:
        weight = weight * _distribution_of_steps(transitions, gamma, longest)[step]
    found = np.empty(n)
    found[order] = weight / weight.mean()
    return Base((1.0 - DEFENSIVE) * found + DEFENSIVE, window)


def _product(sums: Floats, start: NDArray[np.int64], step: NDArray[np.int64], window: int) -> Floats:
    """Products over the window, of mean 1 at every step, as in weighted importance sampling."""
    rows = np.arange(len(start))
    logs = sums[1:] - sums[np.maximum(start, rows + 1 - window)]
    largest = np.full(int(step.max()) + 1, -np.inf)
    np.maximum.at(largest, step, logs)
    weight = np.exp(logs - largest[step])
    means = np.bincount(step, weight) / np.bincount(step)
    return weight / means[step]


def _distribution_of_steps(transitions: Transitions, gamma: float, longest: int) -> Floats:
    """Weight of each step: (1 - gamma) gamma^t, and what comes after the log on a ramp toward its end.

    Late steps are nearer to the stationary distribution, and a ramp (unlike a cut) hardly disturbs the
    balance along
    an episode. Where episodes end by themselves the chain is renewed, and all steps count alike.
    """
    steps = np.arange(longest)
    if transitions.terminal is not None and transitions.terminal.any():
        return np.ones(longest)
    ramp = steps + 0.5
    return (1.0 - gamma) * gamma**steps + gamma**longest * ramp / ramp.sum()


def resampled(samples: Samples, seed: int) -> Samples:
    """Rows in proportion to the base, in equal strides through its sum; the same where it is flat."""
    n = len(samples.base)
    if n == 0 or np.ptp(samples.base) == 0.0:
        return samples
    count = max(n, min(COPIES * n, MOST_ROWS))
    ends = np.cumsum(samples.base) * (count / samples.base.sum())
    places = np.arange(count) + np.random.default_rng([seed, 9]).random()
    return samples.subset(np.minimum(np.searchsorted(ends, places, side="right"), n - 1))
