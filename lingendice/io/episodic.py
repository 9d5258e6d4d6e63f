"""Logs that come by episode or by environment: Minari datasets and Gymnasium vector logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingendice.data.checks import plain_array, require_choice
from lingendice.io.columns import Batches, read_batch
from lingendice.io.formats import FileError
from lingendice.io.roles import FLAG_ROLES, ColumnNames

Array = NDArray[Any]
MINARI = "minari:"
NEXT_STEP, SAME_STEP = "next_step", "same_step"
"""How Gymnasium resets an environment of a vector."""


def open_minari(name: str) -> Any:
    """A local Minari dataset by its id."""
    try:
        import minari
    except ImportError as error:
        raise ImportError("Minari datasets need Minari: pip install 'lingendice[minari]'") from error
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise FileError(
            f"{MINARI}{name}: no such local dataset ({error}); minari.list_local_datasets()"
        ) from None


class MinariLog:
    """Episodes of a Minari dataset: T + 1 observations, T actions."""

    def __init__(self, dataset: Any, encode: Callable[[Any], Any] | None) -> None:
        self.dataset, self.encode = dataset, encode

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """One batch per episode."""
        total = max(int(self.dataset.total_episodes), 1)
        for index, episode in enumerate(self.dataset.iterate_episodes()):
            what = f"episode {index}"
            states = self._states(episode.observations, what)
            steps = len(episode.rewards)
            rows: dict[str, Any] = {
                "state": states[:-1],
                "next_state": states[1:],
                "action": np.asarray(episode.actions),
                "reward": np.asarray(episode.rewards),
                "terminal": np.asarray(episode.terminations),
                "truncated": np.asarray(episode.truncations),
                "episode": np.full(steps, index),
            }
            if rows["action"].ndim != 1 or rows["action"].dtype.kind not in "iu":
                if names.given.get("action") is not False:
                    kind = f"shape {rows['action'].shape[1:]}, dtype {rows['action'].dtype}"
                    raise FileError(f"{what}: actions ({kind}) are no ids; leave them out with action=False")
                del rows["action"]
            if states.shape[0] != steps + 1:
                raise FileError(
                    f"{what}: {states.shape[0]} observations for {steps} steps; expected one more"
                )
            found = {role: role for role in rows if names.given.get(role) is not False}
            yield read_batch(rows, found, _step(what), names.labels, (index + 1) / total)

    def _states(self, observations: Any, what: str) -> Array:
        states = np.asarray(observations if self.encode is None else self.encode(observations))
        if states.ndim != 1 or states.dtype.kind not in "iuUSO":
            shape = f"shape {states.shape[1:]}, dtype {states.dtype}"
            raise FileError(
                f"{what}: observations ({shape}) are no state ids; pass state=, a function from the "
                "observations of an episode to one id each"
            )
        return states


def _step(what: str) -> Callable[[int], str]:
    return lambda row: f"{what}, step {row}"


class VectorLog:
    """Arrays of shape (time, environments), as a loop over a Gymnasium vector environment records them.

    ``state`` holds what was observed before each step, with the last observation below (T + 1 rows), or T
    rows beside ``next_state``. After a step that ends an episode, Gymnasium resets the environment:

    ``"next_step"``
        (its default) by the following call of ``step``, whose action is ignored: the observation at the end
        is the true last one, and the row of the reset is no transition and is left out.
    ``"same_step"``
        at once: what follows is the first observation of the next episode; the true last one is in
        ``info["final_obs"]``, here ``final_state`` (T rows, read only where an episode is truncated).
    """

    def __init__(self, log: Mapping[str, Any], autoreset: str) -> None:
        self.autoreset = require_choice("autoreset", autoreset, (NEXT_STEP, SAME_STEP))
        self.log = log

    def batches(self, names: ColumnNames, threads: int) -> Batches:
        """One batch per environment."""
        found = names.find([str(name) for name in self.log], "the vector log", ("final_state", "final_obs"))
        if "episode" in found:
            raise FileError(
                f"the vector log: {found['episode']!r} is there for the episode, but episodes are the "
                "environments, cut where terminal or truncated; pass episode=False"
            )
        arrays = {role: plain_array(name, self.log[name]) for role, name in found.items()}
        steps, environments = self._check(arrays)
        arrays = _with_flags(arrays)
        for environment in range(environments):
            rows = {role: values[:, environment] for role, values in arrays.items()}
            rows, step = self._rows(rows, environment, steps)
            rows["episode"] = np.full(step.size, environment)
            yield read_batch(
                rows,
                {role: role for role in rows},
                _row_of_environment(environment, step),
                names.labels,
                (environment + 1) / environments,
            )

    def _check(self, arrays: Mapping[str, Array]) -> tuple[int, int]:
        for role, values in arrays.items():
            if values.ndim != 2:
                raise FileError(
                    f"the vector log: {role} has shape {values.shape}; give arrays (time, environments)"
                )
        rows, environments = arrays["state"].shape
        steps = rows if "next_state" in arrays else rows - 1
        for role, values in arrays.items():
            if role != "state" and values.shape != (steps, environments):
                raise FileError(
                    f"the vector log: {role} has shape {values.shape}, expected {(steps, environments)}: "
                    "state holds one row more than the others, unless next_state is there"
                )
        return steps, environments

    def _rows(
        self, rows: dict[str, Array], environment: int, steps: int
    ) -> tuple[dict[str, Array], NDArray[np.int64]]:
        """The true transitions of one environment and the steps at which they were made."""
        terminal = rows.get("terminal", np.zeros(steps, bool))
        truncated = rows.get("truncated", np.zeros(steps, bool))
        if "next_state" not in rows:
            rows["next_state"] = rows["state"][1:]
            rows["state"] = rows["state"][:-1]
        done = terminal | truncated
        if self.autoreset == SAME_STEP:
            rows["next_state"] = self._final(rows["next_state"], done, terminal, environment)
            return rows, np.arange(steps)
        keep = np.ones(steps, bool)
        # A call that resets ends no episode by itself, whatever was recorded for it.
        for step in np.flatnonzero(done).tolist():
            if keep[step]:
                keep[step + 1 : step + 2] = False
        return {role: values[keep] for role, values in rows.items()}, np.flatnonzero(keep)

    def _final(self, following: Array, done: Array, terminal: Array, environment: int) -> Array:
        ended = done & ~terminal
        if not ended.any():
            return following
        name = next((name for name in ("final_state", "final_obs") if name in self.log), None)
        if name is None:
            raise FileError(
                f"the vector log, environment {environment}, step {int(ended.argmax())}: truncated, and its "
                'last observation was replaced by a reset; record it as "final_state" (info["final_obs"])'
            )
        final = plain_array(name, self.log[name])
        if final.shape[0] != done.size or final.ndim != 2:
            raise FileError(
                f"the vector log: {name} has shape {final.shape}; give one last observation per step and "
                "environment, shaped like the rewards"
            )
        return np.where(done, final[:, environment], following)


def _with_flags(arrays: dict[str, Array]) -> dict[str, Array]:
    """The same with flags as booleans, ``done`` resolved into the others."""
    given = {role: values for role, values in arrays.items() if role in FLAG_ROLES}
    others = {role: values for role, values in arrays.items() if role not in given}
    if not given:
        return others
    shape = next(iter(given.values())).shape

    def where(row: int) -> str:
        return f"the vector log, environment {row % shape[1]}, step {row // shape[1]}"

    flat = {role: values.ravel() for role, values in given.items()}
    read = read_batch(flat, {role: role for role in given}, where, None)
    return others | {role: flags.reshape(shape) for role, flags in read.columns.items()}  # type: ignore[union-attr]


def _row_of_environment(environment: int, step: NDArray[np.int64]) -> Callable[[int], str]:
    def where(row: int) -> str:
        place = step[row] if row < step.size else 0
        return f"the vector log, environment {environment}, step {place}"

    return where
