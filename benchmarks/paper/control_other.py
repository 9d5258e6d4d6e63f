"""Environments that nothing was tuned on: two with flagged ends, two without restarts.

    python benchmarks/paper/control_other.py [--logs 4]

Policies are written by hand: a linear controller with some random actions (CartPole), a spring with a damper
(Pendulum), tanh of fixed random weights (Hopper, Swimmer), each with normal noise; the behavior has more.
gamma = 0.99; the true value is the mean over many episodes of the target. Written to
``results/control_other.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from reporting import RESULTS, provenance, table, write

import lingendice as lg
from lingendice import baselines
from lingendice.data.policies import DiscretePolicy, GaussianPolicy

GAMMA, EPISODES, STEPS, HORIZON = 0.99, 50, 100, 1000
TRUTH_EPISODES = {"CartPole-v1": 200_000, "Pendulum-v1": 1000, "Hopper-v5": 500, "Swimmer-v5": 300}
FIRST_SEED = 8_000_000
FILE = RESULTS / "control_other.json"
METHODS = ("default", "model", "FQE", "DR", "ratio", "cloned IS", "naive")


class Upright(DiscretePolicy):
    """Push toward where the pole falls, with some random pushes."""

    def __init__(self, random: float) -> None:
        self.random = random

    def probabilities(self, states: Any) -> Any:
        right = (states @ np.array([0.05, 0.3, 3.0, 1.0]) > 0).astype(float)
        right = (1.0 - self.random) * right + 0.5 * self.random
        return np.column_stack([1.0 - right, right])


def spring(states: Any) -> Any:
    """Pendulum: torque against angle and speed."""
    angle = np.arctan2(states[:, 1], states[:, 0])
    return np.clip(-2.0 * angle - 0.6 * states[:, 2], -2.0, 2.0)[:, None]


def random_tanh(n_states: int, n_actions: int, seed: int) -> Any:
    weights = np.random.default_rng(seed).normal(0.0, 0.4, size=(n_states, n_actions))
    return lambda states: np.tanh(np.clip(states, -5.0, 5.0) @ weights)


PROBLEMS = {
    "CartPole-v1": (Upright(0.2), Upright(0.6)),
    "Pendulum-v1": tuple(GaussianPolicy(spring, std, -2.0, 2.0) for std in (0.3, 1.0)),
    "Hopper-v5": tuple(GaussianPolicy(random_tanh(11, 3, 1), std, -1.0, 1.0) for std in (0.15, 0.4)),
    "Swimmer-v5": tuple(GaussianPolicy(random_tanh(8, 2, 2), std, -1.0, 1.0) for std in (0.15, 0.4)),
}
"""(target, behavior)."""


def simulate(name: str, policy: Any, episodes: int, steps: int, seed: int) -> list[tuple[Any, ...]]:
    """Steps of an environment without its limit of time; an episode ends by itself, or after ``steps``."""
    environment = gymnasium.make(name).unwrapped
    rng, found = np.random.default_rng(seed), []
    for episode in range(episodes):
        now, _ = environment.reset(seed=seed + episode)
        for step in range(steps):
            if isinstance(policy, DiscretePolicy):
                action: Any = int(rng.random() > policy.probabilities(now[None])[0, 0])
            else:
                action = policy.sample(now[None].astype(float), rng)[0]
            following, reward, ended, _, _ = environment.step(action)
            found.append((now, action, float(reward), following, ended, step == steps - 1))
            now = following
            if ended:
                break
    environment.close()
    return found


def discounted(steps: list[tuple[Any, ...]]) -> list[float]:
    """(1 - gamma) sum gamma^t r_t of every episode, 0 past its end."""
    earned, total, power = [], 0.0, 1.0
    for _, _, reward, _, ended, cut in steps:
        total, power = total + power * reward, power * GAMMA
        if ended or cut:
            earned.append((1.0 - GAMMA) * total)
            total, power = 0.0, 1.0
    return earned


def cartpole_returns(episodes: int) -> Any:
    """The same for CartPole, all episodes at once: the value is near 1, which takes many of them."""
    environments = CartPoleVectorEnv(episodes, max_episode_steps=HORIZON + 2)
    rng, policy = np.random.default_rng(1), PROBLEMS["CartPole-v1"][0]
    now, _ = environments.reset(seed=1)
    alive, earned = np.ones(episodes), np.zeros(episodes)
    for step in range(HORIZON):
        earned += alive * (1.0 - GAMMA) * GAMMA**step
        action = (rng.random(episodes) > policy.probabilities(now)[:, 0]).astype(int)
        now, _, ended, _, _ = environments.step(action)
        alive = alive * ~ended
    return earned


def truth(name: str) -> dict[str, float]:
    """The target's value and its standard error."""
    episodes = TRUTH_EPISODES[name]
    if name == "CartPole-v1":
        earned = cartpole_returns(episodes)
    else:
        earned = discounted(simulate(name, PROBLEMS[name][0], episodes, HORIZON, 1))
    return {"truth": float(np.mean(earned)), "standard_error": float(np.std(earned, ddof=1) / episodes**0.5)}


