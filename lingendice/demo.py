"""The demonstration: how well would another policy have done, judged from logs alone?

A taxi drives under a base policy and its steps are logged. From that log, and nothing else,
the average reward of a better policy is estimated, and set against the exact answer, which
Taxi's rules give by a linear solve.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lingendice as lg
from lingendice.environments import taxi

GAMMAS = (0.99, 1.0)


@dataclass(frozen=True)
class DemoRow:
    """One discount factor: what the log says, what is true."""

    gamma: float
    truth: float
    estimate: float
    naive: float
    leak: float
    effective_sample_size: float
    seconds: float
    status: str
    converged: bool


@dataclass(frozen=True)
class DemoResult:
    """All rows, and what the picture needs (of the last row)."""

    rows: tuple[DemoRow, ...]
    n_transitions: int
    frequency: NDArray[np.float64]
    tau: NDArray[np.float64]
    stationary: NDArray[np.float64]
    true_stationary: NDArray[np.float64]


def run_demo(
    n_episodes: int = 500,
    n_steps: int = 400,
    *,
    seed: int = 0,
    report: Callable[[str], None] = lambda message: None,
) -> DemoResult:
    """Train two policies, log the base policy's driving, estimate the target policy's value.

    ``report`` is called with one line before each stage.
    """
    report("Training two taxi drivers by Q-learning (5 million steps)")
    trained = taxi.train_policies(seed=seed)
    report(f"Logging {n_episodes} drives of {n_steps} steps under the base policy")
    log = taxi.simulate(trained.base, n_episodes, n_steps, seed=seed + 1)
    report("Compiling (slow the first time only), counting, and solving for the target policy")
    for gamma in GAMMAS:  # on a scrap of the log, so that the times shown are those of solving
        scrap = slice(0, 10 * n_steps)
        _solve(_count(log, scrap), gamma, trained.target)
    counts = _count(log, slice(None))
    rows = []
    for gamma in GAMMAS:
        solution = _solve(counts, gamma, trained.target)
        rows.append(
            DemoRow(
                gamma=gamma,
                truth=taxi.policy_value(trained.target, gamma),
                estimate=_number(solution.value),
                naive=_average_reward_of_log(log.reward.reshape(n_episodes, n_steps), gamma),
                leak=solution.leak,
                effective_sample_size=_number(solution.effective_sample_size),
                seconds=solution.seconds,
                status=solution.status.value,
                converged=solution.converged,
            )
        )
    exact = taxi.stationary_law(trained.target, GAMMAS[-1])[:, None] * trained.target
    return DemoResult(
        rows=tuple(rows),
        n_transitions=log.state.size,
        frequency=counts.data_law,
        tau=solution.tau,
        stationary=solution.stationary,
        true_stationary=exact.ravel(),
    )


def _count(log: taxi.TaxiLog, part: slice) -> lg.Counts:
    return lg.Counts.from_transitions(
        log.state[part], log.next_state[part], action=log.action[part], reward=log.reward[part],
        episode=log.episode[part], n_states=taxi.N_STATES, n_actions=taxi.N_ACTIONS,
    )  # fmt: skip


def _solve(counts: lg.Counts, gamma: float, policy: NDArray[np.float64]) -> lg.Solution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)  # the table shows the leak
        return lg.solve(counts, gamma, policy=policy, initial=taxi.initial_law(), ratio="state_action")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _average_reward_of_log(reward: NDArray[np.float64], gamma: float) -> float:
    """Reward per logged step, step t weighted by gamma^t: what the log shows without correction."""
    weight = gamma ** np.arange(reward.shape[1])
    return float((reward @ weight).mean() / weight.sum())


def draw_demo(result: DemoResult, folder: str | Path) -> Path:
    """Draw the picture as ``taxi.png`` in a folder (made where missing) and return its path.

    Needs matplotlib; raises ImportError naming the extra to install where it is absent.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the picture needs matplotlib: pip install 'lingendice[plots]'") from error

    figure = Figure(figsize=(13.5, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    _draw_values(left, result)
    _draw_ratio(middle, result)
    _draw_law(right, result)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "taxi.png"
    figure.savefig(path, dpi=120)
    return path


def _draw_values(axes: Any, result: DemoResult) -> None:
    place = np.arange(len(result.rows))
    kinds = (
        ("average of the log", [row.naive for row in result.rows], "#b0b0b0"),
        ("estimate", [row.estimate for row in result.rows], "#2a6fbb"),
        ("truth", [row.truth for row in result.rows], "#222222"),
    )
    for shift, (label, values, colour) in enumerate(kinds):
        bars = axes.bar(place + 0.27 * (shift - 1), values, width=0.25, label=label, color=colour)
        axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    axes.set_xticks(place, [f"gamma = {row.gamma:g}" for row in result.rows])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.margins(y=0.15)
    axes.set_ylabel("reward per step")
    axes.set_title("Value of the target policy")
    axes.legend(frameon=False, fontsize=8)


def _draw_ratio(axes: Any, result: DemoResult) -> None:
    seen = (result.frequency > 0) & (result.tau > 0)
    axes.loglog(result.frequency[seen], result.tau[seen], ".", markersize=3, alpha=0.4, color="#2a6fbb")
    axes.axhline(1, color="black", linewidth=0.6)
    axes.set_xlabel("p: share of the log")
    axes.set_ylabel("tau = mu / p")
    axes.set_title("Above 1: the target goes there more often")


def _draw_law(axes: Any, result: DemoResult) -> None:
    both = (result.stationary > 0) & (result.true_stationary > 0)
    x, y = result.true_stationary[both], result.stationary[both]
    axes.loglog(x, y, ".", markersize=3, alpha=0.4, color="#2a6fbb")
    lowest, highest = max(min(x.min(), y.min()), 1e-9), max(x.max(), y.max())
    axes.plot([lowest, highest], [lowest, highest], color="black", linewidth=0.8)
    axes.set_xlim(lowest, highest * 1.3)
    axes.set_ylim(lowest, highest * 1.3)
    axes.set_xlabel("true stationary mass of a cell")
    axes.set_ylabel("estimated from the log")
    axes.set_title(f"Stationary law, gamma = {result.rows[-1].gamma:g}")
