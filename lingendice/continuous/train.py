"""``solve(..., method="gendice")``: train an ensemble, watch it, and put the answer together."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from lingendice.continuous.checkpoint import read_checkpoint, write_checkpoint
from lingendice.continuous.holdout import HeldOut, split_rows
from lingendice.continuous.importance_base import resampled
from lingendice.continuous.learner import Batches, Learner, ratio_of
from lingendice.continuous.network import Network, Singles, engine_code
from lingendice.continuous.objective import Objective
from lingendice.continuous.options import DEFAULT_STEPS, NeuralOptions
from lingendice.continuous.outcome import Progress, RatioOutcome
from lingendice.continuous.samples import Samples
from lingendice.data.checks import Floats
from lingendice.kernels.networks.mlp import VECTOR
from lingendice.kernels.parallel import run_all
from lingendice.solvers.control import Controls, Monitor, Stop, watch

KERNEL_SECONDS = 0.1
"""How long a call into compiled code lasts, so that Ctrl-C and limits are heeded."""


class NetworkRatio:
    """tau at new states and actions: the mean over the members."""

    def __init__(self, samples: Samples, network: Network, output: str, members: list[Singles]) -> None:
        self._samples, self._network, self._output, self._members = samples, network, output, members

    def __call__(self, state: Any, action: Any) -> Floats:
        inputs = self._samples.inputs(state, action)
        ratios = [ratio_of(self._output, self._network.outputs(member, inputs)) for member in self._members]
        return np.mean(ratios, axis=0)


class Training:
    """An ensemble on its way: members, held-out rows, history, checkpoints."""

    def __init__(
        self, samples: Samples, objective: Objective, options: NeuralOptions, controls: Controls, seed: int
    ) -> None:
        self.samples, self.objective, self.options, self.controls = samples, objective, options, controls
        self.steps = controls.max_iter or DEFAULT_STEPS
        self.every = options.report_every or max(1, self.steps // 50)
        trained, held = split_rows(samples, options.holdout, seed)
        self.held_out = HeldOut(samples, held, seed)
        self.network = Network(samples.n_inputs, options.hidden, options.activation)
        part = samples if trained.size == len(samples.logged) else samples.subset(trained)
        batches = Batches(resampled(part, seed), self.network)
        self.learners = [
            Learner(batches, self.network, objective, options, self.steps, seed + member)
            for member in range(options.ensemble)
        ]
        self.histories: list[list[Progress]] = [[] for _ in self.learners]
        self.finite = [learner.snapshot() for learner in self.learners]
        self.seed = seed
        self._pace = math.nan
        if options.resume and options.checkpoint is not None and os.path.exists(options.checkpoint):
            self.histories = read_checkpoint(options.checkpoint, self.learners, self._identity)

    @property
    def done(self) -> int:
        """Steps taken by every member."""
        return self.learners[0].step

    def run(self) -> Stop | None:
        """Train to the planned end or until told to stop."""
        limits = replace(self.controls, max_iter=None)
        with watch(limits) as monitor:
            while self.done < self.steps and not self._note(monitor):
                self._advance(
                    min(self._kernel_steps(), self.every - self.done % self.every, self.steps - self.done)
                )
                if self.done % self.every == 0 or self.done == self.steps:
                    self._report()
                if not all(learner.is_finite for learner in self.learners):
                    self._go_back()
                    return Stop.NOT_FINITE
            return monitor.stopped if self.done < self.steps else None

    def _kernel_steps(self) -> int:
        if math.isnan(self._pace):
            return 2
        return max(1, int(KERNEL_SECONDS / max(self._pace, 1e-6)))

    def _advance(self, count: int) -> None:
        threads = self.controls.threads
        started = time.perf_counter()
        if len(self.learners) == 1:
            self.learners[0].advance(count, threads)
        else:
            run_all([lambda learner=learner: learner.advance(count) for learner in self.learners], threads)  # type: ignore[misc]
        self._pace = (time.perf_counter() - started) / count

    def _report(self) -> None:
        if not all(learner.is_finite for learner in self.learners):
            return
        for learner, history in zip(self.learners, self.histories, strict=True):
            history.append(self._progress(learner))
        self.finite = [learner.snapshot() for learner in self.learners]
        if self.options.checkpoint is not None:
            write_checkpoint(self.options.checkpoint, self.learners, self.histories, self._identity)

    def ratio(self, learner: Learner) -> Floats:
        """tau of one member at every transition."""
        return self.samples.base * learner.tau(self.samples.logged)

    def _progress(self, learner: Learner) -> Progress:
        tau, reward = self.ratio(learner), self.samples.transitions.reward
        mean = float(np.mean(tau * self.samples.mass_weight))
        value = math.nan if reward is None else float(np.mean(tau * reward)) / mean
        return Progress(learner.step, value, mean, self.held_out.residual(learner))

    def _go_back(self) -> None:
        """To the last finite state."""
        for learner, held in zip(self.learners, self.finite, strict=True):
            learner.restore(held)

    def _note(self, monitor: Monitor) -> bool:
        text = ""
        if self.controls.progress and self.histories[0]:
            last = [history[-1] for history in self.histories]
            value = float(np.mean([entry.value for entry in last]))
            residual = float(np.mean([entry.residual for entry in last]))
            left = (self.steps - self.done) * self._pace
            text = f"of {self.steps:,}, value {value:.5g}, residual {residual:.2e}, {left:,.0f} s left"
        return monitor.note(self.done, math.inf, text)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with for training to go on to the bit."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _NOT_TRAINING}
        facts = {
            "seed": self.seed,
            "steps": self.steps,
            "transitions": len(self.samples.logged),
            "data": _digest(self.samples),
            "policy kind": self.samples.kind,
            "policy actions": _drawn_actions(self.samples),
            **asdict(self.objective),
            **options,
            "engine": "vector" if engine_code(self.options.engine) == VECTOR else "blas",
        }
        known: dict[str, Any] = json.loads(json.dumps(facts))
        return known


_NOT_TRAINING = ("checkpoint", "resume", "report_every", "on_interrupt")
"""Options that change when training is looked at or kept, not what it does."""


def _drawn_actions(samples: Samples) -> str:
    """A hash of what a policy that can only be sampled does in some states, if it does so again."""
    if samples.kind != "sampled":
        return ""
    rows = np.arange(min(len(samples.following.states), 64))
    drawn = [samples.draw(samples.following, rows, np.random.default_rng(0)).tobytes() for _ in range(2)]
    return hashlib.sha256(drawn[0]).hexdigest() if drawn[0] == drawn[1] else "not reproducible"


def _digest(samples: Samples) -> str:
    """A hash of every number that training or its reports read, the policy's actions at arrivals included."""
    found = hashlib.sha256()
    parts: list[Any] = [
        samples.logged, samples.transitions.reward, samples.absorbed, samples.restarted, samples.base,
        samples.transitions.episode,
    ]  # fmt: skip
    for arrivals in (samples.following, samples.starting):
        parts += [] if arrivals is None else [arrivals.states, arrivals.action]
    for part in (*parts, *samples.noise):
        found.update(b"|" if part is None else np.ascontiguousarray(part).tobytes())
        found.update(str(np.shape(part)).encode())
    return found.hexdigest()


