"""The default of ``solve`` on random MDPs that no choice was tuned to, against every baseline.

    python benchmarks/random_mdps.py [--mdps 60] [--logs 100] [--salt 2026]

Garnet MDPs and slippery gridworlds of several sizes; soft-max and random targets; behaviors near to and far
from the target, uniform, other, and mixtures over episodes; gamma 1, 0.99 and 0.95.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

sys.path.insert(0, str(Path(__file__).resolve().parent / "paper"))
from reporting import errors, table, write

import lingendice as lg
from lingendice import baselines

METHODS = {
    "default": {},
    "plug-in, leak": {"ratio": "state_action", "ridge": 0.0, "clone": 0.0},
    "plug-in, renormalized": {"ratio": "state", "ridge": 0.0, "clone": 0.0},
    "clone=10, ridge=1e-5": {"ratio": "state", "clone": 10.0, "ridge": 1e-5},
    "plug-in, smoothing=3": {"smoothing": 3.0},
}
ALLOWED = 0.3
FACTORIZED_CELLS = 160
"""State-action pairs up to which GradientDICE and BestDICE are run: their factorizations fill in."""


@dataclass
class Problem:
    """A random MDP with a target, behaviors and the size of its logs."""

    name: str
    family: str
    behavior_kind: str
    kernel: np.ndarray
    reward: np.ndarray
    initial: np.ndarray
    target: np.ndarray
    behaviors: list[np.ndarray]
    gamma: float
    episodes: int
    steps: int

    def truth(self) -> float:
        n = self.initial.size
        chain = np.einsum("sa,sat->st", self.target, self.kernel.reshape(n, -1, n))
        reward = (self.target * self.reward).sum(axis=1)
        if self.gamma < 1:
            distribution = np.linalg.solve(np.eye(n) - self.gamma * chain.T, (1 - self.gamma) * self.initial)
            return float(distribution @ reward)
        reached = np.flatnonzero(self.initial > 0)
        system = np.eye(reached.size) - chain[np.ix_(reached, reached)].T
        system[0] = 1.0
        return float(np.linalg.solve(system, np.eye(reached.size)[0]) @ reward[reached])

    def log(self, seed: list[int]) -> tuple[lg.Counts, float]:
        """Counts of one log, and its plain (discounted) average reward."""
        rng = np.random.default_rng(seed)
        n, k = self.reward.shape
        steps = _Draw(self.kernel)
        acting = _Draw(np.concatenate(self.behaviors))
        which = np.arange(self.episodes) % len(self.behaviors)
        state = _Draw(self.initial[None])(np.zeros(self.episodes, dtype=int), rng)
        columns = []
        for _ in range(self.steps):
            action = acting(which * n + state, rng)
            following = steps(state * k + action, rng)
            columns.append((state, action, following))
            state = following
        state, action, following = (np.stack(part, axis=1).ravel() for part in zip(*columns, strict=True))
        reward = self.reward[state, action]
        counts = lg.Counts.from_transitions(
            state, following, action, reward, np.repeat(np.arange(self.episodes), self.steps),
            n_states=n, n_actions=k, keep_episodes=True, threads=1,
        )  # fmt: skip
        weight = np.tile(self.gamma ** np.arange(self.steps), self.episodes)
        return counts, float(weight @ reward / weight.sum())


class _Draw:
    """Draws from many distributions at once by one search in their stacked distribution functions."""

    def __init__(self, distributions: np.ndarray) -> None:
        self.width = distributions.shape[1]
        stacked = np.minimum(np.cumsum(distributions, axis=1), 1.0)
        stacked[:, -1] = 1.0
        self.stacked = (stacked + np.arange(distributions.shape[0])[:, None]).ravel()

    def __call__(self, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        found = np.searchsorted(self.stacked, row + rng.random(row.size), side="right")
        return np.minimum(found - row * self.width, self.width - 1)


def garnet(rng, n, k, branches):
    kernel = np.zeros((n * k, n))
    for row in kernel:
        row[rng.choice(n, branches, replace=False)] = rng.dirichlet(np.ones(branches))
    reward = 0.5 * rng.standard_normal((n, 1)) + 0.5 * rng.standard_normal((n, k))
    return kernel, reward, rng.dirichlet(np.ones(n))


def gridworld(rng, side, slip):
    """Two goals (+1 and -1) that send on to a random place; steps cost 0.1; walls stop."""
    n, k = side * side, 4
    goals = rng.choice(n, 2, replace=False)
    walls = set(rng.choice(n, max(1, n // 8), replace=False).tolist()) - set(goals.tolist())
    initial = np.array([float(cell not in walls) for cell in range(n)])
    initial /= initial.sum()
    kernel, reward = np.zeros((n * k, n)), np.full((n, k), -0.1)
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    for cell in range(n):
        x, y = divmod(cell, side)
        for action in range(k):
            if cell in goals:
                kernel[cell * k + action] = initial
                reward[cell, action] = 1.0 if cell == goals[0] else -1.0
                continue
            for direction, (dx, dy) in enumerate(moves):
                to = min(max(x + dx, 0), side - 1) * side + min(max(y + dy, 0), side - 1)
                chance = (1 - slip) * (direction == action) + slip / 4
                kernel[cell * k + action, cell if to in walls else to] += chance
    return kernel, reward, initial


def softmax(table_of_values, temperature):
    weight = np.exp((table_of_values - table_of_values.max(axis=1, keepdims=True)) / temperature)
    return weight / weight.sum(axis=1, keepdims=True)


def optimal_values(kernel, reward, gamma=0.95):
    values = np.zeros(reward.shape[0])
    for _ in range(600):
        values = (reward + gamma * (kernel @ values).reshape(reward.shape)).max(axis=1)
    return reward + gamma * (kernel @ values).reshape(reward.shape)


def draw(number: int, rng: np.random.Generator) -> Problem:
    if number % 2 == 0:
        n, k = int(rng.choice([20, 100, 400])), int(rng.choice([2, 4, 8]))
        branches = int(rng.choice([2, 5, 10]))
        kernel, reward, initial = garnet(rng, n, k, branches)
        family, name = "Garnet", f"Garnet {n} states, {k} actions, {branches} branches"
    else:
        side, slip, k = int(rng.choice([4, 8, 16])), float(rng.choice([0.05, 0.2, 0.5])), 4
        kernel, reward, initial = gridworld(rng, side, slip)
        n, family, name = side * side, "gridworld", f"gridworld {side} x {side}, slip {slip:g}"
    if number % 5 == 4:
        target = rng.dirichlet(np.full(k, 0.5), size=n)
    else:
        best = optimal_values(kernel, reward)
        target = softmax(best, float(rng.choice([0.05, 0.2, 0.5])) * best.std())
    uniform = np.full((n, k), 1 / k)
    other = softmax(0.5 * np.log(target + 1e-6) + 0.7 * rng.standard_normal((n, k)), 1.0)
    kind = ("near", "far", "mixture", "uniform", "other")[(number // 3) % 5]
    behaviors = {
        "near": [0.8 * target + 0.2 * uniform],
        "far": [0.3 * target + 0.7 * rng.dirichlet(np.ones(k), size=n)],
        "mixture": [0.9 * target + 0.1 * uniform, 0.3 * target + 0.7 * uniform, other],
        "uniform": [uniform],
        "other": [other],
    }[kind]
    visits, steps = float(rng.choice([2, 5, 20, 60])), int(rng.choice([20, 100]))
    episodes = min(max(4, int(visits * n / steps)), 20_000 // steps)
    gamma = (1.0, 0.95, 0.99)[(number // 2) % 3]
    return Problem(name, family, kind, kernel, reward, initial, target, behaviors, gamma, episodes, steps)


def problem(number: int, salt: int) -> Problem:
    """The first drawn MDP of this number whose reachable states all communicate."""
    for attempt in range(200):
        drawn = draw(number, np.random.default_rng([salt, number, attempt]))
        n = drawn.initial.size
        reached = np.flatnonzero(drawn.initial > 0)
        edges = drawn.kernel.reshape(n, -1, n).sum(axis=1)[np.ix_(reached, reached)] > 0
        if connected_components(edges, directed=True, connection="strong")[0] == 1:
            return drawn
    raise RuntimeError(f"no connected MDP for number {number}")


def other_methods(drawn: Problem, counts: lg.Counts, start: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Every baseline that exists for this MDP."""
    target, gamma = drawn.target, drawn.gamma
    exact = {"initial": start, "threads": 1}
    known = np.mean(drawn.behaviors, axis=0)
    found: dict[str, Callable[[], Any]] = {
        "add-one model": lambda: baselines.model_based(
            counts, gamma, policy=target, smoothing="add-one", **exact
        ),
        "step-wise WIS": lambda: baselines.step_wise(counts, gamma, policy=target),
        "trajectory WIS": lambda: baselines.trajectory_wise(counts, gamma, policy=target),
        "per-decision IS": lambda: baselines.per_decision(counts, gamma, policy=target),
        "IPS, cloned": lambda: baselines.ips(counts, gamma, policy=target, **exact),
        "IPS, mean behavior known": lambda: baselines.ips(
            counts, gamma, policy=target, behavior=known, **exact
        ),
    }
    if gamma < 1:
        found["doubly robust"] = lambda: baselines.doubly_robust(counts, gamma, policy=target)
        found["DualDICE"] = lambda: baselines.dual_dice(counts, gamma, policy=target)
    if target.size <= FACTORIZED_CELLS:
        found["GradientDICE"] = lambda: baselines.gradient_dice(counts, gamma, policy=target)
        found["BestDICE"] = lambda: baselines.best_dice(counts, gamma, policy=target)
    return found


