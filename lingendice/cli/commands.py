"""The commands that answer questions about a file: solve, audit, backtest, compare, report."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Column, Table

from lingendice.cli.app import (
    NO_ANSWER,
    NOT_TRUSTED,
    AsJson,
    Columns,
    DataFile,
    Gamma,
    Initial,
    Labels,
    Level,
    Policies,
    Policy,
    Strict,
    app,
    cell,
    distributions,
    echo,
    keep_inputs,
    load,
    policies,
    print_json,
    report_errors,
    say,
    show_table,
    with_columns,
    work,
)
from lingendice.data.display import strict_json
from lingendice.io import array_files as files
from lingendice.io.sources import find_files
from lingendice.results.status import Status
from lingendice.results.tables import heaviest

if TYPE_CHECKING:
    from lingendice import Comparison, Solution

_SOLVE_HELP = """Solve for the stationary distribution, the ratio to the data and the value.

FILE holds transitions or a matrix, rows are sources:
.csv or .tsv (also .gz or .zst), .parquet, .feather or .arrow (transitions, a table with a header),
.npz (a matrix saved by scipy.sparse.save_npz, or arrays named like the columns of a table),
.npy (a dense matrix), .mtx (Matrix Market).
Columns named state, next_state, action, reward, episode, terminal, truncated or done are used where
present, also under the names of Gymnasium, D4RL, Minari and d3rlpy (obs, next_obs, terminated, ...).

[bold]Examples[/bold]

  lingendice solve walk.csv --gamma 1

  lingendice solve graph.mtx --gamma 0.85 --json

  lingendice solve log.csv --gamma 0.99 --policy pi.npy --level 0.95

  lingendice solve log.npz --policy pi.npy --out result.npz
"""

_AUDIT_HELP = """Tell what the data can identify: recurrent classes, leak, coverage, effective sample size.

[bold]Examples[/bold]

  lingendice audit walk.csv

  lingendice audit log.npz --gamma 0.99 --policy pi.npy --json
"""

_BACKTEST_HELP = """Predict one part of a log from another: may this log be believed?

Random halves predict each other, and earlier episodes predict later ones. Drift is flagged.

[bold]Examples[/bold]

  lingendice backtest log.csv

  lingendice backtest log.parquet --gamma 0.99 --split time --splits 10 --json
"""

_COMPARE_HELP = """Rank many policies on one log, with simultaneous intervals.

