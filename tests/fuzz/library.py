"""Hand a case to lingendice as its form says, and bring the results back to the small space of the oracle.

The only module here that imports the library, and the only one that knows its names.
"""

from __future__ import annotations

import io
import itertools
import pickle
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import lingendice as lg

from .cases import LOG, SPARSE, Case, Form
from .oracle import Log

UNSEEN = {"auto": "auto", "leak": "leak", "renormalize": "renormalize", "mean": "mean"}
SEVERAL = "several stationary distributions"
COLUMNS = ("state", "next_state", "action", "reward", "weight", "terminal", "truncated", "episode")


@dataclass
class Found:
    """What the library made of a case."""

    error: Exception | None = None
    counts: Any = None
    solution: Any = None
    warned: bool = False
    states: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """The library's id of each state of the small space."""
    actions: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    n_states: int = 0
    n_actions: int = 1
    calls: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Arguments whose contents were changed by a call."""

    @property
    def distributions(self) -> Any:
        """One stationary distribution per recurrent class."""
        return self.solution.distributions

    @property
    def p(self) -> Any:
        """The distribution of the data."""
        return self.solution.data_distribution

    def cells(self) -> np.ndarray:
        """The library's cell of each cell of the small space."""
        return (self.states[:, None] * self.n_actions + self.actions).ravel()


def run(case: Case, folder: Path) -> Found:
    """Count and solve; errors are kept."""
    found = Found()
    inputs: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            data = _data(case, folder, found, inputs)
            _find_ids(case.form, found)
            arguments = _arguments(case, found)
            inputs |= arguments
            before = {name: _content(value) for name, value in inputs.items()}
            found.calls.append(f"lg.solve(data, {_shown(arguments)})")
            found.solution = lg.solve(data, **arguments)
        after = {name: _content(value) for name, value in inputs.items()}
        found.changed += [name for name in inputs if before[name] != after[name]]
        found.warned = any(issubclass(w.category, lg.LeakWarning) for w in heard)
    except Exception as error:
        found.error = error
    return found


def _content(value: Any) -> Any:
    """Something to compare an argument's contents by, before and after a call."""
    if sparse.issparse(value):
        return value.copy().toarray().tolist(), repr(value)
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


# -- data ----------------------------------------------------------------------------------------------


def _data(case: Case, folder: Path, found: Found, inputs: dict[str, Any]) -> Any:
    form = case.form
    if case.kind == LOG:
        counts = _count_log(case, folder, found, inputs)
    else:
        matrix = inputs["matrix"] = _matrix(case)
        found.calls.append(f"data = {_show(matrix)}  # {form.reader}")
        found.counts = lg.Counts.from_matrix(matrix)
        if form.direct:
            return matrix
        counts = found.counts
    if form.then == "pickle":
        counts = pickle.loads(pickle.dumps(counts))
    elif form.then != "nothing":
        path = folder / f"counts.{form.then}"
        counts.save(path)
        counts = lg.Counts.load(path)
    found.counts = counts
    return counts


def _count_log(case: Case, folder: Path, found: Found, inputs: dict[str, Any]) -> Any:
    form = case.form
    if form.reader != "transitions":
        log = case.log
        if form.last_rows_end:
            log = replace(log, terminal=None)
        elif form.derived:
            log = _derived(log)
        columns = _columns(form, log, native=True)
        if form.derived:
            del columns["next_state"]
        if "terminal" in columns:
            columns[form.ended_name] = columns.pop("terminal")
        return _read(case, columns, folder, found)
    total = None
    for number, piece in enumerate(case.pieces):
        columns = _columns(form, piece)
        inputs |= {f"{name} of piece {number}": column for name, column in columns.items()}
        before = {name: _content(column) for name, column in columns.items()}
        arguments: dict[str, Any] = dict(columns)
        if form.say_sizes:
            arguments["n_states"] = form.n_states
            if piece.action is not None:
                arguments["n_actions"] = form.n_actions
        if form.keep_episodes:
            arguments["keep_episodes"] = True
        found.calls.append(f"data_{number} = lg.Counts.from_transitions({_shown(arguments)})")
        counts = lg.Counts.from_transitions(**arguments)
        found.changed += [name for name, column in columns.items() if _content(column) != before[name]]
        total = counts if total is None else total + counts
    return total


def _columns(form: Form, log: Log, native: bool = False) -> dict[str, Any]:
    """Arrays of a log in the dtypes and layouts of the form; ``native`` for tables, which know no others."""
    columns = {}
    for name in COLUMNS:
        values = getattr(log, name)
        if values is None:
            continue
        if name in ("state", "next_state"):
            values = _named(form, "s", [form.state_id[value] for value in values])
        elif name == "action":
            values = _named(form, "a", [form.action_id[value] for value in values])
        dtype = np.dtype(form.dtype.get(name, "f8"))
        if native:
            dtype = dtype.newbyteorder("=")
        if isinstance(values, list) and not isinstance(values[0], (str, tuple)):
            columns[name] = _laid_out(np.array(values, dtype=dtype), form.layout[name], native)
        else:
            columns[name] = values
        if form.masked == f"log {name}":
            columns[name] = _masked(columns[name])
    return columns


