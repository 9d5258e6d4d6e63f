"""The commands that show what the library can do: demo and paper.

The demonstration: a taxi drives under a base policy and its steps are logged. From that log alone the average
reward of a better policy is estimated, and set against the exact answer, which Taxi's rules give by a linear
solve.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table

from lingendice.cli.app import NO_ANSWER, AsJson, app, echo, print_json, report_errors, say, show_table, work
from lingendice.data.display import strict_json
from lingendice.data.saving import replacing

if TYPE_CHECKING:
    from lingendice import Counts, Solution
    from lingendice.data.checks import Floats

_DEMO_HELP = """Log a taxi's drives under one policy, estimate another policy's value, compare with the truth.

[bold]Examples[/bold]

  lingendice demo

  lingendice demo --episodes 50 --steps 100 --seed 3
"""

_PAPER_HELP = """Run the GenDICE paper's experiments; needs a source checkout.

Without names, the tabular ones run.
Those on control tasks take up to a day, and training their policies changes files of the package:
they run only when named.

[bold]Examples[/bold]

  lingendice paper --list

  lingendice paper taxi pagerank --quick
"""

ONLY_BY_NAME = {"control", "control_truth", "train_policies"}


@app.command(help=_DEMO_HELP)
def demo(
    episodes: Annotated[int, typer.Option(min=1, help="Drives to log.")] = 500,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each drive.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of training and logging.")] = 0,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the plot.")] = Path("demo_output"),
    as_json: AsJson = False,
) -> None:
    with report_errors():
        with work("") as show:
            result = run_demo(episodes, steps, seed=seed, report=show)
        plot, trouble = None, ""
        try:
            plot = draw_demo(result, folder)
        except ImportError as error:
            trouble = str(error)
        if as_json:
            rows = strict_json([row._asdict() for row in result.rows])
            told = {"transitions": result.n_transitions, "rows": rows}
            print_json({**told, "plot": None if plot is None else str(plot)})
        else:
            _print_demo(result)
            echo(f"No plot: {trouble}" if plot is None else f"Plot: {plot}")
    if not all(row.converged for row in result.rows):
        raise typer.Exit(NO_ANSWER)


GAMMAS = (0.99, 1.0)


class DemoRow(NamedTuple):
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


class DemoResult(NamedTuple):
    """All rows, and what the plot needs (of the last row)."""

    rows: tuple[DemoRow, ...]
    n_transitions: int
    solution: Solution
    true_stationary: Floats


def run_demo(n_episodes: int, n_steps: int, *, seed: int = 0, report: Callable[[str], None]) -> DemoResult:
    """Train two policies, log the base policy's driving, estimate the target policy's value.

    ``report`` is called with one line before each stage.
    """
    from lingendice.environments import taxi

    report("Training two taxi drivers by Q-learning (5 million steps)")
    trained = taxi.train_policies(seed=seed)
    report(f"Logging {n_episodes} drives of {n_steps} steps under the base policy")
    log = taxi.simulate(trained.base, n_episodes, n_steps, seed=seed + 1)
    report("Compiling (slow the first time only), counting, and solving for the target policy")
    scrap = taxi.TaxiLog._make(part[: 10 * n_steps] for part in log)
    for gamma in GAMMAS:  # on a scrap of the log, so that the times shown are those of solving
        _solve(scrap.counts(), gamma, trained.target)
    counts, reward = log.counts(), log.reward.reshape(n_episodes, n_steps)
    rows = []
    for gamma in GAMMAS:
        solution = _solve(counts, gamma, trained.target)
        found, weight = solution.interval(0.95), gamma ** np.arange(n_steps)
        rows.append(
            DemoRow(
                gamma, taxi.policy_value(trained.target, gamma), found.estimate, found.low, found.high,
                float((reward @ weight).mean() / weight.sum()), solution.leak, solution.seconds,
                solution.status.value, solution.converged,
            )
        )  # fmt: skip
    truth = taxi.stationary_distribution(trained.target, GAMMAS[-1])
    return DemoResult(tuple(rows), log.state.size, solution, truth)


def _solve(counts: Counts, gamma: float, policy: Floats) -> Solution:
    import lingendice as lg
    from lingendice.environments import taxi

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lg.LeakWarning)  # the table shows the leak
        return lg.solve(counts, gamma, policy=policy, initial=taxi.initial_distribution())


def draw_demo(result: DemoResult, folder: Path) -> Path:
    """Draw the plot as ``taxi.png`` in a folder (made where missing) and return its path.

    Needs matplotlib; raises ImportError naming the extra to install where it is absent.
    """
    from lingendice.results.plots import new_figure

    figure = new_figure(13.5, 4.3)
    left, middle, right = figure.subplots(1, 3)
    _draw_values(left, result.rows)
    result.solution.plot("ratio", ax=middle)
    _draw_distribution(right, result)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "taxi.png"
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    return path


def _draw_values(axes: Any, rows: tuple[DemoRow, ...]) -> None:
    from lingendice.results.plots import BLUE, GRAY, INK, dress, legend

    place = np.arange(len(rows))
    truth, estimate, low, high, naive = np.array([row[1:6] for row in rows], dtype=float).T
    kinds = (("average of the log", naive, GRAY), ("estimate", estimate, BLUE), ("truth", truth, INK))
    for shift, (label, values, color) in enumerate(kinds):
        x = place + 0.27 * (shift - 1)
        axes.bar(x, values, width=0.25, label=label, color=color)
        for at, value, top in zip(x, values, high if label == "estimate" else values, strict=True):
            above = {"xy": (at, top), "xytext": (0, 3), "textcoords": "offset points"}
            axes.annotate(f"{value:.3f}", **above, ha="center", fontsize=8)
    axes.errorbar(place, estimate, yerr=[estimate - low, high - estimate], fmt="none", ecolor=INK, capsize=4)
    axes.set_xticks(place, [f"gamma = {row.gamma:g}" for row in rows])
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.margins(y=0.15)
    dress(axes, "Value of the target policy", "", "reward per step")
    axes.grid(False, axis="x")
    legend(axes)


def _draw_distribution(axes: Any, result: DemoResult) -> None:
    from lingendice.results.plots import BLUE, INK, dress

    found, truth = result.solution.stationary, result.true_stationary
    both = (found > 0) & (truth > 0)
    x, y = truth[both], found[both]
    axes.loglog(x, y, ".", markersize=3, alpha=0.4, color=BLUE)
    lowest, highest = max(min(x.min(), y.min()), 1e-9), max(x.max(), y.max())
    axes.plot([lowest, highest], [lowest, highest], color=INK, linewidth=0.8)
    axes.set_xlim(lowest, highest * 1.3)
    axes.set_ylim(lowest, highest * 1.3)
    title = f"Stationary distribution, gamma = {GAMMAS[-1]:g}"
    dress(axes, title, "true stationary mass of a state", "estimated from the log")


def _print_demo(result: DemoResult) -> None:
    title = f"Value of the target policy from {result.n_transitions:,} logged steps of another"
    table = Table(title=title, box=SIMPLE_HEAVY)
    for heading in ("gamma", "truth", "estimate", "95 % interval", "log average", "leak", "seconds"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            f"{row.gamma:g}", f"{row.truth:.4f}", f"[bold]{row.estimate:.4f}[/bold]",
            f"{row.low:.4f} .. {row.high:.4f}", f"{row.naive:.4f}", f"{row.leak:.2%}", f"{row.seconds:.3f}",
        )  # fmt: skip
    show_table(table)
    for row in result.rows:
        if not row.converged:
            say(f"gamma = {row.gamma:g} did not converge ({row.status})")


@app.command(help=_PAPER_HELP)
def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT]...", help="Which; else the tabular ones."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A part of each, in minutes.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Only list what there is.")] = False,
    as_json: AsJson = False,
) -> None:
    with report_errors():
        scripts = _experiments()
        every = [name for name in scripts if listed or name not in ONLY_BY_NAME]
        wanted = names or every
        unknown = [name for name in wanted if name not in scripts]
        if unknown:
            raise ValueError(f"there is no experiment {unknown[0]!r}; choose from {', '.join(scripts)}")
        if listed:
            told = {name: _first_line(scripts[name]) for name in wanted}
            if as_json:
                print_json(told)
            else:
                for name, line in told.items():
                    echo(f"{name:<20} {line}")
            return
        seconds = {}
        for name in wanted:
            if quick and not _can_be_quick(scripts[name]):
                say(f"{name} has no quick form and is left out")
                continue
            started = time.perf_counter()
            with work(f"{name} (its own output follows)"):
                _run([sys.executable, str(scripts[name]), *(["--quick"] if quick else [])], as_json)
            seconds[name] = time.perf_counter() - started
        where = str(_checkout("benchmarks/paper"))
        if as_json:
            print_json({"seconds": seconds, "results": where})
        else:
            echo(f"Done: {', '.join(seconds) or 'nothing'}. Results and README.md are in {where}")


def _checkout(folder: str) -> Path:
    """A folder of the source checkout that this package lies in."""
    path = Path(__file__).resolve().parents[2] / folder
    if not path.is_dir():
        raise ValueError(
            f"{folder} is part of the source and not of the installed package; unpack the source, "
            "pip install --editable '.[dev]' there, and run the command again"
        )
    return path


def _experiments() -> dict[str, Path]:
    """Scripts that can be run by themselves, by name."""
    scripts = sorted(_checkout("benchmarks/paper").glob("*.py"))
    return {path.stem: path for path in scripts if "__main__" in path.read_text(encoding="utf-8")}


def _first_line(script: Path) -> str:
    return script.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]


def _can_be_quick(script: Path) -> bool:
    return '"--quick"' in script.read_text(encoding="utf-8")


def _run(command: list[str], quietly: bool) -> None:
    """Run a command; where standard output is for JSON alone, its output goes to standard error."""
    done = subprocess.run(command, check=False, stdout=sys.stderr if quietly else None)
    if done.returncode != 0:
        say(f"error: {Path(command[-1]).name if len(command) == 2 else 'the run'} failed")
        raise typer.Exit(NO_ANSWER)
