"""The application: how failures are told, bars that show long work, options of all commands."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lingendice.data.display import printable, printable_lines
from lingendice.io.array_files import read_array

if TYPE_CHECKING:
    from lingendice import Counts


NO_ANSWER = 1
BAD_INPUT = 2
NOT_TRUSTED = 3
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell reports for a process that SIGPIPE stopped."""
WIDEST = 10_000
"""Columns of a table in a file or a pipe, where nothing may be cut off."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Stationary distributions and stationary ratios from logged transitions.",
    epilog="Exit codes: 0 an answer, 1 no convergence or no unique distribution, 2 wrong usage or input, "
    "3 a failed check with --strict.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print strict JSON and nothing else.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 where a check fails.")]


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


def say(message: str) -> None:
    """Tell a person something that is not the answer."""
    try:
        typer.echo(printable_lines(message), err=True)
    except BrokenPipeError:
        _to_nowhere(sys.stderr)


def echo(text: str) -> None:
    """The answer for a person. Names from data reach no terminal with control characters in them."""
    typer.echo(printable_lines(text))


def show_table(table: Table) -> None:
    """The same, for a table whose cells are safe already (see :func:`cell`)."""
    console = _Console()
    if not console.is_terminal:
        console.width = WIDEST
    console.print(table)


def cell(name: object) -> Text:
    """A name from data in a table: no markup, and no control characters."""
    return Text(printable(name))


class _Console(Console):
    """Leaves a broken pipe to :func:`report_errors`, as every other way to write does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _to_nowhere(stream: TextIO) -> None:
    """Send to nowhere what nobody reads any more, so that the interpreter does not complain at its end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def print_json(content: Mapping[str, Any]) -> None:
    """The answer for a machine, alone on standard output."""
    typer.echo(json.dumps(content, allow_nan=False))


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn expected failures into a line or two on stderr, and warnings likewise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read the output has seen enough (head does that): no failure of the command.
            _to_nowhere(sys.stdout)
            raise typer.Exit(BROKEN_PIPE) from None
        except (ValueError, OSError, ImportError) as error:
            # An absent module without a hint how to install it is a defect of ours, not of the input.
            if isinstance(error, ModuleNotFoundError):
                raise
            say(f"error: {error}")
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            for warning in caught:
                say(f"warning: {warning.message}")


@contextmanager
def work(message: str) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, gone without a trace at the end; nothing where standard error is a file or a pipe.

    What it yields tells what is being done now.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(message, total=None)
        yield lambda text: bar.update(task, description=text)


# -- options that say what the data are, and the one place where they are read -------------------------------


DataFile = Annotated[Path, typer.Argument(metavar="FILE", help="Transitions or matrix, by suffix.")]
Gamma = Annotated[float, typer.Option(help="Discount factor, above 0 and up to 1 (1: average reward).")]
Policy = Annotated[
    Path | None,
    typer.Option(
        help="Probabilities of actions: .npy, .npz or .csv of numbers (states x actions, or one action per "
        "state); or by label, .csv with the columns state, action and probability, or .json."
    ),
]
Policies = Annotated[
    list[Path] | None, typer.Option("--policy", help="A policy as for solve; may be given several times.")
]
Initial = Annotated[
    Path | None,
    typer.Option(
        help="Initial distribution: .npy, .npz or .csv of numbers; or .csv with the columns state and "
        "probability, or .json."
    ),
]
Level = Annotated[float, typer.Option(min=0.0, max=1.0, help="Confidence level of the intervals.")]

_COLUMNS = {
    "state": "Column of the state.",
    "next_state": "Column of the next state.",
    "action": "Column of the action.",
    "reward": "Column of the reward.",
    "episode": "Column of the episode.",
    "terminal": "Column: the episode ended here.",
    "truncated": "Column: recording stopped here.",
    "weight": "Column of how often the row was seen.",
    "time": "Column to put rows of an episode in order by.",
    "table": "Table of a DuckDB file.",
    "ends": "Without next states, the last row of an episode is 'terminal' or 'truncated' (cut off).",
}
_Names = Annotated[
    bool | None,
    typer.Option(
        "--labels/--ids",
        help="Integers of states and actions are names / count from 0; by default sparse ones are names.",
    ),
]
Labels = dict[str, list[str]]
Columns = dict[str, Any]
"""Names of columns by role, and whether integers are names; None where the caller said nothing."""


def with_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each role of a column; it receives them together, as ``names``."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "names"]
    added = [
        inspect.Parameter(
            role,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(f"--{role.replace('_', '-')}", help=text)],
        )
        for role, text in _COLUMNS.items()
    ]
    added.append(inspect.Parameter("labels", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Names))

    def run(**given: Any) -> None:
        names = {role: given.pop(role) for role in (*_COLUMNS, "labels")}
        command(names=names, **given)

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [*keyword, *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def load(file: Path, names: Columns, policy: Any = None) -> tuple[Counts, Labels]:
    """Read and count a file as :func:`lingendice.read_transitions` does, and tell the labels that it uses.

    A policy shows states and actions that the ids of a log may happen not to contain.
    """
    from lingendice.io.read import ReadOptions, count_piece

    at_least = (0, 0)
    if np.ndim(policy) == 2:
        at_least = policy.shape
    elif np.ndim(policy) == 1 and policy.dtype.kind in "iu" and policy.size:  # one action per state
        at_least = policy.size, int(policy.max()) + 1
    options = ReadOptions.of(
        at_least=at_least,
        on_command_line=True,
        **names,
    )
    with work(f"Reading {file.name}"):
        counts = count_piece(file, options).result()
    labels = {name: getattr(counts, name) for name in ("state_labels", "action_labels")}
    return counts, {
        name: [str(label) for label in given] for name, given in labels.items() if given is not None
    }


def distributions(**paths: Path | None) -> dict[str, Any]:
    """Read the arrays, or tables by label, that were named."""
    return {name: read_array(path) for name, path in paths.items() if path is not None}


def keep_inputs(out: Path, *inputs: Path | None) -> None:
    """Refuse to write over a file that is read."""
    if out.exists() and any(path is not None and path.exists() and out.samefile(path) for path in inputs):
        raise ValueError(f"{out}: is read by this command; write the result to another file")


def policies(paths: list[Path]) -> dict[str, Any]:
    """Policies by the names of their files; a three-dimensional array holds several."""
    stems = [path.stem for path in paths]
    found: dict[str, Any] = {}
    for path, stem in zip(paths, stems, strict=True):
        name = stem if stems.count(stem) == 1 else str(path)
        array = read_array(path)
        several = np.ndim(array) == 3
        found |= {f"{name}[{k}]": array[k] for k in range(len(array))} if several else {name: array}
    return found
