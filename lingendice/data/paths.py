"""Paths of states: read from lists, arrays, strings and frames, and counted as pairs at a lag."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import first_bad, numeric_array, outside_level, require_length, require_whole
from lingendice.data.episodes import OverlapWarning, Runs, time_order
from lingendice.data.labels import Labels, encode
from lingendice.data.last_rows import TERMINAL, TRUNCATED, require_ends
from lingendice.data.logs import MOST_KEPT, Log, count_log, initial_counts, require_size, require_weights
from lingendice.kernels.parallel import resolve_threads

Array = NDArray[Any]

NAMES = {
    "path": ("path", "paths", "journey", "episode", "trajectory", "case", "user"),
    "state": ("state", "channel", "event", "activity", "page"),
    "time": ("time", "timestamp", "date", "step"),
    "count": ("count", "counts", "weight", "n"),
}
"""Names under which the columns of a frame are looked for, by what they hold."""
LONGEST_LAG = 1000
"""Lags at which pairs given one by one are recognized as pairs of one path."""
CLEARLY = 4.0
"""Difference of the roots of two numbers of mismatches: more than five standard deviations of chance."""
_HEAD = 32  # rows that rule out most lags


class Paths(NamedTuple):
    """Sequences of states, one after the other in one array."""

    state: Array
    """Ids of all states, path by path in the order of time."""
    start: NDArray[np.int64]
    """Where each path begins in ``state``, and behind the last one where it ends."""
    labels: Labels | None
    weight: Array | None = None
    """How often each path was seen; None for once."""

    @property
    def length(self) -> NDArray[np.int64]:
        """States of each path."""
        return np.diff(self.start)

    @property
    def n_paths(self) -> int:
        """Number of paths; one that was seen several times counts once."""
        return self.start.size - 1

    def take(self, which: NDArray[np.int64]) -> Paths:
        """Some of the paths, in the given order; one may be taken several times."""
        length = self.length[which]
        start = np.concatenate([[0], np.cumsum(length)])
        place = np.arange(start[-1]) + np.repeat(self.start[:-1][which] - start[:-1], length)
        weight = None if self.weight is None else self.weight[which]
        return Paths(self.state[place], start, self.labels, weight)

    def repeated(self, most_rows: int) -> Paths:
        """Paths seen w times as w paths, so that each is a piece of its own; as they are where weights are
        no whole numbers, or that would take more than ``most_rows`` rows."""
        if self.weight is None or self.weight.dtype.kind == "f":
            return self
        if float(np.dot(self.length.astype(float), self.weight)) > most_rows:
            return self
        return self.take(np.repeat(np.arange(self.n_paths), self.weight))._replace(weight=None)


# -- reading ----------------------------------------------------------------------------------------------


def read_paths(
    paths: Any, weight: Any = None, separator: str = ">", columns: Mapping[str, str] | None = None
) -> Paths:
    """Paths of any of the kinds that :meth:`lingendice.Counts.from_paths` describes."""
    if isinstance(paths, Paths):
        return paths
    if not isinstance(separator, str) or not separator.strip():
        raise ValueError(
            f"separator={separator!r} cannot stand between two states; give a string such as '>'"
        )
    if is_frame(paths):
        read = _from_frame(paths, separator, columns or {})
    elif columns:
        raise ValueError("columns= names the columns of a frame, and paths is none; leave it out")
    else:
        read = _from_sequences(paths, separator)
    if weight is not None:
        if read.weight is not None:
            raise ValueError("the frame has a column of counts and weight= is given; pass one of them")
        read = read._replace(weight=_weights(weight, read.n_paths))
    return read


def _weights(weight: Any, n_paths: int) -> Array:
    found = numeric_array("weight", weight)
    if found.shape != (n_paths,):
        raise ValueError(f"weight has shape {found.shape} but there are {n_paths:,} paths; give one per path")
    require_weights(found, n_paths)
    return found.astype(np.int64 if found.dtype.kind in "biu" else np.float64)


def is_frame(paths: Any) -> bool:
    """Whether paths are a frame, or a dictionary of columns."""
    return isinstance(paths, Mapping) or hasattr(paths, "columns") or hasattr(paths, "column_names")


def names_of(frame: Any) -> list[str]:
    """Names of the columns of a frame of pandas, polars or Arrow, or of a dictionary of arrays."""
    if isinstance(frame, Mapping):
        return list(frame)
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def find_columns(frame: Any, columns: Mapping[str, str]) -> dict[str, str]:
    """The name of each column by what it holds: as said by the caller, else one of the usual names."""
    present = names_of(frame)
    unknown = [role for role in columns if role not in NAMES]
    if unknown:
        raise ValueError(f"columns has {unknown[0]!r}; its keys are {', '.join(NAMES)}")
    lower = {str(name).lower(): name for name in reversed(present)}
    found = {}
    for role, usual in NAMES.items():
        if role in columns:
            if columns[role] not in present:
                raise ValueError(
                    f"columns[{role!r}] is {columns[role]!r}, but the columns are "
                    + ", ".join(map(str, present))
                )
            found[role] = columns[role]
            continue
        for name in usual:
            if name in lower and lower[name] not in (*columns.values(), *found.values()):
                found[role] = lower[name]
                break
    return found


def _from_frame(frame: Any, separator: str, columns: Mapping[str, str]) -> Paths:
    found = find_columns(frame, columns)
    if "state" in found:
        return _from_rows(frame, found)
    if "path" not in found:
        raise ValueError(
            f"no column of paths or states among {', '.join(map(str, names_of(frame)))}: name them by "
            'columns={"path": ..., "state": ...}, or {"path": ..., "count": ...} for one path per row'
        )
    read = _from_sequences(frame[found["path"]], separator, one_per_entry=True)
    if "count" not in found:
        return read
    return read._replace(weight=_weights(frame[found["count"]], read.n_paths))


def _from_rows(frame: Any, found: Mapping[str, str]) -> Paths:
    """One row per state; paths are numbered as they first appear."""
    if "count" in found:
        raise ValueError(
            f"the frame has one row per state, so that {found['count']!r} cannot count paths; drop the "
            "column, or give one path per row"
        )
    (state,), labels = encode(("state",), (frame[found["state"]],))
    path = np.zeros(state.size, np.int64)
    if "path" in found:
        (path,), _ = encode(("path",), (frame[found["path"]],))
        require_length("path", path, state.size)
        _, first, path = np.unique(path, return_index=True, return_inverse=True)
        path = np.argsort(np.argsort(first))[path]
    order = np.argsort(path, kind="stable")
    if "time" in found:
        time = frame[found["time"]]
        order = time_order(time.to_numpy() if hasattr(time, "to_numpy") else time, path, state.size)
    start = np.concatenate([[0], np.cumsum(np.bincount(path))]) if path.size else np.zeros(1, np.int64)
    return Paths(state[order], start, labels)


def _from_sequences(paths: Any, separator: str, one_per_entry: bool = False) -> Paths:
    if isinstance(paths, str):
        return _of_strings([paths], separator)
    if isinstance(paths, np.ndarray) and paths.ndim == 2:
        (state,), labels = encode(("state",), (paths.ravel(),))
        return Paths(state, np.arange(len(paths) + 1) * paths.shape[1], labels)
    if isinstance(paths, np.ndarray) and paths.ndim == 1 and paths.dtype.kind in "iubf" and not one_per_entry:
        return _one_path(paths)
    given = _as_list(paths)
    kinds = set(map(type, given))
    if all(issubclass(kind, str) for kind in kinds) and given:
        if not one_per_entry and not any(separator in path for path in given):
            raise ValueError(
                f"none of the {len(given):,} strings holds the separator {separator!r}: wrap one path of "
                "labels in a list, [[...]], or name what separates the states by separator="
            )
        return _of_strings(given, separator)
    if given and not one_per_entry and not any(_is_path(entry) for entry in given):
        return _one_path(paths)
    return _of_lists(given, separator)


def _as_list(paths: Any) -> list[Any]:
    if hasattr(paths, "to_pylist"):
        return list(paths.to_pylist())
    if hasattr(paths, "tolist") and getattr(paths, "ndim", 1) == 1:
        return list(paths.tolist())
    if not isinstance(paths, Iterable):
        raise ValueError(
            f"paths is a {type(paths).__name__}; give a list of paths, each a list or an array of states or "
            "a string such as 'a > b > c', or a frame"
        )
    return list(paths)


def _is_path(entry: Any) -> bool:
    """Whether an entry is a path of its own, and no state. A tuple may be a state in a list of states; in
    a list of paths it is a path."""
    return isinstance(entry, (str, Sequence, np.ndarray)) or hasattr(entry, "to_numpy")


def _one_path(states: Any) -> Paths:
    (state,), labels = encode(("state",), (states,))
    return Paths(state, np.array([0, state.size]), labels)


def _of_lists(given: list[Any], separator: str) -> Paths:
    """Paths of any kinds together."""
    parts: list[Any] = []
    for number, path in enumerate(given):
        if isinstance(path, str):
            parts.append(_split(path, separator, number))
        elif _is_path(path):
            parts.append(path.to_numpy() if hasattr(path, "to_numpy") else path)
        else:
            raise ValueError(
                f"paths[{number}] is {path!r}, which is no path; give a list, an array or a string such as "
                f"'a {separator.strip()} b'"
            )
        if not len(parts[-1]):
            raise ValueError(f"paths[{number}] has no states; leave it out")
    length = np.fromiter(map(len, parts), np.int64, len(parts))
    start = np.concatenate([[0], np.cumsum(length)])
    if not parts:
        return Paths(np.empty(0, np.int64), start, None)
    if all(isinstance(part, np.ndarray) and part.dtype.kind in "iubf" for part in parts):
        for number, part in enumerate(parts):
            if part.ndim != 1:
                raise ValueError(f"paths[{number}] has shape {part.shape}; a path is one-dimensional")
        flat: Any = np.concatenate(parts)
    else:
        flat = list(
            chain.from_iterable(part.tolist() if isinstance(part, np.ndarray) else part for part in parts)
        )
    try:
        (state,), labels = encode(("state",), (flat,))
    except ValueError as error:
        raise ValueError(f"{error} (states are numbered through all paths)") from None
    return Paths(state, start, labels)


def _of_strings(given: list[str], separator: str) -> Paths:
    """Strings, of which each distinct one is split once: journeys repeat."""
    number: dict[str, int] = {}
    which = np.fromiter((number.setdefault(path, len(number)) for path in given), np.int64, len(given))
    parts = [_split(path, separator, None) or _split(path, separator, given.index(path)) for path in number]
    (state,), labels = encode(("state",), (list(chain.from_iterable(parts)),))
    length = np.fromiter(map(len, parts), np.int64, len(parts))
    distinct = Paths(state, np.concatenate([[0], np.cumsum(length)]), labels)
    return distinct if len(number) == len(given) else distinct.take(which)


def _split(path: str, separator: str, number: int | None) -> list[str]:
    """The states of a string; where it is no path, none without the ``number`` that the error would name."""
    states = [state.strip() for state in path.split(separator.strip())]
    if "" in states:
        if number is None:
            return []
        what = "is empty; leave it out" if states == [""] else f"is {path!r}, with a state that has no name"
        raise ValueError(f"paths[{number}] {what}")
    return states


# -- counting -------------------------------------------------------------------------------------------


def count_paths(
    paths: Any, lag: Any, weight: Any, separator: str, ends: str | None, columns: Mapping[str, str] | None,
    n_states: int | None, keep_episodes: bool | None, threads: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The fields of :meth:`lingendice.Counts.from_paths`."""
    lag = require_whole("lag", lag, at_least=1)
    require_ends(ends)
    read = read_paths(paths, weight, separator, columns)
    if keep_episodes is not False:
        read = read.repeated(MOST_KEPT)
    if ends is None:
        ends = TERMINAL if read.n_paths > 1 and lag == 1 else TRUNCATED
    n_states = require_size("n_states", n_states, read.labels, (read.state,))
    log = lagged(read, lag, ends)
    counted = count_log(log, n_states, None, keep_episodes, resolve_threads(threads))
    started = Log(read.state, read.state, runs=_runs(read.length), weight=_by_row(read))
    counted["initial_count"] = initial_counts(started, n_states)
    return {**counted, "lag": lag, "state_labels": read.labels}


