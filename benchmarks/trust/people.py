"""Patients (many states, few actions, rare adverse events) and users (many actions, few of them logged)."""

from __future__ import annotations

import numpy as np

from trust.model import Floats, Model, explore, from_outcomes, mix, optimal_q, soft
from trust.problem import Problem, maker

SEVERITIES, ORGANS, RECENT, AGES = 6, 4, 4, 3


def patient_model(adverse: float) -> Model:
    """288 states (severity, organ function, recent treatment, age); wait, give a drug, or intensive care.

    An adverse event (probability ``adverse`` times a factor of action and organ function) costs 20 and makes
    the patient gravely ill. Discharge pays 5 and ends the episode, death costs 10 and ends it.
    """
    shape = (SEVERITIES, ORGANS, RECENT, AGES)

    def outcomes(state: int, action: int):
        severity, organ, recent, age = np.unravel_index(state, shape)
        helped = (0.0, 0.22, 0.38)[action] * (1 - 0.2 * (recent == RECENT - 1))
        better = 0.15 + helped - 0.03 * age
        worse = 0.25 - 0.35 * helped + 0.03 * organ
        event = adverse * action * (1 + organ)
        after = min(recent + 1, RECENT - 1) if action else max(recent - 1, 0)
        cost = (-0.1, -0.3, -1.0)[action]

        def place(severity: int, organ: int = organ) -> int:
            return int(np.ravel_multi_index((severity, organ, after, age), shape))

        yield event, place(SEVERITIES - 1, min(organ + 1, ORGANS - 1)), cost - 20.0, False
        rest = 1 - event
        if severity == 0:
            yield rest * 0.4, state, cost + 5.0, True
            rest *= 0.6
        if severity == SEVERITIES - 1:
            yield rest * (0.12 - 0.06 * (action == 2)), state, cost - 10.0, True
            rest *= 1 - (0.12 - 0.06 * (action == 2))
        yield rest * better, place(max(severity - 1, 0)), cost, False
        yield rest * worse, place(min(severity + 1, SEVERITIES - 1)), cost, False
        yield rest * (1 - better - worse), place(severity), cost, False

    initial = np.zeros(shape)
    initial[2:5, :3, 0, :] = np.array([3.0, 2.0, 1.0])[:, None, None]
    return from_outcomes(int(np.prod(shape)), 3, outcomes, initial.ravel())


def guideline(drug_from: int, intensive_from: int) -> Floats:
    """Treat from a severity on."""
    severity = np.arange(SEVERITIES * ORGANS * RECENT * AGES) // (ORGANS * RECENT * AGES)
    return np.eye(3)[np.searchsorted([drug_from, intensive_from], severity, side="right")]


def clinical() -> list[Problem]:
    """Guidelines evaluated from the records of other guidelines."""
    family = "clinical"
    usual, risky = patient_model(0.004), patient_model(0.0008)
    sizes = ((60, 60), (400, 60))
    doctors = (explore(guideline(2, 4), 0.15), explore(guideline(1, 5), 0.15), explore(guideline(3, 4), 0.15))
    return [
        Problem(family, "treat earlier", usual, explore(guideline(1, 3), 0.02),
                (explore(guideline(2, 4), 0.2),), sizes),
        Problem(family, "treat later, rarer events", risky, explore(guideline(3, 5), 0.02), doctors, sizes),
        Problem(family, "soft optimum, three doctors", usual, soft(optimal_q(usual), 0.2), doctors, sizes),
        Problem(family, "always intensive, rarer events", risky, explore(guideline(0, 0), 0.05), doctors,
                sizes),
    ]  # fmt: skip


def user_model(rng: np.random.Generator, kinds: int, items: int, leaves: float, turns: float = 0.05) -> Model:
    """Users of a kind with an interest from 0 to 4 click (+1) on items they like; bored ones leave.

    At each step a user comes to like what the next kind likes with probability ``turns``.
    """
    liking = rng.beta(0.5, 3.0, (kinds, items))

    def outcomes(state: int, item: int):
        kind, interest = divmod(state, 5)
        click = liking[kind, item] * (0.5 + 0.125 * interest)
        gone = leaves * (1.5 - 0.25 * interest)
        for clicked, chance in ((1, click), (0, 1 - click)):
            quits = gone * (0.3 if clicked else 1.0)
            level = min(interest + 1, 4) if clicked else max(interest - 1, 0)
            yield chance * quits, state, float(clicked), True
            yield chance * (1 - quits) * (1 - turns), kind * 5 + level, float(clicked), False
            yield chance * (1 - quits) * turns, (kind + 1) % kinds * 5 + level, float(clicked), False

    initial = np.zeros((kinds, 5))
    initial[:, 2] = rng.dirichlet(np.full(kinds, 3.0))
    return from_outcomes(kinds * 5, items, outcomes, initial.ravel())


def recommender() -> list[Problem]:
    """Catalogs of which the old recommender showed only a few items (development)."""
    family = "recommender"
    made = []
    plan = [
        ("30 items, six shown", 6, 30, 6, 0.05, "near"),
        ("30 items, three shown, new ranking", 6, 30, 3, 0.1, "new"),
        ("60 items, ten shown", 8, 60, 10, 0.1, "near"),
        ("60 items, soft optimum", 8, 60, 8, 0.2, "best"),
    ]
    for name, kinds, items, shown, spread, aim in plan:
        rng = maker(family, name)
        model = user_model(rng, kinds, items, 0.05)
        taste = rng.normal(size=(model.n_states, items)) * 0.5 + np.repeat(
            rng.normal(size=(kinds, items)), 5, axis=0
        )
        behavior = explore(_top(taste, shown), spread)
        target = {
            "near": lambda t=taste, k=shown: mix(_top(t, k), _top(t, 2 * k), 0.3),
            "new": lambda t=taste, k=shown, r=rng: explore(_top(t + r.normal(size=t.shape), k), 0.02),
            "best": lambda m=model: soft(optimal_q(m), 0.2),
        }[aim]()
        made.append(Problem(family, name, model, target, (behavior,), ((100, 60), (800, 60))))
    return made


def _top(taste: Floats, shown: int) -> Floats:
    """The ``shown`` items of highest taste in each state, each equally often."""
    rank = np.argsort(np.argsort(-taste, axis=1), axis=1)
    return (rank < shown) / shown
