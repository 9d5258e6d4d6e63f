"""Every estimate of a policy's value from one log: model, FQE, ratio, doubly robust, naive.

The model is fitted once for all policies; what rests on it (rollouts, Q, ratio) is made when it is asked for.
With tau normalized to E_p[nu tau] = 1 (nu counts what terminal states hold) and Q, V per step, doubly robust:

    value = mean V(s0) + E_p[tau (r + gamma V(s') - Q)]   for gamma < 1,
    value = E_p[tau (r + V(s') - Q)]                       for gamma = 1.

References
----------
N. Kallus, M. Uehara (2020). Double reinforcement learning for efficient off-policy evaluation. JMLR.
M. Sugiyama, T. Suzuki, T. Kanamori (2012). Density Ratio Estimation in Machine Learning. Cambridge University
    Press.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lingendice.continuous import dynamics, fitted_q
from lingendice.continuous.clone import base_of, clone_log_density, target_log_density
from lingendice.continuous.dynamics import Dynamics, Rollout, folds
from lingendice.continuous.fitted_q import FittedQ
from lingendice.continuous.outcome import ValueEstimate
from lingendice.continuous.regression import Fitting, NetworkFit, Perceptron, run_steps
from lingendice.continuous.samples import PolicySamples, Singles, prepare
from lingendice.data.checks import Floats, refuse_unknown, require_choice
from lingendice.data.policies import GaussianPolicy
from lingendice.data.transitions import Transitions, step_discounts

ODDS = Fitting(steps=600, batch=1024, rate=2e-3, weight_decay=1e-4, hidden=(64, 64))
_LOG_ODDS = (-10.0, 6.0)
_FOLDS = 3
RESTARTS = ("auto", "none")


class TrainingEffort(NamedTuple):
    """How long the parts are trained, and how many paths each member of the model follows."""

    model: Fitting = dynamics.FITTING
    paths: int = 300
    q: Fitting = fitted_q.FITTING
    odds: Fitting = ODDS
    clone_steps: int = 1000


EFFORTS = {
    "default": TrainingEffort(),
    "quick": TrainingEffort(
        replace(dynamics.FITTING, steps=300, hidden=(64, 64)), 60, replace(fitted_q.FITTING, steps=500),
        replace(ODDS, steps=150), 600,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class EvaluationSettings:
    """What all estimates from one log share."""

    restarts: str = "auto"
    effort: TrainingEffort = EFFORTS["default"]
    seed: int = 0
    threads: int = 1

    @classmethod
    def read(cls, options: dict[str, Any], seed: int, threads: int) -> EvaluationSettings:
        """Check ``options={"effort": ..., "restarts": ...}``."""
        refuse_unknown(options, ("effort", "restarts"), "here")
        effort = require_choice("options['effort']", options.get("effort", "default"), tuple(EFFORTS))
        restarts = require_choice("options['restarts']", options.get("restarts", "auto"), RESTARTS)
        return cls(restarts, EFFORTS[effort], seed, threads)


class Preparation:
    """One log, prepared once for all policies: the model of the dynamics and the cloned behavior."""

    def __init__(
        self, transitions: Transitions, gamma: float, terminal: str, settings: EvaluationSettings
    ) -> None:
        if transitions.reward is None:
            raise ValueError(
                "a value needs rewards; pass reward= to Transitions, or method='gendice' for a ratio"
            )
        if transitions.n_states is not None:
            raise ValueError(
                "a model of the dynamics is for states that are vectors; count integer states by "
                "Counts.from_transitions(...), or use method='gendice'"
            )
        self.transitions, self.gamma, self.terminal, self.settings = transitions, gamma, terminal, settings
        self._model: Dynamics | None = None
        self._clones: dict[Any, Floats] = {}

    def model(self, samples: PolicySamples) -> Dynamics:
        """The dynamics, which do not depend on the policy that ``samples`` follow."""
        if self._model is None:
            settings = self.settings
            self._model = dynamics.fit_dynamics(
                samples, settings.restarts, settings.seed, settings.threads, settings.effort.model
            )
        return replace(self._model, samples=samples)

    def behavior(self, low: Any, high: Any) -> Floats:
        """Log density of the logged actions under the cloned behavior, clipped to these bounds."""
        key = tuple(repr(np.asarray(end).tolist()) for end in (low, high))
        if key not in self._clones:
            steps, seed = self.settings.effort.clone_steps, self.settings.seed
            self._clones[key] = clone_log_density(
                self.transitions, steps=steps, seed=seed, low=low, high=high
            )
        return self._clones[key]


class Evaluation:
    """The estimates of one policy; each part is computed when it is first asked for, and timed."""

    def __init__(self, preparation: Preparation, policy: Any) -> None:
        self._log, self.settings = preparation, preparation.settings
        self.samples = prepare(preparation.transitions, policy, preparation.gamma, preparation.terminal)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begun

    @cached_property
    def model(self) -> Dynamics:
        """The dynamics under this policy."""
        with self._timed("fit"):
            return self._log.model(self.samples)

    @cached_property
    def rollout(self) -> Rollout:
        """Paths of the policy in the model."""
        model, given = self.model, self.settings
        with self._timed("model"):
            return dynamics.roll_out(model, self.samples.gamma, given.effort.paths, given.seed, given.threads)

    @cached_property
    def q_of_log(self) -> FittedQ:
        """Fitted Q evaluation."""
        given = self.settings
        with self._timed("FQE"):
            return fitted_q.fit_to_log(self.samples, given.seed, given.threads, given.effort.q)

    @cached_property
    def q_of_model(self) -> FittedQ:
        """Q of the model, each row by the member that its episode did not train."""
        visited, given = self.rollout.visited, self.settings
        with self._timed("DR"):
            return fitted_q.fit_to_model(self.model, visited, given.seed, given.threads, given.effort.q)

    @cached_property
    def log_ratio(self) -> Floats | None:
        """log(target / cloned behavior) at the logged actions; None where the policy has no density."""
        policy = self.samples.policy
        if policy is None:
            return np.zeros(len(self.samples.logged))
        bounds = (policy.low, policy.high) if isinstance(policy, GaussianPolicy) else (None, None)
        if not policy.has_density:
            return None
        with self._timed("clone"):
            return target_log_density(self._log.transitions, policy) - self._log.behavior(*bounds)

    @cached_property
    def tau_of_model(self) -> Floats:
        """The simulated distribution over that of the log, normalized."""
        visited, log_ratio, given = self.rollout.visited, self.log_ratio, self.settings
        with self._timed("ratio"):
            return ratio_of_model(
                self.samples, visited, log_ratio, given.seed, given.threads, given.effort.odds
            )

    @cached_property
    def tau_cloned(self) -> Floats:
        """Products of cloned ratios along episodes, as long as the effective sample allows."""
        if self.log_ratio is None:
            raise ValueError(
                f"{type(self.samples.policy).__name__} has no density, which a cloned ratio needs; pass "
                'SampledPolicy(sample, density=...) or a GaussianPolicy, or take tau="model"'
            )
        weights = base_of(self._log.transitions, self.log_ratio, self.samples.gamma).weight
        return normalized(self.samples, weights)

    def doubly_robust(self, q: str = "model", tau: Any = "auto") -> Weighted:
        """The doubly robust value with a Q and a ratio of choice.

        Cloned ratios are preferred where there are densities: with the model's own ratio, which is near the
        truth but rests on few rows, the mean squared error was 3 units of its logarithm larger.
        """
        require_choice("q", q, ("model", "fqe"))
        if isinstance(tau, str):
            require_choice("tau", tau, ("auto", "model", "cloned"))
            cloned = tau == "cloned" or (tau == "auto" and self.log_ratio is not None)
            tau = self.tau_cloned if cloned else self.tau_of_model
        if q == "fqe":
            return robust_value(self.samples, tau, self.q_of_log)
        return robust_value(self.samples, tau, self.q_of_model, self.model)

    def naive(self) -> Weighted:
        """What the behavior earned per step, discounted along episodes at gamma < 1."""
        samples = self.samples
        weight = step_discounts(samples.transitions.episode, len(samples.logged), samples.gamma)
        return weighted_value(samples, weight)

    def estimate(self, name: str, **choice: Any) -> ValueEstimate:
        """One line of the table; ``choice`` is that of the doubly robust value."""
        if name in ("model", "FQE"):
            found = self.rollout if name == "model" else self.q_of_log
            error = float(found.members.std(ddof=1)) if len(found.members) > 1 else None
            return ValueEstimate(name, found.value, error, self._cost(name))
        if name == "naive":
            weighted = self.naive()
        elif name == "ratio":
            weighted = weighted_value(self.samples, self.tau_of_model)
        else:
            weighted = self.doubly_robust(**choice)
        error = None if math.isnan(weighted.standard_error) else weighted.standard_error
        return ValueEstimate(name, weighted.value, error, self._cost(name))

    def _cost(self, name: str) -> float:
        parts = {"model": ("fit", "model"), "ratio": ("clone", "ratio")}.get(name, (name,))
        return sum(self.seconds.get(part, 0.0) for part in parts)


# -- weighted values ------------------------------------------------------------------------------------


def ratio_of_model(
    samples: PolicySamples,
    visited: Singles,
    log_ratio: Floats | None,
    seed: int,
    threads: int,
    fitting: Fitting,
) -> Floats:
    """tau = (target / cloned behavior) x odds of a simulated state against a logged one.

    The odds are those of a logistic network, each row by one that its episode did not train. Without
    densities of the policies (``log_ratio`` None) the network sees states and actions together. nan where all
    paths ended before a state was drawn.
    """
    d = samples.n_inputs if log_ratio is None else samples.n_states_in
    n, m = len(samples.logged), len(visited)
    if m == 0:
        return np.full(n, math.nan)
    inputs = np.ascontiguousarray(np.concatenate([samples.logged[:, :d], visited[:, :d]]))
    simulated = np.concatenate([np.zeros(n), np.ones(m)]).astype(np.float32)
    weight = np.where(simulated > 0, (n + m) / (2.0 * m), (n + m) / (2.0 * n)).astype(np.float32)
    fold = np.concatenate(
        [folds(samples, _FOLDS, seed), np.random.default_rng([seed, 50]).integers(0, _FOLDS, m)]
    )
    learners = [
        NetworkFit(
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


def normalized(samples: PolicySamples, tau: Floats) -> Floats:
    """tau with E_p[nu tau] = 1."""
    mass = float(np.mean(samples.mass_weight * tau))
    return tau / mass if mass > 0.0 else tau


class Weighted(NamedTuple):
    """A value with its standard error, clustered by episode."""

    value: float
    standard_error: float
    scores: Floats
    """Influence of each cluster: their squares, over n (n - 1), add up to the squared error."""


def weighted_value(samples: PolicySamples, tau: Floats) -> Weighted:
    """E_p[tau r], self-normalized."""
    reward, tau = samples.reward, normalized(samples, tau)
    value = float(np.mean(tau * reward))
    return _clustered(samples, value, tau * (reward - value * samples.mass_weight), None)


def robust_value(samples: PolicySamples, tau: Floats, q: FittedQ, model: Dynamics | None = None) -> Weighted:
    """The doubly robust value; where restarts were inferred each is replaced by its probability."""
    gamma, reward, tau = samples.gamma, samples.reward, normalized(samples, tau)
    scale = 1.0 - gamma if gamma < 1.0 else 1.0
    again = float(q.first.mean()) if q.first.size else 0.0
    following = np.where(samples.absorbed, 0.0, q.following)
    following = np.where(samples.restarted, again, following)
    if model is not None and model.inferred and model.ends is not None:
        stays = np.where(model.ended < 0.5, following, q.stays)
        following = (1.0 - q.ends) * stays + q.ends * again
    surprise = (scale * reward + gamma * following - q.q) / scale
    correction = float(np.mean(tau * surprise))
    influence = tau * (surprise - correction * samples.mass_weight)
    if gamma < 1.0:
        return _clustered(samples, again + correction, influence, q.first)
    return _clustered(samples, correction, influence, None)


def _clustered(samples: PolicySamples, value: float, influence: Floats, first: Floats | None) -> Weighted:
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


def _first_by_episode(samples: PolicySamples, clusters: int) -> bool:
    """Whether the initial states are the first ones of the episodes, in order."""
    given, episode = samples.transitions.initial_state, samples.transitions.episode
    if episode is None:
        return False
    if given is None:
        return True
    own = samples.transitions.state[np.unique(episode, return_index=True)[1]]
    return len(given) == clusters and np.array_equal(given, own)