def lagged(paths: Paths, lag: int, ends: str) -> Log:
    """One row for each state and the state ``lag`` steps later in its path.

    The last ``lag`` states of a path have none: with ``ends="terminal"`` the path has ended by then, with
    ``"truncated"`` they are no rows.
    """
    length = paths.length
    if paths.n_paths == 0:
        raise ValueError("paths is empty; give at least one path")
    if not length.all():
        raise ValueError(f"paths[{first_bad(length == 0)[0]}] has no states; leave it out")
    left = np.repeat(length, length) - (np.arange(paths.state.size) - np.repeat(paths.start[:-1], length))
    goes_on = left > lag
    weight = _by_row(paths)
    following = np.zeros_like(paths.state)
    following[goes_on] = paths.state[np.flatnonzero(goes_on) + lag]
    if ends == TERMINAL:
        return Log(paths.state, following, weight=weight, terminal=~goes_on, runs=_runs(length))
    if not goes_on.any():
        raise ValueError(
            f"no path has more than lag={lag} states (the longest has {length.max()}), so that there is no "
            'pair; take a smaller lag, or ends="terminal" where paths end in their last state'
        )
    rows = np.maximum(length - lag, 0)
    weight = None if weight is None else weight[goes_on]
    return Log(paths.state[goes_on], following[goes_on], weight=weight, runs=_runs(rows[rows > 0]))


