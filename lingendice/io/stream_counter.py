"""Count a log batch by batch: memory for what is distinct, never for the rows.

Two tables grow: one record per distinct (state, action, next state), one per episode. Rows are taken in
the order of the log, so that the result is the same bits however the log is cut into batches.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.atomic import StoredFileError
from lingendice.data.counts import Counts
from lingendice.data.rows import kernel_array
from lingendice.data.saving import read_archive, write_archive
from lingendice.io.columns import Batch, Coded, Position
from lingendice.io.formats import FileError
from lingendice.io.ids import IdMap, IdRule, note_hidden_ids, number_sparse_ids, settle_ids
from lingendice.io.keys import (
    NO_FLAGS,
    NO_INTS,
    NO_REALS,
    STATE_BITS,
    Packer,
    compares_rows,
    flags,
    narrowed,
)
from lingendice.io.pair_counter import HashTable, KeyLayout, PairCounter
from lingendice.io.segments import EpisodeRecords, Piece
from lingendice.kernels.counting import stream_tables as streaming

Array = NDArray[Any]

_BLOCK = 1 << 16  # rows per step: the columns of a block stay in the second-level cache
NO_BREAKS = np.array([0, -1])


@dataclass(frozen=True)
class Resources:
    """What the counting works with."""

    executor: Executor | None = None
    """A thread that helps."""
    threads: int = 1
    packer: Packer = field(default_factory=Packer)


class Accumulator:
    """Takes batches in order; :meth:`finish` gives the piece of the log that they make up."""

    def __init__(self, roles: frozenset[str], rule: IdRule, keep_first: bool, resources: Resources) -> None:
        self.roles, self.rule = roles, rule
        self.packer = resources.packer
        self.given = {"state": rule.sizes[0], "action": rule.sizes[1]}
        self.maps = {what: IdMap(what) for what in ("state", "action", "episode")}
        self.derive = "next_state" not in roles
        if self.derive and "reward_m2" in roles:
            raise ValueError("reward_m2= is for rows that stand for several steps; they need next_state= too")
        self.knows_starts = bool(roles & {"episode", "terminal", "truncated"})
        self.fractional: bool | None = None if "weight" in roles else False
        self.pairs = PairCounter(roles, resources.executor, resources.threads)
        self.first_at = 2 if keep_first else -1
        self.last_at = (4 if keep_first else 2) if self.derive else -1
        compares = compares_rows(roles)
        self.next_at = (4 if keep_first else 2) if compares else -1
        self.episodes = HashTable(2 + 2 * keep_first + 4 * self.derive + compares, by_status=True)
        self.n_breaks, self.first_break = 0, ""
        """Rows that do not begin in the next state of the row before in their episode, and the first."""
        self.hidden = dict.fromkeys(("state", "action"), NO_INTS)
        """Integers of rows that are in no pair: next states of terminal rows, rows of weight zero."""
        self.next_look = dict.fromkeys(("state", "action"), 1 << STATE_BITS)
        """The size at which it is looked whether integers are sparse."""
        self.starts = np.zeros(0, np.int64)
        self.n_rows = 0

    # -- adding ------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Count the rows of one batch."""
        if batch.n_rows == 0:
            return
        note_hidden_ids(self, batch)
        batch = self.packer.pack(batch)
        if not self._add_packed(batch):
            self._add_columns(batch)
        if batch.packed is not None:
            self._note_breaks(batch, *batch.packed.breaks)
        self.packer.forget(batch)
        self.n_rows += batch.n_rows

    def _note_breaks(self, batch: Batch, n: int, row: int) -> None:
        if n and not self.n_breaks:
            self.first_break = batch.where(row)
        self.n_breaks += n

    def _add_packed(self, batch: Batch) -> bool:
        """Count by the keys that came with the batch; False where they do not serve."""
        packed, states, actions = batch.packed, self.maps["state"], self.maps["action"]
        if packed is None or packed.keys is None or states.coded or actions.coded:
            return False
        if states.numbered or actions.numbered or self.pairs.is_wide:
            return False
        states.coded, states.size = False, max(states.size, packed.n_states)
        if "action" in self.roles:
            actions.coded, actions.size = False, max(actions.size, packed.n_actions)
        self._fit_keys(batch)
        numbers = self._numbers(batch)
        if packed.events is not None:
            unpack = self.pairs.layout.unpack
            state = unpack(packed.keys[packed.events])[0]
            following = unpack(packed.keys[_run_ends(batch, packed.events)])[2] - 1
            self._note_events(batch, packed.events, state, following, numbers["weight"])
        self.pairs.add(packed.keys, numbers["weight"], numbers["reward"], numbers["reward_m2"])
        return True

    def _add_columns(self, batch: Batch) -> None:
        """Count rows whose ids have to be looked up, or whose next states are those of later rows."""
        number_sparse_ids(self, batch)
        columns, numbers = self._columns(batch), self._numbers(batch)
        self._fit_keys(batch)
        if batch.packed is not None and batch.packed.events is not None:
            rows = batch.packed.events
            following = columns["next_state"][_run_ends(batch, rows)]
            self._note_events(batch, rows, columns["state"][rows], following, numbers["weight"])
        columns |= numbers
        for start in range(0, batch.n_rows, _BLOCK):
            block = {role: column[start : start + _BLOCK] for role, column in columns.items()}
            if self.derive:
                block = self._follow(block)
            keys = np.empty(block["state"].size, np.int64)
            streaming.pack_keys(
                block["state"], block["action"], block["next_state"], block["terminal"],
                self.pairs.layout.action, self.pairs.layout.following, keys,
            )  # fmt: skip
            self.pairs.add(keys, block["weight"], block["reward"], block["reward_m2"])

    def _columns(self, batch: Batch) -> dict[str, Array]:
        """Columns of ids and flags as the kernels take them; absent ones are empty."""
        states: list[str] = [role for role in ("state", "next_state") if role in self.roles]
        ids: dict[str, Array] = {role: self.maps["state"].read(batch, role) for role in states}
        if "action" in self.roles:
            ids["action"] = self.maps["action"].read(batch, "action")
        columns = narrowed(ids)
        kind = columns["state"].dtype
        columns.setdefault("action", kernel_array(np.empty(0, kind), kind))
        if self.derive:
            columns = {role: kernel_array(column, np.int64) for role, column in columns.items()}
            columns["episode"] = self._episodes(batch, slice(None))
        return columns | {role: flags(batch, role) for role in ("terminal", "truncated")}

    def _numbers(self, batch: Batch) -> dict[str, Array]:
        numbers = {
            role: kernel_array(self._plain(batch, role, NO_REALS), np.float64)
            for role in ("reward", "reward_m2")
        }
        return numbers | {"weight": self._weights(batch)}

    def _episodes(self, batch: Batch, rows: Any) -> Array:
        """Ids of the episodes of some rows; all rows are one episode where there is no such column."""
        if "episode" not in self.roles:
            return kernel_array(np.broadcast_to(np.int64(0), batch.n_rows)[rows], np.int64)
        return kernel_array(self.maps["episode"].read(batch, "episode", rows), np.int64)

    def _plain(self, batch: Batch, role: str, absent: Array) -> Array:
        column = batch.columns[role] if role in self.roles else absent
        assert not isinstance(column, Coded)
        return column

    def _weights(self, batch: Batch) -> Array:
        weight = self._plain(batch, "weight", NO_INTS)
        fractional = weight.dtype.kind == "f"
        if self.fractional is None:
            self.fractional = self.pairs.fractional = fractional
        if "weight" in self.roles and self.fractional != fractional:
            raise FileError(
                f"{batch.where(0)}: weight changes between integers and floats; give it one type throughout"
            )
        return kernel_array(weight, np.float64 if fractional else np.int64)

    def _fit_keys(self, batch: Batch) -> None:
        """Widen the keys where ids outgrow them, and check ids against sizes that the caller gave."""
        for what, given in self.given.items():
            known = self.maps[what]
            if given is not None and known.size > given:
                self._refuse(batch, known, given)
        if not self.pairs.fit(self.maps["state"].size, self.maps["action"].size):
            raise FileError(
                f"{batch.where(0)}: ids reach {self.maps['state'].size - 1}, too many to count; "
                "pass labels=True to number the ids that occur"
            )

    def _refuse(self, batch: Batch, known: IdMap, given: int) -> None:
        roles = ("state", "next_state") if known.what == "state" else ("action",)
        if known.coded:
            raise FileError(
                f"{batch.where(0)}: more than {given} distinct {known.what} labels; leave n_{known.what}s out"
            )
        for role in roles:
            column = batch.columns.get(role)
            if isinstance(column, np.ndarray) and (column >= given).any():
                row = int((column >= given).argmax())
                raise FileError(
                    f"{batch.where(row)}: {role} is {column[row]}, outside 0..{given - 1}; raise "
                    f"n_{known.what}s or fix the id"
                )

    def _note_events(self, batch: Batch, rows: Array, state: Array, following: Array, weight: Array) -> None:
        """Find where episodes begin among the rows that may begin or end one, and whether they go on.

        ``following`` has the next state of the last row before the next event.
        """
        breaks = np.array([0, -1])
        self._follow(
            {
                "episode": self._episodes(batch, rows),
                "state": state.astype(np.int64),
                "following": following.astype(np.int64),
                "action": NO_INTS,
                "reward": NO_REALS,
                "weight": weight[rows] if weight.size else weight,
                "terminal": flags(batch, "terminal")[rows] if "terminal" in self.roles else NO_FLAGS,
                "truncated": flags(batch, "truncated")[rows] if "truncated" in self.roles else NO_FLAGS,
            },
            breaks,
        )
        if breaks[0]:
            self._note_breaks(batch, int(breaks[0]), int(rows[breaks[1]]))

    def _follow(self, block: dict[str, Array], breaks: Array = NO_BREAKS) -> dict[str, Array]:
        """Find where episodes begin; without a column of next states, complete transitions."""
        n, table = block["state"].size, self.episodes
        begins = np.empty(n, bool)
        room = 2 * n if self.derive else 0
        types = (np.int64, np.int64, np.int64, np.float64, bool)
        out = streaming.Completed(*(np.empty(room, kind) for kind in types))
        weight = block["weight"]
        out_weight = np.empty(room, weight.dtype)
        rows = streaming.EpisodeRows(*(block.get(role, NO_INTS) for role in streaming.EpisodeRows._fields))
        layout = streaming.EpisodeLayout(self.first_at, self.last_at, self.next_at, bool(self.fractional))
        table.held[1] = 0
        done = 0
        while done < n:
            done = streaming.follow_episodes(
                rows, weight, done, n, layout, table.arrays, breaks, begins, out, out_weight
            )
            if done < n:
                table.grow()
        if self.knows_starts:
            self._note_starts(block, begins)
        if not self.derive:
            return block
        written = int(table.held[1])
        completed = {role: column[:written] for role, column in out._asdict().items()}
        completed["weight"] = out_weight[:written]
        for role in ("action", "reward", "weight"):
            if role not in self.roles:
                completed[role] = completed[role][:0]
        return {**completed, "reward_m2": NO_REALS}

    def _note_starts(self, block: dict[str, Array], begins: Array) -> None:
        first = block["state"][begins]
        if self.starts.size < self.maps["state"].size:
            grown = np.zeros(max(self.maps["state"].size, 2 * self.starts.size), np.int64)
            kind = np.float64 if self.fractional else np.int64
            grown = grown.astype(kind)
            grown[: self.starts.size] = self.starts
            self.starts = grown
        weight = block["weight"][begins] if block["weight"].size else 1
        np.add.at(self.starts, first, weight)

    # -- results -----------------------------------------------------------------------------------------

    def finish(self) -> Piece:
        """The piece that the batches so far make up; labels are in order of appearance."""
        settle_ids(self)
        counts = self._counts()
        numbered = frozenset(what for what, known in self.maps.items() if known.numbered)
        return Piece(counts, self._episode_records() if self.first_at >= 0 else None, numbered, self.rule)

    def _counts(self) -> Counts:
        n_states = self._size("state")
        n_actions = self._size("action") if "action" in self.roles else None
        return replace(
            self.pairs.counts().with_states(n_states, n_actions),
            initial_count=self._initial(n_states),
            state_labels=self._labels("state"),
            action_labels=self._labels("action"),
        )

    def _size(self, what: str) -> int:
        given = self.given[what]
        return self.maps[what].size if given is None else int(given)

    def _initial(self, n_states: int) -> Array | None:
        if not self.knows_starts:
            return None
        initial = np.zeros(n_states, self.starts.dtype)
        used = min(n_states, self.starts.size)
        initial[:used] = self.starts[:used]
        return initial

    def _labels(self, what: str) -> tuple[Any, ...] | None:
        known = self.maps[what]
        return tuple(known.position) if known.coded or known.numbered else None

    def _episode_records(self) -> EpisodeRecords:
        """What other pieces need to know of the episodes of this one, sorted by id."""
        records = self.episodes.records()
        ids = records[:, 0]
        if self.maps["episode"].coded:
            ids = np.array(list(self.maps["episode"].position))[ids]
        order = np.argsort(ids, kind="stable")
        records = records[order]
        reals = records.view(np.float64)

        def weights(at: int) -> Array:
            return (reals if self.fractional else records)[:, at].copy()

        last, is_open = self.last_at, records[:, 1] == streaming.OPEN
        return EpisodeRecords(
            ids=ids[order],
            is_open=is_open,
            first_state=records[:, self.first_at].copy(),
            first_weight=weights(self.first_at + 1),
            last_state=records[:, last].copy() if self.derive else None,
            last_action=records[:, last + 1].copy() if self.derive and "action" in self.roles else None,
            last_reward=reals[:, last + 2].copy() if self.derive and "reward" in self.roles else None,
            last_weight=weights(last + 3) if self.derive else None,
            last_next=np.where(is_open, records[:, self.next_at], 0) if self.next_at >= 0 else None,
            marks_starts=self.knows_starts,
        )


