"""Every estimate of a policy's value from one log: model, FQE, ratio, doubly robust, naive.

The model is fitted once for all policies; what rests on it (rollouts, Q, ratio) is made when it is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lingendice.continuous import doubly_robust, dynamics, fitted_q
from lingendice.continuous.clone import base_of, clone_log_density, target_log_density
from lingendice.continuous.doubly_robust import Weighted
from lingendice.continuous.dynamics import Dynamics, Rollout
from lingendice.continuous.fitted_q import FittedQ
from lingendice.continuous.outcome import Estimate
from lingendice.continuous.regression import Fitting
from lingendice.continuous.samples import Samples, prepare
from lingendice.data.checks import Floats, require_choice
from lingendice.data.policies import GaussianPolicy
from lingendice.data.transitions import Transitions

T = TypeVar("T")
RESTARTS = ("auto", "none")


class Effort(NamedTuple):
    """How long the parts are trained, and how many paths each member of the model follows."""

    model: Fitting = dynamics.FITTING
    paths: int = 300
    q: Fitting = fitted_q.FITTING
    odds: Fitting = doubly_robust.ODDS
    clone_steps: int = 1000


EFFORTS = {
    "default": Effort(),
    "quick": Effort(
        replace(dynamics.FITTING, steps=300, hidden=(64, 64)), 60, replace(fitted_q.FITTING, steps=500),
        replace(doubly_robust.ODDS, steps=150), 600,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What all estimates from one log share."""

    restarts: str = "auto"
    effort: Effort = EFFORTS["default"]
    seed: int = 0
    threads: int = 1

    @classmethod
    def read(cls, options: dict[str, Any], seed: int, threads: int) -> Settings:
        """Check ``options={"effort": ..., "restarts": ...}``."""
        for name in options:
            if name not in ("effort", "restarts"):
                raise ValueError(f"options has no entry {name!r} here; known: 'effort', 'restarts'")
        effort = require_choice("options['effort']", options.get("effort", "default"), tuple(EFFORTS))
        restarts = require_choice("options['restarts']", options.get("restarts", "auto"), RESTARTS)
        return cls(restarts, EFFORTS[effort], seed, threads)


class Preparation:
    """One log, prepared once for all policies: the model of the dynamics and the cloned behavior."""

    def __init__(self, transitions: Transitions, gamma: float, terminal: str, settings: Settings) -> None:
        if transitions.n_states is not None:
            raise ValueError(
                "a model of the dynamics is for states that are vectors; count integer states by "
                "Counts.from_transitions(...), or use method='gendice'"
            )
        self.transitions, self.gamma, self.terminal, self.settings = transitions, gamma, terminal, settings
        self._model: Dynamics | None = None
        self._clones: dict[Any, Floats] = {}

    def samples(self, policy: Any) -> Samples:
        """The log under a policy."""
        return prepare(self.transitions, policy, self.gamma, self.terminal)

    def model(self, samples: Samples) -> Dynamics:
        """The dynamics, which do not depend on the policy that ``samples`` follow."""
        if self._model is None:
            settings = self.settings
            self._model = dynamics.fit_dynamics(
                samples, settings.restarts, settings.seed, settings.threads, settings.effort.model
            )
        return replace(self._model, samples=samples)

    def behavior(self, low: Any, high: Any) -> Floats:
        """Log density of the logged actions under the cloned behavior, clipped to these bounds."""
        key = (str(low), str(high))
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
        self.samples = preparation.samples(policy)
        self._policy = policy
        self.seconds: dict[str, float] = {}

    def _timed(self, name: str, make: Callable[[], T]) -> T:
        begun = time.perf_counter()
        found = make()
        self.seconds[name] = time.perf_counter() - begun
        return found

    @cached_property
    def model(self) -> Dynamics:
        """The dynamics under this policy."""
        return self._timed("fit", lambda: self._log.model(self.samples))

    @cached_property
    def rollout(self) -> Rollout:
        """Paths of the policy in the model."""
        model, settings = self.model, self.settings
        follow = lambda: dynamics.roll_out(  # noqa: E731
            model, self.samples.gamma, settings.effort.paths, settings.seed, settings.threads
        )
        return self._timed("model", follow)

    @cached_property
    def q_of_log(self) -> FittedQ:
        """Fitted Q evaluation."""
        settings = self.settings
        return self._timed(
            "FQE",
            lambda: fitted_q.fit_to_log(self.samples, settings.seed, settings.threads, settings.effort.q),
        )

    @cached_property
    def q_of_model(self) -> FittedQ:
        """Q of the model, each row by the member that its episode did not train."""
        visited, settings = self.rollout.visited, self.settings
        return self._timed(
            "DR",
            lambda: fitted_q.fit_to_model(
                self.model, visited, settings.seed, settings.threads, settings.effort.q
            ),
        )

    @cached_property
    def log_ratio(self) -> Floats | None:
        """log(target / cloned behavior) at the logged actions; None where the policy has no density."""
        policy = self.samples.policy
        if policy is None:
            return np.zeros(len(self.samples.logged))
        bounds = (policy.low, policy.high) if isinstance(policy, GaussianPolicy) else (None, None)
        if not policy.has_density:
            return None
        return self._timed(
            "clone",
            lambda: target_log_density(self._log.transitions, self._policy) - self._log.behavior(*bounds),
        )

    @cached_property
    def tau_of_model(self) -> Floats:
        """The simulated distribution over that of the log, normalized."""
        visited, log_ratio, settings = self.rollout.visited, self.log_ratio, self.settings
        return self._timed(
            "ratio",
            lambda: doubly_robust.ratio_of_model(
                self.samples, visited, log_ratio, settings.seed, settings.threads, settings.effort.odds
            ),
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
        return doubly_robust.normalized(self.samples, weights)

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
            return doubly_robust.doubly_robust(self.samples, tau, self.q_of_log)
        return doubly_robust.doubly_robust(self.samples, tau, self.q_of_model, self.model)

    def naive(self) -> Weighted:
        """What the behavior earned per step, discounted along episodes at gamma < 1."""
        samples = self.samples
        weight, episode = np.ones(len(samples.logged)), samples.transitions.episode
        if samples.gamma < 1.0 and episode is not None:
            order = np.argsort(episode, kind="stable")
            starts = np.searchsorted(episode[order], np.arange(int(episode.max()) + 1))
            weight[order] = samples.gamma ** (np.arange(len(order)) - starts[episode[order]])
        return doubly_robust.weighted_value(samples, weight)

    def estimate(self, name: str) -> Estimate:
        """One line of the table."""
        if name in ("model", "FQE"):
            found = self.rollout if name == "model" else self.q_of_log
            error = float(found.members.std(ddof=1)) if len(found.members) > 1 else None
            return Estimate(name, found.value, error, self._cost(name))
        if name == "naive":
            weighted = self.naive()
        elif name == "ratio":
            weighted = doubly_robust.weighted_value(self.samples, self.tau_of_model)
        else:
            weighted = self.doubly_robust()
        error = None if math.isnan(weighted.standard_error) else weighted.standard_error
        return Estimate(name, weighted.value, error, self._cost(name))

    def _cost(self, name: str) -> float:
        parts = {"model": ("fit", "model"), "ratio": ("clone", "ratio")}.get(name, (name,))
        return sum(self.seconds.get(part, 0.0) for part in parts)