def train(
    samples: Samples,
    objective: Objective,
    options: NeuralOptions,
    controls: Controls,
    seed: int,
    method: str = "gendice",
    reason: str = "chosen by the caller",
) -> RatioOutcome:
    """Train an ensemble and return its ratio at every transition.

    A step costs about 12 B (d h + L h^2) multiplications for batch B, d inputs and L layers of width h, times
    the number of discrete actions for f at the arrivals.
    """
    training = Training(samples, objective, options, controls, seed)
    stopped = training.run()
    learners, histories = training.learners, training.histories
    members = np.stack([training.ratio(learner) for learner in learners])
    residuals = [training.held_out.residual(learner) for learner in learners]
    return RatioOutcome(
        converged=stopped is None,
        stopped=stopped,
        gamma=objective.gamma,
        method=method,
        reason=reason,
        tau=members.mean(axis=0),
        members=members,
        mass_weight=samples.mass_weight,
        residual=float(np.mean(residuals)),
        n_iter=training.done,
        transitions=samples.transitions,
        divergence=objective.divergence,
        history=tuple(tuple(history) for history in histories),
        evaluate=None
        if np.ptp(samples.base) > 0.0
        else NetworkRatio(
            samples,
            training.network,
            objective.output,
            [learner.best_parameters.copy() for learner in learners],
        ),
        details={
            "u": [learner.u for learner in learners],
            "penalty": objective.penalty,
            "base": samples.base,
        },
    )
