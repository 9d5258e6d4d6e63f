"""Development problems made from random MDPs and grids: every difficulty of the report, on other models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trust import careless, garnets, grids, operations, people, stress
from trust.model import Floats, Model, explore, from_outcomes, greedy, mix, optimal_q, soft
from trust.problem import Problem, maker

SIZES = ((20, 100), (100, 200))


def _garnet(name: str, n_states: int, n_actions: int, ends: float = 0.0) -> tuple[Model, Floats]:
    model = garnets.garnet(maker("derived", name), n_states, n_actions, 3, ends, 0.0)
    return model, optimal_q(model)


def _changed(model: Model, change) -> Model:
    """The model with the outcomes of every cell passed through ``change(state, action, outcomes)``."""

    def outcomes(state: int, action: int):
        cell = state * model.n_actions + action
        span = slice(model.pointer[cell], model.pointer[cell + 1])
        listed = zip(
            model.probability[span], model.next_state[span], model.reward[span], model.terminal[span],
            strict=True,
        )  # fmt: skip
        return change(state, action, [tuple(outcome) for outcome in listed])

    return from_outcomes(model.n_states, model.n_actions, outcomes, model.initial, model.noise)


def _averaged(policy: Floats, observe: np.ndarray) -> Floats:
    return np.stack([policy[observe == seen].mean(axis=0) for seen in range(observe.max() + 1)])


def hidden() -> list[Problem]:
    """The problems of :mod:`careless`, merged states, and kinds that last through an episode."""
    family = "hidden or merged states"
    made = careless.hidden()
    for name, n_states, group in (("24 states, pairs", 24, 2), ("45 states, threes", 45, 3)):
        model, q = _garnet(name, n_states, 3)
        observe = np.arange(n_states) // group
        target, behavior = _averaged(soft(q, 0.3), observe), _averaged(explore(greedy(q), 0.5), observe)
        made.append(Problem(family, name, model, target, (behavior,), ((100, 100), (400, 100)), observe))
    for name, n_states in (("two kinds of 8 states", 8), ("two kinds of 20 states", 20)):
        first, second = (_garnet(f"{name} {kind}", n_states, 3)[0] for kind in (1, 2))
        made.append(_kinds(family, name, first, second))
    return made


def _kinds(family: str, name: str, first: Model, second: Model) -> Problem:
    """Two models with the same states; which of them an episode follows is not shown."""
    n, n_actions = first.n_states, first.n_actions

    def outcomes(state: int, action: int):
        model, shift = (first, 0) if state < n else (second, n)
        cell = (state - shift) * n_actions + action
        for at in range(model.pointer[cell], model.pointer[cell + 1]):
            yield model.probability[at], model.next_state[at] + shift, model.reward[at], False

    # A change of kind once in 1,000 steps makes the average reward one number.

    def changing(state: int, action: int):
        for chance, following, reward, ends in outcomes(state, action):
            yield chance * 0.999, following, reward, ends
            yield chance * 0.001, (following + n) % (2 * n), reward, ends

    model = from_outcomes(2 * n, n_actions, changing, np.concatenate([first.initial, second.initial]))
    rng = maker("derived", name)
    target, behavior = (rng.dirichlet(np.ones(n_actions), n) * 0.8 + 0.2 / n_actions for _ in range(2))
    return Problem(family, name, model, target, (behavior,), ((100, 100), (400, 100)), np.arange(2 * n) % n)


def disasters() -> list[Problem]:
    """A loss so rare that a log may not show it."""
    family = "rare losses"
    made = []
    plan = ((20, 400.0, 2e-3), (20, 400.0, 4e-4), (40, 3000.0, 5e-5), (40, 100.0, 1e-3), (30, 1000.0, 1e-5))
    for n_states, loss, chance in plan:
        name = f"{n_states} states, {loss:g} once in {1 / chance:,.0f}"
        model, q = _garnet(name, n_states, 3)

        def risky(state, action, listed, chance=chance, loss=loss):
            risk = chance if action == 0 else 0.0
            return [(p * (1 - risk), *rest) for p, *rest in listed] + [(risk, 0, -loss, False)]

        behavior = explore(soft(q, 1.0), 0.3)
        target = mix(soft(q, 0.3), np.eye(3)[np.zeros(n_states, dtype=int)], 0.5)
        made.append(Problem(family, name, _changed(model, risky), target, (behavior,), SIZES))
    return made + stress.plants()


def never_taken() -> list[Problem]:
    """Actions of the target that the behavior never takes."""
    family = "actions left out"
    made = []
    for name, n_states, share in (("20 states, one of four", 20, 0.25), ("30 states, two of four", 30, 0.5)):
        model, q = _garnet(name, n_states, 4)
        rng = maker(family, name)
        left_out = rng.random((n_states, 4)).argsort(axis=1) < round(4 * share)
        behavior = np.where(left_out, 0.0, 1.0)
        behavior /= behavior.sum(axis=1, keepdims=True)
        made.append(Problem(family, name, model, soft(q, 0.5), (behavior,), SIZES))
    return made


def tiny() -> list[Problem]:
    """Logs of a few dozen or a few hundred steps."""
    family, sizes = "tiny logs", ((3, 10), (8, 20), (20, 20))
    made = []
    for name, n_states, n_actions, ends in (
        ("5 states", 5, 2, 0.0), ("5 states, episodic", 5, 2, 0.2), ("12 states", 12, 3, 0.0),
        ("12 states, episodic", 12, 3, 0.15), ("30 states", 30, 3, 0.0),
    ):  # fmt: skip
        model, q = _garnet(name, n_states, n_actions, ends)
        made.append(Problem(family, name, model, soft(q, 0.4), (explore(greedy(q), 0.6),), sizes))
    return made


def slow() -> list[Problem]:
    """Chains that stay where they are nearly always, and walks along a line."""
    family = "slow chains"
    made = []
    for name, n_states, stay in (("20 states, stay 95 %", 20, 0.95), ("40 states, stay 98 %", 40, 0.98)):
        model, q = _garnet(name, n_states, 3)

        def lazy(state, action, listed, stay=stay):
            mean = sum(p * r for p, _, r, _ in listed)
            return [(p * (1 - stay), *rest) for p, *rest in listed] + [(stay, state, mean, False)]

        made.append(Problem(family, name, _changed(model, lazy), soft(q, 0.3), (soft(q, 1.5),), SIZES))
    for n_states in (20, 50):

        def walk(state, action, n_states=n_states):
            for move, chance in ((1, 0.7), (-1, 0.3)):
                step = move if action else -move
                yield chance, min(max(state + step, 0), n_states - 1), float(state >= n_states // 2), False

        model = from_outcomes(n_states, 2, walk, np.eye(n_states)[0])
        target, behavior = np.tile([0.4, 0.6], (n_states, 1)), np.tile([0.55, 0.45], (n_states, 1))
        made.append(Problem(family, f"walk of {n_states}", model, target, (behavior,), SIZES))
    return made


def lone_reward() -> list[Problem]:
    """One cell pays, and it is seldom visited."""
    family = "one paying cell"
    made = []
    for name, n_states, ends in (
        ("30 states", 30, 0.0),
        ("30 states, episodic", 30, 0.15),
        ("80 states", 80, 0),
    ):
        model, _ = _garnet(name, n_states, 3, ends)
        cell = model.cell_of_outcome()
        paying = int(maker(family, name).integers(1, n_states)) * 3 + 1
        model = replace(model, reward=np.where(cell == paying, 1.0, 0.0))
        q = optimal_q(model)
        made.append(Problem(family, name, model, soft(q, 0.3), (explore(greedy(q), 0.9),), SIZES))
    return made


def careless_logs() -> list[Problem]:
    """Forgotten flags and shuffled rows of random MDPs and grids."""
    family = "careless"
    plan = [
        (garnets.episodic()[0], "20 states, no flags", "no flags"),
        (garnets.episodic()[4], "60 states, no flags, reset", "no flags, reset"),
        (grids.slippery()[0], "grid, no flags", "no flags"),
        (grids.plain()[1], "grid with a wall, no flags", "no flags"),
        (garnets.continuing()[2], "40 states, shuffled", "shuffled"),
        (grids.slippery()[2], "pits, shuffled", "shuffled"),
    ]
    return [replace(one, family=family, name=name, corruption=how) for one, name, how in plan]


def looked_at() -> list[Problem]:
    """Problems that were in the report until a method was changed after looking at them."""
    family = "formerly in the report"
    held = [*stress.episodes(), *operations.queue(), *people.recommender()]
    return [replace(one, family=family, name=f"{one.family}: {one.name}") for one in held]
