"""Policies and distributions by label: mappings, tables and functions become arrays over states and actions.

=====================================================  ===================================================
``{"new": "run", "worn": "repair"}``                   one action per state
``{"new": {"run": 0.9, "repair": 0.1}, ...}``          probabilities of actions (0 where left out)
a frame with columns state, action(, probability)      the same, in long form (pandas, polars, Arrow)
a frame with one column per action                     the same, in wide form, by its index or column state
a Series, by state or by state and action              the same, by its index
``lambda state: "run"``                                a function of one label, which returns any of these
``{"new": 1.0}``, ``"new"``, a Series, a frame         distributions over states
=====================================================  ===================================================

States and actions without labels are named by their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import SUM_TOLERANCE, Floats, described, normalized_weights, require_number
from lingendice.data.idle_rows import fill_idle_rows
from lingendice.data.labels import Labels, index_of, label_or_number

if TYPE_CHECKING:
    from lingendice.data.counts import Counts

COLUMNS = {
    "state": ("state", "states", "s", "state_id"),
    "action": ("action", "actions", "a", "action_id"),
    "reward": ("reward", "rewards", "r"),
    "probability": ("probability", "probabilities", "prob", "probs", "p", "pi", "weight", "count"),
}
"""Names of the columns of a policy or distribution in long form; capitals do not matter."""
_NUMBER = re.compile(r"0|[1-9][0-9]*")
"""How a whole number is written: 007 is a name of its own, and so is a superscript."""


class Names:
    """Labels of one kind, or numbers where there are none, and their places."""

    def __init__(self, what: str, labels: Labels | None, size: int) -> None:
        self.what, self.labels, self.size = what, labels, size

    @cached_property
    def place(self) -> dict[Hashable, int]:
        return index_of(self.labels or tuple(range(self.size)))

    def find(self, label: Any) -> int | None:
        """The place of a label; a number and the same number as text stand for each other."""
        try:
            found = self.place.get(label)
        except TypeError:
            return None
        if found is None and isinstance(label, (int, np.integer)) and not isinstance(label, bool):
            return self.place.get(str(label))
        if found is None and isinstance(label, str) and _NUMBER.fullmatch(label):
            return self.place.get(int(label))
        return found

    def require(self, label: Any, where: str) -> int:
        found = self.find(label)
        if found is None:
            raise ValueError(
                f"{where} names the {self.what} {label!r}, which the data do not contain; {self.known(label)}"
            )
        return found

    def known(self, label: Any) -> str:
        """Which labels there are, those like ``label`` first."""
        if self.labels is None:
            return f"{self.what}s have no labels: name them by their numbers, 0 to {self.size - 1}"
        names = {str(name): name for name in self.labels}
        shown = [names[name] for name in get_close_matches(str(label), names, 3)]
        if not shown or len(self.labels) <= 5:
            shown += [name for name in self.labels[:5] if name not in shown]
        more = ", ..." if len(shown) < len(self.labels) else ""
        return f"there are {', '.join(map(repr, shown))}{more}"

    def name(self, place: int) -> Any:
        return label_or_number(self.labels, place)


def state_names(space: Counts) -> Names:
    """The names of states; whoever reads many distributions makes them once."""
    return Names("state", space.state_labels, space.n_states)


def _actions(space: Counts) -> Names:
    return Names("action", space.action_labels, space.n_actions or 0)


# -- tables ----------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """The columns of a frame as lists, by name, and the index of its rows where it has one."""

    columns: dict[Any, list[Any]]
    row_names: list[Any] | None

    def column(self, role: str) -> list[Any] | None:
        """The first column with a usual name of the role."""
        for usual in COLUMNS[role]:
            alike = [name for name in self.columns if str(name).strip().casefold() == usual]
            if len(alike) > 1:
                raise ValueError(f"column {usual!r} appears twice, as {alike}; rename one")
            if alike:
                return self.columns[alike[0]]
        return None


def is_table(values: Any) -> bool:
    """Whether this is a frame of pandas or polars, or an Arrow table, none of which is imported for it."""
    kind = type(values)  # asking a lazy frame itself for its columns would resolve its schema
    return kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow") and (
        hasattr(kind, "columns") or hasattr(kind, "column_names")
    )


def table_columns(frame: Any) -> dict[Any, list[Any]]:
    """The columns of a frame or Arrow table as lists, by name."""
    return _read_table(frame).columns


def table_shape(frame: Any) -> tuple[list[Any], int]:
    """Names of the columns, and the number of rows, of which none is looked at."""
    if hasattr(frame, "collect") and not hasattr(frame, "item"):
        frame = frame.collect()  # a lazy frame
    arrow = hasattr(frame, "to_pydict")
    return list(frame.column_names if arrow else frame.columns), frame.num_rows if arrow else len(frame)


def _as_table(given: Any) -> _Table | None:
    """The columns of a frame, or of a mapping in long form; None for anything else."""
    if _long_columns(given):
        return _Table(dict(given), None)
    return _read_table(given) if is_table(given) else None


def _read_table(frame: Any) -> _Table:
    if hasattr(frame, "collect") and not hasattr(frame, "item"):
        frame = frame.collect()  # a lazy frame
    if hasattr(frame, "to_pydict"):
        return _Table(
            named_columns(frame.column_names, [column.to_pylist() for column in frame.columns]), None
        )
    if hasattr(frame, "iloc"):
        columns = [frame.iloc[:, k].tolist() for k in range(len(frame.columns))]
        return _Table(named_columns(frame.columns, columns), frame.index.tolist())
    return _Table({name: frame[name].to_list() for name in frame.columns}, None)


def named_columns(names: Iterable[Any], columns: Iterable[Any], where: str = "") -> dict[Any, list[Any]]:
    """Columns by name; of two with one name, nobody could tell which is meant."""
    found: dict[Any, list[Any]] = {}
    for name, column in zip(names, columns, strict=True):
        if name in found and name != "":
            raise ValueError(f"{where}column {name!r} appears twice; rename one")
        found[name] = column
    return found


def _long_columns(given: Any) -> bool:
    """Whether a mapping holds the columns of a table in long form: lists by their usual names."""
    if not isinstance(given, Mapping) or not {"state"} < {str(name).casefold() for name in given}:
        return False
    return all(isinstance(column, (list, tuple, np.ndarray)) for column in given.values())


def _by_index(name: str, given: Any, states: Names) -> Any:
    """A Series of pandas as a mapping by its index; what else there is as it is.

    An index of two levels holds states and actions. Rows that are only numbered say no more than a list.
    """
    if not hasattr(given, "iloc") or hasattr(given, "columns"):
        return given
    labels = given.index.tolist()
    if labels == list(range(len(labels))):
        return given.tolist() if given.dtype.kind == "O" else given
    by_pair = given.index.nlevels == 2 and states.find(labels[0]) is None
    rows: dict[Any, Any] = {}
    for label, entry in zip(labels, given.tolist(), strict=True):
        row, key = (rows.setdefault(label[0], {}), label[1]) if by_pair else (rows, label)
        if key in row:
            raise ValueError(f"{name} names {label!r} twice; give it once")
        row[key] = entry
    return rows


# -- sets of states --------------------------------------------------------------------------------------


def read_state_sets(name: str, given: Any, space: Counts) -> tuple[tuple[Any, ...], NDArray[np.int64]]:
    """Names of disjoint sets of states, and for every state the number of its set, -1 for none.

    One set has the name None: a label (or number), several of them, or a mask of all states. A mapping names
    several sets.
    """
    sets = given if isinstance(given, Mapping) else {None: given}
    if not sets:
        raise ValueError(f"{name} names no set of states; give a state, several, or a dict of named sets")
    number = np.full(space.n_states, -1, dtype=np.int64)
    for k, (label, members) in enumerate(sets.items()):
        where = name if label is None else f"{name}[{label!r}]"
        states = _read_states(where, members, space)
        if not states.size:
            raise ValueError(f"{where} holds no state; name one at least, or leave the set out")
        taken = states[(number[states] >= 0) & (number[states] != k)]
        if taken.size:
            other = list(sets)[number[taken[0]]]
            raise ValueError(
                f"{where} and {name}[{other!r}] both hold the state {space.label_of(int(taken[0]))!r}; sets "
                "must be disjoint: take it out of one"
            )
        number[states] = k
    return tuple(sets), number


def _read_states(name: str, given: Any, space: Counts) -> NDArray[np.int64]:
    states = state_names(space)
    single = states.find(given)
    if single is not None:
        return np.array([single])
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        return np.array([states.require(given, name)])
    members = given.tolist() if hasattr(given, "tolist") else list(given)
    if members and all(isinstance(member, bool) for member in members):
        if len(members) != space.n_states:
            raise ValueError(
                f"{name} is a mask of {len(members)} entries; give one per state ({space.n_states}), "
                "or labels"
            )
        return np.flatnonzero(members)
    return np.array([states.require(member, name) for member in members], dtype=np.int64)


# -- distributions ---------------------------------------------------------------------------------------


def read_distribution(name: str, given: Any, space: Counts) -> Any:
    """A distribution by label as an array over states; what is not by label is returned as it is."""
    states = state_names(space)
    entries = _weights_by_label(name, given, states)
    if entries is None:
        return given
    weights = np.zeros(space.n_states)
    for label, weight in entries:
        number = require_number(f"{name}[{label!r}]", weight)
        if number > 0.0 or states.find(label) is not None:
            weights[states.require(label, name)] += number
    return weights


def _weights_by_label(name: str, given: Any, states: Names) -> Iterable[tuple[Any, Any]] | None:
    if (table := _as_table(given)) is not None:
        labels, weights = table.column("state"), table.column("probability")
        if labels is None or weights is None:
            raise ValueError(
                f"{name} needs the columns 'state' and 'probability'; found {list(table.columns)}"
            )
        if table.column("action") is not None:
            raise ValueError(
                f"{name} has a column of actions, as a policy has; give 'state' and 'probability' alone"
            )
        return zip(labels, weights, strict=True)
    if isinstance(given, Mapping):
        return given.items()
    if hasattr(given, "items") and hasattr(
        given, "index"
    ):  # a Series: value_counts() has an order of its own
        return zip(given.index.tolist(), given.tolist(), strict=True)
    if isinstance(given, (str, int, np.integer)) and not isinstance(given, bool):
        states.require(given, name)
        return [(given, 1.0)]
    return None


def read_seed(name: str, given: Any, states: Names) -> tuple[NDArray[np.int64], Floats]:
    """Nodes and their weights, divided by their sum: of one node, several, weights by label, or an array.

    A list or tuple names nodes if all its entries are nodes; one of n numbers, for n nodes, holds weights.
    """
    if isinstance(given, (set, frozenset, list, tuple)) or (
        isinstance(given, np.ndarray) and given.dtype.kind in "iuOU"
    ):
        place = None if isinstance(given, (set, frozenset, list, np.ndarray)) else states.find(given)
        listed = [given] if place is not None else list(given)
        nodes = [states.find(label) for label in listed]
        is_set = isinstance(given, (set, frozenset))
        if is_set or (None not in nodes and nodes and not _may_be_weights(listed, states)):
            chosen = np.unique([states.require(label, name) for label in listed]).astype(np.int64)
            if not chosen.size:
                raise ValueError(f"{name} holds no node; name at least one")
            return chosen, np.full(chosen.size, 1.0 / chosen.size)
    by_label = _weights_by_label(name, given, states)
    weights = np.zeros(states.size)
    if by_label is None:
        weights = normalized_weights(name, given, states.size)
    else:
        for label, weight in by_label:
            number = require_number(f"{name}[{label!r}]", weight)
            if number > 0.0 or states.find(label) is not None:
                weights[states.require(label, name)] += number
        weights = normalized_weights(name, weights, states.size)
    chosen = np.flatnonzero(weights)
    return chosen, weights[chosen]


def _may_be_weights(listed: list[Any], states: Names) -> bool:
    """Whether a list has one number per node."""
    return len(listed) == states.size and not any(isinstance(entry, (str, tuple)) for entry in listed)


def read_rewards(name: str, given: Any, space: Counts) -> Any:
    """Rewards by state, or by state and action, as an array; what is not by label is returned as it is.

    By label are mappings, Series by their index, and frames: with a column of rewards, or one per action.
    """
    states, actions = state_names(space), _actions(space)
    given = _numbers_by_label(name, _by_index(name, given, states), actions)
    if not isinstance(given, Mapping):
        return given
    count = np.asarray(space.cell_count).reshape(space.n_states, -1)
    rewards, told = np.zeros(count.shape), count == 0
    for label, entry in given.items():
        row = states.require(label, name)
        if not isinstance(entry, Mapping):
            rewards[row], told[row] = require_number(f"{name}[{label!r}]", entry, at_least=-np.inf), True
            continue
        for action, number in entry.items():
            place = actions.require(action, f"{name}[{label!r}]")
            rewards[row, place] = require_number(f"{name}[{label!r}][{action!r}]", number, at_least=-np.inf)
            told[row, place] = True
    if not told.all():
        row, place = (int(k) for k in np.argwhere(~told)[0])
        what = f" for the action {actions.name(place)!r}" if actions.size else ""
        raise ValueError(
            f"{name} says nothing about the state {states.name(row)!r}{what}; give every logged one"
        )
    return rewards.ravel()


def _numbers_by_label(name: str, given: Any, actions: Names) -> Any:
    """A frame as a mapping from states to numbers, or to numbers by action; what else there is as it is."""
    if (table := _as_table(given)) is None:
        return given
    labels: Any
    taken: Any
    numbers: Any
    labels, taken, numbers = (table.column(role) for role in ("state", "action", "reward"))
    labels = table.row_names if labels is None else labels
    if numbers is None and taken is None and any(actions.find(one) is not None for one in table.columns):
        labels, numbers = zip(*_table_rows(name, table, actions), strict=True)
    if labels is None or numbers is None:
        raise ValueError(
            f"{name} is a table with the columns {list(table.columns)}; give state(, action) and reward, "
            "or a column state and one for each action"
        )
    found: dict[Any, Any] = {}
    for place, (label, number) in enumerate(zip(labels, numbers, strict=True)):
        row, key = (found, label) if taken is None else (found.setdefault(label, {}), taken[place])
        if key in row:
            raise ValueError(f"{name} names {key!r} twice; give every state, or state and action, once")
        row[key] = number
    return found


# -- policies --------------------------------------------------------------------------------------------


def read_policy_table(name: str, given: Any, space: Counts, initial: Any = None) -> Any:
    """A policy by label as an array (n_states, n_actions); what is not by label is returned as it is.

    States in which the log takes no action at all may be left out: what is done there makes no difference.
    So may rows be zero there, and in states that the policy never reaches from ``initial``.
    """
    return fill_idle_rows(name, _policy_by_label(name, given, space), space, initial)


def _policy_by_label(name: str, given: Any, space: Counts) -> Any:
    if isinstance(given, (str, bytes, int, float, np.number)):
        raise ValueError(
            f"{name} is {given!r}; give a table (n_states, n_actions), one action per state, a mapping from "
            "states to actions, or a function of a state"
        )
    if hasattr(given, "predict") and not callable(given):
        raise ValueError(
            f"{name} is {described(given)}; give a function of a single state here, such as "
            "lambda state: model.predict(state)[0]"
        )
    states, actions = state_names(space), _actions(space)
    given = _by_index(name, given, states)
    if not _by_label(given) or space.n_actions is None:
        return given
    table = np.zeros((space.n_states, space.n_actions))
    told = np.zeros(space.n_states, dtype=bool)
    unknown = []
    for label, choice in _rows(name, given, states, actions):
        place = states.find(label)
        if place is None:  # a state that the log does not contain is not reached, either
            unknown.append(label)
            continue
        if told[place]:
            raise ValueError(f"{name} names the state {label!r} twice; give each state once")
        table[place], told[place] = _row(f"{name}[{label!r}]", choice, actions), True
    acts = np.asarray(space.cell_count).reshape(table.shape).sum(axis=1) > 0
    missing = np.flatnonzero(acts & ~told)
    if missing.size:
        state = states.name(int(missing[0]))
        stray = f" ({unknown[0]!r} is no state of the data)" if unknown else ""
        raise ValueError(
            f"{name} says nothing about {missing.size:,} of {int(acts.sum()):,} states, the first of them "
            f"{state!r}{stray}; give an action, or probabilities of actions, for every state"
        )
    table[~told] = 1.0 / space.n_actions
    return table


def _by_label(given: Any) -> bool:
    if isinstance(given, (list, tuple)):
        return len(given) > 0 and all(isinstance(action, str) for action in given)
    labels = isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "UO"
    return isinstance(given, Mapping) or is_table(given) or callable(given) or labels


def _rows(name: str, given: Any, states: Names, actions: Names) -> Iterable[tuple[Any, Any]]:
    """(state, choice) of every state that is given."""
    if (table := _as_table(given)) is not None:
        return _table_rows(name, table, actions)
    if isinstance(given, Mapping):
        return given.items()
    if callable(given):
        return ((label, given(label)) for label in map(states.name, range(states.size)))
    if len(given) != states.size:
        raise ValueError(f"{name} lists {len(given)} actions for {states.size} states; give one per state")
    return zip(map(states.name, range(states.size)), given, strict=True)


def _table_rows(name: str, table: _Table, actions: Names) -> Iterable[tuple[Any, Any]]:
    labels, taken, probabilities = (table.column(role) for role in ("state", "action", "probability"))
    if labels is not None and taken is not None:
        rows: dict[Any, dict[Any, Any]] = {}
        for place, (label, action) in enumerate(zip(labels, taken, strict=True)):
            row = rows.setdefault(label, {})
            if action in row:
                raise ValueError(
                    f"{name} gives the action {action!r} in the state {label!r} twice; give it once"
                )
            row[action] = 1.0 if probabilities is None else probabilities[place]
        return rows.items()
    wide = {column: values for column, values in table.columns.items() if actions.find(column) is not None}
    labels = labels if labels is not None else table.row_names
    if labels is None or not wide:
        raise ValueError(
            f"{name} is a table with the columns {list(table.columns)}; give state, action and probability, "
            "or a column state and one for each action"
        )
    rows_of = zip(*wide.values(), strict=True)
    return [(label, dict(zip(wide, row, strict=True))) for label, row in zip(labels, rows_of, strict=True)]


def _row(where: str, choice: Any, actions: Names) -> Floats:
    """Probabilities of actions from one action, a mapping, or a row of numbers."""
    row = np.zeros(actions.size)
    if isinstance(choice, Mapping):
        for action, probability in choice.items():
            number = require_number(f"{where}[{action!r}]", probability)
            if number > 0.0 or actions.find(action) is not None:
                row[actions.require(action, where)] += number
    elif _is_row(choice, actions):
        if np.shape(choice) != row.shape:
            raise ValueError(
                f"{where} is a row of length {np.size(choice)}; give one probability for each of the "
                f"{actions.size} actions, or a single action"
            )
        row[:] = [require_number(f"{where}[{k}]", weight) for k, weight in enumerate(choice)]
    else:
        row[actions.require(choice.item() if isinstance(choice, np.generic) else choice, where)] = 1.0
    if row.any() and abs(row.sum() - 1.0) > SUM_TOLERANCE:  # a row of zeros may do no harm
        raise ValueError(
            f"{where} sums to {row.sum():.6g}, not 1; give probabilities of all actions that it takes"
        )
    return row


def _is_row(choice: Any, actions: Names) -> bool:
    if isinstance(choice, tuple) and actions.find(choice) is not None:
        return False
    return not isinstance(choice, (str, bytes)) and np.ndim(choice) == 1


# -- one policy, or several by name ----------------------------------------------------------------------


def holds_several(policy: Any, space: Counts | None = None) -> bool:
    """Whether ``policy`` holds several policies: by name, in a list, or as a 3-D array.

    A mapping is one policy where it maps states to actions, or to probabilities of actions; it holds several
    where it maps names to whole policies (tables, frames, functions, mappings by state).
    """
    if isinstance(policy, Mapping):
        return not _long_columns(policy) and _names_policies(policy, space)
    if is_table(policy) or callable(policy):
        return False
    if isinstance(policy, (list, tuple)):
        first = policy[0] if policy else 0
        return isinstance(first, Mapping) or is_table(first) or callable(first) or np.ndim(first) == 2
    return policy is not None and np.ndim(policy) == 3


def _names_policies(policy: Mapping[Any, Any], space: Counts | None) -> bool:
    if space is None or not policy:
        return True
    kinds = {_whole_policy(key, value, space) for key, value in policy.items()}
    if len(kinds) == 1 and None not in kinds:
        return bool(kinds.pop())
    raise ValueError(
        "policy can be read as one policy by state and as several policies by name; give several in a list, "
        "or under names that are no states, and one as a table (n_states, n_actions)"
        if None in kinds
        else "policy mixes whole policies with actions; map states to actions, or names to whole policies"
    )


def _whole_policy(key: Any, value: Any, space: Counts) -> bool | None:
    """Whether a value is a policy over all states; None where it may just as well be the row of one."""
    states, actions = state_names(space), _actions(space)
    if is_table(value) or callable(value) or hasattr(value, "toarray"):
        return True
    if isinstance(value, Mapping):
        if _long_columns(value):
            return True
        if not all(isinstance(number, (int, float, np.number)) for number in value.values()):
            return True  # states to labels of actions, or to probabilities
        row = all(actions.find(action) is not None or not chance for action, chance in value.items())
        whole = all(states.find(label) is not None for label in value)
        taken = list(value.values())
    elif not _is_row(value, actions):
        return np.ndim(value) > 1
    else:
        row, whole, taken = len(value) == space.n_actions, len(value) == space.n_states, list(value)
    # Numbers of actions are whole; probabilities of 1 and 0 mostly are not.
    whole = whole and all(
        not isinstance(action, (float, np.floating)) and actions.find(action) is not None for action in taken
    )
    in_state = states.find(key) is not None
    if row and whole and in_state:
        return None
    return whole or not in_state
