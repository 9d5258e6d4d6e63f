"""Episodes in time order and the logged policy, for the estimators that weigh whole trajectories."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingendice.data.by_label import read_policy_table
from lingendice.data.checks import Floats, require_number, require_policy
from lingendice.data.counts import Counts
from lingendice.data.rows import row_of_entry


def clone_behavior(counts: Counts, strength: float = 0.0, prior: Any = None) -> Floats:
    """Maximum-likelihood policy n(s, a) / n(s), or its mean under a Dirichlet prior.

    With ``strength`` c > 0, (n(s, a) + c prior(a|s)) / (n(s) + c). States never left take the prior
    (uniform by default). O(n_cells). Does not depend on gamma.
    """
    if counts.n_actions is None:
        raise ValueError("a behavior is a distribution over actions; pass action= to Counts.from_transitions")
    shape = (counts.n_states, counts.n_actions)
    believed = np.full(shape, 1.0 / shape[1]) if prior is None else require_policy("prior", prior, *shape)
    seen = counts.cell_count.reshape(shape).astype(float) + require_number("strength", strength) * believed
    visits = seen.sum(axis=1, keepdims=True)
    return np.where(visits > 0, seen / np.where(visits > 0, visits, 1.0), believed)


class Paths(NamedTuple):
    """Transitions sorted by episode, then time."""

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    next_state: NDArray[np.int64]
    terminal: NDArray[np.bool_]
    reward: Floats
    episode: NDArray[np.int64]
    step: NDArray[np.int64]
    """Time since the start of the episode, from 0."""
    n_episodes: int

    @property
    def cell(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index into tables of states by actions."""
        return self.state, self.action

    @property
    def last(self) -> NDArray[np.int64]:
        """The row of every episode's last step."""
        return np.append(np.flatnonzero(self.step == 0)[1:], self.step.size) - 1

    def first_steps(self, horizon: int) -> Paths:
        """The first steps of every episode; what comes after them does not count."""
        kept = self.step < horizon
        return Paths._make([*(np.asarray(part)[kept] for part in self[:-1]), self.n_episodes])

    def distribution(self, share: Floats, counts: Counts) -> Floats:
        """Shares of logged steps, added up by cell."""
        cell = self.state * (counts.n_actions or 1) + self.action
        distribution = np.bincount(cell, weights=share, minlength=counts.n_cells)
        return distribution.astype(np.float64, copy=False)


def read_paths(counts: Counts, method: str) -> Paths:
    """The kept episodes of a log, or an error that says what is missing."""
    episodes = counts.episodes
    if episodes is None:
        raise ValueError(f"{method} needs whole episodes; build the counts with keep_episodes=True")
    if counts.n_actions is None:
        raise ValueError(f"{method} needs actions; pass action= to Counts.from_transitions")
    if episodes.reward is None:
        raise ValueError(f"{method} needs logged rewards; pass reward= to Counts.from_transitions")
    if episodes.weight is not None:
        raise ValueError(f"{method} takes each transition once; leave weight= out")
    order = np.argsort(episodes.episode, kind="stable")
    entry, episode = episodes.entry[order], episodes.episode[order]
    cell = row_of_entry(counts.indptr)[entry]
    following = counts.indices[entry].astype(np.int64)
    first = np.searchsorted(episode, np.arange(episodes.first_state.size))
    return Paths(
        state=cell // counts.n_actions,
        action=cell % counts.n_actions,
        next_state=following,
        terminal=following == counts.n_states,
        reward=episodes.reward[order],
        episode=episode,
        step=np.arange(episode.size) - first[episode],
        n_episodes=episodes.first_state.size,
    )


def step_ratios(counts: Counts, paths: Paths, policy: Any, behavior: Any) -> Floats:
    """target / behavior of every logged action; the behavior is cloned where it is not given."""
    shape = (counts.n_states, counts.n_actions or 1)
    target = require_policy("policy", read_policy_table("policy", policy, counts), *shape)
    logged = clone_behavior(counts)
    if behavior is not None:
        logged = require_policy("behavior", read_policy_table("behavior", behavior, counts), *shape)
    chance = logged[paths.cell]
    if not (chance > 0).all():
        row = int(np.argmin(chance))
        raise ValueError(
            f"behavior[{paths.state[row]}, {paths.action[row]}] is 0 but that action was logged; "
            "leave behavior out to clone it from the log"
        )
    return target[paths.cell] / chance


LEAST_PRODUCT = 1e-290
"""Smaller products count as 0: their reciprocals would overflow."""


def running_products(paths: Paths, ratio: Floats) -> Floats:
    """Product of the ratios of an episode up to and including each step."""
    products = np.empty_like(ratio)
    begin = np.flatnonzero(paths.step == 0)
    for first, last in zip(begin, np.append(begin[1:], ratio.size), strict=True):
        products[first:last] = np.cumprod(ratio[first:last])
    products[products < LEAST_PRODUCT] = 0.0
    return products


def standard_error(influence: Floats) -> float | None:
    """Root of the squared influences of episodes; a single one shows no spread, so there is none to give."""
    n = influence.size
    return float(np.sqrt((influence**2).sum() * n / (n - 1))) if n > 1 else None


def effective_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2."""
    largest = float(weights.max(initial=0.0))
    if not largest > 0.0:
        return 0.0
    relative = weights / largest
    return float(relative.sum()) ** 2 / float(relative @ relative)
