"""The ``lingendice`` command: solve, audit and demo. The only home of typer and rich.

Exit codes: 0 for an answer, 1 where the solver did not converge or no unique law exists, 2 for
wrong usage or input.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lingendice import Counts, Solution
    from lingendice.demo import DemoResult
    from lingendice.io.files import ColumnNames, TransitionTable

NO_ANSWER = 1
BAD_INPUT = 2
_SHOWN_CELLS = 10

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Stationary distributions and stationary ratios from logged transitions.",
    epilog="Exit codes: 0 an answer, 1 no convergence or no unique law, 2 wrong usage or input.",
)

_SOLVE_HELP = """Solve for the stationary law, the ratio to the data and the value.

FILE holds transitions or a matrix, rows are sources:
.csv, .parquet, .feather or .arrow (transitions, a table with a header),
.npz (a matrix saved by scipy.sparse.save_npz, or arrays named like the columns of a table),
.npy (a dense matrix), .mtx (Matrix Market).
Columns named state, next_state, action, reward, episode, terminal and truncated are used where present.

[bold]Examples[/bold]

  lingendice solve walk.csv --gamma 1

  lingendice solve graph.mtx --gamma 0.85 --json

  lingendice solve log.csv --gamma 0.99 --policy pi.npy --state s --next-state s2

  lingendice solve log.npz --policy pi.npy --out result.npz
"""

_AUDIT_HELP = """Tell what the data can identify: recurrent classes, leak, coverage, effective sample size.

[bold]Examples[/bold]

  lingendice audit walk.csv

  lingendice audit log.npz --gamma 0.99 --policy pi.npy --json
"""

_DEMO_HELP = """Log a taxi's drives under one policy, estimate another policy's value, compare with the truth.

[bold]Examples[/bold]

  lingendice demo

  lingendice demo --episodes 50 --steps 100 --seed 3
