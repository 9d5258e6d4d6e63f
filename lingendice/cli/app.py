"""The application, how failures are told, and bars that show long work on a terminal only."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lingendice.data.markup import printable, printable_lines

NO_ANSWER = 1
BAD_INPUT = 2
NOT_TRUSTED = 3
INTERRUPTED = 130
BROKEN_PIPE = 141
"""As a shell tells of a process that was stopped by SIGPIPE."""

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
    _Console().print(table)


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


class Work:
    """A bar on a terminal; nothing at all where standard error is a file or a pipe."""

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=total)

    def say(self, message: str) -> None:
        """Tell what is being done now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=message)

    def advance(self) -> None:
        """One more of the total is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


@contextmanager
def work(message: str, total: int | None = None) -> Iterator[Work]:
    """Show that something is being worked on, and remove all trace of it at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Work(None, total)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = Work(bar, total)
        shown.say(message)
        yield shown
