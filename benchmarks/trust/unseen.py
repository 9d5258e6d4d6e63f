"""Unseen causes (report): what wears off or out, learns or was drawn long ago decides, and is not logged."""

from __future__ import annotations

import numpy as np

from trust.model import explore, from_outcomes
from trust.problem import Problem

FAMILY = "unseen causes"


def subscribers() -> Problem:
    """Advertisements annoy (five levels, unseen, forgotten slowly); the annoyed leave for good."""

    def outcomes(state: int, advertise: int):
        annoyed, use = divmod(state, 3)
        leaves = 0.03 + 0.03 * annoyed
        reward = 0.3 + (1.0 + 0.5 * use) * advertise
        yield leaves, state, reward, True
        forgets = 0.0 if advertise else 0.4
        for after, chance in (
            (min(annoyed + advertise, 4), 1 - forgets),
            (max(annoyed - 1, 0), forgets),
        ):
            for step, share in ((-1, 0.25), (0, 0.5), (1, 0.25)):
                yield (1 - leaves) * chance * share, after * 3 + min(max(use + step, 0), 2), reward, False

    model = from_outcomes(15, 2, outcomes, np.eye(15)[1])
    target, behavior = np.tile([0.1, 0.9], (3, 1)), np.tile([0.7, 0.3], (3, 1))
    sizes = ((700, 100), (2800, 100))
    return Problem(FAMILY, "subscribers", model, target, (behavior,), sizes, np.arange(15) % 3)


def river() -> Problem:
    """A reservoir of eight levels on one path; inflow follows a climate of three kinds that last 60 steps."""
    inflow = ((0.40, 0.45, 0.15), (0.30, 0.45, 0.25), (0.15, 0.45, 0.40))
    changes = 1 / 60

    def outcomes(state: int, release: int):
        climate, level = divmod(state, 8)
        held = max(level - 1 - release, 0)
        power = level - held
        for after, lasts in (
            (climate, 1 - changes),
            ((climate + 1) % 3, changes / 2),
            ((climate + 2) % 3, changes / 2),
        ):
            for comes, chance in enumerate(inflow[climate]):
                full = min(held + comes, 7)
                spilled = held + comes - full
                yield lasts * chance, after * 8 + full, power - 2.0 * (full == 0) - 3.0 * spilled, False

    model = from_outcomes(24, 2, outcomes, np.eye(24)[8 + 4])
    level = np.arange(8)
    target = explore(np.eye(2)[(level >= 7).astype(int)], 0.1)
    behavior = explore(np.eye(2)[(level >= 3).astype(int)], 0.5)
    return Problem(
        FAMILY, "a river", model, target, (behavior,), ((1, 10_000), (1, 40_000)), np.arange(24) % 8
    )


def pupils() -> Problem:
    """Pupils of four kinds climb six grades by easy or hard exercises; the kind is not shown."""
    learns = ((0.30, 0.10), (0.25, 0.15), (0.20, 0.25), (0.15, 0.35))

    def outcomes(state: int, hard: int):
        kind, grade = divmod(state, 6)
        better = learns[kind][hard]
        if grade == 5:
            yield better, state, 10.0, True
        else:
            yield better, state + 1, -0.2, False
        discouraged = 0.1 * (1 - learns[kind][hard])
        yield discouraged, kind * 6 + max(grade - 1, 0), -0.4, False
        yield 1 - better - discouraged, state, -0.2, False

    initial = np.zeros(24)
    initial[::6] = 1.0
    model = from_outcomes(24, 2, outcomes, initial)
    target, behavior = np.tile([0.1, 0.9], (6, 1)), np.tile([0.5, 0.5], (6, 1))
    sizes = ((250, 100), (1000, 100))
    return Problem(FAMILY, "pupils of four kinds", model, target, (behavior,), sizes, np.arange(24) % 6)


def learning_opponent() -> Problem:
    """Paper, scissors and stone in long games: one reply in four answers a move of the last four."""

    def outcomes(state: int, move: int):
        memory, shown = divmod(state, 3)
        recalled = [memory // 3**back % 3 for back in range(4)]
        after = memory % 27 * 3 + move
        for reply in range(3):
            answered = sum((one + 1) % 3 == reply for one in recalled) / 4
            chance = 0.25 * answered + 0.75 * (0.5 if reply == shown else 0.25)
            won = (move - reply) % 3
            yield chance, after * 3 + reply, (0.0, 1.0, -1.0)[won] + 0.4 * (move == 2), False

    model = from_outcomes(243, 3, outcomes, np.ones(243))
    target, behavior = np.tile([0.1, 0.1, 0.8], (3, 1)), np.tile([0.4, 0.3, 0.3], (3, 1))
    sizes = ((10, 1000), (40, 1000))
    return Problem(FAMILY, "an opponent who learns", model, target, (behavior,), sizes, np.arange(243) % 3)


def bridge() -> Problem:
    """Heavy loads crack a bridge (nine degrees, unseen) that closes for good the sooner, at a cost of 25."""

    def outcomes(state: int, heavy: int):
        cracks, traffic = divmod(state, 4)
        closes = 0.001 + 0.0015 * cracks**2
        reward = (1.0 + 0.2 * traffic) * (1.0 if heavy else 0.4)
        yield closes, state, reward - 25.0, True
        grows = 0.25 if heavy else 0.01
        for after, chance in ((min(cracks + 1, 8), grows), (cracks, 1 - grows)):
            for step, share in ((0, 0.6), (1, 0.2), (3, 0.2)):
                yield (1 - closes) * chance * share, after * 4 + (traffic + step) % 4, reward, False

    model = from_outcomes(36, 2, outcomes, np.eye(36)[0])
    target, behavior = np.tile([0.2, 0.8], (4, 1)), np.tile([0.8, 0.2], (4, 1))
    sizes = ((160, 400), (640, 400))
    return Problem(FAMILY, "a bridge", model, target, (behavior,), sizes, np.arange(36) % 4)


def soil() -> Problem:
    """Cropping exhausts a soil (seven degrees, unseen) and fallow restores it; yields are noisy."""

    def outcomes(state: int, crop: int):
        rich, price = divmod(state, 4)
        earned = crop * (0.6 + 0.2 * price) * (0.7 + 0.1 * rich)
        moves = ((max(rich - 1, 0), 0.6), (rich, 0.4)) if crop else ((min(rich + 1, 6), 0.5), (rich, 0.5))
        for after, chance in moves:
            for step, share in ((-1, 0.3), (0, 0.4), (1, 0.3)):
                yield chance * share, after * 4 + min(max(price + step, 0), 3), earned - 0.3 * crop, False

    model = from_outcomes(28, 2, outcomes, np.eye(28)[6 * 4 + 1], noise=1.0)
    target, behavior = np.tile([0.2, 0.8], (4, 1)), np.tile([0.55, 0.45], (4, 1))
    sizes = ((200, 50), (800, 50))
    return Problem(FAMILY, "a soil", model, target, (behavior,), sizes, np.arange(28) % 4)


def problems() -> list[Problem]:
    """States of which a cause is not logged."""
    return [subscribers(), river(), pupils(), learning_opponent(), bridge(), soil()]
