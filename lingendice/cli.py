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
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
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
.csv (transitions, a table with a header),
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
        except (ValueError, TypeError, OSError, ImportError) as error:
            if isinstance(error, TypeError) and not str(error):
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
        summary = {**solution.to_dict(), **labels}
        arrays = _arrays_of(solution)
        if as_json:
            typer.echo(json.dumps(summary, allow_nan=False))
        else:
            typer.echo(str(solution))
            if arrays is not None:
                _print_heaviest(arrays, labels)
        if out is not None and arrays is not None:
            files.write_result(out, _for_npz(solution, arrays, labels), summary)
            if not as_json:
                typer.echo(f"written to {out}")
    if arrays is None:
        _say("error: the data has several recurrent classes, so no unique law exists.")
        _say("Next step: give --initial for the limit from there, or take gamma below 1.")
        raise typer.Exit(NO_ANSWER)
    if not solution.converged:
        _say(f"error: the solver did not converge ({getattr(solution.status, 'value', solution.status)}).")
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
    episodes: Annotated[int, typer.Option(min=1, help="Drives to log.")] = 200,
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


def _load(file: Path, names: ColumnNames, policy: Any) -> tuple[Any, dict[str, list[str]]]:
    """Read and count a file, and tell the labels that it uses for states and actions."""
    import lingendice as lg
    from lingendice.io.files import TransitionTable, read_data

    data = read_data(file, names)
    if isinstance(data, TransitionTable):
        counts = lg.Counts.from_transitions(**data.as_dict(), **_sizes_of_policy(data, policy))
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


def _arrays_of(solution: Any) -> dict[str, Any] | None:
    """The law and the ratio, or None where the data leave several laws."""
    try:
        return {"stationary": solution.stationary, "tau": solution.tau}
    except ValueError:
        return None


def _for_npz(solution: Any, arrays: dict[str, Any], labels: dict[str, list[str]]) -> dict[str, Any]:
    import numpy as np

    scalars = {
        name: np.asarray(getattr(solution, name))
        for name in ("value", "leak", "residual", "gap")
        if getattr(solution, name) is not None
    }
    return {**arrays, **scalars, **{name: np.asarray(values) for name, values in labels.items()}}


def _print_heaviest(arrays: dict[str, Any], labels: dict[str, list[str]]) -> None:
    """A table of the heaviest cells, where the file has labels that positions would not tell."""
    import numpy as np

    if "state_labels" not in labels:
        return
    mass, tau = np.ravel(arrays["stationary"]), np.ravel(arrays["tau"])
    states = labels["state_labels"]
    n_actions = max(1, mass.size // len(states))
    actions = labels.get("action_labels", [str(a) for a in range(n_actions)])
    table = Table("state", *(["action"] if n_actions > 1 else []), "stationary", "tau")
    for cell in np.argsort(-np.nan_to_num(mass), kind="stable")[:_SHOWN_CELLS]:
        s, a = divmod(int(cell), n_actions)
        table.add_row(
            states[s], *([actions[a]] if n_actions > 1 else []), f"{mass[cell]:.6g}", f"{tau[cell]:.6g}"
        )
    Console().print(table)


def _print_demo(result: DemoResult) -> None:
    table = Table(title=f"Value of the target policy from {result.n_transitions:,} logged steps of another")
    for heading in (
        "gamma",
        "truth",
        "estimate",
        "error",
        "average of log",
        "leak",
        "eff. sample",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            f"{row.gamma:g}",
            f"{row.truth:.4f}",
            f"[bold]{row.estimate:.4f}[/bold]",
            f"{row.estimate - row.truth:+.4f}",
            f"{row.naive:.4f}",
            f"{row.leak:.2%}",
            f"{row.effective_sample_size:,.0f}",
            f"{row.seconds:.3f}",
        )
    Console().print(table)
    for row in result.rows:
        if not row.converged:
            _say(f"gamma = {row.gamma:g} did not converge ({row.status})")
