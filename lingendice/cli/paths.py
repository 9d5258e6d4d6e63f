"""The command for journeys, trajectories and other paths of states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lingendice.cli.app import AsJson, app, echo, print_json, report_errors, work

_HELP = """Read paths of states: their order as a chain, attribution of conversions, timescales over lags.

FILE is a table (.csv, .tsv, .parquet, .feather) with one row per state (columns path, state and time) or
one row per path (columns path, as 'a > b > c', and count), an array of states (.npy), or one path per line
(.txt).

[bold]Examples[/bold]

  lingendice paths journeys.csv

  lingendice paths journeys.csv --conversion buy --order 2

  lingendice paths trajectory.npy --lags 1,2,5,10
"""


@app.command(help=_HELP)
def paths(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Paths, by suffix.")],
    conversion: Annotated[
        str | None,
        typer.Option(help="State in which a journey converts, or column of conversions: attribution."),
    ] = None,
    value: Annotated[str | None, typer.Option(help="Column of what conversions are worth.")] = None,
    order: Annotated[int, typer.Option(help="Last channels that attribution goes by.")] = 1,
    lags: Annotated[str | None, typer.Option(help="Lags divided by commas: implied timescales.")] = None,
    lag: Annotated[int, typer.Option(help="Steps between the states of a pair.")] = 1,
    separator: Annotated[str, typer.Option(help="What separates the states of a path.")] = ">",
    path: Annotated[str | None, typer.Option(help="Column of the path.")] = None,
    state: Annotated[str | None, typer.Option(help="Column of the state.")] = None,
    time: Annotated[str | None, typer.Option(help="Column that puts the states of a path in order.")] = None,
    count: Annotated[str | None, typer.Option(help="Column of how often a path was seen.")] = None,
    level: Annotated[float, typer.Option(min=0.0, max=1.0, help="Confidence level.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Answer one of three questions about the paths of a file."""
    from lingendice.io.path_files import read_path_file  # counts in compiled code

    with report_errors():
        import lingendice as lg

        if conversion is None and (value is not None or order != 1):
            raise ValueError("--value and --order are for attribution; give --conversion, too")
        if conversion is not None and lags is not None:
            raise ValueError("--conversion and --lags are two questions; give one of them")
        given = {"path": path, "state": state, "time": time, "count": count}
        columns = {role: name for role, name in given.items() if name is not None}
        numbers = tuple(name for name in (conversion, value) if name is not None)
        with work(f"Reading {file.name}"):
            read = read_path_file(file, separator, columns, numbers)
        how: dict[str, Any] = {"separator": separator, "columns": columns or None}
        if conversion is not None:
            found: Any = lg.removal_effects(read, conversion, value=value, order=order, **how)
            intervals = {of: found.interval(level, of).to_dict() for of in ("share", "value")}
            answer = {**found.to_dict(), "intervals": intervals}
        elif lags is not None:
            found = lg.lags(read, _whole(lags), **how)
            answer = {**found.to_dict(), "interval": found.interval(level).to_dict()}
        else:
            found = lg.markov_order(read, lag=lag, **how)
            answer = found.to_dict()
        if as_json:
            print_json(answer)
        else:
            if conversion is None and lags is None:
                echo(repr(lg.Counts.from_paths(read, lag, **how)))
            echo(str(found))


def _whole(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--lags {text!r} must be whole numbers divided by commas, as 1,2,5,10") from None