def run(drawn: Problem, number: int, logs: int, salt: int) -> dict[str, dict[str, float]]:
    truth, found = drawn.truth(), {}
    for log in range(logs):
        counts, average = drawn.log([salt, number, 1_000 + log])
        found.setdefault("plain average", []).append(average)
        start = counts.initial_count / counts.initial_count.sum()
        for name, options in METHODS.items():
            # Small logs may have several recurrent classes, where the exact equation needs a start.
            given = {"initial": start} if name.startswith("plug-in") else {}
            solution = lg.solve(counts, drawn.gamma, policy=drawn.target, threads=1, **options, **given)
            found.setdefault(name, []).append(solution.value)
        for name, call in other_methods(drawn, counts, start).items():
            found.setdefault(name, []).append(call().value)
    # Importance sampling has no value where the weights of all episodes are zero.
    defined = {name: np.array(values)[np.isfinite(values)] for name, values in found.items()}
    return {name: errors(values, truth) for name, values in defined.items() if values.size > logs // 2}


def summary(records: list[dict]) -> tuple[dict, str]:
    lines, versus = [], {}
    for name in dict.fromkeys(name for record in records for name in record["methods"]):
        both = [record["methods"] for record in records if name in record["methods"]]
        score = np.array([methods[name]["ln_mse"] for methods in both])
        ours = np.array([methods["default"]["ln_mse"] for methods in both])
        gap = ours - score
        bias = np.array([methods[name]["bias"] ** 2 for methods in both])
        variance = np.array([methods[name]["sd"] ** 2 for methods in both])
        share = float(np.mean(bias / (bias + variance)))
        versus[name] = {
            "mdps": len(both),
            "mean_ln_mse": float(score.mean()),
            "mean_ln_mse_of_default": float(ours.mean()),
            "mean_share_of_squared_bias": share,
            "default_wins": int((gap < -0.1).sum()),
            "ties": int((np.abs(gap) <= 0.1).sum()),
            "default_losses": int((gap > 0.1).sum()),
            "default_worse_by_more_than_allowed": int((gap > ALLOWED).sum()),
            "largest_loss": float(gap.max()),
        }
        row = versus[name]
        against = [f"{row['default_wins']} / {row['ties']} / {row['default_losses']}",
                   str(row["default_worse_by_more_than_allowed"]), f"{row['largest_loss']:+.2f}"]  # fmt: skip
        lines.append(
            [name, str(len(both)), f"{row['mean_ln_mse']:.2f}", f"{ours.mean():.2f}", f"{share:.0%}"]
            + (["", "", ""] if name == "default" else against)
        )
    header = [
        "method",
        "MDPs",
        "mean ln MSE",
        "default on these",
        "share of squared bias in MSE",
        "default wins / ties (0.1) / loses",
        f"default worse by > {ALLOWED}",
        "largest loss",
    ]
    return versus, table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mdps", type=int, default=60)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--salt", type=int, default=2026)
    given = parser.parse_args()
    warnings.simplefilter("ignore", lg.LeakWarning)
    started, records, rows = time.perf_counter(), [], []
    for number in range(given.mdps):
        drawn = problem(number, given.salt)
        methods = run(drawn, number, given.logs, given.salt)
        records.append(
            {"number": number, "name": drawn.name, "behavior": drawn.behavior_kind, "gamma": drawn.gamma,
             "episodes": drawn.episodes, "steps": drawn.steps, "methods": methods}
        )  # fmt: skip
        ours = methods["default"]
        rows.append(
            [
                str(number),
                drawn.name,
                drawn.behavior_kind,
                f"{drawn.gamma:g}",
                f"{drawn.episodes} x {drawn.steps}",
                f"{ours['ln_mse']:.2f} ± {ours['ln_mse_se']:.2f}",
                f"{ours['bias']:+.4f}",
                f"{ours['sd']:.4f}",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    versus, text = summary(records)
    print(text)
    others = [name for name in versus if name != "default"]
    for row, record in zip(rows, records, strict=True):
        found = record["methods"]
        row += [f"{found[name]['ln_mse']:.2f}" if name in found else "" for name in others]
    header = ["", "MDP", "behavior", "gamma", "log", "default", "bias", "sd", *others]
    write(
        "random_mdps",
        {"salt": given.salt, "logs": given.logs, "seconds": time.perf_counter() - started,
         "versus": versus, "mdps": records},
        f"# Random MDPs: the default of solve\n\n{given.mdps} MDPs, {given.logs} logs each; natural log of "
        "the mean squared error of the value. Bias and standard deviation are of the default. The doubly "
        "robust estimator and DualDICE exist for gamma < 1; GradientDICE and BestDICE are run on MDPs of up "
        f"to {FACTORIZED_CELLS} state-action pairs.\n\n"
        f"{text}\n\n{table(header, rows)}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
