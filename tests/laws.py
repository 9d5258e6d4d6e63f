"""Logs, and what may be done to a log without changing what it says: the material of the metamorphic laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import lingendice as lg

few = settings(max_examples=8, deadline=None, derandomize=True)
"""Each example of a law makes a handful of solves."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A log with a question: arrays over rows, tables over states and actions."""

    state: np.ndarray
    next_state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    episode: np.ndarray
    terminal: np.ndarray | None
    policy: np.ndarray
    gamma: float
    weight: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.state.size

    def counts(self, keep: bool = True, **changes: Any) -> lg.Counts:
        columns = {
            name: getattr(self, name)
            for name in ("action", "reward", "episode", "terminal", "weight")
            if getattr(self, name) is not None
        }
        n_states, n_actions = self.policy.shape
        return lg.Counts.from_transitions(
            self.state, self.next_state, **(columns | changes), n_states=n_states, n_actions=n_actions,
            keep_episodes=keep,
        )  # fmt: skip

    def taking(self, order: np.ndarray) -> Problem:
        """The rows of ``order``."""
        names = ("state", "next_state", "action", "reward", "episode", "terminal", "weight")
        return replace(
            self, **{name: getattr(self, name)[order] for name in names if getattr(self, name) is not None}
        )


@st.composite
def problems(draw: Callable[..., Any], gammas: tuple[float, ...] = (0.6, 0.97, 1.0)) -> Problem:
    """Two or three actions in four to eight states, by behaviors near and far from the target."""
    seed = draw(st.integers(0, 2**20))
    gamma = draw(st.sampled_from(gammas))
    rng = np.random.default_rng(seed)
    n_states, n_actions = int(rng.integers(4, 9)), int(rng.integers(2, 4))
    ends = draw(st.booleans())
    kernel = rng.dirichlet(np.full(n_states, 0.4), (n_states, n_actions)) * 0.9 + 0.1 / n_states
    behavior = rng.dirichlet(np.full(n_actions, 2.0), n_states)
    means = rng.normal(size=(n_states, n_actions))
    rows = []
    for episode in range(int(rng.integers(12, 30))):
        state = int(rng.integers(n_states))
        for _ in range(int(rng.integers(5, 16))):
            action = int(rng.choice(n_actions, p=behavior[state]))
            following = int(rng.choice(n_states, p=kernel[state, action]))
            ended = bool(ends and rng.random() < 0.15)
            rows.append((state, following, action, means[state, action] + rng.normal(), episode, ended))
            if ended:
                break
            state = following
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    terminal = columns.pop()
    policy = rng.dirichlet(np.ones(n_actions), n_states)
    return Problem(*columns, terminal if terminal.any() else None, policy, gamma)


def permuted(n: int, seed: int) -> np.ndarray:
    """New names of 0..n-1, none of them its own where that can be."""
    return np.roll(np.random.default_rng(seed).permutation(n), 1)


def with_states_renamed(problem: Problem) -> tuple[Problem, np.ndarray]:
    """The same log under other ids of states, and the new id of each state."""
    name = permuted(problem.policy.shape[0], 1)
    policy = np.empty_like(problem.policy)
    policy[name] = problem.policy
    return replace(
        problem, state=name[problem.state], next_state=name[problem.next_state], policy=policy
    ), name


def with_actions_renamed(problem: Problem) -> Problem:
    name = permuted(problem.policy.shape[1], 2)
    policy = np.empty_like(problem.policy)
    policy[:, name] = problem.policy
    return replace(problem, action=name[problem.action], policy=policy)


def twice(problem: Problem) -> Problem:
    """Every episode once more, under an id of its own."""
    both = problem.taking(np.tile(np.arange(problem.rows), 2))
    new = problem.episode + problem.episode.max() + 1
    return replace(both, episode=np.concatenate([problem.episode, new]))


def shuffled(problem: Problem, seed: int = 3) -> Problem:
    """Episodes interleaved at random, each in its own order."""
    rng = np.random.default_rng(seed)
    key = rng.random(problem.rows)
    for episode in np.unique(problem.episode):
        own = problem.episode == episode
        key[own] = np.sort(key[own])
    return problem.taking(np.argsort(key, kind="stable"))


# -- what is asked -------------------------------------------------------------------------------------

Method = Callable[[Problem, lg.Counts], Any]


def _solved(**options: Any) -> Method:
    return lambda problem, counts: lg.solve(counts, problem.gamma, policy=problem.policy, **options)


EXACT: dict[str, Method] = {
    "plug-in": _solved(ridge=0, clone=0, ratio="state_action"),
    "state ratio": _solved(ridge=0, clone=0, ratio="state"),
    "mean": _solved(ridge=0, unseen="mean"),
    "iterated": _solved(ridge=0, clone=0, method="aggregation"),
    "ridge": _solved(ridge=0.01, ratio="state"),
    "saddle": _solved(ridge=0, method="convex", ratio="state"),
    "horizon": _solved(horizon=7),
    "logged": lambda problem, counts: lg.solve(counts, problem.gamma),
}
"""Estimates that depend on the empirical distribution alone: a log twice as long says the same."""
DEFAULT: dict[str, Method] = {"default": _solved()}


def assert_close(found: Any, expected: Any, scale: float = 1.0, relative: float = 1e-8) -> None:
    """Equal up to rounding, relative to the larger of ``scale`` and what is expected."""
    if found is None or expected is None:
        assert found is expected
        return
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    slack = relative * max(scale, float(np.nanmax(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=slack)
