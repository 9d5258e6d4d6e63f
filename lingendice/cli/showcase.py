"""The commands that show what the library can do: demo and paper."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table

from lingendice.cli.app import NO_ANSWER, AsJson, app, echo, print_json, report_errors, say, show_table, work

if TYPE_CHECKING:
    from lingendice.cli.demo import DemoResult

_DEMO_HELP = """Log a taxi's drives under one policy, estimate another policy's value, compare with the truth.

[bold]Examples[/bold]

  lingendice demo

  lingendice demo --episodes 50 --steps 100 --seed 3
"""

_PAPER_HELP = """Run the GenDICE paper's experiments anew; needs a source checkout.

Without names, the tabular ones. Those on control tasks take up to a day, and training their policies changes
files of the package: they run only when named.

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
        from lingendice.cli.demo import draw_demo, run_demo

        with work("") as shown:
            result = run_demo(episodes, steps, seed=seed, report=shown.say)
        plot, trouble = None, ""
        try:
            plot = draw_demo(result, folder)
        except ImportError as error:
            trouble = str(error)
        if as_json:
            print_json({**result.to_dict(), "plot": None if plot is None else str(plot)})
        else:
            _print_demo(result)
            echo(f"No plot: {trouble}" if plot is None else f"Plot: {plot}")
    if not all(row.converged for row in result.rows):
        raise typer.Exit(NO_ANSWER)


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


def _print_demo(result: DemoResult) -> None:
    title = f"Value of the target policy from {result.n_transitions:,} logged steps of another"
    table = Table(title=title, box=SIMPLE_HEAVY)
    for heading in ("gamma", "truth", "estimate", "95 % interval", "log average", "leak", "seconds"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            f"{row.gamma:g}",
            f"{row.truth:.4f}",
            f"[bold]{row.estimate:.4f}[/bold]",
            f"{row.low:.4f} .. {row.high:.4f}",
            f"{row.naive:.4f}",
            f"{row.leak:.2%}",
            f"{row.seconds:.3f}",
        )
    show_table(table)
    for row in result.rows:
        if not row.converged:
            say(f"gamma = {row.gamma:g} did not converge ({row.status})")
