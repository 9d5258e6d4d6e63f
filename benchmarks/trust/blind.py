"""Blind spots (development): what decides is on the way, inside, underneath, or was drawn at the start."""

from __future__ import annotations

import numpy as np

from trust.model import explore, from_outcomes
from trust.problem import Problem

FAMILY = "blind spots"
SIZES = ((100, 100), (400, 100))


def orders_on_the_way() -> Problem:
    """Stock of 0 to 9 whose orders arrive three steps later; only the stock is shown."""

    def outcomes(state: int, order: int):
        stock, pipeline = divmod(state, 8)
        first, second, third = pipeline >> 2 & 1, pipeline >> 1 & 1, pipeline & 1
        level = min(stock + 3 * first, 9)
        after = (second << 2) | (third << 1) | order
        for wanted, chance in ((0, 0.3), (1, 0.4), (2, 0.2), (3, 0.1)):
            sold = min(wanted, level)
            reward = 2.0 * sold - 1.0 * (wanted - sold) - 0.1 * (level - sold) - 2.0 * order
            yield chance, (level - sold) * 8 + after, reward, False

    model = from_outcomes(80, 2, outcomes, np.eye(80)[5 * 8])
    stock = np.arange(10)
    target = explore(np.eye(2)[(stock <= 3).astype(int)], 0.05)
    return Problem(FAMILY, "orders on the way", model, target, (np.tile([0.6, 0.4], (10, 1)),), SIZES,
                   np.arange(80) // 8)  # fmt: skip


def better_arm() -> Problem:
    """Two arms, of which one pays more; which is drawn anew for every episode and seldom changes."""

    def outcomes(state: int, arm: int):
        good = state // 2
        chance = 0.7 if arm == good else 0.25
        for paid, share in ((1, chance), (0, 1 - chance)):
            yield share * 0.998, good * 2 + paid, float(paid), False
            yield share * 0.002, (1 - good) * 2 + paid, float(paid), False

    model = from_outcomes(4, 2, outcomes, np.array([1.0, 0, 1.0, 0]))
    target = np.array([[0.5, 0.5], [0.05, 0.95]])
    return Problem(FAMILY, "better arm", model, target, (np.full((2, 2), 0.5),), SIZES, np.arange(4) % 2)


def dry_forest() -> Problem:
    """Litter builds up unseen for up to ten steps; a burn is mild (-1) or, beyond six, a fire (-15)."""

    def outcomes(state: int, burn: int):
        litter, shown = divmod(state, 2)
        if burn:
            yield 1.0, 0, -1.0 if litter <= 6 else -15.0, False
            return
        spark = 0.02 * (litter > 6)
        yield spark, 0, -15.0, False
        grown = min(litter + 1, 10)
        for dry, chance in ((0, 0.5), (1, 0.5)):
            yield (1 - spark) * chance, grown * 2 + dry, 1.0 + 0.2 * shown, False

    model = from_outcomes(22, 2, outcomes, np.eye(22)[0])
    target, behavior = np.tile([0.75, 0.25], (2, 1)), np.tile([0.92, 0.08], (2, 1))
    return Problem(FAMILY, "dry forest", model, target, (behavior,), SIZES, np.arange(22) % 2)


def signals() -> Problem:
    """Crossings with lights of a period of six steps; waiting costs 1, crossing at red 10 and a halt."""

    def outcomes(state: int, cross: int):
        place, phase = divmod(state, 6)
        after = (phase + 1) % 6
        if not cross:
            yield 1.0, place * 6 + after, -1.0, False
            return
        if phase >= 3:
            yield 1.0, (place + 1) % 5 * 6, -10.0, False
            return
        for extra, chance in ((0, 0.7), (1, 0.3)):
            yield chance, (place + 1) % 5 * 6 + (after + extra) % 6, 3.0, False

    model = from_outcomes(30, 2, outcomes, np.ones(30))
    target, behavior = np.tile([0.3, 0.7], (5, 1)), np.tile([0.7, 0.3], (5, 1))
    return Problem(FAMILY, "signals", model, target, (behavior,), SIZES, np.arange(30) // 6)


def debts() -> Problem:
    """Loans to customers whose missed payments are not shown; the third ends in a default (-8)."""

    def outcomes(state: int, lend: int):
        missed, shown = divmod(state, 3)
        late = 0.08 + 0.15 * missed + 0.05 * (2 - shown)
        earned = 0.6 * lend
        for income, chance in ((0, 0.3), (1, 0.4), (2, 0.3)):
            yield chance * (1 - late * lend), max(missed - (1 - lend), 0) * 3 + income, earned, False
            if missed == 2:
                yield chance * late * lend, income, earned - 8.0, False
            else:
                yield chance * late * lend, (missed + 1) * 3 + income, earned, False

    model = from_outcomes(9, 2, outcomes, np.array([0, 1.0, 0, 0, 0, 0, 0, 0, 0]))
    target, behavior = np.tile([0.1, 0.9], (3, 1)), np.tile([0.6, 0.4], (3, 1))
    return Problem(FAMILY, "debts", model, target, (behavior,), SIZES, np.arange(9) % 3)


def warm_engine() -> Problem:
    """An engine heats up and cools down unseen; its load is shown, and wear depends on the heat."""

    def outcomes(state: int, push: int):
        heat, load = divmod(state, 4)
        warmer = min(heat + 1, 7) if push else max(heat - 1, 0)
        broken = 0.002 * warmer**2
        reward = (1.0 + 0.4 * load) * (1.0 if push else 0.4) - 0.05 * warmer
        yield broken, load, reward - 6.0, False
        for step, chance in ((-1, 0.3), (0, 0.4), (1, 0.3)):
            yield (1 - broken) * chance, warmer * 4 + min(max(load + step, 0), 3), reward, False

    model = from_outcomes(32, 2, outcomes, np.eye(32)[1])
    load = np.arange(4)
    target = explore(np.eye(2)[(load >= 1).astype(int)], 0.05)
    behavior = explore(np.eye(2)[(load >= 3).astype(int)], 0.4)
    return Problem(FAMILY, "warm engine", model, target, (behavior,), SIZES, np.arange(32) % 4)


def problems() -> list[Problem]:
    """States of which a part decides and is not logged."""
    return [orders_on_the_way(), better_arm(), dry_forest(), signals(), debts(), warm_engine()]
