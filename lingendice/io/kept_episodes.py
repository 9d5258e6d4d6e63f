"""A log of moderate size as whole arrays, where counts alone would not do: its episodes are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.counts import Counts
from lingendice.data.episodes import episode_starts
from lingendice.data.merging import sort_labels
from lingendice.io.columns import Batch, Coded
from lingendice.io.formats import FileError
from lingendice.io.ids import IdMap, IdRule

Array = NDArray[Any]
MOST_ROWS = 20_000_000
"""Rows that the command line holds at once; longer logs are streamed, without their episodes."""


class TooLong(Exception):
    """More rows than were to be held."""


def count_whole(
    batches: Iterable[Batch], rule: IdRule, threads: int | None, keep: bool, most: int | None = None
) -> Counts:
    """Counts with what each episode contributed.

    Where ``keep`` is False and the log has no episodes, without it. :class:`TooLong` where there are
    more rows than ``most``.
    """
    columns, names = _gathered(batches, rule, most)
    n_states = _size(rule, names, "state")
    n_actions = _size(rule, names, "action") if "action" in columns else None
    has_episodes = not columns.keys().isdisjoint(("episode", "terminal", "truncated"))
    initial: Array | None = None
    if "next_state" not in columns:
        n_states = n_states or int(columns["state"].max()) + 1
        if "action" in columns and "action" not in names and rule.sizes[1] is None:
            n_actions = int(columns["action"].max()) + 1
        columns, initial = _derived(columns, has_episodes)
    counts = Counts.from_transitions(
        **columns,
        n_states=n_states,
        n_actions=n_actions,
        keep_episodes=keep or has_episodes,
        threads=threads,
    )
    if initial is not None:
        counts = replace(counts, initial_count=np.pad(initial, (0, counts.n_states - initial.size)))
    labels = {f"{what}_labels": tuple(known) for what, known in names.items()}
    return sort_labels(replace(counts, **labels))  # type: ignore[arg-type]


def _size(rule: IdRule, names: dict[str, list[str]], what: str) -> int | None:
    """The size that was given, or that of the names; ids have theirs found where they are counted."""
    given = rule.sizes[what == "action"]
    return len(names[what]) if given is None and what in names else given


def _gathered(
    batches: Iterable[Batch], rule: IdRule, most: int | None
) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Columns as whole arrays, with states, actions and episodes as integers, and the names of these."""
    maps = {what: IdMap(what) for what in ("state", "action", "episode")}
    held: dict[str, list[Array]] = {}
    n_rows = 0
    for batch in batches:
        if batch.n_rows == 0:
            continue
        n_rows += batch.n_rows
        if most is not None and n_rows > most:
            raise TooLong
        if held and batch.columns.keys() != held.keys():
            raise FileError(
                f"{batch.where(0)}: columns for {', '.join(sorted(batch.columns))} here, but for "
                f"{', '.join(sorted(held))} before; name the columns to use, or pass False"
            )
        for role, column in batch.columns.items():
            what = "state" if role == "next_state" else role
            read = maps[what].read(batch, role) if what in maps else column
            assert not isinstance(read, Coded)
            held.setdefault(role, []).append(read)
    if not held:
        raise FileError("no transitions: the log has no rows; give at least one")
    columns = {role: np.concatenate(parts) for role, parts in held.items()}
    names: dict[str, list[str]] = {}
    for what, roles in (("state", ("state", "next_state")), ("action", ("action",))):
        present = [role for role in roles if role in columns]
        if maps[what].coded:
            names[what] = list(maps[what].position)
        elif present:
            names |= _names_of_sparse(what, present, columns, rule)
    return columns, names


def _names_of_sparse(
    what: str, roles: list[str], columns: dict[str, Array], rule: IdRule
) -> dict[str, list[str]]:
    """Number integers that are too sparse to be ids, in place, and give their names."""
    if not rule.is_open(what):
        return {}
    ids = np.concatenate([columns[role] for role in roles])
    occur, numbers = np.unique(ids, return_inverse=True)
    if rule.are_ids(what, int(occur[-1]), occur.size):
        return {}
    cuts = np.cumsum([columns[role].size for role in roles])[:-1]
    columns |= dict(zip(roles, np.split(numbers, cuts), strict=True))
    return {what: [str(number) for number in occur.tolist()]}


def _derived(columns: dict[str, Array], has_episodes: bool) -> tuple[dict[str, Array], Array | None]:
    """Rows with the state of the next row of their episode; where that is not known the row is left out.

    Also how many episodes began in each state, those of a single row included.
    """
    state = columns["state"]
    n = state.size
    terminal, truncated = (columns.get(role) for role in ("terminal", "truncated"))
    starts, number = episode_starts(columns.get("episode"), terminal, truncated, n)
    episode = np.zeros(n, np.int64) if number is None else number
    order = np.argsort(episode, kind="stable")
    goes_on = np.append(episode[order][1:] == episode[order][:-1], False)
    following = state.copy()
    following[order[:-1]] = np.where(goes_on[:-1], state[order[1:]], state[order[:-1]])
    keep = np.empty(n, bool)
    keep[order] = goes_on
    if terminal is not None:
        keep |= terminal
    initial = None
    if starts is not None:
        weight = columns["weight"][starts] if "weight" in columns else None
        initial = np.bincount(state[starts], weights=weight, minlength=int(state.max(initial=-1)) + 1)
        if weight is None or weight.dtype.kind != "f":
            initial = initial.astype(np.int64)
    kept = {role: column[keep] for role, column in columns.items() if role != "episode"}
    kept["next_state"] = following[keep]
    if has_episodes:
        kept["episode"] = episode[keep]
    # Rows that are cut off have no next state; the numbers of episodes know of their ends.
    kept.pop("truncated", None)
    return kept, initial
