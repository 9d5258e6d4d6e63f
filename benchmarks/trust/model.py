"""Markov decision processes as tables of outcomes, and what is exactly true of them.

Everything here is NumPy and SciPy: truths must not come from the library they judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Outcome = tuple[float, int, float, bool]
"""(probability, next state, reward, whether the episode ends), as in Gymnasium's tables ``P[s][a]``."""

DENSE_STATES = 400
"""Up to this many states a dense factorization is faster."""


@dataclass(frozen=True, eq=False)
class Model:
    """An MDP whose cell ``s * n_actions + a`` has the outcomes ``pointer[cell]`` to ``pointer[cell + 1]``."""

    n_states: int
    n_actions: int
    pointer: Integers
    probability: Floats
    next_state: Integers
    reward: Floats
    terminal: NDArray[np.bool_]
    initial: Floats
    noise: float = 0.0
    """Standard deviation of Gaussian noise added to every logged reward."""

    @property
    def episodic(self) -> bool:
        """Whether some outcome ends the episode."""
        return bool(self.terminal.any())

    @property
    def reward_span(self) -> float:
        """Largest minus smallest reward without noise, over the cells that have outcomes."""
        return float(np.ptp(self.reward))

    def cell_of_outcome(self) -> Integers:
        """The cell that each outcome belongs to."""
        return np.repeat(np.arange(self.pointer.size - 1), np.diff(self.pointer))

    def cells(self) -> tuple[sparse.csr_matrix, Floats, Floats]:
        """Transitions that go on (cells x states), probability of ending, and expected reward, by cell."""
        cell, n_cells = self.cell_of_outcome(), self.n_states * self.n_actions
        going = np.where(self.terminal, 0.0, self.probability)
        kernel = sparse.csr_matrix((going, (cell, self.next_state)), shape=(n_cells, self.n_states))
        ending = np.bincount(cell, weights=self.probability * self.terminal, minlength=n_cells)
        reward = np.bincount(cell, weights=self.probability * self.reward, minlength=n_cells)
        return kernel, ending, reward

    def chain(self, policy: Floats) -> tuple[sparse.csr_matrix, Floats, Floats]:
        """Transitions that go on (states x states), probability of ending, and expected reward, by state."""
        kernel, ending, reward = self.cells()
        n, k = self.n_states, self.n_actions
        choose = sparse.csr_matrix((policy.ravel(), np.arange(n * k), np.arange(0, n * k + 1, k)), (n, n * k))
        return (choose @ kernel).tocsr(), choose @ ending, choose @ reward


def from_outcomes(
    n_states: int,
    n_actions: int,
    outcomes: Callable[[int, int], Iterable[Outcome]],
    initial: Floats,
    noise: float = 0.0,
) -> Model:
    """A model from a function that lists the outcomes of a state and an action; equal ones are merged."""
    pointer, rows = [0], []
    for state in range(n_states):
        for action in range(n_actions):
            merged: dict[tuple[int, float, bool], float] = {}
            for probability, following, reward, ends in outcomes(state, action):
                key = (int(following), float(reward), bool(ends))
                if probability > 0:
                    merged[key] = merged.get(key, 0.0) + float(probability)
            total = sum(merged.values())
            if not abs(total - 1) < 1e-9:
                raise ValueError(
                    f"outcomes of state {state}, action {action} have probability {total}, not 1"
                )
            rows += [(probability / total, *key) for key, probability in merged.items()]
            pointer.append(len(rows))
    probability, following, reward, ends = (np.array(column) for column in zip(*rows, strict=True))
    start = np.asarray(initial, dtype=float)
    return Model(
        n_states, n_actions, np.array(pointer), probability, following.astype(np.int64), reward,
        ends.astype(bool), start / start.sum(), noise,
    )  # fmt: skip


def restarted(model: Model) -> Model:
    """The continuing model in which whatever would end an episode begins the next one."""
    if np.count_nonzero(model.initial) != 1:
        raise ValueError("only a model with a single first state is restarted outcome by outcome")
    first = int(np.argmax(model.initial))
    following = np.where(model.terminal, first, model.next_state)
    return replace(model, next_state=following, terminal=np.zeros_like(model.terminal))


