"""Logged transitions between continuous (or mixed, or integer) states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingendice.data.checks import (
    Floats,
    first_bad,
    numeric_array,
    plain_array,
    read_flags,
    require_finite,
    require_flags,
    require_length,
    require_reward,
    require_room,
    require_whole,
    whole_array,
)
from lingendice.data.episodes import find_episodes
from lingendice.data.labels import encode
from lingendice.data.last_rows import ends_of, next_values, require_ends, settle, warn_last_rows
from lingendice.data.policies import Policy, read_policy


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Transitions:
    """Transitions (s, a, r, s') as arrays, one row each, for :func:`lingendice.solve`.

    Parameters
    ----------
    state, next_state
        Shape (N, d), or (N,) for one coordinate. Integer arrays of one dimension are ids of discrete
        states (0..n_states-1), which the networks see as one-hot vectors. Without ``next_state`` the next row
        of the same episode is the next state, and ``ends`` says what the last row is.
    action
        Integers (N,): discrete actions 0..n_actions-1. Floats (N, k) or (N,): continuous ones. None: a
        Markov chain without actions.
    reward
        One number per transition; None where only the ratio is wanted.
    initial_state
        Sample of the initial distribution, any number of rows. Default: the first state of every episode.
    episode
        Id of the episode of each row, rows of one episode in time order. Without it a new episode begins
        after each row that is ``terminal`` or ``truncated``.
    terminal
        True where the episode ended: s' is not left, and what follows is decided by the ``terminal`` option
        of ``solve`` (absorbed at zero reward for gamma < 1; restarted from the initial distribution for gamma
        = 1).
    truncated
        True where recording stopped although the chain went on: s' counts like any other.
    n_states, n_actions
        Sizes, where larger than what the log happens to contain.
    ends
        For logs without ``next_state``: ``"terminal"`` or ``"truncated"``, as in
        :meth:`Counts.from_transitions`. A row that ends its episode stands for its own next state, which
        nothing flows on from; a row that is cut off is left out with its action and reward.

    Notes
    -----
    Rows may come from several behavior policies; none of them needs to be known. Arrays are referred to,
    not copied: do not change them while in use.

    Examples
    --------
    >>> import numpy as np, lingendice as lg
    >>> s = np.random.default_rng(0).normal(size=(5, 2))
    >>> lg.Transitions(s[:-1], [0, 1, 0, 1], [1.0, 0.0, 1.0, 0.0], s[1:])
    Transitions(4 rows, states of 2 coordinates, 2 actions)
    """

    state: NDArray[Any]
    action: NDArray[Any] | None
    reward: Floats | None
    next_state: NDArray[Any]
    initial_state: NDArray[Any] | None
    episode: NDArray[np.int64] | None
    terminal: NDArray[np.bool_] | None
    truncated: NDArray[np.bool_] | None
    n_states: int | None
    """Number of discrete states; None where states are vectors."""
    n_actions: int | None
    """Number of discrete actions; None where actions are vectors, or absent."""

    def __init__(
        self,
        state: ArrayLike,
        action: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        next_state: ArrayLike | None = None,
        initial_state: ArrayLike | None = None,
        episode: ArrayLike | None = None,
        terminal: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        *,
        n_states: int | None = None,
        n_actions: int | None = None,
        ends: str | None = None,
    ) -> None:
        require_ends(ends, has_next_states=next_state is not None)
        given = {"state": state, "next_state": next_state, "initial_state": initial_state}
        points = {name: _states(name, values) for name, values in given.items() if values is not None}
        n = len(points["state"])
        if n == 0:
            raise ValueError("state has no rows; give at least one transition")
        if "initial_state" in points and len(points["initial_state"]) == 0:
            raise ValueError("initial_state has no rows; leave it out if it is unknown")
        self._check_states(points)
        if points["state"].ndim == 1:
            n_states = _count("n_states", n_states, points)
        elif n_states is not None:
            raise ValueError("n_states is given, but the states are vectors; leave it out")
        actions = None if action is None else _actions(action, n)
        if actions is not None and actions.ndim == 1:
            n_actions = _count("n_actions", n_actions, {"action": actions})
        elif n_actions is not None:
            raise ValueError("n_actions is given, but the actions are not integers; leave it out")
        terminal_flags = require_flags("terminal", terminal, n)
        truncated_flags = require_flags("truncated", truncated, n)
        fields = {
            "state": points["state"],
            "action": actions,
            "reward": None if reward is None else _rewards(reward, n),
            "next_state": points.get("next_state"),
            "initial_state": points.get("initial_state"),
            "episode": _episodes(episode, terminal_flags, truncated_flags, n),
            "terminal": terminal_flags,
            "truncated": truncated_flags,
            "n_states": n_states,
            "n_actions": n_actions,
        }
        if next_state is None:
            fields |= _with_next_states(fields, ends, {"episode"} if episode is not None else set())
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def _check_states(points: dict[str, NDArray[Any]]) -> None:
        first = points["state"]
        for name, values in points.items():
            if values.ndim != first.ndim or values.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"{name} has rows of shape {values.shape[1:]} and dtype {values.dtype}, but state has "
                    f"{first.shape[1:]} and {first.dtype}; give states of one kind"
                )
        if len(points.get("next_state", first)) != len(first):
            raise ValueError(f"next_state has {len(points['next_state'])} rows but state has {len(first)}")

    @classmethod
    def from_d4rl(cls, dataset: Mapping[str, ArrayLike]) -> Transitions:
        """A dictionary of arrays as D4RL has them.

        These are observations, actions, rewards, terminals, and perhaps timeouts and next_observations.
        Without ``next_observations`` they are those of the next row; the last row of an episode that was cut
        off has none and is left out, which an :class:`EpisodeEndWarning` counts.
        """
        for name in ("observations", "actions", "rewards", "terminals"):
            if name not in dataset:
                raise ValueError(f"dataset has no {name!r}; it has {', '.join(map(repr, dataset))}")
        state = plain_array("observations", dataset["observations"])
        terminal = read_flags("terminals", _one_per_step("terminals", dataset["terminals"]), len(state))
        timeouts = dataset.get("timeouts", np.zeros(len(state), bool))
        cut = read_flags("timeouts", _one_per_step("timeouts", timeouts), len(state)).copy()
        cut[-1:] = True  # recording stopped
        columns = {
            "state": state, "action": plain_array("actions", dataset["actions"]),
            "reward": _one_per_step("rewards", dataset["rewards"]), "terminal": terminal, "truncated": cut,
        }  # fmt: skip
        if "next_observations" in dataset:
            columns["next_state"] = plain_array("next_observations", dataset["next_observations"])
        for name, values in columns.items():
            if len(values) != len(state):
                raise ValueError(
                    f"{name} has {len(values)} entries but observations has {len(state)}; give one per step"
                )
        return cls(**columns)

    @classmethod
    def from_minari(cls, dataset: Any) -> Transitions:
        """A dataset of ``minari.load_dataset(...)``, or anything with ``iterate_episodes``.

        Episodes have one observation more than actions, and flags of their ends.
        """
        parts = []
        for one in dataset.iterate_episodes():
            if isinstance(one.observations, Mapping):
                raise ValueError("observations are dictionaries; flatten them to one array per step first")
            seen = np.asarray(one.observations)
            action, reward, ended = map(np.asarray, (one.actions, one.rewards, one.terminations))
            parts.append((seen[:-1], action, reward, seen[1:], ended))
        return cls(**_columns(parts))

    @classmethod
    def from_d3rlpy(cls, dataset: Any) -> Transitions:
        """An ``MDPDataset`` of d3rlpy, or anything with ``episodes``.

        The next observation of a step that ended in a terminal state is not kept by d3rlpy: its own stands
        in, which nothing flows on from. The last step of an episode that was cut off is left out, which an
        :class:`EpisodeEndWarning` counts.
        """
        parts = []
        for one in dataset.episodes:
            n = len(one.actions)
            ended = np.zeros(n, dtype=bool)
            ended[-1:] = bool(one.terminated)
            reward = np.asarray(one.rewards, dtype=np.float64).reshape(n)
            state = np.asarray(one.observations)[:n]
            parts.append((state, np.asarray(one.actions), reward, state, ended))
        columns = _columns(parts) | {"next_state": None}
        recording_stopped = np.diff(columns["episode"], append=len(parts)) > 0
        return cls(**columns, truncated=recording_stopped)

    @classmethod
    def from_gymnasium(cls, steps: Iterable[tuple[Any, ...]]) -> Transitions:
        """Steps (observation, action, reward, next observation, terminated, truncated[, info]) of an
        environment or of a vector of them, in order.

        Environments of a vector are taken apart, one after another. Where a vector resets within the step
        that ends (``AutoresetMode.SAME_STEP``) the arrival of that step is taken from ``info["final_obs"]``
        (or ``"final_observation"``). Where it resets in the step after (``NEXT_STEP``, the default since
        Gymnasium 1.0) that one ignores its action and is left out.
        """
        rows: dict[int, list[tuple[Any, ...]]] = {}
        resets_later = True
        for step in steps:
            if len(step) < 6:
                raise ValueError(
                    f"a step has {len(step)} entries; give (observation, action, reward, next, terminated, "
                    "truncated)"
                )
            state, action, reward, following, ended, cut = step[:6]
            info = step[6] if len(step) > 6 else {}
            if np.ndim(reward) == 0:
                rows.setdefault(0, []).append((state, action, reward, following, ended, cut))
                resets_later = False  # one environment is reset between its steps
                continue
            final = info.get("final_obs", info.get("final_observation"))
            resets_later &= final is None
            for k in range(len(np.asarray(reward))):
                done = bool(ended[k]) or bool(cut[k])
                arrival = final[k] if done and final is not None and final[k] is not None else following[k]
                rows.setdefault(k, []).append((state[k], action[k], reward[k], arrival, ended[k], cut[k]))
        if not rows:
            raise ValueError(
                "there are no steps; give (observation, action, reward, next, terminated, truncated)"
            )
        parts = []
        for own in rows.values():
            own, begin = _without_resets(own) if resets_later else own, 0
            for k, step in enumerate(own):
                if _is_done(step) or k == len(own) - 1:
                    columns = zip(*own[begin : k + 1], strict=True)
                    state, action, reward, following, ended, _ = (np.array(column) for column in columns)
                    parts.append((state, action, reward, following, ended))
                    begin = k + 1
        return cls(**_columns(parts))

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        states = (
            f"states of {_several(self.state.shape[1], 'coordinate')}"
            if self.n_states is None
            else _several(self.n_states, "state")
        )
        actions = "no actions"
        if self.n_actions is not None:
            actions = _several(self.n_actions, "action")
        elif self.action is not None:
            actions = f"actions of {_several(self.action.shape[1], 'coordinate')}"
        episodes = "" if self.n_episodes is None else f", {_several(self.n_episodes, 'episode')}"
        return f"Transitions({len(self):,} rows, {states}, {actions}{episodes})"

    @cached_property
    def n_episodes(self) -> int | None:
        """Number of episodes, where known."""
        return None if self.episode is None else int(np.unique(self.episode).size)

    @cached_property
    def first_states(self) -> NDArray[Any] | None:
        """First states: as given, or those of the episodes; None where unknown."""
        if self.initial_state is not None:
            return self.initial_state
        if self.episode is None:
            return None
        _, first = np.unique(self.episode, return_index=True)
        return self.state[first]

    def read_policy(self, policy: Any) -> Policy | None:
        """The policy as an object that fits the actions, or None for a chain."""
        if self.action is None:
            if policy is not None:
                raise ValueError("policy is given, but the transitions have no actions; pass action= too")
            return None
        if policy is None:
            raise ValueError(
                "policy is missing: pass the policy to evaluate, or leave action out of Transitions for "
                "the distribution of the logged chain itself"
            )
        return read_policy(policy, self.n_states, self.n_actions)


def step_discounts(episode: NDArray[Any] | None, n: int, gamma: float) -> NDArray[np.float64]:
    """gamma^t of every row, t its step within its episode; ones at gamma = 1, and without episodes."""
    weight = np.ones(n)
    if gamma < 1.0 and episode is not None:
        order = np.argsort(episode, kind="stable")
        starts = np.searchsorted(episode[order], np.arange(int(episode.max()) + 1))
        weight[order] = gamma ** (np.arange(n) - starts[episode[order]])
    return weight


def _with_next_states(fields: dict[str, Any], ends: str | None, columns: set[str]) -> dict[str, Any]:
    """Columns of a log without next states, which are the states of the next rows; see ``ends``.

    ``columns`` were given besides those that fields hold as they were.
    """
    columns = columns | {name for name in ("action", "reward", "terminal") if fields[name] is not None}
    state, n = fields["state"], len(fields["state"])
    runs = find_episodes(fields["episode"], fields["terminal"], fields["truncated"], n)
    marks = fields["terminal"], fields["truncated"]
    terminal, kept, last_rows = settle(runs, n, *marks, ends_of(ends, columns))
    following = next_values(state, runs)
    if terminal is not None:
        following[terminal] = state[terminal]  # a stand-in that no chain leaves
    warn_last_rows(last_rows, ends, columns)
    rows = {"state": state, "next_state": following, "terminal": terminal}
    rows |= {name: fields[name] for name in ("action", "reward", "episode", "truncated")}
    if kept is None:
        return rows
    if not kept.any():
        raise ValueError(
            "no row has a next state: all of them are last rows of episodes and cut off; pass next_state, or "
            'ends="terminal" if the episodes ended there'
        )
    # Rows before those that are left out become the last ones recorded.
    cut = next_values(~kept, runs) & kept
    if terminal is not None:
        cut &= ~terminal
    rows["truncated"] = cut if rows["truncated"] is None else cut | rows["truncated"]
    return {name: None if column is None else column[kept] for name, column in rows.items()}


def _several(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _states(name: str, values: ArrayLike) -> NDArray[Any]:
    array = numeric_array(name, values)
    if array.dtype.kind in "iu" and array.ndim == 1:
        return whole_array(name, array)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name} must have shape (rows, coordinates), got {array.shape}; flatten each state")
    array = np.ascontiguousarray(array, dtype=np.float64)
    require_finite(name, array)
    return array


def _actions(values: ArrayLike, n: int) -> NDArray[Any]:
    array = numeric_array("action", values)
    if len(array) != n:
        raise ValueError(f"action has {len(array)} rows but state has {n}; give one per transition")
    if array.dtype.kind in "biu":
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ValueError(
                f"action holds integers of shape {array.shape}; discrete actions are one integer per row, "
                "continuous ones are floats"
            )
        return whole_array("action", array)
    array = np.ascontiguousarray(array[:, None] if array.ndim == 1 else array, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"action must have shape (rows, coordinates), got {array.shape}")
    require_finite("action", array)
    return array


def _rewards(values: ArrayLike, n: int) -> Floats:
    reward = numeric_array("reward", values).astype(np.float64)
    require_length("reward", reward, n)
    require_reward("reward", reward)
    return reward


def _count(name: str, given: int | None, ids: dict[str, NDArray[Any]]) -> int:
    largest = -1
    for what, values in ids.items():
        negative = values < 0
        if negative.any():
            (row,) = first_bad(negative)
            raise ValueError(f"{what}[{row}] is {values[row]}; ids are whole numbers from 0")
        largest = max(largest, int(values.max(initial=-1)))
    size = largest + 1 if given is None else require_whole(name, given)
    require_room(size)
    if size <= largest:
        raise ValueError(f"{name} is {given}, but the id {largest} occurs; give at least {largest + 1}")
    return size


def _episodes(
    given: ArrayLike | None,
    terminal: NDArray[np.bool_] | None,
    truncated: NDArray[np.bool_] | None,
    n: int,
) -> NDArray[np.int64] | None:
    if given is not None:
        ids = plain_array("episode", given)
        if ids.dtype.kind == "f":
            require_finite("episode", ids)
        else:
            (ids,), _ = encode(("episode",), (given,))
        require_length("episode", ids, n)
        return np.unique(ids, return_inverse=True)[1].reshape(n).astype(np.int64)
    runs = find_episodes(None, terminal, truncated, n)
    return None if runs is None else runs.number


# -- logs of offline reinforcement learning, read by their shape alone ---------------------------------------


def _one_per_step(name: str, values: ArrayLike) -> NDArray[Any]:
    """A column of numbers, which some files keep as arrays of one column."""
    column = numeric_array(name, values)
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column


def _is_done(step: tuple[Any, ...]) -> bool:
    return bool(step[4]) or bool(step[5])


def _without_resets(steps: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Steps but those that only reset: without reward, from where an episode ended."""
    kept = steps[:1]
    for last, step in pairwise(steps):
        resets = _is_done(last) and not _is_done(step) and float(step[2]) == 0.0
        if not (resets and np.array_equal(last[3], step[0])):
            kept.append(step)
    return kept


def _columns(parts: Sequence[tuple[NDArray[Any], ...]]) -> dict[str, Any]:
    """Episodes one after another."""
    if not parts:
        raise ValueError("the dataset has no episodes")
    state, action, reward, following, ended = (np.concatenate(column) for column in zip(*parts, strict=True))
    episode = np.repeat(np.arange(len(parts)), [len(part[2]) for part in parts])
    return {
        "state": state, "action": action, "reward": reward, "next_state": following, "episode": episode,
        "terminal": ended,
    }  # fmt: skip
