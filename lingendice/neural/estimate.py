"""``solve(..., method="neural")``: train an ensemble, watch it, and put the answer together."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from lingendice.checks import Floats
from lingendice.continuous_solution import ContinuousSolution, Progress
from lingendice.neural.checkpoint import read_checkpoint, write_checkpoint
from lingendice.neural.learner import Batches, Learner, ratio_of
from lingendice.neural.network import Network, Singles
from lingendice.neural.objective import Objective
from lingendice.neural.options import DEFAULT_STEPS, NeuralOptions
from lingendice.neural.residual import HeldOut, split_rows
from lingendice.neural.samples import Samples
from lingendice.parallel import run_all
from lingendice.solution import Status
from lingendice.solvers.iterate import Controls, Monitor, Stop, watch

KERNEL_SECONDS = 0.1
"""How long a call into compiled code lasts, so that Ctrl-C and limits are heeded."""
_STATUS = {
    None: Status.TRAINED,
    Stop.TIME: Status.TIME_LIMIT,
    Stop.INTERRUPT: Status.INTERRUPTED,
    Stop.NOT_FINITE: Status.NOT_FINITE,
}


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
        batches = Batches(part, self.network)
        self.learners = [
            Learner(batches, self.network, objective, options, self.steps, seed + member)
            for member in range(options.ensemble)
        ]
        self.histories: list[list[Progress]] = [[] for _ in self.learners]
        self.finite = [learner.snapshot() for learner in self.learners]
        self.seed = seed
        self._pace = math.nan
        if options.resume and options.checkpoint is not None and os.path.exists(options.checkpoint):
            self.histories = read_checkpoint(options.checkpoint, self.learners, self._identity())

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
            write_checkpoint(self.options.checkpoint, self.learners, self.histories, self._identity())

    def _progress(self, learner: Learner) -> Progress:
        tau, reward = learner.tau(self.samples.logged), self.samples.transitions.reward
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

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with for training to go on to the bit."""
        options, objective = self.options, self.objective
        first = self.samples.logged[0].astype(float)
        return {
            "seed": self.seed,
            "steps": self.steps,
            "transitions": len(self.samples.logged),
            "first row": [round(entry, 5) for entry in first.tolist()],
            "policy kind": self.samples.kind,
            "gamma": objective.gamma,
            "divergence": objective.divergence,
            "penalty": objective.penalty,
            "ridge": objective.ridge,
            **{
                name: getattr(options, name)
                for name in (
                    "activation", "output", "batch", "learning_rate", "dual_learning_rate", "momentum",
                    "decay", "clip", "average", "holdout", "ensemble", "standardise",
                )
            },
            "hidden": list(options.hidden),
        }  # fmt: skip


def train(
    samples: Samples,
    objective: Objective,
    options: NeuralOptions,
    controls: Controls,
    seed: int,
    method: str = "neural",
    reason: str = "chosen by the caller",
) -> ContinuousSolution:
    """Train an ensemble and return its ratio at every transition.

    A step costs about 12 B (d h + L h^2) multiplications for batch B, d inputs and L layers of width h, times
    the number of discrete actions for f at the arrivals.
    """
    training = Training(samples, objective, options, controls, seed)
    stopped = training.run()
    learners, histories = training.learners, training.histories
    members = np.stack([learner.tau(samples.logged) for learner in learners])
    residuals = [training.held_out.residual(learner) for learner in learners]
    return ContinuousSolution(
        status=_STATUS[stopped],
        gamma=objective.gamma,
        method=method,
        reason=reason,
        tau=members.mean(axis=0),
        members=members,
        mass_weight=samples.mass_weight,
        residual=float(np.mean(residuals)),
        n_iter=training.done,
        seconds=controls.elapsed(),
        transitions=samples.transitions,
        divergence=objective.divergence,
        threads=controls.threads,
        history=tuple(tuple(history) for history in histories),
        evaluate=NetworkRatio(
            samples,
            training.network,
            objective.output,
            [learner.best_parameters.copy() for learner in learners],
        ),
        details={"u": [learner.u for learner in learners], "penalty": objective.penalty},
    )