def _named(form: Form, prefix: str, ids: list[int]) -> Any:
    if form.labels is None:
        return ids
    if form.labels == "tuple":
        return [(prefix, -value) for value in ids]
    names = [f"{prefix}{9 - value}" for value in ids]
    if form.labels == "category":
        import pandas as pd

        return pd.Categorical(names, categories=sorted(set(names), reverse=True))
    return names


def _laid_out(array: np.ndarray, layout: str, native: bool = False) -> Any:
    """The same numbers in another memory layout."""
    if layout == "list":
        return array if native else array.tolist()
    if layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype=array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed":
        return array[..., ::-1].copy()[..., ::-1]
    if layout == "fortran":
        if array.ndim == 2:
            return np.asfortranarray(array)
        return np.asfortranarray(np.stack([array, array], axis=1))[:, 0]
    if layout == "readonly":
        array.flags.writeable = False
    if layout == "unaligned":
        packed = np.zeros(array.shape, dtype=np.dtype([("pad", "u1"), ("value", array.dtype)]))
        packed["value"] = array
        return packed["value"]
    return array


def _masked(values: Any) -> np.ma.MaskedArray:
    array = np.ma.array(np.array(values))
    array[(0,) * array.ndim] = np.ma.masked
    return array


def _derived(log: Log) -> Log:
    """Rows without next states: each path is closed by a row that only lends its state, unless it ended."""
    rows = list(range(len(log.state)))
    last: dict[Any, int] = {}
    closing = []
    for row in rows:
        episode = None if log.episode is None else log.episode[row]
        last[episode] = row
        flagged = any(flags is not None and flags[row] for flags in (log.terminal, log.truncated))
        if flagged:
            closing.append(last.pop(episode))
    closing += last.values()
    out = Log([], [], n_states=log.n_states, n_actions=log.n_actions)
    for name in COLUMNS:
        if getattr(log, name) is not None:
            setattr(out, name, [])
    for row in rows:
        ended = log.terminal is not None and log.terminal[row]
        steps = [False, True] if row in closing and not ended else [False]
        for lends in steps:
            for name in COLUMNS:
                column = getattr(log, name)
                if column is None:
                    continue
                value = column[row]
                if lends and name == "state":
                    value = log.next_state[row]
                if name == "truncated" and len(steps) == 2:
                    value = lends and column[row]
                getattr(out, name).append(value)
    return out


def _read(case: Case, columns: dict[str, Any], folder: Path, found: Found) -> Any:
    form, reader = case.form, case.form.reader
    options: dict[str, Any] = {}
    if form.say_sizes:
        options["n_states"] = form.n_states
        if case.log.action is not None:
            options["n_actions"] = form.n_actions
    if "weight" in columns:
        options["weight"] = "weight"
    if form.ends is not None:
        options["ends"] = form.ends
    shown = f"dict({_shown(columns)}), {_shown(options)}"
    found.calls.append(f"data = lg.read_transitions({shown})  # {reader}")
    if reader == "mapping":
        return lg.read_transitions(columns, **options)
    if reader == "batches":
        borders = [0, *form.cuts, len(next(iter(columns.values())))]
        batches = [
            {name: column[a:b] for name, column in columns.items()} for a, b in itertools.pairwise(borders)
        ]
        return lg.read_transitions(batches, **options)
    plain = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    if form.labels:
        plain = {
            name: column.tolist() if column.dtype.kind == "U" else column for name, column in plain.items()
        }
    return lg.read_transitions(_table(reader, plain, folder), **options)


def _table(reader: str, columns: dict[str, Any], folder: Path) -> Any:
    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    if reader == "pandas":
        import pandas as pd

        return pd.DataFrame(columns)
    if reader == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    table = pa.table(columns)
    if reader == "arrow":
        return table
    path = folder / f"log.{reader}"
    if reader == "csv":
        csv.write_csv(table, path)
    elif reader == "parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, path)
    return path


def _matrix(case: Case) -> Any:
    form, reader = case.form, case.form.reader
    dtype = np.dtype(form.dtype["matrix"])
    if reader in SPARSE:
        dtype = dtype.newbyteorder("=")  # SciPy has no others
    rows = np.array([form.state_id[row] for row, _, _ in case.entries], dtype=np.int32)
    columns = np.array([form.state_id[column] for _, column, _ in case.entries], dtype=np.int32)
    values = np.array([value for _, _, value in case.entries], dtype=dtype)
    shape = (form.n_states, form.n_states)
    if reader in ("graph", "multigraph"):
        import networkx as nx

        graph = nx.DiGraph() if reader == "graph" else nx.MultiDiGraph()
        graph.add_nodes_from(f"s{9 - state}" for state in reversed(form.state_id))
        for row, column, value in zip(rows.tolist(), columns.tolist(), values, strict=True):
            graph.add_edge(f"s{9 - row}", f"s{9 - column}", weight=value)
        return graph
    if reader not in SPARSE:
        dense = np.zeros(shape, dtype=dtype)
        dense[rows, columns] = values
        if form.masked == "matrix":
            return _masked(dense)
        return dense.tolist() if reader == "list" else _laid_out(dense, form.layout["matrix"])
    if reader == "csr":
        return _compressed(rows, columns, values, shape)
    if reader == "csc":
        return _compressed(columns, rows, values, shape).T
    made = sparse.coo_array((values, (rows, columns)), shape=shape)
    if reader == "coo":
        return sparse.coo_matrix(made) if form.layout["matrix"] == "list" else made
    # The other formats are made from entries that are there once: SciPy itself would sum in the dtype.
    return made.asformat(reader)


