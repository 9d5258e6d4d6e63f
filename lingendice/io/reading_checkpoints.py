"""Keep a half-read log on disk, and go on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lingendice.data.atomic import StoredFileError
from lingendice.data.saving import read_archive, write_archive
from lingendice.io.columns import Position
from lingendice.io.ids import IdRule
from lingendice.io.pair_counter import KeyLayout
from lingendice.io.stream_counter import Accumulator, Resources


def save(path: Path, counted: Accumulator, after: Position, identity: dict[str, Any]) -> None:
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


def load(path: Path, identity: dict[str, Any], resources: Resources) -> tuple[Accumulator, Position]:
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