def _runs(length: NDArray[np.int64]) -> Runs:
    start = np.cumsum(length) - length
    begins = np.zeros(int(length.sum()), bool)
    begins[start] = True
    return Runs(start, begins, None)


def _by_row(paths: Paths) -> Array | None:
    return None if paths.weight is None else np.repeat(paths.weight, paths.length)


# -- pairs of one path that were given as two arrays --------------------------------------------------------


def find_lag(state: Array, next_state: Array) -> int | None:
    """The lag at which the rows are overlapping pairs of one path, or of several; None for other rows.

    Row t of such pairs ends in the state in which row t + lag begins; rows of a log end in that of the next
    row, and rows drawn at random in none.
    """
    n = min(state.size, 20_000)
    if n < 20:
        return None
    state, next_state = state[:n], next_state[:n]
    by_chance = int(np.count_nonzero(next_state[:-1] != state[1:]))
    if by_chance < CLEARLY**2:
        return None
    longest = min(LONGEST_LAG, n // 2)
    width = min(_HEAD, n - longest)
    heads = np.lib.stride_tricks.sliding_window_view(state[2 : longest + width], width)
    alike = np.count_nonzero(heads == next_state[:width], axis=1)
    best, fewest = None, by_chance / 4.0
    for lag in np.flatnonzero(alike > width // 2) + 2:
        missed = np.count_nonzero(next_state[:-lag] != state[lag:]) * (n - 1) / (n - lag)
        if missed < fewest:  # where states last, the lags beside the right one are not far from it
            best, fewest = int(lag), missed
    return best if best is not None and np.sqrt(by_chance) - np.sqrt(fewest) >= CLEARLY else None


def warn_overlap(lag: int) -> None:
    """Say that rows are pairs of one path at a lag."""
    warnings.warn(
        f"next_state is state {lag} rows later: these are pairs of a path at lag {lag}, which overlap, and "
        "intervals that take them for independent transitions are far too narrow. Pass the path itself: "
        f"Counts.from_paths(path, lag={lag}); where rows of {lag} separate paths alternate, name the path of "
        "each row by episode=",
        OverlapWarning,
        stacklevel=outside_level(),
    )