"""

DataFile = Annotated[Path, typer.Argument(metavar="FILE", help="Transitions or matrix, by suffix.")]
Gamma = Annotated[float, typer.Option(help="Discount factor, above 0 and up to 1 (1: average reward).")]
Policy = Annotated[
    Path | None, typer.Option(help="Chances pi(a|s), states x actions: .npy, .npz or .csv of numbers.")
]
StateName = Annotated[str | None, typer.Option("--state", help="Column of the state.")]
NextStateName = Annotated[str | None, typer.Option("--next-state", help="Column of the next state.")]
ActionName = Annotated[str | None, typer.Option("--action", help="Column of the action.")]
RewardName = Annotated[str | None, typer.Option("--reward", help="Column of the reward.")]
EpisodeName = Annotated[str | None, typer.Option("--episode", help="Column of the episode.")]
TerminalName = Annotated[str | None, typer.Option("--terminal", help="Column: the episode ended here.")]
TruncatedName = Annotated[str | None, typer.Option("--truncated", help="Column: recording stopped here.")]
WeightName = Annotated[str | None, typer.Option("--weight", help="Column of how often the row was seen.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print strict JSON and nothing else.")]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(version("lingendice"))
        raise typer.Exit


@app.callback()
def _lingendice(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Turn expected failures into a line or two on stderr, and warnings likewise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield
        except (ValueError, OSError, ImportError) as error:
            # An absent module without a hint how to install it is a defect of ours, not of the input.
            if isinstance(error, ModuleNotFoundError):
                raise
            _say(f"error: {error}")
            raise typer.Exit(BAD_INPUT) from None
        finally:
            for warning in caught:
                _say(f"warning: {warning.message}")


def _say(message: str) -> None:
    typer.echo(message, err=True)


@app.command(help=_SOLVE_HELP)
def solve(
    file: DataFile,
    gamma: Gamma = 1.0,
    policy: Policy = None,
    initial: Annotated[
        Path | None, typer.Option(help="Law of the first state: .npy, .npz or .csv of numbers.")
    ] = None,
    state: StateName = None,
    next_state: NextStateName = None,
    action: ActionName = None,
    reward: RewardName = None,
    episode: EpisodeName = None,
    terminal: TerminalName = None,
    truncated: TruncatedName = None,
    weight: WeightName = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Write the result: .npz (arrays) or .json.")] = None,
) -> None:
    with _told_plainly():
        import lingendice as lg
        from lingendice.io import files

        if out is not None:
            files.check_result_path(out)
        names = _column_names(
            state=state, next_state=next_state, action=action, reward=reward, episode=episode,
            terminal=terminal, truncated=truncated, weight=weight,
        )  # fmt: skip
        laws = _laws(policy=policy, initial=initial)
        data, labels = _load(file, names, laws.get("policy"))
        solution = lg.solve(data, gamma=gamma, **laws)
        unique = solution.status is not lg.Status.SEVERAL_LAWS
        summary = {**solution.to_dict(), **labels}
        if as_json:
            typer.echo(json.dumps(summary, allow_nan=False))
        else:
            typer.echo(str(solution))
            if unique and "state_labels" in labels:
                _print_heaviest(solution, labels)
        if out is not None:
            files.write_result(out, _for_npz(solution, unique, labels), summary)
            if not as_json:
                typer.echo(f"written to {out}")
    if not unique:
        _say("error: the data has several recurrent classes, so no unique law exists.")
        _say("Next step: give --initial for the limit from there, or take gamma below 1.")
        raise typer.Exit(NO_ANSWER)
    if not solution.converged:
        _say(f"error: no convergence ({solution.status.value}).")
        _say(f"Next step: {solution.status.advice}")
        raise typer.Exit(NO_ANSWER)


@app.command(help=_AUDIT_HELP)
def audit(
    file: DataFile,
    gamma: Gamma = 1.0,
    policy: Policy = None,
    state: StateName = None,
    next_state: NextStateName = None,
    action: ActionName = None,
    reward: RewardName = None,
    episode: EpisodeName = None,
    terminal: TerminalName = None,
    truncated: TruncatedName = None,
    weight: WeightName = None,
    as_json: AsJson = False,
) -> None:
    with _told_plainly():
        import lingendice as lg

        names = _column_names(
            state=state, next_state=next_state, action=action, reward=reward, episode=episode,
            terminal=terminal, truncated=truncated, weight=weight,
        )  # fmt: skip
        laws = _laws(policy=policy)
        data, labels = _load(file, names, laws.get("policy"))
        report = lg.audit(data, gamma=gamma, **laws)
        if as_json:
            typer.echo(json.dumps({**report.to_dict(), **labels}, allow_nan=False))
        else:
            typer.echo(str(report))


@app.command(help=_DEMO_HELP)
def demo(
    episodes: Annotated[int, typer.Option(min=1, help="Drives to log.")] = 500,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each drive.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of training and logging.")] = 0,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the picture.")] = Path("demo_output"),
) -> None:
    with _told_plainly():
        from lingendice.demo import draw_demo, run_demo

        result = run_demo(episodes, steps, seed=seed, report=lambda message: typer.echo(f"{message} ..."))
        _print_demo(result)
        try:
            typer.echo(f"Picture: {draw_demo(result, folder)}")
        except ImportError as error:
            typer.echo(f"No picture: {error}")
    if not all(row.converged for row in result.rows):
        raise typer.Exit(NO_ANSWER)


def _column_names(**asked: str | None) -> ColumnNames:
    """Names the caller gave replace the usual ones, and must then be found."""
    from lingendice.io.files import ColumnNames

    given = {role: name for role, name in asked.items() if name is not None}
    return ColumnNames(**given, required=frozenset(given))


def _load(file: Path, names: ColumnNames, policy: Any) -> tuple[Counts, dict[str, list[str]]]:
    """Read and count a file, and tell the labels that it uses for states and actions."""
    import lingendice as lg
    from lingendice.io.files import TransitionTable, read_data
    from lingendice.io.sources import IPC, PARQUET

    if file.suffix.lower() in (*PARQUET, *IPC):
        from lingendice.io.reading import counts_of_table

        data: Any = counts_of_table(file, names, None if policy is None else policy.shape)
    else:
        data = read_data(file, names)
    if isinstance(data, lg.Counts):
        counts = data
    elif isinstance(data, TransitionTable):
        columns: dict[str, Any] = {**data.as_dict(), **_sizes_of_policy(data, policy)}
        counts = lg.Counts.from_transitions(**columns)
    else:
        counts = lg.Counts.from_matrix(data)
    labels = {name: getattr(counts, name) for name in ("state_labels", "action_labels")}
    return counts, {
        name: [str(label) for label in given] for name, given in labels.items() if given is not None
    }


def _sizes_of_policy(table: TransitionTable, policy: Any) -> dict[str, int]:
    """A policy tells of states and actions that a log counting from 0 may happen not to contain."""
    if policy is None or policy.ndim != 2 or table.action is None:
        return {}
    columns = {"n_states": (table.state, table.next_state), "n_actions": (table.action,)}
    return {
        name: size
        for (name, ids), size in zip(columns.items(), policy.shape, strict=True)
        if all(column.dtype.kind == "i" and column.max() < size for column in ids)
    }


def _laws(**paths: Path | None) -> dict[str, Any]:
    from lingendice.io.files import read_array

    return {name: read_array(path) for name, path in paths.items() if path is not None}


def _for_npz(solution: Solution, unique: bool, labels: dict[str, list[str]]) -> dict[str, Any]:
    import numpy as np

    named = {name: np.asarray(values) for name, values in labels.items()}
    if not unique:
        return {"laws": np.stack(solution.laws), **named}
    scalars = {name: getattr(solution, name) for name in ("value", "leak", "residual", "gap")}
    known = {name: np.asarray(number) for name, number in scalars.items() if number is not None}
    return {"stationary": solution.stationary, "tau": solution.tau, **known, **named}


def _print_heaviest(solution: Solution, labels: dict[str, list[str]]) -> None:
    """A table of the heaviest cells under the names that the file uses."""
    import numpy as np

    mass, tau, states = solution.stationary, solution.tau, labels["state_labels"]
    n_actions = mass.size // len(states)
    actions = labels.get("action_labels", [str(a) for a in range(n_actions)])
    table = Table("state", *(["action"] if n_actions > 1 else []), "stationary", "tau")
    for cell in np.argsort(-mass, kind="stable")[:_SHOWN_CELLS]:
        s, a = divmod(int(cell), n_actions)
        names = [states[s], actions[a]] if n_actions > 1 else [states[s]]
        table.add_row(*names, f"{mass[cell]:.6g}", f"{tau[cell]:.6g}")
    Console().print(table)


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
    Console().print(table)
    for row in result.rows:
        if not row.converged:
            _say(f"gamma = {row.gamma:g} did not converge ({row.status})")
