"""Veiled states (development): roads, vaccines, fish and the like, in part not logged."""

from __future__ import annotations

import numpy as np

from trust.model import explore, from_outcomes
from trust.problem import Problem

FAMILY = "veiled states"
SIZES = ((100, 100), (400, 100))


def congestion() -> Problem:
    """Two roads between six towns; how full the fast one is (three levels) lasts for 20 steps, unseen."""
    slow, cost = 1 / 20, (1.0, 2.0, 4.0)

    def outcomes(state: int, fast: int):
        town, level = divmod(state, 3)
        spent = cost[level] if fast else 2.2
        moves = ((level, 1 - slow), (min(level + 1, 2), slow / 2), (max(level - 1, 0), slow / 2))
        for after, chance in moves:
            for delay, share in ((0.0, 0.7), (1.5, 0.3)):
                yield chance * share, (town + 1) % 6 * 3 + after, -spent - delay - 0.3 * (town == 4), False

    model = from_outcomes(18, 2, outcomes, np.ones(18))
    target, behavior = np.tile([0.1, 0.9], (6, 1)), np.tile([0.5, 0.5], (6, 1))
    return Problem(FAMILY, "a road that fills up", model, target, (behavior,), SIZES, np.arange(18) // 3)


def waning_vaccine() -> Problem:
    """Protection wanes over eight steps, unseen; what is shown is whether one is ill, and the season."""

    def outcomes(state: int, dose: int):
        immune, shown = divmod(state, 4)
        ill, winter = divmod(shown, 2)
        after = 7 if dose else max(immune - 1, 0)
        catch = (0.05 + 0.2 * winter) * (1 - after / 8)
        sick = 0.5 if ill else catch
        for season, chance in ((winter, 0.95), (1 - winter, 0.05)):
            for falls_ill, share in ((1, sick), (0, 1 - sick)):
                yield chance * share, after * 4 + falls_ill * 2 + season, -2.0 * ill - 0.4 * dose, False

    model = from_outcomes(32, 2, outcomes, np.eye(32)[0])
    target, behavior = np.tile([0.9, 0.1], (4, 1)), np.tile([0.6, 0.4], (4, 1))
    return Problem(FAMILY, "a vaccine that wanes", model, target, (behavior,), SIZES, np.arange(32) % 4)


def fishery() -> Problem:
    """A stock of 0 to 14 that grows and is fished, lightly or hard; the last catch is shown, in thirds."""

    def outcomes(state: int, hard: int):
        stock = state // 3
        most = (3 if hard else 1) * stock // 5
        for luck, share in ((0.0, 0.25), (0.5, 0.5), (1.0, 0.25)):
            taken = round(most * luck)
            left = stock - taken
            grown = left + (1 if 0 < left < 14 else 0)
            for drift, chance in ((0, 0.7), (1, 0.3)):
                after = min(grown + drift * (left > 0) + (left == 0), 14)
                yield share * chance, after * 3 + min(taken, 2), float(taken) - 0.3 * hard, False

    model = from_outcomes(45, 2, outcomes, np.eye(45)[10 * 3])
    target, behavior = np.tile([0.2, 0.8], (3, 1)), np.tile([0.7, 0.3], (3, 1))
    return Problem(FAMILY, "a fishery", model, target, (behavior,), SIZES, np.arange(45) % 3)


def negotiation() -> Problem:
    """Offers, low or high, to partners whose patience (three kinds) is not shown; some leave for good."""
    accepts = ((0.05, 0.6), (0.15, 0.5), (0.3, 0.4))

    def outcomes(state: int, high: int):
        kind, mood = divmod(state, 3)
        deal = accepts[kind][high] * (0.6 + 0.3 * mood)
        yield deal, state, 2.0 if high else 5.0, True
        leaves = 0.02 + 0.04 * (2 - mood)
        yield (1 - deal) * leaves, state, -1.0, True
        for after, chance in ((mood, 0.5), (max(mood - 1, 0), 0.3), (min(mood + 1, 2), 0.2)):
            yield (1 - deal) * (1 - leaves) * chance, kind * 3 + after, -0.1, False

    initial = np.tile([0.0, 0.0, 1.0], 3)
    model = from_outcomes(9, 2, outcomes, initial)
    target, behavior = np.tile([0.9, 0.1], (3, 1)), np.tile([0.4, 0.6], (3, 1))
    sizes = ((1500, 100), (6000, 100))
    return Problem(FAMILY, "a negotiation", model, target, (behavior,), sizes, np.arange(9) % 3)


def two_shifts() -> Problem:
    """Jobs wait at a machine; in the late shift (half of a day of eight steps) it jams more often."""

    def outcomes(state: int, push: int):
        clock, waiting = divmod(state, 6)
        jams = (0.02 + 0.10 * push) * (1.0 if clock < 4 else 3.0)
        for comes, chance in ((1, 0.45), (0, 0.55)):
            for jam, share in ((1, jams), (0, 1 - jams)):
                done = 0 if jam else min(1 + push, waiting)
                after = (clock + 1) % 8 * 6 + min(waiting + comes - done, 5)
                yield chance * share, after, 1.0 * done - 0.4 * waiting - 3.0 * jam, False

    model = from_outcomes(48, 2, outcomes, np.eye(48)[0])
    line = np.arange(6)
    target = explore(np.eye(2)[(line >= 2).astype(int)], 0.1)
    behavior = explore(np.eye(2)[(line >= 4).astype(int)], 0.4)
    return Problem(FAMILY, "two shifts", model, target, (behavior,), SIZES, np.arange(48) % 6)


def earned_trust() -> Problem:
    """Four good deeds in a row earn 3; the count is not shown, and luck undoes a deed now and then."""

    def outcomes(state: int, good: int):
        deeds, weather = divmod(state, 3)
        for sky, chance in ((weather, 0.6), ((weather + 1) % 3, 0.4)):
            if not good:
                yield chance, sky, 0.5 + 0.1 * weather, False
                continue
            for held, share in ((1, 0.85), (0, 0.15)):
                if held and deeds == 3:
                    yield chance * share, sky, 3.0, False
                else:
                    yield chance * share, (deeds + 1) * 3 * held + sky, 0.0, False

    model = from_outcomes(12, 2, outcomes, np.array([1.0] + [0] * 11))
    target, behavior = np.tile([0.1, 0.9], (3, 1)), np.tile([0.6, 0.4], (3, 1))
    return Problem(FAMILY, "trust earned by deeds", model, target, (behavior,), SIZES, np.arange(12) % 3)


def stressed_staff() -> Problem:
    """Overtime tires staff, rest restores it (six levels, unseen); errors cost 10 and grow with fatigue."""

    def outcomes(state: int, overtime: int):
        tired, demand = divmod(state, 3)
        after = min(tired + 1, 5) if overtime else max(tired - 1, 0)
        errs = 0.004 * (1 + tired) ** 1.5
        earned = 1.0 + (0.5 * demand if overtime else 0.0)
        for next_demand, chance in enumerate(((0.6, 0.3, 0.1), (0.3, 0.4, 0.3), (0.1, 0.3, 0.6))[demand]):
            yield chance * (1 - errs), after * 3 + next_demand, earned, False
            yield chance * errs, after * 3 + next_demand, earned - 10.0, False

    model = from_outcomes(18, 2, outcomes, np.eye(18)[0])
    target = explore(np.eye(2)[[0, 1, 1]], 0.1)
    behavior = np.tile([0.65, 0.35], (3, 1))
    return Problem(FAMILY, "tired staff", model, target, (behavior,), SIZES, np.arange(18) % 3)


def problems() -> list[Problem]:
    """States of which a part decides and is not logged."""
    return [
        congestion(), waning_vaccine(), fishery(), negotiation(), two_shifts(), earned_trust(),
        stressed_staff(),
    ]  # fmt: skip
