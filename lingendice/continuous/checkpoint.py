"""Training on disk: one npz file without pickles, replaced in one move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.continuous.learner import Learner
from lingendice.continuous.outcome import Progress
from lingendice.data.atomic import replacing


def write_checkpoint(
    path: str | Path, learners: list[Learner], histories: list[list[Progress]], identity: dict[str, Any]
) -> None:
    """Write all members; a reader sees the old file or the new one, never a part."""
    arrays: dict[str, NDArray[Any]] = {"identity": np.array(json.dumps(identity, sort_keys=True))}
    for k, (learner, history) in enumerate(zip(learners, histories, strict=True)):
        for name, values in learner.snapshot().items():
            arrays[f"{name}_{k}"] = values
        arrays[f"history_{k}"] = np.array(history, dtype=np.float64).reshape(len(history), 4)
    with replacing(path) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_checkpoint(
    path: str | Path, learners: list[Learner], identity: dict[str, Any]
) -> list[list[Progress]]:
    """Restore all members and return their histories; refuses a file of another problem."""
    with np.load(path, allow_pickle=False) as held:
        written = json.loads(str(held["identity"]))
        for name, value in identity.items():
            if written.get(name) != value:
                raise ValueError(
                    f"{path} was written with {name} = {written.get(name)!r}, this call has {value!r}; "
                    "give the same data and options, or another checkpoint file"
                )
        histories = []
        for k, learner in enumerate(learners):
            learner.restore({name: held[f"{name}_{k}"] for name in learner.snapshot()})
            rows = held[f"history_{k}"]
            histories.append([Progress(int(row[0]), *(float(entry) for entry in row[1:])) for row in rows])
    return histories