def _compressed(rows: Any, columns: Any, values: Any, shape: Any) -> Any:
    """Compressed rows with entries repeated, zeros kept and columns in no order."""
    order = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1)).astype(np.int32)
    return sparse.csr_array((values[order], columns[order], indptr), shape=shape)


# -- questions -----------------------------------------------------------------------------------------


def _find_ids(form: Form, found: Found) -> None:
    """Where the small space lies in the library's."""
    counts = found.counts
    found.n_states, found.n_actions = counts.n_states, counts.n_actions or 1
    found.states, found.actions = np.array(form.state_id), np.array(form.action_id or [0])
    if counts.state_labels is not None:
        name = (lambda i: ("s", -i)) if form.labels == "tuple" else (lambda i: f"s{9 - i}")
        place = {label: position for position, label in enumerate(counts.state_labels)}
        found.states = np.array([place[name(i)] for i in form.state_id])
    if counts.action_labels is not None:
        name = (lambda i: ("a", -i)) if form.labels == "tuple" else (lambda i: f"a{9 - i}")
        place = {label: position for position, label in enumerate(counts.action_labels)}
        found.actions = np.array([place[name(i)] for i in form.action_id])


def _arguments(case: Case, found: Found) -> dict[str, Any]:
    """Keyword arguments of ``solve``: only what differs from its defaults."""
    question, form = case.question, case.form
    given: dict[str, Any] = {"gamma": question.gamma}
    for name in ("initial", "restart"):
        values = getattr(question, name)
        if values is not None:
            given[name] = np.zeros(found.n_states)
            given[name][found.states] = values
    if question.reward is not None:
        small = np.array(question.reward)
        shape = (found.n_states,) if small.ndim == 1 else (found.n_states, found.n_actions)
        given["reward"] = np.zeros(shape)
        given["reward"][found.states if small.ndim == 1 else np.ix_(found.states, found.actions)] = small
    if question.policy is not None:
        given |= {"ridge": 0, "clone": 0}
        given["policy"] = _policy_table(question.policy, found)
        if form.deterministic:
            given["policy"] = given["policy"].argmax(axis=1)
        if question.behavior is not None:
            given["behavior"] = _policy_table(question.behavior, found)
    for name in ("ratio", "leak", "terminal"):
        if getattr(question, name) != getattr(type(question)(), name):
            given[name] = getattr(question, name)
    if question.unseen != "auto":
        given["unseen"] = UNSEEN[question.unseen]
    if case.method != "auto":
        given["method"] = case.method
    if case.max_iter is not None:
        given["max_iter"] = case.max_iter
    if question.gamma < 1 and question.reward_range is not None:
        given["reward_range"] = question.reward_range
    name = {"behavior": "behavior"}.get(form.masked or "", form.masked)
    if name in given:
        given[name] = _masked(given[name])
    return given


def _policy_table(rows: list[list[float]], found: Found) -> np.ndarray:
    """The policy in the library's space; states outside the small one take any known action."""
    table = np.zeros((found.n_states, found.n_actions))
    table[:, found.actions[0]] = 1.0
    table[found.states] = 0.0
    table[np.ix_(found.states, found.actions)] = rows
    return table


# -- showing -------------------------------------------------------------------------------------------


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_show(value)}" for name, value in arguments.items())


def _show(value: Any) -> str:
    """Text to paste into a session; memory layouts are told by the form."""
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        if value.size > 60 and value.ndim == 1:
            at = np.flatnonzero(value)
            return f"np.bincount({at.tolist()}, {value[at].tolist()}, minlength={value.size})"
        if value.size > 200 and value.ndim == 2:
            at = np.argwhere(value != value[0])[:, 0]
            changes = "".join(f", [{row}] = {value[row].tolist()}" for row in np.unique(at)[:20])
            return f"<array of shape {value.shape}, rows {value[0].tolist()}{changes}>"
        return f"np.array({value.tolist()}, dtype={value.dtype.str!r})"
    if sparse.issparse(value):
        made = value.tocoo()
        out = io.StringIO()
        out.write(f"sparse.coo_array(({made.data.tolist()}, ({made.row.tolist()}, {made.col.tolist()})), ")
        out.write(f"shape={made.shape}, dtype={made.dtype.str!r}).as{value.format}()")
        return out.getvalue()
    return repr(value)
