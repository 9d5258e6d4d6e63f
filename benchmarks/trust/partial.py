"""Partial observation (development): queues, mazes, seasons and the like, shown in part."""

from __future__ import annotations

import numpy as np
from scipy.stats import poisson

from trust.model import explore, from_outcomes
from trust.problem import Problem, maker

FAMILY = "partial observation"
SIZES = ((100, 100), (400, 100))


def bursty_queue() -> Problem:
    """Customers come in calm and in busy times, which last 30 steps on average; only the line is shown."""
    places, rates, served = 12, (0.15, 0.7), (0.3, 0.6)

    def outcomes(state: int, speed: int):
        busy, waiting = divmod(state, places + 1)
        for mode, lasts in ((busy, 1 - 1 / 30), (1 - busy, 1 / 30)):
            for comes, chance in ((1, rates[busy]), (0, 1 - rates[busy])):
                rate = served[speed] if waiting else 0.0
                for done, share in ((1, rate), (0, 1 - rate)):
                    after = min(max(waiting + comes - done, 0), places)
                    reward = -0.3 * waiting - 0.8 * speed
                    yield lasts * chance * share, mode * (places + 1) + after, reward, False

    initial = np.zeros(2 * (places + 1))
    initial[[0, places + 1]] = 1.0
    model = from_outcomes(2 * (places + 1), 2, outcomes, initial)
    line = np.arange(places + 1)
    target = explore(np.eye(2)[(line >= 2).astype(int)], 0.05)
    behavior = explore(np.eye(2)[(line >= 6).astype(int)], 0.3)
    observe = np.arange(2 * (places + 1)) % (places + 1)
    return Problem(FAMILY, "queue with bursts", model, target, (behavior,), SIZES, observe)


def aliased_maze() -> Problem:
    """Two corridors of eight places that look the same; the prize is at the right end of one only.

    Which corridor is drawn at the start; from the wrong end one returns to the entrance of the other.
    """
    length = 8

    def outcomes(state: int, action: int):
        corridor, place = divmod(state, length)
        for direction, chance in ((1 if action else -1, 0.9), (0, 0.1)):
            after = place + direction
            if after < 0:
                after = 0
            if after < length:
                yield chance, corridor * length + after, -0.05, False
            elif corridor == 0:
                yield chance, state, 3.0, True
            else:
                yield chance, 0, -2.0, False

    initial = np.zeros(2 * length)
    initial[[0, length]] = 0.5, 0.5
    model = from_outcomes(2 * length, 2, outcomes, initial)
    target, behavior = np.tile([0.1, 0.9], (length, 1)), np.tile([0.4, 0.6], (length, 1))
    return Problem(FAMILY, "aliased maze", model, target, (behavior,), SIZES, np.arange(2 * length) % length)


def hidden_season() -> Problem:
    """Stock under a demand that changes with a season of twelve steps; only the stock is shown."""
    capacity, seasons = 8, 12
    demand = 2.0 + 1.8 * np.sin(2 * np.pi * np.arange(seasons) / seasons)
    chance = poisson.pmf(np.arange(capacity + 1)[None, :], demand[:, None])

    def outcomes(state: int, order: int):
        season, stock = divmod(state, capacity + 1)
        level = min(stock + order, capacity)
        cost = 1.0 * (level - stock)
        base = (season + 1) % seasons * (capacity + 1)
        for wanted in range(level):
            left = level - wanted
            yield chance[season, wanted], base + left, 3.0 * wanted - cost - 0.3 * left, False
        yield 1.0 - chance[season, :level].sum(), base, 3.0 * level - cost, False

    initial = np.zeros(seasons * (capacity + 1))
    initial[4] = 1.0
    model = from_outcomes(seasons * (capacity + 1), 4, outcomes, initial)
    stock = np.arange(capacity + 1)
    target = explore(np.eye(4)[np.clip(5 - stock, 0, 3)], 0.1)
    behavior = explore(np.eye(4)[np.clip(3 - stock, 0, 3)], 0.4)
    observe = np.arange(seasons * (capacity + 1)) % (capacity + 1)
    return Problem(FAMILY, "hidden season", model, target, (behavior,), SIZES, observe)


