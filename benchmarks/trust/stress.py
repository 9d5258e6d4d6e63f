"""Hard or odd Markov problems: rare losses, structural zeros, cycles, few episodes, on-policy logs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trust import grids, operations, people
from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, soft, uniform
from trust.problem import Problem, maker

SIZES = ((20, 100), (100, 200))


def plant(disaster: float, loss: float, rest: int) -> Model:
    """Ten loads; running hard pays more and, now and then, costs ``loss`` and ``rest`` idle steps."""

    def outcomes(state: int, hard: int):
        if state >= 10:
            yield 1.0, state + 1 if state < 9 + rest else 0, 0.0, False
            return
        risk = disaster * (1 + state) * hard
        for up, chance in ((1, 0.5), (-1, 0.5)):
            yield (1 - risk) * chance, min(max(state + up, 0), 9), 1.0 + 0.5 * hard + 0.05 * state, False
        yield risk, 10, -loss, False

    initial = np.zeros(10 + rest)
    initial[:5] = 1.0
    return from_outcomes(10 + rest, 2, outcomes, initial)


def plants() -> list[Problem]:
    """Losses that a log may or may not show (development)."""
    family = "rare losses"

    def hard(model: Model, share: float) -> Floats:
        return np.tile([1 - share, share], (model.n_states, 1))

    often, rare, never = plant(1e-3, 50.0, 5), plant(2e-4, 200.0, 10), plant(2e-5, 2000.0, 10)
    edge = grids.Grid(5, 8, slip=0.05, cliffs=grids.edge(8, 4), starts=((4, 0),), cliff=-50.0).model()
    best = optimal_q(edge)
    return [
        Problem(family, "one in 180 hard steps", often, hard(often, 0.8), (hard(often, 0.2),), SIZES),
        Problem(family, "one in 900 hard steps", rare, hard(rare, 0.8), (hard(rare, 0.3),), SIZES),
        Problem(family, "one in 9,000 hard steps", never, hard(never, 0.9), (hard(never, 0.5),), SIZES),
        Problem(family, "an edge rarely slipped over", edge, explore(greedy(best), 0.02),
                (mix(greedy(best), soft(best, 1.0), 0.5),), SIZES),
    ]  # fmt: skip


def _masked(policy: Floats, allowed: np.ndarray) -> Floats:
    weight = np.where(allowed, policy, 0.0)
    return weight / weight.sum(axis=1, keepdims=True)


def _allowed_actions(family: str, name: str, n_states: int, n_actions: int) -> tuple[Model, np.ndarray]:
    """A random MDP in which each state offers half of the actions; others would be harmful."""
    rng = maker(family, name)
    allowed = rng.permuted(np.tile(np.arange(n_actions) < (n_actions + 1) // 2, (n_states, 1)), axis=1)
    successor = rng.integers(n_states, size=(n_states, n_actions, 4))
    share = rng.dirichlet(np.ones(4), (n_states, n_actions))
    worth = rng.normal(size=(n_states, n_actions)) - 5.0 * ~allowed

    def outcomes(state: int, action: int):
        yield 0.05, 0, float(worth[state, action]), False
        for chance, following in zip(share[state, action], successor[state, action], strict=True):
            yield 0.95 * chance, following, float(worth[state, action]), False

    return from_outcomes(n_states, n_actions, outcomes, np.ones(n_states)), allowed


def zeros() -> list[Problem]:
    """Actions that neither the behavior nor the target takes in some states: nothing is missing."""
    family = "structural zeros"
    made = []
    for name, n_states, n_actions in (("25 states, 6 actions", 25, 6), ("60 states, 4 actions", 60, 4)):
        model, allowed = _allowed_actions(family, name, n_states, n_actions)
        q = np.where(allowed, optimal_q(model), -1e3)
        target = _masked(greedy(q) * 0.8 + soft(optimal_q(model), 0.5) * 0.2, allowed)
        made.append(Problem(family, name, model, target, (_masked(uniform(model), allowed),), SIZES))
    stock = operations.inventory_model(12, 13, 3.0, 1.0)
    room = np.arange(13)[None, :] <= 12 - np.arange(13)[:, None]
    target = _masked(explore(operations.order_up_to(stock, 5, 10), 0.1), room)
    behavior = _masked(explore(operations.order_up_to(stock, 4, 8), 0.3), room)
    return [*made, Problem(family, "orders that do not fit", stock, target, (behavior,), SIZES)]


def unidentified() -> list[Problem]:
    """The target takes actions that the behavior never takes: no log can tell."""
    family = "actions never taken"
    patient = people.patient_model(0.004)
    queue = operations.service_queue(20, 0.45, (0.3, 0.5, 0.7), (0.0, 0.3, 0.9))
    name = "random MDP, half of the actions"
    model, allowed = _allowed_actions(family, name, 25, 6)
    behaviors = (operations.threshold(21, 3, (2, 8)), operations.threshold(21, 3, (1, 5)))
    return [
        Problem(family, name, model, soft(maker(family, "target").normal(size=(25, 6)), 1.0),
                (_masked(uniform(model), allowed),), SIZES),
        Problem(family, "two strict guidelines", patient, people.guideline(1, 2),
                (people.guideline(2, 4), people.guideline(3, 5)), ((60, 60), (400, 60))),
        Problem(family, "two strict speeds", queue, operations.threshold(21, 3, (4, 15)), behaviors, SIZES),
    ]  # fmt: skip


def cycle(period: int, width: int, name: str) -> Model:
    """Stages one after the other, ``width`` states each: no chain of it mixes without laziness."""
    rng = maker("cycles", name)
    n_states = period * width
    share = rng.dirichlet(np.ones(width), (n_states, 3))
    worth = rng.normal(size=(n_states, 3))

    def outcomes(state: int, action: int):
        stage = (state // width + 1) % period
        for place in range(width):
            yield share[state, action, place], stage * width + place, float(worth[state, action]), False

    return from_outcomes(n_states, 3, outcomes, np.ones(n_states))


def cycles() -> list[Problem]:
    """Periodic chains."""
    made = []
    for name, period, width in (("period 2", 2, 8), ("period 5", 5, 4), ("period 24", 24, 2)):
        model = cycle(period, width, name)
        q = optimal_q(model)
        made.append(Problem("cycles", name, model, soft(q, 0.3), (explore(greedy(q), 0.5),), SIZES))
    return made


def episodes() -> list[Problem]:
    """The same steps in 1, 3, 20 or 500 episodes (development)."""
    rng = maker("episodes", "patrol")
    worth = rng.normal(size=(40, 3))

    def outcomes(state: int, action: int):
        # Three places back, none or ahead, as asked in most cases; one place ahead now and then.
        for move, chance in ((3 * (action - 1), 0.63), (3 * (1 - action), 0.18), (0, 0.09), (1, 0.1)):
            yield chance, (state + move) % 40, float(worth[state, action]), False

    model = from_outcomes(40, 3, outcomes, np.ones(40), noise=0.5)
    target, behavior = soft(optimal_q(model), 0.5), explore(soft(optimal_q(model), 1.5), 0.3)
    return [
        Problem("few and many episodes", f"{count} episode{'s' * (count > 1)}", model, target, (behavior,),
                ((count, 3000 // count), (count, 12_000 // count)))
        for count in (1, 3, 20, 500)
    ]  # fmt: skip


def on_policy() -> list[Problem]:
    """The behavior is the target: there is nothing to correct and nothing to warn of."""
    family = "on-policy"
    aged = operations.replacement()[0]
    cliff = grids.cliffs()[2]
    patient = people.clinical()[0]
    return [
        replace(one, family=family, name=name, behaviors=(one.target,))
        for one, name in ((aged, "replacement"), (cliff, "cliff"), (patient, "clinical"))
    ]
