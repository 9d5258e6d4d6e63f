"""``read_transitions``: logs of any size and form to counts, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from lingendice.data.checks import require_flag, require_room, require_whole
from lingendice.data.counts import Counts
from lingendice.data.display import ProgressLine
from lingendice.data.interrupts import interruptible
from lingendice.data.last_rows import require_ends
from lingendice.io.array_files import read_matrix_file
from lingendice.io.columns import IdRule
from lingendice.io.episodic import MINARI, NEXT_STEP, MinariLog, VectorLog, open_minari
from lingendice.io.formats import DUCKDB, MATRICES, FileError, format_of, naming
from lingendice.io.roles import NAMED_BY_CALLERS, ONLY_WHEN_NAMED, ColumnNames
from lingendice.io.segments import LogPiece
from lingendice.io.sources import (
    DuckTable,
    Frame,
    LogFiles,
    LogSource,
    Stream,
    find_files,
    is_frame,
)
from lingendice.io.stream_counter import Accumulator
from lingendice.kernels.parallel import resolve_threads

Progress = bool | Callable[[int, "float | None"], object]


def read_transitions(
    source: Any,
    *,
    state: str | Callable[[Any], Any] | None = None,
    action: str | bool | None = None,
    reward: str | bool | None = None,
    next_state: str | bool | None = None,
    episode: str | bool | None = None,
    weight: str | bool | None = None,
    terminal: str | bool | None = None,
    truncated: str | bool | None = None,
    reward_m2: str | None = None,
    time: str | None = None,
    table: str | None = None,
    labels: bool | None = None,
    n_states: int | None = None,
    n_actions: int | None = None,
    autoreset: str = NEXT_STEP,
    ends: str | None = None,
    keep_episodes: bool | None = None,
    progress: Progress = False,
    threads: int | None = None,
) -> Counts:
    """Count a log that need not fit into memory.

    Parameters
    ----------
    source
        - a path, a folder, a glob pattern, or a list of these: Parquet, Arrow IPC (Feather), CSV or TSV
          files (text also as ``.gz``, ``.bz2``, ``.zst`` or ``.lz4``), read one after another (a pattern in
          the order of names); episodes may run over file ends;
        - a DuckDB file, with ``table=``;
        - a pandas, polars or PyArrow table, a DuckDB relation, or any object with ``__arrow_c_stream__``; of
          a polars LazyFrame the columns used are collected;
        - an iterable of batches, each a mapping of arrays, a record batch or a frame;
        - a Minari dataset, or ``"minari:ID"`` of a local one;
        - a mapping of arrays of shape (time, environments): a log of a Gymnasium vector environment;
        - a ``.npz`` file of arrays named like columns;
        - a SciPy sparse matrix, a NetworkX graph, a ``.npz``, ``.npy`` or ``.mtx`` file of a matrix, or what
          ``Counts.save`` wrote as ``.npz``.
    state, action, reward, next_state, episode, terminal, truncated
        Names of columns. A name must be there; None takes the first column with a usual name
        (``lingendice.io.roles.ALIASES``: those of Gymnasium, D4RL, Minari and d3rlpy among them; capitals do
        not matter) where there is one; False takes none. A column ``done`` marks ends without their
        reason: it is taken for terminal, beside ``truncated`` for ``done & ~truncated``. For Minari ``state``
        may be a function from the observations of an episode to one id each.
    weight
        Column of frequency weights, used only when named.
    reward_m2
        For rows that stand for several steps (``weight``): the sum of squared deviations of their rewards
        from ``reward``, their mean.
    time
        Column of numbers or dates by which rows are put in order within each episode, used only when named.
        Rows of an episode must then come together, and wait in memory until it is complete.
    table
        Table of a DuckDB file.
    labels
        Whether integers that name states and actions are names (True) or ids that count from 0 (False). By
        default they are ids where the largest is below 20 times the number of distinct ones + 10,000, or
        where ``n_states`` (``n_actions``) is given; sparser ones, such as account numbers, are names. In
        text files numbers with zeros in front (007) are names, too, unless False says that they are numbers.
    n_states, n_actions
        Sizes, where larger than what the log happens to contain.
    autoreset
        ``"next_step"`` or ``"same_step"``: how a vector environment was reset.
    ends
        For logs without next states: what the last row of an episode is where no column marks it,
        ``"terminal"`` or ``"truncated"``; see :meth:`Counts.from_transitions`.
    keep_episodes
        Keep what each episode contributed, which holds all rows in memory: intervals are clustered by episode
        then, and the order of rows is tested. By default where episodes are known and there are at most
        5,000,000 rows.
    progress
        True shows a line on standard error, unless that is a file or a pipe; or a function that is called
        with the number of rows and the share read so far (None where the end is unknown).
    threads
        1 decodes and counts in turns; with more, files are decoded ahead of the counting, which itself is
        shared. The result is the same bits.

    Returns
    -------
    Counts
        As :meth:`Counts.from_transitions` of the whole log (with sparse integers as strings): counts are
        equal, means of rewards up to rounding. How the log is cut into files and batches makes no difference
        to any bit.

    Warns
    -----
    UnusedColumnWarning
        Where columns were present and not used, as a misspelled one is.
    RowOrderWarning
        Where a next state is not the state of the following row of its episode.
    EpisodeEndWarning
        Where a log has no next states: how many last rows were counted as ends of episodes, or left out with
        their actions and rewards.

    Notes
    -----
    Without a column of next states, the state of the next row of the same episode is taken; rows of several
    episodes may be interleaved. ``ends`` says what the last row of an episode is. Without a column of
    episodes a log is one path, cut after rows that are ``terminal`` or ``truncated``. An episode id that
    comes back after such a row begins a new episode.

    Takes one pass. Rows are held and counted together, four million at a time (up to sixteen without rewards
    and weights, or where most pairs are rare), which takes 200 MB (800 MB); what was counted takes 12 bytes
    per pair (36 with rewards), 8 per cell and some 50 per episode, up to three times that while parts of a
    log are joined. Labels come on top.

    Raises
    ------
    ValueError
        Naming file, row group, row and column, for files that are damaged or cut short, columns that are
        missing, types that change, nulls. Nothing is returned then.

    Examples
    --------
    >>> import lingendice as lg
    >>> log = [{"state": [0, 1, 0], "episode": [7, 7, 7]}, {"state": [1, 1], "episode": [7, 8]}]
    >>> lg.read_transitions(log)
    Counts(2 states, 5 transitions, 3 distinct, 2 episodes)
    >>> lg.read_transitions(log, ends="truncated")
    Counts(2 states, 3 transitions, 2 distinct, 2 episodes)
    """
    options = ReadOptions.of(
        state=state, action=action, reward=reward, next_state=next_state, episode=episode, weight=weight,
        terminal=terminal, truncated=truncated, reward_m2=reward_m2, time=time, table=table, labels=labels,
        n_states=n_states, n_actions=n_actions, autoreset=autoreset, ends=ends,
        keep_episodes=keep_episodes, threads=threads,
    )  # fmt: skip
    return count_piece(source, options, progress=progress).result()


@dataclass(frozen=True)
class ReadOptions:
    """How a log is to be read; see :func:`read_transitions`."""

    columns: Mapping[str, Any] = field(default_factory=dict)
    """Names of columns by role; for Minari the state may be a function."""
    table: str | None = None
    labels: bool | None = None
    n_states: int | None = None
    n_actions: int | None = None
    at_least: tuple[int, int] = (0, 0)
    """Numbers of states and actions that a policy has."""
    autoreset: str = NEXT_STEP
    ends: str | None = None
    """What the last row of an episode is, in a log without next states."""
    keep_episodes: bool | None = None
    """None keeps those of a whole log that is not too long."""
    threads: int | None = None
    on_command_line: bool = False
    """Whether messages name options of the command instead of arguments."""

    @classmethod
    def of(cls, **given: Any) -> ReadOptions:
        """Options by their names, those of columns among them."""
        own = {each.name for each in fields(cls)} - {"columns"}
        unknown = sorted(given.keys() - own - set(NAMED_BY_CALLERS))
        if unknown:
            raise ValueError(f"no option {unknown[0]!r}; columns are named by {', '.join(NAMED_BY_CALLERS)}")
        columns = {role: given.get(role) for role in NAMED_BY_CALLERS}
        return cls(columns, **{name: value for name, value in given.items() if name in own})

    def names(self) -> ColumnNames:
        """What finds the columns."""
        for role, name in self.columns.items():
            known = name is None or isinstance(name, str)
            if role == "state":
                known |= callable(name)
            elif isinstance(name, bool):  # True is None, but where no column is taken unasked
                known = not (name and role in ONLY_WHEN_NAMED)
            if not known:
                raise ValueError(f"{role}= must be the name of a column, a string, got {name!r}")
        state = self.columns.get("state")
        named = {**self.columns, "state": state if isinstance(state, str) else None}
        return ColumnNames(named, self.labels, self.on_command_line)

    def rule(self) -> IdRule:
        """What distinguishes ids from names."""
        n_states = None if self.n_states is None else require_whole("n_states", self.n_states)
        n_actions = None if self.n_actions is None else require_whole("n_actions", self.n_actions)
        require_room((n_states or 1) * (n_actions or 1))
        require_ends(self.ends)
        return IdRule(self.labels, (n_states, n_actions), self.at_least)


def count_piece(
    source: Any,
    options: ReadOptions,
    *,
    keep_ends: bool = False,
    row_groups: range | None = None,
    progress: Progress = False,
) -> LogPiece:
    """As :func:`read_transitions`; ``keep_ends`` for a part of a log, with what its neighbors need.

    Of a single Parquet file, ``row_groups`` alone are read; None reads all.
    """
    names, rule = options.names(), options.rule()
    opened = open_source(source, options, names, row_groups)
    _refuse_without_effect(opened, options, names)
    if isinstance(opened, Counts):
        n_states, n_actions = rule.sizes
        return LogPiece(opened.with_states(opened.n_states if n_states is None else n_states, n_actions))
    by_time = isinstance(options.columns.get("time"), str)
    if by_time and keep_ends:
        raise ValueError(
            "time= sorts whole logs, not parts of them; sort the log by episode and time, and leave time= out"
        )
    counted = Accumulator(
        rule,
        keep_ends=keep_ends,
        keep_episodes=False if keep_ends and options.keep_episodes is None else options.keep_episodes,
        by_time=by_time,
        ends=options.ends,
        threads=resolve_threads(options.threads),
    )
    meter = _Meter(progress)
    with interruptible(), meter:
        with closing(opened.batches(names, counted.threads)) as batches:
            for batch in batches:
                counted.add(batch)
                meter.tell(counted.n_rows, batch.fraction)
        names.warn_unused()
        if counted.n_rows == 0 and not keep_ends:
            raise FileError("no transitions: the log has no rows; give at least one")
        piece = counted.finish() if counted.n_rows else LogPiece(Counts.empty())
    if not keep_ends:
        piece.warn(counted.ends, names.on_command_line)
    return piece


def open_source(
    source: Any, options: ReadOptions, names: ColumnNames, row_groups: range | None = None
) -> LogSource | Counts:
    """Find out what kind of log this is; counts where it is none."""
    if (matrix := _read_matrix(source)) is not None:
        return matrix
    state = options.columns.get("state")
    if isinstance(source, str) and source.startswith(MINARI):
        source = open_minari(source.removeprefix(MINARI))
    if hasattr(source, "iterate_episodes"):
        return MinariLog(source, state if callable(state) else None)
    if isinstance(source, (str, os.PathLike)) and format_of(source) in DUCKDB:
        if options.table is None:
            raise ValueError(f"{source}: a DuckDB database; name the table with {names.option('table')}")
        return DuckTable(Path(source), options.table)
    if isinstance(source, (str, os.PathLike)) or _are_paths(source):
        return LogFiles(find_files(source), row_groups)
    if is_frame(source):
        return Frame(source)
    if isinstance(source, Mapping):
        states = source[names.find([str(name) for name in source], "the mapping", source)["state"]]
        if isinstance(states, (list, tuple)) and tuple in set(map(type, states)):
            raise FileError(
                "the mapping: states are tuples, which lg.Counts.from_transitions takes for labels; an array "
                "(time, environments) would be a log of a vector environment"
            )
        if np.ndim(states) == 2:
            return VectorLog(source, options.autoreset)
        return Stream([source])
    if isinstance(source, Iterable):
        return Stream(source)
    raise ValueError(
        f"cannot read transitions from a {type(source).__name__}; give paths, a frame, an iterable of "
        "batches, a Minari dataset, a vector log or a graph"
    )


def _refuse_without_effect(opened: LogSource | Counts, options: ReadOptions, names: ColumnNames) -> None:
    """Refuse what was asked for and means nothing to a log of this kind."""
    given = {role for role, name in options.columns.items() if isinstance(name, str)}
    asked: dict[str, Collection[str]] = {}
    if isinstance(opened, Counts):
        of_logs = {
            "labels": options.labels is not None, "keep_episodes": options.keep_episodes,
            "ends": options.ends is not None,
        }  # fmt: skip
        given |= {name for name, is_asked in of_logs.items() if is_asked}
        asked["a matrix or graph has no columns"] = given
    elif isinstance(opened, MinariLog):
        asked["a Minari dataset has no columns to name"] = given
    if callable(options.columns.get("state")) and not isinstance(opened, MinariLog):
        asked["a function of observations is for Minari datasets"] = ["state"]
    if options.table is not None and not isinstance(opened, DuckTable):
        asked["only a DuckDB file has tables"] = ["table"]
    if options.autoreset != NEXT_STEP and not isinstance(opened, VectorLog):
        asked["only a log of a vector environment, arrays of shape (time, environments), has resets"] = [
            "autoreset"
        ]
    for why, these in asked.items():
        if these:
            listed = ", ".join(names.option(name) for name in sorted(these))
            raise ValueError(f"{why}; leave {listed} out")


def _are_paths(source: Any) -> bool:
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(path, (str, os.PathLike)) for path in source)
    )


def _read_matrix(source: Any) -> Counts | LogSource | None:
    """Counts of a graph or matrix, or the arrays of a log in a file; None where the source is another log."""
    if hasattr(source, "tocsr") or hasattr(source, "adjacency"):
        return Counts.from_matrix(source)
    if not isinstance(source, (str, os.PathLike)) or format_of(source) not in MATRICES:
        return None
    data = read_matrix_file(Path(source))
    if not isinstance(data, dict):
        with naming(Path(source)):
            return Counts.from_matrix(data)
    return Counts.load(Path(source)) if {"record", "sha256"} <= data.keys() else Stream([data], str(source))


class _Meter(ProgressLine):
    """Tells how far reading has come: to a function, or as a line."""

    def __init__(self, progress: Progress) -> None:
        self.report = progress if callable(progress) else None
        super().__init__(not callable(progress) and require_flag("progress", progress))

    def tell(self, rows: int, fraction: float | None) -> None:
        """Tell the number of rows and the share read."""
        if self.report is not None:
            self.report(rows, fraction)
        if self.is_due():
            self.show(f"{rows:,} rows" if fraction is None else f"{rows:,} rows, {fraction:.0%}")
