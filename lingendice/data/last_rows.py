"""Logs without next states: the next row of an episode is the next state, and its last row has none."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import outside_level, require_choice
from lingendice.data.episodes import EpisodeEndWarning, Runs

Flags = NDArray[np.bool_]
TERMINAL, TRUNCATED = "terminal", "truncated"


def require_ends(ends: Any, has_next_states: bool = False) -> None:
    """Refuse what ``ends`` cannot be, and ``ends`` for a log that does not need it."""
    if ends is None:
        return
    require_choice("ends", ends, (TERMINAL, TRUNCATED))
    if has_next_states:
        raise ValueError(
            f"ends={ends!r} is for logs without next states, and this one has them; leave ends out"
        )


def ends_of(ends: str | None, columns: Collection[str]) -> str:
    """What the last row of an episode is, where no flag marks it.

    By default it ends the episode where the log has ids of episodes and no column of terminals. Otherwise the
    log goes on: one whose ends are all marked, or a single path, stops where recording did.
    """
    if ends is not None:
        return ends
    return TERMINAL if "episode" in columns and "terminal" not in columns else TRUNCATED


class LastRows(NamedTuple):
    """How many rows have no next state, by what was made of them."""

    ended: int = 0
    """Rows taken for the ends of their episodes."""
    cut_off: int = 0
    """Rows left out that no flag marks."""
    marked: int = 0
    """Rows left out that are marked as truncated."""

    def plus(self, other: LastRows) -> LastRows:
        """Rows of two parts of a log together."""
        return LastRows(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


NO_LAST_ROWS = LastRows()


def settle(
    runs: Runs | None, n: int, terminal: Flags | None, truncated: Flags | None, ends: str | None
) -> tuple[Flags | None, Flags | None, LastRows]:
    """Terminal rows, rows that have a next state or are terminal (None: all), and what the others were.

    Rows that no flag marks are ``ends``; None leaves them out uncounted, for whoever knows what follows.
    """
    last = np.array([n - 1])[:n] if runs is None else runs.last
    if terminal is not None:
        last = last[~terminal[last]]
    unmarked, lost = last, last
    if truncated is not None:
        unmarked = last[~truncated[last]]
    n_marked = last.size - unmarked.size
    n_ended = n_cut = 0
    if ends == TERMINAL and unmarked.size:
        terminal = np.zeros(n, bool) if terminal is None else terminal.copy()
        terminal[unmarked] = True
        lost, n_ended = last[~terminal[last]], unmarked.size
    elif ends == TRUNCATED:
        n_cut = unmarked.size
    kept = None
    if lost.size:
        kept = np.ones(n, bool)
        kept[lost] = False
    return terminal, kept, LastRows(n_ended, n_cut, n_marked)


def next_values(values: NDArray[Any], runs: Runs | None) -> NDArray[Any]:
    """For every row what ``values`` holds in the next row of its episode; of last rows it means nothing."""
    in_order: Any = slice(None) if runs is None or runs.order is None else runs.order
    ordered, following = values[in_order], np.empty_like(values)
    following[in_order] = np.concatenate([ordered[1:], ordered[-1:]])
    return following


def warn_last_rows(
    rows: LastRows, ends: str | None, columns: Collection[str], on_command_line: bool = False
) -> None:
    """Say what became of rows without a next state, if they had more to tell than their state.

    Who passed ``ends="terminal"`` knows of ends; that rows are left out is always said.
    """
    held = " and ".join(role for role in ("action", "reward") if role in columns)
    if not held:
        return
    option = "--ends {}" if on_command_line else 'ends="{}"'
    end, cut = option.format(TERMINAL), option.format(TRUNCATED)
    said = []
    if rows.ended and ends is None:
        said.append(
            f"{_several(rows.ended)} counted as the end of the episode, with {held} (pass {end} if that is "
            f"so, {cut} if recording stopped there)"
        )
    if cut_off := rows.cut_off + rows.marked:
        remedy = f", or pass {end} if episodes ended there" if rows.cut_off else ""
        said.append(
            f"{_several(cut_off)} cut off: what followed is unknown, and {held} left out (record next states "
            f"to keep them{remedy})"
        )
    if said:
        text = "this log has no next states: " + "; ".join(said)
        warnings.warn(text, EpisodeEndWarning, stacklevel=outside_level())


def _several(n: int) -> str:
    return f"{n:,} last row{'s' * (n != 1)} {'is' if n == 1 else 'are'}"