def policy_value(model: Model, policy: Floats, gamma: float) -> float:
    """Exact reward per step: (1 - gamma) sum gamma^t E r_t, or the average reward at gamma = 1.

    What ends is absorbed at reward 0 for gamma < 1, and restarted from the initial distribution at gamma = 1.
    """
    chain, ending, reward = model.chain(policy)
    if gamma < 1:
        values = _solve(sparse.identity(model.n_states) - gamma * chain, reward)
        return float((1 - gamma) * model.initial @ values)
    mass = stationary(chain, ending, model.initial)
    return float(mass @ reward)


def policy_return(model: Model, policy: Floats) -> float:
    """Exact undiscounted return of an episode of a model that ends."""
    chain, _, reward = model.chain(policy)
    # States that the policy never gets away from must not be asked for.
    reached = _reachable(chain.tocsr(), model.initial)
    inside = chain.tocsr()[reached][:, reached]
    values = _solve(sparse.identity(reached.size) - inside, reward[reached])
    return float(model.initial[reached] @ values)


def stationary(chain: sparse.csr_matrix, ending: Floats, initial: Floats) -> Floats:
    """The stationary distribution of the chain restarted at its ends, over states reached from the start."""
    full = chain.tocsr() + sparse.csr_matrix(np.outer(ending, initial))
    reached = _reachable(full, initial)
    inside = full[reached][:, reached].tocsr()
    n_classes, label = connected_components(inside, directed=True, connection="strong")
    leaving = inside.tocoo()
    crossing = label[leaving.row] != label[leaving.col]
    closed = n_classes - np.unique(label[leaving.row[crossing]]).size
    if closed != 1:
        raise ValueError(f"{closed} recurrent classes are reached: the average reward has no single value")
    system = (sparse.identity(reached.size) - inside.T).tolil()
    system[0] = 1.0  # the equations are dependent: one gives way to the sum
    mass = np.zeros(initial.size)
    mass[reached] = _solve(system, np.eye(1, reached.size)[0])
    return mass


def _reachable(chain: sparse.csr_matrix, initial: Floats) -> Integers:
    links = chain.copy()
    links.data = (links.data > 0).astype(float)
    reached = initial > 0
    while True:
        more = reached | (links.T @ reached > 0)
        if (more == reached).all():
            return np.flatnonzero(reached)
        reached = more


def _solve(system: sparse.spmatrix, right: Floats) -> Floats:
    if right.size <= DENSE_STATES:
        return np.linalg.solve(system.toarray(), right)
    return splu(system.tocsc(), permc_spec="MMD_AT_PLUS_A").solve(right)


def optimal_q(model: Model, gamma: float = 0.97, tol: float = 1e-9) -> Floats:
    """Optimal action values (states x actions) by value iteration, to make policies from."""
    kernel, _, reward = model.cells()
    shape = (model.n_states, model.n_actions)
    q = np.zeros(shape)
    while True:
        better = (reward + gamma * (kernel @ q.max(axis=1))).reshape(shape)
        if np.abs(better - q).max() <= tol * max(1.0, float(np.abs(better).max())):
            return better
        q = better


def uniform(model: Model) -> Floats:
    """Every action with the same probability."""
    return np.full((model.n_states, model.n_actions), 1 / model.n_actions)


def greedy(q: Floats) -> Floats:
    """The best action, ties shared."""
    best = (q >= q.max(axis=1, keepdims=True) - 1e-9).astype(float)
    return best / best.sum(axis=1, keepdims=True)


def soft(q: Floats, temperature: float) -> Floats:
    """``softmax(q / temperature)``, in units of the median spread of q over actions."""
    unit = float(np.median(np.ptp(q, axis=1))) or 1.0
    weight = np.exp((q - q.max(axis=1, keepdims=True)) / (temperature * unit))
    return weight / weight.sum(axis=1, keepdims=True)


def sharpen(policy: Floats, power: float) -> Floats:
    """Probabilities raised to a power and scaled to sum to 1."""
    weight = (policy / policy.max(axis=1, keepdims=True)) ** power
    return weight / weight.sum(axis=1, keepdims=True)


def mix(first: Floats, second: Floats, share: float) -> Floats:
    """``(1 - share) * first + share * second``."""
    return (1 - share) * first + share * second


def explore(policy: Floats, epsilon: float) -> Floats:
    """The policy with probability ``1 - epsilon``, else a uniform action."""
    return mix(policy, np.full_like(policy, 1 / policy.shape[1]), epsilon)
