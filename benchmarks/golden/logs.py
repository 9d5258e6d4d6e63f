"""Small logs of every kind that ``solve`` distinguishes, drawn by seed."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import lingendice as lg


class Kind(NamedTuple):
    """What a log is drawn from."""

    n_states: int = 6
    n_actions: int | None = 3
    episodes: int = 12
    longest: int = 20
    ends: float = 0.0
    """Share of steps that end the episode."""
    leaks: int = 0
    """States that are entered and never left."""
    classes: int = 1
    rewards: bool = True
    labeled: bool = False
    weighted: bool = False
    known_episodes: bool = True


KINDS = {
    "chain": Kind(n_actions=None),
    "chain of pairs": Kind(n_actions=None, known_episodes=False, rewards=False),
    "chain with ends": Kind(n_actions=None, ends=0.15),
    "chain with leaks": Kind(n_actions=None, leaks=2),
    "chain of two classes": Kind(n_actions=None, classes=2),
    "labeled chain with ends and leaks": Kind(n_actions=None, ends=0.1, leaks=1, labeled=True),
    "actions": Kind(episodes=20, longest=30),
    "actions and ends": Kind(ends=0.12, episodes=30),
    "actions and leaks": Kind(leaks=2, episodes=20),
    "actions, ends and leaks": Kind(ends=0.08, leaks=2),
    "actions and two classes": Kind(classes=2, episodes=24),
    "labeled actions and ends": Kind(ends=0.15, labeled=True),
    "weighted actions": Kind(weighted=True, known_episodes=False),
    "one path of actions": Kind(episodes=1, longest=150),
    "few rows of actions": Kind(n_states=9, episodes=4, longest=8),
}
CHAINS = tuple(name for name, kind in KINDS.items() if kind.n_actions is None)
WITH_ACTIONS = tuple(name for name in KINDS if name not in CHAINS)


class Drawn(NamedTuple):
    """A log, and what may be asked of it."""

    kind: Kind
    columns: dict[str, Any]
    counts: lg.Counts
    policy: np.ndarray | None
    other_policy: np.ndarray | None
    behavior: np.ndarray | None
    initial: np.ndarray
    reward: np.ndarray
    """By state, and by action where there are actions."""


@lru_cache(maxsize=128)
def draw(name: str, seed: int) -> Drawn:
    """The log of a kind: the same bits for the same arguments."""
    kind = KINDS[name]
    rng = np.random.default_rng(np.random.SeedSequence([seed, list(KINDS).index(name)]))
    n_states, n_actions = kind.n_states, kind.n_actions or 1
    chance = _transitions(kind, rng)
    policy, other, behavior = rng.dirichlet(np.full(n_actions, 0.8), (3, n_states))
    behavior = 0.7 * behavior + 0.3 / n_actions
    columns = _walk(kind, chance, behavior, rng)
    if kind.labeled:
        names = np.array([f"room {state}" for state in range(n_states)])
        columns |= {which: names[columns[which]] for which in ("state", "next_state")}
    sizes = {} if kind.labeled else {"n_states": n_states}
    if kind.n_actions is None:
        del columns["action"]
    elif kind.labeled:
        columns["action"] = np.array(["left", "right", "stay"])[columns["action"]]
    else:
        sizes["n_actions"] = n_actions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = lg.Counts.from_transitions(**columns, **sizes, threads=1)
    size = counts.n_states
    reward = rng.normal(size=(size, n_actions) if kind.n_actions else size)
    initial = rng.dirichlet(np.ones(size))
    policies = (policy[:size], other[:size], behavior[:size]) if kind.n_actions else (None, None, None)
    return Drawn(kind, columns, counts, *policies, initial, reward)


def _transitions(kind: Kind, rng: np.random.Generator) -> np.ndarray:
    """Probabilities (state, action, next state); states of another class are never entered."""
    n_states, n_actions = kind.n_states, kind.n_actions or 1
    chance = rng.dirichlet(np.full(n_states, 0.5), (n_states, n_actions))
    group = np.arange(n_states) % kind.classes
    chance = np.where(group[:, None, None] == group[None, None, :], chance + 1e-3, 0.0)
    return chance / chance.sum(axis=2, keepdims=True)


def _walk(kind: Kind, chance: np.ndarray, behavior: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Rows of the log, one episode after the other; the last ``leaks`` states are never left."""
    left = kind.n_states - kind.leaks
    worth = rng.normal(size=behavior.shape)
    rows = []
    for episode in range(kind.episodes):
        state = int(rng.integers(left))
        for _ in range(kind.longest):
            action = int(rng.choice(behavior.shape[1], p=behavior[state]))
            following = int(rng.choice(kind.n_states, p=chance[state, action]))
            ends = bool(rng.random() < kind.ends)
            reward = worth[state, action] + 0.3 * rng.normal()
            rows.append((state, action, following, reward, episode, ends, int(rng.integers(1, 4))))
            if ends or following >= left:
                break
            state = following
    names = ("state", "action", "next_state", "reward", "episode", "terminal", "weight")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    for name, kept in (
        ("reward", kind.rewards), ("episode", kind.known_episodes), ("terminal", kind.ends > 0.0),
        ("weight", kind.weighted),
    ):  # fmt: skip
        if not kept:
            del columns[name]
    return columns
