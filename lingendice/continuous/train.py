"""``solve(..., method="gendice")``: train an ensemble, watch it on held-out rows, and return its ratio.

Checkpoints are npz files without pickles, replaced in one move.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.clone import resampled
from lingendice.continuous.learner import (
    Batches,
    Learner,
    NeuralOptions,
    Objective,
    ratio_at,
)
from lingendice.continuous.network import Network
from lingendice.continuous.outcome import Gain, Progress, RatioOutcome
from lingendice.continuous.samples import PolicySamples, Singles, expected_inputs
from lingendice.data.checks import Floats
from lingendice.data.display import strict_json
from lingendice.data.saving import digest_of, read_archive, write_archive
from lingendice.kernels.parallel import run_all
from lingendice.solvers.control import Controls, Monitor, Stop, watch

WATCHED_ROWS = 4096
"""Most rows that the residual is measured on."""
CLEAR_ERRORS = 2.0
"""Standard errors beyond which an imbalance is not noise."""


def split_rows(
    samples: PolicySamples, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows): whole episodes where there are at least ten, else single rows."""
    n = len(samples.logged)
    if share == 0.0 or n == 1:
        return np.arange(n), np.arange(n)
    rng = np.random.default_rng([seed, 3])
    episode = samples.transitions.episode
    unit = episode if episode is not None and int(episode.max()) >= 9 else np.arange(n)
    names = np.unique(unit)
    held_out = min(max(1, round(share * names.size)), names.size - 1)
    held = np.isin(unit, rng.permutation(names)[:held_out])
    return np.flatnonzero(~held), np.flatnonzero(held)


class WatchedRows:
    """Inputs at some of the transitions, with actions drawn once: what stationarity is measured on."""

    def __init__(self, samples: PolicySamples, rows: NDArray[np.int64], seed: int) -> None:
        rng = np.random.default_rng([seed, 4])
        if rows.size > WATCHED_ROWS:
            rows = rng.permutation(rows)[:WATCHED_ROWS]
        self.gamma = samples.gamma
        self.logged, self.base = samples.logged[rows], samples.base[rows]
        episode = samples.transitions.episode
        self.unit = np.arange(rows.size) if episode is None else episode[rows]
        inputs, weights = expected_inputs(samples, samples.following, rows, rng)
        restarted = np.flatnonzero(samples.restarted[rows])
        self.starting: tuple[Singles, Singles] | None = None
        if samples.starting is not None:
            firsts = rng.integers(0, len(samples.starting.states), max(1, rows.size))
            self.starting = expected_inputs(samples, samples.starting, firsts, rng)
            again = firsts[restarted]
            fresh, fresh_weights = expected_inputs(samples, samples.starting, again, rng)
            inputs[restarted], weights[restarted] = fresh, fresh_weights
        weights[samples.absorbed[rows]] = 0.0
        self.following = inputs, weights

    def residual(self, learner: Learner) -> float:
        """sqrt(max over v of J) for f = v' phi, phi the last hidden layer of f and a constant: g' H^-1 g.

        With g = (1 - gamma) E phi(x0) + gamma E tau phi(x') - E tau phi(x) and H = E tau phi phi'. Noise of
        n held-out rows alone makes it about sqrt(dim phi / n).
        """
        found, gram = self.imbalance(learner, self.base * np.maximum(learner.tau(self.logged), 0.0))
        g = found.mean(axis=0)
        if not (np.isfinite(g).all() and np.isfinite(gram).all()):
            return math.nan
        return math.sqrt(max(0.0, float(g @ np.linalg.solve(gram, g))))

    def imbalance(self, learner: Learner, tau: Floats) -> tuple[Floats, Floats]:
        """Rows whose mean is g, and H with a little on its diagonal, for some ratio at these rows."""
        phi = self._features(learner, self.logged)
        arrived = self._mean_features(learner, *self.following)
        g = tau[:, None] * (self.gamma * arrived - phi)
        if self.gamma < 1.0 and self.starting is not None:
            g += (1.0 - self.gamma) * self._mean_features(learner, *self.starting).mean(axis=0)
        gram = (phi * tau[:, None]).T @ phi / len(phi)
        return g, gram + 1e-4 * max(float(np.trace(gram)) / len(gram), 1e-12) * np.eye(len(gram))

    def standard_error(self, values: Floats) -> float:
        """Of the mean of values at these rows, by episode where episodes are known."""
        sums = np.bincount(self.unit, values - values.mean())
        n = np.count_nonzero(np.bincount(self.unit))
        return math.sqrt(float(sums @ sums) * n / max(n - 1, 1)) / len(values)

    def _features(self, learner: Learner, inputs: Singles) -> Floats:
        layers = learner.network.layers(learner.f_parameters)
        values = inputs.astype(np.float64)
        for weights, biases in layers[:-1]:
            values = values @ weights + biases
            values = np.tanh(values) if learner.network.activation == "tanh" else np.maximum(values, 0.0)
        return np.hstack([values, np.ones((len(values), 1))])

    def _mean_features(self, learner: Learner, inputs: Singles, weights: Singles) -> Floats:
        """At arrivals, averaged over the policy's actions."""
        values = self._features(learner, inputs.reshape(-1, inputs.shape[2]))
        return (values.reshape(*weights.shape, -1) * weights[:, :, None]).sum(axis=1)