def _run_ends(batch: Batch, events: Array) -> Array:
    """The last row before the next event, for every event."""
    return np.append(events[1:], batch.n_rows) - 1


# -- keep a half-read log on disk, and go on from it --------------------------------------------------


def save_checkpoint(path: Path, counted: Accumulator, after: Position, identity: dict[str, Any]) -> None:
    """Write what was counted so far and where reading goes on."""
    record = {
        "kind": "checkpoint",
        "identity": identity,
        "after": list(after),
        "roles": sorted(counted.roles),
        "rule": [counted.rule.labels, list(counted.rule.sizes), list(counted.rule.at_least)],
        "breaks": [counted.n_breaks, counted.first_break],
        "keep_first": counted.first_at >= 0,
        "fractional": counted.fractional,
        "bits": list(counted.pairs.layout),
        "n_rows": counted.n_rows,
        "maps": {
            what: {
                "coded": known.coded,
                "numbered": known.numbered,
                "size": known.size,
                "labels": list(known.position),
            }
            for what, known in counted.maps.items()
        },
    }
    arrays = {
        "pairs": counted.pairs.records(),
        "episodes": counted.episodes.records(),
        "starts": counted.starts,
        **{f"hidden_{what}": ids for what, ids in counted.hidden.items()},
    }
    write_archive(path, arrays, record)


