"""A problem: a model, a target, the behaviors that log it, the sizes of logs, and what may go wrong."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from trust.model import Floats, Integers, Model, policy_return, policy_value

GAMMAS = (0.9, 0.99, 1.0)
CORRUPTIONS = ("", "no flags", "no flags, reset", "shuffled")


class Log(NamedTuple):
    """Logged transitions, one entry per step, episodes one after the other."""

    state: Integers
    action: Integers
    next_state: Integers
    reward: Floats
    episode: Integers
    terminal: NDArray[np.bool_] | None
    """None where the environment never ends or the flags were forgotten."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One target to be evaluated from logs of one or several behaviors."""

    family: str
    name: str
    model: Model
    target: Floats
    behaviors: tuple[Floats, ...]
    """Episodes take them in turn."""
    sizes: tuple[tuple[int, int], ...]
    """(episodes, longest episode) of each log size."""
    observe: Integers | None = None
    """What is logged of each state, where states are hidden; policies are then over observations."""
    corruption: str = ""
    gammas: tuple[float, ...] = GAMMAS

    def __post_init__(self) -> None:
        if self.corruption not in CORRUPTIONS:
            raise ValueError(f"corruption must be one of {CORRUPTIONS}, got {self.corruption!r}")
        shape = (self.n_logged, self.model.n_actions)
        for policy in (self.target, *self.behaviors):
            if policy.shape != shape or not np.allclose(policy.sum(axis=1), 1) or (policy < 0).any():
                raise ValueError(
                    f"{self.family}/{self.name}: a policy is not a distribution of shape {shape}"
                )

    @property
    def n_logged(self) -> int:
        """Number of states as the log shows them."""
        return self.model.n_states if self.observe is None else int(self.observe.max()) + 1

    def truth(self, gamma: float) -> float:
        """The target's exact value per step."""
        return policy_value(self.model, self._policy, gamma)

    def headline(self, gamma: float) -> float:
        """What a user is told first: the return of an episode at gamma = 1 with ends, else per step."""
        if gamma == 1.0 and self.model.episodic and "no flags" not in self.corruption:
            return policy_return(self.model, self._policy)
        return self.truth(gamma)

    @property
    def _policy(self) -> Floats:
        return self.target if self.observe is None else self.target[self.observe]

    def log(self, size: int, number: int, seed: int = 0) -> Log:
        """Log ``number`` of the given size: the same bits for the same arguments."""
        rng = np.random.default_rng(
            np.random.SeedSequence([seed, digest(self.family), digest(self.name), size, number])
        )
        return corrupt(self._simulate(*self.sizes[size], rng), self.corruption, rng)

    @cached_property
    def _tables(self) -> tuple[NDArray, ...]:
        """Cumulative probabilities of first states, actions and outcomes."""
        model = self.model
        total = np.concatenate([[0.0], np.cumsum(model.probability)])
        within = total[1:] - np.repeat(total[model.pointer[:-1]], np.diff(model.pointer))
        acting = np.cumsum(np.stack(self.behaviors), axis=2)
        observe = np.arange(model.n_states) if self.observe is None else self.observe
        return np.cumsum(model.initial), acting, within, observe.astype(np.int64)

    def _simulate(self, episodes: int, steps: int, rng: np.random.Generator) -> Log:
        model = self.model
        start, acting, within, observe = self._tables
        which = np.arange(episodes) % len(self.behaviors)
        chance = rng.random((episodes, 1 + 2 * steps))
        columns = np.empty((4, episodes * steps), dtype=np.int64)
        used = _walk(
            chance, start, acting, which, model.pointer, within, model.next_state, model.terminal, observe,
            columns,
        )  # fmt: skip
        state, action, outcome, episode = columns[:, :used]
        reward = model.reward[outcome]
        if model.noise:
            reward = reward + model.noise * rng.standard_normal(used)
        terminal = model.terminal[outcome] if model.episodic else None
        return Log(observe[state], action, observe[model.next_state[outcome]], reward, episode, terminal)


def digest(text: str) -> int:
    """A number that stands for a name, the same on every machine."""
    return zlib.crc32(text.encode())


def maker(*names: str) -> np.random.Generator:
    """Random numbers for building a problem, by its names alone."""
    return np.random.default_rng(np.random.SeedSequence([digest(name) for name in names]))


def corrupt(log: Log, corruption: str, rng: np.random.Generator) -> Log:
    """A log as careless logging leaves it."""
    if corruption == "shuffled":
        order = rng.permutation(log.state.size)
        return Log(*(None if column is None else column[order] for column in log))
    if corruption == "no flags":
        return log._replace(terminal=None)
    if corruption == "no flags, reset" and log.terminal is not None:
        # Vectorized environments hand out the next episode's first state at the end of an episode.
        ends = np.flatnonzero(log.terminal[:-1])
        following = log.next_state.copy()
        following[ends] = log.state[ends + 1]
        return log._replace(next_state=following, terminal=None)
    return log


@numba.njit(cache=True)
def _draw(cumulative, first, last, chance):
    """The first place in cumulative[first:last] above ``chance``; the last one where rounding leaves none."""
    while first < last - 1:
        middle = (first + last - 1) // 2
        if cumulative[middle] > chance:
            last = middle + 1
        else:
            first = middle + 1
    return first


@numba.njit(cache=True)
def _walk(chance, start, acting, which, pointer, within, following, terminal, observe, columns):
    n_actions = acting.shape[2]
    used = 0
    for episode in range(chance.shape[0]):
        state = _draw(start, 0, start.size, chance[episode, 0])
        policy = acting[which[episode]]
        for step in range((chance.shape[1] - 1) // 2):
            action = _draw(policy[observe[state]], 0, n_actions, chance[episode, 1 + 2 * step])
            cell = state * n_actions + action
            outcome = _draw(within, pointer[cell], pointer[cell + 1], chance[episode, 2 + 2 * step])
            columns[0, used] = state
            columns[1, used] = action
            columns[2, used] = outcome
            columns[3, used] = episode
            used += 1
            if terminal[outcome]:
                break
            state = following[outcome]
    return used
