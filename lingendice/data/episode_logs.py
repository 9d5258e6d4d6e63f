"""Arguments of ``Transitions`` from the logs of offline reinforcement learning, read by their shape alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Arguments = dict[str, Any]


def from_d4rl(dataset: Mapping[str, ArrayLike]) -> Arguments:
    """observations, actions, rewards, terminals, and perhaps timeouts and next_observations.

    Without ``next_observations`` they are those of the next row; the last row of an episode that was cut off
    has none and is left out.
    """
    for name in ("observations", "actions", "rewards", "terminals"):
        if name not in dataset:
            raise ValueError(f"dataset has no {name!r}; it has {', '.join(map(repr, dataset))}")
    state = np.asarray(dataset["observations"])
    terminal = np.asarray(dataset["terminals"]).astype(bool).reshape(len(state))
    cut = np.asarray(dataset.get("timeouts", np.zeros(len(state)))).astype(bool).reshape(len(state))
    episode = np.concatenate([[0], np.cumsum((terminal | cut)[:-1])])
    keep = np.ones(len(state), dtype=bool)
    if "next_observations" in dataset:
        following = np.asarray(dataset["next_observations"])
    else:
        following = np.concatenate([state[1:], state[-1:]])
        # The row after the last one of an episode belongs to the next: its own arrival is unknown.
        keep[cut & ~terminal] = False
        keep[-1] = keep[-1] and bool(terminal[-1])
    columns = {
        "state": state, "action": np.asarray(dataset["actions"]),
        "reward": np.asarray(dataset["rewards"]).reshape(len(state)), "next_state": following,
        "episode": episode, "terminal": terminal,
    }  # fmt: skip
    return {name: values[keep] for name, values in columns.items()}


def from_minari(dataset: Any) -> Arguments:
    """Episodes with one observation more than actions, and flags of their ends."""
    return _joined(
        (one.observations, one.actions, one.rewards, one.terminations) for one in dataset.iterate_episodes()
    )


def from_d3rlpy(dataset: Any) -> Arguments:
    """Episodes of as many observations as actions; past the last step there is none.

    The next observation of a step that ended in a terminal state is not kept by d3rlpy: its own stands in,
    which nothing flows on from. The last step of an episode that was cut off is left out.
    """
    parts = []
    for one in dataset.episodes:
        n = len(one.actions)
        ended = np.zeros(n, dtype=bool)
        ended[-1] = bool(one.terminated)
        state = np.asarray(one.observations)
        following = np.concatenate([state[1:], state[-1:]])
        keep = slice(0, n if one.terminated else n - 1)
        reward = np.asarray(one.rewards, dtype=np.float64).reshape(n)
        parts.append((state[keep], np.asarray(one.actions)[keep], reward[keep], following[keep], ended[keep]))
    return _columns(parts)


def from_gymnasium(steps: Iterable[tuple[Any, ...]]) -> Arguments:
    """Steps in order; those of a vector of environments are taken apart, one environment after another.

    Where a vector resets by itself the arrival of an ended step is taken from ``info["final_obs"]`` (or
    ``"final_observation"``).
    """
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for step in steps:
        state, action, reward, following, ended, cut = step[:6]
        info = step[6] if len(step) > 6 else {}
        if np.ndim(reward) == 0:
            rows.setdefault(0, []).append((state, action, reward, following, ended, cut))
            continue
        final = info.get("final_obs", info.get("final_observation"))
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
        begin = 0
        for k, step in enumerate(own):
            if bool(step[4]) or bool(step[5]) or k == len(own) - 1:
                columns = zip(*own[begin : k + 1], strict=True)
                state, action, reward, following, ended, _ = (np.array(column) for column in columns)
                parts.append((state, action, reward, following, ended))
                begin = k + 1
    return _columns(parts)


def _joined(episodes: Iterable[tuple[Any, ...]]) -> Arguments:
    parts = []
    for observations, action, reward, ended in episodes:
        if isinstance(observations, Mapping):
            raise ValueError("observations are dictionaries; flatten them to one array per step first")
        seen = np.asarray(observations)
        parts.append((seen[:-1], np.asarray(action), np.asarray(reward), seen[1:], np.asarray(ended)))
    return _columns(parts)


def _columns(parts: Sequence[tuple[NDArray[Any], ...]]) -> Arguments:
    """Episodes one after another."""
    if not parts:
        raise ValueError("the dataset has no episodes")
    state, action, reward, following, ended = (np.concatenate(column) for column in zip(*parts, strict=True))
    episode = np.repeat(np.arange(len(parts)), [len(part[2]) for part in parts])
    return {
        "state": state, "action": action, "reward": reward, "next_state": following, "episode": episode,
        "terminal": ended.astype(bool),
    }  # fmt: skip
