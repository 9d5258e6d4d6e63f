"""Random MDPs (Garnet): continuing and episodic, with every kind of behavior."""

from __future__ import annotations

import numpy as np

from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, soft, uniform
from trust.problem import Problem, maker

CONTINUING_SIZES = ((30, 60), (150, 120))
EPISODIC_SIZES = ((100, 60), (800, 60))


def garnet(
    rng: np.random.Generator, n_states: int, n_actions: int, branches: int, ends: float, noise: float = 0.0
) -> Model:
    """Random successors and rewards; state 0 is reached from everywhere, so that there is one class.

    ``ends`` is the share of states whose entry ends the episode.
    """
    successor = np.stack(
        [rng.choice(n_states, branches, replace=False) for _ in range(n_states * n_actions)]
    ).reshape(n_states, n_actions, branches)
    probability = rng.dirichlet(np.ones(branches), (n_states, n_actions))
    worth = rng.normal(size=(n_states, n_actions)) + rng.normal(size=(n_states, 1))
    final = np.zeros(n_states, dtype=bool)
    final[1 : 1 + round(ends * n_states)] = True

    def outcomes(state: int, action: int):
        reward = float(worth[state, action])
        yield 0.03, 0, reward, False
        for chance, following in zip(probability[state, action], successor[state, action], strict=True):
            yield 0.97 * chance, following, reward, final[following]

    initial = np.zeros(n_states)
    initial[rng.choice(np.flatnonzero(~final), max(2, n_states // 5), replace=False)] = 1.0
    return from_outcomes(n_states, n_actions, outcomes, initial, noise)


def logged_by(kind: str, target: Floats, q: Floats, rng: np.random.Generator) -> tuple[Floats, ...]:
    """Behaviors of a kind: near to the target, uniform, epsilon-soft, unrelated, or pooled."""
    even = np.full_like(target, 1 / target.shape[1])
    other = rng.dirichlet(np.ones(target.shape[1]), target.shape[0])
    return {
        "near": (mix(target, even, 0.3),),
        "uniform": (even,),
        "epsilon": (explore(greedy(q), 0.3),),
        "unrelated": (explore(other, 0.1),),
        "pooled": (soft(q, 1.0), explore(other, 0.2), mix(target, even, 0.5)),
    }[kind]


def problems(family: str, ends: float) -> list[Problem]:
    """Six random MDPs of different size, behavior and target."""
    sizes = EPISODIC_SIZES if ends else CONTINUING_SIZES
    plan = [
        ("20 states, near", 20, 3, 3, "near", "soft", 0.0),
        ("20 states, uniform, greedy target", 20, 4, 4, "uniform", "greedy", 0.0),
        ("40 states, epsilon", 40, 3, 3, "epsilon", "soft", 0.5),
        ("40 states, unrelated", 40, 2, 5, "unrelated", "random", 0.0),
        ("60 states, pooled", 60, 4, 3, "pooled", "soft", 0.0),
        ("80 states, unrelated, many actions", 80, 8, 4, "unrelated", "soft", 0.5),
    ]
    made = []
    for name, n_states, n_actions, branches, kind, aim, noise in plan:
        rng = maker(family, name)
        model = garnet(rng, n_states, n_actions, branches, ends, noise)
        q = optimal_q(model)
        target = {
            "soft": lambda q=q: soft(q, 0.3),
            "greedy": lambda q=q, model=model: mix(greedy(q), uniform(model), 0.02),
            "random": lambda q=q, rng=rng: rng.dirichlet(np.ones(q.shape[1]), q.shape[0]),
        }[aim]()
        made.append(Problem(family, name, model, target, logged_by(kind, target, q, rng), sizes))
    return made


def continuing() -> list[Problem]:
    """Random MDPs without end."""
    return problems("random MDPs", 0.0)


def episodic() -> list[Problem]:
    """Random MDPs whose episodes end."""
    return problems("random MDPs, episodic", 0.15)
