"""``solve(..., method="neural")``: train, watch, and put the answer together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lingendice.checks import Floats
from lingendice.continuous_solution import ContinuousSolution, Progress
from lingendice.neural.learner import Learner
from lingendice.neural.objective import Objective
from lingendice.neural.options import DEFAULT_STEPS, NeuralOptions
from lingendice.neural.samples import Samples
from lingendice.parallel import run_all
from lingendice.solution import Status
from lingendice.solvers.iterate import Controls, Stop, watch
from lingendice.transitions import Transitions


def train(
    samples: Samples, objective: Objective, options: NeuralOptions, controls: Controls, seed: int
) -> ContinuousSolution:
    """Train an ensemble and return its ratio at every transition."""
    steps = controls.max_iter or DEFAULT_STEPS
    every = options.report_every or max(1, steps // 50)
    learners = [
        Learner(samples, objective, options, steps, seed + member) for member in range(options.ensemble)
    ]
    histories: list[list[Progress]] = [[] for _ in learners]
    limits = Controls(controls.tol, None, controls.time_limit, controls.threads, controls.progress, controls.started)
    with watch(limits) as monitor:
        done = 0
        while done < steps and not monitor.note(done):
            chunk = min(every - done % every, steps - done)
            run_all([lambda learner=learner: learner.advance(chunk) for learner in learners], controls.threads)
            done += chunk
            for learner, history in zip(learners, histories, strict=True):
                history.append(_progress(learner, samples))
    status = {
        None: Status.TRAINED,
        Stop.TIME: Status.TIME_LIMIT,
        Stop.INTERRUPT: Status.INTERRUPTED,
        Stop.NOT_FINITE: Status.NOT_FINITE,
        Stop.ITERATIONS: Status.TRAINED,
    }[monitor.stopped]
    members = np.stack([learner.tau(samples.logged) for learner in learners])
    return ContinuousSolution(
        status=status,
        gamma=objective.gamma,
        method="neural",
        reason="chosen by the caller",
        tau=members.mean(axis=0),
        members=members,
        mass_weight=samples.mass_weight,
        residual=float(np.mean([history[-1].residual for history in histories])) if histories[0] else math.nan,
        n_iter=done,
        seconds=controls.elapsed(),
        transitions=samples.transitions,
        divergence=objective.divergence,
        threads=controls.threads,
        history=tuple(tuple(history) for history in histories),
    )


def _progress(learner: Learner, samples: Samples) -> Progress:
    tau = learner.tau(samples.logged)
    reward = samples.transitions.reward
    mean = float(np.mean(tau * samples.mass_weight))
    value = math.nan if reward is None else float(np.mean(tau * reward)) / mean
    return Progress(learner.step, value, mean, learner.residual(samples))