def load_checkpoint(
    path: Path, identity: dict[str, Any], resources: Resources
) -> tuple[Accumulator, Position]:
    """Read it back; the log must be the one that the checkpoint belongs to."""
    arrays, record = read_archive(path, "checkpoint")
    if record["identity"] != json.loads(json.dumps(identity)):
        raise StoredFileError(
            f"{path}: this checkpoint belongs to another log (or other columns, or files have changed); "
            "delete it to begin anew"
        )
    labels, sizes, at_least = record["rule"]
    roles = frozenset(record["roles"])
    rule = IdRule(labels, tuple(sizes), tuple(at_least))
    counted = Accumulator(roles, rule, record["keep_first"], resources)
    counted.n_breaks, counted.first_break = record["breaks"]
    counted.fractional = record["fractional"]
    counted.pairs.fractional = bool(record["fractional"])
    counted.pairs.layout = KeyLayout(*record["bits"])
    counted.n_rows = record["n_rows"]
    for what, facts in record["maps"].items():
        known = counted.maps[what]
        known.coded, known.numbered, known.size = facts["coded"], facts["numbered"], facts["size"]
        known.position = {label: position for position, label in enumerate(facts["labels"])}
    counted.pairs.fit(counted.maps["state"].size, counted.maps["action"].size)
    counted.pairs.load(arrays["pairs"])
    counted.episodes.load(arrays["episodes"])
    counted.starts = arrays["starts"]
    counted.hidden = {what: arrays[f"hidden_{what}"] for what in counted.hidden}
    return counted, tuple(record["after"])