KERNEL_SECONDS = 0.1
"""How long a call into compiled code lasts, so that Ctrl-C and limits are heeded."""


class NetworkRatio:
    """tau at new states and actions: the mean over the members."""

    def __init__(self, samples: PolicySamples, network: Network, output: str, members: list[Singles]) -> None:
        self._samples, self._network, self._output, self._members = samples, network, output, members

    def __call__(self, state: Any, action: Any) -> Floats:
        inputs = self._samples.inputs(state, action)
        ratios = [ratio_at(self._network, self._output, member, inputs) for member in self._members]
        return np.mean(ratios, axis=0)


class Training:
    """An ensemble on its way: members, held-out rows, history, checkpoints."""

    def __init__(
        self,
        samples: PolicySamples,
        objective: Objective,
        options: NeuralOptions,
        controls: Controls,
        seed: int,
    ) -> None:
        self.samples, self.objective, self.options, self.controls = samples, objective, options, controls
        trained, held = split_rows(samples, options.holdout, seed)
        self.steps = controls.max_iter or options.planned_steps(trained.size)
        self.every = options.report_every or max(1, self.steps // 50)
        self.held_out = WatchedRows(samples, held, seed)
        self._trained_rows = trained
        self.network = Network(samples.n_inputs, options.hidden, options.activation)
        part = samples if trained.size == len(samples.logged) else samples.subset(trained)
        batches = Batches(resampled(part, seed))
        self.learners = [
            Learner(batches, self.network, objective, options, self.steps, seed + member)
            for member in range(options.ensemble)
        ]
        self.histories: list[list[Progress]] = [[] for _ in self.learners]
        self.finite = [learner.snapshot() for learner in self.learners]
        self.seed = seed
        self._pace = math.nan
        if options.resume and options.checkpoint is not None and os.path.exists(options.checkpoint):
            self._resume(Path(options.checkpoint))

    @property
    def done(self) -> int:
        """Steps taken by every member."""
        return self.learners[0].step

    def run(self) -> Stop | None:
        """Train to the planned end or until told to stop."""
        limits = replace(self.controls, max_iter=None)
        with watch(limits) as monitor:
            while self.done < self.steps and not self._note(monitor):
                to_report = min(self.every - self.done % self.every, self.steps - self.done)
                paced = 2 if math.isnan(self._pace) else int(KERNEL_SECONDS / max(self._pace, 1e-6))
                self._advance(min(max(1, paced), to_report))
                if not all(learner.is_finite for learner in self.learners):
                    for learner, held in zip(self.learners, self.finite, strict=True):
                        learner.restore(held)
                    return Stop.NOT_FINITE
                if self.done % self.every == 0 or self.done == self.steps:
                    self._report()
            return monitor.stopped if self.done < self.steps else None

    def _advance(self, count: int) -> None:
        threads = self.controls.threads
        started = time.perf_counter()
        if len(self.learners) == 1:
            self.learners[0].advance(count, threads)
        else:
            run_all([partial(learner.advance, count) for learner in self.learners], threads)
        self._pace = (time.perf_counter() - started) / count

    def _report(self) -> None:
        for learner, history in zip(self.learners, self.histories, strict=True):
            history.append(self._progress(learner))
        self.finite = [learner.snapshot() for learner in self.learners]
        if self.options.checkpoint is not None:
            self._write(Path(self.options.checkpoint))

    def _write(self, path: Path) -> None:
        """A checkpoint of all members; a reader sees the old file or the new one, never a part."""
        arrays: dict[str, NDArray[Any]] = {}
        for k, history in enumerate(self.histories):
            arrays |= {f"{name}_{k}": values for name, values in self.finite[k].items()}
            arrays[f"history_{k}"] = np.array(history, dtype=np.float64).reshape(len(history), 4)
        write_archive(path, arrays, {"kind": "training", **self._identity})

    def _resume(self, path: Path) -> None:
        """Restore all members and their histories; refuses a file of another problem."""
        held, written = read_archive(path, "training")
        for name, value in self._identity.items():
            if written.get(name) != value:
                raise ValueError(
                    f"{path} was written with {name} = {written.get(name)!r}, this call has {value!r}; "
                    "give the same data and options, or another checkpoint file"
                )
        for k, learner in enumerate(self.learners):
            learner.restore({name: held[f"{name}_{k}"] for name in self.finite[k]})
            self.histories[k] = [Progress(int(step), *rest) for step, *rest in held[f"history_{k}"].tolist()]

    def ratio(self, learner: Learner) -> Floats:
        """tau of one member at every transition."""
        return self.samples.base * learner.tau(self.samples.logged)

    def gain(self, learner: Learner) -> Gain:
        """What training did about the base's imbalance, along the direction in which it is largest.

        f = v' phi, v = (H + h I)^-1 g of the base on the rows that were trained on, h the mean of H's
        diagonal: with less of it v follows noise. Held-out rows judge, and have no say in where to look.
        """
        seen, held = WatchedRows(self.samples, self._trained_rows, self.seed), self.held_out
        g, gram = seen.imbalance(learner, seen.base)
        along = np.linalg.solve(gram + np.trace(gram) / len(gram) * np.eye(len(gram)), g.mean(axis=0))

        def removed(rows: WatchedRows) -> tuple[Floats, float]:
            """The base's imbalance at some rows, and the share of its mean that the networks remove."""
            before = rows.imbalance(learner, rows.base)[0] @ along
            after = rows.imbalance(learner, rows.base * learner.tau(rows.logged))[0] @ along
            return before, 1.0 - float(after.mean() / before.mean()) if before.mean() != 0.0 else 0.0

        (before, held_out), (at_seen, trained) = removed(held), removed(seen)
        clear = abs(float(before.mean())) > CLEAR_ERRORS * held.standard_error(before)
        draws = learner.step * self.options.batch / self._trained_rows.size
        return Gain(held_out, clear, trained, float(at_seen.mean()), draws)

    def _progress(self, learner: Learner) -> Progress:
        tau, reward = self.ratio(learner), self.samples.transitions.reward
        mean = float(np.mean(tau * self.samples.mass_weight))
        value = math.nan if reward is None else float(np.mean(tau * reward)) / mean
        return Progress(learner.step, value, mean, self.held_out.residual(learner))

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
            "divergence": self.objective.divergence,
            **self.objective.loss._asdict(),
            **options,
        }
        known: dict[str, Any] = strict_json(facts)
        return known


