"""Faint memories (development): hidden states that act weakly or slowly, or through rare outcomes alone."""

from __future__ import annotations

import numpy as np

from trust.model import from_outcomes
from trust.problem import Problem

FAMILY = "faint memories"
SIZES = ((100, 100), (400, 100))


def faint_kinds() -> Problem:
    """Visitors of two kinds that click a little more or less; the kind lasts through the visit."""

    def outcomes(state: int, item: int):
        kind, mood = divmod(state, 3)
        click = 0.3 + 0.1 * mood + (0.06 if kind == item else -0.06)
        for clicked, chance in ((1, click), (0, 1 - click)):
            after = min(mood + 1, 2) if clicked else max(mood - 1, 0)
            yield chance * 0.999, kind * 3 + after, float(clicked), False
            yield chance * 0.001, (1 - kind) * 3 + after, float(clicked), False

    model = from_outcomes(6, 2, outcomes, np.array([1.0, 0, 0, 1.0, 0, 0]))
    target, behavior = np.tile([0.1, 0.9], (3, 1)), np.tile([0.5, 0.5], (3, 1))
    return Problem(FAMILY, "two kinds, alike", model, target, (behavior,), SIZES, np.arange(6) % 3)


def noisy_regime() -> Problem:
    """A market that is good or bad for 40 steps on average, behind rewards of much noise."""

    def outcomes(state: int, buy: int):
        good, price = divmod(state, 5)
        for after_good, stays in ((good, 39 / 40), (1 - good, 1 / 40)):
            for move, chance in ((-1, 0.4), (0, 0.2), (1, 0.4)):
                after = min(max(price + move, 0), 4)
                yield stays * chance, after_good * 5 + after, buy * (0.35 if good else -0.35), False

    model = from_outcomes(10, 2, outcomes, np.ones(10), noise=1.0)
    target, behavior = np.tile([0.1, 0.9], (5, 1)), np.tile([0.6, 0.4], (5, 1))
    return Problem(FAMILY, "a market", model, target, (behavior,), SIZES, np.arange(10) % 5)


def overload() -> Problem:
    """Work in the last five steps raises the chance of an accident (-10) from .4 to 3 %."""

    def outcomes(state: int, work: int):
        recent, site = divmod(state, 3)
        load = bin(recent).count("1")
        accident = 0.004 + 0.0055 * load
        after = (recent << 1 | work) & 31
        for place, chance in ((site, 0.5), ((site + 1) % 3, 0.5)):
            yield chance * accident, after * 3 + place, 1.0 * work - 10.0, False
            yield chance * (1 - accident), after * 3 + place, 1.0 * work, False

    model = from_outcomes(96, 2, outcomes, np.eye(96)[0])
    target, behavior = np.tile([0.1, 0.9], (3, 1)), np.tile([0.6, 0.4], (3, 1))
    return Problem(FAMILY, "overload", model, target, (behavior,), SIZES, np.arange(96) % 3)


def savings() -> Problem:
    """Income adds to a hidden account, spending takes from it; an empty one costs 6, and pays .02 a level."""

    def outcomes(state: int, spend: int):
        account, mood = divmod(state, 4)
        for income, chance in ((0, 0.5), (1, 0.5)):
            left = account + income - 2 * spend
            for after_mood, share in ((mood, 0.5), ((mood + 1) % 4, 0.5)):
                ruined = left < 0
                reward = spend * (1.0 + 0.2 * mood) + 0.02 * account - 6.0 * ruined
                yield chance * share, min(max(left, 0), 9) * 4 + after_mood, reward, False

    model = from_outcomes(40, 2, outcomes, np.eye(40)[5 * 4])
    target, behavior = np.tile([0.6, 0.4], (4, 1)), np.tile([0.85, 0.15], (4, 1))
    return Problem(FAMILY, "an account", model, target, (behavior,), SIZES, np.arange(40) % 4)


def strikes() -> Problem:
    """Three fouls within a hidden count that time forgives slowly end in a penalty of 12."""

    def outcomes(state: int, press: int):
        fouls, side = divmod(state, 2)
        foul = 0.12 if press else 0.03
        for where, chance in ((side, 0.7), (1 - side, 0.3)):
            if fouls == 3:
                yield chance * foul, where, 0.5 * press - 12.0, False
            else:
                yield chance * foul, (fouls + 1) * 2 + where, 0.5 * press, False
            forgiven = max(fouls - 1, 0)
            yield chance * (1 - foul) * 0.03, forgiven * 2 + where, 0.5 * press, False
            yield chance * (1 - foul) * 0.97, fouls * 2 + where, 0.5 * press, False

    model = from_outcomes(8, 2, outcomes, np.eye(8)[0])
    target, behavior = np.tile([0.2, 0.8], (2, 1)), np.tile([0.7, 0.3], (2, 1))
    return Problem(FAMILY, "strikes", model, target, (behavior,), SIZES, np.arange(8) % 2)


def slow_drug() -> Problem:
    """A drug builds up over ten doses and helps or harms by its level; symptoms of four grades are shown."""

    def outcomes(state: int, dose: int):
        level, grade = divmod(state, 4)
        after = min(level + 1, 10) if dose else max(level - 1, 0)
        better = 0.15 + 0.02 * after
        worse = 0.2
        for move, chance in ((-1, better), (1, worse), (0, 1 - better - worse)):
            reached = min(max(grade + move, 0), 3)
            yield chance, after * 4 + reached, -1.0 * grade - 0.2 * dose - 0.03 * after, False

    model = from_outcomes(44, 2, outcomes, np.eye(44)[2])
    target, behavior = np.tile([0.2, 0.8], (4, 1)), np.tile([0.7, 0.3], (4, 1))
    return Problem(FAMILY, "a slow drug", model, target, (behavior,), SIZES, np.arange(44) % 4)


def problems() -> list[Problem]:
    """States of which a part acts faintly and is not logged."""
    return [faint_kinds(), noisy_regime(), overload(), savings(), strikes(), slow_drug()]
