"""The demonstration: how well would another policy have done, judged from logs alone?

A taxi drives under a base policy and its steps are logged. From that log, and nothing else,
the average reward of a better policy is estimated, and set against the exact answer, which
Taxi's rules give by a linear solve.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lingendice as lg
from lingendice.data.display import strict_json
from lingendice.data.saving import replacing
from lingendice.environments import taxi
from lingendice.results.plots import BLUE, GREY, INK, dress, legend, new_figure

GAMMAS = (0.99, 1.0)


@dataclass(frozen=True)
class DemoRow:
    """One discount factor: what the log says, what is true."""

    gamma: float
    truth: float
    estimate: float
    low: float
    """Ends of the 95 % interval."""
    high: float
    naive: float
    leak: float
    seconds: float
    status: str
    converged: bool


@dataclass(frozen=True)
class DemoResult:
    """All rows, and what the plot needs (of the last row)."""

    rows: tuple[DemoRow, ...]
    n_transitions: int
    frequency: NDArray[np.float64]
    tau: NDArray[np.float64]
    stationary: NDArray[np.float64]
    true_stationary: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """The rows as strict JSON types."""
        return strict_json({"transitions": self.n_transitions, "rows": [asdict(row) for row in self.rows]})


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
        interval = solution.interval(0.95)
        rows.append(
            DemoRow(
                gamma=gamma,
                truth=taxi.policy_value(trained.target, gamma),
                estimate=float("nan") if solution.value is None else solution.value,
                low=interval.low,
                high=interval.high,
                naive=_average_reward_of_log(log.reward.reshape(n_episodes, n_steps), gamma),
                leak=solution.leak,
                seconds=solution.seconds,
                status=solution.status.value,
                converged=solution.converged,
            )
        )
    return DemoResult(
        rows=tuple(rows),
        n_transitions=log.state.size,
        frequency=solution.data_distribution,
        tau=solution.tau,
        stationary=solution.stationary,
        true_stationary=taxi.stationary_distribution(trained.target, GAMMAS[-1]),
    )


def _count(log: taxi.TaxiLog, part: slice) -> lg.Counts:
    shortened = taxi.TaxiLog(
        log.state[part], log.action[part], log.reward[part], log.next_state[part], log.episode[part]
    )
    return shortened.counts()


def _solve(counts: lg.Counts, gamma: float, policy: NDArray[np.float64]) -> lg.Solution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)  # the table shows the leak
        return lg.solve(counts, gamma, policy=policy, initial=taxi.initial_distribution())


def _average_reward_of_log(reward: NDArray[np.float64], gamma: float) -> float:
    """Reward per logged step, step t weighted by gamma^t: what the log shows without correction."""
    weight = gamma ** np.arange(reward.shape[1])
    return float((reward @ weight).mean() / weight.sum())


def draw_demo(result: DemoResult, folder: str | Path) -> Path:
    """Draw the plot as ``taxi.png`` in a folder (made where missing) and return its path.

    Needs matplotlib; raises ImportError naming the extra to install where it is absent.
    """
    figure = new_figure(13.5, 4.3)
    left, middle, right = figure.subplots(1, 3)
    _draw_values(left, result)
    _draw_ratio(middle, result)
    _draw_distribution(right, result)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "taxi.png"
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    return path


def _draw_values(axes: Any, result: DemoResult) -> None:
    place = np.arange(len(result.rows))
    kinds = (
        ("average of the log", [row.naive for row in result.rows], GREY),
        ("estimate", [row.estimate for row in result.rows], BLUE),
        ("truth", [row.truth for row in result.rows], INK),
    )
    for shift, (label, values, color) in enumerate(kinds):
        bars = axes.bar(place + 0.27 * (shift - 1), values, width=0.25, label=label, color=color)
        if label == "estimate":
            ends = [
                [row.estimate - row.low for row in result.rows],
                [row.high - row.estimate for row in result.rows],
            ]
            axes.errorbar(place, values, yerr=ends, fmt="none", ecolor=INK, capsize=4)
        axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=16 if label == "estimate" else 2)
    axes.set_xticks(place, [f"gamma = {row.gamma:g}" for row in result.rows])
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.margins(y=0.15)
    dress(axes, "Value of the target policy", "", "reward per step")
    axes.grid(False, axis="x")
    legend(axes)


def _draw_ratio(axes: Any, result: DemoResult) -> None:
    seen = (result.frequency > 0) & (result.tau > 0)
    axes.loglog(result.frequency[seen], result.tau[seen], ".", markersize=3, alpha=0.4, color=BLUE)
    axes.axhline(1, color=INK, linewidth=0.6)
    dress(axes, "Above 1: the target goes there more often", "p: share of the log", "tau = mu / p")


def _draw_distribution(axes: Any, result: DemoResult) -> None:
    both = (result.stationary > 0) & (result.true_stationary > 0)
    x, y = result.true_stationary[both], result.stationary[both]
    axes.loglog(x, y, ".", markersize=3, alpha=0.4, color=BLUE)
    lowest, highest = max(min(x.min(), y.min()), 1e-9), max(x.max(), y.max())
    axes.plot([lowest, highest], [lowest, highest], color=INK, linewidth=0.8)
    axes.set_xlim(lowest, highest * 1.3)
    axes.set_ylim(lowest, highest * 1.3)
    title = f"Stationary distribution, gamma = {result.rows[-1].gamma:g}"
    dress(axes, title, "true stationary mass of a state", "estimated from the log")
