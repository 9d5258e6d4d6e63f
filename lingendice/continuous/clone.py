"""The behavior behind a log, cloned by networks, and a base for ratios from the target's density over it.

With tau = base * g networks learn only what products of cloned policy ratios do not explain. Under the
distribution p * base the ratio to be learned is g = mu / (p * base): the same saddle point with rows drawn in
proportion to the base. It is exact for any weights that depend on nothing later than the row's action,
since the distribution of s' is then unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.network import read_widths
from lingendice.continuous.regression import Fitting, fit
from lingendice.continuous.samples import PolicySamples, Scaling, prepare
from lingendice.data.checks import Floats, require_positive, require_whole
from lingendice.data.policies import (
    CallablePolicy,
    ContinuousPolicy,
    DiscretePolicy,
    GaussianPolicy,
    SampledPolicy,
    normal_log_density,
)
from lingendice.data.transitions import Transitions

SMALLEST_STD = 1e-3
"""Of the clone, in standard deviations of the logged action."""
WEIGHT_DECAY = 1e-4
CLONING = Fitting(1000, 512, 1e-3, WEIGHT_DECAY, (64, 64))
"""How :func:`clone_policy` trains: the defaults of :func:`clone_log_density`."""
_NO_BOUNDS = np.array(-np.inf), np.array(np.inf)


def clone_log_density(
    transitions: Transitions,
    *,
    steps: int = 1000,
    batch: int = 512,
    learning_rate: float = 1e-3,
    hidden: tuple[int, ...] = (64, 64),
    low: Any = None,
    high: Any = None,
    seed: int = 0,
) -> Floats:
    """Log density of every logged action under the cloned behavior.

    Discrete actions: a softmax over the outputs of networks, by cross entropy. Continuous ones: a Gaussian
    whose means and log standard deviations are networks of the state, by likelihood; ``low`` and ``high`` are
    the bounds that actions were clipped to.

    Examples
    --------
    >>> import numpy as np
    >>> import lingendice as lg
    >>> rng = np.random.default_rng(0)
    >>> state, action = rng.normal(size=(2, 200, 1))
    >>> episode = np.repeat(np.arange(10), 20)
    >>> data = lg.Transitions(state, action, state[:, 0], 0.5 * state + action, episode=episode)
    >>> lg.baselines.clone_log_density(data, steps=10).shape
    (200,)
    """
    fitting = Fitting(
        require_whole("steps", steps, at_least=1),
        require_whole("batch", batch, at_least=1),
        require_positive("learning_rate", learning_rate),
        WEIGHT_DECAY,
        read_widths("hidden", hidden),
    )
    seed = require_whole("seed", seed)
    chain = Transitions(transitions.state, next_state=transitions.next_state, n_states=transitions.n_states)
    inputs = prepare(chain, None, 1.0).logged
    clone = _Clone(transitions, inputs, fitting, seed)
    action = _require_actions(transitions)
    if transitions.n_actions is not None:
        return clone.log_shares(inputs)[np.arange(len(action)), action]
    _, least, most = GaussianPolicy(lambda states: states, 1.0, low, high).scales(action.shape[1])
    return normal_log_density(action, *clone.moments(inputs), least, most)


def clone_policy(transitions: Transitions, seed: int = 0) -> DiscretePolicy | ContinuousPolicy:
    """The behavior of a log as a policy for any states, by the networks of :func:`clone_log_density`."""
    scaling = Scaling.of(transitions.state)
    clone = _Clone(transitions, scaling(transitions.state), CLONING, seed)
    if transitions.n_actions is not None:
        return CallablePolicy(lambda states: np.exp(clone.log_shares(scaling(states))), transitions.n_actions)

    def draw(states: Floats, rng: np.random.Generator) -> Floats:
        mean, std = clone.moments(scaling(states))
        return mean + std * rng.standard_normal(mean.shape)

    def density(states: Floats, actions: Floats) -> Floats:
        return normal_log_density(actions, *clone.moments(scaling(states)), *_NO_BOUNDS)

    return SampledPolicy(draw, density)


class _Clone:
    """A network fitted to the logged actions, by way of inputs that stand for states."""

    def __init__(self, transitions: Transitions, inputs: NDArray[Any], fitting: Fitting, seed: int) -> None:
        action = _require_actions(transitions)
        if transitions.n_actions is not None:
            n = transitions.n_actions
            self.net = fit(inputs, np.eye(n)[action], fitting, seed, "softmax", n)
            return
        self.scaling, self.k = Scaling.of(action), action.shape[1]
        self.net = fit(inputs, self.scaling(action), fitting, seed, "gaussian", 2 * self.k)

    def log_shares(self, inputs: NDArray[Any]) -> Floats:
        """Log probabilities of discrete actions."""
        out = self.net(inputs).astype(np.float64)
        logs: Floats = out - out.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return logs

    def moments(self, inputs: NDArray[Any]) -> tuple[Floats, Floats]:
        """Means and standard deviations of continuous actions."""
        out, scale = self.net(inputs).astype(np.float64), self.scaling.scale
        std = np.maximum(np.exp(out[:, self.k :]), SMALLEST_STD) * scale
        return self.scaling.shift + out[:, : self.k] * scale, std


def _require_actions(transitions: Transitions) -> NDArray[Any]:
    if transitions.action is None:
        raise ValueError("cloning a behavior needs actions; pass action= to Transitions")
    return transitions.action


def target_log_density(transitions: Transitions, policy: Any) -> Floats:
    target = transitions.read_policy(policy)
    if isinstance(target, DiscretePolicy):
        with np.errstate(divide="ignore"):
            probabilities = target.probabilities(transitions.state.copy())
            return np.log(probabilities[np.arange(len(transitions)), transitions.action])
    if not isinstance(target, ContinuousPolicy) or transitions.action is None:
        raise ValueError("a ratio of policies needs actions and a policy")
    return target.log_density(transitions.state.copy(), transitions.action.copy())


def clone_log_ratio(transitions: Transitions, policy: Any, **clone_options: Any) -> Floats:
    """log(target / clone) of every logged action; the clone has the bounds of a Gaussian target."""
    target = transitions.read_policy(policy)
    bounds = {"low": target.low, "high": target.high} if isinstance(target, GaussianPolicy) else {}
    behavior = clone_log_density(transitions, **{**bounds, **clone_options})
    return target_log_density(transitions, target) - behavior


# -- base of a ratio ----------------------------------------------------------------------------------------

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
    of h steps under the target; h doubles while the weights keep an effective sample size of
    ``LEAST_EFFECTIVE``. Without episodes h is 1 and all steps count alike.
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
    balance along an episode. Where episodes end by themselves the chain is renewed: all steps count alike.
    """
    steps = np.arange(longest)
    if transitions.terminal is not None and transitions.terminal.any():
        return np.ones(longest)
    ramp = steps + 0.5
    return (1.0 - gamma) * gamma**steps + gamma**longest * ramp / ramp.sum()


def resampled(samples: PolicySamples, seed: int) -> PolicySamples:
    """Rows in proportion to the base, in equal strides through its sum; the same where it is flat."""
    n = len(samples.base)
    if n == 0 or np.ptp(samples.base) == 0.0:
        return samples
    count = max(n, min(COPIES * n, MOST_ROWS))
    ends = np.cumsum(samples.base) * (count / samples.base.sum())
    places = np.arange(count) + np.random.default_rng([seed, 9]).random()
    return samples.subset(np.minimum(np.searchsorted(ends, places, side="right"), n - 1))
