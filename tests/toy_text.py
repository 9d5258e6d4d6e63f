"""Small MDPs whose rules are known: Gymnasium's toy text and a corridor, counted exactly or sampled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import lingendice as lg


class Rules(NamedTuple):
    """Every (state, action, next state) with its probability, reward and whether it ends the episode."""

    state: np.ndarray
    action: np.ndarray
    chance: np.ndarray
    next_state: np.ndarray
    reward: np.ndarray
    ends: np.ndarray
    n_states: int
    n_actions: int
    initial: np.ndarray
    policy: np.ndarray

    @classmethod
    def of(cls, rows, n_states, n_actions, initial, policy):
        """From rows (state, action, chance, next state, reward, ends)."""
        return cls(*map(np.array, zip(*rows, strict=True)), n_states, n_actions, initial, policy)

    @property
    def counts(self):
        """Counts whose shares are the probabilities themselves."""
        return lg.Counts.from_transitions(
            self.state, self.next_state, action=self.action, reward=self.reward, terminal=self.ends,
            weight=self.chance * 12.0, n_states=self.n_states, n_actions=self.n_actions,
        )  # fmt: skip

    def dynamic_programming(self, gamma, horizon=None, reward=None):
        """Return from the initial distribution: V = R + gamma P V, iterated or solved densely."""
        reward = self.reward if reward is None else reward
        kernel, earned = np.zeros((self.n_states, self.n_states)), np.zeros(self.n_states)
        taken = self.policy[self.state, self.action] * self.chance
        np.add.at(kernel, (self.state, self.next_state), np.where(self.ends, 0.0, taken))
        np.add.at(earned, self.state, taken * reward)
        value = np.zeros(self.n_states)
        if horizon is not None:
            for _ in range(horizon):
                value = earned + gamma * kernel @ value
            return float(self.initial @ value)
        # States that the policy never reaches may never end.
        reached = self.initial > 0
        for _ in range(self.n_states):
            reached = reached | (kernel.T @ reached > 0)
        inside = np.ix_(reached, reached)
        value[reached] = np.linalg.solve(np.eye(int(reached.sum())) - gamma * kernel[inside], earned[reached])
        return float(self.initial @ value)

    def sample(self, n_episodes, seed, behavior=None, longest=10_000):
        """A log of whole episodes under ``behavior`` (uniform), counted with its episodes."""
        rng = np.random.default_rng(seed)
        rows = []
        cells = [
            [np.flatnonzero((self.state == s) & (self.action == a)) for a in range(self.n_actions)]
            for s in range(self.n_states)
        ]
        table = np.full(self.policy.shape, 1.0 / self.n_actions) if behavior is None else behavior
        for episode in range(n_episodes):
            state = rng.choice(self.n_states, p=self.initial)
            for _ in range(longest):
                action = rng.choice(self.n_actions, p=table[state])
                ways = cells[state][action]
                way = ways[rng.choice(ways.size, p=self.chance[ways] / self.chance[ways].sum())]
                rows.append((way, episode))
                state = self.next_state[way]
                if self.ends[way]:
                    break
        way, episode = map(np.array, zip(*rows, strict=True))
        return lg.Counts.from_transitions(
            self.state[way], self.next_state[way], action=self.action[way], reward=self.reward[way],
            episode=episode, terminal=self.ends[way], n_states=self.n_states, n_actions=self.n_actions,
            keep_episodes=True,
        )  # fmt: skip


def gymnasium_rules(name, policy_seed=None):
    """The table of a toy-text environment under a uniform or a random policy."""
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make(name).unwrapped
    n_states, n_actions = int(env.observation_space.n), int(env.action_space.n)
    rows = [
        (s, a, p, after, float(r), bool(end))
        for s in range(n_states)
        for a in range(n_actions)
        for p, after, r, end in env.P[s][a]
    ]
    policy = np.full((n_states, n_actions), 1.0 / n_actions)
    if policy_seed is not None:
        policy = np.random.default_rng(policy_seed).dirichlet(np.ones(n_actions), size=n_states)
    return Rules.of(rows, n_states, n_actions, np.asarray(env.initial_state_distrib, dtype=float), policy)


def corridor(length=6, forward=0.7):
    """Steps cost 1 until the far end; the second action slips back half of the time."""
    rows = []
    for s in range(length):
        after, end = min(s + 1, length - 1), s == length - 1
        rows.append((s, 0, 1.0, after, -1.0, end))
        rows += [(s, 1, 0.5, after, -1.0, end), (s, 1, 0.5, max(s - 1, 0), -2.0, False)]
    policy = np.tile([forward, 1.0 - forward], (length, 1))
    return Rules.of(rows, length, 2, np.eye(length)[0], policy)
