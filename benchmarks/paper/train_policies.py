"""Train the policies that ``benchmarks/control/trained_policies`` holds, by augmented random search.

    python benchmarks/paper/train_policies.py cartpole|reacher|halfcheetah [--minutes M] [--seed 0] [--out
    DIR]

Augmented random search (Mania, Guy and Recht, 2018, version V2-t): the weights of one linear map of
normalized features move along the differences of returns between mirrored random nudges, best directions
only, divided by the spread of those returns. Needs NumPy and ``gymnasium[mujoco]``. The best evaluation so
far is written whenever it improves, and training stops once it is good enough; the weights after a few
iterations are kept as ``early``. The same seed gives the same file, unless ``--minutes`` ends the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# `control` is the package beside this folder, not control.py in it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from control.environments import (
    TRAINED_POLICIES,
    CartpolePolicy,
    SquashedMean,
    make_mujoco,
    simulate_cartpole,
    with_lever_arms,
)

HERE = Path(__file__).resolve().parent
Array = np.ndarray


@dataclass(frozen=True)
class Task:
    """What is trained on, and when it is enough."""

    steps: int
    """Steps of an episode in training."""
    evaluation_steps: int
    lever_arms: bool
    """Whether Reacher's lever arms are features too."""
    early: int
    """Iterations after which the weights are kept as less trained."""
    enough: float
    episodes: int
    """Episodes a nudge, the same starts and noise for both signs."""
    directions: int = 32
    best: int = 8
    rate: float = 0.03
    nudge: float = 0.03
    halving: float = float("inf")
    """Iterations in which rate and nudge fall to half."""
    iterations: int = 100_000
    noise: float = 0.1
    """Standard deviation of the noise of actions, the target policy's."""


TASKS = {
    "reacher": Task(
        50,
        50,
        True,
        early=4,
        enough=-5.6,
        episodes=8,
        best=16,
        rate=0.05,
        nudge=0.05,
        halving=20,
        iterations=32,
    ),
    "halfcheetah": Task(
        1000, 1000, False, early=4, enough=4000.0, episodes=1, best=16, rate=0.02, iterations=68
    ),
}


class Moments:
    """Running mean and variance of features."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, samples: Array) -> None:
        """Take in one sample per row."""
        total = self.count + len(samples)
        change = samples.mean(axis=0) - self.mean
        self.squares = (
            self.squares
            + samples.var(axis=0) * len(samples)
            + change**2 * (self.count * len(samples) / total)
        )
        self.mean = self.mean + change * (len(samples) / total)
        self.count = total

    def scale(self) -> Array:
        """Standard deviation, 1 where there is none."""
        deviation = np.sqrt(self.squares / max(self.count - 1, 1))
        return np.where(deviation < 1e-6, 1.0, deviation)


def search_step(
    weights: Array,
    score: Callable[[Array, int], float],
    rng: np.random.Generator,
    task: Task,
    shrink: float = 1.0,
) -> Array:
    """One iteration; ``score(weights, seed)`` is called with the same seed for a nudge and its mirror."""
    nudges = rng.standard_normal((task.directions, *weights.shape))
    seeds = rng.integers(2**31, size=task.directions)
    scores = np.array(
        [
            [score(weights + sign * shrink * task.nudge * nudge, int(seed)) for sign in (1.0, -1.0)]
            for nudge, seed in zip(nudges, seeds, strict=True)
        ]
    )
    top = np.argsort(-scores.max(axis=1))[: task.best]
    gain = np.tensordot(scores[top, 0] - scores[top, 1], nudges[top], axes=1)
    return weights + shrink * task.rate / (task.best * (scores[top].std() + 1e-8)) * gain


def episode(environment: Any, mean: SquashedMean, steps: int, noise: float, seed: int) -> tuple[float, Array]:
    """Return of one episode, and its observations; the seed decides the start and the noise of actions."""
    observation, _ = environment.reset(seed=seed)
    shocks = np.random.default_rng(seed).standard_normal((steps, len(mean.weights))) * noise
    total, seen = 0.0, []
    for shock in shocks:
        seen.append(observation)
        action = np.clip(mean(observation[None])[0] + shock, -1.0, 1.0)
        observation, reward, _, _, _ = environment.step(action)
        total += reward
    return total, np.array(seen)


def train_mujoco(name: str, minutes: float, seed: int, out: Path) -> None:
    """Reacher or HalfCheetah."""
    task, environment = TASKS[name], make_mujoco(name)
    expand = with_lever_arms if task.lever_arms else np.asarray
    rng, started, best = np.random.default_rng(seed), time.time(), -np.inf
    size = expand(environment.reset(seed=0)[0][None]).shape[1]
    weights, moments = np.zeros((environment.action_space.shape[0], size)), Moments(size)
    early = None
    for iteration in range(1, task.iterations + 1):
        center, scale = moments.mean.copy(), moments.scale()

        def score(moved: Array, start: int, center: Array = center, scale: Array = scale) -> float:
            mean, total = SquashedMean(moved / scale, center), 0.0
            for k in range(task.episodes):
                gained, seen = episode(environment, mean, task.steps, task.noise, start + k)
                moments.add(expand(seen))
                total += gained
            return total / task.episodes

        weights = search_step(weights, score, rng, task, 0.5 ** (iteration / task.halving))
        found = SquashedMean(weights / moments.scale(), moments.mean.copy())
        if iteration == task.early:
            early = found
        if iteration < task.early or iteration % 4:
            continue
        tries = [
            episode(environment, found, task.evaluation_steps, task.noise, 10_000 + k)[0]
            for k in range(8 * task.episodes)
        ]
        print(
            f"{iteration}: {np.mean(tries):.2f} ({min(tries):.2f}), {time.time() - started:.0f} s", flush=True
        )
        if np.mean(tries) > best:
            best = float(np.mean(tries))
            np.savez(
                out / f"{name}.npz",
                weights=found.weights, center=found.center,
                early_weights=early.weights, early_center=early.center,
                seed=seed, iteration=iteration, evaluation=best,
            )  # fmt: skip
        if best > task.enough or time.time() - started > 60 * minutes:
            break


def train_cartpole(seed: int, out: Path) -> None:
    """Weights and bias of the logistic policy: mean reward with 0.7 of it, the rest uniform."""
    task = Task(500, 0, False, 0, 0.0, episodes=20, directions=16, rate=0.5, nudge=0.5)

    def score(moved: Array, start: int) -> float:
        policy = CartpolePolicy(moved[:4], float(moved[4]), 0.7)
        return float(simulate_cartpole([policy] * task.episodes, task.steps, seed=start).reward.mean())

    rng, weights = np.random.default_rng(seed), np.zeros(5)
    for iteration in range(1, 61):
        weights = search_step(weights, score, rng, task)
        if iteration % 10 == 0:
            print(iteration, weights.round(2), score(weights, 10_000), flush=True)
    np.savez(out / "cartpole.npz", weights=weights[:4], bias=weights[4], seed=seed, iteration=iteration)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["cartpole", *TASKS])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=TRAINED_POLICIES)
    given = parser.parse_args()
    if given.task == "cartpole":
        train_cartpole(given.seed, given.out)
    else:
        train_mujoco(given.task, given.minutes, given.seed, given.out)


if __name__ == "__main__":
    main()