def tired_users() -> Problem:
    """Four items; one shown again within two steps is clicked less and drives users away; not shown."""
    items, moods = 4, 3
    appeal = maker(FAMILY, "appeal").uniform(0.3, 0.7, items)

    def outcomes(state: int, item: int):
        mood, memory = divmod(state, items * items)
        before, last = divmod(memory, items)
        worn = (item == last) + (item == before)
        click = appeal[item] * (1.0, 0.5, 0.15)[worn] * (0.7 + 0.15 * mood)
        following = last * items + item
        for clicked, chance in ((1, click), (0, 1 - click)):
            after = min(mood + 1, moods - 1) if clicked else max(mood - 1, 0)
            gone = 0.02 + 0.05 * worn * (1 - clicked)
            yield chance * gone, state, float(clicked), True
            yield chance * (1 - gone), after * items * items + following, float(clicked), False

    initial = np.zeros(moods * items * items)
    initial[items * items : 2 * items * items] = 1.0
    model = from_outcomes(moods * items * items, items, outcomes, initial)
    target = np.tile([0.85, 0.05, 0.05, 0.05], (moods, 1))
    behavior = np.tile([0.25, 0.25, 0.25, 0.25], (moods, 1))
    observe = np.arange(moods * items * items) // (items * items)
    return Problem(FAMILY, "users with memory", model, target, (behavior,), SIZES, observe)


def delayed_drug() -> Problem:
    """A dose works, and harms, two steps later; severity is shown, earlier doses are not."""
    severities = 6

    def outcomes(state: int, dose: int):
        severity, doses = divmod(state, 4)
        earlier, last = divmod(doses, 2)
        better, worse = (0.6, 0.1) if earlier else (0.1, 0.35)
        toxic = earlier and last and dose
        cost = -0.5 * severity - 0.2 * dose - 3.0 * toxic
        after = last * 2 + dose
        for move, chance in ((-1, better), (1, worse), (0, 1 - better - worse)):
            reached = min(max(severity + move, 0), severities - 1)
            yield chance, reached * 4 + after, cost, False

    initial = np.zeros(severities * 4)
    initial[3 * 4] = 1.0
    model = from_outcomes(severities * 4, 2, outcomes, initial)
    severity = np.arange(severities)
    target = explore(np.eye(2)[(severity >= 2).astype(int)], 0.05)
    behavior = np.tile([0.6, 0.4], (severities, 1))
    return Problem(FAMILY, "delayed drug", model, target, (behavior,), SIZES, np.arange(severities * 4) // 4)


def silent_fault() -> Problem:
    """A machine breaks without a sign but its output of the last step, which is noisy; repairs cost 4."""
    # state: broken (2) x output of the last step (bad, fair, good)
    output = ((0.1, 0.3, 0.6), (0.6, 0.3, 0.1))

    def outcomes(state: int, repair: int):
        broken = state // 3
        now = [(1.0, 0)] if repair else [(1.0, 1)] if broken else [(0.05, 1), (0.95, 0)]
        for chance, condition in now:
            for quality, share in enumerate(output[condition]):
                reward = float(quality) - 4.0 * repair
                yield chance * share, condition * 3 + quality, reward, False

    model = from_outcomes(6, 2, outcomes, np.array([0, 0, 1.0, 0, 0, 0]))
    target = np.array([[0.3, 0.7], [0.95, 0.05], [0.99, 0.01]])
    behavior = np.array([[0.8, 0.2], [0.9, 0.1], [0.95, 0.05]])
    return Problem(FAMILY, "silent fault", model, target, (behavior,), SIZES, np.arange(6) % 3)


def coarse_battery() -> Problem:
    """A robot sees whether its battery of 16 levels is low or not; empty, it is towed at a cost of 20."""
    levels = 16

    def outcomes(level: int, action: int):
        if action == 1:
            yield 1.0, min(level + 4, levels - 1), -0.5, False
            return
        for used, chance in ((1, 0.6), (2, 0.3), (3, 0.1)):
            if level - used <= 0:
                yield chance, levels - 1, -20.0, False
            else:
                yield chance, level - used, 1.0, False

    model = from_outcomes(levels, 2, outcomes, np.eye(levels)[levels - 1])
    target = np.array([[0.15, 0.85], [0.98, 0.02]])
    behavior = np.array([[0.7, 0.3], [0.8, 0.2]])
    observe = (np.arange(levels) >= 5).astype(np.int64)
    return Problem(FAMILY, "coarse battery", model, target, (behavior,), SIZES, observe)


def problems() -> list[Problem]:
    """States that are logged only in part."""
    return [
        bursty_queue(), aliased_maze(), hidden_season(), tired_users(), delayed_drug(), silent_fault(),
        coarse_battery(),
    ]  # fmt: skip
