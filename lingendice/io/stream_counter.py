"""Count a log batch by batch: rows gather until there are a few million, and are counted together.

What was counted is a piece of the log, with the loose ends of its episodes; pieces are joined in the order of
the log. Where they begin and end depends on the rows alone, so that the result is the same bits however the
log is cut into batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import has_room, require_sum
from lingendice.data.counts import Counts
from lingendice.data.episodes import Runs, count_breaks, find_episodes
from lingendice.data.last_rows import NO_LAST_ROWS, ends_of, require_ends
from lingendice.data.logs import MOST_KEPT, Log, count_log, initial_counts, with_next_states
from lingendice.io.columns import NO_ROWS, SPARE_IDS, Batch, IdMap, IdRule, distinct
from lingendice.io.formats import FileError
from lingendice.io.segments import EpisodeRecords, LogPiece, join, other_columns

Array = NDArray[Any]
Columns = dict[str, Any]

ROWS = 1 << 22
"""Rows that are counted together: some 200 MB."""
MOST_ROWS = 1 << 24
"""The same where there is nothing to sum up, so that one table of all pairs may do, and where pairs, or
states and actions, are many, all of which joining pieces goes through."""
_FEW_TIMES = 8  # rows per pair from which joining pieces is no burden
MOST_WAITING = 20_000_000
"""Rows of one episode, or of a log without episode ids, that are held to be sorted by time."""
_CELLS = 1 << 24  # cells that are no burden, though ids may turn out to be names when all rows are there
_ROLES_OF_IDS = {"state": ("state", "next_state"), "action": ("action",)}


class Accumulator:
    """Takes batches in order; :meth:`finish` gives the piece of the log that they make up.

    Parameters
    ----------
    rule
        What distinguishes ids from names.
    keep_ends
        Whether the piece is to have what its neighbors need.
    keep_episodes
        Whether to keep what each episode contributed; None keeps it where there are episodes and not too many
        rows. All rows are then counted together.
    by_time
        Whether rows are sorted by time within each episode.
    ends
        What the last row of an episode is, in a log without next states: see
        :meth:`Counts.from_transitions`.
    """

    def __init__(
        self,
        rule: IdRule,
        *,
        keep_ends: bool = False,
        keep_episodes: bool | None = False,
        by_time: bool = False,
        ends: str | None = None,
        threads: int = 1,
    ) -> None:
        self.rule, self.keep_ends, self.keep_episodes, self.ends = rule, keep_ends, keep_episodes, ends
        self.by_time, self.threads = by_time, threads
        self.roles: frozenset[str] = frozenset()
        self.first_place = ""
        """Where the first row stands."""
        self.maps = {what: IdMap(what) for what in ("state", "action", "episode")}
        self.waiting: Columns = {}
        """Columns that begin with the rows that are not counted yet; their memory is used again."""
        self.n_waiting = 0
        self.places: list[tuple[int, Callable[[int], str]]] = []
        """Where the batches of waiting rows began, which may be below 0, and what tells of their rows."""
        self.first_break = ""
        self.runs: list[int] = []
        """Waiting rows at which the id of the episode changes, where they are sorted by time."""
        self.ended: set[int] = set()
        """Episodes that are complete and sorted."""
        self.pieces: list[LogPiece] = []
        """Each at least twice as large as the next, so that an entry is merged a few times at most."""
        self.numbered: frozenset[str] = frozenset()
        """Whether integers of states, or of actions, are looked up like labels from now on."""
        self.n_rows = 0

    # -- adding ------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Take the rows of one batch."""
        if batch.n_rows == 0:
            return
        columns = self._read(batch)
        if self.by_time:
            self._note_runs(batch, columns.get("episode"))
        self.n_rows += batch.n_rows
        known = max(self.n_rows, batch.n_rows_known)
        if self.keep_episodes is None and (known > MOST_KEPT or not self.knows_starts):
            self.keep_episodes = False
        at_once = batch.n_rows if self.by_time or self.keep_episodes is not False else ROWS
        together = known if self.keep_episodes is not False else min(known, ROWS if self.sums else MOST_ROWS)
        for first in range(0, batch.n_rows, at_once):
            rows = {role: column[first : first + at_once] for role, column in columns.items()}
            self._append(rows, together)
            self.places.append((self.n_waiting - first, batch.place or batch.where))
            self.n_waiting += rows["state"].size
            while self.keep_episodes is False and (ready := self._ready()):
                self._take(self._count(ready))

    def _append(self, columns: Columns, room: int) -> None:
        """Copy rows behind those that wait, so that the memory of a batch serves the next one."""
        for role, column in columns.items():
            known = self.maps.get("state" if role == "next_state" else role)
            # Ids that fit are kept in 32 bits, which halves what is read later.
            fits = known is not None and 0 < known.size < 2**31
            held = self.waiting.setdefault(role, column[:0].astype(np.int32) if fits else column[:0])
            kind = np.result_type(held, np.int32 if fits else column)
            size = self.n_waiting + column.size
            if size > held.size or kind != held.dtype:
                self.waiting[role] = np.empty(max(size, 2 * held.size, room), kind)
                self.waiting[role][: self.n_waiting] = held[: self.n_waiting]
            self.waiting[role][self.n_waiting : size] = column

    def _read(self, batch: Batch) -> Columns:
        """The columns as arrays, checked against those before."""
        roles = frozenset(batch.columns)
        if not self.roles:
            self._begin(roles)
            self.first_place = batch.where(0)
        if roles != self.roles:
            raise other_columns(batch.where(0), roles, self.roles)
        if self.by_time and "time" not in roles:
            raise FileError(f"{batch.where(0)}: such a log has no column for time=; leave it out")
        columns: Columns = {}
        for role, column in batch.columns.items():
            what = "state" if role == "next_state" else role
            columns[role] = self.maps[what].read(batch, role) if what in self.maps else column  # type: ignore[assignment]
        for what in _ROLES_OF_IDS:
            self._check_size(batch, self.maps[what])
        for role in self.waiting.keys() & {"weight", "time"}:
            before, now = self.waiting[role].dtype, columns[role].dtype
            # Numbers of any kind are times; dates of two units would be compared as if they were of one.
            same = before.kind == now.kind or (role == "time" and {before.kind, now.kind}.isdisjoint("Mm"))
            if not same or (now.kind in "Mm" and before != now):
                raise FileError(
                    f"{batch.where(0)}: {role} changes from {before} to {now}; give it one type throughout"
                )
        return columns

    def _begin(self, roles: frozenset[str]) -> None:
        """Expect batches with columns for these roles."""
        self.roles = roles
        self.derive = "next_state" not in roles
        require_ends(self.ends, has_next_states=not self.derive)
        if self.derive and "reward_m2" in roles:
            raise ValueError("reward_m2= is for rows that stand for several steps; they need next_state= too")
        self.sums = not roles.isdisjoint(("weight", "reward"))
        self.knows_starts = not roles.isdisjoint(("episode", "terminal", "truncated"))
        # A row with a weight may stand for many steps.
        self.compares = self.knows_starts and not self.derive and "weight" not in roles

    def _check_size(self, batch: Batch, known: IdMap) -> None:
        """Check ids against the size that the caller gave, and against the memory of the machine."""
        given = self.rule.sizes[known.what == "action"]
        if given is None:
            if not known.coded and not self.rule.is_open(known.what) and not has_room(known.size):
                raise FileError(
                    f"{batch.where(0)}: {known.what} ids reach {known.size - 1}, too many to count; "
                    "pass labels=True to number the ids that occur"
                )
            return
        if known.size > given and known.coded:
            raise FileError(
                f"{batch.where(0)}: more than {given} distinct {known.what} labels; leave n_{known.what}s out"
            )
        for role in _ROLES_OF_IDS[known.what] if known.size > given else ():
            column = batch.columns.get(role)
            if isinstance(column, np.ndarray) and (column >= given).any():
                row = int((column >= given).argmax())
                raise FileError(
                    f"{batch.where(row)}: {role} is {column[row]}, outside 0..{given - 1}; raise "
                    f"n_{known.what}s or fix the id"
                )

    def _note_runs(self, batch: Batch, episode: Array | None) -> None:
        """Note where the id of the episode changes, for rows that are sorted by time."""
        changes = np.zeros(batch.n_rows, bool)
        if episode is not None:
            changes[1:] = episode[1:] != episode[:-1]
            changes[0] = self.n_waiting > 0 and self.waiting["episode"][self.n_waiting - 1] != episode[0]
        changes[0] |= self.n_waiting == 0
        self.runs += (self.n_waiting + np.flatnonzero(changes)).tolist()
        if self.n_waiting + batch.n_rows - self.runs[-1] > MOST_WAITING:
            raise FileError(
                f"{batch.where(batch.n_rows - 1)}: more than {MOST_WAITING:,} rows wait to be sorted by "
                "time; sort the log by episode and time, and leave time out, or name the episode column"
            )

    # -- counting ----------------------------------------------------------------------------------------

    def _ready(self) -> int:
        """How many of the waiting rows are to be counted now; by the number of rows alone."""
        sizes = [max(each.counts.n_cells, _FEW_TIMES * each.counts.count.size) for each in self.pieces]
        rows = max(ROWS, min(max(sizes, default=0), MOST_ROWS)) if self.sums else MOST_ROWS
        if not self.by_time:
            return rows if self.n_waiting >= rows else 0
        # Whole episodes: as many as begin within those rows, or the first one where it is longer.
        if len(self.runs) < 2:
            return 0
        reach = -(-self.runs[1] // rows) * rows
        return self.runs[bisect_right(self.runs, reach) - 1] if self.n_waiting >= reach else 0

    def _count(self, n: int, alone: bool = False) -> LogPiece:
        """The first rows that wait as a piece; ``alone`` where no neighbor will ask for its ends."""
        columns = {role: column[:n] for role, column in self.waiting.items()}
        order = self._sort_by_time(columns, n) if self.by_time else None
        sizes, labels = self._numbered_where_sparse(columns)
        terminal, truncated = columns.get("terminal"), columns.get("truncated")
        runs = find_episodes(columns.get("episode"), terminal, truncated, n)
        given: dict[str, Any] = {role: columns[role] for role in Log._fields if role in columns}
        log = Log(**{"next_state": columns["state"], **given, "runs": runs})
        if log.weight is not None:
            require_sum(log.weight)
        breaks = self._breaks(log, order)
        rows, last_rows = log, NO_LAST_ROWS
        if self.derive:
            # Alone nothing can follow; otherwise the piece is closed when all neighbors are there.
            rows, last_rows = with_next_states(
                log, truncated, ends_of(self.ends, self.roles) if alone else None
            )
        counted = count_log(rows, *sizes, self.keep_episodes is not False, self.threads)
        if self.derive:
            counted["initial_count"] = initial_counts(log, sizes[0])
        piece = LogPiece(
            replace(Counts(**counted), **labels),
            None if alone else self._ends(columns, n, runs),
            self.numbered,
            self.rule,
            breaks,
            self._occurring(log),
            last_rows=last_rows,
        )
        self._forget(n)
        return piece

    def _numbered_where_sparse(self, columns: Columns) -> tuple[tuple[int, int | None], dict[str, Any]]:
        """Numbers of states and actions; integers that are too sparse to be ids are numbered in place."""
        sizes: dict[str, int] = {}
        labels: dict[str, Any] = {}
        for what, roles in _ROLES_OF_IDS.items():
            present = [role for role in roles if role in columns]
            given = self.rule.sizes[what == "action"]
            sizes[what] = self.maps[what].size if given is None else given
            if self.maps[what].coded or not present or not self.rule.is_open(what):
                continue
            sizes[what] = max(int(columns[role].max()) + 1 for role in present)
            if what in self.numbered or self._are_sparse(what, sizes[what], [columns[r] for r in present]):
                self.numbered |= {what}
                joined = np.concatenate([columns[role] for role in present])
                occur, numbers = np.unique(joined, return_inverse=True)
                columns |= dict(zip(present, np.split(numbers, len(present)), strict=True))
                sizes[what], labels[f"{what}_labels"] = occur.size, tuple(occur.tolist())
        return (sizes["state"], sizes["action"] if "action" in columns else None), labels

    def _are_sparse(self, what: str, size: int, ids: list[Array]) -> bool:
        """Whether integers had better be numbered; what is not decided here is decided in the end."""
        known = max((getattr(piece.counts, f"n_{what}s") for piece in self.pieces), default=0)
        other = max((piece.counts.n_cells // max(known, 1) for piece in self.pieces), default=1)
        if size <= max(SPARE_IDS, 2 * known) or (self.pieces and size * other <= _CELLS):
            return False
        # The first rows usually decide.
        some = distinct(ids[0][: max(size // 8, 1 << 16)]).size
        if self.rule.are_ids(what, size - 1, known + some):
            return False
        return not self.rule.are_ids(what, size - 1, known + distinct(np.concatenate(ids)).size)

    def _breaks(self, log: Log, order: Array | None) -> tuple[int, str]:
        if not self.compares or log.runs is None:
            return 0, ""
        n, row = count_breaks(log.state, log.next_state, log.runs)
        if n and not self.first_break:
            self.first_break = self._where(row if order is None else int(order[row]))
        return n, self.first_break * (n > 0)

    def _where(self, row: int) -> str:
        first, where = self.places[bisect_right(self.places, row, key=lambda place: place[0]) - 1]
        return where(row - first)

    def _forget(self, n: int) -> None:
        """Go on with the rows that still wait."""
        rest = self.n_waiting - n
        for column in self.waiting.values() if rest else ():
            column[:rest] = column[n : self.n_waiting]
        self.n_waiting = rest
        last = bisect_right(self.places, n, key=lambda place: place[0]) - 1
        kept = self.places[last:] if self.n_waiting else []
        self.places = [(first - n, where) for first, where in kept]

    def _occurring(self, log: Log) -> dict[str, Array]:
        """States and actions of rows that no pair holds, or not whole; integers may turn out to be names."""
        rows = [NO_ROWS]
        if self.derive:
            rows.append(np.array([log.state.size - 1]) if log.runs is None else log.runs.last)
        if log.terminal is not None:
            rows.append(np.flatnonzero(log.terminal))
        if log.weight is not None:
            rows.append(np.flatnonzero(log.weight <= 0))
        lost = np.concatenate(rows)
        columns = log._asdict()
        return {
            what: distinct(np.concatenate([columns[role][lost] for role in roles if role in self.roles]))
            for what, roles in _ROLES_OF_IDS.items()
            if what in self.roles
            and self.rule.is_open(what)
            and not self.maps[what].coded
            and what not in self.numbered
        }

    def _ends(self, columns: Columns, n: int, runs: Runs | None) -> EpisodeRecords:
        """First and last row of every episode id, sorted by id."""
        ids = columns.get("episode")
        if ids is None or runs is None:
            ids, first, last = np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([n - 1])
        else:
            first, last = runs.ends_of(ids)
            ids = ids[first]
        is_open = np.ones(first.size, bool)
        for role in ("terminal", "truncated"):
            if role in columns:
                is_open &= ~columns[role][last]
        weight = columns.get("weight")
        kept = {role: columns[role][last] for role in ("state", "action", "reward") if role in columns}
        return EpisodeRecords(
            ids=ids.astype(np.int64),
            is_open=is_open,
            first_state=columns["state"][first],
            first_weight=np.ones(first.size, np.int64) if weight is None else weight[first],
            last_state=kept["state"] if self.derive else None,
            last_action=kept.get("action") if self.derive else None,
            last_reward=kept.get("reward") if self.derive else None,
            last_weight=weight[last] if self.derive and weight is not None else None,
            last_next=np.where(is_open, columns["next_state"][last], 0) if self.compares else None,
        )

    def _sort_by_time(self, columns: Columns, n: int) -> Array:
        """Put whole episodes in the order of their times; returns that order."""
        begins = self.runs[: bisect_right(self.runs, n - 1)]
        self.runs = [row - n for row in self.runs[len(begins) :]]
        for row in begins if "episode" in columns else ():
            number = int(columns["episode"][row])
            if number in self.ended:
                name = self.maps["episode"].name(number)
                raise FileError(
                    f"{self._where(row)}: episode {name!r} comes back after others; time= sorts logs whose "
                    "episodes come one after another: sort the rows by episode first, or pass the columns as "
                    "arrays to Counts.from_transitions(..., episode=, time=), which sorts them"
                )
            self.ended.add(number)
        run = np.repeat(np.arange(len(begins)), np.diff([*begins, n]))
        order: Array = np.lexsort((columns["time"], run))
        columns |= {role: column[order] for role, column in columns.items()}
        return order

    def _take(self, piece: LogPiece) -> None:
        """Join a piece to those before."""
        while self.pieces and 2 * _size(piece) > _size(self.pieces[-1]):
            piece = join(self.pieces.pop(), piece, self.threads)
        self.pieces.append(piece)

    # -- results -----------------------------------------------------------------------------------------

    def finish(self) -> LogPiece:
        """The piece that the batches so far make up; labels are in order of appearance."""
        if self.n_waiting:
            self._take(self._count(self.n_waiting, alone=not (self.keep_ends or self.pieces)))
        while len(self.pieces) > 1:
            last = self.pieces.pop()
            self.pieces.append(join(self.pieces.pop(), last, self.threads))
        piece = self.pieces[0] if self.keep_ends else self.pieces[0].closed(ends_of(self.ends, self.roles))
        n_states, n_actions = piece.counts.n_states, piece.counts.n_actions
        labels: dict[str, Any] = {
            f"{what}_labels": tuple(known.position) for what, known in self.maps.items() if known.coded
        }
        labels.pop("episode_labels", None)
        n_states = max(n_states, self.rule.sizes[0] or 0, len(labels.get("state_labels", ())))
        if n_actions is not None:
            n_actions = max(n_actions, self.rule.sizes[1] or 0, len(labels.get("action_labels", ())))
        counts = replace(piece.counts.with_states(n_states, n_actions), **labels)
        ends = piece.episodes if self.keep_ends else None
        if ends is not None and self.maps["episode"].coded:
            names = np.array(list(self.maps["episode"].position))[ends.ids]
            ends = replace(ends, ids=names).take(np.argsort(names, kind="stable"))
        told = {"roles": self.roles, "where": self.first_place}
        return replace(piece, counts=counts, episodes=ends, **told).settled()  # type: ignore[arg-type]


def _size(piece: LogPiece) -> int:
    return piece.counts.count.size + (0 if piece.episodes is None else piece.episodes.ids.size)