[bold]Examples[/bold]

  lingendice compare log.csv careful.npy bold.npy --gamma 0.99

  lingendice compare log.npz policies/*.npy --json
"""

_REPORT_HELP = """Write one self-contained HTML page: estimate, interval, diagnostics, audit, plots.

[bold]Examples[/bold]

  lingendice report log.csv --gamma 0.99 --policy pi.npy -o report.html

  lingendice report log.csv --policy careful.npy --policy bold.npy -o both.html
"""


@app.command(help=_SOLVE_HELP)
@with_columns
def solve(
    file: DataFile,
    names: Columns,
    gamma: Gamma = 1.0,
    policy: Policy = None,
    initial: Initial = None,
    level: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Give intervals at this level: of the value, and the return where episodes end.",
        ),
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
    out: Annotated[Path | None, typer.Option(help="Write the result: .npz (arrays) or .json.")] = None,
) -> None:
    with report_errors():
        import lingendice as lg

        if out is not None:
            files.check_result_path(out)
            keep_inputs(out, file, policy, initial)
        given = distributions(policy=policy, initial=initial)
        data, labels = load(file, names, given.get("policy"))
        solution = lg.solve(data, gamma=gamma, progress=sys.stderr.isatty(), **given)
        if isinstance(solution, lg.Comparison):
            raise ValueError(f"{policy}: holds several policies; rank them with lingendice compare")
        unique = solution.status is not lg.Status.SEVERAL_DISTRIBUTIONS
        if unique:
            if level is not None:
                if solution.value is None:
                    raise ValueError(
                        "--level gives an interval of the value, and the data hold no rewards; name their "
                        "column by --reward, or leave --level out"
                    )
                for of in dict.fromkeys((solution.headline_of, "value")):
                    solution.interval(level, of=of)
            solution.diagnose()
            _ = solution.gap
        summary = {**solution.to_dict(), **labels}
        if as_json:
            print_json(summary)
        else:
            asked = re.compile(r"sol\.interval\([^)]*\)")
            echo(asked.sub("give --level", str(solution)))
            if unique and "state_labels" in labels:
                caption, headings, rows = heaviest(solution)
                _print_table(headings, rows, caption)
        if out is not None:
            files.write_result(out, _for_npz(solution, unique, labels), summary)
            if not as_json:
                echo(f"written to {out}")
    _exit_unless_answered(strict, solution)


@app.command(help=_AUDIT_HELP)
@with_columns
def audit(
    file: DataFile,
    names: Columns,
    gamma: Gamma = 1.0,
    policy: Policy = None,
    initial: Initial = None,
    as_json: AsJson = False,
) -> None:
    with report_errors():
        import lingendice as lg

        given = distributions(policy=policy, initial=initial)
        data, labels = load(file, names, given.get("policy"))
        examined = lg.audit(data, gamma=gamma, **given)
        if as_json:
            print_json({**examined.to_dict(), **labels})
        else:
            echo(str(examined))


@app.command(help=_BACKTEST_HELP)
@with_columns
def backtest(
    file: DataFile,
    names: Columns,
    gamma: Gamma = 1.0,
    split: Annotated[
        list[str] | None,
        typer.Option(help="random, interleaved or time; may be given several times (random and time)."),
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Splits of each kind.")] = 5,
    level: Level = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the random halves.")] = 0,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    with report_errors():
        import lingendice as lg

        data, _ = load(file, names)
        kinds = tuple(split or ("random", "time"))
        with work("Predicting"):
            found = lg.backtest(data, gamma, split=kinds, n_splits=splits, level=level, seed=seed)
        if as_json:
            print_json(found.to_dict())
        else:
            _print_table(*found.columns(), f"{found.caption}.")
            echo(found.verdict)
    agreed = [found.agrees(kind) for kind in found.splits]
    if strict and False in agreed:
        say(f"not trusted: {found.verdict}")
        raise typer.Exit(NOT_TRUSTED)
    if set(agreed) == {None}:
        raise typer.Exit(NO_ANSWER)


@app.command(help=_COMPARE_HELP)
@with_columns
def compare(
    file: DataFile,
    names: Columns,
    policy_files: Annotated[
        list[Path], typer.Argument(metavar="POLICY...", help="Policies, states x actions, one per file.")
    ],
    gamma: Gamma = 1.0,
    initial: Initial = None,
    level: Level = 0.95,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    with report_errors():
        comparison, _ = _compared(file, names, policies(policy_files), gamma, initial)
        rows = comparison.table(level)
        if as_json:
            print_json({**comparison.to_dict(), "level": level, "table": strict_json(rows)})
        else:
            _print_table(*comparison.columns(), f"Best first; {comparison.caption}.")
    _exit_unless_answered(strict, *comparison)


@app.command(help=_REPORT_HELP)
@with_columns
def report(
    file: DataFile,
    names: Columns,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    gamma: Gamma = 1.0,
    policy: Policies = None,
    initial: Initial = None,
    level: Level = 0.95,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    with report_errors():
        import lingendice as lg

        files.require_folder(out)
        keep_inputs(out, file, initial, *(policy or []))
        named = policies(policy or [])
        result: Solution | Comparison
        if len(named) > 1:
            result, labels = _compared(file, names, named, gamma, initial)
            solutions = tuple(result)
        else:
            given = distributions(initial=initial)
            if named:
                (given["policy"],) = named.values()
            data, labels = load(file, names, given.get("policy"))
            result = single = lg.solve(data, gamma=gamma, progress=sys.stderr.isatty(), **given)
            solutions = (single,)
        with work("Writing the page"):
            lg.report(
                result,
                out,
                title=title or f"lingendice report: {file.name}",
                call=shlex.join(["lingendice", *sys.argv[1:]]),
                source=_source(file),
                level=level,
            )
        if as_json:
            print_json({**result.to_dict(), **labels, "report": str(out)})
        else:
            echo(f"written to {out}")
    _exit_unless_answered(strict, *solutions)


def _source(file: Path) -> str:
    """The name of what was read, with a digest by which it is known."""
    digest, found = hashlib.sha256(), find_files(file)
    for each in found:
        with each.open("rb") as stream:
            while part := stream.read(1 << 20):  # a log may be larger than memory
                digest.update(part)
    several = f", {len(found):,} files" if len(found) > 1 else ""
    return f"{file.name}{several}, sha256 {digest.hexdigest()}"


def _compared(
    file: Path, names: Columns, named: dict[str, Any], gamma: float, initial: Path | None
) -> tuple[Comparison, Labels]:
    import lingendice as lg

    data, labels = load(file, names, next(iter(named.values())))
    with work(f"Solving for {len(named)} policies"):
        found = lg.solve(data, gamma, policy=named, **distributions(initial=initial))
    return found, labels


def _exit_unless_answered(strict: bool, *solutions: Solution) -> None:
    """Say why there is no answer, or with ``--strict`` which checks failed, and exit with the code for it."""
    for solution in solutions:
        if solution.status is Status.SEVERAL_DISTRIBUTIONS:
            say("error: the data has several recurrent classes, so no unique distribution exists.")
            say("Next step: give --initial for the limit from there, or take gamma below 1.")
            raise typer.Exit(NO_ANSWER)
        if not solution.converged:
            what = "no answer" if solution.status is Status.NOT_IDENTIFIED else "no convergence"
            say(f"error: {what} ({solution.status.value}).")
            say(f"Next step: {solution.status.advice}")
            raise typer.Exit(NO_ANSWER)
    reasons = [why for solution in solutions for why in solution.why_not] if strict else []
    for why in dict.fromkeys(reasons):
        say(f"not trusted: {why}")
    if reasons:
        raise typer.Exit(NOT_TRUSTED)


def _for_npz(solution: Solution, unique: bool, labels: Labels) -> dict[str, Any]:
    named = {name: np.asarray(values) for name, values in labels.items()}
    if not unique:
        return {"distributions": np.stack(solution.distributions), **named}
    scalars = {name: getattr(solution, name) for name in ("value", "leak", "residual", "gap")}
    known = {name: np.asarray(number) for name, number in scalars.items() if number is not None}
    return {"stationary": solution.stationary, "tau": solution.tau, **known, **named}


def _print_table(headings: list[str], rows: list[list[str]], caption: str) -> None:
    """Names as the data have them, in a table; what is wider than a terminal goes on below."""
    table = Table(*(Column(heading, overflow="fold") for heading in headings), caption=caption)
    for row in rows:
        table.add_row(*map(cell, row))
    show_table(table)