_NOT_TRAINING = ("checkpoint", "resume", "report_every", "on_interrupt")
"""Options that change when training is looked at or kept, not what it does."""


def _drawn_actions(samples: PolicySamples) -> str:
    """A hash of what a policy that can only be sampled does in some states, if it does so again."""
    if samples.kind != "sampled":
        return ""
    rows = np.arange(min(len(samples.following.states), 64))
    drawn = [samples.draw(samples.following, rows, np.random.default_rng(0)).tobytes() for _ in range(2)]
    return hashlib.sha256(drawn[0]).hexdigest() if drawn[0] == drawn[1] else "not reproducible"


def _digest(samples: PolicySamples) -> str:
    """A hash of every number that training or its reports read, the policy's actions at arrivals included."""
    held: dict[str, Any] = {
        name: getattr(samples, name) for name in ("logged", "absorbed", "restarted", "base")
    }
    held |= {name: getattr(samples.transitions, name) for name in ("reward", "episode")}
    held |= {f"noise_{k}": part for k, part in enumerate(samples.noise)}
    for name in ("following", "starting"):
        arrivals = getattr(samples, name)
        held |= {} if arrivals is None else {f"{name}_s": arrivals.states, f"{name}_a": arrivals.action}
    return digest_of(held).hex()


def train(
    samples: PolicySamples,
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
        gamma=samples.gamma,
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
        gains=tuple(training.gain(learner) for learner in learners if np.ptp(samples.base) > 0.0),
        details={
            "u": [learner.u for learner in learners],
            "penalty": objective.loss.penalty,
            "base": samples.base,
        },
    )
