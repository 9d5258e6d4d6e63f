"""Which column of a log plays which role: one table of names for every reader and the command line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from lingendice.data.checks import outside_level
from lingendice.data.episodes import UnusedColumnWarning
from lingendice.io.formats import FileError

ALIASES: dict[str, tuple[str, ...]] = {
    "state": ("state", "states", "s", "obs", "observation", "observations", "state_id"),
    "next_state": (
        "next_state", "next_states", "nextstate", "next_obs", "next_observation", "next_observations",
        "s_next", "next_s", "s_prime", "new_state", "state_next", "next_state_id",
    ),
    "action": ("action", "actions", "a", "act", "acts", "action_id"),
    "reward": ("reward", "rewards", "r", "rew", "rews"),
    "episode": (
        "episode", "episodes", "episode_id", "episode_ids", "episode_index", "ep", "ep_id", "traj", "traj_id",
        "trajectory", "trajectory_id",
    ),
    "terminal": ("terminal", "terminals", "terminated", "termination", "terminations"),
    "truncated": ("truncated", "truncation", "truncations", "timeout", "timeouts", "timelimit_truncated"),
    "done": ("done", "dones", "is_done", "episode_terminal", "episode_terminals"),
    "weight": ("weight", "weights"),
    "reward_m2": ("reward_m2",),
    "time": ("time", "timestep", "timesteps", "time_step", "step", "t", "timestamp"),
}  # fmt: skip
"""Names of columns by role, in the order in which they are looked for: those of Gymnasium, D4RL, Minari and
d3rlpy among them. Capitals do not matter, nor do blanks around a name, nor which of blank, dot, hyphen and
underscore is inside it."""

ID_ROLES = ("state", "next_state", "action", "episode")
FLAG_ROLES = ("terminal", "truncated", "done")
NUMBER_ROLES = ("reward", "weight", "reward_m2")
ROLES = (*ID_ROLES, *FLAG_ROLES, *NUMBER_ROLES, "time")
NAMED_BY_CALLERS = tuple(role for role in ROLES if role != "done")
ONLY_WHEN_NAMED = ("weight", "reward_m2", "time")
"""Roles whose usual names are common in tables where they mean something else."""
_HIVE = re.compile(r"(?:^|[/\\])(([^/\\=]+)=[^/\\]*)(?=[/\\])")
_CLOSE = 0.8  # likeness from which a name looks misspelled


@lru_cache(maxsize=1024)
def normalized(name: str) -> str:
    """The form in which names of columns are compared."""
    return re.sub(r"[\s.\-]+", "_", name.strip("\ufeff \t\r\n").casefold())


@dataclass(frozen=True)
class ColumnNames:
    """Which column plays which role.

    A name must be there; None stands for the first of the usual names (:data:`ALIASES`) that is there; False
    for no column. The state must always be there; weights and times are used only when named.
    """

    given: Mapping[str, str | bool | None]
    labels: bool | None = None
    """Whether ids are names (True) or numbers from 0 (False); None decides by how dense they are."""
    on_command_line: bool = False
    unused: dict[str, str] = field(default_factory=dict, compare=False)
    """Columns that were present and not read, each with a hint or nothing."""

    def find(self, present: list[str], where: str, ignored: Collection[str] = ()) -> dict[str, str]:
        """The column of each role among those present, by the name that it has there."""
        found: dict[str, str] = {}
        for role, name in self.given.items():
            if not isinstance(name, str):
                continue
            column = _column(name, present, where)
            if column is None:
                raise self._missing(role, name, present, where)
            found[role] = column
        if normalized(found.get("terminal", "")) in ALIASES["done"]:
            found["done"] = found.pop("terminal")
        taken = set(found.values())
        for role, aliases in ALIASES.items():
            if role in found or role in ONLY_WHEN_NAMED or self._left_out(role):
                continue
            if role == "terminal" and "done" in found:
                continue
            if role == "done" and "terminal" in found and self._left_out("truncated"):
                continue
            free = [name for name in present if name not in taken]
            usual = (_column(alias, free, where) for alias in aliases)
            if column := next(filter(None, usual), None):
                found[role] = column
        if "state" not in found:
            free = [column for column in present if column not in found.values()]
            raise self._missing("state", "state", free, where)
        self._refuse_folders(found, where)
        self._note_unused(found, present, ignored)
        return found

    def _left_out(self, role: str) -> bool:
        return self.given.get("terminal" if role == "done" else role) is False

    def _missing(self, role: str, name: str, present: list[str], where: str) -> FileError:
        listed = ", ".join(map(repr, present)) or "nothing"
        wanted = [normalized(name), *(ALIASES[role] if name == role else ())]
        close = _closest(wanted, present)
        hint = f" (did you mean {close!r}?)" if close else ""
        remedy = f"name the right one with {self.option(role)}"
        if len(present) == 1 and ";" in present[0]:
            remedy = "separate columns by commas, or by tabs in a .tsv file"
        elif present and all(_is_number(column) for column in present):
            remedy = "its first row seems to be data: put a row of column names above it"
        return FileError(
            f"{where}: no column {name!r} for the {role.replace('_', ' ')}; found {listed}{hint}; {remedy}"
        )

    def option(self, role: str) -> str:
        """How the caller names the column of a role."""
        return f"--{role.replace('_', '-')}" if self.on_command_line else f"{role}="

    def _refuse_folders(self, found: Mapping[str, str], where: str) -> None:
        """Refuse files whose folders, as Hive writes them, hold a column in their names."""
        for folder, key in _HIVE.findall(where):
            for role in ("action", "episode"):
                if role not in found and normalized(key) in ALIASES[role] and not self._left_out(role):
                    leave = "" if self.on_command_line else f", or leave it out with {role}=False"
                    raise FileError(
                        f"{where}: the folder {folder!r} holds the {role}, and the file does not; read such "
                        "folders by pyarrow.dataset.dataset(path, partitioning='hive').scanner().to_reader()"
                        f"{leave}"
                    )

    def _note_unused(self, found: Mapping[str, str], present: list[str], ignored: Collection[str]) -> None:
        refused = {alias for role in ALIASES if self._left_out(role) for alias in ALIASES[role]}
        for column in present:
            if column in found.values() or column in ignored or normalized(column) in refused:
                continue
            if not column:  # the row numbers that pandas writes
                continue
            self.unused.setdefault(column, self._hint(column, found))

    def _hint(self, column: str, found: Mapping[str, str]) -> str:
        """The role that a column may have been meant for."""
        open_roles = {alias: role for role in ALIASES if role not in found for alias in ALIASES[role]}
        if "terminal" in found:
            open_roles = {alias: role for alias, role in open_roles.items() if role != "done"}
        close = get_close_matches(normalized(column), open_roles, 1, _CLOSE)
        role = {"done": "terminal"}.get(open_roles[close[0]], open_roles[close[0]]) if close else ""
        return self.option(role) if role else ""

    def warn_unused(self) -> None:
        """One warning for all columns that nothing was read from."""
        if not self.unused:
            return
        described = [
            f"{name!r} (name it by {hint})" if hint else repr(name) for name, hint in self.unused.items()
        ]
        many = len(described) > 1
        warnings.warn(
            f"column{'s' * many} {', '.join(described)} {'were' if many else 'was'} present and not used",
            UnusedColumnWarning,
            stacklevel=outside_level(),
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(name: str, present: list[str], where: str) -> str | None:
    """The column of a name, else one that differs by what does not matter; None where there is neither."""
    found = [column for column in present if column == name]
    found = found or [column for column in present if normalized(column) == normalized(name)]
    if len(found) > 1:
        raise FileError(f"{where}: column {name!r} appears twice; rename one")
    return found[0] if found else None


def _closest(wanted: list[str], present: list[str]) -> str | None:
    """The column whose name is most like one of those wanted."""
    by_name = {normalized(column): column for column in present}
    for name in wanted:
        close = get_close_matches(name, by_name, 1, _CLOSE)
        if close:
            return by_name[close[0]]
    return None


def join_ends(columns: dict[str, Any]) -> dict[str, Any]:
    """Resolve ``done``, the end of an episode for whatever reason, into terminal and truncated.

    Alone it is taken for terminal; beside ``truncated``, terminal is done and not truncated; beside
    ``terminal``, truncated is done and not terminal.
    """
    if "done" not in columns:
        return columns
    resolved = {role: column for role, column in columns.items() if role != "done"}
    done = columns["done"]
    if "terminal" in columns:
        cut = done & ~columns["terminal"]
        resolved["truncated"] = cut | columns["truncated"] if "truncated" in columns else cut
    else:
        resolved["terminal"] = done & ~columns["truncated"] if "truncated" in columns else done
    return resolved