def estimate(name: str, seed: int) -> dict[str, Any]:
    """Every method on one log."""
    target, behavior = PROBLEMS[name]
    log = lg.Transitions.from_gymnasium(simulate(name, behavior, EPISODES, STEPS, seed))
    if not log.terminal.any():
        log = lg.Transitions(log.state, log.action, log.reward, log.next_state, episode=log.episode)
    solution = lg.solve(log, GAMMA, policy=target, seed=seed % 1000)
    values = {one.name: one.value for one in solution.estimates} | {"default": solution.value}
    values["cloned IS"] = baselines.neural_importance_sampling(log, GAMMA, policy=target).value
    return {"seed": seed, "rows": len(log), "values": values, "interval": list(solution.interval()),
            "headline": solution.evidence.headline, "status": solution.status.value,
            "restarts": solution.evidence.restarts,
            "made_by": provenance.made_by("control_other")}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=4)
    parser.add_argument("--fresh", action="store_true", help="compute anew what other code made")
    given = parser.parse_args()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept = [run for entry in known.values() for run in entry["runs"]]
    provenance.stamp("control_other", kept)
    if given.fresh:
        kept = [run for run in kept if provenance.is_ours(run, "control_other")]
    missing = len(PROBLEMS) * given.logs - len(kept)
    print(provenance.plan("control_other", kept, max(missing, 0), "logs"), flush=True)
    for number in range(given.logs):
        for name in PROBLEMS:
            entry = known.setdefault(name, {"runs": []})
            if "truth" not in entry:
                entry |= truth(name)
            runs = entry["runs"]
            anew = number < len(runs) and runs[number] not in kept
            if anew or len(runs) <= number:
                runs[number : number + 1] = [estimate(name, FIRST_SEED + number)]
                kept.append(runs[number])
                print(name, entry["truth"], runs[number], flush=True)
            report(known)


def report(known: dict[str, Any]) -> None:
    """ln of the mean squared error, and coverage."""
    rows, held, total = [], 0, 0
    for name, entry in known.items():
        scores = [
            math.log(np.mean([(run["values"][m] - entry["truth"]) ** 2 for run in entry["runs"]]))
            for m in METHODS
        ]
        covered = [run["interval"][0] <= entry["truth"] <= run["interval"][1] for run in entry["runs"]]
        held, total = held + sum(covered), total + len(covered)
        known_to = f"{entry['truth']:.4f} ± {entry['standard_error']:.4f}"
        rows.append([name, known_to, str(len(covered)), *(f"{score:.1f}" for score in scores)])
    means = [f"{np.mean([float(row[3 + k]) for row in rows]):.2f}" for k in range(len(METHODS))]
    text = (
        "# Environments that nothing was tuned on\n\nln of the mean squared error at gamma = 0.99, up to "
        f"{EPISODES} x {STEPS} steps per log.\n\n"
        + table(["environment", "true value", "logs", *METHODS], [*rows, ["mean", "", "", *means]])
        + f"\n\nIntervals at 95 %: {held} of {total} hold the true value.\n"
    )
    write("control_other", known, text)


if __name__ == "__main__":
    main()
